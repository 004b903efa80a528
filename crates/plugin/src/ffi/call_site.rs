//! A call of an FFI handler in a program: its attributes, its state, and its execution on arrays.

use super::abi::{self, FfiArguments, FfiBuffer, FfiError, FfiHandler, FfiHeader};
use super::attributes::FfiAttributeTable;
use super::context::{FfiContext, FfiFuture, FfiState, FfiUserData, StateSlot, lock};
use super::handlers::{self, RegisteredFunction, RegisteredHandler};
use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use systole_cpu::with_subnormals;
use systole_ir::op::Op;
use systole_ir::{Error, ErrorKind, Graph, Literal, Result, TensorType, err};
use systole_mlir::import::effects::PREFIX;
use systole_mlir::import::{FfiCall, UntypedCall};
use systole_mlir::interface::{ProgramPort, SourceElement};

/// The calls of loaded programs, by their configuration.
static SITES: Mutex<Option<HashMap<String, Weak<FfiCallSite>>>> = Mutex::new(None);

/// A call in a program.
struct FfiCallSite {
    call: FfiCall,
    function: RegisteredFunction,
    attributes: FfiAttributeTable,
    /// Set by the stage `instantiate`; lives as long as the program.
    state: Arc<StateSlot>,
}

/// The calls of FFI handlers in a program.
pub(crate) struct FfiCallSites {
    /// Owns the states.
    _sites: Vec<Arc<FfiCallSite>>,
}

impl FfiCallSites {
    /// Creates the calls of a program: runs the stage `instantiate` of each.
    pub(crate) fn of(graph: &Graph) -> Result<FfiCallSites> {
        let mut sites = Vec::new();
        let mut open = vec![graph];
        while let Some(graph) = open.pop() {
            for node in &graph.nodes {
                if let Op::CustomCall(call) = &node.op
                    && call.target.starts_with(PREFIX)
                {
                    sites.push(site(&call.config)?);
                }
                open.extend(node.op.rule().regions().into_iter().map(|body| &**body));
            }
        }
        Ok(FfiCallSites { _sites: sites })
    }
}

/// Returns the call with this configuration.
fn site(config: &str) -> Result<Arc<FfiCallSite>> {
    let known = |sites: &HashMap<_, Weak<FfiCallSite>>| sites.get(config).and_then(Weak::upgrade);
    if let Some(found) = lock(&SITES).as_ref().and_then(known) {
        return Ok(found);
    }
    let made = Arc::new(FfiCallSite::new(config)?);
    let mut sites = lock(&SITES);
    let sites = sites.get_or_insert_default();
    sites.retain(|_, site| site.strong_count() > 0);
    sites.insert(config.to_owned(), Arc::downgrade(&made));
    Ok(made)
}

/// Calls a handler: `(configuration, operands, result types) → results`.
pub(super) fn call(config: &str, args: &[&Literal], types: &[TensorType]) -> Result<Vec<Literal>> {
    site(config)?.run(args, types)
}

/// The C structures of arguments or results, with the memory that they refer to.
struct FfiBuffers {
    _dims: Vec<Vec<i64>>,
    buffers: Vec<FfiBuffer>,
    types: Vec<i32>,
    values: Vec<*mut c_void>,
}

impl FfiBuffers {
    fn new(ports: &[Option<ProgramPort>], data: &[*mut c_void]) -> Result<FfiBuffers> {
        let dims = |port: &Option<ProgramPort>| {
            port.iter().flat_map(|p| &p.dims).map(|d| *d as i64).collect::<Vec<i64>>()
        };
        let mut dims: Vec<Vec<i64>> = ports.iter().map(dims).collect();
        let mut buffers = Vec::new();
        for ((port, data), dims) in ports.iter().zip(data).zip(&mut dims) {
            let code = |p: &ProgramPort| {
                let name = p.element.name();
                abi::element_code(p.element)
                    .ok_or_else(|| err!(Unsupported, "FFI handlers cannot receive arrays of {name}"))
            };
            buffers.push(FfiBuffer {
                header: FfiHeader::of::<FfiBuffer>(),
                dtype: port.as_ref().map_or(Ok(abi::TOKEN), code)?,
                data: *data,
                rank: dims.len() as i64,
                dims: dims.as_mut_ptr(),
            });
        }
        let types = vec![abi::BUFFER; buffers.len()];
        Ok(FfiBuffers { _dims: dims, buffers, types, values: Vec::new() })
    }

    fn view(&mut self) -> FfiArguments {
        self.values = self.buffers.iter_mut().map(|b| std::ptr::from_mut(b).cast()).collect();
        FfiArguments {
            header: FfiHeader::of::<FfiArguments>(),
            size: self.values.len() as i64,
            types: self.types.as_mut_ptr(),
            values: self.values.as_mut_ptr(),
        }
    }
}

