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

# Imported arrays on a device of the platform share the memory, until the last reader is gone.
import gc, weakref

device = jax.devices('systole')[0]


def imported(a, **asked):
    return jax.dlpack.from_dlpack(a, device=device, **asked)


class Owner(np.ndarray):
    pass


for dtype in [np.float32, np.int8, np.float64, np.bool_, np.uint16]:
    if dtype == np.float64 and not jax.config.jax_enable_x64:
        continue
    a = np.ones((64, 3), dtype).view(Owner)
    alive = weakref.ref(a)
    x = imported(a)
    assert x.devices() == {device} and x.unsafe_buffer_pointer() == a.ctypes.data, dtype
    assert np.asarray(x).ctypes.data == a.ctypes.data
    y = jax.jit(lambda x: jnp.concatenate([x, x]))(x)
    assert (np.asarray(y) == 1).all()
    del a
    gc.collect()
    assert alive() is not None
    del x
    gc.collect()
    assert alive() is None and (np.asarray(y) == 1).all(), dtype
# A donated array is not written in place.
a = np.arange(512, dtype=np.float32)
x = imported(a)
y = jax.jit(lambda x: x + 1, donate_argnums=0)(x)
assert (a == np.arange(512)).all() and (np.asarray(y) == a + 1).all()
# A program that still runs keeps the memory.
a = np.full((300, 300), 1 / 300, np.float32).view(Owner)
alive = weakref.ref(a)
y = jax.jit(lambda x: jax.lax.fori_loop(0, 30, lambda i, s: s @ x, x))(imported(a))
del a
close(y, np.full((300, 300), 1 / 300))
gc.collect()
assert alive() is None
# Memory that is not aligned, a view with another order, and an explicit copy are copied.
raw = np.zeros(4 * 100 + 8, np.uint8)
odd = raw[(3 - raw.ctypes.data) % 4 :][: 4 * 100].view(np.float32)
for a, asked in [(odd, {}), (np.arange(6.0, dtype=np.float32), dict(copy=True))]:
    x = imported(a, **asked)
    assert x.unsafe_buffer_pointer() != a.ctypes.data and (np.asarray(x) == a).all()
assert (np.asarray(imported(np.arange(6, dtype=np.float32).reshape(2, 3).T)) == np.arange(6).reshape(2, 3).T).all()
assert (np.asarray(imported(np.array([1 + 2j, 3], np.complex64))) == [1 + 2j, 3]).all()
assert imported(np.zeros((0, 3), np.float32)).shape == (0, 3)
