//! `systole bench`: how fast complete steps run on synthetic data that stay in memory.
//!
//! Each measurement runs in a process of its own, so that its peak memory is its own and nothing is left over from the
//! one before. The child writes one JSON object; this process passes it on, or shows it as a row.

mod measure;
mod micro;
mod model;
mod workload;

use super::screen::{Screen, note, table};
use super::{Failure, Outcome};
use clap::Args;
use measure::Measured;
use serde_json::{Map, Value, json};
use std::process::{Command, Stdio};
use std::time::Duration;
use systole_cpu::{Level, Peak};
use systole_ir::{Error, ErrorKind, Result};
use workload::{Item, Unit, Work};

#[derive(Args)]
pub(crate) struct BenchArgs {
    /// Which: fashion-cnn, mlp, cifar-cnn, resnet50, gpt2-small, lstm (training steps), resnet50-inference,
    /// gpt2-small-inference, gemm, elementwise, or TOML files with models of your own. Without: all
    #[arg(value_name = "WORKLOAD | FILE.toml")]
    workloads: Vec<String>,
    /// float32, mixed_bfloat16 or mixed_float16; for gemm also int8 [default: float32; gemm: each]
    #[arg(long, value_name = "POLICY")]
    precision: Option<String>,
    /// How long to measure each, warm-up left out
    #[arg(long, value_name = "S", default_value = "3", value_parser = seconds)]
    seconds: f64,
    /// Measure in this process; for the one measurement that a child is started for
    #[arg(long, hide = true)]
    here: bool,
}

fn seconds(text: &str) -> Result<f64, String> {
    let value = text.parse::<f64>().ok().filter(|s| (0.0..=1e6).contains(s));
    value.ok_or_else(|| "must be a number of seconds from 0 to 1000000".into())
}

pub(crate) fn run(args: &BenchArgs, screen: &Screen) -> Outcome {
    let items = workload::items(&args.workloads, args.precision.as_deref()).map_err(Failure::usage)?;
    if let ([item], true) = (&items[..], args.here) {
        screen.object(&measure_here(item, args)?);
        return Ok(0);
    }
    let mut rows = Rows::default();
    let mut failed = None;
    for item in &items {
        match measure_apart(item, args, screen) {
            Ok(object) if screen.json => screen.object(&object),
            Ok(object) => rows.show(&object, screen),
            // The others are still worth measuring.
            Err(failure) => {
                note(&format!("{} ({}): {}", item.name, item.precision, failure.error));
                failed = failed.or(Some(failure));
            }
        }
    }
    failed.map_or(Ok(0), Err)
}

/// Runs one measurement in a child of this process.
fn measure_apart(item: &Item, args: &BenchArgs, screen: &Screen) -> Result<Value, Failure> {
    let lost = |why: String| Error::new(ErrorKind::Io, "a measurement did not end").because(why);
    let program = std::env::current_exe().map_err(|e| lost(e.to_string()))?;
    let mut child = Command::new(program);
    child.args(["bench", "--here", "--json", &item.name, "--precision", &item.precision]);
    child.args(["--seconds", &args.seconds.to_string()]);
    child.args(screen.passed_on());
    let child = child.stdin(Stdio::null()).stderr(Stdio::inherit()).output();
    let output = child.map_err(|e| lost(e.to_string()))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let object: Option<Value> = text.lines().last().and_then(|l| serde_json::from_str(l).ok());
    match (output.status.success(), object) {
        (true, Some(object)) => Ok(object),
        (_, object) => {
            let told = object.and_then(|o| o["error"].as_str().map(str::to_string));
            let why = told.unwrap_or_else(|| output.status.to_string());
            Err(lost(why).at(format!("{} ({})", item.name, item.precision)).into())
        }
    }
}

/// One measurement, as the object that `--json` shows.
fn measure_here(item: &Item, args: &BenchArgs) -> Result<Value, Failure> {
    let time = Duration::from_secs_f64(args.seconds);
    let m = match &item.work {
        Work::Train(config) => model::train(config, &item.precision, time)?,
        Work::Predict(config) => model::predict(config, &item.precision, time)?,
        Work::Gemm(n) => micro::gemm(*n, &item.precision, time)?,
        Work::Elementwise(kind) => micro::elementwise(*kind, &item.precision, time)?,
    };
    // Before the ceilings are measured, whose arrays are not the workload's.
    let peak_rss = super::report::peak_rss_mib();
    let level = Level::from_knob()?;
    let peak = systole_cpu::peak(level, super::report::threads());
    Ok(object(item, &m, peak_rss, &peak))
}

