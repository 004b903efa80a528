//! Generic tests for every op in the op table: samples against XLA's results, text round trip, gradients, element
//! types. `fixtures/ops/generate.py` generates XLA's results.

use systole_ir::op::unary::KNOWN;
use systole_ir::op::{Op, OpSample, TABLE};
use systole_ir::rng::RandomStream;
use systole_ir::{
    DType, Graph, GraphBuilder, Literal, LiteralBuilder, Scalar, Tensor, TensorType, cost, grad, interp, op,
    text,
};

/// All samples with their names, `op/label`.
fn samples() -> Vec<(&'static str, String, OpSample)> {
    let named = |e: &'static op::OpEntry| {
        (e.samples)().into_iter().map(|s| (e.name, format!("{}/{}", e.name, s.label), s))
    };
    TABLE.iter().flat_map(named).collect()
}

fn run(graph: &Graph, args: &[Literal]) -> Vec<Literal> {
    match interp::run(graph, &args.iter().collect::<Vec<_>>()) {
        Ok(out) => out,
        Err(e) => panic!("{e}"),
    }
}

#[test]
fn infer_agrees_with_eval() {
    for (_, name, s) in samples() {
        s.graph.verify().unwrap_or_else(|e| panic!("{name}: {e}"));
        let out = run(&s.graph, &s.arguments(1));
        let types: Vec<TensorType> = out.iter().map(|l| l.ty().clone()).collect();
        assert_eq!(types, s.graph.result_types(), "{name}");
        let c = cost::cost(&s.graph);
        assert!(c.flops >= 0.0 && c.bytes >= 0.0 && (c.flops + c.bytes).is_finite(), "{name}: {c:?}");
    }
}

#[test]
fn text_round_trips() {
    for (_, name, s) in samples() {
        let written = text::print(&s.graph);
        let read = text::parse(&written).unwrap_or_else(|e| panic!("{name}: {e}\n{written}"));
        assert!(read == s.graph, "{name} is read back as another graph:\n{written}");
        assert_eq!(text::print(&read), written, "{name}");
    }
}

/// A graph of the loss y·w and its gradients with respect to the f64 parameters.
fn with_gradients(name: &str, s: &OpSample) -> std::sync::Arc<Graph> {
    let g = GraphBuilder::new("main");
    let xs: Vec<Tensor> = s.graph.param_types().into_iter().map(|t| g.parameter(t, "x")).collect();
    let ys = g.inline(&s.graph, &xs.iter().collect::<Vec<_>>());
    let mut loss = g.scalar(DType::F64, 0.0);
    let mut weights = RandomStream::new(2, 3, 4);
    for y in ys.iter().filter(|y| y.dtype() == DType::F64) {
        let w = g.constant(op::ArgDomain::Uniform(0.5, 1.5).draw(y.ty(), &mut weights));
        loss = loss + (y * &w).sum_all();
    }
    let floats: Vec<&Tensor> = xs.iter().filter(|x| x.dtype() == DType::F64).collect();
    let grads = grad(&loss, &floats);
    g.finish(&[vec![loss], grads].concat()).unwrap_or_else(|e| panic!("{name}: {e}"))
}

#[test]
fn vjp_agrees_with_central_differences() {
    for (_, name, s) in samples().into_iter().filter(|(_, _, s)| s.differentiable) {
        let graph = with_gradients(&name, &s);
        graph.verify().unwrap_or_else(|e| panic!("{name}: {e}"));
        let args = s.arguments(5);
        let mut rng = RandomStream::new(6, 7, 8);
        let toward: Vec<Literal> =
            args.iter().map(|a| op::ArgDomain::Uniform(-1.0, 1.0).draw(a.ty(), &mut rng)).collect();
        let at = |t: f64| {
            let moved = |(x, d): (&Literal, &Literal)| {
                let mut b = LiteralBuilder::new(x.ty().clone());
                for i in 0..x.ty().elements() {
                    let step = if x.dtype() == DType::F64 { t * d.get(i).as_f64() } else { 0.0 };
                    b.set(i, if step == 0.0 { x.get(i) } else { Scalar::Float(x.get(i).as_f64() + step) });
                }
                b.finish()
            };
            run(&graph, &args.iter().zip(&toward).map(moved).collect::<Vec<_>>())
        };
        let step = 1e-6;
        let difference = (at(step)[0].get(0).as_f64() - at(-step)[0].get(0).as_f64()) / (2.0 * step);
        let directions = toward.iter().filter(|d| d.dtype() == DType::F64);
        let dot = |(g, d): (&Literal, &Literal)| -> f64 {
            g.to_f64s().iter().zip(d.to_f64s()).map(|(g, d)| g * d).sum()
        };
        let derivative: f64 = at(0.0)[1..].iter().zip(directions).map(dot).sum();
        let scale = 1.0 + derivative.abs().max(difference.abs());
        let close = (derivative - difference).abs() < 1e-6 * scale;
        assert!(close, "{name}: derivative {derivative}, finite difference {difference}");
    }
}

