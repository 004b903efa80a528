//! C structures of XLA's FFI (`xla/ffi/api/c_api.h`, version 0.3; older handlers are compatible). Each structure starts
//! with its size and a list of extensions.

use super::context::FfiContext;
use std::ffi::{c_char, c_void};
use systole_mlir::interface::SourceElement;

/// Version of the structures, and oldest version of handlers.
pub(super) const VERSION: (i32, i32) = (0, 3);
pub(super) const OLDEST: (i32, i32) = (0, 1);

/// Stages in which handlers are called.
pub(super) const INSTANTIATE: i32 = 0;
pub(super) const PREPARE: i32 = 1;
pub(super) const INITIALIZE: i32 = 2;
pub(super) const EXECUTE: i32 = 3;

/// Kinds of attributes.
pub(super) const ARRAY: i32 = 1;
pub(super) const DICTIONARY: i32 = 2;
pub(super) const SCALAR: i32 = 3;
pub(super) const STRING: i32 = 4;

/// Type of arguments and results.
pub(super) const BUFFER: i32 = 1;

/// Error codes.
pub(super) const INVALID_ARGUMENT: i32 = 3;
pub(super) const NOT_FOUND: i32 = 5;
pub(super) const ALREADY_EXISTS: i32 = 6;
pub(super) const RESOURCE_EXHAUSTED: i32 = 8;
pub(super) const UNIMPLEMENTED: i32 = 12;

/// Type of the extension by which a handler is queried for its version.
pub(super) const METADATA: i32 = 1;

/// A handler.
pub(super) type FfiHandler = unsafe extern "C" fn(*mut FfiCallFrame) -> *mut FfiError;

/// Destructor of a user's object.
pub(super) type FfiDeleter = unsafe extern "C" fn(*mut c_void);

/// An error, created by the handler through the API.
pub(super) struct FfiError {
    pub(super) code: i32,
    pub(super) message: std::ffi::CString,
}

/// Characters without terminator.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct ByteSpan {
    pub(super) ptr: *const u8,
    pub(super) len: usize,
}

/// Size and extensions.
#[repr(C)]
pub(super) struct FfiHeader {
    pub(super) size: usize,
    pub(super) extensions: *mut c_void,
}

impl FfiHeader {
    pub(super) fn of<T>() -> FfiHeader {
        FfiHeader { size: size_of::<T>(), extensions: std::ptr::null_mut() }
    }
}

#[repr(C)]
pub(super) struct FfiBuffer {
    pub(super) header: FfiHeader,
    pub(super) dtype: i32,
    pub(super) data: *mut c_void,
    pub(super) rank: i64,
    pub(super) dims: *mut i64,
}

#[repr(C)]
pub(super) struct FfiScalar {
    pub(super) dtype: i32,
    pub(super) value: *mut c_void,
}

#[repr(C)]
pub(super) struct FfiArray {
    pub(super) dtype: i32,
    pub(super) size: usize,
    pub(super) data: *mut c_void,
}

/// Arguments or results.
#[repr(C)]
pub(super) struct FfiArguments {
    pub(super) header: FfiHeader,
    pub(super) size: i64,
    pub(super) types: *mut i32,
    pub(super) values: *mut *mut c_void,
}

#[repr(C)]
pub(super) struct FfiAttributes {
    pub(super) header: FfiHeader,
    pub(super) size: i64,
    pub(super) types: *mut i32,
    pub(super) names: *mut *mut ByteSpan,
    pub(super) values: *mut *mut c_void,
}

#[repr(C)]
pub(super) struct FfiCallFrame {
    pub(super) header: FfiHeader,
    pub(super) api: *const c_void,
    pub(super) context: *mut FfiContext,
    pub(super) stage: i32,
    pub(super) arguments: FfiArguments,
    pub(super) results: FfiArguments,
    pub(super) attributes: FfiAttributes,
    /// Set by handlers that end later.
    pub(super) future: *mut c_void,
}

