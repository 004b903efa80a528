//! `systole compile`: compiles a training step or a StableHLO file ahead of time for a TPU slice or GPUs that are not
//! attached.

use crate::args::common::CommonArgs;
use crate::args::exit_status::{CommandError, CommandResult, RunCommand};
use crate::models::command_target::{CommandTarget, config_of, set_all, untrained};
use crate::models::program::{self, DimArgs};
use crate::render::screen::{Screen, note, number_of};
use clap::Args;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::time::Duration;
use systole_config::ConfigDraft;
use systole_data::file_system::{OsFileSystem, write_atomically};
use systole_devices::{compile_cache, find_plugin};
use systole_dist::Strategy;
use systole_ir::{Error, ErrorKind, Graph, Mesh, Shardings, err, knobs};
use systole_nn::{Model, Precision, grouped};
use systole_pjrt::{AcceleratorPlatform, AheadCompiler, program_text, spread_text};
use systole_plan::{ChipTables, CollectiveTraffic, Machine, TpuSlice, traffic};
use systole_runtime::{AotCompiler, AotReport, AotRequest, AotTopology, ValueRoles};

#[derive(Args)]
pub(crate) struct CompileArgs {
    /// Preset, TOML file, model file, StableHLO text or bytecode, ONNX or .tflite model
    #[arg(value_name = "PRESET | FILE")]
    program: String,
    /// Compile for a TPU slice (v2-8, v5e:2x2) or GPUs of one machine (8*h100)
    ///
    /// Slices are named as in the cloud or by the chips per axis. GPUs: v100, a100, h100, h200, b200.
    #[arg(long, value_name = "SLICE | GPU")]
    target: String,
    /// Join N equal slices over the data-center network
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    num_slices: u16,
    /// Shard the step [default: data_parallel for several devices]
    #[arg(long, value_name = "STRATEGY", value_parser = ["one_device", "data_parallel", "fully_sharded"])]
    strategy: Option<String>,
    /// Name the axes of the device mesh [default: data=N, all devices]
    ///
    /// The batch is split along the axis `data`, or along the first axis if there is none.
    #[arg(long, value_name = "AXIS=N,…")]
    mesh: Option<String>,
    /// Set the number of devices of a StableHLO file's shardings
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    partitions: Option<u32>,
    /// Set the global batch size over all devices [default: as in training]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    batch_size: Option<u64>,
    /// Set any TOML key, such as biggan.num_D_accumulations=8
    #[arg(long = "set", value_name = "KEY=VALUE")]
    sets: Vec<String>,
    /// Set the precision [default: as in training]
    #[arg(long, value_name = "POLICY", value_parser = clap::builder::PossibleValuesParser::new(Precision::NAMES))]
    precision: Option<String>,
    /// Load this compiler [default: the first found; `systole devices` lists paths]
    #[arg(long, value_name = "FILE")]
    plugin: Option<PathBuf>,
    /// Write the serialized executable, valid for this compiler version and slice only
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,
    /// Write the optimized HLO module (serialized HloModuleProtoWithConfig)
    #[arg(long, value_name = "FILE")]
    save_hlo: Option<PathBuf>,
    /// Compile with fewer optimizations, to check only that it compiles
    ///
    /// Takes a fraction of the time. Memory and speed are then not those of the fully optimized program.
    #[arg(long)]
    quick: bool,
    /// Stop the compiler after S seconds
    #[arg(long, value_name = "S", default_value_t = 600, value_parser = clap::value_parser!(u64).range(1..))]
    time_limit: u64,
    #[command(flatten)]
    dims: DimArgs,
}

