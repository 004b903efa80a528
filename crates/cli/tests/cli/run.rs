//! End-to-end tests of `systole run`: program files of Systole and JAX, valid and invalid arrays from files and pipes,
//! comparison of two devices, and reduction of failing programs.

#![allow(clippy::print_stdout, reason = "says what was skipped")]

use crate::program::{Done, Folder};
use serde_json::Value;
use std::io::Write;
use std::process::Stdio;
use std::time::{Duration, Instant};
use systole_data::format::npy;
use systole_ir::{DType, Literal};

/// As JAX writes a layer with its loss, written by hand.
const LAYER: &str = r#"#loc1 = loc("x")
module @jit_f attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<4x3xf32> loc("x"), %arg1: tensor<3x2xf32> loc("w"), %arg2: tensor<4xi32> loc("y")) -> (tensor<4x2xf32> {jax.result_info = "result[0]"}, tensor<f32> {jax.result_info = "result[1]"}) {
    %0 = stablehlo.dot_general %arg0, %arg1, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<4x3xf32>, tensor<3x2xf32>) -> tensor<4x2xf32> loc(#loc1)
    %1 = call @relu(%0) : (tensor<4x2xf32>) -> tensor<4x2xf32>
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %2 = stablehlo.reduce(%1 init: %cst) applies stablehlo.add across dimensions = [0, 1] : (tensor<4x2xf32>, tensor<f32>) -> tensor<f32>
    %3 = stablehlo.exponential %2 : tensor<f32>
    return %1, %3 : tensor<4x2xf32>, tensor<f32>
  }
  func.func private @relu(%arg0: tensor<4x2xf32>) -> tensor<4x2xf32> {
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %0 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<4x2xf32>
    %1 = stablehlo.maximum %arg0, %0 : tensor<4x2xf32>
    return %1 : tensor<4x2xf32>
  }
}
"#;

fn folder(name: &str) -> Folder {
    let f = Folder::new(&format!("run-{name}"));
    f.write("layer.mlir", LAYER);
    f
}

/// The arguments of [`LAYER`], each under a name.
fn arguments(f: &Folder, file: &str, names: [&str; 3]) {
    let x: Vec<f32> = (0..12).map(|i| i as f32 - 5.0).collect();
    let w = [1f32, 0.0, 0.0, 1.0, 0.5, -0.5];
    let arrays = [
        Literal::from_slice([4, 3], &x).unwrap(),
        Literal::from_slice([3, 2], &w).unwrap(),
        Literal::from_slice([4], &[0i32, 1, 2, 3]).unwrap(),
    ];
    let named: Vec<(&str, Vec<u8>)> =
        names.into_iter().zip(arrays.iter().map(|x| npy::to_bytes(x).unwrap())).collect();
    f.write(file, crate::program::made::npz(&named));
}

