jax.config.update('jax_enable_x64', True)
import jax.scipy.linalg as jsl
import math
rng = np.random.default_rng(7)


def drawn(shape, dtype):
    x = rng.standard_normal(shape)
    if np.issubdtype(dtype, np.complexfloating):
        x = x + 1j * rng.standard_normal(shape)
    return x.astype(dtype)


def tolerance(dtype):
    return 1e-10 if np.finfo(dtype).bits == 64 else 2e-4


def adjoint(x):
    return np.swapaxes(np.conj(x), -1, -2)


def hermitian(x):
    return (x + adjoint(x)) / 2


for dtype in [np.float32, np.float64, np.complex64, np.complex128]:
    near = partial(close, tolerance=tolerance(dtype))
    eye = lambda n: np.eye(n, dtype=dtype)

    # Eigenvalues and vectors: even, odd, one, many at once, equal eigenvalues, zeros.
    for shape in [(6, 6), (5, 5), (1, 1), (2, 3, 3)]:
        a = hermitian(drawn(shape, dtype))
        w, v = jnp.linalg.eigh(a)
        assert w.dtype == np.finfo(dtype).dtype and v.dtype == dtype
        near(w, np.linalg.eigvalsh(a))
        near(np.asarray(v) * np.asarray(w)[..., None, :], a @ np.asarray(v))
        near(adjoint(np.asarray(v)) @ np.asarray(v), np.broadcast_to(eye(shape[-1]), shape))
    near(jnp.linalg.eigvalsh(np.diag([2, 2, 1, 2]).astype(dtype)), [1, 2, 2, 2])
    near(jnp.linalg.eigvalsh(np.zeros((3, 3), dtype)), [0, 0, 0])
    a = drawn((4, 4), dtype)
    near(jnp.linalg.eigvalsh(a, UPLO='U', symmetrize_input=False), np.linalg.eigvalsh(a, UPLO='U'))
    assert np.isnan(np.asarray(jnp.linalg.eigvalsh(np.full((3, 3), np.nan, dtype)))).all()

    # Singular values, and what is made of them.
    for shape in [(5, 3), (3, 5), (2, 4, 4)]:
        a = drawn(shape, dtype)
        u, s, vh = (np.asarray(x) for x in jnp.linalg.svd(a, full_matrices=False))
        near(s, np.linalg.svd(a, compute_uv=False))
        near((u * s[..., None, :]) @ vh, a)
        near(jnp.linalg.svd(a, compute_uv=False), s)
        near(jnp.linalg.pinv(a), np.linalg.pinv(a))
    a = drawn((5, 3), dtype)
    u, s, vh = jnp.linalg.svd(a)
    near(adjoint(np.asarray(u)) @ np.asarray(u), eye(5))
    low = a @ drawn((3, 5), dtype)
    assert int(jnp.linalg.matrix_rank(low)) == 3
    for order in [None, 2, -2, 'nuc', 'fro', 1, np.inf]:
        near(jnp.linalg.norm(a, order), np.linalg.norm(a, order))
    near(jnp.linalg.cond(a), np.linalg.cond(a))
    b = drawn((5, 2), dtype)
    near(jnp.linalg.lstsq(a, b)[0], np.linalg.lstsq(a, b, rcond=None)[0])

    # Systems.
    a, b = drawn((4, 4), dtype) + 3 * eye(4), drawn((4, 2), dtype)
    near(jnp.linalg.inv(a), np.linalg.inv(a))
    near(jnp.linalg.solve(a, b), np.linalg.solve(a, b))
    near(jnp.linalg.det(a), np.linalg.det(a))
    for ours_, numpys in zip(jnp.linalg.slogdet(a), np.linalg.slogdet(a)):
        near(ours_, numpys)
    p, l, u = (np.asarray(x) for x in jsl.lu(a))
    near(p @ l @ u, a)
    near(jsl.lu_solve(jsl.lu_factor(a), b), np.linalg.solve(a, b))
    q, r = (np.asarray(x) for x in jnp.linalg.qr(a))
    near(q @ r, a)
    near(r, np.linalg.qr(a)[1])
    spd = a @ adjoint(a)
    near(jnp.linalg.cholesky(spd), np.linalg.cholesky(spd))
    near(jsl.cho_solve(jsl.cho_factor(spd), b), np.linalg.solve(spd, b))
    lower = np.tril(a)
    near(jsl.solve_triangular(lower, b, lower=True), np.linalg.solve(lower, b))
    near(jsl.expm(a / 4), sum(np.linalg.matrix_power(a / 4, k) / math.factorial(k) for k in range(25)))
    near(jnp.linalg.matrix_power(a, 3), a @ a @ a)
    near(jsl.block_diag(a, b), np.block([[a, np.zeros((4, 2))], [np.zeros((4, 4)), b]]))

# Gradients, by differences.
for f in [
    lambda a: jnp.linalg.eigvalsh(a)[1],
    lambda a: jnp.abs(jnp.linalg.eigh(a)[1][0, 0]),
    lambda a: jnp.linalg.svd(a, compute_uv=False)[0],
    lambda a: jnp.linalg.norm(a, 'nuc'),
    lambda a: jnp.linalg.slogdet(a)[1],
    lambda a: jnp.sum(jnp.linalg.inv(a)),
    lambda a: jnp.linalg.solve(a, jnp.arange(3.0))[0],
    lambda a: jnp.linalg.qr(a)[1][0, 0],
    lambda a: jnp.sum(jnp.linalg.pinv(a)),
    lambda a: jnp.linalg.cholesky(a @ a.T)[2, 1],
]:
    a, d = hermitian(drawn((3, 3), np.float64)) + np.diag([1.0, 3.0, 6.0]), hermitian(drawn((3, 3), np.float64))
    f = jax.jit(f)
    h = 1e-6
    close(jnp.sum(jax.grad(f)(a) * d), (f(a + h * d) - f(a - h * d)) / (2 * h), 1e-5)
