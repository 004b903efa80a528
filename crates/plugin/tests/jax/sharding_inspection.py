found = []
m = mesh(4, 2)
a = jax.device_put(np.ones((8, 8), np.float32), NamedSharding(m, P('x', 'y')))
b = jax.device_put(np.ones((8, 4), np.float32), NamedSharding(m, P('y')))


def inspect(name, x):
    jax.debug.inspect_array_sharding(x, callback=lambda sharding: found.append((name, sharding)))


@jax.jit
def f(a, b):
    inspect('argument', a)
    h = jnp.sin(a) @ b
    inspect('product', h)
    h = jax.lax.with_sharding_constraint(h, NamedSharding(m, P(None, 'x')))

    def step(c, _):
        inspect('carry', c)
        return c * 2, None

    h, _ = jax.lax.scan(step, h, None, length=3)
    z = jnp.zeros(8)
    inspect('new', z)
    return h.sum() + z.sum()


expected = {'argument': P('x', 'y'), 'product': P('x'), 'carry': P(None, 'x'), 'new': P()}
with jax.set_mesh(m):
    close(f(a, b), 8 * np.sin(1) * 32 * 8)
assert len(found) == 4 and {name: s.spec for name, s in found} == expected, found
assert all(len(s.device_set) == 8 for _, s in found)
# Once for each compiled program.
with jax.set_mesh(m):
    f(a, b)
assert len(found) == 4

# In shard_map every device has an array of its own.
found.clear()
jax.jit(jax.shard_map(lambda a: inspect('own', a) or a * 2, mesh=m, in_specs=P('x'), out_specs=P('x')))(a)
assert [s.spec for _, s in found] == [P()], found
jax.jit(lambda a: jax.debug.visualize_array_sharding(a) or a + 1)(a)

try:
    jax.jit(lambda a: jax.debug.inspect_array_sharding(a, callback=lambda s: s.no_such_name) or a)(a)
except Exception as e:
    assert 'no_such_name' in str(e), e
else:
    raise SystemExit('no error')

# `custom_partitioning`: the function itself, after a call of its partitioning rule.
from jax.experimental.custom_partitioning import custom_partitioning


@custom_partitioning
def double(x):
    return x * 2


seen = []


def partition(mesh, arguments, result):
    seen.append((arguments[0].sharding.spec, result.sharding.spec))
    return mesh, lambda x: x * 2, result.sharding, (arguments[0].sharding,)


double.def_partition(partition=partition, infer_sharding_from_operands=lambda *_: 1 / 0, sharding_rule='i j -> i j')
out = jax.jit(double, out_shardings=NamedSharding(m, P('x')))(a)
close(out, np.full((8, 8), 2))
assert out.sharding.spec == P('x')
assert seen == [(P('x', 'y'), P('x', 'y'))], seen
close(double(a), np.full((8, 8), 2))


@custom_partitioning
def wrong(x):
    return x


for rule, message in [
    (lambda mesh, xs, y: (mesh, lambda x: x, NamedSharding(mesh, P()), (NamedSharding(mesh, P('x')),)), 'Mismatch in result shapes'),
    (lambda *_: 1 / 0, 'ZeroDivisionError'),
]:
    wrong.def_partition(partition=rule, sharding_rule='... j -> ... j')
    try:
        jax.jit(lambda a: wrong(a) + 1)(a)
    except jax.errors.JaxRuntimeError as e:
        assert message in str(e), e
    else:
        raise SystemExit('no error')
# One device needs no rule.
close(jax.jit(lambda a: wrong(a) + 1)(np.ones((2, 2))), np.full((2, 2), 2))

# `shard_alike`: the second array has the sharding of the first.
from jax.experimental.shard_alike import shard_alike

out = jax.jit(lambda a: shard_alike(a, jnp.arange(64.).reshape(8, 8))[1])(a)
close(out, np.arange(64).reshape(8, 8))
assert out.sharding.spec == P('x', 'y'), out.sharding
close(shard_alike(jnp.arange(3.), jnp.ones(3))[0], [0, 1, 2])

# Shardings propagate backward too: from a constraint to an argument, and from `shard_map` to its operand.
rows = NamedSharding(m, P('x'))
x, y = jax.jit(lambda x: (lambda y: shard_alike(x, y * 2))(jax.lax.with_sharding_constraint(x, rows)))(np.arange(8.))
assert x.sharding.spec == y.sharding.spec == P('x'), (x.sharding, y.sharding)


@jax.jit
def products(a):
    y = a @ a.T
    s = jax.shard_map(lambda y: jax.lax.psum(y, 'x'), mesh=m, in_specs=P('x', 'y'), out_specs=P(None, 'y'))(y)
    return shard_alike(y, s.T @ s)


y, z = products(a)
assert y.sharding.spec == z.sharding.spec == P('x', 'y'), (y.sharding, z.sharding)
close(y, np.full((8, 8), 8))
close(z, np.full((8, 8), 2 * (4 * 8) ** 2))


# From a constraint in a loop's body, and in a branch, to the result.
def step(c, _):
    return jax.lax.with_sharding_constraint(c * 2, rows), None


loop = jax.jit(lambda x: jax.lax.scan(step, x, None, length=3)[0])(np.arange(8.))
assert loop.sharding.spec == P('x'), loop.sharding
close(loop, 8 * np.arange(8))
branch = jax.jit(lambda p, x: jax.lax.cond(p, lambda x: step(x, 0)[0], lambda x: x, x))(True, np.arange(8.))
assert branch.sharding.spec == P('x'), branch.sharding
