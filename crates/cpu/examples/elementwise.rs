//! Benchmark of element-wise and row ops against memory bandwidth.
//!
//! Reports GB/s of the minimum traffic (each operand read once, each result written once).
//!
//! `cargo run --release -p systole-cpu --example elementwise [threads] [name]`: one thread is timed by its CPU time, so
//! that other processes do not count; several threads by the wall clock, best of many. `SYSTOLE_LOG=2` shows each
//! kernel's share.
#![allow(clippy::print_stdout)]

use std::sync::Arc;
use std::time::Instant;
use systole_cpu::{CpuBackend, Level, ThreadPool, thread_cpu_seconds};
use systole_ir::DType::*;
use systole_ir::op::RngAlgorithm;
use systole_ir::rng::RandomStream;
use systole_ir::{Graph, GraphBuilder, Literal, LiteralBuilder, Scalar, Tensor, TensorType, knobs, vjp};
use systole_runtime::{Backend, Buffer, CompileOptions, DeviceId, ExecutableArg, events};

/// A benchmark case.
struct Case {
    name: String,
    graph: Arc<Graph>,
    /// Parameters that the results replace, in order.
    donated: Vec<usize>,
    /// Bytes that must move.
    bytes: f64,
}

fn case(
    name: &str,
    params: &[TensorType],
    state: usize,
    bytes: usize,
    f: impl Fn(&[Tensor]) -> Vec<Tensor>,
) -> Case {
    let g = GraphBuilder::new("case");
    let params: Vec<Tensor> =
        params.iter().enumerate().map(|(i, t)| g.parameter(t.clone(), &format!("p{i}"))).collect();
    let results = f(&params);
    // Other results get existing memory, as in an arena: new pages would cost more than the work.
    results[state..].iter().for_each(|r| drop(g.parameter(r.ty().clone(), "room")));
    let graph = g.finish(&results).unwrap_or_else(|e| panic!("{name}: {e}"));
    let donated = (0..state).chain(params.len()..params.len() + results.len() - state).collect();
    Case { name: name.into(), graph, donated, bytes: bytes as f64 }
}

fn f32s(dims: &[usize]) -> TensorType {
    TensorType::new(F32, dims.to_vec())
}

fn layer_norm(x: &Tensor, gamma: &Tensor, beta: &Tensor) -> Tensor {
    let last = [x.rank() - 1];
    let centred = x - x.mean(&last).broadcast_except(x.shape(), &last);
    let variance = (&centred * &centred).mean(&last);
    let scaled = centred * (variance + 1e-5).rsqrt().broadcast_except(x.shape(), &last);
    scaled * gamma.broadcast_in_dim(x.shape(), &last) + beta.broadcast_in_dim(x.shape(), &last)
}

fn batch_norm(x: &Tensor, gamma: &Tensor, beta: &Tensor) -> Tensor {
    let (last, others) = (x.rank() - 1, (0..x.rank() - 1).collect::<Vec<_>>());
    let wide = |t: &Tensor| t.broadcast_in_dim(x.shape(), &[last]);
    let centred = x - wide(&x.mean(&others));
    let variance = (&centred * &centred).mean(&others);
    let factor = (variance + 1e-3).rsqrt() * gamma;
    (centred * wide(&factor) + wide(beta)).relu()
}

fn cross_entropy(logits: &Tensor, labels: &Tensor) -> Tensor {
    let hot = labels.one_hot(logits.dim(-1), F32);
    -(logits.log_softmax() * hot).sum(&[1]).mean(&[0])
}

/// Gradients after the value.
fn with_grads(y: Tensor, dy: &Tensor, xs: &[&Tensor]) -> Vec<Tensor> {
    let grads = vjp(&[&y], &[dy], xs);
    std::iter::once(y).chain(grads).collect()
}

fn adam(p: &[Tensor]) -> Vec<Tensor> {
    let (w, m, v, g) = (&p[0], &p[1], &p[2], &p[3]);
    let m = m * 0.9 + g * 0.1;
    let v = v * 0.999 + g * g * 0.001;
    let w = w - &m * 0.001 / (v.sqrt() + 1e-7);
    vec![w, m, v]
}

