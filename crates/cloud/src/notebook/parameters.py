# What may be changed. Nothing of Systole is published yet: SOURCE is the address, or the path here, of what you built from a checkout,
# the wheel (packaging/python/build writes dist/systole_jax-….whl) or an archive (packaging/release) with the program in it.
SOURCE = ''
DEVICE = 'auto'  # the best that is there; or tpu, cuda, xla, cpu
