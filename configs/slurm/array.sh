#!/bin/bash
# An array: each task is a job of its own, with a run dir of its own. When the same array is submitted again, each task
# goes on where it was.
#
#     sbatch --nodes=2 --array=0-3 --job-name=sweep configs/slurm/array.sh --nproc-per-node 8 train.py
#
# The script reads SLURM_ARRAY_TASK_ID. An array that is to be one job in pieces (--array=0-9%1) gives `--job-id` itself.
#SBATCH --nodes=1 --ntasks-per-node=1 --exclusive --array=0-1
srun ftlaunch "$@"
