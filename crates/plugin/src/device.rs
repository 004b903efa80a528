//! PJRT client, logical devices, memories and topology of the plugin. A client owns all of them; callers hold pointers.

use crate::call::{ApiCall, CallError, CallResult, IS_OLD, chars, destroy, handle, list, seen};
use crate::event::SimulatedLatency;
use crate::key_value::KeyValueStore;
use crate::multi_host::{HostLinks, ProcessOptions};
use crate::queue::RunQueue;
use crate::signals::{check_fork, watch_forks};
use std::ffi::c_void;
use std::ops::Range;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use systole_cpu::{CpuBackend, available_memory};
use systole_ir::rng::fnv1a;
use systole_pjrt::REJECTED_CONNECTIONS;
use systole_pjrt::sys::{self, ApiArgs, OpaquePtr};

const PLATFORM: &str = "systole";
pub(crate) const VERSION: &str = concat!("Systole ", env!("CARGO_PKG_VERSION"), ", CPU engine");
const KIND: &str = "Systole CPU";
/// Memory kinds of each device, which are all the same memory.
pub(crate) const MEMORY_KINDS: [&str; 3] = ["device", "pinned_host", "unpinned_host"];
const TOPOLOGY: &str = "systole topology ";
/// Maximum number of logical devices.
const MOST_DEVICES: i64 = 1024;

/// The object behind `PJRT_Client*`.
pub(crate) struct PluginClient {
    pub(crate) engine: Arc<CpuBackend>,
    /// Connections to the other processes, if any.
    pub(crate) line: Option<Arc<HostLinks>>,
    pub(crate) pace: SimulatedLatency,
    /// Range of this process's devices.
    pub(crate) local: Range<usize>,
    /// Queue of asynchronous runs.
    pub(crate) queue: Arc<RunQueue>,
    process: i32,
    topology: PluginTopology,
    memory_list: Vec<OpaquePtr>,
}

/// The object behind `PJRT_TopologyDescription*`: the devices of all processes.
pub(crate) struct PluginTopology {
    #[allow(clippy::vec_box, reason = "callers hold pointers to each")]
    devices: Vec<Box<LogicalDevice>>,
    device_list: Vec<OpaquePtr>,
}

/// Memory statistics of a device.
#[derive(Default)]
pub(crate) struct MemoryStats {
    bytes: AtomicI64,
    peak: AtomicI64,
    arrays: AtomicI64,
    largest: AtomicI64,
}

impl MemoryStats {
    pub(crate) fn add(&self, bytes: usize) {
        let now = self.bytes.fetch_add(bytes as i64, Relaxed) + bytes as i64;
        self.peak.fetch_max(now, Relaxed);
        self.largest.fetch_max(bytes as i64, Relaxed);
        self.arrays.fetch_add(1, Relaxed);
    }

    pub(crate) fn subtract(&self, bytes: usize) {
        self.bytes.fetch_sub(bytes as i64, Relaxed);
    }
}

/// The object behind `PJRT_Device*` and its description.
pub(crate) struct LogicalDevice {
    pub(crate) id: i32,
    pub(crate) process: i32,
    pub(crate) stats: Arc<MemoryStats>,
    /// Index among this process's devices; `None` for another process's device.
    local: Option<i32>,
    /// Number of devices of each process, which share its memory.
    siblings: i32,
    name: String,
    /// Description of the connections that this process rejected, on its first device.
    rejected: OnceLock<TextAttribute>,
    #[allow(clippy::vec_box, reason = "callers hold pointers to each")]
    memory_objects: Vec<Box<DeviceMemory>>,
    /// Pointers to the memories of each kind, as callers read the list.
    memories: [OpaquePtr; MEMORY_KINDS.len()],
}

/// A device attribute with a text, as callers read the list.
struct TextAttribute {
    list: [sys::NamedValue; 1],
    /// Memory of the text.
    _text: Box<str>,
}

