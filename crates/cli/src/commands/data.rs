//! `systole data`: downloads datasets by name, inspects, converts, verifies and benchmarks data, computes statistics, and traces one element.

mod fetch;

use crate::args::common::{CommonArgs, DataArgs, bytes};
use crate::args::exit_status::{CommandError, CommandResult, RunCommand};
use crate::models::command_target::{CommandTarget, set_all};
use crate::render::screen::{Screen, note, number_of, quoted};
use crate::run::training::{announce_data, load_data};
use clap::{Args, Subcommand, ValueEnum};
use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use systole_config::{ConfigDraft, RunConfig};
use systole_data::file_system::{OsFileSystem, append, write_atomically};
use systole_data::format::example::FeatureSpecs;
use systole_data::format::tfrecord::TfRecordCompression;
use systole_data::tools::{self, OpenedDataset};
use systole_data::{AUTOTUNE, Cardinality, Dataset, DatasetOptions, PipelinePosition, PipelineReport};
use systole_ir::{Error, Result, err};
use systole_progress::terminal;

/// Redraw interval of the progress line.
const REDRAW: Duration = Duration::from_millis(200);
/// Number of errors that are printed; further errors are only counted.
const SHOWN: usize = 10;

#[derive(Args)]
pub(crate) struct DataCommand {
    #[command(subcommand)]
    action: DataAction,
}

#[derive(Subcommand)]
enum DataAction {
    /// Download published datasets by name and verify them
    Fetch(fetch::FetchArgs),
    /// Show format, files, element types and the first elements
    Inspect {
        #[command(flatten)]
        source: SourceArgs,
        /// Show the first N elements
        #[arg(short = 'n', long, value_name = "N", default_value_t = 3)]
        first: usize,
    },
    /// Convert data to sharded TFRecord files, readable by TensorFlow and Systole
    Convert {
        #[command(flatten)]
        source: SourceArgs,
        /// Output prefix of the files PREFIX-00000-of-0000N.tfrecord
        ///
        /// The features are written to PREFIX.features.
        #[arg(value_name = "PREFIX")]
        prefix: PathBuf,
        #[command(flatten)]
        how: ConvertArgs,
    },
    /// Compute statistics: types, minimum, maximum, mean, deviation, class counts
    Stats {
        #[command(flatten)]
        source: SourceArgs,
        /// Use only the first N elements
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
        limit: Option<u64>,
    },
    /// Read all data and list damaged records; exit with 1 if there are any
    Verify {
        #[command(flatten)]
        source: SourceArgs,
    },
    /// Benchmark a pipeline: time per stage, queues, memory and tuning decisions
    Bench {
        #[command(flatten)]
        source: SourceArgs,
        #[command(flatten)]
        how: DataBenchArgs,
    },
    /// Show one element after each stage of a pipeline
    Trace {
        #[command(flatten)]
        source: SourceArgs,
        /// Show element N, counted from 0
        #[arg(long, value_name = "N", default_value_t = 0)]
        element: u64,
        /// Write the element's images to PREFIX-FIELD.png
        #[arg(long, value_name = "PREFIX")]
        pictures: Option<PathBuf>,
    },
}

#[derive(Args)]
struct SourceArgs {
    /// File, pattern ('train-*.tfrecord'), folder, preset or TOML file
    ///
    /// A preset or TOML file selects its dataset and pipeline.
    #[arg(value_name = "SOURCE")]
    source: String,
    #[command(flatten)]
    data: DataArgs,
    /// Set features of TFRecord Examples: 'image: ui8[28, 28, 1], label: i64[]'
    ///
    /// [default: the file PREFIX.features next to the data, or the features of the first record]
    #[arg(long, value_name = "FEATURES")]
    features: Option<String>,
    /// Read this split of a preset's or TOML file's dataset
    #[arg(long, value_enum, default_value_t)]
    part: TrainOrTest,
    /// Set any TOML key, or a read option such as data.records.encoding=latin1
    #[arg(long = "set", value_name = "KEY=VALUE")]
    sets: Vec<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
enum TrainOrTest {
    #[default]
    Train,
    Test,
}

#[derive(Args)]
struct ConvertArgs {
    /// Write N files, with element i in file i mod N
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=99_999))]
    shards: u32,
    /// Compress the files
    #[arg(long, value_enum, default_value_t)]
    compression: ShardCompression,
    /// Store images as decoded pixels with their sizes, not as JPEG or PNG
    #[arg(long)]
    decode: bool,
    /// Skip and report up to N unreadable elements
    #[arg(long, value_name = "N", default_value_t = 0)]
    skip: u64,
    /// Append one line per skipped element to this file
    #[arg(long, value_name = "FILE", requires = "skip")]
    quarantine: Option<PathBuf>,
    /// Replace existing files with this prefix
    #[arg(long)]
    force: bool,
}

