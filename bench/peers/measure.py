"""What the Python peers share: their command line, how steps are timed, and the JSON line of a result.

A peer is called as `PEER.py WORKLOAD [options]`, measures complete steps on synthetic data that stays in memory, and
prints one JSON object per line with the keys of `systole bench`. Standard library only, and no framework is imported
here: the environment must be set before one is.
"""

import argparse
import json
import os
import statistics
import sys
import time

TICKS = os.sysconf("SC_CLK_TCK")

# What one step counts for `value`, and its unit; without an entry the value is milliseconds per step.
RATES = {
    "resnet50": (16, "images/s"),
    "resnet50-inference": (16, "images/s"),
    "gpt2-small": (4 * 256, "tokens/s"),
    "gpt2-small-inference": (4 * 256, "tokens/s"),
}

# Samples in a step.
BATCHES = {
    "fashion-cnn": 1000,
    "mlp": 128,
    "cifar-cnn": 128,
    "resnet50": 16,
    "resnet50-inference": 16,
    "gpt2-small": 4,
    "gpt2-small-inference": 4,
    "lstm": 64,
}

GEMM_SIZES = (512, 1024, 2048, 4096)

# The element-wise workload: rows and columns of the input of gelu, softmax and layernorm, and weights that Adam updates.
ROWS, COLUMNS = 16384, 1024
WEIGHTS = 8 << 20
# Bytes that must pass between processor and memory, every operand read or written once: Adam reads weights, gradients
# and both moments and writes all but the gradients, the others read one array and write one.
ADAM_BYTES = 7 * 4 * WEIGHTS
PASSED_ELEMENTS = 2 * ROWS * COLUMNS

VOCABULARY, TOKENS, WIDTH, HEADS, BLOCKS = 50257, 256, 768, 12, 12
LSTM_TOKENS, LSTM_UNITS, LSTM_VOCABULARY = 100, 256, 256
# Width, blocks and first stride; the stride lies in the first 1×1 of a block, as in Keras's ResNet50.
RESNET_STAGES = ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2))


class Skip(Exception):
    """The peer cannot do this workload; the message says why."""


def arguments():
    """The command line of every peer; also sets the number of threads of OpenMP and its like."""
    p = argparse.ArgumentParser()
    p.add_argument("workload", help="gemm-2048 or elementwise-adam: only that part")
    p.add_argument("--precision", default="float32", help="float32 or mixed_bfloat16; of gemm: float32, bfloat16 or int8")
    p.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    p.add_argument("--seconds", type=float, default=10, help="time for the measured steps, warm-up not counted")
    p.add_argument("--batch", type=int)
    p.add_argument("--device", default="cpu", help="cpu or cuda; of JAX and PyTorch")
    p.add_argument("--filters", type=int, default=64, help="of fashion-cnn")
    p.add_argument("--kernel", type=int, default=3, help="of fashion-cnn")
    p.add_argument("--pool", choices=["max", "average"], default="max", help="of fashion-cnn")
    p.add_argument("--activation", choices=["relu", "gelu", "tanh"], default="relu", help="of fashion-cnn and mlp")
    p.add_argument("--units", type=int, default=512, help="of mlp")
    p.add_argument("--mode", default="", help="the peer's own way to run; see its file")
    a = p.parse_args()
    a.part = a.workload if a.workload.startswith(("gemm-", "elementwise-")) else None
    a.workload = a.workload.split("-")[0] if a.part else a.workload
    a.bf16 = a.precision == "mixed_bfloat16"
    a.batch = a.batch or BATCHES.get(a.workload, 1)
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS"):
        os.environ[name] = str(a.threads)
    # JAX has no setting for it: it makes as many threads as there are cores to run on.
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: a.threads])
    return a


def by_name(*builders):
    """The functions that build a workload's model, by the workload's name."""
    return {f.__name__.replace("_", "-"): f for f in builders}