impl TextAttribute {
    fn new(name: &'static str, text: String) -> TextAttribute {
        let text = text.into_boxed_str();
        let value = sys::NamedValue {
            name: name.as_ptr(),
            name_size: name.len(),
            type_: sys::named::STRING,
            value: text.as_ptr() as u64,
            value_size: text.len(),
            ..ApiArgs::new()
        };
        TextAttribute { list: [value], _text: text }
    }
}

/// The object behind `PJRT_Memory*`. Since version 0.117 it starts with a pointer to its function table.
#[repr(C)]
pub(crate) struct DeviceMemory {
    functions: *const MemoryFunctions,
    id: i32,
    /// Index in [`MEMORY_KINDS`].
    pub(crate) kind: usize,
    pub(crate) device: OpaquePtr,
    devices: [OpaquePtr; 1],
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

impl PluginClient {
    fn new(place: ProcessOptions, store: Option<&KeyValueStore>) -> CallResult<PluginClient> {
        let (each, process) = (place.devices, place.process as i32);
        if !(1..=MOST_DEVICES).contains(&each) {
            return Err(CallError::invalid(format!("num_devices is {each}, expected 1 to {MOST_DEVICES}")));
        }
        let engine = Arc::new(CpuBackend::new()?);
        let processes = place.processes;
        let pace = SimulatedLatency::new(place.step)
            .map_err(|e| CallError::invalid(format!("cannot start a thread: {e}")))?;
        let each = each as i32;
        let line = place.meet(store)?.map(Arc::new);
        let topology = PluginTopology::new(each, processes as i32, process);
        let local = (process * each) as usize..((process + 1) * each) as usize;
        if let Some(text) = line.as_ref().and_then(|line| line.rejected.clone()) {
            topology.devices[local.start]
                .rejected
                .get_or_init(|| TextAttribute::new(REJECTED_CONNECTIONS, text));
        }
        let memory_list = topology.devices[local.clone()].iter().flat_map(|d| d.memories).collect();
        Ok(PluginClient { engine, line, pace, local, queue: Arc::default(), process, topology, memory_list })
    }

    /// Creates a client that compiles for a topology.
    pub(crate) fn of_topology(topology: &PluginTopology) -> CallResult<PluginClient> {
        Ok(PluginClient {
            engine: Arc::new(CpuBackend::new()?),
            line: None,
            pace: SimulatedLatency::AtOnce,
            local: 0..topology.devices.len(),
            queue: Arc::default(),
            process: 0,
            topology: PluginTopology::new(topology.devices.len() as i32, 1, 0),
            memory_list: Vec::new(),
        })
    }

    pub(crate) fn count(&self) -> usize {
        self.topology.device_list.len()
    }

    pub(crate) fn device(&self, id: i32) -> CallResult<OpaquePtr> {
        let found = usize::try_from(id).ok().and_then(|i| self.topology.device_list.get(i).copied());
        found.ok_or_else(|| {
            CallError::invalid(format!("there is no device {id}: the client has {}", self.count()))
        })
    }

    /// Returns the number of processes.
    pub(crate) fn processes(&self) -> usize {
        self.count() / self.local.len().max(1)
    }

    fn own(&self) -> &[Box<LogicalDevice>] {
        &self.topology.devices[self.local.clone()]
    }
}

impl PluginTopology {
    fn new(each: i32, processes: i32, process: i32) -> PluginTopology {
        let device =
            |id: i32| LogicalDevice::new(id, id / each, (id / each == process).then_some(id % each), each);
        let devices: Vec<Box<LogicalDevice>> = (0..each * processes).map(device).collect();
        let device_list = devices.iter().map(|d| pointer(&**d)).collect();
        PluginTopology { devices, device_list }
    }

    /// Serializes to `MARK` and the number of devices.
    fn to_bytes(&self) -> Vec<u8> {
        format!("{TOPOLOGY}{}", self.devices.len()).into_bytes()
    }

