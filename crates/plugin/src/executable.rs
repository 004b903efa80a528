//! Executables: the objects behind `PJRT_LoadedExecutable*` and `PJRT_Executable*`, and their queries.
//!
//! A serialized executable is its source with the compile options; loading it compiles again. It serves callers that
//! cache executables.

use crate::buffer_type::ProgramSignature;
use crate::call::{ApiCall, CallError, CallResult, chars, destroy, handle, seen};
use crate::device::free_bytes;
use crate::event::SimulatedLatency;
use crate::executable_info::ExecutableInfo;
use crate::ffi::FfiCallSites;
use crate::host_callbacks::PythonFunctions;
use crate::multi_host::HostLinks;
use crate::queue::RunQueue;
use crate::serialized::SerializedSource;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use systole_dist::SimulatedMesh;
use systole_ir::ensure;
use systole_pjrt::device_assignment;
use systole_pjrt::sys::{self, ApiArgs, OpaquePtr};
use systole_runtime::{Executable, ExecutableReport};

/// The object behind `PJRT_LoadedExecutable*` and `PJRT_Executable*`, which share a program.
pub(crate) struct PluginExecutable {
    pub(crate) program: Arc<CompiledProgram>,
    is_deleted: AtomicBool,
}

/// A compiled program.
pub(crate) struct CompiledProgram {
    pub(crate) name: String,
    /// Name in profiles.
    pub(crate) module: Arc<str>,
    pub(crate) engine: ProgramEngine,
    pub(crate) signature: ProgramSignature,
    pub(crate) replicas: usize,
    pub(crate) partitions: usize,
    /// Devices of this process.
    pub(crate) devices: Vec<OpaquePtr>,
    /// Index of the first of them among all.
    pub(crate) first: usize,
    /// Connections to the other processes, if the program runs on their devices too.
    pub(crate) line: Option<Arc<HostLinks>>,
    /// Devices of all processes.
    pub(crate) ids: Arc<Vec<i32>>,
    /// Number of arrays that hold each result.
    pub(crate) result_arrays: Vec<usize>,
    pub(crate) source: SerializedSource,
    /// Code without Shardy for callers that cannot read the source; created on demand.
    pub(crate) plain: OnceLock<Option<Vec<u8>>>,
    pub(crate) pace: SimulatedLatency,
    /// The client's run queue.
    pub(crate) queue: Weak<RunQueue>,
    /// Whether it runs so long that it should run asynchronously.
    pub(crate) is_long: bool,
    pub(crate) memory: ProgramMemory,
    pub(crate) python: PythonFunctions,
    pub(crate) _ffi: FfiCallSites,
    pub(crate) told: ExecutableInfo,
}

/// Bytes that a run allocates in addition to its arguments, by the buffer plan.
#[derive(Clone, Copy)]
pub(crate) struct ProgramMemory {
    /// Intermediate values and workspace.
    arena: usize,
    /// Arguments, results that are not written into arguments, and the arena; 0 if unknown.
    peak: usize,
}

impl ProgramMemory {
    pub(crate) fn new(report: &ExecutableReport) -> ProgramMemory {
        ProgramMemory { arena: report.arena_bytes, peak: report.peak_bytes }
    }
}

/// How a program runs on its devices.
pub(crate) enum ProgramEngine {
    /// Once, on the global arrays.
    Alone(Arc<dyn Executable>),
    /// On each device with the global arrays, with per-device shards inside: all return equal results.
    Same(SimulatedMesh),
    /// On each device with its own arrays.
    Each(SimulatedMesh),
    /// On each device with its own arrays, without collectives.
    Copies(Arc<dyn Executable>),
}

// SAFETY: the pointers are to devices, which the client owns and never changes.
unsafe impl Send for CompiledProgram {}
// SAFETY: as above.
unsafe impl Sync for CompiledProgram {}

impl Deref for PluginExecutable {
    type Target = Arc<CompiledProgram>;

    fn deref(&self) -> &Arc<CompiledProgram> {
        &self.program
    }
}

impl PluginExecutable {
    /// Creates an executable object, which the caller destroys.
    pub(crate) fn object(program: &Arc<CompiledProgram>) -> OpaquePtr {
        let is_deleted = AtomicBool::new(false);
        Box::into_raw(Box::new(PluginExecutable { program: program.clone(), is_deleted })).cast()
    }

    pub(crate) fn is_deleted(&self) -> bool {
        self.is_deleted.load(Ordering::Relaxed)
    }
}

/// Returns bytes to a caller: pointer, length, owner and deleter.
fn give(bytes: Vec<u8>) -> (sys::CharPtr, usize, OpaquePtr, Option<sys::Deleter>) {
    let bytes = Box::new(bytes);
    let (start, len) = (bytes.as_ptr(), bytes.len());
    (start, len, Box::into_raw(bytes).cast(), Some(free_bytes))
}

