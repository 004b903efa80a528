"""The tutorial's whole program in Keras on TensorFlow: `model.fit` on Fashion-MNIST's files through tf.data, timed around `fit`.

fit_keras.py FOLDER [--epochs 5] [--threads 2]   prints one line of JSON; the first epoch, in which TensorFlow traces, is told apart.
"""

import argparse
import gzip
import json
import os
import time

parser = argparse.ArgumentParser()
parser.add_argument("folder")
parser.add_argument("--epochs", type=int, default=5)
parser.add_argument("--threads", type=int, default=2)
a = parser.parse_args()
os.environ["KERAS_BACKEND"] = "tensorflow"
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import keras
import numpy as np
import tensorflow as tf
from keras import layers as L

tf.config.threading.set_intra_op_parallelism_threads(a.threads)
tf.config.threading.set_inter_op_parallelism_threads(a.threads)
keras.utils.set_random_seed(0)


def array(name, header):
    for path in (os.path.join(a.folder, name), os.path.join(a.folder, name + ".gz")):
        if os.path.exists(path):
            with (gzip.open if path.endswith(".gz") else open)(path, "rb") as file:
                return np.frombuffer(file.read(), np.uint8, offset=header)
    raise SystemExit(f"{name} is not in {a.folder}")


def data(part, n):
    images = array(f"{part}-images-idx3-ubyte", 16).reshape(-1, 28, 28, 1)
    labels = array(f"{part}-labels-idx1-ubyte", 8).astype("int32")
    return tf.data.Dataset.from_tensor_slices((images, labels)).take(n)


def scaled(image, label):
    return tf.cast(image, tf.float32), label


train = data("train", 60_000).map(scaled, tf.data.AUTOTUNE).shuffle(60_000).repeat().batch(1000).prefetch(tf.data.AUTOTUNE)
test = data("t10k", 10_000).map(scaled, tf.data.AUTOTUNE).batch(1000)
net = keras.Sequential(
    [
        L.Input((28, 28, 1)),
        L.Conv2D(64, 3),
        L.MaxPooling2D(2),
        L.Activation("relu"),
        L.Flatten(),
        L.Dense(10),
        L.Activation("softmax"),
    ]
)
net.compile("adam", "sparse_categorical_crossentropy", metrics=["sparse_categorical_accuracy"])


class Clock(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.epochs = []

    def on_epoch_begin(self, epoch, logs=None):
        self.begun = time.perf_counter()

    def on_epoch_end(self, epoch, logs=None):
        self.epochs.append(time.perf_counter() - self.begun)


clock = Clock()
begun = time.perf_counter()
net.fit(train, epochs=a.epochs, steps_per_epoch=60, verbose=0, callbacks=[clock], validation_data=test, validation_freq=a.epochs)
seconds = time.perf_counter() - begun
later = sorted(clock.epochs[1:-1]) or clock.epochs
print(
    json.dumps(
        {
            "peer": f"keras {keras.__version__} on tensorflow {tf.__version__}",
            "seconds": round(seconds, 3),
            "ms_per_step": round(later[len(later) // 2] / 60 * 1000, 2),
            "accuracy": round(float(net.evaluate(test, verbose=0)[1]), 4),
        }
    )
)
