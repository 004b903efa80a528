//! Builders of loops and branches (`while_loop`, `fori_loop`, `scan`, `cond`) over [`While`] and [`Case`].
//!
//! Bodies are traced once, into their own graphs. They may use any tensor of the enclosing graph; these become captures
//! of the op. All nodes created in a body belong to the body, even if they use only outer tensors.

use super::{Case, Op, While};
use crate::{Graph, GraphBuilder, Tensor};
use std::sync::Arc;
use systole_base::{DType, Dims, Result, err};

/// Body of one branch of [`case_in`].
pub(crate) type BranchBody<'a> = Box<dyn FnOnce(&GraphBuilder) -> Vec<Tensor> + 'a>;
/// Body of [`fori_in`].
pub(crate) type ForBody<'a> = Box<dyn FnOnce(&GraphBuilder, &Tensor, &[Tensor]) -> Vec<Tensor> + 'a>;
/// Body of [`scan`].
type ScanBody<'a> = Box<dyn FnOnce(&[Tensor], &[Tensor]) -> (Vec<Tensor>, Vec<Tensor>) + 'a>;

/// Runs `body` on the state while `cond: state → bool[]` holds; returns the final state.
///
/// Not differentiable, because the number of iterations is unknown at build time; see [`fori_loop`].
///
/// ```
/// use systole_ir::{control_builders, interp, DType::F32, GraphBuilder, Literal, TensorType};
/// let g = GraphBuilder::new("main");
/// let x = g.parameter(TensorType::scalar(F32), "x");
/// let limit = g.scalar(F32, 100.0);
/// let y = control_builders::while_loop(&[&x], |s| s[0].less(&limit), |s| vec![&s[0] * 2.0]);
/// let graph = g.finish(&y).unwrap();
/// let out = interp::run(&graph, &[&Literal::scalar(F32, 3.0)]).unwrap();
/// assert_eq!(out[0].to_f32s(), [192.0]);
/// ```
#[track_caller]
pub fn while_loop(
    init: &[&Tensor],
    cond: impl FnOnce(&[Tensor]) -> Tensor,
    body: impl FnOnce(&[Tensor]) -> Vec<Tensor>,
) -> Vec<Tensor> {
    // A loop without state computes nothing.
    let Some(g) = GraphBuilder::of(init) else { return Vec::new() };
    while_in(&g, init, None, false, |_, s| cond(s), |_, s| body(s))
}

/// Runs `body(i, state)` for `i: i32[]` from 0 to `n` − 1; returns the final state. Differentiable.
///
/// ```
/// use systole_ir::{control_builders, grad, interp, DType::F32, GraphBuilder, Literal, TensorType};
/// let g = GraphBuilder::new("main");
/// let x = g.parameter(TensorType::scalar(F32), "x");
/// let y = control_builders::fori_loop(3, &[&x.ones_like()], |_, s| vec![&s[0] * &x]).remove(0); // x³
/// let dx = grad(&y, &[&x]).remove(0);
/// let graph = g.finish(&[y, dx]).unwrap();
/// let out = interp::run(&graph, &[&Literal::scalar(F32, 2.0)]).unwrap();
/// assert_eq!((out[0].to_f32s()[0], out[1].to_f32s()[0]), (8.0, 12.0));
/// ```
#[track_caller]
pub fn fori_loop(
    n: usize,
    init: &[&Tensor],
    body: impl FnOnce(&Tensor, &[Tensor]) -> Vec<Tensor>,
) -> Vec<Tensor> {
    let Some(g) = GraphBuilder::of(init) else { return Vec::new() };
    fori_in(&g, n, false, init, Box::new(|_, i, s| body(i, s)))
}

/// Runs `body(carry, x) → (carry, y)` over the leading dimension of `xs`, each `T[N, …]`. Returns the final carry and
/// the `ys` stacked to `[N, …]`. Differentiable. Like JAX's `lax.scan`.
///
/// ```
/// use systole_ir::{control_builders, interp, DType::F32, GraphBuilder, Literal, TensorType};
/// let g = GraphBuilder::new("main");
/// let xs = g.parameter(TensorType::new(F32, [4]), "xs");
/// let zero = g.scalar(F32, 0.0);
/// let (_, sums) = control_builders::scan(&[&zero], &[&xs], |carry, x| {
///     let sum = &carry[0] + &x[0];
///     (vec![sum.clone()], vec![sum])
/// });
/// let graph = g.finish(&sums).unwrap();
/// let xs = Literal::from_slice([4], &[1f32, 2., 3., 4.]).unwrap();
/// assert_eq!(interp::run(&graph, &[&xs]).unwrap()[0].to_f32s(), [1., 3., 6., 10.]);
/// ```
#[track_caller]
pub fn scan(
    init: &[&Tensor],
    xs: &[&Tensor],
    body: impl FnOnce(&[Tensor], &[Tensor]) -> (Vec<Tensor>, Vec<Tensor>),
) -> (Vec<Tensor>, Vec<Tensor>) {
    scan_in(false, init, xs, Box::new(body))
}

