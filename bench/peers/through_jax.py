"""Times JAX programs on the platform that JAX_PLATFORMS names: through_jax.py WORKLOAD… [--seconds 3]

Prints a line of JSON for each: the median of finished steps in ms (JAX's dispatch and buffers counted), and the time of the
first call, in which JAX traces and the platform compiles; `rss_mib` is the most memory of the process so far. `--list` names the workloads. Training is by Flax and optax.
"""

import argparse
import json
import os
import resource
import time

os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
import jax
import jax.numpy as jnp
import numpy as np
from jax_loops import LOOPS
from jax_programs import PROGRAMS

R = np.random.default_rng(0)


def f32(*shape):
    return jnp.asarray(R.normal(size=shape).astype(np.float32))


def training(net, x, y, learning_rate=1e-3):
    """A step of Adam on a Flax model of classes."""
    import optax
    from flax import nnx

    optimizer = nnx.Optimizer(net, optax.adam(learning_rate), wrt=nnx.Param)

    @nnx.jit
    def step(net, optimizer, x, y):
        def loss(net):
            return optax.softmax_cross_entropy_with_integer_labels(net(x).astype(jnp.float32), y).mean()

        value, grads = nnx.value_and_grad(loss)(net)
        optimizer.update(net, grads)
        return value

    return lambda: step(net, optimizer, x, y)


def fashion_cnn():
    """The tutorial's network: batches of 1,000 pictures of 28 × 28."""
    from flax import nnx

    class Net(nnx.Module):
        def __init__(self, rngs):
            self.conv = nnx.Conv(1, 64, (3, 3), padding="VALID", rngs=rngs)
            self.dense = nnx.Linear(13 * 13 * 64, 10, rngs=rngs)

        def __call__(self, x):
            x = nnx.relu(nnx.max_pool(self.conv(x), (2, 2), (2, 2)))
            return self.dense(x.reshape(x.shape[0], -1))

    return training(Net(nnx.Rngs(0)), f32(1000, 28, 28, 1), jnp.asarray(R.integers(0, 10, 1000)))


def cifar_cnn(batch=128):
    """Three pairs of convolutions with batch normalization, as the preset `cifar-cnn`."""
    from flax import nnx

    class Net(nnx.Module):
        def __init__(self, rngs):
            self.blocks, channels = nnx.List([]), 3
            for filters in (32, 64, 128):
                for _ in range(2):
                    self.blocks.append(nnx.Conv(channels, filters, (3, 3), use_bias=False, rngs=rngs))
                    self.blocks.append(nnx.BatchNorm(filters, rngs=rngs))
                    channels = filters
            self.dense = nnx.Linear(4 * 4 * 128, 10, rngs=rngs)

        def __call__(self, x):
            for i in range(0, len(self.blocks), 2):
                x = nnx.relu(self.blocks[i + 1](self.blocks[i](x)))
                if i % 4 == 2:
                    x = nnx.max_pool(x, (2, 2), (2, 2))
            return self.dense(x.reshape(x.shape[0], -1))

    return training(Net(nnx.Rngs(0)), f32(batch, 32, 32, 3), jnp.asarray(R.integers(0, 10, batch)))


def resnet50(batch=8, size=224):
    """ResNet-50 of the paper's v1.5: strides in the 3 × 3 convolutions."""
    from flax import nnx

    class Unit(nnx.Module):
        """A convolution with batch normalization."""

        def __init__(self, channels, filters, window, stride, rngs):
            self.conv = nnx.Conv(channels, filters, (window, window), stride, use_bias=False, rngs=rngs)
            self.norm = nnx.BatchNorm(filters, rngs=rngs)

        def __call__(self, x):
            return self.norm(self.conv(x))

    class Bottleneck(nnx.Module):
        def __init__(self, channels, filters, stride, rngs):
            self.reduce = Unit(channels, filters, 1, 1, rngs)
            self.middle = Unit(filters, filters, 3, stride, rngs)
            self.expand = Unit(filters, 4 * filters, 1, 1, rngs)
            self.shortcut = Unit(channels, 4 * filters, 1, stride, rngs) if channels != 4 * filters else None

        def __call__(self, x):
            y = self.expand(nnx.relu(self.middle(nnx.relu(self.reduce(x)))))
            return nnx.relu(y + (self.shortcut(x) if self.shortcut else x))

    class Net(nnx.Module):
        def __init__(self, rngs):
            self.stem, self.blocks, channels = Unit(3, 64, 7, 2, rngs), nnx.List([]), 64
            for stage, (filters, count) in enumerate(((64, 3), (128, 4), (256, 6), (512, 3))):
                for i in range(count):
                    self.blocks.append(Bottleneck(channels, filters, 2 if i == 0 and stage else 1, rngs))
                    channels = 4 * filters
            self.dense = nnx.Linear(channels, 1000, rngs=rngs)

        def __call__(self, x):
            x = nnx.max_pool(nnx.relu(self.stem(x)), (3, 3), (2, 2), "SAME")
            for block in self.blocks:
                x = block(x)
            return self.dense(x.mean((1, 2)))

    return training(Net(nnx.Rngs(0)), f32(batch, size, size, 3), jnp.asarray(R.integers(0, 1000, batch)))


