//! [`Op`] and the attributes of every operation, by the names of the StableHLO specification: data without rules.
//!
//! What an op does with its attributes (types, values, derivative, text) is its [`OpRule`](super::OpRule), in the op's
//! file below `op/`.

use super::Graph;
use super::elementwise::{Binary, Unary};
use std::sync::Arc;
use systole_base::{DType, Dims, Literal, Shape, TensorType};

/// Calls a macro with the structural ops, by the file of `op/` that holds their rules: variant, mnemonic of StableHLO,
/// and one line for `systole ops`.
macro_rules! structural_ops {
    ($callback:ident) => {
        $callback! {
            constant {
                Constant = "constant", "An array.";
                Iota = "iota", "Coordinates along a dimension.";
            }
            compare {
                Compare = "compare", "A relation between elements.";
                Select = "select", "One of two elements, by a bool.";
                Clamp = "clamp", "min(max(x, low), high).";
            }
            convert {
                Convert = "convert", "Change of element type.";
                BitcastConvert = "bitcast_convert", "The same bits as another type.";
                ReducePrecision = "reduce_precision", "Rounds to fewer exponent and mantissa bits.";
            }
            shape {
                BroadcastInDim = "broadcast_in_dim", "Repeats elements along new dimensions or those of size 1.";
                Reshape = "reshape", "The same elements in another shape.";
                Transpose = "transpose", "Dimensions in another order.";
                Reverse = "reverse", "Dimensions backwards.";
                Concatenate = "concatenate", "Joins arrays along a dimension.";
                Slice = "slice", "Every n-th element from start to limit.";
                Pad = "pad", "A value around and between elements, or elements cut off.";
            }
            dynamic {
                DynamicSlice = "dynamic_slice", "The block at a place known when running.";
                DynamicUpdateSlice = "dynamic_update_slice", "Writes a block at a place known when running.";
            }
            gather { Gather = "gather", "Slices at positions that are data."; }
            scatter { Scatter = "scatter", "Folds updates into positions that are data."; }
            dot { DotGeneral = "dot_general", "Sums of products over pairs of dimensions."; }
            conv { Convolution = "convolution", "Sliding sums of products, any layout, dilated and grouped."; }
            reduce { Reduce = "reduce", "Folds dimensions with any body."; }
            window {
                ReduceWindow = "reduce_window", "Folds sliding windows with any body.";
                SelectAndScatter = "select_and_scatter", "Folds a value into the place that each window selects.";
            }
            rng { RngBitGenerator = "rng_bit_generator", "Random bits as a function of a state."; }
            sort { Sort = "sort", "Sorts arrays together by any comparator."; }
            control {
                While = "while", "Runs a body while a condition holds.";
                Case = "case", "Runs the branch that an index names.";
                OptimizationBarrier = "optimization_barrier", "The same values; no work moves across.";
            }
            collective {
                AllReduce = "all_reduce", "The fold of all devices' arrays.";
                AllGather = "all_gather", "Arrays of all devices, joined.";
                ReduceScatter = "reduce_scatter", "A part of the fold of all devices' arrays.";
                AllToAll = "all_to_all", "Each device's parts to all devices.";
                CollectivePermute = "collective_permute", "An array from another device.";
                PartitionId = "partition_id", "The number of this partition.";
                ReplicaId = "replica_id", "The number of this replica.";
            }
            collective_broadcast { CollectiveBroadcast = "collective_broadcast", "The array of the first device of a group."; }
        }
    };
}
pub(crate) use structural_ops;

macro_rules! op_enum {
    ($($variant:ident),*) => {
        /// Any operation. Its data are the attributes; operands live in the node.
        #[derive(Clone, PartialEq, Eq, Hash, Debug)]
        #[allow(missing_docs)]
        pub enum Op { $($variant($variant)),* }

        impl Op {
            /// The name of every variant.
            pub const VARIANTS: &[&str] = &[$(stringify!($variant)),*];

            /// The name of this variant: its family.
            pub fn variant(&self) -> &'static str {
                match self { $(Op::$variant(_) => stringify!($variant)),* }
            }
        }

        $(impl From<$variant> for Op {
            fn from(op: $variant) -> Op { Op::$variant(op) }
        })*
    };
}

