//! Base types of all Systole crates: element types, shapes, host arrays, errors, counter-based random numbers and
//! environment variables.
//!
//! Does not depend on graphs, files, threads or devices.

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

#[doc(hidden)] // Deprecated aliases of renamed types: `renamed! { Old => New }`.
#[macro_export]
macro_rules! renamed {
    ($($old:ident => $new:ident),* $(,)?) => {
        $(#[doc(hidden)] #[deprecated = "the type has a new name: see this alias"] pub type $old = $new;)*
    };
}
