//! Chooses element-wise values that each reader recomputes instead of loading them from memory (inlining).
//!
//! A stored array costs one write (on most machines with a read of its cache lines before, for ownership) and a read by
//! every step that uses it. Recomputing costs reads of the stored arrays that it derives from. If recomputing moves no
//! more bytes and needs few cheap instructions, the array is not stored. Batch normalization, for example, reads its
//! input three times instead of storing differences and squares.

use super::grouping::{FusionGroups, NodeLowering};
use crate::graph::memory::rematerializable::is_one_instruction;
use std::collections::{BTreeSet, HashMap};
use systole_ir::op::{Binary, LoweringClass, Monoid};
use systole_ir::{Op, ValueId};

/// Maximum number of nodes that are recomputed for one value.
const MAX_INLINE: usize = 16;

/// Nodes and stored arrays needed to recompute a value.
#[derive(Clone, Default)]
struct InlinePlan {
    /// Stored arrays with as many elements as the value, from which it is computed. Smaller ones are not counted.
    leaves: BTreeSet<usize>,
    /// The nodes to recompute, including that of the value.
    nodes: BTreeSet<usize>,
}

/// For each stored array, the reductions computed from it, as (reduced dimensions, operand of the reduction).
type ReductionsByArray = HashMap<usize, Vec<(Vec<usize>, usize)>>;

