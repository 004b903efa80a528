//! CategoryEncoding (one-hot, multi-hot, counts) and Discretization (binning) layers.

use crate::layers::built_in::*;
use crate::layers::sample::*;
use crate::layers::spec::LayerSpec;
use crate::setters::{arguments, constructors, setters};
use systole_ir::Literal;

/// Encoding of classes or bins by [`CategoryEncoding`] and [`Discretization`]: indices, one-hot, multi-hot or counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OutputMode {
    /// The index of the class or bin, `i32`.
    #[default]
    Int,
    /// A one-hot vector per value.
    OneHot,
    /// One vector per sample, 1 for each class that occurs.
    MultiHot,
    /// One vector per sample, with the number of occurrences of each class.
    Count,
}

arguments! {
    /// `x: I[B, …, N] → T[B, …, num_tokens]`: encodes the classes of a sample as a vector.
    ///
    /// With `output_mode` "one_hot" each class gets its own vector: `T[B, …, N, num_tokens]`, where a last dimension of
    /// 1 is squeezed. Values outside 0..num_tokens set nothing.
    pub struct CategoryEncoding {
        /// Number of classes. Required.
        pub num_tokens: usize = 0,
        /// Encoding of the classes. Default: "multi_hot".
        pub output_mode: OutputMode = OutputMode::MultiHot,
    }
}

impl Arguments for CategoryEncoding {
    fn check(&self) -> Result<()> {
        ensure!(self.num_tokens != 0, wrong("CategoryEncoding", "num_tokens of at least 1", 0));
        match self.output_mode {
            OutputMode::Int => Err(wrong("CategoryEncoding", "a vector output_mode", "\"int\"")
                .hint("use \"multi_hot\", \"one_hot\" or \"count\"")),
            _ => Ok(()),
        }
    }

    fn output(&self, cx: &mut Cx, x: &Tensor) -> Result<Tensor> {
        if x.rank() == 0 {
            return Err(
                unfit("CategoryEncoding", "a batch [B, …]", x.ty()).hint("feed batches: data.batch(32)")
            );
        }
        encoded("CategoryEncoding", cx, &x.convert(DType::I32), self.num_tokens, self.output_mode)
    }
}

impl Layer for CategoryEncoding {
    named!("CategoryEncoding", one_input);
}

/// `x: T[B, …] → i32[B, …]`: maps each number to the index of its bin; or to vectors, as in [`CategoryEncoding`].
///
/// Bin `i` is the interval [boundary `i − 1`, boundary `i`); the first and the last bin are unbounded.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Discretization {
    /// Bin boundaries in ascending order. Required.
    pub bin_boundaries: Vec<f64>,
    /// Encoding of the bins. Default: "int".
    pub output_mode: OutputMode,
}

impl Arguments for Discretization {
    fn check(&self) -> Result<()> {
        let ascends = self.bin_boundaries.windows(2).all(|w| w[0] < w[1]);
        if self.bin_boundaries.is_empty() || !ascends || self.bin_boundaries.iter().any(|b| b.is_nan()) {
            return Err(wrong(
                "Discretization",
                "bin_boundaries in ascending order",
                format!("{:?}", self.bin_boundaries),
            ));
        }
        Ok(())
    }

    fn output(&self, cx: &mut Cx, x: &Tensor) -> Result<Tensor> {
        if x.rank() == 0 {
            return Err(
                unfit("Discretization", "a batch [B, …]", x.ty()).hint("feed batches: data.batch(32)")
            );
        }
        let bounds: Vec<f32> = self.bin_boundaries.iter().map(|b| *b as f32).collect();
        let wide = Shape::new([x.shape().dims(), &[bounds.len()]].concat());
        let bounds = x.builder().constant(Literal::from_slice([bounds.len()], &bounds)?);
        let places: Vec<usize> = (0..x.rank()).collect();
        let x = x.convert(DType::F32).broadcast_in_dim(&wide, &places);
        let passed = x.greater_equal(&bounds.broadcast_in_dim(&wide, &[places.len()]));
        let bins = passed.convert(DType::I32).sum(&[places.len()]);
        encoded("Discretization", cx, &bins, self.bin_boundaries.len() + 1, self.output_mode)
    }
}

