//! Files of records of your own: TFRecord files of Examples, CSV, NumPy, and what else `systole_data::tools` opens.
//!
//! All of them are read once before training: for their number, for the classes of their labels, and so that damage is
//! found before hours are spent. TFRecord files are then read as tf.data's tutorials do, several at a time in turns; the
//! shuffle holds records as they are in the files, and what they hold is taken out and decoded after it.

use super::files::DataDir;
use super::{Prepare, Streamed, TrainingData, fit_picture};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use systole_base::rng::{hash_name, mix};
use systole_base::{DType, Error, ErrorKind, Literal, Result, TensorType};
use systole_data::format::example::{Features, parse_example};
use systole_data::format::picture;
use systole_data::format::tfrecord::{Compression, OnCorrupt};
use systole_data::input;
use systole_data::tools::{Opened, files_of, open_files};
use systole_data::{AUTOTUNE, Dataset, HostArray, Sample, Shuffle, TfRecord};

/// Fields that hold the label where nobody says which, in order of preference.
const LABELS: [&str; 5] = ["label", "labels", "y", "target", "class"];
/// How the names of files begin that are for testing.
const TEST: [&str; 4] = ["test", "val", "valid", "t10k"];
/// Ends of files of records.
const ENDS: [&str; 7] = [".tfrecord", ".tfrecords", ".csv", ".tsv", ".npz", ".npy", ".parquet"];
/// Records that a shuffle over files draws from where nobody says.
const BUFFER: usize = 10_000;
/// More classes than this are no classes.
const MOST_CLASSES: i64 = 1 << 20;

/// How files of records become a data set: the table `data.records`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RecordOptions {
    /// Patterns of the files to train on, below `data.dir`; none: those in the folder that are not for testing.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub train: Vec<String>,
    /// Patterns of the files to test on; none: those whose names begin with `test` or `val`, else a part of the records.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub test: Vec<String>,
    /// What Examples hold: `image: ui8[28, 28, 1], label: i64[]`; none: the file `PREFIX.features` beside them, or what
    /// the first record shows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub features: Option<String>,
    /// The field with the picture, or the fields whose numbers are put side by side; none: `image`, else all others.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub inputs: Vec<String>,
    /// The field to predict; none: the first of `label`, `labels`, `y`, `target`, `class`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// Around TFRecord files: `auto`, `plain`, `gzip`, `zlib`.
    pub compression: Packed,
    /// Damaged records that may be left out of each file.
    pub skip: u64,
    /// Files that are read at a time.
    pub cycle_length: usize,
    /// Records that each of them gives in turn.
    pub block_length: usize,
    /// Records that a shuffle draws from; none: all where they lie in memory, else 10,000.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shuffle_buffer: Option<usize>,
}

/// [`Compression`] as text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs)]
pub enum Packed {
    #[default]
    Auto,
    Plain,
    Gzip,
    Zlib,
}

impl From<Packed> for Compression {
    fn from(packed: Packed) -> Compression {
        match packed {
            Packed::Auto => Compression::Auto,
            Packed::Plain => Compression::None,
            Packed::Gzip => Compression::Gzip,
            Packed::Zlib => Compression::Zlib,
        }
    }
}

impl RecordOptions {
    /// [`RecordOptions::features`], read.
    ///
    /// # Errors
    /// When they are not written as features are.
    pub fn parse_features(&self) -> Result<Option<Features>> {
        self.features.as_ref().map(|text| text.parse()).transpose()
    }
}

impl Default for RecordOptions {
    /// tf.data's tutorials: four files at a time, 16 records of each in turn.
    fn default() -> RecordOptions {
        RecordOptions {
            train: Vec::new(),
            test: Vec::new(),
            features: None,
            inputs: Vec::new(),
            label: None,
            compression: Packed::Auto,
            skip: 0,
            cycle_length: 4,
            block_length: 16,
            shuffle_buffer: None,
        }
    }
}

/// What is asked of pictures in records, and of the split.
#[derive(Clone, Debug)]
pub struct RecordShape {
    /// Height and width that pictures are brought to; none: those of the first one.
    pub size: Option<[usize; 2]>,
    /// 1: grey, 3: colour; none: as the first one.
    pub channels: Option<usize>,
    /// The part of the records that is kept for testing, where no files are for that.
    pub validation_split: f64,
    /// Which records are kept for testing, and the order of files.
    pub seed: u64,
}

