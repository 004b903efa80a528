//! The op table: one entry for each mnemonic. Everything that must hold for every op iterates over it.

use super::source::Unread;
use super::*;
use crate::graph::{binary_ops, mnemonic, unary_ops};

/// One mnemonic.
#[derive(Clone, Copy)]
pub struct Entry {
    /// The StableHLO mnemonic; with its dialect where that is another.
    pub name: &'static str,
    /// One line for `systole ops`.
    pub doc: &'static str,
    /// Dialect and section of the specification.
    pub spec: &'static str,
    /// Tiny programs for the tests.
    pub samples: fn() -> Vec<Sample>,
    /// Rebuilds the op from what text says of it.
    pub parse: fn(&Source<'_>) -> Unread<Op>,
}

const fn row(
    name: &'static str,
    doc: &'static str,
    spec: &'static str,
    samples: fn() -> Vec<Sample>,
    parse: fn(&Source<'_>) -> Unread<Op>,
) -> Entry {
    Entry { name, doc, spec, samples, parse }
}

/// Entries of element-wise ops, from their rows.
macro_rules! elementwise_entries {
    ($($op:ident = $dialect:ident $name:literal, $method:tt, $doc:literal, { $($rules:tt)* };)*) => {
        &[$(row(
            mnemonic!($dialect $name),
            $doc,
            concat!(stringify!($dialect), ": ", $name),
            || samples::elementwise(OP::$op),
            |_| Ok(OP::$op.into()),
        )),*]
    };
}

const UNARY: &[Entry] = {
    use Unary as OP;
    unary_ops!(elementwise_entries)
};

const BINARY: &[Entry] = {
    use Binary as OP;
    binary_ops!(elementwise_entries)
};

#[rustfmt::skip]
const OTHERS: &[Entry] = &[
    row("all_gather", "Arrays of all devices, joined.", "StableHLO: all_gather", collective::samples::all_gather, collective::parse::all_gather),
    row("all_reduce", "The fold of all devices' arrays.", "StableHLO: all_reduce", collective::samples::all_reduce, collective::parse::all_reduce),
    row("all_to_all", "Each device's parts to all devices.", "StableHLO: all_to_all", collective::samples::all_to_all, collective::parse::all_to_all),
    row("bitcast_convert", "The same bits as another type.", "StableHLO: bitcast_convert", samples::bitcast_convert, read::bitcast_convert),
    row("broadcast_in_dim", "Repeats elements along new dimensions or those of size 1.", "StableHLO: broadcast_in_dim", samples::broadcast_in_dim, read::broadcast_in_dim),
    row("case", "Runs the branch that an index names.", "StableHLO: case", samples::case, read::case),
    row("clamp", "min(max(x, low), high).", "StableHLO: clamp", samples::clamp, read::clamp),
    row("collective_permute", "An array from another device.", "StableHLO: collective_permute", collective::samples::collective_permute, collective::parse::collective_permute),
    row("compare", "A relation between elements.", "StableHLO: compare", samples::compare, read::compare),
    row("concatenate", "Joins arrays along a dimension.", "StableHLO: concatenate", samples::concatenate, read::concatenate),
    row("constant", "An array.", "StableHLO: constant", samples::constant, read::constant),
    row("convert", "Change of element type.", "StableHLO: convert", samples::convert, read::convert),
    row("convolution", "Sliding sums of products, any layout, dilated and grouped.", "StableHLO: convolution", || samples::every_dtype(conv::samples()), read::convolution),
    row("dot_general", "Sums of products over pairs of dimensions.", "StableHLO: dot_general", samples::dot_general, read::dot_general),
    row("dynamic_slice", "The block at a place known when running.", "StableHLO: dynamic_slice", || samples::every_dtype(dynamic::dynamic_slice_samples()), read::dynamic_slice),
    row("dynamic_update_slice", "Writes a block at a place known when running.", "StableHLO: dynamic_update_slice", || samples::every_dtype(dynamic::dynamic_update_slice_samples()), read::dynamic_update_slice),
    row("gather", "Slices at positions that are data.", "StableHLO: gather", || samples::every_dtype(gather::gather_samples()), read::gather),
    row("iota", "Coordinates along a dimension.", "StableHLO: iota", samples::iota, read::iota),
    row("optimization_barrier", "The same values; no work moves across.", "StableHLO: optimization_barrier", samples::optimization_barrier, read::optimization_barrier),
    row("pad", "A value around and between elements, or elements cut off.", "StableHLO: pad", samples::pad, read::pad),
    row("partition_id", "The number of this partition.", "StableHLO: partition_id", collective::samples::partition_id, |_| Ok(PartitionId.into())),
    row("reduce", "Folds dimensions with any body.", "StableHLO: reduce", samples::reduce, read::reduce),
    row("reduce_precision", "Rounds to fewer exponent and mantissa bits.", "StableHLO: reduce_precision", samples::reduce_precision, read::reduce_precision),
    row("reduce_scatter", "A part of the fold of all devices' arrays.", "StableHLO: reduce_scatter", collective::samples::reduce_scatter, collective::parse::reduce_scatter),
    row("reduce_window", "Folds sliding windows with any body.", "StableHLO: reduce_window", window::reduce_window_samples, read::reduce_window),
    row("replica_id", "The number of this replica.", "StableHLO: replica_id", collective::samples::replica_id, |_| Ok(ReplicaId.into())),
    row("reshape", "The same elements in another shape.", "StableHLO: reshape", samples::reshape, read::reshape),
    row("reverse", "Dimensions backwards.", "StableHLO: reverse", samples::reverse, read::reverse),
    row("rng_bit_generator", "Random bits as a function of a state.", "StableHLO: rng_bit_generator", samples::rng_bit_generator, read::rng_bit_generator),
    row("scatter", "Folds updates into positions that are data.", "StableHLO: scatter", scatter::scatter_samples, read::scatter),
    row("select", "One of two elements, by a bool.", "StableHLO: select", samples::select, read::select),
    row("select_and_scatter", "Folds a value into the place that each window selects.", "StableHLO: select_and_scatter", window::select_and_scatter_samples, read::select_and_scatter),
    row("slice", "Every n-th element from start to limit.", "StableHLO: slice", samples::slice, read::slice),
    row("sort", "Sorts arrays together by any comparator.", "StableHLO: sort", samples::sort, read::sort),
    row("transpose", "Dimensions in another order.", "StableHLO: transpose", samples::transpose, read::transpose),
    row("while", "Runs a body while a condition holds.", "StableHLO: while", samples::while_, read::while_),
];

/// Every op, by name. Parameters are not here: text writes them as arguments of the function.
pub const TABLE: &[Entry] =
    &by_name::<{ UNARY.len() + BINARY.len() + OTHERS.len() }>([UNARY, BINARY, OTHERS]);

/// All entries of some lists, sorted by name.
const fn by_name<const N: usize>(lists: [&[Entry]; 3]) -> [Entry; N] {
    let mut all = [OTHERS[0]; N];
    let (mut n, mut list) = (0, 0);
    while list < lists.len() {
        let mut i = 0;
        while i < lists[list].len() {
            // Where the entry belongs among those that are placed.
            let mut at = n;
            while at > 0 && is_before(lists[list][i].name.as_bytes(), all[at - 1].name.as_bytes()) {
                all[at] = all[at - 1];
                at -= 1;
            }
            all[at] = lists[list][i];
            (i, n) = (i + 1, n + 1);
        }
        list += 1;
    }
    all
}

const fn is_before(a: &[u8], b: &[u8]) -> bool {
    let mut i = 0;
    while i < a.len() && i < b.len() && a[i] == b[i] {
        i += 1;
    }
    i < b.len() && (i == a.len() || a[i] < b[i])
}

/// The entry of a mnemonic.
pub fn entry(name: &str) -> Option<&'static Entry> {
    TABLE.binary_search_by(|e| e.name.cmp(name)).ok().map(|i| &TABLE[i])
}