/// Like [`scan`], for few long iterations: the derivative stores the results of products, reductions and loops of all
/// iterations, as it would without a loop. The derivative of [`scan`] stores the carry (or functions of it, if these
/// are not larger) and recomputes each iteration.
///
/// ```
/// use systole_ir::{control_builders, grad, DType::F32, GraphBuilder, Node, TensorType};
/// let g = GraphBuilder::new("main");
/// let x = g.parameter(TensorType::new(F32, [2, 4]), "x");
/// let w = g.parameter(TensorType::new(F32, [3, 4, 4]), "w");
/// let (y, _) = control_builders::scan_keeping(&[&x], &[&w], |carry, w| (vec![carry[0].dot(&w[0]).sine()], vec![]));
/// let dw = grad(&y[0].sum_all(), &[&w]).remove(0);
/// let graph = g.finish(&[dw]).unwrap();
/// let products = |n: &Node| -> usize {
///     let bodies = n.op.rule().regions();
///     bodies.iter().flat_map(|b| b.nodes.iter()).filter(|n| n.op.name() == "dot_general").count()
/// };
/// // One forward and two backward; `scan` would have a third there.
/// assert_eq!(graph.nodes.iter().map(products).sum::<usize>(), 3);
/// ```
#[track_caller]
pub fn scan_keeping(
    init: &[&Tensor],
    xs: &[&Tensor],
    body: impl FnOnce(&[Tensor], &[Tensor]) -> (Vec<Tensor>, Vec<Tensor>),
) -> (Vec<Tensor>, Vec<Tensor>) {
    scan_in(true, init, xs, Box::new(body))
}

#[track_caller]
fn scan_in(keeps: bool, init: &[&Tensor], xs: &[&Tensor], body: ScanBody<'_>) -> (Vec<Tensor>, Vec<Tensor>) {
    let Some(g) = GraphBuilder::of(&[xs, init].concat()) else { return Default::default() };
    let n = xs.first().filter(|x| x.rank() > 0).map_or(0, |x| x.shape()[0]);
    if xs.is_empty() || xs.iter().any(|x| x.shape().first() != Some(&n)) {
        let types: Vec<String> = xs.iter().map(|x| x.ty().to_string()).collect();
        g.fail(
            err!(Graph, "scan: the arrays must have the same leading dimension")
                .because(format!("the types of the arrays are {}", types.join(", "))),
        );
        return (g.poisoned(init.len(), init), Vec::new());
    }
    // The body is traced first on its own, because the types of its ys determine the loop's state.
    let step = g.child("step");
    let param = |t: &Tensor, shape: &[usize]| step.parameter(t.ty().with_shape(shape), "step");
    let carry: Vec<Tensor> = init.iter().map(|t| param(t, t.shape())).collect();
    let x: Vec<Tensor> = xs.iter().map(|t| param(t, &t.shape()[1..])).collect();
    let (carry, ys) = g.in_region(&step, || body(&carry, &x));
    let (carried, results) = (carry.len(), [carry, ys.clone()].concat());
    let captured = step.captured(&results);
    let step = match step.finish_region(&results, &captured) {
        Ok(step) => step,
        Err(e) => {
            g.record(e);
            return (g.poisoned(init.len(), init), g.poisoned(ys.len(), init));
        }
    };
    let buffers: Vec<Tensor> =
        ys.iter().map(|y| g.full(&y.ty().with_shape([&[n], y.shape().dims()].concat()), 0.0)).collect();
    let state: Vec<&Tensor> = init.iter().copied().chain(&buffers).collect();
    let body = |r: &GraphBuilder, i: &Tensor, s: &[Tensor]| {
        let slices: Vec<Tensor> = if n > 0 {
            xs.iter().map(|x| read_trip(x, i)).collect()
        } else {
            xs.iter().map(|x| r.full(&x.ty().with_shape(&x.shape()[1..]), 0.0)).collect()
        };
        let args: Vec<&Tensor> = captured.iter().chain(&s[..init.len()]).chain(&slices).collect();
        let mut results = r.inline(&step, &args);
        for (result, buffer) in results.iter_mut().skip(carried).zip(s.iter().skip(init.len())) {
            *result = if n > 0 { write_trip(buffer, result, i) } else { buffer.clone() };
        }
        results
    };
    let mut last = fori_in(&g, n, keeps, &state, Box::new(body));
    let stacked = last.split_off(init.len().min(last.len()));
    (last, stacked)
}

