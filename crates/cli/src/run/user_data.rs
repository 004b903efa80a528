//! User data named on the command line: image folders, record files, text files, labeled texts.

use crate::args::exit_status::{CommandError, CommandResult};
use crate::models::command_target::CommandTarget;
use crate::models::image_preparation::ImagePreparation;
use crate::models::model_data::{set_columns, tokenizer_of};
use std::path::{Path, PathBuf};
use systole_config::{ConfigDraft, RunConfig, application_of, first_rescaling, layer_tables};
use systole_data::input_file::absolute;
use systole_data::tools::files_of;
use systole_datasets::{
    RecordOptions, holds_records, holds_sentences, is_json_lines, is_of_records, is_plain_text,
    is_table_of_texts,
};
use systole_ir::err;
use systole_nn::{Activation, Model};
use toml::{Table, Value};

/// Location and kind of user data.
pub(crate) struct UserData {
    /// Value for `data.dataset`.
    pub(crate) dataset: &'static str,
    dir: PathBuf,
    /// The record file, if a single file is named.
    file: Option<String>,
}

impl UserData {
    /// Resolves a command-line name to user data; `None` if it names something else.
    pub(crate) fn of(name: &str) -> CommandResult<Option<UserData>> {
        let own = |dataset, dir, file| Ok(Some(UserData { dataset, dir, file }));
        match CommandTarget::of(name).map_err(CommandError::usage)? {
            CommandTarget::Folder(dir) if holds_records(&dir) => own("records", dir, None),
            CommandTarget::Folder(dir) if is_folder_of_texts(&dir) => own("sentences", dir, None),
            CommandTarget::Folder(dir) => own("folder", dir, None),
            CommandTarget::Model(file) if is_json_lines(&file) => UserData::of_file("sentences", &file),
            CommandTarget::Model(file) if is_of_records(&file) => UserData::of_file("records", &file),
            CommandTarget::Model(file) if is_plain_text(&file) => {
                own("text", absolute(Path::new(&file))?, None)
            }
            _ => Ok(None),
        }
    }

    fn of_file(dataset: &'static str, file: &str) -> CommandResult<Option<UserData>> {
        let whole = absolute(Path::new(file))?;
        let file = whole.file_name().map(|n| n.to_string_lossy().into_owned());
        Ok(Some(UserData { dataset, dir: whole.parent().unwrap_or(Path::new("/")).to_path_buf(), file }))
    }

    /// Reads a table as labeled texts, for a model that classifies texts.
    fn into_texts(self) -> UserData {
        let dataset = if self.dataset == "records" { "sentences" } else { self.dataset };
        UserData { dataset, ..self }
    }

    /// Returns the data as a model with this configuration reads it.
    pub(crate) fn for_model(self, config: Option<&RunConfig>) -> UserData {
        if config.is_some_and(|c| c.data.kind() == "sentences") { self.into_texts() } else { self }
    }

    /// Returns the kind of data for messages.
    fn what(&self) -> &'static str {
        match self.dataset {
            "text" => "a text",
            "sentences" => "texts with classes",
            "records" => "a table",
            _ => "a folder of images",
        }
    }

    fn set_location(&self, draft: &mut ConfigDraft, name: &str) {
        draft.set_text(name, "data.dir", &self.dir.display().to_string());
        draft.set_text(name, "data.dataset", self.dataset);
        if let Some(file) = &self.file {
            draft.set_value(name, "data.records.train", vec![Value::from(file.as_str())].into());
        }
    }

    /// Makes a configuration read this data instead of its own. `name` is the command-line name for messages. Images
    /// are resized to the model's input size.
    pub(crate) fn set(&self, draft: &mut ConfigDraft, name: &str, config: Option<&RunConfig>, model: &Model) {
        // The file patterns are those of the training data.
        if config.is_some_and(|config| config.data.records.is_some()) {
            for key in ["train", "test", "pictures"] {
                draft.set(name, &format!("data.records.{key}"), "none");
            }
        }
        self.set_location(draft, name);
        let takes = model.architecture().inputs.first().and_then(|i| i.ty.as_ref()).map(|t| t.shape.to_vec());
        if let Some([height, width, channels @ (1 | 3)]) = takes.as_deref() {
            draft.set(name, "data.image_size", &format!("[{height}, {width}]"));
            draft.set(name, "data.color_mode", if *channels == 1 { "grayscale" } else { "rgb" });
        }
    }
}

