//! Tests loops that run as machine code against the same loops step by step: bit for bit, on every level that has them.

mod common;

use common::*;
use std::sync::Arc;
use systole_cpu::{CpuBackend, Level};
use systole_ir::DType::{BF16, Bool, F32, F64, I32, I64, U8, U32, U64};
use systole_ir::control_builders::{case, cond, fori_loop, while_loop};
use systole_ir::op::{Binary, Compare, CompareType, Convert, Direction, Scatter, Unary, binary, unary};
use systole_ir::rng::RandomStream;
use systole_ir::{DType, Graph, GraphBuilder, Literal, LiteralBuilder, Scalar, Tensor, TensorType};
use systole_runtime::CompileOptions;

/// Number of random programs. 6,000 were run once.
const RANDOM_PROGRAMS: u64 = 80;

/// Types of single numbers.
const TYPES: [DType; 7] = [F32, F64, I32, I64, U32, U64, Bool];

fn is_jit(cpu: &CpuBackend, graph: &Graph) -> bool {
    let steps = cpu.explain(graph, &CompileOptions::default()).unwrap();
    steps.iter().any(|s| s.kernel.uses("control/jit_while"))
}

/// Whether two arrays have the same bits, or NaN at the same places.
fn is_same(a: &Literal, b: &Literal) -> bool {
    let same = |i: usize| match (a.get(i), b.get(i)) {
        (Scalar::Float(x), Scalar::Float(y)) => x.to_bits() == y.to_bits() || x.is_nan() && y.is_nan(),
        (x, y) => x == y,
    };
    a.ty() == b.ty() && (0..a.ty().elements()).all(same)
}

/// Runs a program with loops as machine code and step by step.
fn check(graph: &Arc<Graph>, args: &[Literal]) {
    for level in levels().filter(|&l| l != Level::Portable) {
        let (jit, plain) = (backend(level, 2), backend(level, 2).with_kernel("-control/jit_while").unwrap());
        assert!(is_jit(&jit, graph), "{} on {level:?} is no machine code", graph.name);
        assert!(!is_jit(&plain, graph), "{}", graph.name);
        let (got, want) = (run(&jit, graph, args), run(&plain, graph, args));
        for (k, (got, want)) in got.iter().zip(&want).enumerate() {
            assert!(is_same(got, want), "{} on {level:?}, result {k}:\n{got:?}\n{want:?}", graph.name);
        }
    }
}

/// Numbers of a type with all special values, in a random order.
fn special(ty: &TensorType, seed: u64) -> Literal {
    let mut random = RandomStream::new(seed, 3, 0);
    let floats = [
        0.0,
        -0.0,
        1.0,
        -1.0,
        0.5,
        -1.5,
        2.5,
        1e-40,
        -1e-310,
        f64::NAN,
        f64::INFINITY,
        f64::NEG_INFINITY,
        3e38,
        -1e10,
        1e18,
        123.456,
        0.1,
        100.0,
        1e-7,
        -0.3,
    ];
    let integers = [
        0,
        1,
        -1,
        2,
        3,
        7,
        31,
        32,
        33,
        63,
        64,
        65,
        -5,
        i64::MAX,
        i64::MIN,
        i32::MAX as i64,
        i32::MIN as i64,
        1 << 40,
        -(1 << 33),
        1000,
    ];
    let mut literal = LiteralBuilder::new(ty.clone());
    for i in 0..ty.elements() {
        let at = random.below(20) as usize;
        let value = match ty.dtype {
            Bool => Scalar::Bool(at.is_multiple_of(2)),
            d if d.is_float() => Scalar::Float(floats[at]).round_to(d),
            d => Scalar::Int(integers[at]).round_to(d),
        };
        literal.set(i, value);
    }
    literal.finish()
}

/// Moves each element to the next place.
fn rotated(x: &Tensor) -> Tensor {
    let n = x.dim(0);
    Tensor::concatenate(&[&x.slice_dim(0, n - 1, n), &x.slice_dim(0, 0, n - 1)], 0)
}

