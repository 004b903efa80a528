//! PJRT client: devices, buffers on them, and loaded executables.
//!
//! Every object that a call returns is owned by one value here and destroyed when that is dropped. Calls return before
//! the work is done; later errors are reported by the next run or when a result is read.

use crate::cache::{CompileCache, build};
use crate::compile_options::{XlaCompileOptions, deterministic_flags, of_gpus};
use crate::plugin::{NamedValues, Plugin, PluginValue, program, slice, text};
use crate::profiler;
use crate::sys::{self, ApiArgs, OpaquePtr};
use crate::topology::{AheadExecutable, describe};
use crate::xla_workarounds::{XlaTarget, mended};
use std::borrow::Cow;
use std::collections::VecDeque;
use std::ffi::c_void;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use systole_ir::{Error, ErrorKind, Graph, Literal, Result, TensorType, err, knobs};
use systole_runtime::{DeviceData, ReadyEvent, STEPS_IN_FLIGHT, events};

/// Options for the number of devices of plugins that create them on request, by platform.
const DEVICE_COUNTS: [(&str, &str); 1] = [("cpu", "cpu_device_count")];

/// Name of a device attribute of Systole's plugin: the multi-host connections that process 0 rejected, as text.
pub const REJECTED_CONNECTIONS: &str = "rejected_connections";

/// A connection to the devices of a PJRT plugin; clones share it.
#[derive(Clone)]
pub struct Client {
    connection: Arc<Connection>,
    cache: Option<Arc<CompileCache>>,
    /// Platform whose form programs get.
    form: Arc<str>,
}

/// The client handle and how it was opened.
struct Connection {
    plugin: Plugin,
    object: OpaquePtr,
    /// Creation options.
    options: Vec<(String, PluginValue)>,
    /// Devices, grouped by process.
    devices: Vec<PjrtDevice>,
    /// Range of this process's devices.
    local: Range<usize>,
    process: i32,
}

// SAFETY: PJRT clients and devices may be used from any thread.
unsafe impl Send for Connection {}
// SAFETY: as above.
unsafe impl Sync for Connection {}

impl Drop for Connection {
    fn drop(&mut self) {
        self.plugin.free(sys::Client_Destroy { client: self.object, ..ApiArgs::new() });
    }
}

/// A device of a PJRT client; it may belong to another process of the slice.
#[derive(Clone, Debug)]
pub struct PjrtDevice {
    object: OpaquePtr,
    /// Device id in the plugin.
    pub id: i64,
    /// Process that drives it, from 0: one per host.
    pub process: i32,
    /// Device kind: `TPU v5 lite`.
    pub kind: String,
    /// Bytes available to arrays, if the plugin states them.
    pub memory_limit: Option<u64>,
}

impl Client {
    /// Opens the devices of a PJRT plugin with plugin-specific options.
    pub fn open(plugin: &Plugin, options: &[(&str, PluginValue)]) -> Result<Client> {
        let mut named = NamedValues::default();
        options.iter().for_each(|(name, value)| named.push(name, value.clone()));
        let raw = named.raw();
        let args = plugin.call(sys::Client_Create {
            create_options: raw.as_ptr(),
            num_options: raw.len(),
            ..ApiArgs::new()
        })?;
        let mut connection = Connection {
            plugin: plugin.clone(),
            object: args.client,
            options: options.iter().map(|(name, value)| (name.to_string(), value.clone())).collect(),
            devices: Vec::new(),
            local: 0..0,
            process: 0,
        };
        connection.list()?;
        let form = connection.platform()?.0.into();
        Ok(Client { connection: Arc::new(connection), cache: None, form })
    }

    /// Opens another client of the plugin with the same options and this number of devices; `None` if the plugin has no
    /// such option, or it was already set.
    pub fn with_devices(&self, count: usize) -> Option<Result<Client>> {
        let (platform, _) = self.platform().ok()?;
        let (_, option) = DEVICE_COUNTS.iter().find(|(of, _)| *of == platform)?;
        let given = &self.connection.options;
        if given.iter().any(|(name, _)| name == option) {
            return None;
        }
        let mut options: Vec<(&str, PluginValue)> =
            given.iter().map(|(n, v)| (n.as_str(), v.clone())).collect();
        options.push((option, PluginValue::Int(count as i64)));
        let client = Client::open(self.plugin(), &options);
        Some(client.map(|client| Client { connection: client.connection, ..self.clone() }))
    }

