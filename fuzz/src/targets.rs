// What is fuzzed, and the inputs to begin with; the fuzzers of this folder and crates/cli/tests/cli/fuzz.rs share it. A target takes any
// bytes, and must neither panic nor take much memory.

use systole_base::{DType, Literal};
use systole_data::format::example::{
    FeatureSpec, FeatureSpecs, RaggedPartition, SequenceFeatureSpecs, encode,
};
use systole_data::format::tfrecord::{OnCorrupt, TfRecordReader, frame};
use systole_data::format::{idx, jpeg as jpegs, npy};
use systole_data::{HostArray, Sample};
use systole_tflite::{
    OptionField, TfliteInterpreter, TfliteModel, TfliteOp, TfliteOperator, TfliteQuantization, TfliteTensor,
};

/// Name, what takes the bytes, valid inputs.
pub type Target = (&'static str, fn(&[u8]), fn() -> Vec<Vec<u8>>);

pub const TARGETS: [Target; 9] = [
    ("tfrecord", tfrecord, tfrecord_seeds),
    ("example", example, example_seeds),
    ("idx", idx, idx_seeds),
    ("npy", npy, npy_seeds),
    ("jpeg", jpeg, jpeg_seeds),
    ("bytecode", bytecode, bytecode_seeds),
    ("text", text, text_seeds),
    ("tflite", tflite, tflite_seeds),
    ("onnx", onnx, onnx_seeds),
];

pub fn tfrecord(bytes: &[u8]) {
    for policy in [OnCorrupt::Fail, OnCorrupt::Skip { quota: 3 }] {
        let mut reader = TfRecordReader::from_bytes("fuzz", bytes.to_vec(), policy);
        // A gzip file of a few bytes may unpack to very many records.
        for _ in 0..1000 {
            if reader.next().is_none() {
                break;
            }
        }
    }
}

fn tfrecord_seeds() -> Vec<Vec<u8>> {
    let file = |records: &[&[u8]]| {
        let mut out = Vec::new();
        records.iter().for_each(|r| frame(&mut out, r).expect("into memory"));
        out
    };
    vec![Vec::new(), file(&[b""]), file(&[b"one", b"two", b"three"]), file(&[&[7; 300]])]
}

pub fn example(bytes: &[u8]) {
    let partitions =
        vec![RaggedPartition::RowSplits("label".into()), RaggedPartition::ValueRowids("tokens".into())];
    let ragged = FeatureSpec::Ragged { dtype: DType::I64, values: "tokens".into(), partitions };
    let all = FeatureSpecs::new()
        .fixed("label", DType::I64, [])
        .fixed("box", DType::F32, [4])
        .var_len("tokens", DType::I32)
        .bytes("name")
        .raw("image", DType::U8, [2, 2, 3])
        .with("steps", FeatureSpec::Sequence { row: systole_base::TensorType::new(DType::F32, [2]) })
        .with("words", FeatureSpec::ByteLists)
        .with("ragged", ragged);
    for (name, feature) in all.iter() {
        let _ = FeatureSpecs::new().with(name, feature.clone()).parse(bytes);
    }
    let _ = FeatureSpecs::guess(bytes).and_then(|f| f.parse(bytes));
    let _ = SequenceFeatureSpecs { context: FeatureSpecs::new(), steps: all }.parse(bytes);
    if let Ok(text) = std::str::from_utf8(bytes) {
        let _ = text.parse::<FeatureSpecs>();
    }
}

fn example_seeds() -> Vec<Vec<u8>> {
    let array = |x: Result<Literal, _>| HostArray::from(x.expect("an array"));
    let sample = Sample::new([
        ("label", array(Literal::from_slice([], &[-3i64]))),
        ("box", array(Literal::from_slice([4], &[0.5f32, -1., 2., 1e9]))),
        ("tokens", array(Literal::from_slice([3], &[1i64, 300, -1]))),
        ("image", array(Literal::from_slice([12], &[9u8; 12]))),
    ]);
    vec![Vec::new(), encode(&sample).expect("an Example"), b"image: ui8[28, 28, 1], tokens: i64[?]".to_vec()]
}

pub fn idx(bytes: &[u8]) {
    let _ = idx::from_bytes("fuzz", bytes);
}

fn idx_seeds() -> Vec<Vec<u8>> {
    let x = Literal::from_slice([2, 3], &[1u8, 2, 3, 4, 5, 6]).expect("an array");
    [false, true].map(|gzip| idx::to_bytes(&x, gzip).expect("IDX")).into()
}

pub fn npy(bytes: &[u8]) {
    let _ = npy::from_bytes("fuzz", bytes);
    let _ = npy::npz_from_bytes("fuzz", bytes);
}

fn npy_seeds() -> Vec<Vec<u8>> {
    let x = Literal::from_slice([2, 2], &[1f32, 2., 3., 4.]).expect("an array");
    let npz = include_bytes!("../../crates/data/fixtures/two.npz").to_vec();
    vec![npy::to_bytes(&x).expect("npy"), npz]
}

pub fn jpeg(bytes: &[u8]) {
    let (ours, other) = jpegs::both_decoders(bytes);
    // Pixels of damaged files may differ: coefficients beyond what a picture can have overflow in each decoder's own way,
    // libjpeg's two among them. Those of whole files are compared by the tests of the decoder.
    match (ours, other) {
        (Some(ours), Ok(other)) => assert_eq!(ours.ty(), other.ty()),
        // The program would have returned the one of them that there is.
        (Some(_), Err(_)) | (None, Ok(_)) => {}
        (None, Err(_)) => assert!(jpegs::from_bytes("fuzz", bytes).is_err()),
    }
}

fn jpeg_seeds() -> Vec<Vec<u8>> {
    let seeds: [&[u8]; 5] = [
        include_bytes!("../../crates/data/fixtures/gradient.jpg"),
        include_bytes!("../../crates/data/fixtures/grey.jpg"),
        include_bytes!("../../crates/data/fixtures/progressive.jpg"),
        include_bytes!("../../fixtures/data/jpeg/half.jpg"),
        include_bytes!("../../fixtures/data/jpeg/even.jpg"),
    ];
    seeds.map(<[u8]>::to_vec).into()
}

const PROGRAMS: [&str; 4] = [
    "func.func @main(%a: tensor<1x3x!quant.uniform<i8:f32, 0.5:-4>>) -> tensor<1x2xf32> {
        %b = stablehlo.constant() {value = dense<3> : tensor<3x2xi8>} : () -> tensor<3x2x!quant.uniform<i8:f32:1, {0.25, 0.5:1}>>
        %0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0] : (tensor<1x3x!quant.uniform<i8:f32, 0.5:-4>>,
            tensor<3x2x!quant.uniform<i8:f32:1, {0.25, 0.5:1}>>) -> tensor<1x2x!quant.uniform<i8:f32, 0.75:10>>
        %1 = stablehlo.uniform_dequantize %0 : (tensor<1x2x!quant.uniform<i8:f32, 0.75:10>>) -> tensor<1x2xf32>
        return %1 : tensor<1x2xf32>
    }",
    "func.func @main(%arg0: tensor<2x3xf32>) -> tensor<3xf32> {
        %cst = stablehlo.constant dense<0.0> : tensor<f32>
        %0 = stablehlo.exponential %arg0 : tensor<2x3xf32>
        %1 = stablehlo.reduce(%0 init: %cst) applies stablehlo.add across dimensions = [0]
            : (tensor<2x3xf32>, tensor<f32>) -> tensor<3xf32>
        return %1 : tensor<3xf32>
    }",
    "sdy.mesh @mesh = <[\"x\"=2]>
    func.func @main(%arg0: tensor<4xi1> {sdy.sharding = #sdy.sharding<@mesh, [{\"x\"}]>}) -> tensor<4xi1> {
        %0 = sdy.sharding_constraint %arg0 <@mesh, [{}]> : tensor<4xi1>
        %1 = stablehlo.custom_call @f(%0) {api_version = 4 : i32, mhlo.backend_config = {a = 3 : i32}}
            : (tensor<4xi1>) -> tensor<4xi1>
        return %1 : tensor<4xi1>
    }",
    // As MLIR prints what it has no other form for.
    "module attributes {mhlo.num_partitions = 1 : i32} {
        \"func.func\"() <{function_type = (tensor<f32>, tensor<i32>) -> tensor<f32>, sym_name = \"main\"}> ({
        ^bb0(%x: tensor<f32>, %i: tensor<i32>):
            %0:2 = \"stablehlo.while\"(%x, %i) ({
            ^bb0(%a: tensor<f32>, %b: tensor<i32>):
                %2 = \"stablehlo.compare\"(%b, %i) <{comparison_direction = #stablehlo<comparison_direction LT>}>
                    : (tensor<i32>, tensor<i32>) -> tensor<i1>
                \"stablehlo.return\"(%2) : (tensor<i1>) -> ()
            }, {
            ^bb0(%a: tensor<f32>, %b: tensor<i32>):
                \"stablehlo.return\"(%a, %b) : (tensor<f32>, tensor<i32>) -> ()
            }) : (tensor<f32>, tensor<i32>) -> (tensor<f32>, tensor<i32>)
            \"func.return\"(%0#0) : (tensor<f32>) -> ()
        }) : () -> ()
    } loc(#l)
    #l = loc(\"a\"(\"b.py\":1:2))",
];

