m = mesh(4, 2)
x0 = np.arange(32, dtype=np.float32).reshape(8, 4)
x = jax.device_put(x0, NamedSharding(m, P('x', 'y')))
def mapped(ins, outs, **more):
    return lambda f: jax.jit(jax.shard_map(f, mesh=m, in_specs=ins, out_specs=outs, **more))

f = mapped(P('x', 'y'), P('x', None))(lambda a: jax.lax.psum(a, 'y') + jax.lax.axis_index('x'))
assert 'HloModule' in f.lower(x).compile().as_text()
close(f(x), x0[:, :2] + x0[:, 2:] + np.repeat(np.arange(4), 2)[:, None])
f = mapped(P('x', 'y'), P('x', 'y'))(lambda a: jax.lax.ppermute(a, 'x', [(i, (i + 1) % 4) for i in range(4)]))
close(f(x), np.roll(x0, 2, 0))
f = mapped(P('x', 'y'), P(None, 'y'), check_vma=False)(lambda a: jax.lax.all_gather(a, 'x', tiled=True))
close(f(x), x0)
f = mapped(P('x'), P(None, 'x'))(lambda a: jax.lax.all_to_all(a, 'x', 1, 0, tiled=True))
close(f(x), x0)
g = mapped(P('x'), P('x'), axis_names={'x'})(lambda a: a * 2 + jax.lax.psum(a.sum(), 'x'))
close(g(x), x0 * 2 + x0.sum())
# Along the other axes results lie as the body leads to.
g = mapped(P(), P(), axis_names={'x'}, check_vma=False)(lambda a: jax.lax.with_sharding_constraint(a * a, P(None, 'y')))
with jax.set_mesh(m):
    r = g(jax.device_put(x0, NamedSharding(m, P(None, 'y'))))
assert r.sharding.is_equivalent_to(NamedSharding(m, P(None, 'y')), 2), r.sharding
close(r, x0 * x0)
f = mapped(P('x', 'y'), P('x', 'y'))(lambda a: jax.lax.pmax(a, ('x', 'y')) - a)
greatest = np.array([[x0[i::2, j::2].max() for j in range(2)] for i in range(2)])
close(f(x), np.tile(greatest, (4, 2)) - x0)

@partial(jax.jit, donate_argnums=0)
@partial(jax.shard_map, mesh=m, in_specs=(P(), P(('x', 'y'))), out_specs=(P(), P()))
def train(w, batch):
    def one(w, _):
        loss, g = jax.value_and_grad(lambda w: ((batch @ w - 1) ** 2).mean())(jax.lax.pcast(w, ('x', 'y'), to='varying'))
        g, loss = jax.lax.pmean((g, loss), ('x', 'y'))
        return w - 0.05 * g, loss
    return jax.lax.scan(one, w, None, length=5)
w, losses = train(jnp.ones((4, 2)), x / 10)
expected, b = np.ones((4, 2)), x0 / 10
for _ in range(5):
    expected -= 0.05 * b.T @ (b @ expected - 1) * 2 / 16
close(w, expected, 1e-4)
assert losses[4] < losses[0]
r = jax.pmap(lambda a: jax.lax.psum(a, 'i') + a, axis_name='i')(jnp.arange(8.))
assert r.tolist() == [28 + i for i in range(8)]

# JAX's decomposition of matrices within what devices compute by themselves.
systems = np.random.default_rng(3).standard_normal((8, 3, 3)).astype(np.float32)
f = mapped(P('x'), P('x'))(lambda a: jax.lax.map(jnp.linalg.inv, a))
close(f(systems) @ systems, np.broadcast_to(np.eye(3), (8, 3, 3)), 1e-4)

# A sum that is not added up: each device keeps its term.
explicit = jax.make_mesh((4, 2), ('x', 'y'), axis_types=(jax.sharding.AxisType.Explicit,) * 2)
with jax.set_mesh(explicit):
    a = jax.device_put(x0, P('x', 'y'))
    f = jax.jit(jax.shard_map(lambda a: a @ jnp.ones((2, 3)), out_specs=P('x', None, unreduced={'y'})))
    r = f(a)
    assert r.sharding.spec.unreduced == {'y'}, r.sharding
    for d, s in enumerate(r.addressable_shards):
        i, j = d // 2, d % 2
        close(s.data, x0[2 * i:2 * i + 2, 2 * j:2 * j + 2].sum(1, keepdims=True).repeat(3, 1))
    close(jax.sharding.reshard(r, P('x', None)), x0.sum(1, keepdims=True).repeat(3, 1))

# Groups of different sizes.
groups = [[0, 1], list(range(2, 8))]
r = jax.pmap(lambda a: a - jax.lax.psum(a, 'i', axis_index_groups=groups), 'i')(x0)
close(r, x0 - np.repeat([x0[:2].sum(0), x0[2:].sum(0)], [2, 6], 0))
