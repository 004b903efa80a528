//! Benchmark of a pooled convolution and its gradients: CPU time on one thread, as in a row block of a larger step.
//!
//! `cargo run --release -p systole-cpu --example pooled [batch] [side] [channels] [filters] [kernel] [f32|bf16]`
#![allow(clippy::print_stdout)]

use std::sync::Arc;
use std::time::Instant;
use systole_cpu::{CpuBackend, Level, ThreadPool};
use systole_ir::op::{Convolution, Monoid, Window};
use systole_ir::rng::RandomStream;
use systole_ir::{DType, Graph, GraphBuilder, LiteralBuilder, Scalar, TensorType, grad};
use systole_runtime::{Backend, Buffer, CompileOptions, DeviceId, ExecutableArg};

/// Returns the CPU nanoseconds of this thread; wall-clock time if the system does not report them.
fn thread_ns(start: Instant) -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let ran = text.split_whitespace().next().and_then(|n| n.parse().ok());
    ran.unwrap_or(start.elapsed().as_nanos() as f64)
}

fn graph(
    x: [usize; 4],
    filters: usize,
    kernel: usize,
    dtype: DType,
    train: bool,
) -> systole_ir::Result<Arc<Graph>> {
    let g = GraphBuilder::new("pooled");
    let channels = x[3];
    let x = g.parameter(TensorType::new(dtype, x), "x");
    let k = g.parameter(TensorType::new(dtype, [kernel, kernel, channels, filters]), "kernel");
    let b = g.parameter(TensorType::new(dtype, [filters]), "bias");
    let h = x.convolution(&k, Convolution::valid(x.ty(), &[1, 1], &[1, 1], 1)) + &b;
    let window = Window::new(&[1, 2, 2, 1], &[1, 2, 2, 1], &[[0, 0]; 4]);
    let y = Monoid::Maximum.over_windows(&h, window).relu();
    let mut results = vec![y.clone()];
    if train {
        // The loss is a product with two columns, so that its own gradient costs little.
        let flat = y.reshape([y.dim(0), y.ty().elements() / y.dim(0)]);
        let dense = g.parameter(TensorType::new(dtype, [flat.dim(1), 2]), "dense");
        let out = flat.dot(&dense);
        results = grad(&(&out * &out).convert(DType::F32).sum_all(), &[&k, &b]);
    }
    g.finish(&results)
}

fn main() -> systole_ir::Result<()> {
    let arg =
        |i: usize, default: usize| std::env::args().nth(i).and_then(|a| a.parse().ok()).unwrap_or(default);
    let (batch, side, channels, filters, kernel) = (arg(1, 10), arg(2, 28), arg(3, 1), arg(4, 64), arg(5, 3));
    let dtype = if std::env::args().nth(6).as_deref() == Some("bf16") { DType::BF16 } else { DType::F32 };
    let backend = CpuBackend::with(ThreadPool::new(1), Level::from_knob()?)?;
    for train in [false, true] {
        let graph = graph([batch, side, side, channels], filters, kernel, dtype, train)?;
        let exe = backend.compile(&graph, &CompileOptions::default())?;
        let mut args = Vec::new();
        for (k, ty) in graph.param_types().iter().enumerate() {
            let mut s = RandomStream::new(1, 2, k as u64);
            let mut b = LiteralBuilder::new(ty.clone());
            (0..ty.elements())
                .for_each(|i| b.set(i, Scalar::Float(s.range(-1.0, 1.0) as f64).round_to(ty.dtype)));
            args.push(backend.put(&b.finish(), DeviceId(0))?);
        }
        let start = Instant::now();
        let mut best = f64::INFINITY;
        // The system's CPU time advances in steps of some milliseconds.
        let runs = (2_000_000 / (batch * side * side * filters)).max(1) * 50;
        for _ in 0..8 {
            let before = thread_ns(start);
            for _ in 0..runs {
                let borrowed: Vec<ExecutableArg> =
                    args.iter().map(|a: &Buffer| ExecutableArg::Borrow(a)).collect();
                exe.run(borrowed)?;
            }
            best = best.min((thread_ns(start) - before) / runs as f64);
        }
        let rows = side - kernel + 1;
        let out = rows - rows % 2;
        let flops = 2.0 * (batch * out * out * filters * kernel * kernel * channels) as f64;
        let per_sample = best / batch as f64;
        println!(
            "{}: {:.1} us per batch, {per_sample:.0} ns per sample, {:.1} GFLOP/s of the full convolution\n{}",
            if train { "forward and gradients" } else { "forward" },
            best / 1e3,
            flops / best,
            exe.listing().lines().filter(|l| l.contains(" = ")).collect::<Vec<_>>().join("\n"),
        );
    }
    Ok(())
}
