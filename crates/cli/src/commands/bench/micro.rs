//! Microbenchmarks: matrix products (GEMM) and element-wise ops on arrays larger than the caches.

use super::measure::{BenchTiming, measure, timed};
use super::workload::ElementwiseWorkload;
use std::time::Duration;
use systole_ir::{DType, Dims, Literal, Result, Tensor, TensorType, rng};
use systole_nn::optimizer::{UpdateInputs, adam};
use systole_runtime::{Buffer, DeviceId, Params, TensorTree, backend};

/// Elements per array of the element-wise workloads: 64 MiB in f32.
const ELEMENTS: usize = 1 << 24;
/// Row length of the row reductions.
const ROW: usize = 1024;

/// Measures `a: T[n, n], b: T[n, n] → T[n, n]` (int8 → i32). The operands are unpacked, so a kernel that packs them
/// does so in each step.
pub(super) fn gemm(n: usize, precision: &str, time: Duration) -> Result<BenchTiming> {
    let dtype = match precision {
        "float32" => DType::F32,
        "mixed_float16" => DType::F16,
        "int8" => DType::I8,
        _ => DType::BF16,
    };
    let sum = if dtype == DType::I8 { DType::I32 } else { dtype };
    let ty = TensorType::new(dtype, [n, n]);
    let f = systole::jit(move |(_, a, b): (Tensor, Tensor, Tensor)| product(&a, &b, sum)).named("gemm");
    let inputs = (on_device(&ty, 1)?, on_device(&ty, 2)?);
    // The output buffer is donated, so that no step allocates memory.
    let mut out = zeros_on_device(&ty.with_dtype(sum))?;
    let spare = zeros_on_device(&ty.with_dtype(sum))?;
    let args = |out| (out, inputs.0.clone(), inputs.1.clone());
    let (_, compile_ms) = timed(|| f.executable(args(spare)))?;
    let m = measure(time, || {
        let taken = std::mem::replace(&mut out, Buffer::scalar(DType::F32, 0.0));
        out = f.call(args(taken))?;
        Ok(out.ready_event())
    })?;
    Ok(BenchTiming { flops: 2.0 * (n as f64).powi(3), compile_ms, ..m })
}

fn product(a: &Tensor, b: &Tensor, sum: DType) -> Tensor {
    use systole_ir::op::DotGeneral;
    let op = DotGeneral {
        lhs_batch: Dims::new(),
        rhs_batch: Dims::new(),
        lhs_contract: Dims::from_slice(&[1]),
        rhs_contract: Dims::from_slice(&[0]),
        element_type: sum,
    };
    a.builder().emit(op, &[a, b]).remove(0)
}

/// Measures the bandwidth of an element-wise workload: minimum bytes read and written per second.
pub(super) fn elementwise(kind: ElementwiseWorkload, precision: &str, time: Duration) -> Result<BenchTiming> {
    let dtype = match precision {
        "mixed_bfloat16" => DType::BF16,
        "mixed_float16" => DType::F16,
        _ => DType::F32,
    };
    match kind {
        ElementwiseWorkload::Adam => adam_update(time),
        ElementwiseWorkload::Gelu => mapped(dtype, time, |x| x.gelu()),
        ElementwiseWorkload::Softmax => {
            mapped(dtype, time, |x| x.convert(DType::F32).softmax().convert(x.dtype()))
        }
        ElementwiseWorkload::LayerNorm => mapped(dtype, time, layer_norm),
    }
}

/// Layer normalization over the last dimension, as the layer computes it.
fn layer_norm(x: &Tensor) -> Tensor {
    let last = [x.rank() - 1];
    let wide = |t: Tensor| t.broadcast_except(x.shape(), &last);
    let x32 = x.convert(DType::F32);
    let centred = &x32 - wide(x32.mean(&last));
    let variance = (&centred * &centred).mean(&last);
    (&centred * wide((variance + 1e-3).rsqrt())).convert(x.dtype())
}

/// Measures `f(x: T[rows, ROW]) → T[rows, ROW]`: one array read, one written.
fn mapped(dtype: DType, time: Duration, f: fn(&Tensor) -> Tensor) -> Result<BenchTiming> {
    let ty = TensorType::new(dtype, [ELEMENTS / ROW, ROW]);
    let f = systole::jit(move |(_, x): (Tensor, Tensor)| f(&x)).named("elementwise").flush_denormals(true);
    let x = on_device(&ty, 1)?;
    let mut out = zeros_on_device(&ty)?;
    let (program, compile_ms) = timed(|| f.executable((x.clone(), x.clone())))?;
    let m = measure(time, || {
        let taken = std::mem::replace(&mut out, Buffer::scalar(DType::F32, 0.0));
        out = f.call((taken, x.clone()))?;
        Ok(out.ready_event())
    })?;
    let bytes = Some(2.0 * ty.bytes() as f64);
    Ok(BenchTiming { flops: program.report().flops, bytes, compile_ms, ..m })
}

/// Measures an Adam update: reads parameters, gradients and two slots; writes parameters and slots in place.
fn adam_update(time: Duration) -> Result<BenchTiming> {
    type Args = (Params, Params, Params, Tensor, Tensor);
    let optimizer = adam(1e-3);
    let ty = TensorType::new(DType::F32, [ELEMENTS / 2]);
    let one = |b: Buffer| Params::from_iter([("weight".to_string(), b)]);
    let mut params = one(on_device(&ty, 1)?);
    let grads = one(on_device(&ty, 2)?);
    let mut slots = Params::new();
    for (name, slot) in optimizer.init(&params)? {
        slots.insert(name, zeros_on_device(slot.ty())?);
    }
    let update = optimizer.clone();
    let f = systole::jit(move |(params, slots, grads, learning_rate, step): Args| {
        update.update(&UpdateInputs { learning_rate, step }, &params, &grads, &slots)
    });
    let f = f.named("adam").flush_denormals(true);
    let args = |params, slots| -> <Args as TensorTree>::Host {
        (params, slots, grads.clone(), Buffer::scalar(DType::F32, 1e-3), Buffer::scalar(DType::I64, 7.0))
    };
    let (program, compile_ms) = timed(|| f.executable(args(params.clone(), slots.clone())))?;
    let m = measure(time, || {
        let taken = (std::mem::take(&mut params), std::mem::take(&mut slots));
        (params, slots) = f.call(args(taken.0, taken.1))?;
        Ok(params.values().next().and_then(Buffer::ready_event))
    })?;
    let bytes = Some(7.0 * ty.bytes() as f64);
    Ok(BenchTiming { flops: program.report().flops, bytes, compile_ms, ..m })
}

/// Random values on the device: floats in [−1, 1), int8 from −128 to 127.
fn on_device(ty: &TensorType, seed: u64) -> Result<Buffer> {
    let n = ty.elements();
    let word = |i: usize| rng::mix(rng::mix(seed) ^ i as u64);
    let float = |i: usize| (word(i) >> 40) as f32 / (1 << 23) as f32 - 1.0;
    let value = match ty.dtype {
        DType::I8 => {
            Literal::from_slice(ty.shape.clone(), &(0..n).map(|i| word(i) as i8).collect::<Vec<_>>())?
        }
        _ => Literal::from_slice(ty.shape.clone(), &(0..n).map(float).collect::<Vec<_>>())?.convert(ty.dtype),
    };
    backend("auto")?.put(&value, DeviceId(0))
}

fn zeros_on_device(ty: &TensorType) -> Result<Buffer> {
    backend("auto")?.put(&Literal::zeros(ty.clone()), DeviceId(0))
}
