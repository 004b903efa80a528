//! The ground that every Systole crate stands on: element types, shapes, host arrays, errors,
//! counter-based random numbers and the declared switches (knobs).
//!
//! Nothing here knows of graphs, files, threads or devices.

mod aligned_words;
mod caller;
mod dtype;
mod error;
pub mod knobs;
mod literal;
pub mod rng;
mod shape;

pub use caller::user_line;
pub use dtype::{DType, Element, Scalar};
pub use error::{Error, ErrorKind, Result, ResultExt};
pub use half::{bf16, f16};
pub use literal::{Literal, LiteralBuilder};
pub use shape::{Dims, Shape, TensorType};
