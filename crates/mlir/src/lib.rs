//! Reads StableHLO text from JAX, PyTorch/XLA and `mlir-opt` and imports it into Systole's IR.
//!
//! ```
//! let text = "module @jit_f { func.func public @main(%arg0: tensor<2xf32>) -> tensor<2xf32> {
//!     %cst = stablehlo.constant dense<2.000000e+00> : tensor<2xf32>
//!     %0 = stablehlo.multiply %arg0, %cst : tensor<2xf32>
//!     return %0 : tensor<2xf32>
//! } }";
//! let program = systole_mlir::read_text(text)?;
//! assert_eq!(program.graph.params.len(), 1);
//! # Ok::<(), systole_base::Error>(())
//! ```
//!
//! Sources: the StableHLO specification, the CHLO and Shardy documentation, MLIR's language reference.

pub mod device_sharding;
pub mod import;
pub mod interface;
pub mod narrow_types;
pub mod quantized_type;
pub mod syntax;
pub mod text;

use systole_base::Result;
use systole_ir::text::StableHloProgram;

/// Parses a module (pretty or generic form) and imports its function `main`; calls to other functions are inlined.
///
/// # Errors
/// `Data` if the text does not parse (line, column, op); `Unsupported` for an op that cannot be imported (its name and
/// why).
pub fn read_text(text: &str) -> Result<StableHloProgram> {
    Ok(import::program(&text::parse(text)?)?.program)
}
