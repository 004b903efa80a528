//! Summarizes ONNX files and runs them on samples for `systole summary`, `predict` and `evaluate`.

use crate::args::exit_status::CommandResult;
use crate::models::program;
use crate::render::screen::{Screen, number_of, table};
use serde_json::{Value, json};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::path::Path;
use systole_data::format::ModelFormat;
use systole_ir::{DType, Literal, Result, ResultExt, TensorType, err};
use systole_mlir::import::ImportedProgram as Program;
use systole_nn::grouped;
use systole_onnx::{DimSize, DimSizes, ImportedOnnx, OnnxModel, OnnxNode, ValueInfo};
use systole_program::program_file::{OpenContext, onnx};
use systole_program::run::ProgramRunner;
use systole_runtime::backend;

/// Whether the name has the extension `.onnx`.
pub(crate) fn is_onnx(name: &str) -> bool {
    Path::new(name).extension().is_some_and(|e| e.eq_ignore_ascii_case("onnx"))
}

/// Whether the name is that of an ONNX file, by its extension or its first bytes.
pub(crate) fn is_onnx_file(name: &str) -> bool {
    is_onnx(name) || program::model_format(name) == Some(ModelFormat::Onnx)
}

/// Reads an ONNX file and its external data.
fn open(name: &str) -> Result<OnnxModel> {
    let bytes = program::bytes(name)?;
    let folder = Path::new(name).parent().map(Path::to_path_buf);
    onnx(&bytes, &OpenContext { folder, ..OpenContext::default() }).at(|| name.to_string())
}

/// Prints the operators, their output types (with open sizes set to 1) and the weights.
pub(crate) fn summary(name: &str, screen: &Screen) -> CommandResult {
    let model = open(name)?;
    let imported = model.import(&DimSizes::default());
    if screen.json {
        screen.object(&object(name, &model, &imported));
        return Ok(0);
    }
    let mut rows = vec![["Op", "output", "type", "constants"].map(String::from).to_vec()];
    for n in &model.graph.nodes {
        let constants: Vec<String> = constants(&model, n).map(|c| c.ty().to_string()).collect();
        rows.push(vec![n.op.clone(), made(n).into(), ty(&imported, made(n)), constants.join(", ")]);
    }
    screen.line(table(&rows).trim_end());
    let ports =
        model.graph.given().map(|p| ("Input", p)).chain(model.graph.outputs.iter().map(|p| ("Output", p)));
    ports.for_each(|(what, p)| screen.line(format!("{what} {}: {p}", p.name)));
    if let Ok(ImportedOnnx { settled, .. }) = &imported
        && !settled.is_empty()
    {
        let names: Vec<&str> = settled.iter().map(|(name, _)| name.as_str()).collect();
        screen.line(format!("The file leaves {} open; the types above use 1.", names.join(" and ")));
    }
    if let Err(e) = &imported {
        screen.line(format!("It cannot be run: {}", e.what()));
    }
    screen.line(format!(
        "{} of opset {}, {} bytes of constants, written by {}",
        number_of(model.graph.nodes.len(), "operator"),
        model.opset,
        grouped(model.graph.constant_bytes() as u64),
        if model.producer.is_empty() { "an unknown tool" } else { &model.producer }
    ));
    Ok(0)
}

fn made(n: &OnnxNode) -> &str {
    n.outputs.first().map_or("", String::as_str)
}

fn ty(imported: &Result<ImportedOnnx>, name: &str) -> String {
    let found = imported.as_ref().ok().and_then(|i| i.types.get(name));
    found.map_or("–".into(), ToString::to_string)
}

fn constants<'a>(model: &'a OnnxModel, n: &'a OnnxNode) -> impl Iterator<Item = &'a Literal> {
    n.inputs.iter().filter_map(|name| model.graph.constants.get(name))
}

