//! Tests programs with row blocks: close to the interpreter and to the same program without blocks.
//!
//! Results must be bit-identical for any number of threads.

mod common;

use common::net::{Net, train_step};
use common::*;
use std::sync::Arc;
use systole_cpu::RowBlocksMode;
use systole_ir::DType::*;
use systole_ir::op::{ArgDomain, Convolution};
use systole_ir::rng::RandomStream;
use systole_ir::{DType, Graph, GraphBuilder, Literal, Tensor, TensorType, grad};
use systole_runtime::{Backend, CompileOptions};

fn draw(graph: &Graph) -> Vec<Literal> {
    let domain = |t: &TensorType| match t.dtype {
        I32 => ArgDomain::Uniform(0.0, 9.0),
        _ if t.rank() == 0 => ArgDomain::Uniform(0.0, 0.2),
        _ => ArgDomain::Uniform(-0.5, 0.5),
    };
    let one = |(i, t): (usize, &TensorType)| domain(t).draw(t, &mut RandomStream::new(8, 2, i as u64));
    graph.param_types().iter().enumerate().map(one).collect()
}

/// Whether the listing shows row blocks.
fn is_blocked(graph: &Arc<Graph>, blocks: RowBlocksMode) -> bool {
    let exe = backend(systole_cpu::Level::Portable, 1).with_blocks(blocks);
    exe.compile(graph, &CompileOptions::default()).unwrap().listing().contains("blocks[")
}

/// Checks the graph with blocks of `rows` rows.
fn check(graph: &Arc<Graph>, rows: usize, tolerance: f64) {
    let blocks = RowBlocksMode::Rows(rows);
    assert!(is_blocked(graph, blocks) && !is_blocked(graph, RowBlocksMode::Off), "{}", graph.name);
    let args = draw(graph);
    let want = oracle(graph, &args);
    for level in levels() {
        let plain = run(&backend(level, 2).with_blocks(RowBlocksMode::Off), graph, &args);
        let first = run(&backend(level, 1).with_blocks(blocks), graph, &args);
        for (k, got) in first.iter().enumerate() {
            let (d, e) = (relative(got, &want[k]), relative(got, &plain[k]));
            assert!(
                d <= tolerance && e <= 2.0 * tolerance,
                "{} result {k} on {level:?}: {d:e} {e:e}",
                graph.name
            );
        }
        for threads in [2, 3, 4, 8] {
            let again = run(&backend(level, threads).with_blocks(blocks), graph, &args);
            assert!(first == again, "{} on {level:?} depends on threads", graph.name);
        }
    }
}

#[test]
fn conv_net() {
    for (batch, rows, filters) in [(2, 1, 16), (7, 2, 32), (13, 5, 24), (61, 8, 16)] {
        let graph =
            train_step(&Net { batch, side: 14, channels: 1, filters, kernel: 3, classes: 10, same: false });
        check(&graph, rows, 1e-5);
    }
}

/// conv → batch statistics → normalize → relu, twice, then a dense layer; loss and gradients.
fn normalised_net(batch: usize, dtype: DType) -> Arc<Graph> {
    let g = GraphBuilder::new("normalised");
    let x = g.parameter(TensorType::new(F32, [batch, 9, 9, 3]), "x").convert(dtype);
    let mut params = Vec::new();
    let mut h = x;
    for (l, (from, to)) in [(3, 12), (12, 12)].into_iter().enumerate() {
        let ty = TensorType::new(dtype, [3, 3, from, to]);
        let k = g.parameter(TensorType::new(F32, ty.shape.dims()), &format!("k{l}"));
        let conv = Convolution::same(h.ty(), &ty, &[1, 1], &[1, 1], 1);
        h = h.convolution(&k.convert(dtype), conv);
        let wide = h.convert(F32);
        let over = |t: &Tensor| t.broadcast_in_dim(wide.shape(), &[3]);
        let mean = wide.mean(&[0, 1, 2]);
        let centred = &wide - &over(&mean);
        let variance = (&centred * &centred).mean(&[0, 1, 2]);
        h = (&centred * &over(&(variance + 1e-3).rsqrt())).relu().convert(dtype);
        params.push(k);
    }
    let w = g.parameter(TensorType::new(F32, [9 * 9 * 12, 10]), "w");
    let logits = h.reshape([batch, 9 * 9 * 12]).dot(&w.convert(dtype)).convert(F32);
    let labels = g.parameter(TensorType::new(I32, [batch]), "labels");
    let loss = -(logits.log_softmax() * labels.one_hot(10, F32)).sum(&[1]).mean(&[0]);
    params.push(w);
    let grads = grad(&loss, &params.iter().collect::<Vec<_>>());
    g.finish(&[&[loss][..], &grads].concat()).unwrap()
}