/// Returns the results of branch `index: i32[]`, or of the last branch if it is out of range. Only that branch runs.
/// All branches must have the same result types. Differentiable.
///
/// ```
/// use systole_ir::{control_builders, interp, DType::{F32, I32}, GraphBuilder, Literal, TensorType};
/// let g = GraphBuilder::new("main");
/// let (i, x) = (g.parameter(TensorType::scalar(I32), "i"), g.parameter(TensorType::scalar(F32), "x"));
/// let y = control_builders::case(&i, &[&|| vec![x.clone()], &|| vec![&x * 10.0], &|| vec![x.exp()]]);
/// let graph = g.finish(&y).unwrap();
/// let out = interp::run(&graph, &[&Literal::scalar(I32, 1.0), &Literal::scalar(F32, 3.0)]).unwrap();
/// assert_eq!(out[0].to_f32s(), [30.0]);
/// ```
#[track_caller]
pub fn case(index: &Tensor, branches: &[&dyn Fn() -> Vec<Tensor>]) -> Vec<Tensor> {
    let branches = branches.iter().map(|f| Box::new(move |_: &GraphBuilder| f()) as BranchBody<'_>).collect();
    case_in(index.builder(), index, branches)
}

/// Returns the results of `on_true` if `pred: bool[]` holds, otherwise of `on_false`. Only that branch runs.
/// Differentiable.
///
/// ```
/// use systole_ir::{control_builders, interp, DType::F32, GraphBuilder, Literal, TensorType};
/// let g = GraphBuilder::new("main");
/// let x = g.parameter(TensorType::scalar(F32), "x");
/// let y = control_builders::cond(&x.less(&x.scalar_like(0.0)), || vec![-&x], || vec![x.sqrt()]);
/// let graph = g.finish(&y).unwrap();
/// assert_eq!(interp::run(&graph, &[&Literal::scalar(F32, 9.0)]).unwrap()[0].to_f32s(), [3.0]);
/// ```
#[track_caller]
pub fn cond(
    pred: &Tensor,
    on_true: impl FnOnce() -> Vec<Tensor>,
    on_false: impl FnOnce() -> Vec<Tensor>,
) -> Vec<Tensor> {
    // False converts to 0, so branch 0 is `on_false`.
    let branches: Vec<BranchBody<'_>> = vec![Box::new(|_| on_false()), Box::new(|_| on_true())];
    case_in(pred.builder(), &pred.convert(DType::I32), branches)
}

/// Outlines `body` into a single node: a branch that always runs. Derivatives recompute its intermediate values instead
/// of storing them.
///
/// ```
/// use systole_ir::{control_builders, grad, interp, DType::F32, GraphBuilder, Literal, TensorType};
/// let g = GraphBuilder::new("main");
/// let x = g.parameter(TensorType::scalar(F32), "x");
/// let y = control_builders::outlined(&x, || vec![x.exp().sine()]).remove(0);
/// let dx = grad(&y, &[&x]).remove(0);
/// let graph = g.finish(&[y, dx]).unwrap();
/// assert!(graph.nodes.iter().all(|n| n.op.name() != "exponential"));
/// let out = interp::run(&graph, &[&Literal::scalar(F32, 0.0)]).unwrap();
/// assert!((out[1].to_f32s()[0] - 1f32.cos()).abs() < 1e-6);
/// ```
#[track_caller]
pub fn outlined(like: &Tensor, body: impl FnOnce() -> Vec<Tensor>) -> Vec<Tensor> {
    let g = like.builder().active();
    let always = g.scalar(DType::I32, 0.0);
    case_in(&g, &always, vec![Box::new(|_| body())])
}

/// Like [`fori_loop`], with an explicit builder; the body also receives its builder.
#[track_caller]
pub(crate) fn fori_in(
    g: &GraphBuilder,
    n: usize,
    keeps: bool,
    init: &[&Tensor],
    body: ForBody<'_>,
) -> Vec<Tensor> {
    let zero = g.scalar(DType::I32, 0.0);
    let init: Vec<&Tensor> = std::iter::once(&zero).chain(init.iter().copied()).collect();
    let step = |r: &GraphBuilder, s: &[Tensor]| {
        let mut next = vec![&s[0] + 1.0];
        next.extend(body(r, &s[0], &s[1..]));
        next
    };
    let more = |r: &GraphBuilder, s: &[Tensor]| s[0].less(&r.scalar(DType::I32, n as f64));
    let mut last = while_in(g, &init, Some(n), keeps, more, step);
    if !last.is_empty() {
        last.remove(0);
    }
    last
}

#[track_caller]
fn while_in(
    g: &GraphBuilder,
    init: &[&Tensor],
    trip_count: Option<usize>,
    keeps: bool,
    cond: impl FnOnce(&GraphBuilder, &[Tensor]) -> Tensor,
    body: impl FnOnce(&GraphBuilder, &[Tensor]) -> Vec<Tensor>,
) -> Vec<Tensor> {
    let (test, step) = (g.child("cond"), g.child("body"));
    let state = |r: &GraphBuilder| -> Vec<Tensor> {
        init.iter().map(|t| r.parameter(t.ty().clone(), "state")).collect()
    };
    let (tested, stepped) = (state(&test), state(&step));
    let tested = g.in_region(&test, || vec![cond(&test, &tested)]);
    let stepped = g.in_region(&step, || body(&step, &stepped));
    let count = stepped.len();
    match finish(&[(test, tested), (step, stepped)]) {
        Ok((captured, regions)) => {
            let [cond, body] = [&regions[0], &regions[1]].map(Arc::clone);
            let op = While { captures: captured.len(), cond, body, trip_count, keeps, recorded: None };
            emit(g, op.into(), captured.iter().chain(init.iter().copied()).collect())
        }
        Err(e) => {
            g.record(e);
            g.poisoned(count, init)
        }
    }
}

/// Like [`case`], with an explicit builder; the branches also receive their builders.
#[track_caller]
pub(crate) fn case_in(g: &GraphBuilder, index: &Tensor, branches: Vec<BranchBody<'_>>) -> Vec<Tensor> {
    let mut count = 0;
    let mut trace = |f: BranchBody<'_>| {
        let r = g.child("branch");
        let results = g.in_region(&r, || f(&r));
        count = results.len();
        (r, results)
    };
    let traced: Vec<(GraphBuilder, Vec<Tensor>)> = branches.into_iter().map(&mut trace).collect();
    match finish(&traced) {
        Ok((captured, branches)) => {
            emit(g, Case { branches }.into(), captured.iter().chain([index]).collect())
        }
        Err(e) => {
            g.record(e);
            g.poisoned(count, &[index])
        }
    }
}

