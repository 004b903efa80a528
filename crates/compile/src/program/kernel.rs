//! Data types of program steps and kernels: type checks, aliasing rules, memory traffic and names of all kernels.
//!
//! A program consists of steps (kernel calls) over slots (buffers). A slot has a size in bytes and a live range, but no
//! type. Types are those of the steps' operands, so that reshapes and bitcasts need no step.

use super::attention;
use super::conv_moments::ConvWithMoments;
use super::int8_product::Int8Product;
use super::map::Map;
use super::nested_kernels::{FusedRows, RowBlockLoop, branch_overwrites};
use super::pooling::{MaxPoolArgmax, Unpool, UnpooledGradient};
use super::product_epilogue::ProductEpilogue;
use super::quantized_gemm::DequantizeStep;
use super::storage::{Location, ResultPlan, SlotId, SlotStorage, SlotView};
use super::strided_map::StridedMap;
use super::top_k::TopK;
use super::type_check::{self, CheckResult};
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use systole_ir::attention::AttentionMatch;
use systole_ir::op::Monoid;
use systole_ir::{Literal, Op, TensorType};

/// A compiled program: kernel calls in order, and the memory location of every array.
#[derive(Clone, Debug, Default)]
pub struct ProgramSchedule {
    /// Name of the graph.
    pub name: String,
    /// Kernel calls in order.
    pub steps: Vec<Step>,
    /// Storage of every materialized array, by [`SlotId`].
    pub slots: Vec<SlotStorage>,
    /// Arrays known at compile time.
    pub constants: Vec<Literal>,
    /// Types of the parameters.
    pub params: Vec<TensorType>,
    /// Type and slot of each result.
    pub results: Vec<ResultPlan>,
    /// Size in bytes of the arena, which holds all intermediate arrays.
    pub arena_bytes: usize,
    /// Slots that alias a part of another slot.
    pub views: Vec<SlotView>,
}

impl ProgramSchedule {
    /// Returns the first step that writes to the memory of result `k`, and the slot that it writes: the result, or an
    /// array over which later steps write the result. `None` if the result is stored elsewhere.
    pub fn first_write(&self, k: usize) -> Option<(usize, SlotId)> {
        let own = self.slots.iter().enumerate().filter(|(_, x)| x.place == Location::Result(k));
        own.map(|(slot, x)| (x.first, slot)).min()
    }
}

/// One step of a program: a kernel call.
#[derive(Clone, Debug)]
pub struct Step {
    /// Kernel of the step.
    pub kernel: Kernel,
    /// Slots that it reads.
    pub inputs: Vec<SlotId>,
    /// Types in which it reads them.
    pub input_types: Vec<TensorType>,
    /// Slots that it writes. They may share memory with an input if that is legal (see [`Step::overwrites`]).
    pub outputs: Vec<SlotId>,
    /// Types of the results.
    pub output_types: Vec<TensorType>,
    /// Layer of the step, for profiles and messages.
    pub scope: LayerScope,
    /// Arithmetic operations; a multiply-add counts two.
    pub flops: f64,
}

/// Layer path of a step, empty if it belongs to none. A step that covers several layers belongs to that of its result.
#[derive(Clone, Debug, Default)]
pub struct LayerScope {
    /// The path.
    pub layer: String,
    /// Whether the step is part of the layer's derivative.
    pub is_derivative: bool,
}

impl Deref for LayerScope {
    type Target = str;
    fn deref(&self) -> &str {
        &self.layer
    }
}

impl fmt::Display for LayerScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.layer)
    }
}

/// Kernels of fused patterns: without nested programs or maps; they read and write their arrays whole.
macro_rules! fused {
    () => {
        Kernel::Attention(_)
            | Kernel::Pool(_)
            | Kernel::Unpool(_)
            | Kernel::UnpooledGradient(_)
            | Kernel::Moments(_)
            | Kernel::TopK(_)
            | Kernel::Packed(_)
            | Kernel::Int8Product(_)
            | Kernel::ConvolutionEpilogue(_)
    };
}

