//! Where a 2-D window lies on images `[B, H, W, C]`: what convolutions and poolings share.

use super::built_in::*;
use systole_ir::op::conv::same_padding;
use systole_ir::{LiteralBuilder, Scalar};

/// A window that moves over height and width.
pub(super) struct Sliding {
    /// The layer's class, for messages.
    pub(super) class: &'static str,
    /// What the layer calls the window's size: `kernel_size` or `pool_size`.
    pub(super) argument: &'static str,
    pub(super) size: Pair,
    pub(super) strides: Pair,
    pub(super) dilation: Pair,
    pub(super) padding: Padding,
}

impl Sliding {
    /// Errors when a size or step is 0.
    pub(super) fn check(&self) -> Result<()> {
        let named = [(self.argument, self.size), ("strides", self.strides), ("dilation_rate", self.dilation)];
        match named.into_iter().find(|(_, pair)| !pair.is_positive()) {
            Some((name, pair)) => Err(wrong(self.class, &format!("{name} of at least 1 each"), pair)),
            None => Ok(()),
        }
    }

    /// Padding for each of height and width, or an error when no window fits into the image.
    pub(super) fn padding_for(&self, x: &Tensor) -> Result<Vec<[i64; 2]>> {
        let sizes = [x.dim(1), x.dim(2)];
        let reach = [self.reach(0), self.reach(1)];
        let fits = self.padding == Padding::Same || (reach[0] <= sizes[0] && reach[1] <= sizes[1]);
        if !fits || sizes.contains(&0) {
            let covers = format!("images of at least {}×{} (its {})", reach[0], reach[1], self.argument);
            return Err(unfit(self.class, &covers, x.ty())
                .hint("padding \"same\", a smaller window, or fewer poolings and strides before it"));
        }
        Ok((0..2).map(|i| self.padding_along(i, sizes[i])).collect())
    }

    /// Elements that the window spans along height (0) or width (1), holes included.
    fn reach(&self, i: usize) -> usize {
        (self.size.dims()[i] - 1).saturating_mul(self.dilation.dims()[i]).saturating_add(1)
    }

    fn padding_along(&self, i: usize, n: usize) -> [i64; 2] {
        match self.padding {
            Padding::Valid => [0, 0],
            Padding::Same => {
                same_padding(n, self.size.dims()[i], self.strides.dims()[i], self.dilation.dims()[i])
            }
        }
    }

    /// `→ T[1, H', W', 1]`: how many of each window's elements lie inside the image.
    pub(super) fn counts(&self, x: &Tensor, padding: &[[i64; 2]]) -> Tensor {
        let rows = self.counts_along(0, x.dim(1), padding[0]);
        let columns = self.counts_along(1, x.dim(2), padding[1]);
        let ty = TensorType::new(x.dtype(), [1, rows.len(), columns.len(), 1]);
        let mut counts = LiteralBuilder::new(ty);
        for (i, row) in rows.iter().enumerate() {
            for (j, column) in columns.iter().enumerate() {
                counts.set(i * columns.len() + j, Scalar::of(x.dtype(), (row * column) as f64));
            }
        }
        x.builder().constant(counts.finish())
    }

    fn counts_along(&self, i: usize, n: usize, [low, high]: [i64; 2]) -> Vec<usize> {
        let (size, stride) = (self.size.dims()[i] as i64, self.strides.dims()[i]);
        let last = n as i64 + low + high - size;
        let inside = |start: i64| ((start + size).min(n as i64) - start.max(0)).max(0) as usize;
        (0..=last).step_by(stride).map(|start| inside(start - low)).collect()
    }
}

/// Errors with a suggestion when `x` has not the shape of images.
pub(super) fn check_images(class: &str, x: &Tensor) -> Result<()> {
    if x.rank() == 4 {
        return Ok(());
    }
    let hint = match x.shape().dims() {
        [_, h, w] => format!("put reshape([{h}, {w}, 1]) before it"),
        [_, n] => match square(*n, 1).or_else(|| square(*n, 3)) {
            Some((side, channels)) => format!("put reshape([{side}, {side}, {channels}]) before it"),
            None => "put reshape([height, width, channels]) before it".into(),
        },
        _ => "put reshape([height, width, channels]) before it".into(),
    };
    Err(unfit(class, "images [B, H, W, C]", x.ty()).hint(hint))
}

/// The side of square images of `n` elements in `channels`, if they are.
fn square(n: usize, channels: usize) -> Option<(usize, usize)> {
    let side = ((n / channels) as f64).sqrt().round() as usize;
    (side > 1 && side.checked_mul(side)?.checked_mul(channels)? == n).then_some((side, channels))
}
