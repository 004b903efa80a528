//! Table of importable MLIR ops: the rows of all op families, looked up by name.

use super::attribute::target;
use super::call::{ComplexRule, OpImport, op};
use super::control::{CHECK, CHECK_CALL, UNKNOWN_CALL};
use super::effects::is_ffi_handler;
use super::ffi_call::FFI_CALL;
use super::{approx_top_k, batch_norm, chlo, control, devices, dynamic, fft, host_call, linalg, stablehlo};
use crate::syntax::Operation;
use std::collections::HashMap;
use std::sync::LazyLock;
use systole_ir::op::custom_call::lapack_routine;

const FAMILIES: [&[OpImport]; 8] = [
    batch_norm::OPERATIONS,
    control::OPERATIONS,
    dynamic::OPERATIONS,
    fft::OPERATIONS,
    host_call::OPERATIONS,
    linalg::OPERATIONS,
    stablehlo::OPERATIONS,
    approx_top_k::OPERATIONS,
];

/// All rows, by name and whether they are custom calls.
static TABLE: LazyLock<HashMap<(bool, &str), &OpImport>> = LazyLock::new(|| {
    let families = FAMILIES.into_iter().chain(chlo::OPERATIONS).chain(devices::OPERATIONS);
    families.flatten().map(|row| ((row.is_call, row.name), row)).collect()
});

/// Row of ops that have none: the IR may support them.
const NATIVE: OpImport = op("");

/// Returns the table row of an op.
pub(super) fn row(op: &Operation) -> &'static OpImport {
    if op.name == "stablehlo.custom_call" {
        return called(target(op).unwrap_or(""));
    }
    match TABLE.get(&(false, op.name.as_str())) {
        Some(row) => row,
        None if op.name.starts_with("chlo.broadcast_") => &chlo::BROADCAST,
        None if op.name.starts_with("check.") => &CHECK,
        None => &NATIVE,
    }
}

/// Returns the row of a custom call; JAX exports CHLO ops as `mhlo.erf` and similar calls.
fn called(name: &str) -> &'static OpImport {
    let chlo = name.strip_prefix("mhlo.").or_else(|| name.strip_prefix("chlo."));
    let chlo = chlo.map(|name| format!("chlo.{name}"));
    match TABLE.get(&(chlo.is_none(), chlo.as_deref().unwrap_or(name))) {
        Some(row) => row,
        None if name.starts_with("check.") => &CHECK_CALL,
        None if lapack_routine(name).is_some() => &linalg::LAPACK_CALL,
        None if is_ffi_handler(name) => &FFI_CALL,
        None => &UNKNOWN_CALL,
    }
}

/// Returns how an op on complex numbers is imported; broadcasting variants like the plain ones.
pub(super) fn complex(op: &Operation) -> ComplexRule {
    match op.name.strip_prefix("chlo.broadcast_") {
        None => row(op).complex,
        Some(name) => {
            let found = ["stablehlo", "chlo"].map(|dialect| format!("{dialect}.{name}"));
            let row = found.iter().find_map(|name| TABLE.get(&(false, name.as_str())));
            row.map_or(ComplexRule::Refused, |row| row.complex)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_op_has_one_row() {
        let all = FAMILIES.into_iter().chain(chlo::OPERATIONS).chain(devices::OPERATIONS).flatten();
        assert_eq!(all.count(), TABLE.len());
    }
}
