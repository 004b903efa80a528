//! Trees (pytrees): nested containers that hold tensors while a function is traced and buffers when it runs.
//!
//! `Tensor`, tuples, `Vec` and [`Params`] are trees. A traced function may take and return `(Params<Tensor>,
//! Vec<Tensor>, Tensor)`; it is then called with `(Params<Buffer>, Vec<Buffer>, Buffer)`.

use crate::Buffer;
use systole_ir::Tensor;

/// Structure of a tree without its leaves (JAX's treedef).
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum TreeStructure {
    /// One tensor.
    Leaf,
    /// A tuple or list.
    List(Vec<TreeStructure>),
    /// Named subtrees.
    Named(Vec<(String, TreeStructure)>),
    /// One tensor, with static data of its container as text (JAX's auxiliary data). Programs are compiled for each text.
    Annotated(String),
}

impl TreeStructure {
    fn list(&self, i: usize) -> &TreeStructure {
        match self {
            TreeStructure::List(parts) => &parts[i],
            _ => systole_ir::bug!("the structure of a tree changed"),
        }
    }

    /// Returns the names of the tree's leaves: `0/dense/kernel`.
    pub fn leaf_names(&self) -> Vec<String> {
        let join = |prefix: &str, inner: String| {
            if inner.is_empty() { prefix.to_string() } else { format!("{prefix}/{inner}") }
        };
        match self {
            TreeStructure::Leaf | TreeStructure::Annotated(_) => vec![String::new()],
            TreeStructure::List(parts) => parts
                .iter()
                .enumerate()
                .flat_map(|(i, p)| p.leaf_names().into_iter().map(move |n| join(&i.to_string(), n)))
                .collect(),
            TreeStructure::Named(parts) => parts
                .iter()
                .flat_map(|(name, p)| p.leaf_names().into_iter().map(move |n| join(name, n)))
                .collect(),
        }
    }
}

/// A nested container of tensors, and its counterpart that holds buffers.
pub trait TensorTree: Sized {
    /// The same structure with buffers as leaves.
    type Host;

    /// Appends the tensors in a fixed order; returns the structure.
    fn flatten(&self, out: &mut Vec<Tensor>) -> TreeStructure;

    /// Rebuilds the tree from its structure and tensors, in the same order.
    fn unflatten(skeleton: &TreeStructure, leaves: &mut dyn Iterator<Item = Tensor>) -> Self;

    /// Appends the buffers in a fixed order; returns the structure.
    fn flatten_host(host: Self::Host, out: &mut Vec<Buffer>) -> TreeStructure;

    /// Rebuilds the tree of buffers from its structure and leaves.
    fn unflatten_host(skeleton: &TreeStructure, leaves: &mut dyn Iterator<Item = Buffer>) -> Self::Host;
}

fn next<T>(leaves: &mut dyn Iterator<Item = T>) -> T {
    leaves.next().unwrap_or_else(|| systole_ir::bug!("a leaf of a tree is missing"))
}

impl TensorTree for Tensor {
    type Host = Buffer;
    fn flatten(&self, out: &mut Vec<Tensor>) -> TreeStructure {
        out.push(self.clone());
        TreeStructure::Leaf
    }
    fn unflatten(_: &TreeStructure, leaves: &mut dyn Iterator<Item = Tensor>) -> Tensor {
        next(leaves)
    }
    fn flatten_host(host: Buffer, out: &mut Vec<Buffer>) -> TreeStructure {
        out.push(host);
        TreeStructure::Leaf
    }
    fn unflatten_host(_: &TreeStructure, leaves: &mut dyn Iterator<Item = Buffer>) -> Buffer {
        next(leaves)
    }
}

/// Empty tree, for functions that take or return nothing.
impl TensorTree for () {
    type Host = ();
    fn flatten(&self, _: &mut Vec<Tensor>) -> TreeStructure {
        TreeStructure::List(Vec::new())
    }
    fn unflatten(_: &TreeStructure, _: &mut dyn Iterator<Item = Tensor>) {}
    fn flatten_host(_: (), _: &mut Vec<Buffer>) -> TreeStructure {
        TreeStructure::List(Vec::new())
    }
    fn unflatten_host(_: &TreeStructure, _: &mut dyn Iterator<Item = Buffer>) {}
}

macro_rules! tuple_trees {
    ($(($($t:ident $i:tt),*));* $(;)?) => { $(
        impl<$($t: TensorTree),*> TensorTree for ($($t,)*) {
            type Host = ($($t::Host,)*);
            fn flatten(&self, out: &mut Vec<Tensor>) -> TreeStructure {
                TreeStructure::List(vec![$(self.$i.flatten(out)),*])
            }
            fn unflatten(skeleton: &TreeStructure, leaves: &mut dyn Iterator<Item = Tensor>) -> Self {
                ($($t::unflatten(skeleton.list($i), leaves),)*)
            }
            fn flatten_host(host: Self::Host, out: &mut Vec<Buffer>) -> TreeStructure {
                TreeStructure::List(vec![$($t::flatten_host(host.$i, out)),*])
            }
            fn unflatten_host(skeleton: &TreeStructure, leaves: &mut dyn Iterator<Item = Buffer>) -> Self::Host {
                ($($t::unflatten_host(skeleton.list($i), leaves),)*)
            }
        }
    )* };
}

