double = jax.jit(lambda a: a * 2, donate_argnums=0)
a = jnp.ones(4)
b = double(a)
assert a.is_deleted() and b.tolist() == [2, 2, 2, 2]
try:
    a + 1
    raise SystemExit('a given array was read')
except RuntimeError as e:
    assert 'deleted' in str(e), e
add = jax.jit(lambda a, b: a + b, donate_argnums=0)
try:
    add(b, b)
    raise SystemExit('an array was given and kept')
except Exception as e:
    assert 'donate' in str(e), e
assert b.tolist() == [2, 2, 2, 2]
# Runs that go on after their calls, each with what the one before will make.
step = jax.jit(lambda w: w @ w.T * 0.002 + 1, donate_argnums=0)
w = jnp.ones((300, 300))
for _ in range(20):
    w = step(w)
expected = np.ones((300, 300), np.float32)
for _ in range(20):
    expected = expected @ expected.T * np.float32(0.002) + 1
close(w, expected, 1e-4)
x = jax.device_put(jnp.arange(3.), jax.devices()[1])
assert x.devices() == {jax.devices()[1]}
y = jax.device_put(x, jax.devices()[0])
assert y.devices() == {jax.devices()[0]} and y.tolist() == [0, 1, 2]
z = jax.jit(lambda v: v + 1)(x)
assert z.devices() == {jax.devices()[1]}
del x
assert z.tolist() == [1, 2, 3]
# A result is in the memory of a donated array, also after its address was read; an array that NumPy views is kept.
for f in [lambda x: x + 1, lambda x: x.at[0].add(2)]:
    for n in [1, 1000, 100_000]:
        x = jnp.zeros(n) + 1
        address = x.unsafe_buffer_pointer()
        y = jax.jit(f, donate_argnums=0)(x)
        assert x.is_deleted() and y.unsafe_buffer_pointer() == address, n
        seen = np.asarray(y)
        before = seen.copy()
        z = jax.jit(f, donate_argnums=0)(y)
        assert y.is_deleted() and (seen == before).all() and z[0] == f(jnp.asarray(before))[0], n

# Every result has an address of its own, also results that are equal or that are arguments.
for n in [3, 1000]:
    x = jnp.arange(float(n))
    same = jax.jit(lambda x: x)(x)
    a, b = jax.jit(lambda x: (x, x))(x)
    c, d = jax.jit(lambda x: (x * 2, x * 2))(x)
    e, f = (jax.jit(lambda: jnp.ones(n))() for _ in range(2))
    views = [np.asarray(array) for array in (x, same, a, b, c, d, e, f)]
    assert len({view.ctypes.data for view in views}) == 8, n
    for array, view, expected in zip((x, same, a, b, c, d, e, f), views, [x] * 4 + [x * 2] * 2 + [np.ones(n)] * 2):
        assert array.unsafe_buffer_pointer() == view.ctypes.data and (view == np.asarray(expected)).all()
    # A donated array is updated in its memory, and the others are kept.
    g, h = jax.jit(lambda x: (x, x))(x)
    address = g.unsafe_buffer_pointer()
    new = jax.jit(lambda x: x + 1, donate_argnums=0)(g)
    assert new.unsafe_buffer_pointer() == address
    assert (np.asarray(h) == np.arange(n)).all() and (np.asarray(new) == np.arange(n) + 1).all()