#[derive(Clone, Copy, Default, ValueEnum)]
enum ShardCompression {
    #[default]
    None,
    Gzip,
    Zlib,
}

#[derive(Args)]
struct DataBenchArgs {
    /// Measure for S seconds
    #[arg(long, value_name = "S", default_value_t = 5.0, value_parser = seconds)]
    seconds: f64,
    /// Set the batch size [default: as in the TOML file; for files: no batching]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    batch_size: Option<u64>,
    /// Shuffle the elements of files through a buffer of N elements
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    shuffle: Option<u64>,
    /// Limit prefetched data, such as to 512MiB [default: 1/4 of the free memory]
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    ram_budget: Option<usize>,
    /// Limit the threads of autotuned stages [default: all cores but one]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1024))]
    core_budget: Option<u64>,
    /// Run all stages on one thread without prefetching
    #[arg(long)]
    debug: bool,
    /// Write the configuration with the tuned sizes
    ///
    /// Training with that file uses these sizes without tuning.
    #[arg(long, value_name = "FILE.toml")]
    freeze: Option<PathBuf>,
}

fn seconds(text: &str) -> Result<f64, String> {
    let value = text.parse::<f64>().ok().filter(|s| *s > 0.0 && *s <= 86_400.0);
    value.ok_or_else(|| format!("expected a positive number of seconds, got `{text}`"))
}

impl RunCommand for DataCommand {
    fn run(self, _: &CommonArgs, screen: &Screen) -> CommandResult {
        run(self, screen)
    }

    fn only_prints(&self) -> bool {
        match &self.action {
            DataAction::Fetch(args) => args.only_prints(),
            DataAction::Inspect { .. } | DataAction::Stats { .. } | DataAction::Bench { .. } => true,
            DataAction::Convert { .. } | DataAction::Verify { .. } | DataAction::Trace { .. } => false,
        }
    }
}

fn run(command: DataCommand, screen: &Screen) -> CommandResult {
    match command.action {
        DataAction::Fetch(args) => fetch::fetch(&args, screen),
        DataAction::Inspect { source, first } => inspect(&source.open(screen)?, first, screen),
        DataAction::Convert { source, prefix, how } => convert(source.open(screen)?, &prefix, &how, screen),
        DataAction::Stats { source, limit } => stats(&source.open(screen)?, limit, screen),
        DataAction::Verify { source } => verify(&source.open(screen)?, screen),
        DataAction::Bench { source, how } => bench(source.open(screen)?, &how, screen),
        DataAction::Trace { source, element, pictures } => {
            trace(&source.open(screen)?, element, pictures.as_deref(), screen)
        }
    }
}

/// Data source of a command.
struct DataSource {
    opened: OpenedDataset,
    /// Configuration and its training pipeline, if the source is a preset or TOML file.
    configured: Option<(RunConfig, Dataset)>,
}

impl SourceArgs {
    fn open(&self, screen: &Screen) -> CommandResult<DataSource> {
        let is_file = Path::new(&self.source).exists();
        let draft = match CommandTarget::of(&self.source) {
            Ok(CommandTarget::Toml(path)) => Some(ConfigDraft::read(path)?),
            Ok(CommandTarget::Preset(name)) if !is_file => Some(ConfigDraft::preset(name)?),
            _ => None,
        };
        let Some(mut draft) = draft else {
            let features = self.features.as_ref().map(|f| f.parse::<FeatureSpecs>());
            let features = features.transpose().map_err(|e| CommandError::usage(e.at("--features")))?;
            return Ok(DataSource { opened: self.files(features)?, configured: None });
        };
        set_all(&mut draft, &self.sets)?;
        if let Some(dir) = &self.data.data_dir {
            draft.set_text("--data-dir", "data.dir", &dir.display().to_string());
        }
        let config = draft.finish()?;
        let data = load_data(&config, screen)?;
        announce_data(&config, &data, "as requested", screen);
        let (elements, pipeline) = match self.part {
            TrainOrTest::Train => (data.train.clone(), config.train_pipeline(&data)),
            TrainOrTest::Test => (data.test.clone(), config.test_pipeline(&data)),
        };
        let opened = OpenedDataset { classes: data.class_names, ..OpenedDataset::of("data set", elements) };
        Ok(DataSource { opened, configured: Some((config, pipeline)) })
    }
}

