//! Definitions of all operations ([`Op`]) with their attributes, named as in the StableHLO specification. Data only.
//!
//! The rules of an op (types, evaluation, derivative, text) are its [`OpRule`](super::OpRule), in the op's file in `op/`.

use super::Graph;
use super::elementwise::{Binary, Unary};
use std::sync::Arc;
use systole_base::{DType, Dims, Literal, Shape, TensorType};

/// Calls a macro with all ops that are not element-wise, grouped by their file in `op/`: variant, StableHLO mnemonic,
/// and one line for `systole ops`.
macro_rules! structural_ops {
    ($callback:ident) => {
        $callback! {
            constant {
                Constant = "constant", "Constant array.";
                Iota = "iota", "Index of each element along a dimension.";
            }
            compare {
                Compare = "compare", "Element-wise comparison.";
                Select = "select", "Selects between two elements by a predicate.";
                Clamp = "clamp", "min(max(x, low), high).";
            }
            convert {
                Convert = "convert", "Converts the element type.";
                BitcastConvert = "bitcast_convert", "Reinterprets the bits as another type.";
                ReducePrecision = "reduce_precision", "Rounds to fewer exponent and mantissa bits.";
            }
            shape {
                BroadcastInDim = "broadcast_in_dim", "Repeats elements along new dimensions or dimensions of size 1.";
                Reshape = "reshape", "Same elements in another shape.";
                Transpose = "transpose", "Permutes dimensions.";
                Reverse = "reverse", "Reverses the element order along dimensions.";
                Concatenate = "concatenate", "Joins arrays along a dimension.";
                Slice = "slice", "Extracts every n-th element from start to limit.";
                Pad = "pad", "Pads around and between elements; negative padding crops.";
            }
            dynamic {
                DynamicSlice = "dynamic_slice", "Extracts a block at a start index given at run time.";
                DynamicUpdateSlice = "dynamic_update_slice", "Overwrites a block at a start index given at run time.";
            }
            gather { Gather = "gather", "Gathers slices at an array of indices."; }
            scatter { Scatter = "scatter", "Combines updates into an operand at an array of indices."; }
            dot { DotGeneral = "dot_general", "Batched matrix product over any dimensions."; }
            conv { Convolution = "convolution", "Convolution in any layout, dilated and grouped."; }
            reduce { Reduce = "reduce", "Reduces dimensions with any body."; }
            window {
                ReduceWindow = "reduce_window", "Reduces sliding windows with any body (pooling).";
                SelectAndScatter = "select_and_scatter", "Scatters values to the element selected in each window (gradient of max pooling).";
            }
            rng { RngBitGenerator = "rng_bit_generator", "Random bits from an explicit generator state."; }
            sort { Sort = "sort", "Sorts arrays together with any comparator."; }
            control {
                While = "while", "Runs a body while a condition holds.";
                Case = "case", "Runs the branch selected by an index.";
                OptimizationBarrier = "optimization_barrier", "Identity that blocks code motion.";
            }
            collective {
                AllReduce = "all_reduce", "Reduction over all devices, result on each.";
                AllGather = "all_gather", "Concatenation of all devices' arrays.";
                ReduceScatter = "reduce_scatter", "Reduction over all devices, one shard of the result on each.";
                AllToAll = "all_to_all", "Sends a shard of each device's array to every device.";
                CollectivePermute = "collective_permute", "Sends arrays between pairs of devices.";
                PartitionId = "partition_id", "Index of this partition.";
                ReplicaId = "replica_id", "Index of this replica.";
            }
            collective_broadcast { CollectiveBroadcast = "collective_broadcast", "Sends the array of a group's first device to the group."; }
            custom_call { CustomCall = "custom_call", "Calls a function of the host program, such as a Python callback."; }
        }
    };
}
pub(crate) use structural_ops;

macro_rules! op_enum {
    ($($variant:ident),*) => {
        /// Any operation with its attributes; the operands are stored in the node.
        #[derive(Clone, PartialEq, Eq, Hash, Debug)]
        #[allow(missing_docs)]
        pub enum Op { $($variant($variant)),* }

        impl Op {
            /// Names of all variants of [`Op`].
            pub const VARIANTS: &[&str] = &[$(stringify!($variant)),*];

            /// Name of the op's enum variant, such as `Unary` or `Reshape`.
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
            /// StableHLO mnemonic without the dialect (`add`); ops of other dialects include it (`chlo.erf`).
            // Not inlined: inlining this into a loop over all ops makes compilation take minutes.
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

/// Parameter of the graph. Printed as a function argument, not as an op.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Parameter {
    /// Index of the parameter.
    pub index: usize,
    /// Type of the parameter.
    pub ty: TensorType,
}

/// `() → value`: a constant array. Spec: constant.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Constant {
    /// The array.
    pub value: Literal,
}

/// `() → T[…]`: each element is its index along `dim`. Spec: iota.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Iota {
    /// Dimension along which values increase.
    pub dim: usize,
    /// Result type.
    pub ty: TensorType,
}

