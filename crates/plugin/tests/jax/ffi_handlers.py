import ctypes, gc, shutil, subprocess

ffi = getattr(jax, "ffi", None) or __import__("jax.extend.ffi").extend.ffi


def fails(f, *words):
    try:
        jax.block_until_ready(f())
    except Exception as e:
        assert all(word in str(e) for word in words), str(e)
        return
    raise AssertionError(f"no error with {words}")


# A handler in Python, by the C structures.
P_, I, L = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64


class Arguments(ctypes.Structure):
    _fields_ = [("bytes", L), ("next", P_), ("size", L), ("types", ctypes.POINTER(I)), ("values", ctypes.POINTER(P_))]


class Attributes(ctypes.Structure):
    _fields_ = [("bytes", L), ("next", P_), ("size", L), ("types", ctypes.POINTER(I)), ("names", P_), ("values", P_)]


class Frame(ctypes.Structure):
    _fields_ = [("bytes", L), ("next", P_), ("api", P_), ("context", P_), ("stage", I), ("arguments", Arguments),
                ("results", Arguments), ("attributes", Attributes)]


class Buffer(ctypes.Structure):
    _fields_ = [("bytes", L), ("next", P_), ("dtype", I), ("data", P_), ("rank", L), ("dims", ctypes.POINTER(L))]


seen = []


@ctypes.CFUNCTYPE(P_, ctypes.POINTER(Frame))
def doubled(frame):
    frame = frame.contents
    if frame.next:
        # The version behind size, type and next extension: size, size of the version, extensions, numbers.
        metadata = P_.from_address(frame.next + 24).value
        I.from_address(metadata + 24).value, I.from_address(metadata + 28).value = 0, 1
        return None
    buffers = [Buffer.from_address(list_.values[0]) for list_ in (frame.arguments, frame.results)]
    x, y = (np.ctypeslib.as_array(ctypes.cast(b.data, ctypes.POINTER(ctypes.c_float)), tuple(b.dims[: b.rank])) for b in buffers)
    seen.append((frame.bytes, frame.stage, buffers[0].dtype, x.shape))
    y[...] = 2 * x
    return None


capsule = ffi.pycapsule(ctypes.cast(doubled, P_).value)
ffi.register_ffi_target("python_doubled", capsule, platform="systole")
x = jnp.arange(6.0, dtype=jnp.float32).reshape(2, 3)
like = lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype)
double = lambda x, name="python_doubled": ffi.ffi_call(name, like(x), vmap_method="broadcast_all")(x)
close(jax.jit(double)(x), 2 * x)
close(double(x), 2 * x)
assert set(seen) == {(168, 3, 11, (2, 3))}, seen
close(jax.jit(jax.vmap(double))(x), 2 * x)
close(jax.jit(lambda x: jax.lax.fori_loop(0, 3, lambda i, x: double(x), x))(x), 8 * x)

# Handlers for CPUs run, too; an unknown name is an error.
ffi.register_ffi_target("python_cpu_doubled", capsule, platform="cpu")
close(jax.jit(partial(double, name="python_cpu_doubled"))(x), 2 * x)
fails(lambda: jax.jit(partial(double, name="python_missing"))(x), "python_missing")
fails(lambda: ffi.register_ffi_target("python_new", capsule, platform="systole", api_version=2), "api_version")

# C functions without typed arguments (api_version=0), in the three forms of their calls.
floats = lambda address, shape: np.ctypeslib.as_array(ctypes.cast(address, ctypes.POINTER(ctypes.c_float)), shape)


@ctypes.CFUNCTYPE(None, P_, ctypes.POINTER(P_))
def untyped_doubled(out, operands):
    floats(out, (2, 3))[...] = 2 * floats(operands[0], (2, 3))


@ctypes.CFUNCTYPE(None, P_, ctypes.POINTER(P_), P_)
def untyped_failing(out, operands, status):
    ctypes.memset(status, 1, 8)


@ctypes.CFUNCTYPE(None, ctypes.POINTER(P_), ctypes.POINTER(P_), P_, L, P_)
def untyped_two(out, operands, opaque, length, status):
    factor = float(ctypes.string_at(opaque, length))
    x, y = (floats(operands[i], (2, 3)) for i in range(2))
    floats(out[0], (2, 3))[...] = factor * x + y
    floats(out[1], ())[...] = x.sum()