pub fn bytecode(bytes: &[u8]) {
    // What was read can be written, unless it names what no version has; and is read again as it was.
    let Ok(module) = systole_bytecode::parse(bytes) else { return };
    if let Ok(again) = systole_bytecode::write(&module, systole_bytecode::CURRENT) {
        let _ = systole_bytecode::parse(&again);
    }
}

fn bytecode_seeds() -> Vec<Vec<u8>> {
    let bytes = |text: &str| {
        let module = systole_mlir::text::parse(text).expect("a program");
        [3, 9].map(|minor| {
            systole_bytecode::write(&module, systole_bytecode::StablehloVersion::new(1, minor, 0))
                .expect("an artifact")
        })
    };
    PROGRAMS.into_iter().take(2).flat_map(bytes).collect()
}

pub fn text(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    // What was read is written, and read again.
    let Ok(module) = systole_mlir::text::parse(text) else { return };
    let _ = systole_mlir::text::parse(&systole_mlir::text::write(&module));
    let _ = systole_mlir::import::program(&module);
}

fn text_seeds() -> Vec<Vec<u8>> {
    PROGRAMS.into_iter().map(|text| text.as_bytes().to_vec()).collect()
}

pub fn tflite(bytes: &[u8]) {
    let Ok(model) = TfliteModel::from_bytes("fuzz", bytes) else { return };
    // What was read is written, and read again.
    if let Ok(mut again) = model.to_bytes() {
        // What a file may expand to depends on its size: the copy gets as many bytes as the first.
        again.resize(again.len().max(bytes.len()), 0);
        assert!(TfliteModel::from_bytes("fuzz", &again).is_ok());
    }
    // What computes for long is no finding.
    if model.tensors.iter().map(|t| t.ty.elements()).sum::<usize>() < 2000 {
        let inputs: Vec<Literal> =
            model.inputs.iter().map(|&i| Literal::zeros(model.tensors[i].ty.clone())).collect();
        let _ = TfliteInterpreter::new(&model).and_then(|i| i.run(&inputs));
    }
}

