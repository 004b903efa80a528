//! The samples of the families and of the ops with simple attributes; larger ops keep theirs in their own file.

use super::flow;
use super::sample::{WIDE, sample};
use super::*;
use crate::GraphBuilder;
use systole_base::{DType, LiteralBuilder, Scalar};

const COUNTS: Domain = Domain::Uniform(-99.0, 99.0);
const STATE: Domain = Domain::Uniform(0.0, 1e15);

/// One op on operands of one shape, for every element type that it accepts, and on empty and rank-0 arrays.
pub(super) fn elementwise(op: impl Elementwise) -> Vec<Sample> {
    let ((domains, ulp, differentiable), op) = (op.sampled(), op.into());
    let domains: Vec<Domain> = domains.into_iter().map(|(a, b)| Domain::Uniform(a, b)).collect();
    let accepts = |d: &DType| {
        let ty = TensorType::new(*d, [1]);
        op.rule().infer(&vec![&ty; domains.len()]).is_ok()
    };
    let accepted: Vec<DType> = DType::ALL.into_iter().filter(accepts).collect();
    let case = |what: &str, dtype: DType, shape: &[usize]| {
        let params: Vec<_> = domains.iter().map(|&d| (TensorType::new(dtype, shape), d)).collect();
        let checked = differentiable && dtype == DType::F64;
        sample(format!("{what}{dtype}"), &params, ulp, checked, |x| {
            x[0].builder().emit(op.clone(), &x.iter().collect::<Vec<_>>())
        })
    };
    let mut all: Vec<Sample> = accepted.iter().map(|&d| case("", d, &[3, 5])).collect();
    for &d in accepted.iter().rev().take(1) {
        all.extend([case("empty_", d, &[0, 3]), case("scalar_", d, &[])]);
    }
    all
}

/// The samples of a row.
pub(super) trait Elementwise: Copy + Into<Op> {
    /// Domains of the operands, tolerance in units in the last place, whether the derivative is checked.
    fn sampled(self) -> (Vec<(f64, f64)>, u32, bool);
}

impl Elementwise for Unary {
    fn sampled(self) -> (Vec<(f64, f64)>, u32, bool) {
        (vec![self.row().domain], self.row().ulp, self != Unary::IsFinite)
    }
}

impl Elementwise for Binary {
    fn sampled(self) -> (Vec<(f64, f64)>, u32, bool) {
        (self.row().domain.to_vec(), self.row().ulp, true)
    }
}

/// Adds to an op's samples one for each further element type that it accepts: the first sample over f32, retyped.
/// Ops with bodies accept only the types of their bodies.
pub(super) fn every_dtype(mut samples: Vec<Sample>) -> Vec<Sample> {
    let over = |s: &Sample, d: DType| s.graph.nodes.iter().any(|n| n.outs[0].dtype == d);
    let single = |s: &&Sample| s.graph.nodes.len() == s.graph.params.len() + 1;
    let Some(base) = samples.iter().filter(single).find(|s| over(s, DType::F32)).cloned() else {
        return samples;
    };
    let types: Vec<TensorType> = base.graph.param_types();
    let missing = DType::ALL.into_iter().filter(|&d| samples.iter().all(|s| !over(s, d)));
    for dtype in missing.collect::<Vec<_>>() {
        let swap = |t: &TensorType| if t.dtype == DType::F32 { t.with_dtype(dtype) } else { t.clone() };
        let params: Vec<_> = types.iter().map(swap).zip(base.domains.iter().copied()).collect();
        let op = match base.graph.node(base.graph.results[0]).op.clone() {
            Op::Convolution(c) => Convolution { element_type: dtype, ..c }.into(),
            op => op,
        };
        let inputs = &base.graph.node(base.graph.results[0]).inputs;
        samples.push(sample(format!("every_{dtype}"), &params, base.ulp, false, |x| {
            let inputs: Vec<&Tensor> = inputs.iter().map(|v| &x[v.index()]).collect();
            x[0].builder().emit(op, &inputs)
        }));
    }
    samples
}

/// `what_dtype` for every element type: one program over arrays of `shapes`.
pub(super) fn moved(
    what: &str,
    shapes: &[&[usize]],
    build: impl Fn(&[Tensor]) -> Vec<Tensor>,
) -> Vec<Sample> {
    let case = |dtype: DType| {
        let params: Vec<_> = shapes.iter().map(|&s| (TensorType::new(dtype, s), COUNTS)).collect();
        sample(format!("{what}_{dtype}"), &params, 0, dtype == DType::F64, &build)
    };
    DType::ALL.into_iter().map(case).collect()
}

