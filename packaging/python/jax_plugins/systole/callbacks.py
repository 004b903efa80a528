"""Python callbacks: `jax.debug.print`, `jax.debug.callback`, `jax.pure_callback`, `io_callback` and `checkify`.

JAX's lowering rules call `emit_python_callback`, which rejects platforms that it does not know. Here it writes a custom call that names
the function by an id, and the plugin calls `_call` with the id and the addresses of operands and results, from any thread.
Everything that differs between releases of JAX is in `register`.
"""

import contextlib
import ctypes
import itertools
import os
import threading
import traceback
import weakref

TARGET = "systole_python_callback"
# Distinguishes the functions of this process from those of one that wrote a cached program.
SESSION = int.from_bytes(os.urandom(7), "little")

_functions = {}
_ids = itertools.count()
# Ids that no program of JAX needs any more; the plugin may still hold a program that calls them.
_released = []
# Text of the last exception of each thread. A thread that Python did not start has no other memory between calls.
_errors = {}
_lock = threading.Lock()
_library = None


def register(platform, library):
    """Makes the callbacks of `platform` use the plugin in the file `library`."""
    from jax._src import callback as callbacks
    from jax._src import checkify, debugging
    from jax._src.interpreters import mlir

    # JAX 0.4 defines the function in `mlir`.
    home = callbacks if hasattr(callbacks, "emit_python_callback") else mlir
    usual = home.emit_python_callback
    if getattr(usual, "systole", False):
        return

    def emit_python_callback(ctx, callback, token, operands, operand_avals, result_avals, **options):
        if tuple(ctx.module_context.platforms) != (platform,):
            return usual(ctx, callback, token, operands, operand_avals, result_avals, **options)
        if options.get("partitioned") and _device(ctx, options.get("sharding")) != "all":
            raise NotImplementedError(f"the platform `{platform}` does not support partitioned callbacks; call it in jax.shard_map")
        id = add(ctx, _Function(callback, operand_avals, result_avals), library)
        tokens = [] if token is None else [token]
        call = mlir.custom_call(
            TARGET,
            result_types=[*(token.type for token in tokens), *(ir_type(ctx, aval) for aval in result_avals)],
            operands=[*tokens, *operands],
            backend_config=f"{SESSION} {id} {_device(ctx, options.get('sharding'))}",
            has_side_effect=options.get("has_side_effect", False),
            api_version=1,
        )
        if options.get("sharding") is not None:
            _set_sharding(ctx, call, options["sharding"], is_ordered=bool(tokens))
        return list(call.results)[len(tokens):], call.results[0] if tokens else None, None

    emit_python_callback.systole = True
    home.emit_python_callback = emit_python_callback
    # The name under which other modules and libraries import it.
    from jax.interpreters import mlir as public

    if hasattr(public, "emit_python_callback"):
        public.emit_python_callback = emit_python_callback
    # The rules of the other primitives are for all platforms.
    rules = {"debug_callback_p": "debug_callback_lowering", "debug_print_p": "debug_print_lowering_rule"}
    for primitive, rule in rules.items():
        if hasattr(debugging, primitive):
            mlir.register_lowering(getattr(debugging, primitive), getattr(debugging, rule), platform=platform)
    mlir.register_lowering(checkify.check_p, checkify.check_lowering_rule, platform=platform)


def _device(ctx, sharding):
    """`all` if each device calls the function, or the number of the one that does."""
    from jax._src import sharding_impls

    if not isinstance(ctx.module_context.axis_context, sharding_impls.ShardingContext):
        return "all"
    # Shardy's and GSPMD's form of a sharding on one device.
    if hasattr(sharding, "shardings"):
        devices = sharding.shardings[0].logical_device_ids
    else:
        devices = getattr(sharding, "tile_assignment_devices", None)
    return devices[0] if devices else 0


def _set_sharding(ctx, call, sharding, is_ordered):
    """Writes the sharding that JAX writes. Only `backend_config` determines which devices call."""
    from jax._src.interpreters import mlir

    if is_ordered and len(call.results) > 1 and hasattr(sharding, "shardings"):
        # One for the token.
        devices = sharding.shardings[0].logical_device_ids
        token = type(sharding.shardings[0])(mesh_shape=(), dim_shardings=(), logical_device_ids=devices)
        sharding = type(sharding)((token, *sharding.shardings))
    mlir.set_sharding(*_module(ctx, mlir.set_sharding, 2), call, sharding)


def ir_type(ctx, aval):
    """The MLIR type of an array of JAX."""
    from jax._src.interpreters import mlir

    return mlir.aval_to_ir_type(*_module(ctx, mlir.aval_to_ir_type, 1), aval)


def _module(ctx, function, parameters):
    """The additional first argument of newer releases, in which the function has more parameters."""
    import inspect

    return [ctx.module_context] if len(inspect.signature(function).parameters) > parameters else []


class _Lifetime:
    """JAX keeps it as long as a program that calls the function."""

    def __init__(self, id):
        weakref.finalize(self, _released.append, id).atexit = False