    /// Adds a compile cache to the client, used if the plugin can serialize executables.
    pub fn with_cache(self, cache: CompileCache) -> Client {
        Client { cache: Some(Arc::new(cache)), ..self }
    }

    /// Returns the client's plugin.
    pub fn plugin(&self) -> &Plugin {
        &self.connection.plugin
    }

    /// Returns all devices of the client, grouped by process. With several processes per slice they include other
    /// hosts' devices.
    pub fn devices(&self) -> &[PjrtDevice] {
        &self.connection.devices
    }

    /// Returns the range of [`devices`](Client::devices) of this process: only there buffers can be created and read.
    pub fn local(&self) -> Range<usize> {
        self.connection.local.clone()
    }

    /// Returns this process's index among those that drive the devices, and their number.
    pub fn process(&self) -> (usize, usize) {
        let mut all: Vec<i32> = self.connection.devices.iter().map(|d| d.process).collect();
        all.dedup();
        (all.iter().position(|p| *p == self.connection.process).unwrap_or(0), all.len())
    }

    /// Returns the platform's name and version as the plugin reports them.
    pub fn platform(&self) -> Result<(String, String)> {
        self.connection.platform()
    }

    /// Compiles programs in the form for another XLA platform: `cuda` on XLA for CPUs tests the unrolled layers,
    /// workarounds and flags that GPUs get.
    pub fn with_form(self, platform: &str) -> Client {
        Client { form: platform.into(), ..self }
    }

    /// Returns the platform whose form programs get.
    pub(crate) fn form(&self) -> &str {
        &self.form
    }

    /// Starts copying a host array to a device of this process.
    pub fn put(&self, value: &Literal, device: usize) -> Result<PjrtBuffer> {
        let to = self.device(device)?;
        if !self.connection.local.contains(&device) {
            return Err(err!(
                Config,
                "device {device} belongs to process {}: only that process can copy arrays to it",
                to.process
            ));
        }
        let dims: Vec<i64> = value.shape().iter().map(|d| *d as i64).collect();
        let args = self.connection.plugin.call(sys::Client_BufferFromHostBuffer {
            client: self.connection.object,
            data: value.bytes().as_ptr().cast(),
            type_: sys::buffer_type(value.dtype()),
            dims: dims.as_ptr(),
            num_dims: dims.len(),
            host_buffer_semantics: sys::host_buffer::UNTIL_TRANSFER_COMPLETES,
            device: to.object,
            ..ApiArgs::new()
        })?;
        let array = PjrtBuffer { client: self.clone(), object: args.buffer, run: None };
        self.keep_until(args.done_with_host_buffer, value.clone())?;
        Ok(array)
    }

    fn device(&self, index: usize) -> Result<&PjrtDevice> {
        self.connection.devices.get(index).ok_or_else(|| {
            err!(Config, "there is no device {index}: the plugin offers {}", self.connection.devices.len())
        })
    }

    /// Keeps host memory alive until the plugin has read it.
    fn keep_until(&self, event: OpaquePtr, memory: Literal) -> Result<()> {
        if event.is_null() {
            return Ok(());
        }
        let kept = Box::new(HostTransfer { plugin: self.connection.plugin.clone(), event, _memory: memory });
        let user_arg = Box::into_raw(kept).cast::<c_void>();
        let args = sys::Event_OnReady { event, callback: Some(release), user_arg, ..ApiArgs::new() };
        self.connection.plugin.call(args).map(drop).inspect_err(|_| {
            // SAFETY: the plugin returned an error, so it will not call back, and this is the only owner.
            drop(unsafe { Box::from_raw(user_arg.cast::<HostTransfer>()) });
        })
    }

