//! All operations. One op (or one family of element-wise ops) is one file that holds every rule about it:
//! shape inference (which is also the verifier), evaluation, derivative, text attributes, cost, samples.
//!
//! Adding an element-wise op is one row in its family's table and one line in [`TABLE`]. Adding a structural
//! op is one file with its attribute struct and `impl OpRule`, a variant of [`Op`] and one line in [`TABLE`].
//! Everything else is derived from the rules.

pub mod attention;
pub mod attr;
pub mod binary;
pub mod collective;
pub mod compare;
pub mod constant;
pub mod control;
pub mod conv;
pub mod convert;
pub mod dot;
pub mod dynamic;
pub mod gather;
mod read;
pub mod reduce;
pub mod rng;
pub mod sample;
pub mod scatter;
pub mod shape;
pub mod sort;
mod table;
mod tiny;
pub mod unary;
pub mod window;

use crate::interp::EvalCx;
use crate::{Graph, Tensor};
use smallvec::SmallVec;
use std::sync::Arc;
use systole_base::{Literal, Result, TensorType};

pub use attr::{Attr, Attrs, Field, Source};
pub use binary::Binary;
pub use collective::{
    AllGather, AllReduce, AllToAll, Collective, CollectivePermute, Devices, Groups, PartitionId,
    ReduceScatter, ReplicaId, agreed,
};
pub use compare::{Clamp, Compare, CompareType, Direction, Select};
pub use constant::{Constant, Iota, Parameter};
pub use control::{Case, OptimizationBarrier, While};
pub use conv::{ConvDims, Convolution};
pub use convert::{BitcastConvert, Convert, ReducePrecision};
pub use dot::DotGeneral;
pub use dynamic::{DynamicSlice, DynamicUpdateSlice};
pub use gather::Gather;
pub use reduce::{Monoid, Reduce};
pub use rng::{RngAlgorithm, RngBitGenerator};
pub use sample::{Domain, Sample};
pub use scatter::Scatter;
pub use shape::{BroadcastInDim, Concatenate, Pad, Reshape, Reverse, Slice, Transpose};
pub use sort::Sort;
pub use table::{Entry, TABLE, entry};
pub use unary::Unary;
pub use window::{ReduceWindow, SelectAndScatter, Window};

/// Result types of a node.
pub type Outs = SmallVec<[TensorType; 1]>;

/// A violated constraint of the StableHLO specification: its label there (`C1`, …) and what does not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Constraint {
    /// The label in the op's section of the specification, e.g. `C3`; `-` for conditions on operand count or type.
    pub label: &'static str,
    /// What does not hold, with the offending numbers.
    pub message: String,
}

impl Constraint {
    /// A violated constraint.
    pub fn new(label: &'static str, message: impl Into<String>) -> Constraint {
        Constraint { label, message: message.into() }
    }
}

/// Errors with `label` and the formatted message unless the condition holds.
#[macro_export]
macro_rules! require {
    ($cond:expr, $label:literal, $($arg:tt)*) => {
        if !$cond {
            return Err($crate::op::Constraint::new($label, format!($($arg)*)));
        }
    };
}

/// Gradient with respect to one operand.
#[derive(Clone, Debug)]
pub enum Grad {
    /// The cotangent of the operand, of the operand's type.
    Of(Tensor),
    /// Does not depend on the operand (or only through integers).
    Zero,
    /// There is no derivative, and why.
    None {
        /// A reason for the user.
        why: &'static str,
    },
}

/// What an op does to elements, coarsely: what a compiler needs to know to group nodes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lowering {
    /// A parameter or constant.
    Leaf,
    /// Result element `i` depends on element `i` of each operand (scalars for some operands of `clamp`, `select`).
    Map,
    /// Moves elements to other places without arithmetic.
    Move,
    /// Folds many elements into one.
    Fold,
    /// Sums of products: dot and convolution.
    Contract,
    /// Draws random bits.
    Draw,
    /// Has bodies that run any number of times.
    Control,
    /// Depends on other devices.
    Exchange,
}

/// Work of one node: arithmetic operations and bytes that must move at the least.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Cost {
    /// Floating-point (or integer) operations; a multiply-add counts two.
    pub flops: f64,
    /// Bytes of operands and results.
    pub bytes: f64,
}

