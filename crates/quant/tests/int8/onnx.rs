//! Tests of the same models as ONNX files: imported again and in ONNX Runtime they compute the same, on batches.

use super::{Net, all_int8, networks, single_layers};
use std::path::PathBuf;
use std::process::Command;
use systole_ir::{DType, Literal};
use systole_onnx::{DimSizes, OnnxModel as Onnx};
use systole_quant::{lower, onnx};
use systole_tflite::{TfliteInterpreter, TfliteModel, TfliteOp, TfliteOperator};

/// A model with inputs and outputs: one array per input, samples stacked.
pub(super) struct Case {
    pub(super) name: String,
    pub(super) onnx: Onnx,
    pub(super) inputs: Vec<Literal>,
    pub(super) expected: Literal,
}

/// Concatenates arrays along the first dimension.
fn stacked(parts: &[&Literal]) -> Literal {
    let mut dims = parts[0].shape().to_vec();
    dims[0] = parts.iter().map(|p| p.shape()[0]).sum();
    let bytes: Vec<u8> = parts.iter().flat_map(|p| p.bytes().to_vec()).collect();
    Literal::from_bytes(parts[0].ty().with_shape(dims), &bytes).unwrap()
}

fn case(name: &str, model: &TfliteModel, samples: &[Vec<Literal>]) -> Case {
    case_of(name, model, systole_onnx::export(model).unwrap_or_else(|e| panic!("{name}: {e}")), samples)
}

fn case_of(name: &str, model: &TfliteModel, onnx: Onnx, samples: &[Vec<Literal>]) -> Case {
    assert!(onnx.graph.inputs[0].to_string().contains("[N"), "{name} takes {}", onnx.graph.inputs[0]);
    let interpreter = TfliteInterpreter::new(model).unwrap();
    let answers: Vec<Literal> = samples.iter().map(|x| interpreter.run(x).unwrap().remove(0)).collect();
    let inputs = (0..model.inputs.len()).map(|i| stacked(&samples.iter().map(|x| &x[i]).collect::<Vec<_>>()));
    Case {
        name: name.into(),
        onnx,
        inputs: inputs.collect(),
        expected: stacked(&answers.iter().collect::<Vec<_>>()),
    }
}

/// Returns float models with three samples each, and int8 models with two.
fn cases() -> Vec<Case> {
    let float = |net: &Net| {
        let graph = lower(&net.layers).ok()?;
        let samples = [net.sample(0), net.sample(1), net.sample(2)];
        let plain = case(&net.name, &graph, &samples);
        // Recurrent layers also as single operators.
        let onnx = onnx(&net.layers).unwrap_or_else(|e| panic!("{}: {e}", net.name));
        let with_loops = (onnx != plain.onnx)
            .then(|| case_of(&format!("{} with loops", net.name), &graph, onnx, &samples));
        Some([plain].into_iter().chain(with_loops))
    };
    let mut all: Vec<Case> = single_layers().iter().chain(&networks()).filter_map(float).flatten().collect();
    let nodes = |op: &str| all.iter().flat_map(|c| &c.onnx.graph.nodes).filter(|node| node.op == op).count();
    assert!(nodes("LSTM") >= 6 && nodes("GRU") >= 6, "{} and {}", nodes("LSTM"), nodes("GRU"));
    let turned = |x: &Literal| {
        let bytes: Vec<u8> = x.bytes().iter().map(|b| b.wrapping_add(37)).collect();
        Literal::from_bytes(x.ty().clone(), &bytes).unwrap()
    };
    for (name, model, inputs) in all_int8() {
        if model.operators.iter().any(|o| o.op == TfliteOp::Rsqrt) {
            all.extend(alone(&name, &model, &inputs));
            continue;
        }
        let is_int8 = inputs.iter().all(|x| x.dtype() == DType::I8);
        let other = if is_int8 { inputs.iter().map(turned).collect() } else { inputs.clone() };
        all.push(case(&format!("{name} int8"), &model, &[inputs, other]));
    }
    all
}

/// Returns each operator of a model separately, with its inputs in the model. Layer normalization takes the root of a
/// small variance, which amplifies a difference of one step.
fn alone(name: &str, model: &TfliteModel, inputs: &[Literal]) -> Vec<Case> {
    let mut values = vec![None; model.tensors.len()];
    TfliteInterpreter::new(model)
        .and_then(|i| i.run_with(inputs, |t, x| values[t] = Some(x.clone())))
        .unwrap();
    let one = |(n, o): (usize, &TfliteOperator)| {
        let mut inputs: Vec<usize> = o.inputs.iter().flatten().copied().collect();
        inputs.retain(|&t| model.tensors[t].data.is_none());
        inputs.dedup();
        let given = inputs.iter().map(|&t| values[t].clone().unwrap()).collect();
        let single = TfliteModel {
            operators: vec![o.clone()],
            inputs,
            outputs: o.outputs.clone(),
            tensors: model.tensors.clone(),
            ..TfliteModel::default()
        };
        case(&format!("{name}, {} {n} int8", o.op), &single, &[given])
    };
    model.operators.iter().enumerate().map(one).collect()
}

