//! Tests of FFI handlers through PJRT's C API: user data of an execution.

#![allow(unsafe_code)]

use std::ffi::c_void;
use systole_pjrt::sys::{self, ApiArgs, OpaquePtr};

/// Calls the PJRT function of the arguments' type, and returns the message of its error.
fn call<A: ApiArgs>(args: &mut A) -> Result<(), String> {
    let table = systole_plugin::GetPjrtApi().cast::<u8>();
    // SAFETY: the table has the function, which accepts the arguments.
    let error = unsafe {
        let function = *table.add(A::SLOT).cast::<sys::ApiFunction>();
        function(std::ptr::from_mut(args).cast())
    };
    outcome(error)
}

fn outcome(error: OpaquePtr) -> Result<(), String> {
    if error.is_null() {
        return Ok(());
    }
    let mut message = sys::Error_Message { error, ..ApiArgs::new() };
    call(&mut message)?;
    // SAFETY: the plugin states the length of its message.
    let text = unsafe { std::slice::from_raw_parts(message.message, message.message_size) };
    Err(String::from_utf8_lossy(text).into_owned())
}

/// Functions of the extension for FFI handlers: register a type, add user data, register a handler.
fn ffi_functions() -> *const sys::ApiFunction {
    /// Type of the extension.
    const FFI: i32 = 5;
    // SAFETY: the table's second word is a list of extensions: size, type, next.
    unsafe {
        let mut at = *systole_plugin::GetPjrtApi().cast::<*const u8>().add(1);
        while *at.add(8).cast::<i32>() != FFI {
            at = *at.add(16).cast::<*const u8>();
        }
        at.add(24).cast()
    }
}

/// The type of the user data: its id.
static mut NUMBER: i64 = 0;

/// A handler without operands, whose f32 result is the number in the user data of the execution.
unsafe extern "C" fn user_number(frame: *mut u8) -> *mut c_void {
    // SAFETY: offsets of XLA's structures on 64-bit machines.
    unsafe {
        let extension = *frame.add(8).cast::<*mut u8>();
        if !extension.is_null() {
            let metadata = *extension.add(24).cast::<*mut u8>();
            *metadata.add(24).cast::<[i32; 2]>() = [0, 3];
            return std::ptr::null_mut();
        }
        let (api, context) = (*frame.add(16).cast::<*const u8>(), *frame.add(24).cast::<*mut c_void>());
        let get = *api.add(96).cast::<unsafe extern "C" fn(*mut [usize; 5]) -> *mut c_void>();
        let mut args = [40, 0, context.addr(), (&raw mut NUMBER).addr(), 0];
        let error = get(&raw mut args);
        if error.is_null() {
            let results = *frame.add(112).cast::<*const *const u8>();
            let data = *(*results).add(24).cast::<*mut f32>();
            *data = *std::ptr::with_exposed_provenance::<f32>(args[4]);
        }
        error
    }
}

/// Runs the program with user data and returns its result.
fn run(executable: OpaquePtr, context: OpaquePtr) -> Result<f32, String> {
    let options = sys::ExecuteOptions { context, ..ApiArgs::new() };
    let mut result: OpaquePtr = std::ptr::null_mut();
    let results: [*mut OpaquePtr; 1] = [&raw mut result];
    let none: [*const OpaquePtr; 1] = [std::ptr::null()];
    call(&mut sys::LoadedExecutable_Execute {
        executable,
        options: &raw const options,
        argument_lists: none.as_ptr(),
        num_devices: 1,
        output_lists: results.as_ptr(),
        ..ApiArgs::new()
    })?;
    let mut value = 0f32;
    let mut read =
        sys::Buffer_ToHostBuffer { src: result, dst: (&raw mut value).cast(), dst_size: 4, ..ApiArgs::new() };
    call(&mut read)?;
    call(&mut sys::Event_Await { event: read.event, ..ApiArgs::new() })?;
    call(&mut sys::Event_Destroy { event: read.event, ..ApiArgs::new() })?;
    call(&mut sys::Buffer_Destroy { buffer: result, ..ApiArgs::new() })?;
    Ok(value)
}

#[test]
fn a_handler_reads_the_user_data_of_each_execution() {
    let name = "user_number";
    // SAFETY: a name of that length, and a handler.
    let made = unsafe {
        let stages = [0, 0, 0, user_number as *const () as usize];
        systole_plugin::systole_register_ffi_handler(name.as_ptr(), name.len(), &raw const stages)
    };
    assert!(made.is_null());
    // SAFETY: a name of that length, and an id.
    let made = unsafe {
        systole_plugin::systole_register_ffi_type(name.as_ptr(), name.len(), &raw mut NUMBER, None)
    };
    assert!(made.is_null());
    let mut client = sys::Client_Create::new();
    call(&mut client).unwrap();
    let client = client.client;
    let mut text = b"func.func @main() -> tensor<f32> {
      %0 = stablehlo.custom_call @user_number() {api_version = 4 : i32} : () -> tensor<f32>
      return %0 : tensor<f32>
    }"
    .to_vec();
    let program = sys::Program {
        code: text.as_mut_ptr(),
        code_size: text.len(),
        format: "mlir".as_ptr(),
        format_size: 4,
        ..ApiArgs::new()
    };
    let mut compiled = sys::Client_Compile { client, program: &raw const program, ..ApiArgs::new() };
    call(&mut compiled).unwrap();
    let executable = compiled.executable;

    let e = run(executable, std::ptr::null_mut()).unwrap_err();
    assert!(e.contains("`user_number`") && e.contains("PJRT_FFI_UserData_Add"), "{e}");
    let mut contexts = Vec::new();
    for mut number in [2.5f32, -1.0] {
        let mut made = sys::ExecuteContext_Create::new();
        call(&mut made).unwrap();
        // SAFETY: the id was set above.
        let type_id = unsafe { NUMBER };
        let data = (&raw mut number).cast::<c_void>();
        data.expose_provenance();
        let mut add = sys::FFI_UserData_Add { context: made.context, type_id, data, ..ApiArgs::new() };
        // SAFETY: the second function of the extension, with its arguments.
        let mut added = || unsafe { outcome((*ffi_functions().add(1))((&raw mut add).cast())) };
        added().unwrap();
        assert_eq!(run(executable, made.context), Ok(number));
        let again = added().unwrap_err();
        assert!(again.contains("already"), "{again}");
        contexts.push(made.context);
    }
    for context in contexts {
        call(&mut sys::ExecuteContext_Destroy { context, ..ApiArgs::new() }).unwrap();
    }
    call(&mut sys::LoadedExecutable_Destroy { executable, ..ApiArgs::new() }).unwrap();
    call(&mut sys::Client_Destroy { client, ..ApiArgs::new() }).unwrap();
}
