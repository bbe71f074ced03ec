#!/bin/bash
# Trains on so many nodes as --nnodes says; the others stand by, and take the place of a node that is lost. Else as
# requeue.sh.
#
#     sbatch --job-name=gpt --nodes=4-5 configs/slurm/spare.sh --nnodes 4 --nproc-per-node 8 train.py
#
# With --nodes=4-5 the job begins, and begins again, also where only four are free. (With --ntasks-per-node Slurm would
# never give it five.) A lost node does not end the Slurm job (--no-kill), nor does an agent that ends (the other options
# of srun). Each node's output goes to a file, so it does not depend on the node of this shell.
#SBATCH --nodes=2-3 --exclusive --time=24:00:00
#SBATCH --no-kill --requeue --open-mode=append --signal=TERM@300
export run=runs/$SLURM_JOB_NAME${SLURM_ARRAY_TASK_ID:+/$SLURM_ARRAY_TASK_ID}
trap : TERM # Slurm's own notice comes here, too: this shell must see the end
mkdir -p "$run"
rm -f "$run/report.json"

# What the job has ended with: the head's word, which is the same for all nodes.
said() { sed -n 's/^ "code": \([0-9]*\),$/\1/p' "$run/report.json" 2> /dev/null; }
# Again, where the job has saved or has nothing to save; a job that was cancelled is no longer running.
again() {
    [[ $(said) =~ ^(75|143)$ && $(squeue -h -o %T -j "$SLURM_JOB_ID") = RUNNING ]] && scontrol requeue "$SLURM_JOB_ID"
}
# One node. Where the node of the shell below is lost, and srun with it, nobody else ends the Slurm job.
agent() {
    local code srun=$SLURM_LAUNCH_NODE_IPADDR/$SLURM_SRUN_COMM_PORT
    ftlaunch "$@" &
    trap "kill -TERM $!" TERM # with proctrack/cgroup Slurm signals this shell, and not what it has started
    while wait $!; code=$?; kill -0 $! 2> /dev/null; do :; done
    if [ -n "$(said)" ] && ! timeout 5 bash -c ": < /dev/tcp/$srun" 2> /dev/null; then
        case $(said) in 75 | 143) again ;; *) scancel "$SLURM_JOB_ID" ;; esac
    fi
    exit $code
}
export -f said again agent

n=$SLURM_JOB_NUM_NODES
srun --nodes="$n" --ntasks="$n" --no-kill --kill-on-bad-exit=0 --wait=0 --output="$run/node.%t.log" \
    --open-mode=append bash -c 'agent "$@"' agent --run-dir "$run" "$@"
code=$?
again
[ "$(said)" = 0 ] && exit 0
exit $((code ? code : 1))
