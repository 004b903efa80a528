//! `systole compile`: a training step, or any StableHLO file, through the compiler of a machine that is not here.

use super::screen::Screen;
use super::target::{Target, config_of};
use super::{Failure, Outcome};
use clap::Args;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::time::Duration;
use systole::config::Draft;
use systole::devices::find_plugin;
use systole_data::disk::{Disk, write_atomically};
use systole_ir::{Error, ErrorKind, knobs};
use systole_nn::{Model, Precision, grouped};
use systole_pjrt::{Platform, TpuCompiler, program_text};
use systole_plan::{Slice, Tables};
use systole_runtime::{AheadOfTime, AheadReport, AheadRequest};

#[derive(Args)]
pub(crate) struct CompileArgs {
    /// A preset, a TOML file, a model file, or a StableHLO file (`.mlir`)
    #[arg(value_name = "PRESET | FILE")]
    program: String,
    /// The TPU slice: a cloud's name (v2-8, v5litepod-16, v6e-256), or chips along the axes (v5e:2x2)
    #[arg(long, value_name = "SLICE")]
    target: String,
    /// So many equal slices, joined by the data centre's network
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    num_slices: u16,
    /// Devices that a StableHLO file's annotations split its arrays over
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    partitions: u32,
    /// Samples in a step [default: as in training]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    batch_size: Option<u64>,
    /// float32, mixed_bfloat16 or mixed_float16 [default: as in training]
    #[arg(long, value_name = "POLICY", value_parser = clap::builder::PossibleValuesParser::new(Precision::NAMES))]
    precision: Option<String>,
    /// The compiler's library [default: the first that is found; `systole devices` shows where]
    #[arg(long, value_name = "FILE")]
    plugin: Option<PathBuf>,
    /// Write the serialized executable to a file; it is for this very compiler and slice
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,
    /// Write the compiler's optimized program (a serialized HloModuleProtoWithConfig) to a file
    #[arg(long, value_name = "FILE")]
    save_hlo: Option<PathBuf>,
    /// Only see whether it compiles: the compiler optimizes less and takes a fraction of the time. Memory and speed are
    /// then not those of the program that would run
    #[arg(long)]
    quick: bool,
    /// Seconds that the compiler may take
    #[arg(long, value_name = "S", default_value_t = 600, value_parser = clap::value_parser!(u64).range(1..))]
    time_limit: u64,
}

pub(crate) fn run(args: &CompileArgs, screen: &Screen) -> Outcome {
    let tables = Tables::built_in()?;
    let slice = Slice::compilable(&args.target, &tables).map_err(|e| Failure::usage(e.at("--target")))?;
    let slice = Slice { slices: slice.slices * usize::from(args.num_slices), ..slice };
    let search = find_plugin(Platform::Tpu, args.plugin.as_deref());
    let library = search.require(Platform::Tpu)?;
    screen.detail(format!("compiler: {}", library.display()));
    let program = program(args)?;
    let request = AheadRequest {
        hlo: args.save_hlo.is_some(),
        executable: args.save.is_some(),
        partitions: args.partitions as usize,
        quick: args.quick,
        time_limit: Duration::from_secs(args.time_limit),
        ..AheadRequest::new(program, slice.ahead(&tables))
    };
    let memory_limit = knobs::MEMORY_LIMIT.get_bytes()?.unwrap_or(request.memory_limit);
    let request = AheadRequest { memory_limit, ..request };
    let report = TpuCompiler::new(library)?.compile_ahead(&request)?;
    for (path, bytes) in [(&args.save, &report.executable), (&args.save_hlo, &report.hlo)] {
        if let Some(path) = path {
            write_atomically(&Disk, path, &[bytes])?;
        }
    }
    match screen.json {
        true => screen.object(&object(args, &slice, &tables, &report)),
        false => show(args, &slice, &tables, &report, screen),
    }
    Ok(0)
}

