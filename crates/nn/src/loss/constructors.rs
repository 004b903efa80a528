//! Functions that make losses, named as Keras names them.

use super::Loss;

/// `y_true: I[B, …], y_pred: T[B, …, C] → f32[B, …]`: for class numbers as labels and probabilities (or a softmax) as
/// predictions.
///
/// ```
/// use systole_ir::{Literal, Tensor};
/// use systole_nn::loss::sparse_categorical_crossentropy;
/// let loss = systole_runtime::jit(|(y, p): (Tensor, Tensor)| sparse_categorical_crossentropy().value(&y, &p, None));
/// let (y, p) = (Literal::from_slice([1], &[1i32])?, Literal::from_slice([1, 2], &[0.75f32, 0.25])?);
/// assert!((loss.call((y.into(), p.into()))?.to_f64()? - 4f64.ln()).abs() < 1e-5);
/// # Ok::<(), systole_ir::Error>(())
/// ```
pub fn sparse_categorical_crossentropy() -> Loss {
    Loss::SparseCategoricalCrossentropy { from_logits: false, ignore_class: None }
}

/// `y_true, y_pred: T[B, …, C] → f32[B, …]`: for one-hot labels and probabilities (or a softmax) as predictions.
///
/// ```
/// use systole_ir::{Literal, Tensor};
/// use systole_nn::loss::categorical_crossentropy;
/// let loss = systole_runtime::jit(|(y, p): (Tensor, Tensor)| categorical_crossentropy().value(&y, &p, None));
/// let (y, p) = (Literal::from_slice([1, 2], &[0f32, 1.])?, Literal::from_slice([1, 2], &[0.75f32, 0.25])?);
/// assert!((loss.call((y.into(), p.into()))?.to_f64()? - 4f64.ln()).abs() < 1e-5);
/// # Ok::<(), systole_ir::Error>(())
/// ```
pub fn categorical_crossentropy() -> Loss {
    Loss::CategoricalCrossentropy { from_logits: false, label_smoothing: 0.0 }
}

/// `y_true, y_pred: T[B, …, C] → f32[B, …]`: for labels 0 and 1 and probabilities (or a sigmoid) as predictions.
///
/// ```
/// use systole_ir::{Literal, Tensor};
/// use systole_nn::loss::binary_crossentropy;
/// let loss = systole_runtime::jit(|(y, p): (Tensor, Tensor)| binary_crossentropy().value(&y, &p, None));
/// let (y, p) = (Literal::from_slice([1, 1], &[0f32])?, Literal::from_slice([1, 1], &[0.75f32])?);
/// assert!((loss.call((y.into(), p.into()))?.to_f64()? - 4f64.ln()).abs() < 1e-5);
/// # Ok::<(), systole_ir::Error>(())
/// ```
pub fn binary_crossentropy() -> Loss {
    Loss::BinaryCrossentropy { from_logits: false, label_smoothing: 0.0 }
}

/// `y_true, y_pred: T[B, …, C] → f32[B, …]`: the mean of squared differences.
///
/// ```
/// use systole_ir::{Literal, Tensor};
/// use systole_nn::loss::mean_squared_error;
/// let loss = systole_runtime::jit(|(y, p): (Tensor, Tensor)| mean_squared_error().value(&y, &p, None));
/// let (y, p) = (Literal::from_slice([1, 2], &[1f32, 2.])?, Literal::from_slice([1, 2], &[1f32, 4.])?);
/// assert!((loss.call((y.into(), p.into()))?.to_f64()? - 2.0).abs() < 1e-5);
/// # Ok::<(), systole_ir::Error>(())
/// ```
pub fn mean_squared_error() -> Loss {
    Loss::MeanSquaredError
}

/// `y_true, y_pred: T[B, …, C] → f32[B, …]`: the mean of absolute differences.
///
/// ```
/// use systole_ir::{Literal, Tensor};
/// use systole_nn::loss::mean_absolute_error;
/// let loss = systole_runtime::jit(|(y, p): (Tensor, Tensor)| mean_absolute_error().value(&y, &p, None));
/// let (y, p) = (Literal::from_slice([1, 2], &[1f32, 2.])?, Literal::from_slice([1, 2], &[1f32, 4.])?);
/// assert!((loss.call((y.into(), p.into()))?.to_f64()? - 1.0).abs() < 1e-5);
/// # Ok::<(), systole_ir::Error>(())
/// ```
pub fn mean_absolute_error() -> Loss {
    Loss::MeanAbsoluteError
}

