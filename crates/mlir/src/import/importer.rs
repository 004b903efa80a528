//! What the files of this folder share: the module that is read, and the values of the function that is being unfolded.

use super::check::ResultCheck;
use super::types::wrong;
use super::value::ImportedValue;
use crate::device_sharding::DeviceSharding;
use crate::syntax::{FunctionValue, MlirFunction, MlirModule, MlirType, Operation, SourceSpan};
use systole_base::Result;
use systole_ir::{Tensor, ValueId};

/// Functions that call each other deeper are refused: such programs never end.
pub(super) const MAX_CALLS: usize = 64;

/// The values of one call of a function.
pub(super) struct CallFrame<'m> {
    pub(super) function: &'m MlirFunction,
    pub(super) values: Vec<Option<ImportedValue>>,
}

impl CallFrame<'_> {
    pub(super) fn get(&self, value: FunctionValue) -> Result<ImportedValue> {
        let found = self.values.get(value).cloned().flatten();
        found.ok_or_else(|| wrong("a value is used before it is there"))
    }

    pub(super) fn set(&mut self, value: FunctionValue, given: ImportedValue) {
        if let Some(slot) = self.values.get_mut(value) {
            *slot = Some(given);
        }
    }

    pub(super) fn ty(&self, value: FunctionValue) -> Result<&MlirType> {
        self.function.values.get(value).ok_or_else(|| wrong("a value without a type"))
    }
}

/// What reads a module.
pub(super) struct Importer<'m> {
    pub(super) module: &'m MlirModule,
    /// The functions that are being unfolded.
    pub(super) calls: Vec<&'m str>,
    pub(super) ops: usize,
    /// What the module says of its own results, and the arrays that it says it of.
    pub(super) checks: Vec<ResultCheck>,
    pub(super) compared: Vec<Tensor>,
    /// Regions around what is being read; their nodes are in graphs of their own.
    pub(super) regions: usize,
    pub(super) places: Vec<(u32, SourceSpan)>,
    /// What `interpreter.probe` was given, by name, in order.
    pub(super) probes: Vec<(String, Vec<ImportedValue>)>,
    /// Sums of what devices computed by themselves: each device's term, and how it lies on them.
    pub(super) terms: Vec<(ValueId, Tensor, DeviceSharding)>,
}

/// Where an op stands.
pub(super) fn place(op: &Operation) -> String {
    format!("{}, {}", op.place, op.name)
}
