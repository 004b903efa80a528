//! Reads prediction samples from files and folders: images, records or text, in the model's input shape, before
//! scaling.

use super::arrays;
use crate::models::command_target::config_of;
use crate::models::image_preparation::{ImagePreparation, check_image_head};
use crate::models::model_data::tokenizer_of;
use crate::render::screen::note;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use systole_config::RunConfig;
use systole_data::format::text_encoding::to_utf8;
use systole_data::format::{any_format, idx};
use systole_data::input_file::{self, InputFile, is_dir};
use systole_data::tools::files_of;
use systole_data::{AUTOTUNE, Dataset, HostArray, ImageFolder, Sample};
use systole_datasets::{
    ImageFit, RecordInputs, RecordOptions, Tokenizer, is_json_lines, is_of_records, is_plain_text,
    lists_images, record_inputs, unlabeled_texts,
};
use systole_ir::{DType, Error, ErrorKind, Literal, Result};
use systole_nn::Model;

/// Image file extensions, including unsupported formats, which must be reported.
const PICTURES: [&str; 14] =
    ["jpg", "jpeg", "jpe", "jfif", "png", "bmp", "gif", "webp", "tif", "tiff", "heic", "heif", "avif", "jxl"];
/// Image formats, for messages.
pub(super) const IMAGE_FORMATS: &str = "JPEG, PNG or BMP";
/// Formats of files with several samples, for messages.
pub(super) const RECORD_FORMATS: &str = "IDX, TFRecord, CSV, NumPy";
/// Number of file names listed in messages.
const NAMED: usize = 3;

/// Input of a model for one sample.
#[derive(Clone, Copy)]
pub(super) enum InputKind {
    Pictures([usize; 3]),
    Numbers(usize),
    /// Text of this many tokens, to predict the next one.
    Text(usize),
    /// Texts of at most this many tokens, to classify.
    Sentences(usize),
}

impl InputKind {
    /// Determines the kind of prediction input (images, records, text) from the type of the model's input.
    /// Features of texts, unlike classes, need no head.
    pub fn of(model: &Model, path: &str, needs_head: bool) -> Result<InputKind> {
        let inputs = &model.architecture().inputs;
        if let Some(length) = sentence_length(model)? {
            if needs_head {
                check_head(model, path)?;
            }
            return Ok(InputKind::Sentences(length));
        }
        if needs_head {
            check_image_head(model, path)?;
        }
        let ty = match inputs.as_slice() {
            [one] => one.ty.as_ref(),
            _ => None,
        };
        // A model of token ids with one output for all positions takes them as numbers.
        let is_by_position = model.output_type().is_some_and(|t| t.rank() > 1);
        let has_tokens = |t: &systole_ir::TensorType| {
            t.dtype.is_int()
                && !inputs.is_empty()
                && (is_by_position || model.notes.contains_key("tokenizer"))
        };
        match ty.map(|t| (t, t.shape.dims())) {
            Some((_, &[h, w, c @ (1 | 3)])) => Ok(InputKind::Pictures([h, w, c])),
            Some((_, &[h, w])) => Ok(InputKind::Pictures([h, w, 1])),
            Some((t, &[n])) if has_tokens(t) => Ok(InputKind::Text(n)),
            Some((_, &[n])) => Ok(InputKind::Numbers(n)),
            other => Err(Error::new(
                ErrorKind::Unsupported,
                format!("{path} does not accept images, records or text"),
            )
            .because(format!(
                "the model's input shape per sample is {:?}; expected [H, W, 1] or [H, W, 3] for images, [N] for \
                records",
                other.map(|(t, _)| t.to_string())
            ))
            .hint("use the Rust library: Model::load and predict")),
        }
    }
}

/// Maximum number of tokens of a text that the model classifies; `None`: it does not classify texts.
fn sentence_length(model: &Model) -> Result<Option<usize>> {
    let inputs = &model.architecture().inputs;
    let first = inputs.first().and_then(|i| i.ty.as_ref()).filter(|t| t.dtype.is_int() && t.rank() == 1);
    let Some(length) = first.map(|t| t.shape[0]) else { return Ok(None) };
    Ok(tokenizer_of(model)?.filter(|t| t.pads()).map(|_| length))
}

