//! Tests reduce-window, scatter and random bits against the interpreter: all attributes, odd sizes, ties, NaN, −0.
//!
//! On every instruction-set level of this machine and on 1, 2 and 3 threads. Results are bit-identical, because these
//! kernels reduce in the interpreter's order; otherwise sums are of numbers that are exact in any order.

mod common;

use common::{backend, levels, oracle, run};
use std::sync::Arc;
use systole_cpu::CpuBackend;
use systole_ir::DType::*;
use systole_ir::op::scatter::overwrite_body;
use systole_ir::op::{
    CompareType, Direction, Monoid, ReduceWindow, RngAlgorithm, RngBitGenerator, Scatter, SelectAndScatter,
    Window,
};
use systole_ir::rng::RandomStream;
use systole_ir::{DType, Dims, Graph, GraphBuilder, Literal, LiteralBuilder, Op, Scalar, Tensor, TensorType};

fn backends() -> Vec<CpuBackend> {
    levels().flat_map(|l| [1, 2, 3].map(|threads| backend(l, threads))).collect()
}

/// Random multiples of one half; with `special` also NaN, infinities, both zeros, and many ties.
fn draw(ty: &TensorType, special: bool, s: &mut RandomStream) -> Literal {
    let mut b = LiteralBuilder::new(ty.clone());
    for i in 0..ty.elements() {
        let value = match (special && ty.dtype.is_float(), s.below(16)) {
            (true, 0) => f64::NAN,
            (true, 1) => f64::INFINITY,
            (true, 2) => f64::NEG_INFINITY,
            (true, 3 | 4) => -0.0,
            (true, 5 | 6) => 0.0,
            (_, k) if ty.dtype == Bool => (k % 2) as f64,
            (_, _) if ty.dtype.is_unsigned_int() => s.below(9) as f64,
            (_, _) if ty.dtype.is_int() => s.below(17) as f64 - 8.0,
            _ => s.below(17) as f64 / 2.0 - 4.0,
        };
        b.set(i, Scalar::of(ty.dtype, value));
    }
    b.finish()
}

fn same(a: &Literal, b: &Literal) -> bool {
    a.ty() == b.ty()
        && (0..a.ty().elements()).all(|i| match (a.get(i), b.get(i)) {
            (Scalar::Float(x), Scalar::Float(y)) => x.to_bits() == y.to_bits() || (x.is_nan() && y.is_nan()),
            (x, y) => x == y,
        })
}

fn check(backends: &[CpuBackend], graph: &Arc<Graph>, args: &[Literal], what: &str) {
    let want = oracle(graph, args);
    for b in backends {
        for (k, (got, want)) in run(b, graph, args).iter().zip(&want).enumerate() {
            assert!(same(got, want), "{what}, result {k}\n{args:?}\n{got:?}\n{want:?}");
        }
    }
}

/// A graph of one op, if the op accepts these types.
fn graph(op: Op, types: &[TensorType]) -> Option<Arc<Graph>> {
    let g = GraphBuilder::new("main");
    let params: Vec<Tensor> = types.iter().map(|t| g.parameter(t.clone(), "x")).collect();
    let results = g.emit(op, &params.iter().collect::<Vec<_>>());
    g.finish(&results).ok()
}

fn check_op(
    backends: &[CpuBackend],
    op: Op,
    types: &[TensorType],
    special: bool,
    s: &mut RandomStream,
) -> bool {
    let Some(graph) = graph(op.clone(), types) else { return false };
    let args: Vec<Literal> = types.iter().map(|t| draw(t, special, s)).collect();
    check(backends, &graph, &args, &format!("{op:?} of {types:?}"));
    true
}

fn ty(dtype: DType, dims: &[usize]) -> TensorType {
    TensorType::new(dtype, dims)
}

/// A random monoid for the type; multiplication only if it stays exact, so that running products from the end are
/// equal.
fn monoid(dtype: DType, s: &mut RandomStream) -> Monoid {
    use Monoid::*;
    let bits = [Add, Multiply, Minimum, Maximum, And, Or];
    bits[s.below(if dtype.is_float() { 4 } else { 6 }) as usize]
}

const DTYPES: [DType; 13] = [F32, F32, BF16, F16, F64, I8, I16, I32, I64, U8, U16, U64, Bool];