/// `y_true, y_pred: T[B, …, C] → f32[B, …]`: half the square of differences up to 1, beyond that their size less a half.
///
/// ```
/// use systole_ir::{Literal, Tensor};
/// use systole_nn::loss::huber;
/// let loss = systole_runtime::jit(|(y, p): (Tensor, Tensor)| huber().value(&y, &p, None));
/// let (y, p) = (Literal::from_slice([1, 1], &[1f32])?, Literal::from_slice([1, 1], &[4f32])?);
/// assert!((loss.call((y.into(), p.into()))?.to_f64()? - 2.5).abs() < 1e-5);
/// # Ok::<(), systole_ir::Error>(())
/// ```
pub fn huber() -> Loss {
    Loss::Huber { delta: 1.0 }
}

/// `y_true, y_pred: T[B, …, C] → f32[B, …]`: the mean of absolute differences in per cent of the labels.
///
/// ```
/// use systole_ir::{Literal, Tensor};
/// use systole_nn::loss::mean_absolute_percentage_error;
/// let loss = systole_runtime::jit(|(y, p): (Tensor, Tensor)| mean_absolute_percentage_error().value(&y, &p, None));
/// let (y, p) = (Literal::from_slice([1, 2], &[1f32, 2.])?, Literal::from_slice([1, 2], &[1f32, 4.])?);
/// assert!((loss.call((y.into(), p.into()))?.to_f64()? - (50.0)).abs() < 1e-5);
/// # Ok::<(), systole_ir::Error>(())
/// ```
pub fn mean_absolute_percentage_error() -> Loss {
    Loss::MeanAbsolutePercentageError
}

/// `y_true, y_pred: T[B, …, C] → f32[B, …]`: the mean of squared differences of logarithms.
///
/// ```
/// use systole_ir::{Literal, Tensor};
/// use systole_nn::loss::mean_squared_logarithmic_error;
/// let loss = systole_runtime::jit(|(y, p): (Tensor, Tensor)| mean_squared_logarithmic_error().value(&y, &p, None));
/// let (y, p) = (Literal::from_slice([1, 1], &[0f32])?, Literal::from_slice([1, 1], &[1f32])?);
/// assert!((loss.call((y.into(), p.into()))?.to_f64()? - (2f64.ln() * 2f64.ln())).abs() < 1e-5);
/// # Ok::<(), systole_ir::Error>(())
/// ```
pub fn mean_squared_logarithmic_error() -> Loss {
    Loss::MeanSquaredLogarithmicError
}

/// `y_true, y_pred: T[B, …, C] → f32[B, …]`: the cosine between labels and predictions, negative: −1 where they point the same way.
///
/// ```
/// use systole_ir::{Literal, Tensor};
/// use systole_nn::loss::cosine_similarity;
/// let loss = systole_runtime::jit(|(y, p): (Tensor, Tensor)| cosine_similarity().value(&y, &p, None));
/// let (y, p) = (Literal::from_slice([1, 2], &[0f32, 2.])?, Literal::from_slice([1, 2], &[0f32, 1.])?);
/// assert!((loss.call((y.into(), p.into()))?.to_f64()? - (-1.0)).abs() < 1e-5);
/// # Ok::<(), systole_ir::Error>(())
/// ```
pub fn cosine_similarity() -> Loss {
    Loss::CosineSimilarity
}

/// `y_true, y_pred: T[B, …, C] → f32[B, …]`: the logarithm of the hyperbolic cosine of differences: a smooth `huber`.
///
/// ```
/// use systole_ir::{Literal, Tensor};
/// use systole_nn::loss::log_cosh;
/// let loss = systole_runtime::jit(|(y, p): (Tensor, Tensor)| log_cosh().value(&y, &p, None));
/// let (y, p) = (Literal::from_slice([1, 1], &[0f32])?, Literal::from_slice([1, 1], &[1f32])?);
/// assert!((loss.call((y.into(), p.into()))?.to_f64()? - (1f64.cosh().ln())).abs() < 1e-5);
/// # Ok::<(), systole_ir::Error>(())
/// ```
pub fn log_cosh() -> Loss {
    Loss::LogCosh
}

/// `y_true, y_pred: T[B, …, C] → f32[B, …]`: for labels −1 and 1 (or 0 and 1) and scores as predictions.
///
/// ```
/// use systole_ir::{Literal, Tensor};
/// use systole_nn::loss::hinge;
/// let loss = systole_runtime::jit(|(y, p): (Tensor, Tensor)| hinge().value(&y, &p, None));
/// let (y, p) = (Literal::from_slice([1, 1], &[1f32])?, Literal::from_slice([1, 1], &[0.25f32])?);
/// assert!((loss.call((y.into(), p.into()))?.to_f64()? - (0.75)).abs() < 1e-5);
/// # Ok::<(), systole_ir::Error>(())
/// ```
pub fn hinge() -> Loss {
    Loss::Hinge
}

