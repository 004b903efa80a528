//! [`BigGan`]: what a BigGAN is and how it is trained, by the names of BigGAN-PyTorch's options.

use crate::layer::activation::Activation;
use crate::layer::initializer::Initializer;
use crate::optimizer::{Optimizer, adam};
use crate::setters::with_defaults;
use serde::{Deserialize, Deserializer, Serialize};
use systole_ir::{Error, ErrorKind, Result};

/// How weights are kept from growing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum WeightParametrization {
    /// Spectral normalisation: each kernel is divided by its greatest singular value.
    SN,
    /// Not at all.
    #[serde(rename = "none")]
    None,
}

/// How features are normalised between the generator's convolutions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NormStyle {
    /// By the batch's statistics, with gains and shifts by class.
    #[serde(rename = "bn")]
    Batch,
    /// Not at all, but for the gains and shifts by class.
    #[serde(rename = "nonorm")]
    None,
}

/// How weights start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Init {
    /// Orthogonal.
    #[serde(rename = "ortho")]
    Ortho,
    /// Normal, with a standard deviation of 0.02.
    N02,
    /// Glorot's, uniform.
    #[serde(rename = "glorot")]
    Glorot,
    /// Another name of it.
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

with_defaults! {
    /// A BigGAN and its training: options of BigGAN-PyTorch by their names, with its defaults. What is not here has keys of all trainings:
    /// batch size, epochs, seed, precision, augmentation.
    ///
    /// ```
    /// use systole_nn::applications::biggan::BigGan;
    /// let small = BigGan { G_ch: 16, D_ch: 16, ..BigGan::default() };
    /// assert!(small.check().is_ok());
    /// let e = BigGan { resolution: 48, ..BigGan::default() }.check().unwrap_err().to_string();
    /// assert!(e.contains("32, 64, 128, 256"), "{e}");
    /// ```
    #[allow(non_snake_case, reason = "the names of BigGAN-PyTorch's options")]
    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    pub struct BigGan {
        /// Height and width of pictures: 32, 64, 128 or 256.
        pub resolution: usize = 32,
        /// Number of classes.
        pub n_classes: usize = 10,
        /// Channels of the generator's last block; of those before it a multiple.
        pub G_ch: usize = 64,
        /// Channels of the discriminator's first block; of those after it a multiple.
        pub D_ch: usize = 64,
        /// Whether the first convolution of a discriminator's block has all of its channels; otherwise as many as come in.
        pub D_wide: bool = true,
        /// Whether all of the generator's normalisations read one embedding of the class.
        pub G_shared: bool = true,
        /// Length of that embedding; `0`: as long as the noise.
        pub shared_dim: usize = 0,
        /// Length of the noise; with `hier` it is cut down to a multiple of its parts.
        pub dim_z: usize = 128,
        /// Factor of the noise while training; BigGAN-PyTorch calls it a variance and uses it so.
        pub z_var: f64 = 1.0,
        /// Whether each block of the generator gets a part of the noise of its own, beside the class.
        pub hier: bool = true,
        /// Spectral normalisation of the generator: `"SN"` or `"none"`.
        pub G_param: WeightParametrization = WeightParametrization::SN,
        /// Spectral normalisation of the discriminator: `"SN"` or `"none"`.
        pub D_param: WeightParametrization = WeightParametrization::SN,
        /// Function between the generator's layers.
        pub G_nl: Activation = Activation::Relu,
        /// Function between the discriminator's layers.
        pub D_nl: Activation = Activation::Relu,
        /// Resolutions after which the generator has self-attention, joined by `_`; `"0"`: none.
        #[serde(deserialize_with = "sides")]
        pub G_attn: String = "64".into(),
        /// Resolutions after which the discriminator has self-attention, joined by `_`; `"0"`: none.
        #[serde(deserialize_with = "sides")]
        pub D_attn: String = "64".into(),
        /// Normalisation in the generator: `"bn"` or `"nonorm"`.
        pub norm_style: NormStyle = NormStyle::Batch,
        /// How the generator's weights start: `"ortho"`, `"N02"`, `"glorot"` or `"xavier"`.
        pub G_init: Init = Init::Ortho,
        /// How the discriminator's weights start, as `G_init`.
        pub D_init: Init = Init::Ortho,
        /// Learning rate of the generator.
        pub G_lr: f64 = 5e-5,
        /// Learning rate of the discriminator.
        pub D_lr: f64 = 2e-4,
        /// Adam's first decay rate for the generator.
        pub G_B1: f64 = 0.0,
        /// Adam's first decay rate for the discriminator.
        pub D_B1: f64 = 0.0,
        /// Adam's second decay rate for the generator.
        pub G_B2: f64 = 0.999,
        /// Adam's second decay rate for the discriminator.
        pub D_B2: f64 = 0.999,
        /// Added to Adam's denominators.
        pub adam_eps: f64 = 1e-8,
        /// Added to variances of batch normalisation.
        pub BN_eps: f64 = 1e-5,
        /// Least length that spectral normalisation divides by.
        pub SN_eps: f64 = 1e-8,
        /// Steps of the power method in each forward pass of the generator.
        pub num_G_SV_itrs: usize = 1,
        /// Steps of the power method in each forward pass of the discriminator.
        pub num_D_SV_itrs: usize = 1,
        /// Pictures of one pass of the generator's update; `0`: as many as one pass of the discriminator's has.
        pub G_batch_size: usize = 0,
        /// Updates of the discriminator before one of the generator, each of a batch of its own.
        pub num_D_steps: usize = 2,
        /// Parts in which the batch of one update of the discriminator is computed, one after the other.
        pub num_D_accumulations: usize = 1,
        /// Passes of the generator whose gradients make one update.
        pub num_G_accumulations: usize = 1,
        /// Strength of orthogonal regularisation of the generator; the paper's is `1e-4`.
        pub G_ortho: f64 = 0.0,
        /// Strength of orthogonal regularisation of the discriminator.
        pub D_ortho: f64 = 0.0,
        /// Whether pictures are made with running means of the generator's weights.
        pub ema: bool = true,
        /// How much of the running means a step keeps.
        pub ema_decay: f64 = 0.9999,
        /// Steps until which they are the weights themselves.
        pub ema_start: u64 = 0,
        /// A grid of pictures is written every so many steps, and at the end; `0`: at the end only.
        pub save_every: u64 = 2000,
    }
}