/// Ops without a sample whose derivative is checked, with the reason.
const NOT_DIFFERENTIABLE: &[(&str, &str)] = &[
    ("and", "does not support floats"),
    ("bitcast_convert", "not a smooth function of the bits; the gradient is zero"),
    ("compare", "the result is bool"),
    ("constant", "has no operands"),
    ("count_leading_zeros", "does not support floats"),
    ("custom_call", "the derivative of a host function is unknown"),
    ("iota", "has no operands"),
    ("is_finite", "the result is bool"),
    ("not", "does not support floats"),
    ("or", "does not support floats"),
    ("partition_id", "has no operands"),
    ("popcnt", "does not support floats"),
    ("reduce_precision", "a step function; its gradient is intentionally that of the identity"),
    ("replica_id", "has no operands"),
    ("rng_bit_generator", "maps integers to integers"),
    ("shift_left", "does not support floats"),
    ("shift_right_arithmetic", "does not support floats"),
    ("shift_right_logical", "does not support floats"),
    ("xor", "does not support floats"),
];

#[test]
fn every_op_has_a_checked_derivative_or_a_reason() {
    for e in TABLE {
        let checked = (e.samples)().iter().any(|s| s.differentiable);
        let excused = NOT_DIFFERENTIABLE.iter().any(|(name, _)| *name == e.name);
        assert!(checked != excused, "{}: checked {checked}, excused {excused}", e.name);
    }
    assert!(NOT_DIFFERENTIABLE.iter().all(|(name, _)| op::entry(name).is_some()));
}

#[test]
fn the_table_is_sorted_and_documented() {
    assert!(TABLE.windows(2).all(|w| w[0].name < w[1].name), "sorted by name, without duplicates");
    for e in TABLE {
        assert!(op::entry(e.name).is_some_and(|found| found.name == e.name), "{}", e.name);
        assert!(e.doc.len() > 3 && e.doc.ends_with('.') && e.doc.len() <= 90, "{}: doc {:?}", e.name, e.doc);
        let section = e.name.strip_prefix("chlo.").unwrap_or(e.name);
        let (_, named) = e.spec.split_once(": ").unwrap_or_else(|| panic!("{}: spec {:?}", e.name, e.spec));
        assert_eq!(named, section, "{}", e.name);
    }
}

#[test]
fn samples_are_of_their_op_and_named_once() {
    let all = samples();
    for e in TABLE {
        let own: Vec<_> = all.iter().filter(|(op, ..)| *op == e.name).collect();
        assert!(!own.is_empty(), "{} has no sample", e.name);
        for (i, (_, name, s)) in own.iter().enumerate() {
            assert!(own[..i].iter().all(|(_, other, _)| other != name), "duplicate sample {name}");
            assert!(s.graph.nodes.iter().any(|n| n.op.name() == e.name), "{name} does not use its op");
            assert_eq!(s.domains.len(), s.graph.params.len(), "{name}");
        }
        let empty = |s: &OpSample| s.graph.nodes.iter().any(|n| n.outs.iter().any(|t| t.elements() == 0));
        assert!(own.iter().any(|(_, _, s)| empty(s)), "{} has no sample with a dimension of size 0", e.name);
    }
    for variant in Op::VARIANTS.iter().filter(|v| **v != "Parameter") {
        let used = |g: &Graph| g.nodes.iter().any(|n| n.op.variant() == *variant);
        assert!(all.iter().any(|(_, _, s)| used(&s.graph)), "no entry for {variant}");
    }
}

/// Every element type that an op accepts instead of a sample's own type has a sample.
#[test]
fn every_accepted_element_type_is_sampled() {
    for e in TABLE {
        let own = (e.samples)();
        let nodes = || {
            own.iter()
                .flat_map(|s| s.graph.nodes.iter().map(move |n| (s, n)))
                .filter(|(_, n)| n.op.name() == e.name)
        };
        let types = |s: &OpSample, n: &systole_ir::Node| -> Vec<DType> {
            n.inputs.iter().map(|&v| s.graph.ty(v).dtype).chain(n.outs.iter().map(|t| t.dtype)).collect()
        };
        let sampled: Vec<DType> = nodes().flat_map(|(s, n)| types(s, n)).collect();
        for (s, n) in nodes() {
            let args: Vec<TensorType> = n.inputs.iter().map(|&v| s.graph.ty(v).clone()).collect();
            let Some(first) = args.first().map(|t| t.dtype) else { continue };
            for dtype in DType::ALL {
                let swap = |t: &TensorType| if t.dtype == first { t.with_dtype(dtype) } else { t.clone() };
                let args: Vec<TensorType> = args.iter().map(swap).collect();
                let accepted = n.op.rule().infer(&args.iter().collect::<Vec<_>>()).is_ok();
                assert!(
                    !accepted || sampled.contains(&dtype),
                    "{} accepts {dtype} but has no sample",
                    e.name
                );
            }
        }
    }
}

