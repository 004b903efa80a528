# Settings. Systole is not published yet: SOURCE is the URL or path of a build from a checkout, either the wheel
# (packaging/release writes dist/systole_jax-….whl) or an archive with the program (packaging/release).
SOURCE = ''
DEVICE = 'auto'  # auto: the best available; or tpu, cuda, xla, cpu
