//! An element-wise program that writes its results to parts of arrays.

use super::map::Map;
use smallvec::SmallVec;

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
}