/// The program fed by a pipe.
fn piped(f: &Folder, args: &[&str], input: &[u8]) -> Done {
    let mut child =
        f.command(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(input).unwrap();
    Done::of(child.wait_with_output().unwrap(), args)
}

#[test]
fn a_program_of_jax_gives_the_same_on_both_devices() {
    let f = folder("jax");
    let run = |device: &str| {
        f.run(&["run", "layer.mlir", "--random", "3", "--device", device, "--json", "--repeat", "3"])
            .ok()
            .json()
    };
    let (cpu, interpreted) = (run("cpu"), run("ref"));
    assert_eq!((&cpu["device"], &interpreted["device"]), (&Value::from("cpu"), &Value::from("ref")));
    for (a, b) in cpu["results"].as_array().unwrap().iter().zip(interpreted["results"].as_array().unwrap()) {
        assert_eq!((&a["name"], &a["type"], &a["nan"]), (&b["name"], &b["type"], &b["nan"]));
        let (a, b) = (a["mean"].as_f64().unwrap(), b["mean"].as_f64().unwrap());
        assert!((a - b).abs() < 1e-5 * b.abs().max(1.0), "{a} {b}");
    }
    assert_eq!(cpu["repeat"]["runs"], 3);
    assert!(cpu["repeat"]["best_ms"].as_f64() <= cpu["repeat"]["median_ms"].as_f64());
    // Both words for a device, a pipe, and the same numbers.
    let text = f.run(&["run", "layer.mlir", "--random", "3", "--backend", "cpu", "-q"]).ok().out;
    assert_eq!(
        piped(&f, &["run", "-", "--random", "3", "--device=cpu", "-q"], LAYER.as_bytes()).ok().out,
        text
    );
    assert!(text.starts_with("out0  f32[4, 2]  [") && text.contains("out1  f32[]      ["), "{text}");
}

#[test]
fn our_own_text_runs_as_it_is_shown() {
    let f = Folder::new("run-own");
    f.write("small.toml", systole::config::RunConfig::preset_text("mlp").unwrap().replace("512", "8"));
    let text = f.run(&["show", "small.toml", "--stage", "stablehlo", "--batch-size", "4"]).ok().out;
    f.write("step.mlir", &text);
    let run = f.run(&["run", "step.mlir", "--random", "1", "--json"]).ok().json();
    assert!(run["arguments"].as_u64() > Some(6) && run["results"].as_array().unwrap().len() > 6, "{run}");
    f.run(&["show", "step.mlir", "--stage", "kernels"]).ok();
    assert_eq!(f.run(&["show", "step.mlir"]).ok().out, text);
    f.run(&["show", "step.mlir", "--stage", "grad"]).fails("usage", &["--stage grad"]);
    f.run(&["show", "step.mlir", "--batch-size", "4"]).fails("usage", &["--batch-size"]);
}

#[test]
fn arguments_and_results_are_files_of_named_arrays() {
    let f = folder("files");
    arguments(&f, "in.npz", ["arg0", "arg1", "arg2"]);
    arguments(&f, "own.npz", ["x", "w", "y"]);
    arguments(&f, "plain.npz", ["arr_0", "arr_1", "arr_2"]);
    for input in ["in.npz", "own.npz", "plain.npz"] {
        let done = f.run(&["run", "layer.mlir", "--input", input, "--output", "out.npz"]).ok();
        assert!(done.out.contains("out.npz: out0 f32[4, 2], out1 f32[]"), "{}", done.out);
        let out = npy::read_npz(f.path("out.npz")).unwrap();
        assert_eq!(out[0].0, "out0");
        // Row 3 of x is 4, 5, 6: 4 + 3 and 5 − 3.
        assert_eq!(out[0].1.to_f32s()[6..], [7.0, 2.0]);
        assert_eq!((out[1].0.as_str(), out[1].1.ty().to_string()), ("out1", "f32[]".into()));
    }
    f.run(&["run", "layer.mlir", "--input", "in.npz", "--output", "out.safetensors"]).ok();
    let bytes = std::fs::read(f.path("out.safetensors")).unwrap();
    let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    assert_eq!(file.tensor("out0").unwrap().shape(), [4, 2]);
    // What one program gives another takes, in either format.
    f.write(
        "twice.mlir",
        "func.func @main(%out0: tensor<4x2xf32> loc(\"out0\"), %out1: tensor<f32> loc(\"out1\")) -> tensor<4x2xf32> {
           %0 = stablehlo.add %out0, %out0 : tensor<4x2xf32>
           return %0 : tensor<4x2xf32>
         }",
    );
    for input in ["out.npz", "out.safetensors"] {
        let out = f.run(&["run", "twice.mlir", "--input", input, "--json"]).ok().json();
        assert_eq!(out["results"][0]["first"][6], 14.0, "{out}");
    }
    // An array alone has no name.
    npy::write(f.path("one.npy"), &Literal::from_slice([2], &[1i32, 2]).unwrap()).unwrap();
    let one = "func.func @main(%a: tensor<2xi32>) -> tensor<2xi32> { return %a : tensor<2xi32> }";
    f.write("one.mlir", one);
    assert!(f.run(&["run", "one.mlir", "--input", "one.npy", "-q"]).ok().out.contains("[1, 2]"));
}

/// A step of JAX itself, as text and as a portable artifact, beside what JAX computes. Needs a Python with JAX.
#[test]
fn programs_that_jax_writes_give_jaxs_numbers() {
    let Ok(python) = std::env::var("SYSTOLE_PYTHON") else {
        println!(
            "SKIPPED programs_that_jax_writes_give_jaxs_numbers: SYSTOLE_PYTHON names no Python with JAX"
        );
        return;
    };
    let f = Folder::new("run-by-jax");
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cli/run/jax_step.py");
    let made = std::process::Command::new(python).arg(script).current_dir(&f.0).output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let arrays = |file: &str| npy::raw_npz_from_bytes(file, &std::fs::read(f.path(file)).unwrap()).unwrap();
    let want = arrays("want.npz");
    for (program, device) in [("step.mlir", "cpu"), ("step.bc", "cpu"), ("step.mlir", "ref")] {
        f.run(&["run", program, "--input", "in.npz", "--output", "got.npz", "--device", device]).ok();
        let got = arrays("got.npz");
        assert_eq!(got.len(), want.len());
        for ((name, got), (other, want)) in got.iter().zip(&want) {
            let ty =
                |x: &npy::RawNpyArray| (x.descr.trim_start_matches(['<', '|']).to_string(), x.dims.clone());
            assert_eq!((name, ty(got)), (other, ty(want)), "{program} on {device}");
            if !["<f4", "<c8"].contains(&got.descr.as_str()) {
                assert_eq!(got.bytes, want.bytes, "{program} on {device}: {name}");
                continue;
            }
            let floats = |x: &npy::RawNpyArray| -> Vec<f32> {
                x.bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
            };
            for (a, b) in floats(got).iter().zip(floats(want)) {
                assert!(
                    (a - b).abs() <= 1e-5 * b.abs().max(1.0),
                    "{program} on {device}: {name}: {a}, not {b}"
                );
            }
        }
    }
}