    /// Compiles StableHLO text with a function `@main` for one device.
    pub fn compile(&self, text: &str, device: usize) -> Result<LoadedExecutable> {
        self.compile_for(text, &[self.device(device)?.id])
    }

    /// Compiles StableHLO text with shardings (`sdy.mesh`, `sdy.sharding`) for the first `devices`. If other processes
    /// drive some of them, each compiles the same program and runs its part.
    ///
    /// # Errors
    /// Errors of the plugin; or if it has fewer devices.
    pub fn compile_parts(&self, text: &str, devices: usize) -> Result<LoadedExecutable> {
        let ids: Vec<i64> = self.connection.devices.iter().take(devices).map(|d| d.id).collect();
        if ids.len() < devices {
            return Err(err!(
                Config,
                "the program requires {devices} devices, but the plugin offers {}",
                ids.len()
            )
            .hint("choose a smaller device mesh"));
        }
        self.compile_for(text, &ids)
    }

    /// Returns the graph with workarounds for this platform's compiler.
    pub(crate) fn as_it_is_right<'g>(&self, graph: &'g Graph) -> Result<Cow<'g, Graph>> {
        let said = match of_gpus(self.form()) {
            true => mended(graph, XlaTarget::Gpu)?,
            false => Cow::Borrowed(graph),
        };
        if self.platform()?.0 != "cpu" {
            return Ok(said);
        }
        Ok(match said {
            Cow::Borrowed(graph) => mended(graph, XlaTarget::Cpu)?,
            Cow::Owned(graph) => Cow::Owned(mended(&graph, XlaTarget::Cpu)?.into_owned()),
        })
    }

    /// Compiles for each of these devices.
    fn compile_for(&self, text: &str, ids: &[i64]) -> Result<LoadedExecutable> {
        let platform = self.platform()?.0;
        let one_by_one = profiler::wanted() && of_gpus(&platform);
        let with = |flags: &&'static [&'static str]| {
            XlaCompileOptions {
                partitions: ids.len(),
                devices: ids,
                flags,
                one_by_one,
                ..XlaCompileOptions::default()
            }
            .compile_options()
        };
        let options: Vec<Vec<u8>> = deterministic_flags(self.form())?.iter().map(with).collect();
        let Some(cache) = &self.cache else { return self.compile_by(text, &options, ids.len()) };
        let identity = self.identity(options.first().map_or(&[][..], Vec::as_slice))?;
        let asked = [("client.json", &identity[..]), ("program.mlir", text.as_bytes())];
        if let Some(bytes) = cache.bytes(&asked) {
            match self.load(&bytes, ids.len()) {
                Ok(loaded) => return Ok(loaded),
                // Treated like a damaged entry.
                Err(_) => cache.forget(&asked),
            }
        }
        let loaded = self.compile_by(text, &options, ids.len())?;
        // Not every plugin can serialize programs; without space they are compiled again next time.
        if let Ok(bytes) = loaded.serialized() {
            let _ = cache.keep_bytes(&asked, &bytes);
        }
        Ok(loaded)
    }

    /// Compiles with the first options that work.
    fn compile_by(&self, text: &str, options: &[Vec<u8>], devices: usize) -> Result<LoadedExecutable> {
        let mut tried = options.iter().map(|options| self.compile_anew(text, options, devices));
        let first = tried.next().unwrap_or_else(|| self.compile_anew(text, &[], devices));
        let Err(e) = first else { return first };
        match tried.find(Result::is_ok) {
            Some(loaded) => loaded,
            None if options.len() > 1 => Err(e.hint(format!(
                "if the program compiles with {}=off, XLA has no deterministic kernels for it",
                knobs::GPU_DETERMINISM.name
            ))),
            None => Err(e),
        }
    }

    fn compile_anew(&self, text: &str, options: &[u8], devices: usize) -> Result<LoadedExecutable> {
        let program = program(text);
        let args = self.connection.plugin.call(sys::Client_Compile {
            client: self.connection.object,
            program: &raw const program,
            compile_options: options.as_ptr(),
            compile_options_size: options.len(),
            ..ApiArgs::new()
        })?;
        self.loaded(args.executable, devices)
    }

    /// Loads a program that this plugin serialized for these devices.
    fn load(&self, bytes: &[u8], devices: usize) -> Result<LoadedExecutable> {
        let args = self.connection.plugin.call(sys::Executable_DeserializeAndLoad {
            client: self.connection.object,
            serialized_executable: bytes.as_ptr(),
            serialized_executable_size: bytes.len(),
            ..ApiArgs::new()
        })?;
        let mut loaded = self.loaded(args.loaded_executable, devices)?;
        loaded.from_cache = true;
        Ok(loaded)
    }

    /// Returns what a compiled program depends on besides its text: plugin build, devices and options.
    fn identity(&self, options: &[u8]) -> Result<Vec<u8>> {
        let plugin = &self.connection.plugin;
        let devices: Vec<_> = self.devices().iter().map(|d| (d.id, d.process, &d.kind)).collect();
        let own = self.connection.process;
        let whole = (plugin.path(), build(plugin.path()), self.platform()?, own, devices, options);
        serde_json::to_vec(&whole)
            .map_err(|e| err!(Bug, "cannot serialize the client's devices").because(e.to_string()))
    }

    /// Wraps an executable; `devices` counts those of all processes.
    fn loaded(&self, object: OpaquePtr, devices: usize) -> Result<LoadedExecutable> {
        let running = Mutex::default();
        let own = &self.connection.local;
        // A single-device program is compiled for one of this process's devices.
        let devices = if devices == 1 { 1 } else { own.end.min(devices).saturating_sub(own.start) };
        let mut loaded = LoadedExecutable {
            client: self.clone(),
            object,
            outputs: 0,
            devices,
            from_cache: false,
            running,
        };
        loaded.outputs = loaded.executable()?.count_outputs()?;
        Ok(loaded)
    }
}

