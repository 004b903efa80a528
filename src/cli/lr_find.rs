//! `systole lr-find`: which learning rate to train with.

use super::chart::{Axis, Chart};
use super::common::Common;
use super::outcome::{Failure, Outcome, Run};
use super::screen::{Screen, counted, program, quoted};
use super::train::TrainArgs;
use crate::terminal;
use clap::Args;
use clap::builder::PossibleValuesParser;
use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};
use systole_data::disk::Disk;
use systole_ir::{Error, ErrorKind};
use systole_nn::{LrFind, LrFinder, SUGGESTIONS, write_atomically};

#[derive(Args)]
pub(crate) struct LrFindArgs {
    #[command(flatten)]
    train: TrainArgs,
    /// The first rate
    #[arg(long, value_name = "X", default_value_t = 1e-7)]
    start_lr: f64,
    /// The last rate
    #[arg(long, value_name = "X", default_value_t = 10.0)]
    end_lr: f64,
    /// Updates of the weights, each at a higher rate than the one before
    #[arg(long, value_name = "N", default_value_t = 100)]
    num_it: usize,
    /// Go on when the loss is above four times the best
    #[arg(long)]
    no_stop_div: bool,
    /// Which suggestion `--apply` and the line to paste take: valley, slide, minimum or steep
    #[arg(long, value_name = "NAME", default_value = "valley", value_parser = PossibleValuesParser::new(SUGGESTIONS), hide_possible_values = true)]
    suggest: String,
    /// Train with the rate that was found; `--out` is then the run's folder, unless it ends in .svg
    #[arg(long)]
    apply: bool,
}

impl Run for LrFindArgs {
    fn run(mut self, common: &Common, screen: &Screen) -> Outcome {
        let svg = self.picture()?;
        let options = LrFind {
            start_lr: self.start_lr,
            end_lr: self.end_lr,
            num_it: self.num_it,
            stop_div: !self.no_stop_div,
        };
        let (mut model, config, data) = self.train.begin(screen)?;
        let found = model.lr_find(&config.train_pipeline(&data), options)?;
        if let Some(path) = &svg {
            let drawn = with_chart(&found, &SUGGESTIONS, |chart| chart.svg("Loss by learning rate"));
            write_atomically(&Disk, path, &[drawn.as_bytes()])?;
        }
        let chosen = found.suggestion(&self.suggest);
        if !screen.json {
            self.show(&found, chosen, screen);
        }
        match (self.apply, chosen) {
            (false, _) => {
                if screen.json {
                    screen.object(&object(&found, svg.as_deref()));
                }
                Ok(0)
            }
            (true, Some(rate)) => {
                screen.line(format!("Training with learning rate {}", shown(rate)));
                self.train.learning_rate = Some(shown(rate));
                self.train.run(common, screen)
            }
            (true, None) => Err(nothing_found(&found).into()),
        }
    }
}

impl LrFindArgs {
    /// Where the picture goes: `--out` names a file, and only with `--apply` a run's folder.
    fn picture(&mut self) -> Result<Option<PathBuf>, Failure> {
        let is_svg = |path: &Path| path.extension().is_some_and(|e| e.eq_ignore_ascii_case("svg"));
        match self.train.out.take() {
            Some(out) if is_svg(&out) => Ok(Some(out)),
            Some(out) if self.apply => {
                self.train.out = Some(out);
                Ok(None)
            }
            Some(out) => {
                let what = format!("{} is no file that a curve is drawn into", out.display());
                let e = Error::new(ErrorKind::Config, what).at("--out");
                Err(Failure::usage(
                    e.hint("name a file that ends in .svg; with --apply a folder for the run"),
                ))
            }
            None => Ok(None),
        }
    }

    fn show(&self, found: &LrFinder, chosen: Option<f64>, screen: &Screen) {
        let width = terminal::width().unwrap_or(80).min(100);
        screen.line(with_chart(found, &[self.suggest.as_str()], |chart| chart.text(width, 14)));
        let why = found.stopped_because.as_ref().map_or(String::new(), |why| format!("; {why}"));
        screen.line(format!("{}{why}", counted(found.rates.len() as u64, "update")));
        let each = SUGGESTIONS.iter().map(|name| match found.suggestion(name) {
            Some(rate) => format!("{name} {}", shown(rate)),
            None => format!("{name} -"),
        });
        screen.line(format!("Suggestions: {}", each.collect::<Vec<_>>().join(", ")));
        if let (false, Some(rate)) = (self.apply, chosen) {
            screen.line(format!("Next: {} {} --learning-rate {}", program(), self.train_line(), shown(rate)));
        }
    }

    /// This command's line as one of `train`.
    fn train_line(&self) -> String {
        let own =
            ["--start-lr", "--end-lr", "--num-it", "--suggest", "--out", "--learning-rate", "--one-cycle"];
        let mut words = vec!["train".to_string()];
        let mut given = std::env::args().skip(1).filter(|a| a != "lr-find");
        while let Some(word) = given.next() {
            if own.contains(&word.as_str()) {
                given.next();
            } else if word != "--no-stop-div" && !own.iter().any(|o| word.starts_with(&format!("{o}="))) {
                words.push(quoted(&word));
            }
        }
        words.join(" ")
    }
}

/// The whole curve with some of what it suggests.
fn with_chart(found: &LrFinder, names: &[&str], draw: impl FnOnce(&Chart<'_>) -> String) -> String {
    let marks: Vec<(&str, f64)> =
        names.iter().filter_map(|name| Some((*name, found.suggestion(name)?))).collect();
    draw(&Chart {
        axis: Axis::Rates,
        x: &found.rates,
        y: &found.losses,
        marks: &marks,
        labels: ["learning rate", "loss"],
    })
}

/// Two digits, which is more than a finder knows, as `--learning-rate` takes it.
fn shown(rate: f64) -> String {
    format!("{rate:.1e}")
}

fn object(found: &LrFinder, svg: Option<&Path>) -> Value {
    let suggestions: Map<String, Value> =
        SUGGESTIONS.iter().map(|name| (name.to_string(), json!(found.suggestion(name)))).collect();
    let losses: Vec<Option<f64>> = found.losses.iter().map(|l| l.is_finite().then_some(*l)).collect();
    json!({
        "suggestions": suggestions, "rates": found.rates, "losses": losses, "num_it": found.num_it,
        "stopped_because": found.stopped_because, "svg": svg.map(|p| p.display().to_string()),
    })
}

fn nothing_found(found: &LrFinder) -> Error {
    let e = Error::new(ErrorKind::Config, "no learning rate was found to train with");
    let why = found.stopped_because.clone().unwrap_or_else(|| "the curve is too short".into());
    e.because(why).hint("take more updates (--num-it 200), or begin lower (--start-lr 1e-9)")
}
