//! Dataset tools for the command line: inspect, convert, verify, statistics, benchmark, trace an element.
//!
//! All functions return displayable values; nothing is printed.

use crate::file_system::{OsFileSystem, write_atomically};
use crate::format::example::{self, FeatureSpecs};
use crate::format::tfrecord::{
    CorruptRecord, OnCorrupt, TfRecordCompression, TfRecordReader, TfRecordWriter,
};
use crate::format::{idx, png};
use crate::input_file::{self, InputFile, entries, is_dir};
use crate::mutex::lock;
use crate::pipeline::{DatasetOptions, PipelineReport, RunObserver, stages_of};
use crate::sample::ElementSpec;
use crate::source::csv_table::CsvTable;
use crate::source::list_files::glob;
use crate::source::numpy::{NumpyRows, rows_of_npz};
use crate::source::text_files::CsvFormat;
use crate::{Cardinality, Dataset, HostArray, ImageFolder, PipelinePosition, Sample};
use std::collections::BTreeMap;
use std::fmt;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use systole_base::{DType, Error, Literal, Result, ensure, err};

/// Dataset opened from a path, with its format and metadata.
#[derive(Clone, Debug)]
pub struct OpenedDataset {
    /// Format: `TFRecord`, `CSV`, `folder of classes`, …
    pub kind: &'static str,
    /// Paths of the files.
    pub files: Vec<PathBuf>,
    /// Elements; TFRecord files of Examples are parsed.
    pub dataset: Dataset,
    /// Features of the records of TFRecord files.
    pub features: Option<FeatureSpecs>,
    /// Class names, if the data has them.
    pub classes: Vec<String>,
    /// Elements with undecoded images, `ui8[n]`, for image files.
    pub encoded: Option<Dataset>,
    /// Table with its columns, for tables.
    pub table: Option<Arc<CsvTable>>,
    /// Test elements, if the file has a test split.
    pub test: Option<Dataset>,
    /// Notes about skipped parts.
    pub notes: Vec<String>,
}

impl OpenedDataset {
    /// Wraps a dataset that was not opened from a path.
    pub fn of(kind: &'static str, dataset: Dataset) -> OpenedDataset {
        OpenedDataset {
            kind,
            files: Vec::new(),
            dataset,
            features: None,
            classes: Vec::new(),
            encoded: None,
            table: None,
            test: None,
            notes: Vec::new(),
        }
    }
}

/// Opens data of any supported format, detected by content: a file, a pattern, or a folder (of class folders with
/// images, or of data files). `features` describes Examples; by default they come from a file `….features` next to
/// them, or from the first record.
///
/// # Errors
/// If nothing readable is found.
pub fn open(path: &str, features: Option<FeatureSpecs>) -> Result<OpenedDataset> {
    open_with(path, features, CsvFormat::default())
}

/// Like [`open`], with format options for tables.
///
/// # Errors
/// See [`open`].
pub fn open_with(path: &str, features: Option<FeatureSpecs>, written: CsvFormat) -> Result<OpenedDataset> {
    let place = Path::new(path);
    if is_dir(place)
        && let Ok(folder) = ImageFolder::open(place)
    {
        let files = folder.pictures.iter().map(|(p, _)| p.clone()).collect();
        return Ok(OpenedDataset {
            files,
            encoded: Some(folder.encoded()),
            classes: folder.classes.clone(),
            ..OpenedDataset::of("folder of classes", folder.dataset())
        });
    }
    open_written(files_of(place)?, features, written)
}

/// Lists the data files of a folder, or those that match a pattern.
///
/// # Errors
/// If the folder cannot be read, or nothing matches.
pub fn files_of(place: &Path) -> Result<Vec<PathBuf>> {
    if !is_dir(place) {
        return glob(&place.to_string_lossy());
    }
    let files = entries(place)?.into_iter().filter(|e| !e.is_dir).map(|e| e.path);
    let is_beside = |p: &PathBuf| p.extension().is_some_and(|e| e == "features" || e == "classes");
    Ok(files.filter(|p| !is_beside(p)).collect())
}

/// Like [`open`], for a list of files of one format.
///
/// # Errors
/// If the list is empty, or a file cannot be read.
pub fn open_files(files: Vec<PathBuf>, features: Option<FeatureSpecs>) -> Result<OpenedDataset> {
    open_written(files, features, CsvFormat::default())
}

