//! Sliding-window geometry: output size, padding, and which window positions are inside the image.

use super::call::OperatorCall;
use crate::model::broken;
use crate::op::OptionField;
use systole_base::Result;

/// Sliding-window geometry along one dimension: stride, dilation and padding.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WindowStride {
    /// Input size in pixels.
    pub size: usize,
    /// Window size.
    pub window: usize,
    /// Stride between windows.
    pub stride: usize,
    /// Dilation: distance between elements of a window.
    pub dilation: usize,
    /// Padding before the image.
    pub before: usize,
    /// Number of window positions (output size).
    pub positions: usize,
}

impl WindowStride {
    /// Computes the window geometry like the TFLite runtime does; SAME padding if `same`, otherwise VALID.
    ///
    /// # Errors
    /// If no window fits. Sizes and distances must be at least 1.
    pub fn new(
        size: usize,
        window: usize,
        stride: usize,
        dilation: usize,
        same: bool,
    ) -> Result<WindowStride> {
        let effective = (window.saturating_sub(1)).saturating_mul(dilation).saturating_add(1);
        let positions = match same {
            true => size.div_ceil(stride),
            false => (size + stride).saturating_sub(effective) / stride,
        };
        if window == 0 || positions == 0 {
            return Err(broken(format!("window of {effective} exceeds the size {size}")));
        }
        let needed = ((positions - 1) * stride).saturating_add(effective);
        let before = if same { needed.saturating_sub(size) / 2 } else { 0 };
        Ok(WindowStride { size, window, stride, dilation, before, positions })
    }

    /// Returns the input index of window element `k` at output position `at`; `None` if it is in the padding.
    #[inline]
    #[must_use]
    pub fn place(&self, at: usize, k: usize) -> Option<usize> {
        (at * self.stride + k * self.dilation).checked_sub(self.before).filter(|&p| p < self.size)
    }
}

/// Returns the geometry of rows and columns.
pub(super) fn slides(
    call: &OperatorCall,
    [h, w]: [usize; 2],
    window: [usize; 2],
    dilated: bool,
) -> Result<[WindowStride; 2]> {
    let same = is_same(call)?;
    let dilation = |field| if dilated { call.at_least_1(field) } else { Ok(1) };
    let rows = WindowStride::new(
        h,
        window[0],
        call.at_least_1(OptionField::StrideH)?,
        dilation(OptionField::DilationH)?,
        same,
    )?;
    let columns = WindowStride::new(
        w,
        window[1],
        call.at_least_1(OptionField::StrideW)?,
        dilation(OptionField::DilationW)?,
        same,
    )?;
    Ok([rows, columns])
}

pub(super) fn is_same(call: &OperatorCall) -> Result<bool> {
    let padding = call.operator.int(OptionField::Padding);
    call.operator.is_same().ok_or_else(|| broken(format!("unknown padding {padding}")))
}
