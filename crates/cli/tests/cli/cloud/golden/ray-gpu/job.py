# Ray job: runs the program once on each machine and waits for all.
#
# 8*h100: $34.32 per hour on demand in lambda (price of 2026-11-22), at most $275 in 8 h.
# Written by `systole cloud`, with mine.toml. See docs/guide/cloud.md for what was tested.
#
#   ray job submit --working-dir . -- python job.py
#
# Ray's cluster must have the chips, and each machine the program `systole` in its PATH.
# See docs/guide/cloud.md for the commands.

import os
import shutil
import subprocess
import sys
import time

import ray
from ray.exceptions import RayError

NAME = "systole-mine"
BUCKET = ""
COMMAND = ["systole", "train", "mine.toml", "--device", "cuda", "--out", "RUN", "--strategy=data_parallel"]
SLICE = None  # slice type in the name of Ray's resource of its first machine; None: GPUs
SLICES = 1
MACHINES = 1  # per slice
RESOURCES = {"GPU": 8}  # per machine
MAX_SECONDS = 28800
SPOT = False
# Folder where every machine mounts the bucket: gcsfuse --implicit-dirs BUCKET FOLDER
FOLDER = os.environ.get("SYSTOLE_RUNS", f"/mnt/{BUCKET}" if BUCKET else os.path.expanduser("~/systole-runs"))
# Seconds allowed for the program to save the run.
GRACE = 60


@ray.remote(num_cpus=0)
class First:
    """Reserves the first machine of a slice for this run."""

    def where(self):
        """Returns the resource name shared by all machines of this slice, and the address of this machine."""
        from ray.util.accelerators import tpu

        return tpu.get_current_pod_name(), ray.util.get_node_ip_address()


@ray.remote(num_cpus=1, max_retries=0)
def train(variables, until):
    """Runs the program on one machine and returns its exit code or an error; output goes to Ray's log."""
    if not shutil.which(COMMAND[0]):
        return f"{COMMAND[0]} is not in the PATH of this machine"
    if BUCKET and not os.path.ismount(FOLDER):
        return f"the bucket is not mounted: gcsfuse --implicit-dirs {BUCKET} {FOLDER}"
    words = [os.path.join(FOLDER, NAME) if word == "RUN" else word for word in COMMAND]
    process = subprocess.Popen(words, env={**os.environ, **variables})
    try:
        return process.wait(max(until - time.time(), 1))
    except subprocess.TimeoutExpired:
        process.terminate()
    try:
        process.wait(GRACE)
    except subprocess.TimeoutExpired:
        process.kill()
    return "time limit reached"


def machines():
    """Returns the reserved first machines, and for each machine its Ray options and the program's environment variables."""
    if "GPU" in RESOURCES:
        return [], [({"num_gpus": RESOURCES["GPU"]}, {})]
    if MACHINES == 1:
        return [], [({"resources": RESOURCES}, {})]
    firsts = [First.options(resources={f"TPU-{SLICE}-head": 1}).remote() for _ in range(SLICES)]
    places = ray.get([first.where.remote() for first in firsts])
    found = []
    for number, (slice_name, _) in enumerate(places):
        variables = {}
        if SLICES > 1:
            variables = {
                "MEGASCALE_COORDINATOR_ADDRESS": places[0][1],
                "MEGASCALE_PORT": "8081",
                "MEGASCALE_NUM_SLICES": str(SLICES),
                "MEGASCALE_SLICE_ID": str(number),
            }
        # Each machine has one unit of the slice's resource, so each gets one process.
        found += [({"resources": {**RESOURCES, slice_name: 1}}, variables)] * MACHINES
    return firsts, found


def run(until):
    """Runs the program on all machines and returns each exit code or error."""
    firsts, found = machines()
    try:
        return ray.get([train.options(**asked).remote(variables, until) for asked, variables in found])
    finally:
        for first in firsts:
            ray.kill(first)


def main():
    ray.init(address="auto")
    until = time.time() + MAX_SECONDS
    while True:
        try:
            codes = run(until)
            # Preemption ends the program with a signal.
            taken = SPOT and any(code in (-15, 130, 143) for code in codes)
        except RayError as lost:
            if not SPOT:
                sys.exit(f"a machine was lost; submit the same job to resume from the last backup: {lost}")
            codes, taken = [str(lost)], True
        if not taken or time.time() >= until:
            break
        print("machines were preempted: resuming from the last backup when others are available", flush=True)
        time.sleep(10)
    if any(codes):
        sys.exit(f"the run failed on its machines: {codes}; submit the same job to resume")


if __name__ == "__main__":
    main()
