import glob, gzip, json

def step(w, x):
    with jax.named_scope('dense'):
        return jnp.tanh(x @ w).sum()

with tempfile.TemporaryDirectory() as folder:
    w, x = jnp.ones((128, 128)), jnp.ones((64, 128))
    f = jax.jit(step)
    f(w, x).block_until_ready()
    with jax.profiler.trace(folder, create_perfetto_trace=True):
        for _ in range(3):
            f(w, x).block_until_ready()
    [file] = glob.glob(folder + '/**/perfetto_trace.json.gz', recursive=True)
    events = json.loads(gzip.open(file).read())['traceEvents']
    names = {e['pid']: e['args']['name'] for e in events if e.get('name') == 'process_name'}
    device = [e for e in events if e.get('ph') == 'X' and 'Systole:0' in names.get(e['pid'], '')]
    products = [e for e in device if 'dot_general' in e['name']]
    assert len(products) == 3, [e['name'] for e in device]
    assert all(e['dur'] > 0 for e in products)
    # Both clocks begin with the profile: kernels run while Python calls them.
    calls = [e for e in events if e.get('name') == 'PjitFunction(step)']
    first, last = min(e['ts'] for e in calls), max(e['ts'] + e['dur'] for e in calls)
    assert all(first - 5e3 < e['ts'] < last + 5e3 for e in products), (first, last, products)
