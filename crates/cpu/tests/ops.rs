//! Tests every op's samples against the interpreter: all element types, every instruction-set level of this machine.
//!
//! Results must be bit-identical for 1, 2, 3 and 8 threads.

mod common;

use common::*;
use systole_cpu::CpuBackend;
use systole_ir::op::{OpSample, TABLE};

fn check(op: &str, sample: &OpSample, backends: &[Vec<CpuBackend>]) {
    for seed in 0..3 {
        let args = sample.arguments(seed);
        let want = oracle(&sample.graph, &args);
        for of_level in backends {
            let first = run(&of_level[0], &sample.graph, &args);
            for (k, (got, want)) in first.iter().zip(&want).enumerate() {
                let (worst, at) = distance(got, want, sums(&sample.graph));
                assert!(
                    worst <= sample.ulp as f64,
                    "{op}, sample {}, result {k}, element {at}: {worst} units apart, {} allowed\n{got:?}\n{want:?}",
                    sample.label,
                    sample.ulp
                );
            }
            for more in &of_level[1..] {
                assert!(
                    first == run(more, &sample.graph, &args),
                    "{op}, {}: depends on threads",
                    sample.label
                );
            }
        }
    }
}

#[test]
fn every_sample_of_every_op() {
    let backends: Vec<Vec<CpuBackend>> =
        levels().map(|l| [1, 2, 3, 8].map(|t| backend(l, t)).into()).collect();
    let mut failed = Vec::new();
    for entry in TABLE {
        for sample in (entry.samples)() {
            let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                check(entry.name, &sample, &backends);
            }));
            if caught.is_err() {
                failed.push(format!("{} {}", entry.name, sample.label));
            }
        }
    }
    assert!(failed.is_empty(), "{} samples failed: {failed:#?}", failed.len());
    assert!(!TABLE.is_empty());
}
