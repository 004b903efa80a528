//! DenseNet: convolutional network whose layers read the outputs of all earlier layers of their block.

use super::common::*;

arguments! {
    /// DenseNet: `image: T[B, H, W, C] → T[B, classes]`, as Keras's `applications.DenseNet121`, `DenseNet169` and `DenseNet201`, which differ
    /// in `blocks`.
    ///
    /// Weights have Keras's names and order. Source: Huang, Liu, van der Maaten and Weinberger 2016.
    pub struct DenseNet {
        /// Number of classes. Default: 1000.
        pub classes: usize = 1000,
        /// Activation of the last layer. Default: softmax.
        pub classifier_activation: Activation = Activation::Softmax,
        /// Layers per block.
        pub blocks: Vec<usize> = vec![6, 12, 24, 16],
        /// Channels that each layer adds. Default: 32.
        pub growth_rate: usize = 32,
        /// Filters of the first convolution. Default: 64.
        pub width: usize = 64,
    }
}

impl DenseNet {
    /// Returns DenseNet with 169 layers.
    pub fn of_169() -> DenseNet {
        DenseNet { blocks: vec![6, 12, 32, 32], ..DenseNet::default() }
    }

    /// Returns DenseNet with 201 layers.
    pub fn of_201() -> DenseNet {
        DenseNet { blocks: vec![6, 12, 48, 32], ..DenseNet::default() }
    }

    /// Builds DenseNet's architecture (layers without weights).
    ///
    /// # Errors
    /// If an argument is 0, or there are more than 1,000 layers.
    pub fn architecture(&self) -> Result<Architecture> {
        check_stacks("densenet", self.classes, self.width, &self.blocks)?;
        at_least_1("densenet", "growth_rate", self.growth_rate)?;
        let image = any_input("image");
        let x = image
            .apply(zero_padding2d(3).name("zero_padding2d"))
            .apply(conv2d(self.width, 7).strides(2).use_bias(false).name("conv1_conv"))
            .apply(normalized("conv1_bn"))
            .apply(relu_named("conv1_relu"));
        let mut x = x
            .apply(zero_padding2d(1).name("zero_padding2d_1"))
            .apply(max_pooling2d(3).strides(2).name("pool1"));
        let mut channels = self.width;
        for (i, &layers) in self.blocks.iter().enumerate() {
            for k in 0..layers {
                x = self.layer(&x, &format!("conv{}_block{}", i + 2, k + 1));
            }
            channels += layers * self.growth_rate;
            if i + 1 < self.blocks.len() {
                channels /= 2;
                x = transition(&x, channels.max(1), &format!("pool{}", i + 2));
            }
        }
        let x = x.apply(normalized("bn")).apply(relu_named("relu"));
        Architecture::functional(&[image], &head(&x, self.classes, self.classifier_activation))
    }

    /// Dense layer of a block: `x: T[B, H, W, C] → T[B, H, W, C + growth_rate]`.
    fn layer(&self, x: &Symbol, name: &str) -> Symbol {
        let named = |part: &str| format!("{name}_{part}");
        let convolution = |filters, size| conv2d(filters, size).use_bias(false);
        let y = x
            .apply(normalized(&named("0_bn")))
            .apply(relu_named(&named("0_relu")))
            .apply(convolution(4 * self.growth_rate, 1).name(named("1_conv")))
            .apply(normalized(&named("1_bn")))
            .apply(relu_named(&named("1_relu")))
            .apply(convolution(self.growth_rate, 3).padding("same").name(named("2_conv")));
        concatenate(-1).name(named("concat")).on(&[x, &y])
    }
}

fn normalized(name: &str) -> LayerSpec {
    batch_normalization().epsilon(1.001e-5).name(name)
}

/// Transition between blocks: `x: T[B, H, W, C] → T[B, H / 2, W / 2, filters]`.
fn transition(x: &Symbol, filters: usize, name: &str) -> Symbol {
    x.apply(normalized(&format!("{name}_bn")))
        .apply(relu_named(&format!("{name}_relu")))
        .apply(conv2d(filters, 1).use_bias(false).name(format!("{name}_conv")))
        .apply(average_pooling2d(2).strides(2).name(format!("{name}_pool")))
}
