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

    # JAX's own CPU has priority 0.
    xla_bridge.register_plugin(NAME, priority=-100, library_path=LIBRARY, options=None)
    _give_memory_away()
    _keep_programs()
    _decompose()


def _give_memory_away():
    """`donate_argnums` is honoured on the platforms of a list."""
    from jax._src.interpreters import mlir

    platforms = getattr(mlir, "_platforms_with_donation", None)
    if isinstance(platforms, list) and NAME not in platforms:
        platforms.append(NAME)


def _decompose():
    """Eigenvalues of Hermitian matrices, and what JAX writes by them (singular values, norms, ranks), have no rule for platforms
    that JAX does not know; the call is that of its rule for TPUs."""
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

    mlir.register_lowering(linalg.eigh_p, eigh, platform=NAME)


def _keep_programs():
    """The cache of compiled programs (`jax_compilation_cache_dir`) asks a fixed list of platforms, in a function of its own."""
    import functools

    from jax._src import compilation_cache

    asked = getattr(compilation_cache, "_is_cache_used", None) or getattr(compilation_cache, "is_cache_used", None)
    if asked is None or getattr(asked, "systole", False):
        return

    @functools.wraps(asked)
    def is_cache_used(backend):
        if getattr(backend, "platform", None) != NAME:
            return asked(backend)
        return asked(_AsCpu(backend))

    is_cache_used.systole = True
    setattr(compilation_cache, asked.__name__, is_cache_used)


class _AsCpu:
    """A client under the name of a platform whose programs are kept."""

    def __init__(self, backend):
        self._backend = backend

    platform = "cpu"

    def __getattr__(self, name):
        return getattr(self._backend, name)
