//! Values of an ONNX graph during import, in the file's layout (`[N, C, …]`) or with channels last (`[N, …, C]`). Both
//! are kept as produced and converted on demand, so that PyTorch's layout costs few transposes.

use crate::model::broken;
use std::collections::{BTreeMap, HashMap};
use systole_base::{Literal, Result, TensorType};
use systole_ir::{GraphBuilder, Tensor};

/// Output of an operator.
#[derive(Clone)]
pub(crate) enum RuleOutput {
    /// In the file's layout.
    Plain(Tensor),
    /// With the second dimension moved to the end (channels last).
    Last(Tensor),
}

impl RuleOutput {
    /// Returns the type of an ONNX value in the file's layout.
    pub fn ty(&self) -> TensorType {
        match self {
            RuleOutput::Last(t) if t.rank() >= 3 => {
                t.ty().with_shape(to_plain(t.rank()).iter().map(|&d| t.shape()[d]).collect::<Vec<_>>())
            }
            RuleOutput::Plain(t) | RuleOutput::Last(t) => t.ty().clone(),
        }
    }
}

#[derive(Clone, Default)]
struct ValueSlot {
    plain: Option<Tensor>,
    last: Option<Tensor>,
}

/// Maximum elements of all constants computed during import.
const MOST_IN_TABLES: usize = 1 << 24;

/// All values computed so far.
pub(crate) struct ValueTable<'m> {
    pub g: GraphBuilder,
    /// Remaining elements of constants that may be computed during import.
    pub tables: usize,
    constants: &'m BTreeMap<String, Literal>,
    slots: HashMap<String, ValueSlot>,
}

/// Returns the permutation that moves the second dimension to the end.
pub(super) fn to_last(rank: usize) -> Vec<usize> {
    (0..rank).map(|d| if d == 0 { 0 } else { d % (rank - 1) + 1 }).collect()
}

/// Returns the permutation that moves the last dimension to the second position.
pub(super) fn to_plain(rank: usize) -> Vec<usize> {
    (0..rank).map(|d| if d == 1 { rank - 1 } else { d.saturating_sub(1) }).collect()
}

/// Returns the position of a dimension after the second one was moved to the end.
pub(super) fn place_in_last(dim: usize, rank: usize) -> usize {
    match dim {
        0 => 0,
        1 => rank.saturating_sub(1),
        d => d - 1,
    }
}

impl<'m> ValueTable<'m> {
    pub fn new(g: GraphBuilder, constants: &'m BTreeMap<String, Literal>) -> ValueTable<'m> {
        ValueTable { g, tables: MOST_IN_TABLES, constants, slots: HashMap::new() }
    }

    /// Adds an ONNX value that a node or the caller has produced.
    pub fn put(&mut self, name: &str, made: RuleOutput) -> Result<()> {
        let slot = match made {
            RuleOutput::Last(t) if t.rank() >= 3 => ValueSlot { plain: None, last: Some(t) },
            RuleOutput::Plain(t) | RuleOutput::Last(t) => ValueSlot { plain: Some(t), last: None },
        };
        match self.slots.insert(name.into(), slot) {
            Some(_) => Err(broken(format!("value {name} is defined twice"))),
            None => Ok(()),
        }
    }

    fn slot(&mut self, name: &str) -> Result<&mut ValueSlot> {
        if !self.slots.contains_key(name)
            && let Some(value) = self.constants.get(name)
        {
            let plain = Some(self.g.constant(value.clone()));
            self.slots.insert(name.into(), ValueSlot { plain, last: None });
        }
        self.slots.get_mut(name).ok_or_else(|| broken(format!("value {name} is used before its definition")))
    }

    /// Returns an ONNX value in the file's layout.
    pub fn plain(&mut self, name: &str) -> Result<Tensor> {
        let slot = self.slot(name)?;
        if let (None, Some(last)) = (&slot.plain, &slot.last) {
            slot.plain = Some(last.transpose(&to_plain(last.rank())));
        }
        slot.plain.clone().ok_or_else(|| broken(format!("value {name} is undefined")))
    }

    /// Returns an ONNX value with channels last (second dimension at the end), if its rank is above two.
    pub fn last(&mut self, name: &str) -> Result<Tensor> {
        let slot = self.slot(name)?;
        if let (Some(plain), None) = (&slot.plain, &slot.last) {
            if plain.rank() < 3 {
                return Ok(plain.clone());
            }
            slot.last = Some(plain.transpose(&to_last(plain.rank())));
        }
        slot.last.clone().ok_or_else(|| broken(format!("value {name} is undefined")))
    }

    /// Whether an ONNX value exists only with channels last.
    pub fn is_last(&mut self, name: &str) -> Result<bool> {
        Ok(self.slot(name)?.plain.is_none())
    }

    /// Returns the rank of an ONNX value.
    pub fn rank(&mut self, name: &str) -> Result<usize> {
        let slot = self.slot(name)?;
        Ok(slot.plain.as_ref().or(slot.last.as_ref()).map_or(0, Tensor::rank))
    }

    /// Returns the elements of an ONNX value if they do not depend on the model's inputs.
    pub fn known(&mut self, name: &str) -> Result<Option<Literal>> {
        match self.constants.get(name) {
            Some(value) => Ok(Some(value.clone())),
            None => Ok(self.plain(name)?.known()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_orders_undo_each_other() {
        for rank in 3..6 {
            let (there, back) = (to_last(rank), to_plain(rank));
            assert_eq!(there.iter().map(|&d| back[d]).collect::<Vec<_>>(), (0..rank).collect::<Vec<_>>());
            assert!((0..rank).all(|d| there[place_in_last(d, rank)] == d), "{there:?}");
        }
        assert_eq!(to_last(4), [0, 2, 3, 1]);
    }
}
