//! Compiles programs: StableHLO text (Systole's or external) and bytecode, for one or several devices; also returns the
//! code of compiled programs.

use crate::annotations::ShardingAnnotations;
use crate::buffer_type::{BufferType, ProgramSignature};
use crate::call::{ApiCall, CallError, CallResult, chars, handle, list, seen};
use crate::device::{LogicalDevice, PluginClient, PluginTopology};
use crate::executable::{CompiledProgram, PluginExecutable, ProgramEngine, ProgramMemory};
use crate::executable_info::{ExecutableFacts, ExecutableInfo};
use crate::ffi::FfiCallSites;
use crate::host_callbacks::{PythonFunctions, report_sharding};
use crate::options::CompileSettings;
use crate::profiler::module_of;
use crate::serialized::SerializedSource;
use crate::signals::check_fork;
use crate::{annotations, layout};
use std::ops::Range;
use std::sync::{Arc, OnceLock};
use systole_cpu::with_subnormals;
use systole_dist::{DeviceOwnership, SimulatedMesh, partition};
use systole_ir::op::DeviceCounts;
use systole_ir::rng::fnv1a;
use systole_ir::{Graph, Op, TensorType, cost, text};
use systole_mlir::device_sharding::DeviceSharding;
use systole_mlir::import;
use systole_mlir::import::effects::contains;
use systole_mlir::interface::{ProgramInterface, ProgramPort};
use systole_mlir::syntax::{Attribute, MlirFunction, MlirModule, Operation};
use systole_pjrt::sys::{self, OpaquePtr};
use systole_pjrt::with_layers;
use systole_runtime::{Backend, CompileOptions};

/// Magic number of MLIR bytecode.
const BYTECODE: &[u8] = b"ML\xefR";

/// Programs with more operations or bytes of results than these, about 100 µs, run asynchronously on a separate thread:
/// waking it and the caller takes 50 µs.
const LITTLE_FLOPS: f64 = 2e7;
const LITTLE_BYTES: f64 = 1e7;

/// A parsed program.
enum ProgramSource {
    /// Systole's own text: its mesh determines each device's shards.
    Own(Box<text::StableHloProgram>),
    Other(Box<MlirModule>),
}

/// Parses text or bytecode.
fn parse(code: &[u8]) -> CallResult<ProgramSource> {
    if code.starts_with(BYTECODE) {
        return Ok(ProgramSource::Other(Box::new(systole_bytecode::parse(code)?)));
    }
    let text = std::str::from_utf8(code).map_err(|_| {
        CallError::invalid("the program is neither StableHLO text nor bytecode (a portable artifact)")
    })?;
    if text.starts_with("ML\u{ef}R") {
        return Err(CallError::invalid("the program is bytecode, but was passed as text"));
    }
    match text::parse_program(text) {
        Ok(mut program) => {
            program.graph = Arc::new(with_layers(Arc::unwrap_or_clone(program.graph), text));
            Ok(ProgramSource::Own(Box::new(program)))
        }
        // Text entirely in generic form is assumed to be Systole's.
        Err(e) if is_ours(text) => Err(e.into()),
        Err(_) => Ok(ProgramSource::Other(Box::new(systole_mlir::text::parse(text)?))),
    }
}

/// Whether text that does not parse is assumed to be Systole's: it is in generic form, or not MLIR.
fn is_ours(text: &str) -> bool {
    let generic = text.contains("\"stablehlo.") && !text.contains(" stablehlo.");
    generic || !text.contains("func")
}

/// Returns which parts of a program this process's devices run.
fn own_parts(assigned: &[OpaquePtr]) -> CallResult<Range<usize>> {
    // SAFETY: pointers to devices, which the client owns.
    let local =
        |device: &OpaquePtr| Ok::<_, CallError>(unsafe { seen::<LogicalDevice>(*device)? }.is_local());
    let local = assigned.iter().map(local).collect::<Result<Vec<bool>, _>>()?;
    let first = local.iter().position(|l| *l);
    let first =
        first.ok_or_else(|| CallError::invalid("none of the program's devices belongs to this process"))?;
    let own = first..first + local[first..].iter().take_while(|l| **l).count();
    match local[own.end..].contains(&true) {
        true => Err(CallError::unimplemented(
            "the devices of a process must be consecutive in the program: create the mesh in the order of jax.devices()",
        )),
        false => Ok(own),
    }
}

