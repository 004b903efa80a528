//! What answers questions about samples: the layers of a model file, or the operators of a `.tflite` or ONNX file.

use crate::models::onnx::{self, OnnxPredictor};
use crate::models::tflite;
use systole_ir::{DType, Error, ErrorKind, Literal, Result, ResultExt, TensorType};
use systole_nn::{Architecture, InputSpec, Model as Layers, NodeInput};
use systole_quant::FloatPredictor;

/// Begins the names of notes that Systole keeps in a file.
pub(crate) const NOTE: &str = "systole.";

/// What answers questions about samples.
pub(crate) struct Predictor {
    /// A model of layers; of a file of operators one of none, which has its notes and takes what the file takes.
    pub model: Layers,
    /// The file's operators.
    pub operators: Option<OperatorGraph>,
}

/// The operators of a file.
pub(crate) enum OperatorGraph {
    Lite(Box<FloatPredictor>),
    Onnx(Box<OnnxPredictor>),
}

impl OperatorGraph {
    /// `x: T[B, …] → f32[B, …]`, each sample by itself.
    pub fn predict(&self, x: &Literal) -> Result<Literal> {
        match self {
            OperatorGraph::Lite(answers) => tflite::predict_on_batch(answers, x),
            OperatorGraph::Onnx(asked) => asked.predict(x),
        }
    }
}

/// Whether a name is that of a file of operators.
pub(crate) fn is_of_operators(name: &str) -> bool {
    tflite::is_lite(name) || onnx::is_onnx(name)
}

/// A model file's layers, or the operators of a file in their place.
pub(crate) fn answerer(name: &str) -> Result<Predictor> {
    if onnx::is_onnx(name) {
        let (asked, notes) = OnnxPredictor::open(name)?;
        let model = in_place_of_layers(asked.takes(), &notes)?;
        return Ok(Predictor { model, operators: Some(OperatorGraph::Onnx(Box::new(asked))) });
    }
    if !tflite::is_lite(name) {
        return Ok(Predictor { model: Layers::load_to_predict(name)?, operators: None });
    }
    let graph = tflite::open(name)?;
    let &[input] = &graph.inputs[..] else {
        let what = format!("{name} has {} inputs", graph.inputs.len());
        return Err(Error::new(ErrorKind::Unsupported, what)
            .hint("`systole run FILE.tflite --input IN.npz` takes any"));
    };
    let dims = graph.tensor(input)?.dims();
    let Some((1, of_sample)) = dims.split_first().map(|(b, rest)| (*b, rest)) else {
        return Err(Error::new(ErrorKind::Unsupported, format!("{name} takes {dims:?} at once"))
            .hint("export it for one sample at a time"));
    };
    let model = in_place_of_layers(TensorType::new(DType::F32, of_sample), &graph.notes)?;
    let answers = FloatPredictor::new(&graph, tflite::engine(), tflite::threads()).at(|| name.to_string())?;
    Ok(Predictor { model, operators: Some(OperatorGraph::Lite(Box::new(answers))) })
}

/// A model without layers that takes samples of a type, with the notes of a file.
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
                    let e = Error::new(ErrorKind::Data, "the names of classes in the file are not readable")
                        .because(e.to_string());
                    e.at(format!("metadata {key}"))
                        .hint("write the file again with systole quantize or export")
                })?;
            }
            Some(key) => drop(model.notes.insert(key.into(), note.clone())),
            None => {}
        }
    }
    Ok(model)
}