impl Connection {
    fn platform(&self) -> Result<(String, String)> {
        let name = self.plugin.call(sys::Client_PlatformName { client: self.object, ..ApiArgs::new() })?;
        let version =
            self.plugin.call(sys::Client_PlatformVersion { client: self.object, ..ApiArgs::new() })?;
        // SAFETY: both strings belong to the client, which is alive.
        Ok(unsafe {
            (
                text(name.platform_name, name.platform_name_size),
                text(version.platform_version, version.platform_version_size),
            )
        })
    }

    fn list(&mut self) -> Result<()> {
        let all = self.plugin.call(sys::Client_Devices { client: self.object, ..ApiArgs::new() })?;
        let own =
            self.plugin.call(sys::Client_AddressableDevices { client: self.object, ..ApiArgs::new() })?;
        let process = self.plugin.call(sys::Client_ProcessIndex { client: self.object, ..ApiArgs::new() })?;
        // SAFETY: both lists belong to the client, which is alive.
        let (all, own) = unsafe {
            (slice(all.devices, all.num_devices), slice(own.addressable_devices, own.num_addressable_devices))
        };
        self.process = process.process_index;
        self.devices = all.iter().map(|device| self.describe(*device)).collect::<Result<_>>()?;
        // Chips are numbered by their position in the slice; a host's chips must be consecutive for its range.
        self.devices.sort_by_key(|d| d.process);
        let is_own = |d: &PjrtDevice| own.contains(&d.object);
        let wrong = |what: &str| {
            Err(Error::new(ErrorKind::Unsupported, what).at(self.plugin.path().display().to_string()))
        };
        let Some(first) = self.devices.iter().position(is_own) else {
            return wrong("the plugin offers no devices to this process");
        };
        self.local = first..first + own.len();
        match self.devices.get(self.local.clone()) {
            Some(list) if !list.iter().all(is_own) => {
                wrong("the plugin's devices of this process are not its addressable devices")
            }
            _ if self.devices.chunk_by(|a, b| a.process == b.process).any(|list| list.len() != own.len()) => {
                wrong("the hosts of the slice have different numbers of devices")
            }
            _ => Ok(()),
        }
    }

