//! Tests of the interpreter against LiteRT's reference kernels, bit for bit: single-operator models with recorded
//! outputs (`fixtures/tflite/operators.bin`), and with the real interpreter if it is installed.

#![allow(clippy::print_stdout, reason = "says what was skipped")]

mod cases;

use cases::{Case, cases};
use std::path::PathBuf;
use std::process::Command;
use systole_base::{DType, Literal};
use systole_tflite::{TfliteInterpreter, TfliteModel};

fn fixture() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/tflite")
}

/// Returns the real interpreter's outputs for each case; `None` if it is not installed.
fn real_outputs(cases: &[Case]) -> Option<Vec<Result<Vec<u8>, String>>> {
    let python = systole_base::knobs::PYTHON.get();
    let python = if python.is_empty() { "python3".to_string() } else { python };
    let there = Command::new(&python).args(["-c", "import ai_edge_litert.interpreter"]).output();
    if !there.is_ok_and(|o| o.status.success()) {
        return None;
    }
    let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("tflite-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    for (n, c) in cases.iter().enumerate() {
        std::fs::write(dir.join(format!("{n:03}.tflite")), c.model.to_bytes().unwrap()).unwrap();
        for (i, x) in c.inputs.iter().enumerate() {
            std::fs::write(dir.join(format!("{n:03}.in{i}")), x.bytes()).unwrap();
        }
    }
    let ran = Command::new(&python).arg(fixture().join("run.py")).arg(&dir).output().unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    let one = |n: usize| match std::fs::read(dir.join(format!("{n:03}.out0"))) {
        Ok(bytes) => Ok(bytes),
        Err(_) => Err(std::fs::read_to_string(dir.join(format!("{n:03}.error"))).unwrap_or_default()),
    };
    let found = (0..cases.len()).map(one).collect();
    std::fs::remove_dir_all(&dir).ok();
    Some(found)
}

fn ours(case: &Case) -> Literal {
    // Through the file, to test writer and reader.
    let bytes = case.model.to_bytes().unwrap_or_else(|e| panic!("{}: {e}", case.name));
    let model = TfliteModel::from_bytes(&case.name, &bytes).unwrap_or_else(|e| panic!("{e}"));
    let made = TfliteInterpreter::new(&model).and_then(|i| i.run(&case.inputs));
    made.unwrap_or_else(|e| panic!("{}: {e}", case.name)).remove(0)
}

/// Returns the difference: integers must be equal, floats up to summation order.
fn difference(y: &Literal, theirs: &[u8]) -> Option<String> {
    if y.dtype() != DType::F32 {
        let wrong: Vec<_> = y
            .bytes()
            .iter()
            .zip(theirs)
            .enumerate()
            .filter(|(_, (a, b))| a != b)
            .map(|(i, (a, b))| (i, *a as i8, *b as i8))
            .collect();
        let size = (y.bytes().len() != theirs.len()).then(|| "another size".to_string());
        return size.or_else(|| {
            (!wrong.is_empty())
                .then(|| format!("{} of {}: {:?}", wrong.len(), theirs.len(), &wrong[..wrong.len().min(6)]))
        });
    }
    let theirs: Vec<f32> =
        theirs.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
    let ours = y.as_slice::<f32>().unwrap();
    let off = |(a, b): (&f32, &f32)| (a - b).abs() > 1e-5 * (1.0 + b.abs()) || a.is_nan() != b.is_nan();
    let wrong = ours.iter().zip(&theirs).filter(|(a, b)| off((a, b))).count();
    (wrong > 0 || ours.len() != theirs.len()).then(|| format!("{wrong} of {}", theirs.len()))
}

/// Returns the fixture: the outputs of all cases, concatenated.
fn kept(cases: &[Case]) -> Vec<Vec<u8>> {
    let all = std::fs::read(fixture().join("operators.bin")).unwrap();
    let mut at = 0;
    let mut one = |c: &Case| {
        let size = ours(c).bytes().len();
        let found =
            all.get(at..at + size).unwrap_or_else(|| panic!("the fixture ends before {}", c.name)).to_vec();
        at += size;
        found
    };
    cases.iter().map(&mut one).collect()
}

