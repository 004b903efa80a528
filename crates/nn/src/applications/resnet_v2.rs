//! ResNet v2 with pre-activation bottleneck blocks, as Keras's ResNet50V2, ResNet101V2 and ResNet152V2.

use super::common::*;

arguments! {
    /// ResNet v2 with bottleneck blocks: `image: T[B, H, W, C] → T[B, classes]`, as Keras's `applications.ResNet50V2`,
    /// `ResNet101V2` and `ResNet152V2`, which differ in `depths`.
    ///
    /// Weights have Keras's names and order. Source: He, Zhang, Ren and Sun 2016.
    pub struct ResNet50V2 {
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

impl ResNet50V2 {
    /// Returns ResNet-101 v2.
    pub fn of_101() -> ResNet50V2 {
        ResNet50V2 { depths: vec![3, 4, 23, 3], ..ResNet50V2::default() }
    }

    /// Returns ResNet-152 v2.
    pub fn of_152() -> ResNet50V2 {
        ResNet50V2 { depths: vec![3, 8, 36, 3], ..ResNet50V2::default() }
    }

    /// Builds the ResNet v2 architecture (layers without weights).
    ///
    /// # Errors
    /// If an argument is 0, or there are more than 1,000 blocks.
    pub fn architecture(&self) -> Result<Architecture> {
        check_stacks("resnet50v2", self.classes, self.width, &self.depths)?;
        let image = any_input("image");
        let x = image
            .apply(zero_padding2d(3).name("conv1_pad"))
            .apply(conv2d(self.width, 7).strides(2).name("conv1_conv"));
        let mut x = pooled(&x);
        for (stack, &depth) in self.depths.iter().enumerate() {
            for block in 0..depth {
                let is_last = block + 1 == depth && stack + 1 < self.depths.len();
                let name = format!("conv{}_block{}", stack + 2, block + 1);
                x = bottleneck(&x, self.width << stack, if is_last { 2 } else { 1 }, block == 0, &name);
            }
        }
        let x = x.apply(normalized("post_bn")).apply(relu_named("post_relu"));
        Architecture::functional(&[image], &head(&x, self.classes, self.classifier_activation))
    }
}

fn normalized(name: &str) -> LayerSpec {
    batch_normalization().epsilon(1.001e-5).name(name)
}

/// Pre-activation bottleneck block: `x: T[B, H, W, C] → T[B, H / strides, W / strides, 4·filters]`: batch
/// normalization, then 1×1, 3×3 and 1×1 convolutions, added to the input or its projection.
fn bottleneck(x: &Symbol, filters: usize, strides: usize, projects: bool, name: &str) -> Symbol {
    let named = |part: &str| format!("{name}_{part}");
    let before = x.apply(normalized(&named("preact_bn"))).apply(relu_named(&named("preact_relu")));
    let shortcut = match (projects, strides) {
        (true, _) => before.apply(conv2d(4 * filters, 1).strides(strides).name(named("0_conv"))),
        (false, 1) => x.clone(),
        (false, _) => x.apply(max_pooling2d(1).strides(strides).name(named("0_pool"))),
    };
    let convolution = |filters, size| conv2d(filters, size).use_bias(false);
    let y = before
        .apply(convolution(filters, 1).name(named("1_conv")))
        .apply(normalized(&named("1_bn")))
        .apply(relu_named(&named("1_relu")))
        .apply(zero_padding2d(1).name(named("2_pad")))
        .apply(convolution(filters, 3).strides(strides).name(named("2_conv")))
        .apply(normalized(&named("2_bn")))
        .apply(relu_named(&named("2_relu")))
        .apply(conv2d(4 * filters, 1).name(named("3_conv")));
    add().name(named("out")).on(&[&shortcut, &y])
}