/// Kernel description of a program step: which computation it runs.
#[derive(Clone, Debug)]
#[allow(clippy::large_enum_variant)] // There are few steps, and arrays of them are not moved.
pub enum Kernel {
    /// A fused element-wise loop with one output for each store.
    Map(Map),
    /// A fused element-wise loop that stores into parts of arrays.
    StridedMap(StridedMap),
    /// Reductions of the values that `map` computes. Inputs are those of `map`, then one initial value for each output.
    Reduce {
        /// Computes the elements to reduce: one store for each output, all of one type.
        map: Map,
        /// For each dimension of `map`'s index space, whether it is reduced.
        folded: Vec<bool>,
        /// The reduction.
        monoid: Monoid,
    },
    /// A GEMM with a fused element-wise epilogue.
    ProductEpilogue(ProductEpilogue),
    /// Maps and reductions along rows, fused row by row.
    Rows(FusedRows),
    /// A single op. With `bias`, the last input is a vector that is added along the result's last dimension.
    Op {
        /// The op.
        op: Op,
        /// Whether a bias follows the op's operands.
        bias: bool,
    },
    /// `op(inputs…) + addend`, where the addend is the last input and has the result's type (`beta = 1` in BLAS). It is
    /// updated in place if that is legal.
    Accumulate {
        /// The op: a GEMM or a convolution.
        op: Op,
    },
    /// A part of the graph that runs one row block after the other.
    Blocks(Box<RowBlockLoop>),
    /// Multi-head attention, or its gradients. The last input, the index of the `case` that it was matched in, is
    /// unused.
    Attention(AttentionMatch),
    /// Max pooling, with the convolution, relu and dense layer that are fused into it.
    Pool(MaxPoolArgmax),
    /// The gradient of max or sum pooling.
    Unpool(Unpool),
    /// Kernel and bias gradients of a convolution, from the gradient of its pooled result.
    UnpooledGradient(UnpooledGradient),
    /// A convolution with the batch-normalization statistics of its result.
    Moments(ConvWithMoments),
    /// The first elements of each sorted row.
    TopK(TopK),
    /// Dequantization of a weight matrix, or a GEMM with it.
    Packed(DequantizeStep),
    /// A product of int8 operands with int32 sums, with a fused element-wise epilogue.
    Int8Product(Int8Product),
    /// A convolution with a fused element-wise epilogue, which runs in place of its result.
    ConvolutionEpilogue(ProductEpilogue),
    /// `(captures…, initial states…) → states…`: runs `body` while `cond`.
    While {
        /// Number of leading inputs that are loop-invariant.
        captures: usize,
        /// For each state, the input that holds its initial value. `None`: the loop overwrites it before it is read,
        /// and it has no input.
        starts: Vec<Option<usize>>,
        /// `(captures…, states…) → bool[]`.
        cond: Arc<ProgramSchedule>,
        /// `(captures…, states…) → states…`, each state updated in place if that is legal.
        body: Arc<ProgramSchedule>,
    },
    /// `(captures…, index: i32[]) → …`: runs one branch.
    Case {
        /// The branches, each with type `(captures…) → …`.
        branches: Vec<Arc<ProgramSchedule>>,
    },
}

impl Kernel {
    /// Short kernel name for listings and profiles.
    pub fn name(&self) -> String {
        match self {
            Kernel::Map(m) | Kernel::StridedMap(StridedMap { map: m, .. }) => match &m.instrs[..] {
                [] => "copy".into(),
                [one] => one.op.name().into(),
                many => format!("map[{}]", many.len()),
            },
            Kernel::Reduce { monoid, map, .. } if map.instrs.is_empty() => {
                format!("reduce_{}", monoid.op().name())
            }
            Kernel::Reduce { monoid, map, .. } => {
                format!("map[{}]+reduce_{}", map.instrs.len(), monoid.op().name())
            }
            Kernel::ProductEpilogue(h) | Kernel::ConvolutionEpilogue(h) => h.name(),
            Kernel::Rows(r) => r.name(),
            Kernel::Op { op, bias } => format!("{}{}", op.name(), if *bias { "+bias" } else { "" }),
            Kernel::Accumulate { op } => format!("{}+=", op.name()),
            Kernel::Blocks(b) => b.name(),
            Kernel::Attention(a) if a.gradient.is_some() => "attention gradient".into(),
            Kernel::Attention(_) => "attention".into(),
            Kernel::Pool(p) => p.name(),
            Kernel::Unpool(u) => u.name(),
            Kernel::UnpooledGradient(g) => g.name(),
            Kernel::Moments(m) => m.name(),
            Kernel::TopK(_) => "top_k".into(),
            Kernel::Packed(p) => p.name(),
            Kernel::Int8Product(p) => p.name(),
            Kernel::While { .. } => "while".into(),
            Kernel::Case { .. } => "case".into(),
        }
    }

