"""Registers Systole's CPU engine with JAX, as the platform `systole`.

It stands below JAX's own CPU: nothing changes until `JAX_PLATFORMS=systole` or `jax.config.update("jax_default_device", …)`
asks for it. `SYSTOLE_DEVICES=8` shows the machine as eight devices.
"""

import os

NAME = "systole"
LIBRARY = os.path.join(os.path.dirname(__file__), "libsystole_plugin.so")


def initialize():
    """Called by JAX when it looks for its platforms; loads nothing yet."""
    from jax._src import xla_bridge

    # Old releases of JAX refuse a plugin of a newer header unless they are told that it fits: structures carry their sizes.
    os.environ.setdefault("ENABLE_PJRT_COMPATIBILITY", "1")
    # JAX's own CPU has priority 0.
    xla_bridge.register_plugin(NAME, priority=-100, library_path=LIBRARY, options=None)
    _give_memory_away()
    _keep_programs()
    _refuse_callbacks()
    _decompose()


def _give_memory_away():
    """`donate_argnums` is honoured on the platforms of a list."""
    from jax._src.interpreters import mlir

    platforms = getattr(mlir, "_platforms_with_donation", None)
    if isinstance(platforms, list) and NAME not in platforms:
        platforms.append(NAME)


def _decompose():
    """Eigenvalues of Hermitian matrices, and what JAX writes by them (singular values, norms, ranks), have no rule for platforms
    that JAX does not know, and JAX's own LU for such platforms fails under `shard_map`; the calls are those of its rules for TPUs."""
    import inspect

    from jax._src.interpreters import mlir
    from jax._src.lax import linalg

    def eigh(ctx, operand, *, lower, sort_eigenvalues=True, subset_by_index=None, **_):
        vectors, values = ctx.avals_out
        n = ctx.avals_in[0].shape[-1]
        if subset_by_index not in (None, (0, n)):
            raise NotImplementedError("systole computes all eigenvalues: subset_by_index is not supported")
        types = [mlir.aval_to_ir_type(*context(ctx), aval) for aval in (vectors, values)]
        call = mlir.custom_call(
            "Eigh",
            result_types=types,
            operands=[operand],
            backend_config=f"{int(lower)},{int(sort_eigenvalues)},100,1e-6",
            api_version=1,
        )
        return call.results

    def context(ctx):
        """Newer releases ask for the module too."""
        return [ctx.module_context] if len(inspect.signature(mlir.aval_to_ir_type).parameters) > 1 else []

    def lu(ctx, operand):
        types = [mlir.aval_to_ir_type(*context(ctx), aval) for aval in ctx.avals_out]
        return mlir.custom_call("LuDecomposition", result_types=types, operands=[operand]).results

    mlir.register_lowering(linalg.eigh_p, eigh, platform=NAME)
    mlir.register_lowering(linalg.lu_p, lu, platform=NAME)


def _keep_programs():
    """The cache of compiled programs (`jax_compilation_cache_dir`) asks a fixed list of platforms, in a function of its own."""
    import functools

    from jax._src import compilation_cache, compiler

    # JAX 0.4.30 asks where it compiles.
    home = compilation_cache if hasattr(compilation_cache, "is_cache_used") else compiler
    name = "is_cache_used" if home is compilation_cache else "compile_or_get_cached"
    asked = getattr(home, name, None)
    if asked is None or getattr(asked, "systole", False):
        return

    @functools.wraps(asked)
    def wrapped(backend, *args, **kwargs):
        return asked(_AsCpu(backend) if getattr(backend, "platform", None) == NAME else backend, *args, **kwargs)

    wrapped.systole = True
    setattr(home, name, wrapped)


CALLBACKS = {
    "callback": ["pure_callback_p", "io_callback_p"],
    "debugging": ["debug_callback_p", "debug_print_p"],
    "buffer_callback": ["buffer_callback_p"],
}


def _refuse_callbacks():
    """JAX's rules for calls of Python are for its own platforms, and would fail without saying why."""
    import importlib

    from jax._src.interpreters import mlir

    for module, primitives in CALLBACKS.items():
        try:
            module = importlib.import_module("jax._src." + module)
        except ImportError:
            continue
        for primitive in filter(None, (getattr(module, name, None) for name in primitives)):
            mlir.register_lowering(primitive, _refuse(primitive), platform=NAME)


def _refuse(primitive):
    def rule(ctx, *args, **params):
        raise NotImplementedError(
            f"Python cannot be called from a compiled program on the platform `{NAME}` ({primitive}: jax.debug.print, "
            "jax.debug.callback, jax.pure_callback, jax.experimental.io_callback). Return the value from the jitted function and use "
            "it outside; or, with JAX_PLATFORMS=systole,cpu, look at one run without jit (`with jax.disable_jit():`) or put the "
            'function on JAX\'s own CPU (`jax.device_put(x, jax.devices("cpu")[0])`).')

    return rule


class _AsCpu:
    """A client under the name of a platform whose programs are kept."""

    def __init__(self, backend):
        self._backend = backend

    platform = "cpu"

    def __getattr__(self, name):
        return getattr(self._backend, name)