fn object(item: &Item, m: &Measured, peak_rss: Option<f64>, peak: &Peak) -> Value {
    let seconds = m.median_ms / 1e3;
    let gflops = m.flops / seconds / 1e9;
    let gb_per_s = m.bytes.map(|b| b / seconds / 1e9);
    let (value, unit) = match item.work.unit() {
        Unit::MsPerStep => (m.median_ms, "ms/step"),
        Unit::Images => (m.items / seconds, "images/s"),
        Unit::Tokens => (m.items / seconds, "tokens/s"),
        Unit::Gflops => (gflops, "GFLOP/s"),
        Unit::Bandwidth => (gb_per_s.unwrap_or(0.0), "GB/s"),
    };
    let share = match gb_per_s {
        Some(rate) => rate / peak.memory_gb_per_s(),
        None => gflops / peak.fma_gflops,
    };
    let mut o = Map::new();
    let mut put = |key: &str, value: Value| drop(o.insert(key.into(), value));
    put("workload", json!(item.name));
    put("precision", json!(item.precision));
    put("value", json!(rounded(value)));
    put("unit", json!(unit));
    put("ms_per_step", json!(rounded(m.median_ms)));
    put("best_ms", json!(rounded(m.best_ms)));
    put("cpu_ms_per_step", json!(m.cpu_ms.map(rounded)));
    put("gflops", json!(rounded(gflops)));
    put("share_of_peak", json!(rounded(share)));
    put("compile_ms", json!(rounded(m.compile_ms)));
    put("peak_rss_mib", json!(peak_rss.map(rounded)));
    put("threads", json!(peak.threads));
    put("steps", json!(m.steps));
    put("cpu", json!(machine(peak.level)));
    put("peak_gflops", json!(rounded(peak.fma_gflops)));
    put("peak_gb_per_s", json!(rounded(peak.memory_gb_per_s())));
    o.into()
}

/// Five digits: more are noise, and make the lines hard to read.
fn rounded(x: f64) -> f64 {
    format!("{x:.4e}").parse().unwrap_or(x)
}

/// `Intel(R) Xeon(R) Processor @ 3.80GHz, avx512, 2 cores`.
fn machine(level: Level) -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = info.lines().find_map(|l| l.strip_prefix("model name")?.split_once(':'));
    let name = name.map_or(std::env::consts::ARCH, |(_, name)| name.trim());
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    format!("{name}, {}, {cores} cores", level.name())
}

/// The table for people; each row is shown as soon as it is measured.
#[derive(Default)]
struct Rows {
    begun: bool,
}

impl Rows {
    fn show(&mut self, o: &Value, screen: &Screen) {
        let text = |key: &str| o[key].as_str().unwrap_or("").to_string();
        let number = |key: &str, digits: usize| match o[key].as_f64() {
            Some(v) => format!("{v:.digits$}"),
            None => "-".into(),
        };
        let share = o["share_of_peak"].as_f64().map_or("-".into(), |s| format!("{:.0} %", 100.0 * s));
        let row = vec![
            format!("{:<22}", text("workload")),
            format!("{:<14}", text("precision")),
            format!("{:>9} {:<8}", number("value", 1), text("unit")),
            format!("{:>9}", number("ms_per_step", 3)),
            format!("{:>8}", number("gflops", 1)),
            format!("{share:>7}"),
            format!("{:>7}", number("compile_ms", 0)),
            format!("{:>8}", number("peak_rss_mib", 0)),
        ];
        if !self.begun {
            self.begun = true;
            screen.detail(format!("{}, {} threads; {}", text("cpu"), o["threads"], ceilings(o)));
            let head = [
                "workload              ",
                "precision     ",
                "    value         ",
                "  ms/step",
                " GFLOP/s",
                "of peak",
                "compile",
                "peak MiB",
            ];
            screen.line(table(&[head.map(String::from).to_vec()]));
        }
        screen.line(table(&[row]));
    }
}

fn ceilings(o: &Value) -> String {
    format!("peak {} GFLOP/s (f32), {} GB/s (memory)", o["peak_gflops"], o["peak_gb_per_s"])
}
