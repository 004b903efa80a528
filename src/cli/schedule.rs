//! `systole show MODEL --schedule`: the learning rate of each step of a run.

use super::chart::{Axis, Chart};
use super::outcome::Outcome;
use super::screen::{Screen, counted, grouped, quoted};
use super::target::{Target, config_of};
use crate::terminal;
use serde_json::json;
use std::path::PathBuf;
use systole_data::disk::{Disk, write_atomically};
use systole_ir::{Error, ErrorKind, Result};
use systole_nn::Model;
use systole_nn::schedule::Schedule;

/// Points of a curve, at most.
const POINTS: u64 = 400;

/// What is shown, over how many steps, and where a picture of it goes.
pub(super) struct ScheduleArgs<'a> {
    pub(super) target: &'a str,
    pub(super) steps: Option<u64>,
    pub(super) out: Option<&'a PathBuf>,
}

pub(super) fn show(args: &ScheduleArgs<'_>, screen: &Screen) -> Outcome {
    let target = Target::of_model(args.target)?;
    let model = target.model()?;
    let steps = match args.steps {
        Some(steps) => steps,
        None => steps_of(&target, args.target, &model)?,
    };
    let Some(compile) = model.compile_config() else {
        let e = Error::new(ErrorKind::Config, format!("{} was never compiled", args.target));
        return Err(e.because("it has no optimizer").hint("name a preset or a TOML file").into());
    };
    let schedule = of_run(&compile.optimizer.learning_rate, steps);
    let each = steps.div_ceil(POINTS).max(1);
    // The last step too, where the curve would end before it.
    let places: Vec<u64> = (0..steps).step_by(each as usize).chain([steps - 1]).collect();
    let (x, y): (Vec<f64>, Vec<f64>) = places.iter().map(|step| (*step as f64, schedule.at(*step))).unzip();
    let chart = Chart { x: &x, y: &y, marks: &[], labels: ["step", "rate"], axis: Axis::Steps };
    if let Some(path) = args.out {
        write_atomically(&Disk, path, &[chart.svg("Learning rate by step").as_bytes()])?;
    }
    if screen.json {
        let curve: Vec<_> = places.iter().zip(&y).map(|(step, rate)| json!([step, rate])).collect();
        screen.object(&json!({"target": args.target, "steps": steps, "learning_rate": curve}));
        return Ok(0);
    }
    let width = terminal::width().unwrap_or(80).min(100);
    screen.line(chart.text(width, 14));
    let most = y.iter().copied().fold(0.0, f64::max);
    screen.line(format!(
        "{}: {:.3e} in the first, {most:.3e} at the most, {:.3e} in the last",
        counted(steps, "step"),
        schedule.at(0),
        schedule.at(steps - 1)
    ));
    args.out.iter().for_each(|path| screen.line(format!("The picture: {}", quoted(path))));
    Ok(0)
}

/// A schedule over a whole run knows its steps when that begins.
fn of_run(schedule: &Schedule, steps: u64) -> Schedule {
    match schedule {
        Schedule::LinearWarmup { initial_learning_rate, warmup_steps, then } => Schedule::LinearWarmup {
            initial_learning_rate: *initial_learning_rate,
            warmup_steps: *warmup_steps,
            then: Box::new(of_run(then, steps.saturating_sub(*warmup_steps).max(1))),
        },
        schedule if schedule.is_of_the_run() => schedule.clone().over(steps),
        schedule => schedule.clone(),
    }
}

/// Steps of the run that a configuration describes.
fn steps_of(target: &Target, name: &str, model: &Model) -> Result<u64> {
    let named = target.config()?;
    let Some(config) = named.map_or_else(|| config_of(model, name), |config| Ok(Some(config)))? else {
        let e = Error::new(ErrorKind::Config, format!("{name} does not say how long it was trained"));
        return Err(e.hint("--steps N says over how many steps"));
    };
    let each = match config.fit.steps_per_epoch {
        Some(steps) => steps,
        None => config.load_data(|dir| dir)?.train_len.div_ceil(config.fit.batch_size),
    };
    let steps = (each * config.fit.epochs) as u64;
    match steps {
        0 => Err(Error::new(ErrorKind::Config, format!("{name} has {} steps", grouped(0))).hint("--steps N")),
        steps => Ok(steps),
    }
}