/// Comparison operator of [`Compare`]: EQ, NE, GE, GT, LE or LT.
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

/// Order in which elements are compared: float, total order, signed or unsigned.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum CompareType {
    /// IEEE comparison: every comparison with NaN is false except `NE`.
    Float,
    /// Total order: −NaN < −∞ < … < −0 < 0 < … < ∞ < NaN.
    TotalOrder,
    /// Signed integers.
    Signed,
    /// Unsigned integers and bool.
    Unsigned,
}

/// Op compare: `a: T[…], b: T[…] → bool[…]`. Spec: compare.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Compare {
    /// Comparison operator.
    pub direction: Direction,
    /// Order in which elements are compared.
    pub compare_type: CompareType,
}

/// `pred: bool[…] or bool[], on_true: T[…], on_false: T[…] → T[…]`. Spec: select.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Select;

/// `min: T[…] or T[], x: T[…], max: T[…] or T[] → T[…]`: `min(max(x, min), max)`. Spec: clamp.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Clamp;

/// Element type conversion: `x: T[…] → U[…]`. Floats round to nearest even; float → integer truncates and saturates. Spec: convert.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Convert {
    /// Element type of the result.
    pub to: DType,
}

/// `x: T[…] → U[…]`: the same bits read as another type. Spec: bitcast_convert.
///
/// If the widths differ, the last dimension is added or dropped: `u32[2, 3] → u8[2, 3, 4]` and back.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct BitcastConvert {
    /// Element type of the result.
    pub to: DType,
}

/// `x: T[…] → T[…]`: rounds as if stored with fewer exponent and mantissa bits. Spec: reduce_precision.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ReducePrecision {
    /// Exponent bits, at least 1.
    pub exponent_bits: u32,
    /// Mantissa bits.
    pub mantissa_bits: u32,
}

/// `x: T[…] → T[shape]`: operand dimension `i` becomes result dimension `dims[i]`; dimensions of size 1 are repeated.
/// Spec: broadcast_in_dim.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct BroadcastInDim {
    /// Result dimension of each operand dimension.
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
    /// Operand dimension of each result dimension.
    pub permutation: Dims,
}

/// `x: T[…] → T[…]`: reverses the element order along `dims`. Spec: reverse.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Reverse {
    /// Dimensions to reverse.
    pub dims: Dims,
}

/// `x₀: T[…], x₁: T[…], … → T[…]` joined along `dim`. Spec: concatenate.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Concatenate {
    /// Dimension along which operands are joined.
    pub dim: usize,
}

/// `x: T[…] → T[…]`: elements `start, start + stride, …` below `limit` in each dimension. Spec: slice.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Slice {
    /// First index in each dimension.
    pub start: Dims,
    /// End index (exclusive) in each dimension.
    pub limit: Dims,
    /// Step in each dimension, at least 1.
    pub strides: Dims,
}

/// `x: T[…], value: T[] → T[…]`: inserts `value` around the elements (negative: crops) and between them. Spec: pad.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Pad {
    /// Padding before the first element of each dimension; may be negative.
    pub low: Vec<i64>,
    /// Padding after the last element of each dimension; may be negative.
    pub high: Vec<i64>,
    /// Padding between adjacent elements of each dimension.
    pub interior: Vec<usize>,
}

/// `x: T[…], start₀: I[], … → T[sizes]`; start indices are clamped to keep the block in bounds. Spec: dynamic_slice.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct DynamicSlice {
    /// Sizes of the block.
    pub sizes: Dims,
}

/// `x: T[…], update: T[…'], start₀: I[], … → T[…]`; start indices are clamped to keep the block in bounds. Spec:
/// dynamic_update_slice.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct DynamicUpdateSlice;

/// Op gather: `x: T[…], indices: I[…] → T[…]`. Spec: gather, with the same attribute names.
///
/// Each index vector is the start of a block of `slice_sizes`, clamped to keep the block in bounds.
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

/// Op scatter: `x₀: T₀[…], …, indices: I[…], update₀: T₀[…], … → T₀[…], …`. Spec: scatter, with the same attribute names.
///
/// The interpreter applies updates in row-major order, backends in any order. A block that is not entirely in bounds is dropped, as
/// in XLA; the specification drops only its out-of-bounds elements.
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

