"""Programs of JAX as artifacts and as text: `programs.py export FOLDER`; `programs.py compare FOLDER`: whether jaxlib reads each
`NAME.VERSION.again` and the text `NAME.text.again` as it reads `NAME.bc`, up to names, visibilities and what is said of a mesh beside its axes."""

import os
import re
import sys

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
os.environ["JAX_PLATFORMS"] = "cpu"
import jax
import jax.numpy as jnp
import numpy as np
from jax import export, lax
from jaxlib.mlir import ir
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

jax.config.update("jax_enable_x64", True)
F = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.float32)
I = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.int32)
T = jax.ShapeDtypeStruct
PROGRAMS = {}


def program(*args, **options):
    def keep(f):
        PROGRAMS[f.__name__] = (f, args, options)
        return f

    return keep


@program(F(3, 4), F(4), F(4, 2), F(8, 3), F(8, 2))
def mlp_grad(w1, b1, w2, x, y):
    loss = lambda w1, b1, w2: jnp.mean((jnp.maximum(x @ w1 + b1, 0) @ w2 - y) ** 2)
    return jax.value_and_grad(loss, (0, 1, 2))(w1, b1, w2)


@program(F(2, 8, 8, 3), F(3, 3, 3, 4))
def conv(x, w):
    f = lambda w: lax.conv_general_dilated(x, w, (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")).sum()
    return jax.grad(f)(w)


@program(F(1, 4, 9), F(6, 2, 3))
def conv_grouped(x, w):
    return lax.conv_general_dilated(x, w, (1,), [(2, 1)], lhs_dilation=(2,), rhs_dilation=(2,), feature_group_count=2)


@program(F(2, 3, 4), F(2, 4, 5))
def dot_batch(a, b):
    return jnp.einsum("bij,bjk->bik", a, b, precision="highest")


@program(T((4, 8), jnp.bfloat16), T((8, 4), jnp.bfloat16))
def dot_algorithm(a, b):
    return jnp.dot(a, b, precision=lax.DotAlgorithmPreset.BF16_BF16_F32, preferred_element_type=jnp.float32)


@program(F(5), F(7, 5))
def scan(h, xs):
    return lax.scan(lambda h, x: (jnp.tanh(h + x), h.sum()), h, xs)


@program(I(), F(3))
def while_loop(n, x):
    return lax.while_loop(lambda c: c[0] < n, lambda c: (c[0] + 1, c[1] * 2), (0, x))


@program(I(), F(3))
def switch(i, x):
    return lax.switch(i, [jnp.sin, jnp.cos, lambda x: x * 2], x)


@program(T((), jnp.bool_), F(3))
def cond(p, x):
    return lax.cond(p, lambda x: x + 1, lambda x: -x, x)


@program(F(4, 6), I(4, 6))
def sort(x, i):
    return lax.sort((x, i), dimension=1, num_keys=2), jnp.argsort(x, axis=0), lax.top_k(x, 2)


@program(F(10, 4), I(3))
def gather_scatter(x, i):
    return x[i], x.at[i].add(1.0), x.at[1, 2].set(0.0), jnp.take_along_axis(x, i[:, None], 0)


@program(F(5, 8), T((5, 3), jnp.int64))
def gather_batch(x, i):
    return jax.vmap(lambda x, i: x[i])(x, i), jax.vmap(lambda x, i: x.at[i].max(0.5))(x, i)


@program(F(4, 16))
def fft(x):
    return jnp.fft.rfft(x), jnp.fft.ifft2(x), jnp.fft.irfft(x + 0j)


@program(T((3, 3), jnp.complex64), T((3,), jnp.complex128))
def complex_numbers(a, b):
    return (a @ a).conj() * (1 + 2j), jnp.abs(a), b.real + b.imag, jnp.exp(b) + jnp.array([1j, 2, 3])


@program(F(4, 4), F(4, 2))
def cholesky(a, b):
    l = lax.linalg.cholesky(a)
    return l, lax.linalg.triangular_solve(l, b, left_side=True, lower=True)


@program(F(4, 4))
def linear_algebra(a):
    return jnp.linalg.qr(a), jnp.linalg.svd(a), jnp.linalg.eigh(a + a.T), jnp.linalg.solve(a, a)


@program(T((2,), jnp.uint32))
def random(key):
    k = jax.random.wrap_key_data(key)
    return jax.random.normal(k, (5,)), jax.random.bernoulli(k, 0.3, (4,)), jax.random.permutation(k, 6)


@program(T((2,), jnp.uint64))
def rng_bits(state):
    return lax.rng_bit_generator(state, (3, 2), jnp.uint32)


@program(T((3, 4), jnp.bfloat16), T((4,), jnp.float16))
def half_floats(x, y):
    return jnp.exp(x).sum() + jnp.bfloat16(1.5), y * jnp.array([0.1, 65504, -0.0, 6e-8], jnp.float16)


@program(*[T((4,), d) for d in (jnp.int8, jnp.uint8, jnp.int16, jnp.uint16, jnp.uint32, jnp.int64, jnp.uint64)])
def integers(a, b, c, d, e, f, g):
    return (a // 3, b << 2, c & 7, lax.population_count(d), lax.clz(e), f % 5, g * jnp.uint64(2**63 + 1), ~a)


@program(T((4,), jnp.float8_e4m3fn), T((4,), jnp.float8_e5m2))
def float8(a, b):
    return a.astype(jnp.float32) * 2, (b.astype(jnp.float32) + 1).astype(jnp.float8_e4m3b11fnuz), jnp.array([1.5, -2], a.dtype)


@program(T((4,), jnp.int4), T((4,), jnp.uint4))
def int4(a, b):
    return a + a, b * b, a.astype(jnp.float32), jnp.array([1, -3, 7], jnp.int4)


@program(F(4, 9, 9))
def windows(x):
    pool = lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3), (1, 2, 2), "SAME")
    back = jax.grad(lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2), (1, 2, 2), "VALID").sum())(x)
    return pool, back, jnp.cumsum(x, 1), lax.reduce_window(x, np.float32(0), lax.add, (1, 2, 2), (1, 1, 1), "VALID")


