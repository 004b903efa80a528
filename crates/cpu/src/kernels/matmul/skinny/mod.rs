//! Skinny GEMM and GEMV: products with few rows or columns, whose operands are read in place.

pub mod few_columns;
pub mod gemv;
#[cfg(test)]
mod integer_product;
pub mod quantized_weights;
pub mod short_inner_products;
pub mod tiny;
