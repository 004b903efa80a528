"""Loops over few numbers, as in solvers, samplers, filters and simulations, for through_jax.py: each function returns a call of one jitted program."""

import jax
import jax.numpy as jnp
from jax_programs import R, called, f32


def lotka(t, y, args=(1.1, 0.4, 0.1, 0.4)):
    return jnp.stack([y[0] * (args[0] - args[1] * y[1]), y[1] * (args[2] * y[0] - args[3])])


def loop_scalars():
    """Two numbers, 200,000 steps."""
    step = lambda i, c: (c[0] + 1e-6, c[1] + 1e-6 * (-c[1] * jnp.cos(c[0])))
    return called(lambda y: jax.lax.fori_loop(0, 200000, step, (jnp.float32(0), y))[1], jnp.float32(1))


def loop_runge_kutta():
    """The Lorenz system by the classical Runge-Kutta method, every step stored."""

    def slope(y):
        return jnp.stack([10 * (y[1] - y[0]), y[0] * (28 - y[2]) - y[1], y[0] * y[1] - 8 / 3 * y[2]])

    def step(y, _):
        h = 0.01
        a = slope(y)
        b = slope(y + h / 2 * a)
        c = slope(y + h / 2 * b)
        y = y + h / 6 * (a + 2 * b + 2 * c + slope(y + h * c))
        return y, y

    return called(lambda y: jax.lax.scan(step, y, None, length=1000), jnp.ones(3))


def loop_diffrax():
    """Diffrax: Dormand-Prince with adaptive steps."""
    import diffrax

    control = diffrax.PIDController(1e-5, 1e-5)
    solve = lambda y: diffrax.diffeqsolve(diffrax.ODETerm(lotka), diffrax.Dopri5(), 0, 50.0, 0.01, y, (1.1, 0.4, 0.1, 0.4), stepsize_controller=control)
    return called(lambda y: solve(y).ys, jnp.array([10.0, 5.0]))


def loop_diffrax_gradient():
    """Diffrax: the gradient of a solution by its parameters."""
    import diffrax

    term = diffrax.ODETerm(lotka)
    y = jnp.array([10.0, 5.0])
    return called(jax.grad(lambda a: diffrax.diffeqsolve(term, diffrax.Heun(), 0, 10.0, 0.05, y, a, max_steps=256).ys.sum()), jnp.array([1.1, 0.4, 0.1, 0.4]))


def loop_adam():
    """Optax: Adam on Rosenbrock's function of eight variables."""
    import optax

    adam = optax.adam(1e-2)
    slope = jax.grad(lambda p: jnp.sum(100 * (p[1:] - p[:-1] ** 2) ** 2 + (1 - p[:-1]) ** 2))

    def step(_, c):
        update, state = adam.update(slope(c[0]), c[1], c[0])
        return optax.apply_updates(c[0], update), state

    return called(lambda p: jax.lax.fori_loop(0, 1000, step, (p, adam.init(p)))[0], jnp.zeros(8))


def loop_kalman():
    """A Kalman filter of four states and two measurements."""
    f = jnp.array([[1, 0.1, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0.1], [0, 0, 0, 1.0]])
    h = jnp.array([[1.0, 0, 0, 0], [0, 0, 1, 0]])

    def step(c, z):
        x, p = f @ c[0], f @ c[1] @ f.T + jnp.eye(4) * 0.01
        s = h @ p @ h.T + jnp.eye(2) * 0.1
        inverse = jnp.array([[s[1, 1], -s[0, 1]], [-s[1, 0], s[0, 0]]]) / (s[0, 0] * s[1, 1] - s[0, 1] * s[1, 0])
        k = p @ h.T @ inverse
        x = x + k @ (z - h @ x)
        return (x, (jnp.eye(4) - k @ h) @ p), x

    return called(lambda z: jax.lax.scan(step, (jnp.zeros(4), jnp.eye(4)), z)[1], f32(500, 2))


def loop_hidden_markov():
    """The forward algorithm of a hidden Markov model of five states."""
    transitions = jax.nn.log_softmax(f32(5, 5))

    def step(a, o):
        a = jax.nn.logsumexp(a[:, None] + transitions, axis=0) + o
        return a, a

    return called(lambda o: jax.lax.scan(step, jnp.zeros(5), o)[1], f32(500, 5))


def loop_recurrent():
    """A recurrent network of 16 units."""
    w, u = f32(16, 16) * 0.3, f32(4, 16)

    def step(h, x):
        h = jnp.tanh(h @ w + x @ u)
        return h, h

    return called(lambda x: jax.lax.scan(step, jnp.zeros(16), x)[1], f32(500, 4))


def loop_cart_pole():
    """A cart with a pole, 2,000 steps."""

    def step(s, action):
        x, v, angle, turn = s
        force, cos, sin = jnp.where(action > 0, 10.0, -10.0), jnp.cos(angle), jnp.sin(angle)
        t = (force + 0.05 * turn * turn * sin) / 1.1
        b = (9.8 * sin - cos * t) / (0.5 * (4 / 3 - 0.1 * cos * cos / 1.1))
        s = (x + 0.02 * v, v + 0.02 * (t - 0.05 * b * cos / 1.1), angle + 0.02 * turn, turn + 0.02 * b)
        over = (jnp.abs(s[2]) > 0.2) | (jnp.abs(s[0]) > 2.4)
        return tuple(jnp.where(over, 0.01, q) for q in s), over

    return called(lambda a: jax.lax.scan(step, (0.0, 0.0, 0.01, 0.0), a), f32(2000))


