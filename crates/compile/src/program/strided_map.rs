//! Describes (as data) an element-wise program with strided stores: its results may be parts of larger arrays.

use super::map::Map;
use super::type_check::{CheckResult, holds, inside, map};
use smallvec::SmallVec;
use systole_ir::TensorType;

/// A map whose stores have strides and offsets, so that several of them can fill one output.
#[derive(Clone, Debug)]
pub struct StridedMap {
    /// The map.
    pub map: Map,
    /// Destination of each of the map's stores.
    pub stores: Vec<StridedStore>,
}

/// Destination of a store of a [`StridedMap`].
#[derive(Clone, Debug)]
pub struct StridedStore {
    /// Index of the output of the step.
    pub output: usize,
    /// Strides in elements, one for each dimension of the index space.
    pub strides: SmallVec<[usize; 4]>,
    /// Element of the output to which index 0 is stored.
    pub offset: usize,
}

impl StridedMap {
    /// Whether a store is contiguous from offset 0: row-major index `i` goes to element `i` of the output.
    pub fn is_whole(&self, store: &StridedStore) -> bool {
        store.offset == 0 && store.strides[..] == self.map.shape.strides()[..]
    }

    /// Whether output `o` may alias input `i`.
    pub(super) fn overwrites(&self, i: usize, o: usize) -> bool {
        let mut stores = self.stores.iter().filter(|store| store.output == o);
        self.map.reads_in_place(i) && stores.all(|store| self.is_whole(store))
    }

    /// Checks the types of operands and results.
    pub(super) fn check(&self, ins: &[TensorType], outs: &[TensorType]) -> CheckResult {
        map(&self.map, ins)?;
        holds(self.stores.len() == self.map.stores.len(), || "some stores have no destination".into())?;
        let mut written = vec![0; outs.len()];
        for (&e, store) in self.map.stores.iter().zip(&self.stores) {
            let ty = outs.get(store.output).ok_or("a store refers to a missing result")?;
            holds(self.map.dtype(e) == ty.dtype, || {
                format!("register {e} is stored with another type, {ty}")
            })?;
            inside(&self.map, &store.strides, store.offset, ty).map_err(|what| format!("a store {what}"))?;
            written[store.output] += self.map.shape.elements();
        }
        let whole = written.iter().zip(outs).all(|(n, ty)| *n == ty.elements());
        holds(whole, || format!("stores of {written:?} elements do not fill {outs:?}"))
    }
}