    /// Programs inside the kernel: row block, loop condition and body, or branches.
    pub fn bodies(&self) -> Vec<&Arc<ProgramSchedule>> {
        match self {
            Kernel::Blocks(b) => std::iter::once(&b.body).chain(&b.rest).collect(),
            Kernel::While { cond, body, .. } => vec![cond, body],
            Kernel::Case { branches } => branches.iter().collect(),
            Kernel::Map(_)
            | Kernel::StridedMap(_)
            | Kernel::Reduce { .. }
            | Kernel::ProductEpilogue(_)
            | Kernel::Rows(_)
            | Kernel::Op { .. }
            | Kernel::Accumulate { .. }
            | fused!() => Vec::new(),
        }
    }

    /// The element-wise program of the kernel, if it has exactly one.
    pub fn map(&self) -> Option<&Map> {
        match self {
            Kernel::Map(map) | Kernel::Reduce { map, .. } => Some(map),
            Kernel::StridedMap(p) => Some(&p.map),
            Kernel::ProductEpilogue(h) => Some(&h.map),
            Kernel::Rows(_)
            | Kernel::Op { .. }
            | Kernel::Accumulate { .. }
            | Kernel::Blocks(_)
            | Kernel::While { .. }
            | Kernel::Case { .. }
            | fused!() => None,
        }
    }
}

impl Step {
    /// Checks the types of operands and results, without the bodies.
    pub(super) fn check(&self) -> CheckResult {
        let (ins, outs) = (&self.input_types[..], &self.output_types[..]);
        match &self.kernel {
            Kernel::Map(m) => type_check::map(m, ins).and_then(|()| type_check::stores(m, outs)),
            Kernel::StridedMap(p) => p.check(ins, outs),
            Kernel::Reduce { map, folded, .. } => type_check::reduce(map, folded, ins, outs),
            Kernel::ProductEpilogue(h) | Kernel::ConvolutionEpilogue(h) => h.check(ins, outs),
            Kernel::Rows(r) => r.check(ins, outs),
            Kernel::Op { op, bias } => type_check::op_with_bias(op, *bias, ins, outs),
            Kernel::Accumulate { op } => {
                let (addend, operands) = ins.split_last().ok_or("the addend is missing")?;
                type_check::same("addend", addend, outs.first().ok_or("the result is missing")?)?;
                type_check::infers(op, operands, outs)
            }
            Kernel::Attention(a) => attention::check(a, ins, outs),
            Kernel::Pool(p) => p.check(ins, outs),
            Kernel::Unpool(u) => u.check(ins, outs),
            Kernel::UnpooledGradient(g) => g.check(ins, outs),
            Kernel::Moments(m) => m.check(ins, outs),
            Kernel::TopK(t) => t.check(ins, outs),
            Kernel::Packed(p) => p.check(ins, outs),
            Kernel::Int8Product(p) => p.check(ins, outs),
            // The verifier checks these with their bodies.
            Kernel::Blocks(_) | Kernel::While { .. } | Kernel::Case { .. } => Ok(()),
        }
    }

    /// The map whose stores are the step's results; the index of the step's input that is the map's input 0; and for a
    /// GEMM epilogue the type of the GEMM's result, which is the map's last input.
    pub fn epilogue(&self) -> Option<(&Map, usize, Option<&TensorType>)> {
        match &self.kernel {
            Kernel::Map(map) => Some((map, 0, None)),
            Kernel::ProductEpilogue(h) => Some((&h.map, h.operands(), Some(&h.product))),
            Kernel::StridedMap(_)
            | Kernel::Reduce { .. }
            | Kernel::Rows(_)
            | Kernel::Op { .. }
            | Kernel::Accumulate { .. }
            | Kernel::Blocks(_)
            | Kernel::While { .. }
            | Kernel::Case { .. }
            | fused!() => None,
        }
    }

    /// Whether output `o` may alias input `i`: each element is read before it is overwritten, by the same task of a
    /// parallel kernel.
    pub fn overwrites(&self, i: usize, o: usize) -> bool {
        let (from, to) = (&self.input_types[i], &self.output_types[o]);
        let same_size = from.bytes() == to.bytes() && from.elements() == to.elements();
        match &self.kernel {
            Kernel::Map(m) => same_size && m.reads_in_place(i),
            Kernel::StridedMap(p) => same_size && p.overwrites(i, o),
            Kernel::ProductEpilogue(h) => same_size && h.reads_in_place(i),
            Kernel::Rows(r) => same_size && r.overwrites(i, o, self.inputs.len()),
            // These kernels compare the addresses of operand and result, and copy the operand only if they differ.
            Kernel::Op { op: Op::DynamicUpdateSlice(_) | Op::Scatter(_), .. } => {
                (i, o) == (0, 0) && same_size
            }
            Kernel::Blocks(b) => same_size && b.overwrites(i, o),
            // A state may be updated in the memory of its initial value.
            Kernel::While { starts, .. } => starts[o] == Some(i),
            // The addend has the type of the result and is read element by element.
            Kernel::Accumulate { .. } => i + 1 == self.inputs.len(),
            // These read an operand again after they have written a part of a result.
            Kernel::Op { .. } | Kernel::Reduce { .. } | fused!() => false,
            // The last input is the index of the branch.
            Kernel::Case { branches } => {
                same_size && i + 1 < self.inputs.len() && branches.iter().all(|s| branch_overwrites(s, i, o))
            }
        }
    }

