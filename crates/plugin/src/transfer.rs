//! Transfers between host and device: from strided memory, at once or incrementally, and back.

use crate::buffer::{BufferContent, EngineArrays, PendingArrays, PluginBuffer, destination, put, put_memory};
use crate::buffer_type::BufferType;
use crate::call::{ApiCall, CallError, CallResult, handle, list, seen};
use crate::device::PluginClient;
use crate::event::PluginEvent;
use crate::layout::{minor_to_major, ordered, room, turn};
use std::ffi::c_void;
use std::sync::{Arc, Mutex, PoisonError};
use systole_ir::{ForeignMemory, Literal, TensorType};
use systole_mlir::interface::SourceElement;
use systole_pjrt::sys::{self, OpaquePtr};

/// Copies strided elements to row-major order.
///
/// # Safety
/// Each element that shape and strides reach from `data` is readable.
unsafe fn gather(data: *const u8, kind: &BufferType, strides: &[i64]) -> CallResult<Vec<u8>> {
    let size = kind.size();
    let mut bytes: Vec<u8> = room(kind.bytes())?;
    let dims = &kind.face.dims;
    // Dense trailing dimensions are copied at once.
    let (mut run, mut outer) = (size, dims.len());
    while outer > 0 && (strides[outer - 1] == run as i64 || dims[outer - 1] == 1) {
        outer -= 1;
        run *= dims[outer];
    }
    let mut index = vec![0usize; outer];
    let runs: usize = dims[..outer].iter().product();
    for _ in 0..runs {
        let offset: i64 = index.iter().zip(strides).map(|(i, s)| *i as i64 * s).sum();
        // SAFETY: same contract as this function.
        bytes.extend_from_slice(unsafe { std::slice::from_raw_parts(data.offset(offset as isize), run) });
        for axis in (0..outer).rev() {
            index[axis] += 1;
            if index[axis] < dims[axis] {
                break;
            }
            index[axis] = 0;
        }
    }
    Ok(bytes)
}

impl ApiCall for sys::Client_BufferFromHostBuffer {
    unsafe fn handle(&mut self) -> CallResult {
        // SAFETY: the caller passes a pointer that this plugin returned.
        unsafe { seen::<PluginClient>(self.client)? };
        // SAFETY: the caller's lists have that length.
        let (dims, strides) =
            unsafe { (list(self.dims, self.num_dims), list(self.byte_strides, self.num_byte_strides)) };
        let kind = BufferType::of_caller(self.type_, dims)?;
        // SAFETY: null or a layout of the caller.
        let kind = unsafe { ordered(self.device_layout.cast(), kind)? };
        if !strides.is_empty() && strides.len() != dims.len() {
            return Err(CallError::invalid(format!(
                "got {} strides for {} dimensions",
                strides.len(),
                dims.len()
            )));
        }
        let bytes = kind.bytes();
        let arrays = if bytes == 0 {
            put(&kind, &[])?
        } else if self.data.is_null() {
            return Err(CallError::invalid("the array has no data"));
        } else if strides.is_empty() {
            // SAFETY: without strides the array is dense.
            put(&kind, unsafe { list(self.data.cast(), bytes) })?
        } else {
            // SAFETY: the caller's memory is readable at all strided elements.
            put(&kind, &unsafe { gather(self.data.cast(), &kind, strides)? })?
        };
        // SAFETY: the caller passes a pointer that this plugin returned.
        let (device, memory) = unsafe { destination(self.device, self.memory)? };
        self.buffer = PluginBuffer::ready(Arc::new(kind.in_memory(memory)), arrays, device)?;
        self.done_with_host_buffer = PluginEvent::past().object();
        Ok(())
    }
}

/// The caller's destination memory, valid until the event.
struct HostDestination(*mut u8);

// SAFETY: the C API lets plugins write it from any thread until the event completes.
unsafe impl Send for HostDestination {}

