//! Tests of row blocks: segments in blocks equal the whole segment, and the cost model keeps those that gain.
use super::*;
use crate::pipeline::COMPILER;
use crate::{Kernel, PipelineOptions, ProgramSchedule, optimize, schedule};
use systole_ir::DType::*;
use systole_ir::op::{ArgDomain, Convolution, Monoid, Window};
use systole_ir::rng::RandomStream;
use systole_ir::{GraphBuilder, Tensor, TensorType, grad, interp};

/// One training step of the tutorial's net: convolution, max pooling, relu, dense layer, cross-entropy, SGD update.
fn conv_net(batch: usize, side: usize, filters: usize) -> Arc<Graph> {
    let g = GraphBuilder::new("conv_net");
    let x = g.parameter(TensorType::new(F32, [batch, side, side, 1]), "x");
    let labels = g.parameter(TensorType::new(I32, [batch]), "labels");
    let k = g.parameter(TensorType::new(F32, [3, 3, 1, filters]), "kernel");
    let kb = g.parameter(TensorType::new(F32, [filters]), "bias");
    let conv = Convolution::valid(x.ty(), &[1, 1], &[1, 1], 1);
    let h = x.convolution(&k, conv) + &kb;
    let pooled = Monoid::Maximum.over_windows(&h, Window::new(&[1, 2, 2, 1], &[1, 2, 2, 1], &[[0, 0]; 4]));
    let size = pooled.shape()[1..].iter().product::<usize>();
    let w = g.parameter(TensorType::new(F32, [size, 10]), "w");
    let logits = pooled.relu().reshape([batch, size]).dot(&w);
    let hot = labels.one_hot(10, F32);
    let loss = -(logits.log_softmax() * hot).sum(&[1]).mean(&[0]);
    let params = [&k, &kb, &w];
    let updated: Vec<Tensor> = grad(&loss, &params).iter().zip(params).map(|(d, p)| p - &(d * 0.1)).collect();
    g.finish(&[&[loss][..], &updated].concat()).unwrap()
}

pub(super) fn arguments(graph: &Graph) -> Vec<Literal> {
    let draw = |(i, t): (usize, &TensorType)| {
        ArgDomain::Uniform(-1.0, 1.0).draw(t, &mut RandomStream::new(3, 1, i as u64))
    };
    graph.param_types().iter().enumerate().map(draw).collect()
}

pub(super) fn near(a: &Literal, b: &Literal) -> bool {
    let (x, y) = (a.to_f64s(), b.to_f64s());
    let norm: f64 = y.iter().map(|v| v * v).sum();
    let diff: f64 = x.iter().zip(&y).map(|(x, y)| (x - y).powi(2)).sum();
    a.ty() == b.ty() && diff <= 1e-12 * norm.max(1e-30)
}

/// Runs a segment block by block in the interpreter: the reference for backends.
pub(super) fn by_blocks(region: &BlockSegment<'_>, args: &[Literal], block: usize) -> Vec<Literal> {
    let mut sums: Vec<Literal> = region.sums.iter().map(|&v| Literal::zeros(region.sum_type(v))).collect();
    let mut outs: Vec<Vec<u8>> = vec![Vec::new(); region.outs.len()];
    for first in (0..region.rows).step_by(block) {
        let n = block.min(region.rows - first);
        let mut all = sums.clone();
        for (arg, &(v, how)) in args.iter().zip(&region.inputs) {
            let each = arg.bytes().len() / region.rows;
            let ty = region.input_type((v, how), n);
            let part = match how {
                Use::Rows => &arg.bytes()[first * each..(first + n) * each],
                _ => arg.bytes(),
            };
            all.push(Literal::from_bytes(ty, part).unwrap());
        }
        let body = region.body(n);
        body.verify().unwrap();
        let mut results = interp::run(&body, &all.iter().collect::<Vec<_>>()).unwrap();
        let rest = results.split_off(sums.len());
        sums = results;
        outs.iter_mut().zip(&rest).for_each(|(all, part)| all.extend_from_slice(part.bytes()));
    }
    let outs = outs.iter().zip(&region.outs);
    sums.extend(outs.map(|(b, &v)| Literal::from_bytes(region.graph.ty(v).clone(), b).unwrap()));
    sums
}

