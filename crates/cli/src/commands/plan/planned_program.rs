//! The planned program: a model's training step at any batch size, or a single program.

use super::args::PlanArgs;
use crate::args::missing_path::missing;
use crate::models::command_target::{is_path, set_all, untrained};
use crate::models::program;
use crate::render::screen::number_of;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::path::Path;
use std::sync::Arc;
use systole_config::{ConfigDraft, PRESETS, RunConfig};
use systole_ir::{DType, Error, ErrorKind, Graph, GraphBuilder, Result, TensorType, err};
use systole_nn::did_you_mean::suggestion;
use systole_nn::{Model, Precision, counted};
use systole_plan::{Estimate, KernelList, Machine, duration};
use systole_runtime::ValueRoles;

pub(super) enum PlannedProgram {
    /// A training step, with the work of one device by per-device batch size.
    Step {
        name: String,
        config: Box<RunConfig>,
        model: Box<Model>,
        batch: usize,
        compiled: bool,
        shares: HashMap<usize, DeviceProgram>,
    },
    /// A program that each device runs unchanged.
    Program { name: String, share: DeviceProgram },
}

/// Program and work of one device in a step.
pub(super) struct DeviceProgram {
    /// Graph for the compiler.
    pub(super) graph: Arc<Graph>,
    pub(super) work: KernelList,
    /// Samples per device; 0 for a program that is not a training step.
    pub(super) batch: usize,
}

/// Length of a run.
pub(super) struct RunLength {
    pub(super) steps: f64,
    /// Epochs, samples per epoch, and the source of these numbers, if the run is counted in epochs.
    pub(super) epochs: Option<(u64, u64, String)>,
}