/// Writes the elements in the caller's order when they are available.
fn fetch(array: &PluginBuffer, order: Vec<i64>, to: HostDestination) -> CallResult<PluginEvent> {
    let write = move |kind: &BufferType, bytes: &[u8], to: &HostDestination| {
        let turned;
        let bytes = if order.iter().rev().copied().eq(0..kind.dims.len() as i64) {
            bytes
        } else {
            turned = turn(kind, bytes, &order)?;
            &turned[..]
        };
        // SAFETY: the caller's memory has room for that many bytes.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to.0, bytes.len()) };
        Ok(())
    };
    let event = array.event();
    if event.outcome().is_some() {
        array.with_bytes(|bytes| write(&array.kind, bytes, &to))?;
        return Ok(event);
    }
    let content = array.give(false)?;
    if content.event().outcome().is_some() {
        // The elements are available; only the event completes later.
        array.with_bytes(|bytes| write(&array.kind, bytes, &to))?;
        return Ok(event);
    }
    let (done, kind) = (PluginEvent::coming(), array.kind.clone());
    let told = done.clone();
    event.on_ready(move |outcome| {
        let to = to;
        let read = || {
            outcome.clone()?;
            let values = content.wait()?;
            let values = values.iter().map(|b| b.to_literal()).collect::<Result<Vec<Literal>, _>>()?;
            write(&kind, &kind.face.join(&values.iter().collect::<Vec<_>>())?, &to)
        };
        told.happens(read());
    });
    Ok(done)
}

/// The caller's memory, which it gets back by its callback.
struct CallerMemory {
    start: *const u8,
    bytes: usize,
    on_delete: Option<sys::OnDelete>,
    argument: *mut c_void,
}

// SAFETY: the C API lets plugins read the memory and call the callback from any thread.
unsafe impl Send for CallerMemory {}
// SAFETY: as above.
unsafe impl Sync for CallerMemory {}

impl ForeignMemory for CallerMemory {
    fn bytes(&self) -> &[u8] {
        // SAFETY: the caller's array has that many bytes, until the callback.
        unsafe { list(self.start, self.bytes) }
    }
}

impl Drop for CallerMemory {
    fn drop(&mut self) {
        if let Some(unused) = self.on_delete {
            // SAFETY: the caller's function with its argument, called once.
            unsafe { unused(self.start.cast_mut().cast(), self.argument) };
        }
    }
}

impl ApiCall for sys::Client_CreateViewOfDeviceBuffer {
    /// Reads the caller's memory in place. Elements that the engine holds in another form, and memory that is not aligned to
    /// 8 bytes, are copied.
    unsafe fn handle(&mut self) -> CallResult {
        // SAFETY: the caller passes a pointer that this plugin returned.
        unsafe { seen::<PluginClient>(self.client)? };
        // SAFETY: the caller's list has that length.
        let kind = BufferType::of_caller(self.element_type, unsafe { list(self.dims, self.num_dims) })?;
        // SAFETY: null or a layout of the caller.
        let kind = unsafe { ordered(self.layout, kind)? };
        // SAFETY: the caller passes a pointer that this plugin returned.
        let (device, memory) = unsafe { destination(self.device, self.memory)? };
        let start = self.device_buffer_ptr.cast_const().cast();
        // After an error, the memory remains the caller's.
        let mut owned =
            CallerMemory { start, bytes: kind.bytes(), on_delete: None, argument: std::ptr::null_mut() };
        let arrays = match kind.face.element {
            SourceElement::Plain(dtype) if kind.is_row_major() && kind.bytes() > 0 => {
                (owned.on_delete, owned.argument) = (self.on_delete_callback, self.on_delete_callback_arg);
                let owned = Arc::new(owned);
                let ty = TensorType::new(dtype, &kind.face.dims[..]);
                match Literal::from_foreign(ty, owned.clone()) {
                    Some(array) => vec![array.into()],
                    None => put_memory(&kind, owned.bytes())?,
                }
            }
            _ => {
                let arrays = put_memory(&kind, owned.bytes())?;
                (owned.on_delete, owned.argument) = (self.on_delete_callback, self.on_delete_callback_arg);
                arrays
            }
        };
        let in_place = matches!(&arrays[..], [one] if one.bytes().is_some_and(|b| b.as_ptr() == start));
        self.buffer = PluginBuffer::ready(Arc::new(kind.in_memory(memory)), arrays, device)?;
        if in_place {
            // Its address remains the caller's. SAFETY: the object was just created.
            unsafe { seen::<PluginBuffer>(self.buffer)? }.pin()?;
        }
        Ok(())
    }
}

