//! Models whose sizes depend on the values of their inputs: they are computed in stages during import.

use systole_base::{DType, ErrorKind, Literal, Result};
use systole_cpu::CpuBackend;
use systole_ir::interp;
use systole_onnx::{DimSize, DimSizes, OnnxAttribute, OnnxGraph, OnnxModel, OnnxNode, ValueInfo};
use systole_runtime::{Backend, Buffer, CompileOptions, ExecutableArg};
use systole_testing::assert_error;

/// More elements than a program is compiled for without stages.
const N: usize = 96;

fn port(name: &str) -> ValueInfo {
    ValueInfo { name: name.into(), ..ValueInfo::default() }
}

fn constant(name: &str, value: f32) -> OnnxNode {
    OnnxNode::new("Constant", [""; 0], name).with("value_float", OnnxAttribute::Float(value))
}

fn numbers(name: &str, values: &[i64]) -> OnnxNode {
    OnnxNode::new("Constant", [""; 0], name).with("value_ints", OnnxAttribute::Ints(values.to_vec()))
}

fn model(nodes: Vec<OnnxNode>, outputs: &[&str]) -> OnnxModel {
    let mut m = OnnxModel { ir_version: 8, opset: 17, ..OnnxModel::default() };
    let sizes = Some(vec![DimSize::Known(N)]);
    m.graph.inputs = vec![ValueInfo { name: "x".into(), dtype: Some(DType::F32), sizes }];
    m.graph.outputs = outputs.iter().map(|name| port(name)).collect();
    m.graph.nodes = nodes;
    m
}

/// Twice the positive elements of x, and the largest three of them (fewer if there are fewer).
fn positives() -> OnnxModel {
    model(
        vec![
            constant("zero", 0.0),
            OnnxNode::new("Add", ["x", "x"], "double"),
            OnnxNode::new("Greater", ["double", "zero"], "is_positive"),
            OnnxNode::new("NonZero", ["is_positive"], "places"),
            numbers("flat", &[-1]),
            OnnxNode::new("Reshape", ["places", "flat"], "index"),
            OnnxNode::new("Gather", ["double", "index"], "found"),
            OnnxNode::new("Shape", ["found"], "size"),
            numbers("three", &[3]),
            OnnxNode::new("Min", ["size", "three"], "k"),
            OnnxNode {
                outputs: vec!["top".into(), String::new()],
                ..OnnxNode::new("TopK", ["found", "k"], "")
            },
        ],
        &["found", "top"],
    )
}

fn values(of: impl Fn(usize) -> f32) -> Literal {
    Literal::from_slice([N], &(0..N).map(of).collect::<Vec<f32>>()).unwrap()
}

/// Returns the outputs on the CPU engine and the number of stages; the interpreter must agree.
fn run(m: &OnnxModel, x: &Literal) -> Result<(Vec<Literal>, usize)> {
    systole_runtime::register(systole_cpu::provider());
    let values = vec![("x".to_string(), x.bytes().to_vec())];
    let program = m.import(&DimSizes { values, ..DimSizes::default() })?;
    assert_eq!(program.fixed, ["x"]);
    let device = CpuBackend::new()?;
    let compiled = device.compile(&program.graph, &CompileOptions::default())?;
    let found = compiled.run(vec![ExecutableArg::Donate(Buffer::from(x.clone()))])?;
    let found = found.iter().map(Buffer::to_literal).collect::<Result<Vec<_>>>()?;
    let reference = interp::run(&program.graph, &[x])?;
    assert_eq!(
        found.iter().map(Literal::to_f32s).collect::<Vec<_>>(),
        reference.iter().map(Literal::to_f32s).collect::<Vec<_>>()
    );
    Ok((found, program.stages))
}

#[test]
fn sizes_follow_the_values_of_the_input() {
    for (count, top) in [(5, vec![5.0, 4.0, 3.0]), (2, vec![2.0, 1.0]), (0, vec![])] {
        let (y, stages) =
            run(&positives(), &values(|i| if i < count { 0.5 * (i + 1) as f32 } else { -1.0 })).unwrap();
        assert_eq!(y[0].to_f32s(), (1..=count).map(|i| i as f32).collect::<Vec<_>>());
        assert_eq!(y[1].to_f32s(), top);
        assert_eq!(stages, 1, "the size of a gathered array is known without another stage");
    }
}