/// Whether a folder holds files of records, rather than folders of pictures.
pub fn holds_records(dir: impl AsRef<Path>) -> bool {
    files_of(dir.as_ref()).is_ok_and(|files| files.iter().any(is_of_records))
}

/// Whether a file's name is that of a file of records.
pub fn is_of_records(file: impl AsRef<Path>) -> bool {
    let name = file.as_ref().file_name().map_or(String::new(), |n| n.to_string_lossy().to_lowercase());
    ENDS.iter().any(|end| name.ends_with(end) || name.ends_with(&format!("{end}.gz")))
}

/// Height, width and channels of the first picture in files of records; none: they hold no pictures.
///
/// # Errors
/// As [`records`], for the first record.
pub fn picture_size_of_records(
    dir: impl Into<DataDir>,
    options: &RecordOptions,
) -> Result<Option<[usize; 3]>> {
    let (train, _) = find(&dir.into(), options)?;
    let source = Source::open(train, options)?;
    Ok(match Reading::of(&source, options, &SHAPELESS)?.input {
        Input::File { size, .. } | Input::Pixels { size, .. } => Some(size),
        Input::Numbers { .. } => None,
    })
}

const SHAPELESS: RecordShape = RecordShape { size: None, channels: None, validation_split: 0.0, seed: 0 };

/// Records of your own: `image: u8[H, W, C], label: i32[]` where they hold pictures, else `x: f32[n]` and `label`, which
/// is `i32[]` where labels are classes and `f32[1]` where they are numbers.
///
/// # Errors
/// `Io` when there are no files; `Data` when a record cannot be read, or has no label (names it).
pub fn records(
    dir: impl Into<DataDir>,
    options: &RecordOptions,
    shape: &RecordShape,
) -> Result<TrainingData> {
    let dir = dir.into();
    let (train_files, test_files) = find(&dir, options)?;
    let source = Source::open(train_files, options)?;
    let test_source = match test_files.is_empty() {
        true => source.clone(),
        false => Source::open(test_files, options)?,
    };
    let (train_part, test_part) = match source.files() == test_source.files() {
        true => Subset::split(shape)?,
        false => (Subset::All, Subset::All),
    };
    let mut reading = Reading::of(&source, options, shape)?;
    let report = |done, all| dir.report("reading records", done, all);
    let train = reading.count(&source, train_part, &report)?;
    let test = reading.count(&test_source, test_part, &report)?;
    for (n, what) in [(train, "train"), (test, "test")] {
        if n == 0 {
            let first = source.files().first().map_or(String::new(), |f| f.display().to_string());
            return Err(Error::new(ErrorKind::Data, format!("there are no records to {what} on")).at(first));
        }
    }
    let class_names = reading.finish(&source.opened.classes)?;
    let element = reading.element();
    let fields = reading.input.fields();
    let prepare = Prepare(Arc::new(move |s| reading.prepare(s)));
    let in_order = |source: &Source, part| {
        let prepare = prepare.clone();
        source.in_order(part).map_parallel(move |s| prepare.call(s), AUTOTUNE)
    };
    let buffer = options.shuffle_buffer.unwrap_or(if source.is_in_memory() { train } else { BUFFER });
    Ok(TrainingData {
        name: name_of(&dir, source.files()),
        origin: origin(&dir, source.files()),
        train: in_order(&source, train_part),
        test: in_order(&test_source, test_part),
        train_len: train,
        test_len: test,
        elements: if element.rank() == 3 { "pictures" } else { "records" },
        element,
        class_names,
        fields,
        notes: Vec::new(),
        identity: Some(identity(&[source.files(), test_source.files()], train, test)),
        streamed: Some(Streamed {
            in_order: source.in_order(train_part),
            mixed: source.mixed(train_part, mix(shape.seed ^ hash_name("order of files"))),
            buffer,
            prepare,
        }),
    })
}

