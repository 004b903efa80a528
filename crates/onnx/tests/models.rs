//! Tests with models from PyTorch's ONNX exporter, on the interpreter and the CPU engine, with any batch size; broken
//! files are errors.

mod attributes;

use std::path::PathBuf;
use std::sync::Arc;
use systole_base::rng::RandomStream;
use systole_base::{DType, ErrorKind, Literal, Result, TensorType};
use systole_cpu::CpuBackend;
use systole_data::format::npy::{RawNpyArray, raw_npz_from_bytes};
use systole_ir::{Graph, interp};
use systole_onnx::{DimSize, DimSizes, OnnxAttribute, OnnxModel, OnnxNode, ValueInfo, export, operators};
use systole_runtime::{Backend, Buffer, CompileOptions, ExecutableArg};
use systole_testing::assert_error;
use systole_tflite::{TfliteInterpreter, TfliteModel as Lite, TfliteOp, TfliteOperator, TfliteTensor};

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/onnx")
}

/// Returns the fixtures' names.
fn names() -> Vec<String> {
    let entries = std::fs::read_dir(folder()).unwrap().map(|e| e.unwrap().path());
    let models = entries.filter(|p| p.extension().is_some_and(|e| e == "onnx"));
    let mut names: Vec<String> = models.map(|p| p.file_stem().unwrap().to_string_lossy().into()).collect();
    names.sort();
    names
}

fn bytes(name: &str) -> Vec<u8> {
    std::fs::read(folder().join(format!("{name}.onnx"))).unwrap()
}

fn model(name: &str) -> OnnxModel {
    let beside = |file: &str| Ok(std::fs::read(folder().join(file)).unwrap());
    OnnxModel::from_parts(name, &bytes(name), &beside).unwrap_or_else(|e| panic!("{e}"))
}

fn literal(x: &RawNpyArray) -> Literal {
    let dtype = match x.descr.as_str() {
        "<f4" => DType::F32,
        "<i8" => DType::I64,
        "<i4" => DType::I32,
        "|b1" => DType::Bool,
        other => panic!("{other}"),
    };
    Literal::from_bytes(TensorType::new(dtype, &x.dims[..]), &x.bytes).unwrap()
}

/// Returns a model's inputs and PyTorch's outputs.
fn arrays(name: &str) -> [Vec<Literal>; 2] {
    let file = std::fs::read(folder().join(format!("{name}.npz"))).unwrap();
    let arrays = raw_npz_from_bytes(name, &file).unwrap();
    ["in", "out"].map(|kind| {
        let find =
            |i: usize| arrays.iter().find(|(key, _)| *key == format!("{kind}{i}")).map(|(_, x)| literal(x));
        (0..).map_while(find).collect()
    })
}

fn on_cpu(graph: &Arc<Graph>, inputs: &[Literal]) -> Vec<Literal> {
    let exe = CpuBackend::new().and_then(|b| b.compile(graph, &CompileOptions::default()));
    let inputs = inputs.iter().map(|x| ExecutableArg::Donate(Buffer::from(x.clone()))).collect();
    let made = exe.and_then(|e| e.run(inputs)).unwrap_or_else(|e| panic!("{e}"));
    made.iter().map(|b| b.to_literal().unwrap()).collect()
}

fn sizes_of(inputs: &[Literal]) -> DimSizes {
    let given = inputs.iter().enumerate().map(|(i, x)| (format!("arg{i}"), x.shape().to_vec())).collect();
    DimSizes { given, ..DimSizes::default() }
}

/// Returns the difference between the results, if any.
fn differs(made: &[Literal], expected: &[Literal]) -> Option<String> {
    if made.len() != expected.len() {
        return Some(format!("{} results", made.len()));
    }
    for (k, (y, e)) in made.iter().zip(expected).enumerate() {
        if y.ty() != e.ty() {
            return Some(format!("result {k} is {}, not {}", y.ty(), e.ty()));
        }
        for (a, b) in y.to_f64s().into_iter().zip(e.to_f64s()) {
            if a.is_nan() || (a - b).abs() > 1e-5 * (1.0 + b.abs()) {
                return Some(format!("result {k} has {a} where {b} is right"));
            }
        }
    }
    None
}

/// Returns the first sample.
fn first(x: &Literal) -> Literal {
    let dims: Vec<usize> = std::iter::once(1).chain(x.shape()[1..].iter().copied()).collect();
    let ty = x.ty().with_shape(dims);
    let bytes = &x.bytes()[..ty.bytes()];
    Literal::from_bytes(ty, bytes).unwrap()
}

