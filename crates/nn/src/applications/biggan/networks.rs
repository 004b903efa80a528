//! BigGAN's generator and discriminator, built from standard layers.
//!
//! Source: Brock, Donahue and Simonyan 2018, and BigGAN-PyTorch.

use super::options::{BigGan, NormStyle, WeightParametrization};
use crate::layer::activation::Activation;
use crate::layer::initializer::Initializer;
use crate::layers::*;
use crate::model::architecture::{Architecture, Symbol, input, input_of};
use serde_json::Value;
use systole_ir::{DType, Result, TensorType};

fn to_shape<const N: usize>(sizes: [usize; N]) -> LayerSpec {
    reshape(sizes.map(|n| n as i64))
}

fn function(of: Activation) -> LayerSpec {
    activation(serde_json::to_value(of).unwrap_or_default())
}

/// Height and width of the generator's first feature map.
const BOTTOM: usize = 4;

/// Creates the layers of one network with its weight parametrization and initializer.
struct NetworkLayers {
    param: WeightParametrization,
    iterations: usize,
    epsilon: f64,
    init: Value,
}

impl NetworkLayers {
    fn new(
        param: WeightParametrization,
        iterations: usize,
        epsilon: f64,
        init: &Initializer,
    ) -> Result<NetworkLayers> {
        let init = serde_json::to_value(init)
            .map_err(|e| systole_ir::Error::new(systole_ir::ErrorKind::Bug, e.to_string()))?;
        Ok(NetworkLayers { param, iterations, epsilon, init })
    }

    fn of(&self, layer: LayerSpec, name: &str) -> LayerSpec {
        let layer = match self.param {
            WeightParametrization::SN => spectral_normalization(layer)
                .keeps_kernel(true)
                .power_iterations(self.iterations)
                .epsilon(self.epsilon),
            WeightParametrization::None => layer,
        };
        layer.name(name)
    }

    fn conv(&self, filters: usize, size: usize, name: &str) -> LayerSpec {
        self.of(conv2d(filters, size).padding("same").kernel_initializer(self.init.clone()), name)
    }

    /// A 1×1 convolution without bias.
    fn projection(&self, filters: usize, name: &str) -> LayerSpec {
        self.of(conv2d(filters, 1).use_bias(false).kernel_initializer(self.init.clone()), name)
    }

    fn dense(&self, units: usize, bias: bool, name: &str) -> LayerSpec {
        self.of(dense(units).use_bias(bias).kernel_initializer(self.init.clone()), name)
    }

    fn table(&self, rows: usize, width: usize) -> LayerSpec {
        embedding(rows, width).embeddings_initializer(self.init.clone())
    }

    /// SAGAN's self-attention: all pixels attend to keys at half the resolution; its contribution starts at 0.
    fn attention(&self, x: &Symbol, channels: usize, side: usize, name: &str) -> Symbol {
        let named = |part: &str| format!("{name}_{part}");
        let few = (channels / 8).max(1);
        let half = (channels / 2).max(1);
        let flat = |x: Symbol, side: usize, c: usize, part: &str| {
            x.apply(to_shape([side * side, c]).name(named(part)))
        };
        let small = |x: Symbol, part: &str| x.apply(max_pooling2d(2).name(named(part)));
        let query = flat(x.apply(self.projection(few, &named("theta"))), side, few, "queries");
        let key = small(x.apply(self.projection(few, &named("phi"))), "phi_pool");
        let key = flat(key, side / 2, few, "keys");
        let value = small(x.apply(self.projection(half, &named("g"))), "g_pool");
        let value = flat(value, side / 2, half, "values");
        let seen = attention().name(named("softmax")).on(&[&query, &value, &key]);
        let seen = seen.apply(to_shape([side, side, half]).name(named("seen")));
        let seen = seen.apply(self.projection(channels, &named("o")));
        residual_gain().name(name).on(&[x, &seen])
    }
}

/// Shared state for building the generator's blocks.
struct GeneratorBuilder<'a> {
    options: &'a BigGan,
    kernels: NetworkLayers,
    label: Symbol,
    shared: Option<Symbol>,
}