fn tflite_seeds() -> Vec<Vec<u8>> {
    let q = || TfliteQuantization::per_tensor(0.1, 3);
    let tensor = |name: &str, shape: &[usize]| TfliteTensor::new(name, shape, DType::I8).quantized(q());
    let ints = |shape: &[usize], values: &[i32]| {
        TfliteTensor::constant("ints", Literal::from_slice(shape, values).expect("an array"))
    };
    let kernel = Literal::from_slice([2, 2, 2, 1], &[1i8, -2, 3, 4, -5, 6, 7, 127]).expect("an array");
    let window = |o: TfliteOperator| o.with(OptionField::StrideW, 2.0).with(OptionField::StrideH, 1.0);
    let model = TfliteModel {
        tensors: vec![
            tensor("x", &[1, 4, 4, 1]),
            TfliteTensor::constant("w", kernel).quantized(TfliteQuantization::per_channel(vec![0.1, 0.2], 0)),
            ints(&[2], &[5, -5]).quantized(TfliteQuantization::per_channel(vec![0.01, 0.02], 0)),
            tensor("conv", &[1, 4, 2, 2]),
            tensor("pool", &[1, 4, 1, 2]),
            ints(&[4, 2], &[0, 0, 1, 0, 0, 1, 0, 0]),
            tensor("pad", &[1, 5, 2, 2]),
            ints(&[2], &[1, 20]),
            tensor("flat", &[1, 20]),
            TfliteTensor::new("y", [1, 20], DType::I8)
                .quantized(TfliteQuantization::per_tensor(1.0 / 256.0, -128)),
        ],
        operators: vec![
            window(TfliteOperator::new(TfliteOp::Conv2D, [0, 1, 2], [3])),
            window(TfliteOperator::new(TfliteOp::AveragePool2D, [3], [4]))
                .with(OptionField::FilterW, 2.0)
                .with(OptionField::FilterH, 2.0),
            TfliteOperator::new(TfliteOp::Pad, [4, 5], [6]),
            TfliteOperator::new(TfliteOp::Reshape, [6, 7], [8]).with_list(OptionField::NewShape, vec![1, 20]),
            TfliteOperator::new(TfliteOp::Softmax, [8], [9]).with(OptionField::Beta, 1.0),
        ],
        inputs: vec![0],
        outputs: vec![9],
        ..TfliteModel::default()
    };
    let sum = TfliteModel {
        tensors: vec![
            tensor("a", &[1, 3, 2]),
            tensor("b", &[2]),
            tensor("c", &[1, 3, 2]),
            tensor("d", &[1, 3, 4]),
        ],
        operators: vec![
            TfliteOperator::new(TfliteOp::Add, [0, 1], [2]),
            TfliteOperator::new(TfliteOp::Concatenation, [0, 2], [3]).with(OptionField::Axis, 2.0),
        ],
        inputs: vec![0, 1],
        outputs: vec![3],
        ..TfliteModel::default()
    };
    let all = TfliteOp::all().flat_map(|op| [false, true].map(|with_list| one_operator(op, with_list)));
    let loops = ["lstm", "variables"].map(|name| fixture(&format!("tflite/loops/{name}.tflite")));
    [model, sum].into_iter().chain(all).filter_map(|m| m.to_bytes().ok()).chain(loops).collect()
}

