//! Extensions of the C API: layouts, which are all row-major, how programs split their arguments and results, and the profiler.

use crate::array::Array;
use crate::call::{Answer, Failure, Handle, entry, list, seen};
use crate::kind::Kind;
use crate::profiler;
use crate::program::{Loaded, Program};
use std::ffi::c_void;
use std::sync::OnceLock;
use systole_pjrt::sys::{self, Object};

/// The head of an extension and its functions.
#[repr(C)]
struct Extension<const N: usize> {
    struct_size: usize,
    type_: i32,
    next: *const c_void,
    functions: [sys::Function; N],
}

/// The extensions, each pointing to the next.
struct Chain {
    layouts: Extension<7>,
    shardings: Box<Extension<2>>,
    profiler: Box<sys::profiler::ProfilerExtension>,
}

// SAFETY: constant numbers and functions; the pointer is to the chain's own box.
unsafe impl Sync for Chain {}
// SAFETY: as above.
unsafe impl Send for Chain {}

/// Types of extensions.
const LAYOUTS: i32 = 4;
const SHARDINGS: i32 = 19;

impl Chain {
    fn new() -> Chain {
        let profiler = Box::new(profiler::extension());
        let shardings = Box::new(Extension {
            struct_size: size_of::<Extension<2>>(),
            type_: SHARDINGS,
            next: std::ptr::from_ref(&*profiler).cast(),
            functions: [
                entry::<sys::Shardings_Executable_ParameterShardings>,
                entry::<sys::Shardings_Executable_OutputShardings>,
            ],
        });
        let layouts = Extension {
            struct_size: size_of::<Extension<7>>(),
            type_: LAYOUTS,
            next: std::ptr::from_ref(&*shardings).cast(),
            functions: [
                entry::<sys::Layouts_MemoryLayout_Destroy>,
                entry::<sys::Layouts_MemoryLayout_Serialize>,
                entry::<sys::Layouts_Client_GetDefaultLayout>,
                entry::<sys::Layouts_Buffer_MemoryLayout>,
                entry::<sys::Layouts_Topology_GetDefaultLayout>,
                entry::<sys::Layouts_Executable_GetOutputLayouts>,
                entry::<sys::Layouts_Executable_GetParameterLayouts>,
            ],
        };
        Chain { layouts, shardings, profiler }
    }
}

/// The first extension.
pub(crate) fn first() -> *mut c_void {
    static CHAIN: OnceLock<Chain> = OnceLock::new();
    let chain = CHAIN.get_or_init(Chain::new);
    debug_assert!(std::ptr::eq(chain.layouts.next.cast(), &raw const *chain.shardings));
    debug_assert!(std::ptr::eq(chain.shardings.next.cast(), &raw const *chain.profiler));
    (&raw const chain.layouts).cast_mut().cast()
}

/// The object behind `PJRT_Layouts_MemoryLayout*`: its text, `{1,0}`.
fn object(kind: &Kind) -> Object {
    Box::into_raw(Box::new(kind.layout())).cast()
}

impl Handle for sys::Layouts_MemoryLayout_Destroy {
    unsafe fn handle(&mut self) -> Answer {
        if !self.layout.is_null() {
            // SAFETY: made by `object`, and given back once.
            drop(unsafe { Box::from_raw(self.layout.cast::<String>()) });
        }
        Ok(())
    }
}

/// Layouts own their text.
unsafe extern "C" fn keep(_: Object) {}

impl Handle for sys::Layouts_MemoryLayout_Serialize {
    unsafe fn handle(&mut self) -> Answer {
        // SAFETY: callers hand back what they were given.
        let text: &String = unsafe { seen(self.layout)? };
        (self.serialized_bytes, self.serialized_bytes_size) = (text.as_ptr(), text.len());
        self.serialized_layout = self.layout;
        self.serialized_layout_deleter = Some(keep);
        Ok(())
    }
}

impl Handle for sys::Layouts_Client_GetDefaultLayout {
    unsafe fn handle(&mut self) -> Answer {
        // SAFETY: the caller's list is that long.
        self.layout = object(&Kind::of_caller(self.type_, unsafe { list(self.dims, self.num_dims) })?);
        Ok(())
    }
}

impl Handle for sys::Layouts_Topology_GetDefaultLayout {
    unsafe fn handle(&mut self) -> Answer {
        // SAFETY: the caller's list is that long.
        self.layout = object(&Kind::of_caller(self.type_, unsafe { list(self.dims, self.num_dims) })?);
        Ok(())
    }
}

impl Handle for sys::Layouts_Buffer_MemoryLayout {
    unsafe fn handle(&mut self) -> Answer {
        // SAFETY: callers hand back what they were given.
        self.layout = object(&unsafe { seen::<Array>(self.buffer)? }.kind);
        Ok(())
    }
}

/// # Safety
/// `object` is null or an executable of this plugin.
unsafe fn program<'a>(object: Object) -> Result<&'a Program, Failure> {
    // SAFETY: passed on.
    Ok(&unsafe { seen::<Loaded>(object)? }.program)
}

impl Handle for sys::Layouts_Executable_GetOutputLayouts {
    unsafe fn handle(&mut self) -> Answer {
        // SAFETY: callers hand back what they were given.
        let lists = &unsafe { program(self.executable)? }.told.result_layouts;
        (self.layouts, self.num_outputs) = (lists.objects(), lists.len());
        Ok(())
    }
}

impl Handle for sys::Layouts_Executable_GetParameterLayouts {
    unsafe fn handle(&mut self) -> Answer {
        // SAFETY: callers hand back what they were given.
        let lists = &unsafe { program(self.executable)? }.told.argument_layouts;
        (self.layouts, self.num_parameters) = (lists.objects(), lists.len());
        Ok(())
    }
}

impl Handle for sys::Shardings_Executable_ParameterShardings {
    unsafe fn handle(&mut self) -> Answer {
        // SAFETY: callers hand back what they were given.
        let lists = &unsafe { program(self.executable)? }.told.argument_shardings;
        self.num_parameters = lists.len();
        (self.shardings, self.sharding_sizes) = (lists.starts(), lists.sizes());
        Ok(())
    }
}

impl Handle for sys::Shardings_Executable_OutputShardings {
    unsafe fn handle(&mut self) -> Answer {
        // SAFETY: callers hand back what they were given.
        let lists = &unsafe { program(self.executable)? }.told.result_shardings;
        self.num_outputs = lists.len();
        (self.shardings, self.sharding_sizes) = (lists.starts(), lists.sizes());
        Ok(())
    }
}