fn object(name: &str, model: &OnnxModel, imported: &Result<ImportedOnnx>) -> Value {
    let port = |p: &ValueInfo| {
        let sizes = p.sizes.as_ref().map(|s| s.iter().map(ToString::to_string).collect::<Vec<_>>());
        json!({"name": p.name, "dtype": p.dtype.map(|d| d.name()), "sizes": sizes})
    };
    let operator = |n: &OnnxNode| {
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

/// Predictor over an ONNX model with one input and one output, batch by batch.
pub(crate) struct OnnxPredictor {
    model: OnnxModel,
    name: String,
    /// Element type of the input.
    dtype: DType,
    /// Shape of one sample as passed in; images have channels last.
    sample: Vec<usize>,
    /// Whether the model expects images in channels-first layout.
    channels_first: bool,
    /// Fixed batch size, or `None` if any batch size is accepted.
    batch: Option<usize>,
    /// Scale and zero point of an integer input and output.
    ends: [Option<(f32, f32)>; 2],
    /// Compiled programs by batch size.
    runners: RefCell<BTreeMap<usize, ProgramRunner>>,
}

impl OnnxPredictor {
    /// Reads an ONNX model.
    ///
    /// # Errors
    /// If the model has several inputs or outputs, or a sample has an open size.
    pub fn open(name: &str) -> Result<OnnxPredictor> {
        OnnxPredictor::new(open(name)?, name).at(|| name.to_string())
    }

    pub fn model(&self) -> &OnnxModel {
        &self.model
    }

    fn new(model: OnnxModel, name: &str) -> Result<OnnxPredictor> {
        const ANY: &str = "run it with `systole run FILE.onnx --input IN.npz`, which accepts any inputs";
        let given: Vec<&ValueInfo> = model.graph.given().collect();
        let (&[input], [output]) = (&given[..], &model.graph.outputs[..]) else {
            return Err(err!(
                Unsupported,
                "the model has {} inputs and {} outputs; expected one of each",
                given.len(),
                model.graph.outputs.len()
            )
            .hint_command(ANY));
        };
        let (Some(dtype), Some([batch, sizes @ ..])) = (input.dtype, input.sizes.as_deref()) else {
            return Err(err!(Unsupported, "input {} is {input}; expected a batch of samples", input.name)
                .hint_command(ANY));
        };
        let mut sample = Vec::new();
        for size in sizes {
            let DimSize::Known(n) = size else {
                return Err(err!(
                    Unsupported,
                    "a dimension ({size}) of the samples of input {} is open: {input}",
                    input.name
                )
                .hint_command(format!("export the model with only the batch size open, or {ANY}")));
            };
            sample.push(*n);
        }
        let is_channels = |n: &usize| matches!(n, 1 | 3);
        let channels_first = matches!(&sample[..], [c, _, w] if is_channels(c) && !is_channels(w));
        if channels_first {
            sample.rotate_left(1);
        }
        let batch = if let DimSize::Known(n) = batch { Some((*n).max(1)) } else { None };
        let ends = [scheme(&model, &input.name, true), scheme(&model, &output.name, false)];
        let runners = RefCell::default();
        Ok(OnnxPredictor { name: name.into(), dtype, sample, channels_first, batch, ends, runners, model })
    }

    /// Returns the type of one sample that the ONNX model accepts.
    pub fn takes(&self) -> TensorType {
        let is_of_tokens = self.dtype.is_int() && self.ends[0].is_none();
        TensorType::new(if is_of_tokens { DType::I32 } else { DType::F32 }, &self.sample[..])
    }

    /// Runs the ONNX model: `x: T[B, …] → f32[B, …]`.
    ///
    /// # Errors
    /// If a sample has the wrong shape; errors of the model and the device.
    pub fn predict(&self, x: &Literal) -> Result<Literal> {
        let samples = x.shape().first().copied().unwrap_or(0);
        let together = self.batch.unwrap_or(samples).max(1);
        let values = x.to_f32s();
        let each = values.len() / samples.max(1);
        let (mut all, mut of_one) = (Vec::new(), Vec::new());
        for part in values.chunks(each.max(1) * together) {
            let n = part.len() / each.max(1);
            let mut part = part.to_vec();
            // Pad to the fixed batch size by repeating the last sample.
            for _ in n..together {
                part.extend_from_within((n - 1) * each..n * each);
            }
            let y = self.batch(&part, together).at(|| self.name.clone())?;
            let answers = y.to_f32s();
            let own = answers.len() / together;
            all.extend_from_slice(&answers[..n * own]);
            of_one = y.shape()[1..].to_vec();
        }
        Literal::from_slice([&[samples], &of_one[..]].concat(), &all)
    }

    /// `n` samples → `f32[n, …]`
    fn batch(&self, values: &[f32], n: usize) -> Result<Literal> {
        let dims = [&[n], &self.sample[..]].concat();
        let mut x = Literal::from_slice(dims, values)?;
        if self.channels_first {
            x = channels_first(&x)?;
        }
        if let Some((scale, zero)) = self.ends[0] {
            let (low, high) = if self.dtype == DType::U8 { (0.0, 255.0) } else { (-128.0, 127.0) };
            x = each(&x, |v| ((v / scale).round() + zero).clamp(low, high))?;
        }
        let x = x.convert(self.dtype);
        let mut runners = self.runners.borrow_mut();
        let runner = match runners.entry(n) {
            Entry::Occupied(there) => there.into_mut(),
            Entry::Vacant(place) => {
                let sizes =
                    DimSizes { given: vec![("arg0".into(), x.shape().to_vec())], ..DimSizes::default() };
                let program = Program::of_graph(self.model.import(&sizes)?.graph);
                place.insert(ProgramRunner::new(&program, &backend("auto")?)?)
            }
        };
        let bug = || err!(Bug, "the ONNX program has no results");
        let ran = runner.results(&runner.run(&runner.put(&[vec![x]])?)?)?;
        let y = ran.values.first().and_then(|v| v.held.first()).ok_or_else(bug)?.convert(DType::F32);
        if y.shape().first() != Some(&n) {
            return Err(err!(
                Unsupported,
                "the output for {n} samples is {}; expected one row per sample",
                y.ty()
            )
            .hint_command("run the file with `systole run FILE.onnx`"));
        }
        match self.ends[1] {
            Some((scale, zero)) => each(&y, |q| scale * (q - zero)),
            None => Ok(y),
        }
    }
}

/// Applies a function to each element.
fn each(x: &Literal, of: impl Fn(f32) -> f32) -> Result<Literal> {
    Literal::from_slice(x.shape(), &x.to_f32s().into_iter().map(of).collect::<Vec<_>>())
}

/// `x: f32[N, H, W, C] → f32[N, C, H, W]`
fn channels_first(x: &Literal) -> Result<Literal> {
    let &[n, h, w, c] = x.shape().dims() else { return Ok(x.clone()) };
    let (values, mut turned) = (x.to_f32s(), Vec::<f32>::with_capacity(n * h * w * c));
    for picture in values.chunks_exact((h * w * c).max(1)) {
        (0..c).for_each(|k| turned.extend(picture.iter().skip(k).step_by(c)));
    }
    Literal::from_slice([n, c, h, w], &turned)
}

/// Operators that only move elements.
const MOVES: [&str; 6] = ["Transpose", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity"];

/// Scale and zero point of an integer input or output, from its DequantizeLinear or QuantizeLinear node.
///
/// Operators that only move elements may be in between.
fn scheme(model: &OnnxModel, port: &str, is_input: bool) -> Option<(f32, f32)> {
    let op = if is_input { "DequantizeLinear" } else { "QuantizeLinear" };
    let ends = |n: &'_ OnnxNode| {
        let (near, far) = (n.inputs.first().cloned(), n.outputs.first().cloned());
        if is_input { (near, far) } else { (far, near) }
    };
    let nodes: Vec<&OnnxNode> = match is_input {
        true => model.graph.nodes.iter().collect(),
        false => model.graph.nodes.iter().rev().collect(),
    };
    let mut names = vec![port.to_string()];
    for node in nodes {
        let (near, far) = ends(node);
        if !near.is_some_and(|name| names.contains(&name)) {
            continue;
        }
        if node.op == op {
            let constant = |i: usize| {
                let value = node.inputs.get(i).and_then(|name| model.graph.constants.get(name))?;
                value.to_f32s().first().copied().filter(|_| value.ty().elements() == 1)
            };
            return Some((constant(1)?, if node.inputs.len() > 2 { constant(2)? } else { 0.0 }));
        }
        names.extend(far.filter(|_| MOVES.contains(&node.op.as_str())));
    }
    None
}