/// All rules of one op. See the module text for how they are used.
pub trait OpRule {
    /// The StableHLO mnemonic, without the dialect (`add`); ops outside StableHLO carry their dialect (`chlo.erf`).
    fn name(&self) -> &'static str;

    /// Result types from operand types: shape rule and verifier in one.
    fn infer(&self, args: &[&TensorType]) -> Result<Outs, Constraint>;

    /// Results by naive loops; the oracle that all backends are tested against. Types were checked by `infer`.
    fn eval(&self, cx: &mut EvalCx, args: &[&Literal], outs: &Outs) -> Result<Vec<Literal>>;

    /// Gradients with respect to each operand `x` from results `y` and their cotangents `dy` (`None`: zero).
    fn vjp(&self, x: &[Tensor], y: &[Tensor], dy: &[Option<Tensor>]) -> Vec<Grad>;

    /// The op to run instead when its derivative needs more results, and the operands that it takes after the op's
    /// own ones. The new results come after the op's own results.
    fn augment(&self, _x: &[Tensor]) -> Option<(Op, Vec<Tensor>)> {
        None
    }

    /// What it does to elements.
    fn lower(&self) -> Lowering;

    /// Attributes in text order; the parser reads them back.
    fn attrs(&self) -> Attrs {
        Attrs::default()
    }

    /// Bodies, in text order.
    fn regions(&self) -> SmallVec<[&Arc<Graph>; 2]> {
        SmallVec::new()
    }

    /// How many leading operands are values that the bodies capture.
    fn captures(&self) -> usize {
        0
    }

    /// Work. The default counts one operation for each result element.
    fn cost(&self, args: &[&TensorType], outs: &Outs) -> Cost {
        Cost { flops: outs.iter().map(|t| t.elements() as f64).sum(), bytes: moved_bytes(args, outs) }
    }
}

/// Bytes of all operands and results.
pub fn moved_bytes(args: &[&TensorType], outs: &[TensorType]) -> f64 {
    args.iter().map(|t| t.bytes() as f64).chain(outs.iter().map(|t| t.bytes() as f64)).sum()
}

macro_rules! ops {
    ($($variant:ident),* $(,)?) => {
        /// Any operation. Its data are the attributes; operands live in the node.
        #[derive(Clone, PartialEq, Eq, Hash, Debug)]
        #[allow(missing_docs)]
        pub enum Op { $($variant($variant)),* }

        impl Op {
            /// The rules of this op.
            pub fn rule(&self) -> &dyn OpRule {
                match self { $(Op::$variant(op) => op),* }
            }
        }

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

ops!(
    Parameter,
    Constant,
    Iota,
    Unary,
    Binary,
    Compare,
    Select,
    Clamp,
    Convert,
    BitcastConvert,
    ReducePrecision,
    BroadcastInDim,
    Reshape,
    Transpose,
    Reverse,
    Concatenate,
    Slice,
    Pad,
    DynamicSlice,
    DynamicUpdateSlice,
    Gather,
    Scatter,
    DotGeneral,
    Convolution,
    Reduce,
    ReduceWindow,
    SelectAndScatter,
    RngBitGenerator,
    Sort,
    While,
    Case,
    OptimizationBarrier,
    AllReduce,
    AllGather,
    ReduceScatter,
    AllToAll,
    CollectivePermute,
    PartitionId,
    ReplicaId,
);

impl Op {
    /// The StableHLO mnemonic.
    // Not inlined: a loop that compares names would become one over all ops, which takes minutes to compile.
    #[inline(never)]
    pub fn name(&self) -> &'static str {
        self.rule().name()
    }
}

/// Checks the number of operands; a missing operand is a violated constraint, not a panic.
pub fn expect_args(args: &[&TensorType], n: usize) -> Result<(), Constraint> {
    require!(args.len() == n, "-", "takes {n} operands, got {}", args.len());
    Ok(())
}

impl Op {
    /// How many results the op has with `args` operands, whether or not their types fit.
    pub fn result_count(&self, args: usize) -> usize {
        match self {
            Op::Reduce(_) | Op::ReduceWindow(_) => args / 2,
            Op::Scatter(_) => args.saturating_sub(1) / 2,
            Op::RngBitGenerator(_) => 2,
            Op::Sort(_) | Op::OptimizationBarrier(_) => args,
            Op::While(w) => w.body.results.len(),
            Op::Case(c) => c.branches.first().map_or(0, |b| b.results.len()),
            _ => 1,
        }
    }
}