/// Resolutions that there are.
const RESOLUTIONS: [usize; 4] = [32, 64, 128, 256];

impl BigGan {
    /// Errors with the first option that makes no sense, at its name.
    ///
    /// # Errors
    /// See above.
    pub fn check(&self) -> Result<()> {
        let wrong = |key: &str, what: String, hint: &str| {
            Err(Error::new(ErrorKind::Config, what).at(key.to_string()).hint(hint.to_string()))
        };
        if !RESOLUTIONS.contains(&self.resolution) {
            let what = format!("there is no BigGAN of resolution {}", self.resolution);
            return wrong(
                "resolution",
                what,
                "one of 32, 64, 128, 256; data.image_size brings pictures to it",
            );
        }
        for (key, n) in self.counts() {
            if n == 0 || n > 1 << 20 {
                return wrong(key, format!("{key} is {n}"), "choose a number from 1 on");
            }
        }
        for (key, x) in self.numbers() {
            if !(x >= 0.0 && x.is_finite()) {
                return wrong(key, format!("{key} is {x}"), "choose a number of at least 0");
            }
        }
        for (key, part) in self.parts() {
            if !(0.0..1.0).contains(&part) {
                return wrong(key, format!("{key} is {part}"), "choose a number from 0 to below 1");
            }
        }
        for (key, rate) in [("G_lr", self.G_lr), ("D_lr", self.D_lr)] {
            if rate == 0.0 {
                return wrong(key, format!("the learning rate {key} is 0"), "1e-4 to 4e-4 are usual");
            }
        }
        if self.hier && !self.G_shared {
            let hint = "set G_shared = true, or hier = false";
            return wrong(
                "hier",
                "hier needs G_shared: parts of the noise stand beside the shared embedding".into(),
                hint,
            );
        }
        if self.hier && self.dim_z < self.slots() {
            let what = format!("dim_z is {}, and with hier there are {} parts", self.dim_z, self.slots());
            return wrong("dim_z", what, "raise dim_z, or set hier = false");
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
                        let what = format!("`{part}` in {key} is no resolution of a block");
                        return wrong(what, "resolutions joined by `_`, such as 64 or 32_64; 0 for none");
                    }
                }
            }
            let few = blocks.iter().find(|(channels, side)| *channels < 8 && BigGan::attends(text, *side));
            if let Some((channels, side)) = few {
                let what = format!(
                    "self-attention takes an eighth of the channels, and at a resolution of {side} there are {channels}"
                );
                return wrong(what, "have more channels, or no attention: \"0\"");
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

    /// Adam for each of the two networks.
    pub fn optimizer(&self) -> Optimizer {
        let of = |rate: f64, b1: f64, b2: f64| adam(rate).betas(b1, b2).epsilon(self.adam_eps);
        of(self.G_lr, self.G_B1, self.G_B2).map_optimizer("D", of(self.D_lr, self.D_B1, self.D_B2))
    }

    /// Parts that the noise has with `hier`: one for the first layer, one for each block.
    pub(super) fn slots(&self) -> usize {
        self.generator_blocks().len() + 1
    }

    /// Length of the noise that the generator takes: with `hier` a multiple of its parts.
    pub fn noise(&self) -> usize {
        if self.hier { self.dim_z / self.slots() * self.slots() } else { self.dim_z }
    }

    /// Channels into and out of each of the generator's blocks, each of which doubles the resolution.
    pub(super) fn generator_blocks(&self) -> Vec<[usize; 2]> {
        let times: &[usize] = match self.resolution {
            32 => &[4, 4, 4, 4],
            64 => &[16, 16, 8, 4, 2],
            128 => &[16, 16, 8, 4, 2, 1],
            _ => &[16, 16, 8, 8, 4, 2, 1],
        };
        times.windows(2).map(|w| [w[0] * self.G_ch, w[1] * self.G_ch]).collect()
    }

    /// Channels out of each of the discriminator's blocks, and whether it halves the resolution.
    pub(super) fn discriminator_blocks(&self) -> Vec<(usize, bool)> {
        let (times, halving): (&[usize], usize) = match self.resolution {
            32 => (&[4, 4, 4, 4], 2),
            64 => (&[1, 2, 4, 8, 16], 4),
            128 => (&[1, 2, 4, 8, 16, 16], 5),
            _ => (&[1, 2, 4, 8, 8, 16, 16], 6),
        };
        times.iter().enumerate().map(|(i, n)| (n * self.D_ch, i < halving)).collect()
    }

    /// Channels out of each of the generator's blocks, and the resolution.
    fn generator_sides(&self) -> Vec<(usize, usize)> {
        self.generator_blocks().iter().enumerate().map(|(i, [_, to])| (*to, 8 << i)).collect()
    }

    /// Channels out of each of the discriminator's blocks, and the resolution.
    fn discriminator_sides(&self) -> Vec<(usize, usize)> {
        let mut side = self.resolution;
        let blocks = self.discriminator_blocks().into_iter();
        let each = |(to, halves): (usize, bool)| {
            side = if halves { side / 2 } else { side };
            (to, side)
        };
        blocks.map(each).collect()
    }

    /// Whether self-attention follows a block that gives this resolution.
    pub(super) fn attends(text: &str, resolution: usize) -> bool {
        text.split('_').any(|part| part.trim().parse() == Ok(resolution))
    }
}

/// Resolutions as text, of which a single one may be written as a number.
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
