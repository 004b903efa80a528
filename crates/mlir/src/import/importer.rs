//! What the files of this folder share: the module that is read, and the values of the function that is being unfolded.

use super::check::Check;
use super::types::wrong;
use super::value::Given;
use crate::device_sharding::Tiles;
use crate::syntax::{Function, Module, Operation, Place, Type, Value};
use systole_base::Result;
use systole_ir::{Tensor, ValueId};

/// Functions that call each other deeper are refused: such programs never end.
pub(super) const MAX_CALLS: usize = 64;

/// The values of one call of a function.
pub(super) struct Frame<'m> {
    pub(super) function: &'m Function,
    pub(super) values: Vec<Option<Given>>,
}

impl Frame<'_> {
    pub(super) fn get(&self, value: Value) -> Result<Given> {
        let found = self.values.get(value).cloned().flatten();
        found.ok_or_else(|| wrong("a value is used before it is there"))
    }

    pub(super) fn set(&mut self, value: Value, given: Given) {
        if let Some(slot) = self.values.get_mut(value) {
            *slot = Some(given);
        }
    }

    pub(super) fn ty(&self, value: Value) -> Result<&Type> {
        self.function.values.get(value).ok_or_else(|| wrong("a value without a type"))
    }
}

/// What reads a module.
pub(super) struct Importer<'m> {
    pub(super) module: &'m Module,
    /// The functions that are being unfolded.
    pub(super) calls: Vec<&'m str>,
    pub(super) ops: usize,
    /// What the module says of its own results, and the arrays that it says it of.
    pub(super) checks: Vec<Check>,
    pub(super) compared: Vec<Tensor>,
    /// Regions around what is being read; their nodes are in graphs of their own.
    pub(super) regions: usize,
    pub(super) places: Vec<(u32, Place)>,
    /// What `interpreter.probe` was given, by name, in order.
    pub(super) probes: Vec<(String, Vec<Given>)>,
    /// Sums of what devices computed by themselves: each device's term, and how it lies on them.
    pub(super) terms: Vec<(ValueId, Tensor, Tiles)>,
}

/// Where an op stands.
pub(super) fn place(op: &Operation) -> String {
    format!("{}, {}", op.place, op.name)
}
