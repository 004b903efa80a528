//! VGG: stacks of 3×3 convolutions, followed by three dense layers.

use super::common::*;

arguments! {
    /// VGG: `image: T[B, H, W, C] → T[B, classes]`, as Keras's `applications.VGG16` and `VGG19`, which differ in
    /// `depths`.
    ///
    /// Weights have Keras's names and order: `block1_conv1/kernel`, …, `fc2/bias`, `predictions/bias`. The first dense
    /// layer fixes the image size. Source: Simonyan and Zisserman 2014.
    pub struct Vgg {
        /// Number of classes. Default: 1000.
        pub classes: usize = 1000,
        /// Activation of the last layer. Default: softmax.
        pub classifier_activation: Activation = Activation::Softmax,
        /// Convolutions per block, for at most five blocks.
        pub depths: Vec<usize> = vec![2, 2, 3, 3, 3],
        /// Filters of the first block; each block doubles them, up to a factor of eight. Default: 64.
        pub width: usize = 64,
        /// Units of the two dense layers before the last. Default: 4096.
        pub units: usize = 4096,
    }
}

impl Vgg {
    /// Returns VGG-19.
    pub fn of_19() -> Vgg {
        Vgg { depths: vec![2, 2, 4, 4, 4], ..Vgg::default() }
    }

    /// Builds VGG's architecture (layers without weights).
    ///
    /// # Errors
    /// If an argument is 0, or there are more than 1,000 convolutions.
    pub fn architecture(&self) -> Result<Architecture> {
        check_stacks("vgg", self.classes, self.width, &self.depths)?;
        at_least_1("vgg", "units", self.units)?;
        let image = any_input("image");
        let mut x = image.clone();
        for (i, &depth) in self.depths.iter().enumerate() {
            let filters = self.width << i.min(3);
            for k in 0..depth {
                let name = format!("block{}_conv{}", i + 1, k + 1);
                x = x.apply(conv2d(filters, 3).padding("same").activation("relu").name(name));
            }
            x = x.apply(max_pooling2d(2).name(format!("block{}_pool", i + 1)));
        }
        let y = x
            .apply(flatten().name("flatten"))
            .apply(dense(self.units).activation("relu").name("fc1"))
            .apply(dense(self.units).activation("relu").name("fc2"))
            .apply(dense(self.classes).activation(self.classifier_activation).name("predictions"));
        Architecture::functional(&[image], &y)
    }
}
