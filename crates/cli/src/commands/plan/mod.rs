//! `systole plan`: estimates memory, time and cost of a training run on TPU slices, GPUs and this computer.

mod args;
mod compiler_estimates;
mod html_page;
mod json;
mod local_machine;
mod planned_program;
mod text_table;

use crate::args::common::CommonArgs;
use crate::args::exit_status::{CommandError, CommandResult, RunCommand};
use crate::render::screen::{Screen, number_of};
pub(crate) use args::PlanArgs;
use compiler_estimates::CompilerEstimates;
use local_machine::{this_cpu, tried};
use planned_program::PlannedProgram;
use std::path::Path;
use systole_data::clock::today;
use systole_ir::{DType, Error, ErrorKind, Result, err};
use systole_plan::{
    Advice, ChipTables, Energy, Estimate, HalfType, KernelList, Machine, MachineChoice, PlanLimits, Price,
    TpuSlice, advise, analytic, bill, regions,
};
use text_table::PlanTable;

impl RunCommand for PlanArgs {
    fn run(self, _: &CommonArgs, screen: &Screen) -> CommandResult {
        let tables = tables(self.tables.as_deref())?;
        let machines = machines(&self, &tables).map_err(CommandError::usage)?;
        // An unreadable file is a data error, not a wrong argument.
        let is_there = self.target.as_ref().is_some_and(|name| Path::new(name).exists());
        let of_file = |e: &Error| is_there && [ErrorKind::Data, ErrorKind::Io].contains(&e.kind());
        let refused = |e| if of_file(&e) { CommandError::from(e) } else { CommandError::usage(e) };
        let mut subject = PlannedProgram::of(&self).map_err(refused)?;
        let compiler = if self.compiled { Some(CompilerEstimates::find()?) } else { None };
        let plan = plan(&self, &tables, machines, &mut subject, compiler)?;
        if let Some(path) = &self.html {
            std::fs::write(path, html_page::html(&plan, &tables))
                .map_err(|e| Error::io("cannot write", path, e))?;
            screen.detail(format!("Wrote {}", path.display()));
        }
        match screen.json {
            true => screen.object(&json::json(&plan, self.layers)),
            false => text_table::text(&plan, &self, &tables, screen),
        }
        Ok(0)
    }
}

/// Loads the built-in tables, overlaid with the user's file.
pub(crate) fn tables(path: Option<&Path>) -> Result<ChipTables> {
    let Some(path) = path else { return ChipTables::built_in() };
    let text = std::fs::read_to_string(path)
        .map_err(|e| Error::io("cannot read", path, e).hint("check the path of the table file"))?;
    ChipTables::with(&text, &path.display().to_string())
}

fn machines(args: &PlanArgs, tables: &ChipTables) -> Result<Vec<Machine>> {
    if args.all {
        let slices = TpuSlice::all(tables).into_iter().map(Machine::Slice);
        let gpus = tables.gpus.iter().map(|g| Machine::Gpus(g.clone(), 1));
        return Ok(slices.chain(gpus).chain([this_cpu()?]).collect());
    }
    let named: Vec<&str> = match args.targets.is_empty() {
        true => tables.usual().chain(["cpu"]).collect(),
        false => args.targets.iter().map(String::as_str).collect(),
    };
    let each = named.into_iter().map(|name| match name.trim().eq_ignore_ascii_case("cpu") {
        true => this_cpu(),
        false => {
            elsewhere(name).map_or_else(|| Machine::of(name, tables), Err).map_err(|e| e.at("--targets"))
        }
    });
    each.collect()
}

/// Returns an error for inference-only chips, with a hint to the matching command.
fn elsewhere(name: &str) -> Option<Error> {
    let told = |chip: &str, hint: &str| {
        Some(err!(Config, "`{name}` is {chip}, an int8 inference chip that cannot train").hint_command(hint))
    };
    match name.trim().to_lowercase().as_str() {
        "v1" | "tpu1" | "tpu-v1" | "tpuv1" => told(
            "the first TPU",
            "simulate it with `systole tpu1 FILE.tflite`; create the file with `systole quantize MODEL --per tensor --out FILE.tflite`",
        ),
        "edgetpu" | "edge-tpu" | "coral" => told(
            "the Edge TPU",
            "export for its compiler with `systole export MODEL --format tflite --int8 --target edgetpu --out FILE.tflite`",
        ),
        _ => None,
    }
}