/// Complex numbers, four bits, floats of eight bits and bf16 go in and out as others have them.
#[test]
fn elements_that_the_ir_has_no_type_for_are_given_and_written_as_others_have_them() {
    let f = Folder::new("run-elements");
    let program = "func.func @main(%a: tensor<2xcomplex<f32>>, %b: tensor<2xi4>, %c: tensor<2xf8E4M3FN>, %d: tensor<2xbf16>)
        -> (tensor<2xcomplex<f32>>, tensor<2xi4>, tensor<2xf8E4M3FN>, tensor<2xbf16>) {
      %0 = stablehlo.multiply %a, %a : tensor<2xcomplex<f32>>
      %1 = stablehlo.add %b, %b : tensor<2xi4>
      %2 = stablehlo.add %c, %c : tensor<2xf8E4M3FN>
      %3 = stablehlo.add %d, %d : tensor<2xbf16>
      return %0, %1, %2, %3 : tensor<2xcomplex<f32>>, tensor<2xi4>, tensor<2xf8E4M3FN>, tensor<2xbf16>
    }";
    f.write("all.mlir", program);
    let complex = [[1f32, 2.0], [0.0, -1.0]].concat();
    let complex: Vec<u8> = complex.iter().flat_map(|x| x.to_le_bytes()).collect();
    let raw = |descr: &str, bytes: &[u8]| npy::RawNpyArray {
        descr: descr.into(),
        dims: vec![2],
        bytes: bytes.to_vec(),
    };
    // Four bits are −3 and 2 in a byte each; 1.5 and −1 in eight bits; 1 and −2 in bf16.
    let arrays = vec![
        ("arg0".to_string(), raw("<c8", &complex)),
        ("arg1".to_string(), raw("|i1", &[0xfd, 2])),
        ("arg2".to_string(), raw("|V1", &[0x3c, 0xb8])),
        ("arg3".to_string(), raw("|V2", &[0x80, 0x3f, 0x00, 0xc0])),
    ];
    f.write("in.npz", npy::npz_parts(&arrays).unwrap().concat());
    for device in ["cpu", "ref"] {
        let done = f.run(&["run", "all.mlir", "--input", "in.npz", "--device", device, "-q"]).ok();
        for part in [
            "complex<f32>[2]  [-3+4i, -1-0i]",
            "i4[2]            [-6, 4]",
            "f8E4M3FN[2]      [3, -2]",
            "bf16[2]          [2, -4]",
        ] {
            assert!(done.out.contains(part), "{part}: {}", done.out);
        }
    }
    f.run(&["run", "all.mlir", "--input", "in.npz", "--output", "out.npz"]).ok();
    let out = npy::raw_npz_from_bytes("out.npz", &std::fs::read(f.path("out.npz")).unwrap()).unwrap();
    let of = |i: usize| (out[i].1.descr.as_str(), &out[i].1.bytes[..]);
    assert_eq!((of(0).0, of(0).1[..4].to_vec()), ("<c8", (-3f32).to_le_bytes().to_vec()));
    assert_eq!(of(1), ("|i1", &[0xfa, 4][..]));
    assert_eq!(of(2), ("|V1", &[0x44, 0xc0][..]));
    assert_eq!(of(3), ("|V2", &[0x00, 0x40, 0x80, 0xc0][..]));
    f.run(&["run", "all.mlir", "--random", "0", "--output", "out.safetensors"]).ok();
    let bytes = std::fs::read(f.path("out.safetensors")).unwrap();
    let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let types: Vec<safetensors::Dtype> =
        (0..4).map(|i| file.tensor(&format!("out{i}")).unwrap().dtype()).collect();
    use safetensors::Dtype::{BF16, C64, F8_E4M3, I8};
    assert_eq!(types, [C64, I8, F8_E4M3, BF16]);
    let json = f.run(&["run", "all.mlir", "--input", "in.npz", "--json"]).ok().json();
    assert_eq!(json["results"][0]["first"][0].as_array().unwrap()[1], 4.0);
    f.run(&["check", "all.mlir"]).ok();
    f.write("wide.mlir", program.replace("complex<f32>", "complex<f64>"));
    f.run(&["run", "wide.mlir", "--random", "0", "--output", "out.safetensors"])
        .fails("unsupported", &["complex<f64>", ".npz"]);
}

