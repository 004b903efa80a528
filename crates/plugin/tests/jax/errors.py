good = jax.jit(lambda x: x + 1)
for wrong in [
    lambda: jax.jit(lambda x: x + 1, compiler_options={'nonsense': True})(1.0),
    lambda: jax.jit(lambda x: x + 1, compiler_options={'systole_nonsense': True})(1.0),
    lambda: jax.jit(lambda x: jax.pure_callback(lambda v: v, x, x))(1.0),
]:
    try:
        wrong()
    except Exception as e:
        assert 'defect' not in str(e), e
    else:
        raise SystemExit('no error')
    assert float(good(1.0)) == 2
assert float(jax.jit(lambda x: x + 1, compiler_options={'systole_winograd': True})(1.0)) == 2
