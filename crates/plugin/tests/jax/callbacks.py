import gc, ml_dtypes
from jax.experimental import checkify, io_callback
from jax_plugins.systole import callbacks

said = []
x = jnp.arange(4.0, dtype=jnp.float32)


def say(*values):
    said.append(tuple(np.asarray(v).tolist() for v in values))


def check(*expected, ordered=True):
    jax.effects_barrier()
    found, wanted = (said, list(expected)) if ordered else (sorted(said), sorted(expected))
    assert found == wanted, (found, wanted)
    said.clear()


def fails(f, *words):
    try:
        jax.block_until_ready(f())
        jax.effects_barrier()
    except Exception as e:
        assert all(word in str(e) for word in words), str(e)
        return e
    raise AssertionError(f"no error with {words}")


# Calls without results, in order, in loops, conditions and branches.
for ordered in [False, True]:
    note = partial(jax.debug.callback, say, ordered=ordered)

    @jax.jit
    def straight(x):
        note(x[0])
        note(x[1])
        note()
        return x + 1

    close(straight(x), np.arange(4) + 1)
    check((0.0,), (1.0,), ())

    @jax.jit
    def scanned(x):
        def step(carry, v):
            note(carry, v)
            return carry + v, carry

        return jax.lax.scan(step, 0.0, x)

    close(scanned(x)[0], 6)
    check((0, 0), (0, 1), (1, 2), (3, 3))

    @jax.jit
    def looped(n):
        def step(i):
            note(i)
            jax.lax.cond(i % 2 == 0, lambda: note(i * 10), lambda: None)
            return i + 1

        return jax.lax.while_loop(lambda i: i < n, step, 0)

    assert looped(3) == 3
    check((0,), (0,), (1,), (2,), (20,))
    assert looped(0) == 0
    check()

    @jax.jit
    def chosen(i):
        jax.lax.switch(i, [lambda: note(10), lambda: note(20), lambda: None])

    for i in [1, 2, 0]:
        chosen(i)
    check((20,), (10,))

    # Nothing is merged or dropped, and nested functions and loops keep the order.
    @jax.jit
    def nested(x):
        inner = jax.jit(lambda v: note(v))
        inner(x[0])
        inner(x[0])
        jax.lax.fori_loop(0, 2, lambda i, _: jax.lax.fori_loop(0, 2, lambda j, _: note(i, j), None), None)
        inner(x[3])

    nested(x)
    check((0,), (0,), (0, 0), (0, 1), (1, 0), (1, 1), (3,))


# A condition may call, too.
@jax.jit
def tested(n):
    def more(i):
        jax.debug.callback(say, i)
        return i < n

    return jax.lax.while_loop(more, lambda i: i + 1, 0)


assert tested(2) == 2
check((0,), (1,), (2,))

# vmap and grad.
jax.jit(jax.vmap(lambda v: jax.debug.callback(say, v)))(x)
check((0,), (1,), (2,), (3,), ordered=False)


def squared(v):
    jax.debug.callback(say, v)
    return v * v


assert jax.jit(jax.grad(squared))(3.0) == 6
check((3,))

# debug.print goes to standard output.
import contextlib, io

out = io.StringIO()
with contextlib.redirect_stdout(out):
    jax.jit(lambda x: jax.debug.print("x is {x}", x=x, ordered=True))(x)
    jax.effects_barrier()
assert out.getvalue() == "x is [0. 1. 2. 3.]\n", out.getvalue()

# pure_callback: types, several results, none, vmap, derivatives.
types = [np.float32, np.float16, jnp.bfloat16, np.int32, np.uint8, np.int8, np.bool_, np.complex64, jnp.float8_e4m3fn, jnp.int4]
for dtype in types:
    values = jnp.asarray(np.array([[0, 1, 2], [1, 0, 1]]), dtype)
    shape = jax.ShapeDtypeStruct((3, 2), dtype)
    turned = jax.jit(lambda v: jax.pure_callback(lambda v: np.asarray(v).T, shape, v))(values)
    assert turned.dtype == dtype and (np.asarray(turned) == np.asarray(values).T).all(), dtype
shape = jax.ShapeDtypeStruct((), np.float32)
pair = jax.jit(lambda x: jax.pure_callback(lambda x: (np.sum(x), {"max": np.max(x)}), (shape, {"max": shape}), x))(x)
assert float(pair[0]) == 6 and float(pair[1]["max"]) == 3
empty = jax.ShapeDtypeStruct((0, 2), np.float32)
assert jax.jit(lambda: jax.pure_callback(lambda: np.zeros((0, 2), np.float32), empty))().shape == (0, 2)
sine = lambda x: jax.pure_callback(lambda x: np.sin(x), jax.ShapeDtypeStruct(x.shape, x.dtype), x, vmap_method="sequential")
close(jax.jit(jax.vmap(sine))(x), np.sin(x))
close(jax.jit(lambda x: jax.lax.scan(lambda c, v: (c + sine(v), c), 0.0, x)[0])(x), np.sin(x).sum())
known = jax.custom_jvp(sine)
known.defjvp(lambda p, t: (known(*p), jnp.cos(p[0]) * t[0]))
close(jax.jit(jax.grad(lambda v: known(v) * 2))(1.0), 2 * np.cos(1))
with jax.experimental.enable_x64() if hasattr(jax.experimental, "enable_x64") else jax.enable_x64(True):
    wide = jax.ShapeDtypeStruct((2,), np.float64)
    assert jax.jit(lambda: jax.pure_callback(lambda: np.array([1e-300, 5e-324]), wide))().tolist() == [1e-300, 5e-324]

