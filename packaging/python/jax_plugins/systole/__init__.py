"""Registers Systole's CPU engine with JAX, as the platform `systole`.

It has lower priority than JAX's CPU backend: nothing changes until `JAX_PLATFORMS=systole,cpu` or
`jax.config.update("jax_default_device", …)` selects it. `SYSTOLE_DEVICES=8` shows the machine as eight devices.
"""

import os
import threading

from . import buffers, callbacks, ffi, partitioning_rules, sharding_inspection

NAME = "systole"
LIBRARY = os.path.join(os.path.dirname(__file__), "libsystole_plugin.so")


def initialize():
    """Called by JAX when it looks for its platforms; loads nothing yet."""
    from jax._src import xla_bridge

    # Old releases of JAX refuse a plugin of a newer header unless they are told that it fits: structures carry their sizes.
    os.environ.setdefault("ENABLE_PJRT_COMPATIBILITY", "1")
    # JAX's own CPU has priority 0.
    xla_bridge.register_plugin(NAME, priority=-100, library_path=LIBRARY, options=_options())
    _name_settings_without_effect()
    _keep_cpu()
    _give_memory_away()
    _keep_programs()
    _count_operations()
    callbacks.register(NAME, LIBRARY)
    ffi.register(NAME, LIBRARY)
    _watch_interrupts()
    _keep_clients_after_fork()
    sharding_inspection.register(NAME, LIBRARY)
    buffers.register(NAME, LIBRARY)
    partitioning_rules.register(NAME, LIBRARY)
    _run_exported()
    _decompose()
    _exchange()


def _watch_interrupts():
    """Ctrl-C ends long programs, unless the user has a handler of their own."""
    import ctypes
    import signal

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        ctypes.CDLL(LIBRARY).systole_watch_interrupts()


def _keep_clients_after_fork():
    """A forked child lacks JAX's threads: the destructors of their owners, at its exit, would wait for them or crash."""
    import ctypes
    from jax._src import xla_bridge
    from jax._src.interpreters import mlir

    increase = ctypes.pythonapi.Py_IncRef
    increase.argtypes = [ctypes.py_object]

    def keep():
        pool = getattr(mlir, "global_thread_pool", None)
        for owner in [pool, *getattr(xla_bridge, "_backends", {}).values()]:
            # Never released, so that the child does not destroy it.
            increase(owner)

    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=keep)


# Settings of XLA's compilers and of JAX's own CPU backend, with their usual values.
_OTHERS_SETTINGS = {
    "jax_num_cpu_devices": -1,
    "jax_cpu_enable_async_dispatch": True,
    "jax_disable_most_optimizations": False,
    "jax_compiler_enable_remat_pass": True,
    "jax_exec_time_optimization_effort": 0.0,
    "jax_memory_fitting_effort": 0.0,
    "jax_enable_pgle": False,
}


def _name_settings_without_effect():
    """Logs once which of the user's settings do nothing here, if the user selected the platform."""
    import logging

    import jax

    if NAME not in (jax.config.jax_platforms or "").split(","):
        return

    def has_other(name, usual):
        # Some settings are not attributes, and others not in every release.
        try:
            value = getattr(jax.config, name) if hasattr(jax.config, name) else jax.config.read(name)
        except (AttributeError, LookupError):
            return False
        return value != usual

    flags = [flag.split("=")[0] for flag in os.environ.get("XLA_FLAGS", "").split()]
    found = ["XLA_FLAGS " + ", ".join(flags)] if flags else []
    found += [name for name, usual in _OTHERS_SETTINGS.items() if has_other(name, usual)]
    if found:
        count = any("device_count" in flag for flag in flags) or "jax_num_cpu_devices" in found
        advice = "; set SYSTOLE_DEVICES for several devices" if count else ""
        logging.getLogger(__name__).warning("no effect on the platform systole: %s%s", "; ".join(found), advice)


def _options():
    """The processes of `jax.distributed.initialize` meet if the user selected the platform; otherwise it must not stop others."""
    import jax
    from jax._src import distributed

    is_selected = NAME in (jax.config.jax_platforms or "").split(",")
    state = distributed.global_state
    if not is_selected or state.client is None:
        return None
    # Process 0 listens on the host of JAX's own coordinator.
    address = getattr(state, "coordinator_address", None) or "127.0.0.1:0"
    return {"jax_host": address.rsplit(":", 1)[0].strip("[]")}