fn plan(
    args: &PlanArgs,
    tables: &ChipTables,
    machines: Vec<Machine>,
    subject: &mut PlannedProgram,
    mut compiler: Option<CompilerEstimates>,
) -> Result<PlanTable> {
    let length = subject.length(args);
    let steps = length.as_ref().map(|l| l.steps);
    if let Some(compiler) = &mut compiler {
        compiler.compile_all(args, &machines, subject, tables)?;
    }
    let (mut choices, mut refused) = (Vec::new(), Vec::new());
    let smallest = machines.iter().min_by_key(|m| m.devices()).cloned();
    for machine in machines {
        match choice(args, tables, machine.clone(), subject, steps, compiler.as_ref()) {
            Ok(choice) => choices.push(choice),
            Err(e) if e.kind() == ErrorKind::Unsupported => {
                refused.push((machine.title(), e.what().to_string()))
            }
            Err(e) => return Err(e.at(machine.title())),
        }
    }
    let wish = PlanLimits { budget: args.budget, deadline: args.deadline, spot: args.spot };
    let advice = match (choices.is_empty(), &smallest, subject.step()) {
        (true, Some(smallest), Some((_, batch))) => too_many_devices(batch, smallest),
        _ => advise(&choices, &wish),
    };
    let energy = choices.iter().map(|c| Energy::of(c, tables)).collect();
    Ok(PlanTable { title: subject.title(), choices, energy, refused, advice, length, wish })
}

/// Advice if no machine can split the batch: each device needs a sample.
fn too_many_devices(batch: usize, smallest: &Machine) -> Advice {
    let n = smallest.devices();
    let reason = format!(
        "no machine can run a batch of {batch}: even the smallest, {}, has {n} devices, and each needs a sample. \
         Pass --batch-size {n} or a multiple of it, or choose a smaller slice",
        smallest.title()
    );
    Advice { choice: None, reasons: vec![reason] }
}

fn choice(
    args: &PlanArgs,
    tables: &ChipTables,
    machine: Machine,
    subject: &mut PlannedProgram,
    steps: Option<f64>,
    compiler: Option<&CompilerEstimates>,
) -> Result<MachineChoice> {
    let mut notes = Vec::new();
    let half = if subject.is_f16() { HalfType::F16 } else { HalfType::Bf16 };
    let subject_is_step = subject.step().is_some();
    let (share, samples) = subject.share(machine.devices(), &mut notes)?;
    notes.extend(arithmetic_notes(&machine, &share.work, subject_is_step));
    notes.extend(loop_note(share.work.unknown_loops).filter(|_| compiler.is_none()));
    let estimate = match (compiler, &machine) {
        (Some(c), Machine::Slice(slice)) => {
            c.estimate(args, (&share.work, share.batch, samples), &machine, slice, tables, &mut notes)?
        }
        _ if args.is_fully_sharded() => {
            analytic(&share.work, &machine, tables, half)?.fully_sharded(&share.work, &machine, tables)
        }
        _ => analytic(&share.work, &machine, tables, half)?,
    };
    let estimate = match &machine {
        Machine::Cpu(_) => on_this_cpu(subject, estimate, &mut notes),
        _ => estimate.hosted(&machine, args.dispatch.map(|ms| ms / 1e3), args.input_rate, samples),
    };
    notes.extend(subject.host_words(&machine, &estimate));
    let step = estimate.step();
    let run = steps.map(|n| [step.low * n, step.likely * n, step.high * n]);
    let (seconds, region) = (run.map(|r| r[1]), args.region.as_deref());
    let billed = machine.billed();
    let bill = billed.and_then(|(chip, n)| bill(tables, chip, n, region, seconds, &today()));
    match (&bill, billed) {
        (Some(b), _) => notes.extend(price_notes(&b.price, b.old, args.spot && b.spot_per_hour.is_none())),
        (None, Some((chip, _))) => notes.push(no_price(tables, chip, region)),
        (None, None) => {}
    }
    Ok(MachineChoice { machine, estimate, samples, run, bill, notes })
}

