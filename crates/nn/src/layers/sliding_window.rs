//! Where a window lies on sequences `[B, S, C]`, images `[B, H, W, C]` and volumes `[B, D, H, W, C]`: what convolutions
//! and poolings share.

use super::built_in::*;
use crate::layer::activation::Activation;
use crate::layer::argument::listed;
use systole_ir::op::Convolution;
use systole_ir::op::conv::same_padding;
use systole_ir::{LiteralBuilder, Scalar};

/// A window that moves over one, two or three dimensions of places.
pub(super) struct SlidingWindow {
    /// The layer's class, for messages.
    pub(super) class: &'static str,
    /// What the layer calls the window's size: `kernel_size` or `pool_size`.
    pub(super) argument: &'static str,
    pub(super) size: Vec<usize>,
    pub(super) strides: Vec<usize>,
    pub(super) dilation: Vec<usize>,
    pub(super) padding: Padding,
    /// Whether the padding can be "causal".
    pub(super) takes_causal: bool,
}

impl SlidingWindow {
    /// The window of a kernel.
    pub(super) fn of_kernel<const N: usize>(
        class: &'static str,
        size: Sizes<N>,
        strides: Sizes<N>,
        dilation: Sizes<N>,
        padding: Padding,
    ) -> SlidingWindow {
        let [size, strides, dilation] = [size, strides, dilation].map(|sizes| sizes.0.to_vec());
        SlidingWindow {
            class,
            argument: "kernel_size",
            size,
            strides,
            dilation,
            padding,
            takes_causal: false,
        }
    }

    /// What a convolution with this window is in operators.
    pub(super) fn lowering(
        self,
        kind: ConvolutionKind,
        groups: usize,
        use_bias: bool,
        activation: Activation,
    ) -> LayerLowering {
        let SlidingWindow { strides, dilation, padding, .. } = self;
        LayerLowering::Convolution(lowering::ConvolutionLowering {
            kind,
            strides,
            dilation,
            padding,
            groups,
            use_bias,
            activation,
        })
    }

    /// Errors when a size or step is 0, or the padding is none of the layer's.
    pub(super) fn check(&self) -> Result<()> {
        let named =
            [(self.argument, &self.size), ("strides", &self.strides), ("dilation_rate", &self.dilation)];
        if let Some((name, sizes)) = named.into_iter().find(|(_, sizes)| sizes.contains(&0)) {
            return Err(wrong(self.class, &format!("{name} of at least 1 each"), listed(sizes)));
        }
        if self.padding == Padding::Causal && !self.takes_causal {
            return Err(wrong(
                self.class,
                "a padding of \"valid\" or \"same\"",
                "\"causal\", which Conv1D has",
            ));
        }
        Ok(())
    }

    /// Padding for each dimension of places, or an error when no window fits into the input.
    pub(super) fn padding_for(&self, x: &Tensor) -> Result<Vec<[i64; 2]>> {
        let n = self.size.len();
        let sizes = &x.shape()[1..=n];
        let reach: Vec<usize> = (0..n).map(|i| self.reach(i)).collect();
        let fits = self.padding != Padding::Valid || reach.iter().zip(sizes).all(|(r, size)| r <= size);
        if !fits || sizes.contains(&0) {
            let least: Vec<String> = reach.iter().map(usize::to_string).collect();
            let covers = format!("{} of at least {} (its {})", inputs(n), least.join("×"), self.argument);
            return Err(unfit(self.class, &covers, x.ty())
                .hint("padding \"same\", a smaller window, or fewer poolings and strides before it"));
        }
        Ok((0..n).map(|i| self.padding_along(i, sizes[i])).collect())
    }

    /// Elements that the window spans along a dimension of places, holes included.
    pub(super) fn reach(&self, i: usize) -> usize {
        (self.size[i] - 1).saturating_mul(self.dilation[i]).saturating_add(1)
    }