# Whether the user selected `systole` without JAX's CPU backend.
_is_alone = False


def _keep_cpu():
    """With `JAX_PLATFORMS=systole`, JAX's CPU backend stays available: callbacks get arrays on it, and so does `backend="cpu"`."""
    import jax

    global _is_alone
    if jax.config.jax_platforms == NAME:
        _is_alone = True
        jax.config.update("jax_platforms", NAME + ",cpu")


def _give_memory_away():
    """`donate_argnums` is honoured on the platforms of a list."""
    from jax._src.interpreters import mlir

    platforms = getattr(mlir, "_platforms_with_donation", None)
    if isinstance(platforms, list) and NAME not in platforms:
        platforms.append(NAME)


def _decompose():
    """Linear algebra: JAX's rules for its CPU, whose calls of LAPACK (`lapack_dgeqrf_ffi`) the plugin executes by name."""
    import jax
    from jax._src.interpreters import mlir
    from jax._src.lax import linalg

    # Before 0.5, JAX called some routines in another way.
    if tuple(int(part) for part in jax.__version__.split(".")[:2]) < (0, 5):
        return _decompose_old()
    rules = mlir._platform_specific_lowerings["cpu"]
    for name, primitive in vars(linalg).items():
        if name.endswith("_p") and primitive in rules:
            # Newer releases keep a rule in an entry.
            rule = getattr(rules[primitive], "rule", rules[primitive])
            usual = mlir._lowerings.get(primitive)
            mlir.register_lowering(primitive, _lapack(rule, getattr(usual, "rule", usual)), platform=NAME)
    if hasattr(linalg, "lu_pivots_to_permutation_p"):
        primitive = linalg.lu_pivots_to_permutation_p
        mlir.register_lowering(primitive, _permutation(mlir._lowerings.get(primitive)), platform=NAME)
    own = mlir._platform_specific_lowerings
    own[NAME] = _Rules(own[NAME])


class _Rules(dict):
    """Rules of the platform. For a sparse solve, which JAX defines in a module that programs may import later, it is the CPU's
    rule: a Python callback."""

    def __contains__(self, primitive):
        return super().__contains__(primitive) or primitive.name == "spsolve"

    def __missing__(self, primitive):
        from jax._src.interpreters import mlir

        return mlir._platform_specific_lowerings["cpu"][primitive]


def _lapack(rule, usual):
    """A rule that calls LAPACK for its element types, and for others does what JAX does on any platform."""

    def lower(ctx, *operands, **params):
        is_lapack = usual is None or ctx.avals_in[0].dtype.name in ("float32", "float64", "complex64", "complex128")
        return (rule if is_lapack else usual)(ctx, *operands, **params)

    return lower


def _permutation(usual):
    """A rule with the custom call of JAX's rule for GPUs: on CPUs it writes a loop, `usual`."""

    def lower(ctx, pivots, **params):
        from jax._src.interpreters import mlir

        is_known = all(isinstance(size, int) for aval in (*ctx.avals_in, *ctx.avals_out) for size in aval.shape)
        if usual is not None and not is_known:
            # Sizes of an exported program that are determined by its arguments.
            return getattr(usual, "rule", usual)(ctx, pivots, **params)
        types = [callbacks.ir_type(ctx, aval) for aval in ctx.avals_out]
        return mlir.custom_call("cu_lu_pivots_to_permutation", result_types=types, operands=[pivots], backend_config={}).results

    return lower


