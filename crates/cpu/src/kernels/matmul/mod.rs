//! Products of matrices.

pub mod blocked;
pub mod dot_general;
pub mod few_columns;
pub mod few_rows;
pub mod inner_products;
pub mod product_epilogue;