impl GeneratorBuilder<'_> {
    /// Conditional batch normalization with gain 1 + W_g y and shift W_b y.
    fn conditional(&self, x: &Symbol, condition: Option<&Symbol>, channels: usize, name: &str) -> Symbol {
        let named = |part: &str| format!("{name}_{part}");
        let normal = match self.options.norm_style {
            NormStyle::Batch => x.apply(normalization_of(self.options).scale(false).center(false).name(name)),
            NormStyle::None => x.clone(),
        };
        let by_class = |part: &str| {
            let flat = match condition {
                Some(y) => y.apply(self.kernels.dense(channels, false, &named(part))),
                None => {
                    let table = self.kernels.table(self.options.n_classes, channels);
                    self.label.apply(table.name(named(part)))
                }
            };
            flat.apply(to_shape([1, 1, channels]).name(named(&format!("{part}_wide"))))
        };
        let scaled = multiply().name(named("scaled")).on(&[&normal, &by_class("gain")]);
        add().name(named("shifted")).on(&[&normal, &scaled, &by_class("bias")])
    }

    fn block(&self, x: &Symbol, condition: Option<&Symbol>, [from, to]: [usize; 2], i: usize) -> Symbol {
        let named = |part: &str| format!("block{i}_{part}");
        let nl = |x: Symbol, part: &str| x.apply(function(self.options.G_nl).name(named(part)));
        let up = |x: Symbol, part: &str| x.apply(up_sampling2d(2).name(named(part)));
        let h = nl(self.conditional(x, condition, from, &named("bn1")), "nl1");
        let h = up(h, "up").apply(self.kernels.conv(to, 3, &named("conv1")));
        let h = nl(self.conditional(&h, condition, to, &named("bn2")), "nl2");
        let h = h.apply(self.kernels.conv(to, 3, &named("conv2")));
        // A 1×1 convolution commutes with nearest upsampling; this order computes a quarter.
        let short = up(x.apply(self.kernels.conv(to, 1, &named("conv_sc"))), "up_sc");
        add().name(named("add")).on(&[&h, &short])
    }
}

fn normalization_of(options: &BigGan) -> LayerSpec {
    batch_normalization().momentum(0.9).epsilon(options.BN_eps)
}

impl BigGan {
    /// Builds the generator: `z: f32[B, noise], y: i32[B] → f32[B, H, W, 3]`, from −1 to 1.
    ///
    /// # Errors
    /// If an option is invalid.
    pub fn generator(&self) -> Result<Architecture> {
        self.check()?;
        let (z, y) = (input("z", [self.noise()]), input_of("y", DType::I32, []));
        let kernels =
            NetworkLayers::new(self.G_param, self.num_G_SV_itrs, self.SN_eps, &self.G_init.initializer())?;
        let width = if self.shared_dim > 0 { self.shared_dim } else { self.noise() };
        let shared = self.G_shared.then(|| y.apply(kernels.table(self.n_classes, width).name("shared")));
        let slots = self.slots();
        let parts = self.hier.then(|| z.apply(to_shape([slots, self.noise() / slots]).name("z_parts")));
        let part = |i: usize| {
            let all = parts.as_ref()?;
            let cut = cropping1d((i, slots - 1 - i)).name(format!("z{i}_cut"));
            Some(all.apply(cut).apply(flatten().name(format!("z{i}"))))
        };
        let g = GeneratorBuilder { options: self, kernels, label: y.clone(), shared };
        let blocks = self.generator_blocks();
        let first = blocks.first().map_or(0, |b| b[0]);
        let mut x = part(0).unwrap_or(z.clone());
        x = x.apply(g.kernels.dense(first * BOTTOM * BOTTOM, true, "linear"));
        x = x.apply(to_shape([BOTTOM, BOTTOM, first]).name("bottom"));
        let mut side = BOTTOM;
        for (i, &channels) in blocks.iter().enumerate() {
            let condition = match (&g.shared, part(i + 1)) {
                (Some(y), Some(z)) => Some(concatenate(-1).name(format!("block{i}_y")).on(&[y, &z])),
                (shared, _) => shared.clone(),
            };
            x = g.block(&x, condition.as_ref(), channels, i);
            side *= 2;
            if BigGan::attends(&self.G_attn, side) {
                x = g.kernels.attention(&x, channels[1], side, &format!("block{i}_attention"));
            }
        }
        if self.norm_style == NormStyle::Batch {
            x = x.apply(normalization_of(self).name("output_bn"));
        }
        x = x.apply(function(self.G_nl).name("output_nl"));
        x = x.apply(g.kernels.conv(3, 3, "output_conv")).apply(activation("tanh").name("pictures"));
        Architecture::functional(&[z, y], &x)
    }