/// What a model that learnt from `fields` takes of records, whose labels may be missing: `image: u8[H, W, C]` where they hold
/// pictures, brought to `size`, else `x: f32[n]`. No fields: as for training.
///
/// # Errors
/// `Io` when a file cannot be opened; `Data` when it has no such field.
pub fn record_inputs(
    files: Vec<PathBuf>,
    options: &RecordOptions,
    fields: &[String],
    size: Option<[usize; 3]>,
) -> Result<Dataset> {
    let source = Source::open(files, options)?;
    let first = source.first()?;
    let has = |name: &String| first.names().any(|n| n == name);
    if let Some(lacking) = fields.iter().find(|name| !has(name)) {
        let there = first.names().collect::<Vec<_>>().join(", ");
        let place = source.files().first().map_or(String::new(), |f| f.display().to_string());
        return Err(Error::new(ErrorKind::Data, format!("the records have no field `{lacking}`"))
            .at(place)
            .because(format!("their fields are {there}; the model learnt from {}", fields.join(", ")))
            .hint("give them the names that they had in training"));
    }
    let label = label_of(&first, options).unwrap_or_default();
    let inputs = if fields.is_empty() { options.inputs.clone() } else { fields.to_vec() };
    let options = RecordOptions { inputs, ..options.clone() };
    let shape = RecordShape { size: size.map(|[h, w, _]| [h, w]), channels: size.map(|s| s[2]), ..SHAPELESS };
    let input = Input::of(&first, &label, &options, &shape)?;
    let features = source.features().map(|all| only(all, |name| input.reads(name)));
    let reading = Reading { features, input, label, labels: Labels::Values };
    Ok(source.in_order(Subset::All).map_parallel(
        move |s| {
            let (name, input) = reading.input(&reading.parse(s)?)?;
            Sample::new([(name, input)]).check()
        },
        AUTOTUNE,
    ))
}

/// The files to train and to test on.
fn find(dir: &DataDir, options: &RecordOptions) -> Result<(Vec<PathBuf>, Vec<PathBuf>)> {
    let root = dir.named().unwrap_or(Path::new(""));
    let all = |patterns: &[String]| -> Result<Vec<PathBuf>> {
        let mut files = Vec::new();
        for pattern in patterns {
            files.extend(files_of(&root.join(pattern))?);
        }
        Ok(files)
    };
    if !options.train.is_empty() {
        return Ok((all(&options.train)?, all(&options.test)?));
    }
    if dir.named().is_none() {
        return Err(Error::new(ErrorKind::Config, "no files of records are named").hint(
            "name their folder with --data-dir or data.dir, or patterns of files with data.records.train",
        ));
    }
    let found: Vec<PathBuf> = files_of(root)?.into_iter().filter(|f| is_of_records(f)).collect();
    let is_test = |f: &PathBuf| {
        let name = f.file_name().map_or(String::new(), |n| n.to_string_lossy().to_lowercase());
        TEST.iter().any(|t| name.strip_prefix(t).is_some_and(|r| !r.starts_with(char::is_alphabetic)))
            || name.starts_with("validation")
    };
    let (test, train): (Vec<_>, Vec<_>) = found.into_iter().partition(is_test);
    if train.is_empty() {
        return Err(Error::new(
            ErrorKind::Io,
            format!("{} has no files of records to train on", root.display()),
        )
        .hint(format!("files are known by their ends: {}", ENDS.join(", "))));
    }
    Ok((train, if options.test.is_empty() { test } else { all(&options.test)? }))
}

/// Which of the records of a file are meant.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Subset {
    All,
    /// All but each so manieth.
    Train(u64, u64),
    /// Each so manieth, in an order by the seed.
    Test(u64, u64),
}

impl Subset {
    fn split(shape: &RecordShape) -> Result<(Subset, Subset)> {
        if shape.validation_split <= 0.0 {
            return Err(Error::new(ErrorKind::Config, "there are no records to test on")
                .because("no files are for testing, and data.validation_split is 0")
                .hint("name files with data.records.test, or set data.validation_split to 0.2"));
        }
        let every = (1.0 / shape.validation_split).round().max(2.0) as u64;
        Ok((Subset::Train(every, shape.seed), Subset::Test(every, shape.seed)))
    }

