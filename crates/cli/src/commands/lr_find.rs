//! `systole lr-find`: runs a learning rate range test and suggests a rate.

use crate::args::common::CommonArgs;
use crate::args::exit_status::{CommandError, CommandResult, RunCommand};
use crate::commands::train::{TrainArgs, rate_of};
use crate::render::chart::{Chart, ChartAxis};
use crate::render::screen::{Screen, counted, program, quoted};
use clap::Args;
use clap::builder::PossibleValuesParser;
use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};
use systole_config::{LrFindSection, RunConfig};
use systole_data::file_system::OsFileSystem;
use systole_ir::err;
use systole_nn::{LrFindResult, SUGGESTIONS, write_atomically};
use systole_progress::terminal;

#[derive(Args)]
pub(crate) struct LrFindArgs {
    #[command(flatten)]
    train: TrainArgs,
    /// Start at this rate [default: start_lr of [lr_find] in the TOML, or 1e-7]
    #[arg(long, value_name = "X")]
    start_lr: Option<f64>,
    /// End at this rate [default: end_lr of [lr_find] in the TOML, or 10]
    #[arg(long, value_name = "X")]
    end_lr: Option<f64>,
    /// Raise the rate over N steps [default: num_it of [lr_find], or 100]
    #[arg(long, value_name = "N")]
    num_it: Option<usize>,
    /// Continue when the loss exceeds four times the best loss
    #[arg(long)]
    no_stop_div: bool,
    /// Use this suggestion: valley, slide, minimum or steep
    ///
    /// Used by `--apply` and in the suggested command. [default: suggest of [lr_find] in the TOML, or valley]
    #[arg(long, value_name = "NAME", value_parser = PossibleValuesParser::new(SUGGESTIONS), hide_possible_values = true)]
    suggest: Option<String>,
    /// Train with the suggested rate
    ///
    /// `--out` then names the run folder, unless it ends in .svg.
    #[arg(long)]
    apply: bool,
}

impl RunCommand for LrFindArgs {
    fn run(mut self, common: &CommonArgs, screen: &Screen) -> CommandResult {
        let svg = self.picture()?;
        let (mut model, config, data) = self.train.begin(screen)?;
        let asked = self.asked(&config);
        let found = model.lr_find(&config.train_pipeline(&data), asked.options())?;
        if let Some(path) = &svg {
            let drawn = with_chart(&found, &SUGGESTIONS, |chart| chart.svg("Loss by learning rate"));
            write_atomically(&OsFileSystem, path, &[drawn.as_bytes()])?;
        }
        if !screen.json {
            self.show(&found, &asked.suggest, screen);
        }
        if !self.apply {
            if screen.json {
                screen.object(&object(&found, svg.as_deref()));
            }
            return Ok(0);
        }
        let rate = rate_of(&found, &asked.suggest).map_err(|e| {
            e.hint_command("use more steps: --num-it 200; or a lower first rate: --start-lr 1e-9")
        })?;
        let rate = shown(rate);
        screen.line(format!("Training with learning rate {rate}"));
        self.train.learning_rate = Some(rate);
        self.train.run(common, screen)
    }
}

impl LrFindArgs {
    /// Returns the path of the chart. `--out` names the chart file, or with `--apply` the run folder.
    fn picture(&mut self) -> CommandResult<Option<PathBuf>> {
        let is_svg = |path: &Path| path.extension().is_some_and(|e| e.eq_ignore_ascii_case("svg"));
        match self.train.out.take() {
            Some(out) if is_svg(&out) => Ok(Some(out)),
            Some(out) if self.apply => {
                self.train.out = Some(out);
                Ok(None)
            }
            Some(out) => {
                let e = err!(Config, "{} is not an .svg file", out.display()).at("--out");
                Err(CommandError::usage(
                    e.hint_command("pass a file that ends in .svg; with --apply also a folder for the run"),
                ))
            }
            None => Ok(None),
        }
    }

    /// Merges the arguments with the section of the configuration.
    fn asked(&self, config: &RunConfig) -> LrFindSection {
        let section = config.lr_find.clone().unwrap_or_default();
        LrFindSection {
            suggest: self.suggest.clone().unwrap_or(section.suggest),
            start_lr: self.start_lr.unwrap_or(section.start_lr),
            end_lr: self.end_lr.unwrap_or(section.end_lr),
            num_it: self.num_it.unwrap_or(section.num_it),
            stop_div: section.stop_div && !self.no_stop_div,
            found: None,
        }
    }

    fn show(&self, found: &LrFindResult, suggest: &str, screen: &Screen) {
        let chosen = found.suggestion(suggest);
        let width = terminal::width().unwrap_or(80).min(100);
        screen.line(with_chart(found, &[suggest], |chart| chart.text(width, 14)));
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

    /// Returns the equivalent command line of `train`.
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

/// Draws the loss curve with the named suggestions.
fn with_chart(found: &LrFindResult, names: &[&str], draw: impl FnOnce(&Chart<'_>) -> String) -> String {
    let marks: Vec<(&str, f64)> =
        names.iter().filter_map(|name| Some((*name, found.suggestion(name)?))).collect();
    draw(&Chart {
        axis: ChartAxis::Rates,
        x: &found.rates,
        y: &found.losses,
        marks: &marks,
        labels: ["learning rate", "loss"],
    })
}

/// Formats a rate with two digits, as `--learning-rate` accepts it.
fn shown(rate: f64) -> String {
    format!("{rate:.1e}")
}

fn object(found: &LrFindResult, svg: Option<&Path>) -> Value {
    let suggestions: Map<String, Value> =
        SUGGESTIONS.iter().map(|name| (name.to_string(), json!(found.suggestion(name)))).collect();
    let losses: Vec<Option<f64>> = found.losses.iter().map(|l| l.is_finite().then_some(*l)).collect();
    json!({
        "suggestions": suggestions, "rates": found.rates, "losses": losses, "num_it": found.num_it,
        "stopped_because": found.stopped_because, "svg": svg.map(|p| p.display().to_string()),
    })
}
