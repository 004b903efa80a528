compiled = jax.jit(lambda x: x @ x).lower(jnp.ones((8, 8))).compile()
# Before the compilation, JAX's own count.
assert jax.jit(lambda x: x @ x).lower(jnp.ones((8, 8))).cost_analysis()['flops'] == 1024
cost = compiled.cost_analysis()
assert cost['flops'] == 1024 and cost['bytes accessed'] == 768, cost
memory = compiled.memory_analysis()
assert memory.argument_size_in_bytes == 256 and memory.output_size_in_bytes == 256, memory
# Fields that the plugin does not set are 0, not what the caller's memory held.
assert all(getattr(memory, k) == 0 for k in dir(memory) if k.startswith('host_') and k.endswith('bytes')), memory
assert memory.generated_code_size_in_bytes == 0 and memory.alias_size_in_bytes == 0, memory
assert 'HloModule' in compiled.as_text()
x = jnp.ones((1000,))
stats = jax.devices()[0].memory_stats()
assert stats['bytes_in_use'] >= 4000 and stats['peak_bytes_in_use'] >= stats['bytes_in_use'], stats
# The devices share the memory of the machine.
assert 0 < stats['bytes_reservable_limit'] <= stats['bytes_limit'], stats
del x
assert jax.devices()[0].memory_stats()['bytes_in_use'] <= stats['bytes_in_use'] - 4000
assert str(jnp.ones((2, 3)).format.layout).startswith('Layout(major_to_minor=(0, 1)')

# Settings without effect are named once, where the platform was selected.
import subprocess, sys


def warned(platforms, **environment):
    script = "import jax; jax.devices('systole'); jax.devices()"
    environment = dict(os.environ, JAX_PLATFORMS=platforms, **environment)
    out = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True)
    assert out.returncode == 0, out.stderr
    return [line for line in out.stderr.splitlines() if "no effect on the platform systole" in line]


flags = "--xla_force_host_platform_device_count=2 --xla_cpu_enable_fast_math=true"
[line] = warned("systole,cpu", XLA_FLAGS=flags, JAX_DISABLE_MOST_OPTIMIZATIONS="1")
for name in ["--xla_force_host_platform_device_count", "--xla_cpu_enable_fast_math", "jax_disable_most_optimizations", "SYSTOLE_DEVICES"]:
    assert name in line, line
assert not warned("", XLA_FLAGS=flags) and not warned("systole,cpu", XLA_FLAGS="")

# JAX's persistent cache tells programs for different devices apart by the topology's fingerprint.
from jax._src.lib import xla_client
fingerprint = lambda: xla_client.get_topology_for_devices(jax.devices()).fingerprint()
assert fingerprint() == fingerprint() != 0
