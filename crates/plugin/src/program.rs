//! Programs: StableHLO text in, the CPU engine's executable behind it, runs on one or several logical devices. Programs of
//! several are split by the partitioner of `systole-dist`, and their collectives run between the devices.
//!
//! A serialized program is its text with what it was compiled for: to load it is to compile it again. It is of use to
//! test callers that keep what was compiled, and to no one else.

use crate::array::Array;
use crate::device::{Client, Device, seen};
use crate::event::Pace;
use crate::options::Options;
use crate::serialized::Serialized;
use crate::table::{Answer, Failure, Handle, chars};
use std::ops::Range;
use std::sync::Arc;
use systole_dist::{SimulatedMesh, Team, partition};
use systole_ir::op::Devices;
use systole_ir::{TensorType, text};
use systole_pjrt::sys::{self, Object};
use systole_runtime::{Arg, Backend, Buffer, CompileOptions, Executable};

/// The object behind `PJRT_LoadedExecutable*` and `PJRT_Executable*`, which share a program.
pub(crate) struct Loaded(Arc<Program>);

struct Program {
    name: String,
    engine: Engine,
    donated: Vec<usize>,
    /// Devices of all processes.
    partitions: usize,
    /// Those of this one.
    devices: Vec<Object>,
    /// Types of one device's arrays.
    params: Vec<TensorType>,
    results: usize,
    source: Serialized,
    pace: Pace,
}

enum Engine {
    Alone(Arc<dyn Executable>),
    SimulatedMesh(SimulatedMesh),
}

// SAFETY: the pointers are to devices, which the client owns and never changes.
unsafe impl Send for Program {}
// SAFETY: as above.
unsafe impl Sync for Program {}

impl Loaded {
    fn object(program: &Arc<Program>) -> Object {
        Box::into_raw(Box::new(Loaded(program.clone()))).cast()
    }
}

impl Handle for sys::Client_Compile {
    unsafe fn handle(&mut self) -> Answer {
        // SAFETY: callers hand back what they were given.
        let client: &Client = unsafe { seen(self.client)? };
        // SAFETY: the caller's program.
        let program = unsafe { self.program.as_ref() }.ok_or_else(|| Failure::invalid("no program"))?;
        // SAFETY: code and format have the lengths that stand beside them.
        let (code, format) = unsafe {
            (
                std::slice::from_raw_parts(program.code.cast_const(), program.code_size),
                std::slice::from_raw_parts(program.format, program.format_size),
            )
        };
        if format != b"mlir" {
            let format = String::from_utf8_lossy(format);
            return Err(Failure::unimplemented(format!("programs must be StableHLO text, not `{format}`")));
        }
        let text = std::str::from_utf8(code).ok().filter(|t| !t.starts_with("ML\u{ef}"));
        let text = text.ok_or_else(|| {
            Failure::unimplemented("the program is bytecode; Systole's plugin reads StableHLO text only")
        })?;
        // SAFETY: the options have the length that stands beside them.
        let options = unsafe { bytes(self.compile_options, self.compile_options_size) };
        let program = Program::compile(client, Serialized { text: text.into(), options: options.into() })?;
        self.executable = Loaded::object(&Arc::new(program));
        Ok(())
    }
}

/// # Safety
/// `start` is null or points to `len` bytes.
unsafe fn bytes<'a>(start: sys::Chars, len: usize) -> &'a [u8] {
    // SAFETY: passed on.
    if start.is_null() { &[] } else { unsafe { std::slice::from_raw_parts(start, len) } }
}

/// Which parts of a program this process's devices run.
fn own_parts(assigned: &[Object]) -> Result<Range<usize>, Failure> {
    // SAFETY: pointers to devices, which the client owns.
    let local = |device: &Object| Ok::<_, Failure>(unsafe { seen::<Device>(*device)? }.is_local());
    let local = assigned.iter().map(local).collect::<Result<Vec<bool>, _>>()?;
    let first = local.iter().position(|l| *l);
    let first = first.ok_or_else(|| Failure::invalid("none of the program's devices is this process's"))?;
    let own = first..first + local[first..].iter().take_while(|l| **l).count();
    match local[own.end..].contains(&true) {
        true => Err(Failure::unimplemented("a process's devices must follow each other in the program's")),
        false => Ok(own),
    }
}

