//! Bindings for the part of the PJRT C API that Systole uses: argument structures with the layout of `pjrt_c_api.h`
//! (<https://github.com/openxla/xla/blob/main/xla/pjrt/c/pjrt_c_api.h>), version 0.117. Only layouts; no calls.
//!
//! Each structure starts with its size and a list of extensions. Code compiled with an older header sends a smaller
//! size and ignores later fields, so new fields are only added at the end. The size is the end of the last field, which
//! may differ from `size_of`.

#![allow(
    non_camel_case_types,
    missing_docs,
    reason = "names and fields are the C header's, and documented there"
)]

use std::ffi::c_void;
use std::mem::{offset_of, size_of};
use systole_ir::DType;

/// Version of the PJRT C API whose structure layouts this file defines.
pub const API_VERSION: (i32, i32) = (0, 117);
/// Size in bytes of the PJRT function table (`PJRT_Api`) in version [`API_VERSION`].
pub const API_SIZE: usize = 1144;
/// Offset in bytes of the first function in the PJRT function table.
pub const FIRST_SLOT: usize = 40;

/// Opaque pointer to an object of a PJRT plugin.
pub type OpaquePtr = *mut c_void;
/// Pointer to characters without terminator; the length is stored next to it.
pub type CharPtr = *const u8;

/// Any function in the PJRT function table: takes one structure and returns an error or null.
pub type ApiFunction = unsafe extern "C" fn(*mut c_void) -> OpaquePtr;

/// Header of the PJRT function table.
#[repr(C)]
pub struct Api {
    pub struct_size: usize,
    pub extension_start: *mut c_void,
    pub version_size: usize,
    pub version_extension: *mut c_void,
    pub major: i32,
    pub minor: i32,
}

/// Header of a PJRT extension.
#[repr(C)]
pub struct ExtensionHeader {
    pub struct_size: usize,
    pub type_: i32,
    pub next: *mut c_void,
}

/// `PJRT_Profiler_Extension` and its function table: `profiler_c_api.h`
/// (<https://github.com/openxla/xla/blob/main/xla/backends/profiler/plugin/profiler_c_api.h>), version 1. Its
/// structures have no list of extensions, and not all callers state sizes.
pub mod profiler {
    use super::{ApiFunction, CharPtr, ExtensionHeader, OpaquePtr};

    /// PJRT extension type of the profiler.
    pub const TYPE: i32 = 1;

    #[repr(C)]
    pub struct ProfilerExtension {
        pub base: ExtensionHeader,
        pub profiler_api: *const Api,
        pub traceme_context_id: i64,
    }

    /// Function table of the PJRT profiler, in the order of the C header; results of the error functions are ignored.
    #[repr(C)]
    pub struct Api {
        pub struct_size: usize,
        pub private: OpaquePtr,
        pub error_destroy: Option<ApiFunction>,
        pub error_message: Option<ApiFunction>,
        pub error_get_code: Option<ApiFunction>,
        pub create: Option<ApiFunction>,
        pub destroy: Option<ApiFunction>,
        pub start: Option<ApiFunction>,
        pub stop: Option<ApiFunction>,
        pub collect_data: Option<ApiFunction>,
    }

    // SAFETY: an immutable table; the private part is null, or managed by the plugin.
    unsafe impl Sync for Api {}

    #[repr(C)]
    pub struct ErrorMessageArgs {
        pub struct_size: usize,
        pub private: OpaquePtr,
        pub error: OpaquePtr,
        pub message: CharPtr,
        pub message_size: usize,
    }

    /// Arguments of the PJRT profiler's `Error_GetCode`; also of `Error_Destroy`, which ends before the code.
    #[repr(C)]
    pub struct ErrorCodeArgs {
        pub struct_size: usize,
        pub private: OpaquePtr,
        pub error: OpaquePtr,
        pub code: i32,
    }

    #[repr(C)]
    pub struct ProfilerCreateArgs {
        pub struct_size: usize,
        pub options: CharPtr,
        pub options_size: usize,
        pub profiler: OpaquePtr,
    }

    /// Arguments of the PJRT profiler's `Destroy`, `Start` and `Stop`.
    #[repr(C)]
    pub struct ProfilerArgs {
        pub struct_size: usize,
        pub profiler: OpaquePtr,
    }

    /// Arguments of the PJRT profiler's `CollectData`. A first call without a buffer returns the plugin's buffer, or
    /// the required size.
    #[repr(C)]
    pub struct CollectData {
        pub struct_size: usize,
        pub profiler: OpaquePtr,
        pub buffer: *mut u8,
        pub buffer_size: usize,
    }

    systole_ir::renamed! {
        Code => ErrorCodeArgs, Create => ProfilerCreateArgs, Message => ErrorMessageArgs, One => ProfilerArgs,
    }
}

