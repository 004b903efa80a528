"""FFI handlers: C functions that users register by `jax.ffi.register_ffi_target` and call by `jax.ffi.ffi_call`.

Handlers for the platform `cpu` run here too, because arrays are in the host's memory; those for `systole` have priority.
"""

import ctypes

STAGES = ["instantiate", "prepare", "initialize", "execute"]

_library = None
# Names that were registered for `systole`.
_own = set()


def register(platform, library):
    """Passes present and future registrations of handlers and types to the plugin in the file `library`."""
    global _library
    from jax._src.lib import xla_client

    if not hasattr(xla_client, "register_custom_call_handler") or _library is not None:
        return
    _library = ctypes.CDLL(library)
    for name in ["systole_register_ffi_handler", "systole_register_custom_call", "systole_register_ffi_type"]:
        getattr(_library, name).restype = ctypes.c_void_p
    # JAX's CPU backend registers its routines before it starts; the plugin has its own LAPACK.
    for name, handler, version, *_ in list(getattr(xla_client, "_custom_callback", {}).get("cpu", [])):
        _add_cpu(name, handler, version)
    xla_client.register_custom_call_handler(platform, _add_own)
    _follow(xla_client, "register_custom_call_target", _add_cpu)
    if hasattr(xla_client, "register_custom_type_handler"):
        for name, registration in list(getattr(xla_client, "_custom_type_id", {}).get("cpu", [])):
            _add_type(name, registration)
        xla_client.register_custom_type_handler(platform, _add_type)
        _follow(xla_client, "register_custom_type", lambda name, registration, *_: _add_type(name, registration))


def _follow(module, function, add):
    """Calls `add` for later registrations on the platform `cpu`, after JAX's own function."""
    usual = getattr(module, function)

    def wrapped(name, value, platform="cpu", *args, **kwargs):
        usual(name, value, platform, *args, **kwargs)
        if platform == "cpu":
            add(name, value, kwargs.get("api_version", args[0] if args else 0))

    setattr(module, function, wrapped)


def _add_own(name, handler, platform, api_version=0, traits=0):
    if api_version not in (0, 1):
        raise NotImplementedError(f"`{name}`: the platform `{platform}` supports api_version 0 and 1, got {api_version}")
    if api_version == 0 and isinstance(handler, dict):
        raise ValueError(f"`{name}`: handlers of several stages need api_version=1")
    _own.add(_text(name))
    _check(_add(name, handler, api_version))


def _add_cpu(name, handler, api_version):
    """Adds a handler for CPUs, unless it is of another kind."""
    if api_version in (0, 1) and _text(name) not in _own and not _text(name).startswith("lapack_"):
        message = _add(name, handler, api_version)
        if message:
            # It has not been called yet, and may never be.
            _library.systole_free_text(ctypes.c_void_p(message))


def _add(name, handler, api_version):
    name = _text(name).encode()
    if api_version == 0:
        return _library.systole_register_custom_call(name, ctypes.c_size_t(len(name)), ctypes.c_void_p(_address(handler)))
    stages = handler if isinstance(handler, dict) else {"execute": handler}
    addresses = (ctypes.c_size_t * 4)(*(_address(stages[stage]) if stages.get(stage) else 0 for stage in STAGES))
    return _library.systole_register_ffi_handler(name, ctypes.c_size_t(len(name)), addresses)


def _add_type(name, registration, *_):
    name = _text(name).encode()
    if not isinstance(registration, dict):
        registration = {"type_id": registration}
    info = registration.get("type_info")
    # The destructor stands behind the size and the extensions.
    deleter = ctypes.c_void_p.from_address(_address(info) + 16).value if info else None
    id = ctypes.c_void_p(_address(registration["type_id"]))
    _check(_library.systole_register_ffi_type(name, ctypes.c_size_t(len(name)), id, ctypes.c_void_p(deleter)))


def _text(name):
    return name.decode() if isinstance(name, bytes) else name


def _address(capsule):
    """The pointer in a capsule."""
    name, pointer = ctypes.pythonapi.PyCapsule_GetName, ctypes.pythonapi.PyCapsule_GetPointer
    name.restype, name.argtypes = ctypes.c_char_p, [ctypes.py_object]
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    return pointer(capsule, name(capsule))


def _check(message):
    """Raises an error of the plugin."""
    if message:
        text = ctypes.string_at(message).decode()
        _library.systole_free_text(ctypes.c_void_p(message))
        raise ValueError(text)
