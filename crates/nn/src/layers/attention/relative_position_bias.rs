//! RelativePositionBias layer: T5's learned bias of attention scores by the distance of two positions.

use crate::layers::built_in::*;
use crate::layers::sample::*;
use crate::layers::spec::LayerSpec;
use crate::setters::{arguments, setters};
use systole_ir::Literal;

arguments! {
    /// `x: T[B, S, D] → T[B, num_heads, S, S]`: a bias of attention scores that depends on the distance of two positions,
    /// independent of x's values.
    ///
    /// Half of the buckets is for later positions. Half of each side has one bucket per distance; the others grow
    /// logarithmically up to `max_distance`. Pass the output as the last input of
    /// [`MultiHeadAttention`](crate::layers::MultiHeadAttention) with `use_attention_bias`. Weight: `embeddings:
    /// f32[num_buckets, num_heads]`. Source: Raffel et al. 2019.
    pub struct RelativePositionBias {
        /// Number of attention heads. Required.
        pub num_heads: usize = 0,
        /// Number of distance buckets, a multiple of 4. Default: 32.
        pub num_buckets: usize = 32,
        /// Distance from which on all positions are in one bucket. Default: 128.
        pub max_distance: usize = 128,
        /// Initializer of the table. Default: `random_normal` with mean 0.0, stddev 0.02.
        pub embeddings_initializer: Initializer = Initializer::RandomNormal { mean: 0.0, stddev: 0.02 },
    }
}

impl Arguments for RelativePositionBias {
    fn check(&self) -> Result<()> {
        let class = "RelativePositionBias";
        if self.num_heads == 0 {
            return Err(wrong(class, "num_heads of at least 1", self.num_heads));
        }
        if self.num_buckets == 0 || !self.num_buckets.is_multiple_of(4) {
            return Err(wrong(class, "num_buckets that are a multiple of 4", self.num_buckets));
        }
        if self.max_distance <= self.num_buckets / 4 {
            return Err(wrong(class, "a max_distance above a quarter of num_buckets", self.max_distance));
        }
        Ok(())
    }
}

impl RelativePositionBias {
    /// Bucket of a key's position minus the query's, in f32 as in transformers.
    fn bucket(&self, distance: i64) -> i32 {
        let side = self.num_buckets / 2;
        let (exact, n) = (side / 2, distance.unsigned_abs() as usize);
        let within = if n < exact {
            n
        } else {
            let far = (n as f32 / exact as f32).ln() / ((self.max_distance as f32 / exact as f32).ln());
            (exact + (far * (side - exact) as f32) as usize).min(side - 1)
        };
        (within + if distance > 0 { side } else { 0 }) as i32
    }
}

impl Layer for RelativePositionBias {
    named!("RelativePositionBias");

    fn call(&self, cx: &mut Cx, inputs: &[Tensor]) -> Tensor {
        one_input(self, cx, inputs, |cx, x| {
            if x.rank() != 3 {
                return Err(unfit("RelativePositionBias", "sequences of features [B, S, D]", x.ty())
                    .hint("put reshape([steps, features]) before the layer"));
            }
            let (batch, steps) = (x.dim(0), x.dim(1));
            let shape = [self.num_buckets, self.num_heads];
            let table =
                weight(cx, "RelativePositionBias", "embeddings", &shape, &self.embeddings_initializer)?;
            let positions = || 0..steps as i64;
            let buckets: Vec<i32> =
                positions().flat_map(|q| positions().map(move |k| self.bucket(k - q))).collect();
            let buckets = x.builder().constant(Literal::from_slice([steps, steps], &buckets)?);
            let bias = table.take(&buckets).transpose(&[2, 0, 1]);
            Ok(bias.broadcast_in_dim(&Shape::new([batch, self.num_heads, steps, steps]), &[1, 2, 3]))
        })
    }

    fn adapters(&self) -> Result<()> {
        Err(no_adapters(self.class_name()))
    }

    weights!("embeddings" => "weight");
}

/// `x: T[B, S, D] → T[B, num_heads, S, S]`: a learned bias of attention scores by distance. Arguments:
/// [`RelativePositionBias`].
///
/// ```
/// use systole_nn::{input, layers::*, Model};
/// let x = input("x", [16, 32]);
/// let bias = x.apply(relative_position_bias(4));
/// let y = multi_head_attention(4, 8).use_attention_bias(true).on(&[&x, &bias]);
/// assert!(Model::functional(&[x], &y)?.summary().contains("(None, 16, 32)"));
/// # Ok::<(), systole_ir::Error>(())
/// ```
#[track_caller]
pub fn relative_position_bias(num_heads: usize) -> LayerSpec {
    LayerSpec::of(RelativePositionBias { num_heads, ..Default::default() })
}

setters!(LayerSpec:
    /// Number of RelativePositionBias's distance buckets.
    num_buckets: usize as usize;
    /// Distance from which on all positions are in one bucket of RelativePositionBias.
    max_distance: usize as usize;
);

/// Test samples: layers with valid and invalid inputs.
pub(in crate::layers) fn samples() -> Vec<LayerSample> {
    vec![LayerSample::new(
        relative_position_bias(3).num_buckets(8).max_distance(5),
        SEQUENCE,
        &[2, 3, 7, 7],
        &["embeddings"],
        FLAT,
    )]
}

/// Not in Keras.
pub(in crate::layers) const PARITY: &str = "[]";

#[cfg(test)]
mod tests {
    use super::*;

    /// Values of transformers' `T5Attention._relative_position_bucket`.
    #[test]
    fn buckets_are_exact_near_and_logarithmic_far_away() {
        let bias = RelativePositionBias { num_heads: 1, ..Default::default() };
        let distances = [0, 1, -1, 7, -8, 11, -12, 16, 23, 64, 91, 127, -128, 5000];
        let found = distances.map(|d| bias.bucket(d));
        assert_eq!(found, [0, 17, 1, 23, 8, 24, 9, 26, 27, 30, 31, 31, 15, 31]);
    }
}
