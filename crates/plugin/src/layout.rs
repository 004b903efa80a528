//! Layouts: the order in which callers see an array's elements in memory. The engine's own arrays are in row-major order.

use crate::buffer_type::BufferType;
use crate::call::{CallError, list};
use systole_pjrt::sys;

pub(crate) fn room(bytes: usize) -> Result<Vec<u8>, CallError> {
    let mut own = Vec::new();
    let refused = |e| CallError::exhausted(format!("no memory for {bytes} bytes: {e}"));
    own.try_reserve_exact(bytes).map_err(refused)?;
    Ok(own)
}

/// # Safety
/// `layout` is null or as the C API has it.
pub(crate) unsafe fn minor_to_major<'a>(
    layout: *const sys::MemoryLayout,
) -> Result<Option<&'a [i64]>, CallError> {
    // SAFETY: passed on.
    let Some(layout) = (unsafe { layout.as_ref() }) else { return Ok(None) };
    match layout.type_ {
        sys::layout::TILED if layout.tiled.num_tiles == 0 => {
            // SAFETY: the caller's list is that long.
            Ok(Some(unsafe { list(layout.tiled.minor_to_major, layout.tiled.minor_to_major_size) }))
        }
        _ => Err(CallError::unimplemented("arrays in tiles, and layouts by strides")),
    }
}

/// In the order that a caller asks for.
///
/// # Safety
/// As [`minor_to_major`].
pub(crate) unsafe fn ordered(
    layout: *const sys::MemoryLayout,
    kind: BufferType,
) -> Result<BufferType, CallError> {
    // SAFETY: passed on.
    match unsafe { minor_to_major(layout)? } {
        Some(order) => kind.ordered(order),
        None => Ok(kind),
    }
}

/// In the order that a program says of an argument or a result; where it leaves that open, in row-major order.
pub(crate) fn said(kind: BufferType, mode: &str) -> Result<BufferType, CallError> {
    if matches!(mode, "" | "default" | "auto") {
        return Ok(kind);
    }
    let unknown = || CallError::unimplemented(format!("the layout `{mode}`: no tiles, and whole elements"));
    let order = mode.strip_prefix('{').and_then(|m| m.strip_suffix('}')).ok_or_else(unknown)?;
    let order = order.split(',').filter(|d| !d.is_empty()).map(|d| d.trim().parse::<i64>());
    kind.ordered(&order.collect::<Result<Vec<_>, _>>().map_err(|_| unknown())?)
}

/// Row-major order → the dimensions in another order.
pub(crate) fn turn(kind: &BufferType, bytes: &[u8], minor_to_major: &[i64]) -> Result<Vec<u8>, CallError> {
    check(kind, bytes)?;
    let mut out = room(bytes.len())?;
    each(kind, minor_to_major, |at, size| out.extend_from_slice(&bytes[at..at + size]))?;
    Ok(out)
}

/// The kind's own order → row-major order.
pub(crate) fn straight(kind: &BufferType, bytes: &[u8]) -> Result<Vec<u8>, CallError> {
    check(kind, bytes)?;
    let mut out = room(bytes.len())?;
    out.resize(bytes.len(), 0);
    let mut next = 0;
    each(kind, &kind.minor_to_major, |at, size| {
        out[at..at + size].copy_from_slice(&bytes[next..next + size]);
        next += size;
    })?;
    Ok(out)
}

/// Refuses memory that has more or fewer bytes than the array.
fn check(kind: &BufferType, bytes: &[u8]) -> Result<(), CallError> {
    if bytes.len() == kind.bytes() {
        return Ok(());
    }
    Err(CallError::invalid(format!("{} bytes are given where {kind} has {}", bytes.len(), kind.bytes())))
}

/// Calls for each element of that order with its place in row-major order and its bytes.
fn each(
    kind: &BufferType,
    minor_to_major: &[i64],
    mut visit: impl FnMut(usize, usize),
) -> Result<(), CallError> {
    let (dims, size) = (&kind.face.dims, kind.size());
    let mut order: Vec<usize> = minor_to_major.iter().rev().map(|d| *d as usize).collect();
    let mut seen = order.clone();
    seen.sort_unstable();
    if !seen.into_iter().eq(0..dims.len()) {
        return Err(CallError::invalid(format!(
            "{minor_to_major:?} is no order of {} dimensions",
            dims.len()
        )));
    }
    let stride = |d: usize| dims[d + 1..].iter().product::<usize>() * size;
    let strides: Vec<usize> = order.iter().map(|&d| stride(d)).collect();
    order.iter_mut().for_each(|d| *d = dims[*d]);
    let mut index = vec![0usize; order.len()];
    for _ in 0..dims.iter().product::<usize>() {
        visit(index.iter().zip(&strides).map(|(i, s)| i * s).sum(), size);
        for axis in (0..index.len()).rev() {
            index[axis] += 1;
            if index[axis] < order[axis] {
                break;
            }
            index[axis] = 0;
        }
    }
    Ok(())
}
