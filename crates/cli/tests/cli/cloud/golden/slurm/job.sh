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
# A training run as a SLURM batch job: sbatch job.sh
#
# 4*a100: the cost depends on the cluster.
# Written by `systole cloud`, with mine.toml. See docs/guide/cloud.md for what was tested.
#
# `gpu:a100` must be the cluster's name for these GPUs (sinfo -o %G).
# `systole` must be in the PATH of the cluster's machines.
# The run is in systole-mine, next to this file; launch-N.log there contains the output of process N.
set -euo pipefail

HOURS=24
CORES=32
COMMAND=(launch --slurm --max-restarts=3 -- train mine.toml --device cuda --out systole-mine --strategy=data_parallel)

cd "${SLURM_SUBMIT_DIR:-$(dirname "$0")}"
start=$(date +%s)
code=0
# The processes prove this secret to each other; srun passes it on.
SYSTOLE_SECRET=$(head -c 32 /dev/urandom | base64)
export SYSTOLE_SECRET
# One task per machine. If a process is killed, its launcher restarts it while the others wait: srun must not end them.
srun --kill-on-bad-exit=0 --wait=0 --cpus-per-task="$CORES" systole "${COMMAND[@]}" || code=$?
# SLURM sends SIGTERM on preemption, and two minutes before the time limit: the run is saved and the program exits with 143.
# A preempted job is requeued. Other errors are not, since they would occur again.
if ((code == 143 && $(date +%s) - start < HOURS * 3600 - 180)); then
    scontrol requeue "$SLURM_JOB_ID"
    exit 0
fi
((code != 143)) || echo "the time limit of $HOURS hours is reached; sbatch job.sh resumes the run" >&2
exit "$code"
