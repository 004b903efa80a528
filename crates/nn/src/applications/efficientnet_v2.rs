//! EfficientNetV2: MBConv blocks with squeeze-and-excitation, after Fused-MBConv blocks.

use super::common::*;

/// EfficientNetV2: `image: T[B, H, W, C] → T[B, classes]`, as Keras's `applications.EfficientNetV2B0` to
/// `EfficientNetV2B3`, `EfficientNetV2S`, `EfficientNetV2M` and `EfficientNetV2L`, which differ in `size` and the two
/// coefficients.
///
/// Weights have Keras's names and order; kernels are initialized by `he_normal`, where Keras uses the variance 2 /
/// fan_out. Pixels are 0 to 255; the first layers normalize them, unless `include_preprocessing` is false. Source: Tan
/// and Le 2021.
///
/// ```
/// use systole_nn::{Model, applications::EfficientNetV2};
/// use systole_ir::{DType, TensorType};
/// let small = EfficientNetV2 { classes: 10, width_coefficient: 0.25, depth_coefficient: 0.3, ..Default::default() };
/// let mut small = Model::new(small.architecture()?);
/// small.build(&[TensorType::new(DType::F32, [32, 32, 3])])?;
/// assert_eq!(small.output_type().unwrap().shape.dims(), [10]);
/// # Ok::<(), systole_ir::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EfficientNetV2 {
    /// Variant: `"b0"` to `"b3"`, which have the same blocks, `"s"`, `"m"` or `"l"`.
    pub size: String,
    /// Number of classes. Default: 1000.
    pub classes: usize,
    /// Activation of the last layer. Default: softmax.
    pub classifier_activation: Activation,
    /// Width multiplier; filters are rounded to multiples of `depth_divisor`.
    pub width_coefficient: f64,
    /// Depth multiplier; the number of blocks is rounded up.
    pub depth_coefficient: f64,
    /// Dropout rate before the last layer. Default: 0.2.
    pub dropout_rate: f64,
    /// Stochastic depth rate of the last block; earlier blocks have lower rates. Default: 0.2.
    pub drop_connect_rate: f64,
    /// Divisor of all filter counts. Default: 8.
    pub depth_divisor: usize,
    /// Minimum filters of a layer. Default: 8.
    pub min_depth: usize,
    /// Whether the first layers normalize pixels from 0..255. Default: true.
    pub include_preprocessing: bool,
}

impl Default for EfficientNetV2 {
    fn default() -> EfficientNetV2 {
        EfficientNetV2::of("b0", 1.0, 1.0)
    }
}

/// Block settings of a stage.
#[derive(Clone, Copy)]
struct EfficientNetV2Stage {
    repeats: usize,
    input: usize,
    output: usize,
    expand: usize,
    /// Whether the blocks have squeeze-and-excitation, with a quarter of their input channels.
    has_gate: bool,
    strides: usize,
    /// Whether expansion and depthwise convolution are fused into one convolution (Fused-MBConv).
    is_fused: bool,
}

/// Stage of Fused-MBConv blocks without squeeze-and-excitation.
const fn fused([repeats, input, output, expand, strides]: [usize; 5]) -> EfficientNetV2Stage {
    EfficientNetV2Stage { repeats, input, output, expand, has_gate: false, strides, is_fused: true }
}

/// Stage of MBConv blocks with squeeze-and-excitation.
const fn gated([repeats, input, output, expand, strides]: [usize; 5]) -> EfficientNetV2Stage {
    EfficientNetV2Stage { repeats, input, output, expand, has_gate: true, strides, is_fused: false }
}

const B: &[EfficientNetV2Stage] = &[
    fused([1, 32, 16, 1, 1]),
    fused([2, 16, 32, 4, 2]),
    fused([2, 32, 48, 4, 2]),
    gated([3, 48, 96, 4, 2]),
    gated([5, 96, 112, 6, 1]),
    gated([8, 112, 192, 6, 2]),
];

const S: &[EfficientNetV2Stage] = &[
    fused([2, 24, 24, 1, 1]),
    fused([4, 24, 48, 4, 2]),
    fused([4, 48, 64, 4, 2]),
    gated([6, 64, 128, 4, 2]),
    gated([9, 128, 160, 6, 1]),
    gated([15, 160, 256, 6, 2]),
];