#[test]
fn arguments_that_do_not_fit_are_told_with_what_is_expected() {
    let f = folder("misfit");
    f.run(&["run", "layer.mlir"]).fails("config", &["3", "arg0", "i32[4]", "--random 0", "--input"]);
    let x = npy::to_bytes(&Literal::zeros(systole_ir::TensorType::new(DType::F64, [4, 3]))).unwrap();
    f.write("in.npz", crate::program::made::npz(&[("arg0", x.clone()), ("z", x.clone())]));
    f.run(&["run", "layer.mlir", "--input", "in.npz", "--output", "out.npz"]).fails(
        "data",
        &["in.npz", "arg0", "f64[4, 3]", "f32[4, 3]", "arg1", "f32[3, 2]", "arg2", "i32[4]", "`z`"],
    );
    assert!(f.files(".").iter().all(|name| name != "out.npz"));
    f.write("cut.npz", &crate::program::made::npz(&[("arg0", x)])[..90]);
    f.run(&["run", "layer.mlir", "--input", "cut.npz"]).fails("data", &["cut.npz"]);
    f.write("empty.safetensors", "");
    f.run(&["run", "layer.mlir", "--input", "empty.safetensors"]).fails("data", &["empty.safetensors"]);
    f.run(&["run", "layer.mlir", "--input", "none.npz"]).fails("io", &["none.npz"]);
    f.run(&["run", "layer.mlir", "--random", "0", "--output", "out.txt"])
        .fails("usage", &["out.txt", "--output", ".npz"]);
    f.run(&["run", "layer.mlir", "--random", "0", "--output", "no/where/out.npz"])
        .fails("io", &["no/where/out.npz"]);
    f.run(&["run", "layer.mlir", "--random", "0", "--input", "in.npz"]).fails("usage", &["--random"]);
}

#[test]
fn files_that_are_no_programs_end_in_one_clear_error() {
    let f = folder("bad");
    for (name, content, kind, part) in [
        ("empty.mlir", &b""[..], "data", "the file is empty"),
        ("page.mlir", b"<!DOCTYPE html><html><body>404</body></html>", "data", "it is a web page"),
        ("cut.mlir", &LAYER.as_bytes()[..LAYER.len() / 2], "data", "line 6"),
        ("hlo.txt", b"HloModule jit_f, entry_computation_layout={()->f32[]}", "data", "it is HLO text"),
        ("binary.bc", b"\x00\x01\x02\xff\xfe", "data", "neither StableHLO text nor bytecode"),
        ("bits.mlirbc", b"ML\xefR\x06", "data", "byte 5"),
        ("packed.mlir", b"\x1f\x8b\x08\x00", "data", "compressed with gzip"),
        (
            "op.mlir",
            b"func.func @main(%a: tensor<2xf32>) -> tensor<2xf32> {\n %0 = \"stablehlo.frobnicate\"(%a) : (tensor<2xf32>) -> tensor<2xf32>\n return %0 : tensor<2xf32> }",
            "unsupported",
            "stablehlo.frobnicate",
        ),
        (
            "type.mlir",
            b"func.func @main(%a: tensor<2xf32>) -> tensor<3xf32> {\n %0 = stablehlo.tanh %a : tensor<3xf32>\n return %0 : tensor<3xf32> }",
            "data",
            "line 2",
        ),
    ] {
        f.write(name, content);
        for command in ["run", "check", "shrink"] {
            // What the file is instead is worded; it has no name.
            f.run(&[command, name]).fails(kind, &[name]).says(part);
        }
    }
    #[cfg(unix)]
    f.run(&["run", "/dev/zero", "--memory-limit", "64MiB"]).fails("data", &["/dev/zero", "8 MiB"]);
    piped(&f, &["run", "-"], b"").fails("data", &["standard input"]);
    f.run(&["run", "nothing.mlir"]).fails("io", &["nothing.mlir"]);
    f.run(&["run", "layer.mlr", "--random", "0"]).fails("io", &["`layer.mlir`"]);
    f.run(&["run", "."]).fails("io", &["."]);
}

