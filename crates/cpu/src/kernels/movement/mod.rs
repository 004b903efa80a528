//! Data movement: copies, slices, gathers, scatters, sorting.

pub mod moves;
pub mod scatter;
pub mod sort;