impl FusionGroups<'_> {
    /// Decides which element-wise values are not stored. Runs two rounds, because the cost depends on what the readers
    /// of a value recompute themselves, which is known only after the first round.
    pub fn find_inlined(&mut self) {
        let mut before: Vec<Option<InlinePlan>> = vec![None; self.graph.nodes.len()];
        for _ in 0..2 {
            let folded_from = self.folded_from(&before);
            let mut recipes: Vec<Option<InlinePlan>> = vec![None; before.len()];
            for v in 0..recipes.len() {
                if self.role[v] != NodeLowering::Map {
                    continue;
                }
                recipes[v] = self.recipe(v, &recipes);
                let Some(recipe) = &recipes[v] else { continue };
                self.inlined[v] = (self.inlined[v] || self.is_stored(v))
                    && self.may_vanish(v)
                    && !recipe.nodes.iter().any(|&n| self.is_biased_product(n))
                    && self.pays(v, recipe, &before, &folded_from);
            }
            before = recipes;
        }
    }

    /// For each stored array, the reductions that read it.
    fn folded_from(&self, recipes: &[Option<InlinePlan>]) -> ReductionsByArray {
        let mut all = ReductionsByArray::new();
        for node in &self.graph.nodes {
            let Op::Reduce(r) = &node.op else { continue };
            let x = node.inputs[0].index();
            for leaf in self.leaves_of(std::iter::once(x), usize::MAX, recipes) {
                all.entry(leaf).or_default().push((r.dims.to_vec(), x));
            }
        }
        all
    }

    /// Determines how to recompute `v`; `None` if an op is expensive or there are more than [`MAX_INLINE`] of them.
    fn recipe(&self, v: usize, recipes: &[Option<InlinePlan>]) -> Option<InlinePlan> {
        let node = &self.graph.nodes[v];
        if !is_one_instruction(&node.op) {
            return None;
        }
        let mut all = InlinePlan { nodes: BTreeSet::from([v]), ..InlinePlan::default() };
        for &x in &node.inputs {
            let i = x.index();
            if self.role[i] == NodeLowering::Map && !self.is_stored(i) {
                let part = recipes[i].as_ref()?;
                all.leaves.extend(&part.leaves);
                all.nodes.extend(&part.nodes);
            } else if self.graph.ty(x).elements() == node.outs[0].elements()
                && match self.role[i] {
                    NodeLowering::Constant => false,
                    NodeLowering::Virtual => matches!(self.graph.nodes[i].op, Op::Slice(_)),
                    _ => true,
                }
            {
                all.leaves.insert(self.base(x).index());
            }
        }
        (all.nodes.len() <= MAX_INLINE).then_some(all)
    }

    /// Whether all readers are element-wise steps or reductions that can compute `v` element by element.
    fn may_vanish(&self, v: usize) -> bool {
        let shape = |i: usize| &self.graph.nodes[i].outs[0].shape;
        let on_the_way = |&u: &usize| match self.role[u] {
            NodeLowering::Map => {
                shape(u) == shape(v)
                    && self.graph.nodes[u].inputs.iter().any(|x| x.index() == v)
                    && !self.reads_indirectly(u, v)
            }
            _ => self.folds(u, v),
        };
        !self.is_result[v] && self.users[v].iter().all(on_the_way)
    }

    /// Whether `v` is a contraction plus a bias. Both are fused into one kernel; recomputing the addition elsewhere
    /// would need the bare contraction as an array.
    fn is_biased_product(&self, v: usize) -> bool {
        let node = &self.graph.nodes[v];
        let is_product =
            |x: ValueId| self.graph.node(self.base(x)).op.rule().lower() == LoweringClass::Contract;
        let &[a, b] = &node.inputs[..] else { return false };
        node.op == Op::Binary(Binary::Add)
            && ((is_product(a) && self.row_of(b).is_some()) || (is_product(b) && self.row_of(a).is_some()))
    }

    /// Whether `u` is a reduction of `v`.
    fn folds(&self, u: usize, v: usize) -> bool {
        let node = &self.graph.nodes[u];
        let Op::Reduce(r) = &node.op else { return false };
        node.outs.len() == 1
            && Monoid::of(&r.body).is_some()
            && node.inputs[0].index() == v
            && self.base(node.inputs[1]).index() != v
    }

    /// Whether recomputing moves no more bytes per element than storing: a write, a read for ownership and a read by
    /// each reader. `recipes` are those of the previous round.
    fn pays(
        &self,
        v: usize,
        recipe: &InlinePlan,
        recipes: &[Option<InlinePlan>],
        folded_from: &ReductionsByArray,
    ) -> bool {
        let (mut groups, mut folds) = (BTreeSet::new(), BTreeSet::new());
        self.readers(v, v, &mut groups, &mut folds);
        let size = |i: usize| self.graph.nodes[i].outs[0].dtype.size();
        let bytes_beyond = |read: BTreeSet<usize>| -> usize {
            recipe.leaves.iter().filter(|leaf| !read.contains(leaf)).map(|&leaf| size(leaf)).sum()
        };
        let by_groups = groups.iter().map(|g| {
            let operands = self.members[g].iter().flat_map(|&m| &self.graph.nodes[m].inputs);
            bytes_beyond(self.leaves_of(operands.map(|x| x.index()), v, recipes))
        });
        let by_folds = folds.iter().map(|dims| {
            let read = |leaf: &&usize| {
                let others = |(d, x): &(Vec<usize>, usize)| d == dims && *x != v;
                folded_from.get(*leaf).is_some_and(|all| all.iter().any(others))
            };
            bytes_beyond(recipe.leaves.iter().filter(read).copied().collect())
        });
        by_groups.chain(by_folds).sum::<usize>() <= (2 + groups.len() + folds.len()) * size(v)
    }

    /// The stored arrays from which these values are computed, `v` itself excluded.
    fn leaves_of(
        &self,
        values: impl Iterator<Item = usize>,
        v: usize,
        recipes: &[Option<InlinePlan>],
    ) -> BTreeSet<usize> {
        let mut leaves = BTreeSet::new();
        for i in values.filter(|&i| i != v) {
            match &recipes[i] {
                Some(recipe) if !self.is_stored(i) => leaves.extend(&recipe.leaves),
                _ => {
                    leaves.insert(self.base(ValueId::new(i, 0)).index());
                }
            }
        }
        leaves
    }

    /// The groups and reductions that read `v`, directly or through values that they recompute. Reductions over the
    /// same dimensions count once, because they are fused into one step.
    fn readers(&self, v: usize, from: usize, groups: &mut BTreeSet<usize>, folds: &mut BTreeSet<Vec<usize>>) {
        for &u in &self.users[v] {
            match &self.graph.nodes[u].op {
                Op::Reduce(r) => {
                    folds.insert(r.dims.to_vec());
                }
                _ if self.group[u] == self.group[from] => {}
                _ if self.inlined[u] => self.readers(u, from, groups, folds),
                _ => {
                    groups.insert(self.group[u]);
                }
            }
        }
    }
}
