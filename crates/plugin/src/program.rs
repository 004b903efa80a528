//! Executables: what is behind `PJRT_LoadedExecutable*` and `PJRT_Executable*`, and what these tell.
//!
//! A serialized program is its code with what it was compiled for: to load it is to compile it again. It is of use to
//! callers that keep what was compiled.

use crate::call::{Answer, Failure, Handle, chars, seen};
use crate::device::free_bytes;
use crate::event::Pace;
use crate::kind::Kind;
use crate::queue::Queue;
use crate::source::{Source, plain};
use crate::told::Told;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use systole_dist::SimulatedMesh;
use systole_ir::TensorType;
use systole_mlir::tiles::Tiles;
use systole_pjrt::sys::{self, Object};
use systole_runtime::Executable;

/// The object behind `PJRT_LoadedExecutable*` and `PJRT_Executable*`, which share a program.
pub(crate) struct Loaded {
    pub(crate) program: Arc<Program>,
    is_deleted: AtomicBool,
}

/// A compiled program.
pub(crate) struct Program {
    pub(crate) name: String,
    /// What profiles call it.
    pub(crate) module: Arc<str>,
    pub(crate) engine: Engine,
    /// Arguments that are given away.
    pub(crate) donated: Vec<bool>,
    pub(crate) replicas: usize,
    pub(crate) partitions: usize,
    /// Devices of this process.
    pub(crate) devices: Vec<Object>,
    /// Those of all processes.
    pub(crate) ids: Arc<Vec<i32>>,
    /// Of one device.
    pub(crate) arguments: Vec<Arc<Kind>>,
    pub(crate) results: Vec<Arc<Kind>>,
    /// How many arrays hold each result.
    pub(crate) result_arrays: Vec<usize>,
    pub(crate) argument_tiles: Vec<Tiles>,
    pub(crate) result_tiles: Vec<Tiles>,
    /// Results of which each device makes a term of its own.
    pub(crate) terms: Vec<bool>,
    /// The arrays that hold each argument of all devices together.
    pub(crate) wholes: Vec<Vec<TensorType>>,
    pub(crate) source: Source,
    /// For those who cannot read the source, made when they ask.
    pub(crate) plain: OnceLock<Option<Vec<u8>>>,
    pub(crate) pace: Pace,
    /// The client's own thread.
    pub(crate) queue: Weak<Queue>,
    /// Whether it runs so long that callers had better not wait.
    pub(crate) is_long: bool,
    pub(crate) arena: usize,
    pub(crate) told: Told,
}

/// How a program runs on its devices.
pub(crate) enum Engine {
    /// Once, on the arrays of all devices together.
    Alone(Arc<dyn Executable>),
    /// On each device with the arrays of all together, in parts with that device's own: all get the same results.
    Same(SimulatedMesh),
    /// On each device with its own arrays.
    Each(SimulatedMesh),
    /// The same, without any exchange.
    Copies(Arc<dyn Executable>),
}

// SAFETY: the pointers are to devices, which the client owns and never changes.
unsafe impl Send for Program {}
// SAFETY: as above.
unsafe impl Sync for Program {}

impl Loaded {
    /// For callers, who give it back.
    pub(crate) fn object(program: &Arc<Program>) -> Object {
        let is_deleted = AtomicBool::new(false);
        Box::into_raw(Box::new(Loaded { program: program.clone(), is_deleted })).cast()
    }

    pub(crate) fn is_deleted(&self) -> bool {
        self.is_deleted.load(Ordering::Relaxed)
    }
}

macro_rules! handle {
    ($($name:ident: |$args:ident, $program:ident| $from:ident => $body:block)*) => {
        $(impl Handle for sys::$name {
            unsafe fn handle(&mut self) -> Answer {
                let $args = self;
                // SAFETY: callers hand back what they were given.
                let $program: &Arc<Program> = unsafe { &seen::<Loaded>($args.$from)?.program };
                $body
                Ok(())
            }
        })*
    };
}