/// The same for f64 alone.
fn moved_f64(what: &str, shapes: &[&[usize]], build: impl Fn(&[Tensor]) -> Vec<Tensor>) -> Sample {
    let params: Vec<_> = shapes.iter().map(|&s| (TensorType::new(DType::F64, s), WIDE)).collect();
    sample(format!("{what}_f64"), &params, 0, true, build)
}

pub(super) fn compare() -> Vec<Sample> {
    let case = |label: String, dtype: DType, rows: usize, op: Compare| {
        let few = Domain::Uniform(-2.0, 2.0);
        let params = [(TensorType::new(dtype, [rows, 5]), few), (TensorType::new(dtype, [rows, 5]), few)];
        sample(label, &params, 0, false, |x| x[0].builder().emit(op, &[&x[0], &x[1]]))
    };
    let mut all = Vec::new();
    for (direction, name) in Direction::ALL {
        for dtype in DType::ALL {
            let op = Compare { direction, compare_type: CompareType::of(dtype) };
            all.push(case(format!("{name}_{dtype}"), dtype, 3, op));
        }
        for (compare_type, what) in [(CompareType::TotalOrder, "total"), (CompareType::Float, "special")] {
            let op = Compare { direction, compare_type };
            all.push(program(&format!("{what}_{name}"), |g| special_pairs(g, op)));
        }
    }
    let op = Compare { direction: Direction::Eq, compare_type: CompareType::Float };
    all.push(case("empty".into(), DType::F32, 0, op));
    all
}

/// A program without parameters.
fn program(label: &str, build: impl FnOnce(&GraphBuilder) -> Vec<Tensor>) -> Sample {
    let g = GraphBuilder::new("main");
    match g.finish(&build(&g)) {
        Ok(graph) => {
            Sample { label: label.into(), graph, domains: Vec::new(), ulp: 0, differentiable: false }
        }
        Err(e) => systole_base::bug!("the sample {label} does not build: {e}"),
    }
}

fn array(dtype: DType, shape: &[usize], values: &[f64]) -> Literal {
    let mut b = LiteralBuilder::new(TensorType::new(dtype, shape));
    values.iter().enumerate().for_each(|(i, &v)| b.set(i, Scalar::of(dtype, v)));
    b.finish()
}

const SPECIAL: [f64; 7] = [f64::NAN, -f64::NAN, 0.0, -0.0, f64::INFINITY, f64::NEG_INFINITY, 1.0];

/// Every pair of the special values, compared.
fn special_pairs(g: &GraphBuilder, op: Compare) -> Vec<Tensor> {
    let n = SPECIAL.len();
    let pick = |f: &dyn Fn(usize) -> usize| {
        let values: Vec<f64> = (0..n * n).map(|i| SPECIAL[f(i)]).collect();
        g.constant(array(DType::F32, &[n * n], &values))
    };
    let (a, b) = (pick(&|i| i / n), pick(&|i| i % n));
    // Without the barrier XLA compares the constants itself, and as if the comparison were FLOAT.
    let hidden = g.emit(OptimizationBarrier { stop_gradient: false }, &[&a, &b]);
    g.emit(op, &[&hidden[0], &hidden[1]])
}

pub(super) fn select() -> Vec<Sample> {
    let case = |what: &str, dtype: DType, pred: &[usize], shape: &[usize]| {
        let ty = TensorType::new(dtype, shape);
        let params = [(TensorType::new(DType::Bool, pred), WIDE), (ty.clone(), COUNTS), (ty, COUNTS)];
        let label = format!("{what}{dtype}");
        sample(label, &params, 0, dtype == DType::F64, |x| {
            x[0].builder().emit(Select, &[&x[0], &x[1], &x[2]])
        })
    };
    let mut all: Vec<Sample> = DType::ALL.into_iter().map(|d| case("", d, &[3, 5], &[3, 5])).collect();
    all.push(case("scalar_pred_", DType::F64, &[], &[3, 5]));
    all.push(case("empty_", DType::F32, &[5, 0], &[5, 0]));
    all
}

