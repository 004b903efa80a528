def held():
    with open('/proc/self/statm') as f:
        return int(f.read().split()[1]) * 4096
step = jax.jit(lambda w: w * 0.5 + 1, donate_argnums=0)
w = jnp.zeros(1 << 20)
for i in range(10000):
    w = step(w)
    if i == 1000:
        w.block_until_ready()
        before = held()
w.block_until_ready()
assert held() - before < 64 << 20, held() - before
assert np.asarray(w)[:3].tolist() == [2, 2, 2]