/// Rejects an encoder without a head: its outputs are features, not classes.
fn check_head(model: &Model, path: &str) -> Result<()> {
    let has_head = model
        .architecture()
        .nodes
        .last()
        .is_some_and(|n| !["pooled_dense", "first_step"].contains(&n.name.as_str()));
    let output = model.output_type().map_or(Vec::new(), |t| t.shape.to_vec());
    if has_head && output.len() == 1 {
        return Ok(());
    }
    Err(Error::new(ErrorKind::Unsupported, format!("`{path}` has no classification head"))
        .because(format!("it returns features of shape {output:?} for a text"))
        .hint_command(
            "pass --embed for the features, or train a head on labeled texts: systole train DATA --from MODEL \
             --fine-tune",
        ))
}

/// Options for reading samples.
#[derive(Clone, Copy)]
pub(super) struct ReadOptions<'a> {
    pub takes: InputKind,
    pub model: &'a Model,
    pub config: Option<&'a RunConfig>,
    /// Maximum number of samples per file.
    pub limit: Option<u64>,
    /// Whether to invert brightness.
    pub invert: bool,
    /// Whether to report unreadable samples and continue, also for files named explicitly.
    pub keep_going: bool,
}

/// Samples of a file, or the images of a folder.
pub(super) struct SampleSource {
    /// Path of the file or folder.
    pub path: String,
    pub elements: Dataset,
    /// File of each sample, if each sample is a file.
    pub files: Option<Vec<String>>,
    /// Whether an unreadable sample is reported and skipped.
    pub goes_on: bool,
}

impl SampleSource {
    /// Returns a prediction sample's file, its index there, and whether the file has several samples.
    pub fn place(&self, index: usize) -> (String, usize, bool) {
        match &self.files {
            Some(files) => (files.get(index).cloned().unwrap_or_default(), 0, false),
            None => (self.path.clone(), index, self.elements.cardinality().finite() != Some(1)),
        }
    }
}

/// A file that cannot be opened and is skipped.
pub(super) struct UnreadableFile {
    pub path: String,
    pub error: Error,
}