/// Intended differences from XLA's CPU compiler, with reasons. `*` matches anything.
const UNLIKE_XLA: &[(&str, &str)] =
    &[("reduce/*_no_dims_*", "XLA ignores the initial value if nothing is reduced: it assumes the identity")];

/// Ops that XLA's CPU compiler does not support (`REFUSED` in the script); other tests check their values.
const NOT_IN_XLA: &[&str] = &["collective_broadcast", "custom_call"];

/// Whether a name matches a pattern with at most two `*`.
fn is_like(name: &str, pattern: &str) -> bool {
    let mut rest = name;
    pattern.split('*').enumerate().all(|(i, part)| match rest.find(part) {
        Some(at) if i > 0 || at == 0 => {
            rest = &rest[at + part.len()..];
            true
        }
        _ => false,
    })
}

/// Seed of the arguments for which the fixtures were generated; the same as in `examples/dump_samples.rs`.
const SEED: u64 = 9;

/// Distance of two floats of one type in units in the last place (ULP) of the larger one or of `at_least`. Both zeros
/// are equal, and so are all NaNs.
fn ulps(dtype: DType, a: f64, b: f64, at_least: f64) -> f64 {
    if a == b || (a.is_nan() && b.is_nan()) {
        return 0.0;
    }
    if !a.is_finite() || !b.is_finite() {
        return f64::INFINITY;
    }
    // Bits of the significand and the exponent of the smallest normal value.
    let (digits, smallest) = match dtype {
        DType::F16 => (11, -14),
        DType::BF16 => (8, -126),
        DType::F32 => (24, -126),
        _ => (53, -1022),
    };
    let magnitude = a.abs().max(b.abs()).max(at_least);
    let exponent = (magnitude.log2().floor() as i32).max(smallest);
    (a - b).abs() / 2f64.powi(exponent - digits + 1)
}

/// The first element that differs from XLA's by more than `ulp`. For sums, the error is bounded by the size of the
/// summands only, so the largest element of the array gives the unit.
fn difference(ours: &Literal, theirs: &Literal, ulp: u32, is_sum: bool) -> Option<String> {
    let greatest =
        theirs.to_f64s().into_iter().filter(|v| v.is_finite()).fold(0.0, |m: f64, v| m.max(v.abs()));
    let at_least = if is_sum { greatest } else { 0.0 };
    let dtype = ours.dtype();
    (0..ours.ty().elements()).find_map(|i| {
        let (a, b) = (ours.get(i), theirs.get(i));
        let distance = match (a, b) {
            (Scalar::Float(a), Scalar::Float(b)) => ulps(dtype, a, b, at_least),
            _ => return (a != b).then(|| format!("element {i} is {a:?}, XLA's is {b:?}")),
        };
        (distance > ulp as f64)
            .then(|| format!("element {i} is {a:?}, XLA's is {b:?}, difference {distance} ulp of {dtype}"))
    })
}

fn sums(s: &OpSample) -> bool {
    s.graph
        .nodes
        .iter()
        .any(|n| matches!(n.op.rule().lower(), op::LoweringClass::Fold | op::LoweringClass::Contract))
}