    fn describe(&self, object: OpaquePtr) -> Result<PjrtDevice> {
        let args = self.plugin.call(sys::Device_GetDescription { device: object, ..ApiArgs::new() })?;
        let described = describe(&self.plugin, args.device_description)?;
        if let Some(PluginValue::Text(text)) = described.attributes.get(REJECTED_CONNECTIONS) {
            events::emit(0, || text.clone());
        }
        let process = self.plugin.call(sys::DeviceDescription_ProcessIndex {
            device_description: args.device_description,
            ..ApiArgs::new()
        })?;
        // Not every plugin reports memory.
        let stats = self.plugin.call(sys::Device_MemoryStats { device: object, ..ApiArgs::new() });
        let stats = stats.ok().filter(|stats| stats.bytes_limit_is_set);
        let memory_limit = stats.map(|stats| u64::try_from(stats.bytes_limit).unwrap_or(0));
        let (id, kind, process) = (described.id, described.kind, process.process_index);
        Ok(PjrtDevice { object, id, process, kind, memory_limit })
    }
}

/// Host memory that a plugin still reads, and the event after which it is free.
struct HostTransfer {
    plugin: Plugin,
    event: OpaquePtr,
    _memory: Literal,
}

impl Drop for HostTransfer {
    fn drop(&mut self) {
        self.plugin.free(sys::Event_Destroy { event: self.event, ..ApiArgs::new() });
    }
}

/// Called by the plugin, once, from any thread.
unsafe extern "C" fn release(error: OpaquePtr, user_arg: *mut c_void) {
    // SAFETY: `keep_until` leaked this box to be reclaimed here.
    let kept = unsafe { Box::from_raw(user_arg.cast::<HostTransfer>()) };
    // A failed transfer is also reported when the array is read.
    let _ = kept.plugin.check(error, "a transfer to the device");
}

/// A buffer on a device of a PJRT client (`PJRT_Buffer`).
pub struct PjrtBuffer {
    client: Client,
    object: OpaquePtr,
    /// The run that computes it, if any.
    run: Option<ReadyEvent>,
}

// SAFETY: PJRT buffers may be used from any thread.
unsafe impl Send for PjrtBuffer {}
// SAFETY: as above.
unsafe impl Sync for PjrtBuffer {}

impl PjrtBuffer {
    /// Whether it belongs to this client.
    pub(crate) fn belongs_to(&self, client: &Client) -> bool {
        Arc::ptr_eq(&self.client.connection, &client.connection)
    }
}

impl Drop for PjrtBuffer {
    fn drop(&mut self) {
        self.client.connection.plugin.free(sys::Buffer_Destroy { buffer: self.object, ..ApiArgs::new() });
    }
}

impl DeviceData for PjrtBuffer {
    fn to_literal(&self, ty: &TensorType) -> Result<Literal> {
        let mut value = Literal::zeros(ty.clone());
        // Without it, the result has the device's layout.
        let minor_to_major: Vec<i64> = (0..ty.shape.len() as i64).rev().collect();
        let tiled = sys::MemoryLayout_Tiled {
            minor_to_major: minor_to_major.as_ptr(),
            minor_to_major_size: minor_to_major.len(),
            ..ApiArgs::new()
        };
        let layout = sys::MemoryLayout { tiled, type_: sys::layout::TILED, ..ApiArgs::new() };
        let bytes = value.bytes_mut();
        let args = self.client.connection.plugin.call(sys::Buffer_ToHostBuffer {
            src: self.object,
            host_layout: (&raw const layout).cast(),
            dst: bytes.as_mut_ptr().cast(),
            dst_size: bytes.len(),
            ..ApiArgs::new()
        })?;
        PjrtEvent { plugin: self.client.connection.plugin.clone(), object: args.event }.wait()?;
        Ok(value)
    }

    fn ready_event(&self) -> Option<ReadyEvent> {
        self.run.clone()
    }
}

/// A completion event (`PJRT_Event`).
struct PjrtEvent {
    plugin: Plugin,
    object: OpaquePtr,
}

// SAFETY: PJRT events may be waited for from any thread.
unsafe impl Send for PjrtEvent {}