    fn of(self, records: Dataset) -> Dataset {
        let (is_test, every, seed) = match self {
            Subset::All => return records,
            Subset::Train(every, seed) => (false, every, seed),
            Subset::Test(every, seed) => (true, every, seed),
        };
        if let Some(n) = records.cardinality().finite() {
            let fixed = Shuffle { buffer_size: usize::MAX, seed, reshuffle_each_iteration: false };
            let mixed = records.shuffle_with(fixed);
            return if is_test { mixed.take(n / every) } else { mixed.skip(n / every) };
        }
        let chosen = move |s: &Sample| {
            let place = s.get("index").map_or(0, |i| i.get(0).as_i64() as u64);
            // One of each `every` neighbours, another one each time: data may be sorted in turns.
            let turn = mix(seed ^ mix(place / every)) % every;
            (place % every == turn) == is_test
        };
        records.enumerate().filter(chosen).map(|s: Sample| s.without("index"))
    }
}

/// Files, and how they are read.
#[derive(Clone)]
struct Source {
    opened: Opened,
    options: RecordOptions,
    /// Bytes of the files when they were opened first.
    sizes: Arc<BTreeMap<PathBuf, u64>>,
}

impl Source {
    fn open(files: Vec<PathBuf>, options: &RecordOptions) -> Result<Source> {
        if files.is_empty() {
            return Err(Error::new(ErrorKind::Io, "there are no files of records")
                .hint("check data.records.train and data.records.test"));
        }
        let features = options.parse_features()?;
        let mut opened = open_files(files, features)?;
        // These are read whole, one file at a time.
        if ["NumPy array", "NumPy arrays", "IDX"].contains(&opened.kind) {
            for file in &opened.files[1..] {
                let next = open_files(vec![file.clone()], None)?.dataset;
                opened.dataset = opened.dataset.concatenate(&next);
            }
        }
        let size = |f: &PathBuf| Some((f.clone(), input::size(f)?));
        let sizes = Arc::new(opened.files.iter().filter_map(size).collect());
        Ok(Source { opened, options: options.clone(), sizes })
    }

    fn files(&self) -> &[PathBuf] {
        &self.opened.files
    }

    fn first(&self) -> Result<Sample> {
        let first = self.opened.dataset.debug().iter().next();
        first.ok_or_else(|| {
            let file = self.files().first().map_or(String::new(), |f| f.display().to_string());
            Error::new(ErrorKind::Data, "there are no records").at(file)
        })?
    }

    /// What Examples hold; none: the files are read as they are.
    fn features(&self) -> Option<&Features> {
        self.opened.features.as_ref()
    }

    /// Whether all elements can be had at once, so that a shuffle needs no buffer.
    fn is_in_memory(&self) -> bool {
        self.opened.dataset.cardinality().finite().is_some()
    }

    fn of_file(options: &RecordOptions, path: PathBuf, part: Subset) -> Dataset {
        let on_corrupt = match options.skip {
            0 => OnCorrupt::Fail,
            quota => OnCorrupt::Skip { quota },
        };
        let how = TfRecord { compression: options.compression.into(), on_corrupt, random_access: false };
        part.of(Dataset::tfrecord_with([path], how))
    }

    /// File by file: the same elements in the same order in each epoch.
    fn in_order(&self, part: Subset) -> Dataset {
        self.read(Dataset::files(self.files().to_vec()), part, 1)
    }

    /// Several files at a time, their order new in each epoch.
    fn mixed(&self, part: Subset, seed: u64) -> Dataset {
        let files = Dataset::files(self.files().to_vec()).shuffle(usize::MAX, seed);
        self.read(files, part, self.options.cycle_length)
    }

    fn read(&self, files: Dataset, part: Subset, cycle: usize) -> Dataset {
        if self.features().is_none() {
            return part.of(self.opened.dataset.clone());
        }
        let (options, sizes) = (self.options.clone(), self.sizes.clone());
        let open = move |s: Sample| -> Result<Dataset> {
            let path = PathBuf::from(s.text("path")?);
            same_size(&path, sizes.get(&path).copied())?;
            Ok(Source::of_file(&options, path, part))
        };
        files.interleave_parallel(open, cycle, self.options.block_length, AUTOTUNE)
    }
}

