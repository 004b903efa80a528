//! Data for a saved model, as it knows them: samples of its shape, classes and columns by name, ids that it has a place for.

use std::sync::Arc;
use systole_config::{ConfigDraft, RunConfig};
use systole_datasets::{Tokenizer, TrainingData};
use systole_ir::{Error, ErrorKind, Result, ResultExt};
use systole_nn::loss::Loss;
use systole_nn::{Batch, Model};

/// Where a model file keeps its tokenizer.
const TOKENIZER: &str = "tokenizer";
/// Sequences that are looked at together.
const TOGETHER: usize = 1024;

/// An error when a model was made for samples of another shape.
pub(crate) fn check_samples(
    model: &Model,
    config: &RunConfig,
    data: &TrainingData,
    path: &str,
) -> Result<()> {
    let takes = model.architecture().inputs.first().and_then(|i| i.ty.as_ref()).map(|t| t.shape.to_vec());
    let are = config.sample_of(data).shape.to_vec();
    if takes.as_deref().is_none_or(|t| *t == are) {
        return Ok(());
    }
    Err(Error::new(ErrorKind::Data, format!("{path} does not fit the {} of {}", data.elements, data.name))
        .because(format!("it takes {:?}, they are {are:?}", takes.unwrap_or_default()))
        .hint("use the data set that the model was trained on"))
}

/// The data with their classes numbered as the model of `path` has them: the same name is the same class.
///
/// # Errors
/// When the data have other classes (each is named), or none though the model tells classes apart. `otherwise` ends the hint.
pub(crate) fn with_its_classes(
    model: &Model,
    data: TrainingData,
    path: &str,
    otherwise: &str,
) -> Result<TrainingData> {
    let hint = format!("give the classes the names that {path} knows, or train anew, without it{otherwise}");
    let classes = model.output_type().and_then(|output| output.shape.last().copied()).unwrap_or(0);
    let is_sparse = |loss: &Loss| matches!(loss.base(), Loss::SparseCategoricalCrossentropy { .. });
    if !model.compile_config().is_some_and(|config| is_sparse(&config.loss)) {
        return Ok(data);
    }
    match (model.class_names.is_empty(), data.class_names.is_empty()) {
        (true, true) => Ok(data),
        // A model of a program that gave its classes no names.
        (true, false) if data.class_names.len() <= classes => Ok(data),
        (true, false) => {
            let what =
                format!("{} has {} classes, {path} tells {classes} apart", data.name, data.class_names.len());
            Err(Error::new(ErrorKind::Data, what).hint(hint))
        }
        (false, true) => Err(Error::new(ErrorKind::Data, format!("{} has no classes", data.name))
            .because(format!("{path} tells classes apart: {}", model.class_names.join(", ")))
            .hint("use data of its classes")),
        (false, false) => data.with_classes(&model.class_names).map_err(|e| e.hint(hint)),
    }
}

/// An error when tokens, or the labels of sequences, are beyond what the model has a place for. They are all looked at; the
/// labels of other data are classes, which are counted.
pub(crate) fn check_tokens(model: &Model, data: &TrainingData) -> Result<()> {
    if !data.element.dtype.is_int() || data.is_pictures() {
        return Ok(());
    }
    let inputs: Vec<String> = model.architecture().inputs.iter().map(|i| i.name.clone()).collect();
    for (part, which) in [(&data.train, "train"), (&data.test, "test")] {
        for (i, batch) in part.batch(TOGETHER).iter().enumerate() {
            let batch = Batch::from_sample(&batch?, &inputs)?;
            let from = i * TOGETHER;
            model
                .check_ids(&batch)
                .at(|| format!("the {which} {} of {}, from {from} on", data.elements, data.name))?;
        }
    }
    Ok(())
}

/// Has records read by the names of the columns that the model learnt from, whatever their order is now.
pub(crate) fn set_columns(draft: &mut ConfigDraft, config: &RunConfig, model: &Model, path: &str) {
    let told = config.data.records.as_ref().is_some_and(|records| !records.inputs.is_empty());
    // A picture is one, whatever the field is called that it comes in.
    let takes = model.architecture().inputs.first().and_then(|i| i.ty.as_ref()).map(|t| t.rank());
    let is_wanted = config.data.dataset == "records" && !told && takes == Some(1);
    if let Some(fields) = model.notes.get("fields").filter(|_| is_wanted) {
        draft.set(path, "data.records.inputs", fields);
    }
}

/// What a saved model's text was cut into, where its file says so.
pub(crate) fn tokenizer_of(model: &Model) -> Result<Option<Arc<Tokenizer>>> {
    let kept = model.notes.get(TOKENIZER).map(|text| Tokenizer::from_json(text).map(Arc::new));
    kept.transpose().at(|| "the tokenizer kept with the model".into())
}

/// Keeps with a model what its text was cut into.
pub(crate) fn keep_tokenizer(model: &mut Model, tokenizer: &Tokenizer) {
    model.notes.insert(TOKENIZER.into(), tokenizer.to_json());
}
