//! Cases of operators without an int8 form: comparisons, reductions, indices, rearranging.

use super::Case;
use systole_base::rng::RandomStream;
use systole_base::{DType, Literal};
use systole_tflite::{OptionField, TfliteModel, TfliteOp, TfliteOperator, TfliteTensor};

/// An operand: given when the model runs, or a constant.
#[derive(Clone)]
enum Operand {
    Given(Literal),
    Constant(Literal),
}
use Operand::{Constant, Given};

fn floats(seed: u64, dims: &[usize]) -> Literal {
    let mut stream = RandomStream::new(seed, 3, 0);
    let n = dims.iter().product();
    Literal::from_slice(dims, &(0..n).map(|_| stream.range(-2.0, 2.0)).collect::<Vec<f32>>()).unwrap()
}

fn ints(dims: &[usize], values: &[i32]) -> Literal {
    Literal::from_slice(dims, values).unwrap()
}

fn list(values: &[i32]) -> Operand {
    Constant(ints(&[values.len()], values))
}

fn pairs(values: &[i32]) -> Operand {
    Constant(ints(&[values.len() / 2, 2], values))
}

fn scalar(value: i32) -> Operand {
    Constant(ints(&[], &[value]))
}

fn op(of: TfliteOp, options: &[(OptionField, f64)]) -> TfliteOperator {
    options.iter().fold(TfliteOperator::new(of, [], []), |o, &(field, value)| o.with(field, value))
}

/// A model of one operator with these operands; the results have these types.
fn case(name: &str, o: TfliteOperator, operands: Vec<Operand>, results: &[(DType, &[usize])]) -> Case {
    let (mut model, mut inputs, mut o) = (TfliteModel::default(), Vec::new(), o);
    for (n, operand) in operands.into_iter().enumerate() {
        let tensor = match operand {
            Given(x) => {
                model.inputs.push(model.tensors.len());
                inputs.push(x.clone());
                TfliteTensor::new(format!("x{n}"), x.shape().clone(), x.dtype())
            }
            Constant(x) => TfliteTensor::constant(format!("c{n}"), x),
        };
        o.inputs.push(Some(model.tensors.len()));
        model.tensors.push(tensor);
    }
    for (n, (dtype, dims)) in results.iter().enumerate() {
        o.outputs.push(model.tensors.len());
        model.tensors.push(TfliteTensor::new(format!("y{n}"), *dims, *dtype));
    }
    model.outputs = o.outputs.clone();
    model.operators = vec![o];
    Case { name: name.into(), model, inputs }
}

/// Returns the cases, in an order that does not change.
pub(super) fn cases() -> Vec<Case> {
    [elementwise(), reductions(), rearranged(), indexed(), recurrent(), sized_by_data()]
        .into_iter()
        .flatten()
        .collect()
}