/// Like [`open_files`], with format options for tables.
///
/// # Errors
/// If the list is empty, or a file cannot be read.
pub fn open_written(
    files: Vec<PathBuf>,
    features: Option<FeatureSpecs>,
    written: CsvFormat,
) -> Result<OpenedDataset> {
    let Some(first) = files.first() else { return Err(err!(Io, "there are no files to read")) };
    let mut start = Vec::new();
    let read = InputFile::open(first).and_then(|f| f.take(512).read_to_end(&mut start));
    read.map_err(|e| Error::io("cannot read", first, e))?;
    let name = first.to_string_lossy().to_lowercase();
    let ends = |list: &[&str]| list.iter().any(|e| name.ends_with(e) || name.ends_with(&format!("{e}.gz")));
    let opened =
        |kind, dataset| Ok(OpenedDataset { files: files.clone(), ..OpenedDataset::of(kind, dataset) });
    match start.as_slice() {
        [0x93, b'N', b'U', b'M', b'P', b'Y', ..] => opened("NumPy array", Dataset::from_npy(first)?),
        [b'P', b'A', b'R', b'1', ..] => opened("Parquet", parquet(&files)?),
        [b'P', b'K', 3, 4, ..] => {
            let NumpyRows { train, test, classes, notes } = rows_of_npz(first)?;
            Ok(OpenedDataset { test, classes, notes, ..opened("NumPy arrays", train)? })
        }
        _ if start.len() > 262 && &start[257..262] == b"ustar" => {
            opened("WebDataset", Dataset::webdataset(files.clone()))
        }
        _ if ends(&[".tar", ".tgz"]) => opened("WebDataset", Dataset::webdataset(files.clone())),
        _ if ends(&[".csv", ".tsv"]) => {
            let table = Arc::new(CsvTable::read_written(&files, written)?);
            let by_mark = |e| format!("{} is decoded as {e} because of its byte order mark", first.display());
            let notes = table.marked.map(by_mark).into_iter().chain(table.header_note()).collect();
            Ok(OpenedDataset { table: Some(table.clone()), notes, ..opened("CSV", table.dataset())? })
        }
        _ if ends(&["-ubyte", ".idx"]) || start.starts_with(&[0, 0, 8]) => {
            let name = first.display().to_string();
            opened("IDX", Dataset::from_named_slices(name, [("value", idx::read(first)?)])?)
        }
        _ if is_tfrecord(first) => records(files, features),
        _ if std::str::from_utf8(&start).is_ok_and(|t| !t.contains('\0')) => {
            opened("text", Dataset::text_lines(files.clone()))
        }
        _ => Err(err!(Data, "unsupported data format")
            .at(first.display().to_string())
            .because(format!("the first bytes are {:02x?}", &start[..start.len().min(8)]))
            .hint("use TFRecord, CSV, text, NumPy, IDX, WebDataset or folders of images")),
    }
}

#[cfg(feature = "parquet")]
fn parquet(files: &[PathBuf]) -> Result<Dataset> {
    let all: [&str; 0] = [];
    Ok(Dataset::parquet(files.to_vec(), all))
}

#[cfg(not(feature = "parquet"))]
fn parquet(files: &[PathBuf]) -> Result<Dataset> {
    Err(err!(Unsupported, "this build does not support Parquet")
        .at(files.first().map_or(String::new(), |f| f.display().to_string()))
        .because("this build lacks the feature `parquet`")
        .hint("build Systole with --features parquet, or convert the files to CSV or TFRecord"))
}

/// Whether a file is TFRecord, by its name (so that a damaged file is recognized) or by the first record.
fn is_tfrecord(path: &Path) -> bool {
    if path.file_name().is_some_and(|name| name.to_string_lossy().contains(".tfrec")) {
        return true;
    }
    let reader = TfRecordReader::open(path, TfRecordCompression::Auto, OnCorrupt::Fail);
    reader.is_ok_and(|mut r| matches!(r.next(), Some(Ok(_))))
}

