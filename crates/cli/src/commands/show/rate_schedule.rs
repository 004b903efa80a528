//! `systole show MODEL --schedule`: plots learning rate and momentum over the steps of a run.

use crate::args::exit_status::{CommandError, CommandResult};
use crate::models::command_target::{CommandTarget, config_of};
use crate::models::program;
use crate::render::chart::{Chart, ChartAxis};
use crate::render::screen::{Screen, counted, grouped, quoted};
use crate::run::run_data::RunData;
use crate::run::training::announce_data;
use serde_json::json;
use std::path::PathBuf;
use systole_config::RunConfig;
use systole_data::file_system::{OsFileSystem, write_atomically};
use systole_datasets::TrainingData;
use systole_ir::{Result, err};
use systole_nn::Model;
use systole_nn::optimizer::ScheduledValue;
use systole_progress::terminal;

/// Maximum number of points per curve.
const POINTS: u64 = 400;

/// Target, number of steps and SVG path of the plot.
pub(crate) struct ScheduleArgs<'a> {
    pub(crate) target: &'a str,
    pub(crate) steps: Option<u64>,
    pub(crate) out: Option<&'a PathBuf>,
}

pub(crate) fn show(args: &ScheduleArgs<'_>, screen: &Screen) -> CommandResult {
    if program::is_program(args.target) {
        let e = err!(Config, "the program {} has no learning rate", args.target);
        let hint = "remove --schedule, or name a preset, a TOML file or a trained model";
        return Err(CommandError::usage(e.at("--schedule").hint_command(hint)));
    }
    let target = CommandTarget::of_model(args.target)?;
    let model = target.model()?;
    let (steps, each) = steps_of(&target, args, &model, screen)?;
    let Some(compile) = model.compile_config() else {
        let e = err!(Config, "the model {} is not compiled", args.target);
        return Err(e
            .because("the model has no optimizer")
            .hint_command("pass a preset or a TOML file, which have an optimizer")
            .into());
    };
    let mut optimizer = compile.optimizer.clone();
    // Whole-run schedules need the number of steps.
    optimizer.settle(0, steps, each);
    let stride = steps.div_ceil(POINTS).max(1);
    // Include the last step even if the stride skips it.
    let places: Vec<u64> = (0..steps).step_by(stride as usize).chain([steps - 1]).collect();
    let curve = |(name, at): ScheduledValue<'_>| ScheduleCurve {
        axis: if name == "momentum" { "momentum" } else { "rate" },
        y: places.iter().map(|step| at(*step)).collect(),
        name,
    };
    let curves: Vec<ScheduleCurve> = optimizer.scheduled().into_iter().map(curve).collect();
    let x: Vec<f64> = places.iter().map(|step| *step as f64).collect();
    for (curve, path) in curves.iter().zip(pictures(args.out, &curves)) {
        let title = format!("{} by step", curve.title());
        write_atomically(&OsFileSystem, &path, &[curve.chart(&x).svg(&title).as_bytes()])?;
    }
    if screen.json {
        let mut object = json!({"target": args.target, "steps": steps});
        for curve in &curves {
            let points: Vec<_> = places.iter().zip(&curve.y).map(|(step, y)| json!([step, y])).collect();
            object[&curve.name] = points.into();
        }
        screen.object(&object);
        return Ok(0);
    }
    curves.iter().for_each(|curve| curve.tell(&x, steps, screen));
    pictures(args.out, &curves).iter().for_each(|path| screen.line(format!("Plot: {}", quoted(path))));
    Ok(0)
}

/// A scheduled value, sampled at some steps.
struct ScheduleCurve {
    name: String,
    axis: &'static str,
    y: Vec<f64>,
}

impl ScheduleCurve {
    fn title(&self) -> String {
        let text = self.name.replace('_', " ");
        text[..1].to_uppercase() + &text[1..]
    }

    fn chart<'a>(&'a self, x: &'a [f64]) -> Chart<'a> {
        Chart { x, y: &self.y, marks: &[], labels: ["step", self.axis], axis: ChartAxis::Steps }
    }

    fn tell(&self, x: &[f64], steps: u64, screen: &Screen) {
        let width = terminal::width().unwrap_or(80).min(100);
        screen.line(self.chart(x).text(width, 14));
        let (first, last) = (self.y.first().copied().unwrap_or(0.0), self.y.last().copied().unwrap_or(0.0));
        let what = if self.name == "learning_rate" { String::new() } else { format!("{}, ", self.title()) };
        let most = self.y.iter().copied().fold(0.0, f64::max);
        screen.line(format!(
            "{what}{}: first {first:.3e}, maximum {most:.3e}, last {last:.3e}",
            counted(steps, "step")
        ));
    }
}

/// Returns the SVG paths: the first curve at the given path `rate.svg`, others next to it: `rate-momentum.svg`.
fn pictures(out: Option<&PathBuf>, curves: &[ScheduleCurve]) -> Vec<PathBuf> {
    let Some(path) = out else { return Vec::new() };
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    let beside = |curve: &ScheduleCurve| {
        let name: String =
            curve.name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
        path.with_file_name(format!("{stem}-{name}.svg"))
    };
    curves.iter().enumerate().map(|(i, curve)| if i == 0 { path.clone() } else { beside(curve) }).collect()
}

/// Returns the steps of the configured run and of each epoch.
fn steps_of(
    target: &CommandTarget,
    args: &ScheduleArgs<'_>,
    model: &Model,
    screen: &Screen,
) -> Result<(u64, u64)> {
    let named = target.config()?;
    let config = named.map_or_else(|| config_of(model, args.target), |config| Ok(Some(config)))?;
    let Some(config) = config else {
        let e = err!(Config, "{} does not contain the length of its training", args.target);
        return args
            .steps
            .map(|steps| (steps, steps))
            .ok_or_else(|| e.hint_command("pass the number of steps with --steps N"));
    };
    let epochs = config.fit.epochs as u64;
    if let Some(steps) = args.steps {
        return Ok((steps, (steps / epochs.max(1)).max(1)));
    }
    let each = match config.fit.steps_per_epoch {
        Some(steps) => steps,
        None => config.batches_per_epoch(&data_of(target, &config, model, screen)?),
    } as u64;
    match each * epochs {
        0 => Err(err!(Config, "the run of {} has {} steps", args.target, grouped(0))
            .hint_command("pass --steps N")),
        steps => Ok((steps, each)),
    }
}

/// Loads the data of a configuration, or of the run that trained a model.
fn data_of(
    target: &CommandTarget,
    config: &RunConfig,
    model: &Model,
    screen: &Screen,
) -> Result<TrainingData> {
    let CommandTarget::Model(file) = target else {
        let data = config.load_data(|dir| dir)?;
        announce_data(config, &data, "read to count the batches", screen);
        return Ok(data);
    };
    let run_data = RunData::of(model, file)?;
    let draft = run_data.draft(model)?.ok_or_else(|| err!(Bug, "no configuration"))?;
    run_data.load_unmatched(model, &mut draft.finish().map_err(|e| e.error)?, &screen.silent())
}
