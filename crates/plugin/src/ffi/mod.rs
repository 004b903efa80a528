//! Foreign function interface (XLA FFI) of custom calls: C functions that users register by
//! `jax.ffi.register_ffi_target(name, capsule, platform="systole")` and call by `jax.ffi.ffi_call`.
//!
//! `abi` has the structures of XLA's header `c_api.h`, `api` the functions that handlers call, `handlers` the registry,
//! `registration` its entries for Python and PJRT, `call_site` a call in a program with its state, and `untyped` the calls of
//! C functions that precede the FFI.

mod abi;
mod api;
mod attributes;
mod call_site;
mod context;
mod handlers;
mod registration;
mod threads;
mod untyped;

pub(crate) use call_site::FfiCallSites;
pub(crate) use context::FfiUserData;
pub(crate) use registration::FFI_FUNCTIONS;
pub use registration::{
    systole_free_text, systole_register_custom_call, systole_register_ffi_handler, systole_register_ffi_type,
};