const M: &[EfficientNetV2Stage] = &[
    fused([3, 24, 24, 1, 1]),
    fused([5, 24, 48, 4, 2]),
    fused([5, 48, 80, 4, 2]),
    gated([7, 80, 160, 4, 2]),
    gated([14, 160, 176, 6, 1]),
    gated([18, 176, 304, 6, 2]),
    gated([5, 304, 512, 6, 1]),
];

const L: &[EfficientNetV2Stage] = &[
    fused([4, 32, 32, 1, 1]),
    fused([7, 32, 64, 4, 2]),
    fused([7, 64, 96, 4, 2]),
    gated([10, 96, 192, 4, 2]),
    gated([19, 192, 224, 6, 1]),
    gated([25, 224, 384, 6, 2]),
    gated([7, 384, 640, 6, 1]),
];

/// A block of a stage.
struct EfficientNetV2Block {
    name: String,
    stage: EfficientNetV2Stage,
    input: usize,
    output: usize,
    strides: usize,
    drop: f64,
}

impl EfficientNetV2 {
    /// Returns a variant with Keras's coefficients.
    pub(super) fn of(size: &str, width_coefficient: f64, depth_coefficient: f64) -> EfficientNetV2 {
        EfficientNetV2 {
            size: size.into(),
            classes: 1000,
            classifier_activation: Activation::Softmax,
            width_coefficient,
            depth_coefficient,
            dropout_rate: 0.2,
            drop_connect_rate: 0.2,
            depth_divisor: 8,
            min_depth: 8,
            include_preprocessing: true,
        }
    }

    fn stages(&self) -> Result<&'static [EfficientNetV2Stage]> {
        let name = "efficientnetv2";
        for (argument, value) in
            [("classes", self.classes), ("depth_divisor", self.depth_divisor), ("min_depth", self.min_depth)]
        {
            at_least_1(name, argument, value)?;
        }
        for (argument, value) in
            [("width_coefficient", self.width_coefficient), ("depth_coefficient", self.depth_coefficient)]
        {
            check_factor(name, argument, value)?;
        }
        at_most(name, "depth_divisor", self.depth_divisor, 1 << 16)?;
        at_most(name, "min_depth", self.min_depth, 1 << 16)?;
        match self.size.as_str() {
            "b0" | "b1" | "b2" | "b3" => Ok(B),
            "s" => Ok(S),
            "m" => Ok(M),
            "l" => Ok(L),
            other => {
                let e = err!(Config, "unknown efficientnetv2 size `{other}`");
                Err(e.hint("use one of these sizes: b0, b1, b2, b3, s, m, l"))
            }
        }
    }

    /// Builds EfficientNetV2's architecture (layers without weights).
    ///
    /// # Errors
    /// If an argument is 0 or out of range, or the size is unknown.
    pub fn architecture(&self) -> Result<Architecture> {
        let stages = self.stages()?;
        let image = any_input("image");
        let mut x = self.preprocessed(&image);
        let stem = conv2d(self.filters(stages[0].input), 3).strides(2).padding("same");
        x = convolved(&x, stem, ["stem_conv", "stem_bn"]).apply(silu("stem_activation"));
        for block in self.blocks(stages) {
            x = block.apply(&x);
        }
        let top = conv2d(self.filters(1280), 1).padding("same");
        x = convolved(&x, top, ["top_conv", "top_bn"]).apply(silu("top_activation"));
        x = x.apply(global_average_pooling2d().name("avg_pool"));
        if self.dropout_rate > 0.0 {
            x = x.apply(dropout(self.dropout_rate).name("top_dropout"));
        }
        let head = dense(self.classes).activation(self.classifier_activation).name("predictions");
        Architecture::functional(&[image], &x.apply(head))
    }

    /// Returns the blocks of all stages, in order.
    fn blocks(&self, stages: &'static [EfficientNetV2Stage]) -> Vec<EfficientNetV2Block> {
        let usual: usize = stages.iter().map(|s| s.repeats).sum();
        let mut blocks: Vec<EfficientNetV2Block> = Vec::new();
        for (i, stage) in stages.iter().enumerate() {
            let repeats = (self.depth_coefficient * stage.repeats as f64).ceil() as usize;
            let (input, output) = (self.filters(stage.input), self.filters(stage.output));
            for k in 0..repeats {
                // Keras continues with the characters after z.
                let letter = char::from_u32(u32::from('a') + k as u32).unwrap_or('z');
                blocks.push(EfficientNetV2Block {
                    name: format!("block{}{letter}_", i + 1),
                    stage: *stage,
                    input: if k == 0 { input } else { output },
                    output,
                    strides: if k == 0 { stage.strides } else { 1 },
                    drop: self.drop_connect_rate * blocks.len() as f64 / usual as f64,
                });
            }
        }
        blocks
    }

    fn preprocessed(&self, image: &Symbol) -> Symbol {
        if !self.include_preprocessing {
            return image.clone();
        }
        if !self.size.starts_with('b') {
            return image.apply(rescaling(1.0 / 128.0).offset(-1.0).name("rescaling"));
        }
        let deviations = [0.229f64, 0.224, 0.225];
        let normalized = normalization().mean([0.485, 0.456, 0.406]).variance(deviations.map(|d| d.powi(2)));
        image.apply(rescaling(1.0 / 255.0).name("rescaling")).apply(normalized.name("normalization"))
    }

    /// Scales a filter count: Keras's `round_filters`.
    fn filters(&self, usual: usize) -> usize {
        let wide = usual as f64 * self.width_coefficient + self.depth_divisor as f64 / 2.0;
        (wide as usize / self.depth_divisor * self.depth_divisor).max(self.min_depth)
    }
}

