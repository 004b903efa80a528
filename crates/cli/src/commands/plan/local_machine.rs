//! This computer as a machine of the table: its ceilings, and where a step is short, the step itself.

use crate::run::run_summary;
use std::time::{Duration, Instant};
use systole_config::Config;
use systole_cpu::Level;
use systole_dist::Strategy;
use systole_ir::Result;
use systole_nn::{Compile, Model};
use systole_plan::{Cpu, Estimate, Machine, Range};
use systole_runtime::backend;

/// This computer's ceilings are measured: a fifth of a second.
pub(super) fn this_cpu() -> Result<Machine> {
    let threads = run_summary::threads();
    // AMX products wait for operands: at size 2048 they reach a third of the tile registers' own rate
    // (docs/results/current.md).
    const OF_TILES: f64 = 0.31;
    let peak = systole_cpu::peak(Level::from_knob()?, threads);
    let reached = if peak.level == Level::Amx { OF_TILES } else { 1.0 };
    Ok(Machine::Cpu(Cpu {
        flops: peak.fma_gflops * 1e9,
        bf16_flops: peak.bf16_gflops * reached * 1e9,
        tiers: peak.tiers.iter().map(|t| (t.bytes as f64, t.gb_per_s * 1e9)).collect(),
        threads,
        memory: systole_cpu::available_memory().map_or(f64::INFINITY, |b| b as f64),
    }))
}

/// Seconds of a step that is tried.
const SHORT: f64 = 0.25;
/// How long steps are tried, after two that touch new memory.
const TRIAL: Duration = Duration::from_millis(500);

/// A step of the model on this computer, tried on a drawn batch; none where it is estimated to be long or too large.
pub(super) fn tried(config: &Config, batch: usize, estimate: &Estimate) -> Result<Option<Range>> {
    if estimate.device.likely > SHORT || !estimate.memory.fits() {
        return Ok(None);
    }
    let mut config = config.clone();
    config.fit.batch_size = batch;
    let mut model = on_this_cpu(&config)?;
    let drawn = config.synthetic_batch(&model)?;
    let mut step = model.device_batch_training(&drawn)?;
    let mut time = || -> Result<f64> {
        let start = Instant::now();
        step.run()?;
        Ok(start.elapsed().as_secs_f64())
    };
    let warm = time()?.min(time()?);
    let began = Instant::now();
    let mut each = vec![time()?];
    // A debug build is told by one step.
    while warm < 4.0 * SHORT && (each.len() < 3 || began.elapsed() < TRIAL) {
        each.push(time()?);
    }
    each.sort_by(f64::total_cmp);
    Ok(Some(Range { low: each[0], likely: each[each.len() / 2], high: each[each.len() - 1] }))
}

/// The model on the CPU, whatever else this machine has or the configuration asks for.
fn on_this_cpu(config: &Config) -> Result<Model> {
    let sample = [config.usual_sample()];
    let mut model = config.layers_only()?;
    let output = model.output_for(&sample)?.shape.to_vec();
    let compile = config.compile_config(&output)?;
    model.compile(Compile { backend: Some(backend("cpu")?), strategy: Strategy::default(), ..compile })?;
    model.build(&sample)?;
    Ok(model)
}
