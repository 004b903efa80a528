#!/usr/bin/env bash
#SBATCH --job-name=my-run
#SBATCH --nodes=4
#SBATCH --ntasks=4
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=16
#SBATCH --time=8:00:00
#SBATCH --output=my-run-%j.log
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --signal=TERM@120
# A training run as a SLURM batch job: sbatch job.sh
#
# 16*cpu (4 machines of 16 cores): the cost depends on the cluster.
# Written by `systole cloud`. See docs/guide/cloud.md for what was tested.
#
# `systole` must be in the PATH of the cluster's machines, and all machines must see this folder.
# The run is in my-run, next to this file; launch-N.log there contains the output of process N.
set -euo pipefail

HOURS=8
CORES=16
COMMAND=(launch --slurm --max-restarts=3 --show=0 -- train mlp --out my-run --strategy=data_parallel --batch-size 512)

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