impl RunCommand for CompileArgs {
    fn run(self, _: &CommonArgs, screen: &Screen) -> CommandResult {
        let tables = ChipTables::built_in()?;
        let machine = machine(&self, &tables)?;
        let target = machine.ahead(&tables)?;
        let platform =
            if target.gpu.is_some() { AcceleratorPlatform::Cuda } else { AcceleratorPlatform::Tpu };
        // Report errors in the command even if no compiler is installed.
        let step = step(&self, &machine)?;
        let library = find_plugin(platform, self.plugin.as_deref()).require(platform)?;
        screen.detail(format!("compiler: {}", library.display()));
        let request = AotRequest {
            hlo: self.save_hlo.is_some() || step.partitions > 1,
            executable: self.save.is_some(),
            partitions: step.partitions,
            quick: self.quick,
            time_limit: Duration::from_secs(self.time_limit),
            ..AotRequest::new(step.program.as_str(), target.clone())
        };
        let memory_limit = knobs::MEMORY_LIMIT.get_bytes()?.unwrap_or(request.memory_limit);
        let request = AotRequest { memory_limit, ..request };
        let compiler = AheadCompiler::new(library)?;
        let compiler = match compile_cache()? {
            Some(cache) => compiler.with_cache(cache),
            None => compiler,
        };
        let report = compiler.compile_ahead(&request)?;
        for (path, bytes) in [(&self.save, &report.executable), (&self.save_hlo, &report.hlo)] {
            if let Some(path) = path {
                write_atomically(&OsFileSystem, path, &[bytes])?;
            }
        }
        let answer = CompileReport {
            machine: &machine,
            target: &target,
            step: &step,
            traffic: traffic(&report.hlo)?,
            report: &report,
        };
        match screen.json {
            true => screen.object(&answer.object(&self)),
            false => answer.show(self.quick, screen),
        }
        Ok(0)
    }
}

/// Resolves the named slices or GPUs.
fn machine(args: &CompileArgs, tables: &ChipTables) -> CommandResult<Machine> {
    let refused = |e: Error| CommandError::usage(e.at("--target"));
    match Machine::compilable(&args.target, tables).map_err(refused)? {
        Machine::Slice(slice) => {
            let slices = slice.slices * usize::from(args.num_slices);
            Ok(Machine::Slice(TpuSlice { slices, ..slice }))
        }
        machine if args.num_slices == 1 => Ok(machine),
        _ => {
            let e = err!(Config, "only TPUs have slices").at("--num-slices");
            Err(CommandError::usage(e.hint_command("for the GPUs of one machine write --target 8*h100")))
        }
    }
}

/// Program to compile.
struct CompileInput {
    program: String,
    partitions: usize,
    /// Strategy, mesh and global batch size of a sharded training step.
    split: Option<(String, Mesh, usize)>,
}