def loop_collatz():
    """Collatz sequences of the numbers below 2,000: a loop of integers in a loop."""
    step = lambda s: (jnp.where(s[0] % 2 == 0, s[0] // 2, 3 * s[0] + 1), s[1] + 1)
    length = lambda n: jax.lax.while_loop(lambda s: s[0] != 1, step, (n, 0))[1]
    return called(lambda n: jax.lax.fori_loop(1, 2000, lambda i, most: jnp.maximum(most, length(i)), n), 0)


def loop_integers():
    """A linear congruential generator."""
    step = lambda i, s: (s * 1103515245 + 12345) % 2147483647
    return called(lambda s: jax.lax.fori_loop(0, 10000, step, s), jnp.uint32(7))


def loop_mandelbrot():
    """Mandelbrot's set, point by point."""

    def one(c):
        step = lambda s: (jnp.stack([s[0][0] ** 2 - s[0][1] ** 2 + c[0], 2 * s[0][0] * s[0][1] + c[1]]), s[1] + 1)
        return jax.lax.while_loop(lambda s: (jnp.sum(s[0] ** 2) < 4) & (s[1] < 200), step, (jnp.zeros(2), 0))[1]

    return called(lambda c: jax.lax.map(one, c), f32(200, 2) * 0.7)


def loop_metropolis():
    """Metropolis' algorithm in two dimensions."""

    def step(x, key):
        first, second = jax.random.split(key)
        y = x + jax.random.normal(first, (2,))
        x = jnp.where(jnp.log(jax.random.uniform(second)) < -0.5 * (y @ y - x @ x), y, x)
        return x, x

    return called(lambda key: jax.lax.scan(step, jnp.zeros(2), jax.random.split(key, 1000)), jax.random.key(0))


def loop_hamiltonian():
    """Hamiltonian Monte Carlo in three dimensions."""
    energy = lambda q: 0.5 * jnp.sum(q * q * jnp.array([1.0, 4.0, 9.0]))
    slope = jax.grad(energy)

    def leap(_, s):
        p = s[1] - 0.05 * slope(s[0])
        q = s[0] + 0.1 * p
        return q, p - 0.05 * slope(q)

    def step(q, key):
        first, second = jax.random.split(key)
        p = jax.random.normal(first, (3,))
        to, end = jax.lax.fori_loop(0, 10, leap, (q, p))
        gain = energy(q) + 0.5 * p @ p - energy(to) - 0.5 * end @ end
        q = jnp.where(jnp.log(jax.random.uniform(second)) < gain, to, q)
        return q, q

    return called(lambda key: jax.lax.scan(step, jnp.zeros(3), jax.random.split(key, 300)), jax.random.key(0))


def loop_nuts():
    """NumPyro: the no-U-turn sampler in two dimensions."""
    from numpyro.infer.hmc import hmc

    init, sample = hmc(lambda z: 0.5 * jnp.sum(z**2 * jnp.array([1.0, 2.0])), algo="NUTS")
    state = init(jnp.ones(2), num_warmup=0, step_size=0.5, rng_key=jax.random.PRNGKey(0))
    return called(lambda s: jax.lax.fori_loop(0, 100, lambda i, s: sample(s), s).z, state)


def loop_newton():
    """Optimistix: Newton's method for 50 systems of two equations."""
    import optimistix

    f = lambda y, a: jnp.array([y[0] ** 2 + y[1] - a, y[1] ** 2 - y[0]])
    solver = optimistix.Newton(1e-5, 1e-5)
    one = lambda a: optimistix.root_find(f, solver, jnp.array([1.0, 1.0]), args=a, throw=False).value
    return called(lambda a: jax.lax.map(one, a), jnp.linspace(1.0, 3.0, 50))


def loop_bfloat16():
    """A recurrence in bf16."""

    def step(c, x):
        c = c * jnp.bfloat16(0.9) + x
        return c, jnp.tanh(c)

    return called(lambda x: jax.lax.scan(step, jnp.zeros(4, jnp.bfloat16), x)[1], f32(500, 4).astype(jnp.bfloat16))


def loop_table():
    """A walk through a table."""
    table = jnp.asarray(R.permutation(64))
    return called(lambda s: jax.lax.fori_loop(0, 5000, lambda i, s: table[s], s), jnp.int32(3))


def loop_histogram():
    """A histogram, number by number."""
    x = jnp.asarray(R.integers(0, 16, 1000))
    return called(lambda x: jax.lax.fori_loop(0, 1000, lambda i, h: h.at[x[i]].add(1), jnp.zeros(16, jnp.int32)), x)


def loop_sort():
    """Sorts of six numbers."""
    return called(lambda x: jax.lax.map(lambda x: jnp.sort(x)[::2], x), f32(500, 6))


def loop_inverse():
    """Inverses of a matrix of nine numbers."""
    step = lambda i, c: jnp.linalg.inv(c + 0.1 * jnp.eye(3))
    return called(lambda a: jax.lax.fori_loop(0, 200, step, a), jnp.eye(3) + 0.1 * jnp.arange(9.0).reshape(3, 3))


LOOPS = {name.replace("_", "-"): f for name, f in list(globals().items()) if name.startswith("loop_")}
