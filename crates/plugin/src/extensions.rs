//! PJRT extensions of the plugin: layouts, shardings of arguments and results, FFI handlers, and the profiler.

use crate::buffer::PluginBuffer;
use crate::buffer_type::BufferType;
use crate::call::{ApiCall, CallResult, destroy, entry, handle, list, seen};
use crate::executable::PluginExecutable;
use crate::ffi::FFI_FUNCTIONS;
use crate::profiler;
use std::ffi::c_void;
use std::sync::OnceLock;
use systole_pjrt::sys::{self, OpaquePtr};

/// An extension's header and functions.
#[repr(C)]
struct ExtensionTable<const N: usize> {
    struct_size: usize,
    type_: i32,
    next: *const c_void,
    functions: [sys::ApiFunction; N],
}

/// Linked list of extensions.
struct ExtensionChain {
    layouts: ExtensionTable<7>,
    shardings: Box<ExtensionTable<2>>,
    ffi: Box<ExtensionTable<3>>,
    profiler: Box<sys::profiler::ProfilerExtension>,
}

// SAFETY: constant numbers and functions; the pointer is to the chain's own box.
unsafe impl Sync for ExtensionChain {}
// SAFETY: as above.
unsafe impl Send for ExtensionChain {}

/// Extension types.
const LAYOUTS: i32 = 4;
const FFI: i32 = 5;
const SHARDINGS: i32 = 19;

impl ExtensionChain {
    fn new() -> ExtensionChain {
        let profiler = Box::new(profiler::extension());
        let ffi = Box::new(ExtensionTable {
            struct_size: size_of::<ExtensionTable<3>>(),
            type_: FFI,
            next: std::ptr::from_ref(&*profiler).cast(),
            functions: FFI_FUNCTIONS,
        });
        let shardings = Box::new(ExtensionTable {
            struct_size: size_of::<ExtensionTable<2>>(),
            type_: SHARDINGS,
            next: std::ptr::from_ref(&*ffi).cast(),
            functions: [
                entry::<sys::Shardings_Executable_ParameterShardings>,
                entry::<sys::Shardings_Executable_OutputShardings>,
            ],
        });
        let layouts = ExtensionTable {
            struct_size: size_of::<ExtensionTable<7>>(),
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
        ExtensionChain { layouts, shardings, ffi, profiler }
    }
}

/// Returns the first extension.
pub(crate) fn first() -> *mut c_void {
    static CHAIN: OnceLock<ExtensionChain> = OnceLock::new();
    let chain = CHAIN.get_or_init(ExtensionChain::new);
    debug_assert!(std::ptr::eq(chain.layouts.next.cast(), &raw const *chain.shardings));
    debug_assert!(std::ptr::eq(chain.shardings.next.cast(), &raw const *chain.ffi));
    debug_assert!(std::ptr::eq(chain.ffi.next.cast(), &raw const *chain.profiler));
    (&raw const chain.layouts).cast_mut().cast()
}

/// Creates the object behind `PJRT_Layouts_MemoryLayout*`: its text, `{1,0}`.
fn object(kind: &BufferType) -> OpaquePtr {
    Box::into_raw(Box::new(kind.layout())).cast()
}

/// Layouts own their text.
unsafe extern "C" fn keep(_: OpaquePtr) {}

impl ApiCall for sys::Layouts_Client_GetDefaultLayout {
    unsafe fn handle(&mut self) -> CallResult {
        // SAFETY: the caller's list has that length.
        self.layout = object(&BufferType::of_caller(self.type_, unsafe { list(self.dims, self.num_dims) })?);
        Ok(())
    }
}

impl ApiCall for sys::Layouts_Topology_GetDefaultLayout {
    unsafe fn handle(&mut self) -> CallResult {
        // SAFETY: the caller's list has that length.
        self.layout = object(&BufferType::of_caller(self.type_, unsafe { list(self.dims, self.num_dims) })?);
        Ok(())
    }
}

handle! {
    Layouts_Buffer_MemoryLayout: |args, array: PluginBuffer| buffer => { args.layout = object(&array.kind); }
    Layouts_Executable_GetOutputLayouts: |args, program: PluginExecutable| executable => {
        let lists = &program.told.result_layouts;
        (args.layouts, args.num_outputs) = (lists.objects(), lists.len());
    }
    Layouts_Executable_GetParameterLayouts: |args, program: PluginExecutable| executable => {
        let lists = &program.told.argument_layouts;
        (args.layouts, args.num_parameters) = (lists.objects(), lists.len());
    }
    Shardings_Executable_ParameterShardings: |args, program: PluginExecutable| executable => {
        let lists = &program.told.argument_shardings;
        args.num_parameters = lists.len();
        (args.shardings, args.sharding_sizes) = (lists.starts(), lists.sizes());
    }
    Shardings_Executable_OutputShardings: |args, program: PluginExecutable| executable => {
        let lists = &program.told.result_shardings;
        args.num_outputs = lists.len();
        (args.shardings, args.sharding_sizes) = (lists.starts(), lists.sizes());
    }
    Layouts_MemoryLayout_Serialize: |args, text: String| layout => {
        (args.serialized_bytes, args.serialized_bytes_size) = (text.as_ptr(), text.len());
        args.serialized_layout = args.layout;
        args.serialized_layout_deleter = Some(keep);
    }
}

destroy! {
    Layouts_MemoryLayout_Destroy: String, layout;
}