fn varint(mut v: u64, out: &mut Vec<u8>) {
    while v > 0x7f {
        out.push(v as u8 | 0x80);
        v >>= 7;
    }
    out.push(v as u8);
}

/// Hands bytes out: start, length, what backs them, and its deleter.
fn give(bytes: Vec<u8>) -> (sys::Chars, usize, Object, Option<sys::Deleter>) {
    let bytes = Box::new(bytes);
    let (start, len) = (bytes.as_ptr(), bytes.len());
    (start, len, Box::into_raw(bytes).cast(), Some(free_bytes))
}

handle! {
    LoadedExecutable_GetExecutable: |args, program| loaded_executable => {
        args.executable = Loaded::object(program);
    }
    LoadedExecutable_AddressableDevices: |args, program| executable => {
        args.addressable_devices = program.devices.as_ptr();
        args.num_addressable_devices = program.devices.len();
    }
    LoadedExecutable_AddressableDeviceLogicalIds: |args, program| executable => {
        args.addressable_device_logical_ids = program.told.logical_ids.as_ptr().cast_mut();
        args.num_addressable_device_logical_ids = program.told.logical_ids.len();
    }
    LoadedExecutable_GetDeviceAssignment: |args, program| executable => {
        (args.serialized_bytes, args.serialized_bytes_size, args.serialized_device_assignment,
         args.serialized_device_assignment_deleter) = give(program.assignment());
    }
    LoadedExecutable_Fingerprint: |args, program| executable => {
        (args.executable_fingerprint, args.executable_fingerprint_size) = chars(&program.told.fingerprint);
    }
    Executable_Fingerprint: |args, program| executable => {
        (args.executable_fingerprint, args.executable_fingerprint_size) = chars(&program.told.fingerprint);
    }
    Executable_Name: |args, program| executable => {
        (args.executable_name, args.executable_name_size) = chars(&program.name);
    }
    Executable_NumReplicas: |args, program| executable => {
        args.num_replicas = program.replicas;
    }
    Executable_NumPartitions: |args, program| executable => {
        args.num_partitions = program.partitions;
    }
    Executable_NumOutputs: |args, program| executable => {
        args.num_outputs = program.results.len();
    }
    Executable_SizeOfGeneratedCodeInBytes: |args, program| executable => {
        args.size_in_bytes = program.source.code.len() as i64;
    }
    Executable_GetCostAnalysis: |args, program| executable => {
        (args.properties, args.num_properties) = (program.told.costs.as_ptr(), program.told.costs.len());
    }
    Executable_GetCompiledMemoryStats: |args, program| executable => {
        let told = &program.told;
        args.argument_size_in_bytes = told.argument_bytes as i64;
        args.output_size_in_bytes = told.result_bytes as i64;
        args.alias_size_in_bytes = told.alias_bytes as i64;
        args.temp_size_in_bytes = program.arena as i64;
        let held = told.argument_bytes + told.result_bytes - told.alias_bytes;
        args.peak_memory_in_bytes = held.saturating_add(program.arena) as i64;
        args.total_size_in_bytes = args.peak_memory_in_bytes;
        args.total_allocation_bytes = args.peak_memory_in_bytes;
    }
    Executable_OutputMemoryKinds: |args, program| executable => {
        let kinds = &program.told.result_memories;
        args.num_outputs = kinds.len();
        (args.memory_kinds, args.memory_kind_sizes) = (kinds.starts(), kinds.sizes());
    }
    Executable_ParameterMemoryKinds: |args, program| executable => {
        let kinds = &program.told.argument_memories;
        args.num_parameters = kinds.len();
        (args.memory_kinds, args.memory_kind_sizes) = (kinds.starts(), kinds.sizes());
    }
    Executable_OutputElementTypes: |args, program| executable => {
        let types = &program.told.result_types;
        (args.output_types, args.num_output_types) = (types.as_ptr(), types.len());
    }
    Executable_OutputDimensions: |args, program| executable => {
        let told = &program.told;
        args.num_outputs = told.result_ranks.len();
        (args.dims, args.dim_sizes) = (told.result_dims.as_ptr(), told.result_ranks.as_ptr());
    }
    Executable_GetCompileOptions: |args, program| executable => {
        (args.serialized_bytes, args.serialized_bytes_size, args.serialized_compile_options,
         args.serialized_compile_options_deleter) = give(program.source.options.clone());
    }
    Executable_Serialize: |args, program| executable => {
        (args.serialized_bytes, args.serialized_bytes_size, args.serialized_executable,
         args.serialized_executable_deleter) = give(program.source.to_bytes());
    }
}