/// A file that was cut between two records looks like a shorter one: only its size tells.
fn same_size(path: &Path, had: Option<u64>) -> Result<()> {
    // A file that is gone is told by who opens it.
    let has = input::size(path);
    match (has, had) {
        (Some(has), Some(had)) if has != had => {
            Err(Error::new(ErrorKind::Data, "the file has changed since the run began")
                .at(path.display().to_string())
                .because(format!("it has {has} bytes, it had {had}"))
                .hint("put it back and start the same command again: the run goes on from its last backup"))
        }
        _ => Ok(()),
    }
}

/// What becomes of a record.
#[derive(Clone)]
struct Reading {
    features: Option<Features>,
    input: Input,
    label: String,
    labels: Labels,
}

/// What a model takes of a record.
#[derive(Clone)]
enum Input {
    /// A JPEG or PNG file, brought to this size.
    File { field: String, size: [usize; 3] },
    /// Pixels `T[H, W]` or `T[H, W, C]`; with their sizes in a field beside them where these differ.
    Pixels { field: String, size: [usize; 3], dtype: DType },
    /// Numbers, side by side.
    Numbers { fields: Vec<String>, count: usize },
}

/// What labels are.
#[derive(Clone)]
enum Labels {
    /// Numbers from 0 to the largest that was seen.
    Classes(i64),
    /// Names of classes, sorted.
    Names(BTreeSet<String>),
    /// Numbers to come close to.
    Values,
}

impl Reading {
    /// By the first record.
    fn of(source: &Source, options: &RecordOptions, shape: &RecordShape) -> Result<Reading> {
        let first = source.first()?;
        let label = label_of(&first, options)?;
        let labels = match first.get(&label)?.ty() {
            ty if ty.dtype == DType::U8 && ty.rank() == 1 => Labels::Names(BTreeSet::new()),
            ty if ty.dtype.is_int() => Labels::Classes(-1),
            _ => Labels::Values,
        };
        let input = Input::of(&first, &label, options, shape)?;
        Ok(Reading { features: source.features().cloned(), input, label, labels })
    }

    /// How many records there are; remembers what their labels are.
    fn count(&mut self, source: &Source, part: Subset, progress: &dyn Fn(u64, u64)) -> Result<usize> {
        let Some(features) = &self.features else {
            return self.count_all(&source.in_order(part)).map_err(explain);
        };
        // Of each record the label only: the pictures are looked at when they are trained on.
        let only = only(features, |name| name == self.label);
        let (files, mut n) = (source.files(), 0);
        for (i, file) in files.iter().enumerate() {
            let records =
                Source::of_file(&source.options, file.clone(), part).map(parse_example(only.clone()));
            n += self.count_all(&records).map_err(explain)?;
            progress(i as u64 + 1, files.len() as u64);
        }
        Ok(n)
    }

    fn count_all(&mut self, records: &Dataset) -> Result<usize> {
        let mut n = 0;
        for sample in records {
            let sample = sample?;
            match &mut self.labels {
                Labels::Names(names) => {
                    let name = sample.text(&self.label)?;
                    if !names.contains(name) {
                        names.insert(name.into());
                    }
                }
                Labels::Classes(most) => {
                    let class = sample.get(&self.label)?.get(0).as_i64();
                    if !(0..MOST_CLASSES).contains(&class) {
                        return Err(Error::new(ErrorKind::Data, format!("{class} is no class"))
                            .at(format!("field {}, element {n}", self.label))
                            .because("classes are numbers from 0 on")
                            .hint("name the field with the classes: data.records.label"));
                    }
                    *most = class.max(*most);
                }
                Labels::Values => {}
            }
            n += 1;
        }
        Ok(n)
    }

    /// The names of the classes, after counting. `told` says them where it is not empty.
    fn finish(&mut self, told: &[String]) -> Result<Vec<String>> {
        Ok(match &self.labels {
            Labels::Values => Vec::new(),
            Labels::Names(names) => names.iter().cloned().collect(),
            Labels::Classes(most) if told.is_empty() => (0..=*most).map(|k| k.to_string()).collect(),
            Labels::Classes(most) if *most < told.len() as i64 => told.to_vec(),
            Labels::Classes(most) => {
                return Err(Error::new(ErrorKind::Data, format!("there is a label {most}"))
                    .because(format!("the file of classes names {} of them", told.len()))
                    .hint("give the file PREFIX.classes a line for each class, or remove it"));
            }
        })
    }

