#!/usr/bin/env bash
# Train on 2 nodes with 4 processes each. Submit the same line again after the time limit: it continues where it stopped,
# on another number of nodes too (sbatch --nodes=1 examples/slurm_ddp.sh ...).
#
#     sbatch examples/slurm_ddp.sh /scratch/me/train.zarr /scratch/me/run.pt
#
#SBATCH --job-name=zarrfeed
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --cpus-per-task=8
#SBATCH --time=01:00:00
# On GPUs, add: #SBATCH --gpus-per-task=1
set -euo pipefail

data=$1
checkpoint=$2
shift 2

# Where the ranks meet: the first node of the job, at a port that follows from the job's number.
hostnames=$(scontrol show hostnames "$SLURM_JOB_NODELIST")
MASTER_ADDR=${hostnames%%$'\n'*}
MASTER_PORT=$((20000 + SLURM_JOB_ID % 20000))
export MASTER_ADDR MASTER_PORT

# Since Slurm 22.05, srun does not take --cpus-per-task from sbatch: without this, a task would have a single core.
if [ -n "${SLURM_CPUS_PER_TASK:-}" ]; then export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK; fi

# sbatch runs a copy of this file, so that the script is found from where sbatch was called.
srun python "${SLURM_SUBMIT_DIR}/examples/ddp_torchrun.py" \
  --launcher slurm --data "$data" --checkpoint "$checkpoint" "$@"
