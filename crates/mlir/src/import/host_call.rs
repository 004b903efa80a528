//! Imports calls of Python functions (callbacks), and threads their order through loops and branches.
//!
//! Calls with side effects are chained by order tokens ([`CustomCall`]): state of loops, results of branches and the last
//! result of the program. So no pass needs a rule for them, and the interpreter and all backends keep their order.

use super::attribute::text;
use super::call::{ImportRule, OpImport, call};
use super::effects::{OrderRole, TARGET, contains, has_side_effect};
use super::importer::Importer;
use super::types::{held, not_there, wrong};
use super::value::ImportedValue;
use crate::syntax::{FunctionValue, MlirType, Operation};
use systole_base::{DType, Literal, Result, TensorType, ensure};
use systole_ir::op::custom_call::LAPACK;
use systole_ir::op::fft::FFT;
use systole_ir::op::{Case, CollectiveBroadcast, CustomCall, PartitionId, ReplicaGroups};
use systole_ir::{GraphBuilder, Tensor, control_builders};

pub(super) const OPERATIONS: &[OpImport] = &[
    call(
        TARGET,
        ImportRule::Importer(|i, op, operands, frame, g| {
            let types =
                op.results.iter().map(|v: &FunctionValue| frame.ty(*v)).collect::<Result<Vec<_>>>()?;
            i.host_call(op, &operands, &types, g)
        }),
    ),
    // Programs that Systole printed.
    call(LAPACK, ImportRule::Native),
    call(FFT, ImportRule::Native),
    // The samples of the IR's tests.
    call("systole_identity", ImportRule::Native),
];

/// Attributes of a call: `SESSION ID all` or `SESSION ID DEVICE`, for calls on every device or on one.
fn device(config: &str) -> Result<Option<usize>> {
    match config.split(' ').collect::<Vec<_>>()[..] {
        [_, _, "all"] => Ok(None),
        [_, _, device] => device.parse().map(Some).map_err(|_| wrong(format!("`{device}` is not a device"))),
        _ => Err(wrong(format!("`{config}` does not describe a Python callback"))),
    }
}

impl<'m> Importer<'m> {
    /// Returns how the regions of an op pass on the order of host calls.
    pub(super) fn order_roles(&self, op: &'m Operation) -> [OrderRole; 2] {
        let none = !self.host_calls.has_side_effects || !contains(self.module, &op.regions, has_side_effect);
        match op.name.as_str() {
            _ if none => [OrderRole::None; 2],
            "stablehlo.while" => [OrderRole::Condition, OrderRole::Body],
            "stablehlo.case" | "stablehlo.if" => [OrderRole::Branch; 2],
            _ => [OrderRole::None; 2],
        }
    }

    /// Returns the order token of the next call.
    fn order(&self, g: &GraphBuilder) -> Tensor {
        self.order.clone().unwrap_or_else(|| g.scalar(DType::I32, 0.0))
    }

    /// Adds the order token to the operands and results of an op with regions.
    pub(super) fn thread_order(
        &self,
        roles: [OrderRole; 2],
        operands: &mut Vec<Tensor>,
        results: &mut Vec<TensorType>,
        g: &GraphBuilder,
    ) {
        if roles[1] == OrderRole::Body {
            operands.push(self.order(g));
        }
        results.extend((roles[1] != OrderRole::None).then(CustomCall::order));
    }

    /// Adds the order token to the parameters of a region.
    pub(super) fn enter(&mut self, role: OrderRole, inner: &GraphBuilder) {
        if matches!(role, OrderRole::Condition | OrderRole::Body) {
            self.order = Some(inner.parameter(CustomCall::order(), "order"));
        }
    }

    /// Adds the order token to the results of a region.
    pub(super) fn leave(&self, role: OrderRole, results: &mut Vec<Tensor>, inner: &GraphBuilder) {
        if role == OrderRole::None {
            return;
        }
        let order = self.order(inner);
        match results.first_mut() {
            // The token is 0, which only the call knows.
            Some(holds) if role == OrderRole::Condition => {
                *holds = holds.and(&order.equal(&inner.scalar(DType::I32, 0.0)));
            }
            _ => results.push(order),
        }
    }