fn records(files: Vec<PathBuf>, told: Option<FeatureSpecs>) -> Result<OpenedDataset> {
    let raw = Dataset::tfrecord(&files);
    let beside = files[0].parent().unwrap_or(Path::new("")).join(features_name(&files[0]));
    let features = match (told, text_of(&beside)?) {
        (Some(told), _) => Some(told),
        (None, Some(text)) => Some(text.parse()?),
        // Uses the first valid record; damage is reported when the elements are read.
        (None, None) => match raw.iter().find_map(Result::ok) {
            Some(first) => {
                FeatureSpecs::guess(first.get("record")?.bytes()).ok().filter(|f| f.iter().count() > 0)
            }
            None => None,
        },
    };
    let dataset = features.clone().map_or(raw.clone(), |f| raw.parse_example(f));
    let classes = text_of(&beside.with_extension("classes"))?.unwrap_or_default();
    let classes = classes.lines().map(str::to_string).collect();
    Ok(OpenedDataset { files, features, classes, ..OpenedDataset::of("TFRecord", dataset) })
}

/// Reads a text file; `None` if it does not exist.
fn text_of(path: &Path) -> Result<Option<String>> {
    let text = input_file::is_file(path).then(|| input_file::read_to_string(path)).transpose();
    text.map_err(|e| Error::io("cannot read", path, e))
}

/// `train-00000-of-00008.tfrecord` → `train.features`.
fn features_name(file: &Path) -> String {
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    let stem = name.split(".tfrec").next().unwrap_or_default();
    let stem = stem.rsplit_once("-of-").and_then(|(s, _)| s.rsplit_once('-')).map_or(stem, |(s, _)| s);
    format!("{stem}.features")
}

/// Summary of a dataset: format, types, size and first elements.
#[derive(Clone, Debug)]
pub struct Inspection {
    /// Format of the data.
    pub kind: &'static str,
    /// Number of files.
    pub files: usize,
    /// Size of the files in bytes.
    pub bytes: u64,
    /// Number of elements, if known without reading everything.
    pub elements: Cardinality,
    /// Types of the first element.
    pub spec: ElementSpec,
    /// Features of Examples, as text for [`FeatureSpecs`].
    pub features: Option<FeatureSpecs>,
    /// Class names.
    pub classes: Vec<String>,
    /// Notes about skipped parts.
    pub notes: Vec<String>,
    /// First elements, one per line.
    pub first: Vec<String>,
}

/// Summarizes data: format, types, and the first `n` elements.
///
/// # Errors
/// Errors of the first elements.
pub fn inspect(opened: &OpenedDataset, n: usize) -> Result<Inspection> {
    let size = |p: &PathBuf| input_file::size(p).unwrap_or(0);
    let first = opened.dataset.debug().iter().take(n).map(|s| s.map(|s| summary(&s)));
    Ok(Inspection {
        kind: opened.kind,
        files: opened.files.len(),
        bytes: opened.files.iter().map(size).sum(),
        elements: opened.dataset.cardinality(),
        spec: opened.dataset.element_spec()?,
        features: opened.features.clone(),
        classes: opened.classes.clone(),
        notes: opened.notes.clone(),
        first: first.collect::<Result<_>>()?,
    })
}

impl fmt::Display for Inspection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.files {
            0 => writeln!(f, "{}", self.kind)?,
            n => writeln!(f, "{}: {n} files, {} bytes", self.kind, self.bytes)?,
        }
        if let Cardinality::Finite(n) = self.elements {
            writeln!(f, "elements: {n}")?;
        }
        if let Some(features) = &self.features {
            writeln!(f, "features: {features}")?;
        }
        if !self.classes.is_empty() {
            writeln!(f, "classes: {}", self.classes.join(", "))?;
        }
        self.notes.iter().try_for_each(|note| writeln!(f, "note: {note}"))?;
        writeln!(f, "element: {}", self.spec)?;
        self.first.iter().enumerate().try_for_each(|(i, line)| writeln!(f, "{i}: {line}"))
    }
}

/// Formats an element in one line: text fields as text, others as type and first values.
pub fn summary(sample: &Sample) -> String {
    let field = |(name, x): (&str, &HostArray)| match x.get() {
        Ok(x) => match sample.text(name) {
            Ok(text)
                if x.ty().rank() == 1 && !text.is_empty() && !text.contains(|c: char| c.is_control()) =>
            {
                format!("{name}: {:?}", text.chars().take(60).collect::<String>())
            }
            _ => format!("{name}: {x:?}"),
        },
        Err(e) => format!("{name}: {}", e.what()),
    };
    sample.fields().map(field).collect::<Vec<_>>().join(", ")
}

/// Result of [`convert`].
#[derive(Clone, Debug, PartialEq)]
pub struct ConversionResult {
    /// Paths of the shards, `PREFIX-00000-of-00008.tfrecord`.
    pub files: Vec<PathBuf>,
    /// Number of elements in all shards.
    pub elements: u64,
    /// Features to read the shards with; also written to `PREFIX.features`.
    pub features: FeatureSpecs,
}

