//! `systole summary FILE.onnx`: the operators of an ONNX model, what they make, and what it takes and gives.

use super::outcome::Outcome;
use super::program;
use super::screen::{Screen, number_of, table};
use serde_json::{Value, json};
use std::path::Path;
use systole_ir::{Literal, Result};
use systole_nn::grouped;
use systole_onnx::{Imported, Model, Node, Port, Sizes};
use systole_program::open::{Around, onnx};

/// Whether a name is that of such a file.
pub(crate) fn is_onnx(name: &str) -> bool {
    Path::new(name).extension().is_some_and(|e| e.eq_ignore_ascii_case("onnx"))
}

/// Operators, what they make where open sizes are 1, weights.
pub(crate) fn summary(name: &str, screen: &Screen) -> Outcome {
    let bytes = program::bytes(name)?;
    let folder = Path::new(name).parent().map(Path::to_path_buf);
    let model = onnx(&bytes, &Around { folder, ..Around::default() }).map_err(|e| e.at(name))?;
    let imported = model.import(&Sizes::default());
    if screen.json {
        screen.object(&object(name, &model, &imported));
        return Ok(0);
    }
    let mut rows = vec![["Op", "makes", "of", "constants"].map(String::from).to_vec()];
    for n in &model.graph.nodes {
        let constants: Vec<String> = constants(&model, n).map(|c| c.ty().to_string()).collect();
        rows.push(vec![n.op.clone(), made(n).into(), ty(&imported, made(n)), constants.join(", ")]);
    }
    screen.line(table(&rows).trim_end());
    let ports =
        model.graph.given().map(|p| ("Input", p)).chain(model.graph.outputs.iter().map(|p| ("Output", p)));
    ports.for_each(|(what, p)| screen.line(format!("{what} {}: {p}", p.name)));
    if let Ok(Imported { settled, .. }) = &imported
        && !settled.is_empty()
    {
        let names: Vec<&str> = settled.iter().map(|(name, _)| name.as_str()).collect();
        screen.line(format!("Above, {} is 1: the file leaves it open.", names.join(" and ")));
    }
    if let Err(e) = &imported {
        screen.line(format!("It cannot be run here: {}", e.what()));
    }
    screen.line(format!(
        "{} of version {}, {} bytes of constants, by {}",
        number_of(model.graph.nodes.len(), "operator"),
        model.opset,
        grouped(model.graph.constant_bytes() as u64),
        if model.producer.is_empty() { "an unnamed writer" } else { &model.producer }
    ));
    Ok(0)
}

fn made(n: &Node) -> &str {
    n.outputs.first().map_or("", String::as_str)
}

fn ty(imported: &Result<Imported>, name: &str) -> String {
    let found = imported.as_ref().ok().and_then(|i| i.types.get(name));
    found.map_or("–".into(), ToString::to_string)
}

fn constants<'a>(model: &'a Model, n: &'a Node) -> impl Iterator<Item = &'a Literal> {
    n.inputs.iter().filter_map(|name| model.graph.constants.get(name))
}

fn object(name: &str, model: &Model, imported: &Result<Imported>) -> Value {
    let port = |p: &Port| {
        let sizes = p.sizes.as_ref().map(|s| s.iter().map(ToString::to_string).collect::<Vec<_>>());
        json!({"name": p.name, "dtype": p.dtype.map(|d| d.name()), "sizes": sizes})
    };
    let operator = |n: &Node| {
        let constants: Vec<String> = constants(model, n).map(|c| c.ty().to_string()).collect();
        let ty = imported.as_ref().ok().and_then(|i| i.types.get(made(n))).map(ToString::to_string);
        json!({"op": n.op, "name": n.name, "inputs": n.inputs, "outputs": n.outputs, "type": ty, "constants": constants})
    };
    json!({
        "file": name, "producer": model.producer, "ir_version": model.ir_version, "opset": model.opset,
        "inputs": model.graph.given().map(port).collect::<Vec<_>>(),
        "outputs": model.graph.outputs.iter().map(port).collect::<Vec<_>>(),
        "operators": model.graph.nodes.iter().map(operator).collect::<Vec<_>>(),
        "constant_bytes": model.graph.constant_bytes(),
        "error": imported.as_ref().err().map(|e| e.what().to_string()),
    })
}
