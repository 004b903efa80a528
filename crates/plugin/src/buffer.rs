//! `PJRT_Buffer` of the plugin: arrays on a logical device, possibly still being computed.

use crate::buffer_type::BufferType;
use crate::call::{ApiCall, CallError, CallResult, destroy, handle, seen};
use crate::device::{DeviceMemory, LogicalDevice, MemoryStats};
use crate::event::PluginEvent;
use crate::layout::{straight, turn};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use systole_ir::{TensorType, ensure};
use systole_mlir::device_sharding::DeviceSharding;
use systole_pjrt::sys::{self, OpaquePtr};
use systole_runtime::Buffer;

/// The object behind `PJRT_Buffer*`.
pub(crate) struct PluginBuffer {
    pub(crate) kind: Arc<BufferType>,
    pub(crate) device: OpaquePtr,
    stats: Arc<MemoryStats>,
    content: Mutex<BufferContent>,
    /// Event before which the array must not be read.
    made: PluginEvent,
    /// Memory with the external byte order that callers read.
    pinned: Mutex<Option<Arc<PinnedMemory>>>,
    /// Number of external references to it.
    readers: AtomicUsize,
}

// SAFETY: the pointer is to a device, which the client owns and never changes.
unsafe impl Send for PluginBuffer {}
// SAFETY: as above.
unsafe impl Sync for PluginBuffer {}

/// Contents of a buffer.
#[derive(Clone)]
pub(crate) enum BufferContent {
    /// The buffer's own arrays.
    Own(EngineArrays),
    /// A device's shard of a global array.
    Part(Arc<GlobalArray>, usize),
    /// Deleted or donated.
    Gone,
}

/// Engine arrays, available or pending.
#[derive(Clone)]
pub(crate) enum EngineArrays {
    Ready(Vec<Buffer>),
    Later(Arc<PendingArrays>),
}

/// A global array of which each device has a shard.
pub(crate) struct GlobalArray {
    pub(crate) held: EngineArrays,
    pub(crate) tiles: DeviceSharding,
    /// Devices, in order.
    pub(crate) ids: Arc<Vec<i32>>,
    /// Run and index of the result, equal in all processes that have it; `None` in a single process.
    pub(crate) origin: Option<(u64, u64)>,
}

/// Arrays that a run or an incremental transfer will provide.
pub(crate) struct PendingArrays {
    made: Mutex<Option<Vec<Buffer>>>,
    pub(crate) event: PluginEvent,
}

/// Memory with a stable address.
enum PinnedMemory {
    /// The engine's array, which it keeps reading.
    Array(Buffer),
    Bytes(Box<[u64]>),
}

impl PendingArrays {
    /// Creates pending arrays, available after `event`.
    pub(crate) fn new(event: PluginEvent) -> Arc<PendingArrays> {
        Arc::new(PendingArrays { made: Mutex::new(None), event })
    }

    fn made(&self) -> MutexGuard<'_, Option<Vec<Buffer>>> {
        self.made.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the arrays; must be called before the event is signalled.
    pub(crate) fn set(&self, arrays: Vec<Buffer>) {
        *self.made() = Some(arrays);
    }
}

impl EngineArrays {
    /// Waits for the arrays and returns them, without a copy if nobody else holds them.
    pub(crate) fn wait(self) -> CallResult<Vec<Buffer>> {
        match self {
            EngineArrays::Ready(arrays) => Ok(arrays),
            EngineArrays::Later(pending) => {
                pending.event.wait()?;
                let made = match Arc::try_unwrap(pending) {
                    Ok(own) => own.made.into_inner().unwrap_or_else(PoisonError::into_inner),
                    Err(shared) => shared.made().clone(),
                };
                made.ok_or_else(|| CallError::invalid("an array was never computed"))
            }
        }
    }

    /// Returns the event after which they are available.
    pub(crate) fn event(&self) -> PluginEvent {
        match self {
            EngineArrays::Ready(_) => PluginEvent::past(),
            EngineArrays::Later(pending) => pending.event.clone(),
        }
    }
}

impl GlobalArray {
    /// Waits for one device's shard and returns it.
    pub(crate) fn part(&self, device: usize) -> CallResult<Vec<Buffer>> {
        let arrays = self.held.clone().wait()?;
        if self.tiles.is_replicated() {
            return Ok(arrays);
        }
        let cut = |b: &Buffer| Ok(self.tiles.cut(&b.to_literal()?, device)?.into());
        arrays.iter().map(cut).collect()
    }
}