/// `y_true, y_pred: T[B, …, C] → f32[B, …]`: the square of `hinge`.
///
/// ```
/// use systole_ir::{Literal, Tensor};
/// use systole_nn::loss::squared_hinge;
/// let loss = systole_runtime::jit(|(y, p): (Tensor, Tensor)| squared_hinge().value(&y, &p, None));
/// let (y, p) = (Literal::from_slice([1, 1], &[0f32])?, Literal::from_slice([1, 1], &[0.5f32])?);
/// assert!((loss.call((y.into(), p.into()))?.to_f64()? - (2.25)).abs() < 1e-5);
/// # Ok::<(), systole_ir::Error>(())
/// ```
pub fn squared_hinge() -> Loss {
    Loss::SquaredHinge
}

/// `y_true, y_pred: T[B, …, C] → f32[B, …]`: for one-hot labels and scores as predictions.
///
/// ```
/// use systole_ir::{Literal, Tensor};
/// use systole_nn::loss::categorical_hinge;
/// let loss = systole_runtime::jit(|(y, p): (Tensor, Tensor)| categorical_hinge().value(&y, &p, None));
/// let (y, p) = (Literal::from_slice([1, 2], &[0f32, 1.])?, Literal::from_slice([1, 2], &[0.5f32, 1.])?);
/// assert!((loss.call((y.into(), p.into()))?.to_f64()? - (0.5)).abs() < 1e-5);
/// # Ok::<(), systole_ir::Error>(())
/// ```
pub fn categorical_hinge() -> Loss {
    Loss::CategoricalHinge
}

/// `y_true, y_pred: T[B, …, C] → f32[B, …]`: for distributions as labels and predictions.
///
/// ```
/// use systole_ir::{Literal, Tensor};
/// use systole_nn::loss::kl_divergence;
/// let loss = systole_runtime::jit(|(y, p): (Tensor, Tensor)| kl_divergence().value(&y, &p, None));
/// let (y, p) = (Literal::from_slice([1, 2], &[0.5f32, 0.5])?, Literal::from_slice([1, 2], &[0.5f32, 0.5])?);
/// assert!((loss.call((y.into(), p.into()))?.to_f64()? - (0.0)).abs() < 1e-5);
/// # Ok::<(), systole_ir::Error>(())
/// ```
pub fn kl_divergence() -> Loss {
    Loss::KLDivergence
}

/// `y_true, y_pred: T[B, …, C] → f32[B, …]`: for counts as labels and rates as predictions.
///
/// ```
/// use systole_ir::{Literal, Tensor};
/// use systole_nn::loss::poisson;
/// let loss = systole_runtime::jit(|(y, p): (Tensor, Tensor)| poisson().value(&y, &p, None));
/// let (y, p) = (Literal::from_slice([1, 1], &[3f32])?, Literal::from_slice([1, 1], &[1f32])?);
/// assert!((loss.call((y.into(), p.into()))?.to_f64()? - (1.0)).abs() < 1e-5);
/// # Ok::<(), systole_ir::Error>(())
/// ```
pub fn poisson() -> Loss {
    Loss::Poisson
}

/// `y_true, y_pred: T[B, …, C] → f32[B, …]`: binary cross-entropy that counts what is right already for less: times (1 − p)^γ, γ 2.
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

/// `y_true, y_pred: T[B, …, C] → f32[B, …]`: categorical cross-entropy times α·(1 − p)^γ, α 0.25 and γ 2.
///
/// ```
/// use systole_ir::{Literal, Tensor};
/// use systole_nn::loss::categorical_focal_crossentropy;
/// let loss = systole_runtime::jit(|(y, p): (Tensor, Tensor)| categorical_focal_crossentropy().value(&y, &p, None));
/// let (y, p) = (Literal::from_slice([1, 2], &[0f32, 1.])?, Literal::from_slice([1, 2], &[0.5f32, 0.5])?);
/// assert!((loss.call((y.into(), p.into()))?.to_f64()? - (0.0625 * 2f64.ln())).abs() < 1e-5);
/// # Ok::<(), systole_ir::Error>(())
/// ```
pub fn categorical_focal_crossentropy() -> Loss {
    Loss::CategoricalFocalCrossentropy { alpha: 0.25, gamma: 2.0, from_logits: false, label_smoothing: 0.0 }
}