/// Whether a folder contains texts to classify: folders of text files by class, or files of JSON lines.
fn is_folder_of_texts(dir: &Path) -> bool {
    holds_sentences(dir) || files_of(dir).is_ok_and(|files| files.iter().any(is_json_lines))
}

/// Returns the configuration for texts to classify, if `name` is a folder or file of such texts.
///
/// `records` are the record options of the command line; with `asked`, a table is read as texts in any case.
pub(crate) fn texts_draft(
    name: &str,
    records: &RecordOptions,
    asked: bool,
) -> CommandResult<Option<ConfigDraft>> {
    let Some(own) = UserData::of(name)? else { return Ok(None) };
    let is_records = own.dataset == "records";
    let first = || files_of(&own.dir).ok()?.into_iter().find(|f| is_of_records(f));
    let table = match &own.file {
        Some(file) => is_records.then(|| own.dir.join(file)),
        None => is_records.then(first).flatten(),
    };
    let is_texts = match &table {
        Some(table) => asked || is_table_of_texts(table, records).unwrap_or(false),
        None => own.dataset == "sentences",
    };
    if !is_texts {
        return Ok(None);
    }
    let mut draft = ConfigDraft::preset("sentences")?;
    own.into_texts().set_location(&mut draft, name);
    Ok(Some(draft))
}

/// Returns the configuration for further training or evaluation of a saved model that contains no configuration, with
/// its sizes; `None` if the model's sizes are unknown, or `name` is not user data.
///
/// # Errors
/// If the model does not accept this kind of data, or has no tokenizer (`has_tokenizer`: the command line names one).
pub(crate) fn beside_imported(
    name: &str,
    model: &Model,
    path: &str,
    has_tokenizer: bool,
) -> CommandResult<Option<ConfigDraft>> {
    let Some(own) = UserData::of(name)? else { return Ok(None) };
    let Some(table) = application_of(model.architecture()) else {
        check_describable(model, path)?;
        return beside_classifier(&own, name, model, path);
    };
    let is_language = table.get("application").and_then(Value::as_str) == Some("gpt2");
    let own = if is_language { own } else { own.into_texts() };
    let (accepts, data) = match is_language {
        true => ("a language model", "name a text file (.txt)"),
        false => (
            "a classifier of texts",
            "name a folder with one folder of .txt files per class, or a .csv or .jsonl file with a text and a class in \
             each row",
        ),
    };
    if own.dataset != if is_language { "text" } else { "sentences" } {
        let e = err!(Config, "{path} is {accepts}, but {name} is {}", own.what());
        return Err(CommandError::usage(e.hint_command(data)));
    }
    let has_bytes = table.get("vocabulary_size").and_then(Value::as_integer) == Some(256);
    if !(has_tokenizer || is_language && has_bytes) && tokenizer_of(model)?.is_none() {
        let e = err!(Config, "{path} has no tokenizer")
            .hint_setting("name its tokenizer file: --set data.tokenizer=FILE; or import the whole folder of the model again");
        return Err(CommandError::usage(e));
    }
    let mut draft = ConfigDraft::preset(if is_language { "gpt-micro" } else { "sentences" })?;
    own.set_location(&mut draft, name);
    match is_language {
        true => set_language_model(&mut draft, path, table),
        false => set_encoder(&mut draft, path, table),
    }
    Ok(Some(draft))
}

/// Rejects an encoder of texts whose layers no configuration describes.
fn check_describable(model: &Model, path: &str) -> Result<(), CommandError> {
    let first = model.architecture().inputs.first().and_then(|input| input.ty.as_ref());
    if !first.is_some_and(|ty| ty.dtype.is_int()) || tokenizer_of(model)?.is_none_or(|t| !t.pads()) {
        return Ok(());
    }
    let e =
        err!(Unsupported, "`{path}` cannot be trained or evaluated: no configuration describes its layers")
            .because("of the encoders of texts, only BERT-like ones are supported");
    Err(e
        .hint_command("use a BERT, RoBERTa, DistilBERT or ELECTRA; `systole predict` supports this model")
        .into())
}