# io_callback: values in and out, in order.
count = iter(range(100))
shape = jax.ShapeDtypeStruct((), np.int32)


@jax.jit
def drawn():
    def step(i, total):
        return total * 10 + io_callback(lambda: np.int32(next(count)), shape, ordered=True)

    return jax.lax.fori_loop(0, 4, step, 0)


assert drawn() == 123
assert drawn() == 4567
assert jax.jit(lambda: io_callback(lambda: np.int32(next(count)), shape) + 1)() == 9

# An exception ends the program, and its text is that of the error.
def refuse(i):
    said.append(i.item())
    if i == 2:
        raise ValueError("two is too much")


for ordered in [False, True]:
    bad = jax.jit(lambda: jax.lax.fori_loop(0, 5, lambda i, _: jax.debug.callback(refuse, i, ordered=ordered), None))
    e = fails(bad, "INTERNAL", "ValueError: two is too much", "Traceback")
    assert type(e).__name__ in ("XlaRuntimeError", "JaxRuntimeError"), type(e)
    assert said == [0, 1, 2], said
    said.clear()
    getattr(jax, "clear_effects_barrier", jax._src.dispatch.runtime_tokens.clear)()
vector = jax.ShapeDtypeStruct((3,), np.float32)
fails(lambda: jax.jit(lambda: jax.pure_callback(lambda: np.zeros(4, np.float32), vector))(), "Incorrect output shape")
fails(lambda: jax.jit(lambda: jax.pure_callback(lambda: np.zeros(3, np.int32), vector))(), "Incorrect output dtype")
fails(lambda: jax.jit(lambda: jax.pure_callback(lambda: (), vector))(), "Mismatched number of outputs")
assert jax.jit(lambda x: x + 1)(1.0) == 2

# checkify, with errors as values and immediate ones.
checked = checkify.checkify(jax.jit(lambda x: checkify.check(x > 0, "{x} is not positive", x=x) or x))
checked(1.0)[0].throw()
fails(lambda: checked(-1.0)[0].throw(), "is not positive")
jax.config.update("jax_experimental_unsafe_xla_runtime_errors", True)
direct = jax.jit(lambda x: checkify.check(x > 0, "{x} is not positive", x=x) or x)
assert direct(1.0) == 1
fails(lambda: direct(-1.0), "is not positive")
getattr(jax, "clear_effects_barrier", jax._src.dispatch.runtime_tokens.clear)()
jax.config.update("jax_experimental_unsafe_xla_runtime_errors", False)

# A callback may run programs itself, on this platform and on JAX's CPU, and wait for runs in the queue.
heavy = jax.jit(lambda a: jax.lax.while_loop(lambda s: s[0] < 20, lambda s: (s[0] + 1, s[1] @ s[1] / 300), (0, a))[1])
a = jnp.ones((300, 300))


def work(x):
    here = jax.device_put(np.asarray(x), jax.devices("systole")[0])
    assert jax.devices("systole")[0] in jax.jit(lambda v: v + 1)(here).devices()
    assert float(heavy(a)[0, 0]) == 1
    return np.asarray(jnp.asarray(x) * 2)


pending = heavy(a)
twice = jax.jit(lambda x: jax.pure_callback(work, jax.ShapeDtypeStruct(x.shape, x.dtype), x) + 1)
close(twice(pending[0, :2]), [3, 3])
results = []
threads = [threading.Thread(target=lambda k=k: results.append(twice(x + k).tolist())) for k in range(4)]
[t.start() for t in threads]
[t.join() for t in threads]
assert sorted(results) == [[2 * (k + i) + 1 for i in range(4)] for k in range(4)]

# Programs with callbacks are neither serialized nor cached.
from jax.experimental import serialize_executable

compiled = twice.lower(x).compile()
fails(lambda: serialize_executable.serialize(compiled), "calls Python functions")
with tempfile.TemporaryDirectory() as folder:
    import warnings

    jax.config.update("jax_compilation_cache_dir", folder)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    from jax._src import compilation_cache

    compilation_cache.reset_cache()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        jax.jit(lambda x: jax.debug.callback(say, x))(1)
    check((1,))
    kept = [f for f in os.listdir(folder) if "lambda" in f and not f.endswith("-atime")]
    assert not kept, kept
    jax.config.update("jax_compilation_cache_dir", None)
    compilation_cache.reset_cache()

# Functions are forgotten with the programs that call them.
for i in range(20):
    jax.jit(lambda x: sine(x) + i)(x)
del compiled
jax.clear_caches()
gc.collect()
jax.jit(lambda x: sine(x))(x)
assert len(callbacks._functions) < 15, len(callbacks._functions)

# With `systole` alone, JAX's CPU backend stays available.
import subprocess, sys

script = """
import jax, jax.numpy as jnp, numpy as np
assert jax.devices()[0].platform == 'systole' and jax.devices('cpu')[0].platform == 'cpu'
y = jax.jit(lambda x: jax.pure_callback(lambda x: np.asarray(x) + 1, x, x))(jnp.float32(1))
assert float(y) == 2 and y.devices() == {jax.devices()[0]}
jax.debug.print('{}', y)
"""
out = subprocess.run([sys.executable, "-c", script], env=dict(os.environ, JAX_PLATFORMS="systole"), capture_output=True, text=True)
assert out.returncode == 0 and out.stdout == "2.0\n", (out.stdout, out.stderr)
