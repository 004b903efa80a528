//! Normalization preprocessing layer: standardizes features by the dataset's mean and variance.

use crate::layers::built_in::*;
use crate::layers::sample::*;
use crate::layers::spec::{LayerKind, LayerSpec};
use crate::setters::{arguments, constructors, setters};
use systole_data::Dataset;
use systole_ir::{Literal, ensure, err};

arguments! {
    /// `x: U[B, …] → T[B, …]`: `(x − mean) / √variance`, with a mean and variance for each index along `axis`.
    ///
    /// Mean and variance are arguments, not weights: pass them, or compute them from data with [`LayerSpec::adapt`].
    /// Standard deviations below 1e-7 are clamped.
    ///
    /// ```
    /// use systole_nn::layers::normalization;
    /// assert!(normalization().mean([0.5, 3.0]).variance([0.25, 4.0]).check().is_ok());
    /// let e = normalization().check().unwrap_err().to_string();
    /// assert!(e.contains("a mean and a variance"), "{e}");
    /// ```
    pub struct Normalization {
        /// Axes that keep separate means; empty for a single mean. Default: −1, the last.
        pub axis: Axes = Axes(vec![-1]),
        /// Means in the order of `axis`; a single one applies to all. Required.
        pub mean: Option<Vec<f64>> = None,
        /// Variances, like `mean`. Required.
        pub variance: Option<Vec<f64>> = None,
        /// Whether the inverse `x · √variance + mean` is computed. Default: false.
        pub invert: bool = false,
    }
}

impl Normalization {
    /// Dimensions with separate means, in ascending order.
    fn dims(&self, x: &Tensor) -> Result<Vec<usize>> {
        let mut dims =
            self.axis.0.iter().map(|&a| dim_index("Normalization", a, x)).collect::<Result<Vec<usize>>>()?;
        dims.sort_unstable();
        dims.dedup();
        Ok(dims)
    }

    /// Standard deviations.
    fn deviations(&self) -> Vec<f64> {
        self.variance.iter().flatten().map(|v| v.sqrt().max(1e-7)).collect()
    }

    /// Broadcasts `values` to f32 of x's shape.
    fn spread(&self, x: &Tensor, dims: &[usize], values: &[f64]) -> Result<Tensor> {
        let shape: Vec<usize> = dims.iter().map(|&d| x.dim(d as isize)).collect();
        let values: Vec<f32> = values.iter().map(|v| *v as f32).collect();
        let wide = TensorType::new(DType::F32, x.shape().clone());
        if let [one] = values.as_slice() {
            return Ok(x.builder().full(&wide, f64::from(*one)));
        }
        if values.len() != shape.iter().product::<usize>() {
            let needs = format!("inputs with {} values along its axis, like its mean", values.len());
            return Err(
                unfit("Normalization", &needs, x.ty()).hint("adapt the layer to data of the same shape")
            );
        }
        let literal = Literal::from_slice(shape, &values)?;
        Ok(x.builder().constant(literal).broadcast_in_dim(&wide.shape, dims))
    }
}

impl Arguments for Normalization {
    fn adapted_axes(&self) -> Option<&Axes> {
        Some(&self.axis)
    }

    fn check(&self) -> Result<()> {
        let (Some(mean), Some(variance)) = (&self.mean, &self.variance) else {
            return Err(wrong("Normalization", "a mean and a variance", "none").hint(
                "pass both mean and variance, or compute them from data: normalization().adapt(&data, \"x\")",
            ));
        };
        if mean.is_empty() || mean.len() != variance.len() {
            let needs = "as many variances as means, at least one";
            return Err(wrong("Normalization", needs, format!("{} and {}", variance.len(), mean.len())));
        }
        match mean.iter().chain(variance).find(|v| !v.is_finite()).or(variance.iter().find(|v| **v < 0.0)) {
            Some(v) => Err(wrong("Normalization", "finite means and variances of at least 0", v)),
            None => Ok(()),
        }
    }