macro_rules! op_variants {
    ($($file:ident { $($variant:ident = $name:literal, $doc:literal;)* })*) => {
        op_enum!(Parameter, Unary, Binary, $($($variant),*),*);

        impl Op {
            /// The StableHLO mnemonic, without the dialect (`add`); ops outside StableHLO carry their dialect (`chlo.erf`).
            // Not inlined: a loop that compares names would become one over all ops, which takes minutes to compile.
            #[inline(never)]
            pub fn name(&self) -> &'static str {
                match self {
                    Op::Parameter(_) => "parameter",
                    Op::Unary(op) => op.name(),
                    Op::Binary(op) => op.name(),
                    $($(Op::$variant(_) => $name),*),*
                }
            }
        }
    };
}

structural_ops!(op_variants);

/// A parameter of the graph. Printed as a function argument, not as an op.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Parameter {
    /// Position among the parameters.
    pub index: usize,
    /// Its type.
    pub ty: TensorType,
}

/// `() → value`: a constant array. Spec: constant.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Constant {
    /// The array.
    pub value: Literal,
}

/// `() → T[…]`: each element is its coordinate along `dim`. Spec: iota.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Iota {
    /// The dimension along which values count up.
    pub dim: usize,
    /// Result type.
    pub ty: TensorType,
}

/// Which relation [`Compare`] tests.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[allow(missing_docs)]
pub enum Direction {
    Eq,
    Ne,
    Ge,
    Gt,
    Le,
    Lt,
}

/// How elements are compared.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum CompareType {
    /// IEEE comparison: every relation with NaN is false but `NE`.
    Float,
    /// −NaN < −∞ < … < −0 < 0 < … < ∞ < NaN.
    TotalOrder,
    /// Signed integers.
    Signed,
    /// Unsigned integers and bool.
    Unsigned,
}

/// `a: T[…], b: T[…] → bool[…]`. Spec: compare.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Compare {
    /// The relation.
    pub direction: Direction,
    /// How elements are compared.
    pub compare_type: CompareType,
}

/// `pred: bool[…] or bool[], on_true: T[…], on_false: T[…] → T[…]`. Spec: select.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Select;

/// `min: T[…] or T[], x: T[…], max: T[…] or T[] → T[…]`: `min(max(x, min), max)`. Spec: clamp.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Clamp;

/// `x: T[…] → U[…]`. Floats round to nearest even; float → integer truncates and saturates. Spec: convert.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Convert {
    /// Element type of the result.
    pub to: DType,
}

/// `x: T[…] → U[…]`: the same bits read as another type of the same width. Spec: bitcast_convert.
///
/// Between widths that differ the specification adds or drops a last dimension; so does this:
/// `u32[2, 3] → u8[2, 3, 4]` and back.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct BitcastConvert {
    /// Element type of the result.
    pub to: DType,
}

/// `x: T[…] → T[…]`: rounds as if stored with fewer exponent and mantissa bits. Spec: reduce_precision.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ReducePrecision {
    /// Bits of the exponent, at least 1.
    pub exponent_bits: u32,
    /// Bits of the mantissa.
    pub mantissa_bits: u32,
}

/// `x: T[…] → T[shape]`: operand dimension `i` becomes result dimension `dims[i]`; size-1 ones repeat.
/// Spec: broadcast_in_dim.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct BroadcastInDim {
    /// For each operand dimension, its place in the result.
    pub dims: Dims,
    /// Result shape.
    pub shape: Shape,
}

/// `x: T[…] → T[shape]` with the same elements in row-major order. Spec: reshape.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Reshape {
    /// Result shape.
    pub shape: Shape,
}

/// `x: T[…] → T[…]`: result dimension `i` is operand dimension `permutation[i]`. Spec: transpose.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Transpose {
    /// For each result dimension, the operand dimension.
    pub permutation: Dims,
}

/// `x: T[…] → T[…]` with the named dimensions running backwards. Spec: reverse.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Reverse {
    /// Dimensions to reverse.
    pub dims: Dims,
}

