compiled = jax.jit(lambda x: x @ x).lower(jnp.ones((8, 8))).compile()
cost = compiled.cost_analysis()
assert cost['flops'] == 1024 and cost['bytes accessed'] == 768, cost
memory = compiled.memory_analysis()
assert memory.argument_size_in_bytes == 256 and memory.output_size_in_bytes == 256, memory
# Fields that the plugin does not set are 0, not what the caller's memory held.
assert all(getattr(memory, k) == 0 for k in dir(memory) if k.startswith('host_') and k.endswith('bytes')), memory
assert memory.generated_code_size_in_bytes == 0 and memory.alias_size_in_bytes == 0, memory
assert 'HloModule' in compiled.as_text()
x = jnp.ones((1000,))
stats = jax.devices()[0].memory_stats()
assert stats['bytes_in_use'] >= 4000 and stats['peak_bytes_in_use'] >= stats['bytes_in_use'], stats
del x
assert jax.devices()[0].memory_stats()['bytes_in_use'] <= stats['bytes_in_use'] - 4000
assert str(jnp.ones((2, 3)).format.layout).startswith('Layout(major_to_minor=(0, 1)')
