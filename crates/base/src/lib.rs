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

pub use aligned_words::ForeignMemory;
pub use caller::user_line;
pub use dtype::{DType, Element, Scalar};
pub use error::{Error, ErrorKind, Result, ResultExt};
pub use half::{bf16, f16};
pub use literal::{Literal, LiteralBuilder};
pub use shape::{Dims, Shape, TensorType};

/// Implements `From`: `conversions! { i64 => Axes: |axis| Axes(vec![axis]); const N, [i64; N] => Axes: |axes| Axes(axes.into()); }`.
#[doc(hidden)]
#[macro_export]
macro_rules! conversions {
    ($($(#[$meta:meta])* $(const $n:ident,)? $from:ty => $to:ty: |$value:pat_param| $result:expr;)*) => {
        $($(#[$meta])*
        impl $(<const $n: usize>)? From<$from> for $to {
            fn from($value: $from) -> $to {
                $result
            }
        })*
    };
}

#[doc(hidden)] // Deprecated aliases of renamed types and modules: `renamed! { Old => New }`, `renamed! { mod old => new }`.
#[macro_export]
macro_rules! renamed {
    ($(mod $old:ident => $new:ident),* $(,)?) => {
        $(#[doc(hidden)] #[deprecated = concat!("renamed to `", stringify!($new), "`")] pub mod $old { pub use super::$new::*; })*
    };
    ($($old:ident => $new:ident),* $(,)?) => {
        $(#[doc(hidden)] #[deprecated = "the type has a new name: see this alias"] pub type $old = $new;)*
    };
}
