//! Attributes, modes and opsets: each changes the result as ONNX Runtime 1.32 computes it, or is an error that names it.

use super::{on_cpu, sizes_of};
use systole_base::{DType, ErrorKind, Literal};
use systole_ir::interp;
use systole_onnx::{OnnxAttribute, OnnxModel, OnnxNode, ValueInfo, coverage};

/// A model of one node; its inputs are `operands`, and its constants `(name, value)`.
fn one(opset: i64, node: OnnxNode, inputs: &[&Literal], constants: &[(&str, Literal)]) -> OnnxModel {
    let mut m = OnnxModel { ir_version: 8, opset, ..OnnxModel::default() };
    m.graph.constants = constants.iter().map(|(name, value)| (name.to_string(), value.clone())).collect();
    let names = node.inputs.iter().filter(|n| !n.is_empty() && !m.graph.constants.contains_key(*n));
    m.graph.inputs = names
        .zip(inputs)
        .map(|(name, x)| ValueInfo { name: name.clone(), dtype: Some(x.dtype()), sizes: None })
        .collect();
    m.graph.outputs = vec![ValueInfo { name: "y".into(), ..ValueInfo::default() }];
    m.graph.nodes = vec![node];
    m
}

/// Returns the result of one node on the interpreter; the CPU engine must return the same.
#[track_caller]
fn run(
    opset: i64,
    node: OnnxNode,
    inputs: &[&Literal],
    constants: &[(&str, Literal)],
) -> (Vec<usize>, Vec<f64>) {
    let owned: Vec<Literal> = inputs.iter().map(|x| (*x).clone()).collect();
    let program =
        one(opset, node, inputs, constants).import(&sizes_of(&owned)).unwrap_or_else(|e| panic!("{e}"));
    let y = interp::run(&program.graph, inputs).unwrap().remove(0);
    let by_cpu = on_cpu(&program.graph, &owned).remove(0);
    assert_eq!(y.to_f64s(), by_cpu.to_f64s(), "interpreter and CPU engine");
    (y.shape().to_vec(), y.to_f64s())
}

#[track_caller]
fn refused(opset: i64, node: OnnxNode, inputs: &[&Literal], constants: &[(&str, Literal)]) -> String {
    let owned: Vec<Literal> = inputs.iter().map(|x| (*x).clone()).collect();
    let m = one(opset, node, inputs, constants);
    m.import(&sizes_of(&owned)).map(|_| ()).expect_err("it must be refused").to_string()
}

fn f32s(dims: &[usize], values: &[f32]) -> Literal {
    Literal::from_slice(dims, values).unwrap()
}

fn counted(dims: &[usize]) -> Literal {
    f32s(dims, &(0..dims.iter().product::<usize>()).map(|i| i as f32).collect::<Vec<_>>())
}

fn int(v: i64) -> OnnxAttribute {
    OnnxAttribute::Int(v)
}

fn word(v: &str) -> OnnxAttribute {
    OnnxAttribute::Text(v.into())
}

#[test]
fn transposed_convolutions_have_the_output_shape_that_is_stated() {
    let (x, w) = (f32s(&[1, 1, 3], &[1.0, 2.0, 3.0]), f32s(&[1, 1, 3], &[1.0, 10.0, 100.0]));
    let node = |size: i64| {
        OnnxNode::new("ConvTranspose", ["x", "w", "b"], "y").ints("strides", [2]).ints("output_shape", [size])
    };
    let constants = [("w", w), ("b", f32s(&[1], &[0.5]))];
    let whole = [1.5, 10.5, 102.5, 20.5, 203.5, 30.5, 300.5, 0.5];
    for (size, expected) in
        [(4, &whole[2..6]), (5, &whole[1..6]), (6, &whole[1..7]), (7, &whole[..7]), (8, &whole[..])]
    {
        assert_eq!(run(17, node(size), &[&x], &constants), (vec![1, 1, size as usize], expected.to_vec()));
    }
    assert!(refused(17, node(9), &[&x], &constants).contains("an output size of 9"));
    for (mode, from) in [("SAME_UPPER", 0), ("SAME_LOWER", 1)] {
        let node = node(6).with("auto_pad", word(mode));
        assert_eq!(run(17, node, &[&x], &constants).1, whole[from..from + 6]);
    }
    let padded = node(7).ints("output_padding", [1]);
    assert_eq!(run(17, padded, &[&x], &constants).1, whole[1..]);
    let other = node(7).ints("kernel_shape", [2]);
    assert!(refused(17, other, &[&x], &constants).contains("kernel_shape is [2]"));
}

