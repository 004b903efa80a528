//! Arrays: from host memory in any strides, and back in row-major order.

use crate::device::{Client, Device, Memory, seen};
use crate::event::Event;
use crate::table::{Answer, Failure, Handle};
use std::sync::{Mutex, MutexGuard, PoisonError};
use systole_ir::{Literal, TensorType};
use systole_pjrt::sys::{self, Object};
use systole_runtime::{Backend, Buffer, DeviceId};

/// The object behind `PJRT_Buffer*`.
pub(crate) struct Array {
    pub(crate) ty: TensorType,
    dims: Vec<i64>,
    pub(crate) device: Object,
    /// Gone when deleted or donated.
    buffer: Mutex<Option<Buffer>>,
    /// Before it nobody is to see the array.
    made: Event,
}

impl Array {
    pub(crate) fn object(buffer: Buffer, device: Object, made: Event) -> Object {
        let ty = buffer.ty().clone();
        let dims = ty.shape.iter().map(|d| *d as i64).collect();
        Box::into_raw(Box::new(Array { ty, dims, device, buffer: Mutex::new(Some(buffer)), made })).cast()
    }

    fn held(&self) -> MutexGuard<'_, Option<Buffer>> {
        self.buffer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The array, taken away where it is donated.
    pub(crate) fn argument(&self, donated: bool) -> Result<Buffer, Failure> {
        let mut held = self.held();
        let buffer = if donated { held.take() } else { held.clone() };
        buffer.ok_or_else(|| Failure::invalid("an array was deleted or donated before"))
    }
}

/// More bytes than any machine has: a shape like that is a mistake or an attack.
const MOST_BYTES: usize = 1 << 42;

fn shape(type_: i32, dims: &[i64]) -> Result<TensorType, Failure> {
    let dtype = sys::element_type(type_)
        .ok_or_else(|| Failure::unimplemented(format!("element type {type_} is not one of Systole's")))?;
    let dims = dims.iter().map(|d| usize::try_from(*d)).collect::<Result<Vec<usize>, _>>();
    let dims = dims.map_err(|_| Failure::invalid("a dimension is negative"))?;
    let bytes = dims.iter().try_fold(dtype.size(), |n, d| n.checked_mul(*d));
    match bytes {
        Some(bytes) if bytes <= MOST_BYTES => Ok(TensorType::new(dtype, &dims[..])),
        _ => Err(Failure {
            code: sys::code::RESOURCE_EXHAUSTED,
            message: format!("an array of {dims:?} elements does not fit any memory"),
        }),
    }
}

/// # Safety
/// Each element that shape and strides reach from `data` is readable.
unsafe fn gather(data: *const u8, ty: &TensorType, strides: &[i64]) -> Result<Literal, Failure> {
    let size = ty.dtype.size();
    let mut bytes: Vec<u8> = Vec::new();
    bytes.try_reserve_exact(ty.bytes()).map_err(|e| Failure {
        code: sys::code::RESOURCE_EXHAUSTED,
        message: format!("no memory for {} bytes: {e}", ty.bytes()),
    })?;
    let mut index = vec![0usize; ty.shape.len()];
    for _ in 0..ty.elements() {
        let offset: i64 = index.iter().zip(strides).map(|(i, s)| *i as i64 * s).sum();
        // SAFETY: passed on.
        bytes.extend_from_slice(unsafe { std::slice::from_raw_parts(data.offset(offset as isize), size) });
        for axis in (0..index.len()).rev() {
            index[axis] += 1;
            if index[axis] < ty.shape[axis] {
                break;
            }
            index[axis] = 0;
        }
    }
    Ok(Literal::from_bytes(ty.clone(), &bytes)?)
}

/// # Safety
/// `start` is null or points to `len` values.
unsafe fn list<'a, T>(start: *const T, len: usize) -> &'a [T] {
    // SAFETY: passed on.
    if start.is_null() { &[] } else { unsafe { std::slice::from_raw_parts(start, len) } }
}

