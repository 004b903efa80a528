//! `SwapEMAWeights` callback: validates with the exponential moving averages (EMA) of the weights.

use super::callback_trait::{Callback, FitCx};
use super::config_callback::ConfigCallback;
use crate::json::{Deserialize, Serialize};
use systole_ir::{Result, err};

/// Callback that validates with the exponential moving averages of the weights, which an optimizer with `use_ema`
/// keeps; training continues with the weights themselves. If the best model is kept ([`Fit::best`](crate::Fit::best)),
/// it has the averages. Source: Keras.
///
/// ```
/// # use systole_data::Dataset;
/// # use systole_ir::Literal;
/// # use systole_nn::{layers::dense, loss::mean_squared_error, optimizer::sgd, Compile, Model};
/// # let x = Literal::from_slice([4, 1], &[0f32, 1., 2., 3.])?;
/// # let data = Dataset::from_tensor_slices([("x", x.clone()), ("label", x)])?.batch(4);
/// # let mut model = Model::sequential([dense(1)]);
/// # model.compile(Compile { optimizer: sgd(0.05).ema(0.9), loss: mean_squared_error(), ..Default::default() })?;
/// use systole_nn::{callback::SwapEMAWeights, Fit};
/// let callbacks = vec![Box::new(SwapEMAWeights::new().swap_on_epoch(true)) as _];
/// let validation = Some(data.clone());
/// assert!(model.fit(&data, Fit { validation, callbacks, ..Default::default() }).is_ok());
/// # Ok::<(), systole_ir::Error>(())
/// ```
#[derive(Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SwapEMAWeights {
    /// Whether callbacks also see the averages at the end of each epoch: a ModelCheckpoint then saves them.
    pub swap_on_epoch: bool,
}

impl SwapEMAWeights {
    /// Creates a callback that swaps in the averages for validation only.
    pub fn new() -> SwapEMAWeights {
        SwapEMAWeights { swap_on_epoch: false }
    }

    /// Sets whether callbacks also see the averages at the end of each epoch. Default: false.
    pub fn swap_on_epoch(mut self, yes: bool) -> Self {
        self.swap_on_epoch = yes;
        self
    }
}

impl ConfigCallback for SwapEMAWeights {}

impl Callback for SwapEMAWeights {
    fn on_train_begin(&mut self, cx: &mut FitCx<'_>) -> Result<()> {
        match cx.model.compile_config().is_some_and(|c| c.optimizer.use_ema) {
            true => Ok(()),
            false => Err(err!(Config, "SwapEMAWeights needs exponential moving averages")
                .because("the optimizer does not keep any")
                .hint("set optimizer.use_ema = true, or call .ema(0.99) in Rust")),
        }
    }

    fn swaps_averages(&self) -> Option<bool> {
        Some(self.swap_on_epoch)
    }
}
