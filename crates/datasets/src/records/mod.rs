//! Datasets from record files: TFRecord files of Examples, CSV, NumPy, and other formats of `systole_data::tools`.
//!
//! All files are read once before training: to count records, to find the classes, and to detect damage early. TFRecord
//! files are then interleaved as in tf.data's tutorials. The shuffle buffer holds raw records, which are parsed and
//! decoded after it.

mod columns;
mod files;
mod image_tables;
mod labels;
mod options;

pub use columns::ColumnEncoding;
pub(crate) use files::is_for_testing;
pub use options::{RecordCompression, RecordOptions};

use crate::data_dir::DataDir;
use crate::images::folder::{LOOKED_AT, SIDES, has_classes, size_for, told_transparent};
use crate::images::{ImageFit, ImageResizing, ResizeMethod};
use crate::record_files;
use crate::{PrepareFn, StreamedDataset, TrainingData, numbered, unnumbered};
use image_tables::ImagePathColumn;
use labels::{LabelEncoding, LabelStatistics};
use options::LABELS;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use systole_base::rng::{hash_name, mix};
use systole_base::{DType, Error, ErrorKind, Literal, Result, TensorType, ensure, err};
use systole_data::format::any_format;
use systole_data::format::example::{FeatureSpecs, parse_example};
use systole_data::format::tfrecord::OnCorrupt;
use systole_data::input_file;
use systole_data::tools::{OpenedDataset, open_written};
use systole_data::{
    AUTOTUNE, CsvTable, Dataset, HostArray, Sample, ShuffleOptions, TfRecordOptions, shell_quoted,
};

/// Fields that contain an image: `image`, and WebDataset's extensions.
const PICTURES: [&str; 7] = ["image", "jpg", "jpeg", "png", "bmp", "webp", "gif"];
/// Default shuffle buffer size for file data, in records.
const BUFFER: usize = 10_000;
/// Tables up to this size in bytes are read completely to sample across all rows.
const SMALL: u64 = 256 << 20;

/// Settings for images in records, and for the train/test split.
#[derive(Clone, Debug)]
pub struct RecordShape {
    /// Height and width of the images; `None`: those of the first image.
    pub size: Option<[usize; 2]>,
    /// Channels: 1 is grayscale, 3 color; `None`: those of the first image.
    pub channels: Option<usize>,
    /// Fraction of the records held out for testing, if there are no test files.
    pub validation_split: f64,
    /// Random seed of the split and of the file order.
    pub seed: u64,
    /// Whether labels are regression targets (true) or classes (false); `None`: inferred.
    pub numbers: Option<bool>,
    /// Background for transparent pixels, from 0 (black) to 1 (white).
    pub background: f64,
    /// How images are resized.
    pub resizing: ImageResizing,
    /// Maximum fraction of unreadable images among those that a table lists.
    pub unreadable_quota: f64,
}

impl RecordShape {
    /// Returns the output size for an image of this size.
    fn picture(&self, [h, w, c]: [usize; 3]) -> [usize; 3] {
        let [h, w] = self.size.unwrap_or([h, w]);
        [h, w, self.channels.unwrap_or(if c <= 2 { 1 } else { 3 })]
    }
}

/// Whether record files are the data of a folder, rather than its class folders of images. A table next to class
/// folders is the data only if it lists images.
pub fn holds_records(dir: impl AsRef<Path>) -> bool {
    let files = record_files::in_folder(dir.as_ref());
    !files.is_empty()
        && (!has_classes(dir.as_ref())
            || files.iter().any(|file| !record_files::is_table(file) || lists_images(file)))
}

/// Whether a table has a column of paths of existing images.
pub fn lists_images(file: impl AsRef<Path>) -> bool {
    let file = file.as_ref();
    let table = record_files::is_table(file).then(|| CsvTable::read(&[file.to_path_buf()]));
    let column = |table| ImagePathColumn::find(&table, &RecordOptions::default(), file.parent(), false);
    matches!(table.map(|table| table.and_then(column)), Some(Ok(Some(_))))
}

/// Returns a note about class folders of images next to record files, which are the data.
fn unused_classes(dir: &DataDir, options: &RecordOptions, files: &[PathBuf]) -> Option<String> {
    let folder = dir.named().filter(|folder| options.train.is_empty() && has_classes(folder))?;
    Some(format!(
        "{} is the data, rather than the class folders next to it; to train on those: systole train folder --data-dir {}",
        record_files::listed(files),
        shell_quoted(folder)
    ))
}

/// Returns the default height, width and channels for images in record files, from some of them; `None`: no images.
///
/// # Errors
/// Like [`records`], for the first record.
pub fn picture_size_of_records(
    dir: impl Into<DataDir>,
    options: &RecordOptions,
) -> Result<Option<[usize; 3]>> {
    let (dir, options) = &files::with_folder(&dir.into(), options);
    let (train, _) = files::find(dir, options)?;
    // Errors in files are reported later, when all options are known: those may exclude the files.
    let Some(first) = train.into_iter().next() else { return Ok(None) };
    let source = match RecordFiles::open(vec![first], options) {
        Ok(source) => source,
        Err(e) if e.kind() == ErrorKind::Unsupported => return Err(e),
        Err(_) => return Ok(None),
    };
    if let Some(table) = &source.opened.table {
        let Some(column) = ImagePathColumn::find(table, options, dir.named(), true)? else { return Ok(None) };
        let paths = column.rows(table, None).debug();
        let paths = paths
            .iter()
            .take(LOOKED_AT)
            .filter_map(|row| any_format::size(row.ok()?.text(&column.field).ok()?).ok());
        return Ok(Some(size_for(&paths.collect::<Vec<_>>())));
    }
    // The label may not be set yet; an image field needs no label.
    let Ok(first) = source.first() else { return Ok(None) };
    let label = label_of(&first, options).unwrap_or_default();
    Ok(match RecordInput::of(&first, &label, options, &SHAPELESS) {
        Ok(RecordInput::File { field, .. }) => {
            let all = source.opened.dataset.debug();
            let size = |s: Result<Sample>| {
                let s = s.ok()?;
                let bytes = s.get(picture_field(&s, &field)).ok()?.bytes().to_vec();
                any_format::size_of_bytes("the image", &bytes).ok()
            };
            size_of_all(&all.iter().take(LOOKED_AT).filter_map(size).collect::<Vec<_>>())
        }
        Ok(RecordInput::Pixels { field, .. }) if first.names().any(|n| *n == format!("{field}/shape")) => {
            let all = source.opened.dataset.debug();
            let size = |s: Result<Sample>| match *shape_of(&s.ok()?, &field).ok()?.as_slice() {
                [h, w] => Some([h, w, 1]),
                [h, w, c] => Some([h, w, c]),
                _ => None,
            };
            size_of_all(&all.iter().take(LOOKED_AT).filter_map(size).collect::<Vec<_>>())
        }
        Ok(RecordInput::Pixels { size, .. }) => Some(size),
        _ => None,
    })
}