impl PjrtEvent {
    fn wait(&self) -> Result<()> {
        match self.object.is_null() {
            true => Ok(()),
            false => self.plugin.call(sys::Event_Await { event: self.object, ..ApiArgs::new() }).map(drop),
        }
    }

    /// Notifies `run` when a device has finished its part.
    fn tell(self, run: &ReadyEvent) {
        if self.object.is_null() {
            return run.done(Ok(()));
        }
        let (plugin, event) = (self.plugin.clone(), self.object);
        let user_arg = Box::into_raw(Box::new(DeviceRun { event: self, run: run.clone() })).cast::<c_void>();
        let args = sys::Event_OnReady { event, callback: Some(part_is_done), user_arg, ..ApiArgs::new() };
        if plugin.call(args).is_err() {
            // SAFETY: the plugin returned an error, so it will not call back, and this is the only owner.
            let part = unsafe { Box::from_raw(user_arg.cast::<DeviceRun>()) };
            part.run.done(part.event.wait());
        }
    }
}

/// One device's part of a run.
struct DeviceRun {
    event: PjrtEvent,
    run: ReadyEvent,
}

/// Called by the plugin, once, from any thread.
unsafe extern "C" fn part_is_done(error: OpaquePtr, user_arg: *mut c_void) {
    // SAFETY: `tell` leaked this box to be reclaimed here.
    let part = unsafe { Box::from_raw(user_arg.cast::<DeviceRun>()) };
    part.run.done(part.event.plugin.check(error, "a run on the device"));
}

impl Drop for PjrtEvent {
    fn drop(&mut self) {
        if !self.object.is_null() {
            self.plugin.free(sys::Event_Destroy { event: self.object, ..ApiArgs::new() });
        }
    }
}

/// An executable loaded on its devices (`PJRT_LoadedExecutable`).
pub struct LoadedExecutable {
    client: Client,
    object: OpaquePtr,
    outputs: usize,
    /// Number of its devices that belong to this process.
    devices: usize,
    from_cache: bool,
    /// Runs in progress, oldest first.
    running: Mutex<VecDeque<ReadyEvent>>,
}

// SAFETY: PJRT executables may be used from any thread.
unsafe impl Send for LoadedExecutable {}
// SAFETY: as above.
unsafe impl Sync for LoadedExecutable {}

/// An argument of a run on a PJRT device: kept or donated.
pub enum RunInput<'a> {
    /// The program may overwrite it, if compiled with donation.
    Donated(&'a PjrtBuffer),
    /// The argument is not modified.
    Kept(&'a PjrtBuffer),
}

impl RunInput<'_> {
    fn array(&self) -> &PjrtBuffer {
        match self {
            RunInput::Donated(a) | RunInput::Kept(a) => a,
        }
    }
}

impl LoadedExecutable {
    /// Returns the plugin that compiled it.
    pub(crate) fn plugin(&self) -> &Plugin {
        self.client.plugin()
    }

    /// Waits for all runs to end.
    ///
    /// # Errors
    /// Errors of the runs.
    pub(crate) fn wait(&self) -> Result<()> {
        let all = std::mem::take(&mut *self.running.lock().unwrap_or_else(PoisonError::into_inner));
        all.into_iter().try_for_each(|run| run.wait().map(drop))
    }