/// Memory of an array as handlers see it: that of the engine's array, or converted elements.
enum ArrayMemory {
    Own(Literal),
    Converted(Vec<u128>),
    Token,
}

impl ArrayMemory {
    /// Allocates memory with unspecified contents.
    fn unfilled(port: Option<&ProgramPort>) -> ArrayMemory {
        match port {
            None => ArrayMemory::Token,
            Some(p) => match p.element {
                SourceElement::Plain(dtype) => {
                    ArrayMemory::Own(Literal::unfilled(TensorType::new(dtype, &p.dims[..])))
                }
                _ => ArrayMemory::Converted(vec![0; p.bytes().div_ceil(16)]),
            },
        }
    }

    fn of(port: Option<&ProgramPort>, arrays: &[&Literal]) -> Result<ArrayMemory> {
        let mut made = match port.map(|p| p.element) {
            Some(SourceElement::Plain(_)) => {
                let held = port.and_then(|p| arrays.get(p.first)).ok_or_else(missing)?;
                // Shares the memory: handlers do not write operands.
                return Ok(ArrayMemory::Own((*held).clone()));
            }
            _ => ArrayMemory::unfilled(port),
        };
        if let (Some(p), ArrayMemory::Converted(words)) = (port, &mut made) {
            let bytes = p.join(arrays.get(p.first..).ok_or_else(missing)?)?;
            // SAFETY: the words have room for that many bytes.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), words.as_mut_ptr().cast(), bytes.len()) };
        }
        Ok(made)
    }

    /// Returns the address, for reading.
    fn address(&self) -> *mut c_void {
        match self {
            ArrayMemory::Own(array) => array.bytes().as_ptr().cast_mut().cast(),
            ArrayMemory::Converted(words) => words.as_ptr().cast_mut().cast(),
            ArrayMemory::Token => std::ptr::null_mut(),
        }
    }

    /// Returns the address, for writing.
    fn address_mut(&mut self) -> *mut c_void {
        match self {
            ArrayMemory::Own(array) => array.bytes_mut().as_mut_ptr().cast(),
            ArrayMemory::Converted(words) => words.as_mut_ptr().cast(),
            ArrayMemory::Token => std::ptr::null_mut(),
        }
    }

    fn into_arrays(self, port: Option<&ProgramPort>) -> Result<Vec<Literal>> {
        match (self, port) {
            (ArrayMemory::Own(array), _) => Ok(vec![array]),
            (ArrayMemory::Converted(words), Some(p)) => {
                // SAFETY: the words hold that many bytes.
                p.split(unsafe { std::slice::from_raw_parts(words.as_ptr().cast(), p.bytes()) })
            }
            _ => Ok(Vec::new()),
        }
    }
}

/// Checks that the program calls the function as it was registered.
fn check_kind(call: &FfiCall, function: RegisteredFunction) -> Result<()> {
    let name = &call.target;
    match (function, &call.untyped) {
        (RegisteredFunction::Typed(_), Some(UntypedCall { api_version, .. })) => {
            let what = err!(
                Unsupported,
                "`{name}` is a typed FFI handler, but called with custom_call_api_version={api_version}"
            );
            Err(what.hint("call it with custom_call_api_version=4, or register it with api_version=0"))
        }
        (RegisteredFunction::Untyped(_), None) => {
            let what = err!(
                Unsupported,
                "`{name}` was registered with api_version=0, but is called as a typed FFI handler"
            );
            Err(what.hint("pass custom_call_api_version=1 to jax.ffi.ffi_call, or register a typed handler"))
        }
        _ => Ok(()),
    }
}

fn missing() -> Error {
    err!(Bug, "an operand of an FFI call is missing")
}

impl FfiCallSite {
    fn new(config: &str) -> Result<FfiCallSite> {
        let call = FfiCall::parse(config)?;
        let function = handlers::find(&call.target).ok_or_else(|| {
            err!(Unsupported, "no FFI handler `{}` is registered", call.target)
                .hint("register it with jax.ffi.register_ffi_target(name, handler, platform=\"systole\")")
        })?;
        check_kind(&call, function)?;
        let attributes = FfiAttributeTable::new(&call.attributes)?;
        let site = FfiCallSite { call, function, attributes, state: Arc::default() };
        if let RegisteredFunction::Typed(handler) = function
            && let Some(instantiate) = handler.handlers.instantiate
        {
            site.invoke(handler, instantiate, abi::INSTANTIATE, &site.context(handler), None)?;
        }
        Ok(site)
    }

    fn context(&self, handler: RegisteredHandler) -> FfiContext {
        static RUNS: AtomicI64 = AtomicI64::new(0);
        FfiContext {
            minor: handler.minor,
            run: RUNS.fetch_add(1, Ordering::Relaxed),
            user_data: FfiUserData::current(),
            states: [self.state.clone(), Arc::default(), Arc::default()],
        }
    }