/// Builds the program: a file's, or a training step with donated state.
fn step(args: &CompileArgs, machine: &Machine) -> CommandResult<CompileInput> {
    let refused = |option: &str, what: &str, hint: &str| {
        CommandError::usage(Error::new(ErrorKind::Config, what).at(option).hint_command(hint))
    };
    let given =
        |list: &[(&'static str, bool)]| list.iter().find(|(_, given)| *given).map(|(option, _)| *option);
    if program::is_program(&args.program) {
        if let Some(option) = given(&[
            ("--batch-size", args.batch_size.is_some()),
            ("--precision", args.precision.is_some()),
            ("--set", !args.sets.is_empty()),
        ]) {
            return Err(refused(
                option,
                "the shapes and types of a StableHLO file are fixed",
                &format!("remove {option}"),
            ));
        }
        if let Some(option) =
            given(&[("--strategy", args.strategy.is_some()), ("--mesh", args.mesh.is_some())])
        {
            let hint = format!("remove {option}; pass the number of devices with --partitions");
            return Err(refused(option, "a StableHLO file contains its own shardings", &hint));
        }
        let program = program::text(&args.program, &args.dims)?;
        return Ok(CompileInput { program, partitions: args.partitions.unwrap_or(1) as usize, split: None });
    }
    if args.partitions.is_some() {
        let hint = "split a model with --strategy and --mesh";
        return Err(refused("--partitions", "--partitions needs a StableHLO file", hint));
    }
    let (mut model, usual) = model(args)?;
    let batch_size = args.batch_size.map_or(usual, |n| n as usize);
    // XLA for GPUs compiles long programs quickly, so it gets the program that runs there.
    let loops = matches!(machine, Machine::Slice(_));
    let (graph, roles) = model.train_program(batch_size, loops)?;
    // All arguments may be donated, as in training.
    let all: Vec<usize> = (0..graph.params.len()).collect();
    let usual = if machine.devices() > 1 { "data_parallel" } else { "one_device" };
    let name = args.strategy.as_deref().unwrap_or(usual);
    let strategy = Strategy::parse(name)?;
    if strategy == Strategy::one_device() {
        if args.mesh.is_some() {
            return Err(refused("--mesh", "a mesh needs several devices", "remove --mesh or --strategy"));
        }
        return Ok(CompileInput { program: program_text(&graph, &all), partitions: 1, split: None });
    }
    let mesh = mesh(args.mesh.as_deref(), machine)?;
    let spread = spread(&strategy, &graph, &roles, &mesh)?;
    let program = spread_text(&graph, &all, &spread);
    Ok(CompileInput { program, partitions: mesh.devices(), split: Some((name.into(), mesh, batch_size)) })
}

/// Shardings of a training step's arrays on a mesh.
pub(crate) fn spread(
    strategy: &Strategy,
    step: &Graph,
    roles: &ValueRoles,
    mesh: &Mesh,
) -> CommandResult<Shardings> {
    let spread = strategy.spread(mesh, step, roles, true)?;
    for (sharding, ty) in spread.params.iter().zip(step.param_types()) {
        sharding.local(mesh, &ty).map_err(|e| {
            let split = err!(Config, "the batch size does not divide evenly over the devices");
            let hint =
                e.hint_text().unwrap_or_default().replace("make the size", "pass a --batch-size that is");
            CommandError::usage(split.because(e.what()).at(format!("the mesh {mesh}")).hint_command(hint))
        })?;
    }
    Ok(spread)
}

/// Parses the mesh and checks its size; without one, puts all devices on one axis.
pub(crate) fn mesh(text: Option<&str>, machine: &Machine) -> CommandResult<Mesh> {
    let devices = machine.devices();
    let Some(text) = text else { return Ok(Mesh::new([("data", devices)])?) };
    let mesh: Mesh = text.parse().map_err(|e: Error| CommandError::usage(e.at("--mesh")))?;
    let wrong = |what: String, hint: String| {
        Err(CommandError::usage(Error::new(ErrorKind::Config, what).at("--mesh").hint_command(hint)))
    };
    let wanted = mesh.devices();
    if wanted > devices {
        let what = format!(
            "the mesh {mesh} needs {}, but {} has only {devices}",
            number_of(wanted, "device"),
            machine.title()
        );
        return wrong(what, "choose a larger target or a smaller mesh".into());
    }
    let slices = if let Machine::Slice(slice) = machine { slice.slices } else { 1 };
    if slices > 1 && wanted < devices {
        let wanted = number_of(wanted, "device");
        let what = format!("the mesh {mesh} has {wanted}, but the slices have {devices}");
        return wrong(what, "use all devices: a mesh over several slices must cover them".into());
    }
    Ok(mesh)
}

/// Returns the model and its training batch size.
fn model(args: &CompileArgs) -> CommandResult<(Model, usize)> {
    let target = CommandTarget::of(&args.program)?;
    let mut draft = match &target {
        CommandTarget::Preset(name) => ConfigDraft::preset(name)?,
        CommandTarget::Toml(path) => ConfigDraft::read(path)?,
        CommandTarget::Model(_) | CommandTarget::Folder(_) => return saved_model(&target, args),
    };
    if let Some(precision) = &args.precision {
        draft.set(format!("--precision {precision}"), "compile.precision", precision.as_str());
    }
    set_all(&mut draft, &args.sets)?;
    let config = draft.finish()?;
    Ok((untrained(&config)?, config.fit.batch_size))
}

/// Loads a saved model, whose precision and settings are fixed.
/// Batch size of a model without a training configuration.
const USUAL_BATCH_SIZE: usize = 32;

fn saved_model(target: &CommandTarget, args: &CompileArgs) -> CommandResult<(Model, usize)> {
    if args.precision.is_some() {
        let e = err!(Config, "the precision of a saved model cannot be changed").at("--precision");
        return Err(CommandError::usage(
            e.hint_command("remove the precision option, or name a preset or a TOML file"),
        ));
    }
    if let Some(set) = args.sets.first() {
        let e = err!(Config, "the training step of a saved model cannot be changed");
        return Err(CommandError::usage(
            e.at(format!("--set {set}")).hint_command("name a preset or a TOML file"),
        ));
    }
    let model = target.model()?;
    let stored = config_of(&model, &args.program)?.map(|config| config.fit.batch_size);
    if stored.is_none() && args.batch_size.is_none() {
        note(&format!(
            "the batch size is {USUAL_BATCH_SIZE}: the model states none; set another with --batch-size"
        ));
    }
    Ok((model, stored.unwrap_or(USUAL_BATCH_SIZE)))
}

/// Product name of the slice or GPU, if it differs from the target name.
fn product<'a>(machine: &'a Machine, target: &AotTopology) -> Option<&'a str> {
    match machine {
        Machine::Slice(slice) => Some(slice.name.as_str()).filter(|name| *name != target.topology),
        Machine::Gpus(gpu, _) => Some(&gpu.product),
        Machine::Cpu(_) => None,
    }
}