impl ReadOptions<'_> {
    /// Opens prediction samples at a path: a file, a pattern of record files, or a folder.
    pub fn open(&self, path: &str) -> Result<Vec<Result<SampleSource, UnreadableFile>>> {
        if !is_dir(path) {
            let one = self.file(path, self.keep_going);
            return match (one, self.keep_going) {
                (Err(error), true) => Ok(vec![Err(UnreadableFile { path: path.into(), error })]),
                (one, _) => Ok(vec![Ok(one.map_err(|e| or_go_on(e, path))?)]),
            };
        }
        let mut all = Vec::new();
        let files: Vec<String> = files_of(Path::new(path))?.iter().map(|f| f.display().to_string()).collect();
        let is_answered = |name: &String| match self.takes {
            InputKind::Text(_) => is_plain_text(name),
            InputKind::Sentences(_) => is_of_sentences(name),
            _ => is_of_records(name),
        };
        // A table next to images is data for an image model only if it lists images.
        let is_other = |file: &String| matches!(self.takes, InputKind::Pictures(_)) && is_other_table(file);
        let (others, files): (Vec<String>, Vec<String>) =
            files.into_iter().filter(is_answered).partition(is_other);
        tell_left_out(others.into_iter().map(PathBuf::from).collect());
        for file in files {
            all.push(self.file(&file, true).map_err(|error| UnreadableFile { path: file, error }));
        }
        if let InputKind::Pictures(size) = self.takes {
            all.extend(self.album(path, size)?.map(Ok));
        }
        match all.is_empty() {
            true => Err(self.nothing_in(path)),
            false => Ok(all),
        }
    }

    fn nothing_in(&self, path: &str) -> Error {
        let what = match self.takes {
            InputKind::Pictures(_) => "images",
            InputKind::Numbers(_) => "record files (.csv, .npz, .tfrecord)",
            InputKind::Text(_) => "text files (.txt)",
            InputKind::Sentences(_) => "texts (.txt, .csv, .jsonl)",
        };
        Error::new(ErrorKind::Data, format!("the folder contains no {what}"))
            .at(path)
            .hint_command("name a folder that contains such files, or the files themselves")
    }

    /// Opens the images of a folder and its subfolders, as in training; `None` if there are none.
    fn album(&self, path: &str, size: [usize; 3]) -> Result<Option<SampleSource>> {
        let found = ImageFolder::flat(path)?;
        let (suspects, others): (Vec<PathBuf>, Vec<PathBuf>) =
            found.left_out.iter().cloned().partition(|f| is_named_as_picture(f));
        tell_left_out(others.into_iter().filter(|f| !is_of_records(f)).collect());
        let mut pictures: Vec<(PathBuf, i32)> = found.pictures.to_vec();
        pictures.extend(suspects.into_iter().map(|file| (file, 0)));
        if pictures.is_empty() {
            return Ok(None);
        }
        pictures.sort();
        let files = pictures.iter().map(|(file, _)| file.display().to_string()).collect();
        let (image, invert, preparation) = (self.image_fit(size), self.invert, self.preparation()?);
        let fit = move |s: Sample| {
            let x = HostArray::from(s.get("image")?);
            let x = if let Some(preparation) = preparation { preparation.apply(x) } else { x };
            let fitted = image.apply(x).into_literal()?;
            Sample::new([("image", if invert { inverted(&fitted)? } else { fitted })]).check()
        };
        let all = ImageFolder { pictures: Arc::new(pictures), ..found };
        let elements = all.dataset().map_parallel(fit, AUTOTUNE);
        Ok(Some(SampleSource { path: path.into(), elements, files: Some(files), goes_on: true }))
    }

    /// Opens the samples of a file.
    fn file(&self, path: &str, goes_on: bool) -> Result<SampleSource> {
        let elements = self.samples(path, goes_on)?;
        let elements = self.limit.map_or(elements.clone(), |n| elements.take(n));
        Ok(SampleSource { path: path.into(), elements, files: None, goes_on })
    }

    fn samples(&self, path: &str, goes_on: bool) -> Result<Dataset> {
        let size = match self.takes {
            InputKind::Text(length) => return self.last_of_text(path, length),
            InputKind::Sentences(length) => {
                let mut options = self.config.and_then(|c| c.data.records.clone()).unwrap_or_default();
                if let Some(fields) = self.model.notes.get("fields").filter(|_| options.inputs.is_empty()) {
                    options.inputs = serde_json::from_str(fields).unwrap_or_default();
                }
                return self.sentences(path, &texts_of(path, options)?, length);
            }
            InputKind::Pictures(size) if !is_of_records(path) => {
                return Dataset::from_named_slices(path, [("image", self.pictures(path, size)?)]);
            }
            InputKind::Pictures(size) => Some(size),
            InputKind::Numbers(_) => None,
        };
        let options = self.config.and_then(|c| c.data.records.clone()).unwrap_or_default();
        let fields: Option<Vec<String>> =
            self.model.notes.get("fields").and_then(|text| serde_json::from_str(text).ok());
        let fields = fields.unwrap_or_default();
        let files = files_of(Path::new(path))?;
        let arrays = files.iter().map(|file| self.array(&file.display().to_string()));
        if let Some(arrays) = arrays.collect::<Result<Option<Vec<Dataset>>>>()?
            && let Some(all) = arrays.into_iter().reduce(|all, next| all.concatenate(&next))
        {
            return Ok(all);
        }
        let wanted = RecordInputs {
            options: &options,
            fields: &fields,
            size,
            background: self.ground(),
            resizing: self.image_fit([0; 3]).resizing,
            resizes: self.resizes(),
            goes_on,
        };
        let inputs = record_inputs(files, &wanted)?;
        self.check_numbers(&inputs, path)?;
        Ok(if self.invert && size.is_some() { inputs.map(with_inverted_image) } else { inputs })
    }

    /// Whether the model was trained on images of any size, which are resized.
    fn resizes(&self) -> bool {
        self.config.is_some_and(|c| c.data.is_own())
    }

    /// Returns the samples of a file that contains one array; `None` for fields of records.
    fn array(&self, path: &str) -> Result<Option<Dataset>> {
        let (sample, name) = match self.takes {
            InputKind::Pictures(size) => (size.to_vec(), "image"),
            InputKind::Numbers(count) => (vec![count], "x"),
            _ => return Ok(None),
        };
        let records = self.config.and_then(|c| c.data.records.as_ref());
        let of_columns = records.is_some_and(|r| !r.columns.is_empty() || r.inputs.len() > 1);
        let Some(x) = (if of_columns { None } else { arrays::only_array(path)? }) else { return Ok(None) };
        let input = self.model.architecture().inputs.first().and_then(|i| i.ty.as_ref());
        let input = input.map_or(sample.clone(), |ty| ty.shape.to_vec());
        let batch = match arrays::batch_of(&x, &input, &sample)? {
            Some(batch) if name == "x" => batch.convert(DType::F32),
            Some(batch) => batch,
            // Images of another size, which the records below resize as in training.
            None if self.resizes() && matches!(x.shape().dims(), [_, _, _, 1..=4]) => return Ok(None),
            None => return Err(arrays::wrong_shape(&x, &input, path)),
        };
        let samples = Dataset::from_named_slices(path, [(name, batch)])?;
        Ok(Some(if self.invert && name == "image" { samples.map(with_inverted_image) } else { samples }))
    }

    /// Image processor of an imported model, if it has one.
    fn preparation(&self) -> Result<Option<ImagePreparation>> {
        ImagePreparation::in_model(self.model)
    }

    /// Conversion of images to the model's input, as in training.
    fn image_fit(&self, size: [usize; 3]) -> ImageFit {
        let resizing = self.config.map(|c| c.data.resizing()).unwrap_or_default();
        ImageFit { size, background: self.ground(), resizing }
    }

    /// Background for transparent parts of images, as in training.
    fn ground(&self) -> f64 {
        self.config.and_then(|c| c.data.background).unwrap_or(0.0)
    }

    /// Checks that the first readable record has the number of values that the model expects.
    fn check_numbers(&self, inputs: &Dataset, path: &str) -> Result<()> {
        let InputKind::Numbers(wanted) = self.takes else { return Ok(()) };
        let mut first = inputs.debug().iter();
        let first = match self.keep_going {
            true => first.find_map(Result::ok),
            false => first.next().transpose()?,
        };
        let first = first.ok_or_else(|| nothing(path))?;
        let found = first.fields().next().map_or(0, |(_, x)| x.get().map_or(0, |x| x.ty().elements()));
        if found == wanted {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Data, format!("the record has {found} values, expected {wanted}"))
            .at(path)
            .hint_command(
                "provide exactly the columns that the model was trained on; list a file's columns with `systole \
                data inspect`",
            ))
    }

    /// Opens a text of the command line.
    pub fn text(&self, text: &str) -> Result<SampleSource> {
        let InputKind::Sentences(length) = self.takes else {
            let e = Error::new(ErrorKind::Config, "the model does not read whole texts").at("--text");
            return Err(e.hint_command(
                "name files instead, or continue a text with `systole generate MODEL --prompt TEXT`",
            ));
        };
        let elements = self.sentences(text, &[text.to_string()], length)?;
        Ok(SampleSource { path: text.into(), elements, files: None, goes_on: self.keep_going })
    }

    /// Returns the token ids of texts, padded to the longest one: `tokens: i32[N, length]`.
    fn sentences(&self, path: &str, texts: &[String], most: usize) -> Result<Dataset> {
        let tokenizer = text_tokenizer(self.model)?;
        let (mut all, mut cut) = (Vec::with_capacity(texts.len()), 0);
        for text in texts {
            // One more token than fits tells whether the text is cut.
            let mut ids = tokenizer.encode_with_ends(text, most + 1)?;
            if ids.len() > most {
                cut += 1;
                ids = tokenizer.encode_with_ends(text, most)?;
            }
            all.push(ids);
        }
        tell_of_cut(cut, most);
        let longest = all.iter().map(Vec::len).max().unwrap_or(1);
        // Few lengths: each one is compiled.
        let length = longest.next_multiple_of(16).min(most.max(longest));
        let padding = tokenizer.padding().unwrap_or(0);
        let ids: Vec<i32> = all
            .into_iter()
            .flat_map(|mut ids| {
                ids.resize(length, padding);
                ids.into_iter().map(|id| id as i32)
            })
            .collect();
        Dataset::from_named_slices(path, [("tokens", Literal::from_slice([texts.len(), length], &ids)?)])
    }

    /// Returns the last tokens of a text, to predict the next one: `tokens: i32[length]`.
    fn last_of_text(&self, path: &str, length: usize) -> Result<Dataset> {
        let bytes = input_file::read(path)
            .map_err(|e| Error::io("cannot read", path, e).hint("check the path of the text file"))?;
        let written = self.config.and_then(|c| c.data.records.as_ref()).map(|r| r.written()).transpose()?;
        let (bytes, _) = to_utf8(path, bytes, written.and_then(|w| w.encoding))?;
        let tokenizer = text_tokenizer(self.model)?;
        let text = String::from_utf8(bytes).map_err(|e| {
            Error::new(ErrorKind::Data, "the text file is not UTF-8")
                .at(path)
                .because(e.to_string())
                .hint_setting("save it as UTF-8, or name its encoding: --set data.records.encoding=latin1")
        })?;
        let ids = tokenizer.encode(&text).map_err(|e| e.at(path))?;
        let Some(start) = ids.len().checked_sub(length) else {
            let unit = if tokenizer.name() == "bytes" { "bytes" } else { "tokens" };
            return Err(Error::new(ErrorKind::Data, "the prompt or text is too short for the model")
                .at(path)
                .because(format!("the text has {} {unit}, but the model needs {length}", ids.len()))
                .hint_command("provide a longer prompt; `systole generate` accepts any length"));
        };
        let tokens: Vec<i32> = ids.iter().skip(start).map(|id| *id as i32).collect();
        Dataset::from_named_slices(path, [("tokens", Literal::from_slice([1, length], &tokens)?)])
    }

    /// Reads the images of a file and resizes them: `→ u8[N, H, W, C]`.
    fn pictures(&self, path: &str, [h, w, c]: [usize; 3]) -> Result<Literal> {
        let all = match is_picture(path)? {
            true => HostArray::from(any_format::read(path)?).expand_dims(0).into_literal()?,
            false => from_idx(path, [h, w, c])?,
        };
        let preparation = self.preparation()?;
        let count = all.shape()[0].min(self.limit.map_or(usize::MAX, |n| n as usize));
        let mut bytes = Vec::with_capacity(count * h * w * c);
        for i in 0..count {
            let one = rows(&all, i, 1)?.reshape(&all.shape()[1..])?;
            let one = HostArray::from(one);
            let one = if let Some(preparation) = preparation { preparation.apply(one) } else { one };
            let fitted = self.image_fit([h, w, c]).apply(one).into_literal();
            let fitted = fitted.map_err(|e| e.at(path))?;
            bytes.extend_from_slice(if self.invert { inverted(&fitted)? } else { fitted }.bytes());
        }
        Literal::from_slice([count, h, w, c], &bytes)
    }
}