impl RunLength {
    /// Formats as `90 epochs of 1,281,167 samples (ImageNet's training images): 3,519 steps`.
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
            let e = err!(Config, "{flag} applies to training steps only");
            return Err(e
                .at(flag)
                .hint_command("pass --steps N for the number of runs, or name a preset or a TOML file"));
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
        let model = Box::new(untrained(&config)?);
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
                let updates = config.biggan.as_ref().map_or(String::new(), |gan| {
                    let discriminator = number_of(gan.num_D_steps, "update");
                    format!(" ({discriminator} of the discriminator, 1 of the generator)")
                });
                format!("{name}: a training step of {samples}{updates}, {}", config.compile.precision)
            }
            PlannedProgram::Program { name, .. } => format!("{name}: one run of it"),
        }
    }

    pub(super) fn is_f16(&self) -> bool {
        let f16 = Precision::MixedFloat16.name();
        matches!(self, PlannedProgram::Step { config, .. } if config.compile.precision == f16)
    }

    /// Returns the per-device program for `devices` devices and the global number of samples.
    pub(super) fn share(&mut self, devices: usize, notes: &mut Vec<String>) -> Result<(&DeviceProgram, f64)> {
        match self {
            PlannedProgram::Program { share, .. } => {
                if devices > 1 {
                    notes.push("one device runs the program; the others are idle".into());
                }
                Ok((share, 1.0))
            }
            PlannedProgram::Step { model, batch, compiled, shares, .. } => {
                if *batch < devices {
                    return Err(err!(
                        Unsupported,
                        "a batch of {batch} cannot be split over {devices} devices"
                    ));
                }
                let each = batch.div_ceil(devices);
                if *batch % devices != 0 {
                    notes.push(format!(
                        "{batch} is not a multiple of {devices}: some devices wait for those with {each}"
                    ));
                }
                let share = match shares.entry(each) {
                    Entry::Occupied(known) => known.into_mut(),
                    Entry::Vacant(free) => {
                        let share = DeviceProgram::of(model.train_graph(each)?, each);
                        // The analytic model needs unrolled layers; the compiler is faster with loops.
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

    /// Note if the host limits the step; for the Keras tutorial, compares its published step time with the device time.
    pub(super) fn host_words(&self, machine: &Machine, estimate: &Estimate) -> Option<String> {
        let PlannedProgram::Step { name, batch, .. } = self else { return None };
        let (device, host) = (estimate.device.likely, estimate.host.total());
        let share = |part: f64, whole: f64| format!("{:.0} %", 100.0 * part / whole);
        if machine.title() == "v2-8" && is_tutorial(name) && *batch == 1000 {
            let rest = KERAS_TUTORIAL - device;
            return Some(format!(
                "the Keras tutorial printed {} per step here: the device needs {} of it, so {} ({}) was host time: Python that \
                 dispatched each step over the network and fed its batch. Systole's host time is {}",
                duration(KERAS_TUTORIAL),
                duration(device),
                duration(rest),
                share(rest, KERAS_TUTORIAL),
                duration(host),
            ));
        }
        let told = format!(
            "the devices are idle part of the time: busy {} of a step of {}",
            share(device, host),
            duration(host)
        );
        (host > device).then_some(told)
    }

    /// Returns the step over all devices with the roles of its arguments; `None` for a program that is not a step.
    pub(super) fn whole(&mut self) -> Result<Option<(Arc<Graph>, ValueRoles)>> {
        match self {
            PlannedProgram::Program { .. } => Ok(None),
            PlannedProgram::Step { model, batch, .. } => model.train_program(*batch, true).map(Some),
        }
    }

    /// Returns the length of the run: from the options, the configuration, or the dataset size.
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
        // The last, smaller batch of an epoch counts in proportion to its size.
        let steps = (epochs as f64 * samples as f64 / *batch as f64).ceil();
        Some(RunLength { steps, epochs: Some((epochs, samples, whose)) })
    }

    /// Returns the configuration and batch size of a training step.
    pub(super) fn step(&self) -> Option<(&RunConfig, usize)> {
        match self {
            PlannedProgram::Step { config, batch, .. } => Some((config, *batch)),
            PlannedProgram::Program { .. } => None,
        }
    }
}

/// Returns the first given option that only applies to training steps.
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

/// Returns the samples per epoch and the source of that number.
fn samples_of(name: &str, config: &RunConfig) -> Option<(u64, String)> {
    // The preset `resnet50` trains on a few images; for planning assume ImageNet.
    if name == "resnet50" {
        return Some((IMAGENET, "ImageNet's training images; --samples N for others".into()));
    }
    // Another batch size changes the steps per epoch, not the samples.
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

/// Number of ImageNet training images (ILSVRC 2012).
const IMAGENET: u64 = 1_281_167;

/// Seconds per step of the Keras tutorial on a v2-8 in epochs 2 to 4, batch size 1000, as printed by the tutorial.
const KERAS_TUTORIAL: f64 = 11e-3;

/// Whether the preset is the tutorial's, under either of its names.
fn is_tutorial(name: &str) -> bool {
    matches!(name, "fashion-mnist" | "fashion-cnn")
}

/// Training set size of datasets with a fixed size.
fn size_of(dataset: &str) -> Option<u64> {
    match dataset {
        "fashion-mnist" | "mnist" | "glyphs" => Some(60_000),
        "cifar10" | "cifar100" => Some(50_000),
        _ => None,
    }
}

fn draft(name: &str) -> Result<ConfigDraft> {
    if name.to_lowercase().ends_with(".toml") {
        return ConfigDraft::read(name);
    }
    // `fashion-cnn` is the benchmarks' name for the tutorial's model.
    let preset = if is_tutorial(name) { "fashion-mnist" } else { name };
    if PRESETS.contains(&preset) {
        return ConfigDraft::preset(preset);
    }
    if let Some(format) = program::model_format(name) {
        return Err(err!(Unsupported, "plan cannot read `{name}`: it is {}", format.name())
            .hint_command(format.hint()));
    }
    let e = err!(Config, "`{name}` is not a preset, a .toml file or a program");
    Err(match (is_path(name), Path::new(name).exists()) {
        (true, false) => missing(Path::new(name)),
        (true, true) => e.hint_command("name the .toml file that the model was trained with, or a preset"),
        _ => e.hint_command(suggestion(name, &PRESETS)),
    })
}

fn product(sizes: &str, dtype: &str) -> Result<Arc<Graph>> {
    let wrong = |what: String| Error::new(ErrorKind::Config, what);
    let numbers: Option<Vec<usize>> =
        sizes.split('x').map(|n| n.trim().parse().ok().filter(|n| (1..=1 << 24).contains(n))).collect();
    let Some([m, k, n]) = numbers.as_deref().and_then(|v| <[usize; 3]>::try_from(v).ok()) else {
        let e = wrong(format!("expected MxKxN, got `{sizes}`")).at("--matmul");
        return Err(e.hint_command("write a GEMM as 4096x4096x4096: rows, contracted dimension, columns"));
    };
    let ty = DType::parse(dtype).ok_or_else(|| {
        wrong(format!("unknown element type `{dtype}`"))
            .at("--dtype")
            .hint_command("use one of: bf16, f16, f32, i8")
    })?;
    let g = GraphBuilder::new("main");
    let (a, b) =
        (g.parameter(TensorType::new(ty, [m, k]), "a"), g.parameter(TensorType::new(ty, [k, n]), "b"));
    g.finish(&[a.dot(&b)])
}