/// Checks that every segment of a graph, whether or not it gains, computes the same in blocks as for all rows.
fn check_regions(graph: &Graph, rows: usize, block: usize) -> usize {
    let phases = SegmentPartition::new(graph, rows, &|_| false);
    let needed = phases.needed();
    let segments = phases.segments();
    let count = segments.len();
    for members in segments {
        let outs = members.iter().flat_map(|&m| needed[m].iter().copied()).collect();
        let region = BlockSegment::new(graph, rows, members, outs);
        let whole = region.whole();
        whole.verify().unwrap();
        let args = arguments(&whole);
        let want = interp::run(&whole, &args.iter().collect::<Vec<_>>()).unwrap();
        for (k, (got, want)) in by_blocks(&region, &args, block).iter().zip(&want).enumerate() {
            assert!(near(got, want), "{} result {k} of {:?}:\n{got:?}\n{want:?}", graph.name, region.members);
        }
    }
    count
}

#[test]
fn a_net_without_statistics_is_one_segment() {
    let graph = optimize(&conv_net(6, 7, 4)).unwrap().0;
    for block in [1, 2, 4, 5] {
        assert_eq!(check_regions(&graph, 6, block), 1);
    }
}

/// A graph of `build` over parameters of these types.
fn graph_of(types: &[TensorType], build: impl Fn(&[Tensor]) -> Vec<Tensor>) -> Graph {
    let g = GraphBuilder::new("main");
    let params: Vec<Tensor> =
        types.iter().enumerate().map(|(i, t)| g.parameter(t.clone(), &format!("x{i}"))).collect();
    let graph = g.finish(&build(&params)).unwrap();
    optimize(&graph).unwrap().0
}

#[test]
fn statistics_of_the_batch_end_a_segment() {
    let types = [TensorType::new(F32, [6, 4, 5]), TensorType::new(F32, [5, 5])];
    let graph = graph_of(&types, |p| {
        let h = p[0].dot(&p[1]);
        let mean = h.mean(&[0, 1]);
        let centred = &h - &mean.broadcast_in_dim(h.shape(), &[2]);
        let normal = &centred
            * &(&(&centred * &centred).mean(&[0, 1]) + 0.1).rsqrt().broadcast_in_dim(h.shape(), &[2]);
        let loss = normal.relu().dot(&p[1]).tanh().sum_all();
        let d = grad(&loss, &[&p[1]]).remove(0);
        vec![loss, d]
    });
    for block in [1, 4] {
        let count = check_regions(&graph, 6, block);
        assert!((3..=8).contains(&count), "{count}");
    }
    // 24 rows from two dimensions, 6 · 4.
    check_regions(&graph, 24, 7);
}

#[test]
fn attention_works_by_rows_of_batch_and_head() {
    let (b, h, t, d) = (2, 3, 5, 4);
    let ty = TensorType::new(F32, [b, t, h, d]);
    let graph = graph_of(&[ty.clone(), ty.clone(), ty], |p| {
        let heads: Vec<Tensor> = p.iter().map(|x| x.transpose(&[0, 2, 1, 3])).collect();
        let scores = heads[0].dot_general(&heads[1], &[0, 1], &[0, 1], &[3], &[3]) * 0.5;
        let mixed = scores.softmax().dot_general(&heads[2], &[0, 1], &[0, 1], &[3], &[2]);
        let loss = mixed.tanh().sum_all();
        grad(&loss, &p.iter().collect::<Vec<_>>())
    });
    for (rows, block) in [(2, 1), (6, 2), (6, 4)] {
        check_regions(&graph, rows, block);
    }
}