def _decompose_old():
    """Eigenvalues of Hermitian matrices, and what JAX writes by them (singular values, norms, ranks), have no rule for platforms
    that JAX does not know, and JAX's own LU for such platforms fails under `shard_map`; the calls are those of its rules for TPUs."""
    from jax._src.interpreters import mlir
    from jax._src.lax import linalg

    def eigh(ctx, operand, *, lower, sort_eigenvalues=True, subset_by_index=None, **_):
        vectors, values = ctx.avals_out
        n = ctx.avals_in[0].shape[-1]
        if subset_by_index not in (None, (0, n)):
            raise NotImplementedError("systole computes all eigenvalues: subset_by_index is not supported")
        types = [callbacks.ir_type(ctx, aval) for aval in (vectors, values)]
        call = mlir.custom_call(
            "Eigh",
            result_types=types,
            operands=[operand],
            backend_config=f"{int(lower)},{int(sort_eigenvalues)},100,1e-6",
            api_version=1,
        )
        return call.results

    def lu(ctx, operand):
        types = [callbacks.ir_type(ctx, aval) for aval in ctx.avals_out]
        return mlir.custom_call("LuDecomposition", result_types=types, operands=[operand]).results

    mlir.register_lowering(linalg.eigh_p, eigh, platform=NAME)
    mlir.register_lowering(linalg.lu_p, lu, platform=NAME)


def _exchange():
    """DLPack: JAX knows by its platforms' names which of them keep their arrays where NumPy and PyTorch do."""
    from jax._src import array, dlpack

    home = getattr(array, "ArrayImpl", None)
    # JAX 0.4.30 has some of them.
    if not all(hasattr(home, name) for name in ("__dlpack__", "__dlpack_device__", "platform")):
        return
    lend, told = home.__dlpack__, home.__dlpack_device__
    if getattr(lend, "systole", False):
        return

    def __dlpack__(self, *, stream=None, max_version=None, dl_device=None, copy=None):
        if self.platform() != NAME:
            given = {"stream": stream, "max_version": max_version, "dl_device": dl_device, "copy": copy}
            return lend(self, **{name: value for name, value in given.items() if value is not None})
        if stream is not None:
            raise BufferError("a CPU has no streams: stream must be None")
        if dl_device is not None and int(dl_device[0]) != CPU:
            raise BufferError(f"the array is on the CPU, not on a device of DLPack's type {int(dl_device[0])}")
        if len(self.sharding.device_set) > 1:
            raise BufferError("an array on several devices cannot be given away by DLPack")
        return _lent(self, max_version, copy)

    def __dlpack_device__(self):
        if self.platform() != NAME:
            return told(self)
        # An enumeration of JAX's, where it has one.
        kind = getattr(dlpack, "DLDeviceType", None)
        return (kind.kDLCPU if kind else CPU), 0

    __dlpack__.systole = True
    home.__dlpack__, home.__dlpack_device__ = __dlpack__, __dlpack_device__
    # Imported arrays go to the platform `cpu`, unless only `systole` was selected.
    platforms = getattr(dlpack, "_DL_DEVICE_TO_PLATFORM", None)
    if isinstance(platforms, dict):
        dlpack._DL_DEVICE_TO_PLATFORM = _Platforms(platforms)
        _import_in_place(dlpack)


# `here`: whether the current import by DLPack goes to the platform, where the caller decides it.
_imports = threading.local()


def _import_in_place(dlpack):
    """`jax.dlpack.from_dlpack(x, device=…)` with a device of the platform reads the memory in place, instead of by JAX's CPU backend."""
    import functools

    import jax

    usual = dlpack.from_dlpack

    def imported(here, *args):
        _imports.here = here
        try:
            return usual(*args)
        finally:
            _imports.here = None

    @functools.wraps(usual)
    def from_dlpack(external_array, device=None, copy=None):
        devices = getattr(device, "device_set", None) or {device}
        if not (_is_alone if device is None else all(getattr(d, "platform", None) == NAME for d in devices)):
            return usual(external_array, device, copy)
        if not copy:
            try:
                return imported(True, external_array, device, copy)
            except Exception as e:
                # Memory that is not aligned: jaxlib wants a copy that it does not make for plugins.
                if copy is False or "HostBufferSemantics" not in str(e):
                    raise
        return jax.device_put(imported(False, external_array), device or jax.devices(NAME)[0])

    dlpack.from_dlpack = from_dlpack
    if getattr(jax.dlpack, "from_dlpack", None) is usual:
        jax.dlpack.from_dlpack = from_dlpack


# kDLCPU and kDLBfloat.
CPU, BFLOAT = 1, 4