#[test]
fn a_program_that_is_too_large_is_refused_before_it_runs() {
    let f = Folder::new("run-large");
    let program = |n: usize| {
        format!(
            "func.func @main(%a: tensor<{n}x{n}xf32>) -> tensor<{n}x{n}xf32> {{
               %0 = stablehlo.add %a, %a : tensor<{n}x{n}xf32>
               return %0 : tensor<{n}x{n}xf32>
             }}"
        )
    };
    f.write("large.mlir", program(2_000_000));
    for device in ["cpu", "ref"] {
        f.run(&["run", "large.mlir", "--random", "0", "--device", device])
            .fails("unsupported", &["30517579 MiB", "f32[2000000, 2000000]"]);
    }
    f.write("endless.mlir", program(9_000_000_000));
    f.run(&["run", "endless.mlir", "--random", "0"])
        .fails("data", &["tensor<9000000000x9000000000xf32>", "@main"]);
    f.write("small.mlir", program(2_000));
    f.run(&["run", "small.mlir", "--random", "0", "--memory-limit", "16MiB"])
        .fails("unsupported", &["31 MiB", "f32[2000, 2000]", "--memory-limit"]);
}

/// `x + 1 = expected`, by the program's own check.
fn checking(expected: &str) -> String {
    format!(
        "module {{
           func.func public @main() {{
             %x = stablehlo.constant dense<[1.0, 2.0]> : tensor<2xf32>
             %one = stablehlo.constant dense<1.0> : tensor<2xf32>
             %0 = stablehlo.add %x, %one : tensor<2xf32>
             check.expect_almost_eq_const %0, dense<{expected}> : tensor<2xf32>
             return
           }}
         }}"
    )
}

#[test]
fn programs_that_check_themselves_are_judged() {
    let f = Folder::new("run-checks");
    f.write("good.mlir", checking("[2.0, 3.0]"));
    f.write("bad.mlir", checking("[2.0, 4.0]"));
    for device in ["cpu", "ref"] {
        let good = f.run(&["run", "good.mlir", "--device", device]).ok();
        assert!(good.out.contains("the program's check passed"), "{}", good.out);
        f.run(&["run", "bad.mlir", "--device", device]).fails("numeric", &["@main", "[1]", "3.0", "4.0"]);
    }
    let bad = f.run(&["run", "bad.mlir", "--json"]);
    assert_eq!((bad.code, &bad.json()["checks"][0]["holds"]), (Some(1), &Value::Bool(false)));
}

#[test]
fn devices_that_agree_and_devices_that_part_are_told() {
    let f = folder("check");
    let same = f.run(&["check", "layer.mlir"]).ok();
    assert!(same.out.contains("cpu and ref agree in 2 results"), "{}", same.out);
    // Without any tolerance the interpreter's exponential, rounded from twice the digits, is another.
    let program = "func.func @main(%a: tensor<64xf32>) -> tensor<64xf32> {
  %0 = stablehlo.add %a, %a : tensor<64xf32>
  %1 = stablehlo.exponential %0 : tensor<64xf32>
  %2 = stablehlo.negate %1 : tensor<64xf32>
  return %2 : tensor<64xf32>
}";
    f.write("exp.mlir", program);
    let args = ["check", "exp.mlir", "--devices", "cpu,ref", "--tolerance", "0"];
    let parts = f.run(&args);
    assert_eq!(parts.code, Some(1), "{}{}", parts.out, parts.err);
    for part in [
        "cpu and ref first differ at op 2 of 3, line 3:8 of exp.mlir",
        "stablehlo.exponential",
        "operand 0: f32[64]",
        "shrink exp.mlir",
    ] {
        assert!(parts.out.contains(part), "{part}: {}", parts.out);
    }
    let told = f.run(&[&args[..], &["--json"]].concat());
    let told = told.json();
    assert_eq!((&told["agree"], &told["first"]["op"]), (&Value::Bool(false), &Value::from("exponential")));
    assert_ne!(told["first"]["difference"]["first"], told["first"]["difference"]["second"]);
    let agreed = f.run(&["check", "exp.mlir", "--json"]).ok().json();
    assert_eq!((&agreed["agree"], &agreed["first"]), (&Value::Bool(true), &Value::Null));
    f.run(&["check", "exp.mlir", "--devices", "cpu"]).fails("usage", &["`cpu`", "--devices"]);
    f.run(&["check", "exp.mlir", "--devices", "cpu,gpu9"]).fails("config", &["gpu9", "--devices"]);
    f.run(&["check", "exp.mlir", "--tolerance", "7"]).fails("usage", &["--tolerance"]);
}

