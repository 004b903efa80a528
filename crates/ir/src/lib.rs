//! Intermediate representation (IR) based on StableHLO: graph builder, op rules, autodiff, interpreter and text format.
//! Op names, attribute names and constraint labels are those of the StableHLO specification.
//!
//! A [`Graph`] is a list of typed nodes. A [`Tensor`] is a value in a graph under construction by a [`GraphBuilder`].
//! All rules of an op are in one place under [`op`]. The interpreter ([`interp`]), autodiff ([`grad`](mod@grad)), the
//! text format ([`text`]) and the cost model ([`cost`]) are generic over those rules.
//!
//! This crate does no I/O, starts no threads and has no `unsafe` code.
//!
//! ```
//! use systole_ir::{grad, interp, DType::F32, GraphBuilder, Literal, TensorType};
//! let g = GraphBuilder::new("main");
//! let x = g.parameter(TensorType::new(F32, [3]), "x");
//! let y = (&x * &x).sum(&[0]);
//! let dx = grad(&y, &[&x]).remove(0);
//! let graph = g.finish(&[y, dx]).unwrap();
//! let x = Literal::from_slice([3], &[1f32, 2., 3.]).unwrap();
//! let out = interp::run(&graph, &[&x]).unwrap();
//! assert_eq!(out[0].to_f32s(), [14.0]);
//! assert_eq!(out[1].to_f32s(), [2.0, 4.0, 6.0]);
//! ```

pub mod grad;
mod graph;
pub mod interp;
pub mod op;
mod sharding;
pub mod text;

pub use grad::{grad, vjp};
pub use graph::{DERIVATIVE, Graph, GraphBuilder, Node, Op, SourceLoc, Tensor, ValueId, cost};
pub use op::{attention, composites, control_builders, quantized_weights};
pub use sharding::{Mesh, Sharding, Shardings};
pub use systole_base::{
    DType, Dims, Element, Error, ErrorKind, ForeignMemory, Literal, LiteralBuilder, Result, ResultExt,
    Scalar, Shape, TensorType, bf16, bug, conversions, ensure, err, f16, knobs, renamed, rng, user_line,
};

systole_base::renamed! { Loc => SourceLoc, Spread => Shardings }
