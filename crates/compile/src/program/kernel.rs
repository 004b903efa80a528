//! The compiled program as data: steps over storage slots, and what each kernel computes, overwrites and is called.
//!
//! A slot is a run of bytes with a lifetime; types ride on the steps, so that reshapes cost nothing.

use super::attention;
use super::check::{self, Checked};
use super::map::Map;
use super::moments::Moments;
use super::nested::{Blocks, Rows};
use super::pooling::{Pool, Unpool, UnpooledGradient};
use super::product_epilogue::ProductEpilogue;
use super::storage::{ResultPlan, Slot, Storage, View};
use super::strided_map::StridedMap;
use systole_ir::attention::AttentionMatch;
use systole_ir::op::Monoid;
use systole_ir::{Literal, Op, TensorType};

/// A program: what to compute, in order, and where every array lies.
#[derive(Clone, Debug, Default)]
pub struct Schedule {
    /// Name of the graph.
    pub name: String,
    /// Kernels in order.
    pub steps: Vec<Step>,
    /// Storage of every array that exists.
    pub slots: Vec<Storage>,
    /// Arrays known at compile time.
    pub constants: Vec<Literal>,
    /// Types of the parameters.
    pub params: Vec<TensorType>,
    /// Where the results come from.
    pub results: Vec<ResultPlan>,
    /// Bytes of the arena.
    pub arena_bytes: usize,
    /// What lies inside another array.
    pub views: Vec<View>,
}

/// One kernel call.
#[derive(Clone, Debug)]
pub struct Step {
    /// What it computes.
    pub kernel: Kernel,
    /// Slots that it reads.
    pub inputs: Vec<Slot>,
    /// How it sees them.
    pub input_types: Vec<TensorType>,
    /// Slots that it writes; one may be an input's where that is legal (see [`Storage::place`]).
    pub outputs: Vec<Slot>,
    /// Types of the results.
    pub output_types: Vec<TensorType>,
    /// Layer path, for profiles.
    pub scope: String,
    /// Arithmetic operations.
    pub flops: f64,
}

/// What a step computes.
#[derive(Clone, Debug)]
#[allow(clippy::large_enum_variant)] // There are few steps, and no arrays of them are moved about.
pub enum Kernel {
    /// Fused element-wise work: one output for each store.
    Map(Map),
    /// Fused element-wise work some of whose results are parts of arrays.
    StridedMap(StridedMap),
    /// Folds dimensions of each value that `map` yields; inputs are those of `map`, then the values' initial ones.
    Reduce {
        /// Computes the elements to fold: a store for each output, all of one type.
        map: Map,
        /// Which of `map`'s dimensions are folded.
        folded: Vec<bool>,
        /// How.
        monoid: Monoid,
    },
    /// A product whose elements an element-wise program takes as they are complete.
    ProductEpilogue(ProductEpilogue),
    /// Maps and folds, row by row.
    Rows(Rows),
    /// One op; with `bias` the last input is added along the result's last dimension.
    Op {
        /// The op.
        op: Op,
        /// Whether a bias follows the op's own operands.
        bias: bool,
    },
    /// `op(inputs…) + the last input`, which is in the memory of the result where that is legal.
    Accumulate {
        /// The op: a product or a convolution.
        op: Op,
    },
    /// A part of the graph that runs for a block of rows at a time.
    Blocks(Box<Blocks>),
    /// Attention of several heads, or its derivative; the last input is of no use.
    Attention(AttentionMatch),
    /// Max pooling with what stands before and after it.
    Pool(Pool),
    /// The derivative of max pooling.
    Unpool(Unpool),
    /// Gradients of a convolution from that of its pooled result.
    UnpooledGradient(UnpooledGradient),
    /// A convolution with the statistics of its result.
    Moments(Moments),
    /// `captures…, state…`: runs `body` while `cond`.
    While {
        /// Leading inputs that do not change.
        captures: usize,
        /// The input that each state starts as; `None` where that does not matter.
        starts: Vec<Option<usize>>,
        /// `(captures…, state…) → bool[]`.
        cond: Box<Schedule>,
        /// `(captures…, state…) → state…`, in place where legal.
        body: Box<Schedule>,
    },
    /// `captures…, index`: runs one branch.
    Case {
        /// The branches.
        branches: Vec<Schedule>,
    },
}

