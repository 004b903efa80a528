//! User data of an execution (`PJRT_ExecuteContext`, `ffi::UserData<T>`): objects by type that the caller of a program
//! passes to its FFI handlers.

use super::abi::{ALREADY_EXISTS, FfiError, NOT_FOUND};
use super::context::{FfiState, lock};
use std::cell::RefCell;
use std::ffi::c_void;
use std::sync::{Arc, Mutex};

/// Objects by type.
#[derive(Default)]
pub(crate) struct UserData(Mutex<Vec<FfiState>>);

thread_local! {
    /// Objects of the program that runs on this thread.
    static CURRENT: RefCell<Arc<UserData>> = RefCell::default();
}

impl UserData {
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
    pub(crate) fn within<T>(self: Arc<UserData>, run: impl FnOnce() -> T) -> T {
        /// Restores the previous objects, also after a panic.
        struct Previous(Arc<UserData>);
        impl Drop for Previous {
            fn drop(&mut self) {
                CURRENT.set(std::mem::take(&mut self.0));
            }
        }
        let _previous = Previous(CURRENT.replace(self));
        run()
    }

    /// Returns the objects of the program that runs on this thread.
    pub(super) fn current() -> Arc<UserData> {
        CURRENT.with_borrow(Arc::clone)
    }
}