fn elementwise() -> Vec<Case> {
    use TfliteOp as T;
    let (x, row) = (|| Given(floats(1, &[2, 3, 4])), || Given(floats(2, &[4])));
    let of = |o: TfliteOp, name: &str| case(name, op(o, &[]), vec![x()], &[(DType::F32, &[2, 3, 4])]);
    let mut all = vec![
        of(T::Floor, "floor"),
        of(T::Sin, "sin"),
        of(T::Cos, "cos"),
        of(T::Abs, "abs"),
        of(T::Square, "square"),
        of(T::Sign, "sign"),
        of(T::Relu0To1, "relu_0_to_1"),
        of(T::ZerosLike, "zeros_like"),
        of(T::LogSoftmax, "log_softmax"),
    ];
    for (name, o) in [
        ("less", T::Less),
        ("greater", T::Greater),
        ("greater_equal", T::GreaterEqual),
        ("less_equal", T::LessEqual),
        ("equal", T::Equal),
        ("not_equal", T::NotEqual),
    ] {
        all.push(case(name, op(o, &[]), vec![x(), row()], &[(DType::Bool, &[2, 3, 4])]));
        let (a, b) = (ints(&[2, 3], &[1, -2, 3, 4, 5, 6]), ints(&[3], &[1, 5, 2]));
        all.push(case(
            &format!("{name}_int"),
            op(o, &[]),
            vec![Given(a), Given(b)],
            &[(DType::Bool, &[2, 3])],
        ));
    }
    let bools = |values: &[bool]| Given(Literal::from_bools([values.len()], values).unwrap());
    let (p, q) = (|| bools(&[true, true, false, false]), || bools(&[true, false, true, false]));
    all.push(case("logical_and", op(T::LogicalAnd, &[]), vec![p(), q()], &[(DType::Bool, &[4])]));
    all.push(case("logical_or", op(T::LogicalOr, &[]), vec![p(), q()], &[(DType::Bool, &[4])]));
    all.push(case("logical_not", op(T::LogicalNot, &[]), vec![q()], &[(DType::Bool, &[4])]));
    let rows = || Given(Literal::from_bools([2], &[false, true]).unwrap());
    let other = || Given(floats(3, &[2, 3, 4]));
    all.push(case(
        "select_rows",
        op(T::Select, &[]),
        vec![rows(), x(), other()],
        &[(DType::F32, &[2, 3, 4])],
    ));
    all.push(case("select_v2", op(T::SelectV2, &[]), vec![p(), x(), row()], &[(DType::F32, &[2, 3, 4])]));
    let positive = || Given(Literal::from_slice([4], &[0.5f32, 1.5, 2.0, 3.0]).unwrap());
    all.push(case("pow", op(T::Pow, &[]), vec![positive(), row()], &[(DType::F32, &[4])]));
    all.push(case("atan2", op(T::Atan2, &[]), vec![positive(), row()], &[(DType::F32, &[4])]));
    all.push(case("floor_mod", op(T::FloorMod, &[]), vec![x(), other()], &[(DType::F32, &[2, 3, 4])]));
    all.push(case("floor_div", op(T::FloorDiv, &[]), vec![x(), other()], &[(DType::F32, &[2, 3, 4])]));
    let (a, b) =
        (|| Given(ints(&[6], &[7, -7, 7, -7, 6, 0])), || Constant(ints(&[6], &[2, 2, -2, -2, 3, 5])));
    for (name, o) in [
        ("floor_mod", T::FloorMod),
        ("floor_div", T::FloorDiv),
        ("add", T::Add),
        ("sub", T::Sub),
        ("mul", T::Mul),
        ("div", T::Div),
        ("maximum", T::Maximum),
        ("minimum", T::Minimum),
        ("bitwise_xor", T::BitwiseXor),
    ] {
        all.push(case(&format!("{name}_ints"), op(o, &[]), vec![a(), b()], &[(DType::I32, &[6])]));
    }
    all.push(case("add_n", op(T::AddN, &[]), vec![x(), other(), x()], &[(DType::F32, &[2, 3, 4])]));
    all.push(case("cast_to_int", op(T::Cast, &[]), vec![x()], &[(DType::I32, &[2, 3, 4])]));
    all.push(case("cast_to_float", op(T::Cast, &[]), vec![a()], &[(DType::F32, &[6])]));
    all
}

fn reductions() -> Vec<Case> {
    use TfliteOp as T;
    let x = || Given(floats(5, &[2, 3, 4]));
    let kept = [(OptionField::KeepDims, 1.0)];
    let mut all = vec![
        case("reduce_min", op(T::ReduceMin, &[]), vec![x(), list(&[1])], &[(DType::F32, &[2, 4])]),
        case("reduce_prod", op(T::ReduceProd, &kept), vec![x(), list(&[0, 2])], &[(DType::F32, &[1, 3, 1])]),
        case(
            "arg_min",
            op(T::ArgMin, &[(OptionField::OutputType, 2.0)]),
            vec![x(), scalar(2)],
            &[(DType::I32, &[2, 3])],
        ),
    ];
    let numbers = || Given(ints(&[2, 3], &[5, -1, 4, 2, 8, -3]));
    for (name, o) in [("sum", T::Sum), ("reduce_max", T::ReduceMax), ("reduce_min", T::ReduceMin)] {
        all.push(case(
            &format!("{name}_ints"),
            op(o, &[]),
            vec![numbers(), list(&[1])],
            &[(DType::I32, &[2])],
        ));
    }
    let bools = || Given(Literal::from_bools([2, 3], &[true, false, false, true, true, true]).unwrap());
    all.push(case("reduce_any", op(T::ReduceAny, &[]), vec![bools(), list(&[0])], &[(DType::Bool, &[3])]));
    all.push(case("reduce_all", op(T::ReduceAll, &[]), vec![bools(), list(&[1])], &[(DType::Bool, &[2])]));
    for (exclusive, reverse) in [(0.0, 0.0), (1.0, 0.0), (0.0, 1.0), (1.0, 1.0)] {
        let options = [(OptionField::Exclusive, exclusive), (OptionField::Reverse, reverse)];
        let name = format!("cumsum_{exclusive}_{reverse}");
        all.push(case(&name, op(T::Cumsum, &options), vec![x(), scalar(1)], &[(DType::F32, &[2, 3, 4])]));
    }
    all
}