/// Returns the distance of two outputs: int8 steps, or units of 1e-5.
fn distance(made: &Literal, expected: &Literal) -> f64 {
    let pairs = made.to_f64s().into_iter().zip(expected.to_f64s());
    let unit = |b: f64| if expected.dtype() == DType::F32 { 1e-5 * (1.0 + b.abs()) } else { 1.0 };
    pairs
        .map(|(a, b)| (a - b).abs() / unit(b))
        .fold(0.0, |m, d| if d.is_nan() { f64::INFINITY } else { m.max(d) })
}

#[test]
fn models_as_onnx_compute_what_they_did_here_and_in_onnx_runtime() {
    let cases = cases();
    let int8 = cases.iter().filter(|c| c.name.ends_with("int8")).count();
    let whole = cases.iter().filter(|c| c.name.ends_with(" int8") && !c.name.contains(", ")).count();
    assert!(whole >= 60 && cases.len() - int8 >= 60, "{whole} int8 of {} models", cases.len());
    check(&cases);
}

/// Compares the outputs of files, read again and in ONNX Runtime, with the expected ones.
pub(super) fn check(cases: &[Case]) {
    let mut wrong = Vec::new();
    for c in cases {
        let read = Onnx::from_bytes(&c.name, &c.onnx.to_bytes()).unwrap();
        assert_eq!(read, c.onnx, "{}", c.name);
        let given =
            c.inputs.iter().enumerate().map(|(i, x)| (format!("arg{i}"), x.shape().to_vec())).collect();
        let program = read
            .import(&DimSizes { given, ..DimSizes::default() })
            .unwrap_or_else(|e| panic!("{}: {e}", c.name));
        let inputs: Vec<&Literal> = c.inputs.iter().collect();
        let made = systole_ir::interp::run(&program.graph, &inputs).unwrap().remove(0);
        assert_eq!(made.ty(), c.expected.ty(), "{}", c.name);
        let d = distance(&made, &c.expected);
        if d > 1.0 {
            wrong.push(format!("{} read here: {d}", c.name));
        }
    }
    assert!(wrong.is_empty(), "{} of {}\n{}", wrong.len(), cases.len(), wrong.join("\n"));
    let python = systole_base::knobs::PYTHON.get();
    let python = if python.is_empty() { "python3".to_string() } else { python };
    let there = Command::new(&python).args(["-c", "import onnxruntime"]).output();
    if !there.is_ok_and(|o| o.status.success()) {
        println!("SKIPPED ONNX Runtime: there is no onnxruntime in SYSTOLE_PYTHON");
        return;
    }
    for level in ["off", "all"] {
        wrong.extend(in_onnx_runtime(&python, cases, level));
    }
    assert!(wrong.is_empty(), "{} of {}\n{}", wrong.len(), cases.len(), wrong.join("\n"));
}

/// Returns the differences from ONNX Runtime.
fn in_onnx_runtime(python: &str, cases: &[Case], level: &str) -> Vec<String> {
    // Tests of one process run at the same time.
    let place = format!("onnx-{level}-{}-{:p}", std::process::id(), cases);
    let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(place);
    std::fs::create_dir_all(&dir).unwrap();
    for (n, c) in cases.iter().enumerate() {
        std::fs::write(dir.join(format!("{n:03}.onnx")), c.onnx.to_bytes()).unwrap();
        for (i, x) in c.inputs.iter().enumerate() {
            std::fs::write(dir.join(format!("{n:03}.in{i}")), x.bytes()).unwrap();
        }
    }
    let script = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/onnx/run.py");
    let ran = Command::new(python).arg(script).arg(&dir).arg(level).output().unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    let mut wrong = Vec::new();
    for (n, c) in cases.iter().enumerate() {
        let Ok(bytes) = std::fs::read(dir.join(format!("{n:03}.out0"))) else {
            let e = std::fs::read_to_string(dir.join(format!("{n:03}.error"))).unwrap_or_default();
            wrong.push(format!("{} is refused, {level}: {e}", c.name));
            continue;
        };
        let made = Literal::from_bytes(c.expected.ty().clone(), &bytes)
            .unwrap_or_else(|e| panic!("{}: {e}", c.name));
        // Fused operators round integer sums in a runtime-specific way, which accumulates over layers.
        let is_network = c.name.starts_with(char::is_lowercase);
        let most = if level == "all" && is_network && c.name.ends_with("int8") { 2.0 } else { 1.0 };
        let d = distance(&made, &c.expected);
        if d > most {
            wrong.push(format!("{} in ONNX Runtime, {level}: {d}", c.name));
        }
    }
    std::fs::remove_dir_all(&dir).ok();
    wrong
}
