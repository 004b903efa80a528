//! Checks that data matches a saved model: sample shape, classes, column names, token ids.

use std::sync::Arc;
use systole_config::{ConfigDraft, RunConfig};
use systole_datasets::{Tokenizer, TrainingData};
use systole_ir::{Result, ResultExt, err};
use systole_nn::loss::Loss;
use systole_nn::{Batch, Model};

/// Key of the tokenizer in a model file.
const TOKENIZER: &str = "tokenizer";
/// Number of sequences that are checked at once.
const TOGETHER: usize = 1024;

/// Rejects data whose sample shape differs from the model's input shape.
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
    Err(err!(Data, "{path} does not accept the {} of {}", data.elements, data.name)
        .because(format!("expected samples of shape {:?}, got {are:?}", takes.unwrap_or_default()))
        .hint_command("use the dataset that the model was trained on"))
}

/// Renumbers the data's classes to match the model of `path` by class name.
///
/// # Errors
/// If the data has other classes (each is named), or has no classes although the model is a classifier. `otherwise` is
/// the alternative in the hint.
pub(crate) fn with_its_classes(
    model: &Model,
    data: TrainingData,
    path: &str,
    otherwise: &str,
) -> Result<TrainingData> {
    let classes = model.output_type().and_then(|output| output.shape.last().copied()).unwrap_or(0);
    let (is_sparse, is_binary) = match model.compile_config().map(|config| config.loss.base()) {
        Some(Loss::SparseCategoricalCrossentropy { .. }) => (true, false),
        Some(Loss::BinaryCrossentropy { .. }) => (false, classes == 1),
        _ => (false, false),
    };
    let names = data.class_names.len();
    if is_binary && names > 2 && model.class_names.is_empty() {
        let e = err!(Data, "`{}` has {names} classes, but {path} has one output for two classes", data.name);
        return Err(e.hint_command(format!("use data with two classes, or {otherwise}")));
    }
    let both_name_classes = names > 0 && !model.class_names.is_empty();
    let is_matched = is_sparse || (is_binary && both_name_classes);
    if !is_matched {
        return Ok(data);
    }
    match (model.class_names.is_empty(), data.class_names.is_empty()) {
        (true, true) => Ok(data),
        // A model from a program that did not name its classes.
        (true, false) if data.class_names.len() <= classes => Ok(data),
        (true, false) => Err(err!(
            Data,
            "`{}` has {} classes, but {path} has {classes}",
            data.name,
            data.class_names.len()
        )
        .hint_command(format!("use data with {classes} classes, or train a new model without {path}"))),
        (false, true) => Err(err!(Data, "`{}` has no class labels", data.name)
            .because(format!("{path} is a classifier with the classes {}", model.class_names.join(", ")))
            .hint_command("use data with these classes")),
        (false, false) => in_its_order(model, data, path, otherwise),
    }
}

/// Renumbers the data's classes by the names of the model's.
///
/// # Errors
/// If the data has other classes (each is named). `otherwise` is the alternative in the hint.
pub(crate) fn in_its_order(
    model: &Model,
    data: TrainingData,
    path: &str,
    otherwise: &str,
) -> Result<TrainingData> {
    let hint = classes_hint(&data, path, otherwise);
    data.with_classes(&model.class_names).map_err(|e| e.hint_command(hint))
}

fn classes_hint(data: &TrainingData, path: &str, otherwise: &str) -> String {
    format!("rename the classes of {} as in {path}, or {otherwise}", data.name)
}

/// Rejects token ids and sequence labels outside the model's vocabulary. Checks all sequences. Other data has class
/// labels, which are checked by their number.
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
                .at(|| format!("the {which} {} of {}, starting at {from}", data.elements, data.name))?;
        }
    }
    Ok(())
}

/// Reads records by the column names that the model was trained on, in that order.
pub(crate) fn set_columns(draft: &mut ConfigDraft, config: &RunConfig, model: &Model, path: &str) {
    let told = config.data.records.as_ref().is_some_and(|records| !records.inputs.is_empty());
    // An image input is a single field, whatever the field's name.
    let takes = model.architecture().inputs.first().and_then(|i| i.ty.as_ref()).map(|t| t.rank());
    let is_wanted = config.data.dataset == "records" && !told && takes == Some(1);
    if let Some(fields) = model.notes.get("fields").filter(|_| is_wanted) {
        draft.set(path, "data.records.inputs", fields);
    }
}

/// Returns the tokenizer of a saved text model, if its file has one.
pub(crate) fn tokenizer_of(model: &Model) -> Result<Option<Arc<Tokenizer>>> {
    let kept = model.notes.get(TOKENIZER).map(|text| Tokenizer::from_json(text).map(Arc::new));
    kept.transpose().at(|| "the tokenizer stored with the model".into())
}

/// Stores the tokenizer with the model.
pub(crate) fn keep_tokenizer(model: &mut Model, tokenizer: &Tokenizer) {
    model.notes.insert(TOKENIZER.into(), tokenizer.to_json());
}