#[test]
fn a_failing_program_is_made_small_and_fails_again() {
    let f = folder("shrink");
    f.write("step.mlir", LAYER.replace("tensor<4x2xf32> loc(#loc1)", "tensor<4x2xf32>"));
    let args = ["shrink", "step.mlir", "--devices", "cpu,ref", "--tolerance", "0", "--json"];
    let done = f.run(&args).ok().json();
    let (from, to) = (done["from"]["ops"].as_u64().unwrap(), done["to"]["ops"].as_u64().unwrap());
    assert!(to < from && to <= 3, "{done}");
    assert_eq!(done["written"], "step.min.mlir");
    let again: Vec<&str> = done["again"].as_str().unwrap().split(' ').skip(1).collect();
    assert_eq!(f.run(&again).code, Some(1), "{done}");
    f.run(&["shrink", "step.mlir"]).fails("config", &["step.mlir"]);
    let to = ["shrink", "step.mlir", "--tolerance", "0", "--output", "no/where.mlir"];
    f.run(&to).fails("io", &["no/where.mlir"]);
}

#[test]
fn a_function_is_run_by_its_name() {
    let f = folder("function");
    let out = f.run(&["run", "layer.mlir", "--function", "relu", "--random", "0"]).ok().out;
    assert!(out.starts_with("layer.mlir, @relu, on cpu: 1 argument") && !out.contains("out1"), "{out}");
    f.run(&["check", "layer.mlir", "--function", "@relu"]).ok();
    f.run(&["run", "layer.mlir", "--function", "gelu"]).fails("config", &["@gelu", "`main`", "`relu`"]);
}

#[test]
fn a_file_of_tests_runs_all_of_them() {
    let f = Folder::new("run-tests");
    let test = |name: &str, expected: f32| {
        format!(
            "func.func @{name}() {{
               %x = stablehlo.constant dense<[1.5, 2.0]> : tensor<2xf32>
               %0 = stablehlo.floor %x : tensor<2xf32>
               check.expect_eq_const %0, dense<[{expected:.1}, 2.0]> : tensor<2xf32>
               func.return
             }}\n"
        )
    };
    f.write("good.mlir", test("a", 1.0) + &test("b", 1.0));
    let done = f.run(&["run", "good.mlir"]).ok();
    assert!(done.out.contains("@a, on cpu") && done.out.contains("@b, on cpu"), "{}", done.out);
    assert!(done.out.ends_with("0 of 2 tests failed\n"), "{}", done.out);
    f.write(
        "bad.mlir",
        test("a", 1.0) + &test("b", 2.0) + &test("c", 1.0).replace("stablehlo.floor", "stablehlo.floo"),
    );
    let done = f.run(&["run", "bad.mlir"]);
    assert!(done.code == Some(1) && done.out.ends_with("2 of 3 tests failed\n"), "{}{}", done.out, done.err);
    assert!(done.err.contains("element [0] is 1.0, expected 2.0") && done.err.contains("@c"), "{}", done.err);
    let json = f.run(&["run", "bad.mlir", "--json"]).json();
    assert_eq!(
        (&json["failed"], &json["functions"][1]["checks"][0]["holds"]),
        (&Value::from(2), &Value::Bool(false))
    );
    f.run(&["run", "bad.mlir", "--function", "a"]).ok();
    f.run(&["run", "bad.mlir", "--output", "out.npz"]).fails("usage", &["3", "--function"]);
}

