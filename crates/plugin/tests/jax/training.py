def mlp(p, x, y):
    h = jnp.tanh(x @ p['w1'] + p['b1'])
    return ((h @ p['w2'] - y) ** 2).mean()

def numbers(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)

p = {'w1': numbers(0, 4, 8), 'b1': np.zeros(8, np.float32), 'w2': numbers(1, 8, 2)}
x, y = numbers(2, 16, 4), numbers(3, 16, 2)
loss, g = jax.jit(jax.value_and_grad(mlp))(p, x, y)
h = np.tanh(x @ p['w1'] + p['b1'])
o = h @ p['w2'] - y
close(loss, (o ** 2).mean())
do = 2 * o / o.size
close(g['w2'], h.T @ do)
dh = do @ p['w2'].T * (1 - h ** 2)
close(g['b1'], dh.sum(0))
close(g['w1'], x.T @ dh)

def net(p, x, y):
    z = jax.lax.conv_general_dilated(x, p['k'], (1, 1), 'SAME', dimension_numbers=('NHWC', 'HWIO', 'NHWC'))
    z = jax.nn.relu(z + p['c'])
    z = jax.lax.reduce_window(z, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), 'VALID')
    logits = z.reshape(z.shape[0], -1) @ p['w']
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), y[:, None], 1).mean()

@partial(jax.jit, donate_argnums=0)
def step(p, x, y):
    loss, g = jax.value_and_grad(net)(p, x, y)
    return jax.tree.map(lambda p, g: p - 0.5 * g, p, g), loss

p = {'k': numbers(4, 3, 3, 1, 4) / 3, 'c': np.zeros(4, np.float32), 'w': numbers(5, 144, 10) / 12}
p = jax.tree.map(jnp.asarray, p)
x, y = numbers(6, 32, 12, 12, 1), np.arange(32) % 10
losses = []
for _ in range(20):
    p, loss = step(p, x, y)
    losses.append(float(loss))
assert losses[-1] < 0.5 * losses[0], losses
