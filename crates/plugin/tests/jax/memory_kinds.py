from jax.sharding import SingleDeviceSharding
device = jax.devices()[0]
assert [m.kind for m in device.addressable_memories()] == ['device', 'pinned_host', 'unpinned_host']
assert device.default_memory().kind == 'device'
for kind in ['device', 'pinned_host', 'unpinned_host']:
    place = SingleDeviceSharding(device, memory_kind=kind)
    x = jax.device_put(np.arange(4, dtype=np.float32), place)
    y = jax.jit(lambda x: x * 2, out_shardings=place)(x)
    back = jax.device_put(y, SingleDeviceSharding(device, memory_kind='device'))
    assert x.sharding.memory_kind == y.sharding.memory_kind == kind and back.sharding.memory_kind == 'device'
    assert y.tolist() == back.tolist() == [0, 2, 4, 6]
    spread = NamedSharding(mesh(2), P('x'), memory_kind=kind)
    z = jax.jit(lambda x: x + 1, out_shardings=spread)(np.arange(4, dtype=np.float32))
    assert z.sharding.memory_kind == kind and z.tolist() == [1, 2, 3, 4]
try:
    SingleDeviceSharding(device, memory_kind='moon')
    raise AssertionError('a memory kind that does not exist')
except ValueError:
    pass

# What a program allocates: a donated argument is overwritten, and needs no memory of its own.
n = 1 << 20
for donated, alias in [((), 0), ((0,), 4 * n)]:
    stats = jax.jit(lambda x: x * 2 + 1, donate_argnums=donated).lower(jnp.zeros(n)).compile().memory_analysis()
    assert stats.argument_size_in_bytes == stats.output_size_in_bytes == 4 * n, stats
    assert stats.alias_size_in_bytes == alias, stats
    assert abs(stats.peak_memory_in_bytes - (8 * n - alias)) < 0.05 * 4 * n, stats
# A donated argument that no result fits is not overwritten.
stats = jax.jit(lambda x: x[:7] + 1, donate_argnums=0).lower(jnp.zeros(n)).compile().memory_analysis()
assert stats.alias_size_in_bytes == 0, stats
# Intermediate values: the product is needed twice.
a = jnp.zeros((512, 512))
stats = jax.jit(lambda a: (lambda b: jnp.sin(b @ a) @ b)(a @ a)).lower(a).compile().memory_analysis()
assert 2 << 20 <= stats.temp_size_in_bytes < 4 << 20, stats
