//! `batch_size = "auto"`: finds the largest batch that fits into memory.
//!
//! Uses the compiler's memory plan of a training step; runs no step.

use super::RunConfig;
use serde::{Deserialize, Deserializer, Serializer, de};
use std::sync::Arc;
use systole_dist::Strategy;
use systole_ir::{Error, Result};
use systole_ir::{err, knobs};
use systole_nn::{BatchSizeFinder, Compile, Model, format_bytes, needed_by_step};
use systole_runtime::{Backend, Executable, backend};

/// Placeholder for `auto` until the batch size is chosen.
pub(super) const AUTO: usize = usize::MAX;

/// Deserializes an integer or `auto`.
pub(super) fn auto_or_number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<usize, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum AutoOrNumber {
        Number(i64),
        Text(String),
    }
    match AutoOrNumber::deserialize(deserializer)? {
        AutoOrNumber::Number(n) => usize::try_from(n)
            .map_err(|_| de::Error::custom(format!("invalid value: integer `{n}`, expected usize"))),
        AutoOrNumber::Text(text) if text == "auto" => Ok(AUTO),
        AutoOrNumber::Text(text) => {
            Err(de::Error::custom(format!("invalid type: string {text:?}, expected usize or \"auto\"")))
        }
    }
}

pub(super) fn written<S: Serializer>(batch_size: &usize, serializer: S) -> Result<S::Ok, S::Error> {
    match *batch_size {
        AUTO => serializer.serialize_str("auto"),
        n => serializer.serialize_u64(n as u64),
    }
}

impl RunConfig {
    /// Chooses `fit.batch_size`, a power of two for each device, and stores the explanation in `fit.batch_reason`.
    pub(super) fn choose_batch_size(&mut self) -> Result<()> {
        let at = |e: Error| e.at("fit.batch_size = \"auto\"");
        let mut plan = BatchMemoryPlan::of(self).map_err(at)?;
        let (unit, memory) = (plan.devices, plan.memory as u64);
        let found = BatchSizeFinder::default().search(unit, memory, |batch| plan.needs(batch)).map_err(at)?;
        let (batch, needed) = (found.batch_size, found.needed as f64);
        let memory = format_bytes(plan.memory as f64);
        self.fit.batch_size = batch;
        let why = if found.is_most {
            "this is the largest batch size that is tried"
        } else {
            "twice as many samples would not fit"
        };
        let (by, whose) = (plan.by(), plan.whose);
        self.fit.batch_reason = Some(format!(
            "Batch size: {batch}, by {by}: a step needs {} of the {memory} that {whose}; {why}",
            format_bytes(needed)
        ));
        Ok(())
    }
}

/// Model and device whose compiler predicts the memory of a training step.
struct BatchMemoryPlan {
    model: Model,
    /// Whether the device is the built-in CPU backend, where logical devices share one memory.
    is_here: bool,
    devices: usize,
    /// Memory in bytes: of all logical devices together, or of each real device.
    memory: usize,
    whose: &'static str,
    /// Additional bytes of logical devices compared with one device: copies of weights and optimizer state.
    copies: f64,
}

impl BatchMemoryPlan {
    fn of(config: &RunConfig) -> Result<BatchMemoryPlan> {
        let device = backend("auto")?;
        let limit = knobs::MEMORY_LIMIT.get_bytes()?;
        let is_here = device.name() == "cpu";
        let free = if is_here { systole_cpu::available_memory() } else { None };
        let own = device.memory_limit().and_then(|bytes| usize::try_from(bytes).ok());
        let whose = match (limit, is_here) {
            (Some(_), _) => "--memory-limit allows",
            (None, true) => "are free",
            (None, false) => "each device has",
        };
        let memory = limit.or(free).or(own).or(is_here.then_some(usize::MAX)).ok_or_else(|| {
            err!(Unsupported, "`{}` does not report its memory size", device.name()).hint_setting(
                "pass --max-memory 16GiB, or set fit.batch_size (`systole plan` helps to choose it)",
            )
        })?;
        let model = compiled(config, &device, config.strategy())?;
        let devices = model.devices().len().max(1);
        let mut plan = BatchMemoryPlan { model, is_here, devices, memory, whose, copies: 0.0 };
        if is_here && devices > 1 {
            // Logical devices process the shards of the batch one after the other.
            plan.model = compiled(config, &device, Strategy::one_device())?;
            let small = held(&*plan.model.train_executable(8)?);
            let more = held(&*plan.model.train_executable(32)?);
            plan.copies = (small - (more - small) / 3.0) * (devices - 1) as f64;
        }
        Ok(plan)
    }

    fn by(&self) -> String {
        match (self.is_here, self.devices) {
            (true, 1) => "the compiler's memory plan".into(),
            (true, n) => format!("the compiler's memory plan for {n} logical devices"),
            (false, 1) => "the device's compiler".into(),
            (false, n) => format!("the compiler for the {n} devices"),
        }
    }

    /// Returns the bytes that a training step of `batch` samples needs: weights, optimizer state, batch, temporaries.
    fn needs(&mut self, batch: usize) -> Result<f64> {
        let step = self.model.train_executable(batch)?;
        let bytes = needed_by_step(&*step, self.is_here).map_err(|e| {
            e.hint_setting("`systole plan` finds the largest batch that fits: set fit.batch_size")
        })?;
        Ok(bytes + self.copies)
    }
}

/// Returns the size of the arguments in bytes.
fn held(step: &dyn Executable) -> f64 {
    step.param_types().iter().map(|ty| ty.bytes() as f64).sum()
}

/// Compiles a configuration's model for a device.
fn compiled(config: &RunConfig, device: &Arc<dyn Backend>, strategy: Strategy) -> Result<Model> {
    let mut model = config.layers_only()?;
    let sample = config.model_inputs(&config.usual_sample(), &model);
    let output = model.output_for(&sample)?.shape.to_vec();
    let compile = config.compile_config(&output)?;
    model.compile(Compile { backend: Some(device.clone()), strategy, ..compile })?;
    model.build(&sample)?;
    Ok(model)
}