/// Checks that a program on devices of several processes has devices of all of them, in order.
fn check_processes(assigned: &[OpaquePtr], processes: usize) -> CallResult {
    // SAFETY: pointers to devices, which the client owns.
    let process = |device: &OpaquePtr| Ok::<_, CallError>(unsafe { seen::<LogicalDevice>(*device)? }.process);
    let mut owners = assigned.iter().map(process).collect::<Result<Vec<i32>, _>>()?;
    owners.dedup();
    if owners.iter().copied().eq(0..processes as i32) {
        return Ok(());
    }
    Err(CallError::unimplemented(format!(
        "a program runs on devices of one process, or of all {processes} processes in their order; \
         this one runs on processes {owners:?}. Create the mesh from jax.local_devices(), or from devices of every \
         process in the order of jax.devices()"
    )))
}

/// Devices that run a program.
struct DeviceAssignment {
    ids: Vec<i32>,
    /// Devices of all processes.
    assigned: Vec<OpaquePtr>,
    /// Range of this process's devices.
    own: Range<usize>,
}

impl DeviceAssignment {
    fn new(client: &PluginClient, options: &CompileSettings, wanted: usize) -> CallResult<DeviceAssignment> {
        if wanted > client.count() {
            let what = format!("the program requires {wanted} devices, the client has {}", client.count());
            return Err(CallError::invalid(what));
        }
        // A single-device program runs separately in each process.
        let first = if wanted == 1 { client.local.start } else { 0 };
        let ids = options.devices(wanted, first)?;
        let assigned = ids.iter().map(|id| client.device(*id)).collect::<Result<Vec<_>, _>>()?;
        let own = own_parts(&assigned)?;
        if own.len() < assigned.len() {
            check_processes(&assigned, client.processes())?;
        }
        Ok(DeviceAssignment { ids, assigned, own })
    }

    fn team(&self, client: &PluginClient, devices: DeviceCounts) -> DeviceOwnership {
        match &client.line {
            Some(line) if self.own.len() < self.assigned.len() => {
                DeviceOwnership::of(devices, self.own.clone(), line.clone())
            }
            _ => DeviceOwnership::alone(devices),
        }
    }
}

/// A program before it is compiled.
struct ProgramParts {
    engine: ProgramEngine,
    graph: Arc<Graph>,
    signature: ProgramSignature,
    memory: ProgramMemory,
    is_foreign: bool,
}

/// Compiles a program. Threads on which JAX compiles flush subnormal numbers to zero; constants keep theirs.
fn compile(client: &PluginClient, source: SerializedSource) -> CallResult<CompiledProgram> {
    check_fork()?;
    with_subnormals(|| compile_source(client, source))
}

fn compile_source(client: &PluginClient, source: SerializedSource) -> CallResult<CompiledProgram> {
    let options = CompileSettings::read(&source.options)?;
    let (place, parts) = match parse(&source.code)? {
        ProgramSource::Own(program) => own(client, &options, *program)?,
        ProgramSource::Other(module) => other(client, &options, *module)?,
    };
    let devices = place.assigned[place.own.clone()].to_vec();
    let is_little = |(flops, bytes)| flops <= LITTLE_FLOPS && bytes <= LITTLE_BYTES;
    let is_long = parts.is_foreign && !amount(&parts.graph).is_some_and(is_little);
    let mut key = source.code.clone();
    key.extend_from_slice(&source.options);
    let told = ExecutableInfo::new(ExecutableFacts {
        fingerprint: format!("{:016x}", fnv1a(&key)),
        signature: &parts.signature,
        graph: &parts.graph,
        replicas: options.replicas,
        partitions: options.partitions,
        own: place.own.clone(),
    });
    Ok(CompiledProgram {
        name: parts.graph.name.clone(),
        module: module_of(&source.code),
        engine: parts.engine,
        replicas: options.replicas,
        partitions: options.partitions,
        devices,
        first: place.own.start,
        line: client.line.clone().filter(|_| place.own.len() < place.ids.len()),
        ids: Arc::new(place.ids),
        result_arrays: parts.signature.results.iter().map(|k| k.face.types().len()).collect(),
        queue: Arc::downgrade(&client.queue),
        signature: parts.signature,
        source,
        plain: OnceLock::new(),
        pace: client.pace.clone(),
        is_long,
        memory: parts.memory,
        python: PythonFunctions::of(&parts.graph),
        _ffi: FfiCallSites::of(&parts.graph)?,
        told,
    })
}

