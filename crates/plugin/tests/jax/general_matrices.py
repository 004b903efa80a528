jax.config.update('jax_enable_x64', True)
import jax.scipy.linalg as jsl
from jax import lax
rng = np.random.default_rng(11)


def drawn(shape, dtype):
    x = rng.standard_normal(shape)
    if np.issubdtype(dtype, np.complexfloating):
        x = x + 1j * rng.standard_normal(shape)
    return x.astype(dtype)


def adjoint(x):
    return np.swapaxes(np.conj(x), -1, -2)


for dtype in [np.float32, np.float64, np.complex64, np.complex128]:
    near = partial(close, tolerance=1e-10 if np.finfo(dtype).bits == 64 else 3e-4)
    for shape in [(1, 1), (5, 5), (2, 3, 7, 7), (40, 40)]:
        a, n = drawn(shape, dtype), shape[-1]
        eye = np.broadcast_to(np.eye(n), shape)
        w, left, right = (np.asarray(x) for x in lax.linalg.eig(a))
        near(a @ right, right * w[..., None, :])
        near(adjoint(left) @ a, w[..., :, None] * adjoint(left))
        near(np.linalg.norm(right, axis=-2), np.ones(w.shape))
        t, z = (np.asarray(x) for x in lax.linalg.schur(a))
        near(z @ t @ adjoint(z), a)
        near(z @ adjoint(z), eye)
        b = drawn((*shape[:-1], n + 2), dtype)
        h, taus = lax.linalg.hessenberg(a)
        assert taus.shape == (*shape[:-2], n - 1)
        s = a + adjoint(a)
        for lower in [True, False]:
            _, d, e, _ = (np.asarray(x) for x in lax.linalg.tridiagonal(s, lower=lower))
            near(d.sum(-1), np.trace(s, axis1=-2, axis2=-1).real)
            near((d**2).sum(-1) + 2 * (e**2).sum(-1), (np.abs(s)**2).sum((-1, -2)), tolerance=1e-3)
        d, dl, du = (drawn(shape[:-1], dtype) for _ in range(3))
        dl[..., 0], du[..., -1] = 0, 0
        x = np.asarray(lax.linalg.tridiagonal_solve(dl, d + 4, du, b))
        back = (d + 4)[..., None] * x
        back[..., 1:, :] += dl[..., 1:, None] * x[..., :-1, :]
        back[..., :-1, :] += du[..., :-1, None] * x[..., 1:, :]
        near(back, b)
    a = drawn((6, 6), dtype)
    h, q = (np.asarray(x) for x in jsl.hessenberg(a, calc_q=True))
    near(q @ h @ adjoint(q), a)
    for shape in [(6, 4), (4, 6)]:
        b = drawn(shape, dtype)
        q, r, p = (np.asarray(x) for x in jsl.qr(b, pivoting=True, mode='economic'))
        near(q @ r, b[:, p])
        assert (np.diff(np.abs(np.diag(r))) <= 1e-6).all()
    t, z = (np.asarray(x) for x in jsl.rsf2csf(*jsl.schur(a)))
    near(z @ t @ adjoint(z), a)
    p = a @ adjoint(a) + np.eye(6, dtype=dtype)
    root = np.asarray(jsl.sqrtm(p))
    near(root @ root, p)

# A rotation has the eigenvalues i and −i, in that order; a polynomial its roots.
assert jnp.linalg.eigvals(np.array([[0., 1.], [-1., 0.]])).tolist() == [1j, -1j]
close(np.sort(np.asarray(jnp.roots(jnp.array([1., -6., 11., -6.]), strip_zeros=False)).real), [1, 2, 3])
assert np.isnan(np.asarray(jnp.linalg.eigvals(np.full((3, 3), np.nan)))).all()
assert jnp.linalg.eigvals(np.zeros((0, 0))).shape == (0,) and jnp.linalg.svd(np.zeros((3, 0)))[0].shape == (3, 3)
a = drawn((5, 5), np.float64)
f = lambda a: jnp.abs(jnp.linalg.eigvals(a)).max()
d, h = drawn((5, 5), np.float64), 1e-6
close(jnp.sum(jax.grad(f)(a) * d), (f(a + h * d) - f(a - h * d)) / (2 * h), 1e-5)

# Element types that LAPACK lacks are computed in f32, as without LAPACK.
close(jnp.tril(jax.jit(lax.linalg.triangular_solve, static_argnames=['left_side', 'lower'])(
    jnp.eye(3, dtype=jnp.bfloat16) * 2, jnp.eye(3, dtype=jnp.bfloat16), left_side=True, lower=True)).astype(np.float32),
    np.eye(3) / 2)

# A program that JAX exported for its CPU holds the same calls, and runs here; so does one for several platforms.
f = jax.jit(lambda a: jnp.linalg.svd(a, compute_uv=False))
b = drawn((4, 3), np.float64)
for platforms in [['cpu'], ['tpu', 'cpu']]:
    exported = jax.export.export(f, platforms=platforms)(jax.ShapeDtypeStruct((4, 3), np.float64))
    assert 'lapack_dgesdd_ffi' in exported.mlir_module()
    close(jax.jit(exported.call)(b), np.linalg.svd(b, compute_uv=False), 1e-12)
try:
    jax.export.export(f, platforms=['tpu'])(jax.ShapeDtypeStruct((4, 3), np.float64)).call(b)
except ValueError as e:
    assert 'exported for' in str(e), e
else:
    raise SystemExit('a program for a TPU ran')
branch = jax.jit(lambda x: jax.lax.platform_dependent(x, cpu=lambda x: x + 1, tpu=lambda x: x + 2))
close(jax.export.export(branch, platforms=['tpu', 'cpu'])(jax.ShapeDtypeStruct((), np.float32)).call(np.float32(1)), 2)

# Eigenvectors of tridiagonal matrices come from inverse iteration, with systems that are nearly singular.
if 'perturb_singular' in __import__('inspect').signature(lax.linalg.tridiagonal_solve).parameters:
    d, e = drawn((6,), np.float64), drawn((5,), np.float64)
    values, vectors = jsl.eigh_tridiagonal(d, e, eigvals_only=False)
    full = np.diag(d) + np.diag(e, 1) + np.diag(e, -1)
    close(values, np.linalg.eigvalsh(full), 1e-9)
    close(full @ np.asarray(vectors), np.asarray(vectors) * np.asarray(values), 1e-6)
    zero = np.zeros((2, 3), np.complex64)
    x = np.asarray(lax.linalg.tridiagonal_solve(zero, zero, zero, np.ones((2, 3, 1), np.complex64), perturb_singular=True))
    assert (np.abs(x) > 1e6).all() and np.isfinite(x).all()