impl Layer for Discretization {
    named!("Discretization", one_input);
}

/// Encodes `x: i32[B, …]` as indices or as vectors of size `depth`.
fn encoded(class: &str, cx: &Cx, x: &Tensor, depth: usize, mode: OutputMode) -> Result<Tensor> {
    if mode == OutputMode::Int {
        return Ok(x.clone());
    }
    sized(class, "output", &[x.shape().dims(), &[depth]].concat())?;
    let last_of_one = x.rank() > 1 && x.dim(-1) == 1;
    let x = match mode {
        OutputMode::OneHot if last_of_one => x.reshape(&x.shape()[..x.rank() - 1]),
        _ => x.clone(),
    };
    let vectors = x.one_hot(depth, cx.precision().compute_dtype());
    // The last dimension holds the classes of a sample.
    Ok(match mode {
        OutputMode::MultiHot if x.rank() > 1 => vectors.reduce_max(&[x.rank() - 1]),
        OutputMode::Count if x.rank() > 1 => vectors.sum(&[x.rank() - 1]),
        _ => vectors,
    })
}

constructors!(LayerSpec:
    /// `x: I[B, …, N] → T[B, …, num_tokens]`: encodes the classes of a sample as a vector. Arguments: [`CategoryEncoding`].
    ///
    /// ```
    /// use systole_ir::{DType::I32, TensorType};
    /// use systole_nn::{layers::category_encoding, Model};
    /// let layer = category_encoding(10).output_mode("count");
    /// let output = Model::sequential([layer]).output_for(&[TensorType::new(I32, [3])])?;
    /// assert_eq!(output.shape.dims(), [10]);
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    fn category_encoding(num_tokens: usize) = CategoryEncoding { num_tokens, ..Default::default() };

    /// `x: T[B, …] → i32[B, …]`: maps each number to the index of its bin. Arguments: [`Discretization`].
    ///
    /// ```
    /// use systole_ir::{DType::F32, TensorType};
    /// use systole_nn::{layers::discretization, Model};
    /// let layer = discretization([0.0, 1.0]).output_mode("one_hot");
    /// let output = Model::sequential([layer]).output_for(&[TensorType::new(F32, [5])])?;
    /// assert_eq!(output.shape.dims(), [5, 3]);
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    fn discretization(bin_boundaries: impl Into<Vec<f64>>) =
        Discretization { bin_boundaries: bin_boundaries.into(), ..Default::default() };
);

setters!(LayerSpec:
    /// Encoding of CategoryEncoding and Discretization: "int", "one_hot", "multi_hot" or "count".
    output_mode: impl Into<Value> as Value;
);

/// Test samples: layers with valid and invalid inputs.
pub(in crate::layers) fn samples() -> Vec<LayerSample> {
    let hot = discretization([-0.5, 0.1, 0.6]).output_mode("one_hot");
    vec![
        LayerSample::new(category_encoding(7), &[2, 5], &[2, 7], &[], Some(&[])).of_integers(),
        LayerSample::new(category_encoding(7).output_mode("count"), &[3, 5], &[3, 7], &[], Some(&[]))
            .of_integers(),
        LayerSample::new(hot, &[2, 5], &[2, 5, 4], &[], Some(&[])),
    ]
}

/// Keras parity test cases; `fixtures/keras/generate.py` reads them from this file.
pub(in crate::layers) const PARITY: &str = r#"[
    {"name": "category_multi_hot", "class": "CategoryEncoding", "x_shape": [3, 4], "inputs": "indices", "kwargs": {"num_tokens": 6}},
    {"name": "category_one_hot", "class": "CategoryEncoding", "x_shape": [3, 1], "inputs": "indices", "kwargs": {"num_tokens": 6, "output_mode": "one_hot"}},
    {"name": "category_count", "class": "CategoryEncoding", "x_shape": [3, 4], "inputs": "indices", "kwargs": {"num_tokens": 3, "output_mode": "count"}},
    {"name": "discretization", "class": "Discretization", "x_shape": [3, 4], "kwargs": {"bin_boundaries": [-0.5, 0.1, 0.6], "output_mode": "one_hot"}}
]"#;