/// Times a short step on this computer; otherwise keeps the estimate.
fn on_this_cpu(subject: &PlannedProgram, estimate: Estimate, notes: &mut Vec<String>) -> Estimate {
    let Some((config, batch)) = subject.step() else { return estimate };
    match tried(config, batch, &estimate) {
        Ok(Some(range)) => {
            notes.push("measured now on a random batch: median (fastest to slowest)".into());
            estimate.measured(range)
        }
        Ok(None) => estimate,
        Err(e) => {
            notes.push(format!("estimated, because a trial step failed: {}", e.what()));
            estimate
        }
    }
}

/// Note on loops whose length depends on values.
fn loop_note(loops: usize) -> Option<String> {
    (loops > 0).then(|| {
        format!(
            "the number of iterations of {} is unknown: each counts as one iteration, so the time is a lower bound",
            number_of(loops, "loop")
        )
    })
}

fn multiplies(work: &KernelList, dtype: DType) -> bool {
    work.kernels.iter().filter_map(|k| k.product.as_ref()).any(|p| p.dtype == dtype)
}

/// Notes on products that a machine computes in another element type than the program's. `is_step`: whether
/// `--precision` chooses the type.
fn arithmetic_notes(machine: &Machine, work: &KernelList, is_step: bool) -> Vec<String> {
    let mut notes = Vec::new();
    let chosen = |f16: bool| match (is_step, f16) {
        (true, true) => "--precision mixed_float16",
        (true, false) => "--precision mixed_bfloat16",
        (false, true) => "f16",
        (false, false) => "bf16",
    };
    if multiplies(work, DType::I8) {
        notes.push("products of int8 are planned at the rate of 16-bit products".into());
    }
    let halves = [(DType::BF16, "bf16"), (DType::F16, "f16")];
    for (dtype, name) in halves.into_iter().filter(|(dtype, _)| multiplies(work, *dtype)) {
        match machine {
            Machine::Slice(_) if dtype == DType::F16 => notes.push(
                "TPUs do not multiply f16: the compiler converts it first, so bf16 is never slower".into(),
            ),
            Machine::Gpus(gpu, _) => {
                let rate = |name: &str| gpu.peak_tflops.get(name).copied().unwrap_or(0.0);
                let (own, f32) = (rate(name), rate("f32"));
                if own > f32 {
                    continue;
                }
                let other = if dtype == DType::BF16 { "f16" } else { "bf16" };
                let faster = match rate(other) > f32 {
                    true => format!(
                        "; {} uses its {other} units ({} TFLOP/s)",
                        chosen(other == "f16"),
                        rate(other)
                    ),
                    false => String::new(),
                };
                notes.push(format!("no {name} units: planned as f32 at {f32} TFLOP/s{faster}"));
            }
            Machine::Cpu(cpu) if dtype == DType::F16 || cpu.bf16_flops <= cpu.flops => {
                notes.push(format!("no {name} units: planned as f32"));
            }
            Machine::Slice(_) | Machine::Cpu(_) => {}
        }
    }
    notes
}

fn price_notes(price: &Price, old: bool, no_spot: bool) -> Vec<String> {
    let mut notes = Vec::new();
    if old {
        notes.push(format!("the price is older than one year ({})", price.date));
    }
    if no_spot {
        notes.push("no spot price is known: using the on-demand price".into());
    }
    if let Some(vm) = price.node_vm {
        notes.push(format!(
            "tutorials of that time rented an additional VM for ${vm:.2}/h; a current TPU VM includes its host"
        ));
    }
    notes
}

fn no_price(tables: &ChipTables, chip: &str, region: Option<&str>) -> String {
    match (region, regions(tables, chip)) {
        (Some(r), known) if !known.is_empty() => {
            format!("no price for the region {r} in the table; it has {}", known.join(", "))
        }
        _ => "no price in the table (add one with --tables FILE)".into(),
    }
}