#[test]
fn net_with_batch_statistics() {
    for batch in [7, 29] {
        let graph = normalised_net(batch, F32);
        check(&graph, 3, 3e-5);
    }
}

#[test]
fn narrow_floats_are_summed_in_f32() {
    let graph = normalised_net(29, BF16);
    check(&graph, 4, 3e-2);
}

#[test]
fn attention() {
    let (b, h, t, d) = (2, 6, 24, 16);
    let g = GraphBuilder::new("attention");
    let ty = TensorType::new(F32, [b, t, h, d]);
    let params: Vec<Tensor> = ["q", "k", "v"].iter().map(|n| g.parameter(ty.clone(), n)).collect();
    let heads: Vec<Tensor> = params.iter().map(|x| x.transpose(&[0, 2, 1, 3])).collect();
    let scores = heads[0].dot_general(&heads[1], &[0, 1], &[0, 1], &[3], &[3]) * 0.25;
    let mixed = scores.softmax().dot_general(&heads[2], &[0, 1], &[0, 1], &[3], &[2]);
    let loss = (&mixed * &mixed).sum_all();
    let grads = grad(&loss, &params.iter().collect::<Vec<_>>());
    let graph = g.finish(&[&[loss][..], &grads].concat()).unwrap();
    check(&graph, 5, 1e-5);
}

#[test]
fn chains_of_rows_of_any_number() {
    for rows in [17, 127, 1000] {
        let g = GraphBuilder::new("rows");
        let x = g.parameter(TensorType::new(F32, [rows, 300]), "x");
        let w = g.parameter(TensorType::new(F32, [300, 40]), "w");
        let h = x.softmax().dot(&w).tanh();
        let y = h.dot_general(&w, &[], &[], &[1], &[1]);
        let results = [y.reduce_max(&[1]), x.dot_general(&h, &[], &[], &[0], &[0]), y.sum(&[0])];
        check(&g.finish(&results).unwrap(), 16, 1e-5);
    }
}

/// The last layer of a language model: loss and gradients of a product whose result is too large to be stored whole.
#[test]
fn logits_of_a_large_vocabulary() {
    let (features, vocabulary) = (32, 65_537);
    for (dtype, tokens, blocks) in [(F32, 1030, "blocks[3×344]"), (BF16, 2060, "blocks[3×687]")] {
        let g = GraphBuilder::new("head");
        let x = g.parameter(TensorType::new(F32, [tokens, features]), "x");
        let labels = g.parameter(TensorType::new(I32, [tokens]), "labels");
        let w = g.parameter(TensorType::new(F32, [vocabulary, features]), "w");
        let logits = x.convert(dtype).dot(&w.convert(dtype).transpose(&[1, 0])).convert(F32);
        let loss = -(logits.log_softmax() * labels.one_hot(vocabulary, F32)).sum(&[1]).mean(&[0]);
        let graph = g.finish(&[&[loss.clone()][..], &grad(&loss, &[&x, &w])].concat()).unwrap();
        let args = draw(&graph);
        let options = CompileOptions { excess_precision: true, ..CompileOptions::default() };
        let compiled = |blocks, threads| {
            let backend = backend(systole_cpu::Level::best(), threads).with_blocks(blocks);
            let exe = backend.compile(&graph, &options).unwrap();
            (exe.report().arena_bytes, exe.listing(), run_with(&backend, &graph, &args, &options))
        };
        let (whole, _, want) = compiled(RowBlocksMode::Off, 2);
        let (less, listing, first) = compiled(RowBlocksMode::Cache(1 << 20), 1);
        assert!(listing.contains(blocks), "{listing}");
        assert!(less + tokens * vocabulary < whole, "{less} of {whole} bytes");
        for (got, want) in first.iter().zip(&want) {
            let tolerance = if dtype == F32 { 1e-5 } else { 1e-2 };
            assert!(relative(got, want) <= tolerance, "{}", relative(got, want));
        }
        for threads in [2, 3] {
            assert!(
                compiled(RowBlocksMode::Cache(1 << 20), threads).2 == first,
                "{dtype} depends on threads"
            );
        }
    }
}
