//! The table of functions: how a call comes in, how an answer and an error go out.

use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;
use systole_ir::{Error, ErrorKind};
use systole_pjrt::sys::{self, Args, Object, code};

/// An error on its way out, with the code that callers see.
pub(crate) struct Failure {
    pub(crate) code: i32,
    pub(crate) message: String,
}

/// What a function of the plugin returns.
pub(crate) type Answer = Result<(), Failure>;

impl Failure {
    pub(crate) fn invalid(message: impl Into<String>) -> Failure {
        Failure { code: code::INVALID_ARGUMENT, message: message.into() }
    }

    pub(crate) fn unimplemented(message: impl Into<String>) -> Failure {
        Failure { code: code::UNIMPLEMENTED, message: message.into() }
    }
}

impl From<Error> for Failure {
    fn from(e: Error) -> Failure {
        let code = match e.kind() {
            ErrorKind::Unsupported => code::UNIMPLEMENTED,
            ErrorKind::Bug => code::INTERNAL,
            _ => code::INVALID_ARGUMENT,
        };
        Failure { code, message: e.to_string() }
    }
}

/// A function of the C API, as a method of its arguments.
pub(crate) trait Handle: Args {
    /// # Safety
    /// Pointers in the arguments are as the C API says.
    unsafe fn handle(&mut self) -> Answer;
}

/// The object behind `PJRT_Error*`. Since version 0.117 it begins with a pointer to its own functions.
#[repr(C)]
struct ErrorObject {
    functions: *const ErrorFunctions,
    failure: Failure,
}

#[repr(C)]
struct ErrorFunctions {
    struct_size: usize,
    instance_size: usize,
    extension_start: *const c_void,
    functions: [Option<sys::Function>; 4],
}

// SAFETY: constant numbers and functions.
unsafe impl Sync for ErrorFunctions {}

static ERROR_FUNCTIONS: ErrorFunctions = ErrorFunctions {
    struct_size: size_of::<ErrorFunctions>(),
    instance_size: size_of::<usize>(),
    extension_start: std::ptr::null(),
    functions: [
        Some(entry::<sys::Error_Destroy>),
        Some(entry::<sys::Error_Message>),
        Some(entry::<sys::Error_GetCode>),
        Some(entry::<sys::Error_ForEachPayload>),
    ],
};

/// An error object, which the caller destroys.
pub(crate) fn error(failure: Failure) -> Object {
    Box::into_raw(Box::new(ErrorObject { functions: &raw const ERROR_FUNCTIONS, failure })).cast()
}

/// How every call comes in. Callers may have been compiled with a shorter or a longer structure: only what both know
/// is read and written. A panic must not cross into C.
unsafe extern "C" fn entry<A: Handle>(args: *mut c_void) -> Object {
    let answer = catch_unwind(AssertUnwindSafe(|| {
        let mut own = A::new();
        // SAFETY: every structure begins with its size.
        let known = unsafe { *args.cast::<usize>() }.min(A::SIZE);
        // SAFETY: both are at least that long, and any bytes of the caller's are integers and pointers.
        unsafe { std::ptr::copy_nonoverlapping(args.cast::<u8>(), (&raw mut own).cast(), known) };
        // SAFETY: the caller follows the C API.
        let answer = unsafe { own.handle() };
        // SAFETY: as above.
        unsafe { std::ptr::copy_nonoverlapping((&raw const own).cast::<u8>(), args.cast(), known) };
        answer
    }));
    match answer {
        Ok(Ok(())) => std::ptr::null_mut(),
        Ok(Err(failure)) => error(failure),
        Err(_) => error(Failure { code: code::INTERNAL, message: "a defect of Systole's plugin".into() }),
    }
}

/// What stands in the table for functions that the plugin does not have.
unsafe extern "C" fn lacking(_: *mut c_void) -> Object {
    error(Failure::unimplemented("Systole's plugin does not have this function"))
}

const SLOTS: usize = (sys::API_SIZE - sys::FIRST_SLOT) / size_of::<usize>();

#[repr(C)]
struct Table {
    head: sys::Api,
    functions: [sys::Function; SLOTS],
}

// SAFETY: constant numbers and functions.
unsafe impl Sync for Table {}
// SAFETY: as above.
unsafe impl Send for Table {}

impl Table {
    fn new() -> Table {
        let head = sys::Api {
            struct_size: sys::API_SIZE,
            extension_start: std::ptr::null_mut(),
            version_size: 24,
            version_extension: std::ptr::null_mut(),
            major: sys::API_VERSION.0,
            minor: sys::API_VERSION.1,
        };
        let mut table = Table { head, functions: [lacking; SLOTS] };
        crate::table::fill(&mut table);
        table
    }

    fn has<A: Handle>(&mut self) {
        self.functions[(A::SLOT - sys::FIRST_SLOT) / size_of::<usize>()] = entry::<A>;
    }
}

macro_rules! functions {
    ($($name:ident)*) => {
        fn fill(table: &mut Table) {
            $(table.has::<sys::$name>();)*
        }
    };
}

