//! `systole bench`: benchmarks training steps, predictions and single ops on synthetic data in memory.
//!
//! Each measurement runs in its own child process, so that peak memory and caches are independent. The child writes one
//! JSON object; this process prints it as JSON or as a table row.

mod int8;
mod measure;
mod micro;
mod model;
mod workload;

use crate::args::common::CommonArgs;
use crate::args::exit_status::{CommandError, CommandResult, RunCommand};
use crate::render::screen::{Screen, note, number_of, table};
use clap::Args;
use measure::BenchTiming;
use model::ModelSettings;
use serde_json::{Map, Value, json};
use std::process::{Command, Stdio};
use std::time::Duration;
use systole_cpu::{Level, Peak};
use systole_ir::{DType, Result, err};
use workload::{BenchItem, ThroughputUnit, Workload};

#[derive(Args)]
pub(crate) struct BenchArgs {
    /// Workloads, presets or TOML files to measure [default: all workloads]
    ///
    /// Training steps: fashion-cnn, mlp, cifar-cnn, resnet50, gpt2-small, lstm. Predictions: resnet50-inference,
    /// gpt2-small-inference. Quantized predictions: resnet50-int8, mobilenet-int8, gpt2-small-int8. Single ops: gemm,
    /// elementwise. Presets of `train` and TOML files with your own models are accepted as well.
    #[arg(value_name = "WORKLOAD | PRESET | FILE.toml")]
    workloads: Vec<String>,
    /// Set the precision: float32, mixed_bfloat16, mixed_float16, or int8 if supported
    ///
    /// int8 is supported by gemm and the quantized predictions. [default: the precision of the preset or file; gemm:
    /// each; quantized predictions: int8, with float32 for comparison]
    #[arg(long, value_name = "POLICY")]
    precision: Option<String>,
    /// Measure each workload for S seconds after its warm-up
    ///
    /// The reported times are medians; the spread covers four out of five steps.
    #[arg(long, value_name = "S", default_value = "3", value_parser = seconds)]
    seconds: f64,
    /// Set the batch size of training steps and predictions [default: as in the preset or file]
    #[arg(long, value_name = "N")]
    batch_size: Option<std::num::NonZeroUsize>,
    /// Measure in this process (used for child processes)
    #[arg(long, hide = true)]
    here: bool,
}

fn seconds(text: &str) -> Result<f64, String> {
    let value = text.parse::<f64>().ok().filter(|s| (0.0..=1e6).contains(s));
    value.ok_or_else(|| "expected a number of seconds from 0 to 1000000".into())
}

impl RunCommand for BenchArgs {
    fn run(self, common: &CommonArgs, screen: &Screen) -> CommandResult {
        let items =
            workload::items(&self.workloads, self.precision.as_deref()).map_err(CommandError::usage)?;
        let single = items.iter().find(|item| !item.work.has_batch());
        if let (Some(item), Some(_)) = (single, self.batch_size) {
            let e = err!(Config, "{} has no batch size", item.name).at("--batch-size");
            let hint = "name a model, such as mlp, or remove --batch-size";
            return Err(CommandError::usage(e.hint_command(hint)));
        }
        if let ([item], true) = (&items[..], self.here) {
            screen.object(&measure_here(item, &self).map_err(|e| e.at(item.to_string()))?);
            return Ok(0);
        }
        if items.len() > 1 && common.trace.is_some() {
            let e = err!(Config, "--trace accepts one measurement, got {}", items.len());
            return Err(CommandError::usage(e.at("--trace").hint_command(
                "name one measurement: a model such as mlp, or gemm-512 with --precision float32",
            )));
        }
        let mut rows = BenchTable::default();
        let mut code = 0;
        for item in &items {
            match measure_apart(item, &self, common)? {
                ChildMeasurement::Told(object) if screen.json => screen.object(&object),
                ChildMeasurement::Told(object) => rows.show(&object, screen),
                // The child has printed the error. Continue with the other measurements.
                ChildMeasurement::Failed(exit_code, object) => {
                    code = code.max(exit_code);
                    object.iter().filter(|_| screen.json).for_each(|o| screen.object(o));
                }
            }
        }
        Ok(code)
    }