/// A loop of 40 steps that stores `f(a, b)` for elements that move to other places by different amounts.
fn sweep(name: &str, dtype: DType, f: &dyn Fn(&Tensor, &Tensor) -> Option<Tensor>) -> Option<Arc<Graph>> {
    let g = GraphBuilder::new(name);
    let [a, b] = ["a", "b"].map(|n| g.parameter(TensorType::new(dtype, [7]), n));
    let sample = f(&a, &b)?;
    if sample.is_poisoned() {
        return None;
    }
    let stored = Tensor::concatenate(&[&sample.reshape([1, 7]); 40], 0);
    let last = fori_loop(40, &[&a, &b, &stored], |i, s| {
        let y = f(&s[0], &s[1]).unwrap_or_else(|| s[0].clone()).reshape([1, 7]);
        let zero = i.scalar_like(0.0);
        let moved = rotated(&s[1]);
        vec![rotated(&rotated(&s[0])), moved, s[2].dynamic_update_slice(&y, &[i, &zero])]
    });
    g.finish(&last).ok()
}

fn check_sweep(name: &str, dtype: DType, f: &dyn Fn(&Tensor, &Tensor) -> Option<Tensor>) -> bool {
    let Some(graph) = sweep(&format!("{name} of {dtype}"), dtype, f) else { return false };
    // Ops that are evaluated element by element make a program one of calls.
    if !is_jit(&backend(Level::Avx2, 1), &graph) {
        return false;
    }
    for seed in 0..3 {
        let args: Vec<Literal> =
            graph.param_types().iter().enumerate().map(|(i, t)| special(t, 10 * seed + i as u64)).collect();
        check(&graph, &args);
    }
    true
}

fn has_avx2() -> bool {
    Level::Avx2.is_available()
}

#[test]
fn every_op_on_special_values() {
    if !has_avx2() {
        return;
    }
    let mut checked = 0;
    for dtype in TYPES {
        for row in unary::ROWS {
            let op: Unary = row.op;
            let f = |a: &Tensor, _: &Tensor| a.builder().emit(op, &[a]).pop();
            checked += usize::from(check_sweep(op.name(), dtype, &f));
        }
        for row in binary::ROWS {
            let op: Binary = row.op;
            let f = |a: &Tensor, b: &Tensor| a.builder().emit(op, &[a, b]).pop();
            checked += usize::from(check_sweep(op.name(), dtype, &f));
        }
        use Direction::*;
        for direction in [Eq, Ne, Ge, Gt, Le, Lt] {
            let f = |a: &Tensor, b: &Tensor| {
                let compare = Compare { direction, compare_type: CompareType::of(a.dtype()) };
                a.builder().emit(compare, &[a, b]).pop()
            };
            checked += usize::from(check_sweep(&format!("{direction:?}"), dtype, &f));
        }
        for to in TYPES {
            let f = |a: &Tensor, _: &Tensor| a.builder().emit(Convert { to }, &[a]).pop();
            checked += usize::from(check_sweep(&format!("to {to}"), dtype, &f));
        }
        let select = |a: &Tensor, b: &Tensor| Some(a.less(b).select(a, b));
        checked += usize::from(check_sweep("select", dtype, &select));
        let clamp = |a: &Tensor, b: &Tensor| Some(a.clamp(b, &rotated(b)));
        checked += usize::from(check_sweep("clamp", dtype, &clamp));
    }
    assert!(checked > 180, "only {checked} programs were machine code");
}

#[test]
fn division_by_constants() {
    if !has_avx2() {
        return;
    }
    for dtype in [I32, U32, I64] {
        for divisor in
            [1.0, 2.0, -2.0, 8.0, 7.0, -7.0, 10.0, 65536.0, 1073741824.0, -2147483648.0, 2147483647.0, -1.0]
        {
            if dtype == U32 && divisor < 0.0 {
                continue;
            }
            let f = |a: &Tensor, _: &Tensor| {
                let d = a.scalar_like(divisor).broadcast_to(a.shape());
                let [q, r] =
                    [Binary::Divide, Binary::Remainder].map(|op| a.builder().emit(op, &[a, &d]).remove(0));
                Some(q.xor(&rotated(&r)))
            };
            assert!(check_sweep(&format!("by {divisor}"), dtype, &f));
        }
    }
}

