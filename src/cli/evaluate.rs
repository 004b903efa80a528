//! `systole evaluate`: loss and metrics of a saved model on test data.

use super::common::{Common, DataArgs};
use super::confusion::Confusion;
use super::outcome::{Failure, Outcome, Run};
use super::screen::{Screen, grouped, values};
use super::target::config_of;
use super::training::{check_samples, load_data};
use crate::config::{Config, Draft, fraction};
use clap::Args;
use serde_json::{Map, json};
use std::time::Instant;
use systole_ir::{Error, ErrorKind, Result};
use systole_nn::Model;

#[derive(Args)]
pub(crate) struct EvaluateArgs {
    /// A model file
    model: String,
    #[command(flatten)]
    data: DataArgs,
    /// fashion-mnist, mnist, glyphs, cifar10, folder, records [default: the one it was trained on]
    #[arg(long, value_name = "NAME")]
    dataset: Option<String>,
    /// Samples in a step [default: as in training]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    batch_size: Option<u64>,
    /// Pixels, 0 to 255, are multiplied by this [default: as in training]
    #[arg(long, value_name = "X")]
    scale: Option<String>,
}

impl Run for EvaluateArgs {
    fn run(self, _: &Common, screen: &Screen) -> Outcome {
        run(&self, screen)
    }
}

fn run(args: &EvaluateArgs, screen: &Screen) -> Outcome {
    let mut model = Model::load(&args.model)?;
    let config = config(args, &model)?;
    let data = load_data(&config, screen)?;
    check_samples(&model, &config, &data, &args.model)?;
    let began = Instant::now();
    let logs = model.evaluate(&config.test_pipeline(&data))?;
    let seconds = began.elapsed().as_secs_f64();
    let samples = config.data.test_samples.map_or(data.test_len, |n| data.test_len.min(n as usize));
    let shown = values(&logs, |n| Some(n.to_string()));
    screen.line(format!(
        "{}: {shown} on {} test {} of {}",
        args.model,
        grouped(samples as u64),
        data.elements,
        data.name
    ));
    let confusions = match config.data.is_own() && !data.class_names.is_empty() {
        true => Some(Confusion::count(&mut model, &config.test_pipeline(&data))?),
        false => None,
    };
    confusions.iter().for_each(|c| screen.line(c.text()));
    if screen.json {
        let mut object = Map::new();
        object.insert("model_file".into(), json!(args.model));
        object.insert("dataset".into(), json!(data.name));
        object.extend(logs.iter().map(|(n, v)| (n.to_string(), json!(v))));
        object.insert("samples".into(), json!(samples));
        object.insert("seconds".into(), json!(seconds));
        confusions.iter().for_each(|c| drop(object.insert("most_confused".into(), c.json())));
        screen.object(&object.into());
    }
    Ok(0)
}

/// The configuration in the model file, or the named data set's preset, with the arguments applied.
fn config(args: &EvaluateArgs, model: &Model) -> Result<Config, Failure> {
    let known = config_of(model, &args.model)?;
    let mut draft = match (&known, &args.dataset) {
        (Some(config), _) => {
            Draft::parse(&config.to_toml()?, &format!("the configuration kept in {}", args.model))?
        }
        (None, Some(dataset)) => Draft::preset(dataset).map_err(Failure::usage)?,
        (None, None) => {
            let e =
                Error::new(ErrorKind::Config, format!("{} does not say what it was trained on", args.model));
            return Err(Failure::usage(e.hint("name the data set with --dataset")));
        }
    };
    let other_data =
        args.dataset.as_deref().is_some_and(|d| known.as_ref().is_none_or(|k| k.data.dataset != d));
    if let Some(name) = &args.dataset {
        draft.set_text(format!("--dataset {name}"), "data.dataset", name);
    }
    if other_data {
        // Another data set's folder and size are not this one's.
        draft.set("--dataset", "data.dir", "none");
        draft.set("--dataset", "data.test_samples", "none");
    }
    if let Some(dir) = &args.data.data_dir {
        draft.set_text("--data-dir", "data.dir", &dir.display().to_string());
    }
    if let Some(n) = args.batch_size {
        draft.set(format!("--batch-size {n}"), "fit.batch_size", &n.to_string());
    }
    if let Some(scale) = &args.scale {
        let flag = format!("--scale {scale}");
        let value = fraction(scale).map_err(|e| Failure::usage(e.at(flag.clone())))?;
        draft.set(flag, "data.scale", &format!("{value:?}"));
    }
    Ok(draft.finish()?)
}