def add(ctx, function, library):
    """Stores a function on the addresses of operands and results, for the program that is lowered, and returns its id."""
    id = _add(function, library)
    ctx.module_context.add_keepalive(_Lifetime(id))
    return id


def _add(function, library):
    """Stores a function and returns its id; forgets those that no program calls any more."""
    global _library
    with _lock:
        if _library is None:
            plugin = ctypes.CDLL(library)
            plugin.systole_python_callback_uses.argtypes = [ctypes.c_uint64]
            plugin.systole_python_callback_uses.restype = ctypes.c_uint64
            plugin.systole_set_python_callback(_call, ctypes.c_uint64(SESSION))
            _library = plugin
        for id in [_released.pop() for _ in range(len(_released))]:
            if _library.systole_python_callback_uses(id):
                _released.append(id)
            else:
                _functions.pop(id, None)
        id = next(_ids)
        _functions[id] = function
        return id


@ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_uint64, ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(ctypes.c_void_p))
def _call(id, operands, results):
    """Calls a function; returns 0, or the address of the text of an exception."""
    try:
        _functions[id](operands, results)
        return 0
    except BaseException:
        text = ctypes.create_string_buffer(traceback.format_exc().replace("\0", "").encode("utf-8", "replace"))
        # The text is alive until the thread's next call.
        _errors[threading.get_ident()] = text
        return ctypes.addressof(text)


@contextlib.contextmanager
def _without_mesh():
    """The mesh that the calling thread set (`with jax.set_mesh(…)`) is of the program's devices: it does not hold in a callback, whose arrays
    are on JAX's CPU backend."""
    from jax._src import config

    unset = getattr(getattr(config, "config_ext", None), "unset", None)
    names = ("device_context", "abstract_mesh_context_manager")
    states = [getattr(config, name, None) for name in names if unset is not None]
    states = [state for state in states if hasattr(state, "swap_local")]
    before = [state.swap_local(None) for state in states]
    try:
        for state in states:
            state.set_local(unset)
        yield
    finally:
        for state, value in zip(states, before):
            state.set_local(value)


class _Function:
    """A Python function on arrays, with the types of its operands and results."""

    def __init__(self, function, operands, results):
        self.function = function
        self.operands = [HeldArray(aval) for aval in operands]
        self.results = [HeldArray(aval) for aval in results]

    def __call__(self, operands, results):
        import numpy as np
        from jax._src import dtypes

        addresses = iter(range(1 << 30))
        with _without_mesh():
            values = self.function(*[array.read(operands, addresses) for array in self.operands])
        if len(values) != len(self.results):
            what = "Mismatched number of outputs from callback. Expected: {}, Actual: {}"
            raise RuntimeError(what.format(len(self.results), len(values)))
        addresses = iter(range(1 << 30))
        for i, (value, array) in enumerate(zip(values, self.results)):
            value = np.asarray(value)
            value = value.astype(dtypes.canonicalize_dtype(value.dtype), copy=False)
            for what, expected, actual in [("shape", array.shape, value.shape), ("dtype", array.dtype, value.dtype)]:
                if expected != actual:
                    raise RuntimeError(
                        f"Incorrect output {what} for return value #{i}: Expected: {expected}, Actual: {actual}")
            array.write(value, results, addresses)


class HeldArray:
    """How the plugin holds an array: a complex one as two, and elements of less than a byte or float8 in wider types."""

    def __init__(self, aval):
        import numpy as np
        from jax._src import core, dtypes

        aval = core.physical_aval(aval)
        self.shape = tuple(aval.shape)
        self.dtype = np.dtype(bool) if aval.dtype == dtypes.float0 else np.dtype(aval.dtype)
        self.is_complex = self.dtype.kind == "c"
        self.held = self.dtype
        if self.is_complex:
            self.held = np.empty(0, self.dtype).real.dtype
        elif self.dtype.name in ("int2", "int4", "uint2", "uint4"):
            self.held = np.dtype(np.uint8 if self.dtype.name[0] == "u" else np.int8)
        elif self.dtype.name.startswith(("float4_", "float6_", "float8_")):
            self.held = np.dtype(np.float32)
        self.is_direct = self.held == self.dtype and not self.is_complex
        self.bytes = int(np.prod(self.shape, dtype=np.int64)) * self.held.itemsize

    def read(self, pointers, addresses):
        """A copy, because the plugin reuses the memory."""
        import numpy as np

        def part():
            value = np.empty(self.shape, self.held)
            at = next(addresses)
            if self.bytes:
                ctypes.memmove(value.ctypes.data, pointers[at], self.bytes)
            return value

        if self.is_complex:
            value = np.empty(self.shape, self.dtype)
            value.real, value.imag = part(), part()
            return value
        return part().astype(self.dtype, copy=False)

    def write(self, value, pointers, addresses):
        import numpy as np

        for part in [value.real, value.imag] if self.is_complex else [value]:
            part = np.ascontiguousarray(part.astype(self.held, copy=False))
            at = next(addresses)
            if self.bytes:
                ctypes.memmove(pointers[at], part.ctypes.data, self.bytes)