    /// Calls a function of the handler and waits for its end.
    fn invoke(
        &self,
        handler: RegisteredHandler,
        function: FfiHandler,
        stage: i32,
        context: &FfiContext,
        arrays: Option<(FfiArguments, FfiArguments)>,
    ) -> Result<()> {
        let mut frame = handlers::empty_frame(handler.api);
        frame.context = std::ptr::from_ref(context).cast_mut();
        frame.stage = stage;
        frame.attributes = self.attributes.view();
        if let Some((arguments, results)) = arrays {
            (frame.arguments, frame.results) = (arguments, results);
        }
        // SAFETY: the user's function, with a frame whose memory outlives the call.
        let failure = with_subnormals(|| unsafe { function(&raw mut frame) });
        // SAFETY: null or an error of this API.
        let mut made = unsafe { handlers::outcome(failure) };
        if !frame.future.is_null() {
            // SAFETY: a future of this API, whose first owner is the caller.
            let future = unsafe { Arc::from_raw(frame.future.cast_const().cast::<FfiFuture>()) };
            made = made.and_then(|()| future.wait());
        }
        made.map_err(|e| self.error(&e))
    }

    fn error(&self, e: &FfiError) -> Error {
        let kind = match e.code {
            abi::INVALID_ARGUMENT => ErrorKind::Data,
            abi::UNIMPLEMENTED => ErrorKind::Unsupported,
            _ => ErrorKind::Interrupted,
        };
        Error::new(kind, format!("FFI handler `{}`: {}", self.call.target, e.text()))
    }

    /// Calls the stages of an execution, with the addresses of operands and results.
    fn run_stages(
        &self,
        handler: RegisteredHandler,
        read: &[*mut c_void],
        written: &[*mut c_void],
    ) -> Result<()> {
        let mut inputs = FfiBuffers::new(&self.call.operands, read)?;
        let mut outputs = FfiBuffers::new(&self.call.results, written)?;
        let context = self.context(handler);
        let stages = &handler.handlers;
        let stages = [
            (stages.prepare, abi::PREPARE),
            (stages.initialize, abi::INITIALIZE),
            (stages.execute, abi::EXECUTE),
        ];
        for (function, stage) in stages {
            if let Some(function) = function {
                self.invoke(handler, function, stage, &context, Some((inputs.view(), outputs.view())))?;
            }
        }
        Ok(())
    }

    fn run(&self, args: &[&Literal], types: &[TensorType]) -> Result<Vec<Literal>> {
        let FfiCall { operands, results, aliases, .. } = &self.call;
        let operand = |port: &Option<ProgramPort>| ArrayMemory::of(port.as_ref(), args);
        let inputs = operands.iter().map(operand).collect::<Result<Vec<_>>>()?;
        let mut outputs: Vec<ArrayMemory> = Vec::new();
        for (k, port) in results.iter().enumerate() {
            let shared = aliases.iter().find(|(_, result)| *result == k).and_then(|(i, _)| operands.get(*i));
            outputs.push(match shared {
                // A copy of the operand, made below by the first write.
                Some(from) => ArrayMemory::of(from.as_ref(), args)?,
                None => ArrayMemory::unfilled(port.as_ref()),
            });
        }
        let written: Vec<*mut c_void> = outputs.iter_mut().map(ArrayMemory::address_mut).collect();
        let mut read: Vec<*mut c_void> = inputs.iter().map(ArrayMemory::address).collect();
        for (i, k) in aliases {
            if let (Some(operand), Some(result)) = (read.get_mut(*i), written.get(*k)) {
                *operand = *result;
            }
        }
        match self.function {
            RegisteredFunction::Typed(handler) => self.run_stages(handler, &read, &written)?,
            RegisteredFunction::Untyped(function) => {
                let untyped = self.call.untyped.as_ref().ok_or_else(missing)?;
                // SAFETY: the user's function, with the arrays of the call.
                with_subnormals(|| unsafe { function.call(untyped, &read, &written) })
                    .map_err(|e| e.at(format!("custom call `{}`", self.call.target)))?;
            }
        }
        let mut made = Vec::new();
        for (memory, port) in outputs.into_iter().zip(results) {
            // The handler wrote the program's dimensions in the call's memory order.
            for array in memory.into_arrays(port.as_ref())? {
                let ty = types.get(made.len()).ok_or_else(missing)?;
                made.push(array.reshape(&ty.shape[..])?);
            }
        }
        Ok(made)
    }
}

// The state of a call may be read by concurrent executions.
const _: fn() = || {
    fn is_shared<T: Send + Sync>() {}
    is_shared::<FfiCallSite>();
    is_shared::<Mutex<Option<FfiState>>>();
};
