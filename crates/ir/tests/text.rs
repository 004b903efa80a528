//! StableHLO text: exact round trip, variants of syntax, and malicious input.

use systole_ir::ErrorKind;
use systole_ir::rng::RandomStream;
use systole_ir::{
    DType, Graph, GraphBuilder, Literal, LiteralBuilder, Scalar, Sharding, Shardings, Tensor, TensorType,
    control_builders, grad, op, text,
};
use systole_testing::assert_error;

fn parse(written: &str) -> std::sync::Arc<Graph> {
    text::parse(written).unwrap_or_else(|e| panic!("{e}\n{written}"))
}

fn check_round_trip(graph: &Graph) -> String {
    let written = text::print(graph);
    let read = parse(&written);
    assert!(*read == *graph, "another graph:\n{written}");
    assert_eq!(text::print(&read), written);
    written
}

/// Complete derivative of a recurrent network: nested bodies, captures, recorded state.
fn training_step() -> std::sync::Arc<Graph> {
    let g = GraphBuilder::new("main");
    let f32 = |shape: &[usize]| TensorType::new(DType::F32, shape);
    let xs = g.parameter(f32(&[5, 2, 3]), "xs");
    let h = g.scalar(DType::F32, 0.0).broadcast_to(&[2, 3].into());
    // Created after other nodes; finished graphs still have their parameters first.
    let w = g.parameter(f32(&[3, 3]), "layer/w \"quoted\" é");
    let (last, ys) = control_builders::scan(&[&h], &[&xs], |carry, x| {
        let h = (carry[0].dot(&w) + &x[0]).tanh();
        let small = h.abs().sum_all().less(&h.scalar_like(1.0));
        (control_builders::cond(&small, || vec![h.sine()], || vec![&h * &w.sum(&[0])]), vec![h.erf()])
    });
    let loss = (last[0].sum_all() + ys[0].sort(1, true).mean_all()).stop_gradient() + ys[0].sum_all();
    let dw = grad(&loss, &[&w]).remove(0);
    g.finish(&[loss, dw]).unwrap()
}

#[test]
fn a_training_step_round_trips() {
    let graph = training_step();
    graph.verify().unwrap();
    let written = check_round_trip(&graph);
    for word in ["systole.trip_count = 5 : i64", "systole.recorded = array<i64: ", "\"chlo.erf\"", "#1"] {
        assert!(written.contains(word), "{word} is not in\n{written}");
    }
    assert_eq!(parse(&written).param_names, ["xs", "layer/w \"quoted\" é"]);
    let kept = graph.nodes.iter().flat_map(|n| &n.outs).filter(|t| t.shape.dims().starts_with(&[5, 5]));
    assert_eq!(kept.count(), 0, "the stacked results of scan are not recorded again for each iteration");
}

#[test]
fn layer_paths_are_comments() {
    let g = GraphBuilder::new("main");
    let x = g.parameter(TensorType::new(DType::F32, [2]), "x");
    let y = g.scope("dense", || g.scope("inner", || x.exp()));
    let graph = g.finish(&[y]).unwrap();
    let written = text::print_annotated(&graph);
    assert!(written.contains("tensor<2xf32> // dense/inner\n"), "{written}");
    assert!(*parse(&written) == *graph);
}

#[test]
fn arrays_round_trip_to_the_bit() {
    for dtype in DType::ALL {
        let bits: Vec<u64> = match dtype.size() {
            1 | 2 => (0..1u64 << dtype.bits()).collect(),
            _ => {
                let mut s = RandomStream::new(1, 2, dtype.size() as u64);
                let edges = [0, 1, 1 << 31, 1 << 63, 0x7f80_0001, 0xffc0_0000, 0x7ff0 << 48 | 1, u64::MAX];
                edges.into_iter().chain((0..5000).map(|_| s.next_u64())).collect()
            }
        };
        // Short lists are written as numbers, long ones as bytes.
        for chunk in bits.chunks(16).chain([&bits[..bits.len().min(100)]]) {
            let bytes: Vec<u8> =
                chunk.iter().flat_map(|b| b.to_le_bytes()[..dtype.size()].to_vec()).collect();
            let ty = TensorType::new(dtype, [chunk.len()]);
            let value = Literal::from_bytes(ty, &bytes).unwrap();
            let g = GraphBuilder::new("main");
            check_round_trip(&g.finish(&[g.constant(value)]).unwrap());
        }
    }
}