    /// Takes the order token from the results of an op with regions.
    pub(super) fn ordered(&mut self, roles: [OrderRole; 2], mut made: Vec<Tensor>) -> Vec<Tensor> {
        if roles[1] != OrderRole::None {
            self.order = made.pop();
        }
        made
    }

    fn host_call(
        &mut self,
        op: &Operation,
        operands: &[ImportedValue],
        types: &[&MlirType],
        g: &GraphBuilder,
    ) -> Result<Vec<ImportedValue>> {
        let held = types.iter().map(|ty| held(ty)).collect::<Result<Vec<_>>>()?;
        let inputs = operands.iter().map(ImportedValue::parts).collect::<Result<Vec<_>>>()?;
        let mut inputs: Vec<Tensor> = inputs.into_iter().flatten().collect();
        let call = CustomCall {
            target: TARGET.into(),
            config: text(op, "backend_config").unwrap_or_default().into(),
            has_side_effect: has_side_effect(op),
            results: held.iter().flatten().cloned().collect(),
        };
        let made = match device(&call.config)? {
            Some(device) if self.host_calls.is_per_device => {
                let is_ordered = call.has_side_effect;
                inputs.extend(is_ordered.then(|| self.order(g)));
                let mut made = self.on_one_device(call, &inputs, device, g)?;
                if is_ordered {
                    self.order = made.pop();
                }
                made
            }
            _ => self.emit_host_call(call, inputs, g),
        };
        let mut made = made.into_iter();
        let results = held.iter().map(|parts| ImportedValue::of_parts(&mut made, parts.len()));
        results.collect::<Option<Vec<_>>>().ok_or_else(|| wrong("the call has too few results"))
    }

    /// Adds a call that runs on every device, after the previous one if it has side effects.
    pub(super) fn emit_host_call(
        &mut self,
        call: CustomCall,
        mut inputs: Vec<Tensor>,
        g: &GraphBuilder,
    ) -> Vec<Tensor> {
        let is_ordered = call.has_side_effect;
        inputs.extend(is_ordered.then(|| self.order(g)));
        let mut made = g.emit(call, &inputs.iter().collect::<Vec<_>>());
        if is_ordered {
            self.order = made.pop();
        }
        made
    }

    /// Calls the function on one of the devices that run the program, and sends its results to the others.
    fn on_one_device(
        &self,
        call: CustomCall,
        inputs: &[Tensor],
        device: usize,
        g: &GraphBuilder,
    ) -> Result<Vec<Tensor>> {
        let count = super::attribute::device_count(self.module)?;
        ensure!(device < count, not_there(format!("device {device} does not run the program")));
        let sent = call.results.len();
        let [calls, waits] = ["call", "wait"].map(|name| g.child(name));
        let called = calls.emit(call, &inputs.iter().collect::<Vec<_>>());
        let zeros = |t: &Tensor| waits.constant(Literal::zeros(t.ty().clone()));
        let waited: Vec<Tensor> = called.iter().map(zeros).collect();
        let (captured, branches) = control_builders::finish(&[(waits, waited), (calls, called)])?;
        let own = g.emit(PartitionId, &[]).remove(0);
        let index = own.equal(&g.scalar(DType::U32, device as f64)).convert(DType::I32);
        let mut made = g.emit(Case { branches }, &captured.iter().chain([&index]).collect::<Vec<_>>());
        let members = std::iter::once(device).chain((0..count).filter(|d| *d != device)).collect();
        let groups = ReplicaGroups { members: vec![members], channel: 1, global: true };
        for x in &mut made[..sent] {
            *x = g.emit(CollectiveBroadcast { groups: groups.clone() }, &[x]).remove(0);
        }
        Ok(made)
    }
}
