//! CHLO: ops of clients that are written by StableHLO's own.

use crate::syntax::Operation;
use systole_base::Result;
use systole_ir::{GraphBuilder, Tensor};

/// The results of an op of CHLO; `None`: it is none, or the IR has it.
pub(super) fn write(op: &Operation, operands: &[Tensor], _: &GraphBuilder) -> Result<Option<Vec<Tensor>>> {
    let Some(name) = op.name.strip_prefix("chlo.") else { return Ok(None) };
    let written = match (name, operands) {
        ("sinh", [x]) => x.sinh(),
        ("square", [x]) => x * x,
        ("erfc", [x]) => 1.0 - x.erf(),
        _ => return Ok(None),
    };
    Ok(Some(vec![written]))
}
