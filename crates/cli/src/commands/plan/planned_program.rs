//! What is planned: a model's training step at any batch size, or one program.

use super::args::PlanArgs;
use crate::models::command_target::{is_path, missing, set_all};
use crate::models::program;
use crate::render::screen::number_of;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::path::Path;
use std::sync::Arc;
use systole_config::{ConfigDraft, PRESETS, RunConfig};
use systole_ir::{DType, Error, ErrorKind, Graph, GraphBuilder, Result, TensorType};
use systole_nn::did_you_mean::suggestion;
use systole_nn::{Model, Precision, counted};
use systole_plan::{Estimate, KernelList, Machine, duration};
use systole_runtime::ValueRoles;

pub(super) enum PlannedProgram {
    /// A training step; its work by the batch of one device.
    Step {
        name: String,
        config: Box<RunConfig>,
        model: Box<Model>,
        batch: usize,
        compiled: bool,
        shares: HashMap<usize, DeviceProgram>,
    },
    /// A program that every device runs as it is.
    Program { name: String, share: DeviceProgram },
}

/// What one device does in a step.
pub(super) struct DeviceProgram {
    /// What a compiler is given.
    pub(super) graph: Arc<Graph>,
    pub(super) work: KernelList,
    /// Samples of one device; 0 for a program that is no training step.
    pub(super) batch: usize,
}

/// How long a run is.
pub(super) struct RunLength {
    pub(super) steps: f64,
    /// Epochs and the samples of each, where the run is counted by them, and who says so.
    pub(super) epochs: Option<(u64, u64, String)>,
}

impl RunLength {
    /// `90 epochs of 1,281,167 samples (ImageNet's training pictures): 3,519 steps`
    pub(super) fn words(&self) -> String {
        let steps = self.steps_words();
        match &self.epochs {
            Some((epochs, samples, whose)) => {
                format!("{} of {} ({whose}): {steps}", counted(*epochs, "epoch"), counted(*samples, "sample"))
            }
            None => steps,
        }
    }

    pub(super) fn steps_words(&self) -> String {
        counted(self.steps as u64, "step")
    }
}

impl DeviceProgram {
    fn of(graph: Arc<Graph>, batch: usize) -> DeviceProgram {
        DeviceProgram { work: KernelList::of(&graph), graph, batch }
    }
}

impl PlannedProgram {
    pub(super) fn of(args: &PlanArgs) -> Result<PlannedProgram> {
        let name = args.target.as_deref().unwrap_or_default();
        let is_program = args.matmul.is_some() || program::is_program(name);
        if let (true, Some(flag)) = (is_program, of_training(args)) {
            let e = Error::new(
                ErrorKind::Config,
                format!("{flag} says nothing of a program that is no training step"),
            );
            return Err(e
                .at(flag)
                .hint("--steps N is how often it runs; a preset or a TOML file has epochs and batches"));
        }
        if let Some(sizes) = &args.matmul {
            let graph = product(sizes, &args.dtype)?;
            let name = format!("product {sizes} {}", args.dtype);
            return Ok(PlannedProgram::Program { name, share: DeviceProgram::of(graph, 0) });
        }
        if is_program {
            let graph = program::open(name, &args.dims)?.imported.program.graph;
            return Ok(PlannedProgram::Program { name: name.into(), share: DeviceProgram::of(graph, 0) });
        }
        let mut draft = draft(name)?;
        if let Some(p) = &args.precision {
            draft.set(format!("--precision {p}"), "compile.precision", p);
        }
        set_all(&mut draft, &args.sets).map_err(|failure| failure.error)?;
        let config = draft.finish().map_err(|r| r.error)?;
        let batch = args.batch_size.map_or(config.fit.batch_size, |n| n as usize);
        let model = Box::new(config.untrained()?);
        Ok(PlannedProgram::Step {
            name: name.into(),
            config: Box::new(config),
            model,
            batch,
            compiled: args.compiled,
            shares: HashMap::new(),
        })
    }

    pub(super) fn title(&self) -> String {
        match self {
            PlannedProgram::Step { name, config, batch, .. } => {
                let samples = number_of(batch, "sample");
                format!("{name}: a training step of {samples}, {}", config.compile.precision)
            }
            PlannedProgram::Program { name, .. } => format!("{name}: one run of it"),
        }
    }