def gpt2(layers=12, width=768, heads=12, length=128, batch=1, vocabulary=50257, dtype=jnp.float32):
    """A step of a GPT-2 of 124 M parameters on sequences of 128."""
    import optax
    from flax import nnx

    class Block(nnx.Module):
        def __init__(self, rngs):
            self.norm1, self.norm2 = (nnx.LayerNorm(width, dtype=dtype, rngs=rngs) for _ in range(2))
            self.qkv = nnx.Linear(width, 3 * width, dtype=dtype, rngs=rngs)
            self.out = nnx.Linear(width, width, dtype=dtype, rngs=rngs)
            self.up = nnx.Linear(width, 4 * width, dtype=dtype, rngs=rngs)
            self.down = nnx.Linear(4 * width, width, dtype=dtype, rngs=rngs)

        def __call__(self, x):
            q, k, v = jnp.split(self.qkv(self.norm1(x)), 3, -1)
            split = lambda t: t.reshape(batch, length, heads, width // heads)
            scores = jnp.einsum("bqhd,bkhd->bhqk", split(q), split(k)) / (width // heads) ** 0.5
            mask = jnp.tril(jnp.ones((length, length), bool))
            weights = jax.nn.softmax(jnp.where(mask, scores, -1e9).astype(jnp.float32)).astype(dtype)
            x = x + self.out(jnp.einsum("bhqk,bkhd->bqhd", weights, split(v)).reshape(batch, length, width))
            return x + self.down(jax.nn.gelu(self.up(self.norm2(x))))

    class Net(nnx.Module):
        def __init__(self, rngs):
            self.tokens = nnx.Embed(vocabulary, width, dtype=dtype, rngs=rngs)
            self.places = nnx.Embed(length, width, dtype=dtype, rngs=rngs)
            self.blocks = nnx.List([Block(rngs) for _ in range(layers)])
            self.norm = nnx.LayerNorm(width, dtype=dtype, rngs=rngs)

        def __call__(self, ids):
            x = self.tokens(ids) + self.places(jnp.arange(length))
            for block in self.blocks:
                x = block(x)
            return self.tokens.attend(self.norm(x))

    ids = jnp.asarray(R.integers(0, vocabulary, (batch, length + 1)))
    return training(Net(nnx.Rngs(0)), ids[:, :-1], ids[:, 1:], 1e-4)


def lstm(batch=64, length=64, units=128):
    """An LSTM as `lax.scan`, its gradient and a step of gradient descent."""
    w, u, x, y = f32(32, 4 * units) * 0.1, f32(units, 4 * units) * 0.1, f32(length, batch, 32), f32(batch, units)

    def loss(p):
        def cell(state, x):
            h, c = state
            i, f, g, o = jnp.split(x @ p[0] + h @ p[1], 4, -1)
            c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            h = jax.nn.sigmoid(o) * jnp.tanh(c)
            return (h, c), None

        zero = jnp.zeros((batch, units))
        return jnp.mean((jax.lax.scan(cell, (zero, zero), x)[0][0] - y) ** 2)

    step = jax.jit(lambda p: jax.tree.map(lambda p, g: p - 0.1 * g, p, jax.grad(loss)(p)))
    state = [(w, u)]

    def run():
        state[0] = step(state[0])
        return state[0]

    return run


def of(f, *arguments):
    """A micro-benchmark: a function and its arguments."""
    return lambda: (lambda g: lambda: g(*arguments))(jax.jit(f))


def convolution(x, k):
    return jax.lax.conv_general_dilated(x, k, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def pooled(x):
    return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")


def spd(n):
    a = f32(n, n)
    return a @ a.T + n * jnp.eye(n)


TRAINING = {"fashion-cnn": fashion_cnn, "cifar-cnn": cifar_cnn, "resnet50": resnet50, "gpt2": gpt2, "lstm": lstm}
TRAINING["gpt2-bf16"] = lambda: gpt2(dtype=jnp.bfloat16)
MICRO = {
    "dispatch": of(lambda x: x + 1, f32(8)),
    "dot-64": of(jnp.dot, f32(64, 64), f32(64, 64)),
    "dot-512": of(jnp.dot, f32(512, 512), f32(512, 512)),
    "dot-1024": of(jnp.dot, f32(1024, 1024), f32(1024, 1024)),
    "dot-tall": of(jnp.dot, f32(4096, 64), f32(64, 256)),
    "dot-vector": of(jnp.dot, f32(2048, 2048), f32(2048)),
    "dot-batch": of(lambda a, b: jnp.einsum("bij,bjk->bik", a, b), f32(32, 64, 64), f32(32, 64, 64)),
    "einsum-attention": of(lambda q, k: jnp.einsum("bqhd,bkhd->bhqk", q, k), f32(4, 128, 8, 64), f32(4, 128, 8, 64)),
    "einsum-outer": of(lambda a, b: jnp.einsum("i,j->ij", a, b), f32(1024), f32(1024)),
    "softmax": of(jax.nn.softmax, f32(1024, 1024)),
    "layer-norm": of(lambda x: (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-5), f32(1024, 1024)),
    "gelu": of(jax.nn.gelu, f32(1024, 1024)),
    "chain": of(lambda x, y: jnp.tanh(x * y + 1) * jnp.exp(-x * x) + jnp.log1p(jnp.abs(y)), f32(1024, 1024), f32(1024, 1024)),
    "add": of(jnp.add, f32(1024, 1024), f32(1024, 1024)),
    "sigmoid-gradient": of(jax.grad(lambda x: jax.nn.sigmoid(x).sum()), f32(1024, 1024)),
    "sum": of(jnp.sum, f32(2048, 2048)),
    "sum-rows": of(lambda x: x.sum(1), f32(2048, 2048)),
    "sum-columns": of(lambda x: x.sum(0), f32(2048, 2048)),
    "argmax": of(lambda x: jnp.argmax(x, -1), f32(1024, 1024)),
    "variance": of(lambda x: x.var(0), f32(2048, 512)),
    "cumsum": of(lambda x: jnp.cumsum(x, -1), f32(512, 1024)),
    "logsumexp": of(lambda x: jax.nn.logsumexp(x, -1), f32(1024, 1024)),
    "sort": of(lambda x: jnp.sort(x, -1), f32(256, 1024)),
    "argsort": of(lambda x: jnp.argsort(x, -1), f32(256, 1024)),
    "top-k": of(lambda x: jax.lax.top_k(x, 8), f32(256, 1024)),
    "gather": of(lambda x, i: x[i], f32(10000, 128), jnp.asarray(R.integers(0, 10000, 4096))),
    "scatter-add": of(lambda x, i, u: x.at[i].add(u), f32(10000, 128), jnp.asarray(R.integers(0, 10000, 4096)), f32(4096, 128)),
    "dynamic-slice": of(lambda x, i: jax.lax.dynamic_slice(x, (i, 0), (256, 1024)), f32(1024, 1024), jnp.int32(7)),
    "transpose": of(lambda x: x.T + 1, f32(1024, 1024)),
    "concatenate": of(lambda x, y: jnp.concatenate([x, y], 1), f32(1024, 512), f32(1024, 512)),
    "one-hot": of(lambda i: jax.nn.one_hot(i, 1000), jnp.asarray(R.integers(0, 1000, 1024))),
    "convolution": of(convolution, f32(16, 32, 32, 32), f32(3, 3, 32, 64)),
    "convolution-gradient": of(jax.grad(lambda k, x: convolution(x, k).sum()), f32(3, 3, 32, 64), f32(16, 32, 32, 32)),
    "max-pool": of(pooled, f32(16, 32, 32, 64)),
    "random-normal": of(lambda k: jax.random.normal(k, (1024, 1024)), jax.random.key(0)),
    "random-bits": of(lambda k: jax.random.bits(k, (1024, 1024)), jax.random.key(0)),
    "fft": of(lambda x: jnp.abs(jnp.fft.rfft(x)), f32(256, 1024)),
    "cholesky": of(jnp.linalg.cholesky, spd(256)),
    "triangular-solve": of(lambda a, b: jax.scipy.linalg.solve_triangular(a, b, lower=True), spd(256), f32(256, 64)),
    "while": of(lambda x: jax.lax.fori_loop(0, 100, lambda i, x: x * 0.99 + 0.1, x), f32(256, 256)),
    "scan-small": of(lambda x: jax.lax.scan(lambda c, v: (jnp.tanh(c @ x[0, :, :] + v[0]), None), f32(16, 64), x)[0], f32(64, 64, 64)),
}


def measure(name, make, seconds):
    run = make()
    begun = time.perf_counter()
    jax.block_until_ready(run())
    first = time.perf_counter() - begun
    times, end = [], time.perf_counter() + seconds
    for _ in range(3):
        jax.block_until_ready(run())
    while len(times) < 5 or (time.perf_counter() < end and len(times) < 20000):
        begun = time.perf_counter()
        jax.block_until_ready(run())
        times.append(time.perf_counter() - begun)
    times.sort()
    told = {"workload": name, "platform": jax.default_backend(), "ms": times[len(times) // 2] * 1e3, "best_ms": times[0] * 1e3}
    print(json.dumps({**told, "first_ms": first * 1e3, "steps": len(times), "rss_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10}), flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("workloads", nargs="*")
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--list", action="store_true")
    a = parser.parse_args()
    sets = {"training": TRAINING, "programs": PROGRAMS, "loops": LOOPS, "micro": MICRO}
    all_of = {name: make for programs in sets.values() for name, make in programs.items()}
    if a.list:
        print("\n".join(all_of))
    names = [n for w in a.workloads for n in sets.get(w, [w])]
    for name in names:
        try:
            measure(name, all_of[name], a.seconds)
        except Exception as e:
            print(json.dumps({"workload": name, "platform": jax.default_backend(), "error": str(e)[:300]}), flush=True)


main()