#[test]
fn infinities_are_detected_by_sign() {
    let x = f32s(&[4], &[f32::NEG_INFINITY, 1.0, f32::INFINITY, f32::NAN]);
    for (negative, positive) in [(1, 1), (0, 1), (1, 0), (0, 0)] {
        let node = OnnxNode::new("IsInf", ["x"], "y");
        let node = node.with("detect_negative", int(negative)).with("detect_positive", int(positive));
        let expected = [negative as f64, 0.0, positive as f64, 0.0];
        assert_eq!(run(20, node, &[&x], &[]).1, expected);
    }
}

#[test]
fn space_to_depth_has_both_orders() {
    let x = counted(&[1, 2, 2, 2]);
    let node = |mode: &str| {
        OnnxNode::new("SpaceToDepth", ["x"], "y").with("blocksize", int(2)).with("mode", word(mode))
    };
    assert_eq!(run(28, node("DCR"), &[&x], &[]).1, [0.0, 4.0, 1.0, 5.0, 2.0, 6.0, 3.0, 7.0]);
    assert_eq!(run(28, node("CRD"), &[&x], &[]).1, [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]);
    assert!(refused(28, node("RCD"), &[&x], &[]).contains("RCD"));
}

/// Resizes the last dimension by a scale.
#[track_caller]
fn scaled(opset: i64, x: &Literal, scale: f32, options: &[(&str, &str)]) -> Vec<f64> {
    let inputs: &[&str] = if opset < 11 { &["x", "s"] } else { &["x", "", "s"] };
    let op = if opset < 10 { "Upsample" } else { "Resize" };
    let mut node = OnnxNode::new(op, inputs.iter().copied(), "y");
    node.attributes = options.iter().map(|(name, value)| (name.to_string(), word(value))).collect();
    run(opset, node, &[x], &[("s", f32s(&[4], &[1.0, 1.0, 1.0, scale]))]).1
}

#[test]
fn resize_of_opset_10_has_no_shift_and_rounds_up_when_it_shrinks() {
    let x = f32s(&[1, 1, 1, 5], &[1.0, 2.0, 3.0, 4.0, 5.0]);
    let grown = [1.0, 1.0, 2.0, 2.0, 3.0, 4.0, 4.0, 5.0];
    assert_eq!(scaled(10, &x, 1.6, &[("mode", "nearest")]), grown);
    assert_eq!(scaled(9, &x, 1.6, &[("mode", "nearest")]), grown);
    assert_eq!(scaled(10, &x, 0.6, &[("mode", "nearest")]), [1.0, 3.0, 5.0]);
    assert_eq!(scaled(10, &x, 0.7, &[("mode", "nearest")]), [1.0, 3.0, 4.0]);
    assert_eq!(scaled(10, &x, 1.6, &[("mode", "linear")]), [1.0, 1.625, 2.25, 2.875, 3.5, 4.125, 4.75, 5.0]);
}

#[test]
fn sizes_of_resize_are_products_in_f32() {
    let x = counted(&[1, 1, 1, 10]);
    let floor = ("nearest_mode", "floor");
    let asymmetric = ("coordinate_transformation_mode", "asymmetric");
    assert_eq!(scaled(17, &x, 0.7, &[floor]), [0.0, 1.0, 3.0, 4.0, 5.0, 7.0, 8.0]);
    assert_eq!(scaled(17, &x, 0.7, &[floor, asymmetric]), [0.0, 1.0, 2.0, 4.0, 5.0, 7.0, 8.0]);
    assert_eq!(
        scaled(17, &x, 0.3, &[floor, ("coordinate_transformation_mode", "align_corners")]),
        [0.0, 4.0, 9.0]
    );
    let grown = scaled(17, &x, 2.3, &[floor, asymmetric]);
    assert_eq!((grown.len(), &grown[20..]), (23, &[8.0, 9.0, 9.0][..]));
    let symmetric = ("coordinate_transformation_mode", "half_pixel_symmetric");
    assert_eq!(scaled(19, &x, 0.9, &[floor, symmetric]), [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]);
    let of = |policy: &str| {
        let sizes = Literal::from_slice([2], &[7i64, 6]).unwrap();
        let node = OnnxNode::new("Resize", ["x", "", "", "z"], "y").ints("axes", [2, 3]);
        run(
            19,
            node.with("keep_aspect_ratio_policy", word(policy)),
            &[&counted(&[1, 1, 3, 4])],
            &[("z", sizes)],
        )
    };
    let (shape, y) = of("not_larger");
    assert_eq!((shape, &y[..7]), (vec![1, 1, 5, 6], &[0.0, 0.0, 1.0, 2.0, 2.0, 3.0, 0.0][..]));
    let (shape, y) = of("not_smaller");
    assert_eq!(
        (shape, &y[..10]),
        (vec![1, 1, 7, 9], &[0.0, 0.0, 1.0, 1.0, 1.0, 2.0, 2.0, 3.0, 3.0, 0.0][..])
    );
}