impl SourceArgs {
    /// Opens files, a folder or a pattern. Of the settings, only the read options apply.
    fn files(&self, features: Option<FeatureSpecs>) -> CommandResult<OpenedDataset> {
        let mut draft = ConfigDraft::preset("table")?;
        set_all(&mut draft, &self.sets)?;
        let options = draft.finish()?.data.records.unwrap_or_default();
        let mut opened = tools::open_with(&self.source, features, options.written()?)?;
        if options.skip > 0 {
            opened.dataset = opened.dataset.ignore_errors(options.skip);
        }
        Ok(opened)
    }
}

impl DataSource {
    /// Describes how the configuration's images were resized.
    fn resizing(&self) -> Option<String> {
        let (config, _) = self.configured.as_ref()?;
        let [height, width] = config.data.image_size?;
        Some(format!("resize: images were resized to {height} × {width}: {}", config.data.resizing()))
    }

    /// Returns the pipeline of the configuration, or the elements of the files.
    fn pipeline(&self) -> &Dataset {
        self.configured.as_ref().map_or(&self.opened.dataset, |(_, pipeline)| pipeline)
    }
}

fn inspect(source: &DataSource, first: usize, screen: &Screen) -> CommandResult {
    let found = tools::inspect(&source.opened, first)?;
    screen.line(found.to_string().trim_end());
    if screen.json {
        let spec: Map<String, Value> =
            found.spec.fields().map(|(name, ty)| (name.to_string(), json!(ty.to_string()))).collect();
        screen.object(&json!({
            "kind": found.kind, "files": found.files, "bytes": found.bytes, "elements": found.elements.finite(),
            "element": spec, "features": found.features.as_ref().map(ToString::to_string),
            "classes": found.classes, "first": found.first,
        }));
    }
    Ok(0)
}

fn convert(source: DataSource, prefix: &Path, how: &ConvertArgs, screen: &Screen) -> CommandResult {
    check_free(prefix, how.force)?;
    let parent = prefix.parent().filter(|p| !p.as_os_str().is_empty());
    if let Some(parent) = parent {
        std::fs::create_dir_all(parent).map_err(|e| Error::io("cannot create the folder", parent, e))?;
    }
    let opened = source.opened;
    let elements = match opened.encoded {
        Some(encoded) if !how.decode => encoded,
        _ => opened.dataset,
    };
    let skipped = SkippedElements::new(how.quarantine.clone());
    let elements = match how.skip {
        0 => elements.clone(),
        quota => elements.ignore_errors_with(quota, skipped.tell()),
    };
    let compression = match how.compression {
        ShardCompression::None => TfRecordCompression::None,
        ShardCompression::Gzip => TfRecordCompression::Gzip,
        ShardCompression::Zlib => TfRecordCompression::Zlib,
    };
    let counted = Ticker::counting("elements written", &elements, screen);
    let done = tools::convert(&counted, prefix, how.shards as usize, compression)?;
    if !opened.classes.is_empty() {
        let names = opened.classes.join("\n") + "\n";
        write_atomically(&OsFileSystem, &with_end(prefix, ".classes"), &[names.as_bytes()])?;
    }
    let left_out = skipped.count();
    let and = if left_out > 0 { format!(", {left_out} skipped") } else { String::new() };
    let (elements, files) = (number_of(done.elements, "element"), number_of(done.files.len(), "file"));
    screen.line(format!("{elements} in {files}{and}: {}", done.features));
    if let (Some(first), Some(last)) = (done.files.first(), done.files.last()) {
        let more = if done.files.len() > 1 { format!(" to {}", last.display()) } else { String::new() };
        screen.detail(format!("  {}{more}", first.display()));
    }
    if screen.json {
        screen.object(&json!({
            "elements": done.elements, "left_out": left_out, "features": done.features.to_string(),
            "files": done.files.iter().map(|f| f.display().to_string()).collect::<Vec<_>>(),
        }));
    }
    Ok(0)
}

