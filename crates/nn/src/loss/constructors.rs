//! Constructors of losses with Keras's names and defaults: `mean_squared_error()`, `huber()`, `ctc()`.

use super::Loss;
use crate::setters::constructors;

constructors!(Loss:
    /// `y_true: I[B, …], y_pred: T[B, …, C] → f32[B, …]`: cross-entropy of class indices as labels and probabilities (or a
    /// softmax) as predictions.
    ///
    /// ```
    /// use systole_ir::{Literal, Tensor};
    /// use systole_nn::loss::sparse_categorical_crossentropy;
    /// let loss = systole_runtime::jit(|(y, p): (Tensor, Tensor)| sparse_categorical_crossentropy().value(&y, &p, None));
    /// let (y, p) = (Literal::from_slice([1], &[1i32])?, Literal::from_slice([1, 2], &[0.75f32, 0.25])?);
    /// assert!((loss.call((y.into(), p.into()))?.to_f64()? - 4f64.ln()).abs() < 1e-5);
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    fn sparse_categorical_crossentropy() =
        Loss::SparseCategoricalCrossentropy { from_logits: false, ignore_class: None };

    /// `y_true, y_pred: T[B, …, C] → f32[B, …]`: cross-entropy of one-hot labels and probabilities (or a softmax) as
    /// predictions.
    ///
    /// ```
    /// use systole_ir::{Literal, Tensor};
    /// use systole_nn::loss::categorical_crossentropy;
    /// let loss = systole_runtime::jit(|(y, p): (Tensor, Tensor)| categorical_crossentropy().value(&y, &p, None));
    /// let (y, p) = (Literal::from_slice([1, 2], &[0f32, 1.])?, Literal::from_slice([1, 2], &[0.75f32, 0.25])?);
    /// assert!((loss.call((y.into(), p.into()))?.to_f64()? - 4f64.ln()).abs() < 1e-5);
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    fn categorical_crossentropy() =
        Loss::CategoricalCrossentropy { from_logits: false, label_smoothing: 0.0 };

    /// `y_true, y_pred: T[B, …, C] → f32[B, …]`: binary cross-entropy of labels 0 and 1 and probabilities (or a sigmoid) as
    /// predictions.
    ///
    /// ```
    /// use systole_ir::{Literal, Tensor};
    /// use systole_nn::loss::binary_crossentropy;
    /// let loss = systole_runtime::jit(|(y, p): (Tensor, Tensor)| binary_crossentropy().value(&y, &p, None));
    /// let (y, p) = (Literal::from_slice([1, 1], &[0f32])?, Literal::from_slice([1, 1], &[0.75f32])?);
    /// assert!((loss.call((y.into(), p.into()))?.to_f64()? - 4f64.ln()).abs() < 1e-5);
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    fn binary_crossentropy() = Loss::BinaryCrossentropy { from_logits: false, label_smoothing: 0.0 };

    /// `y_true, y_pred: T[B, …, C] → f32[B, …]`: mean of squared differences.
    ///
    /// ```
    /// use systole_ir::{Literal, Tensor};
    /// use systole_nn::loss::mean_squared_error;
    /// let loss = systole_runtime::jit(|(y, p): (Tensor, Tensor)| mean_squared_error().value(&y, &p, None));
    /// let (y, p) = (Literal::from_slice([1, 2], &[1f32, 2.])?, Literal::from_slice([1, 2], &[1f32, 4.])?);
    /// assert!((loss.call((y.into(), p.into()))?.to_f64()? - 2.0).abs() < 1e-5);
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    fn mean_squared_error() = Loss::MeanSquaredError;

    /// `y_true, y_pred: T[B, …, C] → f32[B, …]`: mean of absolute differences.
    ///
    /// ```
    /// use systole_ir::{Literal, Tensor};
    /// use systole_nn::loss::mean_absolute_error;
    /// let loss = systole_runtime::jit(|(y, p): (Tensor, Tensor)| mean_absolute_error().value(&y, &p, None));
    /// let (y, p) = (Literal::from_slice([1, 2], &[1f32, 2.])?, Literal::from_slice([1, 2], &[1f32, 4.])?);
    /// assert!((loss.call((y.into(), p.into()))?.to_f64()? - 1.0).abs() < 1e-5);
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    fn mean_absolute_error() = Loss::MeanAbsoluteError;

    /// `y_true, y_pred: T[B, …, C] → f32[B, …]`: Huber loss: d²/2 for differences |d| up to 1, |d| − 1/2 beyond.
    ///
    /// ```
    /// use systole_ir::{Literal, Tensor};
    /// use systole_nn::loss::huber;
    /// let loss = systole_runtime::jit(|(y, p): (Tensor, Tensor)| huber().value(&y, &p, None));
    /// let (y, p) = (Literal::from_slice([1, 1], &[1f32])?, Literal::from_slice([1, 1], &[4f32])?);
    /// assert!((loss.call((y.into(), p.into()))?.to_f64()? - 2.5).abs() < 1e-5);
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    fn huber() = Loss::Huber { delta: 1.0 };

    /// `y_true, y_pred: T[B, …, C] → f32[B, …]`: mean of absolute differences in percent of the labels.
    ///
    /// ```
    /// use systole_ir::{Literal, Tensor};
    /// use systole_nn::loss::mean_absolute_percentage_error;
    /// let loss = systole_runtime::jit(|(y, p): (Tensor, Tensor)| mean_absolute_percentage_error().value(&y, &p, None));
    /// let (y, p) = (Literal::from_slice([1, 2], &[1f32, 2.])?, Literal::from_slice([1, 2], &[1f32, 4.])?);
    /// assert!((loss.call((y.into(), p.into()))?.to_f64()? - (50.0)).abs() < 1e-5);
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    fn mean_absolute_percentage_error() = Loss::MeanAbsolutePercentageError;

    /// `y_true, y_pred: T[B, …, C] → f32[B, …]`: mean of squared differences of log(1 + x).
    ///
    /// ```
    /// use systole_ir::{Literal, Tensor};
    /// use systole_nn::loss::mean_squared_logarithmic_error;
    /// let loss = systole_runtime::jit(|(y, p): (Tensor, Tensor)| mean_squared_logarithmic_error().value(&y, &p, None));
    /// let (y, p) = (Literal::from_slice([1, 1], &[0f32])?, Literal::from_slice([1, 1], &[1f32])?);
    /// assert!((loss.call((y.into(), p.into()))?.to_f64()? - (2f64.ln() * 2f64.ln())).abs() < 1e-5);
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    fn mean_squared_logarithmic_error() = Loss::MeanSquaredLogarithmicError;

    /// `y_true, y_pred: T[B, …, C] → f32[B, …]`: negative cosine similarity of labels and predictions: −1 for the same
    /// direction.
    ///
    /// ```
    /// use systole_ir::{Literal, Tensor};
    /// use systole_nn::loss::cosine_similarity;
    /// let loss = systole_runtime::jit(|(y, p): (Tensor, Tensor)| cosine_similarity().value(&y, &p, None));
    /// let (y, p) = (Literal::from_slice([1, 2], &[0f32, 2.])?, Literal::from_slice([1, 2], &[0f32, 1.])?);
    /// assert!((loss.call((y.into(), p.into()))?.to_f64()? - (-1.0)).abs() < 1e-5);
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    fn cosine_similarity() = Loss::CosineSimilarity;

    /// `y_true, y_pred: T[B, …, C] → f32[B, …]`: mean of log(cosh(difference)): a smooth `huber`.
    ///
    /// ```
    /// use systole_ir::{Literal, Tensor};
    /// use systole_nn::loss::log_cosh;
    /// let loss = systole_runtime::jit(|(y, p): (Tensor, Tensor)| log_cosh().value(&y, &p, None));
    /// let (y, p) = (Literal::from_slice([1, 1], &[0f32])?, Literal::from_slice([1, 1], &[1f32])?);
    /// assert!((loss.call((y.into(), p.into()))?.to_f64()? - (1f64.cosh().ln())).abs() < 1e-5);
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    fn log_cosh() = Loss::LogCosh;

    /// `y_true, y_pred: T[B, …, C] → f32[B, …]`: hinge loss for labels −1 and 1 (or 0 and 1) and scores as predictions.
    ///
    /// ```
    /// use systole_ir::{Literal, Tensor};
    /// use systole_nn::loss::hinge;
    /// let loss = systole_runtime::jit(|(y, p): (Tensor, Tensor)| hinge().value(&y, &p, None));
    /// let (y, p) = (Literal::from_slice([1, 1], &[1f32])?, Literal::from_slice([1, 1], &[0.25f32])?);
    /// assert!((loss.call((y.into(), p.into()))?.to_f64()? - (0.75)).abs() < 1e-5);
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    fn hinge() = Loss::Hinge;

    /// `y_true, y_pred: T[B, …, C] → f32[B, …]`: squared hinge loss; see [`hinge`].
    ///
    /// ```
    /// use systole_ir::{Literal, Tensor};
    /// use systole_nn::loss::squared_hinge;
    /// let loss = systole_runtime::jit(|(y, p): (Tensor, Tensor)| squared_hinge().value(&y, &p, None));
    /// let (y, p) = (Literal::from_slice([1, 1], &[0f32])?, Literal::from_slice([1, 1], &[0.5f32])?);
    /// assert!((loss.call((y.into(), p.into()))?.to_f64()? - (2.25)).abs() < 1e-5);
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    fn squared_hinge() = Loss::SquaredHinge;

    /// `y_true, y_pred: T[B, …, C] → f32[B, …]`: multi-class hinge loss for one-hot labels and scores as predictions.
    ///
    /// ```
    /// use systole_ir::{Literal, Tensor};
    /// use systole_nn::loss::categorical_hinge;
    /// let loss = systole_runtime::jit(|(y, p): (Tensor, Tensor)| categorical_hinge().value(&y, &p, None));
    /// let (y, p) = (Literal::from_slice([1, 2], &[0f32, 1.])?, Literal::from_slice([1, 2], &[0.5f32, 1.])?);
    /// assert!((loss.call((y.into(), p.into()))?.to_f64()? - (0.5)).abs() < 1e-5);
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    fn categorical_hinge() = Loss::CategoricalHinge;

    /// `y_true, y_pred: T[B, …, C] → f32[B, …]`: Kullback–Leibler divergence of predictions from labels, both
    /// distributions.
    ///
    /// ```
    /// use systole_ir::{Literal, Tensor};
    /// use systole_nn::loss::kl_divergence;
    /// let loss = systole_runtime::jit(|(y, p): (Tensor, Tensor)| kl_divergence().value(&y, &p, None));
    /// let (y, p) = (Literal::from_slice([1, 2], &[0.5f32, 0.5])?, Literal::from_slice([1, 2], &[0.5f32, 0.5])?);
    /// assert!((loss.call((y.into(), p.into()))?.to_f64()? - (0.0)).abs() < 1e-5);
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    fn kl_divergence() = Loss::KLDivergence;

    /// `y_true, y_pred: T[B, …, C] → f32[B, …]`: Poisson loss for counts as labels and rates as predictions.
    ///
    /// ```
    /// use systole_ir::{Literal, Tensor};
    /// use systole_nn::loss::poisson;
    /// let loss = systole_runtime::jit(|(y, p): (Tensor, Tensor)| poisson().value(&y, &p, None));
    /// let (y, p) = (Literal::from_slice([1, 1], &[3f32])?, Literal::from_slice([1, 1], &[1f32])?);
    /// assert!((loss.call((y.into(), p.into()))?.to_f64()? - (1.0)).abs() < 1e-5);
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    fn poisson() = Loss::Poisson;
);