#[test]
fn numbers_read_as_in_mlir() {
    let value = |list: &str, ty: &str| {
        let written = format!(
            "func.func @f() -> tensor<{ty}> {{ %0 = \"stablehlo.constant\"() <{{value = dense<{list}> : \
             tensor<{ty}>}}> : () -> tensor<{ty}> return %0 : tensor<{ty}> }}"
        );
        text::parse(&written).map(|g| systole_ir::interp::run(&g, &[]).unwrap()[0].clone())
    };
    assert_eq!(value("[1.0, 2.5e-1, -3.0E+2]", "3xf32").unwrap().to_f32s(), [1.0, 0.25, -300.0]);
    assert_eq!(value("0x7F800000", "2xf32").unwrap().to_f32s(), [f32::INFINITY; 2]);
    assert_eq!(value("[[1], [-2]]", "2x1xi8").unwrap().to_f32s(), [1.0, -2.0]);
    assert_eq!(value("\"0x0100FFFF\"", "2xi16").unwrap().to_f32s(), [1.0, -1.0]);
    assert_eq!(value("true", "i1").unwrap().to_bools(), [true]);
    assert_eq!(value("", "0x3xf32").unwrap().ty().elements(), 0);
    for (list, ty) in [
        ("300", "i8"),
        ("-1", "ui8"),
        ("1.5", "i32"),
        ("[1, 2]", "3xi32"),
        ("[[1], [2, 3]]", "2x1xi32"),
        ("[1, [2]]", "2xi32"),
        ("[[1], 2]", "2x1xi32"),
        ("\"0x01\"", "2xi16"),
        ("\"0x0\"", "i8"),
        ("\"01\"", "i8"),
        ("", "3xi32"),
        ("nan", "f32"),
        ("0x1FFFFFFFF", "f32"),
        ("inf", "f32"),
        ("[]", "f32"),
        ("1.0", "4294967296x4294967296xf32"),
        ("1.0", "1099511627776xf32"),
        ("1.0", "1073741824xf32"),
        ("1.0", "-1xf32"),
        ("1.0", "?xf32"),
        ("1.0", "xf32"),
        ("1.0", "2xfloat32"),
    ] {
        let error = value(list, ty).map(|l| panic!("dense<{list}> : tensor<{ty}> is {l:?}")).unwrap_err();
        assert!(error.to_string().contains("line 1:"), "{error}");
    }
}

#[test]
fn other_spellings_are_read() {
    let g = GraphBuilder::new("main");
    let x = g.parameter(TensorType::new(DType::F32, [2]), "x");
    let graph = g.finish(&[&x + &x]).unwrap();
    for written in [
        "// a comment\nmodule{func.func@main(%x:tensor<2xf32>loc(\"x\"))->tensor<2xf32>{%y=\"stablehlo.add\"(%x,%x):(tensor<2xf32>,tensor<2xf32>)->tensor<2xf32>\nreturn %y:tensor<2xf32>}}",
        "#loc1 = loc(\"a.py\":1:2)\nmodule @jit_f attributes {mhlo.num_partitions = 1 : i32, a = [1, {b}]} {\n func.func public @main(%arg0: tensor<2xf32> {jax.arg = \"q\"}) \
         -> (tensor<2xf32> {jax.result_info = \"\"}) attributes {z} {\n %0:1 = \"stablehlo.add\"(%arg0, %arg0) {note = \"\\22\\n\"} : \
         (tensor<2xf32>, tensor<2xf32>) -> (tensor<2xf32>) loc(unknown)\n \"func.return\"(%0#0) : (tensor<2xf32>) -> () } loc(#loc1) }\n#loc2 = loc(\"b\"(#loc1))",
    ] {
        assert!(*parse(written) == *graph, "{written}");
    }
}