/// Keeps the first image's size for small images, otherwise uses the default of image folders; grayscale if all images
/// are.
fn size_of_all(sizes: &[[usize; 3]]) -> Option<[usize; 3]> {
    let [height, width, channels] = size_for(sizes);
    Some(match sizes.first() {
        Some([h, w, _]) if h.min(w) <= SIDES.end() => [*h, *w, channels],
        _ => [height, width, channels],
    })
}

const SHAPELESS: RecordShape = RecordShape {
    size: None,
    channels: None,
    validation_split: 0.0,
    seed: 0,
    numbers: None,
    background: 0.0,
    resizing: ImageResizing {
        method: ResizeMethod::Fit,
        antialias: false,
        crop_to_aspect_ratio: false,
        pad_to_aspect_ratio: false,
    },
    unreadable_quota: 0.1,
};

/// Loads the record files of a folder, or one record file: `image: u8[H, W, C], label: i32[]` for images, otherwise `x: f32[n]` and `label`, which is
/// `i32[]` for classes and `f32[1]` for regression targets.
///
/// # Errors
/// `Io` if there are no files; `Data` if a record cannot be read or has no label (names the record).
pub fn records(
    dir: impl Into<DataDir>,
    options: &RecordOptions,
    shape: &RecordShape,
) -> Result<TrainingData> {
    let (dir, options) = &files::with_folder(&dir.into(), options);
    let RecordSplits { train: source, test, label, columns: of_table, mut notes, mark } =
        RecordSplits::find(dir, options, shape)?;
    notes.extend(unused_classes(dir, options, source.files()));
    let (train_part, test_part) = match &test {
        None if shape.validation_split < 1.0 => RecordSubset::split(shape)?,
        _ => (RecordSubset::All, RecordSubset::All),
    };
    let has_test_split = test.is_some();
    let test_source = test.unwrap_or_else(|| source.clone());
    let mut reading = RecordParser::of(&source, (&label, of_table), options, shape)?;
    let report = |done, all| dir.report("reading records", done, all);
    let mut counted = LabelStatistics::new(&label);
    let train = reading.count(&source, train_part, &mut counted, &report)?;
    let test = reading.count(&test_source, test_part, &mut counted, &report)?;
    some_of_each(train, test, &source)?;
    let decided = counted.decide(&source.opened.classes, shape.numbers)?;
    notes.extend(decided.note);
    let tables = [&source, &test_source].into_iter().filter_map(|s| s.opened.table.as_ref()?.column(&label));
    let class_names = labels::as_written(decided.class_names, tables);
    reading.labels = decided.labels;
    let element = reading.element();
    let (fields, columns) = (reading.input.fields(), reading.input.columns());
    let prepare = PrepareFn(Arc::new(move |s| reading.prepare(s)));
    let in_order = |source: &RecordFiles, part| {
        let prepare = prepare.clone();
        source.in_order(part).map_parallel(move |s| prepare.call(s), AUTOTUNE)
    };
    let buffer = options.shuffle_buffer.unwrap_or(if source.is_in_memory() { train } else { BUFFER });
    Ok(TrainingData {
        name: name_of(dir, source.files()),
        origin: origin(dir, source.files()),
        train: in_order(&source, train_part),
        test: in_order(&test_source, test_part),
        train_len: train,
        test_len: test,
        has_test_split,
        elements: if element.rank() == 3 { "images" } else { "records" },
        element,
        class_names,
        fields,
        columns,
        notes,
        language: None,
        tokenizer: None,
        identity: Some(identity(&[source.files(), test_source.files()], train, test, mark)),
        streamed: Some(StreamedDataset {
            in_order: source.in_order(train_part),
            mixed: source.mixed(train_part, mix(shape.seed ^ hash_name("order of files"))),
            buffer,
            is_small: source.sizes.values().sum::<u64>() <= SMALL,
            prepare,
        }),
    })
}

/// Returns an error if a split has no records.
fn some_of_each(train: usize, test: usize, source: &RecordFiles) -> Result<()> {
    let what = match (train, test) {
        (0, _) => "train",
        (_, 0) => "test",
        _ => return Ok(()),
    };
    Err(err!(Data, "the dataset has no records to {what} on")
        .at(source.place())
        .because(format!("there are {} records in total", train + test))
        .hint_setting(
            "add records, or change data.validation_split, the fraction of the records in the test split",
        ))
}

/// Training and test files, and the role of their columns.
struct RecordSplits {
    train: RecordFiles,
    /// `None`: the test split is a fraction of the training files.
    test: Option<RecordFiles>,
    label: String,
    columns: ColumnRoles,
    notes: Vec<String>,
    /// Fingerprint of the images that tables list.
    mark: u64,
}

/// Role of the columns of tables.
#[derive(Clone, Default)]
enum ColumnRoles {
    /// The files are not tables.
    #[default]
    None,
    /// Numeric encodings of the columns.
    Codes(Vec<ColumnEncoding>),
    /// One column contains image paths.
    Pictures(ImagePathColumn),
}

