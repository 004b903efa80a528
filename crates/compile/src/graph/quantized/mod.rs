//! Computes with 8-bit integers what a graph computes with dequantized values: products, pooling, gathers.

mod dequantized;
pub mod int8_products;
mod linear_terms;
mod quantization;
