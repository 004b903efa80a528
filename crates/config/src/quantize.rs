//! `[quantize]`: a model that is trained for eight bits.

use super::RunConfig;
use super::key_error::{KeyError, unknown};
use serde::{Deserialize, Serialize};
use systole_nn::{Quantize, QuantizeRanges};

/// How ranges are found, for `quantize.type`.
const RANGES: [&str; 2] = ["MovingAverage", "Learned"];

/// The `quantize` table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QuantizeSection {
    /// How ranges are found: `MovingAverage` of each batch's least and greatest, or `Learned` steps (LSQ).
    #[serde(default = "moving_average", rename = "type")]
    pub ranges: String,
    /// How much of itself a moving average keeps in a step. Default: 0.999, less in the first thousands
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ema_decay: Option<f64>,
    /// Whether convolutions have a step for each output channel, rather than one.
    #[serde(default = "yes")]
    pub per_channel: bool,
    /// The step from which batch normalisations use their moving statistics, which stay from then on. Default: never
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub freeze_bn_delay: Option<u64>,
    /// Layers that stay in floats, by their names; `*` stands for anything.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub skip: Vec<String>,
}

fn moving_average() -> String {
    RANGES[0].into()
}

fn yes() -> bool {
    true
}

impl QuantizeSection {
    pub(super) fn quantize(&self) -> Result<Quantize, KeyError> {
        let ranges = match self.ranges.as_str() {
            "MovingAverage" => QuantizeRanges::MovingAverage { ema_decay: self.ema_decay },
            "Learned" => QuantizeRanges::Learned,
            other => {
                return Err(KeyError::of("quantize.type", unknown("there are no ranges", other, &RANGES)));
            }
        };
        let made = Quantize {
            ranges,
            per_channel: self.per_channel,
            freeze_bn_delay: self.freeze_bn_delay,
            skip: self.skip.clone(),
        };
        match made.wrong() {
            Some((key, what, hint)) => Err(KeyError::new(&format!("quantize.{key}"), what).hint(hint)),
            None => Ok(made),
        }
    }
}

impl RunConfig {
    pub(super) fn check_quantize(&self) -> Result<(), KeyError> {
        let Some(section) = &self.quantize else { return Ok(()) };
        if self.biggan.is_some() {
            return Err(
                KeyError::new("quantize", "there are both quantize and biggan").hint("leave one of them out")
            );
        }
        section.quantize().map(drop)
    }
}
