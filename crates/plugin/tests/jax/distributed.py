import socket, subprocess, sys

# One process: `systole` works as without jax.distributed; it does not stop others that did not select it.
one = """
import sys, jax, numpy as np
port, count, index, platforms = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
jax.config.update("jax_platforms", platforms or None)
jax.distributed.initialize(f"127.0.0.1:{port}", num_processes=count, process_id=index)
device = jax.local_devices(backend="systole")[0]
x = jax.device_put(np.arange(3.0), device)
print(jax.jit(lambda x: x + 1)(x).tolist())
jax.distributed.shutdown()
"""

# Several processes with devices each: a mesh over all of them.
several = """
import sys, jax, jax.numpy as jnp, numpy as np
from functools import partial
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from jax.experimental import multihost_utils
port, count, index, platforms = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
jax.distributed.initialize(f"127.0.0.1:{port}", num_processes=count, process_id=index)
shard_map = getattr(jax, "shard_map", None) or __import__("jax.experimental.shard_map").experimental.shard_map.shard_map
own = len(jax.local_devices())
n = len(jax.devices())
assert jax.process_count() == count and jax.process_index() == index and n == count * own
assert [d.process_index for d in jax.devices()] == [i // own for i in range(n)]
mesh = Mesh(np.array(jax.devices()), "x")
rows, all_ = NamedSharding(mesh, P("x")), NamedSharding(mesh, P())
values = np.arange(n * 6, dtype=np.float32).reshape(2 * n, 3)
x = jax.make_array_from_callback(values.shape, rows, lambda at: values[at])

def check(made, expected):
    for shard in made.addressable_shards:
        np.testing.assert_allclose(shard.data, np.asarray(expected)[shard.index], rtol=1e-6)

# jit over all devices: sharded and replicated results, results as arguments, donation.
check(jax.jit(lambda x: x * 2 + 1)(x), values * 2 + 1)
check(jax.jit(lambda x: x.T @ x, out_shardings=all_)(x), values.T @ values)
step = jax.jit(lambda x: (x + 1, x.sum()), donate_argnums=0, out_shardings=(rows, all_))
y = jax.jit(lambda x: x + 0, out_shardings=rows)(x)
for i in range(3):
    y, total = step(y)
    assert np.allclose(total.addressable_data(0), (values + i).sum())
check(y, values + 3)
# Shards of a result, of which one process replaces its own.
mine = [s.data + 10 * (index == 1) for s in y.addressable_shards]
mixed = jax.make_array_from_single_device_arrays(values.shape, rows, mine)
expected = values + 3
expected[2 * own : 4 * own] += 10
check(jax.jit(lambda x: x.sum(0), out_shardings=all_)(mixed), expected.sum(0))

# Collectives of shard_map.
mapped = lambda f, out=P("x"): jax.jit(shard_map(f, mesh=mesh, in_specs=P("x"), out_specs=out))
check(mapped(lambda x: jax.lax.psum(x, "x"), P())(x), values.reshape(n, 2, 3).sum(0))
gathered = shard_map(lambda x: jax.lax.all_gather(x, "x", tiled=True)[None], mesh=mesh, in_specs=P("x"), out_specs=P("x"))
check(jax.jit(gathered)(x), np.stack([values] * n))
ring = [(i, (i + 1) % n) for i in range(n)]
check(mapped(lambda x: jax.lax.ppermute(x, "x", ring))(x), np.roll(values, 2, 0))
check(mapped(lambda x: x + jax.lax.axis_index("x"))(x), values + np.arange(n).repeat(2)[:, None])

# A training step, complex numbers, and a program on one process's devices.
def loss(w, x):
    return jnp.mean((x @ w) ** 2)

w = jax.device_put(np.ones((3, 2), np.float32), all_)
check(jax.jit(jax.grad(loss), out_shardings=all_)(w, x), jax.grad(loss)(np.ones((3, 2), np.float32), values))
z = jax.jit(lambda x: jnp.fft.fft(x + 1j), out_shardings=rows)(x)
check(jax.jit(lambda z: jnp.fft.ifft(z).real)(z), values)
assert float(jax.jit(lambda v: v + 1)(jnp.float32(index))) == index + 1

# JAX's helpers.
multihost_utils.sync_global_devices("here")
assert multihost_utils.process_allgather(np.float32([index])).ravel().tolist() == list(range(count))
assert multihost_utils.broadcast_one_to_all(np.float32([index + 5])).tolist() == [5]

# Meshes of other devices: some of each process in order work, other orders are errors that say what to do.
def over(order):
    rows = NamedSharding(Mesh(np.array([jax.devices()[i] for i in order]), "x"), P("x"))
    values = np.arange(2.0 * len(order), dtype=np.float32)
    check(jax.jit(lambda x: x * 2)(jax.make_array_from_callback(values.shape, rows, lambda at: values[at])), values * 2)

refused = {2: [[2, 3, 0, 1], [0, 2, 1, 3]], 4: [[1, 0, 2, 3]]}[count]
for order in refused + {2: [[0, 2], [1, 0, 3, 2], [0, 1, 3]], 4: []}[count]:
    try:
        over(order)
        assert order not in refused, order
    except Exception as e:
        assert order in refused and "jax.devices()" in str(e), (order, e)
if count > 2:
    part = Mesh(np.array(jax.devices()[: 2 * own]), "x")
    if index < 2:
        try:
            jax.jit(lambda x: x + 1)(jax.make_array_from_callback((4 * own,), NamedSharding(part, P("x")), lambda at: np.ones(2)))
            raise SystemExit("no error")
        except Exception as e:
            assert "processes [0, 1]" in str(e) and "jax.local_devices()" in str(e), e
print("good")
multihost_utils.sync_global_devices("end")
jax.distributed.shutdown()
"""


def run(script, count, platforms, devices="1"):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    environment = dict(os.environ, SYSTOLE_DEVICES=devices)
    command = [sys.executable, "-c", script, str(port), str(count)]
    pipe = subprocess.PIPE
    started = [
        subprocess.Popen([*command, str(i), platforms], stdout=pipe, stderr=pipe, text=True, env=environment) for i in range(count)
    ]
    said = [process.communicate(timeout=300) for process in started]
    assert all(process.returncode == 0 for process in started), (said, [process.returncode for process in started])
    return [out for out, _ in said]


assert "[1.0, 2.0, 3.0]" in run(one, 1, "systole,cpu")[0]
for said in run(one, 2, "systole,cpu") + run(one, 2, ""):
    assert "[1.0, 2.0, 3.0]" in said, said
for count, devices in [(2, "2"), (4, "1")]:
    for said in run(several, count, "systole,cpu", devices):
        assert "good" in said, said
