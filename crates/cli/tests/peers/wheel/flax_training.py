"""The tutorial's kind of network in Flax and optax, trained on pictures that the script draws."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

assert jax.devices()[0].platform == "systole"
r = np.random.default_rng(0)
labels = r.integers(0, 4, 256).astype(np.int32)
images = r.normal(size=(256, 12, 12, 1)).astype(np.float32) * 0.3
for i, label in enumerate(labels):
    images[i, (label // 2) * 6 : (label // 2) * 6 + 6, (label % 2) * 6 : (label % 2) * 6 + 6] += 1


class Net(nnx.Module):
    def __init__(self, rngs):
        self.conv = nnx.Conv(1, 8, (3, 3), rngs=rngs)
        self.norm = nnx.BatchNorm(8, rngs=rngs)
        self.drop = nnx.Dropout(0.1, rngs=rngs)
        self.dense = nnx.Linear(6 * 6 * 8, 4, rngs=rngs)

    def __call__(self, x):
        x = nnx.max_pool(nnx.relu(self.norm(self.conv(x))), (2, 2), (2, 2))
        return self.dense(self.drop(x.reshape(x.shape[0], -1)))


net = Net(nnx.Rngs(0))
optimizer = nnx.Optimizer(net, optax.adam(3e-3), wrt=nnx.Param)


@nnx.jit
def step(net, optimizer, x, y):
    def loss(net):
        return optax.softmax_cross_entropy_with_integer_labels(net(x), y).mean()

    value, grads = nnx.value_and_grad(loss)(net)
    optimizer.update(net, grads)
    return value


losses = [float(step(net, optimizer, images[i : i + 64], labels[i : i + 64])) for _ in range(10) for i in range(0, 256, 64)]
assert losses[-1] < 0.25 * losses[0], losses
net.eval()
accuracy = float((jnp.argmax(net(images), -1) == labels).mean())
assert accuracy > 0.95, accuracy
print("the end")
