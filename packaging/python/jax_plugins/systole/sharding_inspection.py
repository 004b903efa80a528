"""`jax.debug.inspect_array_sharding` and `visualize_array_sharding` in programs for several devices.

The rule writes a custom call with the id of a function. When the plugin compiles the program, it calls the function with the sharding
that the program states for the array, or that follows from its arguments and constraints.
"""

import ctypes

from . import callbacks

TARGET = "systole_inspect_sharding"


def register(platform, library):
    """Lowers `inspect_sharding` for `platform`."""
    from jax._src import debugging
    from jax._src.interpreters import mlir

    usual = debugging._inspect_sharding_lowering_rule

    def lower(ctx, value, *, callback):
        # A program on one device needs no compiler.
        if getattr(ctx.module_context.axis_context, "num_devices", None) == 1:
            return usual(ctx, value, callback=callback)
        if not is_supported():
            what = "supports inspect_array_sharding in jit on several devices only with Shardy; use x.sharding outside"
            raise NotImplementedError(f"the platform `{platform}` {what}")
        emit(ctx, value, callbacks.add(ctx, Inspection(*devices_of(ctx, debugging), callback), library))
        return []

    mlir.register_lowering(debugging.inspect_sharding_p, lower, platform=platform)


def is_supported():
    """Whether shardings can be inspected: with Shardy, and the functions of JAX 0.7 and newer."""
    import jax
    from jax._src import debugging
    from jax._src.lib import xla_client

    needs = ["parse_flatten_op_sharding", "sharding_impls", "mesh_lib"]
    is_known = hasattr(xla_client.HloSharding, "from_string") and all(hasattr(debugging, name) for name in needs)
    return is_known and bool(getattr(jax.config, "jax_use_shardy_partitioner", False))


def emit(ctx, value, id):
    """Writes a call that reports the sharding of `value` to a function."""
    from jax._src.interpreters import mlir

    mlir.custom_call(
        TARGET,
        result_types=[value.type],
        operands=[value],
        backend_config=f"{callbacks.SESSION} {id}",
        has_side_effect=True,
        api_version=1,
    )


def devices_of(ctx, debugging):
    """The mesh and the devices of the program that is lowered, as JAX's own rule finds them."""
    import numpy as np

    context, mesh = ctx.module_context.axis_context, debugging.mesh_lib.thread_resources.env.physical_mesh
    if isinstance(context, debugging.sharding_impls.SPMDAxisContext):
        return context.mesh, context.mesh._flat_devices_tuple
    devices, abstract = context.device_assignment, getattr(context, "abstract_mesh", None)
    if abstract is not None:
        mesh = debugging.mesh_lib.Mesh(np.array(devices).reshape(abstract.axis_sizes), abstract.axis_names)
    return mesh, devices


class Inspection:
    """Calls a function with the sharding whose text is the only operand."""

    def __init__(self, mesh, devices, function):
        self.mesh, self.devices, self.function = mesh, devices, function

    def __call__(self, operands, results):
        from jax._src import debugging
        from jax._src.lib import xla_client

        sharding = xla_client.HloSharding.from_string(ctypes.string_at(operands[0]).decode())
        if self.mesh.empty:
            return self.function(debugging.sharding_impls.GSPMDSharding(self.devices, sharding))
        spec = debugging.P() if sharding.is_manual() else debugging.parse_flatten_op_sharding(sharding, self.mesh)[0]
        self.function(debugging.NamedSharding(self.mesh, spec))
