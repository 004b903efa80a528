//! Predictor over a Systole model, a .tflite file or an ONNX file.

use crate::models::binary_output::BinaryOutput;
use crate::models::imported;
use crate::models::onnx::{self, OnnxPredictor};
use crate::models::tflite;
use systole_ir::{DType, Literal, Result, ResultExt, TensorType, err};
use systole_nn::{Architecture, InputSpec, Model as Layers, NodeInput};
use systole_quant::FloatPredictor;
use systole_weights::Tower;

/// Prefix of the metadata keys that Systole stores in a file.
pub(crate) const NOTE: &str = "systole.";

/// Model that predicts samples, by layers or by a file's operators.
pub(crate) struct Predictor {
    /// The model. For a file of operators it has no layers, only the file's notes and its input type.
    pub model: Layers,
    /// Operators of a .tflite or ONNX file.
    pub operators: Option<OperatorGraph>,
    /// Meaning of a single output for two classes: probability or logit.
    pub binary_output: BinaryOutput,
}

/// Executable operators of a .tflite or ONNX file.
pub(crate) enum OperatorGraph {
    Lite(Box<FloatPredictor>),
    Onnx(Box<OnnxPredictor>),
}

impl OperatorGraph {
    /// `x: T[B, …] → f32[B, …]`, each sample independently.
    pub fn predict(&self, x: &Literal) -> Result<Literal> {
        match self {
            OperatorGraph::Lite(answers) => tflite::predict_on_batch(answers, x),
            OperatorGraph::Onnx(asked) => asked.predict(x),
        }
    }
}

/// Whether the name is that of a .tflite or ONNX file.
pub(crate) fn is_of_operators(name: &str) -> bool {
    tflite::is_lite_file(name) || onnx::is_onnx_file(name)
}

/// Loads a predictor from a model file, a .tflite file or an ONNX file.
pub(crate) fn answerer(name: &str) -> Result<Predictor> {
    answerer_of_tower(name, Tower::Images)
}

/// Like [`answerer`], with this encoder of a folder of images and texts.
pub(crate) fn answerer_of_tower(name: &str, tower: Tower) -> Result<Predictor> {
    if onnx::is_onnx_file(name) {
        let asked = OnnxPredictor::open(name)?;
        let model = in_place_of_layers(asked.takes(), &asked.model().notes)?;
        let binary_output = BinaryOutput::of_onnx(asked.model());
        return Ok(Predictor { model, operators: Some(OperatorGraph::Onnx(Box::new(asked))), binary_output });
    }
    if !tflite::is_lite_file(name) {
        let model = imported::load_tower(name, tower)?;
        let binary_output = BinaryOutput::of_layers(&model);
        return Ok(Predictor { model, operators: None, binary_output });
    }
    let graph = tflite::open(name)?;
    let &[input] = &graph.inputs[..] else {
        return Err(err!(Unsupported, "{name} has {} inputs; expected 1", graph.inputs.len()).hint_command(
            "run the model with `systole run FILE.tflite --input IN.npz`, which accepts any number of inputs",
        ));
    };
    let dims = graph.tensor(input)?.dims();
    let Some((1, of_sample)) = dims.split_first().map(|(b, rest)| (*b, rest)) else {
        return Err(err!(Unsupported, "{name} has the input shape {dims:?}; expected a batch size of 1")
            .hint("export the model with batch size 1"));
    };
    let model = in_place_of_layers(TensorType::new(DType::F32, of_sample), &graph.notes)?;
    let answers = FloatPredictor::new(&graph, tflite::engine(), tflite::threads()).at(|| name.to_string())?;
    let operators = Some(OperatorGraph::Lite(Box::new(answers)));
    Ok(Predictor { model, operators, binary_output: BinaryOutput::of_tflite(&graph) })
}

/// Creates a model without layers that has the input type and the notes of a file.
fn in_place_of_layers<'a>(
    takes: TensorType,
    notes: impl IntoIterator<Item = (&'a String, &'a String)>,
) -> Result<Layers> {
    let mut model = Layers::new(Architecture {
        inputs: vec![InputSpec { name: "image".into(), ty: Some(takes) }],
        nodes: Vec::new(),
        output: NodeInput::Input(0),
        more_outputs: Vec::new(),
        networks: Vec::new(),
    });
    for (key, note) in notes {
        match key.strip_prefix(NOTE) {
            Some("class_names") => {
                model.class_names = serde_json::from_str(note).map_err(|e| {
                    let e = err!(Data, "cannot parse the class names in the file").because(e.to_string());
                    e.at(format!("metadata {key}"))
                        .hint_command("write the file again with `systole quantize` or `systole export`")
                })?;
            }
            Some(key) => drop(model.notes.insert(key.into(), note.clone())),
            None => {}
        }
    }
    Ok(model)
}
