//! NaN propagation for products of infinite or NaN inputs with the zeros of an unpooled gradient.
//!
//! The gradient kernels leave out these products, which are zero for finite inputs.

use smallvec::SmallVec;
use systole_compile::UnpooledGradient;
use systole_ir::TensorType;

/// Geometry that relates the elements of an image to those of the unpooled gradient.
pub struct ZeroProducts {
    /// Elements of a padded image, and of its rows.
    image: usize,
    row: usize,
    channels: usize,
    /// Taps along height and width, and the pixels between adjacent taps.
    taps: [usize; 2],
    tap_steps: [usize; 2],
    /// Height and width of the unpooled gradient, and the image pixels between its adjacent elements.
    size: [usize; 2],
    steps: [usize; 2],
    /// Rows and columns of windows, their height and width, and their strides.
    windows: [usize; 2],
    window: [usize; 2],
    strides: [usize; 2],
    features: usize,
}

impl ZeroProducts {
    /// Creates the geometry for `argmax: u8[B, H', W', F]`, `dk: T[R, S, C, F]`. `image` and `row`: elements of a
    /// padded image and of its rows.
    pub fn new(
        g: &UnpooledGradient,
        argmax: &TensorType,
        dk: &TensorType,
        (image, row, channels): (usize, usize, usize),
    ) -> ZeroProducts {
        let along = |of: &[usize]| [of[0], of[1]];
        ZeroProducts {
            image,
            row,
            channels,
            taps: along(&dk.shape),
            tap_steps: along(&g.conv.strides),
            size: along(&g.full.shape[1..]),
            steps: along(&g.conv.rhs_dilation),
            windows: along(&argmax.shape[1..]),
            window: g.unpool.window,
            strides: g.unpool.strides,
            features: argmax.shape[3],
        }
    }

    /// Sets weight-gradient sums to NaN where an infinite or NaN input meets a zero of the gradient, whose product is
    /// skipped. `x`: the padded image; `argmax`: that of
    /// its windows; `sums`: rows of `row` filters, one for each tap and channel.
    pub fn spoil(&self, x: &[f32], argmax: &[u8], (sums, row): (&mut [f32], usize)) {
        for at in (0..x.len().min(self.image)).filter(|&at| !x[at].is_finite()) {
            let (y, x, c) = (at / self.row, at % self.row / self.channels, at % self.channels);
            for (r, i) in self.meets(0, y) {
                for (s, j) in self.meets(1, x) {
                    let tap = (r * self.taps[1] + s) * self.channels + c;
                    let filters = &mut sums[tap * row..][..self.features];
                    let zeros =
                        filters.iter_mut().enumerate().filter(|(k, _)| !self.is_greatest(argmax, [i, j], *k));
                    zeros.for_each(|(_, sum)| *sum = f32::NAN);
                }
            }
        }
    }

    /// Returns the taps along height (`d = 0`) or width (`d = 1`) that read a pixel, each with the index of the
    /// gradient element that it multiplies.
    fn meets(&self, d: usize, pixel: usize) -> SmallVec<[(usize, usize); 8]> {
        let of = |tap: usize| {
            let from = pixel.checked_sub(tap * self.tap_steps[d])?;
            let at = from / self.steps[d];
            (from.is_multiple_of(self.steps[d]) && at < self.size[d]).then_some((tap, at))
        };
        (0..self.taps[d]).filter_map(of).collect()
    }

    /// Whether an element is the maximum of a window that contains it.
    fn is_greatest(&self, argmax: &[u8], [i, j]: [usize; 2], feature: usize) -> bool {
        let along = |d: usize, at: usize| {
            let first = (at + 1).saturating_sub(self.window[d]).div_ceil(self.strides[d]);
            let end = (at / self.strides[d] + 1).min(self.windows[d]);
            (first..end).map(move |w| (w, at - w * self.strides[d]))
        };
        along(0, i).any(|(h, di)| {
            along(1, j).any(|(w, dj)| {
                let place = argmax[(h * self.windows[1] + w) * self.features + feature];
                usize::from(place) == di * self.window[1] + dj
            })
        })
    }
}
