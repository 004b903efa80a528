//! `[quantize]`: quantization-aware training (QAT) for int8.

use super::RunConfig;
use super::key_error::{KeyError, unknown};
use serde::{Deserialize, Serialize};
use systole_data::with_defaults;
use systole_ir::Result;
use systole_nn::{Quantize, QuantizeRanges};

/// Range estimators, for `quantize.type`.
const RANGES: [&str; 2] = ["MovingAverage", "Learned"];

with_defaults! {
    /// The `[quantize]` table: quantization-aware training.
    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    pub struct QuantizeSection {
        /// Range estimator: `MovingAverage` of each batch's minimum and maximum, or `Learned` step sizes (LSQ).
        #[serde(rename = "type")]
        pub ranges: String = RANGES[0].into(),
        /// Decay of the moving average. Default: 0.999, less in the first thousand steps
        pub ema_decay: Option<f64> = None,
        /// Whether convolution weights are quantized per output channel, rather than per tensor.
        pub per_channel: bool = true,
        /// Step from which batch normalization uses its moving statistics and stops updating them. Default: never
        pub freeze_bn_delay: Option<u64> = None,
        /// Layers to keep in floating point, by name; `*` is a wildcard.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub skip: Vec<String> = Vec::new(),
    }
}

impl QuantizeSection {
    pub(super) fn quantize(&self) -> Result<Quantize, KeyError> {
        let ranges = match self.ranges.as_str() {
            "MovingAverage" => QuantizeRanges::MovingAverage { ema_decay: self.ema_decay },
            "Learned" => QuantizeRanges::Learned,
            other => {
                return Err(KeyError::of(
                    "quantize.type",
                    unknown("unknown range estimator", other, &RANGES),
                ));
            }
        };
        let made = Quantize {
            ranges,
            per_channel: self.per_channel,
            freeze_bn_delay: self.freeze_bn_delay,
            skip: self.skip.clone(),
        };
        match made.wrong() {
            Some((key, what, hint)) => {
                Err(KeyError::new(&format!("quantize.{key}"), what).hint_setting(hint))
            }
            None => Ok(made),
        }
    }
}

impl RunConfig {
    pub(super) fn check_quantize(&self) -> Result<(), KeyError> {
        let Some(section) = &self.quantize else { return Ok(()) };
        if self.biggan.is_some() {
            return Err(KeyError::new("quantize", "quantize cannot be combined with biggan")
                .hint_setting("remove [quantize]: it does not apply to BigGAN"));
        }
        section.quantize().map(drop)
    }
}
