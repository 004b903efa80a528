import ml_dtypes
from jax.experimental import buffer_callback as buffers

call = buffers.buffer_callback
x = np.arange(6, dtype=np.float32).reshape(2, 3)

# Operands are read and results are written in place, for element types that the plugin holds directly and others.
for dtype in [np.float32, np.float64, np.int8, np.uint64, bool, jnp.bfloat16, np.complex64, ml_dtypes.int4, ml_dtypes.float8_e4m3fn]:
    if jnp.dtype(dtype).itemsize == 8 and dtype != np.complex64:
        continue

    def copy(context, out, given, *, other):
        assert context.stage == buffers.ExecutionStage.EXECUTE
        assert (given.shape, given.ndim, given.dtype) == ((2, 3), 2, jnp.dtype(dtype)) and not given.writeable and out[0].writeable
        np.asarray(out[0])[...] = np.asarray(given)
        np.asarray(out[1])[...] = np.asarray(other)[::-1]

    value = (x % 2).astype(dtype)
    same, reverse = jax.jit(call(copy, (jax.ShapeDtypeStruct.like(value), jax.ShapeDtypeStruct((3,), np.float32))))(value, other=x[0])
    assert same.dtype == value.dtype and (np.asarray(same) == value).all(), dtype
    close(reverse, x[0][::-1])


# An operand that is donated to a result has the result's memory.
def add_one(context, out, given):
    a, b = np.asarray(given), np.asarray(out)
    assert a.ctypes.data == b.ctypes.data
    b += 1


close(call(add_one, jax.ShapeDtypeStruct.like(x), input_output_aliases={0: 0})(jnp.asarray(x)), x + 1)


def scale(context, out, given):
    np.multiply(np.from_dlpack(given), 2, out=np.asarray(out))


double = call(scale, jax.ShapeDtypeStruct((3,), np.float32), vmap_method='sequential')
close(jax.jit(jax.vmap(double))(x), 2 * x)
close(jax.lax.fori_loop(0, 3, lambda i, v: double(v), x[0]), 8 * x[0])
empty = call(lambda *_: None, jax.ShapeDtypeStruct((0, 4), np.float32))
assert empty(jnp.zeros((4, 0))).shape == (0, 4)

calls = []
jax.block_until_ready(call(lambda *_: calls.append(1), jax.ShapeDtypeStruct((), np.float32), has_side_effect=True)())
assert calls == [1]
for wrong, words in [(lambda *_: 1, 'must not return'), (lambda context, out: context.stream, 'no streams')]:
    try:
        jax.block_until_ready(jax.jit(call(wrong, jax.ShapeDtypeStruct((), np.float32)))())
    except Exception as e:
        assert words in str(e), e
    else:
        raise SystemExit('no error')
