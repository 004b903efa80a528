good = jax.jit(lambda x: x + 1)
for wrong in [
    lambda: jax.jit(lambda x: x + 1, compiler_options={'nonsense': True})(1.0),
    lambda: jax.jit(lambda x: x + 1, compiler_options={'systole_nonsense': True})(1.0),
    # More memory than there is.
    lambda: jax.jit(lambda x: (jnp.arange(1 << 42, dtype=jnp.float32) + x)[::3])(1.0).block_until_ready(),
    lambda: jnp.zeros(1 << 44, jnp.float32).block_until_ready(),
]:
    try:
        wrong()
    except Exception as e:
        assert 'bug in' not in str(e), e
    else:
        raise SystemExit('no error')
    assert float(good(1.0)) == 2
assert float(jax.jit(lambda x: x + 1, compiler_options={'systole_winograd': True})(1.0)) == 2

# Programs can be moved to JAX's CPU backend.
f = jax.jit(lambda x: x + 1)
assert float(f(jax.device_put(np.float32(1), jax.devices('cpu')[0]))) == 2