    /// Starts a run of the program on one device; the results can be used immediately.
    ///
    /// # Errors
    /// Errors of the plugin, or of an earlier run.
    pub fn run(&self, inputs: &[RunInput<'_>]) -> Result<Vec<PjrtBuffer>> {
        Ok(self.run_parts(&[inputs])?.remove(0))
    }

    /// Starts a run on all of the program's devices in this process, with separate arguments and results per device. An
    /// argument kept on one device is kept on all.
    ///
    /// # Errors
    /// See [`run`](LoadedExecutable::run); also if the lists do not match the devices.
    pub fn run_parts(&self, inputs: &[&[RunInput<'_>]]) -> Result<Vec<Vec<PjrtBuffer>>> {
        let count = inputs.first().map_or(0, |list| list.len());
        if inputs.len() != self.devices || inputs.iter().any(|list| list.len() != count) {
            return Err(err!(
                Config,
                "got arguments for {} devices, but the program runs on {}",
                inputs.len(),
                self.devices
            )
            .hint("pass lists of the same length for all devices"));
        }
        let foreign = |list: &&[RunInput<'_>]| list.iter().position(|i| !i.array().belongs_to(&self.client));
        if let Some(foreign) = inputs.iter().find_map(foreign) {
            return Err(err!(Config, "argument {foreign} belongs to another client")
                .hint("read the buffer and copy it to this client"));
        }
        self.wait_for_room()?;
        let is_kept = |i: &usize| inputs.iter().any(|list| matches!(list[*i], RunInput::Kept(_)));
        let kept: Vec<i64> = (0..count).filter(is_kept).map(|i| i as i64).collect();
        let options = sys::ExecuteOptions {
            non_donatable_input_indices: kept.as_ptr(),
            num_non_donatable_input_indices: kept.len(),
            ..ApiArgs::new()
        };
        let objects = |list: &&[RunInput<'_>]| list.iter().map(|i| i.array().object).collect();
        let arguments: Vec<Vec<OpaquePtr>> = inputs.iter().map(objects).collect();
        let mut results: Vec<Vec<OpaquePtr>> = vec![vec![std::ptr::null_mut(); self.outputs]; self.devices];
        let mut events: Vec<OpaquePtr> = vec![std::ptr::null_mut(); self.devices];
        let argument_lists: Vec<*const OpaquePtr> = arguments.iter().map(|list| list.as_ptr()).collect();
        let output_lists: Vec<*mut OpaquePtr> = results.iter_mut().map(|list| list.as_mut_ptr()).collect();
        self.client.connection.plugin.call(sys::LoadedExecutable_Execute {
            executable: self.object,
            options: &raw const options,
            argument_lists: argument_lists.as_ptr(),
            num_devices: self.devices,
            num_args: count,
            output_lists: output_lists.as_ptr(),
            device_complete_events: events.as_mut_ptr(),
            ..ApiArgs::new()
        })?;
        let run = ReadyEvent::new(self.devices);
        for object in events {
            PjrtEvent { plugin: self.client.connection.plugin.clone(), object }.tell(&run);
        }
        self.running.lock().unwrap_or_else(PoisonError::into_inner).push_back(run.clone());
        let array = |object| PjrtBuffer { client: self.client.clone(), object, run: Some(run.clone()) };
        Ok(results.into_iter().map(|list| list.into_iter().map(array).collect()).collect())
    }

    fn wait_for_room(&self) -> Result<()> {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        while running.len() >= STEPS_IN_FLIGHT {
            running.pop_front().map_or(Ok(()), |oldest| oldest.wait().map(drop))?;
        }
        Ok(())
    }

    /// Whether the executable was loaded from the compile cache.
    pub fn is_from_cache(&self) -> bool {
        self.from_cache
    }

    /// Serializes the executable for this plugin build and devices.
    ///
    /// # Errors
    /// If the plugin does not support it.
    pub fn serialized(&self) -> Result<Vec<u8>> {
        self.executable()?.serialized()
    }

    /// Returns the peak memory of a run per device in bytes; `None` if the plugin does not report it.
    pub(crate) fn peak_bytes(&self) -> Option<u64> {
        let memory = self.executable().and_then(|program| program.memory()).ok()?;
        let held = (memory.arguments + memory.outputs).saturating_sub(memory.aliased) + memory.temporaries;
        Some(memory.peak.max(held)).filter(|bytes| *bytes > 0)
    }

    pub(crate) fn executable(&self) -> Result<AheadExecutable> {
        let plugin = &self.client.connection.plugin;
        let args = plugin
            .call(sys::LoadedExecutable_GetExecutable { loaded_executable: self.object, ..ApiArgs::new() })?;
        Ok(AheadExecutable::new(plugin.clone(), args.executable))
    }
}

impl Drop for LoadedExecutable {
    fn drop(&mut self) {
        self.client
            .connection
            .plugin
            .free(sys::LoadedExecutable_Destroy { executable: self.object, ..ApiArgs::new() });
    }
}