impl Handle for sys::Client_BufferFromHostBuffer {
    unsafe fn handle(&mut self) -> Answer {
        // SAFETY: callers hand back what they were given.
        let client: &Client = unsafe { seen(self.client)? };
        // SAFETY: the caller's lists are that long.
        let (dims, strides) =
            unsafe { (list(self.dims, self.num_dims), list(self.byte_strides, self.num_byte_strides)) };
        let ty = shape(self.type_, dims)?;
        if !self.device_layout.is_null() {
            return Err(Failure::unimplemented("arrays have row-major order here, and no other layout"));
        }
        let value = if ty.elements() == 0 {
            Literal::zeros(ty.clone())
        } else if strides.is_empty() {
            // SAFETY: without strides the array is dense.
            Literal::from_bytes(ty.clone(), unsafe { list(self.data.cast(), ty.bytes()) })?
        } else if strides.len() == dims.len() {
            // SAFETY: the caller's memory is readable where the strides lead.
            unsafe { gather(self.data.cast(), &ty, strides)? }
        } else {
            return Err(Failure::invalid(format!("{} strides for {} dimensions", strides.len(), dims.len())));
        };
        let device = match self.device.is_null() {
            // SAFETY: callers hand back what they were given.
            true => unsafe { seen::<Memory>(self.memory)? }.device,
            false => self.device,
        };
        // SAFETY: as above.
        let to: &Device = unsafe { seen(device)? };
        if !to.is_local() {
            return Err(Failure::invalid(format!("device {} is another process's", to.id)));
        }
        let made = Event::past();
        self.done_with_host_buffer = made.object();
        self.buffer = Array::object(client.engine.put(&value, DeviceId(0))?, device, made);
        Ok(())
    }
}

impl Handle for sys::Buffer_Destroy {
    unsafe fn handle(&mut self) -> Answer {
        if !self.buffer.is_null() {
            // SAFETY: made by `Array::object`, and given back once.
            drop(unsafe { Box::from_raw(self.buffer.cast::<Array>()) });
        }
        Ok(())
    }
}

macro_rules! handle {
    ($($name:ident: |$args:ident, $array:ident| $body:block)*) => {
        $(impl Handle for sys::$name {
            unsafe fn handle(&mut self) -> Answer {
                let $args = self;
                // SAFETY: callers hand back what they were given.
                let $array: &Array = unsafe { seen($args.buffer)? };
                $body
                Ok(())
            }
        })*
    };
}

handle! {
    Buffer_ElementType: |args, array| {
        args.type_ = sys::buffer_type(array.ty.dtype);
    }
    Buffer_Dimensions: |args, array| {
        (args.dims, args.num_dims) = (array.dims.as_ptr(), array.dims.len());
    }
    Buffer_DynamicDimensionIndices: |args, _array| {
        args.num_dynamic_dims = 0;
    }
    Buffer_OnDeviceSizeInBytes: |args, array| {
        args.on_device_size_in_bytes = array.ty.bytes();
    }
    Buffer_Device: |args, array| {
        args.device = array.device;
    }
    Buffer_Memory: |args, array| {
        // SAFETY: an array's device lives as long as its client.
        let device: &Device = unsafe { seen(array.device)? };
        args.memory = device.memory();
    }
    Buffer_Delete: |_args, array| {
        array.held().take();
    }
    Buffer_IsDeleted: |args, array| {
        args.is_deleted = array.held().is_none();
    }
    Buffer_IsOnCpu: |args, _array| {
        // What callers make of it is a pointer to the array, which this plugin does not give.
        args.is_on_cpu = false;
    }
    Buffer_ReadyEvent: |args, array| {
        args.event = array.made.object();
    }
}

impl Handle for sys::Buffer_ToHostBuffer {
    unsafe fn handle(&mut self) -> Answer {
        // SAFETY: callers hand back what they were given.
        let array: &Array = unsafe { seen(self.src)? };
        let bytes = array.ty.bytes();
        if self.dst.is_null() {
            self.dst_size = bytes;
            return Ok(());
        }
        if self.dst_size < bytes {
            return Err(Failure::invalid(format!("{} bytes of room for {bytes}", self.dst_size)));
        }
        // SAFETY: null or a layout of the caller's.
        unsafe { row_major(self.host_layout.cast(), &array.ty)? };
        let value = array.argument(false)?.to_literal()?;
        // SAFETY: the caller's memory has room for that many bytes.
        unsafe { std::ptr::copy_nonoverlapping(value.bytes().as_ptr(), self.dst.cast(), bytes) };
        self.event = array.made.object();
        Ok(())
    }
}

/// # Safety
/// `layout` is null or as the C API has it.
unsafe fn row_major(layout: *const sys::MemoryLayout, ty: &TensorType) -> Answer {
    // SAFETY: passed on.
    let Some(layout) = (unsafe { layout.as_ref() }) else { return Ok(()) };
    let rank = ty.shape.len();
    let order = match layout.type_ {
        sys::layout::TILED if layout.tiled.num_tiles == 0 => {
            // SAFETY: the caller's list is that long.
            unsafe { list(layout.tiled.minor_to_major, layout.tiled.minor_to_major_size) }
        }
        _ => &[],
    };
    let wanted = (0..rank as i64).rev();
    match order.iter().copied().eq(wanted) {
        true => Ok(()),
        false => Err(Failure::unimplemented("arrays are read in row-major order, and in no other layout")),
    }
}