fn rearranged() -> Vec<Case> {
    use TfliteOp as T;
    let x = || Given(floats(7, &[2, 3, 4]));
    let f = |dims: &'static [usize]| [(DType::F32, dims)];
    let axis = |k: f64| (OptionField::Axis, k);
    let picture = || Given(floats(8, &[1, 4, 6, 2]));
    vec![
        case("tile", op(T::Tile, &[]), vec![x(), list(&[1, 2, 3])], &f(&[2, 6, 12])),
        case(
            "pack",
            op(T::Pack, &[(OptionField::ValuesCount, 2.0), axis(1.0)]),
            vec![x(), x()],
            &f(&[2, 2, 3, 4]),
        ),
        case(
            "unpack",
            op(T::Unpack, &[(OptionField::Num, 3.0), axis(1.0)]),
            vec![x()],
            &[(DType::F32, &[2, 4]), (DType::F32, &[2, 4]), (DType::F32, &[2, 4])],
        ),
        case(
            "split_v",
            op(T::SplitV, &[(OptionField::NumSplits, 2.0)]),
            vec![x(), list(&[3, 1]), scalar(2)],
            &[(DType::F32, &[2, 3, 3]), (DType::F32, &[2, 3, 1])],
        ),
        case("reverse_v2", op(T::ReverseV2, &[]), vec![x(), list(&[1])], &f(&[2, 3, 4])),
        case(
            "reverse_sequence",
            op(T::ReverseSequence, &[(OptionField::SeqDim, 1.0), (OptionField::BatchDim, 0.0)]),
            vec![x(), list(&[2, 3])],
            &f(&[2, 3, 4]),
        ),
        case("mirror_pad", op(T::MirrorPad, &[]), vec![x(), pairs(&[0, 0, 1, 2, 2, 0])], &f(&[2, 6, 6])),
        case(
            "mirror_pad_symmetric",
            op(T::MirrorPad, &[(OptionField::MirrorMode, 1.0)]),
            vec![x(), pairs(&[0, 0, 1, 2, 2, 0])],
            &f(&[2, 6, 6]),
        ),
        case(
            "pad_v2",
            op(T::PadV2, &[]),
            vec![x(), pairs(&[0, 0, 1, 2, 2, 0]), Constant(Literal::from_slice([], &[-7.5f32]).unwrap())],
            &f(&[2, 6, 6]),
        ),
        case(
            "space_to_batch",
            op(T::SpaceToBatch, &[]),
            vec![picture(), list(&[2, 2]), pairs(&[0, 0, 1, 1])],
            &f(&[4, 2, 4, 2]),
        ),
        case(
            "batch_to_space",
            op(T::BatchToSpace, &[]),
            vec![Given(floats(9, &[4, 2, 4, 2])), list(&[2, 2]), pairs(&[0, 0, 1, 1])],
            &f(&[1, 4, 6, 2]),
        ),
        case(
            "strided_slice_new_axis",
            op(T::StridedSlice, &[(OptionField::NewAxisMask, 1.0), (OptionField::ShrinkAxisMask, 4.0)]),
            vec![x(), list(&[0, 0, 1]), list(&[0, 2, 2]), list(&[1, 1, 1])],
            &f(&[1, 2, 4]),
        ),
        case(
            "strided_slice_ellipsis",
            op(T::StridedSlice, &[(OptionField::EllipsisMask, 1.0)]),
            vec![x(), list(&[0, 1]), list(&[0, 3]), list(&[1, 1])],
            &f(&[2, 3, 2]),
        ),
        case(
            "conv3d",
            op(
                T::Conv3D,
                &[
                    (OptionField::StrideD, 1.0),
                    (OptionField::StrideH, 2.0),
                    (OptionField::StrideW, 1.0),
                    (OptionField::Activation, 1.0),
                ],
            ),
            vec![
                Given(floats(11, &[1, 3, 5, 4, 2])),
                Constant(floats(12, &[2, 3, 3, 2, 4])),
                Constant(floats(13, &[4])),
            ],
            &f(&[1, 3, 3, 4, 4]),
        ),
    ]
}