/// Element-wise ops on `n` elements, and on rows of them.
fn sized(n: usize) -> Vec<Case> {
    let a = f32s(&[n]);
    let mut all = vec![
        case("copy", std::slice::from_ref(&a), 0, 8 * n, |p| vec![-&p[0]]),
        case("triad", &[a.clone(), a.clone()], 0, 12 * n, |p| vec![&p[0] + &p[1] * 3.0]),
        case("adam", &[a.clone(), a.clone(), a.clone(), a.clone()], 3, 28 * n, adam),
        case("sgd momentum", &[a.clone(), a.clone(), a.clone()], 2, 20 * n, |p| {
            let m = &p[1] * 0.9 - &p[2] * 0.01;
            vec![&p[0] + &m, m]
        }),
        case("gelu tanh", std::slice::from_ref(&a), 0, 8 * n, |p| vec![p[0].gelu_tanh()]),
        case("gelu erf", std::slice::from_ref(&a), 0, 8 * n, |p| vec![p[0].gelu()]),
        case("gelu tanh grad", &[a.clone(), a.clone()], 0, 12 * n, |p| {
            vjp(&[&p[0].gelu_tanh()], &[&p[1]], &[&p[0]])
        }),
        case("sigmoid", std::slice::from_ref(&a), 0, 8 * n, |p| vec![p[0].logistic()]),
        case("exp", std::slice::from_ref(&a), 0, 8 * n, |p| vec![p[0].exp()]),
        case("erf_inv", std::slice::from_ref(&a), 0, 8 * n, |p| vec![p[0].erf_inv()]),
        // These have no vector loop.
        case("tan", std::slice::from_ref(&a), 0, 8 * n, |p| vec![p[0].tan()]),
        case("cbrt", std::slice::from_ref(&a), 0, 8 * n, |p| vec![p[0].cbrt()]),
        case("relu grad", &[a.clone(), a.clone()], 0, 12 * n, |p| vjp(&[&p[0].relu()], &[&p[1]], &[&p[0]])),
        case("dropout", &[TensorType::new(U64, [2]), a.clone()], 0, 8 * n, |p| {
            let (_, bits) = p[0].random_bits(TensorType::new(U32, [n]), RngAlgorithm::Philox);
            let kept = bits.greater_equal(&bits.scalar_like(858_993_459.0));
            vec![kept.select(&(&p[1] * 1.25), &p[1].zeros_like())]
        }),
        case("f32 to bf16", std::slice::from_ref(&a), 0, 6 * n, |p| vec![p[0].convert(BF16)]),
        case("bf16 to f32", &[a.with_dtype(BF16)], 0, 6 * n, |p| vec![p[0].convert(F32)]),
        case("bf16 add", &[a.with_dtype(BF16), a.with_dtype(BF16)], 0, 6 * n, |p| vec![&p[0] + &p[1]]),
        case("sum", std::slice::from_ref(&a), 0, 4 * n, |p| vec![p[0].sum_all()]),
    ];
    for d in [256, 768, 1024] {
        let (x, c) = (f32s(&[n / d, d]), f32s(&[d]));
        let n = n / d * d;
        all.extend([
            case(&format!("softmax {d}"), std::slice::from_ref(&x), 0, 8 * n, |p| vec![p[0].softmax()]),
            case(&format!("softmax grad {d}"), &[x.clone(), x.clone()], 0, 16 * n, |p| {
                with_grads(p[0].softmax(), &p[1], &[&p[0]])
            }),
            case(&format!("layer norm {d}"), &[x.clone(), c.clone(), c.clone()], 0, 8 * n, |p| {
                vec![layer_norm(&p[0], &p[1], &p[2])]
            }),
            case(
                &format!("layer norm grad {d}"),
                &[x.clone(), c.clone(), c.clone(), x.clone()],
                0,
                16 * n,
                |p| with_grads(layer_norm(&p[0], &p[1], &p[2]), &p[3], &[&p[0], &p[1], &p[2]]),
            ),
            case(&format!("bias + gelu {d}"), &[x.clone(), c.clone()], 0, 8 * n, |p| {
                vec![(&p[0] + &p[1].broadcast_in_dim(p[0].shape(), &[1])).gelu_tanh()]
            }),
            case(&format!("column sums {d}"), std::slice::from_ref(&x), 0, 4 * n, |p| vec![p[0].sum(&[0])]),
        ]);
    }
    all
}

/// Shapes of real networks.
fn shaped() -> Vec<Case> {
    let mut all = Vec::new();
    for dims in [[16, 56, 56, 256], [128, 32, 32, 32]] {
        let (x, c) = (f32s(&dims), f32s(&dims[3..]));
        let n = x.elements();
        all.push(case(&format!("batch norm {dims:?}"), &[x.clone(), c.clone(), c.clone()], 0, 12 * n, |p| {
            vec![batch_norm(&p[0], &p[1], &p[2])]
        }));
        all.push(case(&format!("batch norm grad {dims:?}"), &[x.clone(), c.clone(), c, x], 0, 32 * n, |p| {
            with_grads(batch_norm(&p[0], &p[1], &p[2]), &p[3], &[&p[0], &p[1], &p[2]])
        }));
    }
    let (rows, classes, width) = (1024, 50257, 768);
    let (table, ids) = (f32s(&[classes, width]), TensorType::new(I32, [rows]));
    let logits = f32s(&[rows, classes]);
    all.push(case("cross-entropy", &[logits.clone(), ids.clone()], 0, 4 * rows * classes, |p| {
        vec![cross_entropy(&p[0], &p[1])]
    }));
    all.push(case("cross-entropy grad", &[logits.clone(), ids.clone()], 0, 8 * rows * classes, |p| {
        let loss = cross_entropy(&p[0], &p[1]);
        with_grads(loss.clone(), &loss.ones_like(), &[&p[0]])
    }));
    all.push(case("softmax 50257", &[logits], 0, 8 * rows * classes, |p| vec![p[0].softmax()]));
    let looked_up = f32s(&[rows, width]);
    all.push(case("embedding", &[table.clone(), ids.clone()], 0, 8 * rows * width, |p| {
        vec![p[0].take(&p[1])]
    }));
    let gradient_bytes = 4 * classes * width;
    all.push(case("embedding grad", &[table, ids, looked_up], 0, gradient_bytes, |p| {
        vjp(&[&p[0].take(&p[1])], &[&p[2]], &[&p[0]])
    }));
    all
}

