//! Shared code and imports of the built-in architectures: argument limits, stems (first layers) and classifier heads.

pub(super) use crate::json::{Deserialize, Serialize};
pub(super) use crate::layers::*;
pub(super) use crate::model::architecture::{Architecture, Symbol, any_input};
pub(super) use crate::setters::arguments;
pub(super) use crate::{Activation, Initializer};
pub(super) use systole_ir::{Result, ensure, err};

pub(super) fn at_least_1(application: &str, argument: &str, value: usize) -> Result<()> {
    ensure!(value != 0, err!(Config, "{application} needs {argument} of at least 1, got 0"));
    Ok(())
}

/// Maximum number of blocks, so that a mistyped number does not exhaust the memory before it is reported.
pub(super) const MOST_BLOCKS: usize = 1_000;
/// Maximum number of stacks; each halves the image and doubles the filters.
pub(super) const MOST_STACKS: usize = 16;

pub(super) fn at_most(application: &str, argument: &str, value: usize, most: usize) -> Result<()> {
    if value > most {
        return Err(err!(Config, "{application} supports at most {most} {argument}, got {value}")
            .because("more would exhaust the memory before the first step")
            .hint("check the number for a typo"));
    }
    Ok(())
}

/// Checks the arguments of residual and densely connected networks.
pub(super) fn check_stacks(name: &str, classes: usize, width: usize, depths: &[usize]) -> Result<()> {
    at_least_1(name, "classes", classes)?;
    at_least_1(name, "width", width)?;
    at_least_1(name, "depths", depths.iter().copied().min().unwrap_or(0))?;
    at_most(name, "stacks in depths", depths.len(), MOST_STACKS)?;
    let blocks = depths.iter().fold(0, |sum: usize, d| sum.saturating_add(*d));
    at_most(name, "blocks in depths", blocks, MOST_BLOCKS)
}

/// First layers of Keras's ResNet: `image: T[B, H, W, C] → T[B, H / 4, W / 4, width]`.
pub(super) fn stem(image: &Symbol, width: usize) -> Symbol {
    let x = image.apply(zero_padding2d(3).name("conv1_pad"));
    pooled(&convolved(&x, conv2d(width, 7).strides(2), "conv1").apply(relu_named("conv1_relu")))
}

/// Padded 3×3 max pooling with stride 2: `x: T[B, H, W, C] → T[B, H / 2, W / 2, C]`.
pub(super) fn pooled(x: &Symbol) -> Symbol {
    x.apply(zero_padding2d(1).name("pool1_pad")).apply(max_pooling2d(3).strides(2).name("pool1_pool"))
}

/// Classification head: `x: T[B, H, W, C] → T[B, classes]`.
pub(super) fn head(x: &Symbol, classes: usize, function: Activation) -> Symbol {
    x.apply(global_average_pooling2d().name("avg_pool"))
        .apply(dense(classes).activation(function).name("predictions"))
}

/// A convolution followed by batch normalization.
pub(super) fn convolved(x: &Symbol, convolution: LayerSpec, name: &str) -> Symbol {
    let normalization = batch_normalization().epsilon(1.001e-5).name(format!("{name}_bn"));
    x.apply(convolution.name(format!("{name}_conv"))).apply(normalization)
}

pub(super) fn relu_named(name: &str) -> LayerSpec {
    activation("relu").name(name)
}

/// ReLU limited to 6.
pub(super) fn relu6(name: &str) -> LayerSpec {
    relu().max_value(6.0).name(name)
}

/// Keras's `_make_divisible`: rounds filters to a multiple of `divisor` that is at most a tenth below.
pub(super) fn divisible(filters: f64, divisor: usize) -> usize {
    let step = divisor as f64;
    let near = (((filters + step / 2.0) / step).floor() * step).max(step);
    (if near < 0.9 * filters { near + step } else { near }) as usize
}

/// Rejects width or depth coefficients outside of 0 to 16.
pub(super) fn check_factor(name: &str, argument: &str, value: f64) -> Result<()> {
    if value > 0.0 && value <= 16.0 {
        return Ok(());
    }
    Err(err!(Config, "{name} needs a {argument} above 0 and at most 16, got {value}")
        .hint("use a depth multiplier of 1 for the original size, 0.5 for half of it"))
}

/// Rejects width multipliers outside of 0 to 16.
pub(super) fn check_alpha(name: &str, alpha: f64) -> Result<()> {
    if alpha > 0.0 && alpha <= 16.0 {
        return Ok(());
    }
    let e = err!(Config, "{name} needs an alpha above 0 and at most 16, got {alpha}");
    Err(e.hint("use 1 for the original width, 0.5 for half of it"))
}