#[test]
fn a_program_for_all_inputs_has_fixed_sizes() {
    let e = positives().import(&DimSizes::default()).unwrap_err();
    assert_error(&e, ErrorKind::Unsupported, &["is_positive", "NonZero", "--input"]);
    // A value of another size is no value of the input.
    let values = vec![("x".to_string(), vec![0; 4 * N + 4])];
    let e = positives().import(&DimSizes { values, ..DimSizes::default() }).unwrap_err();
    assert_error(&e, ErrorKind::Unsupported, &["is_positive"]);
}

fn graph(inputs: &[&str], nodes: Vec<OnnxNode>, outputs: &[&str]) -> OnnxAttribute {
    OnnxAttribute::Graph(Box::new(OnnxGraph {
        inputs: inputs.iter().map(|name| port(name)).collect(),
        outputs: outputs.iter().map(|name| port(name)).collect(),
        nodes,
        ..OnnxGraph::default()
    }))
}

/// The elements of x above 0 if their sum is positive, otherwise x.
fn branches() -> OnnxModel {
    let inside = vec![
        constant("zero", 0.0),
        OnnxNode::new("Greater", ["x", "zero"], "is_positive"),
        OnnxNode::new("Compress", ["x", "is_positive"], "a"),
    ];
    let yes = graph(&[], inside, &["a"]);
    let no = graph(&[], vec![OnnxNode::new("Identity", ["x"], "b")], &["b"]);
    let nodes = vec![
        constant("none", 0.0),
        OnnxNode::new("ReduceSum", ["x"], "sum").with("keepdims", OnnxAttribute::Int(0)),
        OnnxNode::new("Greater", ["sum", "none"], "holds"),
        OnnxNode::new("If", ["holds"], "y").with("then_branch", yes).with("else_branch", no),
    ];
    model(nodes, &["y"])
}

#[test]
fn branches_may_differ_in_size() {
    let (y, stages) =
        run(&branches(), &values(|i| if i == 7 || i == 9 { 100.0 + i as f32 } else { -1.0 })).unwrap();
    assert_eq!((y[0].to_f32s(), stages), (vec![107.0, 109.0], 2));
    let (y, stages) = run(&branches(), &values(|_| -1.0)).unwrap();
    assert_eq!((y[0].shape().dims(), stages), (&[N][..], 1));
}

#[test]
fn loops_stack_as_many_outputs_as_the_data_say() {
    // Doubles the sum of x until it is at least 100, and stacks the sums.
    let body = vec![
        constant("limit", 100.0),
        OnnxNode::new("Add", ["sum", "sum"], "next"),
        OnnxNode::new("Less", ["next", "limit"], "more"),
    ];
    let mut repeat = OnnxNode::new("Loop", ["", "", "start"], "last")
        .with("body", graph(&["i", "go", "sum"], body, &["more", "next", "next"]));
    repeat.outputs.push("all".into());
    let sum = OnnxNode::new("ReduceSum", ["x"], "start").with("keepdims", OnnxAttribute::Int(0));
    let m = model(vec![sum, repeat], &["all"]);
    let (y, stages) = run(&m, &values(|i| if i == 0 { 30.0 } else { 0.0 })).unwrap();
    assert_eq!((y[0].to_f32s(), stages), (vec![60.0, 120.0], 2));
    let (y, _) = run(&m, &values(|i| if i == 0 { 13.0 } else { 0.0 })).unwrap();
    assert_eq!(y[0].to_f32s(), [26.0, 52.0, 104.0]);
}

/// A file of some hundred bytes must not take gigabytes to open.
#[test]
fn values_far_larger_than_the_model_are_refused() {
    let huge = model(
        vec![
            numbers("column", &[N as i64, 1, 1]),
            OnnxNode::new("Reshape", ["x", "column"], "y"),
            numbers("shape", &[N as i64, 1024, 1024]),
            OnnxNode::new("Expand", ["y", "shape"], "z"),
            OnnxNode::new("NonZero", ["z"], "places"),
        ],
        &["places"],
    );
    let e = run(&huge, &values(|i| i as f32)).unwrap_err();
    assert_error(&e, ErrorKind::Unsupported, &["f32[96, 1024, 1024]", "102"]);
    assert!(e.hint_text().is_some(), "{e}");
}