/// `x₀: T[…], x₁: T[…], … → T[…]` joined along `dim`. Spec: concatenate.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Concatenate {
    /// The dimension that grows.
    pub dim: usize,
}

/// `x: T[…] → T[…]`: elements `start, start + stride, …` below `limit` in each dimension. Spec: slice.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Slice {
    /// First index in each dimension.
    pub start: Dims,
    /// End (not included) in each dimension.
    pub limit: Dims,
    /// Step in each dimension, at least 1.
    pub strides: Dims,
}

/// `x: T[…], value: T[] → T[…]`: `value` around the elements (negative: cut off) and between them. Spec: pad.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Pad {
    /// Elements before the first, for each dimension; may be negative.
    pub low: Vec<i64>,
    /// Elements after the last, for each dimension; may be negative.
    pub high: Vec<i64>,
    /// Elements between neighbours, for each dimension.
    pub interior: Vec<usize>,
}

/// `x: T[…], start₀: I[], … → T[sizes]`; starts are clamped so that the block lies inside. Spec: dynamic_slice.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct DynamicSlice {
    /// Sizes of the block.
    pub sizes: Dims,
}

/// `x: T[…], update: T[…'], start₀: I[], … → T[…]`; starts are clamped likewise. Spec: dynamic_update_slice.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct DynamicUpdateSlice;

/// `x: T[…], indices: I[…] → T[…]`. Spec: gather, whose attribute names these are.
///
/// Each index vector names the start of a block of `slice_sizes`, clamped so that the block lies inside.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
#[allow(missing_docs)]
pub struct Gather {
    pub offset_dims: Dims,
    pub collapsed_slice_dims: Dims,
    pub operand_batching_dims: Dims,
    pub start_indices_batching_dims: Dims,
    pub start_index_map: Dims,
    pub index_vector_dim: usize,
    pub slice_sizes: Dims,
    pub indices_are_sorted: bool,
}

/// `x₀: T₀[…], …, indices: I[…], update₀: T₀[…], … → T₀[…], …`. Spec: scatter, whose attribute names these are.
///
/// Updates are folded in row-major order by the interpreter, in any order by backends. A block that does not lie
/// inside the operand is dropped as a whole, as XLA does; the specification drops its outer elements only.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
#[allow(missing_docs)]
pub struct Scatter {
    pub update_window_dims: Dims,
    pub inserted_window_dims: Dims,
    pub input_batching_dims: Dims,
    pub scatter_indices_batching_dims: Dims,
    pub scatter_dims_to_operand_dims: Dims,
    pub index_vector_dim: usize,
    pub indices_are_sorted: bool,
    pub unique_indices: bool,
    /// `(current₀, …, update₀, …) → (new₀, …)` over scalars.
    pub body: Arc<Graph>,
}

/// `a: T[…], b: T[…] → U[batch…, a's free…, b's free…]`. Spec: dot_general.
///
/// Products are summed in at least f32; the result is rounded to `element_type` once.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct DotGeneral {
    /// Batch dimensions of `a`.
    pub lhs_batch: Dims,
    /// Batch dimensions of `b`, paired with those of `a`.
    pub rhs_batch: Dims,
    /// Dimensions of `a` that are summed over.
    pub lhs_contract: Dims,
    /// Dimensions of `b` that are summed over, paired with those of `a`.
    pub rhs_contract: Dims,
    /// Element type of the result.
    pub element_type: DType,
}

/// Which dimension of input, kernel and output means what.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct ConvDims {
    /// Batch dimension of the input.
    pub input_batch: usize,
    /// Feature (channel) dimension of the input.
    pub input_feature: usize,
    /// Spatial dimensions of the input.
    pub input_spatial: Dims,
    /// Input-feature dimension of the kernel.
    pub kernel_input_feature: usize,
    /// Output-feature dimension of the kernel.
    pub kernel_output_feature: usize,
    /// Spatial dimensions of the kernel.
    pub kernel_spatial: Dims,
    /// Batch dimension of the output.
    pub output_batch: usize,
    /// Feature dimension of the output.
    pub output_feature: usize,
    /// Spatial dimensions of the output.
    pub output_spatial: Dims,
}

