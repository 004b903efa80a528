"""Programs of JAX, each as portable bytecode and as text, with arguments and with what JAX's CPU computes of them:
`generate.py OUT.npz`. `tests/peers/jax_programs.rs` runs them. A program that ran before keeps its arguments: each draws from its name.

The archive holds two arrays of bytes: `index`, JSON of names and lengths, and `data`, what is named one behind the other, so that all is
packed together. Of a program NAME: `NAME/mlir`, `NAME/bc`, `NAME/argI`, `NAME/outI` (bytes of the elements, row-major) and
`NAME/tolerance` (the share by which floats may differ).
"""

import json
import os
import sys
import zlib

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
os.environ["JAX_PLATFORMS"] = "cpu"
import importlib.util
from functools import partial

import jax
import jax.numpy as jnp
import jax.scipy as jsp
import ml_dtypes
import numpy as np
from jax import export, lax, nn
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_hlo_source_file_canonicalization_regex", ".*/")
PROGRAMS = {}
f32, f64, bf16, f16, c64, c128 = np.float32, np.float64, ml_dtypes.bfloat16, np.float16, np.complex64, np.complex128
i32, i64, u8, u32 = np.int32, np.int64, np.uint8, np.uint32
HIGHEST = lax.Precision.HIGHEST


class A:
    """An argument to draw: floats between low and high, integers likewise; `values` are taken as they are."""

    def __init__(self, *shape, dtype=f32, low=None, high=None, values=None):
        self.shape, self.dtype, self.low, self.high, self.values = shape, np.dtype(dtype), low, high, values

    def draw(self, r):
        if self.values is not None:
            return np.asarray(self.values, self.dtype)
        if self.dtype == bool:
            return r.random(self.shape) < 0.5
        if self.dtype.kind in "iu" or self.dtype.name in ("int4", "uint4"):
            low = self.low if self.low is not None else (-7 if self.dtype.kind == "i" or self.dtype.name == "int4" else 0)
            return r.integers(low, self.high if self.high is not None else 8, self.shape).astype(self.dtype)
        low, high = (-2.0 if self.low is None else self.low), (2.0 if self.high is None else self.high)
        x = r.uniform(low, high, self.shape)
        if self.dtype.kind == "c":
            x = x + 1j * r.uniform(low, high, self.shape)
        return x.astype(self.dtype)


def add(name, f, *args, tolerance=None, **options):
    assert name not in PROGRAMS, name
    PROGRAMS[name] = (f, args, tolerance, options)


def grad(f, *which):
    """The gradient of the sum of what f returns."""
    return jax.grad(lambda *a: sum(jnp.sum(jnp.sin(y)) for y in jax.tree.leaves(f(*a))), which or 0)


# Element-wise, by families and types.
UNARY = "abs ceil floor round sign exp exp2 expm1 sin cos tan sinh cosh tanh asinh atan logistic erf erfc cbrt square neg".split()
POSITIVE = "log log1p sqrt rsqrt lgamma digamma bessel_i0e bessel_i1e reciprocal acosh".split()
for ty, tol in (("f32", 2e-5), ("f64", 1e-11), ("bf16", 2e-2), ("f16", 4e-3)):
    for half, names in (("first", UNARY[:11]), ("second", UNARY[11:])):
        add(f"unary_{half}_{ty}", lambda x, names=names: [getattr(lax, n)(x) for n in names], A(7, dtype=eval(ty)), tolerance=tol)
    add(f"unary_positive_{ty}", lambda x: [getattr(lax, n)(x) for n in POSITIVE if n != "acosh"] + [lax.acosh(x + 1)], A(7, dtype=eval(ty), low=0.3, high=4), tolerance=tol * 4)
    add(f"unary_inside_{ty}", lambda x: [lax.asin(x), lax.acos(x), lax.atanh(x), lax.erf_inv(x)], A(7, dtype=eval(ty), low=-0.9, high=0.9), tolerance=tol * 4)
    add(f"binary_{ty}", lambda x, y: [x + y, x - y, x * y, x / y, lax.max(x, y), lax.min(x, y), lax.rem(x, y), lax.atan2(x, y), lax.pow(lax.abs(x), y), lax.nextafter(x, y)] if x.dtype in (f32, f64) else [x + y, x * y, x / y, lax.max(x, y), lax.rem(x, y), lax.atan2(x, y)], A(7, dtype=eval(ty)), A(7, dtype=eval(ty)), tolerance=tol)
    add(f"compare_{ty}", lambda x, y: [x < y, x <= y, x == x, x != y, x > y, x >= y, lax.is_finite(x), jnp.where(x > y, x, y), jnp.clip(x, -1, 1)], A(9, dtype=eval(ty)), A(9, dtype=eval(ty)))
for ty in (np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64):
    n = np.dtype(ty).name
    add(f"integers_{n}", lambda x, y: [x + y, x - y, x * y, lax.div(x, y), lax.rem(x, y), lax.max(x, y), lax.min(x, y), x & y, x | y, x ^ y, ~x, lax.population_count(x), lax.clz(x), lax.sign(x), lax.shift_left(x, y), lax.shift_right_logical(x, y), lax.shift_right_arithmetic(x, y), lax.integer_pow(x, 3), x < y], A(12, dtype=ty, low=0 if n[0] == "u" else -100, high=120), A(12, dtype=ty, low=1, high=7))
    add(f"integers_reduced_{n}", lambda x: [jnp.sum(x, 0, dtype=x.dtype), jnp.prod(x, 1, dtype=x.dtype), x.max(), x.min(1), jnp.cumsum(x, 0, dtype=x.dtype), jnp.sort(x, 1), jnp.argmax(x, 1), lax.reduce_and(x, (0,)), lax.reduce_xor(x, (1,))], A(3, 4, dtype=ty))
