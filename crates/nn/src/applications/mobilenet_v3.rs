//! MobileNetV3: inverted residual blocks with squeeze-and-excitation and hard swish.

use super::common::*;

arguments! {
    /// MobileNetV3: `image: T[B, H, W, 3] → T[B, classes]`, as Keras's `applications.MobileNetV3Small` and
    /// `MobileNetV3Large`, which differ in `size`.
    ///
    /// Weights have Keras's names and order. Pixels are 0 to 255; the first layer rescales them, unless
    /// `include_preprocessing` is false. Keras pads with a layer that depends on the image size; here the convolution
    /// pads with `same`, with identical results. Source: Howard et al. 2019.
    pub struct MobileNetV3 {
        /// Variant: `"small"` or `"large"`.
        pub size: String = "small".into(),
        /// Number of classes. Default: 1000.
        pub classes: usize = 1000,
        /// Activation of the last layer. Default: softmax.
        pub classifier_activation: Activation = Activation::Softmax,
        /// Width multiplier: factor of all filter counts. Default: 1.
        pub alpha: f64 = 1.0,
        /// Whether to leave out squeeze-and-excitation and hard swish, and use 3×3 kernels only. Default: false.
        pub minimalistic: bool = false,
        /// Dropout rate before the last layer. Default: 0.2.
        pub dropout_rate: f64 = 0.2,
        /// Whether the first layer rescales pixels from 0..255 to −1..1. Default: true.
        pub include_preprocessing: bool = true,
    }
}

/// Block settings: expansion factor, filters, large kernel, strides, squeeze-and-excitation, hard swish.
type MobileNetV3Block = (f64, usize, bool, usize, bool, bool);

const SMALL: [MobileNetV3Block; 11] = [
    (1.0, 16, false, 2, true, false),
    (72.0 / 16.0, 24, false, 2, false, false),
    (88.0 / 24.0, 24, false, 1, false, false),
    (4.0, 40, true, 2, true, true),
    (6.0, 40, true, 1, true, true),
    (6.0, 40, true, 1, true, true),
    (3.0, 48, true, 1, true, true),
    (3.0, 48, true, 1, true, true),
    (6.0, 96, true, 2, true, true),
    (6.0, 96, true, 1, true, true),
    (6.0, 96, true, 1, true, true),
];

const LARGE: [MobileNetV3Block; 15] = [
    (1.0, 16, false, 1, false, false),
    (4.0, 24, false, 2, false, false),
    (3.0, 24, false, 1, false, false),
    (3.0, 40, true, 2, true, false),
    (3.0, 40, true, 1, true, false),
    (3.0, 40, true, 1, true, false),
    (6.0, 80, false, 2, false, true),
    (2.5, 80, false, 1, false, true),
    (2.3, 80, false, 1, false, true),
    (2.3, 80, false, 1, false, true),
    (6.0, 112, false, 1, true, true),
    (6.0, 112, false, 1, true, true),
    (6.0, 160, true, 2, true, true),
    (6.0, 160, true, 1, true, true),
    (6.0, 160, true, 1, true, true),
];

impl MobileNetV3 {
    /// Returns MobileNetV3 Large.
    pub fn large() -> MobileNetV3 {
        MobileNetV3 { size: "large".into(), ..MobileNetV3::default() }
    }

    /// Builds MobileNetV3's architecture (layers without weights).
    ///
    /// # Errors
    /// If an argument is 0 or out of range.
    pub fn architecture(&self) -> Result<Architecture> {
        at_least_1("mobilenetv3", "classes", self.classes)?;
        check_alpha("mobilenetv3", self.alpha)?;
        let (blocks, last): (&[MobileNetV3Block], usize) = match self.size.as_str() {
            "small" => (&SMALL, 1024),
            "large" => (&LARGE, 1280),
            other => {
                let e = err!(Config, "unknown mobilenetv3 size `{other}`");
                return Err(e.hint("use one of these sizes: small, large"));
            }
        };
        let image = any_input("image");
        let mut x = image.clone();
        if self.include_preprocessing {
            x = x.apply(rescaling(1.0 / 127.5).offset(-1.0).name("rescaling"));
        }
        x = x
            .apply(conv2d(16, 3).strides(2).padding("same").use_bias(false).name("conv"))
            .apply(normalized("conv_bn"));
        x = self.curve(&x, true, "conv");
        let mut channels = 16;
        for (id, block) in blocks.iter().enumerate() {
            x = self.block(&x, channels, *block, id);
            channels = self.filters(block.1);
        }
        x = x
            .apply(
                conv2d(divisible(channels as f64 * 6.0, 8), 1).padding("same").use_bias(false).name("conv_1"),
            )
            .apply(normalized("conv_1_bn"));
        x = self.curve(&x, true, "conv_1").apply(global_average_pooling2d().keepdims(true).name("avg_pool"));
        let last = if self.alpha > 1.0 { self.filters(last) } else { last };
        x = self.curve(&x.apply(conv2d(last, 1).padding("same").name("conv_2")), true, "conv_2");
        if self.dropout_rate > 0.0 {
            x = x.apply(dropout(self.dropout_rate).name("dropout"));
        }
        let y = x
            .apply(conv2d(self.classes, 1).padding("same").name("logits"))
            .apply(flatten().name("flatten"))
            .apply(activation(self.classifier_activation).name("predictions"));
        Architecture::functional(&[image], &y)
    }

