"""`a * x + y` as a compiled function, in JAX: what the tutorials show `tpu.rewrite` with."""
import jax
import jax.numpy as jnp

axpy = jax.jit(lambda a, x, y: a * x + y)
x, y = jnp.array([1.0, 2.0, 3.0, 4.0]), jnp.array([10.0, 20.0, 30.0, 40.0])
print("3 * x + y =", axpy(3.0, x, y))