add("non_finite", lambda x, y: [x + y, x * y, x / y, lax.max(x, y), lax.min(x, y), lax.sign(x), lax.sqrt(x), lax.exp(x), lax.log(x), lax.tanh(x), x.astype(i32), x.astype(u8), lax.rem(x, y), lax.pow(x, y), jnp.nan_to_num(x), jnp.sort(x)], A(values=[0.0, -0.0, np.inf, -np.inf, np.nan, 1e38, -1e-30, 3e9]), A(values=[-0.0, 5.0, np.inf, 2.0, 1.0, 1e38, 0.0, -np.inf]))
add("bools", lambda a, b: [a & b, a | b, a ^ b, ~a, jnp.any(a), jnp.all(b, 0), a.astype(f32) + b, jnp.where(a, 1, 2), jnp.argmax(a, 1), jnp.cumsum(a, 1), lax.select_n(a, b, a)], A(3, 4, dtype=bool), A(3, 4, dtype=bool))
for ty in (c64, c128):
    n, tol = np.dtype(ty).name, 4e-5 if ty is c64 else 1e-10
    add(f"complex_{n}", lambda a, b: [a + b, a - b, a * b, a / b, a.conj(), a.real, b.imag, lax.abs(a), jnp.angle(a), lax.complex(a.real, b.imag), a == b], A(6, dtype=ty), A(6, dtype=ty), tolerance=tol)
    add(f"complex_functions_{n}", lambda a: [f(a) for f in (jnp.exp, jnp.log, jnp.sqrt, jnp.sin, jnp.cos, jnp.tanh, jnp.sinh, jnp.expm1, jnp.log1p, jnp.sign, lax.rsqrt, lax.logistic)] + [a**2, a ** (0.5 + 0.1j)], A(6, dtype=ty), tolerance=tol)
    add(f"complex_moved_{n}", lambda a: [a.T, a[::2, 1:], jnp.pad(a, 1), a.sum(0), jnp.prod(a, 1), a @ a.T, jnp.cumsum(a, 1), jnp.roll(a, 1, 0), jnp.concatenate([a, a]), a.at[1].add(2j), jnp.sort(a, 1), jnp.mean(a)], A(3, 4, dtype=ty), tolerance=tol)
    add(f"complex_grad_{n}", lambda a: jax.grad(lambda a: jnp.sum(jnp.abs(jnp.exp(a) * a.conj())))(a), A(5, dtype=ty), tolerance=tol)
F8 = [ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, ml_dtypes.float8_e4m3b11fnuz, ml_dtypes.float8_e4m3fnuz, ml_dtypes.float8_e5m2fnuz, ml_dtypes.float8_e4m3, ml_dtypes.float8_e3m4, ml_dtypes.float8_e8m0fnu]
for ty in F8:
    n = np.dtype(ty).name
    low = 0.3 if "e8m0" in n else None
    add(f"{n}", lambda x, y, ty=ty: [x.astype(f32) * 2, y.astype(ty), (x.astype(bf16) + 1).astype(f16), x.reshape(2, 4).T, jnp.concatenate([x, y.astype(ty)])], A(8, dtype=ty, low=low), A(8, low=low, high=9))
for ty in ("int4", "uint4", "int2", "uint2"):
    most = 2 if "2" in ty else 8
    add(ty, lambda x, ty=ty: [x.astype(i32) * 3, (x.astype(i32) + 1).astype(ty), x.reshape(2, 4), x[::2], x.astype(f32)], A(8, dtype=getattr(ml_dtypes, ty), low=0, high=most))
add("conversions", lambda a, b, c: [x.astype(t) for x in (a, b, c) for t in (bool, np.int8, u8, i32, i64, bf16, f16, f32, f64, c64)], A(4, low=0, high=90), A(4, dtype=i32, low=0), A(4, dtype=f64, low=0))
add("bitcasts", lambda a, b: [lax.bitcast_convert_type(a, i32), lax.bitcast_convert_type(a, u8), lax.bitcast_convert_type(b, f64), lax.bitcast_convert_type(a, np.int16)], A(4), A(3, 2, dtype=i32))
add("reduce_precision", lambda x: [lax.reduce_precision(x, 5, 10), lax.reduce_precision(x, 8, 7), lax.reduce_precision(x, 4, 3)], A(9))

# Movement.
add("shapes", lambda x: [x.reshape(6, 4), lax.broadcast(x, (2,)), lax.broadcast_in_dim(x, (2, 4, 6), (1, 2)), x.T, jnp.squeeze(x[None]), lax.expand_dims(x, (1,)), lax.rev(x, (0,)), jnp.tile(x, (2, 1)), jnp.repeat(x, 2, 1), jnp.stack([x, x], 1), jnp.swapaxes(x[None], 0, 2)], A(4, 6))
add("slices", lambda x: [x[1:3], x[::2, ::-1], x[..., 2], lax.slice(x, (0, 1), (4, 6), (2, 3)), lax.slice_in_dim(x, 1, 5, axis=1), jnp.split(x, 2, 1), jnp.array_split(x, 3, 1)], A(4, 6))
add("pads", lambda x: [lax.pad(x, f32(3), ((1, -1, 1), (0, 2, 2))), lax.pad(x, f32(0), ((-2, 0, 0), (0, 0, 3))), jnp.pad(x, 2, mode="edge"), jnp.pad(x, ((1, 1), (2, 2)), mode="reflect"), jnp.pad(x, 1, mode="wrap")], A(4, 5))
add("iotas", lambda x: [lax.iota(i32, 5), lax.broadcasted_iota(f32, (2, 3), 1), jnp.arange(0, 3, 0.5), jnp.linspace(0, 1, 5), jnp.eye(3, 4, 1), jnp.tri(3), jnp.tril(x), jnp.triu(x, 1), jnp.diag(x), jnp.meshgrid(jnp.arange(2), jnp.arange(3))], A(3, 3))
add("dynamic_slices", lambda x, i, j: [lax.dynamic_slice(x, (i, j), (2, 3)), lax.dynamic_index_in_dim(x, i, 0), lax.dynamic_slice_in_dim(x, j, 2, 1), lax.dynamic_slice(x, (i + 90, j - 90), (2, 2))], A(5, 6), A(values=3, dtype=i32), A(values=2, dtype=i32))
add("dynamic_updates", lambda x, y, i: [lax.dynamic_update_slice(x, y, (i, i)), lax.dynamic_update_slice_in_dim(x, y[:, :1].repeat(6, 1), i, 0), lax.dynamic_update_slice(x, y, (i + 70, i - 70))], A(5, 6), A(2, 2), A(values=1, dtype=i32))
add("dynamic_grad", lambda x, y, i: jax.grad(lambda x, y: jnp.sum(jnp.cos(lax.dynamic_update_slice(x, y, (i, i))) * lax.dynamic_slice(x, (i, i32(0)), (1, 6))), (0, 1))(x, y), A(5, 6), A(2, 2), A(values=2, dtype=i32))
add("gathers", lambda x, i: [x[i], x[:, i], x[i, i], jnp.take(x, i, axis=0, mode="clip"), jnp.take(x, i + 3, axis=0, mode="fill"), jnp.take_along_axis(x, i[:, None], 1), x[i[:, None], i[None]]], A(5, 6), A(5, dtype=i32, low=0, high=5))
add("gathers_batched", lambda x, i: [jax.vmap(lambda x, i: x[i])(x, i), jax.vmap(lambda x, i: jnp.take(x, i, mode="wrap"))(x, i + 9)], A(3, 6), A(3, 4, dtype=i64, low=0, high=6))
add("gather_windows", lambda x, i: lax.gather(x, i, lax.GatherDimensionNumbers((1, 2), (), (0, 1)), (2, 3), mode="clip"), A(5, 6), A(4, 2, dtype=i32, low=-1, high=6))
add("gather_grad", grad(lambda x, i: x[i] * 2, 0), A(6, 3), A(4, dtype=i32, low=0, high=6))
for op in ("set", "add", "multiply", "min", "max", "apply"):
    add(f"scatter_{op}", (lambda x, i, y: [x.at[i].apply(jnp.sin), x.at[1, 2].apply(jnp.cos)]) if op == "apply" else (lambda x, i, y, op=op: [getattr(x.at[i], op)(y), getattr(x.at[:, 2], op)(1.5), getattr(x.at[i, i], op)(y[:, 0]), getattr(x.at[i + 3], op)(y, mode="drop")]), A(6, 4), A(values=[0, 3, 1], dtype=i32), A(3, 4), keep_unused=True)