impl RecordSplits {
    fn find(dir: &DataDir, options: &RecordOptions, shape: &RecordShape) -> Result<RecordSplits> {
        let (train_files, test_files) = files::find(dir, options)?;
        if options.train.is_empty() {
            files::check_alike(dir, &train_files, options)?;
        }
        let train = RecordFiles::open(train_files, options)?;
        let mut notes = train.opened.notes.clone();
        let pictures = match &train.opened.table {
            Some(table) => ImagePathColumn::find(table, options, dir.named(), true)?,
            None => None,
        };
        let other = train.opened.table.as_ref().zip(pictures.as_ref());
        let other = other.and_then(|(table, column)| image_tables::only_other(table, &column.field));
        let label = label_of(&train.first()?, options).or_else(|e| other.ok_or(e))?;
        notes.extend(other_labels(&train.first()?, &label, options));
        let test = match test_files.is_empty() || test_files == train.files() {
            true => train.opened.test.clone().map(|dataset| train.with(dataset)),
            false => Some(RecordFiles::open(test_files, options)?),
        };
        let test = match test {
            // Unlabeled test sets of competitions.
            Some(t) if options.test.is_empty() && t.first()?.names().all(|n| n != label) => {
                let files: Vec<String> = t.files().iter().map(|f| f.display().to_string()).collect();
                notes.push(format!(
                    "{} is skipped: it has no `{label}` to test on (predict accepts it)",
                    files.join(", ")
                ));
                None
            }
            test => test,
        };
        let tables: Vec<Arc<CsvTable>> =
            std::iter::once(&train).chain(&test).filter_map(|s| s.opened.table.clone()).collect();
        tables.iter().try_for_each(|t| columns::check_label(t, &label))?;
        let mut sources = RecordSplits { train, test, label, columns: ColumnRoles::None, notes, mark: 0 };
        match (tables.is_empty(), pictures) {
            (true, _) => {}
            (false, Some(column)) => sources.name_pictures(column, (dir, options, shape))?,
            (false, None) => sources.encode_columns(&tables, options)?,
        }
        Ok(sources)
    }

    /// Sets up tables whose columns are encoded as numbers.
    fn encode_columns(&mut self, tables: &[Arc<CsvTable>], options: &RecordOptions) -> Result<()> {
        let all: Vec<&CsvTable> = tables.iter().map(|t| &**t).collect();
        let (found, left_out) = columns::codes(&all, &self.label, &options.inputs, &options.columns)?;
        for source in std::iter::once(&mut self.train).chain(&mut self.test) {
            if let Some(table) = &source.opened.table {
                source.opened.dataset = columns::rows(table, &found, Some(&self.label));
            }
        }
        RecordInput::of_columns(found.clone(), &left_out)?;
        self.notes.extend(left_out);
        self.columns = ColumnRoles::Codes(found);
        Ok(())
    }

    /// Sets up tables with a column of image paths.
    fn name_pictures(
        &mut self,
        column: ImagePathColumn,
        (dir, options, shape): (&DataDir, &RecordOptions, &RecordShape),
    ) -> Result<()> {
        let report = |done, all| dir.report("reading images", done, all);
        let mut transparent = 0;
        for source in std::iter::once(&mut self.train).chain(&mut self.test) {
            let Some(table) = source.opened.table.clone() else { continue };
            // Another table may be in another folder.
            let here = ImagePathColumn::find(&table, options, dir.named(), true)?.unwrap_or(column.clone());
            let dtype = table.column(&self.label).map_or(DType::U8, |c| c.dtype());
            let rows = here.rows(&table, Some((&self.label, dtype)));
            let checked = here.check(&rows, options, shape.unreadable_quota, &report)?;
            self.notes.extend(checked.note);
            transparent += checked.transparent;
            self.mark = mix(self.mark ^ checked.mark);
            source.opened.dataset = here.without(rows, checked.bad);
        }
        self.notes.extend(told_transparent(transparent, shape.background));
        self.columns = ColumnRoles::Pictures(column);
        Ok(())
    }
}

/// Options for reading record files whose labels may be missing.
#[derive(Clone, Copy, Debug)]
pub struct RecordInputs<'a> {
    /// Reading options of training.
    pub options: &'a RecordOptions,
    /// Fields that the model was trained on; empty: as in training.
    pub fields: &'a [String],
    /// Image size; `None`: the model's input is numeric.
    pub size: Option<[usize; 3]>,
    /// Background for transparent pixels, from 0 (black) to 1 (white).
    pub background: f64,
    /// How images are resized.
    pub resizing: ImageResizing,
    /// Whether pixels of another size are resized, as encoded images are; otherwise they are an error.
    pub resizes: bool,
    /// Whether an invalid table row is an error in its position; otherwise the whole table is rejected.
    pub goes_on: bool,
}