    fn output(&self, cx: &mut Cx, x: &Tensor) -> Result<Tensor> {
        let dims = self.dims(x)?;
        let deviation = self.deviations();
        let mean: Vec<f64> = self.mean.iter().flatten().copied().collect();
        let (mean, deviation) = (self.spread(x, &dims, &mean)?, self.spread(x, &dims, &deviation)?);
        // Computes in f32 from the uncast input, because half precision loses digits of values far from zero.
        let x = x.convert(DType::F32);
        let y = if self.invert { x * deviation + mean } else { (x - mean) / deviation };
        Ok(cast(cx, &y))
    }
}

impl Layer for Normalization {
    named!("Normalization", one_input);

    fn lowering(&self) -> Result<LayerLowering> {
        let (mean, deviation) = (self.mean.iter().flatten(), self.deviations());
        if self.axis.0 != [-1] && deviation.len() > 1 {
            return Err(no_operators("Normalization")
                .because(format!("its axis is {:?}, not the last dimension", self.axis.0))
                .hint("normalize over the last dimension"));
        }
        let (scale, offset) = match self.invert {
            true => (deviation, mean.copied().collect()),
            false => {
                let offset = mean.zip(&deviation).map(|(m, d)| -m / d).collect();
                (deviation.iter().map(|d| 1.0 / d).collect(), offset)
            }
        };
        Ok(LayerLowering::Normalization { scale, offset })
    }

    masked!(First);
}

/// Running count, mean and sum of squared deviations per index.
struct RunningMoments {
    kept: Vec<usize>,
    count: f64,
    mean: Vec<f64>,
    squares: Vec<f64>,
}

impl RunningMoments {
    /// Merges the moments of a batch. Source: Chan, Golub and LeVeque 1983.
    fn join(&mut self, batch: &Literal, dims: &[usize]) -> Result<()> {
        let shape = batch.shape();
        let kept: Vec<usize> = dims.iter().map(|&d| shape[d]).collect();
        if self.count > 0.0 && kept != self.kept {
            return Err(err!(Data, "cannot adapt Normalization: the shape changes between batches").because(
                format!("the first batch has {:?} along the axis, a later one {kept:?}", self.kept),
            ));
        }
        let places = kept.iter().product::<usize>().max(1);
        let n = (batch.ty().elements() / places) as f64;
        if n == 0.0 {
            return Ok(());
        }
        let place = |index: &[usize]| dims.iter().zip(&kept).fold(0, |at, (&d, size)| at * size + index[d]);
        let at: Vec<usize> = shape.indices().map(|index| place(&index)).collect();
        let values = batch.to_f64s();
        let (mut mean, mut squares) = (vec![0.0; places], vec![0.0; places]);
        at.iter().zip(&values).for_each(|(&p, v)| mean[p] += v / n);
        at.iter().zip(&values).for_each(|(&p, v)| squares[p] += (v - mean[p]).powi(2));
        if self.count == 0.0 {
            *self = RunningMoments { kept, count: n, mean, squares };
            return Ok(());
        }
        let all = self.count + n;
        for p in 0..places {
            let distance = mean[p] - self.mean[p];
            self.squares[p] += squares[p] + distance * distance * self.count * n / all;
            self.mean[p] += distance * n / all;
        }
        self.count = all;
        Ok(())
    }
}