#[test]
fn moves_that_leave_the_rows_alone() {
    let types = [TensorType::new(F32, [2, 3, 4, 5]), TensorType::new(F32, [3, 4, 5])];
    let graph = graph_of(&types, |p| {
        let x = p[0].tanh();
        let wide = p[1].exp().broadcast_in_dim(x.shape(), &[1, 2, 3]);
        let turned = x.transpose(&[0, 1, 3, 2]);
        let cut = x.slice(&[0, 0, 1, 0], &[2, 3, 3, 5], &[1, 1, 1, 2]);
        let flat = (&x * &wide).reshape([6, 20]).tanh();
        let table = p[1].reshape([12, 5]);
        let rows = table.dot_general(&table, &[], &[], &[1], &[1]);
        vec![turned.tanh(), cut.tanh(), flat, rows, x.sum(&[3]), x.reduce_max(&[0, 1])]
    });
    for (rows, block) in [(2, 1), (6, 4), (24, 9)] {
        assert!(check_regions(&graph, rows, block) > 0);
    }
}

#[test]
fn every_sample_of_every_op_that_works_by_rows() {
    let mut seen = HashSet::new();
    for entry in systole_ir::op::TABLE {
        for sample in (entry.samples)() {
            let graph = &sample.graph;
            let args = sample.arguments(2);
            let sizes: HashSet<usize> = graph
                .nodes
                .iter()
                .flat_map(|n| &n.outs)
                .flat_map(|t| {
                    (1..=t.rank()).map(|p| t.shape[..p].iter().product::<usize>()).collect::<Vec<_>>()
                })
                .filter(|&n| (2..100).contains(&n))
                .collect();
            for rows in sizes {
                for node in 0..graph.nodes.len() {
                    let works = !graph.nodes[node].inputs.is_empty()
                        && !is_free(&graph.nodes[node].op)
                        && row_op(graph, &graph.nodes[node], rows, rows).is_some();
                    if works {
                        check_node(graph, node, rows, &args);
                        seen.insert(graph.nodes[node].op.name());
                    }
                }
            }
        }
    }
    for name in ["convolution", "dot_general", "reduce", "reduce_window"] {
        assert!(seen.contains(name), "{name} was not tested");
    }
}

/// Checks one node in blocks against the node for all rows.
fn check_node(graph: &Graph, node: usize, rows: usize, args: &[Literal]) {
    let outs = (0..graph.nodes[node].outs.len()).map(|k| ValueId::new(node, k)).collect();
    let region = BlockSegment::new(graph, rows, vec![node], outs);
    // The node's operands, from a run of the graph.
    let reads = Graph { results: region.inputs.iter().map(|i| i.0).collect(), ..graph.clone() };
    let mut values = interp::run(&reads, &args.iter().collect::<Vec<_>>()).unwrap();
    for (value, (_, how)) in values.iter_mut().zip(&region.inputs) {
        if *how == Use::Transposed {
            let op = Op::from(Transpose { permutation: [1, 0].into_iter().collect() });
            let outs = op.rule().infer(&[value.ty()]).unwrap();
            *value = op.rule().eval(&mut Default::default(), &[value], &outs).unwrap().remove(0);
        }
    }
    let want = interp::run(&region.whole(), &values.iter().collect::<Vec<_>>()).unwrap();
    for block in [1, 3] {
        for (got, want) in by_blocks(&region, &values, block.min(rows)).iter().zip(&want) {
            let close = got.ty() == want.ty()
                && got.to_f64s().iter().zip(want.to_f64s()).all(|(a, b)| {
                    *a == b
                        || (a.is_nan() && b.is_nan())
                        || (a - b).abs() <= 1e-2 * (a.abs().max(b.abs()) + 1.0)
                });
            assert!(close, "{:?} by {rows} rows:\n{got:?}\n{want:?}", graph.nodes[node].op);
        }
    }
}

pub(super) fn blocks_of(s: &ProgramSchedule) -> Vec<&RowBlockLoop> {
    let blocks = s.steps.iter().filter_map(|step| match &step.kernel {
        Kernel::Blocks(b) => Some(&**b),
        _ => None,
    });
    blocks.collect()
}