fn random_window(s: &mut RandomStream, dims: &[usize], dilated: bool) -> Window {
    let mut numbers = |most: u64| -> Dims { dims.iter().map(|_| 1 + s.below(most) as usize).collect() };
    let (dimensions, strides) = (numbers(3), numbers(3));
    let (base_dilations, window_dilations) = match dilated {
        true => (numbers(3), numbers(3)),
        false => (numbers(1), numbers(1)),
    };
    let padding = dims.iter().map(|_| [s.below(5) as i64 - 1, s.below(5) as i64 - 1]).collect();
    Window { dimensions, strides, base_dilations, window_dilations, padding }
}

#[test]
fn folds_over_any_windows() {
    let (backends, s) = (backends(), &mut RandomStream::new(1, 1, 1));
    let mut done = 0;
    for case in 0..600 {
        let dtype = DTYPES[case % DTYPES.len()];
        let dims: Vec<usize> = (0..s.below(5)).map(|_| s.below(7) as usize).collect();
        let window = random_window(s, &dims, case % 3 == 0);
        let op = ReduceWindow { window, body: monoid(dtype, s).body(dtype) };
        done += usize::from(check_op(&backends, op.into(), &[ty(dtype, &dims), ty(dtype, &[])], true, s));
    }
    assert!(done > 400, "{done}");
}

#[test]
fn folds_of_images() {
    let (backends, s) = (backends(), &mut RandomStream::new(2, 1, 1));
    for (dtype, channels) in [(F32, 64), (F32, 3), (F32, 37), (BF16, 40), (F16, 17), (F64, 33), (I32, 20)] {
        for (size, stride, pad, hole) in
            [([2, 2], 2, [0, 0], 1), ([3, 3], 1, [1, 1], 1), ([3, 2], 2, [0, 1], 1), ([2, 3], 1, [2, 1], 2)]
        {
            let window = Window {
                window_dilations: [1, hole, 1, 1][..].into(),
                base_dilations: [1, 1, hole, 1][..].into(),
                ..Window::new(&[1, size[0], size[1], 1], &[1, stride, stride, 1], &[[0, 0], pad, pad, [0, 0]])
            };
            for m in [Monoid::Add, Monoid::Maximum, Monoid::Minimum, Monoid::Multiply] {
                let op = ReduceWindow { window: window.clone(), body: m.body(dtype) };
                let x = ty(dtype, &[3, 12, 9, channels]);
                assert!(check_op(&backends, op.into(), &[x, ty(dtype, &[])], true, s));
            }
        }
    }
}

#[test]
fn running_folds() {
    let (backends, s) = (backends(), &mut RandomStream::new(3, 1, 1));
    for dims in [&[40][..], &[5, 0], &[7, 19, 5], &[2, 4, 200], &[300, 33, 1], &[1, 500]] {
        for d in 0..dims.len() {
            for backwards in [false, true] {
                for dtype in [F32, F64, I32, BF16] {
                    let n = dims[d].max(1);
                    let mut sizes = vec![1; dims.len()];
                    sizes[d] = n;
                    let mut padding = vec![[0, 0]; dims.len()];
                    padding[d][usize::from(backwards)] = n as i64 - 1;
                    let window = Window::new(&sizes, &vec![1; dims.len()], &padding);
                    // The order of a reduction from the end affects rounded sums only.
                    let m = if backwards && dtype == BF16 { Monoid::Maximum } else { Monoid::Add };
                    let op = ReduceWindow { window, body: m.body(dtype) };
                    assert!(check_op(
                        &backends,
                        op.into(),
                        &[ty(dtype, dims), ty(dtype, &[])],
                        dtype != I32,
                        s
                    ));
                }
            }
        }
    }
}

fn selection(direction: Direction, dtype: DType, total: bool, swapped: bool) -> Arc<Graph> {
    let g = GraphBuilder::new("select");
    let [a, b] = ["a", "b"].map(|name| g.parameter(TensorType::scalar(dtype), name));
    let compare_type = if total { CompareType::TotalOrder } else { CompareType::of(dtype) };
    let op = systole_ir::op::Compare { direction, compare_type };
    let operands = if swapped { [&b, &a] } else { [&a, &b] };
    let keep = g.emit(op, &operands).remove(0);
    g.finish(&[keep]).unwrap()
}

