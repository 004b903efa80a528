//! Python callbacks: calls the function that the Python package passes for the custom calls `systole_python_callback`.
//!
//! A call names its function by the number of the Python session and the function's id. A program that was compiled in
//! another process has another session, and is an error.

use std::collections::HashMap;
use std::ffi::{CStr, CString, c_char, c_void};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use systole_cpu::with_subnormals;
use systole_ir::op::Op;
use systole_ir::op::custom_call::register;
use systole_ir::{Graph, Literal, Result, TensorType, ensure, err};
use systole_mlir::import::effects::TARGET;

/// `(id, operands, results) → null`, or the text of an exception, which is valid until the thread's next call.
type PythonCall = unsafe extern "C" fn(u64, *const *const c_void, *const *mut c_void) -> *const c_char;

/// The function that calls Python, and the number of its session.
static PYTHON: Mutex<Option<(PythonCall, u64)>> = Mutex::new(None);

/// Number of programs that call each function.
static USES: Mutex<Option<HashMap<u64, u64>>> = Mutex::new(None);

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Sets the function that calls Python.
///
/// # Safety
/// `call` may be called from any thread until the process ends.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn systole_set_python_callback(call: PythonCall, session: u64) {
    *lock(&PYTHON) = Some((call, session));
    register(TARGET, Arc::new(call_python));
}

/// Returns the number of programs that call a function.
#[unsafe(no_mangle)]
pub extern "C" fn systole_python_callback_uses(id: u64) -> u64 {
    lock(&USES).as_ref().and_then(|uses| uses.get(&id)).copied().unwrap_or(0)
}

/// Returns the session and the function's id.
fn named(config: &str) -> Option<(u64, u64)> {
    let mut words = config.split(' ');
    Some((words.next()?.parse().ok()?, words.next()?.parse().ok()?))
}

fn call_python(config: &str, args: &[&Literal], types: &[TensorType]) -> Result<Vec<Literal>> {
    let python = *lock(&PYTHON);
    let Some(((call, session), (own, id))) = python.zip(named(config)) else {
        return Err(err!(Data, "`{config}` does not describe a Python callback"));
    };
    ensure!(
        own == session,
        err!(Unsupported, "the program calls Python functions of another process")
            .hint("compile the program again in this process")
    );
    let mut results: Vec<Literal> = types.iter().map(|ty| Literal::zeros(ty.clone())).collect();
    let inputs: Vec<*const c_void> = args.iter().map(|a| a.bytes().as_ptr().cast()).collect();
    let outputs: Vec<*mut c_void> = results.iter_mut().map(|r| r.bytes_mut().as_mut_ptr().cast()).collect();
    // SAFETY: the function reads the operands and writes the results, whose types it knows.
    let failure = with_subnormals(|| unsafe { call(id, inputs.as_ptr(), outputs.as_ptr()) });
    check(failure, "a Python callback")?;
    Ok(results)
}

/// Reports the sharding of an array (GSPMD text) to the Python function that the attributes of a call name. Functions of
/// another session are not called: JAX does not inspect arrays of cached programs either.
pub(crate) fn report_sharding(config: &str, sharding: &str) -> Result<()> {
    let python = *lock(&PYTHON);
    let Some(((call, session), (own, id))) = python.zip(named(config)) else { return Ok(()) };
    if own != session {
        return Ok(());
    }
    let text = CString::new(sharding).unwrap_or_default();
    // SAFETY: the function reads its only operand, a text, and writes nothing.
    let failure = unsafe { call(id, [text.as_ptr().cast()].as_ptr(), std::ptr::null()) };
    check(failure, "an inspection of a sharding")
}

/// Returns the text of an exception as an error.
fn check(failure: *const c_char, what: &str) -> Result<()> {
    if failure.is_null() {
        return Ok(());
    }
    // SAFETY: text that ends with a zero byte, valid until the thread's next call.
    let text = unsafe { CStr::from_ptr(failure) }.to_string_lossy();
    Err(err!(Interrupted, "error calling {what}: {}", text.trim_end()))
}

/// The Python functions that a program calls.
pub(crate) struct PythonFunctions(Vec<u64>);

impl PythonFunctions {
    /// Registers the uses of a program.
    pub(crate) fn of(graph: &Graph) -> PythonFunctions {
        let mut ids = Vec::new();
        let mut open = vec![graph];
        while let Some(graph) = open.pop() {
            for node in &graph.nodes {
                if let Op::CustomCall(call) = &node.op
                    && call.target == TARGET
                {
                    ids.extend(named(&call.config).map(|(_, id)| id));
                }
                open.extend(node.op.rule().regions().into_iter().map(|body| &**body));
            }
        }
        let mut uses = lock(&USES);
        let uses = uses.get_or_insert_default();
        ids.iter().for_each(|id| *uses.entry(*id).or_default() += 1);
        PythonFunctions(ids)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Drop for PythonFunctions {
    fn drop(&mut self) {
        let mut uses = lock(&USES);
        let Some(uses) = uses.as_mut() else { return };
        for id in &self.0 {
            if let Some(count) = uses.get_mut(id) {
                *count -= 1;
            }
        }
        uses.retain(|_, count| *count > 0);
    }
}