handle! {
    LoadedExecutable_Delete: |args, program: PluginExecutable| executable => {
        program.is_deleted.store(true, Ordering::Relaxed);
    }
    LoadedExecutable_IsDeleted: |args, program: PluginExecutable| executable => { args.is_deleted = program.is_deleted(); }
    LoadedExecutable_GetExecutable: |args, program: PluginExecutable| loaded_executable => {
        args.executable = PluginExecutable::object(program);
    }
    LoadedExecutable_AddressableDevices: |args, program: PluginExecutable| executable => {
        args.addressable_devices = program.devices.as_ptr();
        args.num_addressable_devices = program.devices.len();
    }
    LoadedExecutable_AddressableDeviceLogicalIds: |args, program: PluginExecutable| executable => {
        args.addressable_device_logical_ids = program.told.logical_ids.as_ptr().cast_mut();
        args.num_addressable_device_logical_ids = program.told.logical_ids.len();
    }
    LoadedExecutable_GetDeviceAssignment: |args, program: PluginExecutable| executable => {
        (args.serialized_bytes, args.serialized_bytes_size, args.serialized_device_assignment,
         args.serialized_device_assignment_deleter) = give(program.assignment());
    }
    LoadedExecutable_Fingerprint: |args, program: PluginExecutable| executable => {
        (args.executable_fingerprint, args.executable_fingerprint_size) = chars(&program.told.fingerprint);
    }
    Executable_Fingerprint: |args, program: PluginExecutable| executable => {
        (args.executable_fingerprint, args.executable_fingerprint_size) = chars(&program.told.fingerprint);
    }
    Executable_Name: |args, program: PluginExecutable| executable => {
        (args.executable_name, args.executable_name_size) = chars(&program.name);
    }
    Executable_NumReplicas: |args, program: PluginExecutable| executable => { args.num_replicas = program.replicas; }
    Executable_NumPartitions: |args, program: PluginExecutable| executable => {
        args.num_partitions = program.partitions;
    }
    Executable_NumOutputs: |args, program: PluginExecutable| executable => { args.num_outputs = program.signature.results.len(); }
    Executable_SizeOfGeneratedCodeInBytes: |args, program: PluginExecutable| executable => {
        args.size_in_bytes = program.source.code.len() as i64;
    }
    Executable_GetCostAnalysis: |args, program: PluginExecutable| executable => {
        (args.properties, args.num_properties) = (program.told.costs.as_ptr(), program.told.costs.len());
    }
    Executable_GetCompiledMemoryStats: |args, program: PluginExecutable| executable => {
        let told = &program.told;
        // Callers do not clear their structure.
        let executable = args.executable;
        *args = sys::Executable_GetCompiledMemoryStats { executable, ..ApiArgs::new() };
        args.argument_size_in_bytes = told.argument_bytes as i64;
        args.output_size_in_bytes = told.result_bytes as i64;
        let ProgramMemory { arena, peak } = program.memory;
        let all = (told.argument_bytes + told.result_bytes).saturating_add(arena);
        let alias = match (&program.engine, peak) {
            // The engine knows which donated arguments it overwrites.
            (ProgramEngine::Alone(_), 1..) => all.saturating_sub(peak).min(told.result_bytes),
            _ => told.alias_bytes,
        };
        args.alias_size_in_bytes = alias as i64;
        args.temp_size_in_bytes = arena as i64;
        args.peak_memory_in_bytes = (all - alias) as i64;
        args.total_size_in_bytes = args.peak_memory_in_bytes;
        args.total_allocation_bytes = args.peak_memory_in_bytes;
    }
    Executable_OutputMemoryKinds: |args, program: PluginExecutable| executable => {
        let kinds = &program.told.result_memories;
        args.num_outputs = kinds.len();
        (args.memory_kinds, args.memory_kind_sizes) = (kinds.starts(), kinds.sizes());
    }
    Executable_ParameterMemoryKinds: |args, program: PluginExecutable| executable => {
        let kinds = &program.told.argument_memories;
        args.num_parameters = kinds.len();
        (args.memory_kinds, args.memory_kind_sizes) = (kinds.starts(), kinds.sizes());
    }
    Executable_OutputElementTypes: |args, program: PluginExecutable| executable => {
        let types = &program.told.result_types;
        (args.output_types, args.num_output_types) = (types.as_ptr(), types.len());
    }
    Executable_OutputDimensions: |args, program: PluginExecutable| executable => {
        let told = &program.told;
        args.num_outputs = told.result_ranks.len();
        (args.dims, args.dim_sizes) = (told.result_dims.as_ptr(), told.result_ranks.as_ptr());
    }
    Executable_GetCompileOptions: |args, program: PluginExecutable| executable => {
        (args.serialized_bytes, args.serialized_bytes_size, args.serialized_compile_options,
         args.serialized_compile_options_deleter) = give(program.source.options.clone());
    }
    Executable_Serialize: |args, program: PluginExecutable| executable => {
        let what = "the program calls Python functions of this process and cannot be serialized";
        ensure!(program.python.is_empty(), CallError::unimplemented(what));
        (args.serialized_bytes, args.serialized_bytes_size, args.serialized_executable,
         args.serialized_executable_deleter) = give(program.source.to_bytes());
    }
}

impl CompiledProgram {
    fn assignment(&self) -> Vec<u8> {
        let ids: Vec<i64> = self.ids.iter().map(|id| i64::from(*id)).collect();
        device_assignment(self.replicas, self.partitions, &ids)
    }
}

destroy! {
    LoadedExecutable_Destroy: PluginExecutable, executable;
    Executable_Destroy: PluginExecutable, executable;
}