impl BufferContent {
    /// Waits for the engine's arrays and returns them.
    pub(crate) fn wait(self) -> CallResult<Vec<Buffer>> {
        match self {
            BufferContent::Own(held) => held.wait(),
            BufferContent::Part(whole, device) => whole.part(device),
            BufferContent::Gone => Err(gone()),
        }
    }

    pub(crate) fn event(&self) -> PluginEvent {
        match self {
            BufferContent::Own(held) => held.event(),
            BufferContent::Part(whole, _) => whole.held.event(),
            BufferContent::Gone => PluginEvent::past(),
        }
    }
}

fn gone() -> CallError {
    CallError::invalid("Invalid buffer passed: buffer has been deleted or donated before")
}

impl PluginBuffer {
    /// Creates a buffer from available arrays.
    pub(crate) fn ready(
        kind: Arc<BufferType>,
        arrays: Vec<Buffer>,
        device: OpaquePtr,
    ) -> CallResult<OpaquePtr> {
        PluginBuffer::object(
            kind,
            BufferContent::Own(EngineArrays::Ready(arrays)),
            device,
            PluginEvent::past(),
        )
    }

    /// Creates a buffer for callers; `made` is signalled when it may be read.
    pub(crate) fn object(
        kind: Arc<BufferType>,
        content: BufferContent,
        device: OpaquePtr,
        made: PluginEvent,
    ) -> CallResult<OpaquePtr> {
        // SAFETY: devices live as long as their client.
        let stats = unsafe { seen::<LogicalDevice>(device)? }.stats.clone();
        stats.add(kind.bytes());
        let array = PluginBuffer {
            kind,
            device,
            stats,
            content: Mutex::new(content),
            made,
            pinned: Mutex::default(),
            readers: AtomicUsize::new(0),
        };
        Ok(Box::into_raw(Box::new(array)).cast())
    }

    fn content(&self) -> MutexGuard<'_, BufferContent> {
        self.content.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the contents, removing them from the buffer if donated.
    pub(crate) fn give(&self, donated: bool) -> CallResult<BufferContent> {
        let mut content = self.content();
        let given = if donated { self.take(&mut content) } else { content.clone() };
        match given {
            BufferContent::Gone => Err(gone()),
            given => Ok(given),
        }
    }

    fn take(&self, content: &mut BufferContent) -> BufferContent {
        let taken = std::mem::replace(content, BufferContent::Gone);
        if !matches!(taken, BufferContent::Gone) {
            self.stats.subtract(self.kind.bytes());
            // Only external references protect the memory of a donated array, as in XLA: an address alone does not.
            if self.readers.load(Ordering::SeqCst) == 0 {
                *self.pinned() = None;
            }
        }
        taken
    }

    fn pinned(&self) -> MutexGuard<'_, Option<Arc<PinnedMemory>>> {
        self.pinned.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn is_gone(&self) -> bool {
        matches!(*self.content(), BufferContent::Gone)
    }

    /// Returns the event after which the contents may be read.
    pub(crate) fn event(&self) -> PluginEvent {
        let own = self.content().event();
        if own.outcome().is_some_and(|o| o.is_ok()) { self.made.clone() } else { own }
    }

    /// Waits for the engine's arrays and returns them.
    fn arrays(&self) -> CallResult<Vec<Buffer>> {
        let given = self.give(false)?;
        let was_ready = matches!(given, BufferContent::Own(EngineArrays::Ready(_)));
        let arrays = given.wait()?;
        if !was_ready {
            let mut content = self.content();
            if !matches!(*content, BufferContent::Gone) {
                *content = BufferContent::Own(EngineArrays::Ready(arrays.clone()));
            }
        }
        Ok(arrays)
    }

    /// Calls `f` with the elements in the caller's memory layout.
    pub(crate) fn with_memory<R>(&self, f: impl FnOnce(&[u8]) -> CallResult<R>) -> CallResult<R> {
        if self.kind.is_row_major() {
            return self.with_bytes(f);
        }
        self.with_bytes(|bytes| f(&turn(&self.kind, bytes, &self.kind.minor_to_major)?))
    }

    /// Waits for the elements and calls `f` with them in row-major order.
    pub(crate) fn with_bytes<R>(&self, f: impl FnOnce(&[u8]) -> CallResult<R>) -> CallResult<R> {
        if self.kind.is_row_major() && !self.is_gone() {
            let pinned = self.pinned().clone();
            if let Some(pinned) = pinned {
                return f(pinned.bytes(self.kind.bytes()));
            }
        }
        let arrays = self.arrays()?;
        if let [one] = &arrays[..]
            && let Some(bytes) = one.bytes()
            && bytes.len() == self.kind.bytes()
            && is_plain(&self.kind, one.ty())
        {
            return f(bytes);
        }
        let values = arrays.iter().map(Buffer::to_literal).collect::<Result<Vec<_>, _>>()?;
        match &values[..] {
            [value] if value.bytes().len() == self.kind.bytes() && is_plain(&self.kind, value.ty()) => {
                f(value.bytes())
            }
            _ => f(&self.kind.face.join(&values.iter().collect::<Vec<_>>())?),
        }
    }