/// `y_true, y_pred: T[B, …] → f32[]`: how little labels and predictions overlap, over the whole batch; `axis` gives a value for each of what it leaves.
///
/// ```
/// use systole_ir::{Literal, Tensor};
/// use systole_nn::loss::dice;
/// let loss = systole_runtime::jit(|(y, p): (Tensor, Tensor)| dice().value(&y, &p, None));
/// let (y, p) = (Literal::from_slice([1, 2], &[1f32, 0.])?, Literal::from_slice([1, 2], &[0.5f32, 0.])?);
/// assert!((loss.call((y.into(), p.into()))?.to_f64()? - (1.0 - 1.0 / 1.5)).abs() < 1e-5);
/// # Ok::<(), systole_ir::Error>(())
/// ```
pub fn dice() -> Loss {
    Loss::Dice { axis: Vec::new() }
}

/// `y_true, y_pred: T[B, …] → f32[]`: as [`dice`], with α for what is missed and β for what is wrongly there, both 0.5.
///
/// ```
/// use systole_ir::{Literal, Tensor};
/// use systole_nn::loss::tversky;
/// let loss = systole_runtime::jit(|(y, p): (Tensor, Tensor)| tversky().value(&y, &p, None));
/// let (y, p) = (Literal::from_slice([1, 2], &[1f32, 0.])?, Literal::from_slice([1, 2], &[0.5f32, 0.])?);
/// assert!((loss.call((y.into(), p.into()))?.to_f64()? - (1.0 - 0.5 / 0.75)).abs() < 1e-5);
/// # Ok::<(), systole_ir::Error>(())
/// ```
pub fn tversky() -> Loss {
    Loss::Tversky { alpha: 0.5, beta: 0.5, axis: Vec::new() }
}

/// `y_true: I[B], y_pred: T[B, D] → f32[B]`: for class numbers and vectors of length 1, of which those of a class should lie together; γ 80 and margin 0.4.
///
/// ```
/// use systole_ir::{Literal, Tensor};
/// use systole_nn::loss::circle;
/// let loss = systole_runtime::jit(|(y, p): (Tensor, Tensor)| circle().value(&y, &p, None));
/// let (y, p) = (Literal::from_slice([2], &[1i32, 1])?, Literal::from_slice([2, 2], &[1f32, 0., 1., 0.])?);
/// assert!((loss.call((y.into(), p.into()))?.to_f64()? - (0.0)).abs() < 1e-5);
/// # Ok::<(), systole_ir::Error>(())
/// ```
pub fn circle() -> Loss {
    Loss::Circle { gamma: 80.0, margin: 0.4, remove_diagonal: true }
}

/// `y_true: I[B, L], y_pred: T[B, T, C] → f32[B]`: for sequences of labels whose times are not known, padded with 0, and logits at T times; class 0 is the blank.
///
/// ```
/// use systole_ir::{Literal, Tensor};
/// use systole_nn::loss::ctc;
/// let loss = systole_runtime::jit(|(y, p): (Tensor, Tensor)| ctc().value(&y, &p, None));
/// let (y, p) = (Literal::from_slice([1, 1], &[1i32])?, Literal::from_slice([1, 1, 2], &[0f32, 0.])?);
/// assert!((loss.call((y.into(), p.into()))?.to_f64()? - (2f64.ln())).abs() < 1e-5);
/// # Ok::<(), systole_ir::Error>(())
/// ```
pub fn ctc() -> Loss {
    Loss::CTC
}

/// `y_true: I[B, …], y_pred: T[B, …, C] → f32[B, …]`: for class numbers, of which some may be wrong, and probabilities; q 0.5.
///
/// ```
/// use systole_ir::{Literal, Tensor};
/// use systole_nn::loss::categorical_generalized_cross_entropy;
/// let loss = systole_runtime::jit(|(y, p): (Tensor, Tensor)| categorical_generalized_cross_entropy().value(&y, &p, None));
/// let (y, p) = (Literal::from_slice([1], &[0i32])?, Literal::from_slice([1, 2], &[0.25f32, 0.75])?);
/// assert!((loss.call((y.into(), p.into()))?.to_f64()? - (1.0)).abs() < 1e-5);
/// # Ok::<(), systole_ir::Error>(())
/// ```
pub fn categorical_generalized_cross_entropy() -> Loss {
    Loss::CategoricalGeneralizedCrossEntropy { q: 0.5 }
}