/// A loop of `n` steps over states of these types, with special initial values.
fn check_loop(
    name: &str,
    n: usize,
    types: &[TensorType],
    body: impl FnOnce(&Tensor, &[Tensor]) -> Vec<Tensor>,
) {
    if !has_avx2() {
        return;
    }
    let g = GraphBuilder::new(name);
    let init: Vec<Tensor> = types.iter().map(|t| g.parameter(t.clone(), "x")).collect();
    let last = fori_loop(n, &init.iter().collect::<Vec<_>>(), body);
    let graph = g.finish(&last).unwrap_or_else(|e| panic!("{e}"));
    let args: Vec<Literal> = types.iter().enumerate().map(|(i, t)| special(t, i as u64)).collect();
    check(&graph, &args);
}

fn vector(dtype: DType, n: usize) -> TensorType {
    TensorType::new(dtype, [n])
}

#[test]
fn states_move_and_stay() {
    let (f, one) = (TensorType::scalar(F32), TensorType::scalar(F64));
    check_loop("exchange", 7, &[f.clone(), f.clone(), f.clone()], |_, s| {
        vec![s[1].clone(), s[2].clone(), &s[0] + 1.0]
    });
    check_loop("a state that stays", 5, &[f.clone(), one.clone()], |_, s| {
        vec![s[0].clone(), &s[1] * 0.5 + s[0].convert(F64)]
    });
    check_loop("no step", 0, &[f.clone(), f.clone()], |_, s| vec![s[1].clone(), &s[0] + 1.0]);
    check_loop("constants", 3, &[vector(I64, 3)], |i, s| {
        let c = i.builder().constant(Literal::from_slice([3], &[1i64, -7, 1 << 40]).unwrap());
        vec![&s[0] * &c + i.convert(I64)]
    });
    // Numbers that scalar code does not know move as bytes.
    check_loop("other types", 9, &[vector(U8, 3), vector(BF16, 5), f], |_, s| {
        vec![s[0].reverse(&[0]), &s[1] * 0.5, s[2].sine()]
    });
}

#[test]
fn pieces_of_arrays() {
    check_loop("pieces", 6, &[TensorType::new(F32, [3, 4]), vector(F32, 4)], |i, s| {
        let zero = i.scalar_like(0.0);
        let row = s[0].dynamic_slice(&[i, &zero], &[1, 4]);
        let x = s[0].dynamic_update_slice(&(&row * 2.0), &[&(i - 3.0), &zero]);
        let turned = x.transpose(&[1, 0]).reverse(&[0]).reshape([3, 4]);
        let padded = s[1].slice(&[0], &[4], &[2]).pad(&s[1].slice_dim(0, 3, 4).reshape([]), &[1], &[0], &[1]);
        vec![turned, padded]
    });
    check_loop("indices", 9, &[vector(F64, 5), vector(I64, 2), vector(U32, 1)], |i, s| {
        let (at, other) = (s[1].slice_dim(0, 0, 1).reshape([]), s[2].reshape([]));
        let x = s[0].dynamic_update_slice(&s[0].dynamic_slice(&[&other], &[2]), &[&at]);
        let at = s[1].reverse(&[0]) + &i.convert(I64).broadcast_to(&[2].into());
        vec![x, at, &s[2] * 3.0 + 1.0]
    });
    check_loop("reductions", 9, &[TensorType::new(I32, [2, 5]), TensorType::new(Bool, [2, 3])], |i, s| {
        let sum = s[0].sum(&[1]).reshape([2, 1]) + &s[0].reduce_max(&[0]).reshape([1, 5]);
        let any = s[1].any(&[1]).reshape([2, 1]).xor(&s[1].all(&[0]).reshape([1, 3]));
        vec![&sum - &s[0].reduce_min(&[0, 1]) + i, any]
    });
}

