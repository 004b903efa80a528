//! MobileNetV2: inverted residual blocks with linear bottlenecks.

use super::common::*;

arguments! {
    /// MobileNetV2: `image: T[B, H, W, C] → T[B, classes]`, as Keras's `applications.MobileNetV2`.
    ///
    /// Weights have Keras's names and order. Keras pads with a layer that depends on the image size (`block_1_pad`);
    /// here the convolution pads with `same`, with identical results. Source: Sandler et al. 2018.
    pub struct MobileNetV2 {
        /// Number of classes. Default: 1000.
        pub classes: usize = 1000,
        /// Activation of the last layer. Default: softmax.
        pub classifier_activation: Activation = Activation::Softmax,
        /// Width multiplier: factor of all filter counts. Default: 1.
        pub alpha: f64 = 1.0,
    }
}

/// Filters, strides of the first block, and number of blocks of each stage after the first.
const STAGES: [(usize, usize, usize); 6] =
    [(24, 2, 2), (32, 2, 3), (64, 2, 4), (96, 1, 3), (160, 2, 3), (320, 1, 1)];

impl MobileNetV2 {
    /// Builds MobileNetV2's architecture (layers without weights).
    ///
    /// # Errors
    /// If an argument is 0 or out of range.
    pub fn architecture(&self) -> Result<Architecture> {
        at_least_1("mobilenetv2", "classes", self.classes)?;
        check_alpha("mobilenetv2", self.alpha)?;
        let filters = |n: usize| divisible(n as f64 * self.alpha, 8);
        let image = any_input("image");
        let first = filters(32);
        let x = image
            .apply(conv2d(first, 3).strides(2).padding("same").use_bias(false).name("Conv1"))
            .apply(normalized("bn_Conv1"))
            .apply(relu6("Conv1_relu"));
        let mut x = block(&x, (first, 1, filters(16)), 1, "expanded_conv");
        let (mut channels, mut id) = (filters(16), 0);
        for (n, strides, blocks) in STAGES {
            for k in 0..blocks {
                id += 1;
                let sizes = (channels, 6, filters(n));
                x = block(&x, sizes, if k == 0 { strides } else { 1 }, &format!("block_{id}"));
                channels = filters(n);
            }
        }
        let last = if self.alpha > 1.0 { filters(1280) } else { 1280 };
        let x = x
            .apply(conv2d(last, 1).use_bias(false).name("Conv_1"))
            .apply(normalized("Conv_1_bn"))
            .apply(relu6("out_relu"));
        let y = x
            .apply(global_average_pooling2d().name("global_average_pooling2d"))
            .apply(dense(self.classes).activation(self.classifier_activation).name("predictions"));
        Architecture::functional(&[image], &y)
    }
}

fn normalized(name: &str) -> LayerSpec {
    batch_normalization().epsilon(1e-3).momentum(0.999).name(name)
}

/// Inverted residual block: `x: T[B, H, W, channels] → T[B, H / strides, W / strides, filters]`.
fn block(
    x: &Symbol,
    (channels, expansion, filters): (usize, usize, usize),
    strides: usize,
    name: &str,
) -> Symbol {
    let named = |part: &str| format!("{name}_{part}");
    let mut y = x.clone();
    if expansion > 1 {
        y = y
            .apply(conv2d(channels * expansion, 1).padding("same").use_bias(false).name(named("expand")))
            .apply(normalized(&named("expand_BN")))
            .apply(relu6(&named("expand_relu")));
    }
    let depthwise = depthwise_conv2d(3).strides(strides).padding("same").use_bias(false);
    let y = y
        .apply(depthwise.name(named("depthwise")))
        .apply(normalized(&named("depthwise_BN")))
        .apply(relu6(&named("depthwise_relu")))
        .apply(conv2d(filters, 1).padding("same").use_bias(false).name(named("project")))
        .apply(normalized(&named("project_BN")));
    if channels == filters && strides == 1 { add().name(named("add")).on(&[x, &y]) } else { y }
}
