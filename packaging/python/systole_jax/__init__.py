"""Systole for Python: StableHLO programs run on its CPU engine, and where its program lies.

    import numpy as np, systole_jax
    text = '''
    func.func @main(%x: tensor<2xf32>) -> tensor<2xf32> {
      %0 = stablehlo.add %x, %x : tensor<2xf32>
      return %0 : tensor<2xf32>
    }'''
    [y] = systole_jax.run(text, np.float32([1, 2]))

JAX itself needs nothing of this module: `JAX_PLATFORMS=systole,cpu python train.py`.
"""

import importlib.metadata
import json
import os
import subprocess
import tempfile

from ._program import program

__all__ = ["program", "run", "version"]


def version():
    """The version of Systole that is installed."""
    return importlib.metadata.version(__name__)


def run(mlir, *arrays, device="cpu"):
    """`run(mlir, arg0, arg1, …) → [out0, out1, …]`: runs a StableHLO program on NumPy arrays.

    mlir: text (`str`), a portable artifact (`bytes`, as `jax.export` gives it) or an object whose `str` is text, such as
    `jax.jit(f).lower(x).compiler_ir()`. device: as `systole run --device`. Raises `RuntimeError` with what the program says.
    """
    import numpy as np

    data = mlir if isinstance(mlir, (bytes, bytearray)) else str(mlir).encode()
    with tempfile.TemporaryDirectory(prefix="systole-") as folder:
        path = [os.path.join(folder, name) for name in ("program.mlir", "in.npz", "out.npz")]
        with open(path[0], "wb") as file:
            file.write(data)
        command = [program(), "run", path[0], "--output", path[2], "--device", device, "--json"]
        if arrays:
            np.savez(path[1], **{f"arg{i}": np.asarray(a) for i, a in enumerate(arrays)})
            command += ["--input", path[1]]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(done.stderr.strip() or f"systole run ended with {done.returncode}")
        told = json.loads(done.stdout.splitlines()[-1])["results"]
        with np.load(path[2]) as out:
            return [_typed(out[f"out{i}"], result["type"]) for i, result in enumerate(told)]


def _typed(array, type):
    """NumPy keeps what it has no name for, such as bf16, as bytes."""
    if array.dtype.kind != "V":
        return array
    import ml_dtypes
    import numpy as np

    name = type.split("[")[0]
    known = {"bf16": "bfloat16", "f8E4M3FN": "float8_e4m3fn", "f8E5M2": "float8_e5m2"}
    return array.view(np.dtype(getattr(ml_dtypes, known.get(name, name))))
