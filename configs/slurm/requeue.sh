#!/bin/bash
# Saves before the time limit, or when a job of higher priority wants the nodes, and is queued again to go on there.
#
#     sbatch --job-name=gpt --nodes=3 configs/slurm/requeue.sh --nproc-per-node 8 train.py
#
# The run dir is ./runs/JOB-NAME, which all nodes share; or, in a folder that is given as RUNS, a run dir of each node's own
# (docs/guide/slurm.md). The notice must leave time for the checkpoint: --signal.
#SBATCH --nodes=2 --ntasks-per-node=1 --exclusive --time=24:00:00
#SBATCH --requeue --open-mode=append --signal=TERM@300
run=${RUNS:-runs}/$SLURM_JOB_NAME${SLURM_ARRAY_TASK_ID:+/$SLURM_ARRAY_TASK_ID}
trap : TERM # Slurm's own notice comes here, too: this shell must see the end
rm -f "$run/report.json"
srun ftlaunch --run-dir "$run" "$@"
code=$?

# What srun says is the largest code of all agents: the head's word is in report.json.
said=$(sed -n 's/^ "code": \([0-9]*\),$/\1/p' "$run/report.json" 2> /dev/null)
case ${said:-$code} in
    75 | 143) # saved, or nothing to save: run me again. A job that was cancelled is no longer running.
        [ "$(squeue -h -o %T -j "$SLURM_JOB_ID")" = RUNNING ] && scontrol requeue "$SLURM_JOB_ID" ;;
esac
[ "$said" = 0 ] && exit 0
exit $((code ? code : 1))
