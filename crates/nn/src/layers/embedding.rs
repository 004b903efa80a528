//! Embedding: a learned vector for each of a set of integers.

use super::*;
use serde::Deserialize;

/// `x: I[B, …] → T[B, …, output_dim]`: row `x` of the table.
///
/// Numbers outside 0..input_dim read the nearest row. Weight: `embeddings: f32[input_dim, output_dim]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Embedding {
    /// How many integers there are: 0..input_dim. Required.
    pub input_dim: usize,
    /// Length of a vector. Required.
    pub output_dim: usize,
    /// How the table starts. Default: `uniform`, from −0.05 to 0.05.
    #[serde(deserialize_with = "argument::named")]
    pub embeddings_initializer: Initializer,
}

impl Default for Embedding {
    fn default() -> Embedding {
        Embedding {
            input_dim: 0,
            output_dim: 0,
            embeddings_initializer: Initializer::RandomUniform { minval: -0.05, maxval: 0.05 },
        }
    }
}

impl Arguments for Embedding {
    fn check(&self) -> Result<()> {
        if self.input_dim == 0 {
            return Err(wrong("Embedding", "input_dim of at least 1", self.input_dim));
        }
        if self.output_dim == 0 {
            return Err(wrong("Embedding", "output_dim of at least 1", self.output_dim));
        }
        Ok(())
    }
}

impl Layer for Embedding {
    fn class_name(&self) -> &'static str {
        "Embedding"
    }

    fn call(&self, cx: &mut Cx, inputs: &[Tensor]) -> Tensor {
        one_input(self, cx, inputs, |cx, x| {
            if !x.dtype().is_int() {
                return Err(unfit("Embedding", "integers [B, …]", x.ty())
                    .hint("cast the data to i32; declare the input with input_of(name, DType::I32, shape)"));
            }
            let shape = [self.input_dim, self.output_dim];
            sized("Embedding", "embeddings", &shape)?;
            let table = cx.variable("embeddings", &shape, &self.embeddings_initializer, true);
            // Rows are cast after the look-up: the table may be far larger than a batch.
            Ok(cast(cx, &table.take(x)))
        })
    }

    fn config(&self) -> Value {
        config_of(self)
    }
}
