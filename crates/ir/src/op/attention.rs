//! Multi-head attention as one node (fused attention, forward and backward).
//!
//! The node is a branch that always runs ([`control_builders::outlined`]): plain StableHLO that the interpreter can
//! evaluate. Its derivative recomputes the scores instead of storing them. Backends with a fused kernel recognize the
//! node with [`AttentionMatch::of`], which rebuilds the branch and compares. Any code that emits the same ops gets the
//! same kernel.

use super::{Op, RngAlgorithm, RngBitGenerator, control_builders};
use crate::{Graph, GraphBuilder, Tensor, ValueId, vjp};
use std::sync::Arc;
use systole_base::{DType, Scalar, TensorType};

/// Score of masked positions: their weight becomes 0.
pub const HIDDEN: f64 = -1e9;

/// Scaled dot-product attention, `softmax(scale · q · kᵀ) · v`, with optional causal mask and dropout.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct AttentionConfig {
    /// Scale of the scores, usually `1 / √key_dim`.
    pub scale: f64,
    /// Whether each position attends only to itself and earlier positions (causal mask).
    pub causal: bool,
    /// Dropout of attention weights.
    pub dropout: Option<AttentionDropout>,
}

/// Dropout of attention weights: a weight is dropped if its random bits are below `threshold`, otherwise multiplied by
/// `factor`.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct AttentionDropout {
    /// Dropout rate times 2³².
    pub threshold: u32,
    /// Scale of the kept weights.
    pub factor: f64,
}

impl AttentionDropout {
    /// Creates dropout with a rate from 0 to 1; preserves the expected value.
    pub fn rate(rate: f64) -> AttentionDropout {
        let threshold = (rate * 2f64.powi(32)).round() as u32;
        AttentionDropout { threshold, factor: if rate < 1.0 { 1.0 / (1.0 - rate) } else { 0.0 } }
    }
}

impl AttentionConfig {
    /// `q: T[B, S, N, K], k: T[B, S', N, K], v: T[B, S', N, V], random: u64[2] → T[B, S, N, V]`: attention of N heads
    /// from S query positions to S' key positions, as one node. `random` is the generator state for dropout.
    ///
    /// Softmax is computed in f32. Source: Vaswani et al. 2017.
    ///
    /// ```
    /// use systole_ir::{attention::AttentionConfig, interp, DType::F32, GraphBuilder, Literal, TensorType};
    /// let g = GraphBuilder::new("main");
    /// let x = g.parameter(TensorType::new(F32, [1, 2, 1, 1]), "x");
    /// let attention = AttentionConfig { scale: 1.0, causal: true, dropout: None };
    /// let y = attention.of(&x, &x, &x, None);
    /// let graph = g.finish(&[y]).unwrap();
    /// let x = Literal::from_slice([1, 2, 1, 1], &[3f32, 3.]).unwrap();
    /// assert_eq!(interp::run(&graph, &[&x]).unwrap()[0].to_f32s(), [3.0, 3.0]);
    /// ```
    #[track_caller]
    pub fn of(&self, q: &Tensor, k: &Tensor, v: &Tensor, random: Option<&Tensor>) -> Tensor {
        control_builders::outlined(q, || vec![self.expand(q, k, v, random)]).remove(0)
    }

    /// The ops inside [`AttentionConfig::of`].
    fn expand(&self, q: &Tensor, k: &Tensor, v: &Tensor, random: Option<&Tensor>) -> Tensor {
        let scores = (q * self.scale).dot_general(k, &[0, 2], &[0, 2], &[3], &[3]);
        // In f32: f16 and bf16 are too coarse for sums of many exponentials.
        let mut wide = scores.convert(DType::F32);
        if self.causal {
            let place = |dim| wide.builder().iota(wide.ty().with_dtype(DType::I32), dim);
            let hidden = wide.builder().full(wide.ty(), HIDDEN);
            wide = place(2).greater_equal(&place(3)).select(&wide, &hidden);
        }
        let mut weights = wide.softmax().convert(q.dtype());
        if let (Some(dropped), Some(random)) = (self.dropout, random) {
            let ty = weights.ty().with_dtype(DType::U32);
            let generator = RngBitGenerator { algorithm: RngAlgorithm::Philox, ty };
            let bits = weights.builder().emit(generator, &[random]).remove(1);
            let kept = bits.greater_equal(&bits.scalar_like(dropped.threshold.into()));
            weights = kept.select(&(&weights * dropped.factor), &weights.zeros_like());
        }
        weights.dot_general(v, &[0, 1], &[0, 2], &[3], &[1]).transpose(&[0, 2, 1, 3])
    }
}

/// Operand of attention whose gradient is computed: query, key or value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AttentionOperand {
    /// Gradient of the queries.
    Queries,
    /// Gradient of the keys.
    Keys,
    /// Gradient of the values.
    Values,
}

