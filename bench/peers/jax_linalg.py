"""Times linear algebra through JAX on Systole and on JAX's CPU, call by call in alternation; prints CPU and wall time.

JAX_PLATFORMS=systole,cpu python jax_linalg.py [--seconds S] [NAME…]
"""

import argparse
import math
import time

import jax
import jax.numpy as jnp
import jax.scipy.linalg as jsl
import numpy as np

jax.config.update("jax_enable_x64", True)

# Rows of a matrix and matrices of a batch.
SIZES = [((), 32), ((), 128), ((), 512), ((64,), 8), ((64,), 32)]
TYPES = {"f32": np.float32, "f64": np.float64, "c64": np.complex64, "c128": np.complex128}


def functions():
    """By name: the function, the operand that it needs, and its largest matrix."""
    symmetric = lambda a: a + jnp.swapaxes(a.conj(), -1, -2)
    positive = lambda a: a @ jnp.swapaxes(a.conj(), -1, -2) + a.shape[-1] * jnp.eye(a.shape[-1], dtype=a.dtype)
    usual = lambda a: a
    return {
        "eigh": (jnp.linalg.eigh, symmetric, 512),
        "svd": (lambda a: jnp.linalg.svd(a, full_matrices=False), usual, 512),
        "svdvals": (lambda a: jnp.linalg.svd(a, compute_uv=False), usual, 512),
        "qr": (jnp.linalg.qr, usual, 512),
        "lu": (jax.lax.linalg.lu, usual, 512),
        "solve": (lambda a: jnp.linalg.solve(a, a[..., :1]), usual, 512),
        "cholesky": (jnp.linalg.cholesky, positive, 512),
        "triangular_solve": (lambda a: jax.lax.linalg.triangular_solve(a, a, left_side=True, lower=True), positive, 512),
        "eig": (jnp.linalg.eig, usual, 128),
        "schur": (lambda a: jax.lax.linalg.schur(a), usual, 128),
        "pivoted_qr": (lambda a: jsl.qr(a, pivoting=True) if a.ndim == 2 else jax.vmap(lambda b: jsl.qr(b, pivoting=True))(a), usual, 512),
    }


def measured(call, seconds):
    """Least CPU and wall time of one call, in ms: groups of calls that take about 5 ms, in alternation."""
    best = {}
    counts = {}
    for platform, f in call.items():
        jax.block_until_ready(f())
        start = time.perf_counter()
        jax.block_until_ready(f())
        counts[platform] = max(1, math.ceil(0.005 / (time.perf_counter() - start)))
    end = time.perf_counter() + seconds
    rounds = 0
    while time.perf_counter() < end or rounds < 3:
        rounds += 1
        for platform, f in call.items():
            wall, cpu = time.perf_counter(), time.process_time()
            for _ in range(counts[platform]):
                jax.block_until_ready(f())
            cpu, wall = (time.process_time() - cpu) / counts[platform], (time.perf_counter() - wall) / counts[platform]
            old = best.get(platform, (math.inf, math.inf))
            best[platform] = min(old[0], cpu), min(old[1], wall)
    return best


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=0.3)
    parser.add_argument("--types", default=",".join(TYPES))
    parser.add_argument("names", nargs="*")
    args = parser.parse_args()
    rng = np.random.default_rng(0)
    ratios = []
    for name, (f, prepare, most) in functions().items():
        if args.names and name not in args.names:
            continue
        for batch, n in SIZES:
            for kind in args.types.split(","):
                if n > most:
                    continue
                dtype = TYPES[kind]
                x = rng.standard_normal((*batch, n, n))
                x = x + 1j * rng.standard_normal(x.shape) if np.dtype(dtype).kind == "c" else x
                call = {}
                for platform in ("systole", "cpu"):
                    device = jax.devices(platform)[0]
                    with jax.default_device(device):
                        a = jax.block_until_ready(jax.jit(prepare)(jax.device_put(x.astype(dtype), device)))
                        call[platform] = lambda f=jax.jit(f), a=a: f(a)
                best = measured(call, args.seconds)
                (cpu, wall), (jax_cpu, jax_wall) = best["systole"], best["cpu"]
                ratios.append(jax_cpu / cpu)
                size = "×".join(map(str, (*batch, n, n)))
                print(f"{name:17} {kind:5} {size:10} systole {cpu * 1e3:9.3f} ms  jax {jax_cpu * 1e3:9.3f} ms  {jax_cpu / cpu:6.2f} x   "
                      f"wall {wall * 1e3:9.3f} {jax_wall * 1e3:9.3f}  {jax_wall / wall:6.2f} x", flush=True)
    print(f"geometric mean {math.exp(sum(map(math.log, ratios)) / len(ratios)):.2f} x of {len(ratios)}, least {min(ratios):.2f}")


main()
