//! Tests of the PJRT client against Systole's plugin: everything that Systole uses of PJRT, without an accelerator.

#![allow(clippy::print_stdout, reason = "says what was skipped")]

use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};
use systole_cpu::CpuBackend;
use systole_data::Dataset;
use systole_dist::Strategy;
use systole_ir::op::TABLE;
use systole_ir::{DType, ErrorKind, Graph, GraphBuilder, Literal, Mesh, Sharding, Shardings, TensorType};
use systole_nn::{Batch, Compile, Fit, Model, layers::*, loss::Loss, optimizer::adam};
use systole_pjrt::{
    Client, CompileCache, PjrtBackend, Plugin, PluginValue, RunInput, program_text, spread_text,
};
use systole_runtime::{
    Backend, Buffer, CompileOptions, DeviceData, DeviceId, ExecutableArg, ReadyEvent, STEPS_IN_FLIGHT,
    ShardedArray,
};
use systole_testing::assert_error;

/// Returns the plugin library next to the tests.
fn library() -> PathBuf {
    let exe = std::env::current_exe().expect("a test has a path");
    let found = exe.ancestors().skip(1).take(2).map(|d| d.join("libsystole_plugin.so")).find(|p| p.is_file());
    found.expect("cargo builds the library with its tests")
}

fn client(devices: i64) -> Client {
    let plugin = Plugin::load(&library()).unwrap();
    Client::open(&plugin, &[("num_devices", PluginValue::Int(devices))]).unwrap()
}

fn numbers(n: usize) -> Literal {
    Literal::from_slice([n], &(0..n).map(|i| i as f32).collect::<Vec<_>>()).unwrap()
}

/// Adds one: `x: f32[n] → f32[n]`.
fn one_more(n: usize) -> Arc<Graph> {
    let g = GraphBuilder::new("one_more");
    let x = g.parameter(TensorType::new(DType::F32, [n]), "x");
    g.finish(&[x + 1.0]).unwrap()
}

#[test]
fn every_sample_of_every_op_has_the_engines_bits() {
    let through = PjrtBackend::new("pjrt", client(1));
    let direct = CpuBackend::new().unwrap();
    let mut samples = 0;
    let mut failed = Vec::new();
    for entry in TABLE {
        for sample in (entry.samples)() {
            let args = sample.arguments(1);
            let run = |backend: &dyn Backend| -> Vec<Literal> {
                let program = backend.compile(&sample.graph, &CompileOptions::default()).unwrap();
                let args: Vec<Buffer> = args.iter().map(|a| backend.put(a, DeviceId(0)).unwrap()).collect();
                let results = program.run(args.iter().map(ExecutableArg::Borrow).collect()).unwrap();
                results.iter().map(|r| r.to_literal().unwrap()).collect()
            };
            let same = run(&through).iter().zip(&run(&direct)).all(|(a, b)| a.bytes() == b.bytes());
            samples += 1;
            if !same {
                failed.push(format!("{} {}", entry.name, sample.label));
            }
        }
    }
    assert!(failed.is_empty() && samples > TABLE.len(), "{failed:#?} of {samples}");
}

#[test]
fn eight_devices_hold_arrays_and_run_programs() {
    let client = client(8);
    assert_eq!(client.devices().len(), 8);
    assert_eq!(client.platform().unwrap().0, "systole");
    let ty = TensorType::new(DType::F32, [5]);
    for device in 0..8 {
        let x = client.put(&numbers(5), device).unwrap();
        let program = client.compile(&program_text(&one_more(5), &[]), device).unwrap();
        let y = program.run(&[RunInput::Kept(&x)]).unwrap();
        assert_eq!(y[0].to_literal(&ty).unwrap().to_f32s(), [1.0, 2.0, 3.0, 4.0, 5.0]);
        assert_eq!(x.to_literal(&ty).unwrap(), numbers(5));
    }
    assert!(client.put(&numbers(1), 8).err().unwrap().to_string().contains("device 8"));
    for wrong in [0, -1, i64::MAX] {
        let plugin = Plugin::load(&library()).unwrap();
        assert!(Client::open(&plugin, &[("num_devices", PluginValue::Int(wrong))]).is_err(), "{wrong}");
    }
}

