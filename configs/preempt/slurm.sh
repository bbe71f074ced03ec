#!/bin/sh
# Does Slurm take this job's nodes away? Ends with 0 for yes, 1 for no, 2 where Slurm cannot be asked.
#
#     ftlaunch --preempt-when 'sh configs/preempt/slurm.sh' --preempt-every 30s train.py
#
# `#SBATCH --signal=TERM@180` is better where it can be had: Slurm says so itself, and nobody has to ask the controller.
# PREEMPT_SQUEUE names another squeue.
state=$("${PREEMPT_SQUEUE:-squeue}" -h -o %T -j "${SLURM_JOB_ID:?this is no Slurm job}") || exit 2
case $state in
    *PREEMPTED* | *COMPLETING* | *STOPPED* | *SUSPENDED*) exit 0 ;;
    *) exit 1 ;;
esac
