"""The small module beside the plugin: a program run without JAX's runtime."""

import numpy as np
import systole_jax

text = """
func.func @main(%x: tensor<2xf32>, %y: tensor<2xf32>) -> (tensor<2xf32>, tensor<2xbf16>) {
  %0 = stablehlo.add %x, %y : tensor<2xf32>
  %1 = stablehlo.convert %0 : (tensor<2xf32>) -> tensor<2xbf16>
  return %0, %1 : tensor<2xf32>, tensor<2xbf16>
}
"""
a, b = systole_jax.run(text, np.float32([1, 2]), np.float32([3, 5]))
assert a.tolist() == [4, 7] and a.dtype == np.float32
assert b.astype(np.float32).tolist() == [4, 7] and b.dtype.name == "bfloat16"
try:
    systole_jax.run(text, np.float32([1, 2]))
    raise SystemExit("an argument was missing")
except RuntimeError as e:
    assert "arg1" in str(e), e

import jax

exported = jax.export.export(jax.jit(lambda v: v * 2), platforms=["cpu"])(np.float32([1, 2, 3]))
assert systole_jax.run(exported.mlir_module_serialized, np.float32([1, 2, 3]))[0].tolist() == [2, 4, 6]
lowered = jax.jit(lambda v: v - 1).lower(np.float32([1, 2, 3])).compiler_ir()
assert systole_jax.run(lowered, np.float32([1, 2, 3]))[0].tolist() == [0, 1, 2]
assert systole_jax.version().count(".") == 2
print("the end")