    /// Gives the buffer an array of its own if it shares one with another buffer: equal results of a program, and
    /// results that are arguments, share memory until a caller reads an address.
    fn separate(&self) -> CallResult {
        let mut content = self.content();
        if let BufferContent::Own(EngineArrays::Ready(arrays)) = &mut *content
            && let [one] = &mut arrays[..]
            && !one.is_unique()
            && let Some(bytes) = one.bytes()
        {
            *one = systole_cpu::buffer_from_bytes(one.ty().clone(), bytes)?;
        }
        Ok(())
    }

    /// Returns memory with the elements whose address is stable until the buffer is deleted or donated, and longer while
    /// external references exist.
    pub(crate) fn pin(&self) -> CallResult<*const u8> {
        let address = |pinned: &PinnedMemory| pinned.bytes(self.kind.bytes()).as_ptr();
        ensure!(!self.is_gone(), gone());
        if let Some(pinned) = &*self.pinned() {
            return Ok(address(pinned));
        }
        // All devices read one copy of a global array.
        let is_part = matches!(*self.content(), BufferContent::Part(..));
        let mut arrays = self.arrays()?;
        if !is_part {
            arrays.clear();
            self.separate()?;
            arrays = self.arrays()?;
        }
        let pinned = match &arrays[..] {
            [one]
                if self.kind.is_row_major()
                    && is_plain(&self.kind, one.ty())
                    && one.bytes().is_some_and(|bytes| bytes.len() == self.kind.bytes()) =>
            {
                PinnedMemory::Array(one.clone())
            }
            _ => {
                let bytes = self.with_memory(|bytes| Ok(bytes.to_vec()))?;
                let word = |c: &[u8]| {
                    let mut word = [0; 8];
                    word[..c.len()].copy_from_slice(c);
                    u64::from_ne_bytes(word)
                };
                PinnedMemory::Bytes(bytes.chunks(8).map(word).collect())
            }
        };
        Ok(address(self.pinned().get_or_insert_with(|| Arc::new(pinned))))
    }

    /// Copies the buffer to another device, or to a memory of another kind.
    fn copy_to(&self, device: OpaquePtr, memory: usize) -> CallResult<OpaquePtr> {
        // SAFETY: the caller passes a pointer that this plugin returned.
        let to: &LogicalDevice = unsafe { seen(device)? };
        if !to.is_local() {
            return Err(CallError::unimplemented("copies to devices of other processes are not supported"));
        }
        let kind = match self.kind.memory == memory {
            true => self.kind.clone(),
            false => Arc::new(BufferType::clone(&self.kind).in_memory(memory)),
        };
        PluginBuffer::object(kind, self.give(false)?, device, self.made.clone())
    }
}

fn is_plain(kind: &BufferType, ty: &TensorType) -> bool {
    kind.face.element == systole_mlir::interface::SourceElement::Plain(ty.dtype)
}

impl PinnedMemory {
    fn bytes(&self, len: usize) -> &[u8] {
        match self {
            PinnedMemory::Array(array) => array.bytes().unwrap_or_default(),
            PinnedMemory::Bytes(words) => {
                // SAFETY: the words have at least that many bytes.
                unsafe { std::slice::from_raw_parts(words.as_ptr().cast(), len.min(words.len() * 8)) }
            }
        }
    }
}

impl Drop for PluginBuffer {
    fn drop(&mut self) {
        let mut content = std::mem::replace(
            self.content.get_mut().unwrap_or_else(PoisonError::into_inner),
            BufferContent::Gone,
        );
        self.take(&mut content);
    }
}