add("scatter_integers", lambda x, i: [x.at[i].add(1), x.at[i].set(9), jnp.bincount(i, length=6), x.at[i].mul(2)], A(6, dtype=i32), A(values=[1, 4, 1, 1], dtype=i32))
add("scatter_windows", lambda x, i, y: lax.scatter_add(x, i, y, lax.ScatterDimensionNumbers((1, 2), (), (0, 1))), A(5, 6), A(2, 2, dtype=i32, low=0, high=3), A(2, 2, 3))
add("scatter_batched", lambda x, i: jax.vmap(lambda x, i: x.at[i].add(0.5))(x, i), A(3, 6), A(3, 4, dtype=i32, low=0, high=6))
add("scatter_grad", lambda x, y, i: jax.grad(lambda x, y: jnp.sum(jnp.sin(x.at[i].add(y))), (0, 1))(x, y), A(6, 3), A(4, 3), A(4, dtype=i32, low=0, high=6))
add("segments", lambda x, i: [jax.ops.segment_sum(x, i, 5), jax.ops.segment_max(x, i, 5), jax.ops.segment_prod(x, i, 5)], A(8), A(8, dtype=i32, low=0, high=5))

# Sorts.
add("sorts", lambda x: [lax.sort(x), jnp.sort(x, 0), jnp.argsort(x), jnp.sort(x, descending=True), lax.sort(x, is_stable=False)], A(4, 7))
add("sort_pairs", lambda x, i: [lax.sort((x, i), dimension=1), lax.sort((i, x), dimension=0, num_keys=2), lax.sort_key_val(i, x)], A(4, 6), A(4, 6, dtype=i32, low=0, high=3))
add("sort_types", lambda a, b, c: [jnp.sort(a), jnp.sort(b), jnp.argsort(c), jnp.sort(a)[::-1]], A(9, dtype=bf16), A(9, dtype=u8), A(9, dtype=i64))
add("top_k", lambda x, i: [lax.top_k(x, 3), lax.top_k(i, 2), lax.approx_max_k(x, 1, recall_target=1.0)], A(3, 8), A(3, 8, dtype=i32))
add("ranks", lambda x: [jnp.median(x), jnp.percentile(x, 30.0), jnp.quantile(x, 0.4, axis=0), jnp.searchsorted(jnp.sort(x[0]), x[1]), jnp.argmin(x, 1), jnp.argmax(x), jnp.partition(x, 2)], A(3, 7))
add("unique", lambda x: [jnp.unique(x, size=6, fill_value=-1), jnp.nonzero(x, size=7), jnp.lexsort((x, x % 3))], A(9, dtype=i32, low=0, high=4))
add("sort_grad", grad(lambda x: jnp.sort(x, 1) * jnp.arange(6.0, dtype=f32)), A(3, 6))

# Products.
for ty, tol in (("f32", 2e-5), ("f64", 1e-12), ("bf16", 2e-2), ("f16", 4e-3), ("i32", None)):
    add(f"products_{ty}", lambda a, b: [a @ b, jnp.dot(a, b[:, 0]), jnp.einsum("ij,kj->ik", a, a), jnp.outer(a[0], b[0]), jnp.vdot(a[0], b[:, 1])], A(4, 6, dtype=eval(ty)), A(6, 5, dtype=eval(ty)), tolerance=tol)
add("product_types", lambda a, b: [lax.dot(a, b, preferred_element_type=i32), lax.dot(a.astype(bf16), b.astype(bf16), preferred_element_type=f32)], A(4, 6, dtype=np.int8), A(6, 5, dtype=np.int8))
add("products_batched", lambda a, b: [jnp.matmul(a, b), jnp.einsum("bij,bjk->bik", a, b), lax.dot_general(a, b, (((2,), (1,)), ((0,), (0,)))), lax.dot_general(a, b, (((0, 2), (0, 1)), ((), ()))), jnp.tensordot(a, b, ((0,), (0,)))], A(2, 3, 4), A(2, 4, 5))
add("einsums", lambda a, b, c: [jnp.einsum("ij,jk,kl->il", a, b, c), jnp.einsum("ii->i", a[:, :3]), jnp.einsum("ij->j", a), jnp.einsum("ij,ij->", a, a), jnp.kron(a[:2, :2], b[:2, :2])], A(3, 4), A(4, 5), A(5, 2))
add("products_grad", grad(lambda a, b: jnp.einsum("bij,bkj->bik", a, b), 0, 1), A(2, 3, 4), A(2, 5, 4))
add("ragged_dot", lambda a, b, n: lax.ragged_dot(a, b, n), A(6, 3), A(2, 3, 4), A(values=[4, 2], dtype=i32))

# Convolutions.
def conv(x, w, strides=(1, 1), padding="SAME", dn=("NHWC", "HWIO", "NHWC"), **o):
    return lax.conv_general_dilated(x, w, strides, padding, dimension_numbers=dn, **o)

