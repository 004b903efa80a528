//! Arrays of the backend, which may lie in panels of columns.

use crate::kernel::Cx;
use crate::machine::memory::Memory;
use crate::machine::team::Team;
use crate::run::panels;
use crate::run::panels::Panels;
use std::sync::OnceLock;
use systole_ir::{Literal, Result, TensorType};
use systole_runtime::DeviceData;

/// An array of this backend.
pub struct CpuData {
    /// Its bytes; at least those of its type.
    pub memory: Memory,
    /// How its elements lie, if not in order.
    pub panels: Option<Panels>,
    /// The elements in order, where something asked for them.
    rows: OnceLock<Memory>,
}

impl CpuData {
    pub fn new(memory: Memory, panels: Option<Panels>) -> CpuData {
        CpuData { memory, panels, rows: OnceLock::new() }
    }

    /// The elements in order, `size` bytes each; a copy is made once where they lie otherwise.
    pub fn in_order(&self, team: &Team, size: usize) -> Result<&Memory> {
        if self.panels.is_none() {
            return Ok(&self.memory);
        }
        if let Some(made) = self.rows.get() {
            return Ok(made);
        }
        let cx = Cx { team, flush: false };
        // SAFETY: the memory holds the array.
        let rows = unsafe { panels::turned(&cx, [self.panels, None], size, self.memory.ptr().cast_const())? };
        Ok(self.rows.get_or_init(|| rows))
    }
}

impl DeviceData for CpuData {
    fn to_literal(&self, ty: &TensorType) -> Result<Literal> {
        let rows;
        let memory = match self.panels {
            None => &self.memory,
            Some(_) => {
                let cx = Cx { team: &Team::new(1), flush: false };
                let from = self.memory.ptr().cast_const();
                // SAFETY: the memory holds the array.
                rows = unsafe { panels::turned(&cx, [self.panels, None], ty.dtype.size(), from)? };
                &rows
            }
        };
        Literal::from_bytes(ty.clone(), &memory.bytes()[..ty.bytes()])
    }
}
