//! Tests compiled int8 programs against the interpreter, bit for bit: every operator and instruction set.

#[path = "../../tflite/tests/cases/mod.rs"]
mod cases;

use cases::{Case, cases};
use std::sync::Arc;
use systole_base::{DType, Literal};
use systole_cpu::ThreadPool;
use systole_cpu::int8::Int8Isa;
use systole_int8::{Int8Program, Settings};
use systole_tflite::{
    OptionField, TfliteInterpreter, TfliteModel, TfliteOp, TfliteOperator, TfliteQuantization, TfliteTensor,
};

/// The inputs, and variants of them: bytes rotated by `n` positions.
fn sample(case: &Case, n: usize) -> Vec<Literal> {
    let turned = |x: &Literal| {
        let mut bytes = x.bytes().to_vec();
        let by = 4 * n % bytes.len().max(1);
        bytes.rotate_left(by);
        Literal::from_bytes(x.ty().clone(), &bytes).unwrap()
    };
    case.inputs.iter().map(turned).collect()
}

fn bytes_of(all: &[Literal]) -> Vec<Vec<u8>> {
    all.iter().map(|y| y.bytes().to_vec()).collect()
}

fn settings(unit: Int8Isa, threads: usize) -> Settings {
    Settings { team: Arc::new(ThreadPool::new(threads)), unit }
}