#[test]
fn models_of_pytorch_compute_what_it_does() {
    let names = names();
    assert!(names.len() >= 20, "{names:?}");
    let (mut wrong, mut open) = (Vec::new(), 0);
    for name in &names {
        let model = model(name);
        let [inputs, expected] = arrays(name);
        let program = match model.import(&sizes_of(&inputs)) {
            Ok(program) => program,
            Err(e) => {
                wrong.push(format!("{name}: {e}"));
                continue;
            }
        };
        let by_ref = interp::run(&program.graph, &inputs.iter().collect::<Vec<_>>()).unwrap();
        wrong.extend(differs(&by_ref, &expected).map(|d| format!("{name} on ref: {d}")));
        let by_cpu = on_cpu(&program.graph, &inputs);
        wrong.extend(differs(&by_cpu, &expected).map(|d| format!("{name} on cpu: {d}")));
        if program.settled.is_empty() {
            continue;
        }
        open += 1;
        let one = model.import(&DimSizes::default()).unwrap_or_else(|e| panic!("{name}, one sample: {e}"));
        assert!(one.settled.iter().all(|(_, n)| *n == 1), "{name}: {:?}", one.settled);
        let made = on_cpu(&one.graph, &inputs.iter().map(first).collect::<Vec<_>>());
        let right: Vec<Literal> = expected.iter().map(first).collect();
        wrong.extend(differs(&made, &right).map(|d| format!("{name}, one sample: {d}")));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(open >= 10, "{open} models have an open batch");
}

/// y = w · x + b for any batch size.
fn dense() -> OnnxModel {
    let port = |name: &str, n| ValueInfo {
        name: name.into(),
        dtype: Some(DType::F32),
        sizes: Some(vec![DimSize::Named("batch".into()), DimSize::Known(n)]),
    };
    let mut m = OnnxModel { ir_version: 8, opset: 17, ..OnnxModel::default() };
    m.graph.inputs = vec![port("x", 2), port("z", 3)];
    m.graph.outputs = vec![port("y", 3)];
    m.graph.constants.insert("w".into(), Literal::from_slice([2, 3], &[1f32; 6]).unwrap());
    m.graph.nodes = vec![OnnxNode::new("MatMul", ["x", "w"], "p"), OnnxNode::new("Add", ["p", "z"], "y")];
    m
}

fn told(m: &OnnxModel, sizes: &DimSizes) -> String {
    m.import(sizes).unwrap_err().to_string()
}

#[test]
fn open_sizes_are_those_of_the_arrays_or_as_asked_for_or_one() {
    let m = dense();
    let named = |name: &str, n| DimSizes { named: [(name.to_string(), n)].into(), ..DimSizes::default() };
    let batch = |sizes: &DimSizes| m.import(sizes).unwrap().graph.param_types()[1].shape[0];
    assert_eq!((batch(&DimSizes::default()), batch(&named("batch", 5))), (1, 5));
    let given = |x: usize, z: usize| DimSizes {
        given: vec![("z".into(), vec![z, 3]), ("arg0".into(), vec![x, 2])],
        ..DimSizes::default()
    };
    assert_eq!(m.import(&given(4, 4)).unwrap().settled, [("batch".to_string(), 4)]);
    let e = told(&m, &given(4, 3));
    assert!(e.contains("`batch`") && e.contains("`z`") && e.contains("`x`"), "{e}");
    let e = told(&m, &named("bach", 3));
    assert!(e.contains("`bach`") && e.contains("`batch`"), "{e}");
}

#[test]
fn what_is_not_read_is_told_by_its_node() {
    let mut m = dense();
    m.graph.nodes[1] =
        OnnxNode { name: "head/scaler".into(), ..OnnxNode::new("StringNormalizer", ["p"], "y") };
    let e = m.import(&DimSizes::default()).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Unsupported);
    let e = e.to_string();
    assert!(
        e.contains("StringNormalizer")
            && e.contains("head/scaler")
            && e.contains("--onnx")
            && e.contains("opset")
            && e.contains("try: "),
        "{e}"
    );
    m.graph.nodes[1] = OnnxNode::new("Add", ["p", "q"], "y");
    let e = told(&m, &DimSizes::default());
    assert!(e.contains("`q`") && e.contains("node 1, Add"), "{e}");
    m.graph.nodes[1] = OnnxNode::new("Reshape", ["p", "z"], "y");
    assert!(told(&m, &DimSizes::default()).contains("depends on the input data"));
    m.graph.constants.insert("w".into(), Literal::from_slice([4, 3], &[1f32; 12]).unwrap());
    let e = told(&m, &DimSizes::default());
    assert!(e.contains("node 0, MatMul p") && !e.contains(".rs"), "{e}");
    assert!(operators().count() > 100);
}

