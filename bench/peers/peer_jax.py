"""JAX with Flax (linen) and Optax: the whole step is one compiled program that reuses the memory of weights and moments."""

import os

import measure

a = measure.arguments()  # before JAX, which reads the environment
os.environ["JAX_PLATFORMS"] = a.device

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from functools import partial

PEER = "jax"
DTYPE = jnp.bfloat16 if a.bf16 else jnp.float32
RANDOM = np.random.default_rng(0)


def run():
    if a.workload == "gemm":
        return measure.gemm(a, PEER, gemm)
    elementwise() if a.workload == "elementwise" else model()


# XLA's CPU compiler takes its fast bf16 kernel only for products with an f32 result, so ask for that in both directions.


@jax.custom_vjp
def product(x, w):
    return jax.lax.dot(x, w, preferred_element_type=jnp.float32).astype(x.dtype)


def product_backward(kept, g):
    x, w = kept
    dx = jax.lax.dot_general(g, w, (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32)
    dw = jax.lax.dot_general(x, g, (((0,), (0,)), ((), ())), preferred_element_type=jnp.float32)
    return dx.astype(x.dtype), dw.astype(w.dtype)


product.defvjp(lambda x, w: (product(x, w), (x, w)), product_backward)


def dense_product(x, w, *_, **__):
    return product(x.reshape(-1, x.shape[-1]), w).reshape(*x.shape[:-1], w.shape[-1])


Dense = partial(nn.Dense, dtype=DTYPE, dot_general=dense_product)


def model():
    build = MODELS.get(a.workload.removesuffix("-inference"))
    if build is None:
        raise measure.Skip("not written")
    net, x, classes = build()
    x = jnp.asarray(x)
    key = jax.random.key(0)
    state = jax.jit(partial(net.init, train=False))({"params": key, "dropout": key}, x)
    settings = ["jit", "donated state"]

    if a.workload.endswith("-inference"):
        predict = jax.jit(lambda state, x: net.apply(state, x, train=False))
        step = lambda: predict(state, x).block_until_ready()
        return measure.report(a, PEER, settings[:1], measure.time_steps(step, a.seconds))

    y = jnp.asarray(RANDOM.integers(0, classes, x.shape if x.dtype == jnp.int32 else x.shape[:1]))
    optimizer = make_optimizer()
    weights = state.pop("params")

    @partial(jax.jit, donate_argnums=(0, 1, 2, 3))
    def train(weights, state, moments, key, x, y):
        key, drawn = jax.random.split(key)

        def loss(weights):
            out, changed = net.apply(
                {"params": weights, **state}, x, train=True, rngs={"dropout": drawn}, mutable=list(state)
            )
            losses = optax.softmax_cross_entropy_with_integer_labels(out.astype(jnp.float32), y)
            return losses.mean(), changed

        (value, changed), gradients = jax.value_and_grad(loss, has_aux=True)(weights)
        updates, moments = optimizer.update(gradients, moments, weights)
        return optax.apply_updates(weights, updates), changed, moments, key, value

    carried = [weights, state, optimizer.init(weights), key]

    def step():
        *carried[:], value = train(*carried, x, y)
        return float(value)

    measure.report(a, PEER, settings, measure.time_steps(step, a.seconds))


def make_optimizer():
    if a.workload == "resnet50":
        return optax.sgd(0.1, momentum=0.9)
    if a.workload == "gpt2-small":
        return optax.adamw(3e-4, weight_decay=0.1)
    return optax.adam(1e-3)


# Models. Each builder gives the module, its input and the number of classes.

ACTIVATION = {"relu": nn.relu, "gelu": partial(nn.gelu, approximate=False), "tanh": jnp.tanh}[a.activation]


class FashionCnn(nn.Module):
    @nn.compact
    def __call__(self, x, train):
        x = nn.Conv(a.filters, (a.kernel, a.kernel), padding="VALID", dtype=DTYPE)(x)
        pool = nn.max_pool if a.pool == "max" else nn.avg_pool
        x = ACTIVATION(pool(x, (2, 2), (2, 2)))
        return Dense(10)(x.reshape(x.shape[0], -1))


class Mlp(nn.Module):
    @nn.compact
    def __call__(self, x, train):
        x = ACTIVATION(Dense(a.units)(x))
        return Dense(10)(nn.Dropout(0.2, deterministic=not train)(x))


class CifarCnn(nn.Module):
    @nn.compact
    def __call__(self, x, train):
        for filters in (32, 64, 128):
            for _ in range(2):
                x = nn.Conv(filters, (3, 3), use_bias=False, dtype=DTYPE)(x)
                x = nn.relu(nn.BatchNorm(use_running_average=not train, dtype=DTYPE)(x))
            x = nn.max_pool(x, (2, 2), (2, 2))
        return Dense(10)(x.reshape(x.shape[0], -1))


class ResNet50(nn.Module):
    @nn.compact
    def __call__(self, x, train):
        def conv(x, filters, kernel, stride=1):
            pad = [(kernel // 2, kernel // 2)] * 2
            x = nn.Conv(filters, (kernel, kernel), (stride, stride), pad, use_bias=False, dtype=DTYPE)(x)
            return nn.BatchNorm(use_running_average=not train, dtype=DTYPE)(x)

        def bottleneck(x, width, stride):
            y = nn.relu(conv(x, width, 1, stride))
            y = nn.relu(conv(y, width, 3))
            y = conv(y, 4 * width, 1)
            return nn.relu(y + (x if x.shape == y.shape else conv(x, 4 * width, 1, stride)))

        x = nn.max_pool(nn.relu(conv(x, 64, 7, 2)), (3, 3), (2, 2), [(1, 1), (1, 1)])
        for width, count, stride in measure.RESNET_STAGES:
            for i in range(count):
                x = bottleneck(x, width, stride if i == 0 else 1)
        return Dense(1000)(x.mean((1, 2)))


class Gpt2(nn.Module):
    @nn.compact
    def __call__(self, tokens, train):
        wide, heads = measure.WIDTH, measure.HEADS
        norm = partial(nn.LayerNorm, dtype=DTYPE)
        words = nn.Embed(measure.VOCABULARY, wide, dtype=DTYPE)
        b, t = tokens.shape
        x = words(tokens) + nn.Embed(measure.TOKENS, wide, dtype=DTYPE)(jnp.arange(t))
        for _ in range(measure.BLOCKS):
            q, k, v = (y.reshape(b, t, heads, -1) for y in jnp.split(Dense(3 * wide)(norm()(x)), 3, -1))
            seen = jax.nn.dot_product_attention(q, k, v, is_causal=True)
            x = x + Dense(wide)(seen.reshape(b, t, wide))
            x = x + Dense(wide)(nn.gelu(Dense(4 * wide)(norm()(x)), approximate=True))
        return dense_product(norm()(x), words.embedding.astype(DTYPE).T)


class Lstm(nn.Module):
    @nn.compact
    def __call__(self, tokens, train):
        x = nn.Embed(measure.LSTM_VOCABULARY, measure.LSTM_UNITS, dtype=DTYPE)(tokens)
        for _ in range(2):
            x = nn.RNN(nn.OptimizedLSTMCell(measure.LSTM_UNITS, dtype=DTYPE))(x)
        return Dense(measure.LSTM_VOCABULARY)(x)


def uniform(*shape):
    return RANDOM.random(shape, dtype="float32")


def words(tokens, vocabulary):
    return RANDOM.integers(0, vocabulary, (a.batch, tokens)), vocabulary


MODELS = {
    "fashion-cnn": lambda: (FashionCnn(), uniform(a.batch, 28, 28, 1), 10),
    "mlp": lambda: (Mlp(), uniform(a.batch, 784), 10),
    "cifar-cnn": lambda: (CifarCnn(), uniform(a.batch, 32, 32, 3), 10),
    "resnet50": lambda: (ResNet50(), uniform(a.batch, 224, 224, 3), 1000),
    "gpt2-small": lambda: (Gpt2(), *words(measure.TOKENS, measure.VOCABULARY)),
    "lstm": lambda: (Lstm(), *words(measure.LSTM_TOKENS, measure.LSTM_VOCABULARY)),
}


# Kernels.


def gemm(n, precision):
    x, y = (jnp.asarray(RANDOM.integers(-100, 100, (n, n)), precision) for _ in range(2))
    if precision == "int8":
        f = jax.jit(lambda x, y: jax.lax.dot(x, y, preferred_element_type=jnp.int32))
    else:
        f = jax.jit(product)
    return lambda: f(x, y).block_until_ready()


def elementwise():
    x = jnp.asarray(RANDOM.standard_normal((measure.ROWS, measure.COLUMNS)), DTYPE)
    adam, weight = optax.adam(1e-3), jnp.ones(measure.WEIGHTS)
    gradient = jnp.asarray(RANDOM.standard_normal(measure.WEIGHTS), jnp.float32)
    norm = nn.LayerNorm(dtype=DTYPE)
    state = norm.init(jax.random.key(0), x)

    @partial(jax.jit, donate_argnums=(0, 1))
    def update(weight, moments, gradient):
        updates, moments = adam.update(gradient, moments)
        return optax.apply_updates(weight, updates), moments

    carried = [weight, adam.init(weight)]

    def adam_step():
        carried[:] = update(*carried, gradient)
        jax.block_until_ready(carried)

    def forward(f):
        f = jax.jit(f)
        return lambda: f(x).block_until_ready()

    steps = {
        "adam": adam_step,
        "gelu": forward(partial(nn.gelu, approximate=False)),
        "softmax": forward(nn.softmax),
        "layernorm": forward(partial(norm.apply, state)),
    }
    measure.elementwise(a, PEER, steps)


if __name__ == "__main__":
    measure.main(a, PEER, run)