/// Returns the resident memory of this process in bytes.
fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    status.split(' ').nth(1).and_then(|pages| pages.parse::<usize>().ok()).unwrap_or(0) * 4096
}

#[test]
fn donation_keeps_memory_flat_over_a_thousand_steps() {
    const N: usize = 1 << 20;
    let client = client(1);
    let program = client.compile(&program_text(&one_more(N), &[0]), 0).unwrap();
    let ty = TensorType::new(DType::F32, [N]);
    let first = client.put(&Literal::zeros(ty.clone()), 0).unwrap();
    let mut x = program.run(&[RunInput::Donated(&first)]).unwrap().remove(0);
    let gone = first.to_literal(&ty).unwrap_err().to_string();
    assert!(gone.contains("donated"), "{gone}");
    let before = resident();
    for _ in 1..1000 {
        x = program.run(&[RunInput::Donated(&x)]).unwrap().remove(0);
    }
    let grown = resident().saturating_sub(before);
    assert!(grown < 64 * N, "{} MiB more after 1,000 steps with arrays of 4 MiB", grown >> 20);
    assert!(x.to_literal(&ty).unwrap().to_f32s().iter().all(|v| *v == 1000.0));
}

/// Weights and optimizer slots stay on the device, are donated to each step and returned updated.
#[test]
fn a_model_trains_through_the_client_as_on_the_engine() {
    let losses = |backend: Arc<dyn Backend>| -> Vec<f64> {
        let mut model = Model::sequential([flatten(), dense(16).activation("relu"), dense(10)]);
        let loss = Loss::SparseCategoricalCrossentropy { from_logits: true, ignore_class: None };
        let compile = Compile { optimizer: adam(1e-2), loss, backend: Some(backend), ..Compile::default() };
        model.compile(compile).unwrap();
        let x =
            Literal::from_slice([20, 6, 6], &(0..720).map(|i| (i % 37) as f32 / 37.0).collect::<Vec<_>>());
        let y = Literal::from_slice([20], &(0..20).map(|i| i % 10).collect::<Vec<i32>>());
        let batch =
            Batch { inputs: vec![x.unwrap()], label: Some(y.unwrap()), weight: None, ..Batch::default() };
        let mut step = model.device_batch_training(&batch).unwrap();
        let one = |_| step.run().and_then(|()| step.loss()).unwrap();
        (0..10).map(one).collect()
    };
    let through = losses(Arc::new(PjrtBackend::new("pjrt", client(1))));
    let direct = losses(Arc::new(CpuBackend::new().unwrap()));
    assert!(direct[9] < direct[0], "{direct:?}");
    for (a, b) in through.iter().zip(&direct) {
        assert!((a - b).abs() <= 1e-6 * b.abs(), "{through:?}\n{direct:?}");
    }
}

/// Trains a smaller version of the tutorial's network.
fn train_cnn(backend: Arc<dyn Backend>, strategy: Strategy) -> Vec<f64> {
    let layers = [
        reshape([12, 12, 1]),
        conv2d(4, 3).activation("relu"),
        max_pooling2d(2),
        flatten(),
        dense(16).activation("relu"),
        dense(10),
    ];
    let mut model = Model::sequential(layers);
    let loss = Loss::SparseCategoricalCrossentropy { from_logits: true, ignore_class: None };
    let compile =
        Compile { optimizer: adam(1e-2), loss, backend: Some(backend), strategy, ..Compile::default() };
    model.compile(compile).unwrap();
    let x: Vec<f32> = (0..32 * 144).map(|i| ((i * 31) % 257) as f32 / 257.0).collect();
    let x = Literal::from_slice([32, 12, 12], &x).unwrap();
    let y = Literal::from_slice([32], &(0..32).map(|i| i % 10).collect::<Vec<i32>>());
    let batch = Batch { inputs: vec![x], label: Some(y.unwrap()), weight: None, ..Batch::default() };
    let mut step = model.device_batch_training(&batch).unwrap();
    (0..10).map(|_| step.run().and_then(|()| step.loss()).unwrap()).collect()
}

