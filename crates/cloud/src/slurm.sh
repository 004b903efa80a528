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
