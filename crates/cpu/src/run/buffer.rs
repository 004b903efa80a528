//! Array of the CPU backend, row-major or in column panels ([`PanelLayout`]).

use crate::kernel::KernelContext;
use crate::machine::memory::AlignedMemory;
use crate::machine::thread_pool::ThreadPool;
use crate::run::panel_layout;
use crate::run::panel_layout::PanelLayout;
use std::sync::{Arc, OnceLock};
use systole_ir::{DType, Literal, Result, TensorType, ensure, err};
use systole_runtime::{Buffer, DeviceData};

/// Storage of one array of the CPU backend.
pub struct CpuData {
    /// Contents; at least as many bytes as its type needs.
    pub memory: AlignedMemory,
    /// Panel layout of its elements; `None`: row-major.
    pub panels: Option<PanelLayout>,
    /// Row-major copy, made on first use.
    rows: OnceLock<AlignedMemory>,
}

impl CpuData {
    pub fn new(memory: AlignedMemory, panels: Option<PanelLayout>) -> CpuData {
        CpuData { memory, panels, rows: OnceLock::new() }
    }

    /// Returns the elements in row-major order, `size` bytes each. An array in panels is copied on the first call.
    pub fn in_order(&self, team: &ThreadPool, size: usize) -> Result<&AlignedMemory> {
        if self.panels.is_none() {
            return Ok(&self.memory);
        }
        if let Some(made) = self.rows.get() {
            return Ok(made);
        }
        let cx = KernelContext { team, flush: false };
        // SAFETY: the memory holds the array, whose shape is that of `panels`.
        let rows =
            unsafe { panel_layout::turned(&cx, [self.panels, None], size, self.memory.ptr().cast_const())? };
        Ok(self.rows.get_or_init(|| rows))
    }
}

/// Copies row-major elements from the host into an array of the CPU backend, which runs may update in place if it is
/// donated.
///
/// # Errors
/// `Data` if the type needs another number of bytes, `Memory` if they cannot be allocated.
pub fn buffer_from_bytes(ty: TensorType, bytes: &[u8]) -> Result<Buffer> {
    ensure!(
        bytes.len() == ty.bytes(),
        err!(Data, "an array of type {ty} has {} bytes, got {}", ty.bytes(), bytes.len())
    );
    // Checks the elements.
    if ty.dtype == DType::Bool {
        return Ok(Literal::from_bytes(ty, bytes)?.into());
    }
    copied(ty, bytes)
}

/// Copies the elements of an array of type `ty`.
pub(crate) fn copied(ty: TensorType, bytes: &[u8]) -> Result<Buffer> {
    let memory = AlignedMemory::unfilled(bytes.len())?;
    // SAFETY: the memory is new and has that many bytes.
    unsafe { memory.ptr().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    Ok(Buffer::new(ty, Arc::new(CpuData::new(memory, None))))
}

impl DeviceData for CpuData {
    fn bytes(&self, ty: &TensorType) -> Option<&[u8]> {
        if self.panels.is_none() { self.memory.bytes().get(..ty.bytes()) } else { None }
    }

    fn to_literal(&self, ty: &TensorType) -> Result<Literal> {
        let rows;
        let memory = match self.panels {
            None => &self.memory,
            Some(_) => {
                let cx = KernelContext { team: &ThreadPool::new(1), flush: false };
                let from = self.memory.ptr().cast_const();
                // SAFETY: the memory holds the array, whose shape is that of `panels`.
                rows = unsafe { panel_layout::turned(&cx, [self.panels, None], ty.dtype.size(), from)? };
                &rows
            }
        };
        Literal::from_bytes(ty.clone(), &memory.bytes()[..ty.bytes()])
    }
}
