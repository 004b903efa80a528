//! Memory of a program: the order of its steps, views, the buffer plan, and what it takes up in all.

pub mod buffers;
mod footprint;
pub mod order;
mod views;

pub use footprint::{Footprint, Holding, footprint, largest_intermediates};
pub use views::lies_together;