impl ApiCall for sys::Client_CreateUninitializedBuffer {
    unsafe fn handle(&mut self) -> CallResult {
        // SAFETY: the caller's list has that length.
        let dims = unsafe { list(self.shape_dims, self.shape_num_dims) };
        let kind = BufferType::of_caller(self.shape_element_type, dims)?;
        // SAFETY: null or a layout of the caller.
        let kind = unsafe { ordered(self.shape_layout, kind)? };
        let arrays = kind.face.types().into_iter().map(|ty| Literal::zeros(ty).into()).collect();
        // SAFETY: the caller passes a pointer that this plugin returned.
        let (device, memory) = unsafe { destination(self.device, self.memory)? };
        self.buffer = PluginBuffer::ready(Arc::new(kind.in_memory(memory)), arrays, device)?;
        Ok(())
    }
}

/// The object behind `PJRT_AsyncHostToDeviceTransferManager*`: arrays that are transferred incrementally.
struct TransferManager {
    device: OpaquePtr,
    arrays: Vec<PartialTransfer>,
}

struct PartialTransfer {
    kind: Arc<BufferType>,
    pending: Arc<PendingArrays>,
    /// Bytes received so far; `None` when complete.
    bytes: Mutex<Option<Vec<u8>>>,
}

impl ApiCall for sys::Client_CreateBuffersForAsyncHostToDevice {
    unsafe fn handle(&mut self) -> CallResult {
        // SAFETY: the caller passes pointers that this plugin returned, and lists of the stated lengths.
        let (device, memory) = unsafe { destination(std::ptr::null_mut(), self.memory)? };
        // SAFETY: as above.
        let specs = unsafe { list(self.shape_specs, self.num_shape_specs) };
        let arrival = |spec: &sys::ShapeSpec| {
            // SAFETY: as above.
            let kind = BufferType::of_caller(spec.element_type, unsafe { list(spec.dims, spec.num_dims) })?;
            let mut bytes = room(kind.bytes())?;
            bytes.resize(kind.bytes(), 0);
            let pending = PendingArrays::new(PluginEvent::coming());
            let kind = Arc::new(kind.in_memory(memory));
            Ok(PartialTransfer { kind, pending, bytes: Mutex::new(Some(bytes)) })
        };
        let arrays = specs.iter().map(arrival).collect::<CallResult<Vec<_>>>()?;
        self.transfer_manager = Box::into_raw(Box::new(TransferManager { device, arrays })).cast();
        Ok(())
    }
}

impl TransferManager {
    /// # Safety
    /// `object` is null or a transfer manager of this plugin.
    unsafe fn at<'a>(
        object: OpaquePtr,
        index: i32,
    ) -> Result<(&'a TransferManager, &'a PartialTransfer), CallError> {
        // SAFETY: same contract as this function.
        let all: &TransferManager = unsafe { seen(object)? };
        let one = usize::try_from(index).ok().and_then(|i| all.arrays.get(i));
        Ok((all, one.ok_or_else(|| CallError::invalid(format!("there is no array {index}")))?))
    }
}

impl PartialTransfer {
    fn receive(&self, data: &[u8], offset: i64, is_last: bool) -> CallResult {
        let mut held = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        let complete = || CallError::invalid("the array is already complete");
        let bytes = held.as_mut().ok_or_else(complete)?;
        let place = usize::try_from(offset).ok().and_then(|at| bytes.get_mut(at..)?.get_mut(..data.len()));
        place.ok_or_else(|| CallError::invalid("the bytes are outside the array"))?.copy_from_slice(data);
        if is_last {
            let values = self.kind.split(&held.take().ok_or_else(complete)?)?;
            self.pending.set(values.into_iter().map(Into::into).collect());
            self.pending.event.happens(Ok(()));
        }
        Ok(())
    }
}

impl ApiCall for sys::AsyncHostToDeviceTransferManager_TransferData {
    unsafe fn handle(&mut self) -> CallResult {
        // SAFETY: the caller passes a pointer that this plugin returned.
        let (_, array) = unsafe { TransferManager::at(self.transfer_manager, self.buffer_index)? };
        let len = usize::try_from(self.transfer_size).map_err(|_| CallError::invalid("negative size"))?;
        // SAFETY: the caller's memory has that many bytes.
        array.receive(unsafe { list(self.data.cast(), len) }, self.offset, self.is_last_transfer)?;
        self.done_with_h2d_transfer = PluginEvent::past().object();
        Ok(())
    }
}