/// `x: T[B, …, C], kernel: T[…, C/groups, F] → U[B, …', F]` in the layout that `dims` names. Spec: convolution.
///
/// Floats are summed in f64 by the interpreter and at least f32 by backends, and rounded to `element_type` once.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Convolution {
    /// Step of the window, for each spatial dimension.
    pub strides: Dims,
    /// Zeros before and after each spatial dimension of the input; may be negative.
    pub padding: Vec<[i64; 2]>,
    /// Holes between input elements: 1 is none.
    pub lhs_dilation: Dims,
    /// Holes between kernel elements: 1 is none.
    pub rhs_dilation: Dims,
    /// Whether the kernel runs backwards, for each spatial dimension.
    pub reversal: Vec<bool>,
    /// Layouts.
    pub dims: ConvDims,
    /// Groups of input features.
    pub feature_groups: usize,
    /// Groups of the batch.
    pub batch_groups: usize,
    /// Element type of the result.
    pub element_type: DType,
}

/// `x₀: T₀[…], …, init₀: T₀[], … → T₀[remaining…], …`: folds `dims` with `body`. Spec: reduce.
///
/// The interpreter folds in row-major order, starting from `init`; backends may use another grouping.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Reduce {
    /// Dimensions that are folded away.
    pub dims: Dims,
    /// `(acc₀, …, x₀, …) → (acc₀, …)` over scalars.
    pub body: Arc<Graph>,
}

/// Where a window lies and how it moves, for each dimension of the operand.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Window {
    /// Sizes.
    pub dimensions: Dims,
    /// Steps.
    pub strides: Dims,
    /// Holes between operand elements: 1 is none.
    pub base_dilations: Dims,
    /// Holes between window elements: 1 is none.
    pub window_dilations: Dims,
    /// Initial values before and after; may be negative.
    pub padding: Vec<[i64; 2]>,
}

/// `x₀: T₀[…], …, init₀: T₀[], … → T₀[…'], …`: folds each window with `body`. Spec: reduce_window.
///
/// Each window is folded once from its initial value, over the operand's elements in row-major order; padding and
/// holes hold no elements. (The specification folds `init` in for them too, which is the same for the monoids that
/// it asks for; this is what XLA does for others.)
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct ReduceWindow {
    /// The window.
    pub window: Window,
    /// `(acc₀, …, x₀, …) → (acc₀, …)` over scalars.
    pub body: Arc<Graph>,
}

/// `x: T[…], source: T[…'], init: T[] → T[…]`: in each window picks one element by `select` and folds the source
/// element into its place by `scatter`. Spec: select_and_scatter.
///
/// Windows are scanned in row-major order; one without elements drops its source element.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct SelectAndScatter {
    /// Window sizes.
    pub dimensions: Dims,
    /// Window steps.
    pub strides: Dims,
    /// Padding before and after.
    pub padding: Vec<[i64; 2]>,
    /// `(kept, candidate) → bool`: true keeps.
    pub select: Arc<Graph>,
    /// `(acc, source) → acc`.
    pub scatter: Arc<Graph>,
}

/// The generator. `DEFAULT` of the specification is Philox here.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum RngAlgorithm {
    /// Philox4x32-10; the state is `u64[2]` (key, counter) or `u64[3]` (key, counter's low and high half).
    Philox,
    /// Threefry2x32-20; the state is `u64[2]`: key, counter.
    ThreeFry,
}

/// `state: u64[2 or 3] → (u64[…], T[…])`: the next state and random bits. Spec: rng_bit_generator.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct RngBitGenerator {
    /// The generator.
    pub algorithm: RngAlgorithm,
    /// Type of the bits: unsigned integers. (XLA draws unsigned ones for signed types too, and mislabels them.)
    pub ty: TensorType,
}

/// `x₀: T₀[…], … → T₀[…], …`. Spec: sort.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Sort {
    /// The dimension to sort along.
    pub dim: usize,
    /// Whether equal elements keep their order.
    pub stable: bool,
    /// `(a₀, b₀, a₁, b₁, …) → bool`: whether a comes before b.
    pub comparator: Arc<Graph>,
}