/// Reads the model's inputs from record files, whose labels may be missing: `image: u8[H, W, C]`, resized, if they
/// contain or list images, otherwise `x: f32[n]`.
///
/// # Errors
/// `Io` if a file cannot be opened; `Data` if it lacks a field.
pub fn record_inputs(files: Vec<PathBuf>, wanted: &RecordInputs<'_>) -> Result<Dataset> {
    let &RecordInputs { options, fields, size, background, resizing, resizes, goes_on } = wanted;
    let mut source = RecordFiles::open(files, options)?;
    // A file's test split contains these rows, too.
    if let Some(test) = source.opened.test.take() {
        source.opened.dataset = source.opened.dataset.concatenate(&test);
    }
    let first = source.first()?;
    let lacking = fields.iter().find(|name| first.names().all(|n| n != name.as_str()));
    // The name of the image field does not matter.
    let fields = if size.is_some() && lacking.is_some() { &[][..] } else { fields };
    if let Some(lacking) = lacking.filter(|_| size.is_none()) {
        return Err(no_such_field(lacking, &first, fields).at(source.place()));
    }
    let label = label_of(&first, options).unwrap_or_default();
    let inputs = if fields.is_empty() && size.is_none() { options.inputs.clone() } else { fields.to_vec() };
    let options = RecordOptions { inputs, ..options.clone() };
    let (sides, channels) = (size.map(|[h, w, _]| [h, w]), size.map(|s| s[2]));
    let shape = RecordShape { size: sides, channels, background, resizing, ..SHAPELESS };
    let input = match (source.opened.table.clone(), size) {
        (Some(table), None) => {
            let told = match options.columns.is_empty() {
                // Models of earlier versions have only numeric columns.
                true => fields.iter().map(|name| ColumnEncoding::number(name)).collect(),
                false => options.columns.clone(),
            };
            if goes_on && !told.is_empty() {
                return columns::rows_one_by_one(&table, &told);
            }
            let (codes, notes) = columns::codes(&[&*table], &label, &options.inputs, &told)?;
            source.opened.dataset = columns::rows(&table, &codes, None);
            RecordInput::of_columns(codes, &notes)?
        }
        (Some(table), Some(size)) => {
            let Some(column) = ImagePathColumn::find(&table, &options, None, false)? else {
                return Err(no_pictures(&table));
            };
            source.opened.dataset = column.rows(&table, None);
            RecordInput::Path { field: column.field, size }
        }
        (None, _) => RecordInput::of(&first, &label, &options, &shape)?,
    };
    if let (None, Some(size)) = (&source.opened.table, size) {
        input.check_pixels(&first, size, resizes).map_err(|e| e.at(source.place()))?;
    }
    let features = source.features().map(|all| only(all, |name| input.reads(name)));
    let reading =
        RecordParser { features, input, label, labels: LabelEncoding::Values, background, resizing };
    let place = source.place();
    Ok(numbered(source.in_order(RecordSubset::All)).map_parallel(
        move |s| {
            let row = s.get("index")?.get(0).as_i64();
            let parsed = reading.parse(unnumbered(s))?;
            reading.check_finite(&parsed, || format!("{place}, record {row}"))?;
            Sample::new([reading.input(&parsed)?]).check()
        },
        AUTOTUNE,
    ))
}

/// Error for records without a field that the model was trained on.
fn no_such_field(lacking: &str, first: &Sample, fields: &[String]) -> Error {
    let there = first.names().collect::<Vec<_>>().join("`, `");
    let why = format!("the fields are `{there}`; the model was trained on `{}`", fields.join("`, `"));
    err!(Data, "the records have no field `{lacking}`").because(why).hint("rename the fields as in training")
}

fn no_pictures(table: &CsvTable) -> Error {
    let names: Vec<&str> = table.columns.iter().map(|c| c.name.as_str()).collect();
    err!(Data, "no column of this table contains paths of existing images")
        .at(table.files.first().map_or(String::new(), |f| f.display().to_string()))
        .because(format!("the model's input is an image; the columns are {}", names.join(", ")))
        .hint_setting(
            "put the images next to the table, or name the folder of the images: data.records.pictures",
        )
}

/// Subset of a file's records.
#[derive(Clone, Copy, PartialEq, Eq)]
enum RecordSubset {
    All,
    /// All records except the held-out ones, given as a count out of [`PARTS`] and a seed.
    Train(u64, u64),
    /// The held-out records.
    Test(u64, u64),
}

/// Size of the groups of neighboring records that are sampled, unless every n-th record is held out.
const NEIGHBOURS: u64 = 100;
/// Denominator of the held-out fraction.
const PARTS: u64 = 10_000;

impl RecordSubset {
    fn split(shape: &RecordShape) -> Result<(RecordSubset, RecordSubset)> {
        if shape.validation_split <= 0.0 {
            return Err(err!(Config, "no records to test on")
                .because("there are no test files, and data.validation_split is 0")
                .hint_setting("name files with data.records.test, or set data.validation_split to 0.2"));
        }
        let part = (shape.validation_split * PARTS as f64).round().clamp(1.0, PARTS as f64 - 1.0) as u64;
        Ok((RecordSubset::Train(part, shape.seed), RecordSubset::Test(part, shape.seed)))
    }

    fn of(self, records: Dataset) -> Dataset {
        let (is_test, part, seed) = match self {
            RecordSubset::All => return records,
            RecordSubset::Train(part, seed) => (false, part, seed),
            RecordSubset::Test(part, seed) => (true, part, seed),
        };
        if let Some(n) = records.cardinality().finite() {
            let fixed = ShuffleOptions { buffer_size: usize::MAX, seed, reshuffle_each_iteration: false };
            let mixed = records.shuffle_with(fixed);
            let kept = (u128::from(n) * u128::from(part) / u128::from(PARTS)) as u64;
            return if is_test { mixed.take(kept) } else { mixed.skip(kept) };
        }
        let chosen = move |s: &Sample| {
            let place = s.get("index").map_or(0, |i| i.get(0).as_i64() as u64);
            is_kept(place, part, seed) == is_test
        };
        numbered(records).filter(chosen).map(unnumbered)
    }
}

/// Whether a record is held out. The choice varies between groups of neighbors, since data may be sorted periodically.
fn is_kept(place: u64, part: u64, seed: u64) -> bool {
    if PARTS.is_multiple_of(part) {
        let every = PARTS / part;
        return place % every == mix(seed ^ mix(place / every)) % every;
    }
    let block = place / NEIGHBOURS;
    let before = |blocks: u64| blocks * NEIGHBOURS * part / PARTS;
    let wanted = before(block + 1) - before(block);
    let draw = |place: u64| (mix(seed ^ mix(place)), place);
    let first = block * NEIGHBOURS;
    let ahead = (first..first + NEIGHBOURS).filter(|other| draw(*other) < draw(place)).count() as u64;
    ahead < wanted
}