#[test]
fn programs_are_translated_and_compute_the_same() {
    let f = folder("translate");
    let results = |file: &str| f.run(&["run", file, "--random", "5", "-q"]).ok().out;
    let translate = |args: &[&str]| f.run(&[&["translate"], args].concat());
    translate(&["layer.mlir", "layer.mlirbc"]).ok();
    translate(&["layer.mlir", "old.bc", "--target", "1.0.0"]).ok();
    let told = translate(&["old.bc", "again.mlir"]).ok().out;
    assert!(told.contains("again.mlir: StableHLO text"), "{told}");
    let old = std::fs::read(f.path("old.bc")).unwrap();
    assert!(old.starts_with(b"ML\xefR") && old.windows(16).any(|w| w == b"StableHLO_v1.0.0"));
    let want = results("layer.mlir");
    for file in ["layer.mlirbc", "old.bc", "again.mlir"] {
        assert_eq!(results(file), want, "{file}");
    }
    // To a screen, from a pipe; other commands take bytecode as they take text.
    let text = piped(&f, &["translate", "-", "-"], &old).ok().out;
    assert_eq!(text, std::fs::read_to_string(f.path("again.mlir")).unwrap());
    f.run(&["check", "old.bc"]).ok();
    f.run(&["plan", "old.bc", "--targets", "v5e-1", "--steps", "3"]).ok();
    assert!(f.run(&["show", "old.bc"]).ok().out.contains("stablehlo.dot_general"));
    // Calls stay calls, and what the IR holds in other arrays is written as it was.
    assert!(text.contains("func.call") || text.contains("call @softplus"), "{text}");
    let complex = "func.func @main(%a: tensor<2xcomplex<f32>>, %b: tensor<2xi4>) -> (tensor<2xcomplex<f32>>, tensor<2xi4>) {
        %0 = stablehlo.multiply %a, %a : tensor<2xcomplex<f32>>
        return %0, %b : tensor<2xcomplex<f32>>, tensor<2xi4>
    }";
    f.write("complex.mlir", complex);
    translate(&["complex.mlir", "complex.bc"]).ok();
    translate(&["complex.bc", "complex.again.mlir"]).ok();
    let want_complex = results("complex.mlir");
    for file in ["complex.bc", "complex.again.mlir"] {
        assert_eq!(results(file), want_complex, "{file}");
    }
    // Our own text.
    let own = f.run(&["show", "layer.mlir", "--stage", "stablehlo"]).ok().out;
    f.write("own.mlir", own);
    translate(&["own.mlir", "own.bc"]).ok();
    assert_eq!(results("own.bc"), want);
    for (args, parts) in [
        (&["layer.mlir", "out.txt"][..], &["out.txt", ".mlirbc"][..]),
        (&["layer.mlir", "out.bc", "--target", "new"], &["`new`", "--target"]),
        (&["layer.mlir", "out.mlir", "--target", "1.0.0"], &["--target"]),
    ] {
        translate(args).fails("usage", parts);
    }
    translate(&["layer.mlir", "out.bc", "--target", "99.0.0"])
        .fails("unsupported", &["99.0.0", "layer.mlir"]);
    for cut in [1, 4, 40, old.len() / 2, old.len() - 1] {
        f.write("cut.bc", &old[..cut]);
        translate(&["cut.bc", "out.mlir"]).fails("data", &["cut.bc"]);
    }
    assert!(f.files(".").iter().all(|name| !name.starts_with("out")));
}

#[cfg(unix)]
#[test]
fn a_signal_ends_a_program_at_once_and_leaves_nothing() {
    use std::os::unix::process::ExitStatusExt;
    let f = Folder::new("run-signal");
    f.write(
        "endless.mlir",
        "func.func @main(%a: tensor<f32>) -> tensor<f32> {
           %0 = stablehlo.while(%x = %a) : tensor<f32>
             cond { %t = stablehlo.constant dense<true> : tensor<i1>
                    stablehlo.return %t : tensor<i1> }
             do { %y = stablehlo.cosine %x : tensor<f32>
                  stablehlo.return %y : tensor<f32> }
           return %0 : tensor<f32>
         }",
    );
    for device in ["cpu", "ref"] {
        let args = ["run", "endless.mlir", "--random", "0", "--device", device, "--output", "out.npz"];
        let mut child = f.command(&args).stderr(Stdio::null()).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(1500));
        assert!(child.try_wait().unwrap().is_none(), "it ended by itself");
        let asked = Instant::now();
        // What runs in the background has SIGINT ignored, and so have its children.
        let kill =
            std::process::Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap();
        assert!(kill.success());
        let status = child.wait().unwrap();
        assert_eq!(status.signal(), Some(15), "{status}");
        assert!(asked.elapsed() < Duration::from_secs(5));
        assert_eq!(f.files(".").len(), 2, "{:?}", f.files("."));
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_an_error() {
    let f = folder("full");
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let args = ["run", "layer.mlir", "--random", "0"];
    let done = Done::of(f.command(&args).stdout(full).output().unwrap(), &args);
    done.fails("io", &["(os error 28)"]);
}