impl LayerSpec {
    /// Computes Normalization's mean and variance from a field of a batched dataset. Keras's `adapt`.
    ///
    /// ```
    /// use systole_data::Dataset;
    /// use systole_ir::Literal;
    /// use systole_nn::layers::normalization;
    /// let x = Literal::from_slice([4, 1], &[1f32, 3., 5., 7.])?;
    /// let data = Dataset::from_tensor_slices([("x", x)])?.batch(2);
    /// let layer = normalization().adapt(&data, "x")?;
    /// assert_eq!(layer.to_json()["config"]["mean"][0], 4.0);
    /// assert_eq!(layer.to_json()["config"]["variance"][0], 5.0);
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    ///
    /// # Errors
    /// If it is another layer, or the dataset is empty, lacks the field or changes its shape.
    pub fn adapt(self, data: &Dataset, field: &str) -> Result<LayerSpec> {
        let axis = match self.kind() {
            LayerKind::BuiltIn(layer) => layer.arguments().adapted_axes().cloned(),
            _ => None,
        };
        let axis = axis.ok_or_else(|| {
            let e = err!(Config, "{} does not support adapt", self.class_name());
            e.hint("call adapt on normalization()")
        })?;
        let mut moments =
            RunningMoments { kept: Vec::new(), count: 0.0, mean: Vec::new(), squares: Vec::new() };
        for sample in data.iter() {
            let sample = sample?;
            let batch = sample.get(field)?;
            let rank = batch.shape().len() as i64;
            let dim = |a: &i64| {
                usize::try_from(if *a < 0 { a + rank } else { *a }).ok().filter(|d| (*d as i64) < rank)
            };
            let dims: Option<Vec<usize>> = axis.0.iter().map(dim).collect();
            let mut dims = dims.ok_or_else(|| {
                err!(Data, "axis {:?} is out of range: `{field}` has {rank} dimensions", axis.0)
                    .hint("count axes including the batch, or from the last: −1")
            })?;
            dims.sort_unstable();
            dims.dedup();
            moments.join(batch, &dims)?;
        }
        ensure!(moments.count != 0.0, err!(Data, "cannot adapt Normalization: the dataset is empty"));
        let variance: Vec<f64> = moments.squares.iter().map(|s| s / moments.count).collect();
        Ok(self.set("mean", moments.mean.into()).set("variance", variance.into()))
    }
}

constructors!(LayerSpec:
    /// `x: U[B, …] → T[B, …]`: standardizes features by a mean and variance of the dataset. Arguments: [`Normalization`].
    ///
    /// ```
    /// use systole_ir::{DType::F32, TensorType};
    /// use systole_nn::{layers::normalization, Model};
    /// let layer = normalization().mean([0.5]).variance([0.25]);
    /// let output = Model::sequential([layer]).output_for(&[TensorType::new(F32, [28, 28, 1])])?;
    /// assert_eq!(output.shape.dims(), [28, 28, 1]);
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    fn normalization() = Normalization::default();
);

setters!(LayerSpec:
    /// Means of Normalization.
    mean: impl Into<Vec<f64>> as Vec<f64>;
    /// Variances of Normalization.
    variance: impl Into<Vec<f64>> as Vec<f64>;
    /// Whether Normalization computes its inverse.
    invert: bool as bool;
);

/// Test samples: layers with valid and invalid inputs.
pub(in crate::layers) fn samples() -> Vec<LayerSample> {
    let known = normalization().mean([0.5, -0.5, 0.0]).variance([0.25, 1.0, 4.0]);
    vec![
        LayerSample::new(known, IMAGE, IMAGE, &[], Some(&[2, 6, 5, 4])),
        LayerSample::new(
            normalization().mean([0.5]).variance([4.0]).invert(true),
            &[2, 5],
            &[2, 5],
            &[],
            Some(&[]),
        ),
    ]
}

/// Keras parity test cases; `fixtures/keras/generate.py` reads them from this file.
pub(in crate::layers) const PARITY: &str = r#"[
    {"name": "normalization", "class": "Normalization", "x_shape": [3, 2], "kwargs": {"mean": [0.5, -1.0], "variance": [0.25, 4.0]}},
    {"name": "normalization_invert", "class": "Normalization", "x_shape": [2, 3, 2], "kwargs": {"mean": [0.5, -1.0], "variance": [0.25, 0.0], "invert": true}}
]"#;