/// A body of scatters: `(old, update) → f(old, update)`.
fn scatter_body(dtype: DType, f: impl Fn(&Tensor, &Tensor) -> Tensor) -> Arc<Graph> {
    let g = GraphBuilder::new("body");
    let [old, new] = ["old", "new"].map(|n| g.parameter(TensorType::scalar(dtype), n));
    g.finish(&[f(&old, &new)]).unwrap()
}

/// A scatter of single elements, or of rows of a matrix.
fn scatter(x: &Tensor, at: &Tensor, updates: &Tensor, body: Arc<Graph>) -> Tensor {
    let window: Vec<usize> = (1..updates.rank()).collect();
    let spec = Scatter {
        update_window_dims: window.into_iter().collect(),
        inserted_window_dims: [0].into_iter().collect(),
        input_batching_dims: Default::default(),
        scatter_indices_batching_dims: Default::default(),
        scatter_dims_to_operand_dims: [0].into_iter().collect(),
        index_vector_dim: 1,
        indices_are_sorted: false,
        unique_indices: false,
        body,
    };
    x.scatter(&at.reshape([at.dim(0), 1]), updates, spec)
}

/// Sums are in the order of the kernels.
#[test]
fn sums_of_floats() {
    let types = [TensorType::new(F32, [3, 5]), TensorType::new(F64, [2, 3, 4]), vector(F32, 9)];
    if !has_avx2() {
        return;
    }
    let g = GraphBuilder::new("sums");
    let init: Vec<Tensor> = types.iter().map(|t| g.parameter(t.clone(), "x")).collect();
    let last = fori_loop(9, &init.iter().collect::<Vec<_>>(), |_, s| {
        let x = s[0].sum(&[1]).reshape([3, 1]) * 0.25 - &s[0].sum(&[0]).reshape([1, 5]) * 0.5 + 0.1;
        let y = &s[1] * 0.75 + s[1].sum(&[1, 2]).reshape([2, 1, 1]) * 0.125 - &s[1].sum(&[0, 1]) * 0.25;
        let y = &y + s[1].sum(&[0, 2]).reshape([1, 3, 1]) * 0.03;
        let z = &s[2] * 0.5 + s[2].sine().sum(&[0]) * 0.1 - &s[2].prod(&[0]);
        vec![x, y + 0.3, z]
    });
    let graph = g.finish(&last).unwrap();
    check(&graph, &arguments(&graph, -1.0, 1.0, 3));
}

#[test]
fn gathers_and_scatters() {
    let table = TensorType::new(F32, [40, 4]);
    check_loop("gathers", 9, &[vector(F64, 7), vector(I32, 3), table.clone(), vector(U32, 2)], |i, s| {
        let at = rotated(&s[1]) + i;
        let x = rotated(&s[0]) + &s[0].take(&s[1]).slice_dim(0, 1, 2);
        let rows = s[2].take(&s[3]).reduce_max(&[0]);
        let table = s[2].dynamic_update_slice(&rows.reshape([1, 4]), &[i, &i.scalar_like(0.0)]);
        vec![x, at, table, &s[3] * 5.0 + 3.0]
    });
    let add = |a: &Tensor, b: &Tensor| a + b;
    check_loop("scatters", 11, &[vector(F32, 7), vector(I64, 3), table, vector(I32, 5)], |i, s| {
        let updates = s[0].slice_dim(0, 2, 5) * 0.5;
        let x = scatter(&s[0], &s[1], &updates, scatter_body(F32, add));
        let row = s[2].dynamic_slice(&[i, &i.scalar_like(0.0)], &[2, 4]) * 0.5;
        let table =
            scatter(&s[2], &(s[1].slice_dim(0, 0, 2) * 2.0), &row, scatter_body(F32, |_, b| b.clone()));
        let counts =
            scatter(&s[3], &s[1].convert(I32), &s[3].slice_dim(0, 0, 3), scatter_body(I32, Tensor::maximum));
        vec![x, rotated(&s[1]) + 1.0, table, counts + i]
    });
}

