m = mesh(4, 2)
def on(x, *axes):
    return jax.device_put(x, NamedSharding(m, P(*axes)))
x0 = np.arange(32, dtype=np.float32).reshape(8, 4) / 10
x = on(x0, 'x', 'y')
assert len(x.addressable_shards) == 8 and x.addressable_shards[3].data.tolist() == x0[2:4, 2:].tolist()
r = jax.jit(lambda x: jnp.sin(x) @ x.T)(x)
close(r, np.sin(x0) @ x0.T)
assert r.sharding.is_equivalent_to(NamedSharding(m, P('x')), 2), r.sharding
r = jax.jit(lambda x: x * 2)(x)
assert r.sharding.is_equivalent_to(x.sharding, 2)
close(r.addressable_shards[5].data, x0[4:6, 2:] * 2)
r = jax.jit(lambda x: jax.lax.with_sharding_constraint(x * 2, NamedSharding(m, P('y'))))(x)
assert r.sharding.is_equivalent_to(NamedSharding(m, P('y')), 2), r.sharding
r = jax.jit(lambda x: x.sum(1), out_shardings=NamedSharding(m, P('y')))(x)
assert r.sharding.is_equivalent_to(NamedSharding(m, P('y')), 1)
close(r, x0.sum(1))
# What is taken from an array lies as the array does.
r = jax.jit(lambda x, i: x[i])(x, np.array([1, 0]))
assert r.sharding.is_equivalent_to(NamedSharding(m, P(None, 'y')), 2), r.sharding
close(r, x0[[1, 0]])
r = jax.jit(lambda x: x.at[np.array([1, 0])].set(7.0))(x)
assert r.sharding.is_equivalent_to(x.sharding, 2), r.sharding
# Along dimensions that a program leaves open results lie as it leads to: keys, and a constraint of one dimension.
r = jax.jit(lambda seeds: jax.vmap(jax.vmap(jax.random.key))(seeds).T)(on(np.arange(32, dtype=np.uint32).reshape(8, 4), 'x', 'y'))
assert r.sharding.is_equivalent_to(NamedSharding(m, P('y', 'x')), 2), r.sharding
free = NamedSharding(m, P(P.UNCONSTRAINED, None))
r = jax.jit(lambda x: jax.lax.with_sharding_constraint(x * 2, free))(x)
assert r.sharding.is_equivalent_to(NamedSharding(m, P('x')), 2), r.sharding
close(r, x0 * 2)
assert 'HloModule' in jax.jit(lambda x: x * 2).lower(x).compile().as_text()

@partial(jax.jit, donate_argnums=0)
def step(w, batch):
    loss, g = jax.value_and_grad(lambda w: ((batch @ w - 1) ** 2).mean())(w)
    return w - 0.05 * g, loss
w, batch = on(np.ones((4, 2), np.float32)), on(x0, ('x', 'y'))
expected = np.ones((4, 2))
for _ in range(20):
    old = w
    w, loss = step(w, batch)
    assert old.is_deleted()
    expected -= 0.05 * x0.T @ (x0 @ expected - 1) * 2 / 16
close(w, expected, 1e-4)
assert w.sharding.is_equivalent_to(NamedSharding(m, P()), 2), w.sharding
# A layout constraint keeps the sharding.
from jax.experimental.layout import Layout, with_layout_constraint
turn = jax.jit(lambda x: with_layout_constraint(x * 2, Layout(major_to_minor=(1, 0))))
assert turn(x).sharding.is_equivalent_to(x.sharding, 2)
close(turn(x), x0 * 2)
# The same devices in another order.
four = np.array(jax.devices()[:4]).reshape(2, 2)
turned = NamedSharding(Mesh(four[::-1, ::-1], ('x', 'y')), P('x'))
y = jax.device_put(jax.device_put(x0, NamedSharding(Mesh(four, ('x', 'y')), P('x', 'y'))), turned)
assert y.sharding == turned
close(y, x0)
for shard in y.addressable_shards:
    close(shard.data, x0[4:] if shard.device.id < 2 else x0[:4])
# The HLO text of programs with constraints in branches, and with callbacks, which JAX before 0.9 reads for the shardings of results.
branch = jax.jit(lambda p, x: jax.lax.cond(p, lambda x: jax.lax.with_sharding_constraint(x * 2, NamedSharding(m, P('x'))), lambda x: x, x))
printed = jax.jit(lambda x: jax.debug.callback(lambda v: None, x) or x * 2)
exported = jax.export.export(jax.jit(lambda x: jax.lax.with_sharding_constraint(x * 2, NamedSharding(m, P('x')))))(x)
called = jax.jit(lambda x: exported.call(x))
each = jax.jit(jax.shard_map(lambda x: jax.debug.callback(lambda v: None, x) or x * 2, mesh=m, in_specs=P('x'), out_specs=P('x')))
for f, operands in [(branch, (True, x0)), (printed, (x,)), (called, (x,)), (each, (x,))]:
    compiled = f.lower(*operands).compile()
    assert 'HloModule' in compiled.as_text() and '->(' not in compiled.as_text().replace(' ', ''), 'one result'
    close(compiled(*operands), x0 * 2)
# A donated array without a result of its size remains the caller's, as in XLA.
for f, is_donated in [(lambda x: x @ x.T, False), (lambda x: x.T * 2, True)]:
    given = on(x0, 'x', 'y') + 0
    close(jax.jit(f, donate_argnums=0)(given), f(x0))
    assert given.is_deleted() == is_donated
# Arrays of one device and of all, and from one mesh to another.
y = jax.device_put(x, NamedSharding(mesh(8), P('x')))
close(y, x0)
close(jax.device_put(y, jax.devices()[3]), x0)

# A program that was compiled for a topology runs on the devices of the client.
from jax.experimental import serialize_executable, topologies
topology = topologies.get_topology_desc(platform='systole', num_devices=8)
there = topologies.make_mesh(topology, (4, 2), ('x', 'y'))
shape = jax.ShapeDtypeStruct(x0.shape, x0.dtype, sharding=NamedSharding(there, P('x', 'y')))
compiled = jax.jit(lambda x: x @ x.T).lower(shape).compile()
r = serialize_executable.deserialize_and_load(*serialize_executable.serialize(compiled))(x)
close(r, x0 @ x0.T)
assert r.sharding == NamedSharding(m, P('x')), r.sharding