fn with_end(prefix: &Path, end: &str) -> PathBuf {
    let mut path = prefix.as_os_str().to_owned();
    path.push(end);
    path.into()
}

/// Files of an earlier conversion must not be mixed with new ones.
fn check_free(prefix: &Path, force: bool) -> Result<()> {
    let pattern = with_end(prefix, "-*-of-*.tfrecord");
    let Ok(files) = Dataset::list_files(&pattern.display().to_string()) else { return Ok(()) };
    let paths: Vec<PathBuf> = files.iter().filter_map(|s| Some(s.ok()?.text("path").ok()?.into())).collect();
    if force {
        return paths
            .iter()
            .try_for_each(|p| std::fs::remove_file(p).map_err(|e| Error::io("cannot remove", p, e)));
    }
    Err(err!(Io, "{} files with this prefix already exist", paths.len())
        .at(paths.first().map_or(String::new(), |p| p.display().to_string()))
        .hint_command("choose another output prefix, or pass --force to replace the files"))
}

/// Reports and counts skipped elements.
struct SkippedElements {
    count: Arc<AtomicU64>,
    quarantine: Option<PathBuf>,
}

impl SkippedElements {
    fn new(quarantine: Option<PathBuf>) -> SkippedElements {
        SkippedElements { count: Arc::default(), quarantine }
    }

    fn count(&self) -> u64 {
        self.count.load(Relaxed)
    }

    fn tell(&self) -> impl Fn(&Error) + Send + Sync + 'static {
        let (count, file) = (self.count.clone(), self.quarantine.clone());
        move |e| {
            let text = e.to_string();
            if count.fetch_add(1, Relaxed) < SHOWN as u64 {
                note(&format!("skipped: {text}"));
            }
            let line = text.lines().map(str::trim).collect::<Vec<_>>().join("; ");
            let written =
                file.as_ref().map(|path| append(&OsFileSystem, path, format!("{line}\n").as_bytes()));
            if let Some(Err(e)) = written {
                note(&format!("cannot write the quarantine file: {e}"));
            }
        }
    }
}

fn stats(source: &DataSource, limit: Option<u64>, screen: &Screen) -> CommandResult {
    let elements = Ticker::counting("elements counted", &source.opened.dataset, screen);
    let found = tools::stats(&elements, limit.unwrap_or(u64::MAX))?;
    screen.line(found.to_string().trim_end());
    let columns = || source.opened.table.iter().flat_map(|t| &t.columns);
    columns().for_each(|column| screen.line(format!("column {column}")));
    if screen.json {
        let field = |f: &tools::FieldStats| {
            json!({
                "name": f.name, "types": f.types, "min": f.min, "max": f.max, "mean": f.mean, "std": f.std,
                "not_finite": f.not_finite, "counts": f.counts,
            })
        };
        screen.object(&json!({
            "elements": found.elements, "errors": found.errors.len(),
            "fields": found.fields.iter().map(field).collect::<Value>(),
            "columns": columns().map(|c| {
                json!({
                    "name": c.name, "kind": c.kind.name(), "missing": c.gaps, "median": c.median,
                    "different": c.texts.as_ref().map(std::collections::BTreeMap::len),
                })
            }).collect::<Value>(),
        }));
    }
    Ok(0)
}

fn verify(source: &DataSource, screen: &Screen) -> CommandResult {
    let files = match source.opened.kind {
        "TFRecord" => verify_records(&source.opened.files, screen)?,
        _ => vec![verify_elements(&source.opened, screen)],
    };
    let damaged: usize = files.iter().map(|f| f.damage.len()).sum();
    let records: u64 = files.iter().map(|f| f.records).sum();
    screen.line(match damaged {
        0 => format!("intact: {} readable", number_of(records, "record")),
        n => format!("DAMAGED: {n} records; {records} readable"),
    });
    if screen.json {
        let file = |f: &VerifiedFile| {
            let damage: Vec<String> = f.damage.iter().map(ToString::to_string).collect();
            json!({"source": f.source, "records": f.records, "damage": damage})
        };
        screen.object(&json!({
            "whole": damaged == 0, "records": records, "damaged": damaged,
            "files": files.iter().map(file).collect::<Value>(),
        }));
    }
    Ok(u8::from(damaged > 0))
}

/// Readable records and errors of a file or dataset.
struct VerifiedFile {
    source: String,
    records: u64,
    damage: Vec<Error>,
}

