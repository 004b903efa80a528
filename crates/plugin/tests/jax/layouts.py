# What a program or a caller asks for is how the memory lies; the values are the same.
from jax.experimental.layout import Format, Layout
from jax.sharding import SingleDeviceSharding
one = SingleDeviceSharding(jax.devices()[0])
a = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
for dtype in [np.float32, np.int8, np.complex64, jnp.bfloat16]:
    b = a.astype(dtype)
    for order in [(2, 1, 0), (1, 0, 2), (0, 2, 1), (0, 1, 2)]:
        wanted = Format(Layout(major_to_minor=order), one)
        x = jax.device_put(b, wanted)
        assert x.format.layout.major_to_minor == order, x.format
        assert (np.asarray(x) == b).all(), (dtype, order)
        twice = jax.jit(lambda v: v + v, in_shardings=wanted, out_shardings=wanted)(x)
        assert twice.format.layout.major_to_minor == order and (np.asarray(twice) == b + b).all()
        assert (np.asarray(x + x) == b + b).all()
        if dtype == np.float32:
            # The memory itself, and what NumPy reads of it without a copy.
            strides = np.asarray(x).strides
            assert strides == tuple(np.transpose(b, order).copy().strides[order.index(d)] for d in range(3)), strides
            assert np.from_dlpack(x).strides == strides and (np.from_dlpack(x) == b).all()
try:
    jax.jit(lambda v: v, out_shardings=Format(Layout(major_to_minor=(0, 1, 2), tiling=((2, 2),)), one))(a)
    raise AssertionError('no error')
except jax.errors.JaxRuntimeError as e:
    assert 'tiles' in str(e), e

# A result whose layout is open: the transpose at the end moves nothing.
open_layout = Format(Layout.AUTO)
x = jnp.arange(15.).reshape(3, 5)
compiled = jax.jit(lambda x: ((x * 2).T, x), out_shardings=open_layout).lower(x).compile()
assert [f.layout.major_to_minor for f in compiled.output_formats] == [(1, 0), (0, 1)]
turned, same = compiled(x)
assert turned.format == compiled.output_formats[0]
close(turned, 2 * np.asarray(x).T)
close(jax.jit(lambda y: y + 1)(turned), 2 * np.asarray(x).T + 1)
close(same, x)