#[test]
fn a_network_trains_on_eight_devices_as_on_one() {
    let one = train_cnn(Arc::new(CpuBackend::new().unwrap()), Strategy::one_device());
    assert!(one[9] < one[0], "{one:?}");
    for strategy in [Strategy::data_parallel(), Strategy::fully_sharded()] {
        let eight = train_cnn(Arc::new(PjrtBackend::new("pjrt", client(8))), strategy.clone());
        for (a, b) in eight.iter().zip(&one) {
            assert!((a - b).abs() <= 1e-5 * b.abs(), "{eight:?}\n{one:?}");
        }
        // The devices sum what they exchange: bit-identical to eight logical devices, not to one.
        let logical = train_cnn(Arc::new(CpuBackend::new().unwrap()), strategy.devices(8));
        assert_eq!(eight, logical);
        assert_ne!(eight, one);
    }
}

/// Equal layers are sent as a loop with collectives inside.
#[test]
fn equal_layers_train_on_four_devices_as_on_one() {
    let run = |backend: Arc<dyn Backend>, strategy: Strategy| -> Vec<f64> {
        let block = || [dense(12), batch_normalization(), relu()];
        let layers: Vec<LayerSpec> = (0..4).flat_map(|_| block()).chain([dense(10)]).collect();
        let mut model = Model::sequential(layers);
        let loss = Loss::SparseCategoricalCrossentropy { from_logits: true, ignore_class: None };
        let compile =
            Compile { optimizer: adam(1e-2), loss, backend: Some(backend), strategy, ..Compile::default() };
        model.compile(compile).unwrap();
        let x: Vec<f32> = (0..16 * 12).map(|i| ((i * 31) % 257) as f32 / 257.0).collect();
        let x = Literal::from_slice([16, 12], &x).unwrap();
        let y = Literal::from_slice([16], &(0..16).map(|i| i % 10).collect::<Vec<i32>>());
        let batch = Batch { inputs: vec![x], label: Some(y.unwrap()), weight: None, ..Batch::default() };
        let mut step = model.device_batch_training(&batch).unwrap();
        (0..10).map(|_| step.run().and_then(|()| step.loss()).unwrap()).collect()
    };
    let one = run(Arc::new(CpuBackend::new().unwrap()), Strategy::one_device());
    assert!(one[9] < one[0], "{one:?}");
    for strategy in [Strategy::data_parallel(), Strategy::fully_sharded()] {
        let four = run(Arc::new(PjrtBackend::new("pjrt", client(4))), strategy);
        for (a, b) in four.iter().zip(&one) {
            assert!((a - b).abs() <= 1e-4 * b.abs(), "{four:?}\n{one:?}");
        }
    }
}

