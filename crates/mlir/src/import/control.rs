//! Imports calls, tuples, tokens and test assertions, which need the importer's state.

use super::attribute::{self, text};
use super::call::{ImportRule, OpImport, call, op};
use super::check::ResultCheck;
use super::importer::Importer;
use super::types::{not_there, wrong};
use super::value::ImportedValue;
use crate::syntax::{Attribute, Operation, find};
use systole_base::{DType, Literal, Result, ResultExt, ensure};
use systole_ir::GraphBuilder;

pub(super) const OPERATIONS: &[OpImport] = &[
    op("check.expect_serialized_eq").importer(|i, op, operands, _, _| i.expect_serialized(op, &operands)),
    op("func.call")
        .keeps_elements()
        .importer(|i, op, operands, _, g| i.call(find(&op.attributes, "callee"), operands, g)),
    op("interpreter.print").importer(|_, _, _, _, _| Ok(Vec::new())),
    op("interpreter.probe").importer(|i, op, operands, _, _| {
        i.probes.extend(text(op, "probe_id").map(|id| (id.to_owned(), operands.clone())));
        Ok(operands)
    }),
    op("stablehlo.after_all").importer(|_, _, _, _, _| Ok(vec![ImportedValue::Token])),
    // Ops run in order: the results are there when the op starts.
    op("stablehlo.async_done").keeps_elements().importer(|_, _, operands, _, _| match &operands[..] {
        [ImportedValue::Tuple(results)] => Ok(results.clone()),
        _ => Err(wrong("the operand must be a future")),
    }),
    op("stablehlo.async_start").keeps_elements().importer(|i, op, operands, frame, g| {
        let [body] = &op.regions[..] else { return Err(wrong("the op must have one region")) };
        ensure!(body.arguments.len() == operands.len(), wrong("operands and the region's arguments differ"));
        body.arguments.iter().zip(operands).for_each(|(value, given)| frame.set(*value, given));
        Ok(vec![ImportedValue::Tuple(i.body(body, frame, g)?)])
    }),
    op("stablehlo.composite")
        .keeps_elements()
        .importer(|i, op, operands, _, g| i.call(find(&op.attributes, "decomposition"), operands, g)),
    op("stablehlo.create_token").importer(|_, _, _, _, _| Ok(vec![ImportedValue::Token])),
    op("stablehlo.get_tuple_element")
        .keeps_elements()
        .importer(|_, op, operands, _, _| element(op, &operands)),
    op("stablehlo.tuple")
        .keeps_elements()
        .importer(|_, _, operands, _, _| Ok(vec![ImportedValue::Tuple(operands)])),
];

/// `check.NAME`, as an op and as a custom call.
pub(super) const CHECK: OpImport = op("check.").importer(|i, op, operands, _, g| i.check(op, &operands, g));
pub(super) const CHECK_CALL: OpImport = call("check.", CHECK.import);

/// A custom call without a table row.
pub(super) const UNKNOWN_CALL: OpImport = call(
    "",
    ImportRule::Arrays(|c| {
        Err(match text(c.op, "call_target_name") {
            None | Some("") => wrong("a custom call has no `call_target_name`"),
            Some(name) => not_there(format!("unsupported custom call `{name}`"))
                .because("only the system that wrote the program defines what the custom call computes"),
        })
    }),
);

fn element(op: &Operation, operands: &[ImportedValue]) -> Result<Vec<ImportedValue>> {
    let [ImportedValue::Tuple(items)] = operands else { return Err(wrong("the operand must be a tuple")) };
    let item = attribute::size(op, "index")?.and_then(|i| items.get(i).cloned());
    Ok(vec![item.ok_or_else(|| wrong("tuple index out of range"))?])
}

impl<'m> Importer<'m> {
    /// Imports an assertion: its arrays become results, first the real parts of all compared values, then the imaginary
    /// parts.
    fn check(
        &mut self,
        op: &Operation,
        operands: &[ImportedValue],
        g: &GraphBuilder,
    ) -> Result<Vec<ImportedValue>> {
        let all = operands.iter().map(ImportedValue::parts).collect::<Result<Vec<_>>>()?;
        let parts = all.first().map_or(1, Vec::len);
        self.checks.append(&mut ResultCheck::of(op, parts)?);
        (0..parts).for_each(|p| self.compared.extend(all.iter().filter_map(|own| own.get(p)).cloned()));
        // The custom calls return whether the assertion holds; otherwise the run fails.
        let holds = || ImportedValue::Array(g.constant(Literal::scalar(DType::Bool, 1.0)));
        Ok(op.results.iter().map(|_| holds()).collect())
    }

    /// Imports `check.expect_serialized_eq %0, probe_id = "name", iter = 1`: compares with the array passed to the
    /// probe.
    fn expect_serialized(
        &mut self,
        op: &Operation,
        operands: &[ImportedValue],
    ) -> Result<Vec<ImportedValue>> {
        let name = text(op, "probe_id").unwrap_or_default();
        let turn = attribute::size(op, "iter")?.unwrap_or(0);
        let probed = self.probes.iter().filter(|(id, _)| id == name).nth(turn);
        let probed = probed.map(|(_, given)| given.clone()).ok_or_else(|| {
            not_there(format!("iteration {turn} of probe `{name}` has no value"))
                .because("values of a probe in a loop are known only at run time")
        })?;
        for given in operands.iter().cloned().chain(probed) {
            self.compared.push(given.array()?);
        }
        self.checks.push(ResultCheck::equal());
        Ok(Vec::new())
    }

    fn call(
        &mut self,
        callee: Option<&Attribute>,
        operands: Vec<ImportedValue>,
        g: &GraphBuilder,
    ) -> Result<Vec<ImportedValue>> {
        let Some(Attribute::Symbol(name)) = callee else { return Err(wrong("the call has no callee")) };
        let called = self.module.functions.iter().find(|f| f.name == *name);
        let called = called.ok_or_else(|| wrong(format!("unknown function @{name}")))?;
        self.function(called, operands, g).at(|| format!("@{name}"))
    }
}