/// Writes a dataset as Examples into sharded TFRecord files, element `i` into shard `i mod shards`, and the features
/// into `PREFIX.features`. Files appear when they are complete.
///
/// # Errors
/// The first error of an element; elements whose types differ in more than sizes from the first; I/O errors.
pub fn convert(
    dataset: &Dataset,
    prefix: &Path,
    shards: usize,
    compression: TfRecordCompression,
) -> Result<ConversionResult> {
    if shards == 0 || shards > 99_999 {
        return Err(
            err!(Config, "cannot write {shards} shards of a TFRecord dataset").hint_command("use 1 to 99999")
        );
    }
    let name = |i: usize| {
        let mut name = prefix.as_os_str().to_owned();
        name.push(format!("-{i:05}-of-{shards:05}.tfrecord"));
        PathBuf::from(name)
    };
    let files: Vec<PathBuf> = (0..shards).map(name).collect();
    let mut writers =
        files.iter().map(|f| TfRecordWriter::create(f, compression)).collect::<Result<Vec<_>>>()?;
    let (mut elements, mut seen): (u64, Option<ElementScan>) = (0, None);
    for sample in dataset {
        let sample = sample?;
        match &mut seen {
            None => seen = Some(ElementScan::of(&sample.spec()?)),
            Some(seen) => seen.add(&sample.spec()?, elements)?,
        }
        let fields = seen.as_ref().map_or(Vec::new(), |s| s.reshaped.clone());
        writers[(elements % shards as u64) as usize]
            .write(&example::encode(&with_shapes(sample, &fields)?)?)?;
        elements += 1;
    }
    writers.into_iter().try_for_each(TfRecordWriter::finish)?;
    let features = seen.map_or_else(FeatureSpecs::new, |s| s.features());
    let mut path = prefix.as_os_str().to_owned();
    path.push(".features");
    write_atomically(&OsFileSystem, Path::new(&path), &[format!("{features}\n").as_bytes()])?;
    Ok(ConversionResult { files, elements, features })
}

/// Types of the elements so far, and the fields whose sizes vary.
struct ElementScan {
    spec: ElementSpec,
    varies: BTreeMap<Arc<str>, ()>,
    /// Fields of rank 2 and more, whose sizes are also written, since they may vary.
    reshaped: Vec<Arc<str>>,
}

impl ElementScan {
    fn of(spec: &ElementSpec) -> ElementScan {
        let large = spec.fields().filter(|(_, ty)| ty.rank() > 1).map(|(n, _)| n.into());
        ElementScan { spec: spec.clone(), varies: BTreeMap::new(), reshaped: large.collect() }
    }

    fn add(&mut self, spec: &ElementSpec, at: u64) -> Result<()> {
        if *spec == self.spec {
            return Ok(());
        }
        let mut same = spec.fields().count() == self.spec.fields().count();
        for ((name, ty), (first, expected)) in spec.fields().zip(self.spec.fields()) {
            same &= name == first && ty.dtype == expected.dtype && ty.rank() == expected.rank();
            if ty != expected {
                self.varies.insert(name.into(), ());
            }
        }
        if same {
            return Ok(());
        }
        Err(err!(Data, "element {at} has another type than the first element: {spec}")
            .because(format!("the type of the first element is {}", self.spec))
            .hint("convert all elements to the same type with map first"))
    }

    fn features(&self) -> FeatureSpecs {
        let fixed = FeatureSpecs::of(&self.spec);
        let mut all = FeatureSpecs::new();
        for ((name, ty), (_, feature)) in self.spec.fields().zip(fixed.iter()) {
            let varies = self.varies.contains_key(name);
            all = match (varies, ty.dtype) {
                (false, _) => all.with(name, feature.clone()),
                (true, DType::U8) => all.bytes(name),
                (true, dtype) => all.var_len(name, dtype),
            };
            if varies && ty.rank() > 1 {
                all = all.fixed(format!("{name}/shape"), DType::I64, [ty.rank()]);
            }
        }
        all
    }
}

fn with_shapes(mut sample: Sample, fields: &[Arc<str>]) -> Result<Sample> {
    for name in fields {
        let dims: Vec<i64> = sample.get(name)?.shape().iter().map(|&d| d as i64).collect();
        sample = sample.with(&format!("{name}/shape"), Literal::from_slice([dims.len()], &dims)?);
    }
    Ok(sample)
}

