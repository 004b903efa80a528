//! [`BigGan`]: architecture and training options, named as in BigGAN-PyTorch.

use crate::json::{Deserialize, Serialize};
use crate::layer::activation::Activation;
use crate::layer::initializer::Initializer;
use crate::optimizer::{Optimizer, adam};
use crate::setters::arguments;
use serde::Deserializer;
use systole_ir::{Error, ErrorKind, Result};

/// Parametrization of BigGAN's weights: plain or spectrally normalized.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum WeightParametrization {
    /// Spectral normalization: each kernel is divided by its largest singular value.
    SN,
    /// No normalization.
    #[serde(rename = "none")]
    None,
}

/// Normalization between the generator's convolutions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NormStyle {
    /// Batch normalization with class-conditional gains and shifts.
    #[serde(rename = "bn")]
    Batch,
    /// Only class-conditional gains and shifts.
    #[serde(rename = "nonorm")]
    None,
}

/// Weight initialization of BigGAN: orthogonal, normal or Glorot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Init {
    /// Orthogonal.
    #[serde(rename = "ortho")]
    Ortho,
    /// Normal, with a standard deviation of 0.02.
    N02,
    /// Glorot uniform.
    #[serde(rename = "glorot")]
    Glorot,
    /// Alias of `Glorot`.
    #[serde(rename = "xavier")]
    Xavier,
}

impl Init {
    pub(super) fn initializer(self) -> Initializer {
        match self {
            Init::Ortho => Initializer::Orthogonal { gain: 1.0 },
            Init::N02 => Initializer::RandomNormal { mean: 0.0, stddev: 0.02 },
            Init::Glorot | Init::Xavier => Initializer::GlorotUniform,
        }
    }
}

arguments! {
    /// Options of a BigGAN and its training, with BigGAN-PyTorch's names and defaults. Batch size, epochs, seed,
    /// precision and augmentation are common training options and not included.
    ///
    /// ```
    /// use systole_nn::applications::biggan::BigGan;
    /// let small = BigGan { G_ch: 16, D_ch: 16, ..BigGan::default() };
    /// assert!(small.check().is_ok());
    /// let e = BigGan { resolution: 48, ..BigGan::default() }.check().unwrap_err().to_string();
    /// assert!(e.contains("32, 64, 128, 256"), "{e}");
    /// ```
    #[allow(non_snake_case, reason = "the names of BigGAN-PyTorch's options")]
    pub struct BigGan {
        /// Height and width of images: 32, 64, 128 or 256.
        pub resolution: usize = 32,
        /// Number of classes.
        pub n_classes: usize = 10,
        /// Base channels of the generator: those of its last block; earlier blocks have multiples.
        pub G_ch: usize = 64,
        /// Base channels of the discriminator: those of its first block; later blocks have multiples.
        pub D_ch: usize = 64,
        /// Whether the first convolution of a discriminator block has the output channels; otherwise the input
        /// channels.
        pub D_wide: bool = true,
        /// Whether all conditional normalization layers of the generator share one class embedding.
        pub G_shared: bool = true,
        /// Size of the shared embedding; `0`: the size of the noise.
        pub shared_dim: usize = 0,
        /// Size of the noise vector; with `hier` it is rounded down to a multiple of the number of chunks.
        pub dim_z: usize = 128,
        /// Factor of the noise in training (a variance by name, but a factor in BigGAN-PyTorch).
        pub z_var: f64 = 1.0,
        /// Whether each generator block gets its own chunk of the noise (hierarchical latent space).
        pub hier: bool = true,
        /// Weight parametrization of the generator: `"SN"` (spectral normalization) or `"none"`.
        pub G_param: WeightParametrization = WeightParametrization::SN,
        /// Weight parametrization of the discriminator: `"SN"` (spectral normalization) or `"none"`.
        pub D_param: WeightParametrization = WeightParametrization::SN,
        /// Activation in the generator.
        pub G_nl: Activation = Activation::Relu,
        /// Activation in the discriminator.
        pub D_nl: Activation = Activation::Relu,
        /// Resolutions with self-attention in the generator, joined by `_`; `"0"` for none.
        #[serde(deserialize_with = "sides")]
        pub G_attn: String = "64".into(),
        /// Resolutions with self-attention in the discriminator, joined by `_`; `"0"` for none.
        #[serde(deserialize_with = "sides")]
        pub D_attn: String = "64".into(),
        /// Normalization in the generator: `"bn"` or `"nonorm"`.
        pub norm_style: NormStyle = NormStyle::Batch,
        /// Weight initialization of the generator: `"ortho"`, `"N02"`, `"glorot"` or `"xavier"`.
        pub G_init: Init = Init::Ortho,
        /// Weight initialization of the discriminator, like `G_init`.
        pub D_init: Init = Init::Ortho,
        /// Learning rate of the generator.
        pub G_lr: f64 = 5e-5,
        /// Learning rate of the discriminator.
        pub D_lr: f64 = 2e-4,
        /// Adam's beta_1 for the generator.
        pub G_B1: f64 = 0.0,
        /// Adam's beta_1 for the discriminator.
        pub D_B1: f64 = 0.0,
        /// Adam's beta_2 for the generator.
        pub G_B2: f64 = 0.999,
        /// Adam's beta_2 for the discriminator.
        pub D_B2: f64 = 0.999,
        /// Adam's epsilon.
        pub adam_eps: f64 = 1e-8,
        /// Epsilon of batch normalization.
        pub BN_eps: f64 = 1e-5,
        /// Minimum divisor of spectral normalization.
        pub SN_eps: f64 = 1e-8,
        /// Power iterations per forward pass of the generator.
        pub num_G_SV_itrs: usize = 1,
        /// Power iterations per forward pass of the discriminator.
        pub num_D_SV_itrs: usize = 1,
        /// Batch size of a generator pass; `0`: that of a discriminator pass.
        pub G_batch_size: usize = 0,
        /// Discriminator updates per generator update, each with its own batch.
        pub num_D_steps: usize = 2,
        /// Gradient accumulation: sequential parts of each discriminator update's batch.
        pub num_D_accumulations: usize = 1,
        /// Gradient accumulation: passes per generator update.
        pub num_G_accumulations: usize = 1,
        /// Strength of orthogonal regularization of the generator; `1e-4` in the paper.
        pub G_ortho: f64 = 0.0,
        /// Strength of orthogonal regularization of the discriminator.
        pub D_ortho: f64 = 0.0,
        /// Whether images are generated with an exponential moving average (EMA) of the generator's weights.
        pub ema: bool = true,
        /// Decay of the EMA per step.
        pub ema_decay: f64 = 0.9999,
        /// Step at which the EMA starts; before it, the EMA equals the weights.
        pub ema_start: u64 = 0,
        /// Number of steps between sample grids; one is also written at the end. `0`: only at the end.
        pub save_every: u64 = 2000,
    }
}