#[test]
fn a_program_that_needs_more_memory_than_there_is_is_refused_with_what_takes_it() {
    let f = Folder::new("run-memory");
    let program = |argument: &str, made: &str, result: &str| {
        format!(
            "func.func @main({argument}) -> {result} {{\n%c = stablehlo.constant dense<1.0> : tensor<f32>\n{made}\n}}"
        )
    };
    let wide = "tensor<1099511627776xf32>";
    let make = format!("%0 = stablehlo.broadcast_in_dim %c, dims = [] : (tensor<f32>) -> {wide}");
    let sum = format!(
        "%1 = stablehlo.reduce(%0 init: %c) applies stablehlo.add across dimensions = [0] : ({wide}, tensor<f32>) -> tensor<f32>"
    );
    f.write("argument.mlir", program(&format!("%x: {wide}"), "return %c : tensor<f32>", "tensor<f32>"));
    f.write("result.mlir", program("", &format!("{make}\nreturn %0 : {wide}"), wide));
    f.write("between.mlir", program("", &format!("{make}\n{sum}\nreturn %1 : tensor<f32>"), "tensor<f32>"));
    // The scalar beside the wide array is a MiB begun.
    let cases = [
        ("argument.mlir", "cpu", "4194305 MiB"),
        ("argument.mlir", "ref", "4194305 MiB"),
        ("result.mlir", "cpu", "4194304 MiB"),
        ("result.mlir", "ref", "4194304 MiB"),
        ("between.mlir", "ref", "4194305 MiB"),
    ];
    for (file, device, needs) in cases {
        let done = f.run(&["run", file, "--random", "0", "--device", device]);
        done.fails("unsupported", &[needs, "f32[1099511627776]"]);
    }
}

/// Whenever a program is killed while it is read, compiled and run, only what was there is there.
#[cfg(unix)]
#[test]
fn a_killed_run_leaves_nothing_behind() {
    let f = Folder::new("run-killed");
    let mut chain = String::from("func.func @main(%v0: tensor<64x64xf32>) -> tensor<64x64xf32> {\n");
    for i in 0..3000 {
        let op = ["tanh", "cosine", "exponential"][i % 3];
        chain += &format!("%v{} = stablehlo.{op} %v{i} : tensor<64x64xf32>\n", i + 1);
    }
    f.write("chain.mlir", chain + "return %v3000 : tensor<64x64xf32>\n}");
    f.write("temporary/none", "");
    f.write("no-folder", "");
    let before = f.files(".");
    let mut killed = 0;
    for delay in [5, 30, 80, 160] {
        let mut command = f.command(&["run", "chain.mlir", "--random", "0", "--output", "out.npz"]);
        let mut child = command
            .env("TMPDIR", f.path("temporary"))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_millis(delay));
        child.kill().unwrap();
        if child.wait().unwrap().success() {
            break;
        }
        // Killed between its last file and its end: the file is whole.
        if let Ok(written) = std::fs::read(f.path("out.npz")) {
            f.run(&["run", "chain.mlir", "--random", "0", "--output", "whole.npz"]).ok();
            assert!(written == std::fs::read(f.path("whole.npz")).unwrap(), "after {delay} ms");
            break;
        }
        killed += 1;
        assert_eq!(f.files("."), before, "after {delay} ms");
        assert_eq!(f.files("temporary"), ["none"], "after {delay} ms");
    }
    assert!(killed > 0, "it was never early enough");
}

#[test]
fn what_others_call_the_commands_is_understood() {
    let f = Folder::new("run-words");
    for (typed, meant) in [
        ("exec", "run"),
        ("execute", "run"),
        ("interpret", "run"),
        ("diff", "check"),
        ("minimize", "shrink"),
        ("reduce", "shrink"),
        ("convert", "translate"),
    ] {
        f.run(&[typed, "x.mlir"]).fails("usage", &[&format!("`{meant}`")]);
    }
}

#[test]
fn products_are_computed_in_the_precision_that_is_asked_for() {
    let f = folder("precision");
    // 1.01 has no bf16 form; the nearest are 1.0078125 and 1.015625.
    let x = Literal::from_slice([4, 3], &[1.01f32; 12]).unwrap();
    let w = Literal::from_slice([3, 2], &[1f32; 6]).unwrap();
    let y = Literal::from_slice([4], &[0i32; 4]).unwrap();
    let arrays: Vec<(&str, Vec<u8>)> =
        ["x", "w", "y"].into_iter().zip([x, w, y].iter().map(|x| npy::to_bytes(x).unwrap())).collect();
    f.write("in.npz", crate::program::made::npz(&arrays));
    let first = |precision: &str| -> f64 {
        let done =
            f.run(&["run", "layer.mlir", "--input=in.npz", "--json", &format!("--precision={precision}")]);
        done.ok().json()["results"][0]["first"][0].as_f64().unwrap()
    };
    assert!((first("float32") - 3.03).abs() < 1e-6);
    assert_eq!(first("mixed_bfloat16"), 3.0 * 1.0078125);
    assert!((first("mixed_float16") - 3.0 * 1.009765625).abs() < 1e-6);
    let wrong = f.run(&["run", "layer.mlir", "--random=0", "--precision=mixed_bfloat61"]);
    assert_eq!(wrong.code, Some(2), "{}", wrong.err);
    assert!(wrong.err.contains("did you mean `mixed_bfloat16`"), "{}", wrong.err);
}
