//! Partitioner: every op sample, sharded in every way over two and three devices, gives the results of one device.

use systole_dist::partition;
use systole_ir::op::{DeviceCounts, LoweringClass, OpSample, TABLE};
use systole_ir::{Graph, Literal, Mesh, Sharding, Shardings, interp};
use systole_runtime::sharded_array;

/// Shardings to test: each parameter split along each evenly divisible dimension, alone, and all parameters along their
/// first; results replicated, or split along their last divisible dimension.
fn spreads(graph: &Graph, mesh: &Mesh) -> Vec<Shardings> {
    let n = mesh.devices();
    let whole = |rank: usize| Sharding::replicated(rank);
    let types = graph.param_types();
    let made = graph.result_types();
    let all_whole: Vec<Sharding> = types.iter().map(|t| whole(t.rank())).collect();
    let mut params: Vec<Vec<Sharding>> = vec![all_whole.clone()];
    for (k, ty) in types.iter().enumerate() {
        for d in (0..ty.rank()).filter(|&d| ty.shape[d] % n == 0) {
            let mut one = all_whole.clone();
            one[k] = whole(ty.rank()).split(d, 0);
            params.push(one);
        }
    }
    for d in 0..3 {
        let along = |t: &systole_ir::TensorType| match d < t.rank() && t.shape[d].is_multiple_of(n) {
            true => whole(t.rank()).split(d, 0),
            false => whole(t.rank()),
        };
        params.push(types.iter().map(along).collect());
    }
    let split = made.iter().map(|t| match (0..t.rank()).rev().find(|&d| t.shape[d] % n == 0) {
        Some(d) => whole(t.rank()).split(d, 0),
        None => whole(t.rank()),
    });
    let results = [made.iter().map(|t| whole(t.rank())).collect(), split.collect::<Vec<_>>()];
    let both = |params: Vec<Sharding>| {
        results.clone().map(|results| Shardings { mesh: mesh.clone(), params: params.clone(), results })
    };
    params.into_iter().flat_map(both).collect()
}

/// Runs the partitioned program in the interpreter; assembles the results.
fn on_devices(graph: &Graph, spread: &Shardings, args: &[Literal]) -> (usize, Vec<Literal>) {
    let own = partition(graph, spread, &[]).unwrap_or_else(|e| panic!("{e}"));
    own.verify().unwrap_or_else(|e| panic!("{e}"));
    let n = spread.mesh.devices();
    let parts: Vec<Vec<Literal>> = args
        .iter()
        .zip(&spread.params)
        .map(|(x, sharding)| sharded_array::split(x, &spread.mesh, sharding, 0..n).unwrap())
        .collect();
    let args: Vec<Vec<&Literal>> = (0..n).map(|d| parts.iter().map(|p| &p[d]).collect()).collect();
    let out = interp::run_devices(&own, DeviceCounts::replicas(n), &args).unwrap_or_else(|e| panic!("{e}"));
    let whole = |k: usize| {
        let sharding = &spread.results[k];
        let parts: Vec<Literal> = out.iter().map(|own| own[k].clone()).collect();
        if sharding.is_replicated() {
            parts.iter().for_each(|p| assert_eq!(p.bytes(), parts[0].bytes(), "devices differ"));
        }
        let parts = parts.into_iter().map(Into::into).collect();
        let all = sharded_array::ShardedArray {
            mesh: spread.mesh.clone().into(),
            sharding: sharding.clone(),
            parts,
            first: 0,
        };
        all.buffer(graph.result_types()[k].clone()).unwrap().to_literal().unwrap()
    };
    let collectives = own.nodes.iter().filter(|n| n.op.collective().is_some()).count();
    (collectives, (0..spread.results.len()).map(whole).collect())
}

/// Compares bits; sums, whose order changes, may differ by a few units in the last place of the largest element.
fn differs(s: &OpSample, one: &Literal, many: &Literal) -> Option<String> {
    if one.bytes() == many.bytes() {
        return None;
    }
    let sums = s.graph.nodes.iter().any(|n| {
        matches!(n.op.rule().lower(), LoweringClass::Fold | LoweringClass::Contract | LoweringClass::Control)
            || matches!(n.op.name(), "scatter" | "select_and_scatter")
    });
    let (a, b) = (one.to_f64s(), many.to_f64s());
    let greatest = a.iter().filter(|v| v.is_finite()).fold(1e-30, |m: f64, v| m.max(v.abs()));
    let digits = match one.dtype() {
        systole_ir::DType::BF16 => 8,
        systole_ir::DType::F16 => 11,
        systole_ir::DType::F32 => 24,
        _ => 53,
    };
    let unit = greatest * 2f64.powi(1 - digits);
    let far = a.iter().zip(&b).position(|(a, b)| {
        !(a == b
            || (a.is_nan() && b.is_nan())
            || (sums && one.dtype().is_float() && (a - b).abs() <= 4.0 * unit))
    })?;
    Some(format!("element {far}: {} on one device, {} on several", a[far], b[far]))
}

#[test]
fn every_sample_splits_and_gives_the_result_of_one_device() {
    let (mut programs, mut exchanging, mut free) = (0, 0, 0);
    let mut wrong = Vec::new();
    let meshes: [Mesh; 2] = ["data=2".parse().unwrap(), "data=3".parse().unwrap()];
    for entry in TABLE {
        for s in (entry.samples)() {
            if s.graph.nodes.iter().any(|n| n.op.collective().is_some()) {
                continue;
            }
            let args = s.arguments(4);
            let one = interp::run(&s.graph, &args.iter().collect::<Vec<_>>()).unwrap();
            for spread in meshes.iter().flat_map(|mesh| spreads(&s.graph, mesh)) {
                let (collectives, many) = on_devices(&s.graph, &spread, &args);
                programs += 1;
                let split = spread.params.iter().any(|p| !p.is_replicated());
                exchanging += (split && collectives > 0) as usize;
                free += (split && collectives == 0) as usize;
                for (k, (one, many)) in one.iter().zip(&many).enumerate() {
                    if let Some(how) = differs(&s, one, many) {
                        wrong.push(format!("{}/{}#{k} {:?}: {how}", entry.name, s.label, spread.params));
                    }
                }
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "{} of {programs} differ:\n{}",
        wrong.len(),
        wrong[..wrong.len().min(20)].join("\n")
    );
    assert!(programs > 5000 && exchanging > 500 && free > 500, "{programs} {exchanging} {free}");
}

#[test]
fn a_program_with_collectives_is_not_split_again() {
    let sample = (systole_ir::op::entry("all_reduce").unwrap().samples)().remove(0);
    let spread = spreads(&sample.graph, &"data=2".parse().unwrap()).remove(0);
    let error = partition(&sample.graph, &spread, &[]).unwrap_err().to_string();
    assert!(error.contains("all_reduce"), "{error}");
}