/// Supported resolutions.
const RESOLUTIONS: [usize; 4] = [32, 64, 128, 256];

impl BigGan {
    /// Rejects invalid BigGAN options.
    ///
    /// # Errors
    /// Names the first invalid option.
    pub fn check(&self) -> Result<()> {
        let wrong = |key: &str, what: String, hint: &str| {
            Err(Error::new(ErrorKind::Config, what).at(key.to_string()).hint(hint.to_string()))
        };
        if !RESOLUTIONS.contains(&self.resolution) {
            let what = format!("unsupported BigGAN resolution {}", self.resolution);
            return wrong(
                "resolution",
                what,
                "use one of 32, 64, 128, 256; data.image_size resizes the images",
            );
        }
        for (key, n) in self.counts() {
            if n == 0 || n > 1 << 20 {
                return wrong(key, format!("invalid {key} {n}"), "use an integer of at least 1");
            }
        }
        for (key, x) in self.numbers() {
            if !(x >= 0.0 && x.is_finite()) {
                return wrong(key, format!("invalid {key} {x}"), "use a number of at least 0");
            }
        }
        for (key, part) in self.parts() {
            if !(0.0..1.0).contains(&part) {
                return wrong(key, format!("invalid {key} {part}"), "use a number from 0 to below 1");
            }
        }
        for (key, rate) in [("G_lr", self.G_lr), ("D_lr", self.D_lr)] {
            if rate == 0.0 {
                return wrong(
                    key,
                    format!("the learning rate {key} is 0"),
                    "use a typical rate, from 1e-4 to 4e-4",
                );
            }
        }
        if self.hier && !self.G_shared {
            let hint = "set G_shared = true, or hier = false";
            return wrong(
                "hier",
                "hier requires G_shared: chunks of the noise are concatenated with the shared embedding"
                    .into(),
                hint,
            );
        }
        if self.hier && self.dim_z < self.slots() {
            let what = format!("dim_z is {}, but hier splits it into {} chunks", self.dim_z, self.slots());
            return wrong("dim_z", what, "increase dim_z, or set hier = false");
        }
        self.check_attention()
    }

    fn check_attention(&self) -> Result<()> {
        let least = if self.resolution == 32 { 8 } else { 4 };
        for (key, text, blocks) in [
            ("G_attn", &self.G_attn, self.generator_sides()),
            ("D_attn", &self.D_attn, self.discriminator_sides()),
        ] {
            let wrong = |what: String, hint: &str| {
                Err(Error::new(ErrorKind::Config, what).at(key).hint(hint.to_string()))
            };
            for part in text.split('_') {
                match part.trim().parse::<usize>() {
                    Ok(0) => {}
                    Ok(r) if r.is_power_of_two() && r >= least => {}
                    _ => {
                        let what = format!("invalid resolution `{part}` in {key}");
                        return wrong(
                            what,
                            "use resolutions of blocks joined by `_`, such as 64 or 32_64; 0 for none",
                        );
                    }
                }
            }
            let few = blocks.iter().find(|(channels, side)| *channels < 8 && BigGan::attends(text, *side));
            if let Some((channels, side)) = few {
                let what = format!(
                    "self-attention needs at least 8 channels, but at resolution {side} there are {channels}"
                );
                return wrong(what, "use more channels, or no attention: \"0\"");
            }
        }
        Ok(())
    }