/// Returns a program without Shardy ops, as each device runs it; a multi-device one with the attributes that JAX before
/// 0.9 reads for argument and result shardings. `None` if the source has neither.
fn plain(code: &[u8], signature: &ProgramSignature) -> Option<Vec<u8>> {
    let ProgramSignature { argument_tiles: arguments, result_tiles: results, .. } = signature;
    let Ok(ProgramSource::Other(mut module)) = parse(code) else { return None };
    let texts = |all: &[DeviceSharding]| all.iter().map(DeviceSharding::to_text).collect::<Vec<_>>();
    let outs = match texts(results).as_slice() {
        [one] => one.clone(),
        all => format!("{{{}}}", all.join(", ")),
    };
    const INS: &str = "mhlo.spmd_parameters_shardings";
    const OUTS: &str = "mhlo.spmd_output_sharding";
    let had_shardys = annotations::remove(&mut module).ok()?;
    let is_shardys = |op: &Operation| op.name.starts_with("sdy.");
    let has_shardys = |f: &MlirFunction| contains(&module, std::slice::from_ref(&f.body), is_shardys);
    if module.functions.iter().any(has_shardys) {
        let import::ImportedProgram { program, interface, .. } = import::program(&module).ok()?;
        let mut graph = Arc::unwrap_or_clone(program.graph);
        // Without compared arrays and order tokens.
        graph.results.truncate(interface.results.iter().map(|face| face.types().len()).sum());
        let own = text::print_program(&graph, &[], None);
        let head = "module @main ";
        let ins = texts(arguments).iter().map(|t| format!("\"{t}\"")).collect::<Vec<_>>().join(", ");
        let told = format!("attributes {{{INS} = [{ins}], {OUTS} = \"{outs}\"}}");
        return Some(format!("{head}{told} {}", own.strip_prefix(head)?).into());
    }
    let is_alone = results.iter().chain(arguments).all(|t| t.devices() == 1);
    if is_alone && !had_shardys {
        return None;
    }
    if !is_alone {
        let ins = texts(arguments).into_iter().map(Attribute::String).collect();
        module
            .attributes
            .extend([(INS.into(), Attribute::List(ins)), (OUTS.into(), Attribute::String(outs))]);
    }
    Some(systole_mlir::text::write(&module).into_bytes())
}

/// Returns the operations and the bytes of results of all iterations; `None` if a loop has an unknown number of them.
/// Operands do not count: most programs that read large arrays for little work read slices.
fn amount(graph: &Graph) -> Option<(f64, f64)> {
    let (mut flops, mut bytes) = (cost::cost(graph).flops, 0.0);
    for node in graph.nodes.iter().filter(|n| !matches!(n.op, Op::Parameter(_))) {
        // Updates are in place.
        bytes += match &node.op {
            Op::DynamicUpdateSlice(_) => graph.ty(node.inputs[1]).bytes() as f64,
            _ => node.outs.iter().map(TensorType::bytes).sum::<usize>() as f64,
        };
        let Op::While(w) = &node.op else { continue };
        let captured = |i: usize| match &graph.node(node.inputs[i]).op {
            Op::Constant(c) => Some(c.value.get(0).as_i64()),
            _ => None,
        };
        let (own, written) = amount(&w.body)?;
        let trips = match w.trip_count {
            // The cost has all iterations of these.
            Some(trips) => trips as f64,
            None => {
                let trips = w.limit(captured)?.0 as f64;
                flops += trips * own;
                trips
            }
        };
        bytes += trips * written;
    }
    Some((flops, bytes))
}

