//! Benchmark of convolutions and both their gradients, as `grad` emits them, on the shapes of common networks.
//!
//! `cargo run --release -p systole-cpu --example conv [filter] [dtype] [threads…]`: one line for each shape whose name
//! contains the filter, GFLOP/s of forward, input gradient and kernel gradient for each thread and their shares of the
//! measured multiply-add peak of one core. Times are the best of many runs; other programs should be stopped.
#![allow(clippy::print_stdout, unsafe_code)]

use std::sync::Arc;
use std::time::Instant;
use systole_cpu::{CpuBackend, Level, ThreadPool};
use systole_ir::op::Convolution;
use systole_ir::rng::RandomStream;
use systole_ir::{DType, Graph, GraphBuilder, Literal, LiteralBuilder, Scalar, Tensor, TensorType, vjp};
use systole_runtime::{Backend, Buffer, CompileOptions, DeviceId, ExecutableArg};

/// Batch, image side, channels, features, kernel side, stride.
type Shape = (&'static str, [usize; 6]);

const SHAPES: [Shape; 28] = [
    ("cifar 3x3", [128, 32, 3, 32, 3, 1]),
    ("cifar 3x3", [128, 32, 32, 32, 3, 1]),
    ("cifar 3x3", [128, 16, 32, 64, 3, 1]),
    ("cifar 3x3", [128, 16, 64, 64, 3, 1]),
    ("cifar 3x3", [128, 8, 64, 128, 3, 1]),
    ("cifar 3x3", [128, 8, 128, 128, 3, 1]),
    ("small 3x3", [512, 8, 256, 512, 3, 1]),
    ("small 3x3", [512, 4, 512, 512, 3, 1]),
    ("small 3x3", [128, 7, 128, 128, 3, 1]),
    ("small 3x3", [128, 14, 64, 64, 3, 1]),
    ("small 3x3s2", [128, 14, 64, 128, 3, 2]),
    ("small 5x5", [128, 2, 256, 256, 5, 1]),
    ("resnet 7x7s2", [16, 224, 3, 64, 7, 2]),
    ("resnet 3x3", [16, 56, 64, 64, 3, 1]),
    ("resnet 3x3", [16, 28, 128, 128, 3, 1]),
    ("resnet 3x3", [16, 14, 256, 256, 3, 1]),
    ("resnet 3x3", [16, 7, 512, 512, 3, 1]),
    ("resnet 3x3s2", [16, 56, 128, 128, 3, 2]),
    ("resnet 3x3s2", [16, 14, 512, 512, 3, 2]),
    ("resnet 1x1", [16, 56, 64, 256, 1, 1]),
    ("resnet 1x1", [16, 56, 256, 64, 1, 1]),
    ("resnet 1x1", [16, 28, 512, 128, 1, 1]),
    ("resnet 1x1", [16, 14, 256, 1024, 1, 1]),
    ("resnet 1x1", [16, 14, 1024, 256, 1, 1]),
    ("resnet 1x1", [16, 7, 512, 2048, 1, 1]),
    ("resnet 1x1", [16, 7, 2048, 512, 1, 1]),
    ("resnet 1x1s2", [16, 56, 256, 512, 1, 2]),
    ("resnet 1x1s2", [16, 14, 1024, 2048, 1, 2]),
];

/// Forward, input gradient and kernel gradient as three graphs, and the operations of each.
fn graphs(s: &Shape, dtype: DType) -> ([Arc<Graph>; 3], f64) {
    let [batch, side, channels, features, window, stride] = s.1;
    let out = side.div_ceil(stride);
    let x = TensorType::new(dtype, [batch, side, side, channels]);
    let k = TensorType::new(dtype, [window, window, channels, features]);
    let dy = TensorType::new(dtype, [batch, out, out, features]);
    let conv = Convolution::same(&x, &k, &[stride, stride], &[1, 1], 1);
    let graph = |which: usize| {
        let g = GraphBuilder::new("main");
        let (x, k) = (g.parameter(x.clone(), "x"), g.parameter(k.clone(), "k"));
        let y = x.convolution(&k, conv.clone());
        if which == 0 {
            return g.finish(&[corner(&y)]).unwrap();
        }
        let dy = g.parameter(dy.clone(), "dy");
        let gradient = vjp(&[&y], &[&dy], &[[&x, &k][which - 1]]).remove(0);
        g.finish(&[corner(&gradient)]).unwrap()
    };
    let flops = 2.0 * (batch * out * out * features) as f64 * (window * window * channels) as f64;
    ([graph(0), graph(1), graph(2)], flops)
}

/// The first element: results are new memory in each run, whose first touch would be timed; this one is small.
fn corner(t: &Tensor) -> Tensor {
    let ones = vec![1; t.rank()];
    t.slice(&vec![0; t.rank()], &ones, &ones)
}

fn draw(ty: &TensorType, s: &mut RandomStream) -> Literal {
    let mut b = LiteralBuilder::new(ty.clone());
    for i in 0..ty.elements() {
        b.set(i, Scalar::Float(s.range(-1.0, 1.0) as f64));
    }
    b.finish()
}

/// Returns the best seconds of `f`, over at least `least` runs and 0.2 s.
fn best(least: usize, mut f: impl FnMut()) -> f64 {
    let (start, mut best, mut runs) = (Instant::now(), f64::MAX, 0);
    while runs < least || start.elapsed().as_secs_f64() < 0.2 {
        let t = Instant::now();
        f();
        best = best.min(t.elapsed().as_secs_f64());
        runs += 1;
    }
    best
}

/// Chains of multiply-adds that the compiler keeps in registers.
#[inline(always)]
fn chains<const N: usize>(n: usize) -> f32 {
    let mut acc = [1f32; N];
    let (x, y) = (std::hint::black_box(0.5f32), std::hint::black_box(0.25f32));
    for _ in 0..n {
        for a in &mut acc {
            *a = a.mul_add(x, y);
        }
    }
    acc.iter().sum()
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx2,fma")]
unsafe fn chains_avx512(n: usize) -> f32 {
    chains::<256>(n)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
unsafe fn chains_avx2(n: usize) -> f32 {
    chains::<96>(n)
}

/// Returns the multiply-add peak of one core in GFLOP/s; NaN if it is not measured.
fn peak(level: Level) -> f64 {
    const N: usize = 20_000;
    #[cfg(target_arch = "x86_64")]
    {
        // SAFETY: the level is available: backends with it were created.
        let (lanes, run): (usize, unsafe fn(usize) -> f32) = match level {
            Level::Avx512 | Level::Avx512Bf16 | Level::Amx => (256, chains_avx512),
            Level::Avx2 => (96, chains_avx2),
            Level::Portable => return f64::NAN,
        };
        // SAFETY: as above.
        let seconds = best(50, || unsafe {
            std::hint::black_box(run(std::hint::black_box(N)));
        });
        (2 * lanes * N) as f64 / seconds / 1e9
    }
    #[cfg(not(target_arch = "x86_64"))]
    f64::NAN
}

fn main() -> systole_ir::Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let filter = args.first().cloned().unwrap_or_default();
    let dtype = match args.get(1).map(String::as_str) {
        Some("bf16") => DType::BF16,
        Some("f16") => DType::F16,
        _ => DType::F32,
    };
    let level = Level::from_knob()?;
    let counts: Vec<usize> = match args.get(2..) {
        Some(t) if !t.is_empty() => t.iter().filter_map(|t| t.parse().ok()).collect(),
        _ => vec![1, 2],
    };
    let peak = peak(level);
    println!("{}, {dtype}: peak of one core {peak:.0} GFLOP/s", level.name());
    println!("{:<38} {:>3}  {:>14} {:>14} {:>14}", "shape", "thr", "forward", "input", "kernel");
    let backends: Vec<CpuBackend> =
        counts.iter().map(|&t| CpuBackend::with(ThreadPool::new(t), level)).collect::<Result<_, _>>()?;
    for shape in SHAPES {
        let [b, side, c, f, w, stride] = shape.1;
        let name = format!("{} {b}x{side}x{side}x{c} -> {f} k{w}s{stride}", shape.0);
        if !name.contains(&filter) {
            continue;
        }
        let (graphs, flops) = graphs(&shape, dtype);
        for (backend, &threads) in backends.iter().zip(&counts) {
            let mut line = format!("{name:<38} {threads:>3} ");
            for graph in &graphs {
                let exe = backend.compile(
                    graph,
                    &CompileOptions { winograd: true, flush_denormals: true, ..Default::default() },
                )?;
                let mut s = RandomStream::new(1, 2, 3);
                let draw = |t: &TensorType| backend.put(&draw(t, &mut s), DeviceId(0));
                let args: Vec<Buffer> = graph.param_types().iter().map(draw).collect::<Result<_, _>>()?;
                let mut result = Ok(Vec::new());
                let seconds = best(5, || result = exe.run(args.iter().map(ExecutableArg::Borrow).collect()));
                result?;
                let rate = flops / seconds / 1e9 / threads as f64;
                line += &format!("  {rate:>6.0} ({:>4.0}%)", 100.0 * rate / peak);
            }
            println!("{line}");
        }
    }
    Ok(())
}