impl Program {
    fn compile(client: &Client, source: Serialized) -> Result<Program, Failure> {
        let options = Options::read(&source.options)?;
        let text::Program { graph, donated, spread } = text::parse_program(&source.text)?;
        let wanted = spread.as_ref().map_or(1, |s| s.mesh.devices());
        if options.partitions != wanted {
            let what = format!("{} partitions for a mesh of {wanted} devices", options.partitions);
            return Err(Failure::invalid(what));
        }
        if wanted > client.count() {
            return Err(Failure::invalid(format!(
                "{wanted} devices are wanted, and {} there",
                client.count()
            )));
        }
        // What one device runs is each process's own.
        let first = if wanted == 1 { client.local.start } else { 0 };
        let assigned = options.devices(wanted, first)?.into_iter();
        let assigned = assigned.map(|id| client.device(id)).collect::<Result<Vec<_>, _>>()?;
        let parts = own_parts(&assigned)?;
        let devices = assigned[parts.clone()].to_vec();
        let donated: Vec<usize> = donated.into_iter().map(|(param, _)| param).collect();
        let options =
            CompileOptions { donated: donated.clone(), label: graph.name.clone(), ..Default::default() };
        let (name, results) = (graph.name.clone(), graph.results.len());
        let (params, engine) = match &spread {
            None => (graph.param_types(), Engine::Alone(client.engine.compile(&graph, &options)?)),
            Some(spread) => {
                // What is given away comes back updated: it is the state.
                let own = partition(&graph, spread, &donated)?;
                let team = match &client.line {
                    Some(line) if parts.len() < wanted => {
                        Team::of(Devices::replicas(wanted), parts, line.clone())
                    }
                    _ => Team::alone(Devices::replicas(wanted)),
                };
                let program = SimulatedMesh::compile(&*client.engine, &own, &team, &options)?;
                (own.param_types(), Engine::SimulatedMesh(program))
            }
        };
        let pace = client.pace.clone();
        Ok(Program { name, engine, donated, partitions: wanted, devices, params, results, source, pace })
    }

    /// Before anything is given away.
    fn check(&self, arrays: &[&Array]) -> Answer {
        for (i, (array, ty)) in arrays.iter().zip(&self.params).enumerate() {
            if array.ty != *ty {
                let what = format!("argument {i} is {} and must be {ty}", array.ty);
                return Err(Failure::invalid(what));
            }
        }
        Ok(())
    }

    /// One list of results for each device of this process. Logical devices show numerics, not speed: they run one after the other.
    fn run(&self, arrays: &[Vec<&Array>], kept: &[i64]) -> Result<Vec<Vec<Buffer>>, Failure> {
        let argument = |(i, array): (usize, &&Array)| {
            let gives = self.donated.contains(&i) && !kept.contains(&(i as i64));
            Ok(Arg::Donate(array.argument(gives)?))
        };
        let arguments = |list: &Vec<&Array>| list.iter().enumerate().map(argument).collect();
        let mut lists = arrays.iter().map(arguments).collect::<Result<Vec<Vec<Arg<'_>>>, Failure>>()?;
        match &self.engine {
            Engine::Alone(program) => Ok(vec![program.run(lists.pop().unwrap_or_default())?]),
            Engine::SimulatedMesh(program) => Ok(program.run(lists)?),
        }
    }
}

