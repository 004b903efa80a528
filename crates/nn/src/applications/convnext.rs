//! ConvNeXt: convolutional network with blocks of a 7×7 depthwise convolution and two dense layers.

use super::common::*;

/// ConvNeXt: `image: T[B, H, W, C] → T[B, classes]`, as Keras's `applications.ConvNeXtTiny`, `ConvNeXtSmall`,
/// `ConvNeXtBase`, `ConvNeXtLarge` and `ConvNeXtXLarge`, which differ in `depths`, `projection_dims` and `name`.
///
/// Weights have Keras's names and order, without the names of the Sequential models that Keras wraps stem and
/// downsampling in. The factors of a LayerScale are named `gamma`. Pixels are 0 to 255 in three channels, unless
/// `include_preprocessing` is false. Source: Liu et al. 2022.
///
/// ```
/// use systole_nn::{Model, applications::ConvNeXt};
/// use systole_ir::{DType, TensorType};
/// let small = ConvNeXt { classes: 10, depths: vec![1, 1], projection_dims: vec![8, 16], ..Default::default() };
/// let mut small = Model::new(small.architecture()?);
/// small.build(&[TensorType::new(DType::F32, [32, 32, 3])])?;
/// assert_eq!(small.output_type().unwrap().shape.dims(), [10]);
/// # Ok::<(), systole_ir::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ConvNeXt {
    /// Prefix of all layer names.
    pub name: String,
    /// Number of classes. Default: 1000.
    pub classes: usize,
    /// Activation of the last layer. Default: softmax.
    pub classifier_activation: Activation,
    /// Blocks per stage; Keras's models have four stages.
    pub depths: Vec<usize>,
    /// Filters per stage.
    pub projection_dims: Vec<usize>,
    /// Stochastic depth rate of the last block; earlier blocks have lower rates. Default: 0.
    pub drop_path_rate: f64,
    /// Initial LayerScale factors; none disables LayerScale. Default: 1e-6.
    pub layer_scale_init_value: Option<f64>,
    /// Whether the first layer normalizes pixels from 0..255. Default: true.
    pub include_preprocessing: bool,
}

impl Default for ConvNeXt {
    fn default() -> ConvNeXt {
        ConvNeXt::of("tiny", 9, 96)
    }
}

impl ConvNeXt {
    /// Returns the variant with `third` blocks in the third stage and `width` filters in the first.
    pub(super) fn of(size: &str, third: usize, width: usize) -> ConvNeXt {
        ConvNeXt {
            name: format!("convnext_{size}"),
            classes: 1000,
            classifier_activation: Activation::Softmax,
            depths: vec![3, 3, third, 3],
            projection_dims: vec![width, 2 * width, 4 * width, 8 * width],
            drop_path_rate: 0.0,
            layer_scale_init_value: Some(1e-6),
            include_preprocessing: true,
        }
    }

    fn check(&self) -> Result<()> {
        let name = "convnext";
        let narrowest = self.projection_dims.iter().copied().min().unwrap_or(0);
        check_stacks(name, self.classes, narrowest, &self.depths)?;
        if self.depths.len() != self.projection_dims.len() {
            let (depths, dims) = (self.depths.len(), self.projection_dims.len());
            return Err(err!(Config, "{name} has {depths} depths, but {dims} projection_dims")
                .hint("set one depth and one entry of projection_dims for each stage"));
        }
        if !(0.0..=1.0).contains(&self.drop_path_rate) {
            return Err(err!(
                Config,
                "{name} needs a drop_path_rate from 0 to 1, got {}",
                self.drop_path_rate
            ));
        }
        Ok(())
    }

    /// Builds ConvNeXt's architecture (layers without weights).
    ///
    /// # Errors
    /// If an argument is 0, there are more than 1,000 blocks, or `projection_dims` does not have one entry per stage.
    pub fn architecture(&self) -> Result<Architecture> {
        self.check()?;
        let image = any_input("image");
        let mut x = image.clone();
        if self.include_preprocessing {
            let deviations = [0.229f64, 0.224, 0.225];
            let normalized = normalization()
                .mean([0.485, 0.456, 0.406].map(|m| m * 255.0))
                .variance(deviations.map(|d| (d * 255.0).powi(2)));
            x = x.apply(normalized.name(self.named("prestem_normalization")));
        }
        let blocks: usize = self.depths.iter().sum();
        let mut done = 0;
        for (stage, (&depth, &filters)) in self.depths.iter().zip(&self.projection_dims).enumerate() {
            x = self.reduced(&x, stage, filters);
            for block in 0..depth {
                let rate = self.drop_path_rate * done as f64 / (blocks - 1).max(1) as f64;
                x = self.block(&x, filters, rate, &format!("stage_{stage}_block_{block}"));
                done += 1;
            }
        }
        let y = x
            .apply(global_average_pooling2d().name(self.named("head_gap")))
            .apply(normalized(self.named("head_layernorm")))
            .apply(dense(self.classes).activation(self.classifier_activation).name(self.named("head_dense")));
        Architecture::functional(&[image], &y)
    }

    fn named(&self, part: &str) -> String {
        format!("{}_{part}", self.name)
    }

    /// Stem or downsampling: `x: T[B, H, W, C] → T[B, H / 4, W / 4, filters]` before the first stage, `T[B, H / 2, W /
    /// 2, filters]` before the others.
    fn reduced(&self, x: &Symbol, stage: usize, filters: usize) -> Symbol {
        let Some(i) = stage.checked_sub(1) else {
            return x
                .apply(conv2d(filters, 4).strides(4).name(self.named("stem_conv")))
                .apply(normalized(self.named("stem_layernorm")));
        };
        x.apply(normalized(self.named(&format!("downsampling_layernorm_{i}"))))
            .apply(conv2d(filters, 2).strides(2).name(self.named(&format!("downsampling_conv_{i}"))))
    }

    /// ConvNeXt block: `x: T[B, H, W, filters] → T[B, H, W, filters]`.
    fn block(&self, x: &Symbol, filters: usize, rate: f64, name: &str) -> Symbol {
        let named = |part: &str| self.named(&format!("{name}_{part}"));
        let depthwise = conv2d(filters, 7).padding("same").groups(filters as i64);
        let mut y = x
            .apply(depthwise.name(named("depthwise_conv")))
            .apply(normalized(named("layernorm")))
            .apply(dense(4 * filters).name(named("pointwise_conv_1")))
            .apply(activation("gelu").name(named("gelu")))
            .apply(dense(filters).name(named("pointwise_conv_2")));
        if let Some(start) = self.layer_scale_init_value {
            y = y.apply(layer_scale(start).projection_dim(filters).name(named("layer_scale")));
        }
        y = match rate > 0.0 {
            true => y.apply(stochastic_depth(rate).name(named("stochastic_depth"))),
            false => y.apply(activation("linear").name(named("identity"))),
        };
        add().name(named("add")).on(&[x, &y])
    }
}

fn normalized(name: String) -> LayerSpec {
    layer_normalization().epsilon(1e-6).name(name)
}