/// Attention, or its derivative, recognized in a branch. Operands are parameter indices of the branch.
#[derive(Clone, PartialEq, Debug)]
pub struct AttentionMatch {
    /// Scale, mask and dropout.
    pub attention: AttentionConfig,
    /// Queries.
    pub q: usize,
    /// Keys.
    pub k: usize,
    /// Values.
    pub v: usize,
    /// State of the random generator.
    pub random: Option<usize>,
    /// For the derivative: the cotangent of the output, and the operand that each result is the gradient of.
    pub gradient: Option<(usize, Vec<AttentionOperand>)>,
}

impl AttentionMatch {
    /// Recognizes a graph that consists of attention or its derivative.
    pub fn of(graph: &Graph) -> Option<AttentionMatch> {
        let clues = AttentionMatcher(graph);
        let mut found = clues.forward()?;
        if graph.params.len() == clues.operands(&found).len() {
            return (*found.build(graph)? == *graph).then_some(found);
        }
        // The two remaining parameters are the values and the cotangent.
        let left: Vec<usize> =
            (0..graph.params.len()).filter(|p| !clues.operands(&found)[..2].contains(p)).collect();
        let left: Vec<usize> = left.into_iter().filter(|p| Some(*p) != found.random).collect();
        let &[a, b] = &left[..] else { return None };
        [(a, b), (b, a)].into_iter().find_map(|(v, dy)| {
            found.v = v;
            found.gradient =
                Some((dy, vec![AttentionOperand::Queries, AttentionOperand::Keys, AttentionOperand::Values]));
            let like = found.build(graph)?;
            found.order_of_results(&like, graph)
        })
    }

    /// Rebuilds the branch with the parameters of `graph`.
    fn build(&self, graph: &Graph) -> Option<Arc<Graph>> {
        let g = GraphBuilder::new(&graph.name);
        let types = graph.param_types();
        let x: Vec<Tensor> = types.iter().map(|t| g.parameter(t.clone(), "x")).collect();
        let (q, k, v) = (&x[self.q], &x[self.k], &x[self.v]);
        let y = self.attention.expand(q, k, v, self.random.map(|r| &x[r]));
        let results = match self.gradient {
            None => vec![y],
            Some((dy, _)) if x[dy].ty() == y.ty() => vjp(&[&y], &[&x[dy]], &[q, k, v]),
            _ => return None,
        };
        g.finish(&results).ok()
    }

    /// Matches this derivative if `graph` computes the same results as `like` in any order. Each gradient may occur
    /// only once: kernels write one array per gradient.
    fn order_of_results(&self, like: &Graph, graph: &Graph) -> Option<AttentionMatch> {
        let all = [AttentionOperand::Queries, AttentionOperand::Keys, AttentionOperand::Values];
        let place = |r: &ValueId| like.results.iter().position(|l| l == r).map(|i| all[i]);
        let wanted: Option<Vec<AttentionOperand>> = graph.results.iter().map(place).collect();
        let twice = (1..graph.results.len()).any(|i| graph.results[..i].contains(&graph.results[i]));
        if twice {
            return None;
        }
        let (dy, _) = self.gradient.as_ref()?;
        let found = AttentionMatch { gradient: Some((*dy, wanted?)), ..self.clone() };
        (Graph { results: graph.results.clone(), ..like.clone() } == *graph).then_some(found)
    }
}

/// Extracts candidate attributes of an attention from the nodes of a branch; [`AttentionMatch::of`] verifies them.
struct AttentionMatcher<'g>(&'g Graph);

