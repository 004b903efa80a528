//! Benchmark of matrix products compared with the machine's peak: squares and the shapes of real workloads.
//!
//! `cargo run --release -p systole-cpu --example gemm [threads] [filter] [seconds]`. Each line: shape, GFLOP/s by the
//! wall clock and by the calling thread's CPU time (the rate without other processes), and the share of the peak of
//! that many threads. The peak is measured at the start, with multiply-adds in registers.
#![allow(clippy::print_stdout, unsafe_code)]

use std::time::Instant;
use systole_cpu::{CpuBackend, Level, ThreadPool};
use systole_ir::op::{ArgDomain, DotGeneral};
use systole_ir::rng::RandomStream;
use systole_ir::{DType, GraphBuilder, TensorType};
use systole_runtime::{Backend, Buffer, CompileOptions, DeviceId, ExecutableArg};

/// One product: sizes, and whether each operand is transposed in memory.
struct Case {
    name: &'static str,
    batch: usize,
    m: usize,
    n: usize,
    k: usize,
    layout: &'static str,
    from: DType,
    to: DType,
}

#[rustfmt::skip]
fn cases() -> Vec<Case> {
    use DType::*;
    let case = |name, (batch, m, n, k), layout, from, to| Case { name, batch, m, n, k, layout, from, to };
    let mut all = Vec::new();
    for (from, to) in [(F32, F32), (BF16, BF16), (I8, I32)] {
        for n in [512, 1024, 2048, 4096] {
            all.push(case("square", (1, n, n, n), "nn", from, to));
        }
    }
    for layout in ["nt", "tn", "tt"] {
        all.push(case("square", (1, 2048, 2048, 2048), layout, F32, F32));
    }
    for f in [F32, BF16] {
        all.extend([
            case("gpt2-qkv", (1, 1024, 2304, 768), "nn", f, f),
            case("gpt2-qkv-dx", (1, 1024, 768, 2304), "nt", f, f),
            case("gpt2-qkv-dw", (1, 768, 2304, 1024), "tn", f, f),
            case("gpt2-out", (1, 1024, 768, 768), "nn", f, f),
            case("gpt2-out-dx", (1, 1024, 768, 768), "nt", f, f),
            case("gpt2-out-dw", (1, 768, 768, 1024), "tn", f, f),
            case("gpt2-up", (1, 1024, 3072, 768), "nn", f, f),
            case("gpt2-down", (1, 1024, 768, 3072), "nn", f, f),
            case("gpt2-down-dw", (1, 3072, 768, 1024), "tn", f, f),
            case("gpt2-head", (1, 1024, 50257, 768), "nt", f, f),
            case("gpt2-head-dx", (1, 1024, 768, 50257), "nn", f, f),
            case("gpt2-head-dw", (1, 50257, 768, 1024), "tn", f, f),
            case("attention-qk", (48, 256, 256, 64), "nt", f, f),
            case("attention-pv", (48, 256, 64, 256), "nn", f, f),
            case("mlp", (1, 128, 512, 784), "nn", f, f),
            case("mlp-dw", (1, 784, 512, 128), "tn", f, f),
            case("mlp-head", (1, 128, 10, 512), "nn", f, f),
            case("mlp-head-dx", (1, 128, 512, 10), "nt", f, f),
            case("mlp-head-dw", (1, 512, 10, 128), "tn", f, f),
            case("lstm", (1, 64, 1024, 256), "nn", f, f),
            case("lstm-dx", (1, 64, 256, 1024), "nt", f, f),
            case("lstm-dw", (1, 256, 1024, 64), "tn", f, f),
            case("block", (1, 10, 10, 10816), "nn", f, f),
            case("block-dx", (1, 10, 10816, 10), "nt", f, f),
            case("block-dw", (1, 10816, 10, 10), "tn", f, f),
        ]);
    }
    all
}

/// Returns the CPU seconds of the calling thread.
fn thread_seconds() -> f64 {
    #[cfg(target_os = "linux")]
    {
        unsafe extern "C" {
            fn clock_gettime(clock: i32, time: *mut [i64; 2]) -> i32;
        }
        let mut time = [0i64; 2];
        // SAFETY: writes the two numbers of a `timespec` of a 64-bit system; 3 is the calling thread's clock.
        unsafe { clock_gettime(3, &mut time) };
        time[0] as f64 + time[1] as f64 * 1e-9
    }
    #[cfg(not(target_os = "linux"))]
    0.0
}

/// Returns the multiply-add peak of one core in GFLOP/s: the best of short runs, by the thread's CPU time.
fn peak() -> f64 {
    #[cfg(target_arch = "x86_64")]
    {
        let mut best = 0f64;
        for _ in 0..20 {
            let start = thread_seconds();
            // SAFETY: each loop runs only if its level is available.
            let flops = unsafe {
                match Level::best() {
                    Level::Avx512 | Level::Avx512Bf16 | Level::Amx => peak_avx512(),
                    Level::Avx2 => peak_avx2(),
                    _ => return f64::NAN,
                }
            };
            best = best.max(flops / (thread_seconds() - start) / 1e9);
        }
        best
    }
    #[cfg(not(target_arch = "x86_64"))]
    f64::NAN
}