/// Argument structure of a PJRT function, with the function's position in the table and the structure's size.
///
/// # Safety
/// The type is `repr(C)`, starts with the size and the list of extensions, contains only integers and pointers, and has
/// the layout of the C header.
pub unsafe trait ApiArgs: Sized {
    /// Offset of the function in the table, in bytes.
    const SLOT: usize;
    /// Name of the function.
    const NAME: &'static str;
    /// Size that callers state.
    const SIZE: usize;

    /// Returns the structure with all fields zero except the size.
    fn new() -> Self {
        // SAFETY: integers and pointers may all be zero (contract of the trait).
        let mut args: Self = unsafe { std::mem::zeroed() };
        // SAFETY: the structure starts with its size (contract of the trait).
        unsafe { *(&raw mut args).cast::<usize>() = Self::SIZE };
        args
    }
}

macro_rules! structs {
    ($($slot:literal $name:ident { $($field:ident: $type:ty),* $(,)? })*) => {
        $(
            #[repr(C)]
            pub struct $name {
                pub struct_size: usize,
                pub extension_start: *mut c_void,
                $(pub $field: $type,)*
            }

            // SAFETY: `repr(C)`, with the first two fields and only integers and pointers after them.
            unsafe impl ApiArgs for $name {
                const SLOT: usize = $slot;
                const NAME: &'static str = concat!("PJRT_", stringify!($name));
                #[allow(unused_assignments, unused_mut, reason = "only the last field matters")]
                const SIZE: usize = {
                    let mut end = 2 * size_of::<usize>();
                    $(end = offset_of!($name, $field) + size_of::<$type>();)*
                    end
                };
            }
        )*

        /// Name, offset in the table and size of each structure.
        #[cfg(test)]
        const ALL: &[(&str, usize, usize)] =
            &[$((stringify!($name), <$name as ApiArgs>::SLOT, <$name as ApiArgs>::SIZE)),*];
    };
}