#[test]
fn options_of_another_kind_are_told_by_node_and_name() {
    let mut m = dense();
    m.graph.nodes[1] = OnnxNode::new("Softmax", ["p"], "y").with("axis", OnnxAttribute::Float(1.0));
    let e = told(&m, &DimSizes::default());
    assert!(e.contains("node 1, Softmax") && e.contains("attribute `axis` is a float"), "{e}");
    m.graph.nodes[1] = OnnxNode::new("TopK", ["p", "k"], "y");
    m.graph.constants.insert("k".into(), Literal::from_slice([2], &[1i64, 2]).unwrap());
    assert!(told(&m, &DimSizes::default()).contains("operand 1 has 2 numbers"));
    // A list of integers with an unterminated last one.
    let mut file = m.to_bytes();
    let at = file.windows(4).position(|w| w == [0x0a, 1, 2, 0x10]).unwrap();
    file[at + 2] = 0x82;
    assert_error(&OnnxModel::from_bytes("cut", &file).unwrap_err(), ErrorKind::Data, &["cut"]);
}

/// Values from ONNX Runtime 1.32 for LpNormalization.
#[test]
fn unit_lengths_are_those_of_onnx_and_come_from_tflite() {
    let x = Literal::from_slice([3, 2], &[3f32, 4.0, 0.0, 0.0, 1.0, -1.0]).unwrap();
    let port = |name: &str| ValueInfo {
        name: name.into(),
        dtype: Some(DType::F32),
        sizes: Some(vec![DimSize::Known(3), DimSize::Known(2)]),
    };
    let run = |m: &OnnxModel, x: &Literal| {
        let program = m.import(&sizes_of(std::slice::from_ref(x))).unwrap();
        interp::run(&program.graph, &[x]).unwrap().remove(0).to_f64s()
    };
    let half = 0.707_106_77;
    let (a, b) = (0.948_683_3, 0.970_142_5);
    type Case = (&'static [(&'static str, i64)], [f64; 6]);
    let cases: [Case; 3] = [
        (&[], [0.6, 0.8, 0.0, 0.0, half, -half]),
        (&[("p", 1)], [3.0 / 7.0, 4.0 / 7.0, 0.0, 0.0, 0.5, -0.5]),
        (&[("axis", 0), ("p", 2)], [a, b, 0.0, 0.0, a / 3.0, -b / 4.0]),
    ];
    for (options, expected) in cases {
        let mut node = OnnxNode::new("LpNormalization", ["x"], "y");
        node.attributes = options.iter().map(|(n, v)| (n.to_string(), OnnxAttribute::Int(*v))).collect();
        let mut m = OnnxModel { opset: 22, ..OnnxModel::default() };
        m.graph.inputs.push(port("x"));
        m.graph.outputs.push(port("y"));
        m.graph.nodes.push(node);
        let made = run(&m, &x);
        assert!(made.iter().zip(expected).all(|(y, e)| (y - e).abs() < 1e-6), "{options:?}: {made:?}");
    }
    for dims in [vec![1, 6], vec![1, 2, 1, 3]] {
        let t = |name: &str| TfliteTensor::new(name, &dims[..], DType::F32);
        let lite = Lite {
            tensors: vec![t("x"), t("y")],
            operators: vec![TfliteOperator::new(TfliteOp::L2Normalization, [0], [1])],
            inputs: vec![0],
            outputs: vec![1],
            ..Lite::default()
        };
        let x = x.reshape(&dims[..]).unwrap();
        let theirs =
            TfliteInterpreter::new(&lite).unwrap().run(std::slice::from_ref(&x)).unwrap()[0].to_f64s();
        let made = run(&export(&lite).unwrap(), &x);
        assert!(made.iter().zip(&theirs).all(|(y, e)| (y - e).abs() < 1e-6), "{made:?} {theirs:?}");
    }
}

