//! Tests every kernel and fused path with NaN, infinities, subnormals and signed zeros against the interpreter.
//!
//! In strict mode results must be non-finite in the same places, and of the same class. As compiled for training, an
//! infinity may become a NaN, and Winograd spreads either over its tile.

mod common;

use common::odd::{Allowed, ODD, convolves, difference, with_odd};
use common::{backend, levels, oracle, programs};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use systole_cpu::{CpuBackend, Level, RowBlocksMode, kernel_names};
use systole_ir::DType::*;
use systole_ir::cost::cost;
use systole_ir::op::Monoid;
use systole_ir::rng::RandomStream;
use systole_ir::{Graph, GraphBuilder, Literal, LiteralBuilder, Scalar, Tensor, TensorType, grad};
use systole_runtime::{Backend, Buffer, CompileOptions, ExecutableArg};

/// Scalar multiplications above which a program is tested with few operands, and above which with one: the interpreter
/// is slow.
const LONG: [f64; 2] = [4e5, 8e6];

/// Arguments of a program, and the interpreter's results.
struct Trial {
    odd: &'static str,
    operand: usize,
    args: Vec<Literal>,
    want: Vec<Literal>,
}

/// A program, and the same program in f32, in which narrow floats are summed.
struct Case {
    graph: Arc<Graph>,
    trials: Vec<Trial>,
    tolerance: f64,
}

fn is_narrow(t: &TensorType) -> bool {
    matches!(t.dtype, F16 | BF16)
}

/// Arguments of small integers, whose sums are exact in any order: when results are compared with each other, rounding
/// must not matter.
fn whole_numbers(graph: &Graph, args: &[Literal]) -> Vec<Literal> {
    let one = |(i, x): (usize, &Literal)| {
        let mut s = RandomStream::new(21, i as u64, 5);
        let mut b = LiteralBuilder::new(x.ty().clone());
        let values = [-1.0, 0.0, 0.0, 0.0, 0.0, 1.0];
        (0..x.ty().elements()).for_each(|k| b.set(k, Scalar::of(x.dtype(), values[s.below(6) as usize])));
        if x.dtype().is_float() { b.finish() } else { x.clone() }
    };
    assert_eq!(graph.params.len(), args.len());
    args.iter().enumerate().map(one).collect()
}

/// Whether a program's results depend on which of several maxima is selected, including NaN.
fn has_ties(graph: &Graph) -> bool {
    ["pooled", "pool", "conv bias"].contains(&graph.name.as_str())
}

impl Case {
    fn of([graph, wide]: [Arc<Graph>; 2], number: usize) -> Case {
        let mut args = programs::draw(&graph);
        let ties = has_ties(&graph);
        if ties {
            args = whole_numbers(&graph, &args);
        }
        let floats: Vec<usize> =
            (0..args.len()).filter(|&i| args[i].dtype().is_float() && args[i].ty().elements() > 0).collect();
        let [is_long, is_longest] = LONG.map(|limit| cost(&wide).flops > limit);
        let mut trials = Vec::new();
        for (k, &operand) in floats.iter().enumerate() {
            for (o, (odd, values, count)) in ODD.iter().enumerate() {
                // Every operand gets NaN and all special numbers together; the others take turns.
                let turn = (k + number) % 3 + 1 == o;
                if !(turn || o == 0 || o == 4)
                    || (is_long && !(k + number + o).is_multiple_of(9))
                    || (is_longest && !trials.is_empty())
                {
                    continue;
                }
                // Which maximum is the first may depend on a subnormal number.
                let is_subnormal = |v: &f64| *v != 0.0 && v.abs() < 1e-30;
                let values: Vec<f64> =
                    values.iter().copied().filter(|v| !(ties && is_subnormal(v))).collect();
                let mut s = RandomStream::new(number as u64, operand as u64, o as u64);
                let mut args = args.clone();
                args[operand] = with_odd(&args[operand], &values, *count, &mut s);
                let convert = |(x, t): (&Literal, &TensorType)| x.convert(t.dtype);
                let widened: Vec<Literal> = args.iter().zip(&wide.param_types()).map(convert).collect();
                trials.push(Trial { odd, operand, want: oracle(&wide, &widened), args });
            }
        }
        let narrow = graph.param_types().iter().any(is_narrow);
        Case { graph, trials, tolerance: if narrow { 5e-2 } else { 1e-5 } }
    }
}

