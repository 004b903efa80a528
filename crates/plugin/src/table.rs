//! Table of PJRT functions, and the plugin's attributes.

use crate::call::{ApiCall, CallError, CallResult, IS_OLD, entry, error};
use crate::extensions;
use std::ffi::c_void;
use std::sync::OnceLock;
use std::sync::atomic::Ordering;
use systole_pjrt::sys::{self, ApiArgs, OpaquePtr};

const SLOTS: usize = (sys::API_SIZE - sys::FIRST_SLOT) / size_of::<usize>();

/// Table entry for functions that the plugin does not implement: returns an error with the name.
unsafe extern "C" fn lacking<const SLOT: usize>(_: *mut c_void) -> OpaquePtr {
    let name = sys::NAMES.get(SLOT).copied().unwrap_or_default();
    error(CallError::unimplemented(format!("PJRT_{name} is not implemented by Systole's plugin")))
}

/// Defines one such function per slot.
macro_rules! lacking {
    ($($tens:literal)*) => {
        [$(lacking::<{ 10 * $tens }>, lacking::<{ 10 * $tens + 1 }>, lacking::<{ 10 * $tens + 2 }>,
           lacking::<{ 10 * $tens + 3 }>, lacking::<{ 10 * $tens + 4 }>, lacking::<{ 10 * $tens + 5 }>,
           lacking::<{ 10 * $tens + 6 }>, lacking::<{ 10 * $tens + 7 }>, lacking::<{ 10 * $tens + 8 }>,
           lacking::<{ 10 * $tens + 9 }>),*]
    };
}
const LACKING: [sys::ApiFunction; 140] = lacking!(0 1 2 3 4 5 6 7 8 9 10 11 12 13);

#[repr(C)]
struct ApiTable {
    head: sys::Api,
    functions: [sys::ApiFunction; SLOTS],
}

// SAFETY: constant numbers and functions.
unsafe impl Sync for ApiTable {}
// SAFETY: as above.
unsafe impl Send for ApiTable {}

impl ApiTable {
    fn new() -> ApiTable {
        let head = sys::Api {
            struct_size: sys::API_SIZE,
            extension_start: extensions::first(),
            version_size: 24,
            version_extension: std::ptr::null_mut(),
            major: sys::API_VERSION.0,
            minor: sys::API_VERSION.1,
        };
        let mut table = ApiTable { head, functions: std::array::from_fn(|slot| LACKING[slot]) };
        fill(&mut table);
        table
    }

    fn has<A: ApiCall>(&mut self) {
        self.functions[(A::SLOT - sys::FIRST_SLOT) / size_of::<usize>()] = entry::<A>;
    }
}

macro_rules! functions {
    ($($name:ident)*) => {
        fn fill(table: &mut ApiTable) {
            $(table.has::<sys::$name>();)*
        }
    };
}

