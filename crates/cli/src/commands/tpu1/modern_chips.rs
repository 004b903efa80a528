//! Estimates the time of a TPU v1 program's matrix products on modern chips, with the tables of `systole plan`.

use crate::commands::plan;
use crate::render::screen::table;
use serde_json::{Value, json};
use systole_ir::{DType, GraphBuilder, Result, TensorType};
use systole_plan::{HalfType, KernelList, Machine, analytic, duration};
use systole_tpu1::ChipReport;

/// One chip of each kind.
const MACHINES: [&str; 5] = ["v2-8", "v5e-1", "v6e-1", "v100", "h100"];

/// A chip and its time for the batch.
pub(super) struct ModernChip {
    name: String,
    seconds: f64,
    limit: String,
}

/// Estimates the program's products in sequence, in bf16 (f16 on a V100), on one device of each machine.
pub(super) fn machines(report: &ChipReport) -> Result<Vec<ModernChip>> {
    let tables = plan::tables(None)?;
    let g = GraphBuilder::new("main");
    let mut outputs = Vec::new();
    for (n, part) in report.program.parts.iter().enumerate() {
        let Some([rows, inputs, outputs_of, count]) = part.product else { continue };
        for i in 0..count {
            let matrix = |dims: [usize; 2], of: &str| {
                g.parameter(TensorType::new(DType::BF16, dims), &format!("{of}{n}_{i}"))
            };
            outputs.push(matrix([rows, inputs], "x").dot(&matrix([inputs, outputs_of], "w")));
        }
    }
    if outputs.is_empty() {
        return Ok(Vec::new());
    }
    let graph = g.finish(&outputs)?;
    let work = KernelList::of(&graph);
    let each = MACHINES.into_iter().map(|name| {
        let machine = Machine::of(name, &tables)?;
        // A V100 does not multiply bf16.
        let half = if name == "v100" { HalfType::F16 } else { HalfType::Bf16 };
        let estimate = analytic(&work, &machine, &tables, half)?;
        Ok(ModernChip {
            name: machine.title(),
            seconds: estimate.device.likely,
            limit: estimate.limit().into(),
        })
    });
    each.collect()
}

pub(super) fn text(report: &ChipReport, today: &[ModernChip]) -> String {
    if today.is_empty() {
        return "The program has no matrix products to compare.".into();
    }
    let own = report.timing.seconds(&report.chip);
    let mut rows = vec![["the same products on", "a batch", "speedup", "limit"].map(String::from).to_vec()];
    rows.push(["the first TPU, int8", &duration(own), "1", "as above"].map(String::from).to_vec());
    for t in today {
        let faster = format!("{:.1}", own / t.seconds);
        rows.push([t.name.clone(), duration(t.seconds), faster, t.limit.clone()].to_vec());
    }
    format!(
        "{}\n(one device each, bf16 or f16, by the formulas of `systole plan`; only the first TPU's time includes start and input transfer)",
        table(&rows)
    )
}

pub(super) fn as_json(today: &[ModernChip]) -> Value {
    let each = today.iter().map(|t| json!({"name": t.name, "seconds": t.seconds, "limit": t.limit}));
    each.collect()
}