#[test]
fn operators_have_the_bits_of_the_interpreter() {
    let (mut wrong, mut fast) = (Vec::new(), Vec::new());
    for case in cases() {
        let interpreter = TfliteInterpreter::new(&case.model).unwrap();
        let samples: Vec<Vec<Literal>> = (0..5).map(|n| sample(&case, n)).collect();
        let expected: Vec<_> = samples.iter().map(|s| bytes_of(&interpreter.run(s).unwrap())).collect();
        for unit in Int8Isa::all() {
            for threads in [1, 2] {
                let program = Int8Program::new(case.model.clone(), &settings(unit, threads)).unwrap();
                if unit.name() == "portable" && threads == 1 && program.interpreted() == 0 {
                    fast.push(case.name.clone());
                }
                let each: Vec<&[Literal]> = samples.iter().map(Vec::as_slice).collect();
                let made: Vec<_> = program.run_all(&each).unwrap().iter().map(|y| bytes_of(y)).collect();
                // Once more, in memory that was used before.
                let one = bytes_of(&program.run(&samples[2]).unwrap());
                if made != expected || one != expected[2] {
                    wrong.push(format!("{} on {unit:?}, {threads} threads: {:?}", case.name, program));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    for name in
        ["conv_same", "depthwise_one", "dense", "dense_kept", "average_pool_same", "max_pool", "add", "mul"]
    {
        assert!(fast.contains(&format!("{name}_int8")), "{name} has no kernel: {fast:?}");
    }
    for name in [
        "add_channels",
        "sub_rows",
        "prelu",
        "mean",
        "mean_kept",
        "softmax",
        "pad",
        "transpose",
        "gather",
        "batch_matmul",
    ] {
        assert!(fast.contains(&format!("{name}_int8")), "{name} has no kernel: {fast:?}");
    }
}

/// Depthwise with one channel, weights between two segments, concatenated constants, results that are read twice.
#[test]
fn graphs_have_the_bits_of_the_interpreter() {
    let q = |scale: f32, zero: i32| TfliteQuantization::per_tensor(scale, zero);
    let t = |name: &str, shape: &[usize]| TfliteTensor::new(name, shape, DType::I8).quantized(q(0.05, -7));
    let values =
        |n: usize| (0..n).map(|i| (i * 37 % 251) as u8 as i8).map(|v| v.max(-127)).collect::<Vec<i8>>();
    let constant = |shape: &[usize], scale| {
        let data = Literal::from_slice(shape, &values(shape.iter().product())).unwrap();
        TfliteTensor::constant("w", data).quantized(q(scale, 0))
    };
    let joined = Literal::from_slice([1, 1, 4, 6], &values(24)).unwrap();
    let list = |v: &[i32]| TfliteTensor::constant("list", Literal::from_slice([v.len()], v).unwrap());
    let conv = |op, inputs: [usize; 2], output: usize| {
        TfliteOperator::new(op, inputs, [output]).with(OptionField::StrideH, 1).with(OptionField::StrideW, 1)
    };
    let model = TfliteModel {
        tensors: vec![
            t("x", &[1, 4, 4, 1]),
            constant(&[1, 3, 3, 6], 0.003),
            t("six", &[1, 4, 4, 6]),
            constant(&[6, 3, 3, 6], 0.002),
            t("conv", &[1, 4, 4, 6]),
            t("sum", &[1, 4, 4, 6]),
            TfliteTensor::constant("joined", joined).quantized(q(0.05, -7)),
            t("five", &[1, 5, 4, 6]),
            list(&[1, 2]),
            t("mean", &[1, 6]),
            constant(&[3, 6], 0.01),
            t("classes", &[1, 3]),
            t("flat", &[1, 120]),
            TfliteTensor::new("float", [1, 120], DType::F32),
        ],
        operators: vec![
            conv(TfliteOp::DepthwiseConv2D, [0, 1], 2).with(OptionField::DepthMultiplier, 6),
            conv(TfliteOp::Conv2D, [2, 3], 4).with(OptionField::Activation, 1),
            TfliteOperator::new(TfliteOp::Add, [4, 2], [5]),
            TfliteOperator::new(TfliteOp::Concatenation, [5, 6], [7]).with(OptionField::Axis, 1),
            TfliteOperator::new(TfliteOp::Mean, [7, 8], [9]),
            TfliteOperator::new(TfliteOp::FullyConnected, [9, 10], [11]),
            TfliteOperator::new(TfliteOp::Reshape, [7], [12]),
            TfliteOperator::new(TfliteOp::Dequantize, [12], [13]),
        ],
        inputs: vec![0],
        outputs: vec![11, 5, 13],
        ..TfliteModel::default()
    };
    let samples: Vec<Literal> = (0..7)
        .map(|n| {
            Literal::from_slice(
                [1, 4, 4, 1],
                &(0..16).map(|i| (i * 29 + n * 11) as u8 as i8).collect::<Vec<_>>(),
            )
            .unwrap()
        })
        .collect();
    let interpreter = TfliteInterpreter::new(&model).unwrap();
    let expected: Vec<_> =
        samples.iter().map(|x| bytes_of(&interpreter.run(std::slice::from_ref(x)).unwrap())).collect();
    for unit in Int8Isa::all() {
        for threads in [1, 2, 9] {
            let program = Int8Program::new(model.clone(), &settings(unit, threads)).unwrap();
            assert_eq!(program.interpreted(), 0, "{:?}", program.forms().collect::<Vec<_>>());
            let each: Vec<&[Literal]> = samples.iter().map(std::slice::from_ref).collect();
            let made: Vec<_> = program.run_all(&each).unwrap().iter().map(|y| bytes_of(y)).collect();
            assert!(made == expected, "{unit:?}, {threads} threads");
        }
    }
    let program = Int8Program::new(model, &Settings::default()).unwrap();
    let e = program.run(&[]).unwrap_err().to_string();
    assert!(e.contains("got 0 inputs"), "{e}");
    let e = program.run(&[Literal::from_slice([1, 2], &[1i8, 2]).unwrap()]).unwrap_err().to_string();
    assert!(e.contains("input x is"), "{e}");
    assert!(program.run_all(&[]).unwrap().is_empty());
}

/// Padding that convolutions apply themselves, without a padded copy; and padding with another reader.
#[test]
fn borders_have_the_bits_of_the_interpreter() {
    let q = TfliteQuantization::per_tensor(0.05, -7);
    let t = |name: &str, shape: &[usize]| TfliteTensor::new(name, shape, DType::I8).quantized(q.clone());
    let bytes =
        |n: usize| (0..n).map(|i| (i * 37 % 251) as u8 as i8).map(|v| v.max(-127)).collect::<Vec<i8>>();
    let constant = |shape: &[usize]| {
        let data = Literal::from_slice(shape, &bytes(shape.iter().product())).unwrap();
        TfliteTensor::constant("w", data).quantized(TfliteQuantization::per_tensor(0.003, 0))
    };
    let pads = |v: [i32; 8]| TfliteTensor::constant("pads", Literal::from_slice([4, 2], &v).unwrap());
    let window = |op, inputs: [usize; 2], output: usize, stride: i32| {
        let stride = f64::from(stride);
        let made = TfliteOperator::new(op, inputs, [output])
            .with(OptionField::StrideH, stride)
            .with(OptionField::StrideW, stride);
        made.with(OptionField::Padding, 1.0).with(OptionField::DepthMultiplier, 1.0)
    };
    let model = |outputs: Vec<usize>| TfliteModel {
        tensors: vec![
            t("x", &[1, 9, 8, 32]),
            pads([0, 0, 1, 1, 0, 2, 0, 0]),
            t("wide", &[1, 11, 10, 32]),
            constant(&[1, 3, 3, 32]),
            t("depthwise", &[1, 5, 4, 32]),
            pads([0, 0, 0, 1, 3, 1, 0, 0]),
            t("wider", &[1, 6, 8, 32]),
            constant(&[5, 3, 3, 32]),
            t("conv", &[1, 4, 6, 5]),
        ],
        operators: vec![
            TfliteOperator::new(TfliteOp::Pad, [0, 1], [2]),
            window(TfliteOp::DepthwiseConv2D, [2, 3], 4, 2),
            TfliteOperator::new(TfliteOp::Pad, [4, 5], [6]),
            window(TfliteOp::Conv2D, [6, 7], 8, 1),
        ],
        inputs: vec![0],
        outputs,
        ..TfliteModel::default()
    };
    for (outputs, ways) in [
        (vec![8], ["alias", "depthwise", "alias", "product"]),
        (vec![8, 6], ["alias", "depthwise", "moves", "product"]),
    ] {
        let model = model(outputs);
        let samples: Vec<Literal> = (0..3)
            .map(|n| {
                let mut x = bytes(9 * 8 * 32);
                x.rotate_left(n * 13);
                Literal::from_slice([1, 9, 8, 32], &x).unwrap()
            })
            .collect();
        let interpreter = TfliteInterpreter::new(&model).unwrap();
        let expected: Vec<_> =
            samples.iter().map(|x| bytes_of(&interpreter.run(std::slice::from_ref(x)).unwrap())).collect();
        for unit in Int8Isa::all() {
            for threads in [1, 2] {
                let program = Int8Program::new(model.clone(), &settings(unit, threads)).unwrap();
                assert_eq!(program.forms().collect::<Vec<_>>(), ways);
                let each: Vec<&[Literal]> = samples.iter().map(std::slice::from_ref).collect();
                let made: Vec<_> = program.run_all(&each).unwrap().iter().map(|y| bytes_of(y)).collect();
                assert!(made == expected, "{unit:?}, {threads} threads");
            }
        }
    }
}

/// Distances from a zero point that need nine bits; values at both ends of the int8 range.
#[test]
fn products_of_computed_matrices_have_the_bits_of_the_interpreter() {
    for (zero_a, zero_b) in [(0, 0), (-128, 3), (5, -7), (127, 127), (-3, -128)] {
        for turned in [false, true] {
            let q = |zero| TfliteQuantization::per_tensor(0.05, zero);
            let t = |name: &str, dims: [usize; 4]| TfliteTensor::new(name, dims, DType::I8);
            let (m, k, n) = (35, 66, 37);
            let b = if turned { [1, 2, n, k] } else { [1, 2, k, n] };
            let adjoint = if turned { 1.0 } else { 0.0 };
            let model = TfliteModel {
                tensors: vec![
                    t("a", [1, 2, m, k]).quantized(q(zero_a)),
                    t("b", b).quantized(q(zero_b)),
                    t("y", [1, 2, m, n]).quantized(TfliteQuantization::per_tensor(4.0, 9)),
                ],
                operators: vec![
                    TfliteOperator::new(TfliteOp::BatchMatmul, [0, 1], [2]).with(OptionField::AdjY, adjoint),
                ],
                inputs: vec![0, 1],
                outputs: vec![2],
                ..TfliteModel::default()
            };
            let drawn = |dims: [usize; 4], by: usize| {
                let at = |i: usize| {
                    if i.is_multiple_of(7) { [-128, 127][i / 7 % 2] } else { (i * by % 256) as u8 as i8 }
                };
                let all: Vec<i8> = (0..dims.iter().product()).map(at).collect();
                Literal::from_slice(dims, &all).unwrap()
            };
            let inputs = [drawn([1, 2, m, k], 37), drawn(b, 101)];
            let expected = bytes_of(&TfliteInterpreter::new(&model).unwrap().run(&inputs).unwrap());
            for unit in Int8Isa::all() {
                let program = Int8Program::new(model.clone(), &settings(unit, 2)).unwrap();
                assert_eq!(program.interpreted(), 0, "{zero_a}, {zero_b}");
                let made = bytes_of(&program.run(&inputs).unwrap());
                assert!(made == expected, "{unit:?}, zeros {zero_a} and {zero_b}, turned {turned}");
            }
        }
    }
}

/// For any file content the program behaves like the interpreter: the same bits, or the same error.
#[test]
fn broken_files_are_judged_by_the_interpreter() {
    let (mut refused, mut equal) = (0, 0);
    let cases = cases();
    for name in
        ["conv_same_int8", "depthwise_one_int8", "dense_int8", "add_channels_int8", "mean_int8", "pad_int8"]
    {
        let case = cases.iter().find(|c| c.name == name).unwrap();
        let whole = case.model.to_bytes().unwrap();
        for at in 0..whole.len() {
            for bits in [0x01, 0x80, 0xff] {
                let mut bytes = whole.clone();
                bytes[at] ^= bits;
                let Ok(model) = TfliteModel::from_bytes("broken", &bytes) else { continue };
                if model.tensors.iter().map(|t| t.ty.elements()).sum::<usize>() > 10_000 {
                    continue;
                }
                let inputs: Vec<Literal> =
                    model.inputs.iter().map(|&i| Literal::zeros(model.tensors[i].ty.clone())).collect();
                let expected = TfliteInterpreter::new(&model).and_then(|i| i.run(&inputs));
                let made = Int8Program::new(model.clone(), &Settings::default()).and_then(|p| p.run(&inputs));
                match (expected, made) {
                    (Ok(expected), Ok(made)) => {
                        assert!(bytes_of(&expected) == bytes_of(&made), "{name}, byte {at} ^ {bits}");
                        equal += 1;
                    }
                    (Err(expected), Err(made)) => {
                        assert_eq!(expected.to_string(), made.to_string(), "{name}, byte {at} ^ {bits}");
                        refused += 1;
                    }
                    (expected, made) => panic!("{name}, byte {at} ^ {bits}: {expected:?}, but {made:?}"),
                }
            }
        }
    }
    assert!(refused > 100 && equal > 1000, "{refused} rejected, {equal} equal");
}

/// Asserts that a graph of one input has the bits of the interpreter, and returns the names of its kernels.
fn kernels_of(model: &TfliteModel) -> Vec<&'static str> {
    let input = &model.tensors[model.inputs[0]].ty;
    let samples: Vec<Literal> = (0..3)
        .map(|n| {
            let at = |i: usize| (i * 37 + n * 11) as u8 as i8;
            let all: Vec<i8> = (0..input.elements()).map(at).collect();
            let x = Literal::from_slice(&input.shape, &all).unwrap();
            if input.dtype == DType::F32 { x.convert(DType::F32) } else { x }
        })
        .collect();
    let interpreter = TfliteInterpreter::new(model).unwrap();
    let expected: Vec<_> =
        samples.iter().map(|x| bytes_of(&interpreter.run(std::slice::from_ref(x)).unwrap())).collect();
    let mut names = Vec::new();
    for unit in Int8Isa::all() {
        let program = Int8Program::new(model.clone(), &settings(unit, 2)).unwrap();
        let each: Vec<&[Literal]> = samples.iter().map(std::slice::from_ref).collect();
        let made: Vec<_> = program.run_all(&each).unwrap().iter().map(|y| bytes_of(y)).collect();
        assert!(made == expected, "{unit:?}: {:?}", program.forms().collect::<Vec<_>>());
        names = program.forms().collect();
    }
    names
}

/// Graph of one operator on `x`, perhaps with a constant, with the result's type.
fn one_operator(op: TfliteOp, x: TfliteTensor, constant: Option<&[usize]>, y: TfliteTensor) -> TfliteModel {
    let mut tensors = vec![x];
    if let Some(dims) = constant {
        let values: Vec<i8> = (0..dims.iter().product()).map(|i: usize| (i * 53) as u8 as i8).collect();
        let constant = TfliteTensor::constant("c", Literal::from_slice(dims, &values).unwrap());
        tensors.push(constant.quantized(TfliteQuantization::per_tensor(0.03, 5)));
    }
    let n = tensors.len();
    tensors.push(y);
    TfliteModel {
        tensors,
        operators: vec![TfliteOperator::new(op, 0..n, [n])],
        inputs: vec![0],
        outputs: vec![n],
        ..TfliteModel::default()
    }
}

#[test]
fn operators_have_the_kernel_of_their_kind() {
    let t = |dims: &[usize], scale| {
        TfliteTensor::new("t", dims, DType::I8).quantized(TfliteQuantization::per_tensor(scale, -7))
    };
    let image = [1, 4, 5, 6];
    let of_one = |op, x: TfliteTensor, y: TfliteTensor| kernels_of(&one_operator(op, x, None, y));
    let floats = || TfliteTensor::new("f", image, DType::F32);
    assert_eq!(of_one(TfliteOp::Tanh, t(&image, 0.05), t(&image, 0.01)), ["table"]);
    assert_eq!(of_one(TfliteOp::Quantize, t(&image, 0.05), t(&image, 0.07)), ["table"]);
    assert_eq!(of_one(TfliteOp::Quantize, floats(), t(&image, 0.5)), ["quantize"]);
    assert_eq!(of_one(TfliteOp::Dequantize, t(&image, 0.05), floats()), ["table"]);
    let doubled = TfliteModel {
        operators: vec![TfliteOperator::new(TfliteOp::Add, [0, 0], [1])],
        ..one_operator(TfliteOp::Add, t(&image, 0.05), None, t(&image, 0.1))
    };
    assert_eq!(kernels_of(&doubled), ["addition"]);
    // Constants of one channel, of all, of rows, of rows and channels, and of one element.
    for dims in [&[6][..], &image, &[1, 4, 1, 1], &[1, 4, 5, 1], &[5, 1], &[1]] {
        let of_two = |op, of_x, of_y| {
            let (x, y) = (t(&image, of_x), t(&image, of_y));
            kernels_of(&one_operator(op, x, Some(dims), y))
        };
        // With equal scales a sum of bytes is linear.
        for op in [TfliteOp::Add, TfliteOp::Sub] {
            assert_eq!(of_two(op, 0.03, 0.03), ["formula of pairs"], "{op} {dims:?}");
        }
        for op in [TfliteOp::Maximum, TfliteOp::Minimum] {
            let x = t(&image, 0.03).quantized(TfliteQuantization::per_tensor(0.03, 5));
            let model = one_operator(op, x.clone(), Some(dims), x);
            assert_eq!(kernels_of(&model), ["formula of pairs"], "{op} {dims:?}");
        }
        assert_eq!(of_two(TfliteOp::SquaredDifference, 0.05, 0.2), ["table of pairs"], "{dims:?}");
    }
}

#[test]
fn only_convolutions_read_an_image_without_its_padding() {
    let t = |name: &str, dims: &[usize]| {
        TfliteTensor::new(name, dims, DType::I8).quantized(TfliteQuantization::per_tensor(0.05, -7))
    };
    let pads = Literal::from_slice([4, 2], &[0, 0, 1, 1, 0, 2, 0, 0]).unwrap();
    let model = |reader: TfliteOperator, dims: &[usize]| TfliteModel {
        tensors: vec![
            t("x", &[1, 4, 4, 3]),
            TfliteTensor::constant("pads", pads.clone()),
            t("padded", &[1, 6, 6, 3]),
            t("y", dims),
        ],
        operators: vec![TfliteOperator::new(TfliteOp::Pad, [0, 1], [2]), reader],
        inputs: vec![0],
        outputs: vec![3],
        ..TfliteModel::default()
    };
    for op in [TfliteOp::MaxPool2D, TfliteOp::AveragePool2D] {
        let pool = [OptionField::StrideH, OptionField::StrideW, OptionField::FilterH, OptionField::FilterW]
            .into_iter()
            .fold(TfliteOperator::new(op, [2], [3]), |o, field| o.with(field, 2.0));
        assert_eq!(
            kernels_of(&model(pool.with(OptionField::Padding, 1.0), &[1, 3, 3, 3]))[0],
            "moves",
            "{op}"
        );
    }
    let minimum = TfliteOperator::new(TfliteOp::Minimum, [2, 2], [3]);
    assert_eq!(kernels_of(&model(minimum, &[1, 6, 6, 3]))[0], "moves");
}

/// Sums that could exceed 32 bits are left to the interpreter.
#[test]
fn products_of_very_long_rows_are_interpreted() {
    let t = |name: &str, dims: [usize; 2], zero| {
        TfliteTensor::new(name, dims, DType::I8).quantized(TfliteQuantization::per_tensor(0.05, zero))
    };
    for (k, zero, interpreted) in [(100, 127, 0), (33_100, 127, 1), (33_100, -128, 1)] {
        let model = TfliteModel {
            tensors: vec![t("a", [1, k], -128), t("b", [k, 1], zero), t("y", [1, 1], 9)],
            operators: vec![TfliteOperator::new(TfliteOp::BatchMatmul, [0, 1], [2])],
            inputs: vec![0, 1],
            outputs: vec![2],
            ..TfliteModel::default()
        };
        let far = if zero == 127 { -128i8 } else { 127 };
        let a = Literal::from_slice([1, k], &vec![-127i8; k]).unwrap();
        let inputs = [a, Literal::from_slice([k, 1], &vec![far; k]).unwrap()];
        let expected = bytes_of(&TfliteInterpreter::new(&model).unwrap().run(&inputs).unwrap());
        let program = Int8Program::new(model, &Settings::default()).unwrap();
        assert_eq!(program.interpreted(), interpreted, "{k}, {zero}");
        assert_eq!(bytes_of(&program.run(&inputs).unwrap()), expected, "{k}, {zero}");
    }
}

#[test]
fn floats_are_rounded_half_away_from_zero() {
    let below_half = f32::from_bits(0.5f32.to_bits() - 1);
    let values = [below_half, 0.5, 1.5, 2.5, -below_half, -0.5, -1.5, -2.5];
    let x = TfliteTensor::new("x", [1, 8], DType::F32);
    let y = TfliteTensor::new("y", [1, 8], DType::I8).quantized(TfliteQuantization::per_tensor(1.0, 10));
    let model = one_operator(TfliteOp::Quantize, x, None, y);
    let inputs = [Literal::from_slice([1, 8], &values).unwrap()];
    let expected = Literal::from_slice([1, 8], &[10i8, 11, 12, 13, 10, 9, 8, 7]).unwrap();
    assert_eq!(
        TfliteInterpreter::new(&model).unwrap().run(&inputs).unwrap(),
        std::slice::from_ref(&expected)
    );
    assert_eq!(Int8Program::new(model, &Settings::default()).unwrap().run(&inputs).unwrap(), [expected]);
}