/// Verification result of one TFRecord file.
#[derive(Clone, Debug)]
pub struct FileVerification {
    /// Path of the file.
    pub file: PathBuf,
    /// Number of valid records.
    pub records: u64,
    /// Size of the file in bytes.
    pub bytes: u64,
    /// Damaged records, each with position, expected and found checksum.
    pub damage: Vec<Error>,
}

/// Reads TFRecord files and verifies every record, resynchronizing after damaged ones.
///
/// # Errors
/// If a file cannot be opened.
pub fn verify(files: &[PathBuf]) -> Result<Vec<FileVerification>> {
    files.iter().map(|f| verify_file(f)).collect()
}

fn verify_file(file: &Path) -> Result<FileVerification> {
    let found: Arc<Mutex<Vec<CorruptRecord>>> = Arc::default();
    let sink = found.clone();
    let report = OnCorrupt::Report(Arc::new(move |d: &CorruptRecord| lock(&sink).push(d.clone())));
    let mut reader = TfRecordReader::open(file, TfRecordCompression::Auto, report)?;
    let mut records = 0;
    let mut failed = None;
    while let Some(record) = reader.next() {
        match record {
            Ok(_) => records += 1,
            Err(e) => failed = Some(e),
        }
    }
    let damage = lock(&found).drain(..).map(Error::from).chain(failed).collect();
    let bytes = input_file::size(file).unwrap_or(0);
    Ok(FileVerification { file: file.to_path_buf(), records, bytes, damage })
}

impl fmt::Display for FileVerification {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state =
            if self.damage.is_empty() { "whole".into() } else { format!("{} DAMAGED", self.damage.len()) };
        writeln!(f, "{}: {} records, {} bytes, {state}", self.file.display(), self.records, self.bytes)?;
        self.damage.iter().try_for_each(|e| writeln!(f, "{e}"))
    }
}

/// Statistics of one field of a dataset: minimum, maximum, mean, class counts.
#[derive(Clone, Debug)]
pub struct FieldStats {
    /// Name of the field.
    pub name: String,
    /// Number of elements by type.
    pub types: BTreeMap<String, u64>,
    /// Minimum value.
    pub min: f64,
    /// Maximum value.
    pub max: f64,
    /// Mean of all values.
    pub mean: f64,
    /// Standard deviation of all values.
    pub std: f64,
    /// Number of non-finite values.
    pub not_finite: u64,
    /// Number of elements by value, if the field is one integer with at most 1,000 distinct values.
    pub counts: Option<BTreeMap<i64, u64>>,
    sum: RunningSum,
}

#[derive(Clone, Copy, Debug, Default)]
struct RunningSum {
    count: f64,
    mean: f64,
    squares: f64,
}

impl RunningSum {
    /// Welford's update, which is accurate for large values that are close together.
    fn add(&mut self, v: f64) {
        self.count += 1.0;
        let delta = v - self.mean;
        self.mean += delta / self.count;
        self.squares += delta * (v - self.mean);
    }
}

/// Computes statistics of the first `limit` elements (`u64::MAX`: of all), and collects their errors.
///
/// # Errors
/// If there are no elements.
pub fn stats(dataset: &Dataset, limit: u64) -> Result<DatasetStats> {
    let mut out = DatasetStats { elements: 0, errors: Vec::new(), fields: Vec::new() };
    for sample in dataset.take(limit).iter() {
        out.elements += 1;
        match sample {
            Ok(sample) => sample.fields().try_for_each(|(name, x)| out.add(name, x.get()?))?,
            Err(e) => out.errors.push(e),
        }
    }
    ensure!(out.elements != 0, err!(Data, "the dataset has no elements").at(format!("{dataset:?}")));
    for f in &mut out.fields {
        (f.mean, f.std) = (f.sum.mean, (f.sum.squares / f.sum.count.max(1.0)).sqrt());
    }
    Ok(out)
}

/// Result of [`stats`].
#[derive(Clone, Debug)]
pub struct DatasetStats {
    /// Number of elements, including errors.
    pub elements: u64,
    /// Errors of elements.
    pub errors: Vec<Error>,
    /// Statistics by field.
    pub fields: Vec<FieldStats>,
}