    fn counts(&self) -> [(&'static str, usize); 9] {
        [
            ("n_classes", self.n_classes),
            ("G_ch", self.G_ch),
            ("D_ch", self.D_ch),
            ("dim_z", self.dim_z),
            ("num_D_steps", self.num_D_steps),
            ("num_D_accumulations", self.num_D_accumulations),
            ("num_G_accumulations", self.num_G_accumulations),
            ("num_G_SV_itrs", self.num_G_SV_itrs),
            ("num_D_SV_itrs", self.num_D_SV_itrs),
        ]
    }

    fn numbers(&self) -> [(&'static str, f64); 8] {
        [
            ("z_var", self.z_var),
            ("G_lr", self.G_lr),
            ("D_lr", self.D_lr),
            ("adam_eps", self.adam_eps),
            ("BN_eps", self.BN_eps),
            ("SN_eps", self.SN_eps),
            ("G_ortho", self.G_ortho),
            ("D_ortho", self.D_ortho),
        ]
    }

    fn parts(&self) -> [(&'static str, f64); 5] {
        [
            ("G_B1", self.G_B1),
            ("D_B1", self.D_B1),
            ("G_B2", self.G_B2),
            ("D_B2", self.D_B2),
            ("ema_decay", self.ema_decay),
        ]
    }

    /// Returns the Adam optimizers of BigGAN's generator and discriminator.
    pub fn optimizer(&self) -> Optimizer {
        let of = |rate: f64, b1: f64, b2: f64| adam(rate).betas(b1, b2).epsilon(self.adam_eps);
        of(self.G_lr, self.G_B1, self.G_B2).map_optimizer("D", of(self.D_lr, self.D_B1, self.D_B2))
    }

    /// Number of noise chunks with `hier`: one for the first layer, one for each block.
    pub(super) fn slots(&self) -> usize {
        self.generator_blocks().len() + 1
    }

    /// Size of the generator's noise input; with `hier` a multiple of the number of chunks.
    pub fn noise(&self) -> usize {
        if self.hier { self.dim_z / self.slots() * self.slots() } else { self.dim_z }
    }

    /// Input and output channels of each generator block; each block doubles the resolution.
    pub(super) fn generator_blocks(&self) -> Vec<[usize; 2]> {
        let times: &[usize] = match self.resolution {
            32 => &[4, 4, 4, 4],
            64 => &[16, 16, 8, 4, 2],
            128 => &[16, 16, 8, 4, 2, 1],
            _ => &[16, 16, 8, 8, 4, 2, 1],
        };
        times.windows(2).map(|w| [w[0] * self.G_ch, w[1] * self.G_ch]).collect()
    }

    /// Output channels of each discriminator block, and whether it halves the resolution.
    pub(super) fn discriminator_blocks(&self) -> Vec<(usize, bool)> {
        let (times, halving): (&[usize], usize) = match self.resolution {
            32 => (&[4, 4, 4, 4], 2),
            64 => (&[1, 2, 4, 8, 16], 4),
            128 => (&[1, 2, 4, 8, 16, 16], 5),
            _ => (&[1, 2, 4, 8, 8, 16, 16], 6),
        };
        times.iter().enumerate().map(|(i, n)| (n * self.D_ch, i < halving)).collect()
    }

    /// Output channels and resolution of each generator block.
    fn generator_sides(&self) -> Vec<(usize, usize)> {
        self.generator_blocks().iter().enumerate().map(|(i, [_, to])| (*to, 8 << i)).collect()
    }

    /// Output channels and resolution of each discriminator block.
    fn discriminator_sides(&self) -> Vec<(usize, usize)> {
        let mut side = self.resolution;
        let blocks = self.discriminator_blocks().into_iter();
        let each = |(to, halves): (usize, bool)| {
            side = if halves { side / 2 } else { side };
            (to, side)
        };
        blocks.map(each).collect()
    }

    /// Whether self-attention follows a block with this output resolution.
    pub(super) fn attends(text: &str, resolution: usize) -> bool {
        text.split('_').any(|part| part.trim().parse() == Ok(resolution))
    }
}

/// Deserializes resolutions from a string, or a single one from a number.
fn sides<'de, D: Deserializer<'de>>(deserializer: D) -> std::result::Result<String, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum ResolutionArgument {
        One(u64),
        Text(String),
    }
    Ok(match ResolutionArgument::deserialize(deserializer)? {
        ResolutionArgument::One(side) => side.to_string(),
        ResolutionArgument::Text(text) => text,
    })
}
