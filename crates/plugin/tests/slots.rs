//! Tests that every PJRT function of the table handles any arguments: it returns an error with a message, or succeeds.

#![allow(unsafe_code)]

use std::ffi::c_void;
use systole_pjrt::sys::{self, ApiArgs, OpaquePtr};

/// Returns the function in a slot.
fn function(slot: usize) -> sys::ApiFunction {
    let table = systole_plugin::GetPjrtApi().cast::<u8>();
    // SAFETY: the table has that many functions after its header, and is never freed.
    unsafe { *table.add(sys::FIRST_SLOT + slot * size_of::<usize>()).cast::<sys::ApiFunction>() }
}

/// Calls the function of the arguments' type.
fn call<A: ApiArgs>(args: &mut A) -> OpaquePtr {
    // SAFETY: the arguments are those of the function.
    unsafe { function((A::SLOT - sys::FIRST_SLOT) / size_of::<usize>())(std::ptr::from_mut(args).cast()) }
}

/// Returns message and code of an error, and destroys it.
fn told(error: OpaquePtr) -> (String, i32) {
    let mut message = sys::Error_Message { error, ..ApiArgs::new() };
    assert!(call(&mut message).is_null());
    // SAFETY: the plugin states the length of its message.
    let text = unsafe { std::slice::from_raw_parts(message.message, message.message_size) };
    let text = String::from_utf8_lossy(text).into_owned();
    let mut code = sys::Error_GetCode { error, ..ApiArgs::new() };
    assert!(call(&mut code).is_null());
    let mut payloads = sys::Error_ForEachPayload { error, ..ApiArgs::new() };
    assert!(call(&mut payloads).is_null());
    assert!(call(&mut sys::Error_Destroy { error, ..ApiArgs::new() }).is_null());
    (text, code.code)
}

#[test]
fn every_slot_answers_arguments_that_say_nothing() {
    assert_eq!(sys::NAMES.len() * size_of::<usize>() + sys::FIRST_SLOT, sys::API_SIZE);
    let (mut lacking, mut refused, mut answered) = (Vec::new(), 0, 0);
    for (slot, name) in sys::NAMES.iter().enumerate() {
        let mut args = [0usize; 40];
        // A structure with only its header.
        args[0] = 16;
        // SAFETY: every structure starts with its size, and no more is read.
        let error = unsafe { function(slot)((&raw mut args).cast::<c_void>()) };
        if error.is_null() {
            answered += 1;
            continue;
        }
        let (text, code) = told(error);
        assert!(!text.is_empty() && (1..=16).contains(&code), "{name}: {code} {text}");
        if code == sys::code::UNIMPLEMENTED {
            assert!(text.contains(&format!("PJRT_{name} ")), "{name}: {text}");
            lacking.push(*name);
        } else {
            refused += 1;
        }
    }
    assert!(lacking.len() <= 22, "{} are lacking: {lacking:?}", lacking.len());
    assert!(refused > 80 && answered > 5, "{refused} refused, {answered} answered");
}

#[test]
fn arguments_of_zeros_are_refused_and_leave_nothing_broken() {
    for (slot, name) in sys::NAMES.iter().enumerate() {
        let mut args = [0usize; 40];
        args[0] = size_of_val(&args);
        // SAFETY: every field is zero, and every structure is shorter than that.
        let error = unsafe { function(slot)((&raw mut args).cast::<c_void>()) };
        if !error.is_null() {
            let (text, _) = told(error);
            assert!(!text.is_empty(), "{name}");
        }
    }
}

#[test]
fn null_arguments_are_refused() {
    for (slot, name) in sys::NAMES.iter().enumerate() {
        // SAFETY: the functions check the pointer.
        let error = unsafe { function(slot)(std::ptr::null_mut()) };
        assert!(!error.is_null(), "{name}");
        let (text, _) = told(error);
        assert!(!text.is_empty(), "{name}");
    }
}

/// Callers that were compiled with older headers have shorter structures.
#[test]
fn structures_of_every_size_are_handled_and_nothing_behind_them_is_written() {
    const UNTOUCHED: usize = 0xABCD;
    for (slot, name) in sys::NAMES.iter().enumerate() {
        // The header omits the last field of these structures when it counts the size.
        let slack = usize::from(*name == "Plugin_Attributes") * 8;
        for size in (0..=200).step_by(8) {
            let mut args = [0usize; 40];
            args[0] = size;
            args[(size / 8).max(1)..].fill(UNTOUCHED);
            if slack > 0 {
                args[1..8].fill(0);
            }
            // SAFETY: every field is zero, and no more than `size` bytes are read.
            let error = unsafe { function(slot)((&raw mut args).cast::<c_void>()) };
            if !error.is_null() {
                let (text, _) = told(error);
                assert!(!text.is_empty(), "{name} of {size} bytes");
            }
            let behind = if slack > 0 { 8 } else { (size / 8).max(1) };
            assert!(args[behind..].iter().all(|v| *v == UNTOUCHED || slack > 0), "{name} of {size} bytes");
        }
    }
}