fn kinds(types: &[TensorType]) -> Result<Vec<Arc<BufferType>>, CallError> {
    types.iter().map(|ty| BufferType::of_type(ty).map(Arc::new)).collect()
}

/// Prepares a program of Systole's own PJRT client; no relaxed precision is allowed.
fn own(
    client: &PluginClient,
    options: &CompileSettings,
    program: text::StableHloProgram,
) -> Result<(DeviceAssignment, ProgramParts), CallError> {
    let text::StableHloProgram { graph, donated, spread } = program;
    let wanted = spread.as_ref().map_or(1, |s| s.mesh.devices());
    if options.replicas != 1 {
        let what = format!("{} replicas: only one is supported", options.replicas);
        return Err(CallError::unimplemented(what));
    }
    if options.partitions != wanted {
        let what = format!("{} partitions do not match a mesh of {wanted} devices", options.partitions);
        return Err(CallError::invalid(what));
    }
    let place = DeviceAssignment::new(client, options, wanted)?;
    let given: Vec<usize> = donated.into_iter().map(|(param, _)| param).collect();
    let compiled = CompileOptions { donated: given.clone(), label: graph.name.clone(), ..Default::default() };
    let (graph, engine, memory) = match &spread {
        None => {
            let program = client.engine.compile(&graph, &compiled)?;
            let memory = ProgramMemory::new(program.report());
            (graph, ProgramEngine::Alone(program), memory)
        }
        Some(spread) => {
            // Donated arguments are returned updated: they are the training state.
            let own = partition(&graph, spread, &given)?;
            let team = place.team(client, DeviceCounts::replicas(wanted));
            let program = SimulatedMesh::compile(&*client.engine, &own, &team, &compiled)?;
            let memory = ProgramMemory::new(program.report());
            (own, ProgramEngine::Each(program), memory)
        }
    };
    let whole =
        |types: &[TensorType]| types.iter().map(|t| DeviceSharding::replicated(t.rank(), wanted)).collect();
    let (params, made) = (graph.param_types(), graph.result_types());
    let signature = ProgramSignature {
        arguments: kinds(&params)?,
        results: kinds(&made)?,
        argument_tiles: whole(&params),
        result_tiles: whole(&made),
        terms: Vec::new(),
        wholes: params.iter().map(|t| vec![t.clone()]).collect(),
        donated: (0..params.len()).map(|i| given.contains(&i)).collect(),
    };
    Ok((place, ProgramParts { engine, graph, signature, memory, is_foreign: false }))
}

/// Types, shardings and donations of an external program.
fn signature_of(
    interface: &ProgramInterface,
    annotated: ShardingAnnotations,
    terms: Vec<bool>,
) -> CallResult<ProgramSignature> {
    let ProgramInterface { arguments, results } = interface;
    let local = |(((face, tiles), mode), memory): (((&ProgramPort, &DeviceSharding), &String), &usize)| {
        let kind = layout::stated(BufferType::new(face.element, &tiles.local(&face.dims)?)?, mode);
        kind.map(|kind| Arc::new(kind.in_memory(*memory)))
    };
    let given = arguments.iter().zip(&annotated.arguments).zip(&annotated.argument_layouts);
    let given = given.zip(&annotated.argument_memories);
    let made = results.iter().zip(&annotated.results).zip(&annotated.result_layouts);
    let made = made.zip(&annotated.result_memories).map(local).zip(&annotated.tokens);
    let or_token = |(kind, is_token): (CallResult<Arc<BufferType>>, &bool)| match is_token {
        true => kind.map(|kind| Arc::new(BufferType::clone(&kind).token())),
        false => kind,
    };
    let given = given.map(local).collect::<CallResult<Vec<Arc<BufferType>>>>()?;
    let made = made.map(or_token).collect::<CallResult<Vec<Arc<BufferType>>>>()?;
    let sizes = |kinds: &[Arc<BufferType>]| kinds.iter().map(|k| k.bytes()).collect::<Vec<usize>>();
    Ok(ProgramSignature {
        donated: annotations::donated(&annotated.donations, &sizes(&given), &sizes(&made)),
        arguments: given,
        results: made,
        wholes: arguments.iter().map(ProgramPort::types).collect(),
        argument_tiles: annotated.arguments,
        result_tiles: annotated.results,
        terms,
    })
}