    /// Builds the projection discriminator: `image: f32[B, H, W, 3], y: i32[B] → f32[B, 1]`.
    ///
    /// # Errors
    /// If an option is invalid.
    pub fn discriminator(&self) -> Result<Architecture> {
        self.check()?;
        let mut side = self.resolution;
        let (image, y) = (input("image", [side, side, 3]), input_of("y", DType::I32, []));
        let kernels =
            NetworkLayers::new(self.D_param, self.num_D_SV_itrs, self.SN_eps, &self.D_init.initializer())?;
        let (mut x, mut channels) = (image.clone(), 3);
        for (i, (to, halves)) in self.discriminator_blocks().into_iter().enumerate() {
            x = self.discriminator_block(&kernels, &x, [channels, to], halves, i);
            channels = to;
            side = if halves { side / 2 } else { side };
            if BigGan::attends(&self.D_attn, side) {
                x = kernels.attention(&x, channels, side, &format!("block{i}_attention"));
            }
        }
        let pooled = x.apply(function(self.D_nl).name("output_nl"));
        let mean = pooled.apply(global_average_pooling2d().name("mean"));
        let sum = mean.apply(rescaling((side * side) as f64).name("sum"));
        let plain = sum.apply(kernels.dense(1, true, "linear"));
        let class = y.apply(kernels.of(kernels.table(self.n_classes, channels), "embed"));
        let projected = dot(1).name("projection").on(&[&class, &sum]);
        Architecture::functional(&[image, y], &add().name("score").on(&[&plain, &projected]))
    }

    fn discriminator_block(
        &self,
        kernels: &NetworkLayers,
        x: &Symbol,
        [from, to]: [usize; 2],
        halves: bool,
        i: usize,
    ) -> Symbol {
        let named = |part: &str| format!("block{i}_{part}");
        let nl = |x: &Symbol, part: &str| x.apply(function(self.D_nl).name(named(part)));
        let pool = |x: Symbol, part: &str| match halves {
            true => x.apply(average_pooling2d(2).name(named(part))),
            false => x,
        };
        let inner = if self.D_wide { to } else { from };
        // The first block has no activation before its first convolution.
        let h = if i > 0 { nl(x, "nl1") } else { x.clone() };
        let h = nl(&h.apply(kernels.conv(inner, 3, &named("conv1"))), "nl2");
        let h = pool(h.apply(kernels.conv(to, 3, &named("conv2"))), "pool");
        // A 1×1 convolution commutes with average pooling; this order computes a quarter.
        let short = pool(x.clone(), "pool_sc");
        let short = match from != to || halves {
            true => short.apply(kernels.conv(to, 1, &named("conv_sc"))),
            false => short,
        };
        add().name(named("add")).on(&[&h, &short])
    }

    /// Builds the trained BigGAN model. Its own layers are the EMA generator, which generates images; `G` and `D` are
    /// the trainable networks.
    ///
    /// # Errors
    /// If an option is invalid.
    pub fn architecture(&self) -> Result<Architecture> {
        let generator = self.generator()?;
        let mut own = generator.clone();
        for node in &mut own.nodes {
            node.layer = node.layer.clone().trainable(false);
        }
        let [image, class] = self.data_types();
        own.with_network("G", generator, &self.input_types())?.with_network(
            "D",
            self.discriminator()?,
            &[image, class],
        )
    }

    /// Types of one sample of the BigGAN generator's inputs: noise and class.
    pub fn input_types(&self) -> [TensorType; 2] {
        [TensorType::new(DType::F32, [self.noise()]), TensorType::new(DType::I32, [])]
    }

    /// Types of one sample of BigGAN's training data: image and class.
    pub fn data_types(&self) -> [TensorType; 2] {
        let side = self.resolution;
        [TensorType::new(DType::F32, [side, side, 3]), TensorType::new(DType::I32, [])]
    }
}