functions! {
    Error_Destroy Error_Message Error_GetCode Plugin_Initialize Plugin_Attributes Event_Destroy Event_IsReady
    Event_Error Event_Await Event_OnReady Client_Create Client_Destroy Client_PlatformName Client_ProcessIndex
    Client_PlatformVersion Client_Devices Client_AddressableDevices Client_LookupDevice
    Client_LookupAddressableDevice Client_AddressableMemories Client_Compile Compile Client_DefaultDeviceAssignment
    Client_BufferFromHostBuffer DeviceDescription_Id DeviceDescription_ProcessIndex DeviceDescription_Attributes
    DeviceDescription_Kind DeviceDescription_DebugString DeviceDescription_ToString Device_GetDescription
    Device_IsAddressable Device_LocalHardwareId Device_AddressableMemories Device_DefaultMemory
    Device_MemoryStats Memory_Id Memory_Kind Memory_DebugString Memory_ToString Memory_AddressableByDevices
    Executable_Destroy Executable_Name Executable_NumReplicas Executable_NumPartitions Executable_NumOutputs
    Executable_SizeOfGeneratedCodeInBytes Executable_GetCostAnalysis Executable_OutputMemoryKinds
    Executable_OptimizedProgram Executable_Serialize LoadedExecutable_Destroy LoadedExecutable_GetExecutable
    LoadedExecutable_AddressableDevices LoadedExecutable_Delete LoadedExecutable_IsDeleted
    LoadedExecutable_Execute Executable_DeserializeAndLoad LoadedExecutable_Fingerprint Buffer_Destroy
    Buffer_ElementType Buffer_Dimensions Buffer_UnpaddedDimensions Buffer_DynamicDimensionIndices
    Buffer_GetMemoryLayout Buffer_OnDeviceSizeInBytes Buffer_Device Buffer_Memory Buffer_Delete Buffer_IsDeleted
    Buffer_CopyToDevice Buffer_ToHostBuffer Buffer_IsOnCpu Buffer_ReadyEvent Buffer_UnsafePointer
    Buffer_IncreaseExternalReferenceCount Buffer_DecreaseExternalReferenceCount
    Buffer_OpaqueDeviceMemoryDataPointer TopologyDescription_Create TopologyDescription_Destroy
    TopologyDescription_PlatformName TopologyDescription_PlatformVersion
    TopologyDescription_GetDeviceDescriptions TopologyDescription_Serialize TopologyDescription_Deserialize TopologyDescription_Attributes
    TopologyDescription_Fingerprint
    Executable_OutputElementTypes Executable_OutputDimensions Buffer_CopyToMemory
    Client_CreateViewOfDeviceBuffer Executable_Fingerprint Client_TopologyDescription
    Executable_GetCompiledMemoryStats Memory_Kind_Id ExecuteContext_Create ExecuteContext_Destroy
    Buffer_CopyRawToHost AsyncHostToDeviceTransferManager_Destroy AsyncHostToDeviceTransferManager_TransferData
    Client_CreateBuffersForAsyncHostToDevice AsyncHostToDeviceTransferManager_RetrieveBuffer
    AsyncHostToDeviceTransferManager_Device AsyncHostToDeviceTransferManager_BufferCount
    AsyncHostToDeviceTransferManager_BufferSize AsyncHostToDeviceTransferManager_SetBufferError
    AsyncHostToDeviceTransferManager_AddMetadata Client_DmaMap Client_DmaUnmap Client_CreateUninitializedBuffer
    Client_UpdateGlobalProcessInfo
    LoadedExecutable_GetDeviceAssignment Executable_GetCompileOptions Event_Create Event_Set
    Device_GetAttributes LoadedExecutable_AddressableDeviceLogicalIds Error_ForEachPayload
    Executable_ParameterMemoryKinds
}

/// Returns the plugin's function table.
#[unsafe(no_mangle)]
#[allow(non_snake_case, reason = "the name that PJRT looks for")]
pub extern "C" fn GetPjrtApi() -> *const c_void {
    static TABLE: OnceLock<ApiTable> = OnceLock::new();
    std::ptr::from_ref(TABLE.get_or_init(ApiTable::new)).cast()
}

impl ApiCall for sys::Plugin_Initialize {
    unsafe fn handle(&mut self) -> CallResult {
        Ok(())
    }
}

impl ApiCall for sys::Plugin_Attributes {
    // The header omits the last field when it counts the size.
    const LEAST: usize = Self::SIZE;

    unsafe fn handle(&mut self) -> CallResult {
        static LISTS: [OnceLock<PluginAttributes>; 2] = [OnceLock::new(), OnceLock::new()];
        let is_old = IS_OLD.load(Ordering::Relaxed);
        let list = LISTS[usize::from(is_old)].get_or_init(|| PluginAttributes::new(is_old));
        (self.attributes, self.num_attributes) = (list.0.as_ptr(), list.0.len());
        Ok(())
    }
}

/// Plugin attributes: XLA's version, and the supported StableHLO versions.
struct PluginAttributes(Vec<sys::NamedValue>);

// SAFETY: points only to constants.
unsafe impl Sync for PluginAttributes {}
// SAFETY: as above.
unsafe impl Send for PluginAttributes {}

impl PluginAttributes {
    /// Old callers write programs in the version that the plugin reports, even if they do not know it.
    fn new(is_old: bool) -> PluginAttributes {
        const OLDEST: &[i64] = &[1, 0, 0];
        const KNOWN: systole_bytecode::StablehloVersion = systole_bytecode::CURRENT;
        const CURRENT: &[i64] = &[KNOWN.major as i64, KNOWN.minor as i64, KNOWN.patch as i64];
        const MINIMUM: &[i64] = &[0, 9, 0];
        let list = |name: &'static str, value: &'static [i64]| sys::NamedValue {
            name: name.as_ptr(),
            name_size: name.len(),
            type_: sys::named::INT64_LIST,
            value: value.as_ptr() as u64,
            value_size: value.len(),
            ..ApiArgs::new()
        };
        let xla =
            sys::NamedValue { type_: sys::named::INT64, value: 2, value_size: 1, ..list("xla_version", &[]) };
        PluginAttributes(vec![
            xla,
            list("stablehlo_current_version", if is_old { OLDEST } else { CURRENT }),
            list("stablehlo_minimum_version", MINIMUM),
        ])
    }
}