#[test]
fn f16_is_summed_in_f32() {
    let half = |dims: &[usize], values: &[f32]| f32s(dims, values).convert(DType::F16);
    let image = half(&[1, 1, 2, 2], &[60000.0, 50000.0, 40000.0, 30000.0]);
    let window = |op: &str| OnnxNode::new(op, ["x"], "y").ints("kernel_shape", [2, 2]);
    assert_eq!(run(17, window("AveragePool"), &[&image], &[]).1, half(&[], &[45000.0]).to_f64s());
    assert_eq!(
        run(17, OnnxNode::new("GlobalAveragePool", ["x"], "y"), &[&image], &[]).1,
        half(&[], &[45000.0]).to_f64s()
    );
    let row = half(&[1, 2], &[300.0, 400.0]);
    let over = |op: &str| OnnxNode::new(op, ["x"], "y").ints("axes", [1]);
    assert_eq!(run(17, over("ReduceL2"), &[&row], &[]).1, [500.0]);
    assert_eq!(
        run(17, over("ReduceLogSum"), &[&half(&[1, 2], &[60000.0, 60000.0])], &[]).1,
        [11.695].map(|v: f32| f32s(&[], &[v]).convert(DType::F16).to_f64s()[0])
    );
    let many = half(&[1, 8192], &[30000.0; 8192]);
    assert_eq!(run(17, over("ReduceMean"), &[&many], &[]).1, [30000.0]);
    let soft = run(17, OnnxNode::new("Softmax", ["x"], "y"), &[&half(&[1, 4096], &[1.0; 4096])], &[]).1;
    assert!(soft.iter().all(|v| *v == 1.0 / 4096.0), "{}", soft[0]);
    let both = [&row, &half(&[1, 2], &[65000.0, 65000.0])];
    let mean = run(17, OnnxNode::new("Mean", ["x", "z", "z"], "y"), &both, &[]).1;
    assert_eq!(mean, half(&[2], &[130300.0 / 3.0, 130400.0 / 3.0]).to_f64s());
    // (x − mean) / √variance fits, x / √variance does not.
    let x = half(&[1, 1, 1], &[60000.0]);
    let constants = [("s", 4.0), ("b", 1.0), ("m", 59968.0), ("v", 0.25)].map(|(n, v)| (n, half(&[1], &[v])));
    let node = OnnxNode::new("BatchNormalization", ["x", "s", "b", "m", "v"], "y");
    assert_eq!(run(17, node, &[&x], &constants).1, [257.0]);
}

#[test]
fn integers_are_averaged_and_exclusive_sums_keep_their_digits() {
    let x = Literal::from_slice([2, 3], &[1i32, 2, 4, -1, -2, -5]).unwrap();
    assert_eq!(run(17, OnnxNode::new("ReduceMean", ["x"], "y").ints("axes", [1]), &[&x], &[]).1, [2.0, -2.0]);
    let x = f32s(&[1, 4], &[1e8, 1.0, 2.0, 4.0]);
    let axis = [("a", Literal::from_slice([], &[1i64]).unwrap())];
    let node = OnnxNode::new("CumSum", ["x", "a"], "y").with("exclusive", int(1));
    assert_eq!(run(14, node.clone(), &[&x], &axis).1, [0.0, 1e8, 1e8, 1e8]);
    assert_eq!(run(14, node.with("reverse", int(1)), &[&x], &axis).1, [7.0, 6.0, 4.0, 0.0]);
    let x = f32s(&[2], &[3.0, -4.0]);
    for (op, expected) in
        [("ReduceL1", [3.0, 4.0]), ("ReduceSumSquare", [9.0, 16.0]), ("ReduceSum", [3.0, -4.0])]
    {
        let node = OnnxNode::new(op, ["x"], "y").with("noop_with_empty_axes", int(1));
        assert_eq!(run(18, node, &[&x], &[]).1, expected, "{op}");
    }
}