functions! {
    Error_Destroy Error_Message Error_GetCode Error_ForEachPayload Plugin_Initialize Plugin_Attributes
    Event_Destroy Event_IsReady Event_Error Event_Await Event_OnReady
    Client_Create Client_Destroy Client_PlatformName Client_ProcessIndex Client_PlatformVersion Client_Devices
    Client_AddressableDevices Client_LookupDevice Client_LookupAddressableDevice Client_AddressableMemories
    Client_TopologyDescription Client_DefaultDeviceAssignment
    TopologyDescription_PlatformName TopologyDescription_PlatformVersion TopologyDescription_GetDeviceDescriptions
    TopologyDescription_Attributes
    DeviceDescription_Id DeviceDescription_ProcessIndex DeviceDescription_Attributes DeviceDescription_Kind
    DeviceDescription_DebugString DeviceDescription_ToString
    Device_GetDescription Device_IsAddressable Device_LocalHardwareId Device_AddressableMemories
    Device_DefaultMemory Device_GetAttributes
    Memory_Id Memory_Kind Memory_DebugString Memory_ToString Memory_AddressableByDevices
    Client_BufferFromHostBuffer Buffer_Destroy Buffer_ElementType Buffer_Dimensions
    Buffer_DynamicDimensionIndices Buffer_OnDeviceSizeInBytes Buffer_Device Buffer_Memory Buffer_Delete
    Buffer_IsDeleted Buffer_ToHostBuffer Buffer_IsOnCpu Buffer_ReadyEvent
    Client_Compile LoadedExecutable_Destroy LoadedExecutable_GetExecutable
    LoadedExecutable_AddressableDevices LoadedExecutable_Execute
    Executable_Destroy Executable_Name Executable_NumReplicas Executable_NumPartitions Executable_NumOutputs
    Executable_Serialize Executable_DeserializeAndLoad
}

/// The plugin's only door.
#[unsafe(no_mangle)]
#[allow(non_snake_case, reason = "the name that PJRT looks for")]
pub extern "C" fn GetPjrtApi() -> *const c_void {
    static TABLE: OnceLock<Table> = OnceLock::new();
    std::ptr::from_ref(TABLE.get_or_init(Table::new)).cast()
}

impl Handle for sys::Error_Destroy {
    unsafe fn handle(&mut self) -> Answer {
        if !self.error.is_null() {
            // SAFETY: made by `error`, and given back once.
            drop(unsafe { Box::from_raw(self.error.cast::<ErrorObject>()) });
        }
        Ok(())
    }
}

impl Handle for sys::Error_Message {
    unsafe fn handle(&mut self) -> Answer {
        // SAFETY: made by `error`, and alive.
        let object = unsafe { &*self.error.cast::<ErrorObject>() };
        (self.message, self.message_size) = chars(&object.failure.message);
        Ok(())
    }
}

impl Handle for sys::Error_GetCode {
    unsafe fn handle(&mut self) -> Answer {
        // SAFETY: made by `error`, and alive.
        self.code = unsafe { &*self.error.cast::<ErrorObject>() }.failure.code;
        Ok(())
    }
}

impl Handle for sys::Error_ForEachPayload {
    /// There are none. It must not fail: callers would ask the failure for its payloads, for ever.
    unsafe fn handle(&mut self) -> Answer {
        Ok(())
    }
}

impl Handle for sys::Plugin_Initialize {
    unsafe fn handle(&mut self) -> Answer {
        Ok(())
    }
}

impl Handle for sys::Plugin_Attributes {
    unsafe fn handle(&mut self) -> Answer {
        static LIST: OnceLock<Attributes> = OnceLock::new();
        let list = LIST.get_or_init(Attributes::new);
        (self.attributes, self.num_attributes) = (list.0.as_ptr(), list.0.len());
        Ok(())
    }
}

/// What callers ask a plugin about itself: XLA's version, and the versions of StableHLO that it reads.
struct Attributes(Vec<sys::NamedValue>);

// SAFETY: points to constants only.
unsafe impl Sync for Attributes {}
// SAFETY: as above.
unsafe impl Send for Attributes {}

impl Attributes {
    fn new() -> Attributes {
        const CURRENT: &[i64] = &[1, 9, 0];
        const MINIMUM: &[i64] = &[0, 9, 0];
        let list = |name: &'static str, value: &'static [i64]| sys::NamedValue {
            name: name.as_ptr(),
            name_size: name.len(),
            type_: sys::named::INT64_LIST,
            value: value.as_ptr() as u64,
            value_size: value.len(),
            ..Args::new()
        };
        let xla =
            sys::NamedValue { type_: sys::named::INT64, value: 2, value_size: 1, ..list("xla_version", &[]) };
        Attributes(vec![
            xla,
            list("stablehlo_current_version", CURRENT),
            list("stablehlo_minimum_version", MINIMUM),
        ])
    }
}

/// Pointer and length of a text.
pub(crate) fn chars(text: &str) -> (sys::Chars, usize) {
    (text.as_ptr(), text.len())
}
