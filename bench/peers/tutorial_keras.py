"""The TPU tutorials' convolutional network on Fashion-MNIST in Keras on TensorFlow, on the CPU: one run, as JSON.

The tutorial gives `fit` arrays and `steps_per_epoch=60` without a batch size: 60,000 / 60 = 1,000 images for a step, in
Keras 3 too. With arrays under TPUStrategy, TensorFlow 1.14 shuffled in a buffer of 8 batches (`--shuffle-buffer 8000`).
The default here: batches of 1,000, all images shuffled.
"""
import argparse
import gzip
import json
import os
from pathlib import Path

os.environ["KERAS_BACKEND"] = "tensorflow"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ["CUDA_VISIBLE_DEVICES"] = ""

parser = argparse.ArgumentParser()
parser.add_argument("data")
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--threads", type=int, default=0)
parser.add_argument("--shuffle-buffer", type=int, default=0)
parser.add_argument("--validate-on", choices=["test", "train"], default="test")
options = parser.parse_args()

import keras
import numpy as np
import tensorflow as tf
from keras import layers

tf.config.threading.set_intra_op_parallelism_threads(options.threads)
tf.config.threading.set_inter_op_parallelism_threads(options.threads)
keras.utils.set_random_seed(options.seed)


def array(name, offset):
    with gzip.open(Path(options.data) / f"{name}.gz") as file:
        return np.frombuffer(file.read(), np.uint8, offset=offset)


def split(name):
    images = array(f"{name}-images-idx3-ubyte", 16).reshape(-1, 28, 28, 1)
    return images.astype(np.float32), array(f"{name}-labels-idx1-ubyte", 8).astype(np.float32)


(x_train, y_train), (x_test, y_test) = split("train"), split("t10k")

with tf.distribute.get_strategy().scope():  # the tutorial: TPUStrategy(resolver)
    model = keras.Sequential([
        layers.Input((28, 28, 1)),
        layers.Conv2D(64, (3, 3)),
        layers.MaxPooling2D(pool_size=(2, 2), strides=(2, 2)),
        layers.Activation("relu"),
        layers.Flatten(),
        layers.Dense(10),
        layers.Activation("softmax"),
    ])
    model.compile(
        optimizer=keras.optimizers.Adam(learning_rate=1e-3),
        loss=keras.losses.SparseCategoricalCrossentropy(),
        metrics=[keras.metrics.SparseCategoricalAccuracy()],
    )

BATCH_SIZE = 1000
arguments = {"x": x_train, "y": y_train, "batch_size": BATCH_SIZE}
if options.shuffle_buffer:
    pairs = tf.data.Dataset.from_tensor_slices((x_train, y_train)).shuffle(options.shuffle_buffer).repeat()
    arguments = {"x": pairs.batch(BATCH_SIZE, drop_remainder=True).prefetch(2)}
history = model.fit(
    **arguments, epochs=5, steps_per_epoch=60, verbose=0,
    validation_data=(x_train, y_train) if options.validate_on == "train" else (x_test, y_test),
    validation_freq=5, validation_batch_size=BATCH_SIZE,
).history
name = "sparse_categorical_accuracy"
print(json.dumps({"accuracy": history[name], "val_accuracy": history[f"val_{name}"][-1], "val_loss": history["val_loss"][-1]}))