if "legacy_backend_config" in __import__("inspect").signature(ffi.ffi_call).parameters:
    for name, function in dict(untyped_doubled=untyped_doubled, untyped_failing=untyped_failing, untyped_two=untyped_two).items():
        # Those for CPUs, too.
        at = "cpu" if name == "untyped_doubled" else "systole"
        ffi.register_ffi_target(name, ffi.pycapsule(ctypes.cast(function, P_).value), platform=at, api_version=0)

    def untyped(name, version, types=like(x), **options):
        call = ffi.ffi_call(name, types, custom_call_api_version=version, **options)
        return jax.jit(lambda *arrays: call(*arrays))

    close(untyped("untyped_doubled", 1)(x), 2 * x)
    two = untyped("untyped_two", 3, (like(x), like(x[0, 0])), legacy_backend_config="2.5")
    for made, expected in zip(two(x, x), (3.5 * x, x.sum())):
        close(made, expected)
    fails(lambda: untyped("untyped_failing", 2)(x), "untyped_failing", "failure")
    fails(lambda: untyped("untyped_doubled", 4)(x), "untyped_doubled", "custom_call_api_version=1")
    fails(lambda: untyped("python_doubled", 1)(x), "python_doubled", "custom_call_api_version=4")

# In each shard of a program on two devices, and once on a global array.
shard_map = getattr(jax, "shard_map", None) or __import__("jax.experimental.shard_map").experimental.shard_map.shard_map
pairs = jax.device_put(x, NamedSharding(mesh(2), P("x")))
seen.clear()
close(jax.jit(shard_map(double, mesh=mesh(2), in_specs=P("x"), out_specs=P("x")))(pairs), 2 * x)
assert [shape for *_, shape in seen] == [(1, 3)] * 2, seen
seen.clear()
close(jax.jit(double)(pairs), 2 * x)
assert [shape for *_, shape in seen] == [(2, 3)], seen