impl Handle for sys::LoadedExecutable_Execute {
    unsafe fn handle(&mut self) -> Answer {
        // SAFETY: callers hand back what they were given.
        let program: &Program = unsafe { &seen::<Loaded>(self.executable)?.0 };
        if self.num_devices != program.devices.len() {
            let what = format!("{} devices were given for {}", self.num_devices, program.devices.len());
            return Err(Failure::invalid(what));
        }
        if self.num_args != program.params.len() {
            return Err(Failure::invalid(format!(
                "{} arguments for {}",
                self.num_args,
                program.params.len()
            )));
        }
        // SAFETY: the caller's options, with a list of that length.
        let kept: &[i64] = match unsafe { self.options.as_ref() } {
            Some(o) if !o.non_donatable_input_indices.is_null() => unsafe {
                std::slice::from_raw_parts(o.non_donatable_input_indices, o.num_non_donatable_input_indices)
            },
            _ => &[],
        };
        let mut arrays: Vec<Vec<&Array>> = Vec::new();
        for device in 0..self.num_devices {
            let objects: &[Object] = match self.num_args {
                0 => &[],
                // SAFETY: one list of that many arguments for each device.
                n => unsafe { std::slice::from_raw_parts(*self.argument_lists.add(device), n) },
            };
            // SAFETY: callers hand back what they were given.
            let list = objects.iter().map(|a| unsafe { seen::<Array>(*a) }).collect::<Result<Vec<_>, _>>()?;
            program.check(&list)?;
            arrays.push(list);
        }
        let results = program.run(&arrays, kept)?;
        let end = program.pace.end_of_run();
        for (device, results) in results.into_iter().enumerate() {
            for (i, buffer) in results.into_iter().enumerate() {
                let array = Array::object(buffer, program.devices[device], end.clone());
                // SAFETY: the caller's list for each device has room for every result.
                unsafe { *(*self.output_lists.add(device)).add(i) = array };
            }
            if !self.device_complete_events.is_null() {
                // SAFETY: room for one event of each device.
                unsafe { *self.device_complete_events.add(device) = end.object() };
            }
        }
        Ok(())
    }
}

macro_rules! handle {
    ($($name:ident: |$args:ident, $program:ident| $from:ident => $body:block)*) => {
        $(impl Handle for sys::$name {
            unsafe fn handle(&mut self) -> Answer {
                let $args = self;
                // SAFETY: callers hand back what they were given.
                let $program: &Arc<Program> = unsafe { &seen::<Loaded>($args.$from)?.0 };
                $body
                Ok(())
            }
        })*
    };
}

handle! {
    LoadedExecutable_GetExecutable: |args, program| loaded_executable => {
        args.executable = Loaded::object(program);
    }
    LoadedExecutable_AddressableDevices: |args, program| executable => {
        args.addressable_devices = program.devices.as_ptr();
        args.num_addressable_devices = program.devices.len();
    }
    Executable_Name: |args, program| executable => {
        (args.executable_name, args.executable_name_size) = chars(&program.name);
    }
    Executable_NumReplicas: |args, _program| executable => {
        args.num_replicas = 1;
    }
    Executable_NumPartitions: |args, program| executable => {
        args.num_partitions = program.partitions;
    }
    Executable_NumOutputs: |args, program| executable => {
        args.num_outputs = program.results;
    }
    Executable_Serialize: |args, program| executable => {
        let bytes = Box::new(program.source.to_bytes());
        (args.serialized_bytes, args.serialized_bytes_size) = (bytes.as_ptr(), bytes.len());
        args.serialized_executable = Box::into_raw(bytes).cast();
        args.serialized_executable_deleter = Some(free_bytes);
    }
}

/// Frees what `Executable_Serialize` handed out.
unsafe extern "C" fn free_bytes(object: Object) {
    // SAFETY: the box that was given away there, given back once.
    drop(unsafe { Box::from_raw(object.cast::<Vec<u8>>()) });
}

impl Handle for sys::Executable_DeserializeAndLoad {
    unsafe fn handle(&mut self) -> Answer {
        // SAFETY: callers hand back what they were given.
        let client: &Client = unsafe { seen(self.client)? };
        // SAFETY: the caller's bytes are that many.
        let given = unsafe { bytes(self.serialized_executable, self.serialized_executable_size) };
        let mut source = Serialized::read(given)?;
        if !self.overridden_serialized_compile_options.is_null() {
            let len = self.overridden_serialized_compile_options_size;
            // SAFETY: the options have the length that stands beside them.
            source.options = unsafe { bytes(self.overridden_serialized_compile_options, len) }.into();
        }
        self.loaded_executable = Loaded::object(&Arc::new(Program::compile(client, source)?));
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