fn select_and_scatter(
    backends: &[CpuBackend],
    x: &TensorType,
    window: &Window,
    select: Arc<Graph>,
    s: &mut RandomStream,
) -> bool {
    // Shape of the source: that of a reduction over the same windows.
    let scalar = TensorType::scalar(x.dtype);
    let fold = ReduceWindow { window: window.clone(), body: Monoid::Add.body(x.dtype) };
    let Some(source) = graph(fold.into(), &[x.clone(), scalar.clone()]) else { return false };
    let op = SelectAndScatter {
        dimensions: window.dimensions.clone(),
        strides: window.strides.clone(),
        padding: window.padding.clone(),
        select,
        scatter: Monoid::Add.body(x.dtype),
    };
    check_op(backends, op.into(), &[x.clone(), source.result_types()[0].clone(), scalar], true, s)
}

#[test]
fn selections_over_any_windows() {
    let (backends, s) = (backends(), &mut RandomStream::new(4, 1, 1));
    let dtypes = [F32, F32, F64, BF16, F16, I32, I64];
    let mut done = 0;
    for case in 0..600 {
        let dtype = dtypes[case % dtypes.len()];
        let dims: Vec<usize> = (0..s.below(5)).map(|_| s.below(7) as usize).collect();
        let mut window = random_window(s, &dims, false);
        if case % 2 == 0 {
            // Windows with gaps between them.
            window.strides = window.dimensions.iter().map(|&w| w + s.below(2) as usize).collect();
        }
        let direction = [Direction::Ge, Direction::Le, Direction::Gt, Direction::Ne][s.below(4) as usize];
        let select = selection(direction, dtype, case % 10 == 9 && dtype.is_float(), case % 5 == 4);
        done += usize::from(select_and_scatter(&backends, &ty(dtype, &dims), &window, select, s));
    }
    assert!(done > 400, "{done}");
}

#[test]
fn selections_of_images() {
    let (backends, s) = (backends(), &mut RandomStream::new(5, 1, 1));
    for (dtype, channels) in [(F32, 64), (F32, 3), (F32, 101), (BF16, 40), (F16, 17), (F64, 33)] {
        for (size, stride, pad) in [
            ([2, 2], 2, [0, 0]),
            ([2, 2], 3, [1, 0]),
            ([3, 3], 2, [0, 1]),
            ([3, 2], 1, [1, 1]),
            ([1, 2], 2, [0, 0]),
        ] {
            for batch in [1, 3] {
                let padding = [[0, 0], pad, pad, [0, 0]];
                let window = Window::new(&[1, size[0], size[1], 1], &[1, stride, stride, 1], &padding);
                let x = ty(dtype, &[batch, 11, 10, channels]);
                let select = selection(Direction::Ge, dtype, false, false);
                assert!(select_and_scatter(&backends, &x, &window, select, s));
            }
        }
    }
}

/// Training programs: pooling and its derivative by autodiff, with a padded and dilated mean.
#[test]
fn pools_and_their_gradients() {
    let (backends, s) = (backends(), &mut RandomStream::new(6, 1, 1));
    for dims in [[4, 26, 26, 64], [3, 7, 8, 5]] {
        for (window, strides, pad) in
            [([1, 2, 2, 1], [1, 2, 2, 1], [0, 0]), ([1, 3, 3, 1], [1, 2, 2, 1], [1, 1])]
        {
            let g = GraphBuilder::new("main");
            let x = g.parameter(ty(F32, &dims), "x");
            let padding = [[0, 0], pad, pad, [0, 0]];
            let most = x.max_pool(&window, &strides, &padding);
            let sum = x.sum_pool(&window, &strides, &padding);
            let dy = g.parameter(most.ty().clone(), "dy");
            let losses = [&most * &dy, &sum * &dy].map(|t| t.sum_all());
            let grads = losses.map(|loss| systole_ir::grad(&loss, &[&x]).remove(0));
            let graph = g.finish(&[vec![most, sum], grads.into()].concat()).unwrap();
            let args: Vec<Literal> = graph.param_types().iter().map(|t| draw(t, false, s)).collect();
            check(&backends, &graph, &args, "pooling");
        }
    }
}

fn scatter_bodies(dtype: DType) -> Vec<Arc<Graph>> {
    let monoids = [Monoid::Add, Monoid::Multiply, Monoid::Minimum, Monoid::Maximum];
    monoids.iter().map(|m| m.body(dtype)).chain([overwrite_body(dtype)]).collect()
}

