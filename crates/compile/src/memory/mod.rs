//! Memory planning of a program: step order, views, buffer assignment and footprint.

pub mod buffer_assignment;
mod footprint;
pub mod step_order;
mod views;

pub use footprint::{ArrayUsage, Footprint, footprint, largest_intermediates};
pub use views::lies_together;
