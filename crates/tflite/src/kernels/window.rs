//! Windows that slide over pictures: sizes, borders, and which of a window's places lie inside.

use super::call::Call;
use crate::model::broken;
use crate::op::Field;
use systole_base::Result;

/// How windows move along one dimension.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Slide {
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

impl Slide {
    /// As the runtime computes it; `same`: as many positions as the strides leave, else whole windows only.
    ///
    /// # Errors
    /// When no window fits. Sizes and distances are at least 1.
    pub fn new(size: usize, window: usize, stride: usize, dilation: usize, same: bool) -> Result<Slide> {
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
        Ok(Slide { size, window, stride, dilation, before, positions })
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
    call: &Call,
    [h, w]: [usize; 2],
    window: [usize; 2],
    dilated: bool,
) -> Result<[Slide; 2]> {
    let same = is_same(call)?;
    let dilation = |field| if dilated { call.at_least_1(field) } else { Ok(1) };
    let rows = Slide::new(h, window[0], call.at_least_1(Field::StrideH)?, dilation(Field::DilationH)?, same)?;
    let columns =
        Slide::new(w, window[1], call.at_least_1(Field::StrideW)?, dilation(Field::DilationW)?, same)?;
    Ok([rows, columns])
}

pub(super) fn is_same(call: &Call) -> Result<bool> {
    let padding = call.operator.int(Field::Padding);
    call.operator.is_same().ok_or_else(|| broken(format!("its padding is {padding}")))
}
