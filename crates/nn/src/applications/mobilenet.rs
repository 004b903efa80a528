//! MobileNet: depthwise separable convolutions.

use super::common::*;

arguments! {
    /// MobileNet: `image: T[B, H, W, C] → T[B, classes]`, as Keras's `applications.MobileNet`.
    ///
    /// Weights have Keras's names and order. Source: Howard et al. 2017.
    pub struct MobileNet {
        /// Number of classes. Default: 1000.
        pub classes: usize = 1000,
        /// Activation of the last layer. Default: softmax.
        pub classifier_activation: Activation = Activation::Softmax,
        /// Width multiplier: factor of all filter counts. Default: 1.
        pub alpha: f64 = 1.0,
        /// Output channels per input channel of the depthwise convolutions. Default: 1.
        pub depth_multiplier: usize = 1,
        /// Dropout rate before the last layer. Default: 0.001.
        pub dropout: f64 = 1e-3,
    }
}

/// Filters and strides of the 13 blocks.
const BLOCKS: [(usize, usize); 13] = [
    (64, 1),
    (128, 2),
    (128, 1),
    (256, 2),
    (256, 1),
    (512, 2),
    (512, 1),
    (512, 1),
    (512, 1),
    (512, 1),
    (512, 1),
    (1024, 2),
    (1024, 1),
];

impl MobileNet {
    /// Builds MobileNet's architecture (layers without weights).
    ///
    /// # Errors
    /// If an argument is 0 or out of range.
    pub fn architecture(&self) -> Result<Architecture> {
        at_least_1("mobilenet", "classes", self.classes)?;
        at_least_1("mobilenet", "depth_multiplier", self.depth_multiplier)?;
        check_alpha("mobilenet", self.alpha)?;
        let filters = |n: usize| ((n as f64 * self.alpha) as usize).max(1);
        let image = any_input("image");
        let convolution = conv2d(filters(32), 3).padding("same").strides(2).use_bias(false).name("conv1");
        let mut x =
            image.apply(convolution).apply(batch_normalization().name("conv1_bn")).apply(relu6("conv1_relu"));
        for (i, (n, strides)) in BLOCKS.into_iter().enumerate() {
            x = self.block(&x, filters(n), strides, i + 1);
        }
        let y = x
            .apply(global_average_pooling2d().keepdims(true).name("global_average_pooling2d"))
            .apply(dropout(self.dropout).name("dropout"))
            .apply(conv2d(self.classes, 1).padding("same").name("conv_preds"))
            .apply(reshape([self.classes as i64]).name("reshape"))
            .apply(activation(self.classifier_activation).name("predictions"));
        Architecture::functional(&[image], &y)
    }

    /// Depthwise separable block: `x: T[B, H, W, C] → T[B, H / strides, W / strides, filters]`.
    fn block(&self, x: &Symbol, filters: usize, strides: usize, id: usize) -> Symbol {
        let (x, padding) = match strides {
            1 => (x.clone(), "same"),
            _ => (x.apply(zero_padding2d(((0, 1), (0, 1))).name(format!("conv_pad_{id}"))), "valid"),
        };
        let depthwise = depthwise_conv2d(3)
            .padding(padding)
            .strides(strides)
            .depth_multiplier(self.depth_multiplier)
            .use_bias(false)
            .name(format!("conv_dw_{id}"));
        x.apply(depthwise)
            .apply(batch_normalization().name(format!("conv_dw_{id}_bn")))
            .apply(relu6(&format!("conv_dw_{id}_relu")))
            .apply(conv2d(filters, 1).padding("same").use_bias(false).name(format!("conv_pw_{id}")))
            .apply(batch_normalization().name(format!("conv_pw_{id}_bn")))
            .apply(relu6(&format!("conv_pw_{id}_relu")))
    }
}
