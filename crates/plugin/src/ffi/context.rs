//! Execution context of an FFI call: states of its stages, user data, errors, futures and registered types.

use super::abi::{ALREADY_EXISTS, FfiDeleter, FfiError, INVALID_ARGUMENT, NOT_FOUND};
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_void};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// Locks, also after a panic.
pub(super) fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl FfiError {
    pub(super) fn new(code: i32, message: impl Into<String>) -> FfiError {
        let message = CString::new(message.into().replace('\0', " ")).unwrap_or_default();
        FfiError { code, message }
    }

    /// Creates the object behind `XLA_FFI_Error*`.
    pub(super) fn object(self) -> *mut FfiError {
        Box::into_raw(Box::new(self))
    }

    pub(super) fn text(&self) -> String {
        CStr::to_string_lossy(&self.message).into_owned()
    }
}

/// A user's object, destroyed with its owner.
pub(super) struct FfiState {
    pub(super) type_id: i64,
    pub(super) pointer: *mut c_void,
    pub(super) deleter: Option<FfiDeleter>,
}

// SAFETY: the user's object is used by several threads as in XLA.
unsafe impl Send for FfiState {}

impl Drop for FfiState {
    fn drop(&mut self) {
        if let Some(deleter) = self.deleter.filter(|_| !self.pointer.is_null()) {
            // SAFETY: the deleter of the object's type, called once.
            unsafe { deleter(self.pointer) };
        }
    }
}

/// A slot for the state of a stage.
pub(super) type StateSlot = Mutex<Option<FfiState>>;

/// The object behind `XLA_FFI_ExecutionContext*`.
pub(super) struct FfiContext {
    /// Minor version of the handler's header.
    pub(super) minor: i32,
    pub(super) run: i64,
    pub(super) user_data: Arc<FfiUserData>,
    /// States of the stages before execution: that of the call site, and those of this execution.
    pub(super) states: [Arc<StateSlot>; 3],
}

impl FfiContext {
    fn slot(&self, stage: i32) -> Result<&StateSlot, FfiError> {
        let found = usize::try_from(stage).ok().and_then(|i| self.states.get(i));
        let wrong = || FfiError::new(INVALID_ARGUMENT, format!("the stage {stage} has no state"));
        found.map(|slot| &**slot).ok_or_else(wrong)
    }

    pub(super) fn set(&self, stage: i32, state: FfiState) -> Result<(), FfiError> {
        let mut slot = lock(self.slot(stage)?);
        if slot.is_some() {
            // The caller keeps its object.
            std::mem::forget(state);
            return Err(FfiError::new(INVALID_ARGUMENT, "the state is already set"));
        }
        *slot = Some(state);
        Ok(())
    }

    pub(super) fn get(&self, stage: i32, type_id: i64) -> Result<*mut c_void, FfiError> {
        match &*lock(self.slot(stage)?) {
            Some(state) if state.type_id == type_id => Ok(state.pointer),
            Some(_) => Err(FfiError::new(INVALID_ARGUMENT, "the state has another type")),
            None => Err(FfiError::new(NOT_FOUND, "the state is not set")),
        }
    }
}

/// User data of an execution (`PJRT_ExecuteContext`, `ffi::UserData<T>`): objects by type that the caller of a program passes
/// to its FFI handlers.
#[derive(Default)]
pub(crate) struct FfiUserData(Mutex<Vec<FfiState>>);

thread_local! {
    /// Objects of the program that runs on this thread.
    static CURRENT: RefCell<Arc<FfiUserData>> = RefCell::default();
}

impl FfiUserData {
    /// Adds an object.
    pub(super) fn add(&self, object: FfiState) -> Result<(), FfiError> {
        let mut objects = lock(&self.0);
        if objects.iter().any(|known| known.type_id == object.type_id) {
            let what = format!("the execution context has an object of type {} already", object.type_id);
            // The caller keeps its object.
            std::mem::forget(object);
            return Err(FfiError::new(ALREADY_EXISTS, what));
        }
        objects.push(object);
        Ok(())
    }

