from jax.experimental import serialize_executable
compiled = jax.jit(lambda x: x * 3 + 1).lower(jax.ShapeDtypeStruct((3,), jnp.float32)).compile()
again = serialize_executable.deserialize_and_load(*serialize_executable.serialize(compiled))
assert again(jnp.ones(3)).tolist() == [4, 4, 4]
# Compiled for devices that do not exist here, and loaded by the client.
from jax.experimental import topologies
topology = topologies.get_topology_desc(platform='systole', num_devices=4)
assert [d.id for d in topology.devices] == [0, 1, 2, 3]
m4 = topologies.make_mesh(topology, (4,), ('x',))
x = jax.ShapeDtypeStruct((8,), jnp.float32, sharding=NamedSharding(m4, P('x')))
four = jax.jit(lambda x: x.sum(), out_shardings=NamedSharding(m4, P())).lower(x).compile()
assert 'HloModule' in four.as_text() and four.memory_analysis().argument_size_in_bytes == 8
one = topologies.make_mesh(topologies.get_topology_desc(platform='systole', num_devices=1), (1,), ('x',))
compiled = jax.jit(lambda x: x * 3 + 1).lower(jax.ShapeDtypeStruct((3,), jnp.float32, sharding=NamedSharding(one, P()))).compile()
again = serialize_executable.deserialize_and_load(*serialize_executable.serialize(compiled))
assert again(jnp.ones(3)).tolist() == [4, 4, 4]
with tempfile.TemporaryDirectory() as folder:
    jax.config.update('jax_compilation_cache_dir', folder)
    jax.config.update('jax_persistent_cache_min_compile_time_secs', 0)
    counts = []
    for _ in range(2):
        jax.clear_caches()
        assert jax.jit(lambda x: x * 5 + 1)(np.ones(3, np.float32)).tolist() == [6, 6, 6]
        counts.append(len([f for f in os.listdir(folder) if f.endswith('-cache')]))
    assert counts[0] == counts[1] > 0, counts