    pub(super) fn is_f16(&self) -> bool {
        let f16 = Precision::MixedFloat16.name();
        matches!(self, PlannedProgram::Step { config, .. } if config.compile.precision == f16)
    }

    /// What each of `devices` does in a step, and how many samples that is for all of them.
    pub(super) fn share(&mut self, devices: usize, notes: &mut Vec<String>) -> Result<(&DeviceProgram, f64)> {
        match self {
            PlannedProgram::Program { share, .. } => {
                if devices > 1 {
                    notes.push("one device runs the program; the others are not used".into());
                }
                Ok((share, 1.0))
            }
            PlannedProgram::Step { model, batch, compiled, shares, .. } => {
                if *batch < devices {
                    let what = format!("a batch of {batch} cannot be split over {devices} devices");
                    return Err(Error::new(ErrorKind::Unsupported, what));
                }
                let each = batch.div_ceil(devices);
                if *batch % devices != 0 {
                    notes.push(format!(
                        "{batch} is no multiple of {devices}: some devices wait for those with {each}"
                    ));
                }
                let share = match shares.entry(each) {
                    Entry::Occupied(known) => known.into_mut(),
                    Entry::Vacant(free) => {
                        let share = DeviceProgram::of(model.train_graph(each)?, each);
                        // Layer by layer is what work is told by; in loops is what a compiler is soon done with.
                        let graph = match compiled {
                            true => model.train_program(each, true)?.0,
                            false => share.graph.clone(),
                        };
                        free.insert(DeviceProgram { graph, ..share })
                    }
                };
                Ok((&*share, *batch as f64))
            }
        }
    }

    /// Where the host's work is most of a step, or was: the Keras tutorial's own measurement, set against the device's.
    pub(super) fn host_words(&self, machine: &Machine, estimate: &Estimate) -> Option<String> {
        let PlannedProgram::Step { name, batch, .. } = self else { return None };
        let (device, host) = (estimate.device.likely, estimate.host.total());
        let share = |part: f64, whole: f64| format!("{:.0} %", 100.0 * part / whole);
        if machine.title() == "v2-8" && is_tutorial(name) && *batch == 1000 {
            let rest = KERAS_TUTORIAL - device;
            return Some(format!(
                "the Keras tutorial printed {} a step here: the device needs {} of it, so {} ({}) was host: Python that \
                 started each step over the network and fed its batch. Here the host needs {}",
                duration(KERAS_TUTORIAL),
                duration(device),
                duration(rest),
                share(rest, KERAS_TUTORIAL),
                duration(host),
            ));
        }
        let told =
            format!("the devices wait: they work {} of a step of {}", share(device, host), duration(host));
        (host > device).then_some(told)
    }

    /// The step of all devices together with what its arguments are; none for a program that is no step.
    pub(super) fn whole(&mut self) -> Result<Option<(Arc<Graph>, ValueRoles)>> {
        match self {
            PlannedProgram::Program { .. } => Ok(None),
            PlannedProgram::Step { model, batch, .. } => model.train_program(*batch, true).map(Some),
        }
    }

    /// How long the run is: as asked for, as the configuration says, or by the size of its data set.
    pub(super) fn length(&self, args: &PlanArgs) -> Option<RunLength> {
        if let Some(n) = args.steps {
            return Some(RunLength { steps: n as f64, epochs: None });
        }
        let PlannedProgram::Step { name, config, batch, .. } = self else { return None };
        let epochs = args.epochs.unwrap_or(config.fit.epochs as u64);
        let (samples, whose) = match args.samples {
            Some(n) => (n, "--samples".into()),
            None => samples_of(name, config)?,
        };
        // An epoch's last, smaller batch counts for as much as it holds.
        let steps = (epochs as f64 * samples as f64 / *batch as f64).ceil();
        Some(RunLength { steps, epochs: Some((epochs, samples, whose)) })
    }

