//! Tests of profiles through PJRT's profiler extension: kernels by layer, on one device and on several.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use systole_ir::{DType, GraphBuilder, Literal, Mesh, Sharding, Shardings, TensorType, grad};
use systole_pjrt::{Client, PjrtBackend, Plugin, PluginValue};
use systole_runtime::{Backend, CompileOptions, Executable, ExecutableArg, events};

static TOLD: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// A layer with weights, its loss, and the gradient.
fn step(rows: usize) -> Arc<systole_ir::Graph> {
    let g = GraphBuilder::new("step");
    let x = g.parameter(TensorType::new(DType::F32, [rows, 256]), "x");
    let w = g.parameter(TensorType::new(DType::F32, [256, 256]), "w");
    let y = g.scope("dense_7", || x.matmul(&w).tanh());
    let loss = g.scope("loss", || (&y * &y).sum_all());
    let gradient = grad(&loss, &[&w]).remove(0);
    let new = g.scope("optimizer", || &w - gradient * 0.01);
    g.finish(&[loss, new]).unwrap()
}

fn runs(program: &dyn Executable, count: usize) {
    let of = |ty: &TensorType| {
        let n = ty.elements();
        Literal::from_slice(ty.shape.clone(), &(0..n).map(|i| (i % 7) as f32 * 0.01).collect::<Vec<_>>())
            .unwrap()
    };
    let args: Vec<_> = program.param_types().iter().map(|ty| of(ty).into()).collect();
    for _ in 0..count {
        program.run(args.iter().map(ExecutableArg::Borrow).collect()).unwrap();
    }
}

fn told_of(label: &str) -> String {
    let all = TOLD.lock().unwrap();
    let found = all.iter().filter(|m| m.starts_with(&format!("kernels of {label}:\n"))).collect::<Vec<_>>();
    assert_eq!(found.len(), 1, "{label}: {all:?}");
    found[0].clone()
}

#[test]
fn kernels_are_told_by_the_layers_of_the_program() {
    events::install(2, |_, message| TOLD.lock().unwrap().push(message.into()));
    let exe: PathBuf = std::env::current_exe().unwrap();
    let found = exe.ancestors().skip(1).take(2).map(|d| d.join("libsystole_plugin.so")).find(|p| p.is_file());
    let plugin = Plugin::load(&found.expect("cargo builds the library with its tests")).unwrap();
    let backend =
        PjrtBackend::new("pjrt", Client::open(&plugin, &[("num_devices", PluginValue::Int(2))]).unwrap());

    let options = |label: &str| CompileOptions { label: label.into(), ..CompileOptions::default() };
    // Runs of another program in between are not counted.
    let other = backend.compile(&step(48), &options("another")).unwrap();
    let program = backend.compile(&step(64), &options("a step")).unwrap();
    for _ in 0..20 {
        runs(&*program, 1);
        runs(&*other, 1);
    }
    let told = told_of("a step");
    assert!(told.contains("10 runs recorded on Systole:0: busy "), "{told}");
    for layer in ["of dense_7", "of loss", "of optimizer"] {
        assert!(told.contains(layer), "{layer}: {told}");
    }
    // Each of ten runs launches a kernel once; earlier and later runs are not counted.
    let calls = |line: &str| line.split_whitespace().any(|word| word == "10");
    assert!(told.lines().filter(|l| l.contains(" of dense_7")).all(calls), "{told}");

    drop(other);
    // A program dropped early reports the runs recorded so far; with too few, it says so.
    let program = backend.compile(&step(32), &options("short")).unwrap();
    runs(&*program, 5);
    drop(program);
    assert!(told_of("short").contains("3 runs recorded"));
    let program = backend.compile(&step(16), &options("shorter")).unwrap();
    runs(&*program, 1);
    drop(program);
    let none = "shorter has no profile: of 1 run none was recorded";
    assert!(TOLD.lock().unwrap().iter().any(|m| m.starts_with(none)));

    let graph = step(64);
    let whole = Sharding::replicated(2);
    let spread = Shardings {
        mesh: Mesh::new([("batch", 2)]).unwrap(),
        params: vec![whole.clone().split(0, 0), whole.clone()],
        results: vec![Sharding::replicated(0), whole],
    };
    let program = backend.compile_spread(&graph, &spread, &options("two devices")).unwrap().unwrap();
    runs(&*program, 14);
    let told = told_of("two devices");
    assert!(told.contains("10 runs recorded") && told.contains("of dense_7"), "{told}");
}
