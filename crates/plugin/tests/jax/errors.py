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

# Options and their values.
for options, message in [
    ({'nonsense': 1}, "No such compile option: 'nonsense'"),
    ({'systole_winograd': 'maybe'}, "While setting option systole_winograd, 'maybe' is not a valid bool value."),
    ({'xla_cpu_enable_fast_math': 'flase'}, "'flase' is not a valid bool value."),
]:
    try:
        jax.jit(lambda x: x + 1).lower(1.0).compile(compiler_options=options)
    except jax.errors.JaxRuntimeError as e:
        assert message in str(e), e
    else:
        raise SystemExit('no error')
for options in [{'systole_winograd': 'true'}, {'xla_cpu_enable_fast_math': False}, {'xla_gpu_anything': 'FUSION'}]:
    assert float(jax.jit(lambda x: x + 1).lower(1.0).compile(compiler_options=options)(1.0)) == 2
# A token has no elements.
token = jax.lax.create_token()
try:
    token._buf._value
except RuntimeError as e:
    assert 'token' in str(e), e
else:
    raise SystemExit('no error')
again = jax.jit(lambda t, x: (t, x + 1))(token, 1.0)
again[0].block_until_ready()
assert float(jax.jit(lambda t, x: (t, x + 1))(again[0], 1.0)[1]) == 2

# Programs can be moved to JAX's CPU backend.
f = jax.jit(lambda x: x + 1)
assert float(f(jax.device_put(np.float32(1), jax.devices('cpu')[0]))) == 2