fn indexed() -> Vec<Case> {
    use TfliteOp as T;
    let x = || Given(floats(15, &[3, 4]));
    let one = |value: f32| Constant(Literal::from_slice([], &[value]).unwrap());
    // Other tests draw other inputs, which are no indices.
    let places = |dims: &[usize], values: &[i32]| Constant(ints(dims, values));
    vec![
        case(
            "gather_nd",
            op(T::GatherNd, &[]),
            vec![x(), places(&[2, 2], &[0, 1, 2, 3])],
            &[(DType::F32, &[2])],
        ),
        case(
            "gather_batch",
            op(T::Gather, &[(OptionField::Axis, 1.0), (OptionField::BatchDims, 1.0)]),
            vec![x(), places(&[3, 2], &[0, 1, 3, 3, 2, 0])],
            &[(DType::F32, &[3, 2])],
        ),
        case(
            "scatter_nd",
            op(T::ScatterNd, &[]),
            vec![places(&[3, 1], &[1, 3, 1]), x(), list(&[5, 4])],
            &[(DType::F32, &[5, 4])],
        ),
        case(
            "one_hot",
            op(T::OneHot, &[(OptionField::Axis, -1.0)]),
            vec![places(&[3], &[1, 0, 7]), scalar(4), one(2.0), one(-1.0)],
            &[(DType::F32, &[3, 4])],
        ),
        case(
            "embedding_lookup",
            op(T::EmbeddingLookup, &[]),
            vec![places(&[2], &[2, 0]), Constant(floats(16, &[3, 4]))],
            &[(DType::F32, &[2, 4])],
        ),
        case(
            "top_k",
            op(T::TopK, &[]),
            vec![x(), scalar(2)],
            &[(DType::F32, &[3, 2]), (DType::I32, &[3, 2])],
        ),
        case("matrix_diag", op(T::MatrixDiag, &[]), vec![x()], &[(DType::F32, &[3, 4, 4])]),
        case(
            "matrix_set_diag",
            op(T::MatrixSetDiag, &[]),
            vec![x(), Given(floats(17, &[3]))],
            &[(DType::F32, &[3, 4])],
        ),
        case(
            "update_slice",
            op(T::DynamicUpdateSlice, &[]),
            vec![x(), Given(floats(18, &[2, 2])), places(&[2], &[2, 1])],
            &[(DType::F32, &[3, 4])],
        ),
        case(
            "unsorted_segment_max",
            op(T::UnsortedSegmentMax, &[]),
            vec![x(), list(&[1, 0, 1]), scalar(2)],
            &[(DType::F32, &[2, 4])],
        ),
        case(
            "non_max_suppression_v4",
            op(T::NonMaxSuppressionV4, &[]),
            vec![
                Given(
                    Literal::from_slice(
                        [4, 4],
                        &[0., 0., 1., 1., 0., 0.1, 1., 1.1, 0., 2., 1., 3., 0., 2., 1., 3.1f32],
                    )
                    .unwrap(),
                ),
                Given(Literal::from_slice([4], &[0.6f32, 0.9, 0.3, 0.8]).unwrap()),
                scalar(3),
                one(0.5),
                one(0.1),
            ],
            &[(DType::I32, &[3]), (DType::I32, &[])],
        ),
    ]
}

