//! `systole layers`: lists the built-in layers and their capabilities.

use crate::args::common::CommonArgs;
use crate::args::exit_status::{CommandResult, RunCommand};
use crate::render::screen::{Screen, table};
use clap::Args;
use serde_json::{Map, Value, json};
use systole_ir::Result;
use systole_nn::{CAPABILITIES, LayerCapabilities, layer_capabilities};

#[derive(Args)]
pub(crate) struct LayersArgs {
    /// Layer whose missing capabilities are explained
    #[arg(value_name = "LAYER")]
    layer: Option<String>,
}

impl RunCommand for LayersArgs {
    fn run(self, _: &CommonArgs, screen: &Screen) -> CommandResult {
        let mut all = layer_capabilities();
        if let Some(name) = &self.layer {
            let known: Vec<&str> = all.iter().map(|layer| layer.class).collect();
            let meant = known.iter().copied().find(|class| class == name).ok_or_else(|| {
                systole_ir::Error::new(systole_ir::ErrorKind::Config, format!("unknown layer `{name}`"))
                    .hint_command(systole_nn::did_you_mean::nearest_three(name, &known, "systole layers"))
            })?;
            all.retain(|layer| layer.class == meant);
        }
        if screen.json {
            screen.object(&all.iter().map(as_json).collect::<Value>());
        } else if self.layer.is_some() {
            all.iter().for_each(|layer| screen.line(table(&reasons(layer))));
        } else {
            screen.line(table(&matrix(&all)));
            screen.line(LEGEND);
        }
        Ok(0)
    }
}

/// Meaning of the columns.
const LEGEND: &str = "operators: export to .tflite and int8 (ONNX in float has every layer); masks: padded time steps are skipped as in Keras; \
    decoding: one token at a time, with stored keys and values or states; adapters: LoRA. \
    `systole layers NAME` says why a layer lacks one.";

/// Table with a row per layer and a column per capability.
fn matrix(all: &[LayerCapabilities]) -> Vec<Vec<String>> {
    let head = ["layer"].iter().chain(&CAPABILITIES).map(|name| name.to_string()).collect();
    let cell = |own: &Result<(), String>| if own.is_ok() { "yes" } else { "no" }.to_string();
    let row = |layer: &LayerCapabilities| {
        std::iter::once(layer.class.to_string()).chain(layer.all.iter().map(cell)).collect()
    };
    std::iter::once(head).chain(all.iter().map(row)).collect()
}

fn reasons(layer: &LayerCapabilities) -> Vec<Vec<String>> {
    let head = vec![layer.class.to_string(), String::new(), "why not supported".to_string()];
    let row = |(name, own): (&&str, &Result<(), String>)| match own {
        Ok(()) => vec![name.to_string(), "yes".into(), String::new()],
        Err(why) => vec![name.to_string(), "no".into(), why.clone()],
    };
    std::iter::once(head).chain(CAPABILITIES.iter().zip(&layer.all).map(row)).collect()
}

/// JSON: `{"layer": "Dense", "masks": {"supported": true}, …}`.
fn as_json(layer: &LayerCapabilities) -> Value {
    let mut row = Map::from_iter([("layer".to_string(), json!(layer.class))]);
    for (name, own) in CAPABILITIES.iter().zip(&layer.all) {
        let value = match own {
            Ok(()) => json!({"supported": true}),
            Err(why) => json!({"supported": false, "why": why}),
        };
        row.insert(name.to_lowercase().replace(' ', "_"), value);
    }
    row.into()
}