/// A model of one operator, of floats and a list of integers or of floats alone; few of them are valid.
fn one_operator(op: TfliteOp, with_list: bool) -> TfliteModel {
    let floats = |name: &str| TfliteTensor::new(name, [2, 3], DType::F32);
    let list = Literal::from_slice([2], &[1i32, 0]).expect("an array");
    let other = if with_list { TfliteTensor::constant("list", list) } else { floats("b") };
    TfliteModel {
        tensors: vec![floats("a"), other, floats("y")],
        operators: vec![TfliteOperator::new(op, [0, 1], [2])],
        inputs: if with_list { vec![0] } else { vec![0, 1] },
        outputs: vec![2],
        ..TfliteModel::default()
    }
}

/// Reads a fixture, from the fuzzers' crate or from the tests'.
fn fixture(name: &str) -> Vec<u8> {
    let own = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let found = own.ancestors().map(|at| at.join("fixtures").join(name)).find(|at| at.is_file());
    std::fs::read(found.expect("a fixture")).expect("a fixture")
}

/// Reads a model and builds its graph.
pub fn onnx(bytes: &[u8]) {
    if let Ok(model) = systole_onnx::OnnxModel::from_bytes("fuzz", bytes) {
        let _ = model.import(&systole_onnx::DimSizes::default());
    }
}