/// Every operator rejects an attribute that it does not know, by name.
#[test]
fn unknown_attributes_are_errors_that_name_them() {
    let x = f32s(&[1, 2, 4, 4], &[1.0; 32]);
    let mut tried = 0;
    for op in coverage() {
        let opset = op.newest.max(op.first).max(7);
        let node = OnnxNode::new(op.name, ["x"], "y").with("axis_of_mine", int(1));
        let valid = one(opset, OnnxNode { attributes: Default::default(), ..node.clone() }, &[&x], &[]);
        if valid.import(&sizes_of(std::slice::from_ref(&x))).is_err() {
            continue;
        }
        let e = refused(opset, node, &[&x], &[]);
        assert!(e.contains("`axis_of_mine`") && e.contains(op.name), "{e}");
        tried += 1;
    }
    assert!(tried > 50, "{tried} operators");
}

#[test]
fn modes_that_are_not_computed_are_errors_that_name_them() {
    let x = counted(&[1, 1, 4, 4]);
    let sizes = || {
        [
            ("z", Literal::from_slice([4], &[1i64, 1, 8, 8]).unwrap()),
            ("p", Literal::from_slice([8], &[0i64; 8]).unwrap()),
            ("g", f32s(&[1, 1, 1, 2], &[0.0; 2])),
        ]
    };
    let cases = [
        ("Resize", "mode", word("quintic"), "quintic"),
        ("Resize", "nearest_mode", word("up"), "nearest_mode up"),
        ("Resize", "coordinate_transformation_mode", word("tf_crop"), "tf_crop"),
        ("Resize", "keep_aspect_ratio_policy", word("both"), "keep_aspect_ratio_policy both"),
        ("Gelu", "approximate", word("fast"), "fast"),
        ("Pad", "mode", word("mirror"), "mirror"),
        ("MaxPool", "auto_pad", word("SAME"), "SAME"),
        ("LpPool", "auto_pad", word("SAME"), "SAME"),
        ("GridSample", "padding_mode", word("wrap"), "wrap"),
        ("BatchNormalization", "spatial", int(0), "spatial"),
        ("BatchNormalization", "training_mode", int(1), "training mode"),
        ("Split", "num_outputs", int(2), "num_outputs is 2"),
    ];
    for (op, name, value, part) in cases {
        let inputs: &[&str] = match op {
            "Resize" => &["x", "", "", "z"],
            "Pad" => &["x", "p"],
            "GridSample" => &["x", "g"],
            _ => &["x"],
        };
        let mut node = OnnxNode::new(op, inputs.iter().copied(), "y").with(name, value);
        if op.ends_with("Pool") {
            node = node.ints("kernel_shape", [2, 2]);
        }
        let e = refused(23, node, &[&x], &sizes());
        assert!(e.contains(part) && e.contains(op), "{op} {name}: {e}");
    }
}

#[test]
fn opsets_outside_of_the_supported_range_are_errors() {
    let x = f32s(&[2], &[1.0, 2.0]);
    for opset in [1, 6, 29, 400] {
        let e = refused(opset, OnnxNode::new("Relu", ["x"], "y"), &[&x], &[]);
        assert!(e.contains(&format!("unsupported opset {opset}")) && e.contains("7 to 28"), "{e}");
    }
    for opset in [7, 28] {
        assert_eq!(run(opset, OnnxNode::new("Relu", ["x"], "y"), &[&x], &[]).1, [1.0, 2.0]);
    }
    let e = refused(17, OnnxNode::new("Gelu", ["x"], "y"), &[&x], &[]);
    assert!(e.contains("opset 17") && e.contains("opset 20"), "{e}");
    let e = one(19, OnnxNode::new("Upsample", ["x"], "y"), &[&x], &[]).import(&sizes_of(&[x])).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Unsupported);
    assert!(e.to_string().contains("`Upsample`"), "{e}");
}
