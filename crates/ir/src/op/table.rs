//! The op table: one line for each mnemonic. Everything that must hold for every op iterates over it.

use super::attr::Unread;
use super::*;

/// One mnemonic.
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

/// Every op, by name. Parameters are not here: text writes them as arguments of the function.
#[rustfmt::skip]
pub const TABLE: &[Entry] = &[
    row("abs", "|x|.", "StableHLO: abs", || sample::unary(Unary::Abs), |_| Ok(Unary::Abs.into())),
    row("add", "Sum; or of bool.", "StableHLO: add", || sample::binary(Binary::Add), |_| Ok(Binary::Add.into())),
    row("all_gather", "Arrays of all devices, joined.", "StableHLO: all_gather", collective::samples::all_gather, collective::parse::all_gather),
    row("all_reduce", "The fold of all devices' arrays.", "StableHLO: all_reduce", collective::samples::all_reduce, collective::parse::all_reduce),
    row("all_to_all", "Each device's parts to all devices.", "StableHLO: all_to_all", collective::samples::all_to_all, collective::parse::all_to_all),
    row("and", "Bit-wise or logical and.", "StableHLO: and", || sample::binary(Binary::And), |_| Ok(Binary::And.into())),
    row("atan2", "Angle of the point (x: second, y: first).", "StableHLO: atan2", || sample::binary(Binary::Atan2), |_| Ok(Binary::Atan2.into())),
    row("bitcast_convert", "The same bits as another type.", "StableHLO: bitcast_convert", sample::bitcast_convert, read::bitcast_convert),
    row("broadcast_in_dim", "Repeats elements along new dimensions or those of size 1.", "StableHLO: broadcast_in_dim", sample::broadcast_in_dim, read::broadcast_in_dim),
    row("case", "Runs the branch that an index names.", "StableHLO: case", sample::case, read::case),
    row("cbrt", "Cube root.", "StableHLO: cbrt", || sample::unary(Unary::Cbrt), |_| Ok(Unary::Cbrt.into())),
    row("ceil", "Rounds up.", "StableHLO: ceil", || sample::unary(Unary::Ceil), |_| Ok(Unary::Ceil.into())),
    row("chlo.erf", "The error function.", "CHLO: erf", || sample::unary(Unary::Erf), |_| Ok(Unary::Erf.into())),
    row("clamp", "min(max(x, low), high).", "StableHLO: clamp", sample::clamp, read::clamp),
    row("collective_permute", "An array from another device.", "StableHLO: collective_permute", collective::samples::collective_permute, collective::parse::collective_permute),
    row("compare", "A relation between elements.", "StableHLO: compare", sample::compare, read::compare),
    row("concatenate", "Joins arrays along a dimension.", "StableHLO: concatenate", sample::concatenate, read::concatenate),
    row("constant", "An array.", "StableHLO: constant", sample::constant, read::constant),
    row("convert", "Change of element type.", "StableHLO: convert", sample::convert, read::convert),
    row("convolution", "Sliding sums of products, any layout, dilated and grouped.", "StableHLO: convolution", || sample::every_dtype(conv::samples()), read::convolution),
    row("cosine", "cos x, radians.", "StableHLO: cosine", || sample::unary(Unary::Cosine), |_| Ok(Unary::Cosine.into())),
    row("count_leading_zeros", "Leading zero bits.", "StableHLO: count_leading_zeros", || sample::unary(Unary::CountLeadingZeros), |_| Ok(Unary::CountLeadingZeros.into())),
    row("divide", "Quotient; of integers rounded towards zero.", "StableHLO: divide", || sample::binary(Binary::Divide), |_| Ok(Binary::Divide.into())),
    row("dot_general", "Sums of products over pairs of dimensions.", "StableHLO: dot_general", sample::dot_general, read::dot_general),
    row("dynamic_slice", "The block at a place known when running.", "StableHLO: dynamic_slice", || sample::every_dtype(dynamic::dynamic_slice_samples()), read::dynamic_slice),
    row("dynamic_update_slice", "Writes a block at a place known when running.", "StableHLO: dynamic_update_slice", || sample::every_dtype(dynamic::dynamic_update_slice_samples()), read::dynamic_update_slice),
    row("exponential", "eˣ.", "StableHLO: exponential", || sample::unary(Unary::Exponential), |_| Ok(Unary::Exponential.into())),
    row("exponential_minus_one", "eˣ − 1, accurate near 0.", "StableHLO: exponential_minus_one", || sample::unary(Unary::ExponentialMinusOne), |_| Ok(Unary::ExponentialMinusOne.into())),
    row("floor", "Rounds down.", "StableHLO: floor", || sample::unary(Unary::Floor), |_| Ok(Unary::Floor.into())),
    row("gather", "Slices at positions that are data.", "StableHLO: gather", || sample::every_dtype(gather::gather_samples()), read::gather),
    row("iota", "Coordinates along a dimension.", "StableHLO: iota", sample::iota, read::iota),
    row("is_finite", "Neither infinite nor NaN.", "StableHLO: is_finite", || sample::unary(Unary::IsFinite), |_| Ok(Unary::IsFinite.into())),
    row("log", "ln x.", "StableHLO: log", || sample::unary(Unary::Log), |_| Ok(Unary::Log.into())),
    row("log_plus_one", "ln(1 + x), accurate near 0.", "StableHLO: log_plus_one", || sample::unary(Unary::LogPlusOne), |_| Ok(Unary::LogPlusOne.into())),
    row("logistic", "1 / (1 + e⁻ˣ).", "StableHLO: logistic", || sample::unary(Unary::Logistic), |_| Ok(Unary::Logistic.into())),
    row("maximum", "The greater; NaN wins.", "StableHLO: maximum", || sample::binary(Binary::Maximum), |_| Ok(Binary::Maximum.into())),
    row("minimum", "The lesser; NaN wins.", "StableHLO: minimum", || sample::binary(Binary::Minimum), |_| Ok(Binary::Minimum.into())),
    row("multiply", "Product; and of bool.", "StableHLO: multiply", || sample::binary(Binary::Multiply), |_| Ok(Binary::Multiply.into())),
    row("negate", "−x.", "StableHLO: negate", || sample::unary(Unary::Negate), |_| Ok(Unary::Negate.into())),
    row("not", "Complement of bits or of bool.", "StableHLO: not", || sample::unary(Unary::Not), |_| Ok(Unary::Not.into())),
    row("optimization_barrier", "The same values; no work moves across.", "StableHLO: optimization_barrier", sample::optimization_barrier, read::optimization_barrier),
    row("or", "Bit-wise or logical or.", "StableHLO: or", || sample::binary(Binary::Or), |_| Ok(Binary::Or.into())),
    row("pad", "A value around and between elements, or elements cut off.", "StableHLO: pad", sample::pad, read::pad),
    row("partition_id", "The number of this partition.", "StableHLO: partition_id", collective::samples::partition_id, |_| Ok(PartitionId.into())),
    row("popcnt", "Number of set bits.", "StableHLO: popcnt", || sample::unary(Unary::Popcnt), |_| Ok(Unary::Popcnt.into())),
    row("power", "First to the power of the second.", "StableHLO: power", || sample::binary(Binary::Power), |_| Ok(Binary::Power.into())),
    row("reduce", "Folds dimensions with any body.", "StableHLO: reduce", sample::reduce, read::reduce),
    row("reduce_precision", "Rounds to fewer exponent and mantissa bits.", "StableHLO: reduce_precision", sample::reduce_precision, read::reduce_precision),
    row("reduce_scatter", "A part of the fold of all devices' arrays.", "StableHLO: reduce_scatter", collective::samples::reduce_scatter, collective::parse::reduce_scatter),
    row("reduce_window", "Folds sliding windows with any body.", "StableHLO: reduce_window", window::reduce_window_samples, read::reduce_window),
    row("remainder", "Remainder with the sign of the first.", "StableHLO: remainder", || sample::binary(Binary::Remainder), |_| Ok(Binary::Remainder.into())),
    row("replica_id", "The number of this replica.", "StableHLO: replica_id", collective::samples::replica_id, |_| Ok(ReplicaId.into())),
    row("reshape", "The same elements in another shape.", "StableHLO: reshape", sample::reshape, read::reshape),
    row("reverse", "Dimensions backwards.", "StableHLO: reverse", sample::reverse, read::reverse),
    row("rng_bit_generator", "Random bits as a function of a state.", "StableHLO: rng_bit_generator", sample::rng_bit_generator, read::rng_bit_generator),
    row("round_nearest_afz", "Rounds to nearest, halves away from zero.", "StableHLO: round_nearest_afz", || sample::unary(Unary::RoundNearestAfz), |_| Ok(Unary::RoundNearestAfz.into())),
    row("round_nearest_even", "Rounds to nearest, halves to even.", "StableHLO: round_nearest_even", || sample::unary(Unary::RoundNearestEven), |_| Ok(Unary::RoundNearestEven.into())),
    row("rsqrt", "1/√x.", "StableHLO: rsqrt", || sample::unary(Unary::Rsqrt), |_| Ok(Unary::Rsqrt.into())),
    row("scatter", "Folds updates into positions that are data.", "StableHLO: scatter", scatter::scatter_samples, read::scatter),
    row("select", "One of two elements, by a bool.", "StableHLO: select", sample::select, read::select),
    row("select_and_scatter", "Folds a value into the place that each window selects.", "StableHLO: select_and_scatter", window::select_and_scatter_samples, read::select_and_scatter),
    row("shift_left", "Bits up.", "StableHLO: shift_left", || sample::binary(Binary::ShiftLeft), |_| Ok(Binary::ShiftLeft.into())),
    row("shift_right_arithmetic", "Bits down, keeping the sign.", "StableHLO: shift_right_arithmetic", || sample::binary(Binary::ShiftRightArithmetic), |_| Ok(Binary::ShiftRightArithmetic.into())),
    row("shift_right_logical", "Bits down, filling with zeros.", "StableHLO: shift_right_logical", || sample::binary(Binary::ShiftRightLogical), |_| Ok(Binary::ShiftRightLogical.into())),
    row("sign", "−1, 0 or 1.", "StableHLO: sign", || sample::unary(Unary::Sign), |_| Ok(Unary::Sign.into())),
    row("sine", "sin x, radians.", "StableHLO: sine", || sample::unary(Unary::Sine), |_| Ok(Unary::Sine.into())),
    row("slice", "Every n-th element from start to limit.", "StableHLO: slice", sample::slice, read::slice),
    row("sort", "Sorts arrays together by any comparator.", "StableHLO: sort", sample::sort, read::sort),
    row("sqrt", "√x.", "StableHLO: sqrt", || sample::unary(Unary::Sqrt), |_| Ok(Unary::Sqrt.into())),
    row("subtract", "Difference.", "StableHLO: subtract", || sample::binary(Binary::Subtract), |_| Ok(Binary::Subtract.into())),
    row("tan", "tan x, radians.", "StableHLO: tan", || sample::unary(Unary::Tan), |_| Ok(Unary::Tan.into())),
    row("tanh", "Hyperbolic tangent.", "StableHLO: tanh", || sample::unary(Unary::Tanh), |_| Ok(Unary::Tanh.into())),
    row("transpose", "Dimensions in another order.", "StableHLO: transpose", sample::transpose, read::transpose),
    row("while", "Runs a body while a condition holds.", "StableHLO: while", sample::while_, read::while_),
    row("xor", "Exclusive or.", "StableHLO: xor", || sample::binary(Binary::Xor), |_| Ok(Binary::Xor.into())),
];

/// The entry of a mnemonic.
pub fn entry(name: &str) -> Option<&'static Entry> {
    TABLE.binary_search_by(|e| e.name.cmp(name)).ok().map(|i| &TABLE[i])
}
