#!/bin/bash
# One job on all nodes of the allocation; what Slurm says about nodes is all that ftlaunch needs.
#
#     sbatch --nodes=3 configs/slurm/plain.sh --nproc-per-node 8 train.py
#
# The run dir is in ./runs, which all nodes must share.
#SBATCH --nodes=2 --ntasks-per-node=1 --exclusive
srun ftlaunch "$@"
