//! Buffer layouts: converts between the caller's dimension order and the engine's row-major order.

use crate::buffer_type::BufferType;
use crate::call::{CallError, CallResult, list};
use systole_pjrt::sys;

pub(crate) fn room(bytes: usize) -> CallResult<Vec<u8>> {
    let mut own = Vec::new();
    let refused = |e| CallError::exhausted(format!("cannot allocate {bytes} bytes: {e}"));
    own.try_reserve_exact(bytes).map_err(refused)?;
    Ok(own)
}

/// # Safety
/// `layout` is null or as the C API has it.
pub(crate) unsafe fn minor_to_major<'a>(layout: *const sys::MemoryLayout) -> CallResult<Option<&'a [i64]>> {
    // SAFETY: same contract as this function.
    let Some(layout) = (unsafe { layout.as_ref() }) else { return Ok(None) };
    match layout.type_ {
        sys::layout::TILED if layout.tiled.num_tiles == 0 => {
            // SAFETY: the caller's list has that length.
            Ok(Some(unsafe { list(layout.tiled.minor_to_major, layout.tiled.minor_to_major_size) }))
        }
        _ => Err(CallError::unimplemented("tiles and layouts by strides are not supported")),
    }
}

/// Returns the type with a caller's layout.
///
/// # Safety
/// See [`minor_to_major`].
pub(crate) unsafe fn ordered(layout: *const sys::MemoryLayout, kind: BufferType) -> CallResult<BufferType> {
    // SAFETY: same contract as this function.
    match unsafe { minor_to_major(layout)? } {
        Some(order) => kind.ordered(order),
        None => Ok(kind),
    }
}

/// Returns the type with a layout from a program; row-major if it states none.
pub(crate) fn stated(kind: BufferType, mode: &str) -> CallResult<BufferType> {
    if matches!(mode, "" | "default" | "auto") {
        return Ok(kind);
    }
    let unknown = || {
        CallError::unimplemented(format!(
            "layout `{mode}` is not supported: no tiles, and whole elements only"
        ))
    };
    let order = mode.strip_prefix('{').and_then(|m| m.strip_suffix('}')).ok_or_else(unknown)?;
    let order = order.split(',').filter(|d| !d.is_empty()).map(|d| d.trim().parse::<i64>());
    kind.ordered(&order.collect::<Result<Vec<_>, _>>().map_err(|_| unknown())?)
}

/// Converts row-major bytes to another dimension order.
pub(crate) fn turn(kind: &BufferType, bytes: &[u8], minor_to_major: &[i64]) -> CallResult<Vec<u8>> {
    check(kind, bytes)?;
    let mut out = room(bytes.len())?;
    each(kind, minor_to_major, |at, size| out.extend_from_slice(&bytes[at..at + size]))?;
    Ok(out)
}

/// Converts bytes from the type's order to row-major order.
pub(crate) fn straight(kind: &BufferType, bytes: &[u8]) -> CallResult<Vec<u8>> {
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

/// Checks that memory has the size of the array.
fn check(kind: &BufferType, bytes: &[u8]) -> CallResult {
    if bytes.len() == kind.bytes() {
        return Ok(());
    }
    Err(CallError::invalid(format!("got {} bytes, but {kind} has {}", bytes.len(), kind.bytes())))
}

/// Calls `visit` for each element in this order with its row-major index and its size.
fn each(kind: &BufferType, minor_to_major: &[i64], mut visit: impl FnMut(usize, usize)) -> CallResult {
    let (dims, size) = (&kind.face.dims, kind.size());
    let mut order: Vec<usize> = minor_to_major.iter().rev().map(|d| *d as usize).collect();
    let mut seen = order.clone();
    seen.sort_unstable();
    if !seen.into_iter().eq(0..dims.len()) {
        return Err(CallError::invalid(format!(
            "{minor_to_major:?} is not a permutation of {} dimensions",
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
