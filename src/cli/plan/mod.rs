//! `systole plan`: what machines would need for a training run, before one is rented.

mod compiler;
mod show;
mod subject;

use super::screen::Screen;
use super::{Failure, Outcome, report};
use clap::Args;
use compiler::Compiler;
use std::path::PathBuf;
use subject::Subject;
use systole_cpu::Level;
use systole_ir::{Error, ErrorKind, Result};
use systole_plan::{Advice, Choice, Cpu, Half, Machine, Slice, Tables, Wish, advise, analytic, bill};

#[derive(Args)]
pub(crate) struct PlanArgs {
    /// A preset, a TOML file, or a program as StableHLO text (.mlir)
    #[arg(required_unless_present = "matmul")]
    target: Option<String>,
    /// Instead of a model: a product of an M×K with a K×N matrix
    #[arg(long, value_name = "MxKxN", conflicts_with = "target")]
    matmul: Option<String>,
    /// Element type of --matmul
    #[arg(long, value_name = "TYPE", default_value = "bf16", requires = "matmul")]
    dtype: String,
    /// Slices and GPUs, as v2-8,v5e-16,2*v5e-16,v5p:4x4x4,h100,8*h100,cpu [default: a choice of small ones]
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    targets: Vec<String>,
    /// Every slice that has a name, every GPU, and this computer
    #[arg(long, conflicts_with = "targets")]
    all: bool,
    /// Samples in a step of all devices together [default: as in training]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    batch_size: Option<u64>,
    /// float32, mixed_bfloat16 or mixed_float16 [default: as in training]
    #[arg(long, value_name = "POLICY")]
    precision: Option<String>,
    /// Steps of the run
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..), conflicts_with = "epochs")]
    steps: Option<u64>,
    /// Epochs of the run [default: as in training]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    epochs: Option<u64>,
    /// Dollars that the run may cost
    #[arg(long, value_name = "$", value_parser = positive)]
    budget: Option<f64>,
    /// Hours that the run may take
    #[arg(long, value_name = "H", value_parser = positive)]
    deadline: Option<f64>,
    /// Advise by spot prices: capacity that may be taken back at any time
    #[arg(long)]
    spot: bool,
    /// The provider's region, or its beginning [default: the first of each chip's prices]
    #[arg(long, value_name = "R")]
    region: Option<String>,
    /// A TOML file with chips and prices that replace or extend the built-in ones
    #[arg(long, value_name = "FILE")]
    tables: Option<PathBuf>,
    /// Let Google's compiler compile the step for each TPU generation, and take times and memory from its program: some
    /// seconds to a minute for each. Needs libtpu
    #[arg(long)]
    compiled: bool,
    /// How a step is split over the devices: data_parallel (each has all weights) or fully_sharded (each keeps a part of
    /// weights and optimizer state) [default: data_parallel, by a formula]. With --compiled the compiler splits it, for
    /// each slice, and its own collectives count
    #[arg(long, value_name = "STRATEGY", value_parser = ["data_parallel", "fully_sharded"])]
    strategy: Option<String>,
    /// The devices as a box with named axes, for --compiled with --strategy [default: data=N, all of them]
    #[arg(long, value_name = "AXIS=N,…", requires = "compiled", requires = "strategy")]
    mesh: Option<String>,
    /// Each layer: time, use of the matrix units, padding and what would remove it
    #[arg(long)]
    layers: bool,
    /// How each figure came about
    #[arg(long)]
    explain: bool,
    /// Samples a second that the input pipeline of one host makes, where you know it: `systole data bench` tells
    #[arg(long, value_name = "N", value_parser = positive)]
    input_rate: Option<f64>,
    /// Milliseconds in which a host starts a step [default: 0.15, an assumption for Systole through PJRT]
    #[arg(long, value_name = "MS", value_parser = positive)]
    dispatch: Option<f64>,
    /// Write the table as a page
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

impl PlanArgs {
    fn is_fully_sharded(&self) -> bool {
        self.strategy.as_deref() == Some("fully_sharded")
    }
}

fn positive(text: &str) -> Result<f64, String> {
    let value = text.parse::<f64>().ok().filter(|x| *x > 0.0 && x.is_finite());
    value.ok_or_else(|| "must be a number above 0".into())
}

/// Small machines of every kind, for who has not decided.
const USUAL: [&str; 17] = [
    "v2-8",
    "v3-8",
    "v4-8",
    "v5e-1",
    "v5e-4",
    "v5e-16",
    "v5p-8",
    "v6e-1",
    "v6e-4",
    "v6e-16",
    "tpu7x-2x2x1",
    "v100",
    "a100",
    "h100",
    "8*h100",
    "h200",
    "b200",
];

/// A table and the advice.
struct Plan {
    title: String,
    choices: Vec<Choice>,
    /// Machines that cannot run it, and why.
    refused: Vec<(String, String)>,
    advice: Advice,
    steps: Option<f64>,
    wish: Wish,
}

