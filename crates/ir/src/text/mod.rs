//! StableHLO text format: prints and parses graphs.
//!
//! Uses MLIR's generic form, one op per line: `%0 = "stablehlo.add"(%arg0, %arg1) : (tensor<2xf32>, tensor<2xf32>) ->
//! tensor<2xf32>`. MLIR's own parser and every PJRT plugin read it. Bodies of `while` and `case` refer to captured
//! outer values by name.
//!
//! Information without a StableHLO equivalent (trip counts of loops, barriers that stop gradients) is stored in
//! attributes of the dialect `systole`, which other readers ignore. Source locations are not written. Layer paths are
//! written only as comments, by [`print_annotated`].
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

systole_base::renamed! { Program => StableHloProgram }
