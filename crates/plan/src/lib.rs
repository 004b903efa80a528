//! What a TPU slice, a GPU or this CPU would need for a program: memory, time, price, and what to choose.
//!
//! Nothing here touches a device. [`Tables`] hold chips, slices and prices with their sources; [`Slice`] resolves the
//! names that clouds use.

mod slice;
mod table;

pub use slice::Slice;
pub use table::{Gpu, Price, Tables, Tpu};