pub(crate) fn run(args: &PlanArgs, screen: &Screen) -> Outcome {
    let tables = tables(args)?;
    let machines = machines(args, &tables).map_err(Failure::usage)?;
    let mut subject = Subject::of(args).map_err(Failure::usage)?;
    let compiler = if args.compiled { Some(Compiler::find()?) } else { None };
    let plan = plan(args, &tables, machines, &mut subject, compiler)?;
    if let Some(path) = &args.html {
        std::fs::write(path, show::html(&plan)).map_err(|e| Error::io("cannot write", path, e))?;
        screen.detail(format!("Written: {}", path.display()));
    }
    match screen.json {
        true => screen.object(&show::json(&plan, args.layers)),
        false => show::text(&plan, args, &tables, screen),
    }
    Ok(0)
}

fn tables(args: &PlanArgs) -> Result<Tables> {
    let Some(path) = &args.tables else { return Tables::built_in() };
    let text = std::fs::read_to_string(path)
        .map_err(|e| Error::io("cannot read", path, e).hint("check the path of the tables"))?;
    Tables::with(&text, &path.display().to_string())
}

fn machines(args: &PlanArgs, tables: &Tables) -> Result<Vec<Machine>> {
    if args.all {
        let slices = Slice::all(tables).into_iter().map(Machine::Slice);
        let gpus = tables.gpus.iter().map(|g| Machine::Gpus(g.clone(), 1));
        return Ok(slices.chain(gpus).chain([this_cpu()?]).collect());
    }
    let named: Vec<&str> = match args.targets.is_empty() {
        true => USUAL.into_iter().chain(["cpu"]).collect(),
        false => args.targets.iter().map(String::as_str).collect(),
    };
    let each = named.into_iter().map(|name| match name.trim().eq_ignore_ascii_case("cpu") {
        true => this_cpu(),
        false => Machine::of(name, tables).map_err(|e| e.at("--targets")),
    });
    each.collect()
}

/// This computer's ceilings are measured: a fifth of a second.
fn this_cpu() -> Result<Machine> {
    let threads = report::threads();
    // Products of tile registers wait for operands: of what the registers alone do, those of 2048 reach a third
    // (docs/log/2026-11-23.md).
    const OF_TILES: f64 = 0.31;
    let peak = systole_cpu::peak(Level::from_knob()?, threads);
    let reached = if peak.level == Level::Amx { OF_TILES } else { 1.0 };
    Ok(Machine::Cpu(Cpu {
        flops: peak.fma_gflops * 1e9,
        bf16_flops: peak.bf16_gflops * reached * 1e9,
        tiers: peak.tiers.iter().map(|t| (t.bytes as f64, t.gb_per_s * 1e9)).collect(),
        threads,
        memory: systole_cpu::available_memory().map_or(f64::INFINITY, |b| b as f64),
    }))
}

fn plan(
    args: &PlanArgs,
    tables: &Tables,
    machines: Vec<Machine>,
    subject: &mut Subject,
    mut compiler: Option<Compiler>,
) -> Result<Plan> {
    let steps = subject.steps(args);
    if let Some(compiler) = &mut compiler {
        compiler.compile_all(args, &machines, subject, tables)?;
    }
    let (mut choices, mut refused) = (Vec::new(), Vec::new());
    for machine in machines {
        match choice(args, tables, machine.clone(), subject, steps, compiler.as_ref()) {
            Ok(choice) => choices.push(choice),
            Err(e) if e.kind() == ErrorKind::Unsupported => {
                refused.push((machine.title(), e.what().to_string()))
            }
            Err(e) => return Err(e.at(machine.title())),
        }
    }
    let wish = Wish { budget: args.budget, deadline: args.deadline, spot: args.spot };
    let advice = advise(&choices, &wish);
    Ok(Plan { title: subject.title(), choices, refused, advice, steps, wish })
}

fn choice(
    args: &PlanArgs,
    tables: &Tables,
    machine: Machine,
    subject: &mut Subject,
    steps: Option<f64>,
    compiler: Option<&Compiler>,
) -> Result<Choice> {
    let mut notes = Vec::new();
    let half = if subject.is_f16() { Half::F16 } else { Half::Bf16 };
    let (share, samples) = subject.share(machine.devices(), &mut notes)?;
    let estimate = match (compiler, &machine) {
        (Some(c), Machine::Slice(slice)) => {
            c.estimate(args, (&share.work, share.batch, samples), &machine, slice, tables, &mut notes)?
        }
        _ if args.is_fully_sharded() => {
            analytic(&share.work, &machine, tables, half)?.fully_sharded(&share.work, &machine, tables)
        }
        _ => analytic(&share.work, &machine, tables, half)?,
    };
    let estimate = estimate.hosted(&machine, args.dispatch.map(|ms| ms / 1e3), args.input_rate, samples);
    notes.extend(subject.host_words(&machine, &estimate));
    let step = estimate.step();
    let run = steps.map(|n| [step.low * n, step.likely * n, step.high * n]);
    let (seconds, region) = (run.map(|r| r[1]), args.region.as_deref());
    let billed = machine.billed();
    let bill = billed.and_then(|(chip, n)| bill(tables, chip, n, region, seconds, &show::today()));
    if billed.is_some() && bill.is_none() {
        notes.push("no price in the table".into());
    }
    if bill.as_ref().is_some_and(|b| b.old) {
        notes.push("the price is older than a year".into());
    }
    Ok(Choice { machine, estimate, samples, run, bill, notes })
}