impl EfficientNetV2Block {
    fn named(&self, part: &str) -> String {
        format!("{}{part}", self.name)
    }

    /// Builds the block: `x: T[B, H, W, input] → T[B, H / strides, W / strides, output]`.
    fn apply(&self, x: &Symbol) -> Symbol {
        let wide = self.input * self.stage.expand;
        let mut y = x.clone();
        let expands = self.stage.expand != 1;
        if expands {
            let (size, strides) = if self.stage.is_fused { (3, self.strides) } else { (1, 1) };
            let expansion = conv2d(wide, size).strides(strides).padding("same");
            y = self.convolved(&y, expansion, ["expand_conv", "expand_bn"]);
            y = y.apply(silu(&self.named("expand_activation")));
        }
        if !self.stage.is_fused {
            let depthwise = depthwise_conv2d(3).strides(self.strides).padding("same");
            let depthwise = depthwise.depthwise_initializer("he_normal").use_bias(false);
            y = y.apply(depthwise.name(self.named("dwconv2"))).apply(normalized(&self.named("bn")));
            y = y.apply(silu(&self.named("activation")));
        }
        if self.stage.has_gate {
            y = self.gate(&y, wide);
        }
        let is_whole = self.stage.is_fused && !expands;
        let (size, strides) = if is_whole { (3, self.strides) } else { (1, 1) };
        let projection = conv2d(self.output, size).strides(strides).padding("same");
        y = self.convolved(&y, projection, ["project_conv", "project_bn"]);
        if is_whole {
            y = y.apply(silu(&self.named("project_activation")));
        }
        if self.strides != 1 || self.input != self.output {
            return y;
        }
        if self.drop > 0.0 {
            y = y.apply(dropout(self.drop).noise_shape([0, 1, 1, 1]).name(self.named("drop")));
        }
        add().name(self.named("add")).on(&[&y, x])
    }

    fn convolved(&self, x: &Symbol, convolution: LayerSpec, names: [&str; 2]) -> Symbol {
        let [convolution_name, normalization_name] = names.map(|part| self.named(part));
        convolved(x, convolution, [&convolution_name, &normalization_name])
    }

    /// Squeeze-and-excitation: `x: T[B, H, W, wide] → T[B, H, W, wide]`.
    fn gate(&self, x: &Symbol, wide: usize) -> Symbol {
        let convolution = |filters: usize| conv2d(filters, 1).padding("same").kernel_initializer("he_normal");
        let reduce = convolution((self.input / 4).max(1)).activation("silu").name(self.named("se_reduce"));
        let expand = convolution(wide).activation("sigmoid").name(self.named("se_expand"));
        let y = x
            .apply(global_average_pooling2d().name(self.named("se_squeeze")))
            .apply(reshape([1, 1, wide as i64]).name(self.named("se_reshape")))
            .apply(reduce)
            .apply(expand);
        multiply().name(self.named("se_excite")).on(&[x, &y])
    }
}

fn convolved(x: &Symbol, convolution: LayerSpec, [name, normalization]: [&str; 2]) -> Symbol {
    x.apply(convolution.use_bias(false).kernel_initializer("he_normal").name(name))
        .apply(normalized(normalization))
}

fn normalized(name: &str) -> LayerSpec {
    batch_normalization().momentum(0.9).name(name)
}

fn silu(name: &str) -> LayerSpec {
    activation("silu").name(name)
}