    fn filters(&self, usual: usize) -> usize {
        divisible(usual as f64 * self.alpha, 8)
    }

    /// Hard swish, x · min(max(x + 3, 0), 6) / 6, or ReLU.
    fn curve(&self, x: &Symbol, is_swish: bool, name: &str) -> Symbol {
        if !is_swish || self.minimalistic {
            return x.apply(relu().name(format!("{name}_relu")));
        }
        multiply().name(format!("{name}_hard_swish")).on(&[x, &hard_sigmoid(x, name)])
    }

    /// Inverted residual block: `x: T[B, H, W, channels] → T[B, H / strides, W / strides, filters]`.
    fn block(&self, x: &Symbol, channels: usize, block: MobileNetV3Block, id: usize) -> Symbol {
        let (expansion, usual, is_large, strides, has_gate, is_swish) = block;
        let name = if id == 0 { "expanded_conv".to_string() } else { format!("expanded_conv_{id}") };
        let named = |part: &str| format!("{name}_{part}");
        let (wide, filters) = (divisible(channels as f64 * expansion, 8), self.filters(usual));
        let mut y = x.clone();
        if id > 0 {
            y = y
                .apply(conv2d(wide, 1).padding("same").use_bias(false).name(named("expand")))
                .apply(normalized(&named("expand_bn")));
            y = self.curve(&y, is_swish, &named("expand"));
        }
        let kernel = if is_large && !self.minimalistic { 5 } else { 3 };
        let depthwise = depthwise_conv2d(kernel).strides(strides).padding("same").use_bias(false);
        y = y.apply(depthwise.name(named("depthwise"))).apply(normalized(&named("depthwise_bn")));
        y = self.curve(&y, is_swish, &named("depthwise"));
        if has_gate && !self.minimalistic {
            y = gate(&y, wide, &name);
        }
        y = y
            .apply(conv2d(filters, 1).padding("same").use_bias(false).name(named("project")))
            .apply(normalized(&named("project_bn")));
        if strides == 1 && channels == filters { add().name(named("add")).on(&[x, &y]) } else { y }
    }
}

fn normalized(name: &str) -> LayerSpec {
    batch_normalization().epsilon(1e-3).momentum(0.999).name(name)
}

/// Hard sigmoid: min(max(x + 3, 0), 6) / 6.
fn hard_sigmoid(x: &Symbol, name: &str) -> Symbol {
    x.apply(rescaling(1.0).offset(3.0).name(format!("{name}_plus_3")))
        .apply(relu6(&format!("{name}_relu6")))
        .apply(rescaling(1.0 / 6.0).name(format!("{name}_sixth")))
}

/// Squeeze-and-excitation: `x: T[B, H, W, wide] → T[B, H, W, wide]`.
fn gate(x: &Symbol, wide: usize, name: &str) -> Symbol {
    let named = |part: &str| format!("{name}_squeeze_excite_{part}");
    let y = x
        .apply(global_average_pooling2d().keepdims(true).name(named("avg_pool")))
        .apply(conv2d(divisible(wide as f64 * 0.25, 8), 1).padding("same").name(named("conv")))
        .apply(relu().name(named("relu")))
        .apply(conv2d(wide, 1).padding("same").name(named("conv_1")));
    multiply().name(named("mul")).on(&[x, &hard_sigmoid(&y, &named("gate"))])
}
