# Two clients in a process, each with devices of its own.
from jax._src.lib import xla_client
other = xla_client.make_c_api_client('systole', {'num_devices': 3}, None)
assert len(other.local_devices()) == 3 and len(jax.devices()) == 2
mine, theirs = jax.devices()[1], other.local_devices()[2]
x = jax.device_put(np.arange(4.), mine)
failed = []
def work(device):
    try:
        for i in range(20):
            y = jax.jit(lambda x: x * 2 + i)(jax.device_put(np.arange(4.), device))
            close(y, np.arange(4.) * 2 + i)
            assert y.devices() == {device}
    except BaseException as e:
        failed.append(e)
threads = [threading.Thread(target=work, args=(d,)) for d in (mine, theirs, mine, theirs)]
[t.start() for t in threads]
[t.join() for t in threads]
assert not failed, failed
close(jax.device_put(jax.device_put(np.arange(4.), theirs), mine), np.arange(4.))
# A client that is dropped while its arrays live, and one in its place.
from jax.extend.backend import clear_backends
clear_backends()
close(jnp.arange(3.) + 1, [1, 2, 3])
close(x, np.arange(4.))
# Nobody waits for this run: the process ends all the same.
jax.jit(lambda w: jax.lax.fori_loop(0, 20, lambda i, w: w @ w.T * 0.001 + 1, w))(jnp.ones((300, 300)))