    /// Returns the object of a type.
    pub(super) fn get(&self, type_id: i64) -> Result<*mut c_void, FfiError> {
        let objects = lock(&self.0);
        let found = objects.iter().find(|object| object.type_id == type_id);
        let missing = || {
            let what = format!(
                "the execution context has no user data of type {type_id}; add it to the context of the execution \
                 with PJRT_FFI_UserData_Add"
            );
            FfiError::new(NOT_FOUND, what)
        };
        found.map(|object| object.pointer).ok_or_else(missing)
    }

    /// Runs a program whose handlers get these objects.
    pub(crate) fn within<T>(self: Arc<FfiUserData>, run: impl FnOnce() -> T) -> T {
        /// Restores the previous objects, also after a panic.
        struct Previous(Arc<FfiUserData>);
        impl Drop for Previous {
            fn drop(&mut self) {
                CURRENT.set(std::mem::take(&mut self.0));
            }
        }
        let _previous = Previous(CURRENT.replace(self));
        run()
    }

    /// Returns the objects of the program that runs on this thread.
    pub(super) fn current() -> Arc<FfiUserData> {
        CURRENT.with_borrow(Arc::clone)
    }
}

/// The object behind `XLA_FFI_Future*`: the outcome of a handler that ends later.
#[derive(Default)]
pub(super) struct FfiFuture {
    outcome: Mutex<Option<Result<(), FfiError>>>,
    changed: Condvar,
}

impl FfiFuture {
    /// Creates a future with two owners: the caller of the handler, and the thread that ends it.
    pub(super) fn object() -> *const c_void {
        let future = Arc::new(FfiFuture::default());
        // The other owner.
        std::mem::forget(future.clone());
        Arc::into_raw(future).cast()
    }

    pub(super) fn set(&self, outcome: Result<(), FfiError>) {
        lock(&self.outcome).get_or_insert(outcome);
        self.changed.notify_all();
    }

    pub(super) fn wait(&self) -> Result<(), FfiError> {
        let mut outcome = lock(&self.outcome);
        loop {
            match outcome.take() {
                Some(made) => return made,
                None => outcome = self.changed.wait(outcome).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }
}

/// A registered type of users' objects.
struct RegisteredType {
    name: String,
    id: i64,
    deleter: Option<FfiDeleter>,
}

/// Types of users' objects by name.
static TYPES: Mutex<Vec<RegisteredType>> = Mutex::new(Vec::new());

/// Ids of types that no other library has numbered; those of XLA start at 1.
const FIRST_TYPE: i64 = 1 << 32;

/// Registers a type and returns its id: the given one, or a new one if that is 0.
pub(super) fn register_type(name: &str, id: i64, deleter: Option<FfiDeleter>) -> Result<i64, FfiError> {
    let mut types = lock(&TYPES);
    if let Some(known) = types.iter_mut().find(|known| known.name == name) {
        if id != 0 && id != known.id {
            let what = format!("the type `{name}` has id {}, got {id}", known.id);
            return Err(FfiError::new(INVALID_ARGUMENT, what));
        }
        known.deleter = deleter.or(known.deleter);
        return Ok(known.id);
    }
    if id != 0 && types.iter().any(|known| known.id == id) {
        return Err(FfiError::new(INVALID_ARGUMENT, format!("another type than `{name}` has id {id}")));
    }
    let id = if id == 0 { FIRST_TYPE + types.len() as i64 } else { id };
    types.push(RegisteredType { name: name.into(), id, deleter });
    Ok(id)
}

/// Returns the destructor of a type.
pub(super) fn deleter(id: i64) -> Result<Option<FfiDeleter>, FfiError> {
    let found = lock(&TYPES).iter().find(|known| known.id == id).map(|known| known.deleter);
    found.ok_or_else(|| FfiError::new(INVALID_ARGUMENT, format!("no type with id {id} is registered")))
}
