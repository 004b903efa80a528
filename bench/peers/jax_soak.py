"""Soak test of Systole's plugin through JAX; prints one line per part, and exits with 1 if a part fails.

JAX_PLATFORMS=systole,cpu python jax_soak.py [--executions N] [PART…]
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import threading
import time


def resident():
    """Resident memory of this process in MiB."""
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def shapes(executions):
    """Executions of compiled programs with 60 shapes that grow and shrink: memory after the first tenth and at the end."""
    import jax
    import jax.numpy as jnp

    step = jax.jit(lambda x, y: (jnp.tanh(x @ x.T)[: x.shape[0] // 2 + 1] + y, x.sum()))
    sizes = [int(1.08**i) + i % 3 + 1 for i in range(60)]
    args = [(jnp.ones((n, 8)), jnp.float32(n)) for n in sizes]
    order = list(range(60)) + list(range(59, -1, -1))
    random.seed(0)
    start = time.time()
    early = at = 0
    for at in range(executions):
        # In order, and now and then at random.
        k = order[at % 120] if at % 7 else random.randrange(60)
        made = step(*args[k])
        if at % 500 == 0:
            jax.block_until_ready(made)
        if at == executions // 10:
            early = resident()
    jax.block_until_ready(made)
    late, seconds = resident(), time.time() - start
    print(f"shapes: {executions} executions in {seconds:.0f} s, resident memory {early:.0f} MiB after a tenth, {late:.0f} MiB at the end")
    return late - early < 20


def compiles(executions):
    """Programs that are compiled and dropped."""
    import jax
    import jax.numpy as jnp

    count = max(200, executions // 1000)
    early = 0
    for i in range(count):
        jax.block_until_ready(jax.jit(lambda x: jnp.sin(x * i) @ x.T)(jnp.ones((i % 37 + 1, 5))))
        if i % 50 == 49:
            jax.clear_caches()
        if i == count // 2:
            early = resident()
    late = resident()
    print(f"compiles: {count} programs, resident memory {early:.0f} MiB after half, {late:.0f} MiB at the end")
    return late - early < 30


def kept(executions):
    """Different programs that stay compiled: resident memory that each adds, with what JAX keeps for it."""
    import gc

    import jax
    import jax.numpy as jnp

    def small(i):
        return lambda x: jnp.sin(x) * float(i) + jnp.sum(x)

    def gradients(i):
        def loss(w, x, y):
            return jnp.mean((jnp.tanh(x @ w[0] + float(i)) @ w[1] - y) ** 2)

        return lambda x: jax.value_and_grad(loss)((jnp.ones((8, 16)), jnp.ones((16, 4))), x.reshape(1, 8), jnp.ones((1, 4)))

    def scan(i):
        def step(c, v):
            k = jax.random.normal(jax.random.key(i), c.shape)
            return c * 0.5 + v + k, jnp.sum(c)

        return lambda x: jax.lax.scan(step, x, jnp.ones((10, 8)))

    x = jnp.ones(8)
    programs = []
    for name, make in [("small", small), ("gradients", gradients), ("scan", scan)]:
        for i in range(-5, 60):
            if i == 0:
                gc.collect()
                before = resident()
            lowered = jax.jit(make(i)).lower(x)
            programs.append(lowered.compile())
            jax.block_until_ready(programs[-1](x))
            del lowered
        gc.collect()
        print(f"kept: {name}: {1024 * (resident() - before) / 60:.0f} KiB for each of 60 programs")
    return True


def threads(executions):
    """16 Python threads dispatch programs and check their results."""
    import jax
    import jax.numpy as jnp

    each = max(100, executions // 200)
    wrong = []
    f = jax.jit(lambda x, k: (x * k).sum())

    def work(t):
        try:
            for i in range(each):
                n = (t * 31 + i) % 50 + 1
                made = float(f(jnp.full((n, 4), 2.0), float(i % 9)))
                if made != 8.0 * n * (i % 9):
                    wrong.append((t, i, made))
        except Exception as e:
            wrong.append((t, str(e)))

    all_ = [threading.Thread(target=work, args=(t,)) for t in range(16)]
    start = time.time()
    [t.start() for t in all_]
    [t.join() for t in all_]
    print(f"threads: 16 threads, {16 * each} executions in {time.time() - start:.0f} s, {len(wrong)} wrong {wrong[:3]}")
    return not wrong


def run(script, seconds=60, **options):
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=seconds, **options)


def fork(_):
    """A child of fork computes, or ends with an error, but does not hang; the parent goes on."""
    script = """
import os, signal, sys, jax, jax.numpy as jnp
big = jnp.ones((400, 400))
f = jax.jit(lambda x: (x @ x).sum())
print(float(f(big)), flush=True)
child = os.fork()
if child == 0:
    signal.alarm(20)
    # The interpreter's exit would wait for threads of JAX, on JAX's CPU backend too.
    try:
        os._exit(0 if float(f(big)) == 400.0 ** 3 else 3)
    except Exception:
        os._exit(9)
_, status = os.waitpid(child, 0)
assert float(f(big)) == 400.0 ** 3
print("child", "exit", os.WEXITSTATUS(status)) if os.WIFEXITED(status) else print("child", "signal", os.WTERMSIG(status))
"""
    out = run(script)
    said = out.stdout.strip().splitlines()[-1:] or [out.stderr[-300:]]
    print(f"fork: parent exit {out.returncode}; {said[0]}")
    return out.returncode == 0 and "signal 14" not in said[0]


def exit(_):
    """The interpreter ends with status 0 while programs run, threads compute and arrays are alive. (A daemon thread in JAX aborts the
    interpreter at its exit, on JAX's CPU backend too.)"""
    script = """
import threading, jax, jax.numpy as jnp
x = jnp.ones((300, 300))
long = jax.jit(lambda x: jax.lax.fori_loop(0, 200, lambda i, s: s @ x / 300, x))
kept = [long(x) for _ in range(5)]
def work():
    for _ in range(50):
        long(x)
threading.Thread(target=work).start()
import numpy as np
view = np.from_dlpack(x)
"""
    found = []
    for _ in range(5):
        out = run(script)
        found.append((out.returncode, out.stderr.strip().splitlines()[-1:]))
    codes = [code for code, _ in found]
    print(f"exit: statuses {codes} {[text for code, text in found if code]}")
    return codes == [0] * 5


def interrupt(_):
    """Ctrl-C ends a program that would run for minutes."""
    script = """
import jax, jax.numpy as jnp
x = jnp.ones((500, 500))
f = jax.jit(lambda x: jax.lax.fori_loop(0, 10**6, lambda i, s: s @ x / 500, x))
c = f.lower(x).compile()
print("go", flush=True)
jax.block_until_ready(c(x))
"""
    # A background shell ignores the signal, and its processes inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    process.stdout.readline()
    time.sleep(2)
    start = time.time()
    process.send_signal(signal.SIGINT)
    try:
        process.wait(timeout=30)
        took = time.time() - start
    except subprocess.TimeoutExpired:
        process.kill()
        took = float("inf")
    print(f"interrupt: ended {took:.2f} s after Ctrl-C with status {process.returncode}")
    return took < 1


PARTS = {f.__name__: f for f in [shapes, compiles, kept, threads, fork, exit, interrupt]}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--executions", type=int, default=1_000_000)
    parser.add_argument("parts", nargs="*", choices=[[], *PARTS])
    args = parser.parse_args()
    failed = [name for name in args.parts or PARTS if not PARTS[name](args.executions)]
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


main()
