//! Short soak test (see docs/internals/reliability.md): produces 20 times the memory budget, which must hold.

use systole_base::{DType, Literal, TensorType};
use systole_data::{AUTOTUNE, Dataset, DatasetOptions, Sample};

const BUDGET: usize = 8 << 20;
const ELEMENT: usize = 128 << 10;

#[test]
fn a_pipeline_over_20_times_its_budget_keeps_it() {
    let make = |s: Sample| s.with("large", Literal::zeros(TensorType::new(DType::U8, [ELEMENT])));
    let d = Dataset::range(1 << 40)
        .map_parallel(make, AUTOTUNE)
        .filter(|_| true)
        .shuffle(16, 5)
        .map_parallel(|s| s.map("large", |x| x + 1), AUTOTUNE)
        .batch(2)
        .prefetch(AUTOTUNE)
        .with_options(DatasetOptions { ram_budget: Some(BUDGET), ..DatasetOptions::default() });
    let (mut iter, mut bytes, mut held) = (d.iter(), 0, Vec::new());
    while bytes < 25 * BUDGET {
        bytes += iter.next().unwrap().unwrap().bytes();
        held.push(resident());
    }
    let report = iter.report();
    assert!(report.ram_peak <= BUDGET && report.ram_peak > 0, "{report}");
    // The allocator keeps some freed memory; 20 times the budget would be 160 MiB.
    let (early, late) = held.split_at(held.len() / 4);
    let most = |part: &[usize]| part.iter().copied().max().unwrap_or(0);
    assert!(most(late) <= most(early) + 3 * BUDGET, "{} then {} bytes", most(early), most(late));
}

/// Resident memory of the process in bytes; 0 if the system does not report it.
fn resident() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    text.split_whitespace().nth(1).and_then(|n| n.parse::<usize>().ok()).map_or(0, |pages| pages * 4096)
}
