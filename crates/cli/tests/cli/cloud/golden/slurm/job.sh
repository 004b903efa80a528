#!/usr/bin/env bash
#SBATCH --job-name=systole-mine
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=32
#SBATCH --gres=gpu:a100:4
#SBATCH --time=24:00:00
#SBATCH --output=systole-mine-%j.log
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --signal=TERM@120
# A training as a batch job of SLURM: sbatch job.sh
#
# 4*a100: the cluster says what it costs.
# Written by `systole cloud`, with mine.toml. docs/guide/cloud.md says what of it was run, and what only checked.
#
# `gpu:a100` must be the cluster's own name of these GPUs (sinfo -o %G).
# `systole` must be in the PATH of the cluster's machines.
# The run is in systole-mine, beside the file that sbatch was called with; launch-N.log there has what process N said.
set -euo pipefail

HOURS=24
CORES=32
COMMAND=(launch --slurm --max-restarts=3 -- train mine.toml --device cuda --out systole-mine --strategy=data_parallel)

cd "${SLURM_SUBMIT_DIR:-$(dirname "$0")}"
start=$(date +%s)
code=0
# A task for each machine. A launch starts its process again where that is killed, and the others wait for it: srun ends none of them.
srun --kill-on-bad-exit=0 --wait=0 --cpus-per-task="$CORES" systole "${COMMAND[@]}" || code=$?
# SLURM sends SIGTERM when the machines are wanted back, and two minutes before the time is over: the run is saved, and the program
# ends with 143. What was taken back goes on when it is its turn again. An error would only come again.
if ((code == 143 && $(date +%s) - start < HOURS * 3600 - 180)); then
    scontrol requeue "$SLURM_JOB_ID"
    exit 0
fi
((code != 143)) || echo "$HOURS hours are over; sbatch job.sh goes on where the run was" >&2
exit "$code"