/// The size that handlers compare with their own; it ends before the future.
pub(super) const FRAME_SIZE: usize = std::mem::offset_of!(FfiCallFrame, future);

#[repr(C)]
pub(super) struct FfiVersion {
    pub(super) header: FfiHeader,
    pub(super) major: i32,
    pub(super) minor: i32,
}

#[repr(C)]
pub(super) struct FfiMetadata {
    pub(super) size: usize,
    pub(super) version: FfiVersion,
    pub(super) traits: u32,
    pub(super) state_type: i64,
}

#[repr(C)]
pub(super) struct FfiMetadataExtension {
    pub(super) size: usize,
    pub(super) type_: i32,
    pub(super) next: *mut c_void,
    pub(super) metadata: *mut FfiMetadata,
}

/// Handlers of the stages; only the last is required.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct FfiHandlers {
    pub(super) instantiate: Option<FfiHandler>,
    pub(super) prepare: Option<FfiHandler>,
    pub(super) initialize: Option<FfiHandler>,
    pub(super) execute: Option<FfiHandler>,
}

#[repr(C)]
pub(super) struct FfiTypeInfo {
    pub(super) header: FfiHeader,
    pub(super) deleter: Option<FfiDeleter>,
}

/// Arguments of the API's functions.
pub(super) mod args {
    use super::*;

    #[repr(C)]
    pub(in crate::ffi) struct ErrorCreate {
        pub(in crate::ffi) header: FfiHeader,
        pub(in crate::ffi) message: *const c_char,
        pub(in crate::ffi) code: i32,
    }

    #[repr(C)]
    pub(in crate::ffi) struct ErrorDestroy {
        pub(in crate::ffi) header: FfiHeader,
        pub(in crate::ffi) error: *mut FfiError,
    }

    #[repr(C)]
    pub(in crate::ffi) struct ErrorMessage {
        pub(in crate::ffi) header: FfiHeader,
        pub(in crate::ffi) error: *mut FfiError,
        pub(in crate::ffi) message: *const c_char,
    }

    #[repr(C)]
    pub(in crate::ffi) struct HandlerRegister {
        pub(in crate::ffi) header: FfiHeader,
        pub(in crate::ffi) name: ByteSpan,
        pub(in crate::ffi) platform: ByteSpan,
        pub(in crate::ffi) handlers: FfiHandlers,
        pub(in crate::ffi) traits: u32,
    }

    #[repr(C)]
    pub(in crate::ffi) struct TypeRegister {
        pub(in crate::ffi) header: FfiHeader,
        pub(in crate::ffi) name: ByteSpan,
        pub(in crate::ffi) type_id: *mut i64,
    }

    /// Arguments of `Type_Register` since version 0.2.
    #[repr(C)]
    pub(in crate::ffi) struct TypeRegisterInfo {
        pub(in crate::ffi) start: TypeRegister,
        pub(in crate::ffi) info: *const FfiTypeInfo,
    }

    #[repr(C)]
    pub(in crate::ffi) struct ContextGet {
        pub(in crate::ffi) header: FfiHeader,
        pub(in crate::ffi) context: *mut FfiContext,
        pub(in crate::ffi) type_id: *const i64,
        pub(in crate::ffi) data: *mut c_void,
    }

    /// Start of the arguments of `State_Set` and `State_Get`.
    #[repr(C)]
    pub(in crate::ffi) struct StateStart {
        pub(in crate::ffi) header: FfiHeader,
        pub(in crate::ffi) context: *mut FfiContext,
    }

    /// Version 0.3: the stage precedes the type.
    #[repr(C)]
    pub(in crate::ffi) struct StagedState {
        pub(in crate::ffi) start: StateStart,
        pub(in crate::ffi) stage: i32,
        pub(in crate::ffi) type_id: *const i64,
        pub(in crate::ffi) state: *mut c_void,
    }

    /// Older versions.
    #[repr(C)]
    pub(in crate::ffi) struct State {
        pub(in crate::ffi) start: StateStart,
        pub(in crate::ffi) type_id: *const i64,
        pub(in crate::ffi) state: *mut c_void,
    }

