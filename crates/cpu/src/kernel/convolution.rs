//! Recognizes two kinds of convolution by dimension numbers: forward (or gradient w.r.t. the input), and gradient
//! w.r.t. the weights.

use systole_ir::op::Convolution;

/// Whether the layout is `[batch, spatial…, feature]` with spatial dimensions in order.
pub fn is_channels_last(batch: usize, feature: usize, spatial: &[usize]) -> bool {
    batch == 0 && feature == spatial.len() + 1 && spatial.iter().copied().eq(1..=spatial.len())
}

/// Whether a convolution is ungrouped and forward, or the gradient w.r.t. the input of one: `x: [B, …, C]` gives `[B,
/// …', F]`. At least one spatial dimension.
pub fn is_forward(c: &Convolution) -> bool {
    !c.dims.input_spatial.is_empty() && is_forward_of_any_rank(c)
}

/// Like [`is_forward`], with any number of spatial dimensions, including none.
pub fn is_forward_of_any_rank(c: &Convolution) -> bool {
    c.feature_groups == 1 && is_forward_of_groups(c)
}

/// Like [`is_forward_of_any_rank`], with any number of feature groups.
pub fn is_forward_of_groups(c: &Convolution) -> bool {
    let d = &c.dims;
    c.batch_groups == 1
        && is_channels_last(d.input_batch, d.input_feature, &d.input_spatial)
        && is_channels_last(d.output_batch, d.output_feature, &d.output_spatial)
}

/// Whether a convolution is the gradient w.r.t. the weights of an ungrouped one, as autodiff builds it: `x: [B, …, C]`
/// and `dy: [B, …', F]` give `[…, C, F]`.
pub fn is_kernel_gradient(c: &Convolution) -> bool {
    let (d, n) = (&c.dims, c.dims.input_spatial.len());
    n > 0
        && c.feature_groups == 1
        && c.batch_groups == 1
        && c.reversal.iter().all(|r| !r)
        && is_channels_last(d.input_feature, d.input_batch, &d.input_spatial)
        && is_channels_last(d.kernel_input_feature, d.kernel_output_feature, &d.kernel_spatial)
        && d.output_batch == n
        && d.output_feature == n + 1
        && d.output_spatial.iter().copied().eq(0..n)
}

/// Whether a convolution has two spatial dimensions, stride 1, and no dilation of input or window.
pub fn has_unit_steps(c: &Convolution) -> bool {
    let ones = |of: &[usize]| of.iter().all(|&n| n == 1);
    c.padding.len() == 2 && ones(&c.strides) && ones(&c.lhs_dilation) && ones(&c.rhs_dilation)
}