pub(super) fn clamp() -> Vec<Sample> {
    let case = |what: &str, dtype: DType, bound: &[usize], shape: &[usize]| {
        let (ty, bound) = (TensorType::new(dtype, shape), TensorType::new(dtype, bound));
        let (low, high) = (Domain::Uniform(-3.0, 2.0), Domain::Uniform(2.5, 5.0));
        let params = [(bound.clone(), low), (ty, Domain::Uniform(-8.0, 8.0)), (bound, high)];
        let label = format!("{what}{dtype}");
        sample(label, &params, 0, dtype == DType::F64, |x| vec![x[1].clamp(&x[0], &x[2])])
    };
    let dtypes = DType::ALL.into_iter().filter(|&d| d != DType::Bool);
    let mut all: Vec<Sample> = dtypes.map(|d| case("", d, &[3, 5], &[3, 5])).collect();
    all.push(case("scalar_bounds_", DType::F64, &[], &[3, 5]));
    all.push(case("empty_", DType::F32, &[], &[0]));
    all
}

pub(super) fn convert() -> Vec<Sample> {
    let pairs = DType::ALL.into_iter().flat_map(|a| DType::ALL.into_iter().map(move |b| (a, b)));
    let case = |what: &str, (from, to): (DType, DType), size: usize| {
        let same = from == DType::F64 && to == DType::F64;
        let params = [(TensorType::new(from, [size]), COUNTS)];
        sample(format!("{what}{from}_{to}"), &params, 0, same, |x| {
            x[0].builder().emit(Convert { to }, &[&x[0]])
        })
    };
    let mut all: Vec<Sample> = pairs.map(|p| case("", p, 7)).collect();
    all.push(case("empty_", (DType::F32, DType::I8), 0));
    for to in DType::ALL {
        let wide = [f64::INFINITY, f64::NEG_INFINITY, f64::NAN, 1e30, -1e30, 0.1, 2.5, 3.5, -0.0, 65519.0];
        all.push(program(&format!("special_{to}"), |g| {
            g.emit(Convert { to }, &[&g.constant(array(DType::F32, &[wide.len()], &wide))])
        }));
    }
    all
}

pub(super) fn bitcast_convert() -> Vec<Sample> {
    let case = |from: DType, shape: &[usize], to: DType| {
        let params = [(TensorType::new(from, shape), COUNTS)];
        sample(format!("{from}_{to}"), &params, 0, false, |x| vec![x[0].bitcast_convert(to)])
    };
    use DType::*;
    let same = [
        (Bool, Bool),
        (I8, U8),
        (U8, I8),
        (I16, BF16),
        (F16, U16),
        (U16, I16),
        (BF16, F16),
        (F32, U32),
        (I32, F32),
        (U32, I32),
        (F64, I64),
        (I64, U64),
        (U64, F64),
    ];
    let mut all: Vec<Sample> = same.into_iter().map(|(a, b)| case(a, &[3, 5], b)).collect();
    all.extend([
        case(U32, &[2, 3], U8),
        case(F32, &[3], BF16),
        case(U8, &[3, 4], F32),
        case(U16, &[3, 4], U64),
        case(F64, &[0], F32),
    ]);
    all
}

pub(super) fn reduce_precision() -> Vec<Sample> {
    let sized = |what: &str, dtype: DType, rows: usize, exponent: u32, mantissa: u32| {
        let params = [(TensorType::new(dtype, [rows, 5]), COUNTS)];
        let label = format!("{what}{dtype}_e{exponent}m{mantissa}");
        sample(label, &params, 0, false, |x| vec![x[0].reduce_precision(exponent, mantissa)])
    };
    let case = |dtype: DType, exponent: u32, mantissa: u32| sized("", dtype, 3, exponent, mantissa);
    use DType::*;
    let mut all = vec![
        case(F32, 5, 10),
        case(F32, 8, 7),
        case(F32, 4, 3),
        case(F32, 3, 0),
        case(F64, 8, 23),
        case(F64, 5, 2),
        case(F16, 4, 3),
        case(BF16, 5, 2),
        case(F32, 8, 23),
        sized("empty_", F32, 0, 5, 10),
    ];
    all.push(program("special", |g| {
        let edge = [65504.0, 65519.0, 65520.0, 6.1e-5, 6.0e-5, 1e-8, -1e-8];
        vec![g.constant(array(F32, &[14], &[SPECIAL, edge].concat())).reduce_precision(5, 10)]
    }));
    all
}

