//! Sliding windows of convolution and pooling layers: strides, dilation, padding, and input shape checks.
//!
//! Inputs are sequences `[B, S, C]`, images `[B, H, W, C]` and volumes `[B, D, H, W, C]`.

use super::built_in::*;
use crate::layer::activation::Activation;
use crate::layer::argument::listed;
use systole_ir::op::Convolution;
use systole_ir::op::conv::same_padding;
use systole_ir::{LiteralBuilder, Scalar};

/// A sliding window over one, two or three spatial dimensions.
pub(super) struct SlidingWindow {
    /// Layer class, for messages.
    pub(super) class: &'static str,
    /// The layer's name of the window size: `kernel_size` or `pool_size`.
    pub(super) argument: &'static str,
    pub(super) size: Vec<usize>,
    pub(super) strides: Vec<usize>,
    pub(super) dilation: Vec<usize>,
    pub(super) padding: Padding,
    /// Whether the padding may be "causal".
    pub(super) takes_causal: bool,
}

impl SlidingWindow {
    /// Creates the window of a convolution kernel.
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

    /// Returns the lowering of a convolution with this window.
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

    /// Rejects sizes or strides of 0, and padding modes that the layer does not support.
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
                "\"causal\", which only Conv1D supports",
            ));
        }
        Ok(())
    }

    /// Returns the padding of each spatial dimension, or an error if no window fits into the input.
    pub(super) fn padding_for(&self, x: &Tensor) -> Result<Vec<[i64; 2]>> {
        let n = self.size.len();
        let sizes = &x.shape()[1..=n];
        let reach: Vec<usize> = (0..n).map(|i| self.reach(i)).collect();
        let fits = self.padding != Padding::Valid || reach.iter().zip(sizes).all(|(r, size)| r <= size);
        if !fits || sizes.contains(&0) {
            let least: Vec<String> = reach.iter().map(usize::to_string).collect();
            let covers = format!("{} of at least {} (its {})", inputs(n), least.join("×"), self.argument);
            return Err(unfit(self.class, &covers, x.ty()).hint(
                "use padding \"same\", a smaller window, or fewer pooling layers and strides before the layer",
            ));
        }
        Ok((0..n).map(|i| self.padding_along(i, sizes[i])).collect())
    }

    /// Extent of the window along a spatial dimension, including dilation.
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

    /// Convolves: `x: T[B, …, C], kernel: T[…, C / groups, F] → T[B, …', F]`.
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

    /// Number of each window's elements inside the input: `→ T[1, …', 1]`.
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

/// Name of inputs with this many spatial dimensions.
fn inputs(places: usize) -> &'static str {
    ["sequences", "images", "volumes"].get(places.wrapping_sub(1)).copied().unwrap_or("inputs")
}

/// Rejects inputs that lack a batch, the spatial dimensions or channels; suggests a reshape.
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

/// Like [`check_places`], and rejects empty inputs.
pub(super) fn check_some_place(class: &str, places: usize, x: &Tensor) -> Result<()> {
    check_places(class, places, x)?;
    if x.shape()[1..=places].contains(&0) {
        let needs = match places {
            1 => "sequences of at least one step [B, S, C]",
            2 => "images of at least one pixel [B, H, W, C]",
            _ => "volumes of at least one voxel [B, D, H, W, C]",
        };
        return Err(unfit(class, needs, x.ty())
            .hint("check the preceding layers: one of them outputs an empty array"));
    }
    Ok(())
}

/// Rejects inputs that are not images; suggests a reshape.
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

/// Returns side and channels of square images with `n` elements, if there are such.
fn square(n: usize, channels: usize) -> Option<(usize, usize)> {
    let side = ((n / channels) as f64).sqrt().round() as usize;
    (side > 1 && side.checked_mul(side)?.checked_mul(channels)? == n).then_some((side, channels))
}