#[test]
fn a_program_for_a_mesh_says_how_its_arrays_are_split() {
    let g = GraphBuilder::new("step");
    let x = g.parameter(TensorType::new(DType::F32, [8, 3]), "x");
    let graph = g.finish(&[&x + &x, x.sum_all()]).unwrap();
    let rows = Sharding::replicated(2).split(0, 0);
    let spread = Shardings {
        mesh: "data=4,model=1".parse().unwrap(),
        params: vec![rows.clone()],
        results: vec![rows, Sharding::replicated(0)],
    };
    let written = text::print_program(&graph, &[(0, 0)], Some(&spread));
    for part in [
        r#"sdy.mesh @mesh = <["data"=4, "model"=1]>"#,
        r#"%arg0: tensor<8x3xf32> {tf.aliasing_output = 0 : i32, sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>}"#,
        r#"(tensor<8x3xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>}, tensor<f32> {sdy.sharding = #sdy.sharding<@mesh, []>})"#,
    ] {
        assert!(written.contains(part), "{part} is not in\n{written}");
    }
    let read = text::parse_program(&written).unwrap();
    assert!(*read.graph == *text::parse(&written).unwrap());
    assert_eq!((read.donated, read.spread.as_ref()), (vec![(0, 0)], Some(&spread)));
    for (from, to, what) in [
        (r#"[{"data"}, {}]"#, r#"[{"dat"}, {}]"#, "no axis dat"),
        (r#"[{"data"}, {}]"#, r#"[{"data"}]"#, "1 sharding dimensions"),
        (r#"[{"data"}, {}]"#, r#"[{}, {"data"}]"#, "4 equal parts"),
        (r#"[{"data"}, {}]"#, r#"[{"data"}, {"data"}]"#, "twice"),
        (r#"["data"=4, "model"=1]"#, r#"["data"=0]"#, "no devices"),
        (r#"["data"=4, "model"=1]"#, r#"["data"=99999999999]"#, "integer"),
        (r#"sdy.mesh @mesh = <["data"=4, "model"=1]>"#, "", "no mesh"),
        ("aliasing_output = 0", "aliasing_output = 2", "invalid tf.aliasing_output"),
        ("aliasing_output = 0", "aliasing_output = -1", "invalid tf.aliasing_output"),
    ] {
        let e = text::parse_program(&written.replacen(from, to, 1)).unwrap_err().to_string();
        assert!(e.contains(what), "{from} → {to}: {e}");
    }
}

#[test]
fn errors_name_line_and_column() {
    let good = "func.func @f(%a: tensor<2xf32>) -> tensor<2xf32> {\n  %0 = \"stablehlo.negate\"(%a) : (tensor<2xf32>) -> tensor<2xf32>\n  return %0 : tensor<2xf32>\n}\n";
    parse(good);
    for (from, to, what) in [
        ("(%a) :", "(%b) :", "line 2:27"),
        ("negate\"", "negated\"", "unknown op"),
        ("negate\"", "not\"", "not is not defined"),
        (
            "-> tensor<2xf32>\n  return",
            "-> tensor<3xf32>\n  return",
            "the results are [f32[2]], declared as [f32[3]]",
        ),
        ("%0 = ", "%0:2 = ", "1 results, not 2"),
        ("%0 = ", "%a = ", "defined twice"),
        ("return %0", "return %0#1", "has no result 1"),
        ("(%a) :", "(%a) ({ \"stablehlo.return\"() : () -> () }) :", "wrong number of bodies: 1"),
        (") -> tensor<2xf32> {", ") -> tensor<f32> {", "declared result types"),
        ("}\n", "", "the end of the text"),
        ("}\n", "} }", "exactly one function"),
        ("%a)", "%a, %a)", "operand types"),
        ("\"stablehlo.negate\"", "stablehlo.negate", "quoted name"),
        ("func.func", "func", "expected `func.func`"),
        ("@f", "\u{1F600}", "unexpected character"),
    ] {
        let bad = good.replacen(from, to, 1);
        let error = text::parse(&bad).map(|_| panic!("accepted {bad}")).unwrap_err().to_string();
        let what = if what == "not is not defined" { "not supported for element type f32" } else { what };
        assert!(error.contains(what) && error.contains("line "), "{from} → {to}: {error}");
    }
}

#[test]
fn nesting_is_bounded() {
    let deep = |open: &str, close: &str| {
        format!("module attributes {{a = {}{}}}", open.repeat(100_000), close.repeat(100_000))
    };
    for written in [deep("[", "]"), deep("{a = ", "}")] {
        assert_error(&text::parse(&written).unwrap_err(), ErrorKind::Data, &["32"]);
    }
    let body = "\"stablehlo.while\"() ({ ".repeat(10_000);
    let written = format!("func.func @f() {{ {body}");
    assert_error(&text::parse(&written).unwrap_err(), ErrorKind::Data, &["32"]);
    let dense = format!("module attributes {{a = dense<{}", "[".repeat(100_000));
    assert!(text::parse(&dense).is_err());
}

/// Text that is truncated or has modified bytes is rejected or parsed to a valid graph.
#[test]
fn damaged_text_never_panics() {
    let mut texts = vec![text::print(&training_step())];
    for e in op::TABLE {
        texts.extend((e.samples)().first().map(|s| text::print(&s.graph)));
    }
    let mut s = RandomStream::new(4, 5, 6);
    let mut refused = 0;
    for (i, whole) in texts.iter().enumerate() {
        let step = if i == 0 { 7 } else { 1 };
        for cut in (0..whole.len()).step_by(step) {
            if whole.is_char_boundary(cut) && cut < whole.trim_end().len() {
                assert!(text::parse(&whole[..cut]).is_err(), "accepted a text cut at {cut}:\n{whole}");
            }
        }
        for _ in 0..400 {
            let mut bytes = whole.clone().into_bytes();
            for _ in 0..=s.below(2) {
                let at = s.below(bytes.len() as u64) as usize;
                let palette = b"0123456789x<>[]{}()%#@^\",:=-_aef\n";
                bytes[at] = palette[s.below(palette.len() as u64) as usize];
            }
            let Ok(damaged) = String::from_utf8(bytes) else { continue };
            match text::parse(&damaged) {
                Ok(graph) => graph.verify().unwrap_or_else(|e| panic!("{e}\n{damaged}")),
                Err(_) => refused += 1,
            }
        }
    }
    assert!(refused > 5000, "{refused}");
}

#[test]
fn captures_come_back_in_order_of_use() {
    let g = GraphBuilder::new("main");
    let [a, b, c] = ["a", "b", "c"].map(|n| g.parameter(TensorType::scalar(DType::F32), n));
    let y = control_builders::while_loop(&[&a], |s| s[0].less(&c), |s| vec![&s[0] * &b + &c]);
    let graph = g.finish(&y).unwrap();
    let node = graph.node(graph.results[0]);
    assert_eq!(node.op.rule().captures(), 2);
    assert_eq!(node.inputs.iter().map(|v| v.index()).collect::<Vec<_>>(), [2, 1, 0]);
    check_round_trip(&graph);
}

#[test]
fn bodies_that_may_not_capture_are_refused() {
    let written = "func.func @f(%a: tensor<2xf32>, %b: tensor<f32>) -> tensor<f32> {
      %0 = \"stablehlo.reduce\"(%a, %b) <{dimensions = array<i64: 0>}> ({
      ^bb0(%x: tensor<f32>, %y: tensor<f32>):
        %1 = \"stablehlo.add\"(%x, %b) : (tensor<f32>, tensor<f32>) -> tensor<f32>
        \"stablehlo.return\"(%1) : (tensor<f32>) -> ()
      }) : (tensor<2xf32>, tensor<f32>) -> tensor<f32>
      return %0 : tensor<f32> }";
    assert_error(&text::parse(written).unwrap_err(), ErrorKind::Data, &["line 2:", "stablehlo.reduce"]);
}

#[test]
fn a_float_literal_reads_back_whatever_its_type() {
    // Detects shortest f32 decimals that round twice when parsed through f64.
    let mut s = RandomStream::new(9, 9, 9);
    let mut b = LiteralBuilder::new(TensorType::new(DType::F32, [30]));
    for i in 0..30 {
        b.set(i, Scalar::Float(f32::from_bits(s.next_u32() & 0x7fff_ffff) as f64));
    }
    let g = GraphBuilder::new("main");
    let values: Vec<Tensor> = vec![g.constant(b.finish())];
    check_round_trip(&g.finish(&values).unwrap());
}
