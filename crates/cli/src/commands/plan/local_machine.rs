//! Plans a run on this computer: measures its peak rates, and times the training step if it is short.

use crate::run::run_summary;
use std::time::{Duration, Instant};
use systole_config::RunConfig;
use systole_cpu::Level;
use systole_dist::Strategy;
use systole_ir::Result;
use systole_nn::{Compile, Model};
use systole_plan::{CpuCeilings, Estimate, Machine, TimeRange};
use systole_runtime::backend;

/// Measures this computer's peaks, in about 0.2 s.
pub(super) fn this_cpu() -> Result<Machine> {
    let threads = run_summary::threads();
    // AMX tile products wait for operands: matrix products of size 2048 reach a third of the register-only peak
    // (docs/results/current.md).
    const OF_TILES: f64 = 0.31;
    let peak = systole_cpu::peak(Level::from_knob()?, threads);
    let reached = if peak.level == Level::Amx { OF_TILES } else { 1.0 };
    Ok(Machine::Cpu(CpuCeilings {
        flops: peak.fma_gflops * 1e9,
        bf16_flops: peak.bf16_gflops * reached * 1e9,
        tiers: peak.tiers.iter().map(|t| (t.bytes as f64, t.gb_per_s * 1e9)).collect(),
        threads,
        memory: systole_cpu::available_memory().map_or(f64::INFINITY, |b| b as f64),
    }))
}

/// Maximum estimated step time for a trial, in seconds.
const SHORT: f64 = 0.25;
/// Duration of a trial, after two warm-up steps.
const TRIAL: Duration = Duration::from_millis(500);

/// Times a training step on this computer with a random batch; `None` if it is estimated to be slow or too large.
pub(super) fn tried(config: &RunConfig, batch: usize, estimate: &Estimate) -> Result<Option<TimeRange>> {
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
    // In a debug build one step is enough.
    while warm < 4.0 * SHORT && (each.len() < 3 || began.elapsed() < TRIAL) {
        each.push(time()?);
    }
    each.sort_by(f64::total_cmp);
    Ok(Some(TimeRange { low: each[0], likely: each[each.len() / 2], high: each[each.len() - 1] }))
}

/// Builds the model on the CPU, regardless of other devices and of the configuration.
fn on_this_cpu(config: &RunConfig) -> Result<Model> {
    let sample = [config.usual_sample()];
    let mut model = config.layers_only()?;
    let output = model.output_for(&sample)?.shape.to_vec();
    let compile = config.compile_config(&output)?;
    model.compile(Compile { backend: Some(backend("cpu")?), strategy: Strategy::default(), ..compile })?;
    model.build(&sample)?;
    Ok(model)
}
