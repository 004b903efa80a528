//! StableHLO text: the one dump format of graphs, printed and parsed here.
//!
//! The generic form of MLIR, one op a line: `%0 = "stablehlo.add"(%arg0, %arg1) : (tensor<2xf32>, tensor<2xf32>) ->
//! tensor<2xf32>`. MLIR's own parser and every PJRT plugin read it. Bodies of `while` and `case` name the outer
//! values that they capture.
//!
//! What StableHLO has no word for (the trip count of a loop, barriers that stop gradients) rides in attributes of
//! the dialect `systole`, which other readers skip. Source locations are not written; layer paths only as
//! comments, by [`print_annotated`].
//!
//! ```
//! use systole_ir::{text, DType::F32, GraphBuilder, TensorType};
//! let g = GraphBuilder::new("main");
//! let x = g.parameter(TensorType::new(F32, [2]), "x");
//! let graph = g.finish(&[&x + &x]).unwrap();
//! let written = text::print(&graph);
//! assert!(written.contains(r#""stablehlo.add"(%arg0, %arg0)"#));
//! assert_eq!(text::parse(&written).unwrap(), graph);
//! ```

pub mod cursor;
mod dense;
mod lexer;
mod parse;
mod print;

pub use dense::{parse_element, parse_hex};
pub use lexer::Token;
pub use parse::{StableHloProgram, parse, parse_program};
pub use print::{print, print_annotated, print_program};