impl DatasetStats {
    fn add(&mut self, name: &str, x: &Literal) -> Result<()> {
        let at = match self.fields.iter().position(|f| f.name == name) {
            Some(at) => at,
            None => {
                self.fields.push(FieldStats::new(name));
                self.fields.len() - 1
            }
        };
        let f = &mut self.fields[at];
        *f.types.entry(x.ty().to_string()).or_insert(0) += 1;
        for v in x.to_f64s() {
            if !v.is_finite() {
                f.not_finite += 1;
                continue;
            }
            (f.min, f.max) = (f.min.min(v), f.max.max(v));
            f.sum.add(v);
        }
        let is_class = x.dtype().is_int() && x.ty().elements() == 1;
        f.counts = f.counts.take().filter(|c| is_class && c.len() <= 1000);
        if let Some(counts) = &mut f.counts {
            *counts.entry(x.get(0).as_i64()).or_insert(0) += 1;
        }
        Ok(())
    }
}

impl FieldStats {
    fn new(name: &str) -> FieldStats {
        FieldStats {
            name: name.into(),
            types: BTreeMap::new(),
            min: f64::INFINITY,
            max: f64::NEG_INFINITY,
            mean: 0.0,
            std: 0.0,
            not_finite: 0,
            counts: Some(BTreeMap::new()),
            sum: RunningSum::default(),
        }
    }
}

impl fmt::Display for DatasetStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ends = [self.elements, self.errors.len() as u64].map(|n| if n == 1 { "" } else { "s" });
        writeln!(f, "{} element{}, {} error{}", self.elements, ends[0], self.errors.len(), ends[1])?;
        for s in &self.fields {
            let types: Vec<String> = s.types.iter().take(4).map(|(t, n)| format!("{t} × {n}")).collect();
            let more =
                if s.types.len() > 4 { format!(" and {} more", s.types.len() - 4) } else { String::new() };
            write!(
                f,
                "{}: {}{more}; {} to {}, mean {:.6}, std {:.6}",
                s.name,
                types.join(", "),
                s.min,
                s.max,
                s.mean,
                s.std
            )?;
            if s.not_finite > 0 {
                write!(f, ", {} NOT FINITE", s.not_finite)?;
            }
            writeln!(f)?;
            if let Some(counts) = s.counts.as_ref().filter(|c| c.len() <= 20) {
                let counts: Vec<String> = counts.iter().map(|(v, n)| format!("{v}: {n}")).collect();
                writeln!(f, "  {}", counts.join(", "))?;
            }
        }
        self.errors.iter().take(3).try_for_each(|e| writeln!(f, "{e}"))
    }
}

/// Runs the pipeline, epoch after epoch, for `time` (or until it ends with an error), and reports the time of every
/// stage, the queues and the tuning. If `measure` is false, stages are not timed, which is slightly faster.
///
/// # Errors
/// The first error of an element; a dataset without elements.
pub fn bench(dataset: &Dataset, time: Duration, measure: bool) -> Result<PipelineReport> {
    let watched = dataset
        .with_options(DatasetOptions { measure: Some(measure.into()), ..DatasetOptions::default() })
        .repeat();
    let mut iter = watched.iter();
    let start = Instant::now();
    while start.elapsed() < time {
        match iter.next() {
            Some(item) => drop(item?),
            None => {
                return Err(err!(Data, "the dataset has no elements").at(format!("{dataset:?}")));
            }
        }
    }
    Ok(iter.report())
}

/// Output of one stage for a traced element.
#[derive(Clone, Debug)]
pub struct TracedStage {
    /// Label of the stage.
    pub stage: String,
    /// The element in one line, or the error.
    pub element: String,
}

