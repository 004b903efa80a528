key = jax.random.key(1)
assert jax.random.key_data(jax.random.split(key)).tolist() == [[507451445, 1853169794], [1948878966, 4237131848]]
x = jax.random.normal(jax.random.key(3), (1000,))
assert abs(float(x.mean())) < 0.1 and abs(float(x.std()) - 1) < 0.1
assert bool((x == jax.random.normal(jax.random.key(3), (1000,))).all())
u = jax.random.uniform(jax.random.key(0), (3,))
close(u, [0.947667, 0.9785799, 0.33229148])