    /// `State_Set` in version 0.1.
    #[repr(C)]
    pub(in crate::ffi) struct OwnedState {
        pub(in crate::ffi) state: State,
        pub(in crate::ffi) deleter: Option<FfiDeleter>,
    }

    #[repr(C)]
    pub(in crate::ffi) struct MemoryAllocate {
        pub(in crate::ffi) header: FfiHeader,
        pub(in crate::ffi) context: *mut FfiContext,
        pub(in crate::ffi) bytes: usize,
        pub(in crate::ffi) alignment: usize,
        pub(in crate::ffi) data: *mut c_void,
    }

    #[repr(C)]
    pub(in crate::ffi) struct MemoryFree {
        pub(in crate::ffi) header: FfiHeader,
        pub(in crate::ffi) context: *mut FfiContext,
        pub(in crate::ffi) bytes: usize,
        pub(in crate::ffi) data: *mut c_void,
    }

    #[repr(C)]
    pub(in crate::ffi) struct PoolSchedule {
        pub(in crate::ffi) header: FfiHeader,
        pub(in crate::ffi) context: *mut FfiContext,
        pub(in crate::ffi) task: Option<FfiDeleter>,
        pub(in crate::ffi) data: *mut c_void,
    }

    #[repr(C)]
    pub(in crate::ffi) struct PoolThreads {
        pub(in crate::ffi) header: FfiHeader,
        pub(in crate::ffi) context: *mut FfiContext,
        pub(in crate::ffi) count: *mut i64,
    }

    /// Arguments of `Future_Create` and `Future_SetAvailable`.
    #[repr(C)]
    pub(in crate::ffi) struct Future {
        pub(in crate::ffi) header: FfiHeader,
        pub(in crate::ffi) future: *const c_void,
    }

    #[repr(C)]
    pub(in crate::ffi) struct FutureError {
        pub(in crate::ffi) header: FfiHeader,
        pub(in crate::ffi) future: *const c_void,
        pub(in crate::ffi) error: *mut FfiError,
    }

    #[repr(C)]
    pub(in crate::ffi) struct RunId {
        pub(in crate::ffi) header: FfiHeader,
        pub(in crate::ffi) context: *mut FfiContext,
        pub(in crate::ffi) id: i64,
    }

    #[repr(C)]
    pub(in crate::ffi) struct DeviceOrdinal {
        pub(in crate::ffi) header: FfiHeader,
        pub(in crate::ffi) context: *mut FfiContext,
        pub(in crate::ffi) ordinal: i32,
    }
}

/// Codes of element types.
const ELEMENTS: [(i32, &str); 29] = [
    (1, "i1"),
    (2, "i8"),
    (3, "i16"),
    (4, "i32"),
    (5, "i64"),
    (6, "ui8"),
    (7, "ui16"),
    (8, "ui32"),
    (9, "ui64"),
    (10, "f16"),
    (11, "f32"),
    (12, "f64"),
    (15, "complex<f32>"),
    (16, "bf16"),
    (17, "token"),
    (18, "complex<f64>"),
    (19, "f8E5M2"),
    (20, "f8E4M3FN"),
    (21, "i4"),
    (22, "ui4"),
    (23, "f8E4M3B11FNUZ"),
    (24, "f8E5M2FNUZ"),
    (25, "f8E4M3FNUZ"),
    (26, "i2"),
    (27, "ui2"),
    (28, "f8E4M3"),
    (29, "f8E3M4"),
    (32, "f4E2M1FN"),
    (33, "f8E8M0FNU"),
];

pub(super) const TOKEN: i32 = 17;

/// Returns the code of an element type; `None` for types that the FFI lacks.
pub(super) fn element_code(element: SourceElement) -> Option<i32> {
    let name = element.name();
    ELEMENTS.iter().find(|(_, known)| *known == name).map(|(code, _)| *code)
}