/// Reads the texts of a file. The field of training may have another name here.
fn texts_of(path: &str, options: RecordOptions) -> Result<Vec<String>> {
    let named = unlabeled_texts(path, &options);
    if named.is_ok() || options.inputs.is_empty() {
        return named;
    }
    let field = options.inputs.join(", ");
    let texts = unlabeled_texts(path, &RecordOptions { inputs: Vec::new(), ..options })?;
    note(&format!("{path} has no field `{field}` as in training: another field with texts is used"));
    Ok(texts)
}

/// Reports texts that are longer than the model's input.
fn tell_of_cut(cut: usize, most: usize) {
    match cut {
        0 => {}
        1 => note(&format!("1 text is longer than the model's {most} tokens and is cut")),
        n => note(&format!("{n} texts are longer than the model's {most} tokens and are cut")),
    }
}

/// Whether a file may contain texts to classify.
pub(super) fn is_of_sentences(name: &str) -> bool {
    let is_table =
        [".csv", ".tsv"].iter().any(|end| name.to_lowercase().trim_end_matches(".gz").ends_with(end));
    is_table || is_plain_text(name) || is_json_lines(name)
}

/// Returns the model's tokenizer; bytes for models that were trained on texts before tokenizers were stored.
pub(super) fn text_tokenizer(model: &Model) -> Result<Arc<Tokenizer>> {
    if let Some(own) = tokenizer_of(model)? {
        return Ok(own);
    }
    match config_of(model, "the model")?.is_some_and(|config| config.data.dataset == "text") {
        true => Ok(Arc::new(Tokenizer::bytes())),
        false => Err(Error::new(ErrorKind::Config, "the model contains no tokenizer")
            .because("a text becomes token ids only by the tokenizer that the model was trained with")
            .hint_command("import the model's whole folder, with its tokenizer file: systole import FOLDER --out MODEL.safetensors")),
    }
}