#[cfg(target_arch = "x86_64")]
macro_rules! peak_loop {
    ($name:ident, $feature:literal, $lanes:literal, $set:ident, $fma:ident) => {
        #[target_feature(enable = $feature)]
        unsafe fn $name() -> f64 {
            use std::arch::x86_64::*;
            const STEPS: usize = 2_000_000;
            let one = $set(std::hint::black_box(0.5));
            let mut sums = [one; 12];
            for _ in 0..STEPS {
                for s in &mut sums {
                    *s = $fma(one, *s, one);
                }
            }
            std::hint::black_box(sums);
            (STEPS * 12 * 2 * $lanes) as f64
        }
    };
}
#[cfg(target_arch = "x86_64")]
peak_loop!(peak_avx512, "avx512f", 16, _mm512_set1_ps, _mm512_fmadd_ps);
#[cfg(target_arch = "x86_64")]
peak_loop!(peak_avx2, "avx2,fma", 8, _mm256_set1_ps, _mm256_fmadd_ps);

fn measure(backend: &CpuBackend, c: &Case, seconds: f64) -> systole_ir::Result<(f64, f64)> {
    let transposed = |i: usize| c.layout.as_bytes()[i] == b't';
    let dims = |flip: bool, rows: usize, columns: usize| {
        if flip { [c.batch, columns, rows] } else { [c.batch, rows, columns] }
    };
    let a = TensorType::new(c.from, dims(transposed(0), c.m, c.k));
    let b = TensorType::new(c.from, dims(transposed(1), c.k, c.n));
    let out = TensorType::new(c.to, [c.batch, c.m, c.n]);
    // The result goes into the memory of the third argument, so that no new pages are timed.
    let types = [a, b, out];
    let g = GraphBuilder::new("product");
    let x: Vec<_> = types.iter().map(|t| g.parameter(t.clone(), "x")).collect();
    let op = DotGeneral {
        lhs_batch: [0].as_slice().into(),
        rhs_batch: [0].as_slice().into(),
        lhs_contract: [if transposed(0) { 1 } else { 2 }].as_slice().into(),
        rhs_contract: [if transposed(1) { 2 } else { 1 }].as_slice().into(),
        element_type: c.to,
    };
    let y = g.emit(op, &[&x[0], &x[1]]);
    let graph = g.finish(&y)?;
    let options = CompileOptions { donated: [2].into_iter().collect(), ..Default::default() };
    let exe = backend.compile(&graph, &options)?;
    let mut s = RandomStream::new(1, 2, 3);
    let mut args: Vec<Buffer> = Vec::new();
    for t in &types {
        let domain = if t.dtype.is_float() {
            ArgDomain::Uniform(-1.0, 1.0)
        } else {
            ArgDomain::Uniform(-100.0, 100.0)
        };
        args.push(backend.put(&domain.draw(t, &mut s), DeviceId(0))?);
    }
    let (mut best, mut best_own) = (f64::MAX, f64::MAX);
    let begin = Instant::now();
    let mut runs = 0;
    while runs < 3 || begin.elapsed().as_secs_f64() < seconds {
        let target = args.split_off(2).remove(0);
        let inputs = args.iter().map(ExecutableArg::Borrow).chain([ExecutableArg::Donate(target)]).collect();
        let (start, own) = (Instant::now(), thread_seconds());
        let mut result = exe.run(inputs)?;
        best = best.min(start.elapsed().as_secs_f64());
        best_own = best_own.min(thread_seconds() - own);
        args.push(result.remove(0));
        runs += 1;
    }
    Ok((best, best_own))
}

fn main() -> systole_ir::Result<()> {
    let arg = |i: usize| std::env::args().nth(i);
    let threads: usize = arg(1).and_then(|a| a.parse().ok()).unwrap_or(1);
    let filter = arg(2).unwrap_or_default();
    let seconds: f64 = arg(3).and_then(|a| a.parse().ok()).unwrap_or(0.5);
    let backend = CpuBackend::with(ThreadPool::new(threads), Level::from_knob()?)?;
    let peak = peak();
    println!("{}; peak of one core {peak:.0} GFLOP/s", backend.devices()[0].description);
    println!(
        "{:<14} {:<28} {:>10} {:>10} {:>7} {:>10}",
        "product", "shape", "GFLOP/s", "own time", "share", "us"
    );
    for c in cases() {
        let shape = format!("{}x{}x{}x{} {} {}>{}", c.batch, c.m, c.n, c.k, c.layout, c.from, c.to);
        if !format!("{} {shape}", c.name).contains(&filter) {
            continue;
        }
        let (wall, own) = measure(&backend, &c, seconds)?;
        let flops = 2e-9 * (c.batch * c.m * c.n) as f64 * c.k as f64;
        let (rate, own_rate) = (flops / wall, flops / own);
        println!(
            "{:<14} {shape:<28} {rate:>10.1} {own_rate:>10.1} {:>6.1}% {:>10.1}",
            c.name,
            100.0 * own_rate / peak / threads as f64,
            wall * 1e6
        );
    }
    Ok(())
}
