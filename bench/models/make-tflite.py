#!/usr/bin/env python3
"""Writes float .tflite files of keras.applications with random weights, as TensorFlow converts them; usage: make-tflite.py FOLDER [name...]"""

import os
import sys

import tensorflow as tf

NAMES = ["MobileNetV2", "MobileNetV3Large", "EfficientNetB0"]

folder, names = sys.argv[1], sys.argv[2:] or NAMES
os.makedirs(folder, exist_ok=True)
for name in names:
    tf.keras.utils.set_random_seed(1)
    model = getattr(tf.keras.applications, name)(weights=None, classifier_activation=None)
    # A batch of its own: the converter writes an open one otherwise.
    image = tf.keras.Input(batch_shape=(1, 224, 224, 3))
    data = tf.lite.TFLiteConverter.from_keras_model(tf.keras.Model(image, model(image))).convert()
    with open(os.path.join(folder, name + ".tflite"), "wb") as file:
        file.write(data)
    print(name, "written")
