//! Element-wise values that each reader computes again instead of reading them from memory.
//!
//! Storing an array costs writing it (and, on most machines, reading its cache lines before) and reading it in every
//! step that uses it; computing it again costs reading what it is made of. Where the second moves no more bytes and
//! takes few cheap instructions, the array never exists: batch normalisation reads its input three times instead of
//! storing differences and squares.

use super::groups::{Fusion, Role};
use crate::graph::cheap::is_one_instruction;
use std::collections::{BTreeSet, HashMap};
use systole_ir::op::{Binary, Lowering, Monoid};
use systole_ir::{Op, ValueId};

/// Most instructions that are computed again.
const MAX_INLINE: usize = 16;

/// What computing a value again takes.
#[derive(Clone, Default)]
struct Recipe {
    /// Stored arrays of the value's own size that it is made of.
    leaves: BTreeSet<usize>,
    /// The nodes to compute.
    nodes: BTreeSet<usize>,
}

/// For each stored array: dimensions and operand of folds that are computed from it.
type FoldedFrom = HashMap<usize, Vec<(Vec<usize>, usize)>>;

impl Fusion<'_> {
    /// Decides which element-wise values are not stored. Twice: what the readers of a value compute again themselves
    /// is known only after the first look.
    pub fn find_inlined(&mut self) {
        let mut before: Vec<Option<Recipe>> = vec![None; self.graph.nodes.len()];
        for _ in 0..2 {
            let folded_from = self.folded_from(&before);
            let mut recipes: Vec<Option<Recipe>> = vec![None; before.len()];
            for v in 0..recipes.len() {
                if self.role[v] != Role::Map {
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

    /// For each array the folds that read it.
    fn folded_from(&self, recipes: &[Option<Recipe>]) -> FoldedFrom {
        let mut all = FoldedFrom::new();
        for node in &self.graph.nodes {
            let Op::Reduce(r) = &node.op else { continue };
            let x = node.inputs[0].index();
            for leaf in self.leaves_of(std::iter::once(x), usize::MAX, recipes) {
                all.entry(leaf).or_default().push((r.dims.to_vec(), x));
            }
        }
        all
    }

    fn recipe(&self, v: usize, recipes: &[Option<Recipe>]) -> Option<Recipe> {
        let node = &self.graph.nodes[v];
        if !is_one_instruction(&node.op) {
            return None;
        }
        let mut all = Recipe { nodes: BTreeSet::from([v]), ..Recipe::default() };
        for &x in &node.inputs {
            let i = x.index();
            if self.role[i] == Role::Map && !self.is_stored(i) {
                let part = recipes[i].as_ref()?;
                all.leaves.extend(&part.leaves);
                all.nodes.extend(&part.nodes);
            } else if self.graph.ty(x).elements() == node.outs[0].elements()
                && match self.role[i] {
                    Role::Constant => false,
                    Role::Virtual => matches!(self.graph.nodes[i].op, Op::Slice(_)),
                    _ => true,
                }
            {
                all.leaves.insert(self.base(x).index());
            }
        }
        (all.nodes.len() <= MAX_INLINE).then_some(all)
    }

    /// Whether all readers are steps that can compute the value on their way.
    fn may_vanish(&self, v: usize) -> bool {
        let shape = |i: usize| &self.graph.nodes[i].outs[0].shape;
        let on_the_way = |&u: &usize| match self.role[u] {
            Role::Map => {
                shape(u) == shape(v)
                    && self.graph.nodes[u].inputs.iter().any(|x| x.index() == v)
                    && !self.reads_indirectly(u, v)
            }
            _ => self.folds(u, v),
        };
        !self.is_result[v] && self.users[v].iter().all(on_the_way)
    }

    /// Whether `v` is a product plus a bias, which templates take together: the bare product must not be read again.
    fn is_biased_product(&self, v: usize) -> bool {
        let node = &self.graph.nodes[v];
        let is_product = |x: ValueId| self.graph.node(self.base(x)).op.rule().lower() == Lowering::Contract;
        let &[a, b] = &node.inputs[..] else { return false };
        node.op == Op::Binary(Binary::Add)
            && ((is_product(a) && self.row_of(b).is_some()) || (is_product(b) && self.row_of(a).is_some()))
    }

    /// Whether `u` is a fold of `v`.
    fn folds(&self, u: usize, v: usize) -> bool {
        let node = &self.graph.nodes[u];
        let Op::Reduce(r) = &node.op else { return false };
        node.outs.len() == 1
            && Monoid::of(&r.body).is_some()
            && node.inputs[0].index() == v
            && self.base(node.inputs[1]).index() != v
    }

    /// Whether computing it again moves no more bytes than storing it. `recipes` are those of the first look.
    fn pays(&self, v: usize, recipe: &Recipe, recipes: &[Option<Recipe>], folded_from: &FoldedFrom) -> bool {
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

    /// The arrays that must be read for these values, `v` itself left out.
    fn leaves_of(
        &self,
        values: impl Iterator<Item = usize>,
        v: usize,
        recipes: &[Option<Recipe>],
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

    /// The groups and the kinds of folds that read `v`, itself or by values that they compute again. Folds over the
    /// same dimensions will be one step.
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
