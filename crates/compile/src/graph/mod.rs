//! Graph passes: each rewrites a graph to an equivalent one; [`PASSES`] lists them in execution order.

mod canonicalize;
pub mod layout;
pub mod loops;
pub mod memory;
mod pass;
pub mod product_precision;
mod quantized;
mod reductions;
pub mod rewrite;
mod wide_float16;

pub use canonicalize::constant_subgraph::ConstantSubgraph;
pub use memory::remat::remat;
pub use pass::{GraphPass, PASSES, PassStat, optimize, optimize_until, optimize_with};
pub use product_precision::round_product_operands;
pub use wide_float16::hold_float16_in_float32;
