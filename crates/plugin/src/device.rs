//! The client, its logical devices and their memories. A client owns all of them; callers hold pointers.

use crate::event::Pace;
use crate::hosts::{Line, ProcessOptions};
use crate::table::{Answer, Failure, Handle, chars};
use std::ffi::c_void;
use std::ops::Range;
use std::sync::Arc;
use systole_cpu::CpuBackend;
use systole_pjrt::sys::{self, Object};

const PLATFORM: &str = "systole";
pub(crate) const VERSION: &str = concat!("Systole ", env!("CARGO_PKG_VERSION"), ", CPU engine");
const KIND: &str = "Systole CPU";
const MEMORY_KIND: &str = "device";
/// More logical devices than this are a mistake.
const MOST_DEVICES: i64 = 1024;

/// The object behind `PJRT_Client*`, and behind its topology.
pub(crate) struct Client {
    pub(crate) engine: Arc<CpuBackend>,
    /// To the other processes, where there are some.
    pub(crate) line: Option<Arc<Line>>,
    pub(crate) pace: Pace,
    /// Which of the devices are this process's.
    pub(crate) local: Range<usize>,
    process: i32,
    #[allow(clippy::vec_box, reason = "callers hold pointers to each")]
    devices: Vec<Box<Device>>,
    device_list: Vec<Object>,
    memory_list: Vec<Object>,
}

/// The object behind `PJRT_Device*`, and behind its description.
pub(crate) struct Device {
    pub(crate) id: i32,
    process: i32,
    /// Its number among this process's; `None`: it is another's.
    local: Option<i32>,
    name: String,
    memory: Box<Memory>,
    /// The pointer to the memory, as the lists of callers have it.
    memories: [Object; 1],
}

/// The object behind `PJRT_Memory*`. Since version 0.117 it begins with a pointer to its own functions.
#[repr(C)]
pub(crate) struct Memory {
    functions: *const MemoryFunctions,
    id: i32,
    pub(crate) device: Object,
    devices: [Object; 1],
}

#[repr(C)]
struct MemoryFunctions {
    struct_size: usize,
    extension_start: *const c_void,
    instance_struct_size: usize,
    get_user_data: *const c_void,
    set_user_data: *const c_void,
}

// SAFETY: constant numbers; the pointers are null.
unsafe impl Sync for MemoryFunctions {}

static MEMORY_FUNCTIONS: MemoryFunctions = MemoryFunctions {
    struct_size: size_of::<MemoryFunctions>(),
    extension_start: std::ptr::null(),
    instance_struct_size: size_of::<usize>(),
    get_user_data: std::ptr::null(),
    set_user_data: std::ptr::null(),
};

impl Client {
    fn new(place: &ProcessOptions) -> Result<Client, Failure> {
        let (each, process) = (place.devices, place.process as i32);
        if !(1..=MOST_DEVICES).contains(&each) {
            return Err(Failure::invalid(format!("num_devices is {each}, and may be 1 to {MOST_DEVICES}")));
        }
        let engine = Arc::new(CpuBackend::new()?);
        let line = place.meet()?.map(Arc::new);
        let pace = Pace::new(place.step).map_err(|e| Failure::invalid(format!("no thread: {e}")))?;
        let each = each as i32;
        let device = |id: i32| Device::new(id, id / each, (id / each == process).then_some(id % each));
        let devices: Vec<Box<Device>> = (0..each * place.processes as i32).map(device).collect();
        let device_list = devices.iter().map(|d| pointer(&**d)).collect();
        let local = (process * each) as usize..((process + 1) * each) as usize;
        let memory_list = devices[local.clone()].iter().map(|d| d.memories[0]).collect();
        Ok(Client { engine, line, pace, local, process, devices, device_list, memory_list })
    }

    pub(crate) fn count(&self) -> usize {
        self.device_list.len()
    }

