"""Writes a training step of JAX as text and as a portable artifact, arguments for it, and what JAX computes of them."""
import jax
import jax.numpy as jnp
import numpy as np
from jax import export
jax.config.update("jax_platforms", "cpu")

def loss(w1, w2, x, y):
    h = jax.nn.gelu(x @ w1)
    logits = h @ w2
    return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits), y[:, None], 1))

def step(w1, w2, x, y):
    value, (d1, d2) = jax.value_and_grad(loss, (0, 1))(w1, w2, x, y)
    order = jnp.sort((x[:, 0] * 100).astype("i4"))
    total, _ = jax.lax.scan(lambda c, row: (c * 0.5 + row.sum(), None), jnp.float32(0), x)
    spectrum = x[0] + 1j * x[1]
    return value, d1, d2, order, total, spectrum * spectrum, x.astype(jnp.bfloat16)

rng = np.random.default_rng(0)
args = [rng.normal(size=s).astype("f4") for s in [(8, 16), (16, 4), (6, 8)]] + [rng.integers(0, 4, 6).astype("i4")]
f = jax.jit(step)
open("step.mlir", "w").write(f.lower(*args).as_text())
open("step.bc", "wb").write(export.export(f)(*args).mlir_module_serialized)
np.savez("in.npz", *args)
np.savez("want.npz", **{f"out{i}": np.asarray(v) for i, v in enumerate(f(*args))})