/// Programs per candidate and level: the interpreter and the compiler take most of the time.
const PROGRAMS: usize = 2;

/// Number of programs that exercised each candidate, by level, and wrong results.
#[derive(Default)]
struct Seen {
    used: BTreeMap<(Level, String), usize>,
    wrong: Vec<String>,
}

impl Seen {
    fn run(&mut self, case: &Case, cpu: &CpuBackend, options: &CompileOptions, what: &str) {
        let exe = cpu.compile(&case.graph, options).unwrap_or_else(|e| panic!("{e}"));
        let training = options.excess_precision;
        let allowed = Allowed { other_class: training, spread: convolves(&case.graph) };
        let tolerance = if has_ties(&case.graph) { f64::INFINITY } else { case.tolerance };
        for t in &case.trials {
            let args = t.args.iter().map(|a| ExecutableArg::Donate(Buffer::from(a.clone()))).collect();
            let out = exe.run(args).unwrap_or_else(|e| panic!("{e}"));
            for (k, (got, want)) in out.iter().zip(&t.want).enumerate() {
                let got = got.to_literal().unwrap();
                if let Some(why) = difference(&got, want, allowed, tolerance) {
                    let types: Vec<String> = case.graph.param_types().iter().map(|t| t.to_string()).collect();
                    self.wrong.push(format!(
                        "{} ({}), {} in operand {}, result {k} by {what}: {why}",
                        case.graph.name,
                        types.join(" "),
                        t.odd,
                        t.operand
                    ));
                }
            }
        }
    }

    /// Checks the program as it is, in row blocks, and with each unused candidate preferred.
    fn check(&mut self, case: &Case, level: Level, options: &CompileOptions, how: &str) {
        let explain = |cpu: &CpuBackend| cpu.explain(&case.graph, options).unwrap_or_else(|e| panic!("{e}"));
        let plain = backend(level, 2);
        let steps = explain(&plain);
        self.run(case, &plain, options, &format!("the default selection on {level:?}, {how}"));
        let blocks = backend(level, 2).with_blocks(RowBlocksMode::Rows(2));
        if explain(&blocks).iter().any(|s| s.kernel.uses("control/row_blocks")) {
            self.run(case, &blocks, options, &format!("blocks of two rows on {level:?}, {how}"));
        }
        let families: BTreeSet<&str> = steps.iter().filter_map(|s| s.kernel.name.split('/').next()).collect();
        for (name, at) in kernel_names() {
            let used = self.used.entry((level, name.clone())).or_default();
            if *used >= PROGRAMS || steps.iter().any(|s| s.kernel.uses(&name)) {
                *used += 1;
                continue;
            }
            if !at.contains(&level) || !families.contains(name.split('/').next().unwrap_or_default()) {
                continue;
            }
            let forced = backend(level, 2).with_kernel(&name).unwrap_or_else(|e| panic!("{e}"));
            if explain(&forced).iter().any(|s| s.kernel.uses(&name)) {
                *used += 1;
                self.run(case, &forced, options, &format!("{name} on {level:?}, {how}"));
            }
        }
    }
}