impl AttentionMatcher<'_> {
    fn forward(&self) -> Option<AttentionMatch> {
        let of = |name: &str| self.0.nodes.iter().find(|n| n.op.name() == name);
        let scaled = of("multiply")?;
        let mut products = self.0.nodes.iter().filter(|n| matches!(n.op, Op::DotGeneral(_)));
        let (scores, gathered) = (products.next()?, products.next()?);
        let random = match of("rng_bit_generator") {
            Some(n) => Some(self.param(n.inputs[0])?),
            None => None,
        };
        let attention = AttentionConfig {
            scale: self.splat(scaled.inputs[1])?,
            causal: of("iota").is_some(),
            dropout: if random.is_some() { Some(self.dropped()?) } else { None },
        };
        let (q, k) = (self.param(scaled.inputs[0])?, self.param(scores.inputs[1])?);
        let v = self.param(gathered.inputs[1])?;
        Some(AttentionMatch { attention, q, k, v, random, gradient: None })
    }

    /// Parameters that the forward pass reads.
    fn operands(&self, r: &AttentionMatch) -> Vec<usize> {
        [r.q, r.k, r.v].into_iter().chain(r.random).collect()
    }

    /// Finds the dropout: the selection by random bits.
    fn dropped(&self) -> Option<AttentionDropout> {
        let node = |v: ValueId| self.0.node(v);
        self.0.nodes.iter().filter(|n| matches!(n.op, Op::Select(_))).find_map(|n| {
            let (compare, product) = (node(n.inputs[0]), node(n.inputs[1]));
            let bits = *compare.inputs.first()?;
            if self.0.ty(bits).dtype != DType::U32 {
                return None;
            }
            let threshold = self.splat(*compare.inputs.get(1)?)? as u32;
            Some(AttentionDropout { threshold, factor: self.splat(*product.inputs.get(1)?)? })
        })
    }

    fn param(&self, v: ValueId) -> Option<usize> {
        self.0.params.iter().position(|&p| p == v)
    }

    /// The number that all elements of a value equal.
    fn splat(&self, v: ValueId) -> Option<f64> {
        match &self.0.node(v).op {
            Op::BroadcastInDim(_) => self.splat(self.0.node(v).inputs[0]),
            Op::Constant(c) if *c.value.ty() == TensorType::scalar(c.value.dtype()) => match c.value.get(0) {
                Scalar::Bool(_) => None,
                x => Some(x.as_f64()),
            },
            _ => None,
        }
    }
}

// Names of the previous version.
systole_base::renamed! { Attention => AttentionConfig, Dropped => AttentionDropout, Wanted => AttentionOperand }

#[cfg(test)]
mod tests {
    use super::*;

    fn branches(attention: AttentionConfig, dtype: DType) -> Vec<Arc<Graph>> {
        let g = GraphBuilder::new("main");
        let array = |places: usize, width: usize| TensorType::new(dtype, [2, places, 3, width]);
        let q = g.parameter(array(5, 4), "q");
        let k = g.parameter(array(7, 4), "k");
        let v = g.parameter(array(7, 6), "v");
        let random = g.parameter(TensorType::new(DType::U64, [2]), "random");
        let y = attention.of(&q, &k, &v, attention.dropout.map(|_| &random));
        let dy = g.parameter(y.ty().clone(), "dy");
        let grads = vjp(&[&y], &[&dy], &[&v, &q, &k]);
        let graph = g.finish(&[&[y], &grads[..]].concat()).unwrap();
        let cases = graph.nodes.iter().filter_map(|n| match &n.op {
            Op::Case(c) => c.branches.first().cloned(),
            _ => None,
        });
        cases.collect()
    }

    #[test]
    fn a_gradient_that_is_asked_for_twice_is_no_kernel() {
        let attention = AttentionConfig { scale: 0.375, causal: false, dropout: None };
        let mut twice = (*branches(attention, DType::F32)[1]).clone();
        assert!(AttentionMatch::of(&twice).is_some());
        twice.results.push(twice.results[0]);
        assert!(AttentionMatch::of(&twice).is_none());
    }

    #[test]
    fn attention_and_its_derivative_are_found_again() {
        for dtype in [DType::F32, DType::BF16, DType::F64] {
            for causal in [false, true] {
                for dropout in [None, Some(AttentionDropout::rate(0.1)), Some(AttentionDropout::rate(1.0))] {
                    let attention = AttentionConfig { scale: 0.375, causal, dropout };
                    let found: Vec<AttentionMatch> =
                        branches(attention, dtype).iter().map(|b| AttentionMatch::of(b).unwrap()).collect();
                    assert_eq!(found.len(), 2);
                    for r in &found {
                        assert_eq!((r.attention.scale, r.attention.causal), (0.375, causal));
                        assert_eq!(r.attention.dropout.map(|d| d.threshold), dropout.map(|d| d.threshold));
                        assert_eq!(r.random.is_some(), dropout.is_some());
                    }
                    assert!(found[0].gradient.is_none());
                    let (_, wanted) = found[1].gradient.clone().unwrap();
                    assert_eq!(wanted.len(), 3, "{wanted:?}");
                }
            }
        }
    }

    #[test]
    fn what_only_looks_like_attention_is_not() {
        let g = GraphBuilder::new("main");
        let ty = TensorType::new(DType::F32, [2, 5, 3, 4]);
        let x: Vec<Tensor> = (0..3).map(|_| g.parameter(ty.clone(), "x")).collect();
        let attention = AttentionConfig { scale: 0.5, causal: false, dropout: None };
        let y = attention.expand(&x[0], &x[1], &x[2], None);
        assert!(AttentionMatch::of(&g.finish(std::slice::from_ref(&y)).unwrap()).is_some());
        assert_eq!(AttentionMatch::of(&g.finish(&[y.abs()]).unwrap()), None);
        assert_eq!(AttentionMatch::of(&g.finish(&[&x[0] * 2.0]).unwrap()), None);
    }
}