/// Matrix product: `a: T[…], b: T[…] → U[batch…, a's free…, b's free…]`. Spec: dot_general.
///
/// Products are summed in at least f32; the result is rounded to `element_type` once.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct DotGeneral {
    /// Batch dimensions of `a`.
    pub lhs_batch: Dims,
    /// Batch dimensions of `b`, paired with `lhs_batch`.
    pub rhs_batch: Dims,
    /// Contracting dimensions of `a`.
    pub lhs_contract: Dims,
    /// Contracting dimensions of `b`, paired with `lhs_contract`.
    pub rhs_contract: Dims,
    /// Element type of the result.
    pub element_type: DType,
}

/// Layouts of a convolution: the role of each dimension of input, kernel and output.
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

/// `x: T[B, …, C], kernel: T[…, C/groups, F] → U[B, …', F]` in the layout given by `dims`. Spec: convolution.
///
/// The interpreter accumulates floats in f64, backends in at least f32; the sum is rounded to `element_type` once.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Convolution {
    /// Window stride of each spatial dimension.
    pub strides: Dims,
    /// Zero padding before and after each spatial dimension of the input; may be negative.
    pub padding: Vec<[i64; 2]>,
    /// Input dilation of each spatial dimension: 1 is none.
    pub lhs_dilation: Dims,
    /// Kernel dilation of each spatial dimension: 1 is none.
    pub rhs_dilation: Dims,
    /// Whether the kernel is flipped along each spatial dimension.
    pub reversal: Vec<bool>,
    /// Layouts.
    pub dims: ConvDims,
    /// Number of feature groups.
    pub feature_groups: usize,
    /// Number of batch groups.
    pub batch_groups: usize,
    /// Element type of the result.
    pub element_type: DType,
}

/// `x₀: T₀[…], …, init₀: T₀[], … → T₀[remaining…], …`: reduces `dims` with `body`. Spec: reduce.
///
/// The interpreter reduces in row-major order, starting from `init`; backends may group differently.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Reduce {
    /// Reduced dimensions.
    pub dims: Dims,
    /// `(acc₀, …, x₀, …) → (acc₀, …)` over scalars.
    pub body: Arc<Graph>,
}

/// Sliding window, with one entry for each dimension of the operand.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Window {
    /// Window sizes.
    pub dimensions: Dims,
    /// Window strides.
    pub strides: Dims,
    /// Operand dilation: 1 is none.
    pub base_dilations: Dims,
    /// Window dilation: 1 is none.
    pub window_dilations: Dims,
    /// Padding before and after; may be negative.
    pub padding: Vec<[i64; 2]>,
}

/// `x₀: T₀[…], …, init₀: T₀[], … → T₀[…'], …`: reduces each window with `body`. Spec: reduce_window.
///
/// Each window starts from its initial value and reduces the operand's elements in row-major order; padding and holes
/// are skipped. (The specification includes `init` for them too. Both agree for the monoids that it requires; for other
/// bodies this matches XLA.)
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct ReduceWindow {
    /// Sliding window.
    pub window: Window,
    /// `(acc₀, …, x₀, …) → (acc₀, …)` over scalars.
    pub body: Arc<Graph>,
}

/// `x: T[…], source: T[…'], init: T[] → T[…]`: selects one element of each window with `select` and combines the source
/// element into its position with `scatter`. Spec: select_and_scatter.
///
/// Windows are scanned in row-major order; a window without elements drops its source element.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct SelectAndScatter {
    /// Window sizes.
    pub dimensions: Dims,
    /// Window strides.
    pub strides: Dims,
    /// Padding before and after.
    pub padding: Vec<[i64; 2]>,
    /// `(kept, candidate) → bool`: true keeps the first.
    pub select: Arc<Graph>,
    /// `(acc, source) → acc`.
    pub scatter: Arc<Graph>,
}

/// Random number generator. The specification's `DEFAULT` is Philox here.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum RngAlgorithm {
    /// Philox4x32-10; the state is `u64[2]` (key, counter) or `u64[3]` (key, low and high half of the counter).
    Philox,
    /// Threefry2x32-20; the state is `u64[2]`: key, counter.
    ThreeFry,
}

/// `state: u64[2 or 3] → (u64[…], T[…])`: next state and random bits. Spec: rng_bit_generator.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct RngBitGenerator {
    /// Generator algorithm.
    pub algorithm: RngAlgorithm,
    /// Type of the random bits: unsigned integers. (XLA also accepts signed types, but returns unsigned bits for them.)
    pub ty: TensorType,
}