/// Traces element `index` through every stage, sources first, on the calling thread. For elements that a stage had
/// consumed earlier (a shuffle buffer), shows those with the same origin.
///
/// # Errors
/// If there is no such element.
pub fn trace(dataset: &Dataset, index: u64) -> Result<Vec<TracedStage>> {
    let watch = RunObserver::trace(stages_of(&dataset.clone().into_node()));
    let RunObserver::Trace(trace) = watch.clone() else { return Ok(Vec::new()) };
    let mut iter = dataset.run(0, Some(watch));
    iter.go_to(&PipelinePosition::new(0, index));
    let before = trace.drain();
    let last = iter.next().ok_or_else(|| {
        err!(Data, "the dataset has no element {index}")
            .at(format!("{dataset:?}"))
            .hint("choose a smaller index: `systole data inspect` prints the number of elements")
    })?;
    let seen = trace.drain();
    if let (Err(e), true) = (&last, seen.is_empty()) {
        return Err(e.clone());
    }
    let origin = last.as_ref().ok().and_then(Sample::origin).map(|o| (o.source, o.index));
    let is_same = |item: &Result<Sample>| {
        let of = item.as_ref().ok().and_then(Sample::origin).map(|o| (o.source, o.index));
        origin.is_some() && of == origin
    };
    let earlier = before.into_iter().filter(|(_, item)| is_same(item));
    let shown = |(stage, item): (String, Result<Sample>)| TracedStage {
        stage,
        element: item.map_or_else(|e| e.to_string(), |s| summary(&s)),
    };
    let mut all: Vec<TracedStage> = earlier.chain(seen).map(shown).collect();
    if let Err(e) = last {
        all.push(TracedStage { stage: "error".into(), element: e.to_string() });
    }
    Ok(all)
}

impl fmt::Display for TracedStage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:<28} {}", self.stage, self.element)
    }
}

/// Writes the images of an element as PNG files, `PREFIX-FIELD.png`: ui8 unchanged, f32 scaled from 0..1. For
/// inspecting augmentation.
///
/// # Errors
/// I/O errors.
pub fn write_pictures(sample: &Sample, prefix: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for (name, x) in sample.fields() {
        let x = x.get()?;
        let picture = match (x.dtype(), x.shape().dims()) {
            (DType::U8, [_, _, 1..=4]) => x.clone(),
            (DType::F32, [_, _, 1..=4]) => (HostArray::from(x) * 255.0).cast(DType::U8).into_literal()?,
            _ => continue,
        };
        let mut path = prefix.as_os_str().to_owned();
        path.push(format!("-{name}.png"));
        png::write(&path, &picture)?;
        files.push(path.into());
    }
    Ok(files)
}