/// Record files and how to read them.
#[derive(Clone)]
struct RecordFiles {
    opened: OpenedDataset,
    options: RecordOptions,
    /// File sizes in bytes when first opened.
    sizes: Arc<BTreeMap<PathBuf, u64>>,
}

impl RecordFiles {
    fn open(files: Vec<PathBuf>, options: &RecordOptions) -> Result<RecordFiles> {
        if files.is_empty() {
            return Err(err!(Io, "there are no record files")
                .hint_setting("check data.records.train and data.records.test"));
        }
        let features = options.parse_features()?;
        let mut opened = open_written(files, features, options.written()?)?;
        // These formats are read completely, one file at a time.
        if ["NumPy array", "NumPy arrays", "IDX"].contains(&opened.kind) {
            for file in &opened.files[1..] {
                let next = open_written(vec![file.clone()], None, options.written()?)?;
                opened.dataset = opened.dataset.concatenate(&next.dataset);
                opened.notes.extend(next.notes);
                opened.test = match (opened.test, next.test) {
                    (Some(a), Some(b)) => Some(a.concatenate(&b)),
                    (a, b) => a.or(b),
                };
            }
        }
        let size = |f: &PathBuf| Some((f.clone(), input_file::size(f)?));
        let sizes = Arc::new(opened.files.iter().filter_map(size).collect());
        Ok(RecordFiles { opened, options: options.clone(), sizes })
    }

    /// Returns the same files with other elements.
    fn with(&self, dataset: Dataset) -> RecordFiles {
        let opened = OpenedDataset { dataset, test: None, ..self.opened.clone() };
        RecordFiles { opened, ..self.clone() }
    }

    /// Path of the first file, for messages.
    fn place(&self) -> String {
        self.files().first().map_or(String::new(), |f| f.display().to_string())
    }

    fn files(&self) -> &[PathBuf] {
        &self.opened.files
    }

    fn first(&self) -> Result<Sample> {
        let first = self.opened.dataset.debug().iter().next();
        first.ok_or_else(|| {
            err!(Data, "the file has no records")
                .at(self.place())
                .because("the file is empty, or contains only a header")
                .hint("check that the file was written completely")
        })?
    }

    /// Returns the fields of Examples; `None`: the files contain no Examples.
    fn features(&self) -> Option<&FeatureSpecs> {
        self.opened.features.as_ref()
    }

    /// Whether all elements are in memory, so that shuffling needs no buffer.
    fn is_in_memory(&self) -> bool {
        self.opened.dataset.cardinality().finite().is_some()
    }

    fn of_file(options: &RecordOptions, path: PathBuf, part: RecordSubset) -> Dataset {
        let on_corrupt = match options.skip {
            0 => OnCorrupt::Fail,
            quota => OnCorrupt::Skip { quota },
        };
        let how =
            TfRecordOptions { compression: options.compression.into(), on_corrupt, random_access: false };
        part.of(Dataset::tfrecord_with([path], how))
    }

    /// Reads file by file, in the same order in each epoch.
    fn in_order(&self, part: RecordSubset) -> Dataset {
        self.read(Dataset::files(self.files().to_vec()), part, 1)
    }

    /// Interleaves several files, in a new order in each epoch.
    fn mixed(&self, part: RecordSubset, seed: u64) -> Dataset {
        let files = Dataset::files(self.files().to_vec()).shuffle(usize::MAX, seed);
        self.read(files, part, self.options.cycle_length)
    }

    fn read(&self, files: Dataset, part: RecordSubset, cycle: usize) -> Dataset {
        if self.features().is_none() {
            return part.of(match self.options.skip {
                0 => self.opened.dataset.clone(),
                quota => self.opened.dataset.ignore_errors(quota),
            });
        }
        let (options, sizes) = (self.options.clone(), self.sizes.clone());
        let open = move |s: Sample| -> Result<Dataset> {
            let path = PathBuf::from(s.text("path")?);
            same_size(&path, sizes.get(&path).copied())?;
            Ok(RecordFiles::of_file(&options, path, part))
        };
        files.interleave_parallel(open, cycle, self.options.block_length, AUTOTUNE)
    }
}

/// Returns an error if a file's size has changed: a file truncated between two records is otherwise valid.
fn same_size(path: &Path, had: Option<u64>) -> Result<()> {
    // A missing file is reported when it is opened.
    let has = input_file::size(path);
    match (has, had) {
        (Some(has), Some(had)) if has != had => Err(err!(Data, "the file has changed since the run started")
            .at(path.display().to_string())
            .because(format!("the file now has {has} bytes, but had {had} when the run started"))
            .hint("restore the file and start the same command again to resume from the last backup")),
        _ => Ok(()),
    }
}

/// Converts records to training elements.
#[derive(Clone)]
struct RecordParser {
    features: Option<FeatureSpecs>,
    input: RecordInput,
    label: String,
    labels: LabelEncoding,
    background: f64,
    resizing: ImageResizing,
}

/// Model input taken from a record.
#[derive(Clone)]
enum RecordInput {
    /// Path of an image, and the size to resize it to.
    Path { field: String, size: [usize; 3] },
    /// Encoded image file, and the size to resize it to.
    File { field: String, size: [usize; 3] },
    /// Pixels `T[H, W]` or `T[H, W, C]`; variable sizes are in another field.
    Pixels { field: String, size: [usize; 3], dtype: DType },
    /// Concatenated numeric fields.
    Numbers { fields: Vec<String>, count: usize },
    /// Encoded table columns.
    Columns { codes: Vec<ColumnEncoding>, count: usize },
}

impl RecordParser {
    /// Chooses the input from the first record. The label kind is inferred later from all records.
    fn of(
        source: &RecordFiles,
        (label, columns): (&str, ColumnRoles),
        options: &RecordOptions,
        shape: &RecordShape,
    ) -> Result<RecordParser> {
        let input = match columns {
            ColumnRoles::Codes(codes) => RecordInput::of_columns(codes, &[])?,
            ColumnRoles::Pictures(column) => {
                let first = source.first()?.text(&column.field)?.to_string();
                RecordInput::Path { size: shape.picture(any_format::size(first)?), field: column.field }
            }
            ColumnRoles::None => RecordInput::of(&source.first()?, label, options, shape)?,
        };
        Ok(RecordParser {
            features: source.features().cloned(),
            input,
            label: label.into(),
            labels: LabelEncoding::Values,
            background: shape.background,
            resizing: shape.resizing,
        })
    }

