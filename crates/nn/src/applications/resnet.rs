//! ResNet v1: Keras's ResNet-50/101/152 with bottleneck blocks, and torchvision's ResNet-18/34 with basic blocks.

use super::common::*;

arguments! {
    /// ResNet v1 with bottleneck blocks: `image: T[B, H, W, C] → T[B, classes]`, as Keras's `applications.ResNet50`,
    /// `ResNet101` and `ResNet152`, which differ in `depths`.
    ///
    /// Weights have Keras's names and order: `conv1_conv/kernel`, …, `conv5_block3_3_bn/moving_variance`,
    /// `predictions/bias`. Source: He, Zhang, Ren and Sun 2015.
    ///
    /// ```
    /// use systole_nn::{Model, applications::ResNet50};
    /// use systole_ir::{DType, TensorType};
    /// let mut small = Model::new(ResNet50 { depths: vec![1, 2], width: 4, classes: 10, ..Default::default() }.architecture()?);
    /// small.build(&[TensorType::new(DType::F32, [32, 32, 3])])?;
    /// assert_eq!(small.output_type().unwrap().shape.dims(), [10]);
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    pub struct ResNet50 {
        /// Number of classes. Default: 1000.
        pub classes: usize = 1000,
        /// Activation of the last layer. Default: softmax.
        pub classifier_activation: Activation = Activation::Softmax,
        /// Blocks per stack.
        pub depths: Vec<usize> = vec![3, 4, 6, 3],
        /// Filters of the first stack's inner convolutions; each stack doubles them. Default: 64.
        pub width: usize = 64,
    }
}

impl ResNet50 {
    /// Returns ResNet-101.
    pub fn of_101() -> ResNet50 {
        ResNet50 { depths: vec![3, 4, 23, 3], ..ResNet50::default() }
    }

    /// Returns ResNet-152.
    pub fn of_152() -> ResNet50 {
        ResNet50 { depths: vec![3, 8, 36, 3], ..ResNet50::default() }
    }

    /// Builds the ResNet architecture (layers without weights).
    ///
    /// # Errors
    /// If an argument is 0, or there are more than 1,000 blocks.
    pub fn architecture(&self) -> Result<Architecture> {
        check_stacks("resnet50", self.classes, self.width, &self.depths)?;
        let image = any_input("image");
        let mut x = stem(&image, self.width);
        for (stack, &depth) in self.depths.iter().enumerate() {
            let filters = self.width << stack;
            for block in 0..depth {
                let strides = if stack > 0 && block == 0 { 2 } else { 1 };
                let name = format!("conv{}_block{}", stack + 2, block + 1);
                x = bottleneck(&x, filters, strides, block == 0, &name);
            }
        }
        let y = head(&x, self.classes, self.classifier_activation);
        Architecture::functional(&[image], &y)
    }
}

/// Bottleneck block: `x: T[B, H, W, C] → T[B, H / strides, W / strides, 4·filters]`: 1×1, 3×3 and 1×1 convolutions,
/// added to the input or, in a stack's first block, to its projection.
fn bottleneck(x: &Symbol, filters: usize, strides: usize, project: bool, name: &str) -> Symbol {
    let part = |k: usize| format!("{name}_{k}");
    let shortcut = match project {
        true => convolved(x, conv2d(4 * filters, 1).strides(strides), &part(0)),
        false => x.clone(),
    };
    let relu = |k: usize| relu_named(&format!("{name}_{k}_relu"));
    let y = convolved(x, conv2d(filters, 1).strides(strides), &part(1)).apply(relu(1));
    let y = convolved(&y, conv2d(filters, 3).padding("same"), &part(2)).apply(relu(2));
    let y = convolved(&y, conv2d(4 * filters, 1), &part(3));
    let sum = add().name(format!("{name}_add")).on(&[&shortcut, &y]);
    sum.apply(relu_named(&format!("{name}_out")))
}