#[test]
fn operators_have_the_bits_of_the_real_interpreter() {
    let cases = cases();
    let real = real_outputs(&cases);
    if let (Some(real), true) = (&real, std::env::var_os("SYSTOLE_BLESS").is_some()) {
        let refused: Vec<_> =
            real.iter().zip(&cases).filter_map(|(r, c)| Some((&c.name, r.as_ref().err()?))).collect();
        assert!(refused.is_empty(), "{refused:#?}");
        let all: Vec<u8> = real.iter().flat_map(|r| r.clone().unwrap_or_default()).collect();
        std::fs::write(fixture().join("operators.bin"), all).unwrap();
    }
    let mut wrong = Vec::new();
    for (case, theirs) in cases.iter().zip(kept(&cases)) {
        wrong.extend(difference(&ours(case), &theirs).map(|d| format!("{}: {d}", case.name)));
    }
    match real {
        None => println!("SKIPPED the real interpreter: there is no ai-edge-litert in SYSTOLE_PYTHON"),
        Some(real) => {
            for (case, theirs) in cases.iter().zip(real) {
                match theirs {
                    Ok(theirs) => wrong.extend(
                        difference(&ours(case), &theirs).map(|d| format!("{}, live: {d}", case.name)),
                    ),
                    Err(e) => wrong.push(format!("{} is refused: {e}", case.name)),
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{} of {} cases\n{}", wrong.len(), cases.len(), wrong.join("\n"));
}

/// Truncated and bit-flipped files, and files with invalid counts and offsets, give errors or models that run.
#[test]
fn broken_files_are_errors_and_no_panics() {
    let cases = cases();
    let mut refused = 0;
    for name in ["conv_same_int8", "strided_slice_int8", "batch_matmul_float", "softmax_int8"] {
        let case = cases.iter().find(|c| c.name == name).unwrap();
        let whole = case.model.to_bytes().unwrap();
        let mut try_one = |bytes: &[u8]| match TfliteModel::from_bytes("broken", bytes) {
            Ok(model) if model.tensors.iter().map(|t| t.ty.elements()).sum::<usize>() < 10_000 => {
                let inputs: Vec<Literal> =
                    model.inputs.iter().map(|&i| Literal::zeros(model.tensors[i].ty.clone())).collect();
                let _ = TfliteInterpreter::new(&model).and_then(|i| i.run(&inputs));
            }
            Ok(_) => {}
            Err(e) => {
                assert!(e.places().iter().any(|p| p == "broken"), "{e}");
                refused += 1;
            }
        };
        for at in 0..whole.len() {
            try_one(&whole[..at]);
            for bits in [0x01, 0x80, 0xff] {
                let mut bytes = whole.clone();
                bytes[at] ^= bits;
                try_one(&bytes);
            }
            // A word that is a large count, a large offset, or a backward offset.
            for word in [u32::MAX, 0x7fff_ffff, 0x0000_ffff, 0] {
                let mut bytes = whole.clone();
                if let Some(place) = bytes.get_mut(at..at + 4) {
                    place.copy_from_slice(&word.to_le_bytes());
                    try_one(&bytes);
                }
            }
        }
    }
    assert!(refused > 1000, "{refused}");
}

/// Files of TensorFlow's converter with loops, branches and variables: `fixtures/tflite/loops.py` has LiteRT's outputs.
#[test]
fn control_flow_and_variables_compute_what_litert_does() {
    for name in ["lstm", "variables"] {
        let path = fixture().join("loops").join(name);
        let model = std::fs::read(path.with_extension("tflite")).unwrap();
        let model = TfliteModel::from_bytes(name, &model).unwrap_or_else(|e| panic!("{e}"));
        assert!(model.subgraphs.len() >= 2, "{name}");
        let bytes = std::fs::read(path.with_extension("bin")).unwrap();
        let ty = model.tensors[model.inputs[0]].ty.clone();
        let (x, y) = bytes.split_at(ty.bytes());
        let x = Literal::from_bytes(ty, x).unwrap();
        let interpreter = TfliteInterpreter::new(&model).unwrap_or_else(|e| panic!("{e}"));
        // Variables start anew.
        for _ in 0..2 {
            let found = interpreter.run(std::slice::from_ref(&x)).unwrap_or_else(|e| panic!("{e}"));
            assert_eq!(difference(&found[0], y), None, "{name}");
        }
        assert!(model.to_bytes().is_err());
    }
}
