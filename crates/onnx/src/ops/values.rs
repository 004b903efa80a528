//! Values of an ONNX graph during import, in the file's layout (`[N, C, …]`) or with channels last (`[N, …, C]`). Both
//! are kept as produced and converted on demand, so that PyTorch's layout costs few transposes.

use crate::model::{OnnxFunction, OnnxNode, broken};
use crate::stages::StageRunner;
use std::collections::{BTreeMap, HashMap};
use systole_base::{Error, Literal, Result, TensorType, err};
use systole_ir::{GraphBuilder, Tensor};

/// Output of an operator.
#[derive(Clone)]
pub(crate) enum RuleOutput {
    /// In the file's layout.
    Plain(Tensor),
    /// With the second dimension moved to the end (channels last).
    Last(Tensor),
    /// A sequence of tensors in the file's layout.
    Sequence(Vec<Tensor>),
}

impl RuleOutput {
    /// Returns the type of an ONNX tensor in the file's layout; `None` for a sequence.
    pub fn ty(&self) -> Option<TensorType> {
        Some(match self {
            RuleOutput::Sequence(_) => return None,
            RuleOutput::Last(t) if t.rank() >= 3 => {
                t.ty().with_shape(to_plain(t.rank()).iter().map(|&d| t.shape()[d]).collect::<Vec<_>>())
            }
            RuleOutput::Plain(t) | RuleOutput::Last(t) => t.ty().clone(),
        })
    }
}

#[derive(Clone, Default)]
struct ValueSlot {
    plain: Option<Tensor>,
    last: Option<Tensor>,
    sequence: Option<Vec<Tensor>>,
}

/// Maximum elements of all constants computed during import.
const MOST_IN_TABLES: usize = 1 << 24;

/// Maximum nodes of nested graphs that are imported, each as often as it is unrolled.
const MOST_NESTED_NODES: usize = 1 << 16;

/// Maximum depth of nested graphs and functions.
const MOST_CALLS: usize = 64;