    /// The configuration and the batch of a training step.
    pub(super) fn step(&self) -> Option<(&RunConfig, usize)> {
        match self {
            PlannedProgram::Step { config, batch, .. } => Some((config, *batch)),
            PlannedProgram::Program { .. } => None,
        }
    }
}

/// The first option that only training steps have.
fn of_training(args: &PlanArgs) -> Option<&'static str> {
    let given = [
        ("--epochs", args.epochs.is_some()),
        ("--samples", args.samples.is_some()),
        ("--batch-size", args.batch_size.is_some()),
        ("--precision", args.precision.is_some()),
        ("--set", !args.sets.is_empty()),
    ];
    given.into_iter().find(|g| g.1).map(|g| g.0)
}

/// Samples of an epoch and who says so.
fn samples_of(name: &str, config: &RunConfig) -> Option<(u64, String)> {
    // The preset of this name trains on a handful of pictures; who plans it means what its name stands for.
    if name == "resnet50" {
        return Some((IMAGENET, "ImageNet's training pictures; --samples N for others".into()));
    }
    // A batch of another size changes how many steps an epoch takes, not how many samples it has.
    if let Some(n) = config.fit.steps_per_epoch {
        let whose = format!("{} of {} in the configuration", number_of(n, "step"), config.fit.batch_size);
        return Some(((n * config.fit.batch_size) as u64, whose));
    }
    if let Some(n) = config.data.train_samples {
        return Some((n, "train_samples of the configuration".into()));
    }
    let dataset = &config.data.dataset;
    size_of(dataset).map(|n| (n, format!("all of {dataset}")))
}

/// Pictures of ImageNet's training set (ILSVRC 2012).
const IMAGENET: u64 = 1_281_167;

/// Seconds a step of the Keras tutorial on a v2-8 in its epochs 2 to 4, batch 1000, as the tutorial printed them.
const KERAS_TUTORIAL: f64 = 11e-3;

/// The preset with the tutorial's network and data, by both of its names.
fn is_tutorial(name: &str) -> bool {
    matches!(name, "fashion-mnist" | "fashion-cnn")
}

/// Training samples of the data sets whose size is always the same.
fn size_of(dataset: &str) -> Option<u64> {
    match dataset {
        "fashion-mnist" | "mnist" | "glyphs" => Some(60_000),
        "cifar10" => Some(50_000),
        _ => None,
    }
}

fn draft(name: &str) -> Result<ConfigDraft> {
    if name.to_lowercase().ends_with(".toml") {
        return ConfigDraft::read(name);
    }
    // The name that the benchmarks use for the tutorial's model.
    let preset = if is_tutorial(name) { "fashion-mnist" } else { name };
    if PRESETS.contains(&preset) {
        return ConfigDraft::preset(preset);
    }
    let e = Error::new(ErrorKind::Config, format!("`{name}` is no preset, no .toml file and no program"));
    Err(match (is_path(name), Path::new(name).exists()) {
        (true, false) => missing(Path::new(name)),
        (true, true) => e.hint("name the .toml file that the model was trained with, or a preset"),
        _ => e.hint(suggestion(name, &PRESETS)),
    })
}

fn product(sizes: &str, dtype: &str) -> Result<Arc<Graph>> {
    let wrong = |what: String| Error::new(ErrorKind::Config, what);
    let numbers: Option<Vec<usize>> =
        sizes.split('x').map(|n| n.trim().parse().ok().filter(|n| (1..=1 << 24).contains(n))).collect();
    let Some([m, k, n]) = numbers.as_deref().and_then(|v| <[usize; 3]>::try_from(v).ok()) else {
        let e = wrong(format!("`{sizes}` is no size of a product")).at("--matmul");
        return Err(e.hint("write 4096x4096x4096: rows, summed dimension, columns"));
    };
    let ty = DType::parse(dtype).ok_or_else(|| {
        wrong(format!("there is no element type `{dtype}`")).at("--dtype").hint("bf16, f16, f32, i8")
    })?;
    let g = GraphBuilder::new("main");
    let (a, b) =
        (g.parameter(TensorType::new(ty, [m, k]), "a"), g.parameter(TensorType::new(ty, [k, n]), "b"));
    g.finish(&[a.dot(&b)])
}
