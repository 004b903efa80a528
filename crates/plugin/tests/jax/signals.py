# Ctrl-C ends a long program within a second; short ones end as usual.
import signal, subprocess, sys, time

# A background shell ignores the signal, and its processes inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

start = """
import jax, jax.numpy as jnp, time, threading, os, signal
x = jnp.ones((300, 300))
long = jax.jit(lambda x: jax.lax.fori_loop(0, 10**7, lambda i, s: s @ x / 300, x)).lower(x).compile()
short = jax.jit(lambda x: x + 1)
"""


def interrupted(script):
    process = subprocess.Popen([sys.executable, "-c", start + script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "go\n", process.communicate(timeout=60)
    time.sleep(1)
    process.send_signal(signal.SIGINT)
    out, wrong = process.communicate(timeout=60)
    return process.returncode, out, wrong


code, _, wrong = interrupted("made = long(x); print('go', flush=True); jax.block_until_ready(made)")
assert code != 0 and ("KeyboardInterrupt" in wrong or "interrupted by Ctrl-C" in wrong), (code, wrong)
# The process may go on; later programs run.
_, out, wrong = interrupted("""
made = [long(x) for _ in range(3)]
print('go', flush=True)
try:
    jax.block_until_ready(made)
except (KeyboardInterrupt, Exception):
    pass
print(float(short(x)[0, 0]))
""")
assert "2.0" in out, (out, wrong)
# A handler of the user's own decides.
code, out, wrong = interrupted("""
pressed = []
signal.signal(signal.SIGINT, lambda *_: pressed.append(1))
print('go', flush=True)
while not pressed:
    time.sleep(0.1)
middle = jax.jit(lambda x: jax.lax.fori_loop(0, 300, lambda i, s: s @ x / 300, x))(x)
print(float(short(middle)[0, 0]))
""")
assert code == 0 and "2.0" in out, (code, out, wrong)

# A forked child gets an error instead of waiting for threads that it lacks; the parent goes on.
x = jnp.ones((400, 400))
f = jax.jit(lambda x: (x @ x).sum())
assert float(f(x)) == 400.0**3
import warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    child = os.fork()
if child == 0:
    signal.alarm(60)
    try:
        f(x).block_until_ready()
        os._exit(3)
    except Exception as e:
        os._exit(0 if "forked child" in str(e) else 4)
_, status = os.waitpid(child, 0)
assert os.WIFEXITED(status) and os.WEXITSTATUS(status) == 0, status
assert float(f(x)) == 400.0**3

# The exit of a child's interpreter neither waits for threads that it lacks nor crashes, also when several threads ran programs.
many = jax.jit(lambda x: jax.lax.fori_loop(0, 3, lambda i, s: jnp.tanh(s @ x), x))
stopped = threading.Event()


def work():
    while not stopped.is_set():
        float(many(x)[0, 0])


threads = [threading.Thread(target=work) for _ in range(3)]
for thread in threads:
    thread.start()
exits = []
for _ in range(4):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        child = os.fork()
    if child == 0:
        signal.alarm(60)
        sys.exit(5)
    exits.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
stopped.set()
for thread in threads:
    thread.join()
assert exits == [5] * 4, exits