/// Names of a text model's tokens, as escaped literals.
pub(super) fn tokens_of(model: &Model) -> Result<Vec<String>> {
    let tokenizer = text_tokenizer(model)?;
    let known = tokenizer.vocabulary_size() as u32;
    let name = |id: u32| {
        let text = tokenizer.decode(&[id]);
        match std::str::from_utf8(&text).ok().filter(|_| tokenizer.name() != "bytes") {
            Some(text) => format!("'{}'", text.escape_debug()),
            None => format!("'{}'", text.escape_ascii()),
        }
    };
    Ok((0..known).map(name).collect())
}

/// Adds a hint to --keep-going to an error about one row of a file.
pub(super) fn or_go_on(e: Error, path: &str) -> Error {
    let is_of_a_row = e.places().iter().any(|place| place.contains(", line ") || place.contains(", record "));
    if e.kind() != ErrorKind::Data || !is_of_records(path) || !is_of_a_row {
        return e;
    }
    let hint = e.hint_text().map_or(String::new(), |hint| format!("{hint}; "));
    // An error keeps its first hint, so build a new one.
    let mut anew = Error::new(e.kind(), e.what());
    anew = e.places().iter().fold(anew, |anew, place| anew.at(place.clone()));
    anew = e.reasons().iter().fold(anew, |anew, why| anew.because(why.clone()));
    anew.hint_command(format!("{hint}pass --keep-going to predict the other rows"))
}