    /// Counts the records and collects label statistics.
    fn count(
        &self,
        source: &RecordFiles,
        part: RecordSubset,
        counted: &mut LabelStatistics,
        progress: &dyn Fn(u64, u64),
    ) -> Result<usize> {
        // The test split uses the same files.
        if !matches!(part, RecordSubset::Test(..)) {
            self.check_numbers(source)?;
        }
        let files = source.files();
        let first = files.first().map_or(String::new(), |f| f.display().to_string());
        let Some(features) = &self.features else {
            return self.count_all(&source.in_order(part), counted, &first).map_err(explain);
        };
        // Parse only the label of each record; images are checked during training.
        let only = only(features, |name| name == self.label);
        let mut n = 0;
        for (i, file) in files.iter().enumerate() {
            let records =
                RecordFiles::of_file(&source.options, file.clone(), part).map(parse_example(only.clone()));
            n += self.count_all(&records, counted, &file.display().to_string()).map_err(explain)?;
            progress(i as u64 + 1, files.len() as u64);
        }
        Ok(n)
    }

    fn count_all(&self, records: &Dataset, counted: &mut LabelStatistics, file: &str) -> Result<usize> {
        let mut n = 0;
        for sample in records {
            let sample = sample?;
            let place = || format!("{file}, record {n}");
            counted.add(sample.get(&self.label)?, place)?;
            n += 1;
        }
        Ok(n)
    }

    /// Returns an error for non-finite numbers in files other than tables (those were checked when read). Reads all
    /// records in order, so that record numbers are those of the files.
    fn check_numbers(&self, source: &RecordFiles) -> Result<()> {
        if !self.input.has_numbers() {
            return Ok(());
        }
        let check = |records: Dataset, file: &Path| -> Result<()> {
            for (n, sample) in records.iter().enumerate() {
                // Unreadable records are reported when counting.
                let Ok(sample) = sample else { continue };
                self.check_finite(&sample, || format!("{}, record {n}", file.display()))?;
            }
            Ok(())
        };
        match &self.features {
            None => check(
                source.opened.dataset.clone(),
                source.files().first().map_or(Path::new(""), |f| f.as_path()),
            ),
            Some(features) => source.files().iter().try_for_each(|file| {
                let all = RecordFiles::of_file(&source.options, file.clone(), RecordSubset::All);
                check(all.map(parse_example(only(features, |name| self.input.reads(name)))), file)
            }),
        }
    }

    /// Returns an error for non-finite numbers.
    fn check_finite(&self, parsed: &Sample, place: impl Fn() -> String) -> Result<()> {
        let fields: &[String] = match &self.input {
            RecordInput::Numbers { fields, .. } => fields,
            RecordInput::Pixels { field, dtype, .. } if dtype.is_float() => std::slice::from_ref(field),
            _ => return Ok(()),
        };
        for field in fields {
            let x = parsed.get(field)?;
            let bad = |x: &Literal| x.to_f64s().into_iter().enumerate().find(|(_, v)| !v.is_finite());
            if let Some((column, value)) = x.dtype().is_float().then(|| bad(x)).flatten() {
                let place = format!("{}, column {column}", place());
                return Err(columns::not_finite(field, &value.to_string(), &place));
            }
        }
        Ok(())
    }

    /// Returns the type of an element's input.
    fn element(&self) -> TensorType {
        match &self.input {
            RecordInput::Path { size, .. } | RecordInput::File { size, .. } => {
                TensorType::new(DType::U8, *size)
            }
            RecordInput::Pixels { size, dtype, .. } => TensorType::new(*dtype, *size),
            RecordInput::Numbers { count, .. } | RecordInput::Columns { count, .. } => {
                TensorType::new(DType::F32, [*count])
            }
        }
    }

    /// Converts `record` or fields to `image` or `x`, and `label`.
    fn prepare(&self, sample: Sample) -> Result<Sample> {
        let parsed = self.parse(sample)?;
        let label = self.labels.of(parsed.get(&self.label)?)?;
        Sample::new([self.input(&parsed)?, ("label", label)]).check()
    }

    /// Parses the fields of a record.
    fn parse(&self, sample: Sample) -> Result<Sample> {
        match &self.features {
            Some(features) => parse_example(features.clone())(sample),
            None => Ok(sample),
        }
    }

    fn fit(&self, size: [usize; 3]) -> ImageFit {
        ImageFit { size, background: self.background, resizing: self.resizing }
    }

    /// Returns the name and value of the model's input.
    fn input(&self, parsed: &Sample) -> Result<(&'static str, HostArray)> {
        Ok(match &self.input {
            RecordInput::Path { field, size } => {
                let pixels = any_format::read(parsed.text(field)?)?;
                ("image", self.fit(*size).apply(pixels.into()))
            }
            RecordInput::File { field, size } => {
                let field = picture_field(parsed, field);
                let pixels = any_format::from_bytes("the image", parsed.get(field)?.bytes())?;
                ("image", self.fit(*size).apply(pixels.into()))
            }
            RecordInput::Pixels { field, size, .. } => ("image", pixels(parsed, field, &self.fit(*size))?),
            RecordInput::Numbers { fields, count } => ("x", numbers(parsed, fields, *count)?),
            RecordInput::Columns { codes, count } => ("x", columns::encode(parsed, codes, *count)?),
        })
    }
}

/// Returns the features whose names satisfy `wanted`.
fn only(features: &FeatureSpecs, wanted: impl Fn(&str) -> bool) -> FeatureSpecs {
    let kept = features.iter().filter(|(name, _)| wanted(name));
    kept.fold(FeatureSpecs::new(), |all, (name, feature)| all.with(name, feature.clone()))
}