arguments! {
    /// ResNet with basic blocks of two 3×3 convolutions: `image: T[B, H, W, C] → T[B, classes]`, as torchvision's
    /// `resnet18` and `resnet34`, which differ in `depths`.
    ///
    /// Layer names follow the scheme of [`ResNet50`]; convolutions have no bias, as in torchvision. Keras has no such
    /// application. Source: He, Zhang, Ren and Sun 2015.
    ///
    /// ```
    /// use systole_nn::{Model, applications::ResNet18};
    /// use systole_ir::{DType, TensorType};
    /// let mut small = Model::new(ResNet18 { depths: vec![1, 1], width: 4, classes: 10, ..Default::default() }.architecture()?);
    /// small.build(&[TensorType::new(DType::F32, [32, 32, 3])])?;
    /// assert_eq!(small.output_type().unwrap().shape.dims(), [10]);
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    pub struct ResNet18 {
        /// Number of classes. Default: 1000.
        pub classes: usize = 1000,
        /// Activation of the last layer. Default: softmax.
        pub classifier_activation: Activation = Activation::Softmax,
        /// Blocks per stack.
        pub depths: Vec<usize> = vec![2, 2, 2, 2],
        /// Filters of the first stack; each stack doubles them. Default: 64.
        pub width: usize = 64,
    }
}

impl ResNet18 {
    /// Returns ResNet-34.
    pub fn of_34() -> ResNet18 {
        ResNet18 { depths: vec![3, 4, 6, 3], ..ResNet18::default() }
    }

    /// Builds the ResNet architecture (layers without weights).
    ///
    /// # Errors
    /// If an argument is 0, or there are more than 1,000 blocks.
    pub fn architecture(&self) -> Result<Architecture> {
        check_stacks("resnet18", self.classes, self.width, &self.depths)?;
        let image = any_input("image");
        let x = image.apply(zero_padding2d(3).name("conv1_pad"));
        let x = plain(&x, conv2d(self.width, 7).strides(2), "conv1").apply(relu_named("conv1_relu"));
        let mut x = pooled(&x);
        for (stack, &depth) in self.depths.iter().enumerate() {
            for block in 0..depth {
                let strides = if stack > 0 && block == 0 { 2 } else { 1 };
                let name = format!("conv{}_block{}", stack + 2, block + 1);
                x = basic(&x, self.width << stack, strides, &name);
            }
        }
        let y = head(&x, self.classes, self.classifier_activation);
        Architecture::functional(&[image], &y)
    }
}

/// Basic block: `x: T[B, H, W, C] → T[B, H / strides, W / strides, filters]`: two 3×3 convolutions, added to the input
/// or, if its shape differs, to its projection.
fn basic(x: &Symbol, filters: usize, strides: usize, name: &str) -> Symbol {
    let part = |k: usize| format!("{name}_{k}");
    let shortcut = match strides {
        1 => x.clone(),
        _ => plain(x, conv2d(filters, 1).strides(strides), &part(0)),
    };
    // PyTorch pads both sides, whereas Keras's "same" with stride 2 pads the right side.
    let padded = x.apply(zero_padding2d(1).name(format!("{name}_1_pad")));
    let y = plain(&padded, conv2d(filters, 3).strides(strides), &part(1))
        .apply(relu_named(&format!("{name}_1_relu")));
    let y = plain(&y, conv2d(filters, 3).padding("same"), &part(2));
    let sum = add().name(format!("{name}_add")).on(&[&shortcut, &y]);
    sum.apply(relu_named(&format!("{name}_out")))
}

/// A convolution without bias followed by batch normalization.
fn plain(x: &Symbol, convolution: LayerSpec, name: &str) -> Symbol {
    let normalization = batch_normalization().momentum(0.9).epsilon(1e-5).name(format!("{name}_bn"));
    x.apply(convolution.use_bias(false).name(format!("{name}_conv"))).apply(normalization)
}
