# DLPack, both ways, without a copy out.
for dtype in [np.float32, np.int8, np.bool_, np.complex64, np.float16]:
    a = np.arange(6).reshape(2, 3).astype(dtype)
    x = jnp.asarray(a) + jnp.zeros((), dtype) if dtype != np.bool_ else jnp.asarray(a)
    seen = np.from_dlpack(x)
    assert seen.dtype == dtype and (seen == a).all() and seen.ctypes.data == x.unsafe_buffer_pointer(), dtype
    back = jax.dlpack.from_dlpack(a)
    assert back.dtype == dtype and (np.asarray(back) == a).all(), dtype
assert x.__dlpack_device__() == (1, 0)
# What was lent outlives the array.
x = jax.jit(lambda v: v * 2)(jnp.arange(1000.))
seen = np.from_dlpack(x)
del x
rest = [jnp.full(1000, 7.) + i for i in range(20)]
assert (seen == np.arange(1000.) * 2).all()
assert (np.asarray(jax.dlpack.from_dlpack(jnp.ones((2, 2), jnp.bfloat16))) == 1).all()
copy = np.from_dlpack(rest[0], copy=True)
assert copy.ctypes.data != rest[0].unsafe_buffer_pointer() and (copy == 7).all()
for asked in [dict(stream=1), dict(dl_device=(2, 0))]:
    try:
        rest[0].__dlpack__(**asked)
        raise AssertionError('no error')
    except BufferError as e:
        assert 'CPU' in str(e), e
# Arrays on JAX's own CPU are lent as ever.
other = jax.device_put(np.arange(3), jax.devices('cpu')[0])
assert (np.from_dlpack(other) == np.arange(3)).all()
