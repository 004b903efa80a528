//! Tests rematerialization under a memory limit: less memory, bit-identical results.
//!
//! A separate test binary, because the limit applies to the whole process.

use std::sync::Arc;
use systole_cpu::{CpuBackend, Level, ThreadPool};
use systole_ir::{
    DType::F32, GraphBuilder, Literal, LiteralBuilder, Scalar, TensorType, grad, knobs, rng::RandomStream,
};
use systole_runtime::{Backend, Buffer, CompileOptions, ExecutableArg};

fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|l| l.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() << 10
}

#[test]
#[cfg(target_os = "linux")]
fn values_are_computed_again_where_memory_is_short() {
    let (rows, width, layers) = (1 << 16, 32, 10);
    let g = GraphBuilder::new("main");
    let x = g.parameter(TensorType::new(F32, [rows, width]), "x");
    let weights: Vec<_> =
        (0..layers).map(|i| g.parameter(TensorType::new(F32, [width, width]), &format!("w{i}"))).collect();
    let y = weights.iter().fold(x, |h, w| {
        let z = h.dot(w);
        &z * z.logistic()
    });
    let loss = y.sum(&[0, 1]);
    let refs: Vec<_> = weights.iter().collect();
    let mut results = vec![loss.clone()];
    results.extend(grad(&loss, &refs));
    let graph = g.finish(&results).unwrap();
    let mut s = RandomStream::new(1, 2, 3);
    let draw = |ty: TensorType| {
        let mut b = LiteralBuilder::new(ty.clone());
        (0..ty.elements()).for_each(|i| b.set(i, Scalar::Float(s.range(-0.1, 0.1) as f64)));
        b.finish()
    };
    let args: Vec<Buffer> = graph.param_types().into_iter().map(draw).map(Buffer::from).collect();
    let backend = CpuBackend::with(ThreadPool::new(2), Level::best())
        .unwrap()
        .with_blocks(systole_compile::RowBlocksMode::Off);
    let run = || {
        let exe = backend.compile(&graph, &CompileOptions::default()).unwrap();
        let out = exe.run(args.iter().map(ExecutableArg::Borrow).collect()).unwrap();
        let out: Vec<Literal> = out.iter().map(|b| b.to_literal().unwrap()).collect();
        (exe.report().arena_bytes, out)
    };
    let (whole, want) = run();
    assert!(whole > 100 << 20, "{whole}");
    knobs::override_value(knobs::MEMORY_LIMIT, (resident() + whole * 4 / 5).to_string());
    let (less, got) = run();
    assert!(less < whole * 4 / 5, "{less} of {whole}");
    assert_eq!(want, got);
    knobs::override_value(knobs::MEMORY_LIMIT, (resident() + (8 << 20)).to_string());
    let refused = backend.compile(&Arc::clone(&graph), &CompileOptions::default()).err().unwrap().to_string();
    assert!(refused.contains("remat") && refused.contains("MiB"), "{refused}");
}