/// An operand that is absent, or a constant of small floats.
fn weights(seed: u64, dims: &[usize]) -> Operand {
    let x = floats(seed, dims);
    let small: Vec<f32> = x.as_slice::<f32>().unwrap().iter().map(|v| v * 0.4).collect();
    Constant(Literal::from_slice(dims, &small).unwrap())
}

/// Like [`case`], with absent operands, and variables of 0 for the states of these shapes.
fn stateful(
    name: &str,
    o: TfliteOperator,
    operands: Vec<Option<Operand>>,
    states: &[(usize, &[usize])],
    results: &[(DType, &[usize])],
) -> Case {
    let present: Vec<Operand> = operands.iter().flatten().cloned().collect();
    let mut made = case(name, o, present, results);
    let mut tensors = (0..operands.len()).map(|n| operands[n].as_ref().map(|_| ())).collect::<Vec<_>>();
    let mut next = 0;
    let mut inputs: Vec<Option<usize>> = Vec::new();
    for there in tensors.drain(..) {
        inputs.push(there.map(|()| {
            next += 1;
            next - 1
        }));
    }
    for &(at, dims) in states {
        if inputs.len() <= at {
            inputs.resize(at + 1, None);
        }
        inputs[at] = Some(made.model.tensors.len());
        let zeros = Literal::from_slice(dims, &vec![0f32; dims.iter().product()]).unwrap();
        let mut state = TfliteTensor::constant(format!("state{at}"), zeros);
        state.is_variable = true;
        made.model.tensors.push(state);
    }
    made.model.operators[0].inputs = inputs;
    made
}

fn recurrent() -> Vec<Case> {
    use TfliteOp as T;
    let tanh = (OptionField::Activation, 4.0);
    let f = |dims: &'static [usize]| [(DType::F32, dims)];
    let (row, steps) = (|| Some(Given(floats(31, &[2, 3]))), || Some(Given(floats(32, &[2, 5, 3]))));
    let w = |seed: u64, dims: &[usize]| Some(weights(seed, dims));
    // Weights of an LSTM with 4 cells: inputs, states, cells, biases.
    let gates = |seed: u64| -> Vec<Option<Operand>> {
        let inputs = (0..4).map(|n| w(seed + n, &[4, 3]));
        let states = (0..4).map(|n| w(seed + 4 + n, &[4, 4]));
        let cells = (0..3).map(|n| w(seed + 8 + n, &[4]));
        let biases = (0..4).map(|n| w(seed + 11 + n, &[4]));
        inputs.chain(states).chain(cells).chain(biases).collect()
    };
    let of_lstm = |x: Option<Operand>, seed| [vec![x], gates(seed), vec![None, None]].concat();
    let normalized = [of_lstm(row(), 40), vec![None; 2], (0..4).map(|n| w(70 + n, &[4])).collect()].concat();
    let both = [of_lstm(steps(), 80), gates(100), vec![None; 15]].concat();
    let rnn = |seed| vec![w(seed, &[4, 3]), w(seed + 1, &[4, 4]), w(seed + 2, &[4])];
    let rnns = [vec![steps()], rnn(130), vec![None], rnn(135), vec![None; 4]].concat();
    let (merged, major) = ((OptionField::MergeOutputs, 1.0), (OptionField::TimeMajor, 1.0));
    let states: [&[usize]; 3] = [&[2, 4], &[5, 4], &[2, 12]];
    vec![
        stateful(
            "rnn",
            op(T::Rnn, &[tanh]),
            [vec![row()], rnn(30), vec![None]].concat(),
            &[(4, states[0])],
            &f(&[2, 4]),
        ),
        stateful(
            "svdf",
            op(T::Svdf, &[(OptionField::Rank, 2.0), (OptionField::Activation, 1.0)]),
            vec![row(), w(36, &[4, 3]), w(37, &[4, 3]), w(38, &[2])],
            &[(4, states[2])],
            &f(&[2, 2]),
        ),
        stateful(
            "lstm_step",
            op(T::Lstm, &[tanh, (OptionField::CellClip, 0.5)]),
            of_lstm(row(), 40),
            &[(18, states[0]), (19, states[0])],
            &f(&[2, 4]),
        ),
        stateful(
            "lstm_normalized",
            op(T::Lstm, &[tanh]),
            normalized,
            &[(18, states[0]), (19, states[0])],
            &f(&[2, 4]),
        ),
        stateful(
            "bidirectional_rnn",
            op(T::BidirectionalSequenceRnn, &[tanh]),
            rnns.clone(),
            &[(4, states[0]), (8, states[0])],
            &[(DType::F32, &[2, 5, 4]), (DType::F32, &[2, 5, 4])],
        ),
        stateful(
            "bidirectional_rnn_merged",
            op(T::BidirectionalSequenceRnn, &[(OptionField::Activation, 1.0), merged, major]),
            rnns,
            &[(4, states[1]), (8, states[1])],
            &f(&[2, 5, 8]),
        ),
        stateful(
            "bidirectional_lstm",
            op(T::BidirectionalSequenceLstm, &[tanh, (OptionField::TimeFirst, 0.0)]),
            both.clone(),
            &[(35, states[0]), (36, states[0]), (37, states[0]), (38, states[0])],
            &[(DType::F32, &[2, 5, 4]), (DType::F32, &[2, 5, 4])],
        ),
        // LiteRT computes merged outputs only of time-major sequences right: others read the state of another sample.
        stateful(
            "bidirectional_lstm_merged",
            op(T::BidirectionalSequenceLstm, &[tanh, merged]),
            both,
            &[(35, states[1]), (36, states[1]), (37, states[1]), (38, states[1])],
            &f(&[2, 5, 8]),
        ),
    ]
}