pub(super) fn constant() -> Vec<Sample> {
    let values = [0.0, 1.0, -1.5, 100.25, 3e-5, 1e30];
    let mut all = Vec::new();
    for dtype in DType::ALL {
        all.push(program(&dtype.to_string(), |g| vec![g.constant(array(dtype, &[2, 3], &values))]));
        all.push(program(&format!("long_{dtype}"), |g| {
            let many: Vec<f64> = (0..45).map(|i| i as f64 * 0.7 - 9.0).collect();
            vec![g.constant(array(dtype, &[5, 9], &many))]
        }));
        all.push(program(&format!("equal_{dtype}"), |g| vec![g.constant(array(dtype, &[3], &[1.0; 3]))]));
        all.push(program(&format!("highest_{dtype}"), |g| {
            let ty = TensorType::scalar(dtype);
            vec![
                g.constant(Literal::splat(ty.clone(), dtype.highest())),
                g.constant(Literal::splat(ty, dtype.lowest())),
            ]
        }));
    }
    all.push(program("special", |g| vec![g.constant(array(DType::F32, &[7], &SPECIAL))]));
    all.push(program("empty", |g| vec![g.constant(array(DType::I16, &[2, 0, 3], &[]))]));
    all
}

pub(super) fn iota() -> Vec<Sample> {
    let case = |what: &str, dtype: DType, shape: &[usize], dim: usize| {
        program(&format!("{what}{dtype}"), |g| vec![g.iota(TensorType::new(dtype, shape), dim)])
    };
    let dtypes = DType::ALL.into_iter().filter(|&d| d != DType::Bool);
    let mut all: Vec<Sample> = dtypes.map(|d| case("", d, &[3, 5], 1)).collect();
    all.extend([case("outer_", DType::I32, &[3, 5], 0), case("empty_", DType::F32, &[3, 0], 0)]);
    all
}

pub(super) fn broadcast_in_dim() -> Vec<Sample> {
    let to = |x: &[Tensor], shape: &[usize], dims: &[usize]| vec![x[0].broadcast_in_dim(&shape.into(), dims)];
    let mut all = moved("repeat", &[&[3, 1]], |x| to(x, &[2, 3, 5], &[1, 2]));
    all.extend([
        moved_f64("swapped", &[&[3, 5]], |x| to(x, &[5, 2, 3], &[2, 0])),
        moved_f64("scalar", &[&[]], |x| to(x, &[3], &[])),
        moved_f64("to_nothing", &[&[1, 3]], |x| to(x, &[0, 3], &[0, 1])),
        moved_f64("ones", &[&[1, 1]], |x| to(x, &[1, 3], &[0, 1])),
    ]);
    all
}

pub(super) fn reshape() -> Vec<Sample> {
    let mut all = moved("flat", &[&[3, 5]], |x| vec![x[0].reshape([15])]);
    all.extend([
        moved_f64("ones", &[&[3, 5]], |x| vec![x[0].reshape([1, 3, 1, 5])]),
        moved_f64("scalar", &[&[1, 1]], |x| vec![x[0].reshape([])]),
        moved_f64("empty", &[&[0, 5]], |x| vec![x[0].reshape([7, 0, 2])]),
    ]);
    all
}

pub(super) fn transpose() -> Vec<Sample> {
    let mut all = moved("swap", &[&[3, 5]], |x| vec![x[0].transpose(&[1, 0])]);
    all.extend([
        moved_f64("cycle", &[&[2, 3, 5]], |x| vec![x[0].transpose(&[2, 0, 1])]),
        moved_f64("empty", &[&[3, 0]], |x| vec![x[0].transpose(&[1, 0])]),
    ]);
    all
}

pub(super) fn reverse() -> Vec<Sample> {
    let mut all = moved("last", &[&[3, 5]], |x| vec![x[0].reverse(&[1])]);
    all.extend([
        moved_f64("both", &[&[3, 5]], |x| vec![x[0].reverse(&[1, 0])]),
        moved_f64("none", &[&[3]], |x| vec![x[0].reverse(&[])]),
        moved_f64("empty", &[&[3, 0]], |x| vec![x[0].reverse(&[0, 1])]),
    ]);
    all
}

pub(super) fn concatenate() -> Vec<Sample> {
    let join = |x: &[Tensor], dim| vec![Tensor::concatenate(&x.iter().collect::<Vec<_>>(), dim)];
    let mut all = moved("last", &[&[3, 2], &[3, 5]], |x| join(x, 1));
    all.extend([
        moved_f64("three", &[&[1, 3], &[0, 3], &[2, 3]], |x| join(x, 0)),
        moved_f64("one", &[&[3]], |x| join(x, 0)),
        moved_f64("empty", &[&[0, 2], &[0, 3]], |x| join(x, 1)),
    ]);
    all
}

