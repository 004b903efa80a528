//! `systole ops`: lists the operations of the intermediate representation, and the operators of ONNX and .tflite files.

use crate::args::common::CommonArgs;
use crate::args::exit_status::{CommandResult, RunCommand};
use crate::render::screen::{Screen, table};
use clap::Args;
use serde_json::{Value, json};
use systole_ir::op::{OpEntry, OpRule, TABLE};
use systole_ir::{DType, TensorType};
use systole_onnx::OnnxOperator;
use systole_tflite::TfliteOp;

#[derive(Args)]
pub(crate) struct OpsArgs {
    /// List the ONNX operators that are read instead
    #[arg(long, conflicts_with = "tflite")]
    onnx: bool,
    /// List the .tflite operators that are read instead
    #[arg(long)]
    tflite: bool,
}

impl RunCommand for OpsArgs {
    fn run(self, _: &CommonArgs, screen: &Screen) -> CommandResult {
        match (self.onnx, self.tflite) {
            (true, _) => onnx(screen),
            (_, true) => tflite(screen),
            _ => ops(screen),
        }
    }
}

/// Lists the ONNX operators with the opsets that define them.
fn onnx(screen: &Screen) -> CommandResult {
    let all = systole_onnx::coverage();
    if screen.json {
        let operator = |o: &OnnxOperator| json!({"name": o.name, "first_opset": o.first, "newest_opset": o.newest, "is_written": o.is_written});
        screen.object(&all.iter().map(operator).collect::<Value>());
        return Ok(0);
    }
    let mut rows = vec![["operator", "opsets", "written by export"].map(String::from).to_vec()];
    rows.extend(all.iter().map(|o| {
        let written = if o.is_written { "yes" } else { "no" };
        vec![o.name.into(), format!("{} to {}", o.first, o.newest), written.into()]
    }));
    screen.line(table(&rows));
    Ok(0)
}

/// Lists the TFLite operators with their codes in the schema.
fn tflite(screen: &Screen) -> CommandResult {
    if screen.json {
        let operator = |o: TfliteOp| json!({"name": o.name(), "code": o.code()});
        screen.object(&TfliteOp::all().map(operator).collect::<Value>());
        return Ok(0);
    }
    let mut rows = vec![["operator", "code"].map(String::from).to_vec()];
    rows.extend(TfliteOp::all().map(|o| vec![o.name().into(), o.code().to_string()]));
    screen.line(table(&rows));
    Ok(0)
}

/// Lists every op with its description, specification, derivative support and element types.
fn ops(screen: &Screen) -> CommandResult {
    if screen.json {
        screen.object(&TABLE.iter().map(as_json).collect::<Value>());
        return Ok(0);
    }
    let head = ["op", "derivative", "element types", "specification", "description"].map(String::from);
    let mut rows = vec![head.to_vec()];
    for e in TABLE {
        let derivative = if differentiable(e) { "yes" } else { "no" };
        rows.push(vec![e.name.into(), derivative.into(), families(&dtypes(e)), e.spec.into(), e.doc.into()]);
    }
    screen.line(table(&rows));
    Ok(0)
}

fn as_json(e: &OpEntry) -> Value {
    let types: Vec<&str> = dtypes(e).iter().map(|d| d.name()).collect();
    json!({"name": e.name, "doc": e.doc, "spec": e.spec, "derivative": differentiable(e), "dtypes": types})
}

fn differentiable(e: &OpEntry) -> bool {
    (e.samples)().iter().any(|s| s.differentiable)
}

/// Returns the element types that the op's type rule accepts, tried on its samples.
///
/// Ops with bodies are listed with all types: their bodies determine the types.
fn dtypes(e: &OpEntry) -> Vec<DType> {
    let samples = (e.samples)();
    let nodes = samples.iter().flat_map(|s| s.graph.nodes.iter().map(move |n| (s, n)));
    let uses: Vec<(&dyn OpRule, Vec<TensorType>)> = nodes
        .filter(|(_, n)| n.op.name() == e.name)
        .map(|(s, n)| (n.op.rule(), n.inputs.iter().map(|v| s.graph.ty(*v).clone()).collect()))
        .collect();
    let takes = |d: DType| {
        uses.iter().any(|(rule, args)| {
            // Change all operands of one type together, for each of the operand types in turn.
            let swapped = |from: DType| -> Vec<TensorType> {
                let swap = |t: &TensorType| if t.dtype == from { t.with_dtype(d) } else { t.clone() };
                args.iter().map(swap).collect()
            };
            let fits = |a: &TensorType| rule.infer(&swapped(a.dtype).iter().collect::<Vec<_>>()).is_ok();
            args.is_empty() || !rule.regions().is_empty() || args.iter().any(fits)
        })
    };
    DType::ALL.into_iter().filter(|d| takes(*d)).collect()
}

/// Formats types as `all` or by complete families: `bool, int, float`.
fn families(types: &[DType]) -> String {
    if types.len() == DType::ALL.len() {
        return "all".into();
    }
    let mut names: Vec<&str> = Vec::new();
    type Family = (&'static str, fn(DType) -> bool);
    let groups: [Family; 3] =
        [("signed", DType::is_signed_int), ("unsigned", DType::is_unsigned_int), ("float", DType::is_float)];
    if types.contains(&DType::Bool) {
        names.push("bool");
    }
    for (name, member) in groups {
        let whole = DType::ALL.into_iter().filter(|d| member(*d)).all(|d| types.contains(&d));
        match whole {
            true => names.push(name),
            false => names.extend(types.iter().filter(|d| member(**d)).map(|d| d.name())),
        }
    }
    names.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_families_are_named_once() {
        use DType::*;
        assert_eq!(families(&DType::ALL), "all");
        assert_eq!(families(&[F16, BF16, F32, F64]), "float");
        assert_eq!(families(&[Bool, I8, I16, I32, I64, U64]), "bool, signed, ui64");
    }
}