impl Kernel {
    /// A short name for listings and profiles.
    pub fn name(&self) -> String {
        match self {
            Kernel::Map(m) | Kernel::StridedMap(StridedMap { map: m, .. }) => match &m.instrs[..] {
                [] => "copy".into(),
                [one] => one.op.name().into(),
                many => format!("map[{}]", many.len()),
            },
            Kernel::Reduce { monoid, map, .. } if map.instrs.is_empty() => {
                format!("reduce_{}", monoid.op().row().name)
            }
            Kernel::Reduce { monoid, map, .. } => {
                format!("map[{}]+reduce_{}", map.instrs.len(), monoid.op().row().name)
            }
            Kernel::ProductEpilogue(h) => h.name(),
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
            Kernel::While { .. } => "while".into(),
            Kernel::Case { .. } => "case".into(),
        }
    }

    /// Programs that the kernel runs: of a block of rows, of a loop's condition and trip, of branches.
    pub fn bodies(&self) -> Vec<&Schedule> {
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
            | Kernel::Attention(_)
            | Kernel::Pool(_)
            | Kernel::Unpool(_)
            | Kernel::UnpooledGradient(_)
            | Kernel::Moments(_) => Vec::new(),
        }
    }

    /// The element-wise program of the kernel.
    pub fn map(&self) -> Option<&Map> {
        match self {
            Kernel::Map(map) | Kernel::Reduce { map, .. } => Some(map),
            Kernel::StridedMap(p) => Some(&p.map),
            Kernel::ProductEpilogue(h) => Some(&h.map),
            Kernel::Rows(_)
            | Kernel::Op { .. }
            | Kernel::Accumulate { .. }
            | Kernel::Blocks(_)
            | Kernel::Attention(_)
            | Kernel::Pool(_)
            | Kernel::Unpool(_)
            | Kernel::UnpooledGradient(_)
            | Kernel::Moments(_)
            | Kernel::While { .. }
            | Kernel::Case { .. } => None,
        }
    }
}

impl Step {
    /// Types of operands and results, without those of the programs inside.
    pub(super) fn check(&self) -> Checked {
        let (ins, outs) = (&self.input_types[..], &self.output_types[..]);
        match &self.kernel {
            Kernel::Map(m) => check::map(m, ins).and_then(|()| check::stores(m, outs)),
            Kernel::StridedMap(p) => p.check(ins, outs),
            Kernel::Reduce { map, folded, .. } => check::reduce(map, folded, ins, outs),
            Kernel::ProductEpilogue(h) => h.check(ins, outs),
            Kernel::Rows(r) => r.check(ins, outs),
            Kernel::Op { op, bias } => check::op_with_bias(op, *bias, ins, outs),
            Kernel::Accumulate { op } => {
                let (addend, operands) = ins.split_last().ok_or("nothing is added to")?;
                check::same("the addend", addend, outs.first().ok_or("there is no result")?)?;
                check::infers(op, operands, outs)
            }
            Kernel::Attention(a) => attention::check(a, ins, outs),
            Kernel::Pool(p) => p.check(ins, outs),
            Kernel::Unpool(u) => u.check(ins, outs),
            Kernel::UnpooledGradient(g) => g.check(ins, outs),
            Kernel::Moments(m) => m.check(ins, outs),
            // Types of these are those of their bodies.
            Kernel::Blocks(_) | Kernel::While { .. } | Kernel::Case { .. } => Ok(()),
        }
    }

