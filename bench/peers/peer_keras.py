"""Keras 3 on TensorFlow: a train function of `tf.function`, without the cost of `fit` around it.

`--mode jit` compiles it with XLA; Keras's own choice on a CPU ("auto") is not to.
"""

import os

import measure

a = measure.arguments()  # before TensorFlow, which reads the environment
os.environ["KERAS_BACKEND"] = "tensorflow"
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import keras
import numpy as np
import tensorflow as tf
from keras import layers as L
from keras import ops

PEER = "keras-jit" if a.mode == "jit" else "keras"
RANDOM = np.random.default_rng(0)


def run():
    tf.config.threading.set_intra_op_parallelism_threads(a.threads)
    tf.config.threading.set_inter_op_parallelism_threads(a.threads)
    keras.utils.set_random_seed(0)
    if a.workload == "gemm":
        return measure.gemm(a, PEER, gemm)
    keras.config.set_dtype_policy(a.precision)
    elementwise() if a.workload == "elementwise" else model()


def function(f):
    return tf.function(f, jit_compile=a.mode == "jit")


def model():
    build = MODELS.get(a.workload.removesuffix("-inference"))
    if build is None:
        raise measure.Skip("not written")
    net, x, classes = build()
    x = tf.constant(x)
    settings = ["tf.function, jit_compile " + ("on" if a.mode == "jit" else "off")]

    if a.workload.endswith("-inference"):
        predict = function(lambda x: net(x, training=False))
        return measure.report(a, PEER, settings, measure.time_steps(lambda: predict(x), a.seconds))

    y = tf.constant(RANDOM.integers(0, classes, x.shape if x.dtype.is_integer else x.shape[:1]))
    optimizer = make_optimizer()
    optimizer.build(net.trainable_variables)
    loss_function = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    @function
    def train(x, y):
        with tf.GradientTape() as tape:
            loss = loss_function(y, net(x, training=True))
        weights = net.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))
        return loss

    measure.report(a, PEER, settings, measure.time_steps(lambda: float(train(x, y)), a.seconds))


def make_optimizer():
    if a.workload == "resnet50":
        return keras.optimizers.SGD(0.1, momentum=0.9)
    if a.workload == "gpt2-small":
        return keras.optimizers.AdamW(3e-4, weight_decay=0.1)
    return keras.optimizers.Adam(1e-3)


# Models. Each gives the model, its input and the number of classes. Logits are f32 in either precision.


def uniform(*shape):
    return RANDOM.random(shape, dtype="float32")


def logits(classes):
    return L.Dense(classes, dtype="float32")


def fashion_cnn():
    pool = L.MaxPooling2D if a.pool == "max" else L.AveragePooling2D
    net = keras.Sequential(
        [
            L.Input((28, 28, 1)),
            L.Conv2D(a.filters, a.kernel),
            pool(2),
            L.Activation(a.activation),
            L.Flatten(),
            logits(10),
        ]
    )
    return net, uniform(a.batch, 28, 28, 1), 10


def mlp():
    net = keras.Sequential([L.Input((784,)), L.Dense(a.units, activation=a.activation), L.Dropout(0.2), logits(10)])
    return net, uniform(a.batch, 784), 10


def cifar_cnn():
    stack = [L.Input((32, 32, 3))]
    for filters in (32, 64, 128):
        for _ in range(2):
            stack += [L.Conv2D(filters, 3, padding="same", use_bias=False), L.BatchNormalization()]
            stack.append(L.Activation("relu"))
        stack.append(L.MaxPooling2D(2))
    return keras.Sequential([*stack, L.Flatten(), logits(10)]), uniform(a.batch, 32, 32, 3), 10


def four_convolutions():
    stack = [L.Input((32, 32, 3))]
    for filters in (64, 128):
        stack += [L.Conv2D(filters, 3, padding="same", activation="relu") for _ in range(2)] + [L.MaxPooling2D(2)]
    return keras.Sequential([*stack, L.Flatten(), logits(10)]), uniform(a.batch, 32, 32, 3), 10