    fn read(bytes: &[u8]) -> CallResult<PluginTopology> {
        let text = std::str::from_utf8(bytes).ok().and_then(|t| t.strip_prefix(TOPOLOGY));
        let count = text.and_then(|t| t.parse::<i64>().ok()).filter(|n| (1..=MOST_DEVICES).contains(n));
        let count =
            count.ok_or_else(|| CallError::invalid("the bytes are not a topology of Systole's plugin"))?;
        Ok(PluginTopology::new(count as i32, 1, 0))
    }
}

impl LogicalDevice {
    /// Device and memories refer to each other, so all are boxed.
    fn new(id: i32, process: i32, local: Option<i32>, siblings: i32) -> Box<LogicalDevice> {
        let null = std::ptr::null_mut();
        let name = format!("systole:{id}");
        let stats = Arc::default();
        let mut device = Box::new(LogicalDevice {
            id,
            process,
            stats,
            local,
            siblings,
            name,
            rejected: OnceLock::new(),
            memory_objects: Vec::new(),
            memories: [null; MEMORY_KINDS.len()],
        });
        let own = pointer(&*device);
        for kind in 0..MEMORY_KINDS.len() {
            let functions = &raw const MEMORY_FUNCTIONS;
            // The first kind has the ids of the devices.
            let id = id + kind as i32 * MOST_DEVICES as i32;
            let memory = Box::new(DeviceMemory { functions, id, kind, device: own, devices: [own] });
            device.memories[kind] = pointer(&*memory);
            device.memory_objects.push(memory);
        }
        device
    }
}

impl LogicalDevice {
    /// Whether the device belongs to this process.
    pub(crate) fn is_local(&self) -> bool {
        self.local.is_some()
    }

