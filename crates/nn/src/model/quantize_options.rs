//! Options of quantization-aware training (QAT).

use crate::json::{Deserialize, Serialize};
use crate::layer::quantizer::QuantizeRanges;
use systole_ir::{Error, ErrorKind, Result};

/// Quantization-aware training (QAT): fake-quantizes weights and activations to int8, with straight-through gradients.
///
/// The predictions of such a model equal those of its int8 file. Convolutions have one scale per channel
/// (`per_channel`), dense layers one per kernel. A batch normalization after a convolution or dense layer is folded
/// into its weights, using the moving statistics, before they are rounded. Sources: Jacob et al. 2018; TF-MOT's
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
    /// How activation ranges are estimated. Default: moving averages, `ema_decay: None`.
    pub ranges: QuantizeRanges,
    /// Whether convolutions have one scale per channel. Default: true.
    pub per_channel: bool,
    /// Step from which batch normalization uses and freezes its moving statistics. Default: never.
    pub freeze_bn_delay: Option<u64>,
    /// Names of layers that stay in float; `*` is a wildcard. Default: none.
    pub skip: Vec<String>,
}

impl Default for Quantize {
    fn default() -> Quantize {
        let ranges = QuantizeRanges::MovingAverage { ema_decay: None };
        Quantize { ranges, per_channel: true, freeze_bn_delay: None, skip: Vec::new() }
    }
}

impl Quantize {
    /// Returns the first invalid argument, the problem, and a hint.
    pub fn wrong(&self) -> Option<(&'static str, String, &'static str)> {
        match self.ranges {
            QuantizeRanges::MovingAverage { ema_decay: Some(ema_decay) }
                if !(0.0..1.0).contains(&ema_decay) =>
            {
                Some((
                    "ema_decay",
                    format!("invalid ema_decay {ema_decay}"),
                    "use a number from 0 to below 1: 0.999 in TF-MOT",
                ))
            }
            _ => None,
        }
    }

    /// Rejects invalid arguments of quantization-aware training.
    pub fn check(&self) -> Result<()> {
        self.wrong().map_or(Ok(()), |(key, what, hint)| {
            Err(Error::new(ErrorKind::Config, what).at(format!("{key} of quantize")).hint(hint))
        })
    }
}