#[track_caller]
fn emit(g: &GraphBuilder, op: Op, inputs: Vec<&Tensor>) -> Vec<Tensor> {
    g.emit(op, &inputs)
}

/// Finishes the regions of one op. All get the union of their captures, in order of first use.
pub fn finish(regions: &[(GraphBuilder, Vec<Tensor>)]) -> Result<(Vec<Tensor>, Vec<Arc<Graph>>)> {
    let mut captured: Vec<Tensor> = Vec::new();
    for t in regions.iter().flat_map(|(r, results)| r.captured(results)) {
        if !captured.iter().any(|c| c.same_as(&t)) {
            captured.push(t);
        }
    }
    let finish = |(r, results): &(GraphBuilder, Vec<Tensor>)| r.finish_region(results, &captured);
    let graphs = regions.iter().map(finish).collect::<Result<_>>()?;
    Ok((captured, graphs))
}

fn trip_start(trip: &Tensor, rank: usize) -> Vec<Tensor> {
    let zero = trip.scalar_like(0.0);
    std::iter::once(trip.clone()).chain(std::iter::repeat_n(zero, rank)).collect()
}

/// Reads one entry of a stack without its leading dimension: `stack: T[trips, …] → T[…]`.
pub(crate) fn read_trip(stack: &Tensor, trip: &Tensor) -> Tensor {
    let shape: Dims = stack.shape().iter().skip(1).copied().collect();
    entry(stack, trip).reshape(&shape[..])
}

/// Reads one entry of a stack: `stack: T[trips, …] → T[1, …]`.
pub(crate) fn entry(stack: &Tensor, trip: &Tensor) -> Tensor {
    let sizes: Dims = std::iter::once(1).chain(stack.shape().iter().skip(1).copied()).collect();
    let start = trip_start(trip, stack.rank() - 1);
    stack.dynamic_slice(&start.iter().collect::<Vec<_>>(), &sizes)
}

/// Writes one entry of a stack: `stack: T[trips, …], value: T[…] → T[trips, …]`.
pub(crate) fn write_trip(stack: &Tensor, value: &Tensor, trip: &Tensor) -> Tensor {
    let sizes: Dims = std::iter::once(1).chain(value.shape().iter().copied()).collect();
    let start = trip_start(trip, value.rank());
    stack.dynamic_update_slice(&value.reshape(&sizes[..]), &start.iter().collect::<Vec<_>>())
}
