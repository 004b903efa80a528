"""Programs of science and statistics in plain JAX, for through_jax.py: each function returns a call of one jitted step."""

import jax
import jax.numpy as jnp
import numpy as np

R = np.random.default_rng(1)


def f32(*shape):
    return jnp.asarray(R.normal(size=shape).astype(np.float32))


def called(f, *arguments):
    g = jax.jit(f)
    return lambda: g(*arguments)


def sinkhorn(n=300, iterations=50):
    """Optimal transport between two clouds of points, by Sinkhorn's iterations on exponentials."""
    x, y = f32(n, 3), f32(n, 3)

    def run(x, y):
        k = jnp.exp(-((x[:, None] - y[None]) ** 2).sum(-1))
        step = lambda _, uv: (lambda u: (u, 1 / (n * (k.T @ u))))(1 / (n * (k @ uv[1])))
        u, v = jax.lax.fori_loop(0, iterations, step, (jnp.ones(n), jnp.ones(n)))
        return u[:, None] * k * v[None]

    return called(run, x, y)


def hmc(chains=32, samples=20, leaps=10):
    """Hamiltonian Monte Carlo for a logistic regression, many chains at once."""
    x, y = f32(500, 16), (f32(500) > 0).astype(jnp.float32)
    energy = lambda w: -(y * jax.nn.log_sigmoid(x @ w) + (1 - y) * jax.nn.log_sigmoid(-(x @ w))).sum() + (w**2).sum() / 2
    slope = jax.grad(energy)

    def sample(w, key):
        first, second = jax.random.split(key)
        p = jax.random.normal(first, w.shape)

        def leap(_, wp):
            p = wp[1] - 0.01 * slope(wp[0])
            w = wp[0] + 0.02 * p
            return w, p - 0.01 * slope(w)

        to, q = jax.lax.fori_loop(0, leaps, leap, (w, p))
        gain = energy(w) - energy(to) + ((p**2).sum() - (q**2).sum()) / 2
        w = jnp.where(jnp.log(jax.random.uniform(second)) < gain, to, w)
        return w, w

    run = jax.vmap(lambda key: jax.lax.scan(sample, jnp.zeros(16), jax.random.split(key, samples))[1])
    return called(run, jax.random.split(jax.random.key(0), chains))


def kalman(length=200, batch=32, n=6):
    """A Kalman filter of many series, with a solve in each step."""
    a, h, q, r = jnp.eye(n) * 0.95, f32(3, n), jnp.eye(n) * 0.1, jnp.eye(3)

    def step(state, z):
        m, p = a @ state[0], a @ state[1] @ a.T + q
        gain = jnp.linalg.solve(h @ p @ h.T + r, h @ p).T
        return (m + gain @ (z - h @ m), p - gain @ h @ p), m

    run = jax.vmap(lambda z: jax.lax.scan(step, (jnp.zeros(n), jnp.eye(n)), z)[1])
    return called(run, f32(batch, length, 3))


def lorenz(steps=300, batch=64, n=40):
    """Runge-Kutta steps of the Lorenz-96 system, and the gradient of the end for the start."""
    f = lambda x: (jnp.roll(x, -1, -1) - jnp.roll(x, 2, -1)) * jnp.roll(x, 1, -1) - x + 8.0

    def step(x, _):
        a = f(x)
        b = f(x + 0.005 * a)
        c = f(x + 0.005 * b)
        return x + 0.01 / 6 * (a + 2 * b + 2 * c + f(x + 0.01 * c)), None

    return called(jax.grad(lambda x: (jax.lax.scan(step, x, None, length=steps)[0] ** 2).sum()), f32(batch, n))


def graph_net(nodes=2000, edges=16000, width=64):
    """Three layers of message passing by segment sums, and their gradient."""
    x, w = f32(nodes, width), f32(3, 2 * width, width) * 0.1
    ends = [jnp.asarray(R.integers(0, nodes, edges)) for _ in range(2)]

    def loss(w):
        h = x
        for layer in w:
            sent = jax.nn.relu(jnp.concatenate([h[ends[0]], h[ends[1]]], -1) @ layer)
            h = h + jax.ops.segment_sum(sent, ends[1], nodes)
        return (h**2).mean()

    return called(jax.value_and_grad(loss), w)


def vae(batch=256):
    """A variational autoencoder of 784 pixels: a step of gradient descent."""
    shapes = [(784, 400), (400, 40), (20, 400), (400, 784)]
    p, x = [f32(*s) * 0.05 for s in shapes], jax.nn.sigmoid(f32(batch, 784))

    def loss(p, key):
        mean, log = jnp.split(jax.nn.relu(x @ p[0]) @ p[1], 2, -1)
        z = mean + jnp.exp(log / 2) * jax.random.normal(key, mean.shape)
        out = jax.nn.relu(z @ p[2]) @ p[3]
        told = (jnp.maximum(out, 0) - out * x + jnp.log1p(jnp.exp(-jnp.abs(out)))).sum(-1)
        return (told - 0.5 * (1 + log - mean**2 - jnp.exp(log)).sum(-1)).mean()

    return called(lambda p, key: jax.tree.map(lambda p, g: p - 1e-3 * g, p, jax.grad(loss)(p, key)), p, jax.random.key(0))


def cart_pole(games=512, steps=100):
    """Games of cart and pole by a small policy network: rollouts for reinforcement learning."""
    w = [f32(4, 64) * 0.5, f32(64, 2) * 0.5]

    def step(state, key):
        x, v, angle, turn = jnp.moveaxis(state, -1, 0)
        force = 20.0 * jax.random.categorical(key, jnp.tanh(state @ w[0]) @ w[1]) - 10.0
        push = (force + 0.05 * turn**2 * jnp.sin(angle)) / 1.1
        spin = (9.8 * jnp.sin(angle) - jnp.cos(angle) * push) / (0.5 * (4 / 3 - 0.1 * jnp.cos(angle) ** 2 / 1.1))
        speed = push - 0.05 * spin * jnp.cos(angle) / 1.1
        to = jnp.stack([x + 0.02 * v, v + 0.02 * speed, angle + 0.02 * turn, turn + 0.02 * spin], -1)
        over = (jnp.abs(to[:, 0]) > 2.4) | (jnp.abs(to[:, 2]) > 0.2095)
        return jnp.where(over[:, None], 0.0, to), ~over

    run = lambda key: jax.lax.scan(step, jnp.zeros((games, 4)), jax.random.split(key, steps))[1].sum()
    return called(run, jax.random.key(0))


PROGRAMS = {
    "sinkhorn": sinkhorn,
    "hmc": hmc,
    "kalman": kalman,
    "lorenz": lorenz,
    "graph-net": graph_net,
    "vae": vae,
    "cart-pole": cart_pole,
}
