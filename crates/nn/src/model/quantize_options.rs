//! Options of training for eight bits.

use crate::layer::quantizer::QuantizeRanges;
use serde::{Deserialize, Serialize};
use systole_ir::{Error, ErrorKind, Result};

/// Training for eight bits: weights and values are rounded to levels of int8 while they stay floats, and gradients pass straight
/// through the rounding. What such a model predicts is what its int8 file predicts.
///
/// Convolutions have a step for each channel (`per_channel`), dense layers one. A batch normalisation after a convolution or dense
/// layer is folded into its weights by the moving statistics before these are rounded. Sources: Jacob et al. 2018; TF-MOT's
/// `quantize_model`; Esser et al. 2020 for [`QuantizeRanges::Learned`].
///
/// ```
/// # use systole_data::Dataset;
/// # use systole_ir::Literal;
/// use systole_nn::{layers::dense, loss::mean_squared_error, optimizer::sgd, Compile, Fit, Model, Quantize};
/// # let x = Literal::from_slice([4, 2], &[0f32, 1., 2., 3., 4., 5., 6., 7.])?;
/// # let y = Literal::from_slice([4], &[1f32, 2., 3., 4.])?;
/// # let data = Dataset::from_tensor_slices([("x", x), ("label", y)])?.batch(2);
/// let mut model = Model::sequential([dense(8).activation("relu"), dense(1)]);
/// let quantize = Some(Quantize::default());
/// model.compile(Compile { optimizer: sgd(0.01), loss: mean_squared_error(), quantize, ..Default::default() })?;
/// model.fit(&data, Fit { epochs: 2, ..Default::default() })?;
/// let ranges = model.trained_ranges()?.unwrap();
/// assert_eq!(ranges.places[0].place, "input");
/// // The first batch has values up to 3, the others bring it on a little.
/// assert!(ranges.places[0].range.0 == 0.0 && ranges.places[0].range.1 > 3.0);
/// # Ok::<(), systole_ir::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Quantize {
    /// How ranges are found. Default: moving averages, `ema_decay: None`.
    pub ranges: QuantizeRanges,
    /// Whether convolutions have a step for each channel. Default: true.
    pub per_channel: bool,
    /// The step from which batch normalisations use their moving statistics, which stay as they are then. Default: never.
    pub freeze_bn_delay: Option<u64>,
    /// Layers that stay in floats, by their names; `*` stands for anything. Default: none.
    pub skip: Vec<String>,
}

impl Default for Quantize {
    fn default() -> Quantize {
        let ranges = QuantizeRanges::MovingAverage { ema_decay: None };
        Quantize { ranges, per_channel: true, freeze_bn_delay: None, skip: Vec::new() }
    }
}

impl Quantize {
    /// The first argument that makes no sense, what is wrong with it, and what to try.
    pub fn wrong(&self) -> Option<(&'static str, String, &'static str)> {
        match self.ranges {
            QuantizeRanges::MovingAverage { ema_decay: Some(ema_decay) }
                if !(0.0..1.0).contains(&ema_decay) =>
            {
                Some((
                    "ema_decay",
                    format!("ema_decay is {ema_decay}"),
                    "give a number from 0 to below 1: 0.999 in TF-MOT",
                ))
            }
            _ => None,
        }
    }

    /// An error for arguments that no run could make right.
    pub fn check(&self) -> Result<()> {
        self.wrong().map_or(Ok(()), |(key, what, hint)| {
            Err(Error::new(ErrorKind::Config, what).at(format!("{key} of quantize")).hint(hint))
        })
    }
}