// The number before each name is the offset of its function in the table; 0 if it has none.
structs! {
    40 Error_Destroy { error: OpaquePtr }
    48 Error_Message { error: OpaquePtr, message: CharPtr, message_size: usize }
    56 Error_GetCode { error: OpaquePtr, code: i32 }
    64 Plugin_Initialize {}
    72 Plugin_Attributes { attributes: *const NamedValue, num_attributes: usize }
    80 Event_Destroy { event: OpaquePtr }
    88 Event_IsReady { event: OpaquePtr, is_ready: bool }
    96 Event_Error { event: OpaquePtr }
    104 Event_Await { event: OpaquePtr }
    112 Event_OnReady { event: OpaquePtr, callback: Option<EventCallback>, user_arg: *mut c_void }
    120 Client_Create {
        create_options: *const NamedValue, num_options: usize, kv_get_callback: *mut c_void,
        kv_get_user_arg: *mut c_void, kv_put_callback: *mut c_void, kv_put_user_arg: *mut c_void, client: OpaquePtr,
        kv_try_get_callback: *mut c_void, kv_try_get_user_arg: *mut c_void,
    }
    128 Client_Destroy { client: OpaquePtr }
    136 Client_PlatformName { client: OpaquePtr, platform_name: CharPtr, platform_name_size: usize }
    144 Client_ProcessIndex { client: OpaquePtr, process_index: i32 }
    152 Client_PlatformVersion { client: OpaquePtr, platform_version: CharPtr, platform_version_size: usize }
    160 Client_Devices { client: OpaquePtr, devices: *const OpaquePtr, num_devices: usize }
    168 Client_AddressableDevices {
        client: OpaquePtr, addressable_devices: *const OpaquePtr, num_addressable_devices: usize,
    }
    176 Client_LookupDevice { client: OpaquePtr, id: i32, device: OpaquePtr }
    184 Client_LookupAddressableDevice { client: OpaquePtr, local_hardware_id: i32, addressable_device: OpaquePtr }
    192 Client_AddressableMemories {
        client: OpaquePtr, addressable_memories: *const OpaquePtr, num_addressable_memories: usize,
    }
    200 Client_Compile {
        client: OpaquePtr, program: *const Program, compile_options: CharPtr, compile_options_size: usize,
        executable: OpaquePtr,
    }
    208 Client_DefaultDeviceAssignment {
        client: OpaquePtr, num_replicas: i32, num_partitions: i32, default_assignment_size: usize,
        default_assignment: *mut i32,
    }
    216 Client_BufferFromHostBuffer {
        client: OpaquePtr, data: *const c_void, type_: i32, dims: *const i64, num_dims: usize,
        byte_strides: *const i64, num_byte_strides: usize, host_buffer_semantics: i32, device: OpaquePtr,
        memory: OpaquePtr, device_layout: *mut c_void, done_with_host_buffer: OpaquePtr, buffer: OpaquePtr,
    }
    224 DeviceDescription_Id { device_description: OpaquePtr, id: i32 }
    232 DeviceDescription_ProcessIndex { device_description: OpaquePtr, process_index: i32 }
    240 DeviceDescription_Attributes {
        device_description: OpaquePtr, num_attributes: usize, attributes: *const NamedValue,
    }
    248 DeviceDescription_Kind { device_description: OpaquePtr, device_kind: CharPtr, device_kind_size: usize }
    256 DeviceDescription_DebugString {
        device_description: OpaquePtr, debug_string: CharPtr, debug_string_size: usize,
    }
    264 DeviceDescription_ToString { device_description: OpaquePtr, to_string: CharPtr, to_string_size: usize }
    272 Device_GetDescription { device: OpaquePtr, device_description: OpaquePtr }
    280 Device_IsAddressable { device: OpaquePtr, is_addressable: bool }
    288 Device_LocalHardwareId { device: OpaquePtr, local_hardware_id: i32 }
    296 Device_AddressableMemories { device: OpaquePtr, memories: *const OpaquePtr, num_memories: usize }
    304 Device_DefaultMemory { device: OpaquePtr, memory: OpaquePtr }
    312 Device_MemoryStats {
        device: OpaquePtr, bytes_in_use: i64, peak_bytes_in_use: i64, peak_bytes_in_use_is_set: bool,
        num_allocs: i64, num_allocs_is_set: bool, largest_alloc_size: i64, largest_alloc_size_is_set: bool,
        bytes_limit: i64, bytes_limit_is_set: bool, bytes_reserved: i64, bytes_reserved_is_set: bool,
        peak_bytes_reserved: i64, peak_bytes_reserved_is_set: bool, bytes_reservable_limit: i64,
        bytes_reservable_limit_is_set: bool, largest_free_block_bytes: i64,
        largest_free_block_bytes_is_set: bool, pool_bytes: i64, pool_bytes_is_set: bool,
        peak_pool_bytes: i64, peak_pool_bytes_is_set: bool, peak_allocated_bytes: i64,
        peak_allocated_bytes_is_set: bool,
    }
    320 Memory_Id { memory: OpaquePtr, id: i32 }
    328 Memory_Kind { memory: OpaquePtr, kind: CharPtr, kind_size: usize }
    336 Memory_DebugString { memory: OpaquePtr, debug_string: CharPtr, debug_string_size: usize }
    344 Memory_ToString { memory: OpaquePtr, to_string: CharPtr, to_string_size: usize }
    352 Memory_AddressableByDevices { memory: OpaquePtr, devices: *const OpaquePtr, num_devices: usize }
    360 Executable_Destroy { executable: OpaquePtr }
    368 Executable_Name { executable: OpaquePtr, executable_name: CharPtr, executable_name_size: usize }
    376 Executable_NumReplicas { executable: OpaquePtr, num_replicas: usize }
    384 Executable_NumPartitions { executable: OpaquePtr, num_partitions: usize }
    392 Executable_NumOutputs { executable: OpaquePtr, num_outputs: usize }
    400 Executable_SizeOfGeneratedCodeInBytes { executable: OpaquePtr, size_in_bytes: i64 }
    408 Executable_GetCostAnalysis {
        executable: OpaquePtr, num_properties: usize, properties: *const NamedValue,
    }
    416 Executable_OutputMemoryKinds {
        executable: OpaquePtr, num_outputs: usize, memory_kinds: *const CharPtr, memory_kind_sizes: *const usize,
    }
    424 Executable_OptimizedProgram { executable: OpaquePtr, program: *mut Program }
    432 Executable_Serialize {
        executable: OpaquePtr, serialized_bytes: CharPtr, serialized_bytes_size: usize,
        serialized_executable: OpaquePtr, serialized_executable_deleter: Option<Deleter>,
    }
    440 LoadedExecutable_Destroy { executable: OpaquePtr }
    448 LoadedExecutable_GetExecutable { loaded_executable: OpaquePtr, executable: OpaquePtr }
    456 LoadedExecutable_AddressableDevices {
        executable: OpaquePtr, addressable_devices: *const OpaquePtr, num_addressable_devices: usize,
    }
    464 LoadedExecutable_Delete { executable: OpaquePtr }
    472 LoadedExecutable_IsDeleted { executable: OpaquePtr, is_deleted: bool }
    480 LoadedExecutable_Execute {
        executable: OpaquePtr, options: *const ExecuteOptions, argument_lists: *const *const OpaquePtr,
        num_devices: usize, num_args: usize, output_lists: *const *mut OpaquePtr,
        device_complete_events: *mut OpaquePtr, execute_device: OpaquePtr,
    }
    488 Executable_DeserializeAndLoad {
        client: OpaquePtr, serialized_executable: CharPtr, serialized_executable_size: usize,
        loaded_executable: OpaquePtr, overridden_serialized_compile_options: CharPtr,
        overridden_serialized_compile_options_size: usize, load_options: *mut c_void,
    }
    496 LoadedExecutable_Fingerprint {
        executable: OpaquePtr, executable_fingerprint: CharPtr, executable_fingerprint_size: usize,
    }
    504 Buffer_Destroy { buffer: OpaquePtr }
    512 Buffer_ElementType { buffer: OpaquePtr, type_: i32 }
    520 Buffer_Dimensions { buffer: OpaquePtr, dims: *const i64, num_dims: usize }
    528 Buffer_UnpaddedDimensions { buffer: OpaquePtr, unpadded_dims: *const i64, num_dims: usize }
    536 Buffer_DynamicDimensionIndices {
        buffer: OpaquePtr, dynamic_dim_indices: *const usize, num_dynamic_dims: usize,
    }
    544 Buffer_GetMemoryLayout { buffer: OpaquePtr, layout: MemoryLayout }
    552 Buffer_OnDeviceSizeInBytes { buffer: OpaquePtr, on_device_size_in_bytes: usize }
    560 Buffer_Device { buffer: OpaquePtr, device: OpaquePtr }
    568 Buffer_Memory { buffer: OpaquePtr, memory: OpaquePtr }
    576 Buffer_Delete { buffer: OpaquePtr }
    584 Buffer_IsDeleted { buffer: OpaquePtr, is_deleted: bool }
    592 Buffer_CopyToDevice { buffer: OpaquePtr, dst_device: OpaquePtr, dst_buffer: OpaquePtr }
    600 Buffer_ToHostBuffer {
        src: OpaquePtr, host_layout: *const c_void, dst: *mut c_void, dst_size: usize, event: OpaquePtr,
    }
    608 Buffer_IsOnCpu { buffer: OpaquePtr, is_on_cpu: bool }
    616 Buffer_ReadyEvent { buffer: OpaquePtr, event: OpaquePtr }
    624 Buffer_UnsafePointer { buffer: OpaquePtr, buffer_pointer: usize }
    632 Buffer_IncreaseExternalReferenceCount { buffer: OpaquePtr }
    640 Buffer_DecreaseExternalReferenceCount { buffer: OpaquePtr }
    648 Buffer_OpaqueDeviceMemoryDataPointer { buffer: OpaquePtr, device_memory_ptr: *mut c_void }
    696 TopologyDescription_Create {
        topology_name: CharPtr, topology_name_size: usize, create_options: *const NamedValue, num_options: usize,
        topology: OpaquePtr,
    }
    704 TopologyDescription_Destroy { topology: OpaquePtr }
    712 TopologyDescription_PlatformName {
        topology: OpaquePtr, platform_name: CharPtr, platform_name_size: usize,
    }
    720 TopologyDescription_PlatformVersion {
        topology: OpaquePtr, platform_version: CharPtr, platform_version_size: usize,
    }
    728 TopologyDescription_GetDeviceDescriptions {
        topology: OpaquePtr, descriptions: *const OpaquePtr, num_descriptions: usize,
    }
    736 TopologyDescription_Serialize {
        topology: OpaquePtr, serialized_bytes: CharPtr, serialized_bytes_size: usize, serialized_topology: OpaquePtr,
        serialized_topology_deleter: Option<Deleter>,
    }
    744 TopologyDescription_Attributes {
        topology: OpaquePtr, attributes: *const NamedValue, num_attributes: usize,
    }
    752 Compile {
        topology: OpaquePtr, program: *const Program, compile_options: CharPtr, compile_options_size: usize,
        client: OpaquePtr, executable: OpaquePtr,
    }
    760 Executable_OutputElementTypes {
        executable: OpaquePtr, output_types: *const i32, num_output_types: usize,
    }
    768 Executable_OutputDimensions {
        executable: OpaquePtr, num_outputs: usize, dims: *const i64, dim_sizes: *const usize,
    }
    776 Buffer_CopyToMemory { buffer: OpaquePtr, dst_memory: OpaquePtr, dst_buffer: OpaquePtr }
    784 Client_CreateViewOfDeviceBuffer {
        client: OpaquePtr, device_buffer_ptr: *mut c_void, dims: *const i64, num_dims: usize, element_type: i32,
        layout: *const MemoryLayout, device: OpaquePtr, on_delete_callback: Option<OnDelete>,
        on_delete_callback_arg: *mut c_void, stream: isize, buffer: OpaquePtr, memory: OpaquePtr,
    }
    792 Executable_Fingerprint {
        executable: OpaquePtr, executable_fingerprint: CharPtr, executable_fingerprint_size: usize,
    }
    800 Client_TopologyDescription { client: OpaquePtr, topology: OpaquePtr }
    808 Executable_GetCompiledMemoryStats {
        executable: OpaquePtr, generated_code_size_in_bytes: i64, argument_size_in_bytes: i64,
        output_size_in_bytes: i64, alias_size_in_bytes: i64, temp_size_in_bytes: i64,
        host_generated_code_size_in_bytes: i64, host_argument_size_in_bytes: i64,
        host_output_size_in_bytes: i64, host_alias_size_in_bytes: i64, host_temp_size_in_bytes: i64,
        peak_memory_in_bytes: i64, total_size_in_bytes: i64, total_allocation_bytes: i64,
        indefinite_allocations: i64, peak_unpadded_heap_bytes: i64,
    }
    816 Memory_Kind_Id { memory: OpaquePtr, kind_id: i32 }
    824 ExecuteContext_Create { context: OpaquePtr }
    832 ExecuteContext_Destroy { context: OpaquePtr }
    840 Buffer_CopyRawToHost {
        buffer: OpaquePtr, dst: *mut c_void, offset: i64, transfer_size: i64, event: OpaquePtr,
    }
    848 AsyncHostToDeviceTransferManager_Destroy { transfer_manager: OpaquePtr }
    856 AsyncHostToDeviceTransferManager_TransferData {
        transfer_manager: OpaquePtr, buffer_index: i32, data: *const c_void, offset: i64, transfer_size: i64,
        is_last_transfer: bool, done_with_h2d_transfer: OpaquePtr,
    }
    864 Client_CreateBuffersForAsyncHostToDevice {
        client: OpaquePtr, shape_specs: *const ShapeSpec, num_shape_specs: usize,
        device_layouts: *const *const MemoryLayout, num_device_layouts: usize, memory: OpaquePtr,
        transfer_manager: OpaquePtr,
    }
    872 AsyncHostToDeviceTransferManager_RetrieveBuffer {
        transfer_manager: OpaquePtr, buffer_index: i32, buffer_out: OpaquePtr,
    }
    880 AsyncHostToDeviceTransferManager_Device { transfer_manager: OpaquePtr, device_out: OpaquePtr }
    888 AsyncHostToDeviceTransferManager_BufferCount { transfer_manager: OpaquePtr, buffer_count: usize }
    896 AsyncHostToDeviceTransferManager_BufferSize {
        transfer_manager: OpaquePtr, buffer_index: i32, buffer_size: usize,
    }
    904 AsyncHostToDeviceTransferManager_SetBufferError {
        transfer_manager: OpaquePtr, buffer_index: i32, error_code: i32, error_message: CharPtr,
        error_message_size: usize,
    }
    912 AsyncHostToDeviceTransferManager_AddMetadata {
        transfer_manager: OpaquePtr, transfer_metadata: *const NamedValue, num_metadata: usize,
    }
    920 Client_DmaMap { client: OpaquePtr, data: *mut c_void, size: usize }
    928 Client_DmaUnmap { client: OpaquePtr, data: *mut c_void }
    936 Client_CreateUninitializedBuffer {
        client: OpaquePtr, shape_dims: *const i64, shape_num_dims: usize, shape_element_type: i32,
        shape_layout: *const MemoryLayout, device: OpaquePtr, memory: OpaquePtr, buffer: OpaquePtr,
    }
    944 Client_UpdateGlobalProcessInfo {
        client: OpaquePtr, process_infos: *const c_void, num_process_infos: usize,
    }
    952 TopologyDescription_Deserialize {
        serialized_topology: CharPtr, serialized_topology_size: usize, topology: OpaquePtr,
    }
    976 LoadedExecutable_GetDeviceAssignment {
        executable: OpaquePtr, serialized_bytes: CharPtr, serialized_bytes_size: usize,
        serialized_device_assignment: OpaquePtr, serialized_device_assignment_deleter: Option<Deleter>,
    }
    1032 Executable_GetCompileOptions {
        executable: OpaquePtr, serialized_bytes: CharPtr, serialized_bytes_size: usize,
        serialized_compile_options: OpaquePtr, serialized_compile_options_deleter: Option<Deleter>,
    }
    1048 Event_Create { event: OpaquePtr }
    1056 Event_Set { event: OpaquePtr, error_code: i32, error_message: CharPtr, error_message_size: usize }
    1064 Device_GetAttributes {
        device: OpaquePtr, attributes: *const NamedValue, num_attributes: usize, device_attributes: OpaquePtr,
        attributes_deleter: Option<Deleter>,
    }
    1080 LoadedExecutable_AddressableDeviceLogicalIds {
        executable: OpaquePtr, addressable_device_logical_ids: *mut LogicalIds,
        num_addressable_device_logical_ids: usize,
    }
    1096 Error_ForEachPayload { error: OpaquePtr, visitor: *mut c_void, user_arg: *mut c_void }
    1104 TopologyDescription_Fingerprint { topology: OpaquePtr, fingerprint: u64 }
    1112 Executable_ParameterMemoryKinds {
        executable: OpaquePtr, num_parameters: usize, memory_kinds: *const CharPtr, memory_kind_sizes: *const usize,
    }
    0 Layouts_MemoryLayout_Destroy { layout: OpaquePtr }
    0 Layouts_MemoryLayout_Serialize {
        layout: OpaquePtr, serialized_bytes: CharPtr, serialized_bytes_size: usize, serialized_layout: OpaquePtr,
        serialized_layout_deleter: Option<Deleter>,
    }
    0 Layouts_Client_GetDefaultLayout {
        client: OpaquePtr, type_: i32, dims: *const i64, num_dims: usize, layout: OpaquePtr,
    }
    0 Layouts_Buffer_MemoryLayout { buffer: OpaquePtr, layout: OpaquePtr }
    0 Layouts_Topology_GetDefaultLayout {
        topology_description: OpaquePtr, type_: i32, dims: *const i64, num_dims: usize, layout: OpaquePtr,
    }
    0 Layouts_Executable_GetOutputLayouts { executable: OpaquePtr, num_outputs: usize, layouts: *const OpaquePtr }
    0 Layouts_Executable_GetParameterLayouts {
        executable: OpaquePtr, num_parameters: usize, layouts: *const OpaquePtr,
    }
    0 Shardings_Executable_ParameterShardings {
        executable: OpaquePtr, num_parameters: usize, shardings: *const CharPtr, sharding_sizes: *const usize,
    }
    0 Shardings_Executable_OutputShardings {
        executable: OpaquePtr, num_outputs: usize, shardings: *const CharPtr, sharding_sizes: *const usize,
    }
    0 FFI_Type_Register {
        type_name: CharPtr, type_name_size: usize, type_id: i64, type_info: *const c_void,
    }
    0 FFI_UserData_Add { context: OpaquePtr, type_id: i64, data: *mut c_void, deleter: *const c_void }
    0 KeyValueGetCallback {
        key: CharPtr, key_size: usize, timeout_in_ms: i32, callback_error: *const c_void, user_arg: *mut c_void,
        value: *mut u8, value_size: usize, value_deleter_callback: Option<Deleter>,
    }
    0 KeyValuePutCallback {
        key: CharPtr, key_size: usize, value: CharPtr, value_size: usize, callback_error: *const c_void,
        user_arg: *mut c_void,
    }
    0 ShapeSpec { dims: *const i64, num_dims: usize, element_type: i32 }
    0 MemoryLayout_Tiled {
        minor_to_major: *const i64, minor_to_major_size: usize, tile_dims: *const i64,
        tile_dim_sizes: *const usize, num_tiles: usize,
    }
    0 MemoryLayout { tiled: MemoryLayout_Tiled, type_: i32 }
    0 NamedValue { name: CharPtr, name_size: usize, type_: i32, value: u64, value_size: usize }
    0 Program { code: *mut u8, code_size: usize, format: CharPtr, format_size: usize }
    0 ExecuteOptions {
        send_callbacks: *mut c_void, recv_callbacks: *mut c_void, num_send_ops: usize, num_recv_ops: usize,
        launch_id: i32, non_donatable_input_indices: *const i64, num_non_donatable_input_indices: usize,
        context: OpaquePtr, call_location: CharPtr, num_tasks: usize, task_ids: *const i32,
        incarnation_ids: *const i64, multi_slice_config: OpaquePtr,
        use_major_to_minor_data_layout_for_callbacks: bool, hlo_output_callbacks: *mut c_void,
        num_hlo_output_callbacks: usize, custom_options: *const NamedValue, num_custom_options: usize,
    }
}