    /// The element-wise program whose stores are the step's results: the program, the step's input that is its first, and
    /// the type of the matrix product that it reads last.
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
            | Kernel::Attention(_)
            | Kernel::Pool(_)
            | Kernel::Unpool(_)
            | Kernel::UnpooledGradient(_)
            | Kernel::Moments(_)
            | Kernel::While { .. }
            | Kernel::Case { .. } => None,
        }
    }

    /// Whether the step may write output `o` where it reads input `i`: every element is read before its place is
    /// written, and by the same part of the work.
    pub fn overwrites(&self, i: usize, o: usize) -> bool {
        let (from, to) = (&self.input_types[i], &self.output_types[o]);
        let same_size = from.bytes() == to.bytes() && from.elements() == to.elements();
        match &self.kernel {
            Kernel::Map(m) => same_size && m.reads_in_place(i),
            Kernel::StridedMap(p) => same_size && p.overwrites(i, o),
            Kernel::ProductEpilogue(h) => same_size && h.reads_in_place(i),
            Kernel::Rows(r) => same_size && r.overwrites(i, o, self.inputs.len()),
            // Kernels of these look for the operand's own memory; one that does not know the trick copies from a copy.
            Kernel::Op { op: Op::DynamicUpdateSlice(_) | Op::Scatter(_), .. } => {
                (i, o) == (0, 0) && same_size
            }
            Kernel::Blocks(b) => same_size && b.overwrites(i, o),
            // A state may start where it ends.
            Kernel::While { starts, .. } => starts[o] == Some(i),
            // The addend, which has the type of the result.
            Kernel::Accumulate { .. } => i + 1 == self.inputs.len(),
            // These read an operand again after they have written parts of a result.
            Kernel::Op { .. }
            | Kernel::Reduce { .. }
            | Kernel::Attention(_)
            | Kernel::Pool(_)
            | Kernel::Unpool(_)
            | Kernel::UnpooledGradient(_)
            | Kernel::Moments(_)
            | Kernel::Case { .. } => false,
        }
    }

    /// Bytes that the step must read and write at least. Of large arrays of which it touches a part, the part.
    pub fn bytes_moved(&self) -> f64 {
        let sum = |types: &[TensorType]| types.iter().map(|t| t.bytes() as f64).sum::<f64>();
        let (read, written) = (sum(&self.input_types), sum(&self.output_types));
        match &self.kernel {
            Kernel::Op { op: Op::Slice(_) | Op::DynamicSlice(_), .. } => 2.0 * written,
            Kernel::Op { op: Op::Gather(_), .. } => 2.0 * written + sum(&self.input_types[1..]),
            Kernel::Op { op: Op::DynamicUpdateSlice(_), .. } => 2.0 * sum(&self.input_types[1..]),
            // What it writes parts of is among its inputs too, so that it runs after those were found.
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
            | Kernel::Attention(_)
            | Kernel::Pool(_)
            | Kernel::Unpool(_)
            | Kernel::UnpooledGradient(_)
            | Kernel::Moments(_) => read + written,
            // Bodies may read and write their arrays several times; this is the least.
            Kernel::Blocks(_) | Kernel::While { .. } | Kernel::Case { .. } => read + written,
        }
    }

    /// Whether its arithmetic is products of matrices or convolutions, by the first two operands.
    pub fn is_product(&self) -> bool {
        match &self.kernel {
            Kernel::Op { op, .. } => matches!(op, Op::DotGeneral(_) | Op::Convolution(_)),
            kernel => matches!(kernel, Kernel::Moments(_) | Kernel::Pool(_) | Kernel::ProductEpilogue(_)),
        }
    }

    /// The input that stands for a slot, where only one does; a slot that is read twice under two types is left alone.
    pub fn sole_input(&self, slot: Slot) -> Option<usize> {
        let mut found = self.inputs.iter().enumerate().filter(|(_, s)| **s == slot).map(|(i, _)| i);
        let first = found.next()?;
        found.next().is_none().then_some(first)
    }

    /// Whether the step may write the array of slot `to` over that of slot `from`, which it reads.
    pub fn may_write_over(&self, from: Slot, to: Slot) -> bool {
        let output = self.outputs.iter().position(|&x| x == to);
        matches!((self.sole_input(from), output), (Some(i), Some(o)) if self.overwrites(i, o))
    }
}

/// The right operand of a product and its shape `[K, N]`, where the product is over `K` and reads it only as that.
pub fn right_operand(step: &Step) -> Option<(Slot, [usize; 2])> {
    let op = match &step.kernel {
        Kernel::Op { op, .. } => op,
        Kernel::ProductEpilogue(h) => &h.op,
        // A sum into its last input: none of its kernels takes an operand in panels.
        Kernel::Accumulate { .. } => return None,
        // No matrix product, or one of several that the kernel reads in a layout of its own.
        Kernel::Map(_)
        | Kernel::StridedMap(_)
        | Kernel::Reduce { .. }
        | Kernel::Rows(_)
        | Kernel::Blocks(_)
        | Kernel::Attention(_)
        | Kernel::Pool(_)
        | Kernel::Unpool(_)
        | Kernel::UnpooledGradient(_)
        | Kernel::Moments(_)
        | Kernel::While { .. }
        | Kernel::Case { .. } => return None,
    };
    let Op::DotGeneral(d) = op else { return None };
    let b = &step.input_types[1];
    let fits = b.rank() == 2 && d.rhs_contract[..] == [0] && d.rhs_batch.is_empty();
    let once = step.inputs.iter().filter(|&&x| x == step.inputs[1]).count() == 1;
    (fits && once).then(|| (step.inputs[1], [b.shape[0], b.shape[1]]))
}