/// The text to compile: a file's, or a training step's with its state donated.
fn program(args: &CompileArgs) -> Result<String, Failure> {
    if Path::new(&args.program).extension().is_some_and(|e| e == "mlir") {
        let given = [("--batch-size", args.batch_size.is_some()), ("--precision", args.precision.is_some())];
        if let Some((option, _)) = given.into_iter().find(|(_, given)| *given) {
            let e = Error::new(ErrorKind::Config, "a StableHLO file has its shapes and types already");
            return Err(Failure::usage(e.at(option).hint("leave the option out")));
        }
        let text = std::fs::read_to_string(&args.program);
        return Ok(text.map_err(|e| Error::io("cannot read", &args.program, e))?);
    }
    let (mut model, usual) = model(args)?;
    let batch_size = args.batch_size.map_or(usual, |n| n as usize);
    let graph = model.train_graph_in_loops(batch_size)?;
    // As training compiles it: every argument may be given away.
    let all: Vec<usize> = (0..graph.params.len()).collect();
    Ok(program_text(&graph, &all))
}

/// The model, and the batch size that it is trained with.
fn model(args: &CompileArgs) -> Result<(Model, usize), Failure> {
    let target = Target::of(&args.program)?;
    let mut draft = match &target {
        Target::Preset(name) => Draft::preset(name)?,
        Target::Toml(path) => Draft::read(path)?,
        Target::Model(_) | Target::Folder(_) => return saved_model(&target, args),
    };
    if let Some(precision) = &args.precision {
        draft.set(format!("--precision {precision}"), "compile.precision", precision.as_str());
    }
    let config = draft.finish()?;
    Ok((config.untrained()?, config.fit.batch_size))
}

/// A saved model has its precision already.
fn saved_model(target: &Target, args: &CompileArgs) -> Result<(Model, usize), Failure> {
    if args.precision.is_some() {
        let e = Error::new(ErrorKind::Config, "a saved model has its precision already").at("--precision");
        return Err(Failure::usage(e.hint("leave the option out, or name a preset or a TOML file")));
    }
    let model = target.model()?;
    let batch_size = config_of(&model, &args.program)?.map_or(32, |c| c.fit.batch_size);
    Ok((model, batch_size))
}

/// The clouds' name of a slice that they sell.
fn product<'a>(slice: &'a Slice, tables: &Tables) -> Option<&'a str> {
    Some(slice.name.as_str()).filter(|name| *name != slice.libtpu(tables))
}

fn object(args: &CompileArgs, slice: &Slice, tables: &Tables, r: &AheadReport) -> Value {
    let m = &r.memory;
    json!({
        "program": args.program, "precision": args.precision, "target": slice.ahead(tables).to_string(),
        "product": product(slice, tables), "chips": slice.all_chips(), "devices": r.devices, "device_kind": r.device_kind,
        "compiler": r.compiler, "library": r.library,
        "quick": args.quick, "compile_s": r.seconds, "compiler_memory_bytes": r.compiler_memory,
        "memory_bytes": {
            "need": m.need(), "limit": r.memory_limit, "arguments": m.arguments, "outputs": m.outputs,
            "aliased": m.aliased, "temporaries": m.temporaries, "code": m.code, "peak": m.peak,
        },
        "fits": r.memory_limit.map(|limit| m.need() <= limit),
        "flops": r.cost.get("flops"), "bytes_accessed": r.cost.get("bytes accessed"),
    })
}

fn show(args: &CompileArgs, slice: &Slice, tables: &Tables, r: &AheadReport, screen: &Screen) {
    let m = &r.memory;
    let mib = |bytes: u64| format!("{:.1} MiB", bytes as f64 / (1 << 20) as f64);
    let name = product(slice, tables).map_or(String::new(), |p| format!(", sold as {p}"));
    let slice = slice.ahead(tables);
    screen.line(format!("compiled for {slice}{name}: {} devices of {}", r.devices, r.device_kind));
    screen.line(format!(
        "  in {:.1} s, by {}",
        r.seconds,
        r.compiler.lines().next().unwrap_or("its compiler")
    ));
    if args.quick {
        screen.line("  optimized less (--quick): these are not the figures of the program that would run");
    }
    screen.line("each device:");
    let of = r.memory_limit.map_or(String::new(), |limit| format!(" of {}", mib(limit)));
    screen.line(format!("  memory     {}{of}", mib(m.need())));
    for (what, bytes) in [
        ("arguments", m.arguments),
        ("results", m.results()),
        ("temporaries", m.temporaries),
        ("code", m.code),
    ] {
        screen.line(format!("    {what:<12} {}", mib(bytes)));
    }
    if let Some(flops) = r.cost.get("flops") {
        screen.line(format!("  arithmetic {} MFLOP a step", grouped((flops / 1e6).round() as u64)));
    }
    screen.detail("compiled by Google's compiler, not run: no TPU was needed");
}
