//! `systole plan`: what machines would need for a training run, before one is rented.

mod args;
mod compiler;
mod show;
mod subject;

use super::common::Common;
use super::outcome::{Failure, Outcome, Run};
use super::report;
use super::screen::Screen;
pub(crate) use args::PlanArgs;
use compiler::Compiler;
use show::Plan;
use subject::Subject;
use systole_cpu::Level;
use systole_ir::{Error, ErrorKind, Result};
use systole_plan::{Choice, Cpu, Half, Machine, Slice, Tables, Wish, advise, analytic, bill};

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

impl Run for PlanArgs {
    fn run(self, _: &Common, screen: &Screen) -> Outcome {
        run(&self, screen)
    }
}

fn run(args: &PlanArgs, screen: &Screen) -> Outcome {
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