/// `x₀: T₀[…], … → T₀[…], …`: sorts all operands together along `dim`. Spec: sort.
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
    /// Number of leading operands that are captures: passed to both bodies unchanged.
    pub captures: usize,
    /// `(captures…, state…) → bool[]`.
    pub cond: Arc<Graph>,
    /// `(captures…, state…) → state…`.
    pub body: Arc<Graph>,
    /// Number of iterations, if known at build time; required for the derivative.
    pub trip_count: Option<usize>,
    /// Whether the derivative stores the results of products, reductions and inner loops of each iteration. Otherwise
    /// it recomputes the body from the state.
    pub keeps: bool,
    /// Set by autodiff: values recorded in each iteration. The state then ends with an iteration counter `i32[]` and,
    /// for each recorded value, a stacked array `[iterations, …]`. Indices below the number of states refer to states
    /// at the start of the iteration; higher ones refer to values of the body.
    pub recorded: Option<Dims>,
}

/// `captures…, index: i32[] → results…`: runs branch `index`, or the last branch if it is out of range. Spec: case.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Case {
    /// `(captures…) → results…`, all with the same types.
    pub branches: Vec<Arc<Graph>>,
}

/// `x₀, … → x₀, …`: identity that keeps passes from moving work across it. Spec: optimization_barrier.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct OptimizationBarrier {
    /// Whether gradients stop here (`stop_gradient`).
    pub stop_gradient: bool,
}

/// Device groups of a collective: the attributes `replica_groups`, `channel_handle` and `use_global_device_ids`.
///
/// All groups have the same size and list device numbers. Programs with both replicas and partitions are not supported,
/// so a device's number is its replica or its partition, whatever the channel says.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct ReplicaGroups {
    /// Members of each group, in the order in which shards are joined.
    pub members: Vec<Vec<usize>>,
    /// `handle` of the channel; 0 is none.
    pub channel: usize,
    /// Whether device numbers are global over all replicas.
    pub global: bool,
}

/// `x: T[…] → T[…]`: reduces the operands of a group; each device gets the result. Spec: all_reduce.
///
/// Floats are accumulated in f64 in group order and rounded once.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct AllReduce {
    /// Device groups.
    pub groups: ReplicaGroups,
    /// `(a, b) → a ∘ b` over scalars.
    pub body: Arc<Graph>,
}

/// `x: T[…, n, …] → T[…, n · size, …]`: concatenates the operands of a group along `dim`. Spec: all_gather.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct AllGather {
    /// Device groups.
    pub groups: ReplicaGroups,
    /// Dimension along which operands are joined.
    pub dim: usize,
}

/// `x: T[…, n · size, …] → T[…, n, …]`: reduces the operands of a group; each device gets one shard along `dim`. Spec:
/// reduce_scatter.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct ReduceScatter {
    /// Device groups.
    pub groups: ReplicaGroups,
    /// Dimension that is split.
    pub dim: usize,
    /// `(a, b) → a ∘ b` over scalars.
    pub body: Arc<Graph>,
}

/// `x: T[…] → T[…]`: sends shard `k` along `split_dim` to member `k` of the group, which concatenates what it receives
/// along `concat_dim`. Spec: all_to_all.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct AllToAll {
    /// Device groups.
    pub groups: ReplicaGroups,
    /// Dimension that is split.
    pub split_dim: usize,
    /// Dimension along which received shards are joined.
    pub concat_dim: usize,
}

/// `x: T[…] → T[…]`: sends arrays between pairs of devices; a device that receives nothing gets zeros. Spec: collective_permute.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct CollectivePermute {
    /// Pairs of (source, target) devices.
    pub pairs: Vec<[usize; 2]>,
    /// `handle` of the channel; 0 is none.
    pub channel: usize,
}

/// `x: T[…] → T[…]`: sends the operand of each group's first device to the group; devices in no group get zeros. Spec:
/// collective_broadcast.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct CollectiveBroadcast {
    /// Device groups.
    pub groups: ReplicaGroups,
}

/// `→ ui32[]`: index of this partition in its replica. Spec: partition_id.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct PartitionId;

/// `→ ui32[]`: index of this replica. Spec: replica_id.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ReplicaId;

/// `x₀, …, order: i32[] → y₀, …, order: i32[]`: calls the host function registered as `target`. Spec: custom_call.
///
/// Only calls with side effects have the order token, the last operand and result: each takes the token of the previous one.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct CustomCall {
    /// `call_target_name`: the name of the function.
    pub target: String,
    /// `backend_config`, which the function receives.
    pub config: String,
    /// Whether the call has side effects.
    pub has_side_effect: bool,
    /// Types of the function's results.
    pub results: Vec<TensorType>,
}