    /// Minimum bytes that the step reads and writes. Only the accessed part of an array counts.
    pub fn bytes_moved(&self) -> f64 {
        let sum = |types: &[TensorType]| types.iter().map(|t| t.bytes() as f64).sum::<f64>();
        let (read, written) = (sum(&self.input_types), sum(&self.output_types));
        match &self.kernel {
            Kernel::Op { op: Op::Slice(_) | Op::DynamicSlice(_), .. } => 2.0 * written,
            Kernel::Op { op: Op::Gather(_), .. } => 2.0 * written + sum(&self.input_types[1..]),
            Kernel::Op { op: Op::DynamicUpdateSlice(_), .. } => 2.0 * sum(&self.input_types[1..]),
            // A view that it stores to is also an input, but only for ordering: it is not read.
            Kernel::StridedMap(_) => {
                let both =
                    self.inputs.iter().zip(&self.input_types).filter(|(x, _)| self.outputs.contains(x));
                read + written - both.map(|(_, t)| t.bytes() as f64).sum::<f64>()
            }
            // These read every operand and write every result whole.
            Kernel::Op { .. }
            | Kernel::Map(_)
            | Kernel::Reduce { .. }
            | Kernel::ProductEpilogue(_)
            | Kernel::Rows(_)
            | Kernel::Accumulate { .. }
            | fused!() => read + written,
            // Bodies may read and write their arrays several times; this is the least.
            Kernel::Blocks(_) | Kernel::While { .. } | Kernel::Case { .. } => read + written,
        }
    }

    /// Whether the kernel is a GEMM or convolution of the first two operands.
    pub fn is_product(&self) -> bool {
        match &self.kernel {
            Kernel::Op { op, .. } => matches!(op, Op::DotGeneral(_) | Op::Convolution(_)),
            Kernel::Packed(p) => p.product.is_some(),
            kernel => {
                matches!(
                    kernel,
                    Kernel::Moments(_)
                        | Kernel::Pool(_)
                        | Kernel::ProductEpilogue(_)
                        | Kernel::ConvolutionEpilogue(_)
                        | Kernel::Int8Product(_)
                )
            }
        }
    }

    /// Index of the only input that reads a slot; `None` if several do, possibly with different types.
    pub fn sole_input(&self, slot: SlotId) -> Option<usize> {
        let mut found = self.inputs.iter().enumerate().filter(|(_, s)| **s == slot).map(|(i, _)| i);
        let first = found.next()?;
        found.next().is_none().then_some(first)
    }

    /// Whether output slot `to` may alias input slot `from`.
    pub fn may_write_over(&self, from: SlotId, to: SlotId) -> bool {
        let output = self.outputs.iter().position(|&x| x == to);
        matches!((self.sole_input(from), output), (Some(i), Some(o)) if self.overwrites(i, o))
    }
}

/// Slot and shape `[K, N]` of a GEMM's right operand, if it is a matrix that the step reads once: the backend may store
/// it as packed panels.
pub fn right_operand(step: &Step) -> Option<(SlotId, [usize; 2])> {
    let op = match &step.kernel {
        Kernel::Op { op, .. } => op,
        Kernel::ProductEpilogue(h) => &h.op,
        // No accumulating kernel supports a packed operand.
        Kernel::Accumulate { .. } => return None,
        // Not a GEMM, or a kernel with a packed layout of its own.
        Kernel::Map(_)
        | Kernel::StridedMap(_)
        | Kernel::Reduce { .. }
        | Kernel::Rows(_)
        | Kernel::Blocks(_)
        | Kernel::While { .. }
        | Kernel::Case { .. }
        | fused!() => return None,
    };
    let Op::DotGeneral(d) = op else { return None };
    let b = &step.input_types[1];
    let fits = b.rank() == 2 && d.rhs_contract[..] == [0] && d.rhs_batch.is_empty();
    let once = step.inputs.iter().filter(|&&x| x == step.inputs[1]).count() == 1;
    (fits && once).then(|| (step.inputs[1], [b.shape[0], b.shape[1]]))
}