/// `captures…, state₀, … → state₀, …`: runs `body` while `cond`. Spec: while.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct While {
    /// How many leading operands are captures, passed to both bodies and not changed.
    pub captures: usize,
    /// `(captures…, state…) → bool[]`.
    pub cond: Arc<Graph>,
    /// `(captures…, state…) → state…`.
    pub body: Arc<Graph>,
    /// Number of trips when it is known while building; its derivative needs it.
    pub trip_count: Option<usize>,
    /// Whether its derivative keeps, for each trip, what products, folds and inner loops resulted in. Otherwise it
    /// computes the body again from the state.
    pub keeps: bool,
    /// Set by autodiff: the state ends in a trip counter `i32[]` and, for each value named here, an array `[trips, …]`
    /// of what it was in each trip. Numbers below those of the state's own values name these, at the start of the
    /// trip; numbers after them values of the body.
    pub recorded: Option<Dims>,
}

/// `captures…, index: i32[] → results…`: runs the branch that `index` names, the last when it is out of range.
/// Spec: case.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Case {
    /// `(captures…) → results…`, all of one type.
    pub branches: Vec<Arc<Graph>>,
}

/// `x₀, … → x₀, …`: the same values; keeps passes from moving work across it. Spec: optimization_barrier.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct OptimizationBarrier {
    /// Whether gradients stop here.
    pub stop_gradient: bool,
}

/// Who exchanges with whom: the attributes `replica_groups`, `channel_handle` and `use_global_device_ids`.
///
/// Groups are of one size and name devices by number. Programs of replicas and partitions at once are not offered, so a
/// device's number is its replica or its partition, whatever the channel says.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct ReplicaGroups {
    /// Members of each group, in the order in which pieces are joined.
    pub members: Vec<Vec<usize>>,
    /// `handle` of the channel; 0: none.
    pub channel: usize,
    /// Whether numbers count all devices of all replicas.
    pub global: bool,
}

/// `x: T[…] → T[…]`: the fold of all operands of a group, on each of its devices. Spec: all_reduce.
///
/// Floats are folded in f64 in the order of the group and rounded once.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct AllReduce {
    /// Who takes part.
    pub groups: ReplicaGroups,
    /// `(a, b) → a ∘ b` over scalars.
    pub body: Arc<Graph>,
}

/// `x: T[…, n, …] → T[…, n · size, …]`: operands of a group joined along `dim`. Spec: all_gather.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct AllGather {
    /// Who takes part.
    pub groups: ReplicaGroups,
    /// The dimension that grows.
    pub dim: usize,
}

/// `x: T[…, n · size, …] → T[…, n, …]`: the fold of all operands of a group, each device its part along `dim`.
/// Spec: reduce_scatter.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct ReduceScatter {
    /// Who takes part.
    pub groups: ReplicaGroups,
    /// The dimension that is split.
    pub dim: usize,
    /// `(a, b) → a ∘ b` over scalars.
    pub body: Arc<Graph>,
}

/// `x: T[…] → T[…]`: part `k` along `split_dim` goes to member `k` of the group, which joins what it gets along
/// `concat_dim`. Spec: all_to_all.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct AllToAll {
    /// Who takes part.
    pub groups: ReplicaGroups,
    /// The dimension that is split.
    pub split_dim: usize,
    /// The dimension that grows.
    pub concat_dim: usize,
}

/// `x: T[…] → T[…]`: the operand of the device that sends here, zeros where none does. Spec: collective_permute.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct CollectivePermute {
    /// From where to where.
    pub pairs: Vec<[usize; 2]>,
    /// `handle` of the channel; 0: none.
    pub channel: usize,
}

/// `x: T[…] → T[…]`: the operand of the first device of each group, zeros on devices of none. Spec: collective_broadcast.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct CollectiveBroadcast {
    /// Who takes part.
    pub groups: ReplicaGroups,
}

/// `→ ui32[]`: the number of this device among the partitions of its replica. Spec: partition_id.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct PartitionId;

/// `→ ui32[]`: the number of this device's replica. Spec: replica_id.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ReplicaId;
