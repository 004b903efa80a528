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
