//! The callback that has the model measured with the running means of its weights.

use super::callback_trait::{Callback, FitCx};
use super::config_callback::ConfigCallback;
use serde::{Deserialize, Serialize};
use systole_ir::{Error, ErrorKind, Result};

/// Measures the model with the running means of its weights, which an optimizer with `use_ema` keeps; training goes on with the
/// weights themselves. Where the best model is kept ([`Fit::best`](crate::Fit::best)), it is kept as it was measured. Source: Keras.
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
    /// Whether callbacks see the means too at the end of each epoch: a ModelCheckpoint then saves them.
    pub swap_on_epoch: bool,
}

impl SwapEMAWeights {
    /// For validation alone.
    pub fn new() -> SwapEMAWeights {
        SwapEMAWeights { swap_on_epoch: false }
    }

    /// Whether callbacks see the means too at the end of each epoch. Default: false.
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
            false => Err(Error::new(ErrorKind::Config, "SwapEMAWeights has no running means to swap in")
                .because("the optimizer keeps none")
                .hint("set optimizer.use_ema = true, in Rust .ema(0.99)")),
        }
    }

    fn swaps_averages(&self) -> Option<bool> {
        Some(self.swap_on_epoch)
    }
}