    pub(crate) fn device(&self, id: i32) -> Result<Object, Failure> {
        let found = usize::try_from(id).ok().and_then(|i| self.device_list.get(i).copied());
        found.ok_or_else(|| Failure::invalid(format!("there is no device {id} of {}", self.devices.len())))
    }
}

impl Device {
    /// Device and memory point to each other, so both are in boxes.
    fn new(id: i32, process: i32, local: Option<i32>) -> Box<Device> {
        let null = std::ptr::null_mut();
        let memory = Memory { functions: &raw const MEMORY_FUNCTIONS, id, device: null, devices: [null] };
        let name = format!("systole:{id}");
        let mut device =
            Box::new(Device { id, process, local, name, memory: Box::new(memory), memories: [null] });
        let own = pointer(&*device);
        device.memory.device = own;
        device.memory.devices = [own];
        device.memories = [pointer(&*device.memory)];
        device
    }
}

impl Device {
    /// Whether this process drives it.
    pub(crate) fn is_local(&self) -> bool {
        self.local.is_some()
    }

    /// The pointer to its memory, for callers.
    pub(crate) fn memory(&self) -> Object {
        self.memories[0]
    }
}

fn pointer<T>(of: &T) -> Object {
    std::ptr::from_ref(of).cast_mut().cast()
}

/// # Safety
/// `object` is a pointer that this plugin handed out for a `T` that is alive.
pub(crate) unsafe fn seen<'a, T>(object: Object) -> Result<&'a T, Failure> {
    // SAFETY: passed on.
    unsafe { object.cast::<T>().as_ref() }.ok_or_else(|| Failure::invalid("an object is null"))
}

macro_rules! handle {
    ($($name:ident: |$args:ident, $object:ident: $type:ty| $from:ident => $body:block)*) => {
        $(impl Handle for sys::$name {
            unsafe fn handle(&mut self) -> Answer {
                let $args = self;
                // SAFETY: callers hand back what they were given.
                let $object: &$type = unsafe { seen($args.$from)? };
                $body
                Ok(())
            }
        })*
    };
}

impl Handle for sys::Client_Create {
    unsafe fn handle(&mut self) -> Answer {
        // SAFETY: the caller's list is that long.
        let place = unsafe { ProcessOptions::read(self.create_options, self.num_options)? };
        self.client = Box::into_raw(Box::new(Client::new(&place)?)).cast();
        Ok(())
    }
}

impl Handle for sys::Client_Destroy {
    unsafe fn handle(&mut self) -> Answer {
        if !self.client.is_null() {
            // SAFETY: made by `Client_Create`, and given back once.
            drop(unsafe { Box::from_raw(self.client.cast::<Client>()) });
        }
        Ok(())
    }
}

