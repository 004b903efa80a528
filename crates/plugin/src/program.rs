//! Programs: StableHLO text in, the CPU engine's executable behind it, runs on one or several logical devices.

use crate::array::Array;
use crate::device::{Client, seen};
use crate::table::{Answer, Failure, Handle, chars, ready};
use std::sync::Arc;
use systole_ir::{TensorType, text};
use systole_pjrt::sys::{self, Object};
use systole_runtime::{Arg, Backend, CompileOptions, Executable};

/// The object behind `PJRT_LoadedExecutable*` and `PJRT_Executable*`, which share a program.
pub(crate) struct Loaded(Arc<Program>);

struct Program {
    name: String,
    executable: Arc<dyn Executable>,
    results: Vec<TensorType>,
    donated: Vec<usize>,
    device: Object,
    devices: [Object; 1],
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

/// Parameters that the text gives away: `%arg3: tensor<…> {tf.aliasing_output = 1 : i32}`.
fn donated(text: &str) -> Vec<usize> {
    let header = text.lines().find(|l| l.contains("func.func")).unwrap_or_default();
    let arguments = header.split("%arg").skip(1);
    let given = arguments.filter(|a| a.contains("tf.aliasing_output"));
    given.filter_map(|a| a.split(':').next()?.trim().parse().ok()).collect()
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
        let graph = text::parse(text)?;
        let donated = donated(text);
        let options =
            CompileOptions { donated: donated.clone(), label: graph.name.clone(), ..Default::default() };
        let executable = client.engine.compile(&graph, &options)?;
        let device = client.first_device();
        let results = graph.result_types();
        let name = graph.name.clone();
        let program = Program { name, executable, results, donated, device, devices: [device] };
        self.executable = Loaded::object(&Arc::new(program));
        Ok(())
    }
}

impl Handle for sys::LoadedExecutable_Execute {
    unsafe fn handle(&mut self) -> Answer {
        // SAFETY: callers hand back what they were given.
        let program: &Program = unsafe { &seen::<Loaded>(self.executable)?.0 };
        if self.num_devices != 1 {
            let what = format!("programs run on one device at a time, and {} were given", self.num_devices);
            return Err(Failure::unimplemented(what));
        }
        let types = program.executable.param_types();
        if self.num_args != types.len() {
            return Err(Failure::invalid(format!("{} arguments for {}", self.num_args, types.len())));
        }
        // SAFETY: one list of that many arguments.
        let arguments: &[Object] = match self.num_args {
            0 => &[],
            // SAFETY: as above.
            n => unsafe { std::slice::from_raw_parts(*self.argument_lists, n) },
        };
        // SAFETY: the caller's options, with a list of that length.
        let kept: &[i64] = match unsafe { self.options.as_ref() } {
            Some(o) if !o.non_donatable_input_indices.is_null() => unsafe {
                std::slice::from_raw_parts(o.non_donatable_input_indices, o.num_non_donatable_input_indices)
            },
            _ => &[],
        };
        // SAFETY: callers hand back what they were given.
        let arrays = arguments.iter().map(|a| unsafe { seen::<Array>(*a) }).collect::<Result<Vec<_>, _>>()?;
        program.check(&arrays)?;
        let device = arrays.first().map_or(program.device, |a| a.device);
        let results = program.run(&arrays, kept)?;
        for (i, buffer) in results.into_iter().enumerate() {
            // SAFETY: the caller's list has room for every result.
            unsafe { *(*self.output_lists).add(i) = Array::object(buffer, device) };
        }
        if !self.device_complete_events.is_null() {
            // SAFETY: room for one event.
            unsafe { *self.device_complete_events = ready() };
        }
        Ok(())
    }
}

impl Program {
    /// Before anything is given away.
    fn check(&self, arrays: &[&Array]) -> Answer {
        for (i, (array, ty)) in arrays.iter().zip(self.executable.param_types()).enumerate() {
            if array.ty != *ty {
                return Err(Failure::invalid(format!("argument {i} is {} and must be {ty}", array.ty)));
            }
        }
        Ok(())
    }

    fn run(&self, arrays: &[&Array], kept: &[i64]) -> Result<Vec<systole_runtime::Buffer>, Failure> {
        let gives = |i: usize| self.donated.contains(&i) && !kept.contains(&(i as i64));
        let arguments = arrays.iter().enumerate();
        let arguments = arguments.map(|(i, a)| a.argument(gives(i)).map(Arg::Donate));
        Ok(self.executable.run(arguments.collect::<Result<Vec<_>, _>>()?)?)
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
    Executable_NumPartitions: |args, _program| executable => {
        args.num_partitions = 1;
    }
    Executable_NumOutputs: |args, program| executable => {
        args.num_outputs = program.results.len();
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
