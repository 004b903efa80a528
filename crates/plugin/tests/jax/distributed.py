import socket, subprocess, sys

with socket.socket() as s:
    s.bind(("127.0.0.1", 0))
    port = s.getsockname()[1]
script = """
import sys, jax, numpy as np
port, count, index, platforms = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
jax.config.update("jax_platforms", platforms or None)
jax.distributed.initialize(f"127.0.0.1:{port}", num_processes=count, process_id=index)
try:
    device = jax.devices("systole")[0]
    x = jax.device_put(np.arange(3.0), device)
    print(platforms, jax.jit(lambda x: x + 1)(x).tolist())
except Exception as e:
    print(type(e).__name__, e)
jax.distributed.shutdown()
"""


def run(count, platforms):
    command = [sys.executable, "-c", script, str(port), str(count)]
    started = [subprocess.Popen([*command, str(i), platforms], stdout=subprocess.PIPE, text=True) for i in range(count)]
    said = [process.communicate(timeout=120)[0] for process in started]
    assert all(process.returncode == 0 for process in started), (said, [process.returncode for process in started])
    return said


assert "[1.0, 2.0, 3.0]" in run(1, "systole,cpu")[0]
# Two processes are an error where `systole` was selected.
for said in run(2, "systole,cpu"):
    assert "jax.distributed with 2 processes is not supported" in said, said