/// Function that imports a node and adds its outputs to the values; returns their types.
pub(crate) type NodeImport = fn(&OnnxNode, &mut ValueTable<'_>, i64) -> Result<Vec<(String, TensorType)>>;

/// All values computed so far.
pub(crate) struct ValueTable<'m> {
    pub g: GraphBuilder,
    /// Remaining elements of constants that may be computed during import.
    pub tables: usize,
    /// Imports a node of a nested graph.
    pub import: NodeImport,
    /// First error of a nested graph.
    pub nested_error: Option<Error>,
    /// Whether an operand of the current node must be known at compile time and is not.
    pub needs_a_value: bool,
    /// Evaluates values that depend on the inputs; `None` for a program that serves all inputs.
    pub stages: Option<StageRunner>,
    /// Remaining nodes of nested graphs that may be imported.
    nested_nodes: usize,
    /// Model-local functions.
    pub functions: &'m [OnnxFunction],
    /// Number of graphs and functions around the current one.
    depth: usize,
    /// The model's constants; `None` in a function, which does not see them.
    constants: Option<&'m BTreeMap<String, Literal>>,
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
    pub fn new(
        g: GraphBuilder,
        constants: &'m BTreeMap<String, Literal>,
        functions: &'m [OnnxFunction],
        import: NodeImport,
    ) -> ValueTable<'m> {
        ValueTable {
            g,
            tables: MOST_IN_TABLES,
            import,
            nested_error: None,
            needs_a_value: false,
            stages: None,
            nested_nodes: MOST_NESTED_NODES,
            functions,
            depth: 0,
            constants: Some(constants),
            slots: HashMap::new(),
        }
    }

    /// Runs `f` in the scope of a nested graph: values that it adds or converts are dropped afterwards.
    pub fn nested<R>(&mut self, f: impl FnOnce(&mut Self) -> R) -> R {
        let outer = self.slots.clone();
        self.depth += 1;
        let result = f(self);
        self.depth -= 1;
        self.slots = outer;
        result
    }

    /// Runs `f` in the scope of a function, which cannot see the values of its caller.
    ///
    /// # Errors
    /// If functions call each other more than [`MOST_CALLS`] levels deep.
    pub fn in_function<R>(&mut self, f: impl FnOnce(&mut Self) -> Result<R>) -> Result<R> {
        if self.depth >= MOST_CALLS {
            return Err(broken(format!("functions call each other more than {MOST_CALLS} levels deep")));
        }
        let constants = self.constants.take();
        let result = self.nested(|values| {
            values.slots.clear();
            f(values)
        });
        self.constants = constants;
        result
    }

    /// Counts nodes of nested graphs and functions.
    pub fn spend_nodes(&mut self, nodes: usize) -> Result<()> {
        let left = self.nested_nodes.checked_sub(nodes + 1);
        self.nested_nodes = left.ok_or_else(|| {
            err!(Unsupported, "the loops or functions are too large to unroll")
                .because(format!("unrolled, they have more than {MOST_NESTED_NODES} nodes"))
        })?;
        Ok(())
    }

    /// Adds an ONNX value that a node or the caller has produced.
    pub fn put(&mut self, name: &str, made: RuleOutput) -> Result<()> {
        let slot = match made {
            RuleOutput::Last(t) if t.rank() >= 3 => ValueSlot { last: Some(t), ..ValueSlot::default() },
            RuleOutput::Plain(t) | RuleOutput::Last(t) => {
                ValueSlot { plain: Some(t), ..ValueSlot::default() }
            }
            RuleOutput::Sequence(all) => ValueSlot { sequence: Some(all), ..ValueSlot::default() },
        };
        if self.depth > 0 && self.constants.is_some_and(|all| all.contains_key(name)) {
            return Err(broken(format!("value {name} of a nested graph is also a constant of the model")));
        }
        match self.slots.insert(name.into(), slot) {
            // A nested graph may reuse the name of an outer value that it does not read.
            Some(_) if self.depth == 0 => Err(broken(format!("value {name} is defined twice"))),
            _ => Ok(()),
        }
    }

    fn slot(&mut self, name: &str) -> Result<&mut ValueSlot> {
        if !self.slots.contains_key(name)
            && let Some(value) = self.constants.and_then(|all| all.get(name))
        {
            let plain = Some(self.g.constant(value.clone()));
            self.slots.insert(name.into(), ValueSlot { plain, ..ValueSlot::default() });
        }
        self.slots
            .get_mut(name)
            .ok_or_else(|| broken(format!("value `{name}` is used before its definition")))
    }

    /// Returns an ONNX value in the file's layout.
    pub fn plain(&mut self, name: &str) -> Result<Tensor> {
        let slot = self.slot(name)?;
        if let (None, Some(last)) = (&slot.plain, &slot.last) {
            slot.plain = Some(last.transpose(&to_plain(last.rank())));
        }
        slot.plain.clone().ok_or_else(|| broken(format!("value `{name}` is a sequence, expected a tensor")))
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
        slot.last.clone().ok_or_else(|| broken(format!("value `{name}` is a sequence, expected a tensor")))
    }

    /// Returns an ONNX value that is a sequence.
    pub fn sequence(&mut self, name: &str) -> Result<Vec<Tensor>> {
        let sequence = self.slot(name)?.sequence.clone();
        sequence.ok_or_else(|| broken(format!("value {name} is a tensor, expected a sequence")))
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

    /// Returns the elements of tensors that must be known: constants, or values of a stage. `None` if they depend on the
    /// inputs.
    pub fn evaluated(&mut self, wanted: &[Tensor]) -> Result<Option<Vec<Literal>>> {
        let known: Vec<Option<Literal>> = wanted.iter().map(Tensor::known).collect();
        if let (true, Some(stages)) = (known.contains(&None), &mut self.stages) {
            let slots = self.slots.values().flat_map(|slot| [&slot.plain, &slot.last]);
            let live: Vec<Tensor> = slots.flatten().cloned().collect();
            let live: Vec<Tensor> = live.into_iter().filter(|t| !t.is_poisoned()).collect();
            return stages.run(&self.g, wanted, &live).map(Some);
        }
        self.needs_a_value |= known.contains(&None);
        Ok(known.into_iter().collect())
    }

    /// Returns the elements of ONNX values that must be known. Values of a stage become constants.
    pub fn known_together(&mut self, names: &[&str]) -> Result<Option<Vec<Literal>>> {
        let constants = self.constants;
        let constant = |name: &&str| constants.and_then(|all| all.get(*name)).cloned();
        if let Some(all) = names.iter().map(constant).collect::<Option<Vec<Literal>>>() {
            return Ok(Some(all));
        }
        let wanted = names.iter().map(|name| self.plain(name)).collect::<Result<Vec<_>>>()?;
        let Some(all) = self.evaluated(&wanted)? else { return Ok(None) };
        for (name, value) in names.iter().zip(&all).filter(|_| self.stages.is_some()) {
            let plain = Some(self.g.constant(value.clone()));
            self.slots.insert((*name).into(), ValueSlot { plain, ..ValueSlot::default() });
        }
        Ok(Some(all))
    }

    /// Drops the values of which `is_live` is false.
    pub fn retain(&mut self, is_live: impl Fn(&str) -> bool) {
        self.slots.retain(|name, _| is_live(name));
        let slots: Vec<&Tensor> = self.slots.values().flat_map(|s| [&s.plain, &s.last]).flatten().collect();
        if let Some(stages) = &mut self.stages {
            stages.retain(|t| slots.iter().any(|other| other.id() == t.id()));
        }
    }

    /// Returns the elements of an ONNX value if they do not depend on the model's inputs.
    pub fn known(&mut self, name: &str) -> Result<Option<Literal>> {
        match self.constants.and_then(|all| all.get(name)) {
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
