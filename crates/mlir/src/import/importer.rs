//! State of the MLIR importer: the module, and the values of the function that is being inlined.

use super::check::ResultCheck;
use super::effects::HostCalls;
use super::types::wrong;
use super::value::ImportedValue;
use crate::device_sharding::DeviceSharding;
use crate::syntax::{FunctionValue, MlirFunction, MlirModule, MlirType, Operation, SourceSpan};
use systole_base::Result;
use systole_ir::{Tensor, ValueId};

/// Maximum call depth; deeper programs are recursive and rejected.
pub(super) const MAX_CALLS: usize = 64;

/// Values of one function call.
pub(super) struct CallFrame<'m> {
    pub(super) function: &'m MlirFunction,
    pub(super) values: Vec<Option<ImportedValue>>,
}

impl CallFrame<'_> {
    pub(super) fn get(&self, value: FunctionValue) -> Result<ImportedValue> {
        let found = self.values.get(value).cloned().flatten();
        found.ok_or_else(|| wrong("a value is used before its definition"))
    }

    pub(super) fn set(&mut self, value: FunctionValue, given: ImportedValue) {
        if let Some(slot) = self.values.get_mut(value) {
            *slot = Some(given);
        }
    }

    pub(super) fn ty(&self, value: FunctionValue) -> Result<&MlirType> {
        self.function.values.get(value).ok_or_else(|| wrong("a value has no type"))
    }
}

/// Imports a module.
pub(super) struct Importer<'m> {
    pub(super) module: &'m MlirModule,
    /// Functions that are being inlined.
    pub(super) calls: Vec<&'m str>,
    pub(super) ops: usize,
    /// The module's assertions about its own results, with the arrays that they compare.
    pub(super) checks: Vec<ResultCheck>,
    pub(super) compared: Vec<Tensor>,
    /// Depth of nested regions; their nodes are in separate graphs.
    pub(super) regions: usize,
    pub(super) places: Vec<(u32, SourceSpan)>,
    /// Values passed to `interpreter.probe`, by name, in order.
    pub(super) probes: Vec<(String, Vec<ImportedValue>)>,
    /// Unreduced sums from manual computations: each device's term, and its sharding.
    pub(super) terms: Vec<(ValueId, Tensor, DeviceSharding)>,
    /// Whether the backend has kernels for Fourier transforms.
    pub(super) has_fft: bool,
    pub(super) host_calls: HostCalls,
    /// Order token of the last host call with side effects.
    pub(super) order: Option<Tensor>,
}

/// Formats the position of an op.
pub(super) fn place(op: &Operation) -> String {
    format!("{}, {}", op.place, op.name)
}