// Names of the previous version.
systole_base::renamed! { Converted => ConversionResult, Opened => OpenedDataset, Stats => DatasetStats, Traced => TracedStage, Verified => FileVerification }

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stage::test::{ints, stream};
    use systole_base::ErrorKind;
    use systole_testing::assert_error;

    fn folder(name: &str) -> PathBuf {
        let dir = std::env::temp_dir().join(format!("systole-tools-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        dir
    }

    fn pictures(n: usize) -> Dataset {
        let images: Vec<u8> = (0..n * 12).map(|i| i as u8).collect();
        let labels: Vec<i64> = (0..n as i64).map(|i| i % 3).collect();
        Dataset::from_tensor_slices([
            ("image", Literal::from_slice([n, 2, 3, 2], &images).unwrap()),
            ("label", Literal::from_slice([n], &labels).unwrap()),
        ])
        .unwrap()
    }

    #[test]
    fn converted_data_are_opened_as_they_were() {
        let dir = folder("convert");
        for compression in [TfRecordCompression::None, TfRecordCompression::Gzip] {
            let done = convert(&pictures(10), &dir.join("train"), 3, compression).unwrap();
            assert_eq!((done.files.len(), done.elements), (3, 10));
            let opened = open(dir.to_str().unwrap(), None).unwrap();
            assert_eq!((opened.kind, opened.files.len()), ("TFRecord", 3));
            let back = opened.dataset.element_spec().unwrap().to_string();
            assert_eq!(back, "image: ui8[2, 3, 2], label: i64[]");
            let labels = stats(&opened.dataset, u64::MAX).unwrap();
            assert_eq!(labels.fields[1].counts.as_ref().unwrap(), &BTreeMap::from([(0, 4), (1, 3), (2, 3)]));
            assert_eq!((labels.fields[0].min, labels.fields[0].max, labels.elements), (0.0, 119.0, 10));
            assert!(
                (labels.fields[0].mean - 59.5).abs() < 1e-9 && (labels.fields[0].std - 34.639).abs() < 1e-3
            );
            let text = inspect(&opened, 2).unwrap().to_string();
            assert!(text.contains("3 files") && text.contains("features: image: ui8[2, 3, 2]"), "{text}");
        }
        let sizes = stream(3).map(|s: Sample| {
            let n = s.get("x").unwrap().get(0).as_i64() as usize + 1;
            Sample::new([("p", Literal::from_slice([n, 2], &vec![1u8; 2 * n]).unwrap())])
        });
        let done = convert(&sizes, &dir.join("sizes"), 1, TfRecordCompression::None).unwrap();
        assert_eq!(done.features.to_string(), "p: ui8[?], p/shape: i64[2]");
        let read = Dataset::tfrecord(&done.files).parse_example(done.features);
        assert_eq!(read.iter().last().unwrap().unwrap().get("p/shape").unwrap().to_f64s(), [3.0, 2.0]);
        assert!(convert(&sizes, &dir.join("none"), 0, TfRecordCompression::None).is_err());
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn damage_is_found_with_its_place_and_the_rest_counted() {
        let dir = folder("verify");
        let done = convert(&pictures(9), &dir.join("d"), 1, TfRecordCompression::None).unwrap();
        assert!(verify(&done.files).unwrap()[0].damage.is_empty());
        let mut bytes = std::fs::read(&done.files[0]).unwrap();
        let record = bytes.len() / 9;
        bytes[2 * record + 20] ^= 1;
        bytes[5 * record] ^= 1;
        std::fs::write(&done.files[0], bytes).unwrap();
        let report = &verify(&done.files).unwrap()[0];
        assert_eq!((report.records, report.damage.len()), (7, 2));
        let text = report.to_string();
        assert!(
            text.contains("2 DAMAGED") && text.contains(&format!("record 2, byte {}", 2 * record)),
            "{text}"
        );
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn formats_are_told_by_content() {
        let dir = folder("open");
        let at = |name: &str| dir.join(name).display().to_string();
        std::fs::write(at("a.csv"), "x,name\n1,cat\n2,dog\n").unwrap();
        std::fs::write(at("b.txt"), "one\ntwo\n").unwrap();
        crate::format::npy::write(at("c"), &Literal::from_slice([2], &[1f32, 2.0]).unwrap()).unwrap();
        std::fs::write(at("d"), [0xff, 0xfe, 0, 1]).unwrap();
        idx::write(at("e-ubyte"), &Literal::from_slice([2, 2], &[1u8, 2, 3, 4]).unwrap(), true).unwrap();
        std::fs::write(at("f"), crate::format::tar::frame("1.txt", b"x")).unwrap();
        for (name, kind, spec) in [
            ("a.csv", "CSV", "x: i64[], name: ui8[3]"),
            ("b.txt", "text", "line: ui8[3]"),
            ("c", "NumPy array", "value: f32[]"),
            ("e-ubyte", "IDX", "value: ui8[2]"),
            ("f", "WebDataset", "key: ui8[1], txt: ui8[1]"),
        ] {
            let opened = open(&at(name), None).unwrap();
            assert_eq!(
                (opened.kind, opened.dataset.element_spec().unwrap().to_string().as_str()),
                (kind, spec)
            );
        }
        assert_error(&open(&at("d"), None).unwrap_err(), ErrorKind::Data, &[&at("d")]);
        assert!(open(&at("nothing"), None).is_err());
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn one_element_is_followed_through_every_stage() {
        let double = |s: Sample| s.map("x", |x| x * 2);
        let d = ints(10).map(double).shuffle(10, 3).prefetch(2);
        let traced = trace(&d, 4).unwrap();
        let stages: Vec<&str> = traced.iter().map(|t| t.stage.as_str()).collect();
        assert_eq!(stages, ["from_tensor_slices(x)", "map", "shuffle(10)", "prefetch(2)"]);
        let d = stream(10).map(double).shuffle(4, 3).batch(2);
        let traced = trace(&d, 1).unwrap();
        assert!(traced.last().unwrap().stage == "batch(2)" && traced.len() >= 3, "{traced:?}");
        assert!(trace(&d, 99).is_err());
    }

    #[test]
    fn a_bench_names_the_stages_and_says_what_was_tuned() {
        let slow = |s: Sample| {
            std::thread::sleep(Duration::from_micros(300));
            s
        };
        let d = ints(200).map_parallel(slow, crate::AUTOTUNE).batch(4).prefetch(crate::AUTOTUNE);
        let report = bench(&d, Duration::from_millis(200), true).unwrap();
        assert_eq!(report.slowest().unwrap().label, "map_parallel(AUTOTUNE)", "{report}");
        assert!(
            report.elements > 0
                && report.queues.iter().any(|q| q.tuned)
                && report.ram_peak <= report.ram_budget
        );
        assert!(
            report.verdict(0.5).contains("map_parallel") && report.verdict(0.0).contains("compute-bound")
        );
        assert!(bench(&ints(0), Duration::from_millis(1), false).is_err());
    }
}
