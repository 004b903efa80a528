"""The TPU tutorials' convolutional network on Fashion-MNIST, in Keras 3 (JAX backend).

The tutorials connect with TPUClusterResolver and build the model in `strategy.scope()`. In Keras 3 a distribution takes
the strategy's place; it uses all devices that JAX finds.
"""
import os

os.environ.setdefault("KERAS_BACKEND", "jax")
import keras
from keras import layers

keras.utils.set_random_seed(0)
keras.distribution.set_distribution(keras.distribution.DataParallel())

(x_train, y_train), (x_test, y_test) = keras.datasets.fashion_mnist.load_data()
x_train, x_test = x_train[..., None].astype("float32"), x_test[..., None].astype("float32")

model = keras.Sequential([
    layers.Input((28, 28, 1)),
    layers.Conv2D(64, (3, 3)),
    layers.MaxPooling2D((2, 2), strides=(2, 2)),
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
model.fit(
    x_train, y_train, batch_size=1000, epochs=5, steps_per_epoch=60,
    validation_data=(x_test, y_test), validation_freq=5, verbose=2,
)
loss, accuracy = model.evaluate(x_test, y_test, batch_size=1000, verbose=0)
print(f"test accuracy {accuracy:.4f}")
