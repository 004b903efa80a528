from jax.experimental import io_callback

shard_map = getattr(jax, "shard_map", None)
if shard_map is None:
    from jax.experimental.shard_map import shard_map
said = []
lock = threading.Lock()


def say(x):
    with lock:
        said.append(np.asarray(x).tolist())


def check(*expected):
    jax.effects_barrier()
    assert sorted(said) == sorted(expected), said
    said.clear()


m = mesh(8)
x = jax.device_put(np.arange(8.0, dtype=np.float32), NamedSharding(m, P("x")))

# A program on global arrays calls once, with the whole array.
doubled = jax.jit(lambda x: jax.debug.callback(say, x) or x * 2)
assert doubled(x).tolist() == [2.0 * i for i in range(8)]
check(list(range(8)))
shape = jax.ShapeDtypeStruct((8,), np.float32)
close(jax.jit(lambda x: jax.pure_callback(lambda x: np.asarray(x)[::-1], shape, x) + x)(x), np.full(8, 7))

# A manual computation calls on each device, with its shard.
own = jax.jit(shard_map(lambda x: jax.debug.callback(say, x[0]) or x + 1, mesh=m, in_specs=P("x"), out_specs=P("x")))
assert own(x).tolist() == list(range(1, 9))
check(*range(8))
one = jax.ShapeDtypeStruct((1,), np.float32)
parts = shard_map(lambda x: jax.pure_callback(lambda x: np.asarray(x) ** 2, one, x), mesh=m, in_specs=P("x"), out_specs=P("x"))
close(jax.jit(parts)(x), np.arange(8) ** 2)
close(jax.jit(lambda x: jax.lax.fori_loop(0, 2, lambda i, x: parts(x), x))(x), np.arange(8) ** 4)
shard_map_of_nothing = shard_map(lambda: jax.debug.callback(say, 1) or jnp.zeros(()), mesh=m, in_specs=(), out_specs=P())
jax.jit(shard_map_of_nothing)()
check(*[1] * 8)


# Calls around a manual computation run once, and their results reach all devices.
def mixed(x):
    jax.debug.callback(say, 100)
    x = parts(x)
    return x + io_callback(lambda: say(200) or np.full(8, 5, np.float32), shape)


close(jax.jit(mixed)(x), np.arange(8) ** 2 + 5)
check(100, 200)


# An exception on one device ends the run on all.
def refuse(x):
    if x[0] == 3:
        raise ValueError("device three refuses")
    return np.asarray(x)


sums = shard_map(
    lambda x: jax.lax.psum(jax.pure_callback(refuse, one, x), "x"), mesh=m, in_specs=P("x"), out_specs=P())
try:
    jax.block_until_ready(jax.jit(sums)(x))
except Exception as e:
    assert "device three refuses" in str(e), e
else:
    raise AssertionError("no error")
assert doubled(x).tolist() == [2.0 * i for i in range(8)]
said.clear()

jax.pmap(lambda x: jax.debug.callback(say, x))(np.arange(8.0, dtype=np.float32))
check(*range(8))

# The mesh that the caller set does not hold in a callback, which may run JAX programs on its arrays.
if hasattr(jax, "set_mesh"):
    with jax.set_mesh(m):
        rows = shard_map(lambda a: jax.pure_callback(lambda a: a + 1, jax.ShapeDtypeStruct(a.shape, a.dtype), a), mesh=m, in_specs=P("x"), out_specs=P("x"))
        assert jax.jit(rows)(x).tolist() == [i + 1.0 for i in range(8)]
        assert jax.sharding.get_abstract_mesh().axis_names == m.axis_names