/// Adds a hint to the error of an unreadable record.
fn explain(e: Error) -> Error {
    let says_so = e.hint_text().is_some_and(|hint| hint.contains("data.records.skip"));
    match e.kind() {
        ErrorKind::Data if !says_so => e.because(
            "`systole data verify` lists damaged records; data.records.skip=10 skips up to ten in each file",
        ),
        _ => e,
    }
}

/// Returns the label field.
fn label_of(first: &Sample, options: &RecordOptions) -> Result<String> {
    label_name(first.names(), options)
}

/// Returns a note if several fields have a default name of the label.
fn other_labels(first: &Sample, label: &str, options: &RecordOptions) -> Option<String> {
    // Next to a field `label`, a field `y` is usually a coordinate.
    let is_stated = ["label", "labels"].iter().any(|l| label.eq_ignore_ascii_case(l));
    let is_other = |name: &&str| {
        *name != label && !(is_stated && *name == "y") && LABELS.iter().any(|l| name.eq_ignore_ascii_case(l))
    };
    let other = first.names().find(is_other).filter(|_| options.label.is_none())?;
    Some(format!("the label is `{label}`, not `{other}`; to predict that field: {}", label_setting(other)))
}

/// Setting of the label field as one types it: quoted if the shell or TOML would read the name as something else.
fn label_setting(name: &str) -> String {
    let is_word = name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    let is_value = name.parse::<f64>().is_ok() || ["true", "false", "none"].contains(&name);
    if is_word && !is_value {
        return format!("data.records.label={name}");
    }
    let text = name.replace('\\', "\\\\").replace('"', "\\\"");
    format!("--set {}", shell_quoted(format!("data.records.label=\"{text}\"")))
}

/// Whether a table has inputs for a table model: any column that is not a text of its own in most rows.
pub(crate) fn has_table_inputs(table: &CsvTable, label: &str, options: &RecordOptions) -> bool {
    let codes = columns::codes(&[table], label, &options.inputs, &options.columns);
    codes.is_ok_and(|(codes, _)| codes.iter().any(|code| code.categories.len() as u64 * 2 <= table.rows))
}

/// Returns the name of the label field, among these names.
pub(crate) fn label_name<'n>(
    names: impl Iterator<Item = &'n str>,
    options: &RecordOptions,
) -> Result<String> {
    let names: Vec<&str> = names.collect();
    let has = |name: &str| names.contains(&name);
    let like = |label: &str| names.iter().find(|n| n.eq_ignore_ascii_case(label)).map(|n| n.to_string());
    let found = match &options.label {
        Some(label) if has(label) => Some(label.clone()),
        Some(_) => None,
        None => LABELS
            .into_iter()
            .find(|l| has(l))
            .map(str::to_string)
            .or_else(|| LABELS.into_iter().find_map(like)),
    };
    found.ok_or_else(|| {
        let what = options.label.as_ref().map_or("the records have no label field".into(), |l| {
            format!("the records have no field `{l}`")
        });
        let why = match names.is_empty() {
            true => "the records have no other fields".into(),
            false => format!("the fields of the records are `{}`", names.join("`, `")),
        };
        Error::new(ErrorKind::Data, what).because(why).hint_setting(
            match names.last() {
                Some(last) if last.parse::<usize>().is_ok() => format!(
                    "the first line contains numbers, so columns are numbered from 0: data.records.label={last}; or \
                     add a header line to the file"
                ),
                Some(last) => format!("name the field to predict: {}", label_setting(last)),
                None => "name the field to predict: data.records.label".into(),
            })
    })
}

impl RecordInput {
    fn fields(&self) -> Vec<String> {
        match self {
            RecordInput::Path { field, .. }
            | RecordInput::File { field, .. }
            | RecordInput::Pixels { field, .. } => {
                vec![field.clone()]
            }
            RecordInput::Numbers { fields, .. } => fields.clone(),
            RecordInput::Columns { codes, .. } => codes.iter().map(|c| c.name.clone()).collect(),
        }
    }

    fn columns(&self) -> Vec<ColumnEncoding> {
        match self {
            RecordInput::Columns { codes, .. } => codes.clone(),
            _ => Vec::new(),
        }
    }

    /// Whether the input contains floating-point numbers that may be non-finite.
    fn has_numbers(&self) -> bool {
        match self {
            RecordInput::Numbers { .. } => true,
            RecordInput::Pixels { dtype, .. } => dtype.is_float(),
            _ => false,
        }
    }

    /// Builds the input from column encodings; `notes` explain the skipped columns.
    fn of_columns(codes: Vec<ColumnEncoding>, notes: &[String]) -> Result<RecordInput> {
        let count = codes.iter().map(ColumnEncoding::width).sum();
        if count > 0 {
            return Ok(RecordInput::Columns { codes, count });
        }
        Err(match notes {
            [] => only_label(),
            _ => err!(Data, "the records have no usable input column")
                .because(notes.join("; "))
                .hint("add columns of numbers, or of texts that repeat"),
        })
    }

    /// Rejects records that are not images of the model's size, if pixels are not resized.
    fn check_pixels(&self, first: &Sample, size: [usize; 3], resizes: bool) -> Result<()> {
        let (field, has) = match self {
            RecordInput::Pixels { field, .. } => match shape_of(first, field)? {
                // A rank of 2 with few columns: rows of one image.
                has if resizes && !matches!(*has, [_, 1..=4] if size[1] > 4) => return Ok(()),
                has => (field, has),
            },
            RecordInput::Numbers { fields, .. } => match fields.as_slice() {
                [field] => (field, shape_of(first, field)?),
                _ => {
                    return Err(err!(
                        Data,
                        "expected an image of shape {size:?}, got `{}`",
                        fields.join("`, `")
                    )
                    .hint("provide images, or records with one field that contains the pixels"));
                }
            },
            _ => return Ok(()),
        };
        let is_image = match has.as_slice() {
            &[h, w] => [h, w, 1] == size,
            has => has == size,
        };
        if is_image {
            return Ok(());
        }
        Err(err!(Data, "expected records of shape {size:?}, got {has:?} in the field `{field}`")
            .because("the model's input has this shape, with height, width and channels in this order")
            .hint("reshape or resize the images in your program"))
    }

