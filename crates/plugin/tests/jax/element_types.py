import ml_dtypes
jax.config.update('jax_enable_x64', True)
for name in ['bool', 'int8', 'int16', 'int32', 'int64', 'uint8', 'uint16', 'uint32', 'uint64', 'float16', 'float32',
             'float64', 'complex64', 'complex128', 'bfloat16', 'int4', 'uint4', 'float8_e4m3fn', 'float8_e5m2']:
    dtype = np.dtype(getattr(ml_dtypes, name) if hasattr(ml_dtypes, name) else name)
    x = np.arange(24).reshape(2, 3, 4) % 5
    x = x.astype(dtype)
    for view in [x, x.transpose(2, 0, 1), x[:, ::2], x[:, :0], x[1, 2, 3], x[::-1]]:
        y = jax.device_put(view)
        assert y.dtype == dtype and np.array_equal(np.asarray(y), view), (name, view.shape)
        assert np.array_equal(np.asarray(jax.jit(lambda v: v)(y)), view), name
close(jax.jit(lambda x: jnp.exp(1j * x))(jnp.arange(3.)), np.exp(1j * np.arange(3.)))
close(jax.jit(lambda a, b: a * b)(np.complex64(1 + 2j), np.complex64(3 - 1j)), (1 + 2j) * (3 - 1j))