    fn padding_along(&self, i: usize, n: usize) -> [i64; 2] {
        match self.padding {
            Padding::Valid => [0, 0],
            Padding::Same => same_padding(n, self.size[i], self.strides[i], self.dilation[i]),
            Padding::Causal => [i64::try_from(self.reach(i) - 1).unwrap_or(i64::MAX), 0],
        }
    }

    /// `x: T[B, …, C], kernel: T[…, C / groups, F] → T[B, …', F]`.
    pub(super) fn convolve(
        &self,
        x: &Tensor,
        kernel: &Tensor,
        padding: &[[i64; 2]],
        groups: usize,
    ) -> Tensor {
        let op = Convolution::channels_last(&self.strides, padding, &self.dilation, groups, x.dtype());
        x.convolution(kernel, op)
    }

    /// `→ T[1, …', 1]`: how many of each window's elements lie inside the input.
    pub(super) fn counts(&self, x: &Tensor, padding: &[[i64; 2]]) -> Tensor {
        let n = self.size.len();
        let along: Vec<Vec<usize>> =
            (0..n).map(|i| self.counts_along(i, x.dim(i as isize + 1), padding[i])).collect();
        let places: Vec<usize> = along.iter().map(Vec::len).collect();
        let ty = TensorType::new(x.dtype(), [&[1], places.as_slice(), &[1]].concat());
        let mut counts = LiteralBuilder::new(ty);
        for (at, index) in Shape::new(&places).indices().enumerate() {
            let inside: usize = index.iter().zip(&along).map(|(i, counts)| counts[*i]).product();
            counts.set(at, Scalar::of(x.dtype(), inside as f64));
        }
        x.builder().constant(counts.finish())
    }

    fn counts_along(&self, i: usize, n: usize, [low, high]: [i64; 2]) -> Vec<usize> {
        let (size, stride) = (self.size[i] as i64, self.strides[i]);
        let last = n as i64 + low + high - size;
        let inside = |start: i64| ((start + size).min(n as i64) - start.max(0)).max(0) as usize;
        (0..=last).step_by(stride).map(|start| inside(start - low)).collect()
    }
}

/// What inputs with so many dimensions of places are called.
fn inputs(places: usize) -> &'static str {
    ["sequences", "images", "volumes"].get(places.wrapping_sub(1)).copied().unwrap_or("inputs")
}

/// Errors with a suggestion unless `x` has a batch, so many dimensions of places, and channels.
pub(super) fn check_places(class: &str, places: usize, x: &Tensor) -> Result<()> {
    if x.rank() == places + 2 {
        return Ok(());
    }
    let (needs, hint) = match (places, x.shape().dims()) {
        (2, _) => return check_images(class, x),
        (1, [_, n]) => ("sequences [B, S, C]", format!("put reshape([{n}, 1]) before it")),
        (1, _) => ("sequences [B, S, C]", "put reshape([steps, channels]) before it".to_string()),
        (_, [_, d, h, w]) => {
            ("volumes [B, D, H, W, C]", format!("put reshape([{d}, {h}, {w}, 1]) before it"))
        }
        _ => {
            ("volumes [B, D, H, W, C]", "put reshape([depth, height, width, channels]) before it".to_string())
        }
    };
    Err(unfit(class, needs, x.ty()).hint(hint))
}

/// As [`check_places`], and that there is at least one place.
pub(super) fn check_some_place(class: &str, places: usize, x: &Tensor) -> Result<()> {
    check_places(class, places, x)?;
    if x.shape()[1..=places].contains(&0) {
        let needs = match places {
            1 => "sequences of at least one step [B, S, C]",
            2 => "images of at least one pixel [B, H, W, C]",
            _ => "volumes of at least one place [B, D, H, W, C]",
        };
        return Err(
            unfit(class, needs, x.ty()).hint("look at the layers before it: one of them leaves nothing")
        );
    }
    Ok(())
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
