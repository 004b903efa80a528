//! Windows that slide over pictures: sizes, borders, and which of a window's places lie inside.

use super::call::OperatorCall;
use crate::model::broken;
use crate::op::OptionField;
use systole_base::Result;

/// How windows move along one dimension.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WindowStride {
    /// Pixels.
    pub size: usize,
    /// Places of a window.
    pub window: usize,
    /// From one position to the next.
    pub stride: usize,
    /// From one place of a window to the next.
    pub dilation: usize,
    /// Places before the picture.
    pub before: usize,
    /// Positions of the window.
    pub positions: usize,
}

impl WindowStride {
    /// As the runtime computes it; `same`: as many positions as the strides leave, else whole windows only.
    ///
    /// # Errors
    /// When no window fits. Sizes and distances are at least 1.
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
            return Err(broken(format!("a window of {effective} does not fit into {size}")));
        }
        let needed = ((positions - 1) * stride).saturating_add(effective);
        let before = if same { needed.saturating_sub(size) / 2 } else { 0 };
        Ok(WindowStride { size, window, stride, dilation, before, positions })
    }

    /// Where the window's place `k` lies at position `at`; `None`: outside.
    #[inline]
    #[must_use]
    pub fn place(&self, at: usize, k: usize) -> Option<usize> {
        (at * self.stride + k * self.dilation).checked_sub(self.before).filter(|&p| p < self.size)
    }
}

/// Rows and columns.
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
    call.operator.is_same().ok_or_else(|| broken(format!("its padding is {padding}")))
}