/// Prepares an external program.
fn other(
    client: &PluginClient,
    options: &CompileSettings,
    mut module: MlirModule,
) -> Result<(DeviceAssignment, ProgramParts), CallError> {
    let wanted = options.count();
    let place = DeviceAssignment::new(client, options, wanted)?;
    let devices = DeviceCounts { replicas: options.replicas, partitions: options.partitions };
    let team = place.team(client, devices);
    let split = if options.replicas == 1 { options.partitions } else { 1 };
    let annotated = annotations::take(&mut module, split, &options.chooses_results)?;
    for (config, sharding) in &annotated.inspections {
        report_sharding(config, sharding)?;
    }
    let import::ImportedProgram { program, interface, terms, .. } =
        import::on_devices(&module, &annotated.results)?;
    let graph = program.graph;
    let signature = signature_of(&interface, annotated, terms)?;
    let arrays = |face: &ProgramPort| face.first..face.first + face.types().len();
    let given = interface.arguments.iter().zip(&signature.donated).filter(|(_, gives)| **gives);
    let compiled = CompileOptions {
        donated: given.flat_map(|(face, _)| arrays(face)).collect(),
        label: graph.name.clone(),
        flush_denormals: options.flush_denormals,
        winograd: options.winograd,
        excess_precision: options.excess_precision,
        contraction: options.contraction,
        ..Default::default()
    };
    let meets = graph.nodes.iter().any(|n| n.op.meets());
    let (engine, memory) = if wanted > 1 && meets {
        let program = SimulatedMesh::compile(&*client.engine, &graph, &team, &compiled)?;
        let memory = ProgramMemory::new(program.report());
        (if split == wanted { ProgramEngine::Same(program) } else { ProgramEngine::Each(program) }, memory)
    } else {
        let program = client.engine.compile(&graph, &compiled)?;
        let memory = ProgramMemory::new(program.report());
        (if split == wanted { ProgramEngine::Alone(program) } else { ProgramEngine::Copies(program) }, memory)
    };
    Ok((place, ProgramParts { engine, graph, signature, memory, is_foreign: true }))
}

/// Reads a caller's program and its options.
///
/// # Safety
/// The pointers are valid according to the C API.
unsafe fn source_of(
    program: *const sys::Program,
    options: sys::CharPtr,
    options_size: usize,
) -> CallResult<SerializedSource> {
    // SAFETY: the caller's program.
    let program = unsafe { program.as_ref() }.ok_or_else(|| CallError::invalid("no program"))?;
    // SAFETY: code and format have the lengths stored next to them.
    let (code, format) = unsafe {
        (list(program.code.cast_const(), program.code_size), list(program.format, program.format_size))
    };
    if format != b"mlir" {
        let format = String::from_utf8_lossy(format);
        return Err(CallError::unimplemented(format!("programs must be StableHLO text, got `{format}`")));
    }
    // SAFETY: the options have the length stored next to them.
    let options = unsafe { list(options, options_size) };
    Ok(SerializedSource { code: code.into(), options: options.into() })
}

handle! {
    Client_Compile: |args, client: PluginClient| client => {
        // SAFETY: the caller's program and options.
        let source = unsafe { source_of(args.program, args.compile_options, args.compile_options_size)? };
        args.executable = PluginExecutable::object(&Arc::new(compile(client, source)?));
    }
    Compile: |args, topology: PluginTopology| topology => {
        // SAFETY: the caller's program and options.
        let source = unsafe { source_of(args.program, args.compile_options, args.compile_options_size)? };
        let mut program = compile(&PluginClient::of_topology(topology)?, source)?;
        // The program is only loaded and run after serialization, by a client that has devices.
        program.devices.clear();
        args.executable = PluginExecutable::object(&Arc::new(program));
    }
    Executable_DeserializeAndLoad: |args, client: PluginClient| client => {
        // SAFETY: the caller's bytes are that many.
        let given = unsafe { list(args.serialized_executable, args.serialized_executable_size) };
        let mut source = SerializedSource::read(given)?;
        if !args.overridden_serialized_compile_options.is_null() {
            let len = args.overridden_serialized_compile_options_size;
            // SAFETY: the options have the length stored next to them.
            source.options = unsafe { list(args.overridden_serialized_compile_options, len) }.into();
        }
        args.loaded_executable = PluginExecutable::object(&Arc::new(compile(client, source)?));
    }
}