fn draw(ty: &TensorType, s: &mut RandomStream) -> Literal {
    if ty.dtype == F32 {
        let values: Vec<f32> = (0..ty.elements()).map(|_| s.range(-2.0, 2.0) + 2.001).collect();
        return Literal::from_slice(ty.shape.dims().to_vec(), &values).unwrap_or_else(|e| panic!("{e}"));
    }
    let mut b = LiteralBuilder::new(ty.clone());
    for i in 0..ty.elements() {
        let value = match ty.dtype {
            I32 => Scalar::Int(s.below(50257) as i64),
            U64 => Scalar::Uint(s.below(1 << 30)),
            _ => Scalar::Float(s.range(-2.0, 2.0) as f64),
        };
        b.set(i, value);
    }
    b.finish()
}

/// Returns the best GB/s, the number of kernels, and MiB of arena.
fn measure(
    backend: &CpuBackend,
    threads: usize,
    c: &Case,
    seconds: f64,
) -> systole_ir::Result<(f64, usize, f64)> {
    let options = CompileOptions {
        donated: c.donated.clone(),
        label: c.name.clone(),
        flush_denormals: true,
        ..Default::default()
    };
    let exe = backend.compile(&c.graph, &options)?;
    let mut s = RandomStream::new(1, 2, 3);
    let mut args: Vec<Option<Buffer>> = Vec::new();
    for ty in c.graph.param_types() {
        args.push(Some(backend.put(&draw(&ty, &mut s), DeviceId(0))?));
    }
    let origin = Instant::now();
    let now = || match thread_cpu_seconds() {
        Some(seconds) if threads == 1 => seconds,
        _ => origin.elapsed().as_secs_f64(),
    };
    let (mut best, mut runs, mut repeat) = (f64::INFINITY, 0, 1);
    while origin.elapsed().as_secs_f64() < seconds || runs < 3 {
        let start = now();
        for _ in 0..repeat {
            let mut state: Vec<Option<Buffer>> = vec![None; args.len()];
            c.donated.iter().for_each(|&p| state[p] = args[p].take());
            let both = args.iter().zip(state);
            let all = both
                .filter_map(|(a, s)| s.map(ExecutableArg::Donate).or(a.as_ref().map(ExecutableArg::Borrow)))
                .collect();
            let out = exe.run(all)?;
            c.donated.iter().zip(out).for_each(|(&p, y)| args[p] = Some(y));
        }
        let each = (now() - start) / repeat as f64;
        // Short runs are timed together: reading the clock costs a microsecond.
        if each * (repeat as f64) < 2e-4 {
            repeat *= 4;
            continue;
        }
        best = best.min(each);
        runs += 1;
    }
    let report = exe.report();
    Ok((c.bytes / best / 1e9, report.kernels, report.arena_bytes as f64 / (1 << 20) as f64))
}

fn main() -> systole_ir::Result<()> {
    let arg = |i: usize| std::env::args().nth(i);
    let threads = arg(1).and_then(|a| a.parse().ok()).unwrap_or(1);
    let wanted = arg(2).unwrap_or_default();
    events::install(knobs::LOG.get_usize(), |_, message| println!("{message}"));
    let backend = CpuBackend::with(ThreadPool::new(threads), Level::from_knob()?)?;
    println!("{}", backend.devices()[0].description);
    println!("{:<36} {:>12} {:>12} {:>8} {:>10}", "", "64 MB GB/s", "64 KiB GB/s", "kernels", "arena MiB");
    for (large, small) in sized(1 << 24).iter().zip(&sized(1 << 14)) {
        if large.name.contains(&wanted) {
            let (l, kernels, arena) = measure(&backend, threads, large, 0.5)?;
            let (s, ..) = measure(&backend, threads, small, 0.1)?;
            println!("{:<36} {l:>12.1} {s:>12.1} {kernels:>8} {arena:>10.1}", large.name);
        }
    }
    for c in shaped().iter().filter(|c| c.name.contains(&wanted)) {
        let (rate, kernels, arena) = measure(&backend, threads, c, 1.0)?;
        println!("{:<36} {rate:>12.1} {:>12} {kernels:>8} {arena:>10.1}", c.name, "");
    }
    Ok(())
}