/// Callback that frees an object that a PJRT call returned.
pub type Deleter = unsafe extern "C" fn(OpaquePtr);
/// Callback that is called when a PJRT event is ready, with an error or null.
pub type EventCallback = unsafe extern "C" fn(error: OpaquePtr, user_arg: *mut c_void);

/// Callback that is called when external memory of a buffer is no longer read.
pub type OnDelete = unsafe extern "C" fn(device_buffer_ptr: *mut c_void, user_arg: *mut c_void);

/// Replica and partition of a device in a PJRT device assignment.
#[repr(C)]
pub struct LogicalIds {
    pub replica: i32,
    pub partition: i32,
}

/// Types of [`NamedValue`].
pub mod named {
    pub const STRING: i32 = 0;
    pub const INT64: i32 = 1;
    pub const INT64_LIST: i32 = 2;
    pub const FLOAT: i32 = 3;
    pub const BOOL: i32 = 4;
}

/// How long a plugin may read host memory passed to it.
pub mod host_buffer {
    pub const ONLY_DURING_CALL: i32 = 0;
    pub const UNTIL_TRANSFER_COMPLETES: i32 = 1;
}

/// Types of [`MemoryLayout`].
pub mod layout {
    pub const TILED: i32 = 0;
    pub const STRIDES: i32 = 1;
}

