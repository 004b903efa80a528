from jax.experimental import serialize_executable
compiled = jax.jit(lambda x: x * 3 + 1).lower(jax.ShapeDtypeStruct((3,), jnp.float32)).compile()
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