    fn starts_children(&self) -> bool {
        !self.here
    }

    fn only_prints(&self) -> bool {
        true
    }
}

/// Result of a child process.
enum ChildMeasurement {
    Told(Value),
    /// The exit code and the error object.
    Failed(u8, Option<Value>),
}

/// Runs one measurement in a child process that shares this process's standard error.
fn measure_apart(item: &BenchItem, args: &BenchArgs, common: &CommonArgs) -> CommandResult<ChildMeasurement> {
    let lost = || err!(Io, "a benchmark measurement did not finish").at(item.to_string());
    let program = std::env::current_exe().map_err(|e| lost().because(e.to_string()))?;
    let mut child = Command::new(program);
    child.args(["bench", "--here", "--json", &item.name, "--precision", &item.precision]);
    child.args(["--seconds", &args.seconds.to_string()]);
    if let Some(n) = args.batch_size {
        child.args(["--batch-size", &n.to_string()]);
    }
    common.pass_on(&mut child);
    let child = child.stdin(Stdio::null()).stderr(Stdio::inherit()).output();
    let output = child.map_err(|e| lost().because(e.to_string()))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let object: Option<Value> = text.lines().last().and_then(|l| serde_json::from_str(l).ok());
    match (output.status.code(), object) {
        (Some(0), Some(object)) => Ok(ChildMeasurement::Told(object)),
        (Some(code), object) if code != 0 => Ok(ChildMeasurement::Failed(code as u8, object)),
        _ => {
            let e = lost().because(format!("child process: {}", output.status));
            Err(e.hint_command("signal 9 usually means out of memory: set --memory-limit").into())
        }
    }
}

/// Runs one measurement and returns its `--json` object.
fn measure_here(item: &BenchItem, args: &BenchArgs) -> Result<Value> {
    let time = Duration::from_secs_f64(args.seconds);
    let settings = ModelSettings { precision: &item.precision, batch_size: args.batch_size };
    let m = match &item.work {
        Workload::Train(config) => model::train(config, &settings, time)?,
        Workload::Predict(config) => model::predict(config, &settings, time)?,
        Workload::Int8(name) => int8::predict(name, &settings, time)?,
        Workload::Gemm(n) => micro::gemm(*n, &item.precision, time)?,
        Workload::Elementwise(kind) => micro::elementwise(*kind, &item.precision, time)?,
    };
    let peak = systole_cpu::peak(Level::from_knob()?, crate::run::run_summary::threads());
    let mut object = object(item, &m, &peak);
    if let Some(n) = args.batch_size {
        object["batch_size"] = json!(n.get());
    }
    Ok(object)
}

fn object(item: &BenchItem, m: &BenchTiming, peak: &Peak) -> Value {
    let seconds = m.median_ms / 1e3;
    let gflops = m.flops / seconds / 1e9;
    let gb_per_s = m.bytes.map(|b| b / seconds / 1e9);
    let (value, unit) = match item.work.unit() {
        ThroughputUnit::MsPerStep => (m.median_ms, "ms/step"),
        ThroughputUnit::Images => (m.items / seconds, "images/s"),
        ThroughputUnit::Tokens => (m.items / seconds, "tokens/s"),
        ThroughputUnit::Gflops => (gflops, "GFLOP/s"),
        ThroughputUnit::Bandwidth => (gb_per_s.unwrap_or(0.0), "GB/s"),
    };
    let products = peak.products(factors(&item.precision));
    let share = match gb_per_s {
        Some(rate) => rate / peak.memory_gb_per_s(),
        None => gflops / products,
    };
    let mut o = Map::new();
    let mut put = |key: &str, value: Value| drop(o.insert(key.into(), value));
    put("workload", json!(item.name));
    put("precision", json!(item.precision));
    put("value", json!(rounded(value)));
    put("unit", json!(unit));
    put("ms_per_step", json!(rounded(m.median_ms)));
    put("best_ms", json!(rounded(m.best_ms)));
    put("p10_ms", json!(rounded(m.tenths_ms.0)));
    put("p90_ms", json!(rounded(m.tenths_ms.1)));
    put("core_wait", json!(m.core_wait.map(rounded)));
    put("cpu_ms_per_step", json!(m.cpu_ms.map(rounded)));
    put("gflops", json!(rounded(gflops)));
    put("share_of_peak", json!(rounded(share)));
    put("compile_ms", json!(rounded(m.compile_ms)));
    put("peak_rss_mib", json!(m.peak_rss_mib.map(rounded)));
    put("threads", json!(peak.threads));
    put("steps", json!(m.steps));
    put("cpu", json!(machine(peak.level)));
    put("peak_gflops", json!(rounded(products)));
    put("peak_gb_per_s", json!(rounded(peak.memory_gb_per_s())));
    o.into()
}