/// Returns the PJRT code (`PJRT_Buffer_Type`) of an element type.
pub fn buffer_type(dtype: DType) -> i32 {
    match dtype {
        DType::Bool => 1,
        DType::I8 => 2,
        DType::I16 => 3,
        DType::I32 => 4,
        DType::I64 => 5,
        DType::U8 => 6,
        DType::U16 => 7,
        DType::U32 => 8,
        DType::U64 => 9,
        DType::F16 => 10,
        DType::F32 => 11,
        DType::F64 => 12,
        DType::BF16 => 13,
    }
}

/// Returns the element type of a PJRT code, if Systole supports it.
pub fn element_type(code: i32) -> Option<DType> {
    DType::ALL.into_iter().find(|d| buffer_type(*d) == code)
}

macro_rules! names {
    ($($name:ident)*) => { &[$(stringify!($name)),*] };
}

/// Names of the functions in the PJRT function table, in order, without `PJRT_`.
pub const NAMES: &[&str] = names! {
    Error_Destroy Error_Message Error_GetCode Plugin_Initialize Plugin_Attributes Event_Destroy
    Event_IsReady Event_Error Event_Await Event_OnReady Client_Create Client_Destroy Client_PlatformName
    Client_ProcessIndex Client_PlatformVersion Client_Devices Client_AddressableDevices
    Client_LookupDevice Client_LookupAddressableDevice Client_AddressableMemories Client_Compile
    Client_DefaultDeviceAssignment Client_BufferFromHostBuffer DeviceDescription_Id
    DeviceDescription_ProcessIndex DeviceDescription_Attributes DeviceDescription_Kind
    DeviceDescription_DebugString DeviceDescription_ToString Device_GetDescription Device_IsAddressable
    Device_LocalHardwareId Device_AddressableMemories Device_DefaultMemory Device_MemoryStats Memory_Id
    Memory_Kind Memory_DebugString Memory_ToString Memory_AddressableByDevices Executable_Destroy
    Executable_Name Executable_NumReplicas Executable_NumPartitions Executable_NumOutputs
    Executable_SizeOfGeneratedCodeInBytes Executable_GetCostAnalysis Executable_OutputMemoryKinds
    Executable_OptimizedProgram Executable_Serialize LoadedExecutable_Destroy
    LoadedExecutable_GetExecutable LoadedExecutable_AddressableDevices LoadedExecutable_Delete
    LoadedExecutable_IsDeleted LoadedExecutable_Execute Executable_DeserializeAndLoad
    LoadedExecutable_Fingerprint Buffer_Destroy Buffer_ElementType Buffer_Dimensions
    Buffer_UnpaddedDimensions Buffer_DynamicDimensionIndices Buffer_GetMemoryLayout
    Buffer_OnDeviceSizeInBytes Buffer_Device Buffer_Memory Buffer_Delete Buffer_IsDeleted
    Buffer_CopyToDevice Buffer_ToHostBuffer Buffer_IsOnCpu Buffer_ReadyEvent Buffer_UnsafePointer
    Buffer_IncreaseExternalReferenceCount Buffer_DecreaseExternalReferenceCount
    Buffer_OpaqueDeviceMemoryDataPointer CopyToDeviceStream_Destroy CopyToDeviceStream_AddChunk
    CopyToDeviceStream_TotalBytes CopyToDeviceStream_GranuleSize CopyToDeviceStream_CurrentBytes
    TopologyDescription_Create TopologyDescription_Destroy TopologyDescription_PlatformName
    TopologyDescription_PlatformVersion TopologyDescription_GetDeviceDescriptions
    TopologyDescription_Serialize TopologyDescription_Attributes Compile Executable_OutputElementTypes
    Executable_OutputDimensions Buffer_CopyToMemory Client_CreateViewOfDeviceBuffer
    Executable_Fingerprint Client_TopologyDescription Executable_GetCompiledMemoryStats Memory_Kind_Id
    ExecuteContext_Create ExecuteContext_Destroy Buffer_CopyRawToHost
    AsyncHostToDeviceTransferManager_Destroy AsyncHostToDeviceTransferManager_TransferData
    Client_CreateBuffersForAsyncHostToDevice AsyncHostToDeviceTransferManager_RetrieveBuffer
    AsyncHostToDeviceTransferManager_Device AsyncHostToDeviceTransferManager_BufferCount
    AsyncHostToDeviceTransferManager_BufferSize AsyncHostToDeviceTransferManager_SetBufferError
    AsyncHostToDeviceTransferManager_AddMetadata Client_DmaMap Client_DmaUnmap
    Client_CreateUninitializedBuffer Client_UpdateGlobalProcessInfo TopologyDescription_Deserialize
    Client_CreateAliasBuffer Client_FulfillAliasBuffer LoadedExecutable_GetDeviceAssignment
    Client_CreateErrorBuffer AsyncHostToDeviceTransferManager_TransferLiteral Buffer_CopyRawToHostFuture
    Device_PoisonExecution Device_CreateAsyncTrackingEvent AsyncTrackingEvent_Destroy
    Executable_GetCompileOptions Buffer_DonateWithControlDependency Event_Create Event_Set
    Device_GetAttributes Client_Load LoadedExecutable_AddressableDeviceLogicalIds Buffer_Bitcast
    Error_ForEachPayload TopologyDescription_Fingerprint Executable_ParameterMemoryKinds
    Device_ClearMemoryStats TopologyDescription_MakeCanonicalShapeForMemorySpace
    TopologyDescription_GetMemorySpaceKindIds
};