#[test]
fn small_products() {
    if !has_avx2() {
        return;
    }
    let g = GraphBuilder::new("products");
    let types = [TensorType::new(F32, [4, 4]), vector(F32, 4), TensorType::new(F64, [3, 3])];
    let init: Vec<Tensor> = types.iter().map(|t| g.parameter(t.clone(), "x")).collect();
    let last = fori_loop(6, &init.iter().collect::<Vec<_>>(), |_, s| {
        let m = s[0].matmul(&s[0].transpose(&[1, 0])) * 0.5;
        let d = s[2].matmul(&s[2]).matmul(&s[2].transpose(&[1, 0])) * 0.25;
        vec![m, s[0].matmul(&s[1].reshape([4, 1])).reshape([4]).tanh(), d]
    });
    let graph = g.finish(&last).unwrap();
    check(&graph, &arguments(&graph, -1.0, 1.0, 2));
}

#[test]
fn larger_arrays_beside_numbers() {
    let large = TensorType::new(F32, [40, 8]);
    check_loop("rows", 40, &[large.clone(), vector(F32, 8)], |i, s| {
        let zero = i.scalar_like(0.0);
        let row = s[0].dynamic_slice(&[i, &zero], &[1, 8]).reshape([8]);
        let next = &s[1] * 0.5 + &row.cosine();
        vec![s[0].dynamic_update_slice(&next.reshape([1, 8]), &[&(i + 1.0), &zero]), next]
    });
    // A scan whose results are written to a part of the state.
    check_loop("a scan", 20, &[vector(F32, 16), TensorType::new(F32, [20, 16])], |i, s| {
        let next = rotated(&s[0]).tanh() * 0.5 + i.convert(F32);
        let stacked = s[1].dynamic_update_slice(&next.reshape([1, 16]), &[i, &i.scalar_like(0.0)]);
        vec![next, stacked]
    });
    check_loop("a product", 5, &[large, vector(F32, 8), TensorType::scalar(F32)], |i, s| {
        let y = s[0].matmul(&s[1].reshape([8, 1]));
        let t = &s[2] * 0.25 + 1.0;
        let u = (&t * &t).tanh() - &t;
        let v = u.exp() + i.convert(F32) * 0.125;
        let small = y.slice(&[3, 0], &[11, 1], &[1, 1]).reshape([8]) * 0.01 + &s[1] * 0.5;
        vec![&s[0] * 0.99, small, &v - &u * &t]
    });
}

#[test]
fn loops_and_branches_inside() {
    let f = TensorType::scalar(F32);
    check_loop("a loop inside", 6, &[f.clone(), vector(F32, 3)], |i, s| {
        let inner = while_loop(
            &[&s[0].abs().minimum(&s[0].scalar_like(9.0)), &s[1], &i.scalar_like(0.0)],
            |t| t[0].less(&t[0].scalar_like(40.0)).and(&t[2].less(&t[2].scalar_like(30.0))),
            |t| vec![&t[0] * 1.25 + 0.5, rotated(&t[1]) + &t[0], &t[2] + 1.0],
        );
        vec![&inner[0] - 40.0 + i.convert(F32), &inner[1] * 0.125]
    });
    let large = TensorType::new(F32, [6, 8]);
    check_loop("branches inside", 9, &[f, large], |i, s| {
        let which = i.and(&i.scalar_like(3.0)) - 1.0;
        let zero = i.scalar_like(0.0);
        let made = case(
            &which,
            &[&|| vec![&s[0] + 1.0, s[1].clone()], &|| vec![s[0].sine(), &s[1] * 0.5], &|| {
                let row = s[1].dynamic_slice(&[i, &zero], &[1, 8]);
                let sum = row.slice(&[0, 2], &[1, 3], &[1, 1]).reshape([]) * &s[0];
                vec![sum, s[1].dynamic_update_slice(&row, &[&(i - 2.0), &zero])]
            }],
        );
        let x = cond(&made[0].less(&made[0].scalar_like(0.0)), || vec![-&made[0]], || vec![&made[0] * 2.0]);
        vec![x[0].clone(), made[1].clone()]
    });
}