/// `y_true, y_pred: T[B, …, C] → f32[B, …]`: binary focal loss: cross-entropy times (1 − p)^γ with γ = 2, which
/// down-weights easy samples.
///
/// ```
/// use systole_ir::{Literal, Tensor};
/// use systole_nn::loss::binary_focal_crossentropy;
/// let loss = systole_runtime::jit(|(y, p): (Tensor, Tensor)| binary_focal_crossentropy().value(&y, &p, None));
/// let (y, p) = (Literal::from_slice([1, 1], &[1f32])?, Literal::from_slice([1, 1], &[0.5f32])?);
/// assert!((loss.call((y.into(), p.into()))?.to_f64()? - (0.25 * 2f64.ln())).abs() < 1e-5);
/// # Ok::<(), systole_ir::Error>(())
/// ```
pub fn binary_focal_crossentropy() -> Loss {
    Loss::BinaryFocalCrossentropy {
        apply_class_balancing: false,
        alpha: 0.25,
        gamma: 2.0,
        from_logits: false,
        label_smoothing: 0.0,
    }
}

constructors!(Loss:
    /// `y_true, y_pred: T[B, …, C] → f32[B, …]`: categorical focal loss: cross-entropy times α·(1 − p)^γ, with α = 0.25 and
    /// γ = 2.
    ///
    /// ```
    /// use systole_ir::{Literal, Tensor};
    /// use systole_nn::loss::categorical_focal_crossentropy;
    /// let loss = systole_runtime::jit(|(y, p): (Tensor, Tensor)| categorical_focal_crossentropy().value(&y, &p, None));
    /// let (y, p) = (Literal::from_slice([1, 2], &[0f32, 1.])?, Literal::from_slice([1, 2], &[0.5f32, 0.5])?);
    /// assert!((loss.call((y.into(), p.into()))?.to_f64()? - (0.0625 * 2f64.ln())).abs() < 1e-5);
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    fn categorical_focal_crossentropy() =
        Loss::CategoricalFocalCrossentropy { alpha: 0.25, gamma: 2.0, from_logits: false, label_smoothing: 0.0 };

    /// `y_true, y_pred: T[B, …] → f32[]`: Dice loss, 1 − overlap of labels and predictions, over the whole batch; `axis`
    /// restricts the reduction.
    ///
    /// ```
    /// use systole_ir::{Literal, Tensor};
    /// use systole_nn::loss::dice;
    /// let loss = systole_runtime::jit(|(y, p): (Tensor, Tensor)| dice().value(&y, &p, None));
    /// let (y, p) = (Literal::from_slice([1, 2], &[1f32, 0.])?, Literal::from_slice([1, 2], &[0.5f32, 0.])?);
    /// assert!((loss.call((y.into(), p.into()))?.to_f64()? - (1.0 - 1.0 / 1.5)).abs() < 1e-5);
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    fn dice() = Loss::Dice { axis: Vec::new() };

    /// `y_true, y_pred: T[B, …] → f32[]`: Tversky loss: [`dice`] with weight α for false negatives and β for false
    /// positives, both 0.5.
    ///
    /// ```
    /// use systole_ir::{Literal, Tensor};
    /// use systole_nn::loss::tversky;
    /// let loss = systole_runtime::jit(|(y, p): (Tensor, Tensor)| tversky().value(&y, &p, None));
    /// let (y, p) = (Literal::from_slice([1, 2], &[1f32, 0.])?, Literal::from_slice([1, 2], &[0.5f32, 0.])?);
    /// assert!((loss.call((y.into(), p.into()))?.to_f64()? - (1.0 - 0.5 / 0.75)).abs() < 1e-5);
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    fn tversky() = Loss::Tversky { alpha: 0.5, beta: 0.5, axis: Vec::new() };

    /// `y_true: I[B], y_pred: T[B, D] → f32[B]`: circle loss for class indices and unit-length embeddings (metric
    /// learning), with γ = 80 and margin 0.4.
    ///
    /// ```
    /// use systole_ir::{Literal, Tensor};
    /// use systole_nn::loss::circle;
    /// let loss = systole_runtime::jit(|(y, p): (Tensor, Tensor)| circle().value(&y, &p, None));
    /// let (y, p) = (Literal::from_slice([2], &[1i32, 1])?, Literal::from_slice([2, 2], &[1f32, 0., 1., 0.])?);
    /// assert!((loss.call((y.into(), p.into()))?.to_f64()? - (0.0)).abs() < 1e-5);
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    fn circle() = Loss::Circle { gamma: 80.0, margin: 0.4, remove_diagonal: true };

    /// `y_true: I[B, L], y_pred: T[B, T, C] → f32[B]`: connectionist temporal classification (CTC) for unaligned label
    /// sequences, padded with 0, and logits at T time steps; class 0 is the blank.
    ///
    /// ```
    /// use systole_ir::{Literal, Tensor};
    /// use systole_nn::loss::ctc;
    /// let loss = systole_runtime::jit(|(y, p): (Tensor, Tensor)| ctc().value(&y, &p, None));
    /// let (y, p) = (Literal::from_slice([1, 1], &[1i32])?, Literal::from_slice([1, 1, 2], &[0f32, 0.])?);
    /// assert!((loss.call((y.into(), p.into()))?.to_f64()? - (2f64.ln())).abs() < 1e-5);
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    fn ctc() = Loss::CTC;

    /// `y_true: I[B, …], y_pred: T[B, …, C] → f32[B, …]`: generalized cross-entropy for class indices with label noise, and
    /// probabilities; q = 0.5.
    ///
    /// ```
    /// use systole_ir::{Literal, Tensor};
    /// use systole_nn::loss::categorical_generalized_cross_entropy;
    /// let loss = systole_runtime::jit(|(y, p): (Tensor, Tensor)| categorical_generalized_cross_entropy().value(&y, &p, None));
    /// let (y, p) = (Literal::from_slice([1], &[0i32])?, Literal::from_slice([1, 2], &[0.25f32, 0.75])?);
    /// assert!((loss.call((y.into(), p.into()))?.to_f64()? - (1.0)).abs() < 1e-5);
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    fn categorical_generalized_cross_entropy() = Loss::CategoricalGeneralizedCrossEntropy { q: 0.5 };
);