#[test]
fn a_large_batch_runs_by_blocks_and_adds_to_its_sums_in_place() {
    let graph = optimize(&conv_net(1000, 28, 64)).unwrap().0;
    let options = PipelineOptions { blocks: RowBlocksMode::Cache(1 << 20), ..PipelineOptions::default() };
    let plan = schedule(&graph, &options).unwrap();
    let blocks = blocks_of(&plan);
    assert_eq!(blocks.len(), 1, "{plan}");
    assert_eq!(blocks[0].rows, 1000);
    assert_eq!(blocks[0].sums.len(), 4);
    for body in std::iter::once(&blocks[0].body).chain(&blocks[0].rest) {
        assert!((0..4).all(|k| body.results[k].reuse == Some(k)), "{body}");
        let count = |is: fn(&Kernel) -> bool| body.steps.iter().filter(|s| is(&s.kernel)).count();
        assert_eq!(count(|k| matches!(k, Kernel::Accumulate { .. })), 1, "{body}");
        assert_eq!(count(|k| matches!(k, Kernel::UnpooledGradient(_))), 1, "{body}");
    }
    // No intermediate array of all samples is left.
    assert!(plan.arena_bytes < 1 << 20, "{plan}");
    assert!(blocks_of(&schedule(&graph, &PipelineOptions::default()).unwrap()).is_empty());
}

#[test]
fn batches_that_are_no_multiple_of_a_round_size_run_by_blocks_too() {
    let options = PipelineOptions { blocks: RowBlocksMode::Cache(1 << 20), ..PipelineOptions::default() };
    for batch in [500, 512, 516, 800] {
        let plan = schedule(&optimize(&conv_net(batch, 28, 64)).unwrap().0, &options).unwrap();
        let [blocks] = blocks_of(&plan)[..] else { panic!("batch {batch}: {:?}", plan.steps) };
        let count = batch.div_ceil(blocks.block);
        assert!(count >= 16 && count.is_multiple_of(blocks.groups), "batch {batch}: {count} blocks");
    }
}

#[test]
fn small_graphs_stay_as_they_are() {
    let graph = optimize(&conv_net(4, 8, 4)).unwrap().0;
    let plan = schedule(
        &graph,
        &PipelineOptions { blocks: RowBlocksMode::Cache(1 << 20), ..PipelineOptions::default() },
    )
    .unwrap();
    assert!(blocks_of(&plan).is_empty());
}

#[test]
fn an_outlined_graph_computes_the_same() {
    let graph = optimize(&conv_net(12, 12, 8)).unwrap().0;
    // All segments, whether or not they gain: this graph is too small for any to gain.
    let chosen = SegmentOutliner::new(&graph, choose_all(&graph, 12), &HashMap::new()).run();
    chosen.graph.verify().unwrap();
    assert!(chosen.graph.nodes.len() < graph.nodes.len());
    let args = arguments(&graph);
    let refs: Vec<&Literal> = args.iter().collect();
    let (want, got) = (interp::run(&graph, &refs).unwrap(), interp::run(&chosen.graph, &refs).unwrap());
    assert!(want.iter().zip(&got).all(|(w, g)| near(g, w)));
}

/// Every segment, whether or not it gains, with an empty block program.
fn choose_all(graph: &Graph, rows: usize) -> Vec<ProfitableSegment<'_>> {
    let phases = SegmentPartition::new(graph, rows, &|_| false);
    let needed = phases.needed();
    let segments = phases.segments().into_iter();
    let all = segments.map(|members| {
        let outs = members.iter().flat_map(|&m| needed[m].iter().copied()).collect();
        let region = BlockSegment::new(graph, rows, members, outs);
        let blocks = RowBlockLoop {
            body: Arc::default(),
            rest: None,
            rows,
            block: 1,
            groups: 1,
            sums: Vec::new(),
            inputs: Vec::new(),
            outputs: Vec::new(),
        };
        ProfitableSegment { region, blocks, gain: 1.0, cost: 0.0 }
    });
    all.collect()
}

