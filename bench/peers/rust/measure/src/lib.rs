//! What the Rust peers share, as `measure.py` is for the Python peers: the command line, how steps are timed, the line
//! of a result, and the sizes of the workloads.

use std::time::Instant;

pub const GEMM_SIZES: [usize; 4] = [512, 1024, 2048, 4096];
pub const VOCABULARY: usize = 50257;
pub const TOKENS: usize = 256;
pub const WIDTH: usize = 768;
pub const HEADS: usize = 12;
pub const BLOCKS: usize = 12;
pub const LSTM_TOKENS: usize = 100;
pub const LSTM_UNITS: usize = 256;
pub const LSTM_VOCABULARY: usize = 256;
/// Width, blocks and first stride of ResNet-50's stages; the stride lies in the first 1×1 of a block, as in Keras.
pub const RESNET_STAGES: [(usize, usize, usize); 4] = [(64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)];

/// The command line: `WORKLOAD [--precision P] [--threads N] [--seconds S]`.
pub struct Arguments {
    pub workload: String,
    /// Of the matrices that `gemm` multiplies: all, or that of `gemm-2048`.
    pub sizes: Vec<usize>,
    pub precision: String,
    pub threads: usize,
    pub seconds: f64,
}

impl Arguments {
    /// Reads the command line; other options belong to variants, which only the Python peers can run.
    pub fn parse(peer: &str) -> Arguments {
        let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
        let mut a = Arguments {
            workload: String::new(),
            sizes: GEMM_SIZES.to_vec(),
            precision: "float32".into(),
            threads: cores,
            seconds: 10.0,
        };
        let mut words = std::env::args().skip(1);
        while let Some(word) = words.next() {
            let mut value = || words.next().unwrap_or_default();
            match word.as_str() {
                "--precision" => a.precision = value(),
                "--threads" => a.threads = value().parse().unwrap_or(cores),
                "--seconds" => a.seconds = value().parse().unwrap_or(10.0),
                option if option.starts_with('-') => skip(peer, &a, &format!("has no {option}")),
                workload => a.workload = workload.into(),
            }
        }
        if let Some(size) = a.workload.strip_prefix("gemm-").and_then(|n| n.parse().ok()) {
            (a.workload, a.sizes) = ("gemm".into(), vec![size]);
        }
        a
    }

    /// Samples in a step of a model.
    pub fn batch(&self) -> usize {
        match self.workload.as_str() {
            "fashion-cnn" => 1000,
            "mlp" | "cifar-cnn" => 128,
            "lstm" => 64,
            "resnet50" | "resnet50-inference" => 16,
            _ => 4,
        }
    }

    /// What a step counts for the value, and its unit; `None`: milliseconds per step.
    fn rate(&self) -> Option<(f64, &'static str)> {
        match self.workload.trim_end_matches("-inference") {
            "resnet50" => Some((self.batch() as f64, "images/s")),
            "gpt2-small" => Some(((self.batch() * TOKENS) as f64, "tokens/s")),
            _ => None,
        }
    }
}

/// Ends the process: the peer cannot do this.
pub fn skip(peer: &str, a: &Arguments, why: &str) -> ! {
    eprintln!("SKIPPED {peer} {} {}: {why}", a.workload, a.precision);
    std::process::exit(3)
}

/// Numbers below `limit`, the same in every run.
pub fn draw(count: usize, limit: u64) -> impl Iterator<Item = u64> {
    let mut state = 12345_u64;
    (0..count).map(move |_| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) % limit
    })
}

/// Times of single steps in milliseconds, and the cores that others used meanwhile.
pub struct Timed {
    sorted_ms: Vec<f64>,
    others: f64,
}

/// Runs `step` three times, then for so many seconds but at least three times.
pub fn time_steps(mut step: impl FnMut(), seconds: f64) -> Timed {
    let start = Instant::now();
    for i in 0..3 {
        step();
        if i > 0 && start.elapsed().as_secs_f64() > seconds {
            break;
        }
    }
    let (busy, own, start) = (busy_seconds(), own_seconds(), Instant::now());
    let mut ms = Vec::new();
    while ms.len() < 2000 && (ms.len() < 3 || start.elapsed().as_secs_f64() < seconds) {
        let t = Instant::now();
        step();
        ms.push(t.elapsed().as_secs_f64() * 1e3);
    }
    let others = (busy_seconds() - busy) - (own_seconds() - own);
    ms.sort_by(f64::total_cmp);
    Timed { sorted_ms: ms, others: (others / start.elapsed().as_secs_f64()).max(0.0) }
}

/// Prints the line of a model.
pub fn report(peer: &str, a: &Arguments, timed: &Timed) {
    line(peer, a, &a.workload, a.rate(), timed);
}

/// Prints the line of a product of n × n matrices.
pub fn report_gemm(peer: &str, a: &Arguments, n: usize, timed: &Timed) {
    line(peer, a, &format!("gemm-{n}"), Some((2.0 * (n as f64).powi(3) / 1e9, "GFLOP/s")), timed);
}

fn line(peer: &str, a: &Arguments, workload: &str, rate: Option<(f64, &str)>, timed: &Timed) {
    let ms = &timed.sorted_ms;
    let median = (ms[ms.len() / 2] + ms[(ms.len() - 1) / 2]) / 2.0;
    let (value, unit) = rate.map_or((median, "ms/step"), |(amount, unit)| (amount / (median / 1e3), unit));
    let preload = std::env::var("LD_PRELOAD").unwrap_or_default();
    let settings = if preload.contains("tcmalloc") { "tcmalloc" } else { "" };
    println!(
        "{{\"workload\": \"{workload}\", \"precision\": \"{}\", \"value\": {value:.3}, \"unit\": \"{unit}\", \
         \"ms_per_step\": {median:.4}, \"best_ms\": {:.4}, \"peak_rss_mib\": {:.1}, \"threads\": {}, \
         \"peer\": \"{peer}\", \"settings\": \"{settings}\", \"cores_others\": {:.2}, \"steps\": {}}}",
        a.precision,
        ms[0],
        peak_rss_mib(),
        a.threads,
        timed.others,
        ms.len(),
    );
}

const TICKS: f64 = 100.0;

/// Processor seconds that everything on the machine has used.
fn busy_seconds() -> f64 {
    let text = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let first = text.lines().next().unwrap_or_default();
    let v: Vec<f64> = first.split_whitespace().skip(1).take(8).filter_map(|x| x.parse().ok()).collect();
    // The fourth and fifth are idle and waiting for disks.
    v.iter().enumerate().filter(|(i, _)| *i != 3 && *i != 4).map(|(_, x)| x).sum::<f64>() / TICKS
}

fn own_seconds() -> f64 {
    let text = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // Fields 14 and 15, counted after the name in brackets, which may have spaces.
    let fields = text.rsplit(')').next().unwrap_or_default().split_whitespace();
    fields.skip(11).take(2).filter_map(|x| x.parse::<f64>().ok()).sum::<f64>() / TICKS
}

fn peak_rss_mib() -> f64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find(|l| l.starts_with("VmHWM")).unwrap_or_default();
    line.split_whitespace().nth(1).and_then(|x| x.parse::<f64>().ok()).unwrap_or(0.0) / 1024.0
}
