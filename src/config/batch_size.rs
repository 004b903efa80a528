//! `batch_size = "auto"`: the largest batch whose training step fits into memory, from the compiler's memory plan. Nothing is run.

use super::Config;
use serde::{Deserialize, Deserializer, Serializer, de};
use systole_ir::{Error, ErrorKind, Result, knobs};
use systole_nn::{Compile, Model};
use systole_runtime::backend;

/// What stands for `auto` until the batch is chosen.
pub(super) const AUTO: usize = usize::MAX;

/// No larger one is chosen: Lightning's `max_val`.
const MOST: usize = 8192;
/// The part of the memory that is left for data, the system, and what a plan does not know: Lightning's `margin`.
const MARGIN: f64 = 0.05;

/// A number, or `auto`.
pub(super) fn auto_or_number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<usize, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Written {
        Number(i64),
        Text(String),
    }
    match Written::deserialize(deserializer)? {
        Written::Number(n) => usize::try_from(n)
            .map_err(|_| de::Error::custom(format!("invalid value: integer `{n}`, expected usize"))),
        Written::Text(text) if text == "auto" => Ok(AUTO),
        Written::Text(text) => {
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

impl Config {
    /// Chooses `fit.batch_size`: a power of two. What it says of the choice is kept in `fit.batch_reason`.
    pub(super) fn choose_batch_size(&mut self) -> Result<()> {
        let at = |e: Error| e.at("fit.batch_size = \"auto\"");
        let device = backend("auto")?;
        if device.name() != "cpu" {
            let what = format!("the batch for {} is not chosen here", device.name());
            return Err(at(Error::new(ErrorKind::Unsupported, what)
                .because("its compiler plans the memory, and would have to compile for each batch")
                .hint("`systole plan` says which batch fits; set fit.batch_size to it")));
        }
        let limit = knobs::MEMORY_LIMIT.get_bytes()?;
        let memory = limit.or(systole_cpu::available_memory()).unwrap_or(usize::MAX);
        let usable = memory as f64 * (1.0 - MARGIN);
        let mut model = on_the_cpu(self)?;
        let mut needs = |batch| needs(&mut model, batch);
        let (small, more) = (needs(8)?, needs(32)?);
        let each = (more - small) / 24.0;
        let fitting = (usable - (small - 8.0 * each)) / each.max(1.0);
        let mut batch = 1 << fitting.clamp(1.0, MOST as f64).log2() as usize;
        let mut needed = needs(batch);
        // The plan of a large batch may hold more than small ones tell.
        while batch > 1 && needed.as_ref().map_or(true, |n| *n > usable) {
            batch /= 2;
            needed = needs(batch);
        }
        // Or less: kernels go over large batches in parts.
        while batch < MOST && needed.is_ok() {
            match needs(2 * batch) {
                Ok(more) if more <= usable => (batch, needed) = (2 * batch, Ok(more)),
                _ => break,
            }
        }
        let needed = needed.map_err(at)?;
        if needed > usable {
            let what = "not even a batch of one sample fits into memory";
            let why = format!("its training step needs {}, of {}", told(needed), told(memory as f64));
            return Err(at(Error::new(ErrorKind::Unsupported, what)
                .because(why)
                .hint("take a smaller model or input")));
        }
        self.fit.batch_size = batch;
        let whose = if limit.is_some() { "--memory-limit gives" } else { "are free" };
        let why =
            if batch == MOST { "larger ones are not chosen" } else { "twice as many samples would not fit" };
        self.fit.batch_reason = Some(format!(
            "Batch: {batch} samples, by the compiler's memory plan: a step needs {} of the {} that {whose}; {why}",
            told(needed),
            told(memory as f64)
        ));
        Ok(())
    }
}

/// The model of a configuration, on the CPU.
fn on_the_cpu(config: &Config) -> Result<Model> {
    let sample = config.model_inputs(&config.usual_sample());
    let mut model = config.layers_only()?;
    let output = model.output_for(&sample)?.shape.to_vec();
    let compile = config.compile_config(&output)?;
    model.compile(Compile { backend: Some(backend("cpu")?), ..compile })?;
    model.build(&sample)?;
    Ok(model)
}

/// Bytes that a training step of `batch` samples needs: weights, optimizer state, batch, values on the way.
fn needs(model: &mut Model, batch: usize) -> Result<f64> {
    let step = model.train_executable(batch)?;
    let arguments: f64 = step.param_types().iter().map(|ty| ty.bytes() as f64).sum();
    Ok(arguments + step.report().arena_bytes as f64)
}

fn told(bytes: f64) -> String {
    match bytes / f64::from(1 << 20) {
        mib if mib < 1024.0 => format!("{mib:.0} MiB"),
        mib => format!("{:.1} GiB", mib / 1024.0),
    }
}