impl VerifiedFile {
    fn show(&self, screen: &Screen) {
        if self.damage.is_empty() {
            return screen.detail(format!("{}: {}, whole", self.source, number_of(self.records, "record")));
        }
        let records = number_of(self.records, "record");
        screen.line(format!("{}: {records}, {} DAMAGED", self.source, self.damage.len()));
        self.damage.iter().take(SHOWN).for_each(|e| screen.line(e.to_string()));
        if self.damage.len() > SHOWN {
            screen.line(format!("and {} more", self.damage.len() - SHOWN));
        }
    }
}

fn verify_records(files: &[PathBuf], screen: &Screen) -> Result<Vec<VerifiedFile>> {
    let ticker = Ticker::new("files checked", Some(files.len() as u64), screen);
    let mut all = Vec::new();
    for file in files {
        for found in tools::verify(std::slice::from_ref(file))? {
            let source = found.file.display().to_string();
            ticker.tick();
            let checked = VerifiedFile { source, records: found.records, damage: found.damage };
            ticker.clear();
            checked.show(screen);
            all.push(checked);
        }
    }
    Ok(all)
}

fn verify_elements(opened: &OpenedDataset, screen: &Screen) -> VerifiedFile {
    let mut checked = VerifiedFile { source: opened.kind.to_string(), records: 0, damage: Vec::new() };
    for item in &Ticker::counting("elements read", &opened.dataset, screen) {
        match item {
            Ok(_) => checked.records += 1,
            Err(e) => checked.damage.push(e),
        }
    }
    checked.show(screen);
    checked
}

fn bench(source: DataSource, how: &DataBenchArgs, screen: &Screen) -> CommandResult {
    let freezes = match (&how.freeze, &source.configured) {
        (Some(_), None) => {
            let e = err!(Config, "--freeze needs a configuration, but the source is {}", source.opened.kind);
            return Err(CommandError::usage(e.hint_command("name a preset or TOML file as the source")));
        }
        (Some(path), Some((config, _))) => Some((path, config.clone())),
        (None, _) => None,
    };
    let pipeline = how.pipeline(&source)?;
    screen.detail(format!("{pipeline:?}"));
    pipeline.warnings().iter().for_each(|w| screen.line(format!("note: {w}")));
    let report = tools::bench(&pipeline, Duration::from_secs_f64(how.seconds), true)?;
    screen.line(report.to_string().trim_end());
    if let Some(slowest) = report.slowest() {
        screen.line(format!("Slowest stage: {}", slowest.label));
    }
    if let Some((path, config)) = freezes {
        write_atomically(&OsFileSystem, path, &[config.frozen(&report.tuning)?.as_bytes()])?;
        let program = crate::render::screen::program();
        screen.line(format!(
            "The tuned sizes were written to {}\n  {program} train {}",
            path.display(),
            quoted(path)
        ));
    }
    if screen.json {
        screen.object(&as_json(&report));
    }
    Ok(0)
}

impl DataBenchArgs {
    fn pipeline(&self, source: &DataSource) -> CommandResult<Dataset> {
        let mut pipeline = match &source.configured {
            Some((_, pipeline)) => {
                if self.batch_size.is_some() || self.shuffle.is_some() {
                    let e = err!(Config, "--batch-size and --shuffle apply to files only");
                    return Err(CommandError::usage(e.hint_command(
                        "change the settings in the TOML file; `systole init` writes such a file",
                    )));
                }
                pipeline.clone()
            }
            None => self.of_files(&source.opened.dataset),
        };
        if self.debug {
            pipeline = pipeline.debug();
        }
        if self.ram_budget.is_some() || self.core_budget.is_some() {
            let core_budget = self.core_budget.map(|n| n as usize);
            let ram_budget = self.ram_budget;
            pipeline = pipeline.with_options(DatasetOptions {
                ram_budget,
                core_budget,
                ..DatasetOptions::default()
            });
        }
        Ok(pipeline)
    }

    fn of_files(&self, elements: &Dataset) -> Dataset {
        let shuffled = match self.shuffle {
            Some(n) => elements.shuffle(n as usize, 0),
            None => elements.clone(),
        };
        let batches = match self.batch_size {
            Some(n) => shuffled.batch(n as usize),
            None => shuffled,
        };
        batches.prefetch(AUTOTUNE)
    }
}

