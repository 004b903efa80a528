//! An element-wise program that writes its results to parts of arrays.

use super::check::{Checked, holds, inside, map};
use super::map::Map;
use smallvec::SmallVec;
use systole_ir::TensorType;

/// An element-wise program whose results are arrays or parts of arrays.
#[derive(Clone, Debug)]
pub struct StridedMap {
    /// The program.
    pub map: Map,
    /// Where its results go, one for each of the program's stores.
    pub stores: Vec<Store>,
}

/// Where the elements of a result go.
#[derive(Clone, Debug)]
pub struct Store {
    /// Which output of the step.
    pub output: usize,
    /// Distance in elements between neighbours along each dimension of the index space.
    pub strides: SmallVec<[usize; 4]>,
    /// The element of the output that index 0 is.
    pub offset: usize,
}

impl StridedMap {
    /// Whether a store writes element `i` of its output for index `i`.
    pub fn is_whole(&self, store: &Store) -> bool {
        store.offset == 0 && store.strides[..] == self.map.shape.strides()[..]
    }

    /// Whether output `o` may lie where input `i` does.
    pub(super) fn overwrites(&self, i: usize, o: usize) -> bool {
        let mut stores = self.stores.iter().filter(|store| store.output == o);
        self.map.reads_in_place(i) && stores.all(|store| self.is_whole(store))
    }

    /// Types of operands and results.
    pub(super) fn check(&self, ins: &[TensorType], outs: &[TensorType]) -> Checked {
        map(&self.map, ins)?;
        holds(self.stores.len() == self.map.stores.len(), || "stores without a place".into())?;
        let mut written = vec![0; outs.len()];
        for (&e, store) in self.map.stores.iter().zip(&self.stores) {
            let ty = outs.get(store.output).ok_or("a store into no result")?;
            holds(self.map.dtype(e) == ty.dtype, || format!("register {e} is stored as {ty}"))?;
            inside(&self.map, &store.strides, store.offset, ty).map_err(|what| format!("a store {what}"))?;
            written[store.output] += self.map.shape.elements();
        }
        let whole = written.iter().zip(outs).all(|(n, ty)| *n == ty.elements());
        holds(whole, || format!("{written:?} elements are stored into {outs:?}"))
    }
}
