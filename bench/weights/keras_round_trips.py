"""What torch_round_trips.py left in SCRATCH, read by Keras: python keras_round_trips.py SCRATCH"""

import os
import pathlib
import sys

os.environ.setdefault("KERAS_BACKEND", "jax")
import keras, numpy as np
from safetensors.numpy import load_file
T = sys.argv[1] + "/"
F = str(pathlib.Path(__file__).parents[2] / "fixtures/weights") + "/"
e=load_file(F + "keras_expected.safetensors")
for n in ("cnn","branches"):
    try:
        m=keras.models.load_model(T + f"{n}_out.keras"); print(n, "keras file", np.abs(np.asarray(m(e[n+"/x"]))-e[n+"/y"]).max())
    except Exception as x: print(n, "keras", repr(x)[:600])
    try:
        m=keras.models.load_model(F + f"{n}.keras")
        for w in m.weights:
            if "seed" not in w.path: w.assign(w*0)
        m.load_weights(T + f"{n}_out.weights.h5"); print(n, "weights.h5", np.abs(np.asarray(m(e[n+"/x"]))-e[n+"/y"]).max())
    except Exception as x: print(n, "weights", repr(x)[:600])