/// Rounds to five significant digits.
fn rounded(x: f64) -> f64 {
    format!("{x:.4e}").parse().unwrap_or(x)
}

/// CPU description: `Intel(R) Xeon(R) Processor @ 3.80GHz, avx512, 2 cores`.
fn machine(level: Level) -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = info.lines().find_map(|l| l.strip_prefix("model name")?.split_once(':'));
    let name = name.map_or(std::env::consts::ARCH, |(_, name)| name.trim());
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    format!("{name}, {}, {}", level.name(), number_of(cores, "core"))
}

/// Result table; each row is printed as soon as it is measured.
#[derive(Default)]
struct BenchTable {
    begun: bool,
}

impl BenchTable {
    fn show(&mut self, o: &Value, screen: &Screen) {
        let text = |key: &str| o[key].as_str().unwrap_or("").to_string();
        let number = |key: &str, digits: usize| match o[key].as_f64() {
            Some(v) => format!("{v:.digits$}"),
            None => "-".into(),
        };
        let share = o["share_of_peak"].as_f64().map_or("-".into(), |s| format!("{:.0} %", 100.0 * s));
        // Do not repeat a value that has its own column.
        let rate = match text("unit").as_str() {
            "ms/step" | "GFLOP/s" => String::new(),
            unit => format!("{} {unit}", number("value", 1)),
        };
        let row = vec![
            format!("{:<22}", text("workload")),
            format!("{:<14}", text("precision")),
            format!("{:>9}", number("ms_per_step", 3)),
            format!("{:>6}", spread(o)),
            format!("{rate:>17}"),
            format!("{:>8}", number("gflops", 1)),
            format!("{share:>7}"),
            format!("{:>7}", number("compile_ms", 0)),
            format!("{:>8}", number("peak_rss_mib", 0)),
        ];
        if !self.begun {
            self.begun = true;
            systole_progress::debug_build::note().into_iter().for_each(note);
            let threads = number_of(&o["threads"], "thread");
            screen.detail(format!("{}, {threads}; {}", text("cpu"), ceilings(o)));
            let head = [
                "workload              ",
                "precision     ",
                "  ms/step",
                "spread",
                "             rate",
                " GFLOP/s",
                "of peak",
                "compile",
                "peak MiB",
            ];
            screen.line(table(&[head.map(String::from).to_vec()]));
        }
        screen.line(table(&[row]));
        if let Some(wait) = o["core_wait"].as_f64().filter(|w| *w > BUSY) {
            note(&format!(
                "The machine is busy: threads waited {:.0} % of this measurement for a core used by other programs",
                100.0 * wait
            ));
        }
    }
}

/// Share of waiting time that is normal on any system.
const BUSY: f64 = 0.03;

/// Formats half the p10–p90 range relative to the median: `±3 %`.
fn spread(o: &Value) -> String {
    match (o["p10_ms"].as_f64(), o["p90_ms"].as_f64(), o["ms_per_step"].as_f64()) {
        (Some(low), Some(high), Some(median)) => format!("±{:.0} %", 50.0 * (high - low) / median),
        _ => "-".into(),
    }
}

/// Element type of the factors of matrix products in a precision.
fn factors(precision: &str) -> DType {
    match precision {
        "int8" => DType::I8,
        p if p.contains("bfloat16") => DType::BF16,
        _ => DType::F32,
    }
}

fn ceilings(o: &Value) -> String {
    let factors = factors(o["precision"].as_str().unwrap_or_default());
    format!("peak {} GFLOP/s ({factors}), {} GB/s (memory)", o["peak_gflops"], o["peak_gb_per_s"])
}