def resnet50():
    def conv(x, filters, kernel, stride=1):
        if kernel > 1:
            x = L.ZeroPadding2D(kernel // 2)(x)
        return L.BatchNormalization()(L.Conv2D(filters, kernel, stride, use_bias=False)(x))

    def bottleneck(x, width, stride):
        y = L.ReLU()(conv(x, width, 1, stride))
        y = L.ReLU()(conv(y, width, 3))
        y = conv(y, 4 * width, 1)
        if x.shape[-1] != 4 * width or stride != 1:
            x = conv(x, 4 * width, 1, stride)
        return L.ReLU()(L.Add()([x, y]))

    x = first = L.Input((224, 224, 3))
    x = L.ReLU()(conv(x, 64, 7, 2))
    x = L.MaxPooling2D(3, 2)(L.ZeroPadding2D(1)(x))
    for width, count, stride in measure.RESNET_STAGES:
        for i in range(count):
            x = bottleneck(x, width, stride if i == 0 else 1)
    x = logits(1000)(L.GlobalAveragePooling2D()(x))
    return keras.Model(first, x), uniform(a.batch, 224, 224, 3), 1000


def gpt2_small():
    wide, heads, tokens = measure.WIDTH, measure.HEADS, measure.TOKENS

    class Attention(L.Layer):
        def __init__(self):
            super().__init__()
            self.qkv, self.out = L.Dense(3 * wide), L.Dense(wide)

        def call(self, x):
            qkv = ops.reshape(self.qkv(x), (-1, tokens, 3, heads, wide // heads))
            seen = ops.dot_product_attention(qkv[:, :, 0], qkv[:, :, 1], qkv[:, :, 2], is_causal=True)
            return self.out(ops.reshape(seen, (-1, tokens, wide)))

    class Words(L.Embedding):
        """An embedding whose weights are also the head's."""

        def logits(self, x):
            return ops.matmul(x, ops.transpose(ops.cast(self.embeddings, x.dtype)))

    class Gpt2(keras.Model):
        def __init__(self):
            super().__init__()
            self.words, self.places = Words(measure.VOCABULARY, wide), L.Embedding(tokens, wide)
            self.parts = [
                (L.LayerNormalization(), Attention(), L.LayerNormalization(), L.Dense(4 * wide), L.Dense(wide))
                for _ in range(measure.BLOCKS)
            ]
            self.norm = L.LayerNormalization()

        def call(self, ids):
            x = self.words(ids) + self.places(ops.arange(tokens))
            for norm1, attention, norm2, up, down in self.parts:
                x = x + attention(norm1(x))
                x = x + down(ops.gelu(up(norm2(x)), approximate=True))
            return ops.cast(self.words.logits(self.norm(x)), "float32")

    ids = RANDOM.integers(0, measure.VOCABULARY, (a.batch, tokens))
    net = Gpt2()
    net(ids)
    return net, ids, measure.VOCABULARY


def lstm():
    units, vocabulary, tokens = measure.LSTM_UNITS, measure.LSTM_VOCABULARY, measure.LSTM_TOKENS
    net = keras.Sequential(
        [
            L.Input((tokens,)),
            L.Embedding(vocabulary, units),
            L.LSTM(units, return_sequences=True),
            L.LSTM(units, return_sequences=True),
            logits(vocabulary),
        ]
    )
    return net, RANDOM.integers(0, vocabulary, (a.batch, tokens)), vocabulary


MODELS = measure.by_name(fashion_cnn, mlp, cifar_cnn, four_convolutions, resnet50, gpt2_small, lstm)


# Kernels. An eager operator returns when its result is there.


def gemm(n, precision):
    if precision == "int8":
        if n > 1024:
            raise measure.Skip("its int8 product is a plain loop, 50 GOP/s")
        x, y = (tf.constant(RANDOM.integers(-100, 100, (n, n)), tf.int8) for _ in range(2))
        product = tf.function(lambda x, y: tf.matmul(x, y, output_type=tf.int32))
    else:
        x, y = (tf.cast(RANDOM.standard_normal((n, n)), precision) for _ in range(2))
        product = tf.function(tf.matmul)
    return lambda: product(x, y)


def elementwise():
    x = tf.cast(RANDOM.standard_normal((measure.ROWS, measure.COLUMNS)), "bfloat16" if a.bf16 else "float32")
    weight = keras.Variable(RANDOM.standard_normal(measure.WEIGHTS), dtype="float32")
    gradient = tf.constant(RANDOM.standard_normal(measure.WEIGHTS), tf.float32)
    adam = keras.optimizers.Adam(1e-3)
    adam.build([weight])
    layernorm = L.LayerNormalization(dtype=x.dtype.name)
    layernorm.build(x.shape)

    def step(f, x):
        f = function(f)
        return lambda: f(x)

    steps = {
        "adam": step(lambda g: adam.apply_gradients([(g, weight)]), gradient),
        "gelu": step(lambda x: ops.gelu(x, approximate=False), x),
        "softmax": step(lambda x: ops.softmax(x, -1), x),
        "layernorm": step(layernorm, x),
    }
    measure.elementwise(a, PEER, steps)


if __name__ == "__main__":
    measure.main(a, PEER, run)
