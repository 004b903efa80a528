"""`jax.experimental.buffer_callback`: Python functions that read operands and write results in place.

JAX calls an FFI handler that is inside jaxlib and has no address that other libraries can get. Here the call is that of the other
Python callbacks, and the function gets buffers with the interface of jaxlib's `Buffer` and `ExecutionContext`.
"""

import ctypes

from . import callbacks


def register(platform, library):
    """Lowers `buffer_callback` for `platform`, in releases of JAX that have it."""
    try:
        from jax._src.buffer_callback import buffer_callback_p
    except ImportError:
        return
    from jax._src.interpreters import mlir

    def lower(ctx, *operands, callback, in_tree, out_tree, has_side_effect, input_output_aliases=(), **_):
        function = _BufferFunction(callback, in_tree, out_tree, ctx.avals_in, ctx.avals_out, input_output_aliases)
        id = callbacks.add(ctx, function, library)
        call = mlir.custom_call(
            callbacks.TARGET,
            result_types=[callbacks.ir_type(ctx, aval) for aval in ctx.avals_out],
            operands=list(operands),
            backend_config=f"{callbacks.SESSION} {id} all",
            has_side_effect=has_side_effect,
            api_version=1,
        )
        return call.results

    mlir.register_lowering(buffer_callback_p, lower, platform=platform)


class _BufferFunction:
    """A function `(context, results, *operands)` on buffers, with their types."""

    def __init__(self, function, in_tree, out_tree, operands, results, aliases):
        self.function, self.in_tree, self.out_tree = function, in_tree, out_tree
        self.operands = [callbacks.HeldArray(aval) for aval in operands]
        self.results = [callbacks.HeldArray(aval) for aval in results]
        self.aliases = dict(aliases)

    def __call__(self, operands, results):
        from jax import tree_util

        addresses = iter(range(1 << 30))
        read = [_array(array, operands, addresses) for array in self.operands]
        addresses = iter(range(1 << 30))
        written = [_array(array, results, addresses) for array in self.results]
        for operand, result in self.aliases.items():
            # One memory, which has the operand's values before the call.
            written[result][...] = read[operand]
            read[operand] = written[result]
        args, kwargs = tree_util.tree_unflatten(self.in_tree, [Buffer(value, False) for value in read])
        out = tree_util.tree_unflatten(self.out_tree, [Buffer(value, True) for value in written])
        if self.function(ExecutionContext(), out, *args, **kwargs) is not None:
            raise ValueError("buffer_callback callback must not return any values.")
        addresses = iter(range(1 << 30))
        for array, value in zip(self.results, written):
            if array.is_direct:
                next(addresses)
            else:
                array.write(value, results, addresses)


def _array(array, pointers, addresses):
    """The memory of an operand or a result as a NumPy array, or a copy if the plugin holds its elements in another way."""
    import numpy as np

    if not array.is_direct:
        return array.read(pointers, addresses)
    at = next(addresses)
    if not array.bytes:
        return np.empty(array.shape, array.dtype)
    memory = (ctypes.c_uint8 * array.bytes).from_address(pointers[at])
    return np.frombuffer(memory, np.uint8).view(array.dtype).reshape(array.shape)


class Buffer:
    """An array that the callback reads, or also writes. It must not be used after the callback returns."""

    def __init__(self, array, writeable):
        self._array = array.view()
        self._array.flags.writeable = writeable

    @property
    def shape(self):
        return self._array.shape

    @property
    def ndim(self):
        return self._array.ndim

    @property
    def dtype(self):
        return self._array.dtype

    @property
    def writeable(self):
        return self._array.flags.writeable

    def __array__(self, dtype=None, copy=None):
        converted = dtype is not None and dtype != self._array.dtype
        if converted and copy is False:
            raise ValueError("a conversion to another dtype needs a copy")
        return self._array.astype(dtype) if converted else self._array.copy() if copy else self._array

    def __dlpack__(self, *, stream=None, max_version=None, dl_device=None, copy=None):
        array = self._array.copy() if copy else self._array
        if not array.flags.writeable and (max_version is None or tuple(max_version) < (1, 0)):
            # Before version 1, DLPack cannot express that memory must not be written.
            array = _writeable(array)
        return array.__dlpack__(stream=stream, max_version=max_version, dl_device=dl_device)

    def __dlpack_device__(self):
        return self._array.__dlpack_device__()


def _writeable(array):
    """The same memory without the flag."""
    import numpy as np

    interface = dict(array.__array_interface__, data=(array.__array_interface__["data"][0], False))
    return np.asarray(type("_Memory", (), {"__array_interface__": interface, "owner": array})())


class ExecutionContext:
    """The context of a call on a CPU."""

    @property
    def stage(self):
        from jax.experimental.buffer_callback import ExecutionStage

        return ExecutionStage.EXECUTE

    @property
    def stream(self):
        import jax

        raise jax.errors.JaxRuntimeError("UNIMPLEMENTED: XLA FFI GPU context is not available: a CPU has no streams")
