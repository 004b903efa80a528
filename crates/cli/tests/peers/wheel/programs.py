"""Twenty programs of JAX, each beside NumPy or SciPy."""

import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg
import scipy.special

assert jax.devices()[0].platform == "systole", jax.devices()
r = np.random.default_rng(0)
x, y, m = (r.normal(size=s).astype(np.float32) for s in [(4, 6), (6, 3), (5, 5)])
spd = m @ m.T + 5 * np.eye(5, dtype=np.float32)
n = np.arange(24, dtype=np.int32).reshape(4, 6) - 12
img = r.normal(size=(2, 8, 8, 3)).astype(np.float32)
ker = r.normal(size=(3, 3, 3, 4)).astype(np.float32)


def convolution(a, k):
    windows = np.lib.stride_tricks.sliding_window_view(a, (3, 3), axis=(1, 2))
    return np.einsum("bhwcij,ijco->bhwo", windows, k)


def softmax(a):
    e = np.exp(a - a.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def lax_conv(a, k):
    return jax.lax.conv_general_dilated(a, k, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"))


programs = {
    "product": (lambda a, b: a @ b, [x, y], x @ y),
    "einsum": (lambda a, b: jnp.einsum("ij,kj->ik", a, b), [x, x], x @ x.T),
    "softmax": (lambda a: jax.nn.softmax(a), [x], softmax(x)),
    "variance": (lambda a: a.var(1), [x], x.var(1)),
    "sort": (lambda a: jnp.sort(a, 1), [x], np.sort(x, 1)),
    "argsort": (lambda a: jnp.argsort(a, 1), [x], np.argsort(x, 1)),
    "top_k": (lambda a: jax.lax.top_k(a, 2)[0], [x], -np.sort(-x, 1)[:, :2]),
    "cumsum": (lambda a: jnp.cumsum(a, 1), [x], x.cumsum(1)),
    "gather": (lambda a, i: a[i], [x, np.int32([3, 0, 3])], x[[3, 0, 3]]),
    "scatter": (lambda a: a.at[jnp.array([1, 1])].add(1.0), [x], x + np.float32([0, 2, 0, 0])[:, None]),
    "integers": (lambda a: a // 5 + a % 5 + (a << 1) + (a >> 2), [n], n // 5 + n % 5 + (n << 1) + (n >> 2)),
    "convolution": (lax_conv, [img, ker], convolution(img, ker)),
    "maximum of windows": (
        lambda a: jax.lax.reduce_window(a, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID"),
        [img],
        img.reshape(2, 4, 2, 4, 2, 3).max((2, 4)),
    ),
    "fft": (lambda a: jnp.fft.fft(a), [x], np.fft.fft(x)),
    "cholesky": (lambda a: jnp.linalg.cholesky(a), [spd], np.linalg.cholesky(spd)),
    "triangular solve": (
        lambda a, b: jax.scipy.linalg.solve_triangular(a, b, lower=True),
        [np.tril(spd), m],
        scipy.linalg.solve_triangular(np.tril(spd), m, lower=True),
    ),
    "complex": (lambda a: jnp.abs(jnp.exp(1j * a) + a), [x], np.abs(np.exp(1j * x) + x)),
    "special": (
        lambda a: jax.scipy.special.gammaln(a) + jax.scipy.special.erfc(a) + jax.scipy.special.digamma(a),
        [np.abs(x) + 0.5],
        scipy.special.gammaln(np.abs(x) + 0.5) + scipy.special.erfc(np.abs(x) + 0.5) + scipy.special.digamma(np.abs(x) + 0.5),
    ),
    "scan": (lambda a: jax.lax.scan(lambda c, v: (0.5 * c + v, c), jnp.zeros(6), a)[0], [x], ((x[0] * 0.5 + x[1]) * 0.5 + x[2]) * 0.5 + x[3]),
    "gradient": (jax.grad(lambda a: jnp.sum(jnp.tanh(a) ** 2)), [x], 2 * np.tanh(x) * (1 - np.tanh(x) ** 2)),
}
assert len(programs) == 20
for name, (f, arguments, expected) in programs.items():
    np.testing.assert_allclose(np.asarray(jax.jit(f)(*arguments)), expected, rtol=2e-4, atol=2e-4, err_msg=name)
# Threefry is defined to the bit.
bits = jax.random.bits(jax.random.key(7), (4,))
assert bits.tolist() == jax.jit(lambda: jax.random.bits(jax.random.key(7), (4,)))().tolist()
half = jax.jit(lambda a: (a.astype(jnp.bfloat16) @ a.T.astype(jnp.bfloat16)).astype(jnp.float32))(x)
np.testing.assert_allclose(half, x @ x.T, rtol=0.05, atol=0.1)
print("the end")