/// Returns the configuration of the preset `folder` with the layers of a saved image classifier; `None` for other data, or
/// if no configuration describes the layers.
fn beside_classifier(
    own: &UserData,
    name: &str,
    model: &Model,
    path: &str,
) -> CommandResult<Option<ConfigDraft>> {
    let input = model.architecture().inputs.first().and_then(|input| input.ty.as_ref());
    let reads_images = input.is_some_and(|ty| matches!(*ty.shape, [_, _, 1 | 3])) && own.dataset == "folder";
    let tables = layer_tables(model.architecture()).filter(|_| reads_images);
    let Some(mut tables) = tables else { return Ok(None) };
    let mut draft = ConfigDraft::preset("folder")?;
    own.set(&mut draft, name, None, model);
    if first_rescaling(model.architecture()).is_some() {
        draft.set_value(path, "data.scale", 1.0.into());
    }
    if let Some(preparation) = ImagePreparation::in_model(model)? {
        draft.set_value(path, "data.resize", preparation.resize_table().into());
    }
    match model.architecture().output_activation(0) {
        Some((_, Activation::Softmax)) => {}
        // One probability for two classes: the new head has one for each class.
        Some((head, Activation::Sigmoid)) => {
            let named = |table: &&mut Table| table.get("name").and_then(Value::as_str) == Some(&head.name);
            let softmax = ("activation".to_string(), "softmax".into());
            tables.iter_mut().find(named).into_iter().for_each(|table| table.extend([softmax.clone()]));
        }
        _ => {
            let loss = [("type", "sparse_categorical_crossentropy".into()), ("from_logits", true.into())];
            let loss = loss.into_iter().map(|(key, value): (&str, Value)| (key.to_string(), value));
            draft.set_value(path, "compile.loss", Table::from_iter(loss).into());
        }
    }
    draft.set_value(path, "layers", tables.into());
    Ok(Some(draft))
}

/// Sets the sizes of a saved language model. Steps have at most about 4,096 tokens; the rate is one for trained weights.
fn set_language_model(draft: &mut ConfigDraft, path: &str, table: Table) {
    let length = table.get("max_sequence_length").and_then(Value::as_integer).unwrap_or(128);
    draft.set_value(path, "data.sequence_length", length.into());
    draft.set_value(path, "fit.batch_size", (4096 / length.max(1)).clamp(1, 32).into());
    draft.set_value(path, "optimizer.learning_rate", 1e-4.into());
    draft.set_value(path, "model", table.into());
}

/// Sets the sizes of a saved text encoder, whose padding is masked.
fn set_encoder(draft: &mut ConfigDraft, path: &str, mut table: Table) {
    if !table.contains_key("padding_token") {
        table.insert("mask_zero".into(), true.into());
    }
    table.insert("output".into(), "pooled".into());
    draft.set(path, "layers", "none");
    draft.set_value(path, "optimizer.learning_rate", 1e-4.into());
    draft.set_value(path, "model", table.into());
}

/// Returns a saved model's configuration changed to read the user data `name`; `None` if `name` is not matching user
/// data.
///
/// If `adapts` is set, the model may have been trained on a published dataset.
pub(crate) fn beside_model(
    name: &str,
    model: &Model,
    path: &str,
    config: Option<RunConfig>,
    adapts: bool,
) -> CommandResult<Option<ConfigDraft>> {
    let (Some(own), Some(config)) = (UserData::of(name)?, config) else { return Ok(None) };
    let own = own.for_model(Some(&config));
    let is_text = config.data.dataset == "text";
    if (own.dataset == "sentences") != (config.data.kind() == "sentences") {
        return Ok(None);
    }
    if (own.dataset == "text") != is_text || !(is_text || adapts || config.data.is_own()) {
        return Ok(None);
    }
    let mut draft = ConfigDraft::parse(&config.to_toml()?, &format!("the configuration stored in {path}"))?;
    set_columns(&mut draft, &config, model, path);
    own.set(&mut draft, name, Some(&config), model);
    if adapts {
        // These keys describe the original training data.
        ["fit.steps_per_epoch", "data.train_samples", "data.test_samples", "fit.class_weight"]
            .iter()
            .for_each(|key| draft.set(name, key, "none"));
    }
    Ok(Some(draft))
}
