//! `systole knobs`: lists the environment variables.

use crate::args::common::CommonArgs;
use crate::args::exit_status::{CommandResult, RunCommand};
use crate::render::screen::{Screen, shown_value, table};
use clap::Args;
use serde_json::{Value, json};
use systole_ir::knobs::{EnvVar, KNOBS};

#[derive(Args)]
pub(crate) struct KnobsArgs {}

impl RunCommand for KnobsArgs {
    fn run(self, _: &CommonArgs, screen: &Screen) -> CommandResult {
        knobs(screen)
    }
}

/// Lists every environment variable with allowed values, default, current value and description.
fn knobs(screen: &Screen) -> CommandResult {
    if screen.json {
        let object = |k: &EnvVar| json!({"name": k.name, "values": k.values, "default": k.default, "value": shown_value(k), "doc": k.doc});
        screen.object(&KNOBS.iter().map(object).collect::<Value>());
        return Ok(0);
    }
    let mut rows = vec![["variable", "values", "default", "now", "description"].map(String::from).to_vec()];
    let shown = |v: &str| if v.is_empty() { "-".to_string() } else { v.to_string() };
    for k in KNOBS {
        rows.push(vec![
            k.name.into(),
            k.values.into(),
            shown(k.default),
            shown(&shown_value(k)),
            k.doc.into(),
        ]);
    }
    screen.line(table(&rows));
    Ok(0)
}
