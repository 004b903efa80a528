//! Finds calls with side effects (Python callbacks, FFI handlers) in a module, and where they run.

use super::attribute::{flag, target};
use crate::syntax::{Attribute, MlirModule, MlirRegion, Operation, find};
use std::collections::HashSet;
use systole_base::DType;
use systole_ir::op::PartitionId;
use systole_ir::op::custom_call::is_registered;
use systole_ir::{GraphBuilder, Tensor};

/// Target of the calls, which the Python package of the plugin writes.
pub const TARGET: &str = "systole_python_callback";

/// Target of the calls that report an array's sharding when the program is compiled; they compute nothing.
pub const INSPECTION: &str = "systole_inspect_sharding";

/// Start of the IR's names of FFI handlers, followed by the name under which the host program registered the handler.
pub const PREFIX: &str = "systole_ffi.";

/// Whether the host program registered an FFI handler of this name.
pub(super) fn is_ffi_handler(name: &str) -> bool {
    is_registered(&format!("{PREFIX}{name}"))
}

/// Custom calls that start and end a per-device computation.
pub(super) const SHAPE_CALLS: [&str; 2] = ["SPMDFullToShardShape", "SPMDShardToFullShape"];

/// Whether an op starts or ends a per-device computation.
fn is_manual(op: &Operation) -> bool {
    op.name == "sdy.manual_computation" || target(op).is_some_and(|name| SHAPE_CALLS.contains(&name))
}

/// How a region passes on the order of host calls.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum OrderRole {
    /// Not at all: it must not contain calls with side effects.
    None,
    /// Condition of a loop: takes the token as state, and its result depends on the calls.
    Condition,
    /// Body of a loop: takes the token as state and returns it.
    Body,
    /// Branch: returns the token.
    Branch,
}

/// Where the calls of a module run.
#[derive(Clone, Copy, Default)]
pub(super) struct HostCalls {
    /// Whether there are calls with side effects.
    pub(super) has_side_effects: bool,
    /// Whether every device runs the whole program.
    pub(super) is_per_device: bool,
}

impl HostCalls {
    pub(super) fn of(module: &MlirModule) -> HostCalls {
        let any = |what: fn(&Operation) -> bool| {
            module.functions.iter().any(|f| contains(module, std::slice::from_ref(&f.body), what))
        };
        HostCalls { has_side_effects: any(has_side_effect), is_per_device: any(is_manual) }
    }

    /// Returns the order token of the first call with side effects. It depends on the device if each device runs the
    /// program, so that it is compiled for several devices.
    pub(super) fn first_order(self, g: &GraphBuilder) -> Option<Tensor> {
        self.has_side_effects.then(|| match self.is_per_device {
            true => {
                // Always 0.
                g.emit(PartitionId, &[]).remove(0).convert(DType::I32) * 0.0
            }
            false => g.scalar(DType::I32, 0.0),
        })
    }
}

pub(super) fn has_side_effect(op: &Operation) -> bool {
    target(op).is_some_and(|name| name == TARGET || is_ffi_handler(name))
        && flag(op, "has_side_effect", false).unwrap_or(false)
}

/// Whether the regions, the regions in them or the functions that they call contain such an op.
pub fn contains(module: &MlirModule, regions: &[MlirRegion], what: fn(&Operation) -> bool) -> bool {
    let mut open: Vec<&MlirRegion> = regions.iter().collect();
    let mut seen = HashSet::new();
    while let Some(region) = open.pop() {
        for op in &region.operations {
            if what(op) {
                return true;
            }
            open.extend(&op.regions);
            let callee = find(&op.attributes, "callee").or_else(|| find(&op.attributes, "decomposition"));
            if let Some(Attribute::Symbol(name)) = callee
                && seen.insert(name.as_str())
            {
                open.extend(module.functions.iter().filter(|f| f.name == *name).map(|f| &f.body));
            }
        }
    }
    false
}