class _Platforms(dict):
    """Names of platforms by DLPack's devices."""

    def __getitem__(self, kind):
        name = super().__getitem__(kind)
        here = getattr(_imports, "here", None)
        return NAME if name == "cpu" and (_is_alone if here is None else here) else name


class _Memory:
    """An array's memory, as NumPy sees it; DLPack has no word for what must not be written, before its version 1."""

    def __init__(self, array):
        self._array = array
        self.__array_interface__ = dict(array.__array_interface__, data=(array.__array_interface__["data"][0], False))


def _lent(x, max_version, copy):
    """A capsule of DLPack that keeps an array alive."""
    import ctypes

    import numpy as np

    array = np.asarray(x)
    is_bfloat = array.dtype.name == "bfloat16"
    if is_bfloat:
        # NumPy knows no bfloat16, and gives its bits.
        array = array.view(np.uint16)
    array = array.copy() if copy else np.asarray(_Memory(array))
    new = max_version is not None and tuple(max_version) >= (1, 0) and _takes_versions()
    capsule = array.__dlpack__(max_version=tuple(max_version)) if new else array.__dlpack__()
    if is_bfloat:
        pointer = ctypes.pythonapi.PyCapsule_GetPointer
        pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
        versioned = "dltensor_versioned" in repr(capsule)
        # The tensor stands behind version, context, destructor and flags; its type behind the memory, the device and the rank.
        tensor = pointer(capsule, b"dltensor_versioned" if versioned else b"dltensor") + (32 if versioned else 0)
        ctypes.c_uint8.from_address(tensor + 20).value = BFLOAT
    return capsule


def _takes_versions():
    """NumPy 2.1 and newer say in which version of DLPack they answer."""
    import numpy as np

    return tuple(int(part) for part in np.__version__.split(".")[:2]) >= (2, 1)


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
    put = compilation_cache.put_executable_and_time

    @functools.wraps(put)
    def put_unless_callbacks(*args, **kwargs):
        try:
            return put(*args, **kwargs)
        except Exception as e:
            # Programs with Python callbacks are not cached, like on JAX's CPU backend.
            if "calls Python functions of this process" not in str(e):
                raise

    compilation_cache.put_executable_and_time = put_unless_callbacks


def _count_operations():
    """`jax.jit(f).lower(x).cost_analysis()` counts before it compiles, which JAX offers for its own backends only."""
    import functools

    from jax._src import xla_bridge
    from jax._src.interpreters import pxla
    from jax._src.lib import xla_client

    usual = pxla.MeshComputation.cost_analysis
    try:
        from jax._src.lib import _jax as library
    except ImportError:
        library = xla_client._xla
    count = getattr(library, "hlo_module_cost_analysis", None)
    if count is None or getattr(usual, "systole", False):
        return

    @functools.wraps(usual)
    def cost_analysis(self):
        if getattr(self.compile_args["backend"], "platform", None) != NAME:
            return usual(self)
        return count(xla_bridge.get_backend("cpu"), self.hlo().as_hlo_module())

    cost_analysis.systole = True
    pxla.MeshComputation.cost_analysis = cost_analysis


def _run_exported():
    """Programs that `jax.export` wrote for `cpu` run here too: JAX's rules for its CPU are this platform's, and the plugin
    executes the calls of LAPACK."""
    import dataclasses

    try:
        from jax._src.export import _export
        from jax._src.interpreters import mlir

        primitive, usual = _export.call_exported_p, _export._call_exported_lowering
    except (ImportError, AttributeError):
        return

    def call_exported(ctx, *args, exported, **params):
        platforms = tuple(exported.platforms)
        if NAME in ctx.module_context.platforms and NAME not in platforms and "cpu" in platforms:
            # The index in the list selects the platform inside the program.
            exported = dataclasses.replace(exported, platforms=tuple(NAME if p == "cpu" else p for p in platforms))
        return usual(ctx, *args, exported=exported, **params)

    mlir.register_lowering(primitive, call_exported, platform=NAME)


class _AsCpu:
    """A client under the name of a platform whose programs are kept."""

    def __init__(self, backend):
        self._backend = backend

    platform = "cpu"

    def __getattr__(self, name):
        return getattr(self._backend, name)