    /// Returns the pointer to its memory of a kind.
    pub(crate) fn memory(&self, kind: usize) -> OpaquePtr {
        self.memories.get(kind).copied().unwrap_or(self.memories[0])
    }
}

fn pointer<T>(of: &T) -> OpaquePtr {
    std::ptr::from_ref(of).cast_mut().cast()
}

impl ApiCall for sys::Client_Create {
    unsafe fn handle(&mut self) -> CallResult {
        // Callers query the plugin's attributes after this.
        IS_OLD.store(self.struct_size < Self::SIZE, Relaxed);
        // SAFETY: the caller's list has that length.
        let place = unsafe { ProcessOptions::read(self.create_options, self.num_options)? };
        watch_forks();
        let store = KeyValueStore::of(self);
        self.client = Box::into_raw(Box::new(PluginClient::new(place, store.as_ref())?)).cast();
        Ok(())
    }
}

handle! {
    Client_PlatformName: |args, _client: PluginClient| client => {
        (args.platform_name, args.platform_name_size) = chars(PLATFORM);
    }
    Client_PlatformVersion: |args, _client: PluginClient| client => {
        (args.platform_version, args.platform_version_size) = chars(VERSION);
    }
    Client_ProcessIndex: |args, client: PluginClient| client => { args.process_index = client.process; }
    // The states of JAX's processes: this client's connections report lost processes themselves.
    Client_UpdateGlobalProcessInfo: |_args, _client: PluginClient| client => {}
    Client_Devices: |args, client: PluginClient| client => {
        let all = &client.topology.device_list;
        (args.devices, args.num_devices) = (all.as_ptr(), all.len());
    }
    Client_AddressableDevices: |args, client: PluginClient| client => {
        let own = &client.topology.device_list[client.local.clone()];
        (args.addressable_devices, args.num_addressable_devices) = (own.as_ptr(), own.len());
    }
    Client_LookupDevice: |args, client: PluginClient| client => { args.device = client.device(args.id)?; }
    Client_LookupAddressableDevice: |args, client: PluginClient| client => {
        let own = client.own().iter().find(|d| d.local == Some(args.local_hardware_id));
        let missing = || CallError::invalid(format!("this process has no device {}", args.local_hardware_id));
        args.addressable_device = pointer(&**own.ok_or_else(missing)?);
    }
    Client_AddressableMemories: |args, client: PluginClient| client => {
        args.addressable_memories = client.memory_list.as_ptr();
        args.num_addressable_memories = client.memory_list.len();
    }
    Client_TopologyDescription: |args, client: PluginClient| client => {
        args.topology = pointer(&client.topology);
    }
    Client_DefaultDeviceAssignment: |args, client: PluginClient| client => {
        let wanted = i64::from(args.num_replicas) * i64::from(args.num_partitions);
        if wanted < 0 || wanted as usize > client.count().min(args.default_assignment_size) {
            return Err(CallError::invalid(format!("{wanted} devices requested, the client has {}", client.count())));
        }
        for i in 0..wanted as usize {
            // SAFETY: the caller's list has room for that many.
            unsafe { *args.default_assignment.add(i) = i as i32 };
        }
    }
    TopologyDescription_PlatformName: |args, _topology: PluginTopology| topology => {
        (args.platform_name, args.platform_name_size) = chars(PLATFORM);
    }
    TopologyDescription_PlatformVersion: |args, _topology: PluginTopology| topology => {
        (args.platform_version, args.platform_version_size) = chars(VERSION);
    }
    TopologyDescription_GetDeviceDescriptions: |args, topology: PluginTopology| topology => {
        let all = &topology.device_list;
        (args.descriptions, args.num_descriptions) = (all.as_ptr(), all.len());
    }
    TopologyDescription_Attributes: |args, _topology: PluginTopology| topology => {
        (args.attributes, args.num_attributes) = (std::ptr::null(), 0);
    }
    TopologyDescription_Serialize: |args, topology: PluginTopology| topology => {
        let bytes = Box::new(topology.to_bytes());
        (args.serialized_bytes, args.serialized_bytes_size) = (bytes.as_ptr(), bytes.len());
        args.serialized_topology = Box::into_raw(bytes).cast();
        args.serialized_topology_deleter = Some(free_bytes);
    }
    TopologyDescription_Fingerprint: |args, topology: PluginTopology| topology => {
        args.fingerprint = fnv1a(&[PLATFORM.as_bytes(), VERSION.as_bytes(), &topology.to_bytes()].concat());
    }
    DeviceDescription_Id: |args, device: LogicalDevice| device_description => { args.id = device.id; }
    DeviceDescription_ProcessIndex: |args, device: LogicalDevice| device_description => {
        args.process_index = device.process;
    }
    DeviceDescription_Attributes: |args, device: LogicalDevice| device_description => {
        let list = device.rejected.get().map_or(&[][..], |attribute| &attribute.list);
        (args.attributes, args.num_attributes) = (list.as_ptr(), list.len());
    }
    DeviceDescription_Kind: |args, _device: LogicalDevice| device_description => {
        (args.device_kind, args.device_kind_size) = chars(KIND);
    }
    DeviceDescription_DebugString: |args, device: LogicalDevice| device_description => {
        (args.debug_string, args.debug_string_size) = chars(&device.name);
    }
    DeviceDescription_ToString: |args, device: LogicalDevice| device_description => {
        (args.to_string, args.to_string_size) = chars(&device.name);
    }
    Device_GetDescription: |args, device: LogicalDevice| device => { args.device_description = pointer(device); }
    Device_IsAddressable: |args, device: LogicalDevice| device => { args.is_addressable = device.is_local(); }
    Device_LocalHardwareId: |args, device: LogicalDevice| device => {
        args.local_hardware_id = device.local.unwrap_or(-1);
    }
    Device_AddressableMemories: |args, device: LogicalDevice| device => {
        (args.memories, args.num_memories) = (device.memories.as_ptr(), device.memories.len());
    }
    Device_DefaultMemory: |args, device: LogicalDevice| device => { args.memory = device.memories[0]; }
    Device_GetAttributes: |args, device: LogicalDevice| device => {
        (args.attributes, args.num_attributes) = (std::ptr::null(), 0);
        args.device_attributes = pointer(device);
        args.attributes_deleter = Some(keep);
    }
    Device_MemoryStats: |args, device: LogicalDevice| device => {
        // Callers leave fields uninitialized that they do not expect to be read.
        *args = sys::Device_MemoryStats { device: args.device, ..ApiArgs::new() };
        let stats = &device.stats;
        args.bytes_in_use = stats.bytes.load(Relaxed);
        (args.peak_bytes_in_use, args.peak_bytes_in_use_is_set) = (stats.peak.load(Relaxed), true);
        (args.num_allocs, args.num_allocs_is_set) = (stats.arrays.load(Relaxed), true);
        (args.largest_alloc_size, args.largest_alloc_size_is_set) = (stats.largest.load(Relaxed), true);
        if let Some(left) = available_memory() {
            (args.bytes_limit, args.bytes_limit_is_set) = (args.bytes_in_use.saturating_add(left as i64), true);
            // What every device can allocate at the same time.
            let share = args.bytes_limit / i64::from(device.siblings.max(1));
            (args.bytes_reservable_limit, args.bytes_reservable_limit_is_set) = (share, true);
        }
    }
    Memory_Kind_Id: |args, memory: DeviceMemory| memory => { args.kind_id = memory.kind as i32; }
    Memory_Id: |args, memory: DeviceMemory| memory => { args.id = memory.id; }
    Memory_Kind: |args, memory: DeviceMemory| memory => {
        (args.kind, args.kind_size) = chars(MEMORY_KINDS[memory.kind]);
    }
    Memory_DebugString: |args, memory: DeviceMemory| memory => {
        (args.debug_string, args.debug_string_size) = chars(MEMORY_KINDS[memory.kind]);
    }
    Memory_ToString: |args, memory: DeviceMemory| memory => {
        (args.to_string, args.to_string_size) = chars(MEMORY_KINDS[memory.kind]);
    }
    Memory_AddressableByDevices: |args, memory: DeviceMemory| memory => {
        (args.devices, args.num_devices) = (memory.devices.as_ptr(), memory.devices.len());
    }
}

/// The client owns the attributes of its devices.
unsafe extern "C" fn keep(_: OpaquePtr) {}

/// Frees bytes that a call returned.
pub(crate) unsafe extern "C" fn free_bytes(object: OpaquePtr) {
    // SAFETY: the box that was leaked there, returned once.
    drop(unsafe { Box::from_raw(object.cast::<Vec<u8>>()) });
}

impl ApiCall for sys::TopologyDescription_Create {
    unsafe fn handle(&mut self) -> CallResult {
        // SAFETY: the caller's list has that length.
        let place = unsafe { ProcessOptions::read(self.create_options, self.num_options)? };
        let (each, processes) = (place.devices, place.processes);
        if each < 1 || each.saturating_mul(processes) > MOST_DEVICES {
            return Err(CallError::invalid(format!("num_devices is {each}, expected 1 to {MOST_DEVICES}")));
        }
        let topology = PluginTopology::new(each as i32, processes as i32, place.process as i32);
        self.topology = Box::into_raw(Box::new(topology)).cast();
        Ok(())
    }
}

impl ApiCall for sys::TopologyDescription_Deserialize {
    unsafe fn handle(&mut self) -> CallResult {
        // SAFETY: the bytes are as many as stated next to them.
        let bytes = unsafe { list(self.serialized_topology, self.serialized_topology_size) };
        self.topology = Box::into_raw(Box::new(PluginTopology::read(bytes)?)).cast();
        Ok(())
    }
}

impl ApiCall for sys::Client_Destroy {
    /// In a forked child, the client's threads do not exist and cannot be joined: the client is leaked.
    unsafe fn handle(&mut self) -> CallResult {
        if !self.client.is_null() && check_fork().is_ok() {
            // SAFETY: a box of that type that was leaked, returned once.
            drop(unsafe { Box::from_raw(self.client.cast::<PluginClient>()) });
        }
        Ok(())
    }
}

destroy! {
    TopologyDescription_Destroy: PluginTopology, topology;
}