impl Program {
    /// A serialized `xla.DeviceAssignmentProto`: for each partition the devices of its replicas.
    fn assignment(&self) -> Vec<u8> {
        let mut bytes = vec![0x08];
        varint(self.replicas as u64, &mut bytes);
        bytes.push(0x10);
        varint(self.partitions as u64, &mut bytes);
        for p in 0..self.partitions {
            let mut ids = Vec::new();
            for r in 0..self.replicas {
                varint(self.ids[r * self.partitions + p] as u64, &mut ids);
            }
            let mut own = vec![0x0a];
            varint(ids.len() as u64, &mut own);
            own.extend(ids);
            bytes.push(0x1a);
            varint(own.len() as u64, &mut bytes);
            bytes.extend(own);
        }
        bytes
    }
}

impl Handle for sys::Executable_OptimizedProgram {
    /// The program as it came, or one that needs no Shardy to be read. Callers ask twice: how long it is, then for the
    /// bytes.
    unsafe fn handle(&mut self) -> Answer {
        const FORMAT: &str = "mlir";
        // SAFETY: callers hand back what they were given.
        let program = &unsafe { seen::<Loaded>(self.executable)? }.program;
        // SAFETY: the caller's structure, which is to be filled.
        let given = unsafe { self.program.as_mut() }.ok_or_else(|| Failure::invalid("no program"))?;
        let code = program
            .plain
            .get_or_init(|| plain(&program.source.code, &program.argument_tiles, &program.result_tiles));
        let code = code.as_deref().unwrap_or(&program.source.code);
        (given.format, given.format_size) = chars(FORMAT);
        if !given.code.is_null() {
            if given.code_size < code.len() {
                let what = format!("{} bytes of room for {}", given.code_size, code.len());
                return Err(Failure::invalid(what));
            }
            // SAFETY: the caller's memory has room for that many bytes.
            unsafe { std::ptr::copy_nonoverlapping(code.as_ptr(), given.code, code.len()) };
        }
        given.code_size = code.len();
        Ok(())
    }
}

impl Handle for sys::LoadedExecutable_Delete {
    unsafe fn handle(&mut self) -> Answer {
        // SAFETY: callers hand back what they were given.
        unsafe { seen::<Loaded>(self.executable)? }.is_deleted.store(true, Ordering::Relaxed);
        Ok(())
    }
}

impl Handle for sys::LoadedExecutable_IsDeleted {
    unsafe fn handle(&mut self) -> Answer {
        // SAFETY: callers hand back what they were given.
        self.is_deleted = unsafe { seen::<Loaded>(self.executable)? }.is_deleted();
        Ok(())
    }
}

/// # Safety
/// `object` is null or was made by [`Loaded::object`], and is given back once.
unsafe fn destroy(object: Object) {
    if !object.is_null() {
        // SAFETY: passed on.
        drop(unsafe { Box::from_raw(object.cast::<Loaded>()) });
    }
}

impl Handle for sys::LoadedExecutable_Destroy {
    unsafe fn handle(&mut self) -> Answer {
        // SAFETY: callers give back what they were given.
        unsafe { destroy(self.executable) };
        Ok(())
    }
}

impl Handle for sys::Executable_Destroy {
    unsafe fn handle(&mut self) -> Answer {
        // SAFETY: callers give back what they were given.
        unsafe { destroy(self.executable) };
        Ok(())
    }
}
