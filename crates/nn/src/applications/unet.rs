//! U-Net for semantic segmentation: encoder, decoder and skip connections.

use super::common::*;

arguments! {
    /// U-Net: `image: T[B, H, W, C] → T[B, H, W, classes]`: encoder stages of two 3×3 convolutions that halve the
    /// resolution, and decoder stages that double it and concatenate the encoder's output of the same resolution.
    ///
    /// Keras has no such application. Convolutions pad (`same`), so outputs have the image's size, whereas the paper
    /// crops. Height and width must be multiples of 2 to the power of `depth`. Layers: `down1_conv1`, `down1_conv2`,
    /// `down1_pool`, …, `bottom_conv1`, …, `up1_upconv` (a 2×2 transposed convolution), `up1_concat`, `up1_conv1`,
    /// `up1_conv2`, `predictions`. Source: Ronneberger, Fischer and Brox 2015.
    ///
    /// ```
    /// use systole_nn::{Model, applications::UNet};
    /// use systole_ir::{DType, TensorType};
    /// let mut small = Model::new(UNet { classes: 3, depth: 2, width: 4, ..Default::default() }.architecture()?);
    /// small.build(&[TensorType::new(DType::F32, [16, 24, 1])])?;
    /// assert_eq!(small.output_type().unwrap().shape.dims(), [16, 24, 3]);
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    pub struct UNet {
        /// Number of classes per pixel. Default: 2.
        pub classes: usize = 2,
        /// Activation of the last layer. Default: softmax.
        pub classifier_activation: Activation = Activation::Softmax,
        /// Number of times the resolution is halved. Default: 4.
        pub depth: usize = 4,
        /// Filters of the first stage; each stage doubles them. Default: 64.
        pub width: usize = 64,
        /// Convolutions per stage. Default: 2.
        pub convolutions: usize = 2,
        /// Whether batch normalization follows each convolution. Default: false.
        pub batch_normalization: bool = false,
        /// Dropout rate at the lowest resolution. Default: 0.5.
        pub dropout: f64 = 0.5,
    }
}

impl UNet {
    fn check(&self) -> Result<()> {
        for (argument, value) in
            [("classes", self.classes), ("width", self.width), ("convolutions", self.convolutions)]
        {
            at_least_1("unet", argument, value)?;
        }
        at_most("unet", "depth", self.depth, MOST_STACKS)?;
        at_most("unet", "convolutions", self.convolutions, MOST_BLOCKS / MOST_STACKS)?;
        if self.width > usize::MAX >> (MOST_STACKS + 1) {
            return Err(err!(Config, "unet: width {} is too large", self.width));
        }
        Ok(())
    }

    /// Builds U-Net's architecture (layers without weights).
    ///
    /// # Errors
    /// If an argument is 0 or out of range.
    pub fn architecture(&self) -> Result<Architecture> {
        self.check()?;
        let image = any_input("image");
        let mut x = image.clone();
        let mut seen = Vec::new();
        for stage in 0..self.depth {
            x = self.stage(&x, self.width << stage, &format!("down{}", stage + 1));
            seen.push(x.clone());
            x = x.apply(max_pooling2d(2).name(format!("down{}_pool", stage + 1)));
        }
        x = self.stage(&x, self.width << self.depth, "bottom");
        if self.dropout > 0.0 {
            x = x.apply(dropout(self.dropout).name("bottom_dropout"));
        }
        for (stage, seen) in seen.iter().enumerate().rev() {
            let filters = self.width << stage;
            let named = |part: &str| format!("up{}_{part}", stage + 1);
            let wide =
                x.apply(conv2d_transpose(filters, 2).strides(2).activation("relu").name(named("upconv")));
            let both = concatenate(-1).name(named("concat")).on(&[seen, &wide]);
            x = self.stage(&both, filters, &format!("up{}", stage + 1));
        }
        let head = conv2d(self.classes, 1).activation(self.classifier_activation).name("predictions");
        Architecture::functional(&[image], &x.apply(head))
    }

    /// Convolutions of a stage: `x: T[B, H, W, C] → T[B, H, W, filters]`.
    fn stage(&self, x: &Symbol, filters: usize, name: &str) -> Symbol {
        let mut y = x.clone();
        for k in 1..=self.convolutions {
            let convolution = conv2d(filters, 3).padding("same").kernel_initializer("he_normal");
            y = match self.batch_normalization {
                true => y
                    .apply(convolution.use_bias(false).name(format!("{name}_conv{k}")))
                    .apply(batch_normalization().name(format!("{name}_bn{k}")))
                    .apply(relu_named(&format!("{name}_relu{k}"))),
                false => y.apply(convolution.activation("relu").name(format!("{name}_conv{k}"))),
            };
        }
        y
    }
}
