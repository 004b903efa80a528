//! Array of the CPU backend, row-major or in column panels ([`PanelLayout`]).

use crate::kernel::KernelContext;
use crate::machine::memory::AlignedMemory;
use crate::machine::thread_pool::ThreadPool;
use crate::run::panel_layout;
use crate::run::panel_layout::PanelLayout;
use std::sync::OnceLock;
use systole_ir::{Literal, Result, TensorType};
use systole_runtime::DeviceData;

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

impl DeviceData for CpuData {
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
