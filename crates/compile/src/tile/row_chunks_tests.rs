//! Tests of row chunks: which products are computed in chunks, and that the chunks compute the same.
use super::row_chunks::{ChunkSizes, segments};
use super::tests::{arguments, blocks_of, by_blocks, near};
use super::*;
use crate::pipeline::COMPILER;
use crate::{optimize, schedule};
use systole_ir::DType::*;
use systole_ir::op::Direction;
use systole_ir::{GraphBuilder, Tensor, TensorType, grad, interp};

const SMALL: ChunkSizes = ChunkSizes { large: 1 << 10, chunk: 1 << 9, min_rows: 4 };

/// The last layer of a language model, `[2, tokens / 2, features]` to `[2, tokens / 2, vocabulary]`, its loss and gradients,
/// and what `more` returns of the logits and the labels.
fn head(
    [tokens, features, vocabulary]: [usize; 3],
    dtype: DType,
    loss: impl Fn(&Tensor) -> Tensor,
    more: impl Fn(&Tensor, &Tensor) -> Vec<Tensor>,
) -> Graph {
    let g = GraphBuilder::new("head");
    let x = g.parameter(TensorType::new(dtype, [2, tokens / 2, features]), "x");
    let labels = g.parameter(TensorType::new(I32, [2, tokens / 2]), "labels");
    let w = g.parameter(TensorType::new(dtype, [vocabulary, features]), "w");
    let logits = x.tanh().dot(&w.transpose(&[1, 0]));
    let each = -(logits.convert(F32).log_softmax() * labels.one_hot(vocabulary, F32)).sum(&[2]);
    let loss = loss(&each);
    let mut results = vec![loss.clone()];
    results.extend(grad(&loss, &[&x, &w]));
    results.extend(more(&logits, &labels));
    optimize(&g.finish(&results).unwrap()).unwrap().0
}

fn mean(each: &Tensor) -> Tensor {
    each.mean(&[0, 1])
}

fn correct(logits: &Tensor, labels: &Tensor) -> Vec<Tensor> {
    vec![logits.argmax(2).compare(labels, Direction::Eq).convert(F32).mean(&[0, 1])]
}

fn chunks(graph: &Graph) -> Vec<ProfitableSegment<'_>> {
    segments(graph, SMALL, &PipelineOptions::default(), &COMPILER).unwrap()
}

#[test]
fn the_chunks_of_a_head_compute_loss_gradients_and_metrics() {
    for (dtype, tokens) in [(F32, 24), (F32, 22), (BF16, 24)] {
        let graph = head([tokens, 4, 40], dtype, mean, correct);
        let all = chunks(&graph);
        let [only] = &all[..] else { panic!("{} segments of {graph:?}", all.len()) };
        let (region, blocks) = (&only.region, &only.blocks);
        assert_eq!((region.rows, blocks.rows, blocks.groups), (tokens, tokens, 1));
        assert!(blocks.block < tokens && blocks.block >= SMALL.min_rows, "{}", blocks.block);
        let wide = |v: &ValueId| graph.ty(*v).elements() >= tokens * 40;
        assert!(!region.outs.iter().any(wide) && !region.inputs.iter().any(|(v, _)| wide(v)), "{graph:?}");
        // The gradient of the weights is a sum over the chunks; it is [40, 4], or its transpose.
        assert!(region.sums.iter().any(|v| graph.ty(*v).elements() == 160), "{graph:?}");
        let whole = region.whole();
        let args = arguments(&whole);
        let want = interp::run(&whole, &args.iter().collect::<Vec<_>>()).unwrap();
        for (got, want) in by_blocks(region, &args, blocks.block).iter().zip(&want) {
            // In bf16, the graph rounds the sums of all rows once, and the chunks add unrounded terms.
            assert!(dtype == BF16 || near(got, want), "{got:?}\n{want:?}");
        }
        let outlined = SegmentOutliner::new(&graph, chunks(&graph), &HashMap::new()).run();
        outlined.graph.verify().unwrap();
        let args = arguments(&graph);
        let refs: Vec<&Literal> = args.iter().collect();
        let (want, got) = (interp::run(&graph, &refs).unwrap(), interp::run(&outlined.graph, &refs).unwrap());
        assert!(want.iter().zip(&got).all(|(w, g)| near(g, w)));
    }
}

#[test]
fn a_product_whose_result_is_needed_whole_is_not_cut() {
    let none = |graph: Graph| assert!(chunks(&graph).is_empty(), "{graph:?}");
    none(head([24, 4, 40], F32, mean, |logits, _| vec![logits.clone()]));
    // Reversed along the tokens, the result is read in another order.
    none(head([24, 4, 40], F32, mean, |logits, _| vec![logits.reverse(&[1]).sum(&[2])]));
    // The gradient needs the mean of all losses, and so the logits of all rows after it.
    none(head([24, 4, 40], F32, |each| mean(each) * mean(each), |_, _| Vec::new()));
    // Fewer than four times as many columns as the left operand.
    none(head([64, 4, 16], F32, mean, |_, _| Vec::new()));
    none(head([6, 4, 400], F32, mean, |_, _| Vec::new()));
    // An outer product.
    none(head([24, 1, 160], F32, mean, |_, _| Vec::new()));
}

#[test]
fn a_step_with_a_large_vocabulary_does_not_store_its_logits() {
    let (tokens, features, vocabulary) = (2000, 32, 50257);
    let graph = head([tokens, features, vocabulary], F32, mean, correct);
    let plan = |blocks| schedule(&graph, &PipelineOptions { blocks, ..PipelineOptions::default() }).unwrap();
    let whole = plan(RowBlocksMode::Off);
    assert!(whole.arena_bytes >= tokens * vocabulary * 4, "{whole}");
    let cut = plan(RowBlocksMode::Cache(1 << 20));
    let [blocks] = blocks_of(&cut)[..] else { panic!("{cut}") };
    assert_eq!((blocks.block, blocks.groups), (667, 1));
    assert!(cut.arena_bytes < 16 << 20, "{cut}");
    assert!(blocks.body.arena_bytes < 2 * 668 * vocabulary * 4, "{}", blocks.body);
    // The gradient of the weights is added to in place.
    let at = blocks.sums.iter().position(|ty| ty.elements() == features * vocabulary).unwrap();
    assert_eq!(blocks.body.results[at].reuse, Some(at), "{}", blocks.body);
}

#[test]
fn a_product_with_small_weights_is_left_to_row_blocks() {
    let graph = head([2000, 4, 50257], F32, mean, correct);
    let options = PipelineOptions { blocks: RowBlocksMode::Cache(1 << 20), ..PipelineOptions::default() };
    assert!(segments(&graph, super::row_chunks::SIZES, &options, &COMPILER).unwrap().is_empty());
}