def busy_seconds():
    """Processor seconds that everything on the machine has used since it started."""
    with open("/proc/stat") as f:
        v = [int(x) for x in f.readline().split()[1:9]]
    return (sum(v) - v[3] - v[4]) / TICKS  # all but idle and waiting for disks


def own_seconds():
    return sum(os.times()[:4])


def peak_rss_mib():
    """The largest resident memory of this process; getrusage would also count the process that started it."""
    with open("/proc/self/status") as f:
        kib = next(int(line.split()[1]) for line in f if line.startswith("VmHWM"))
    return round(kib / 1024, 1)


def time_steps(step, seconds, warm=3, least=3, most=2000):
    """Times of single steps in seconds, and the cores that others used meanwhile.

    `step` returns when its result is there. After `warm` steps (fewer where they take longer than `seconds`), steps are
    timed until `seconds` have passed, at least `least` of them.
    """
    start = time.perf_counter()
    for i in range(warm):
        step()
        if i > 0 and time.perf_counter() - start > seconds:
            break
    taken, busy, own, start = [], busy_seconds(), own_seconds(), time.perf_counter()
    while len(taken) < most and (len(taken) < least or time.perf_counter() - start < seconds):
        t = time.perf_counter()
        step()
        taken.append(time.perf_counter() - t)
    wall = time.perf_counter() - start
    others = (busy_seconds() - busy) - (own_seconds() - own)
    return taken, round(max(0.0, others / wall), 2)


def parts(a, names):
    """Those of a workload's parts that were asked for."""
    if a.part and a.part not in names:
        raise Skip(f"no part {a.part}; all: {', '.join(names)}")
    return [a.part] if a.part else names


def gemm(a, peer, prepare):
    """Products of all sizes; `prepare(n, precision)` gives the step for n × n matrices."""
    sizes = {f"gemm-{n}": n for n in GEMM_SIZES}
    names = parts(a, list(sizes))
    for name in names:
        timed = time_steps(prepare(sizes[name], a.precision), a.seconds / len(names))
        report(a, peer, [], timed, name, (2 * sizes[name] ** 3 / 1e9, "GFLOP/s"))


def elementwise(a, peer, steps):
    """`steps`: for each of adam, gelu, softmax and layernorm the step."""
    # Weights and moments are f32 in either precision.
    names = parts(a, [f"elementwise-{op}" for op in steps if op != "adam" or not a.bf16])
    for name in names:
        op = name.split("-")[1]
        amount = ADAM_BYTES if op == "adam" else PASSED_ELEMENTS * (2 if a.bf16 else 4)
        report(a, peer, [], time_steps(steps[op], a.seconds / len(names)), name, (amount / 1e9, "GB/s"))


def report(a, peer, settings, timed, workload=None, rate=None):
    """Prints the line of one measurement. `rate` is (amount in a step, unit) where the value is a rate."""
    taken, others = timed
    median, best = statistics.median(taken), min(taken)
    if rate is None and a.workload in RATES:
        per_sample = RATES[a.workload][0] / BATCHES[a.workload]
        rate = (per_sample * a.batch, RATES[a.workload][1])
    value, unit = (rate[0] / median, rate[1]) if rate else (median * 1e3, "ms/step")
    line = {
        "workload": workload or a.workload,
        "precision": a.precision,
        "value": round(value, 3),
        "unit": unit,
        "ms_per_step": round(median * 1e3, 4),
        "best_ms": round(best * 1e3, 4),
        "peak_rss_mib": peak_rss_mib(),
        "threads": a.threads,
        "peer": peer,
        "settings": ", ".join(settings + (["tcmalloc"] if "tcmalloc" in os.environ.get("LD_PRELOAD", "") else [])),
        "cores_others": others,
        "steps": len(taken),
    }
    print(json.dumps(line), flush=True)


def main(a, peer, run):
    """Runs `run()`; a workload that the peer cannot do ends with a line and status 3."""
    try:
        run()
    except Skip as why:
        print(f"SKIPPED {peer} {a.workload} {a.precision}: {why}", file=sys.stderr)
        sys.exit(3)
