carry, ys = jax.jit(lambda x: jax.lax.scan(lambda c, a: (c + a, c * a), jnp.float32(0), x))(jnp.arange(5.))
assert float(carry) == 10 and ys.tolist() == [0, 0, 2, 9, 24]
assert int(jax.jit(lambda n: jax.lax.while_loop(lambda v: v < 10, lambda v: v * 2, n))(1)) == 16
pick = jax.jit(lambda a: jax.lax.cond(a > 0, lambda v: v + 1, lambda v: v - 1, a))
assert int(pick(3)) == 4 and int(pick(-3)) == -4
switch = jax.jit(lambda i, x: jax.lax.switch(i, [jnp.sin, jnp.cos, jnp.exp], x))
close(switch(2, 1.0), np.exp(1.0))
assert int(jax.jit(lambda n: jax.lax.fori_loop(0, n, lambda i, s: s + i, 0))(5)) == 10
grad = jax.grad(lambda x: jax.lax.scan(lambda c, _: (c * x, None), 1.0, None, length=3)[0])
close(grad(2.0), 12.0)