/// Error for a file without samples.
pub(super) fn nothing(path: &str) -> Error {
    Error::new(ErrorKind::Data, "no samples to predict were found")
        .at(path)
        .hint_command("name a file or folder that contains samples")
}

/// Inverts the brightness of a sample's `image`.
fn with_inverted_image(s: Sample) -> Result<Sample> {
    Sample::new([("image", inverted(s.get("image")?)?)]).check()
}

fn inverted(picture: &Literal) -> Result<Literal> {
    if picture.dtype() != DType::U8 {
        let what = format!("cannot invert images of type {}", picture.ty());
        return Err(Error::new(ErrorKind::Data, what)
            .because("the brightest value is only known for u8: 255")
            .hint_command("remove --invert, and invert the array in your program"));
    }
    let bytes: Vec<u8> = picture.bytes().iter().map(|b| 255 - b).collect();
    Literal::from_slice(picture.shape().clone(), &bytes)
}

/// Whether a file is a table without a column of image paths.
fn is_other_table(file: &String) -> bool {
    let name = file.to_lowercase();
    let is_table = [".csv", ".tsv", ".csv.gz", ".tsv.gz"].iter().any(|end| name.ends_with(end));
    is_table && !lists_images(file)
}

pub(super) fn is_named_as_picture(file: &Path) -> bool {
    let end = file.extension().map(|e| e.to_string_lossy().to_lowercase());
    end.is_some_and(|end| PICTURES.contains(&end.as_str()))
}