handle! {
    Buffer_ElementType: |args, array: PluginBuffer| buffer => { args.type_ = array.kind.code; }
    Buffer_Dimensions: |args, array: PluginBuffer| buffer => {
        (args.dims, args.num_dims) = (array.kind.dims.as_ptr(), array.kind.dims.len());
    }
    Buffer_UnpaddedDimensions: |args, array: PluginBuffer| buffer => {
        (args.unpadded_dims, args.num_dims) = (array.kind.dims.as_ptr(), array.kind.dims.len());
    }
    Buffer_DynamicDimensionIndices: |args, _array: PluginBuffer| buffer => { args.num_dynamic_dims = 0; }
    Buffer_GetMemoryLayout: |args, array: PluginBuffer| buffer => {
        let order = &array.kind.minor_to_major;
        args.layout.type_ = sys::layout::TILED;
        args.layout.tiled.minor_to_major = order.as_ptr();
        args.layout.tiled.minor_to_major_size = order.len();
    }
    Buffer_OnDeviceSizeInBytes: |args, array: PluginBuffer| buffer => {
        args.on_device_size_in_bytes = array.kind.bytes();
    }
    Buffer_Device: |args, array: PluginBuffer| buffer => { args.device = array.device; }
    Buffer_Memory: |args, array: PluginBuffer| buffer => {
        // SAFETY: a buffer's device lives as long as its client.
        let device: &LogicalDevice = unsafe { seen(array.device)? };
        args.memory = device.memory(array.kind.memory);
    }
    Buffer_Delete: |_args, array: PluginBuffer| buffer => { array.take(&mut array.content()); }
    Buffer_IsDeleted: |args, array: PluginBuffer| buffer => { args.is_deleted = array.is_gone(); }
    Buffer_IsOnCpu: |args, _array: PluginBuffer| buffer => { args.is_on_cpu = true; }
    Buffer_ReadyEvent: |args, array: PluginBuffer| buffer => { args.event = array.event().object(); }
    Buffer_CopyToDevice: |args, array: PluginBuffer| buffer => { args.dst_buffer = array.copy_to(args.dst_device, 0)?; }
    Buffer_CopyToMemory: |args, array: PluginBuffer| buffer => {
        // SAFETY: the caller passes a pointer that this plugin returned.
        let memory = unsafe { seen::<DeviceMemory>(args.dst_memory)? };
        args.dst_buffer = array.copy_to(memory.device, memory.kind)?;
    }
    Buffer_UnsafePointer: |args, array: PluginBuffer| buffer => { args.buffer_pointer = array.pin()? as usize; }
    Buffer_OpaqueDeviceMemoryDataPointer: |args, array: PluginBuffer| buffer => {
        args.device_memory_ptr = array.pin()?.cast_mut().cast();
    }
    Buffer_IncreaseExternalReferenceCount: |_args, array: PluginBuffer| buffer => {
        // Before the memory is pinned, so that a concurrent donation does not release it.
        array.readers.fetch_add(1, Ordering::SeqCst);
        array.pin().inspect_err(|_| { array.readers.fetch_sub(1, Ordering::SeqCst); })?;
    }
    Buffer_DecreaseExternalReferenceCount: |_args, array: PluginBuffer| buffer => {
        let less = |n: usize| n.checked_sub(1);
        match array.readers.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less) {
            Ok(1) if array.is_gone() => *array.pinned() = None,
            Ok(_) => {}
            Err(_) => return Err(CallError::invalid("the buffer has no external references")),
        }
    }
}

/// Returns the local device that a caller names directly or by its memory, and the kind of the memory.
///
/// # Safety
/// Both are null or objects of this plugin.
pub(crate) unsafe fn destination(device: OpaquePtr, memory: OpaquePtr) -> CallResult<(OpaquePtr, usize)> {
    let (device, kind) = if memory.is_null() && !device.is_null() {
        (device, 0)
    } else {
        // SAFETY: same contract as this function.
        let memory = unsafe { seen::<DeviceMemory>(memory)? };
        (memory.device, memory.kind)
    };
    // SAFETY: same contract as this function.
    let to: &LogicalDevice = unsafe { seen(device)? };
    match to.is_local() {
        true => Ok((device, kind)),
        false => Err(CallError::invalid(format!("device {} belongs to another process", to.id))),
    }
}

/// Creates engine arrays from memory in the caller's layout.
pub(crate) fn put_memory(kind: &BufferType, bytes: &[u8]) -> CallResult<Vec<Buffer>> {
    if kind.is_row_major() { put(kind, bytes) } else { put(kind, &straight(kind, bytes)?) }
}

/// Creates engine arrays from row-major elements.
pub(crate) fn put(kind: &BufferType, bytes: &[u8]) -> CallResult<Vec<Buffer>> {
    if let [ty] = &kind.face.types()[..]
        && is_plain(kind, ty)
    {
        return Ok(vec![systole_cpu::buffer_from_bytes(ty.clone(), bytes)?]);
    }
    Ok(kind.split(bytes)?.into_iter().map(Buffer::from).collect())
}

destroy! {
    Buffer_Destroy: PluginBuffer, buffer;
}
