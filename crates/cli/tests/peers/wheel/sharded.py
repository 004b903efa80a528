"""A training loop over eight devices, with its batch split between them, beside the same loop on NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

assert jax.device_count() == 8
mesh = Mesh(np.array(jax.devices()).reshape(4, 2), ("data", "model"))
r = np.random.default_rng(1)
x, target = r.normal(size=(32, 6)).astype(np.float32), r.normal(size=(32, 4)).astype(np.float32)
w = r.normal(size=(6, 4)).astype(np.float32) * 0.1
batch, weights = NamedSharding(mesh, P("data")), NamedSharding(mesh, P(None, "model"))


def loss(w, x, t):
    return jnp.mean((x @ w - t) ** 2)


@jax.jit
def step(w, x, t):
    value, g = jax.value_and_grad(loss)(w, x, t)
    return w - 0.1 * g, value


ours, theirs = jax.device_put(w, weights), w.copy()
xs, ts = jax.device_put(x, batch), jax.device_put(target, batch)
for _ in range(20):
    ours, value = step(ours, xs, ts)
    difference = x @ theirs - target
    expected = np.mean(difference**2)
    theirs = theirs - 0.1 * 2 * x.T @ difference / difference.size
    np.testing.assert_allclose(float(value), expected, rtol=1e-4)
np.testing.assert_allclose(np.asarray(ours), theirs, rtol=1e-3, atol=1e-5)
assert len(xs.addressable_shards) == 8 and xs.addressable_shards[0].data.shape == (8, 6)
print("the end")
