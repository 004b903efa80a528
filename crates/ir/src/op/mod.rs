//! The rules of all operations. One op (or one family of element-wise ops) is one file: shape inference (which is also
//! the verifier), evaluation, derivative, text attributes, cost, samples. Attributes are data and stand in
//! `graph/op.rs`.
//!
//! Adding an element-wise op is one row in `graph/elementwise.rs`; adding one that is composed of others is one row in
//! `op/compose.rs`. Adding a structural op is its attribute struct and a variant of [`Op`] in `graph/op.rs`, a file with
//! its `impl OpRule`, and an entry of [`TABLE`]. Everything else is derived from the rules.

/// The mnemonic of an op and what it does to elements, in its `impl OpRule`.
macro_rules! named {
    ($name:literal, $lowering:ident) => {
        fn name(&self) -> &'static str {
            $name
        }

        fn lower(&self) -> Lowering {
            Lowering::$lowering
        }
    };
}

pub mod attention;
pub mod binary;
pub mod collective;
pub mod compare;
pub mod compose;
pub mod constant;
pub mod control;
pub mod conv;
pub mod convert;
pub mod dot;
pub mod dynamic;
pub mod flow;
pub mod gather;
mod known;
mod methods;
mod monoid;
pub mod packed;
mod read;
pub mod reduce;
pub mod rng;
pub mod sample;
mod samples;
pub mod scatter;
pub mod shape;
pub mod sort;
pub mod source;
mod table;
pub mod unary;
pub mod window;

pub use crate::graph::attr::{self, Attr, Attrs, Field};
pub use crate::graph::op::*;
pub use crate::graph::{Binary, Unary};
pub use crate::graph::{Constraint, Cost, EvalCx, Grad, Lowering, OpRule, Outs, moved_bytes};
pub use collective::{Collective, Devices, agreed};
pub use monoid::Monoid;
pub use sample::{Domain, Sample};
pub use source::Source;
pub use table::{Entry, TABLE, entry};

use crate::{Graph, Tensor};
use smallvec::SmallVec;
use std::sync::Arc;
use systole_base::{Literal, Result, TensorType};

/// Checks the number of operands; a missing operand is a violated constraint, not a panic.
pub fn expect_args(args: &[&TensorType], n: usize) -> Result<(), Constraint> {
    crate::require!(args.len() == n, "-", "takes {n} operands, got {}", args.len());
    Ok(())
}