/// Error codes, those of absl.
pub mod code {
    pub const CANCELLED: i32 = 1;
    pub const UNKNOWN: i32 = 2;
    pub const INVALID_ARGUMENT: i32 = 3;
    pub const NOT_FOUND: i32 = 5;
    pub const ABORTED: i32 = 10;
    pub const OUT_OF_RANGE: i32 = 11;
    pub const FAILED_PRECONDITION: i32 = 9;
    pub const RESOURCE_EXHAUSTED: i32 = 8;
    pub const UNIMPLEMENTED: i32 = 12;
    pub const INTERNAL: i32 = 13;
    pub const UNAVAILABLE: i32 = 14;
}

// Names of the previous version.
systole_ir::renamed! { Chars => CharPtr, Extension => ExtensionHeader, Function => ApiFunction, Object => OpaquePtr }
#[doc(hidden)]
pub use self::ApiArgs as Args;

#[cfg(test)]
mod tests {
    use super::*;

    /// Sizes from the C compiler: `NAME_Args_STRUCT_SIZE` of the header.
    #[test]
    fn structures_are_as_large_as_the_headers() {
        let header = [
            ("Error_Destroy", 24),
            ("Error_Message", 40),
            ("Error_GetCode", 28),
            ("NamedValue", 56),
            ("Plugin_Initialize", 16),
            ("Plugin_Attributes", 32),
            ("Event_IsReady", 25),
            ("Event_OnReady", 40),
            ("Client_Create", 88),
            ("Client_LookupDevice", 40),
            ("Client_Compile", 56),
            ("Program", 48),
            ("Client_BufferFromHostBuffer", 120),
            ("DeviceDescription_Id", 28),
            ("Device_GetAttributes", 56),
            ("Memory_Kind", 40),
            ("ExecuteOptions", 160),
            ("LoadedExecutable_Execute", 80),
            ("LoadedExecutable_GetDeviceAssignment", 56),
            ("Executable_GetCostAnalysis", 40),
            ("Executable_GetCompiledMemoryStats", 144),
            ("Executable_OptimizedProgram", 32),
            ("Executable_Serialize", 56),
            ("Executable_DeserializeAndLoad", 72),
            ("Buffer_ElementType", 28),
            ("Buffer_IsDeleted", 25),
            ("Buffer_ToHostBuffer", 56),
            ("TopologyDescription_Create", 56),
            ("Compile", 64),
            ("MemoryLayout_Tiled", 56),
            ("MemoryLayout", 76),
            ("Buffer_GetMemoryLayout", 104),
            ("Client_CreateViewOfDeviceBuffer", 112),
            ("AsyncHostToDeviceTransferManager_TransferData", 72),
            ("Device_MemoryStats", 201),
            ("ShapeSpec", 36),
        ];
        for (name, size) in header {
            let ours = ALL.iter().find(|(n, ..)| *n == name).map(|(.., size)| *size);
            assert_eq!(ours, Some(size), "{name}");
        }
    }

    #[test]
    fn places_in_the_table_are_of_pointers_and_used_once() {
        for (i, (name, slot, _)) in ALL.iter().enumerate().filter(|(_, s)| s.1 != 0) {
            assert!(slot % 8 == 0 && (FIRST_SLOT..API_SIZE).contains(slot), "{name}");
            assert!(ALL[..i].iter().all(|(_, other, _)| other != slot), "{name}");
        }
    }
}