pub(super) fn slice() -> Vec<Sample> {
    let mut all = moved("step", &[&[5, 7]], |x| vec![x[0].slice(&[1, 0], &[4, 7], &[1, 3])]);
    all.extend([
        moved_f64("uneven", &[&[8]], |x| vec![x[0].slice(&[1], &[7], &[4])]),
        moved_f64("empty", &[&[5]], |x| vec![x[0].slice(&[2], &[2], &[1])]),
        moved_f64("of_empty", &[&[0, 5]], |x| vec![x[0].slice(&[0, 1], &[0, 4], &[1, 1])]),
        moved_f64("scalar", &[&[]], |x| vec![x[0].slice(&[], &[], &[])]),
    ]);
    all
}

pub(super) fn pad() -> Vec<Sample> {
    let mut all = moved("around", &[&[2, 3], &[]], |x| vec![x[0].pad(&x[1], &[1, 0], &[0, 2], &[0, 1])]);
    all.extend([
        moved_f64("cut", &[&[5, 4], &[]], |x| vec![x[0].pad(&x[1], &[-1, 2], &[-2, -1], &[0, 0])]),
        moved_f64("cut_between", &[&[4], &[]], |x| vec![x[0].pad(&x[1], &[-2], &[-1], &[2])]),
        moved_f64("empty", &[&[0, 3], &[]], |x| vec![x[0].pad(&x[1], &[1, 0], &[1, 0], &[2, 0])]),
        moved_f64("to_nothing", &[&[2], &[]], |x| vec![x[0].pad(&x[1], &[-1], &[-1], &[0])]),
    ]);
    all
}

pub(super) fn dot_general() -> Vec<Sample> {
    // Lists: batch dimensions of both operands, then the contracted ones of both.
    type Lists<'a> = [&'a [usize]; 4];
    let case = |what: &str, from: DType, to: DType, a: &[usize], b: &[usize], lists: Lists<'_>| {
        let [lhs_batch, rhs_batch, lhs_contract, rhs_contract] = lists.map(systole_base::Dims::from);
        let op = DotGeneral { lhs_batch, rhs_batch, lhs_contract, rhs_contract, element_type: to };
        let params = [(TensorType::new(from, a), WIDE), (TensorType::new(from, b), WIDE)];
        // Products are summed in another order and, in narrow types, with other roundings.
        let label = format!("{what}_{from}_{to}");
        sample(label, &params, 32, from == DType::F64, |x| x[0].builder().emit(op, &[&x[0], &x[1]]))
    };
    use DType::*;
    let matrix: Lists<'_> = [&[], &[], &[1], &[0]];
    let mut all: Vec<Sample> =
        DType::ALL.into_iter().map(|d| case("matrix", d, d, &[3, 5], &[5, 2], matrix)).collect();
    all.extend([
        case("batched", F64, F64, &[2, 3, 5], &[2, 5, 4], [&[0], &[0], &[2], &[1]]),
        case("any_order", F64, F64, &[5, 2, 3, 4], &[4, 3, 7, 2], [&[1], &[3], &[3, 2], &[0, 1]]),
        case("outer", F64, F64, &[3], &[5], [&[], &[], &[], &[]]),
        case("inner", F64, F64, &[7], &[7], [&[], &[], &[0], &[0]]),
        case("over_nothing", F64, F64, &[3, 0], &[0, 2], matrix),
        case("of_nothing", F64, F64, &[0, 3], &[3, 2], matrix),
        case("wide", BF16, F32, &[3, 5], &[5, 2], matrix),
        case("wide", F16, F32, &[3, 5], &[5, 2], matrix),
        case("wide", I8, I32, &[3, 5], &[5, 2], matrix),
        case("wide", U8, U32, &[3, 5], &[5, 2], matrix),
    ]);
    all
}