impl ApiCall for sys::Executable_OptimizedProgram {
    /// Returns the program's code, or a version without Shardy. Callers call twice: for the size, then for the bytes.
    unsafe fn handle(&mut self) -> CallResult {
        const FORMAT: &str = "mlir";
        // SAFETY: the caller passes a pointer that this plugin returned.
        let program = &unsafe { seen::<PluginExecutable>(self.executable)? }.program;
        // SAFETY: the caller's structure, which is filled in.
        let given = unsafe { self.program.as_mut() }.ok_or_else(|| CallError::invalid("no program"))?;
        let code = program.plain.get_or_init(|| plain(&program.source.code, &program.signature));
        let code = code.as_deref().unwrap_or(&program.source.code);
        (given.format, given.format_size) = chars(FORMAT);
        if !given.code.is_null() {
            if given.code_size < code.len() {
                let what = format!("buffer of {} bytes is too small for {}", given.code_size, code.len());
                return Err(CallError::invalid(what));
            }
            // SAFETY: the caller's memory has room for that many bytes.
            unsafe { std::ptr::copy_nonoverlapping(code.as_ptr(), given.code, code.len()) };
        }
        given.code_size = code.len();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A loop that adds 64 rows of `x: f32[64, 64]`; the limit is outside of the loop, as JAX writes it.
    const LOOP: &str = "func.func @main(%x: tensor<64x64xf32>) -> tensor<1x64xf32> {
      %zero = stablehlo.constant dense<0> : tensor<i32>
      %limit = stablehlo.constant dense<64> : tensor<i32>
      %s = stablehlo.constant dense<0.0> : tensor<1x64xf32>
      %0:3 = stablehlo.while(%a = %x, %i = %zero, %b = %s) : tensor<64x64xf32>, tensor<i32>, tensor<1x64xf32>
      cond {
        %1 = stablehlo.compare LT, %i, %limit, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
        stablehlo.return %1 : tensor<i1>
      } do {
        %1 = stablehlo.dynamic_slice %a, %i, %zero, sizes = [1, 64] : (tensor<64x64xf32>, tensor<i32>, tensor<i32>) -> tensor<1x64xf32>
        %2 = stablehlo.add %b, %1 : tensor<1x64xf32>
        %one = stablehlo.constant dense<1> : tensor<i32>
        %3 = stablehlo.add %i, %one : tensor<i32>
        stablehlo.return %a, %3, %2 : tensor<64x64xf32>, tensor<i32>, tensor<1x64xf32>
      }
      return %0#2 : tensor<1x64xf32>
    }";

    #[test]
    fn all_iterations_of_a_loop_count_and_slices_without_their_operands() {
        let of = |text: &str| {
            let read = systole_mlir::read_text(text).unwrap_or_else(|e| panic!("{text}\n{e}"));
            amount(&read.graph)
        };
        let (flops, bytes) = of(LOOP).unwrap();
        // 65 additions, a slice and a sum of 256 bytes in each iteration.
        assert!((64.0 * 65.0..64.0 * 70.0).contains(&flops), "{flops}");
        assert!((64.0 * 512.0..64.0 * 600.0 + 2.0 * 64.0 * 256.0).contains(&bytes), "{bytes}");
        let longer = of(&LOOP.replace("dense<64>", "dense<64000>")).unwrap();
        assert!(longer.0 > 900.0 * flops && longer.1 > 500.0 * bytes, "{longer:?}");
        assert_eq!(of(&LOOP.replace("LT", "NE")), None);
    }
}