handle! {
    Client_PlatformName: |args, _client: Client| client => {
        (args.platform_name, args.platform_name_size) = chars(PLATFORM);
    }
    Client_PlatformVersion: |args, _client: Client| client => {
        (args.platform_version, args.platform_version_size) = chars(VERSION);
    }
    Client_ProcessIndex: |args, client: Client| client => {
        args.process_index = client.process;
    }
    Client_Devices: |args, client: Client| client => {
        (args.devices, args.num_devices) = (client.device_list.as_ptr(), client.device_list.len());
    }
    Client_AddressableDevices: |args, client: Client| client => {
        let own = &client.device_list[client.local.clone()];
        (args.addressable_devices, args.num_addressable_devices) = (own.as_ptr(), own.len());
    }
    Client_LookupDevice: |args, client: Client| client => {
        args.device = client.device(args.id)?;
    }
    Client_LookupAddressableDevice: |args, client: Client| client => {
        let own = client.devices[client.local.clone()].iter().find(|d| d.local == Some(args.local_hardware_id));
        let missing = || Failure::invalid(format!("this process has no device {}", args.local_hardware_id));
        args.addressable_device = pointer(&**own.ok_or_else(missing)?);
    }
    Client_AddressableMemories: |args, client: Client| client => {
        args.addressable_memories = client.memory_list.as_ptr();
        args.num_addressable_memories = client.memory_list.len();
    }
    Client_TopologyDescription: |args, client: Client| client => {
        args.topology = pointer(client);
    }
    Client_DefaultDeviceAssignment: |args, client: Client| client => {
        let wanted = i64::from(args.num_replicas) * i64::from(args.num_partitions);
        if wanted < 0 || wanted as usize > client.devices.len().min(args.default_assignment_size) {
            return Err(Failure::invalid(format!("{wanted} devices asked for, {} there", client.devices.len())));
        }
        for i in 0..wanted as usize {
            // SAFETY: the caller's list has room for that many.
            unsafe { *args.default_assignment.add(i) = i as i32 };
        }
    }
    TopologyDescription_PlatformName: |args, _client: Client| topology => {
        (args.platform_name, args.platform_name_size) = chars(PLATFORM);
    }
    TopologyDescription_PlatformVersion: |args, _client: Client| topology => {
        (args.platform_version, args.platform_version_size) = chars(VERSION);
    }
    TopologyDescription_GetDeviceDescriptions: |args, client: Client| topology => {
        (args.descriptions, args.num_descriptions) = (client.device_list.as_ptr(), client.device_list.len());
    }
    TopologyDescription_Attributes: |args, _client: Client| topology => {
        (args.attributes, args.num_attributes) = (std::ptr::null(), 0);
    }
    DeviceDescription_Id: |args, device: Device| device_description => {
        args.id = device.id;
    }
    DeviceDescription_ProcessIndex: |args, device: Device| device_description => {
        args.process_index = device.process;
    }
    DeviceDescription_Attributes: |args, _device: Device| device_description => {
        (args.attributes, args.num_attributes) = (std::ptr::null(), 0);
    }
    DeviceDescription_Kind: |args, _device: Device| device_description => {
        (args.device_kind, args.device_kind_size) = chars(KIND);
    }
    DeviceDescription_DebugString: |args, device: Device| device_description => {
        (args.debug_string, args.debug_string_size) = chars(&device.name);
    }
    DeviceDescription_ToString: |args, device: Device| device_description => {
        (args.to_string, args.to_string_size) = chars(&device.name);
    }
    Device_GetDescription: |args, device: Device| device => {
        args.device_description = pointer(device);
    }
    Device_IsAddressable: |args, device: Device| device => {
        args.is_addressable = device.is_local();
    }
    Device_LocalHardwareId: |args, device: Device| device => {
        args.local_hardware_id = device.local.unwrap_or(-1);
    }
    Device_AddressableMemories: |args, device: Device| device => {
        (args.memories, args.num_memories) = (device.memories.as_ptr(), device.memories.len());
    }
    Device_DefaultMemory: |args, device: Device| device => {
        args.memory = device.memories[0];
    }
    Device_GetAttributes: |args, device: Device| device => {
        (args.attributes, args.num_attributes) = (std::ptr::null(), 0);
        args.device_attributes = pointer(device);
        args.attributes_deleter = Some(keep);
    }
    Memory_Id: |args, memory: Memory| memory => {
        args.id = memory.id;
    }
    Memory_Kind: |args, _memory: Memory| memory => {
        (args.kind, args.kind_size) = chars(MEMORY_KIND);
    }
    Memory_DebugString: |args, _memory: Memory| memory => {
        (args.debug_string, args.debug_string_size) = chars(MEMORY_KIND);
    }
    Memory_ToString: |args, _memory: Memory| memory => {
        (args.to_string, args.to_string_size) = chars(MEMORY_KIND);
    }
    Memory_AddressableByDevices: |args, memory: Memory| memory => {
        (args.devices, args.num_devices) = (memory.devices.as_ptr(), memory.devices.len());
    }
}

/// The attributes of a device belong to the client.
unsafe extern "C" fn keep(_: Object) {}