/// A temporary directory, removed with the test.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let dir = std::env::temp_dir().join(format!("systole-plugin-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(&dir).unwrap();
        Scratch(dir)
    }

    fn cache(&self) -> CompileCache {
        CompileCache::new(self.0.join("compiled"), 1 << 20)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn what_was_compiled_is_loaded_the_next_time() {
    let scratch = Scratch::new("cache");
    let own = scratch.0.join("plugin.so");
    std::fs::copy(library(), &own).unwrap();
    let open = |devices: i64| {
        let plugin = Plugin::load(&own).unwrap();
        Client::open(&plugin, &[("num_devices", PluginValue::Int(devices))])
            .unwrap()
            .with_cache(scratch.cache())
    };
    let four = |client: &Client| {
        let (graph, spread) = sum_on(4, 8);
        client.compile_parts(&spread_text(&graph, &[0], &spread), 4).unwrap()
    };
    let one = |client: &Client| client.compile(&program_text(&one_more(3), &[0]), 0).unwrap();
    let first = open(4);
    assert!(!four(&first).is_from_cache() && !one(&first).is_from_cache());
    assert_eq!(scratch.cache().usage().0, 2);
    // Another client: the programs are cached and run, including donation.
    let second = open(4);
    let (split, alone) = (four(&second), one(&second));
    assert!(split.is_from_cache() && alone.is_from_cache());
    let x = second.put(&numbers(3), 0).unwrap();
    let y = alone.run(&[RunInput::Donated(&x)]).unwrap();
    let ty = TensorType::new(DType::F32, [3]);
    assert_eq!(y[0].to_literal(&ty).unwrap().to_f32s(), [1.0, 2.0, 3.0]);
    assert!(x.to_literal(&ty).is_err());
    let parts: Vec<_> = (0..8).map(|k| second.put(&numbers(2), k / 2).unwrap()).collect();
    let lists: Vec<_> = parts.chunks(2).map(|p| [RunInput::Kept(&p[0]), RunInput::Kept(&p[1])]).collect();
    let results = split.run_parts(&lists.iter().map(|l| &l[..]).collect::<Vec<_>>()).unwrap();
    assert_eq!(results[3][1].to_literal(&TensorType::scalar(DType::F32)).unwrap().to_f32s(), [4.0]);
    // Other devices, another program, another device.
    assert!(!four(&open(8)).is_from_cache());
    assert!(!second.compile(&program_text(&one_more(4), &[0]), 0).unwrap().is_from_cache());
    assert!(!second.compile(&program_text(&one_more(3), &[0]), 1).unwrap().is_from_cache());
    // Another build of the plugin.
    let file = std::fs::File::options().write(true).open(&own).unwrap();
    file.set_modified(std::time::UNIX_EPOCH).unwrap();
    let rebuilt = open(4);
    assert!(!one(&rebuilt).is_from_cache());
    assert!(one(&rebuilt).is_from_cache());
}

#[test]
fn kept_programs_that_are_damaged_are_compiled_again() {
    let scratch = Scratch::new("damage");
    let client = client(1).with_cache(scratch.cache());
    let text = program_text(&one_more(3), &[]);
    let files = || -> Vec<PathBuf> {
        let folders = std::fs::read_dir(scratch.cache().folder()).unwrap().map(|e| e.unwrap().path());
        folders.flat_map(|f| std::fs::read_dir(f).unwrap().map(|e| e.unwrap().path())).collect()
    };
    assert!(!client.compile(&text, 0).unwrap().is_from_cache());
    assert_eq!(files().len(), 4);
    for k in 0..4 {
        let file = &files()[k];
        let mut bytes = std::fs::read(file).unwrap();
        bytes[5] ^= 1;
        std::fs::write(file, bytes).unwrap();
        assert!(!client.compile(&text, 0).unwrap().is_from_cache(), "{}", file.display());
        assert!(client.compile(&text, 0).unwrap().is_from_cache(), "{}", file.display());
    }
    // Without a cache directory programs are compiled again.
    std::fs::write(scratch.0.join("file"), "").unwrap();
    let nowhere = self::client(1).with_cache(CompileCache::new(scratch.0.join("file/cache"), 1 << 20));
    assert!((0..2).all(|_| !nowhere.compile(&text, 0).unwrap().is_from_cache()));
}

#[test]
fn clients_that_compile_at_once_share_a_cache() {
    let scratch = Scratch::new("at-once");
    std::thread::scope(|s| {
        for _ in 0..4 {
            s.spawn(|| {
                let client = client(1).with_cache(scratch.cache());
                for n in (1..6).chain(1..6) {
                    let program = client.compile(&program_text(&one_more(n), &[]), 0).unwrap();
                    let x = client.put(&numbers(n), 0).unwrap();
                    let y = program.run(&[RunInput::Kept(&x)]).unwrap();
                    let y = y[0].to_literal(&TensorType::new(DType::F32, [n])).unwrap().to_f32s();
                    assert_eq!(y, (1..=n).map(|i| i as f32).collect::<Vec<_>>());
                }
            });
        }
    });
    let client = client(1).with_cache(scratch.cache());
    assert!((1..6).all(|n| client.compile(&program_text(&one_more(n), &[]), 0).unwrap().is_from_cache()));
}

/// `w + x` and the sum, with `x` sharded: `w: f32[n], x: f32[n] → f32[n], f32[]`.
fn sum_on(devices: usize, n: usize) -> (Arc<Graph>, Shardings) {
    let g = GraphBuilder::new("sum");
    let ty = TensorType::new(DType::F32, [n]);
    let (w, x) = (g.parameter(ty.clone(), "w"), g.parameter(ty, "x"));
    let graph = g.finish(&[&w + &x, x.sum_all()]).unwrap();
    let split = Sharding::replicated(1).split(0, 0);
    let spread = Shardings {
        mesh: Mesh::new([("data", devices)]).unwrap(),
        params: vec![split.clone(), split.clone()],
        results: vec![split, Sharding::replicated(0)],
    };
    (graph, spread)
}

#[test]
fn a_thousand_steps_on_eight_devices_keep_memory_flat() {
    const N: usize = 1 << 18;
    let backend = PjrtBackend::new("pjrt", client(8));
    let (graph, spread) = sum_on(8, N);
    let options = CompileOptions { donated: vec![0], ..Default::default() };
    let program = backend.compile_spread(&graph, &spread, &options).unwrap().unwrap();
    let ones = Literal::from_slice([N], &vec![1f32; N]).unwrap();
    let mut w = Buffer::zeros(ones.ty().clone());
    let mut before = 0;
    for step in 0..1000 {
        let mut results =
            program.run(vec![ExecutableArg::Donate(w), ExecutableArg::Donate(ones.clone().into())]).unwrap();
        assert_eq!(results[1].to_f64().unwrap(), N as f64);
        w = results.swap_remove(0);
        let pieces = w.data::<ShardedArray>().expect("results lie on the devices");
        assert_eq!((pieces.parts.len(), pieces.parts[7].ty().shape.dims()), (8, &[N / 8][..]));
        if step == 10 {
            before = resident();
        }
    }
    let grown = resident().saturating_sub(before);
    assert!(grown < 64 << 20, "{} MiB more after 1,000 steps with arrays of 1 MiB", grown >> 20);
    assert!(w.to_literal().unwrap().to_f32s().iter().all(|v| *v == 1000.0));
}

#[test]
fn programs_that_do_not_fit_the_devices_are_refused() {
    let client = client(4);
    let backend = PjrtBackend::new("pjrt", client.clone());
    let compile = |devices, n| {
        let (graph, spread) = sum_on(devices, n);
        let program = backend.compile_spread(&graph, &spread, &CompileOptions::default()).unwrap();
        program.err().map(|e| e.to_string()).unwrap_or_default()
    };
    assert!(compile(8, 8).contains("8 devices"), "{}", compile(8, 8));
    assert!(compile(4, 6).contains("into 4"), "{}", compile(4, 6));
    assert_eq!(compile(4, 8), "");
    let (graph, spread) = sum_on(4, 8);
    let text = spread_text(&graph, &[0], &spread);
    for (devices, from, to, says) in [
        (2, "", "", "2 partitions do not match a mesh of 4"),
        (4, "=4]", "=99999999999999999999]", "integer"),
        (4, "=4]", "=2147483648]", "cannot split"),
        (4, "[{\"data\"}]", "[{\"nobody\"}]", "no axis nobody"),
        (4, "aliasing_output = 0", "aliasing_output = 77", "invalid tf.aliasing_output"),
    ] {
        let e = client.compile_parts(&text.replacen(from, to, 1), devices).err();
        let e = e.map(|e| e.to_string()).unwrap_or_default();
        assert!(e.contains(says), "{from} → {to}: {e}");
    }
    let program = client.compile_parts(&text, 4).unwrap();
    let parts: Vec<_> = (0..4).map(|d| client.put(&numbers(2), d).unwrap()).collect();
    let long = client.put(&numbers(3), 3).unwrap();
    let wrong: Vec<[RunInput<'_>; 2]> = (0..4)
        .map(|d| [RunInput::Donated(&parts[d]), RunInput::Kept(if d == 3 { &long } else { &parts[d] })])
        .collect();
    let lists: Vec<&[RunInput<'_>]> = wrong.iter().map(|l| &l[..]).collect();
    let e = program.run_parts(&lists).err().map(|e| e.to_string()).unwrap_or_default();
    assert!(e.contains("argument 1 is"), "{e}");
    let e = program.run_parts(&lists[..3]).err().map(|e| e.to_string()).unwrap_or_default();
    assert!(e.contains("3 devices"), "{e}");
    // Nothing was donated, and the client is still usable.
    let other: Vec<_> = (0..4).map(|d| client.put(&numbers(2), d).unwrap()).collect();
    let good: Vec<[RunInput<'_>; 2]> =
        (0..4).map(|d| [RunInput::Donated(&parts[d]), RunInput::Kept(&other[d])]).collect();
    let results = program.run_parts(&good.iter().map(|l| &l[..]).collect::<Vec<_>>()).unwrap();
    let ty = TensorType::new(DType::F32, [2]);
    assert_eq!(results[3][0].to_literal(&ty).unwrap().to_f32s(), [0.0, 2.0]);
    assert_eq!(results[0][1].to_literal(&TensorType::scalar(DType::F32)).unwrap().to_f32s(), [4.0]);
}

#[test]
fn what_is_lent_stays_as_it_was() {
    let client = client(1);
    let program = client.compile(&program_text(&one_more(3), &[0]), 0).unwrap();
    let x = client.put(&numbers(3), 0).unwrap();
    for _ in 0..2 {
        program.run(&[RunInput::Kept(&x)]).unwrap();
    }
    assert_eq!(x.to_literal(&TensorType::new(DType::F32, [3])).unwrap(), numbers(3));
}

#[test]
fn errors_leave_the_client_usable() {
    let client = client(1);
    let program = client.compile(&program_text(&one_more(3), &[0]), 0).unwrap();
    let message = |e: systole_ir::Error| e.to_string();
    for (wrong, says) in [
        ("nonsense", "expected"),
        ("", "expected"),
        ("ML\u{ef}R", "bytecode"),
        ("func.func @main() -> tensor<99999999999999999999xf32> {", "line"),
    ] {
        let e = client.compile(wrong, 0).err().map(message).unwrap_or_default();
        assert!(e.contains(says), "{wrong}: {e}");
    }
    let long = client.put(&numbers(4), 0).unwrap();
    let e = program.run(&[RunInput::Donated(&long)]).err().map(message).unwrap_or_default();
    assert!(e.contains("argument 0"), "{e}");
    let e = program.run(&[]).err().map(message).unwrap_or_default();
    assert!(e.contains("0 arguments"), "{e}");
    let x = client.put(&numbers(3), 0).unwrap();
    let other = self::client(1);
    let foreign = other.put(&numbers(3), 0).unwrap();
    assert_error(&program.run(&[RunInput::Kept(&foreign)]).err().unwrap(), ErrorKind::Config, &["0"]);
    assert!(program.run(&[RunInput::Donated(&x)]).is_ok());
    assert_error(&program.run(&[RunInput::Donated(&x)]).err().unwrap(), ErrorKind::Config, &["0"]);
}

#[test]
fn a_library_that_is_no_plugin_is_refused() {
    let dir = std::env::temp_dir().join(format!("systole-no-plugin-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let text = dir.join("text.so");
    std::fs::write(&text, "hello, this is no library at all").unwrap();
    let foreign = dir.join("foreign.so");
    let mut head = b"\x7fELF".to_vec();
    head.resize(64, 0);
    head[18] = 243;
    std::fs::write(&foreign, &head).unwrap();
    let cut = dir.join("cut.so");
    head[18] = if cfg!(target_arch = "x86_64") { 62 } else { 183 };
    std::fs::write(&cut, &head).unwrap();
    for (path, says) in [
        (dir.join("missing.so"), "cannot read the plugin"),
        (dir.clone(), "cannot read the plugin"),
        (text, "not an ELF file"),
        (foreign, "machine type 243"),
        (cut, "cannot load the plugin"),
    ] {
        let e = Plugin::load(&path).err().map(|e| e.to_string()).unwrap_or_default();
        assert!(e.contains(says) && e.contains("try:"), "{}: {e}", path.display());
    }
    std::fs::remove_dir_all(&dir).unwrap();
}

/// Ensures that client and plugin do not share a misreading of the C API: uses JAX's client.
#[test]
fn jax_lists_the_devices_and_puts_and_gets_arrays() {
    let Ok(python) = std::env::var("SYSTOLE_PYTHON") else {
        println!("SKIPPED jax_lists_the_devices: SYSTOLE_PYTHON names no Python with JAX");
        return;
    };
    const SCRIPT: &str = "
import sys, jax, numpy as np
from jax._src import xla_bridge
xla_bridge.register_plugin('systole', priority=500, library_path=sys.argv[1], options={'num_devices': 4})
devices = jax.devices()
print('devices', len(devices), devices[0].platform, devices[0].device_kind)
for d in devices:
    for dtype in ['float32', 'int8', 'uint16', 'bool', 'float16']:
        x = np.arange(24).reshape(2, 3, 4).astype(dtype)
        for view in [x, x.transpose(2, 0, 1), x[:, ::2], x[:, :0], x[1, 2, 3]]:
            y = jax.device_put(view, d)
            assert y.devices() == {d}, y.devices()
            assert np.array_equal(np.asarray(y), view), (dtype, view.shape)
";
    let out = Command::new(python)
        .args(["-c", SCRIPT])
        .arg(library())
        .env("JAX_ENABLE_X64", "1")
        .env_remove("JAX_PLATFORMS")
        .output()
        .expect("Python starts");
    let said = String::from_utf8_lossy(&out.stdout);
    assert!(out.status.success(), "{said}\n{}", String::from_utf8_lossy(&out.stderr));
    assert!(said.contains("devices 4 systole Systole CPU"), "{said}");
}

/// A client whose runs complete `EACH` after their calls, one after the other.
fn late(devices: i64) -> Client {
    let options = [("num_devices", devices), ("step_milliseconds", EACH.as_millis() as i64)];
    let plugin = Plugin::load(&library()).unwrap();
    Client::open(&plugin, &options.map(|(name, n)| (name, PluginValue::Int(n)))).unwrap()
}

const EACH: Duration = Duration::from_millis(5);

#[test]
fn runs_go_on_after_their_calls_and_no_more_than_two_are_under_way() {
    let client = late(1);
    let program = client.compile(&program_text(&one_more(5), &[0]), 0).unwrap();
    let ty = TensorType::new(DType::F32, [5]);
    let mut x = client.put(&Literal::zeros(ty.clone()), 0).unwrap();
    assert!(x.ready_event().is_none(), "no run makes it");
    let (mut runs, began) = (Vec::<ReadyEvent>::new(), Instant::now());
    for _ in 0..6 {
        x = program.run(&[RunInput::Donated(&x)]).unwrap().remove(0);
        runs.push(x.ready_event().expect("a run makes it"));
        let under_way = runs.iter().filter(|run| run.finished().is_none()).count();
        assert!(under_way <= STEPS_IN_FLIGHT, "{under_way} are under way");
    }
    assert_eq!(x.to_literal(&ty).unwrap().to_f32s(), [6.0; 5]);
    // Also of donated buffers.
    let ends: Vec<Instant> = runs.iter().map(|run| run.wait().unwrap()).collect();
    assert!(ends.is_sorted() && ends[5] - began >= 6 * EACH, "{ends:?}");
}

#[test]
fn times_of_training_are_those_of_finished_steps() {
    for (devices, strategy) in [(1, Strategy::one_device()), (2, Strategy::data_parallel())] {
        let mut model = Model::sequential([dense(8).activation("relu"), dense(1)]);
        let backend: Option<Arc<dyn Backend>> = Some(Arc::new(PjrtBackend::new("pjrt", late(devices))));
        let compile = Compile {
            optimizer: adam(1e-2),
            loss: Loss::MeanSquaredError,
            backend,
            strategy,
            ..Compile::default()
        };
        model.compile(compile).unwrap();
        let (x, y) = (Literal::from_slice([32, 3], &[0.5f32; 96]), Literal::from_slice([32, 1], &[1f32; 32]));
        let data = Dataset::from_tensor_slices([("x", x.unwrap()), ("label", y.unwrap())]).unwrap().batch(4);
        let began = Instant::now();
        let history = model.fit(&data, Fit { verbose: 0, ..Fit::default() }).unwrap();
        let all = began.elapsed().as_secs_f32() * 1e3;
        let each = EACH.as_secs_f32() * 1e3 - 1e-3;
        assert_eq!(history.step_ms.len(), 8);
        assert!(history.step_ms.iter().all(|ms| *ms >= each), "{:?}", history.step_ms);
        assert!(history.step_ms.iter().sum::<f32>() <= all + each, "{:?} of {all}", history.step_ms);
        assert!(history.device_wait() > 0.0);
    }
}