fn tell_left_out(files: Vec<PathBuf>) {
    let names: Vec<String> = files.iter().take(NAMED).map(|f| f.display().to_string()).collect();
    let more = if files.len() > NAMED { format!(" and {} more", files.len() - NAMED) } else { String::new() };
    match files.len() {
        0 => {}
        1 => note(&format!("1 file is not an image and is skipped: {}", names[0])),
        n => note(&format!("{n} files are not images and are skipped: {}{more}", names.join(", "))),
    }
}

/// Detects images by their first bytes, and empty files by their name. Unsupported image formats count too, because their
/// error names the format.
fn is_picture(path: &str) -> Result<bool> {
    let wrong = |e| Error::io("cannot read", path, e).hint("check the path of the image file");
    let mut start = Vec::new();
    InputFile::open(path).and_then(|f| f.take(16).read_to_end(&mut start)).map_err(wrong)?;
    let is_empty_image = start.is_empty() && is_named_as_picture(Path::new(path));
    Ok(is_empty_image || any_format::is_picture(&start) || any_format::other_format(&start).is_some())
}

/// Whether a file is empty, or begins as an IDX file or a compressed file does.
fn is_like_idx(path: &str) -> bool {
    let mut start = Vec::new();
    let is_read = InputFile::open(path).and_then(|f| f.take(3).read_to_end(&mut start)).is_ok();
    !is_read || start.is_empty() || matches!(start[..], [0x1f, 0x8b, ..] | [0, 0, 8..=14])
}

/// Reads images `→ u8[N, H, W, C]` from an IDX file of rank 2 (one image), 3 (grayscale, or one image of the size of
/// the model's input) or 4.
fn from_idx(path: &str, size: [usize; 3]) -> Result<Literal> {
    let x = idx::read(path).map_err(|e| match is_like_idx(path) {
        false => Error::new(
            ErrorKind::Data,
            format!("{path} is not an image ({IMAGE_FORMATS}) or a file of records ({RECORD_FORMATS})"),
        )
        .hint("convert the image to JPEG or PNG"),
        true => e,
    })?;
    let shape = x.shape().to_vec();
    match (x.dtype(), shape.as_slice()) {
        (DType::U8, &[h, w]) => x.reshape([1, h, w, 1]),
        (DType::U8, &[h, w, c]) if [h, w, c] == size => x.reshape([1, h, w, c]),
        (DType::U8, &[n, h, w]) => x.reshape([n, h, w, 1]),
        (DType::U8, &[_, _, _, 1..=4]) => Ok(x),
        _ => Err(Error::new(ErrorKind::Data, format!("{path} contains no images"))
            .because(format!("the file contains {}, expected ui8[N, H, W]", x.ty()))
            .hint_command("name the IDX file with the images, not the one with the labels")),
    }
}

/// Returns `count` entries of the first dimension, starting at `start`.
fn rows(x: &Literal, start: usize, count: usize) -> Result<Literal> {
    let size = x.ty().bytes() / x.shape()[0].max(1);
    let mut dims = x.shape().to_vec();
    dims[0] = count;
    Literal::from_bytes(x.ty().with_shape(dims), &x.bytes()[start * size..(start + count) * size])
}

/// Stacks samples of one shape into a batch `T[n, …]`.
pub(super) fn stacked(samples: &[&Literal]) -> Result<Literal> {
    let Some(first) = samples.first() else {
        return Err(Error::new(ErrorKind::Bug, "cannot stack a batch of no samples"));
    };
    let mut bytes = Vec::with_capacity(first.ty().bytes() * samples.len());
    for x in samples {
        if x.ty() != first.ty() {
            return Err(Error::new(ErrorKind::Data, format!("one sample has the type {}", x.ty()))
                .because(format!("the other samples have the type {}", first.ty()))
                .hint("provide samples that all have the same shape"));
        }
        bytes.extend_from_slice(x.bytes());
    }
    let dims: Vec<usize> = std::iter::once(samples.len()).chain(first.shape().dims().to_vec()).collect();
    Literal::from_bytes(first.ty().with_shape(dims), &bytes)
}