/// Programs that other tests lack: embeddings, optimizer updates, chains of element-wise ops, every reduction, batch
/// mean and variance, average pooling.
fn more(dtype: systole_ir::DType) -> Vec<Arc<Graph>> {
    let ty = |dims: &[usize]| TensorType::new(dtype, dims);
    let build = |name: &str, types: &[TensorType], f: &dyn Fn(&[Tensor]) -> Vec<Tensor>| {
        let g = GraphBuilder::new(name);
        let xs: Vec<Tensor> = types.iter().map(|t| g.parameter(t.clone(), "x")).collect();
        g.finish(&f(&xs)).unwrap_or_else(|e| panic!("{name}: {e}"))
    };
    let embedding = |x: &[Tensor]| {
        let y = x[0].take(&x[1]).relu();
        let loss = (&y * &x[2]).convert(F32).sum_all();
        vec![y, grad(&loss, &[&x[0]]).remove(0)]
    };
    let update = |x: &[Tensor]| {
        let (p, m, v, g) = (&x[0], &x[1], &x[2].abs(), &x[3]);
        let m = m + (g - m) * 0.1;
        let v = v + (g * g - v) * 0.001;
        let limited = g.clamp(&g.scalar_like(-0.5), &g.scalar_like(0.5));
        vec![p - &(&m / &(v.sqrt() + 1e-3)) * 0.01, p - limited * 0.1, m, v]
    };
    let chain = |x: &[Tensor]| {
        let a = (&x[0] * &x[1] + &x[2]).relu();
        let b = a.maximum(&x[1]).minimum(&(&x[0] + 3.0)).tanh();
        let c = (&b * &x[2]).exp().log1p() + x[0].logistic() - x[1].abs();
        vec![a, c.elu(0.7), b.leaky_relu(0.1), x[2].maximum(&x[0]), x[2].minimum(&x[0])]
    };
    let folds = |x: &[Tensor]| {
        let mut all = Vec::new();
        for dims in [&[0][..], &[1], &[0, 1]] {
            for monoid in [Monoid::Add, Monoid::Maximum, Monoid::Minimum] {
                all.push(monoid.over(&x[0], dims));
            }
        }
        all.push(Monoid::Multiply.over(&x[0].slice_dim(1, 0, 3), &[1]));
        all.push(x[0].argmax(1));
        all
    };
    let normalised = |x: &[Tensor]| {
        let wide = x[0].convert(F32);
        let over = |t: &Tensor| t.broadcast_except(wide.shape(), &[0, 1, 2]);
        let mean = wide.mean(&[0, 1, 2]);
        let centred = &wide - over(&mean);
        let variance = (&centred * &centred).mean(&[0, 1, 2]);
        let y = (centred * over(&(&variance + 1e-3).rsqrt())).convert(x[0].dtype()).relu();
        let dx = grad(&(&y * &x[1]).convert(F32).sum_all(), &[&x[0]]).remove(0);
        vec![y, mean, variance, dx]
    };
    let averaged = |x: &[Tensor]| {
        let y = x[0].avg_pool(&[1, 2, 2, 1], &[1, 2, 2, 1], &[[0, 0]; 4]).relu();
        let dx = grad(&y.convert(F32).sum_all(), &[&x[0]]).remove(0);
        vec![y, dx]
    };
    let matrix = ty(&[9, 70]);
    vec![
        build("embedding", &[matrix.clone(), TensorType::new(I32, [5]), ty(&[5, 70])], &embedding),
        build("update", &vec![matrix.clone(); 4], &update),
        build("chain", &vec![matrix.clone(); 3], &chain),
        build("every fold", std::slice::from_ref(&matrix), &folds),
        build("batch normalisation", &vec![ty(&[2, 5, 6, 20]); 2], &normalised),
        build("average pooling", &[ty(&[2, 6, 8, 18])], &averaged),
    ]
}

/// Every second program, from the first or the second on: two tests run in parallel.
fn every_candidate(first: usize) {
    let training = CompileOptions { winograd: true, excess_precision: true, ..CompileOptions::default() };
    let mut seen = Seen::default();
    let others = [F32, BF16, F16].into_iter().flat_map(|t| more(t).into_iter().zip(more(F32)));
    let all = programs::all().into_iter().chain(others.map(|(narrow, wide)| [narrow, wide]));
    for (number, graphs) in all.enumerate().skip(first).step_by(2) {
        let case = Case::of(graphs, number);
        for (k, level) in levels().enumerate() {
            match (number / 2 + k) % 2 {
                0 => seen.check(&case, level, &CompileOptions::default(), "in strict mode"),
                _ => seen.check(&case, level, &training, "as compiled for training"),
            }
        }
    }
    assert!(seen.wrong.is_empty(), "{} results are wrong: {:#?}", seen.wrong.len(), seen.wrong);
}

#[test]
fn every_candidate_keeps_what_is_not_finite() {
    every_candidate(0);
}

#[test]
fn every_candidate_keeps_what_is_not_finite_in_other_programs() {
    every_candidate(1);
}