    /// Whether a field of a record is needed.
    fn reads(&self, name: &str) -> bool {
        self.fields().iter().any(|f| name == f || name.strip_suffix("/shape") == Some(f))
    }

    fn of(first: &Sample, label: &str, options: &RecordOptions, shape: &RecordShape) -> Result<RecordInput> {
        let picture = PICTURES.into_iter().find(|p| first.names().any(|n| n == *p));
        let names = match options.inputs.as_slice() {
            [] if picture.is_some() => picture.into_iter().map(str::to_string).collect(),
            [] => {
                first.names().filter(|n| *n != label && !n.ends_with("/shape")).map(str::to_string).collect()
            }
            told => told.to_vec(),
        };
        ensure!(!names.is_empty(), only_label());
        if let [field] = names.as_slice()
            && let Some(input) = RecordInput::picture(first, field, shape)?
        {
            return Ok(input);
        }
        let mut count = 0;
        for name in &names {
            let ty = first.get(name)?.ty().clone();
            if ty.dtype == DType::U8 && ty.rank() == 1 {
                return Err(err!(Data, "the field `{name}` contains text or bytes")
                    .because("the model's input must be numbers or one image")
                    .hint_setting("name the fields to learn from: data.records.inputs = [\"a\", \"b\"]"));
            }
            count += ty.elements();
        }
        Ok(RecordInput::Numbers { fields: names, count })
    }

    /// Returns the input for an image field, as a file or as pixels.
    fn picture(first: &Sample, field: &str, shape: &RecordShape) -> Result<Option<RecordInput>> {
        let x = first.get(field)?;
        let field = field.to_string();
        let wanted = |size: [usize; 3]| shape.picture(size);
        if x.dtype() == DType::U8 && x.shape().rank() == 1 && any_format::is_picture(x.bytes()) {
            let pixels = any_format::from_bytes("the first image", x.bytes())?;
            let [h, w, c] = *pixels.shape().dims() else { return Ok(None) };
            return Ok(Some(RecordInput::File { field, size: wanted([h, w, c]) }));
        }
        let dtype = x.dtype();
        Ok(match *shape_of(first, &field)?.as_slice() {
            [h, w, c @ 1..=4] => Some(RecordInput::Pixels { field, size: wanted([h, w, c]), dtype }),
            [h, w] => Some(RecordInput::Pixels { field, size: wanted([h, w, 1]), dtype }),
            _ => None,
        })
    }
}

/// Returns the image field of a record: samples of one archive may contain JPEG and PNG.
fn picture_field<'a>(sample: &Sample, field: &'a str) -> &'a str {
    let has = |name: &str| sample.names().any(|n| n == name);
    if has(field) { field } else { PICTURES.into_iter().find(|p| has(p)).unwrap_or(field) }
}

/// Returns the shape of a field: its own, or that stored in another field if shapes vary between records.
fn shape_of(sample: &Sample, field: &str) -> Result<Vec<usize>> {
    let beside = format!("{field}/shape");
    match sample.names().any(|n| n == beside) {
        true => Ok(sample.get(&beside)?.to_f64s().iter().map(|d| *d as usize).collect()),
        false => Ok(sample.get(field)?.shape().to_vec()),
    }
}

fn pixels(sample: &Sample, field: &str, fit: &ImageFit) -> Result<HostArray> {
    let shape = match shape_of(sample, field)?.as_slice() {
        &[h, w] => vec![h, w, 1],
        shape => shape.to_vec(),
    };
    let x = HostArray::from(sample.get(field)?).reshape(shape.clone());
    Ok(if shape == fit.size { x } else { fit.apply(x) })
}

fn numbers(sample: &Sample, fields: &[String], count: usize) -> Result<HostArray> {
    let mut all = Vec::with_capacity(count);
    for name in fields {
        all.extend(sample.get(name)?.convert(DType::F32).to_f32s());
    }
    if all.len() != count {
        return Err(err!(Data, "a record has {} values", all.len())
            .because(format!("the first record has {count} input values; every record must have as many"))
            .hint_setting("name fields of a fixed size: data.records.inputs"));
    }
    Ok(Literal::from_slice([count], &all)?.into())
}

/// Returns the name of the folder or of the only file.
fn name_of(dir: &DataDir, files: &[PathBuf]) -> String {
    let stem = |p: &Path| p.file_stem().map(|n| n.to_string_lossy().into_owned());
    let name = match (files, dir.named()) {
        ([one], _) => stem(one),
        (_, Some(root)) => root.canonicalize().ok().as_deref().or(Some(root)).and_then(stem),
        _ => None,
    };
    name.unwrap_or_else(|| "records".into())
}

fn origin(dir: &DataDir, files: &[PathBuf]) -> String {
    match (files, dir.named()) {
        ([one], _) => one.display().to_string(),
        (many, Some(root)) => format!("{} files of {}", many.len(), root.display()),
        (many, None) => format!("{} files", many.len()),
    }
}

/// Fingerprint of names and sizes of the files and the number of records: a resumed run must find the same.
fn identity(parts: &[&[PathBuf]], train: usize, test: usize, mut mark: u64) -> String {
    for path in parts.iter().flat_map(|files| files.iter()) {
        let size = input_file::size(path).unwrap_or(0);
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        mark = mix(mark ^ hash_name(&name) ^ mix(size));
    }
    format!("{train} + {test} records, mark {mark:016x}")
}

fn only_label() -> Error {
    err!(Data, "the records contain only a label")
        .hint_setting("name the fields to learn from: data.records.inputs")
}