/// Report of a compilation.
struct CompileReport<'a> {
    machine: &'a Machine,
    target: &'a AotTopology,
    step: &'a CompileInput,
    traffic: Vec<CollectiveTraffic>,
    report: &'a AotReport,
}

impl CompileReport<'_> {
    fn object(&self, args: &CompileArgs) -> Value {
        let r = self.report;
        let m = &r.memory;
        let told = |bytes: u64| Some(bytes).filter(|n| *n > 0);
        let collective = |t: &CollectiveTraffic| json!({"op": t.op, "count": t.count, "bytes": t.bytes});
        let split = self.step.split.as_ref();
        json!({
            "program": args.program, "precision": args.precision, "target": self.target.to_string(),
            "product": product(self.machine, self.target), "chips": self.machine.billed().map(|b| b.1), "devices": r.devices, "device_kind": r.device_kind,
            "strategy": split.map(|s| &s.0), "mesh": split.map(|s| s.1.to_string()),
            "batch_size": split.map(|s| s.2), "partitions": self.step.partitions,
            "compiler": r.compiler, "library": r.library,
            "quick": args.quick, "compile_s": r.seconds, "from_cache": r.cached, "compiler_memory_bytes": r.compiler_memory,
            "memory_bytes": {
                "need": m.need(), "limit": self.limit(), "arguments": m.arguments, "outputs": m.outputs,
                "aliased": m.aliased, "temporaries": m.temporaries, "code": told(m.code), "peak": m.peak,
            },
            "fits": self.limit().map(|limit| m.need() <= limit),
            "flops": r.cost.get("flops"), "bytes_accessed": r.cost.get("bytes accessed"),
            "collectives": self.traffic.iter().map(collective).collect::<Vec<_>>(),
        })
    }

    /// Memory of a device in bytes, from the compiler or otherwise from the GPU table.
    fn limit(&self) -> Option<u64> {
        let Machine::Gpus(gpu, _) = self.machine else { return self.report.memory_limit };
        self.report.memory_limit.or(gpu.target.as_ref().map(|t| t.memory))
    }

    fn show(&self, quick: bool, screen: &Screen) {
        let r = self.report;
        let m = &r.memory;
        let name = product(self.machine, self.target).map_or(String::new(), |p| format!(", product {p}"));
        let target = self.target;
        let devices = number_of(r.devices, "device");
        screen.line(format!("compiled for {target}{name}: {devices} of {}", r.device_kind));
        let by = r.compiler.lines().next().unwrap_or("an unknown compiler");
        let cached = if r.cached { "from the cache, originally " } else { "" };
        screen.line(format!("  {cached}in {:.1} s, by {by}", r.seconds));
        if quick {
            screen
                .line("  compiled with fewer optimizations (--quick): the figures are not those of the optimized program");
        }
        if let Some((strategy, mesh, batch)) = &self.step.split {
            let batch = format!("{} per step over all devices", number_of(batch, "sample"));
            screen.line(format!("strategy {strategy} over {mesh}: {batch}"));
        }
        screen.line("per device:");
        let of = self.limit().map_or(String::new(), |limit| format!(" of {}", mib(limit as f64)));
        screen.line(format!("  memory     {}{of}", mib(m.need() as f64)));
        for (what, bytes) in
            [("arguments", m.arguments), ("results", m.results()), ("temporaries", m.temporaries)]
        {
            screen.line(format!("    {what:<12} {}", mib(bytes as f64)));
        }
        // The CUDA plugin does not report it.
        if m.code > 0 {
            screen.line(format!("    {:<12} {}", "code", mib(m.code as f64)));
        }
        if let Some(flops) = r.cost.get("flops") {
            screen.line(format!("  arithmetic {} MFLOP per step", grouped((flops / 1e6).round() as u64)));
        }
        for t in &self.traffic {
            screen.line(format!("  {:<18} {}, {} in total", t.op, t.count, mib(t.bytes)));
        }
        screen.detail(match self.machine {
            Machine::Gpus(..) => "compiled by XLA:GPU and not run: no GPU was needed",
            _ => "compiled by Google's compiler and not run: no TPU was needed",
        });
    }
}

fn mib(bytes: f64) -> String {
    format!("{:.1} MiB", bytes / f64::from(1 << 20))
}