impl ApiCall for sys::AsyncHostToDeviceTransferManager_RetrieveBuffer {
    unsafe fn handle(&mut self) -> CallResult {
        // SAFETY: the caller passes a pointer that this plugin returned.
        let (all, array) = unsafe { TransferManager::at(self.transfer_manager, self.buffer_index)? };
        let content = BufferContent::Own(EngineArrays::Later(array.pending.clone()));
        self.buffer_out = PluginBuffer::object(array.kind.clone(), content, all.device, PluginEvent::past())?;
        Ok(())
    }
}

impl ApiCall for sys::AsyncHostToDeviceTransferManager_BufferSize {
    unsafe fn handle(&mut self) -> CallResult {
        // SAFETY: the caller passes a pointer that this plugin returned.
        self.buffer_size =
            unsafe { TransferManager::at(self.transfer_manager, self.buffer_index)? }.1.kind.bytes();
        Ok(())
    }
}

impl ApiCall for sys::AsyncHostToDeviceTransferManager_SetBufferError {
    unsafe fn handle(&mut self) -> CallResult {
        // SAFETY: the caller passes a pointer that this plugin returned.
        let (_, array) = unsafe { TransferManager::at(self.transfer_manager, self.buffer_index)? };
        // SAFETY: the message has the length stored next to it.
        let message = unsafe { list(self.error_message, self.error_message_size) };
        let message = String::from_utf8_lossy(message).into_owned();
        array.pending.event.happens(Err(CallError { code: self.error_code, message }));
        Ok(())
    }
}

handle! {
    Buffer_ToHostBuffer: |args, array: PluginBuffer| src => {
        let bytes = array.kind.bytes();
        if args.dst.is_null() {
            args.dst_size = bytes;
            return Ok(());
        }
        if args.dst_size < bytes {
            return Err(CallError::invalid(format!("buffer of {} bytes is too small for {bytes}", args.dst_size)));
        }
        // SAFETY: null or a layout of the caller.
        let order = unsafe { minor_to_major(args.host_layout.cast())? };
        let order = order.unwrap_or(&array.kind.minor_to_major).to_vec();
        args.event = fetch(array, order, HostDestination(args.dst.cast()))?.object();
    }
    Buffer_CopyRawToHost: |args, array: PluginBuffer| buffer => {
        let part = usize::try_from(args.offset).ok().zip(usize::try_from(args.transfer_size).ok());
        let outside = || CallError::invalid("the requested bytes are outside the array");
        let (at, len) = part.ok_or_else(outside)?;
        let to: *mut u8 = args.dst.cast();
        array.with_memory(|bytes| {
            let own = bytes.get(at..).and_then(|b| b.get(..len)).ok_or_else(outside)?;
            // SAFETY: the caller's memory has room for that many bytes.
            unsafe { std::ptr::copy_nonoverlapping(own.as_ptr(), to, len) };
            Ok(())
        })?;
        args.event = array.event().object();
    }
    AsyncHostToDeviceTransferManager_Device: |args, all: TransferManager| transfer_manager => {
        args.device_out = all.device;
    }
    AsyncHostToDeviceTransferManager_BufferCount: |args, all: TransferManager| transfer_manager => {
        args.buffer_count = all.arrays.len();
    }
    AsyncHostToDeviceTransferManager_AddMetadata: |_args, _all: TransferManager| transfer_manager => {}
    // Host memory is the device's memory: there is nothing to map.
    Client_DmaMap: |_args, _client: PluginClient| client => {}
    Client_DmaUnmap: |_args, _client: PluginClient| client => {}
}

impl ApiCall for sys::AsyncHostToDeviceTransferManager_Destroy {
    unsafe fn handle(&mut self) -> CallResult {
        if self.transfer_manager.is_null() {
            return Ok(());
        }
        // SAFETY: created by `Client_CreateBuffersForAsyncHostToDevice`, and returned once.
        let all = unsafe { Box::from_raw(self.transfer_manager.cast::<TransferManager>()) };
        // Reports the failure to callers that wait for an incomplete array.
        let lost =
            || Err(CallError { code: sys::code::CANCELLED, message: "the transfer was abandoned".into() });
        all.arrays.iter().for_each(|array| array.pending.event.happens(lost()));
        Ok(())
    }
}