# Handlers in C++ with JAX's headers.
source = r"""
#include <complex>
#include <string>
#include <string_view>
#include <thread>
#include <cstring>
#include "xla/ffi/api/ffi.h"
namespace ffi = xla::ffi;

static ffi::Error Scale(ffi::Buffer<ffi::F32> x, float factor, int64_t count, bool negate, std::string_view unit,
                        ffi::Span<const int32_t> offsets, ffi::Dictionary more, ffi::ResultBuffer<ffi::F32> y,
                        ffi::Result<ffi::AnyBuffer> shape) {
  auto inner = more.get<int32_t>("index");
  if (!inner.has_value()) return inner.error();
  if (unit == "bad\n") return ffi::Error(ffi::ErrorCode::kInvalidArgument, "unit is bad");
  if (unit == "worse") return ffi::Error::Internal("unit is worse");
  float sum = factor * count + *inner + unit.size();
  for (int32_t o : offsets) sum += o;
  for (size_t i = 0; i < x.element_count(); ++i) y->typed_data()[i] = (negate ? -sum : sum) * x.typed_data()[i];
  for (size_t i = 0; i < x.dimensions().size(); ++i) static_cast<int32_t*>(shape->untyped_data())[i] = x.dimensions()[i];
  return ffi::Error::Success();
}
XLA_FFI_DEFINE_HANDLER_SYMBOL(ScaleHandler, Scale,
    ffi::Ffi::Bind().Arg<ffi::Buffer<ffi::F32>>().Attr<float>("factor").Attr<int64_t>("count").Attr<bool>("negate")
        .Attr<std::string_view>("unit").Attr<ffi::Span<const int32_t>>("offsets").Attr<ffi::Dictionary>("more")
        .Ret<ffi::Buffer<ffi::F32>>().Ret<ffi::AnyBuffer>());

static ffi::Error Turn(ffi::Buffer<ffi::C64> x, ffi::ResultBuffer<ffi::C64> y) {
  for (size_t i = 0; i < x.element_count(); ++i) y->typed_data()[i] = x.typed_data()[i] * std::complex<float>(0, 1);
  return ffi::Error::Success();
}
XLA_FFI_DEFINE_HANDLER_SYMBOL(TurnHandler, Turn, ffi::Ffi::Bind().Arg<ffi::Buffer<ffi::C64>>().Ret<ffi::Buffer<ffi::C64>>());

static ffi::Error Bytes(ffi::AnyBuffer x, ffi::Result<ffi::AnyBuffer> y) {
  if (x.element_type() != y->element_type()) return ffi::Error::Internal("types differ");
  std::memcpy(y->untyped_data(), x.untyped_data(), x.size_bytes());
  return ffi::Error::Success();
}
XLA_FFI_DEFINE_HANDLER_SYMBOL(BytesHandler, Bytes, ffi::Ffi::Bind().Arg<ffi::AnyBuffer>().Ret<ffi::AnyBuffer>());

static ffi::Error InPlace(ffi::Buffer<ffi::F32> x, ffi::ResultBuffer<ffi::F32> y) {
  if (x.typed_data() != y->typed_data()) return ffi::Error::Internal("not in place");
  y->typed_data()[0] += 1;
  return ffi::Error::Success();
}
XLA_FFI_DEFINE_HANDLER_SYMBOL(InPlaceHandler, InPlace,
    ffi::Ffi::Bind().Arg<ffi::Buffer<ffi::F32>>().Ret<ffi::Buffer<ffi::F32>>());

static ffi::Error Parallel(ffi::ThreadPool pool, ffi::Buffer<ffi::F32> x, ffi::ResultBuffer<ffi::F32> y) {
  std::atomic<int> left{8};
  size_t n = x.element_count();
  for (int t = 0; t < 8; ++t) pool.Schedule([&, t] {
    for (size_t i = t; i < n; i += 8) y->typed_data()[i] = x.typed_data()[i] + 1;
    --left;
  });
  while (left) std::this_thread::yield();
  return pool.num_threads() > 0 ? ffi::Error::Success() : ffi::Error::Internal("no threads");
}
XLA_FFI_DEFINE_HANDLER_SYMBOL(ParallelHandler, Parallel,
    ffi::Ffi::Bind().Ctx<ffi::ThreadPool>().Arg<ffi::Buffer<ffi::F32>>().Ret<ffi::Buffer<ffi::F32>>());

static ffi::Future Later(ffi::Buffer<ffi::F32> x, int64_t fails, ffi::ResultBuffer<ffi::F32> y) {
  ffi::Promise promise;
  ffi::Future future(promise);
  std::thread([=, promise = std::move(promise)]() mutable {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    y->typed_data()[0] = x.typed_data()[0] + 1;
    if (fails) promise.SetError(ffi::Error::Internal("later is too late")); else promise.SetAvailable();
  }).detach();
  return future;
}
XLA_FFI_DEFINE_HANDLER_SYMBOL(LaterHandler, Later,
    ffi::Ffi::Bind().Arg<ffi::Buffer<ffi::F32>>().Attr<int64_t>("fails").Ret<ffi::Buffer<ffi::F32>>());

static int alive = 0;
struct Counter {
  static ffi::TypeId id;
  static ffi::TypeInfo info;
  explicit Counter(int64_t n) : n(n) { ++alive; }
  ~Counter() { --alive; }
  int64_t n;
};
ffi::TypeId Counter::id = {};
ffi::TypeInfo Counter::info = ffi::MakeTypeInfo<Counter>();

static ffi::ErrorOr<std::unique_ptr<Counter>> Create(int64_t start) {
  if (start < 0) return ffi::Unexpected(ffi::Error(ffi::ErrorCode::kInvalidArgument, "start is negative"));
  return std::make_unique<Counter>(start);
}
XLA_FFI_DEFINE_HANDLER_SYMBOL(CreateHandler, Create, ffi::Ffi::BindInstantiate().Attr<int64_t>("start"));
static ffi::Error Count(Counter* counter, ffi::ResultBuffer<ffi::S32> y) {
  y->typed_data()[0] = counter->n++;
  return ffi::Error::Success();
}
XLA_FFI_DEFINE_HANDLER_SYMBOL(CountHandler, Count, ffi::Ffi::Bind().Ctx<ffi::State<Counter>>().Ret<ffi::Buffer<ffi::S32>>());
extern "C" void* CounterId() { return &Counter::id; }
extern "C" void* CounterInfo() { return &Counter::info; }
extern "C" int Alive() { return alive; }
"""
compiler = shutil.which("c++")
if not compiler or not hasattr(ffi, "register_ffi_type"):
    print("SKIPPED ffi_handlers in C++: no C++ compiler, or JAX is older than 0.7")