/// Random programs: about 30 ops on scalars, vectors of three elements and a matrix, with loops and branches inside.
#[test]
fn random_programs() {
    for seed in 0..RANDOM_PROGRAMS {
        let mut random = RandomStream::new(seed, 5, 0);
        let types = [
            TensorType::scalar(F32),
            vector(F32, 3),
            TensorType::scalar(F64),
            vector(I32, 3),
            TensorType::new(F32, [if seed.is_multiple_of(2) { 4 } else { 20 }, 3]),
            vector(I64, 2),
        ];
        check_loop(&format!("random program {seed}"), 11, &types, |i, s| random_body(&mut random, i, s));
    }
}

fn random_body(random: &mut RandomStream, i: &Tensor, s: &[Tensor]) -> Vec<Tensor> {
    let mut v = RandomValues {
        x: s[0].clone(),
        v: s[1].clone(),
        d: s[2].clone(),
        k: s[3].clone(),
        m: s[4].clone(),
        l: s[5].clone(),
    };
    for _ in 0..10 + random.below(20) {
        v.step(random, i, true);
    }
    vec![v.x, v.v, v.d, v.k, v.m, v.l]
}

/// Values that random ops replace.
#[derive(Clone)]
struct RandomValues {
    x: Tensor,
    v: Tensor,
    d: Tensor,
    k: Tensor,
    m: Tensor,
    l: Tensor,
}

impl RandomValues {
    fn step(&mut self, random: &mut RandomStream, i: &Tensor, nested: bool) {
        match random.below(3) {
            0 => self.numbers(random, i),
            1 => self.pieces(random, i),
            _ if nested && random.below(3) == 0 => self.nested(random, i),
            _ => self.integers(random, i),
        }
    }

    fn numbers(&mut self, random: &mut RandomStream, i: &Tensor) {
        let RandomValues { x, v, d, .. } = self;
        match random.below(11) {
            0 => *x = &*x + &v.slice_dim(0, 1, 2).reshape([]),
            1 => *v = &*v * &rotated(v) - &*x,
            2 => *v = rotated(v).maximum(&(&*v * 0.5)),
            3 => *d = &*d * 0.75 + x.convert(F64),
            4 => *x = d.convert(F32).minimum(x),
            5 => *x = x.tanh() + 0.5,
            6 => *v = v.sine(),
            7 => *d = (&*d * &*d + 1.0).sqrt() / (d.abs() + 0.25),
            8 => *x = x.abs() - v.reduce_max(&[0]) + i.convert(F32),
            9 => *x = v.sum(&[0]) * 0.25 - &*x,
            _ => *d = d.exp().minimum(&d.scalar_like(10.0)) + d.floor(),
        }
    }

    fn integers(&mut self, random: &mut RandomStream, i: &Tensor) {
        let RandomValues { v, k, l, .. } = self;
        match random.below(9) {
            0 => *k = &*k * 3.0 + i,
            1 => *k = k.xor(&rotated(k)) - &*k,
            2 => *v = k.less(&rotated(k)).select(v, &-&*v),
            3 => *v = &*v + &k.convert(F32) * 1e-3,
            4 => *k = k.maximum(&i.broadcast_to(&[3].into())),
            5 => *l = &*l * 7.0 + k.slice_dim(0, 0, 2).convert(I64),
            6 => *k = k.remainder(&(rotated(k).abs() + 1.0)),
            7 => *l = l.shift_right_logical(&l.scalar_like(3.0)).or(&rotated(l)),
            _ => *k = l.slice_dim(0, 1, 2).convert(I32).reshape([1]) + &*k * 2.0,
        }
    }

