//! Skinny GEMM and GEMV: products with few rows or columns, whose operands are read in place.

pub mod few_columns;
pub mod gemv;
pub mod narrow;
pub mod quantized_weights;
pub mod tiny;
