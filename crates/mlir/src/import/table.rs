//! The table of ops: the rows of all families, and what is known of an op by its name.

use super::attribute::target;
use super::call::{ComplexRule, OpImport, op};
use super::control::{CHECK, CHECK_CALL, UNKNOWN_CALL};
use super::{approx_top_k, batch_norm, chlo, control, devices, dynamic, fft, linalg, stablehlo};
use crate::syntax::Operation;
use std::collections::HashMap;
use std::sync::LazyLock;

const FAMILIES: [&[OpImport]; 7] = [
    batch_norm::OPERATIONS,
    control::OPERATIONS,
    dynamic::OPERATIONS,
    fft::OPERATIONS,
    linalg::OPERATIONS,
    stablehlo::OPERATIONS,
    approx_top_k::OPERATIONS,
];

/// All rows, by whether they are custom calls and by name.
static TABLE: LazyLock<HashMap<(bool, &str), &OpImport>> = LazyLock::new(|| {
    let families = FAMILIES.into_iter().chain(chlo::OPERATIONS).chain(devices::OPERATIONS);
    families.flatten().map(|row| ((row.is_call, row.name), row)).collect()
});

/// An op that no row names: the IR may have it.
const NATIVE: OpImport = op("");

/// What is known of an op.
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

/// `mhlo.erf` and its kin are how JAX keeps CHLO's ops in what it exports.
fn called(name: &str) -> &'static OpImport {
    let chlo = name.strip_prefix("mhlo.").or_else(|| name.strip_prefix("chlo."));
    let chlo = chlo.map(|name| format!("chlo.{name}"));
    match TABLE.get(&(chlo.is_none(), chlo.as_deref().unwrap_or(name))) {
        Some(row) => row,
        None if name.starts_with("check.") => &CHECK_CALL,
        None => &UNKNOWN_CALL,
    }
}

/// What becomes of an op of complex numbers; those that broadcast are as those that do not.
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