X, W = A(2, 7, 6, 4), A(3, 3, 4, 5)
add("conv_nhwc", conv, X, W)
add("conv_nchw", partial(conv, dn=("NCHW", "OIHW", "NCHW")), A(2, 4, 7, 6), A(5, 4, 3, 3))
add("conv_mixed_layout", partial(conv, dn=("HWNC", "IOHW", "CNHW")), A(7, 6, 2, 4), A(4, 5, 3, 3))
add("conv_strided", partial(conv, strides=(2, 3), padding="VALID"), X, W)
add("conv_padded", partial(conv, padding=((2, 0), (-1, 3))), X, W)
add("conv_dilated", partial(conv, rhs_dilation=(2, 2)), X, W)
add("conv_input_dilated", partial(conv, padding=((2, 2), (2, 1)), lhs_dilation=(2, 3)), X, W)
add("conv_grouped", partial(conv, feature_group_count=2), X, A(3, 3, 2, 6))
add("conv_depthwise", partial(conv, feature_group_count=4), X, A(3, 3, 1, 8))
add("conv_batch_grouped", partial(conv, batch_group_count=2), X, A(3, 3, 4, 6))
add("conv_transposed", lambda x, w: [lax.conv_transpose(x, w, (2, 2), "SAME"), lax.conv_transpose(x, w, (2, 1), "VALID")], X, W)
add("conv_1d_3d", lambda x, y, v, w: [conv(x, v, (1,), dn=("NWC", "WIO", "NWC")), conv(y, w, (1, 2, 1), dn=("NDHWC", "DHWIO", "NDHWC"))], A(2, 9, 3), A(1, 4, 5, 4, 2), A(4, 3, 2), A(2, 3, 2, 2, 3))
add("conv_grad", grad(lambda x, w: conv(x, w, (2, 2)), 0, 1), X, W, tolerance=1e-4)
add("conv_grad_dilated", grad(lambda x, w: conv(x, w, padding=((1, 0), (2, 1)), rhs_dilation=(2, 1), lhs_dilation=(1, 2)), 0, 1), X, W, tolerance=1e-4)
add("conv_grad_grouped", grad(partial(conv, feature_group_count=4), 0, 1), X, A(3, 3, 1, 4), tolerance=1e-4)
add("conv_f64", conv, A(1, 5, 5, 2, dtype=f64), A(2, 2, 2, 3, dtype=f64))
add("conv_bf16", conv, A(1, 5, 5, 2, dtype=bf16), A(2, 2, 2, 3, dtype=bf16))
add("conv_complex", conv, A(1, 4, 4, 2, dtype=c64), A(2, 2, 2, 3, dtype=c64), tolerance=4e-5)
add("conv_patches", lambda x: lax.conv_general_dilated_patches(x, (2, 2), (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")), A(1, 4, 4, 2))

# Reductions and windows.
add("reductions", lambda x: [x.sum(), x.sum((0, 2)), x.mean(1), x.max(0), x.min((1, 2)), jnp.prod(x, 2), x.std(0), x.var(1), jnp.ptp(x, 2), nn.logsumexp(x, 1), jnp.linalg.norm(x[0]), jnp.count_nonzero(x > 0)], A(3, 4, 5))
add("reduce_general", lambda x, y: [lax.reduce((x, y), (f32(0), i32(-1)), lambda a, b: (jnp.where(a[0] > b[0], a[0], b[0]), jnp.where(a[0] > b[0], a[1], b[1])), (1,)), lax.reduce(x, f32(-9), lax.max, (0,))], A(3, 5, low=0.1), A(values=np.arange(15).reshape(3, 5), dtype=i32))
add("cumulative", lambda x: [jnp.cumsum(x, 0), jnp.cumprod(x, 1), lax.cummax(x, 1), lax.cummin(x, 0, reverse=True), lax.cumlogsumexp(x, 1), lax.cumsum(x, 1, reverse=True), jnp.diff(x)], A(4, 6), tolerance=4e-5)
add("associative_scan", lambda x: [lax.associative_scan(lambda a, b: a * b + b, x), lax.associative_scan(lax.max, x, reverse=True)], A(9, low=0, high=1))
W2 = dict(window_dimensions=(1, 3, 2, 1), window_strides=(1, 2, 1, 1))
add("pools", lambda x: [lax.reduce_window(x, -jnp.inf, lax.max, padding="SAME", **W2), lax.reduce_window(x, f32(0), lax.add, padding="VALID", **W2), lax.reduce_window(x, jnp.inf, lax.min, (1, 2, 2, 1), (1, 1, 1, 1), ((0, 0), (1, 0), (0, 1), (0, 0)))], A(2, 7, 6, 3))
add("windows_dilated", lambda x: [lax.reduce_window(x, f32(0), lax.add, (2, 2), (1, 2), "VALID", base_dilation=(2, 1), window_dilation=(1, 2)), lax.reduce_window(x, f32(1), lax.mul, (3, 1), (1, 1), "SAME")], A(6, 7))
add("window_any_body", lambda x: lax.reduce_window(x, i32(0), lambda a, b: a | b, (2, 3), (1, 1), "VALID"), A(4, 5, dtype=i32, low=0))
add("pools_grad", grad(lambda x: [lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID"), lax.reduce_window(x, 0.0, lax.add, (1, 3, 3, 1), (1, 1, 1, 1), "SAME")]), A(2, 6, 6, 3), tolerance=1e-4)
add("reductions_grad", grad(lambda x: [x.max(0), jnp.prod(x, 1), nn.logsumexp(x), x.std(), lax.cumsum(x, 1), lax.cumprod(x, 0)]), A(4, 5), tolerance=1e-4)

# Control flow.
add("while", lambda n, x: lax.while_loop(lambda c: c[0] < n, lambda c: (c[0] + 1, c[1] * 1.5 + 1), (0, x)), A(values=5, dtype=i32), A(3))
add("while_on_values", lambda x: lax.while_loop(lambda x: jnp.sum(x) < 100, lambda x: x * 2, jnp.abs(x) + 1), A(3))
add("fori", lambda x: lax.fori_loop(2, 7, lambda i, x: x.at[i].add(jnp.sin(x[i - 1])), x), A(8))
add("scan", lambda h, xs: lax.scan(lambda h, x: (jnp.tanh(h + x), h.sum()), h, xs), A(4), A(6, 4))
add("scan_reversed", lambda h, xs: lax.scan(lambda h, x: (h * x[0] + x[1], {"a": h}), h, (xs, xs * 2), reverse=True), A(3), A(5, 3))
add("scan_grad", jax.grad(lambda w, xs: jnp.sum(lax.scan(lambda h, x: (jnp.tanh(h @ w + x), h), jnp.zeros(4, f32), xs)[1] ** 2)), A(4, 4), A(6, 4), tolerance=5e-5)
add("scan_of_scans", lambda x: lax.scan(lambda c, row: (lax.scan(lambda a, b: (a * 0.5 + b, a), c, row)[0], c), f32(0), x), A(4, 3))
add("scan_unrolled", lambda x: lax.scan(lambda c, y: (c * 0.5 + y, c), f32(0), x, unroll=2), A(7))
add("scan_remat", jax.grad(lambda w, x: jnp.sum(lax.scan(jax.checkpoint(lambda h, _: (jnp.sin(h @ w), None)), x, None, 4)[0])), A(3, 3), A(2, 3), tolerance=5e-5)
add("cond", lambda p, x: [lax.cond(p, jnp.sin, lambda x: x * 2, x), lax.cond(~p, lambda: x[:2], lambda: -x[1:])], A(values=True, dtype=bool), A(3))
for i in (-3, 1, 9):
    add(f"switch_{'low' if i < 0 else 'high' if i > 2 else 'middle'}", lambda i, x: lax.switch(i, [jnp.sin, jnp.cos, lambda x: x * 2], x), A(values=i, dtype=i32), A(3))
add("cond_grad", lambda p, x: jax.grad(lambda x: jnp.sum(lax.cond(p > 0, jnp.sin, lambda x: x**3, x)))(x), A(values=-1.0), A(4))
add("cond_vmap", lambda p, x: jax.vmap(lambda p, x: lax.cond(p, jnp.sin, jnp.exp, x))(p, x), A(4, dtype=bool), A(4, 2))
add("while_vmap", lambda n: jax.vmap(lambda n: lax.while_loop(lambda c: c[1] > 1, lambda c: (c[0] + 1, jnp.where(c[1] % 2 == 0, c[1] // 2, 3 * c[1] + 1)), (0, n)))(n), A(values=[6, 7, 1, 9], dtype=i32))
add("while_complex", lambda z: lax.fori_loop(0, 5, lambda i, z: z * z + 0.1j, z), A(3, dtype=c64, low=-0.5, high=0.5), tolerance=4e-5)
add("map", lambda x: lax.map(lambda r: jnp.outer(r, r).sum(), x), A(4, 3))
add("nested_calls", lambda x, y: (lambda f: f(x) + f(y) + jax.checkpoint(f)(x))(jax.jit(lambda a: jnp.sin(a) * jax.jit(jnp.cos)(a))), A(3), A(3))
add("newton", lambda a: lax.custom_root(lambda x: x**2 - a, a, lambda f, x: lax.fori_loop(0, 20, lambda _, x: x - f(x) / (2 * x), x), lambda g, y: y / g(jnp.ones_like(y))), A(values=2.5))

# Transformations.
add("vmap_of_grad", jax.vmap(jax.grad(lambda x, w: jnp.tanh(x @ w).sum()), (0, None)), A(4, 3), A(3, 2))
add("jacobians", lambda x: [jax.jacfwd(lambda x: jnp.sin(x) * x[0])(x), jax.jacrev(lambda x: x**2 / x[1])(x), jax.hessian(lambda x: jnp.sum(x**3) * x[0])(x)], A(4, low=0.5), tolerance=5e-5)
add("jvp_vjp", lambda x, t: [jax.jvp(lambda x: jnp.exp(jnp.sin(x)), (x,), (t,)), jax.vjp(lambda x: jnp.cumsum(x) ** 2, x)[1](t)[0], jax.linearize(jnp.tanh, x)[1](t)], A(5), A(5))
add("third_derivative", jax.grad(jax.grad(jax.grad(lambda x: jnp.sin(x) * jnp.exp(x / 2)))), A(values=0.7), tolerance=5e-5)

@jax.custom_vjp
def clipped(x):
    return x * x

clipped.defvjp(lambda x: (x * x, x), lambda x, g: (jnp.clip(g * 2 * x, -1, 1),))

@jax.custom_jvp
def soft(x):
    return jnp.log1p(jnp.exp(x))

soft.defjvp(lambda p, t: (soft(p[0]), t[0] * nn.sigmoid(p[0])))
add("custom_vjp", grad(clipped), A(6))
add("custom_jvp", lambda x: [soft(x), jax.grad(lambda x: soft(x).sum())(x), jax.jvp(soft, (x,), (x,))], A(6))
add("remat", jax.grad(jax.checkpoint(lambda x, w: jnp.sum(jnp.sin(jnp.sin(x @ w) @ w)), policy=jax.checkpoint_policies.dots_saveable), (0, 1)), A(3, 4), A(4, 4), tolerance=5e-5)
add("barriers", lambda x: [lax.optimization_barrier((x, x * 2)), lax.stop_gradient(x), jax.grad(lambda x: jnp.sum(x * lax.stop_gradient(x)))(x)], A(4))
add("composite", lambda x: lax.composite(lambda x, scale: jnp.tanh(x) * scale, "my.op")(x, scale=np.float32(2)), A(4))
add("composite_chlo", lambda x: [lax.erf_inv(x / 3), lax.lgamma(x + 3), lax.top_k(x, 2), jsp.special.ndtri((x + 2.1) / 4.3), lax.asinh(x), jsp.special.zeta(x + 4, f32(1.5)), jsp.special.polygamma(1, x + 4), jsp.special.gammainc(x + 3, f32(1.2)), jsp.special.betainc(x + 3, x + 2.5, f32(0.3))], A(6), tolerance=2e-4)
add("linear_solve", lambda a, b: lax.custom_linear_solve(lambda x: a @ x, b, lambda mv, b: jnp.linalg.solve(a, b), lambda mv, b: jnp.linalg.solve(a.T, b)), A(values=np.eye(3) * 4 + np.arange(9).reshape(3, 3) / 9), A(3), tolerance=5e-5)

# Fourier transforms.
for ty, tol in ((f32, 2e-5), (f64, 1e-12)):
    n = np.dtype(ty).name
    add(f"fft_real_{n}", lambda x: [jnp.fft.rfft(x), jnp.fft.irfft(jnp.fft.rfft(x), 12), jnp.fft.rfft2(x), jnp.fft.fft(x)], A(3, 12, dtype=ty), tolerance=tol)
    add(f"fft_complex_{n}", lambda x, y: [jnp.fft.fft(x + 1j * y), jnp.fft.ifft2(x + 1j * y), jnp.fft.fftn(x), jnp.fft.fftshift(x), jnp.fft.hfft(x + 1j * y)], A(3, 10, dtype=ty), A(3, 10, dtype=ty), tolerance=tol)
add("fft_odd", lambda x: [jnp.fft.fft(x), jnp.fft.rfft(x), jnp.fft.irfft(x.astype(c64), 13)], A(2, 7), tolerance=2e-5)
add("fft_grad", grad(lambda x: jnp.abs(jnp.fft.rfft(x))), A(8), tolerance=1e-4)

# Linear algebra.
SPD = np.eye(5) * 3 + np.fromfunction(lambda i, j: 1 / (1 + i + j), (5, 5))
GEN = np.sin(np.arange(25.0)).reshape(5, 5) + 2 * np.eye(5)
HERM = GEN + GEN.T + 1j * (GEN - GEN.T)
for ty, tol in ((f32, 2e-4), (f64, 1e-10), (c64, 2e-4), (c128, 1e-10)):
    n = np.dtype(ty).name
    spd, gen, b = A(values=SPD, dtype=ty), A(values=GEN, dtype=ty), A(5, 2, dtype=ty)
    add(f"cholesky_{n}", lambda a: jnp.linalg.cholesky(a), spd, tolerance=tol)
    add(f"triangular_{n}", lambda a, b: [lax.linalg.triangular_solve(a, b, left_side=True, lower=True), lax.linalg.triangular_solve(a, b, left_side=True, lower=False, transpose_a=True), lax.linalg.triangular_solve(a, b.T, lower=True, conjugate_a=True, transpose_a=True, unit_diagonal=True)], gen, b, tolerance=tol)
    add(f"qr_{n}", lambda a: jnp.linalg.qr(a), A(5, 3, dtype=ty), tolerance=tol)
    add(f"lu_{n}", lambda a: lax.linalg.lu(a), gen, tolerance=tol)
    add(f"solve_{n}", lambda a, b: [jnp.linalg.solve(a, b), jnp.linalg.inv(a), jnp.linalg.det(a), jnp.linalg.slogdet(a)], gen, b, tolerance=tol)
    add(f"eigh_{n}", lambda a: (lambda w, v: [w, (v * w) @ v.conj().T, jnp.abs(v)])(*jnp.linalg.eigh(a)), A(values=HERM if ty in (c64, c128) else HERM.real, dtype=ty), tolerance=tol)
    add(f"svd_{n}", lambda a: (lambda u, s, v: [s, (u * s) @ v])(*jnp.linalg.svd(a, full_matrices=False)), A(4, 3, dtype=ty), tolerance=tol)
add("eigh_batched", lambda a: jnp.linalg.eigvalsh(a), A(3, 4, 4), tolerance=2e-4)
add("linalg_made", lambda a, b: [jnp.linalg.pinv(b), jnp.linalg.norm(b, 2), jnp.linalg.norm(b, "nuc"), jnp.linalg.matrix_rank(b), jnp.linalg.cond(a), jnp.linalg.lstsq(b, a[:, 0])[0], jsp.linalg.expm(a / 9)], A(values=GEN), A(5, 3), tolerance=5e-4)
add("linalg_grad", lambda a: [jax.grad(f)(a) for f in (lambda a: jnp.linalg.slogdet(a)[1], lambda a: jnp.linalg.inv(a).sum(), lambda a: jnp.linalg.cholesky(a).sum(), lambda a: jnp.linalg.eigvalsh(a + jnp.diag(jnp.arange(5, dtype=a.dtype)))[0], lambda a: jnp.linalg.qr(a)[1].sum())], A(values=SPD), tolerance=1e-3)
add("tridiagonal", lambda d, b: lax.linalg.tridiagonal_solve(d, d + 5, d, b), A(5), A(5, 2), tolerance=5e-5)

# Random numbers.
KEY = A(values=[3, 11], dtype=u32)
def random(f):
    return lambda k: f(jax.random.wrap_key_data(k))

R = jax.random
add("random_bits", random(lambda k: [R.bits(k, (5,), t) for t in (jnp.uint8, jnp.uint16, jnp.uint32, jnp.uint64)]), KEY)
add("random_uniform", random(lambda k: [R.uniform(k, (6,)), R.uniform(k, (3,), bf16), R.uniform(k, (3,), f64, -1, 2)]), KEY)
add("random_normal", random(lambda k: [R.normal(k, (6,)), R.normal(k, (3,), c64), R.truncated_normal(k, -1, 1, (4,))]), KEY, tolerance=5e-5)
add("random_integers", random(lambda k: [R.randint(k, (6,), -5, 100), R.bernoulli(k, 0.3, (7,)), R.permutation(k, 9), R.choice(k, 10, (4,), replace=False), R.categorical(k, jnp.arange(4.0, dtype=f32), shape=(5,))]), KEY)
add("random_split", random(lambda k: [R.key_data(R.split(k, 3)), R.key_data(R.fold_in(k, 7)), jax.vmap(lambda k: R.uniform(k, (2,)))(R.split(k, 4))]), KEY)
add("random_gamma", random(lambda k: [R.exponential(k, (4,)), R.gumbel(k, (4,)), R.laplace(k, (4,)), R.cauchy(k, (4,)), R.gamma(k, 2.5, (3,), f32), R.poisson(k, 4.0, (4,)), R.beta(k, f32(2), f32(3), (2,))]), KEY, tolerance=5e-4)
add("rng_bit_generator", lambda s: lax.rng_bit_generator(s, (5, 2), u32, algorithm=lax.RandomAlgorithm.RNG_THREE_FRY), A(values=[7, 99], dtype=np.uint64))
add("dropout", random(lambda k: jnp.where(R.bernoulli(k, 0.8, (4, 5)), jnp.ones((4, 5), f32) / 0.8, 0)), KEY)

# Networks.
add("activations", lambda x: [f(x) for f in (nn.relu, nn.gelu, partial(nn.gelu, approximate=False), nn.silu, nn.softplus, nn.elu, nn.selu, nn.celu, nn.leaky_relu, nn.log_sigmoid, nn.hard_swish, nn.glu, nn.mish, nn.softmax, nn.log_softmax, nn.standardize)], A(4, 6))
add("activations_grad", grad(lambda x: [f(x) for f in (nn.gelu, nn.silu, nn.softmax, nn.log_softmax, nn.softplus, nn.selu, nn.standardize)]), A(4, 6), tolerance=1e-4)

def attention(q, k, v, mask=True):
    s = jnp.einsum("bqhd,bkhd->bhqk", q, k) / np.sqrt(q.shape[-1]).astype(q.dtype)
    s = jnp.where(jnp.tril(jnp.ones(s.shape[-2:], bool)), s, jnp.finfo(s.dtype).min) if mask else s
    return jnp.einsum("bhqk,bkhd->bqhd", nn.softmax(s), v)

Q = A(2, 5, 2, 4)
add("attention", attention, Q, Q, Q)
add("attention_grad", grad(attention, 0, 1, 2), Q, Q, Q, tolerance=1e-4)
add("attention_bf16", attention, *[A(2, 5, 2, 4, dtype=bf16)] * 3, tolerance=3e-2)
add("attention_jax", lambda q, k, v: [nn.dot_product_attention(q, k, v, is_causal=True), nn.dot_product_attention(q, k[:, :, :1], v[:, :, :1])], Q, Q, Q, tolerance=5e-5)

def norm(x, g, b):
    m = x.mean(-1, keepdims=True)
    return (x - m) * lax.rsqrt(jnp.mean((x - m) ** 2, -1, keepdims=True) + 1e-5) * g + b

def block(x, p):
    h = norm(x, p["g"], p["b"])
    q, k, v = jnp.split(h @ p["qkv"], 3, -1)
    heads = lambda a: a.reshape(*a.shape[:-1], 2, -1)
    x = x + attention(heads(q), heads(k), heads(v)).reshape(x.shape) @ p["o"]
    return x + nn.gelu(norm(x, p["g"], p["b"]) @ p["up"]) @ p["down"]

BLOCK = dict(g=A(8), b=A(8), qkv=A(8, 24), o=A(8, 8), up=A(8, 16), down=A(16, 8))
NAMES = sorted(BLOCK)
named = lambda f: lambda x, *w: f(x, dict(zip(NAMES, w)))
add("transformer_block", named(block), A(2, 5, 8), *[BLOCK[n] for n in NAMES], tolerance=1e-4)
add("transformer_block_grad", jax.grad(lambda x, *w: jnp.sum(named(block)(x, *w) ** 2), tuple(range(1, 7))), A(2, 5, 8), *[BLOCK[n] for n in NAMES], tolerance=1e-3)
add("layer_norm_grad", grad(norm, 0, 1, 2), A(4, 6), A(6), A(6), tolerance=1e-4)
add("batch_norm_grad", jax.grad(lambda x, g, b: jnp.sum(jnp.cos((x - x.mean((0, 1, 2))) * lax.rsqrt(x.var((0, 1, 2)) + 1e-3) * g + b)), (0, 1, 2)), A(4, 3, 3, 5), A(5), A(5), tolerance=1e-4)
add("embedding_grad", jax.grad(lambda e, i: jnp.sum(jnp.sin(jnp.take(e, i, 0) @ e.T))), A(9, 4), A(3, 5, dtype=i32, low=0, high=9), tolerance=1e-4)

def lstm(x, w, u, b):
    def cell(s, x):
        i, f, g, o = jnp.split(x @ w + s[0] @ u + b, 4, -1)
        c = nn.sigmoid(f) * s[1] + nn.sigmoid(i) * jnp.tanh(g)
        return (nn.sigmoid(o) * jnp.tanh(c), c), None
    return lax.scan(cell, (jnp.zeros((x.shape[1], u.shape[0]), x.dtype),) * 2, x)[0][0]

LSTM = (A(6, 2, 3), A(3, 16), A(4, 16), A(16))
add("lstm", lstm, *LSTM)
add("lstm_grad", grad(lstm, 0, 1, 2, 3), *LSTM, tolerance=1e-4)

def cnn(x, y, w, v, u):
    h = nn.relu(conv(x, w, padding="VALID"))
    h = lax.reduce_window(h, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    logits = nn.relu(h.reshape(x.shape[0], -1) @ v) @ u
    return -jnp.mean(jnp.take_along_axis(nn.log_softmax(logits), y[:, None], 1))

CNN = (A(4, 8, 8, 1), A(4, dtype=i32, low=0, high=3), A(3, 3, 1, 4), A(36, 6, low=-0.5, high=0.5), A(6, 3))
add("cnn_step", lambda x, y, *p: (lambda l, g: [l] + [a - 0.1 * b for a, b in zip(p, g)])(*jax.value_and_grad(cnn, (2, 3, 4))(x, y, *p)), *CNN, tolerance=1e-4)
add("losses", lambda x, y: [jnp.mean((x - y) ** 2), jnp.abs(x - y).mean(), -jnp.sum(nn.softmax(y) * nn.log_softmax(x), 1), jnp.mean(jnp.maximum(x, 0) - x * y + jnp.log1p(jnp.exp(-jnp.abs(x)))), nn.one_hot(jnp.argmax(x, 1), 5)], A(4, 5), A(4, 5))
try:
    import optax
    from flax import linen, nnx

    OPT = dict(sgd=optax.sgd(0.1, 0.9, nesterov=True), adam=optax.adam(0.1), adamw=optax.adamw(0.1), rmsprop=optax.rmsprop(0.1), lion=optax.lion(0.1), adafactor=optax.adafactor(0.1), lamb=optax.lamb(0.1), adagrad=optax.adagrad(0.1), clipped=optax.chain(optax.clip_by_global_norm(0.5), optax.adam(optax.cosine_decay_schedule(0.1, 10))))

    def steps(o):
        def f(w, x):
            def one(c, _):
                w, s = c
                u, s = o.update(jax.grad(lambda w: jnp.sum(jnp.tanh(x @ w) ** 2))(w), s, w)
                return (optax.apply_updates(w, u), s), None
            return lax.scan(one, (w, o.init(w)), None, 3)[0][0]
        return f

    for n, o in OPT.items():
        add(f"optimizer_{n}", steps(o), A(4, 3), A(5, 4), tolerance=5e-4)

    def layer(make, x, **call):
        """A Flax layer with its own weights, forward and backward."""
        m = make()
        v = jax.tree.map(lambda a: np.asarray(a), m.init(jax.random.key(0), jnp.zeros(x.shape, x.dtype), **call))
        leaves, tree = jax.tree.flatten(v)
        f = lambda x, *w: m.apply(jax.tree.unflatten(tree, w), x, **call)
        both = lambda x, *w: [f(x, *w), jax.grad(lambda x, *w: sum(jnp.sum(jnp.sin(y)) for y in jax.tree.leaves(f(x, *w))), tuple(range(len(w) + 1)))(x, *w)]
        return both, [A(*l.shape, dtype=l.dtype) for l in leaves]

    L = linen
    for n, make, x, call in (
        ("dense", lambda: L.Dense(5), A(3, 4), {}),
        ("conv", lambda: L.Conv(5, (3, 3), strides=2), A(2, 6, 6, 3), {}),
        ("conv_transpose", lambda: L.ConvTranspose(3, (3, 3), strides=(2, 2)), A(1, 4, 4, 2), {}),
        ("layer_norm", lambda: L.LayerNorm(), A(3, 6), {}),
        ("group_norm", lambda: L.GroupNorm(2), A(2, 4, 4, 6), {}),
        ("rms_norm", lambda: L.RMSNorm(), A(3, 6), {}),
        ("batch_norm", lambda: L.BatchNorm(use_running_average=True), A(3, 4, 4, 2), {}),
        ("attention", lambda: L.MultiHeadDotProductAttention(2, use_bias=False), A(2, 5, 8), {}),
        ("lstm", lambda: L.RNN(L.LSTMCell(4)), A(2, 5, 3), {}),
        ("gru", lambda: L.RNN(L.GRUCell(4)), A(2, 5, 3), {}),
        ("mlp", lambda: L.Sequential([L.Dense(8), L.gelu, L.LayerNorm(), L.Dense(2)]), A(3, 4), {}),
        ("einsum", lambda: L.DenseGeneral((2, 3), axis=(-2, -1)), A(2, 3, 4), {}),
    ):
        f, weights = layer(make, x, **call)
        add(f"flax_{n}", f, x, *[A(*w.shape, dtype=w.dtype, low=0.2 if n == "batch_norm" else -1, high=1) for w in weights], tolerance=1e-3)
except ImportError as e:
    sys.exit(f"{e}: Flax and optax are needed")

# Eight devices.
MESH = Mesh(np.array(jax.devices()).reshape(4, 2), ("data", "model"))
ON = lambda *axes: NamedSharding(MESH, P(*axes))
DM = P(("data", "model"))

def sharded(name, f, *args, i=DM, o=DM, tolerance=None):
    add(f"mesh_{name}", jax.shard_map(f, mesh=MESH, in_specs=i, out_specs=o, check_vma=False), *args, tolerance=tolerance)

sharded("psum", lambda x: lax.psum(x, "data") + lax.pmean(x, "model"), A(8, 3))
sharded("pmax", lambda x: lax.pmax(x, ("data", "model")) - lax.pmin(x, "data"), A(8, 3))
sharded("all_gather", lambda x: lax.all_gather(x, "model").sum(0) + lax.all_gather(x, "data", tiled=True).sum(), A(8, 3))
sharded("psum_scatter", lambda x: lax.psum_scatter(jnp.tile(x, (2, 1)), "model", tiled=True), A(8, 3))
sharded("ppermute", lambda x: lax.ppermute(x, "data", [(0, 1), (1, 2), (3, 0)]) + lax.axis_index("model"), A(8, 3))
sharded("all_to_all", lambda x: lax.all_to_all(x, "data", 1, 0, tiled=True), A(8, 8), i=P("data", None), o=P(None, "data"))
sharded("loop", lambda x: lax.fori_loop(0, 3, lambda i, x: x + lax.ppermute(x, "model", [(0, 1), (1, 0)]) * 0.5, x), A(8, 2))
sharded("grad", lambda x, w: jax.grad(lambda w: jnp.sum(jnp.tanh(x @ w)))(w) + lax.axis_index("data"), A(8, 3), A(3, 2), i=(P("data"), P()), o=P("data"))
add("mesh_constraints", lambda x, w: jnp.tanh(lax.with_sharding_constraint(x @ w, ON("data", None))), A(8, 4), A(4, 6), in_shardings=(ON("data"), ON(None, "model")), out_shardings=ON("data", "model"))
add("mesh_step", lambda w, x: w - 0.1 * jax.grad(lambda w: jnp.mean(jnp.tanh(x @ w) ** 2))(w), A(4, 6), A(8, 4), in_shardings=(ON(None, "model"), ON("data")), out_shardings=ON(None, "model"), tolerance=1e-4)
add("donation", lambda x: x + 1, A(8, 8), donate_argnums=(0,), keep_unused=True)
add("constants", lambda x: [x @ np.cos(np.arange(60, dtype=f32)).reshape(6, 10), jnp.array([np.inf, -np.inf, np.nan]), jnp.zeros((0, 3)), jnp.ones((2, 3), bool), jnp.array([1 + 2j, -3j])], A(4, 6))
add("empty_arrays", lambda x: [x.sum(), x.sum(0), jnp.concatenate([x, jnp.ones((2, 3), f32)]), x @ jnp.ones((3, 2), f32), jnp.sort(x, 0)], A(0, 3))
add("scalars", lambda x, n: [x * n, x + 1, jnp.where(n > 2, x, -x), x[None], lax.round(x, lax.RoundingMethod.AWAY_FROM_ZERO)], A(values=2.5), A(values=3, dtype=i32))


def plugin():
    """JAX's rules for the platform, as the wheel registers them."""
    path = os.path.join(os.path.dirname(__file__), "../../packaging/python/jax_plugins/systole/__init__.py")
    spec = importlib.util.spec_from_file_location("ours", path)
    ours = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(ours)
    from jax._src import xla_bridge

    xla_bridge._platform_aliases.setdefault("systole", "systole")
    ours._decompose()


def made(name, f, args, tolerance, options):
    r = np.random.default_rng(zlib.crc32(name.encode()))
    drawn = [a.draw(r) for a in args]
    jitted = jax.jit(f, **options)
    e = export.export(jitted, platforms=["systole"])(*drawn)
    out = {"mlir": np.frombuffer(str(e.mlir_module()).encode(), u8), "bc": np.frombuffer(e.mlir_module_serialized, u8)}
    for i, x in enumerate(jax.tree.leaves(jax.jit(f)(*drawn))):
        out[f"out{i}"] = np.frombuffer(np.asarray(x).tobytes(), u8)
    # An argument that nothing reads is none of the program's.
    for i, at in enumerate(e.module_kept_var_idx):
        out[f"arg{i}"] = np.frombuffer(drawn[at].tobytes(), u8)
    out["tolerance"] = np.float64(-1 if tolerance is None else tolerance)
    return out


def main():
    plugin()
    arrays, failed = {}, 0
    only = sys.argv[2:]
    for name, program in PROGRAMS.items():
        if only and not any(o in name for o in only):
            continue
        try:
            arrays.update({f"{name}/{k}": v for k, v in made(name, *program).items()})
        except Exception as e:
            failed += 1
            print("cannot be made:", name, type(e).__name__, str(e).strip()[:300].replace("\n", " "), flush=True)
    index = json.dumps([[name, x.nbytes] for name, x in arrays.items()]).encode()
    data = b"".join(x.tobytes() for x in arrays.values())
    np.savez_compressed(sys.argv[1], index=np.frombuffer(index, u8), data=np.frombuffer(data, u8))
    print(len(PROGRAMS) - failed, "programs,", os.path.getsize(sys.argv[1]), "bytes")


main()