#[test]
fn eval_agrees_with_xla() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/ops/outputs.safetensors");
    let bytes = std::fs::read(path).unwrap_or_else(|e| panic!("{path}: {e}"));
    let stored = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let mut used = 0;
    let mut wrong: Vec<String> = Vec::new();
    let mut excused = vec![false; UNLIKE_XLA.len()];
    let mut newer: Vec<String> = Vec::new();
    for (_, name, s) in samples() {
        let out = run(&s.graph, &s.arguments(SEED));
        for (k, ours) in out.iter().enumerate() {
            let Ok(theirs) = stored.tensor(&format!("{name}#{k}")) else {
                newer.push(name.clone());
                continue;
            };
            assert_eq!(theirs.shape(), &ours.shape()[..], "{name}");
            used += 1;
            let theirs = Literal::from_bytes(ours.ty().clone(), theirs.data()).unwrap();
            let Some(what) = difference(ours, &theirs, s.ulp, sums(&s)) else { continue };
            match UNLIKE_XLA.iter().position(|(pattern, _)| is_like(&name, pattern)) {
                Some(i) => excused[i] = true,
                None => wrong.push(format!("{name}#{k}: {what}")),
            }
        }
    }
    // New ops have no XLA results yet; until then a table of values replaces them.
    let tabled = |name: &String| KNOWN.iter().any(|(op, _)| name.starts_with(&format!("{}/", op.name())));
    let refused = |name: &String| NOT_IN_XLA.iter().any(|op| name.starts_with(&format!("{op}/")));
    for op in NOT_IN_XLA {
        assert!(
            stored.names().iter().all(|name| !name.starts_with(&format!("{op}/"))),
            "XLA supports {op} now"
        );
    }
    let unknown: Vec<_> = newer.iter().filter(|name| !tabled(name) && !refused(name)).collect();
    assert!(
        unknown.is_empty(),
        "not in the fixture: {unknown:?}: run fixtures/ops/generate.py, or give {} a table in KNOWN of op/unary.rs",
        "a new op"
    );
    assert_eq!(used, stored.len(), "the fixture contains samples that no longer exist");
    assert!(wrong.is_empty(), "{} results differ:\n{}", wrong.len(), wrong.join("\n"));
    let stale: Vec<_> =
        UNLIKE_XLA.iter().zip(&excused).filter(|(_, used)| !**used).map(|(e, _)| e.0).collect();
    assert!(stale.is_empty(), "these agree now: {stale:?}");
}

/// Composite functions have no row in the op table; this one is checked against the reference function.
#[test]
fn sinh_is_right_near_zero_and_before_it_overflows() {
    let g = GraphBuilder::new("main");
    let x = g.parameter(TensorType::new(DType::F64, [9]), "x");
    let y = x.sinh();
    let dx = grad(&y.sum_all(), &[&x]).remove(0);
    let graph = g.finish(&[y, dx]).unwrap();
    let points: [f64; 9] = [-710.2, -3.0, -1.0, -1e-9, 0.0, 1e-3, 0.999, 1.0, 710.2];
    let out = run(&graph, &[Literal::from_slice([9], &points).unwrap()]);
    for (i, x) in points.into_iter().enumerate() {
        for (found, want) in [(out[0].to_f64s()[i], x.sinh()), (out[1].to_f64s()[i], x.cosh())] {
            assert!((found - want).abs() <= want.abs() * 1e-12, "at {x}: got {found}, expected {want}");
        }
    }
}

/// The specification leaves open how often a reduction's initial value is included, unless it is the identity. Only
/// identities are passed to devices whose results are compared.
#[test]
fn specified_arguments_begin_folds_with_identities() {
    let (mut changed, mut kept) = (0, 0);
    for (op, name, s) in samples() {
        let (given, drawn) = (s.specified_arguments(0), s.arguments(0));
        if op == "scatter" {
            continue;
        }
        for (given, drawn) in given.iter().zip(&drawn).filter(|(given, drawn)| given.bytes() != drawn.bytes())
        {
            assert!(given.ty() == drawn.ty() && given.ty().rank() == 0, "{name}: {}", given.ty());
            changed += 1;
        }
        if op == "reduce" && name.contains("no_dims_") {
            assert_eq!(run(&s.graph, &given)[0].bytes(), given[0].bytes(), "{name}");
            kept += 1;
        }
    }
    assert!(changed > 50 && kept == 6, "{changed} {kept}");
}

/// The specification also leaves the order of a scatter open: applied from the last to the first, the updates give the
/// same result.
#[test]
fn specified_arguments_leave_the_order_of_scatters_open() {
    let axes = [("_rows", 0), ("blocks", 0), ("paired", 0), ("mixed_dims", 1), ("batched", 1)];
    let (mut same, mut depended) = (0, 0);
    for (_, name, s) in samples().into_iter().filter(|(op, ..)| *op == "scatter") {
        let ordered = name.contains("overwrite") || name.contains("paired");
        let Some((_, axis)) = axes.iter().find(|(part, _)| ordered && name.contains(part)) else { continue };
        let g = GraphBuilder::new("main");
        let mut xs: Vec<Tensor> = s.graph.param_types().into_iter().map(|t| g.parameter(t, "x")).collect();
        let results = xs.len() / 2;
        xs[results..].iter_mut().for_each(|x| *x = x.reverse(&[*axis]));
        let backwards = g.finish(&g.inline(&s.graph, &xs.iter().collect::<Vec<_>>())).unwrap();
        let differ = |args: Vec<Literal>| {
            let (a, b) = (run(&s.graph, &args), run(&backwards, &args));
            a.iter().zip(&b).any(|(a, b)| a.bytes() != b.bytes())
        };
        assert!(!differ(s.specified_arguments(0)), "{name}");
        same += 1;
        depended += usize::from(differ(s.arguments(0)));
    }
    assert!(same == 17 && depended > 4, "{same} {depended}");
}
