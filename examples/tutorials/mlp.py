"""The tutorials' dense network with dropout on 784 inputs, in Keras 3 (JAX backend)."""
import os

os.environ.setdefault("KERAS_BACKEND", "jax")
import keras
from keras import layers

keras.utils.set_random_seed(0)
(x_train, y_train), (x_test, y_test) = keras.datasets.fashion_mnist.load_data()
x_train, x_test = (x.reshape(-1, 784).astype("float32") / 255 for x in (x_train, x_test))

model = keras.Sequential([
    layers.Input((784,)),
    layers.Dense(512, activation="relu"),
    layers.Dropout(0.2),
    layers.Dense(10, activation="softmax"),
])
model.compile(optimizer="adam", loss="sparse_categorical_crossentropy", metrics=["accuracy"])
model.fit(x_train, y_train, batch_size=128, epochs=5, verbose=2)
loss, accuracy = model.evaluate(x_test, y_test, batch_size=1000, verbose=0)
print(f"test accuracy {accuracy:.4f}")