    /// What an element's input is.
    fn element(&self) -> TensorType {
        match &self.input {
            Input::File { size, .. } => TensorType::new(DType::U8, *size),
            Input::Pixels { size, dtype, .. } => TensorType::new(*dtype, *size),
            Input::Numbers { count, .. } => TensorType::new(DType::F32, [*count]),
        }
    }

    /// `record` or fields → `image` or `x`, and `label`.
    fn prepare(&self, sample: Sample) -> Result<Sample> {
        let parsed = self.parse(sample)?;
        let label = self.label(&parsed)?;
        Sample::new([self.input(&parsed)?, ("label", label)]).check()
    }

    /// The fields of a record.
    fn parse(&self, sample: Sample) -> Result<Sample> {
        match &self.features {
            Some(features) => parse_example(features.clone())(sample),
            None => Ok(sample),
        }
    }

    /// What the model takes of the fields.
    fn input(&self, parsed: &Sample) -> Result<(&'static str, HostArray)> {
        Ok(match &self.input {
            Input::File { field, size } => {
                let pixels = picture::from_bytes("the picture", parsed.get(field)?.bytes())?;
                ("image", fit_picture(pixels.into(), *size))
            }
            Input::Pixels { field, size, .. } => ("image", pixels(parsed, field, *size)?),
            Input::Numbers { fields, count } => ("x", numbers(parsed, fields, *count)?),
        })
    }

    fn label(&self, sample: &Sample) -> Result<HostArray> {
        let x = sample.get(&self.label)?;
        Ok(match &self.labels {
            Labels::Names(names) => {
                let name = sample.text(&self.label)?;
                let Some(class) = names.iter().position(|n| n == name) else {
                    return Err(Error::new(ErrorKind::Data, format!("there is no class `{name}`")).because(
                        "the files were read before training and did not have it: they were changed",
                    ));
                };
                HostArray::scalar(DType::I32, class as f64)
            }
            Labels::Classes(_) => HostArray::from(x).cast(DType::I32).reshape([] as [usize; 0]),
            Labels::Values => HostArray::from(x).cast(DType::F32).flatten(),
        })
    }
}

/// Those features whose names are wanted.
fn only(features: &Features, wanted: impl Fn(&str) -> bool) -> Features {
    let kept = features.iter().filter(|(name, _)| wanted(name));
    kept.fold(Features::new(), |all, (name, feature)| all.with(name, feature.clone()))
}

/// What the command line can do about a record that cannot be read.
fn explain(e: Error) -> Error {
    match e.kind() {
        ErrorKind::Data => e.because(
            "`systole data verify` lists what is damaged; data.records.skip=10 leaves out up to ten in each file",
        ),
        _ => e,
    }
}

/// The field to predict.
fn label_of(first: &Sample, options: &RecordOptions) -> Result<String> {
    let has = |name: &str| first.names().any(|n| n == name);
    let found = match &options.label {
        Some(label) => Some(label.as_str()).filter(|l| has(l)),
        None => LABELS.into_iter().find(|l| has(l)),
    };
    found.map(str::to_string).ok_or_else(|| {
        let what = options.label.as_ref().map_or("no field of the records is a label".into(), |l| {
            format!("the records have no field `{l}`")
        });
        Error::new(ErrorKind::Data, what)
            .because(format!("their fields are {}", first.names().collect::<Vec<_>>().join(", ")))
            .hint("name the field to predict: data.records.label")
    })
}

impl Input {
    fn fields(&self) -> Vec<String> {
        match self {
            Input::File { field, .. } | Input::Pixels { field, .. } => vec![field.clone()],
            Input::Numbers { fields, .. } => fields.clone(),
        }
    }

    /// Whether a field of a record is needed.
    fn reads(&self, name: &str) -> bool {
        self.fields().iter().any(|f| name == f || name.strip_suffix("/shape") == Some(f))
    }