else:
    folder = tempfile.mkdtemp()
    path = os.path.join(folder, "handlers.so")
    with open(path + ".cc", "w") as f:
        f.write(source)
    command = [compiler, "-std=c++17", "-O0", "-w", "-fPIC", "-shared", "-I", ffi.include_dir(), path + ".cc", "-o", path]
    subprocess.run(command, check=True)
    library = ctypes.CDLL(path)
    for name in ["Scale", "Turn", "Bytes", "InPlace", "Parallel", "Later"]:
        ffi.register_ffi_target(name, ffi.pycapsule(getattr(library, name + "Handler")), platform="systole")

    # Attributes of every kind, and errors.
    def scale(x, **changes):
        given = dict(factor=np.float32(1.5), count=2, negate=True, unit="m\n", offsets=np.array([3, -1], np.int32),
                     more=dict(index=np.int32(4), version=7))
        types = (like(x), jax.ShapeDtypeStruct((2,), jnp.int32))
        return ffi.ffi_call("Scale", types)(x, **given | changes)

    y, shape = jax.jit(scale)(x)
    close(y, -(1.5 * 2 + 4 + 2 + 2) * x)
    assert shape.tolist() == [2, 3]
    close(jax.jit(partial(scale, negate=False, offsets=np.zeros(0, np.int32)))(x)[0], 9 * x)
    fails(lambda: jax.jit(partial(scale, unit="bad\n"))(x), "INVALID_ARGUMENT", "Scale", "unit is bad")
    fails(lambda: jax.jit(partial(scale, unit="worse"))(x), "INTERNAL", "unit is worse")
    fails(lambda: jax.jit(partial(scale, count=np.int32(2)))(x), "Scale", "expected S64")
    fails(lambda: jax.jit(partial(scale, more=dict(a=1)))(x), "index")
    fails(lambda: jax.jit(partial(scale, offsets=(1, 2)))(x), "UNIMPLEMENTED", "`offsets`")
    fails(lambda: jax.jit(lambda x: ffi.ffi_call("Scale", like(x))(x))(x), "Scale", "Wrong number")

    # Complex and narrow elements, empty arrays, scalars, in memory orders that the call requests.
    z = (x + 1j * x[::-1]).astype(jnp.complex64)
    close(jax.jit(lambda z: ffi.ffi_call("Turn", like(z))(z))(z), 1j * z)
    same = lambda x, **options: ffi.ffi_call("Bytes", like(x), **options)(x)
    for dtype in [jnp.bool_, jnp.int8, jnp.uint16, jnp.bfloat16, jnp.float16, jnp.int32, jnp.float8_e4m3fn, jnp.int4]:
        v = jnp.array([[0, 1, 2], [3, 1, 0]]).astype(dtype)
        assert (jax.jit(same)(v) == v).all() and jax.jit(same)(v).dtype == dtype, dtype
    assert jax.jit(same)(jnp.zeros((0, 3))).shape == (0, 3) and float(jax.jit(same)(jnp.float32(7))) == 7
    if "input_layouts" in __import__("inspect").signature(ffi.ffi_call).parameters:
        close(jax.jit(partial(same, input_layouts=[(1, 0)], output_layouts=(1, 0)))(x), x)
        turned = jax.jit(lambda x: ffi.ffi_call("Bytes", jax.ShapeDtypeStruct((3, 2), x.dtype), input_layouts=[(1, 0)])(x))(x)
        close(turned, x.T)

    # A result in the memory of an operand, which the program still has afterwards.
    place = lambda x: ffi.ffi_call("InPlace", like(x), input_output_aliases={0: 0})(x)
    close(jax.jit(lambda x: place(x) - x)(x), [[1, 0, 0], [0, 0, 0]])
    close(jax.jit(place, donate_argnums=0)(x + 0), x.at[0, 0].add(1))

    # Threads and futures.
    long = jnp.arange(1000.0)
    close(jax.jit(lambda x: ffi.ffi_call("Parallel", like(x))(x))(long), long + 1)
    late = lambda fails: jax.jit(lambda x: ffi.ffi_call("Later", like(x))(x, fails=fails))(jnp.ones(1, jnp.float32))
    assert late(0).tolist() == [2]
    fails(lambda: late(1), "INTERNAL", "later is too late")

    # State of a call: created with the program, and destroyed with it.
    for name in ["CounterId", "CounterInfo"]:
        getattr(library, name).restype = P_
    ffi.register_ffi_type("Counter", dict(type_id=ffi.pycapsule(library.CounterId()), type_info=ffi.pycapsule(library.CounterInfo())),
                          platform="systole")
    stages = dict(instantiate=ffi.pycapsule(library.CreateHandler), execute=ffi.pycapsule(library.CountHandler))
    ffi.register_ffi_target("Count", stages, platform="systole")
    count = lambda start: ffi.ffi_call("Count", jax.ShapeDtypeStruct((1,), jnp.int32), has_side_effect=True)(start=start)
    two = jax.jit(lambda: (count(10), count(20), count(20)))
    assert [v.tolist() for v in two()] == [[10], [20], [20]]
    assert [v.tolist() for v in two()] == [[11], [21], [21]]
    assert library.Alive() == 3
    fails(lambda: jax.jit(lambda: count(-1))(), "start is negative")
    looped = jax.jit(lambda: jax.lax.fori_loop(0, 4, lambda i, s: s + count(1), jnp.zeros(1, jnp.int32)))
    assert looped().tolist() == [1 + 2 + 3 + 4]
    del two, looped
    jax.clear_caches()
    gc.collect()
    assert library.Alive() == 0, library.Alive()
