//! Benchmark of the tutorial network's train step (batch 1000 of 28×28×1), with each kernel's share.
//!
//! `cargo run --release -p systole-cpu --example step [batch] [steps]`; the table needs `SYSTOLE_LOG=2`.
#![allow(clippy::print_stdout)]

#[path = "../tests/common/net.rs"]
mod net;

use std::time::Instant;
use systole_cpu::CpuBackend;
use systole_ir::rng::RandomStream;
use systole_ir::{DType, Literal, LiteralBuilder, Scalar, TensorType, knobs};
use systole_runtime::{Backend, Buffer, CompileOptions, DeviceId, ExecutableArg, events};

fn draw(ty: &TensorType, s: &mut RandomStream) -> Literal {
    let mut b = LiteralBuilder::new(ty.clone());
    for i in 0..ty.elements() {
        b.set(
            i,
            match ty.dtype {
                DType::I32 => Scalar::Int(s.below(10) as i64),
                _ if ty.rank() == 0 => Scalar::Float(0.01),
                _ => Scalar::Float(s.range(-0.1, 0.1) as f64),
            },
        );
    }
    b.finish()
}

fn main() -> systole_ir::Result<()> {
    let arg =
        |i: usize, default: usize| std::env::args().nth(i).and_then(|a| a.parse().ok()).unwrap_or(default);
    let (batch, steps) = (arg(1, 1000), arg(2, 100));
    events::install(knobs::LOG.get_usize(), |_, message| println!("{message}"));
    let graph = net::train_step(&net::Net {
        batch,
        side: 28,
        channels: 1,
        filters: 64,
        kernel: 3,
        classes: 10,
        same: false,
    });
    let backend = CpuBackend::new()?;
    let options = CompileOptions {
        donated: (3..7).collect(),
        label: "step".into(),
        flush_denormals: true,
        winograd: true,
        ..Default::default()
    };
    let exe = backend.compile(&graph, &options)?;
    let report = exe.report();
    println!("{}", backend.devices()[0].description);
    println!(
        "compiled in {:.1} ms: {} kernels, {:.0} MFLOP, arena {:.1} MiB",
        report.compile_ms,
        report.kernels,
        report.flops / 1e6,
        report.arena_bytes as f64 / (1 << 20) as f64
    );
    if knobs::LOG.get_usize() >= 3 {
        println!("{}", exe.listing());
    }
    let mut s = RandomStream::new(1, 2, 3);
    let mut args: Vec<Buffer> = Vec::new();
    for ty in graph.param_types() {
        args.push(backend.put(&draw(&ty, &mut s), DeviceId(0))?);
    }
    let mut times = Vec::new();
    let (mut first, mut last) = (f64::NAN, f64::NAN);
    for i in 0..steps + 5 {
        let state = args.split_off(3);
        let start = Instant::now();
        let all = args
            .iter()
            .map(ExecutableArg::Borrow)
            .chain(state.into_iter().map(ExecutableArg::Donate))
            .collect();
        let mut out = exe.run(all)?;
        let ms = start.elapsed().as_secs_f64() * 1e3;
        if i >= 5 {
            times.push(ms);
        }
        last = out.remove(0).to_f64()?;
        if i == 0 {
            first = last;
        }
        args.extend(out);
    }
    times.sort_by(f64::total_cmp);
    println!(
        "ms/step: median {:.2}, best {:.2}, worst {:.2}; loss {first:.4} → {last:.4}",
        times[times.len() / 2],
        times[0],
        times[times.len() - 1]
    );
    Ok(())
}