tuple_trees!(
    (A 0); (A 0, B 1); (A 0, B 1, C 2); (A 0, B 1, C 2, D 3); (A 0, B 1, C 2, D 3, E 4);
    (A 0, B 1, C 2, D 3, E 4, F 5); (A 0, B 1, C 2, D 3, E 4, F 5, G 6);
    (A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7);
);

impl<A: TensorTree> TensorTree for Vec<A> {
    type Host = Vec<A::Host>;
    fn flatten(&self, out: &mut Vec<Tensor>) -> TreeStructure {
        TreeStructure::List(self.iter().map(|a| a.flatten(out)).collect())
    }
    fn unflatten(skeleton: &TreeStructure, leaves: &mut dyn Iterator<Item = Tensor>) -> Self {
        let TreeStructure::List(parts) = skeleton else {
            systole_ir::bug!("the structure of a tree changed")
        };
        parts.iter().map(|p| A::unflatten(p, leaves)).collect()
    }
    fn flatten_host(host: Self::Host, out: &mut Vec<Buffer>) -> TreeStructure {
        TreeStructure::List(host.into_iter().map(|a| A::flatten_host(a, out)).collect())
    }
    fn unflatten_host(skeleton: &TreeStructure, leaves: &mut dyn Iterator<Item = Buffer>) -> Self::Host {
        let TreeStructure::List(parts) = skeleton else {
            systole_ir::bug!("the structure of a tree changed")
        };
        parts.iter().map(|p| A::unflatten_host(p, leaves)).collect()
    }
}

/// Named values in a fixed order: a model's parameters (`dense/kernel`), gradients, optimizer state.
#[derive(Clone, Debug)]
pub struct Params<T = Tensor>(Vec<(String, T)>);

impl<T> Default for Params<T> {
    fn default() -> Params<T> {
        Params(Vec::new())
    }
}

impl<T> Params<T> {
    /// Creates an empty list of named values.
    pub fn new() -> Params<T> {
        Params(Vec::new())
    }

    /// Sets the value of a name; an existing name keeps its position.
    pub fn insert(&mut self, name: impl Into<String>, value: T) {
        let name = name.into();
        match self.0.iter_mut().find(|(n, _)| *n == name) {
            Some(slot) => slot.1 = value,
            None => self.0.push((name, value)),
        }
    }

    /// Returns the value with this name.
    pub fn get(&self, name: &str) -> Option<&T> {
        self.0.iter().find(|(n, _)| n == name).map(|(_, v)| v)
    }

    /// Iterates over names and values in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &T)> {
        self.0.iter().map(|(n, v)| (n.as_str(), v))
    }

    /// Iterates over the values in order.
    pub fn values(&self) -> impl Iterator<Item = &T> {
        self.0.iter().map(|(_, v)| v)
    }

    /// Iterates over the names of the values in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|(n, _)| n.as_str())
    }

    /// Number of named values.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are no named values.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Maps each value with `f`, keeping the names.
    pub fn map<U>(&self, mut f: impl FnMut(&str, &T) -> U) -> Params<U> {
        Params(self.0.iter().map(|(n, v)| (n.clone(), f(n, v))).collect())
    }

    /// Combines the values of two lists with the same names.
    pub fn zip<U, V>(&self, other: &Params<U>, mut f: impl FnMut(&T, &U) -> V) -> Params<V> {
        Params(self.0.iter().zip(&other.0).map(|((n, a), (_, b))| (n.clone(), f(a, b))).collect())
    }
}

impl<T> FromIterator<(String, T)> for Params<T> {
    fn from_iter<I: IntoIterator<Item = (String, T)>>(values: I) -> Params<T> {
        Params(values.into_iter().collect())
    }
}

impl<T> IntoIterator for Params<T> {
    type Item = (String, T);
    type IntoIter = std::vec::IntoIter<(String, T)>;
    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

impl<T> std::ops::Index<&str> for Params<T> {
    type Output = T;

    /// Returns the value of a name.
    ///
    /// # Panics
    /// If the name is missing; use [`Params::get`] to avoid this.
    fn index(&self, name: &str) -> &T {
        match self.get(name) {
            Some(v) => v,
            None => {
                panic!(
                    "unknown parameter `{name}`; available: {}",
                    self.names().collect::<Vec<_>>().join(", ")
                )
            }
        }
    }
}

impl<A: TensorTree> TensorTree for Params<A> {
    type Host = Params<A::Host>;
    fn flatten(&self, out: &mut Vec<Tensor>) -> TreeStructure {
        TreeStructure::Named(self.0.iter().map(|(n, a)| (n.clone(), a.flatten(out))).collect())
    }
    fn unflatten(skeleton: &TreeStructure, leaves: &mut dyn Iterator<Item = Tensor>) -> Self {
        let TreeStructure::Named(parts) = skeleton else {
            systole_ir::bug!("the structure of a tree changed")
        };
        Params(parts.iter().map(|(n, p)| (n.clone(), A::unflatten(p, leaves))).collect())
    }
    fn flatten_host(host: Self::Host, out: &mut Vec<Buffer>) -> TreeStructure {
        TreeStructure::Named(host.0.into_iter().map(|(n, a)| (n, A::flatten_host(a, out))).collect())
    }
    fn unflatten_host(skeleton: &TreeStructure, leaves: &mut dyn Iterator<Item = Buffer>) -> Self::Host {
        let TreeStructure::Named(parts) = skeleton else {
            systole_ir::bug!("the structure of a tree changed")
        };
        Params(parts.iter().map(|(n, p)| (n.clone(), A::unflatten_host(p, leaves))).collect())
    }
}