#[test]
fn constants_beside_the_model_stay_beside_it() {
    let e = OnnxModel::from_bytes("beside.onnx", &bytes("beside")).unwrap_err().to_string();
    assert!(e.contains("beside.onnx.data") && e.contains("beside.onnx"), "{e}");
    let away = String::from_utf8_lossy(&bytes("beside")).into_owned();
    assert!(away.contains("beside.onnx.data"));
    // A path of the same length that leaves the directory.
    let mut out = bytes("beside");
    let at = out.windows(16).position(|w| w == b"beside.onnx.data").unwrap();
    out[at..at + 16].copy_from_slice(b"../../../ab/data");
    let e = OnnxModel::from_parts("out", &out, &|_| panic!("it is read")).unwrap_err();
    assert_error(&e, ErrorKind::Data, &["out", "../../../ab/data"]);
    let short = |_: &str| -> Result<Vec<u8>> { Ok(vec![0; 7]) };
    let e = OnnxModel::from_parts("short", &bytes("beside"), &short).unwrap_err();
    assert_error(&e, ErrorKind::Data, &["short", "beside.onnx.data"]);
}

#[test]
fn all_options_come_back_from_a_file() {
    let mut m = dense();
    let tensor = Literal::from_slice([2], &[1i64, -2]).unwrap();
    m.graph.nodes[0].attributes = [
        ("i", OnnxAttribute::Int(-3)),
        ("f", OnnxAttribute::Float(0.25)),
        ("zero", OnnxAttribute::Float(0.0)),
        ("s", OnnxAttribute::Text("word".into())),
        ("t", OnnxAttribute::Tensor(tensor)),
        ("is", OnnxAttribute::Ints(vec![-1, 0, i64::MAX])),
        ("none", OnnxAttribute::Ints(vec![])),
        ("fs", OnnxAttribute::Floats(vec![1.5, -2.0])),
        ("ss", OnnxAttribute::Texts(vec!["a".into(), String::new()])),
    ]
    .map(|(name, a)| (name.to_string(), a))
    .into();
    m.graph.nodes[1].inputs.push(String::new());
    m.graph.inputs[0].sizes = Some(vec![DimSize::Open, DimSize::Known(2)]);
    m.graph.inputs[1].sizes = None;
    m.notes.insert("key".into(), "value".into());
    for dtype in DType::ALL {
        m.graph.constants.insert(format!("c {dtype}"), Literal::scalar(dtype, 1.0));
    }
    assert_eq!(OnnxModel::from_bytes("all", &m.to_bytes()).unwrap(), m);
}

#[test]
fn damage_is_an_error_and_never_a_panic() {
    let mut read = 0;
    for (k, name) in names().iter().enumerate() {
        let whole = bytes(name);
        let beside = |file: &str| Ok(std::fs::read(folder().join(file)).unwrap_or_default());
        let attempt = |bytes: &[u8]| {
            let ran = std::panic::catch_unwind(|| {
                OnnxModel::from_parts(name, bytes, &beside)
                    .and_then(|m| m.import(&DimSizes::default()))
                    .is_ok()
            });
            ran.unwrap_or_else(|_| panic!("{name} panicked on {bytes:02x?}"))
        };
        for i in 0..120 {
            let mut draws = RandomStream::new(3, k as u64, i);
            let mut bad = whole.clone();
            let n = bad.len() as u64;
            for _ in 0..1 + draws.below(4) {
                let at = draws.below(n) as usize;
                match draws.below(4) {
                    0 => bad[at] = [0, 1, 0x7f, 0x80, 0xff][draws.below(5) as usize],
                    1 => bad[at] ^= 1 << draws.below(8),
                    2 => bad[at] = draws.below(256) as u8,
                    _ => {
                        bad.truncate(at.max(1));
                        bad.resize(n as usize, draws.below(2) as u8);
                    }
                }
            }
            read += u32::from(attempt(&bad));
            attempt(&whole[..draws.below(n) as usize]);
        }
    }
    assert!(read > 0, "mutations may be harmless");
}

#[test]
fn the_guide_names_the_operators_that_are_read() {
    let guide = std::fs::read_to_string(folder().join("../../docs/guide/onnx.md")).unwrap();
    let rows: Vec<&str> = guide.lines().filter(|l| l.starts_with("| ")).collect();
    let named = |op: &&str| rows.iter().any(|r| r.split([',', '|', ' ']).any(|word| word == *op));
    let missing: Vec<&str> = operators().filter(|op| !named(op)).collect();
    assert!(missing.is_empty(), "{missing:?}");
}