pub(super) fn reduce() -> Vec<Sample> {
    let case = |what: &str, monoid: Monoid, dtype: DType, shape: &[usize], dims: &[usize]| {
        let domain = if matches!(monoid, Monoid::And | Monoid::Or) { COUNTS } else { WIDE };
        let params = [(TensorType::new(dtype, shape), domain), (TensorType::scalar(dtype), WIDE)];
        let label = format!("{}_{what}{dtype}", monoid.name());
        sample(label, &params, 16, dtype == DType::F64, |x| {
            Tensor::reduce(&[&x[0]], &[&x[1]], dims, monoid.body(dtype))
        })
    };
    let mut all = Vec::new();
    for monoid in [Monoid::Add, Monoid::Multiply, Monoid::Minimum, Monoid::Maximum, Monoid::And, Monoid::Or] {
        let bits_only = matches!(monoid, Monoid::And | Monoid::Or);
        let dtypes: Vec<DType> = DType::ALL.into_iter().filter(|d| !(bits_only && d.is_float())).collect();
        all.extend(dtypes.iter().map(|&d| case("", monoid, d, &[3, 5], &[1])));
        let widest = dtypes[dtypes.len() - 1];
        all.extend([
            case("outer_", monoid, widest, &[3, 2, 5], &[0, 2]),
            case("unordered_", monoid, widest, &[3, 2, 5], &[2, 0]),
            case("of_nothing_", monoid, widest, &[0, 3], &[0]),
            case("to_nothing_", monoid, widest, &[0, 3], &[1]),
            case("no_dims_", monoid, widest, &[3], &[]),
        ]);
    }
    all.push(argmax());
    all
}

/// Two operands folded together: the greatest element and its place.
fn argmax() -> Sample {
    let params = [
        (TensorType::new(DType::F32, [3, 5]), Domain::Distinct(0.5)),
        (TensorType::new(DType::I32, [3, 5]), Domain::Distinct(1.0)),
    ];
    sample("pair".into(), &params, 0, false, |x| {
        let g = GraphBuilder::new("body");
        let [a, i, b, j] = [DType::F32, DType::I32, DType::F32, DType::I32]
            .map(|d| g.parameter(TensorType::scalar(d), "element"));
        let keep = a.greater_equal(&b);
        let body = g.finish(&[keep.select(&a, &b), keep.select(&i, &j)]);
        let Ok(body) = body else { systole_base::bug!("argmax does not build") };
        let inits = [x[0].scalar_like(f64::NEG_INFINITY), x[1].scalar_like(-1.0)];
        Tensor::reduce(&[&x[0], &x[1]], &[&inits[0], &inits[1]], &[1], body)
    })
}

pub(super) fn rng_bit_generator() -> Vec<Sample> {
    let case = |algorithm: RngAlgorithm, words: usize, dtype: DType, shape: &[usize]| {
        let params = [(TensorType::new(DType::U64, [words]), STATE)];
        let dims: String = shape.iter().map(|d| format!("_{d}")).collect();
        let label = format!("{}{words}_{dtype}{dims}", algorithm.name());
        sample(label, &params, 0, false, |x| {
            let (next, bits) = x[0].random_bits(TensorType::new(dtype, shape), algorithm);
            vec![next, bits]
        })
    };
    let shapes: [&[usize]; 7] = [&[], &[3], &[3, 5], &[5, 4], &[5, 3, 7], &[7, 7], &[0, 3]];
    let mut all = Vec::new();
    for (algorithm, words) in
        [(RngAlgorithm::Philox, 2), (RngAlgorithm::Philox, 3), (RngAlgorithm::ThreeFry, 2)]
    {
        for dtype in DType::ALL.into_iter().filter(|d| d.is_unsigned_int()) {
            all.extend(shapes.iter().map(|s| case(algorithm, words, dtype, s)));
        }
    }
    all
}

pub(super) fn sort() -> Vec<Sample> {
    let case = |what: &str, dtype: DType, shape: &[usize], dim: usize, descending: bool| {
        let params = [(TensorType::new(dtype, shape), Domain::Distinct(1.0))];
        sample(format!("{what}{dtype}"), &params, 0, dtype == DType::F64, |x| {
            vec![x[0].sort(dim, descending)]
        })
    };
    let mut all: Vec<Sample> = DType::ALL.into_iter().map(|d| case("", d, &[3, 5], 1, false)).collect();
    all.extend([
        case("descending_", DType::F64, &[7, 3], 0, true),
        case("one_", DType::F64, &[1], 0, false),
        case("empty_", DType::F64, &[0, 3], 0, false),
    ]);
    let ty = TensorType::new(DType::F64, [5, 3]);
    let params = [(ty.with_dtype(DType::I32), Domain::Uniform(0.0, 2.0)), (ty.clone(), WIDE), (ty, WIDE)];
    all.push(sample("by_equal_keys".into(), &params, 0, true, |x| {
        let g = GraphBuilder::new("comparator");
        let dtypes = [DType::I32, DType::I32, DType::F64, DType::F64, DType::F64, DType::F64];
        let p = dtypes.map(|d| g.parameter(TensorType::scalar(d), "element"));
        let Ok(by_key) = g.finish(&[p[0].less(&p[1])]) else { systole_base::bug!("by_key does not build") };
        Tensor::sort_by(&x.iter().collect::<Vec<_>>(), 0, true, by_key)
    }));
    all.push(program("special", |g| vec![g.constant(array(DType::F32, &[7], &SPECIAL)).sort(0, false)]));
    all
}