    fn of(first: &Sample, label: &str, options: &RecordOptions, shape: &RecordShape) -> Result<Input> {
        let names = match options.inputs.as_slice() {
            [] if first.names().any(|n| n == "image") => vec!["image".to_string()],
            [] => {
                first.names().filter(|n| *n != label && !n.ends_with("/shape")).map(str::to_string).collect()
            }
            told => told.to_vec(),
        };
        if names.is_empty() {
            return Err(Error::new(ErrorKind::Data, "the records hold a label and nothing else")
                .hint("name the fields to learn from: data.records.inputs"));
        }
        if let [field] = names.as_slice()
            && let Some(input) = Input::picture(first, field, shape)?
        {
            return Ok(input);
        }
        let mut count = 0;
        for name in &names {
            let ty = first.get(name)?.ty().clone();
            if ty.dtype == DType::U8 && ty.rank() == 1 {
                return Err(Error::new(ErrorKind::Data, format!("the field `{name}` holds text or bytes"))
                    .because("a model takes numbers, or one picture")
                    .hint("name the fields to learn from: data.records.inputs = [\"a\", \"b\"]"));
            }
            count += ty.elements();
        }
        Ok(Input::Numbers { fields: names, count })
    }

    /// A picture, as a file or as pixels.
    fn picture(first: &Sample, field: &str, shape: &RecordShape) -> Result<Option<Input>> {
        let x = first.get(field)?;
        let field = field.to_string();
        let wanted = |[h, w, c]: [usize; 3]| {
            let [h, w] = shape.size.unwrap_or([h, w]);
            [h, w, shape.channels.unwrap_or(if c <= 2 { 1 } else { 3 })]
        };
        if x.dtype() == DType::U8 && x.shape().rank() == 1 && picture::is_picture(x.bytes()) {
            let pixels = picture::from_bytes("the first picture", x.bytes())?;
            let [h, w, c] = *pixels.shape().dims() else { return Ok(None) };
            return Ok(Some(Input::File { field, size: wanted([h, w, c]) }));
        }
        let dtype = x.dtype();
        Ok(match *shape_of(first, &field)?.as_slice() {
            [h, w, c @ 1..=4] => Some(Input::Pixels { field, size: wanted([h, w, c]), dtype }),
            [h, w] => Some(Input::Pixels { field, size: wanted([h, w, 1]), dtype }),
            _ => None,
        })
    }
}

/// The shape of a field: its own, or what stands beside it where shapes differ from record to record.
fn shape_of(sample: &Sample, field: &str) -> Result<Vec<usize>> {
    let beside = format!("{field}/shape");
    match sample.names().any(|n| n == beside) {
        true => Ok(sample.get(&beside)?.to_f64s().iter().map(|d| *d as usize).collect()),
        false => Ok(sample.get(field)?.shape().to_vec()),
    }
}

fn pixels(sample: &Sample, field: &str, [h, w, c]: [usize; 3]) -> Result<HostArray> {
    let shape = match shape_of(sample, field)?.as_slice() {
        &[h, w] => vec![h, w, 1],
        shape => shape.to_vec(),
    };
    let x = HostArray::from(sample.get(field)?).reshape(shape.clone());
    Ok(if shape == [h, w, c] { x } else { fit_picture(x, [h, w, c]) })
}

fn numbers(sample: &Sample, fields: &[String], count: usize) -> Result<HostArray> {
    let mut all = Vec::with_capacity(count);
    for name in fields {
        all.extend(sample.get(name)?.convert(DType::F32).to_f32s());
    }
    if all.len() != count {
        return Err(Error::new(ErrorKind::Data, format!("a record has {} numbers", all.len()))
            .because(format!("the first one has {count}, and a model takes the same number of each"))
            .hint("name fields of a fixed size: data.records.inputs"));
    }
    Ok(Literal::from_slice([count], &all)?.into())
}

/// The folder's name, or that of the only file.
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

/// Names and sizes of the files and the number of records in a line: a run that goes on must find the same.
fn identity(parts: &[&[PathBuf]], train: usize, test: usize) -> String {
    let mut mark = 0;
    for path in parts.iter().flat_map(|files| files.iter()) {
        let size = input::size(path).unwrap_or(0);
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        mark = mix(mark ^ hash_name(&name) ^ mix(size));
    }
    format!("{train} + {test} records, mark {mark:016x}")
}