    fn pieces(&mut self, random: &mut RandomStream, i: &Tensor) {
        let RandomValues { x, v, k, m, l, .. } = self;
        let (zero, at) = (i.scalar_like(0.0), k.slice_dim(0, 0, 1).reshape([]));
        let row = |m: &Tensor, at: &Tensor| m.dynamic_slice(&[at, &zero], &[1, 3]);
        match random.below(8) {
            0 => *v = row(m, i).reshape([3]) * 0.5 + &*v,
            1 => *m = m.dynamic_update_slice(&v.reshape([1, 3]), &[i, &zero]),
            2 => *m = m.dynamic_update_slice(&row(m, &at), &[i, &zero]),
            3 => *x = m.take(&k.slice_dim(0, 1, 2)).reduce_min(&[0, 1]),
            4 => {
                *m = scatter(m, &k.slice_dim(0, 0, 2), &m.slice_dim(0, 1, 3), scatter_body(F32, |a, b| a + b))
            }
            5 => *l = l.reverse(&[0]),
            6 => *m = m.dynamic_update_slice(&x.reshape([1, 1]), &[&at, &i.scalar_like(1.0)]),
            _ => *m = &*m * 0.5 + v.reshape([1, 3]),
        }
    }

    /// A loop or a branch inside, of a few ops each.
    fn nested(&mut self, random: &mut RandomStream, i: &Tensor) {
        let seeds = [random.next_u64(), random.next_u64()];
        let inside = |seed: u64, values: &[Tensor], i: &Tensor| {
            let mut random = RandomStream::new(seed, 6, 0);
            let [x, v, d, k, m, l] = std::array::from_fn(|n| values[n].clone());
            let mut v = RandomValues { x, v, d, k, m, l };
            (0..4).for_each(|_| v.step(&mut random, i, false));
            vec![v.x, v.v, v.d, v.k, v.m, v.l]
        };
        let values = [&self.x, &self.v, &self.d, &self.k, &self.m, &self.l].map(Tensor::clone);
        let made = match random.below(2) {
            0 => fori_loop(3, &values.each_ref(), |j, s| inside(seeds[0], s, &(j + i))),
            _ => {
                let odd = i.and(&i.scalar_like(1.0)).equal(&i.scalar_like(1.0));
                cond(&odd, || inside(seeds[0], &values, i), || inside(seeds[1], &values, i))
            }
        };
        let [x, v, d, k, m, l] = std::array::from_fn(|n| made[n].clone());
        *self = RandomValues { x, v, d, k, m, l };
    }
}

/// More values at a time than there are registers, also across calls of vector loops.
#[test]
fn many_values_at_a_time() {
    let types: Vec<TensorType> = (0..24).map(|_| TensorType::scalar(F32)).collect();
    check_loop("24 states", 13, &types, |_, s| {
        let sums: Vec<Tensor> = (0..24).map(|k| &s[k] * 0.5 + &s[(k + 7) % 24] * &s[(k + 11) % 24]).collect();
        let sine = sums[3].sine();
        (0..24).map(|k| (&sums[k] - &sums[23 - k]).minimum(&sine) + &s[(k + 1) % 24] * 0.25).collect()
    });
}

/// Contracted products and sums, as in programs of other frameworks.
#[test]
fn contractions() {
    if !has_avx2() {
        return;
    }
    let g = GraphBuilder::new("contracted");
    let [a, b, c] = ["a", "b", "c"].map(|n| g.parameter(vector(F64, 3), n));
    let [x, y] = ["x", "y"].map(|n| g.parameter(vector(F32, 3), n));
    let last = fori_loop(9, &[&a, &b, &c, &x, &y], |_, s| {
        let p = &s[0] * &s[1] + &s[2];
        let q = &s[2] - &(&s[0] * &s[2]);
        let r = &(&s[1] * &s[2]) - &s[0];
        vec![p * 0.5, q * 0.25, r * 0.125, &s[3] * &s[4] + 0.1, &s[4] - &(&s[3] * 0.3)]
    });
    let graph = g.finish(&last).unwrap();
    let args = arguments(&graph, -1.0, 1.0, 4);
    let options = CompileOptions { contraction: true, ..CompileOptions::default() };
    for level in levels().filter(|&l| l != Level::Portable) {
        let plain = backend(level, 1).with_kernel("-control/jit_while").unwrap();
        let got = run_with(&backend(level, 1), &graph, &args, &options);
        assert!(is_jit(&backend(level, 1), &graph));
        assert_eq!(got, run_with(&plain, &graph, &args, &options), "{level:?}");
        assert_ne!(got, run(&backend(level, 1), &graph, &args), "nothing was contracted");
    }
}