@program(F(3, 5), I())
def slices(x, i):
    y = lax.dynamic_update_slice(x, jnp.ones((1, 2), x.dtype), (i, i))
    return lax.dynamic_slice(y, (i, np.int32(0)), (1, 3)), jnp.pad(x, ((1, 2), (0, 0)), constant_values=3), x[::2, ::-1], lax.pad(x, np.float32(0), ((1, -1, 1), (0, 0, 2)))


@program(F(6), F(6))
def elementwise(x, y):
    some = (jnp.exp, jnp.log1p, jnp.expm1, jnp.sqrt, jnp.cbrt, lax.rsqrt, jnp.tan, lax.logistic, jnp.sign, jnp.floor, jnp.round, lax.erf_inv)
    return [f(x) for f in some], jnp.arctan2(x, y), jnp.clip(x, 0, 1), x**y, jnp.where(x > y, x, jnp.nan), jnp.isfinite(x), lax.nextafter(x, y)


@program(F(6))
def constants(x):
    big = np.arange(600, dtype=np.float32).reshape(100, 6)
    return x @ big.T, jnp.array([True, False, True] * 5), jnp.array([np.inf, -np.inf, np.nan], jnp.float64), jnp.zeros((0, 3)), jnp.ones((2, 3), bool)


@program(F(8, 8), donate_argnums=(0,), keep_unused=True)
def donation(x):
    return x + 1


@program(F(3), F(3))
def calls(x, y):
    f = jax.jit(lambda a: jnp.sin(a) * 2)
    return f(x) + f(y) + jax.checkpoint(f)(x) + jax.nn.gelu(x) + jax.nn.softmax(y)


@program(F(5))
def custom_vjp_and_precision(x):
    return lax.reduce_precision(x, 5, 7), lax.optimization_barrier((x, x * 2)), lax.stop_gradient(x), lax.reduce(x, np.float32(1), lambda a, b: a * b + 1, (0,))


@program(F(4))
def ffi_call(x):
    call = jax.ffi.ffi_call("my_target", T((4,), jnp.float32), has_side_effect=True)
    return call(x, a=np.int32(3), b=2.5, c="text", d=np.array([1, 2], np.int64), e=np.uint8(200), f=True)


MESH = Mesh(np.array(jax.devices()).reshape(4, 2), ("data", "model"))
ON = lambda *axes: NamedSharding(MESH, P(*axes))


@program(F(8, 4), F(4, 6), in_shardings=(ON("data"), ON(None, "model")), out_shardings=ON("data", "model"))
def named_sharding(x, w):
    y = lax.with_sharding_constraint(x @ w, ON("data", None))
    return jnp.tanh(y)


@program(F(8, 4), in_shardings=ON(("data", "model")))
def shard_map(x):
    def f(a):
        i = lax.axis_index("data")
        b = lax.psum(a, "model") + lax.ppermute(a, "data", [(0, 1), (1, 0)]) + i
        return b + lax.all_gather(b, "model").sum(0) + lax.psum_scatter(jnp.tile(b, (2, 1)), "model", tiled=True)

    return jax.shard_map(f, mesh=MESH, in_specs=P(("data", "model")), out_specs=P(("data", "model")), check_vma=False)(x)


@program(F(8, 8))
def all_to_all(x):
    f = lambda a: lax.all_to_all(a, "data", 1, 0, tiled=True)
    return jax.shard_map(f, mesh=MESH, in_specs=P("data", None), out_specs=P(None, "data"))(x) * 2


def export_all(folder):
    disabled = [export.DisabledSafetyCheck.custom_call("my_target")]
    for name, (f, args, options) in PROGRAMS.items():
        e = export.export(jax.jit(f, **options), disabled_checks=disabled)(*args)
        with open(f"{folder}/{name}.bc", "wb") as out:
            out.write(e.mlir_module_serialized)
        with open(f"{folder}/{name}.mlir", "w") as out:
            out.write(e.mlir_module())
    print(len(PROGRAMS), "exported")


def text_of(path, stablehlo, context):
    with open(path, "rb") as f:
        content = f.read()
    if path.endswith(".text.again"):
        module = ir.Module.parse(content, context)
    else:
        module = stablehlo.deserialize_portable_artifact(context, content)
    module.operation.verify()
    text = module.operation.get_asm(enable_debug_info=False)
    text = re.sub(r"module @\w+", "module", text).replace("func.func public", "func.func")
    return re.sub(r" \{stablehlo\.mesh = .*", "", text)


def compare(folder):
    from jax._src.interpreters import mlir
    from jaxlib.mlir.dialects import stablehlo

    same = 0
    for name in sorted(os.listdir(folder)):
        if name.endswith(".again"):
            with mlir.make_ir_context() as context:
                try:
                    ours = text_of(f"{folder}/{name}", stablehlo, context)
                    theirs = text_of(f"{folder}/{name.split('.')[0]}.bc", stablehlo, context)
                except Exception as e:
                    print("refused", name, e)
                    continue
            if ours == theirs:
                same += 1
            else:
                lines = [f"{a}\n    {b}" for a, b in zip(ours.splitlines(), theirs.splitlines()) if a != b]
                print("differs", name, lines[:3])
    print(same, "same")


if __name__ == "__main__":
    {"export": export_all, "compare": compare}[sys.argv[1]](sys.argv[2])