fn as_json(report: &PipelineReport) -> Value {
    let seconds = report.elapsed.as_secs_f64();
    let stages = report
        .stages
        .iter()
        .map(|s| json!({"stage": s.label, "seconds": s.time.as_secs_f64(), "elements": s.elements}));
    let queues = report.queues.iter().map(|q| {
        json!({
            "stage": q.label, "threads": q.threads, "ahead": q.ahead, "deepest": q.deepest, "tuned": q.tuned,
            "element_bytes": q.element_bytes, "taker_waited_seconds": q.waited.as_secs_f64(),
            "worked_seconds": q.busy.as_secs_f64(), "held_back_by_memory": q.short_of_memory, "reasons": q.reasons,
        })
    });
    json!({
        "elements": report.elements, "seconds": seconds,
        "elements_per_second": report.elements as f64 / seconds.max(1e-9),
        "ram_budget": report.ram_budget, "ram_peak": report.ram_peak, "core_budget": report.core_budget,
        "stages": stages.collect::<Value>(), "queues": queues.collect::<Value>(),
        "tuning": report.tuning.to_string(),
    })
}

fn trace(source: &DataSource, element: u64, pictures: Option<&Path>, screen: &Screen) -> CommandResult {
    let pipeline = source.pipeline();
    let seen = tools::trace(pipeline, element)?;
    // A batch combines many elements that passed the same stages: show the first one.
    let mut shown: Vec<(&str, usize)> = Vec::new();
    for step in &seen {
        match shown.iter_mut().find(|(stage, _)| *stage == step.stage) {
            Some((_, times)) => *times += 1,
            None => shown.push((&step.stage, 1)),
        }
    }
    for (stage, times) in shown {
        let first = seen.iter().find(|step| step.stage == stage);
        let more = if times > 1 { format!(" (and {} more)", times - 1) } else { String::new() };
        first.iter().for_each(|step| screen.line(format!("{step}{more}")));
    }
    let resizing = source.resizing();
    if let Some(text) = &resizing {
        screen.line(text);
    }
    if let Some(prefix) = pictures {
        let sample = pipeline.debug().iter_at(&PipelinePosition::new(0, element)).next();
        let files = match sample {
            Some(sample) => tools::write_pictures(&sample?, prefix)?,
            None => Vec::new(),
        };
        match files.is_empty() {
            true => screen.line("The element has no image field"),
            false => files.iter().for_each(|f| screen.line(f.display().to_string())),
        }
    }
    if screen.json {
        let steps = seen.iter().map(|step| json!({"stage": step.stage, "element": step.element}));
        let resizing = resizing.map(|text| json!({"stage": "resize", "element": text}));
        screen.object(&steps.chain(resizing).collect());
    }
    Ok(0)
}

/// Progress line of a long operation, on a terminal only.
#[derive(Clone)]
struct Ticker(Option<Arc<TickerState>>);

struct TickerState {
    what: &'static str,
    all: Option<u64>,
    done: AtomicU64,
    drawn: Mutex<Instant>,
}

impl Ticker {
    fn new(what: &'static str, all: Option<u64>, screen: &Screen) -> Ticker {
        let live = terminal::width().is_some() && !screen.quiet;
        let ticks = TickerState { what, all, done: AtomicU64::new(0), drawn: Mutex::new(Instant::now()) };
        Ticker(live.then(|| Arc::new(ticks)))
    }

    /// Returns the same dataset with every element counted as it passes.
    fn counting(what: &'static str, elements: &Dataset, screen: &Screen) -> Dataset {
        let all = match elements.cardinality() {
            Cardinality::Finite(n) => Some(n),
            _ => None,
        };
        let ticker = Ticker::new(what, all, screen);
        match ticker.0 {
            None => elements.clone(),
            Some(_) => elements.map(move |s| {
                ticker.tick();
                s
            }),
        }
    }

    fn tick(&self) {
        let Some(ticks) = &self.0 else { return };
        let done = ticks.done.fetch_add(1, Relaxed) + 1;
        let is_over = ticks.all == Some(done);
        let Ok(mut drawn) = ticks.drawn.lock() else { return };
        if drawn.elapsed() < REDRAW && !is_over {
            return;
        }
        *drawn = Instant::now();
        let of = ticks.all.map_or(String::new(), |all| format!(" of {all}"));
        terminal::draw(&format!("{done}{of} {}", ticks.what));
        if is_over {
            self.clear();
        }
    }

    fn clear(&self) {
        if self.0.is_some() {
            terminal::clear();
        }
    }
}