pub(super) fn while_() -> Vec<Sample> {
    let sized = |what: &str, dtype: DType, n: usize, build: &dyn Fn(&[Tensor]) -> Vec<Tensor>| {
        let params = [(TensorType::new(dtype, [3]), WIDE), (TensorType::new(dtype, [n, 3]), WIDE)];
        let differentiable = dtype == DType::F64 && what != "until";
        sample(format!("{what}_{dtype}"), &params, 64, differentiable, build)
    };
    let case =
        |what: &str, dtype: DType, build: &dyn Fn(&[Tensor]) -> Vec<Tensor>| sized(what, dtype, 5, build);
    let recurrent = |x: &[Tensor]| {
        let (last, ys) = flow::scan(&[&x[0]], &[&x[1]], |carry, row| {
            let next = (&carry[0] * &x[0] + &row[0]).tanh();
            (vec![next.clone()], vec![next.sine()])
        });
        [last, ys].concat()
    };
    let nested = |x: &[Tensor]| {
        flow::fori_loop(3, &[&x[0]], |i, s| {
            let i = i.convert(s[0].dtype());
            flow::fori_loop(2, &[&s[0]], |_, t| vec![(&t[0] * &i + &x[0]).sine()])
        })
    };
    let until = |x: &[Tensor]| {
        let limit = x[0].scalar_like(100.0);
        let small = |s: &[Tensor]| s[0].abs().sum_all().less(&limit);
        flow::while_loop(&[&x[0].abs()], small, |s| vec![&s[0] * 2.0 + 1.0])
    };
    vec![
        case("scan", DType::F64, &recurrent),
        case("scan", DType::F32, &recurrent),
        sized("scan_nothing", DType::F64, 0, &recurrent),
        case("nested", DType::F64, &nested),
        case("until", DType::F32, &until),
        case("until", DType::I32, &until),
        case("never", DType::F64, &|x| flow::fori_loop(0, &[&x[0]], |_, s| vec![&s[0] * &x[0]])),
    ]
}

pub(super) fn case() -> Vec<Sample> {
    let case = |label: &str, index: f64, dtype: DType, size: usize| {
        let ty = TensorType::new(dtype, [size]);
        let index = Domain::Uniform(index, index);
        let params = [(TensorType::scalar(DType::I32), index), (ty.clone(), WIDE), (ty, WIDE)];
        sample(format!("{label}_{dtype}"), &params, 8, dtype == DType::F64, |x| {
            flow::case(
                &x[0],
                &[&|| vec![&x[1] * &x[2], x[2].clone()], &|| vec![x[1].clone(), &x[1] + &x[1]], &|| {
                    vec![x[2].ones_like(), &x[1] * 3.0]
                }],
            )
        })
    };
    let mut all = Vec::new();
    for (label, index) in [("first", 0.0), ("second", 1.0), ("last", 2.0), ("below", -1.0), ("above", 9.0)] {
        all.extend([case(label, index, DType::F64, 3), case(label, index, DType::I32, 3)]);
    }
    all.push(case("empty", 1.0, DType::F32, 0));
    all
}

pub(super) fn optimization_barrier() -> Vec<Sample> {
    let pass = |x: &[Tensor]| {
        let inputs: Vec<&Tensor> = x.iter().collect();
        x[0].builder().emit(OptimizationBarrier { stop_gradient: false }, &inputs)
    };
    let mut all = moved("pass", &[&[3, 5], &[7], &[0]], pass);
    let params = [(TensorType::new(DType::F32, [3, 5]), WIDE)];
    all.push(sample("stop_f32".into(), &params, 0, false, |x| vec![x[0].stop_gradient()]));
    all
}
