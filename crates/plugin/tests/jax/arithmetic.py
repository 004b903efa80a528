assert jax.jit(lambda x: x + 1)(jnp.arange(8.)).tolist() == list(range(1, 9))
a, b = np.arange(12, dtype=np.float32).reshape(3, 4), np.arange(8, dtype=np.float32).reshape(4, 2)
close(jax.jit(lambda a, b: jnp.tanh(a @ b).sum(1))(a, b), np.tanh(a @ b).sum(1))
close(jax.jit(lambda a: jnp.einsum('ij,kj->ik', a, a))(a), a @ a.T)
x = np.array([3.0, 1.0, 2.0], np.float32)
assert jnp.sort(jnp.array([3, 1, 2])).tolist() == [1, 2, 3]
close(jax.jit(lambda x: jax.nn.softmax(x))(x), np.exp(x) / np.exp(x).sum())
assert jax.jit(lambda: jnp.arange(3))().tolist() == [0, 1, 2]
assert jax.jit(lambda x: (x, x))(x)[1].tolist() == x.tolist()
assert jax.vmap(lambda v: v.sum())(a).tolist() == a.sum(1).tolist()

# Tokens, which JAX hands in and out as arrays of no elements.
token = jax.lax.create_token()
x, kept = jax.jit(lambda x, t: (x + 1, t))(jnp.arange(3.), token)
close(x, [1, 2, 3])
assert type(kept).__name__ == 'Token' and type(jax.jit(jax.lax.create_token)(1.0)).__name__ == 'Token'

# Subnormal constants are not flushed to zero: the distance from 0 to the next number.
for dtype in [np.float32, jnp.bfloat16]:
    least = jnp.finfo(dtype).smallest_subnormal
    assert (np.asarray(jax.jit(jnp.spacing)(jnp.zeros(5, dtype))) == np.full(5, least, dtype)).all(), dtype
    assert (np.asarray(jax.jit(lambda: jnp.full(5, least, dtype))()) != 0).all(), dtype

# Products and sums are contracted to fused multiply-adds, as on JAX's CPU; the option rounds each op.
x, y = (np.asarray(jax.random.normal(jax.random.key(k), (1000,))) for k in (1, 2))
exact = x.astype(np.float64) * y
rounded = exact.astype(np.float32)
rest = lambda x, y, z: x * y - z
has_fma = ' fma ' in open('/proc/cpuinfo').read()
assert np.array_equal(jax.jit(rest)(x, y, rounded), exact - rounded if has_fma else 0 * x), 'contracted'
separate = jax.jit(rest, compiler_options={'systole_fp_contract': False})
assert np.array_equal(separate(x, y, rounded), 0 * x), 'each op rounds'
