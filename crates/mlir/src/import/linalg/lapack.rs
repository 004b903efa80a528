//! Imports JAX's calls of LAPACK routines on CPUs (`lapack_dgeqrf_ffi`) as calls of the routines of `systole_linalg`.

use crate::import::attribute::target;
use crate::import::call::OpCall;
use crate::import::types::{held, wrong};
use crate::import::value::ImportedValue;
use crate::syntax::{Attribute, find};
use systole_base::{Result, ensure};
use systole_ir::op::CustomCall;
use systole_ir::op::custom_call::{LAPACK, lapack_routine};

/// Attributes of a call, as `name=value` words: letters are stored as their codes.
fn config(c: &OpCall, routine: &str, complex: bool) -> String {
    let prefix = if complex { "complex " } else { "" };
    let mut config = format!("{prefix}{routine}");
    if let Some(Attribute::Dictionary(fields)) = find(&c.op.attributes, "mhlo.backend_config") {
        for (name, value) in fields {
            match value {
                // An integer with its type, or without.
                Attribute::Other(_, digits) => config.push_str(&format!(" {name}={digits}")),
                Attribute::Int(i) => config.push_str(&format!(" {name}={i}")),
                Attribute::Bool(b) => config.push_str(&format!(" {name}={}", i32::from(*b))),
                _ => {}
            }
        }
    }
    config
}

/// Imports a call. Layouts say in which order LAPACK sees the elements, and do not change values.
pub(super) fn called(c: &OpCall) -> Result<Vec<ImportedValue>> {
    let routine = target(c.op).and_then(lapack_routine).ok_or_else(|| wrong("unknown LAPACK routine"))?;
    // Old programs pass trsm's factor 1 as a third operand.
    let operands = if routine == "trsm" { c.operands.get(..2) } else { Some(c.operands) };
    let operands = operands.ok_or_else(|| wrong("an operand is missing"))?;
    let complex = c.number(0)?.is_complex();
    let inputs = operands.iter().map(ImportedValue::parts).collect::<Result<Vec<_>>>()?.concat();
    let types = c.results.iter().map(|ty| held(ty)).collect::<Result<Vec<_>>>()?;
    ensure!(inputs.iter().all(|t| t.rank() > 0), wrong("an operand has no dimensions"));
    let call = CustomCall {
        target: LAPACK.into(),
        config: config(c, routine, complex),
        has_side_effect: false,
        results: types.iter().flatten().cloned().collect(),
    };
    let mut made = c.g.emit(call, &inputs.iter().collect::<Vec<_>>()).into_iter();
    let values = types.iter().map(|parts| ImportedValue::of_parts(&mut made, parts.len()));
    values.collect::<Option<Vec<_>>>().ok_or_else(|| wrong("the call has too few results"))
}