fn onnx_seeds() -> Vec<Vec<u8>> {
    use systole_onnx::{DimSize, OnnxAttribute, OnnxModel, OnnxNode, ValueInfo};
    let port = |name: &str, sizes: &[usize]| ValueInfo {
        name: name.into(),
        dtype: Some(DType::F32),
        sizes: Some(
            [vec![DimSize::Named("N".into())], sizes.iter().map(|&s| DimSize::Known(s)).collect()].concat(),
        ),
    };
    let model = |constants: &[(&str, &[usize])], shape: &[i64], nodes: Vec<OnnxNode>, input: &[usize]| {
        let mut m = OnnxModel { ir_version: 8, opset: 17, ..OnnxModel::default() };
        for (name, dims) in constants {
            let n = dims.iter().product();
            let value = Literal::from_slice(*dims, &vec![0.5f32; n]).expect("an array");
            m.graph.constants.insert((*name).into(), value);
        }
        let shape = Literal::from_slice([shape.len()], shape).expect("a list");
        m.graph.constants.insert("shape".into(), shape);
        (m.graph.nodes, m.graph.inputs) = (nodes, vec![port("x", input)]);
        m.graph.outputs = vec![port("y", &[])];
        m.to_bytes()
    };
    let dense = vec![
        OnnxNode::new("MatMul", ["x", "w"], "a"),
        OnnxNode::new("Relu", ["a"], "b"),
        OnnxNode::new("Reshape", ["b", "shape"], "c"),
        OnnxNode::new("Softmax", ["c"], "y").with("axis", OnnxAttribute::Int(-1)),
    ];
    let pictures = vec![
        OnnxNode::new("Conv", ["x", "w", "b"], "a").ints("pads", [1, 1, 1, 1]).ints("strides", [1, 2]),
        OnnxNode::new("AveragePool", ["a"], "c")
            .ints("kernel_shape", [2, 2])
            .with("ceil_mode", OnnxAttribute::Int(1)),
        OnnxNode::new("Pad", ["c", "shape"], "d"),
        OnnxNode::new("Transpose", ["d"], "y").ints("perm", [0, 2, 3, 1]),
    ];
    let moved = vec![
        OnnxNode::new("Shape", ["x"], "s"),
        OnnxNode::new("Gather", ["s", "zero"], "n").with("axis", OnnxAttribute::Int(0)),
        OnnxNode::new("Slice", ["x", "zero", "shape", "shape"], "a"),
        OnnxNode::new("ReduceMean", ["a"], "b").ints("axes", [-1]),
        OnnxNode::new("QuantizeLinear", ["b", "w"], "y"),
    ];
    let gated = vec![
        OnnxNode::new("GRU", ["x", "w", "r", "b"], "a").with("linear_before_reset", OnnxAttribute::Int(1)),
        OnnxNode::new("LSTM", ["x", "v", "q"], "c").with("direction", OnnxAttribute::Text("reverse".into())),
        OnnxNode::new("Concat", ["a", "c"], "y").with("axis", OnnxAttribute::Int(3)),
    ];
    vec![
        model(&[("w", &[3, 4])], &[-1, 2, 2], dense, &[3]),
        model(&[("w", &[2, 1, 3, 3]), ("b", &[2])], &[0, 0, 1, 1, 0, 0, 1, 1], pictures, &[1, 4, 4]),
        model(&[("w", &[]), ("zero", &[1])], &[1], moved, &[2, 3]),
        model(
            &[("w", &[1, 3, 2]), ("r", &[1, 3, 1]), ("b", &[1, 6]), ("v", &[1, 4, 2]), ("q", &[1, 4, 1])],
            &[1],
            gated,
            &[1, 2],
        ),
    ]
}