/// Loss and gradients of a net of convolution, batch normalisation and relu, one such layer for each entry of
/// `filters`.
fn normalised_net(batch: usize, side: usize, filters: &[usize]) -> Arc<Graph> {
    let g = GraphBuilder::new("normalised");
    let mut h = g.parameter(TensorType::new(F32, [batch, side, side, 3]), "x");
    let mut params = Vec::new();
    for (l, &to) in filters.iter().enumerate() {
        let ty = TensorType::new(F32, [3, 3, h.shape()[3], to]);
        let k = g.parameter(ty.clone(), &format!("k{l}"));
        h = h.convolution(&k, Convolution::same(h.ty(), &ty, &[1, 1], &[1, 1], 1));
        let over = |t: &Tensor| t.broadcast_in_dim(h.shape(), &[3]);
        let mean = h.mean(&[0, 1, 2]);
        let centred = &h - &over(&mean);
        let variance = (&centred * &centred).mean(&[0, 1, 2]);
        h = (&centred * &over(&(variance + 1e-3).rsqrt())).relu();
        params.push(k);
    }
    let size = h.shape()[1..].iter().product::<usize>();
    let w = g.parameter(TensorType::new(F32, [size, 10]), "w");
    let logits = h.reshape([batch, size]).dot(&w);
    let labels = g.parameter(TensorType::new(I32, [batch]), "labels");
    let loss = -(logits.log_softmax() * labels.one_hot(10, F32)).sum(&[1]).mean(&[0]);
    params.push(w);
    let grads = grad(&loss, &params.iter().collect::<Vec<_>>());
    g.finish(&[&[loss][..], &grads].concat()).unwrap()
}

#[test]
fn segments_between_statistics_run_by_blocks_where_the_whole_program_then_moves_less() {
    let options = PipelineOptions { blocks: RowBlocksMode::Cache(1 << 20), ..PipelineOptions::default() };
    let nets = [
        (conv_net(1000, 28, 64), true),
        (normalised_net(128, 32, &[32, 32]), false),
        (normalised_net(128, 8, &[16; 3]), false),
    ];
    for (graph, pays) in nets {
        let graph = optimize(&graph).unwrap().0;
        let outlined = outline(&graph, &options, &COMPILER).unwrap();
        let costs = BlockingCostModel::new(&graph, graph.param_types()[0].shape[0], &options, &COMPILER);
        let moved = |g: &Graph, blocks: &HashMap<usize, RowBlockLoop>| {
            costs.traffic(&(COMPILER.estimate)(g, blocks, &PipelineOptions::default()).unwrap())
        };
        let (before, after) = (moved(&graph, &HashMap::new()), moved(&outlined.graph, &outlined.blocks));
        assert_eq!(outlined.blocks.is_empty(), !pays, "{before} {after}");
        assert_eq!(after < before, pays, "{before} {after}");
    }
}

#[test]
fn a_segment_that_only_moves_its_own_arrays_less_is_refused() {
    let graph = optimize(&normalised_net(128, 32, &[32, 32])).unwrap().0;
    let options = PipelineOptions { blocks: RowBlocksMode::Cache(1 << 20), ..PipelineOptions::default() };
    let costs = BlockingCostModel::new(&graph, 128, &options, &COMPILER);
    let plain = (COMPILER.estimate)(&graph, &HashMap::new(), &PipelineOptions::default()).unwrap();
    assert!(!costs.is_better(&plain, &plain, 0.0, 1e6), "nothing is gained");
    // Without blocks, batch statistics are fused into the convolutions.
    let whole = schedule(&graph, &options).unwrap();
    let gathers = whole.steps.iter().filter(|s| matches!(s.kernel, Kernel::Moments(_))).count();
    assert_eq!(gathers, 2, "{whole}");
}