#[test]
fn scatters_of_rows() {
    let (backends, s) = (backends(), &mut RandomStream::new(7, 1, 1));
    for dtype in [F32, F64, BF16, F16, I32, U8, Bool] {
        for body in scatter_bodies(dtype) {
            for (rows, width, n) in [(19, 40, 900), (9, 1, 40_000), (6, 3, 0), (0, 3, 4), (5, 0, 4)] {
                let x = ty(dtype, &[rows, width]);
                let mut indices = LiteralBuilder::new(ty(I32, &[n, 1]));
                (0..n).for_each(|i| indices.set(i, Scalar::Int(s.below(rows as u64 + 4) as i64 - 2)));
                let updates = ty(dtype, &[n, width]);
                let types = [x.clone(), ty(I32, &[n, 1]), updates.clone()];
                let op = Scatter { index_vector_dim: 1, ..Scatter::rows(&x, 1, body.clone()) };
                let graph = graph(op.into(), &types).unwrap();
                let args = [draw(&x, true, s), indices.finish(), draw(&updates, true, s)];
                // 40,000 products of halves overflow every type; that is fine, since the order equals the
                // interpreter's.
                check(&backends, &graph, &args, &format!("scatter of {n} rows into {x}"));
            }
        }
    }
}

/// Blocks that start anywhere and overlap, over batching dimensions, with dimensions of the updates permuted.
#[test]
fn scatters_of_blocks() {
    let (backends, s) = (backends(), &mut RandomStream::new(8, 1, 1));
    let dims = |d: &[usize]| -> Dims { d.into() };
    for dtype in [F32, F64, I32] {
        for body in scatter_bodies(dtype).into_iter().filter(|b| Monoid::of(b) != Some(Monoid::Multiply)) {
            let moving = Scatter {
                update_window_dims: dims(&[1, 2]),
                inserted_window_dims: dims(&[]),
                input_batching_dims: dims(&[]),
                scatter_indices_batching_dims: dims(&[]),
                scatter_dims_to_operand_dims: dims(&[1, 0]),
                index_vector_dim: 1,
                indices_are_sorted: false,
                unique_indices: false,
                body: body.clone(),
            };
            let batched = Scatter {
                update_window_dims: dims(&[2]),
                input_batching_dims: dims(&[1]),
                scatter_indices_batching_dims: dims(&[0]),
                inserted_window_dims: dims(&[0]),
                scatter_dims_to_operand_dims: dims(&[0]),
                index_vector_dim: 2,
                ..moving.clone()
            };
            let types = [ty(dtype, &[9, 12]), ty(I32, &[50, 2]), ty(dtype, &[50, 4, 5])];
            assert!(check_op(&backends, moving.into(), &types, false, s));
            let types = [ty(dtype, &[7, 40, 30]), ty(I64, &[40, 20, 1]), ty(dtype, &[40, 20, 29])];
            assert!(check_op(&backends, batched.into(), &types, false, s));
        }
    }
}

#[test]
fn random_bits() {
    let backends = backends();
    let shapes: [&[usize]; 12] = [
        &[],
        &[0],
        &[1],
        &[7],
        &[64],
        &[5, 3],
        &[3, 4],
        &[4, 3],
        &[3, 6, 5],
        &[2, 0, 3],
        &[40_001],
        &[3, 5, 2701],
    ];
    let states: [&[u64]; 5] = [&[5, 7], &[!0, !0], &[5, u32::MAX as u64 - 20], &[3, !0 - 9, 4], &[3, !0, !0]];
    for algorithm in [RngAlgorithm::Philox, RngAlgorithm::ThreeFry] {
        for state in states {
            if algorithm == RngAlgorithm::ThreeFry && state.len() == 3 {
                continue;
            }
            for dtype in [U8, U16, U32, U64] {
                for shape in shapes {
                    let op = RngBitGenerator { algorithm, ty: ty(dtype, shape) };
                    let graph = graph(op.into(), &[ty(U64, &[state.len()])]).unwrap();
                    let args = [Literal::from_slice([state.len()], state).unwrap()];
                    check(
                        &backends,
                        &graph,
                        &args,
                        &format!("{algorithm:?} {dtype} {shape:?} from {state:?}"),
                    );
                }
            }
        }
    }
}