fn sized_by_data() -> Vec<Case> {
    use TfliteOp as T;
    let bools = Literal::from_bools([2, 3], &[true, false, true, false, false, true]).unwrap();
    let numbers = Constant(ints(&[6], &[3, -1, 3, 2, -1, 7]));
    let boundaries: Vec<i32> = [-1.0f32, 0.25, 1.5].iter().map(|v| v.to_bits() as i32).collect();
    let bucketize = op(T::Bucketize, &[]).with_list(OptionField::Boundaries, boundaries);
    let volumes = |seed, dims: &[usize]| Constant(floats(seed, dims));
    let transposed = |padding: f64| {
        let strides = [(OptionField::StrideD, 1.0), (OptionField::StrideH, 2.0), (OptionField::StrideW, 1.0)];
        op(T::Conv3DTranspose, &strides).with(OptionField::Padding, padding)
    };
    let pool = [
        (OptionField::StrideW, 2.0),
        (OptionField::StrideH, 1.0),
        (OptionField::FilterW, 3.0),
        (OptionField::FilterH, 2.0),
    ];
    vec![
        case("where", op(T::Where, &[]), vec![Constant(bools)], &[(DType::I64, &[3, 2])]),
        case(
            "unique",
            op(T::Unique, &[(OptionField::OutputType, 2.0)]),
            vec![numbers],
            &[(DType::I32, &[4]), (DType::I32, &[6])],
        ),
        case("bucketize", bucketize, vec![Given(floats(51, &[3, 4]))], &[(DType::I32, &[3, 4])]),
        case(
            "l2_pool",
            op(T::L2Pool2D, &pool),
            vec![Given(floats(52, &[1, 4, 6, 2]))],
            &[(DType::F32, &[1, 4, 3, 2])],
        ),
        case(
            "conv3d_transpose_same",
            transposed(0.0),
            vec![
                list(&[1, 3, 6, 4, 2]),
                volumes(53, &[2, 3, 3, 2, 3]),
                Given(floats(54, &[1, 3, 3, 4, 3])),
                volumes(55, &[2]),
            ],
            &[(DType::F32, &[1, 3, 6, 4, 2])],
        ),
        case(
            "conv3d_transpose_valid",
            transposed(1.0),
            vec![list(&[1, 4, 7, 6, 2]), volumes(56, &[2, 3, 3, 2, 3]), Given(floats(57, &[1, 3, 3, 4, 3]))],
            &[(DType::F32, &[1, 4, 7, 6, 2])],
        ),
    ]
}
