//! `TerminateOnNaN` callback: ends training if the loss is not finite.

use super::callback_trait::{Callback, FitCx};
use super::config_callback::ConfigCallback;
use crate::json::{Deserialize, Serialize};
use systole_ir::{Error, ErrorKind, Result};

/// Callback that ends training as soon as the loss is NaN or infinite. All training does so even without it; on
/// asynchronous devices, this callback checks after each step.
///
/// ```
/// # use systole_data::Dataset;
/// # use systole_ir::Literal;
/// # use systole_nn::{layers::dense, loss::mean_squared_error, optimizer::sgd, Compile, Model};
/// # let x = Literal::from_slice([4, 1], &[0f32, 1., 2., 3.])?;
/// # let data = Dataset::from_tensor_slices([("x", x.clone()), ("label", x)])?.batch(4);
/// # let mut model = Model::sequential([dense(1)]);
/// # model.compile(Compile { optimizer: sgd(0.05), loss: mean_squared_error(), ..Default::default() })?;
/// use systole_nn::{callback::TerminateOnNaN, Fit};
/// let callbacks = vec![Box::new(TerminateOnNaN::new().raise_error(true)) as _];
/// assert!(model.fit(&data, Fit { callbacks, ..Default::default() }).is_ok());
/// # Ok::<(), systole_ir::Error>(())
/// ```
#[derive(Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TerminateOnNaN {
    /// Whether to end with an error, so that the program fails.
    pub raise_error: bool,
}

impl TerminateOnNaN {
    /// Creates a callback that checks the loss after each step.
    pub fn new() -> TerminateOnNaN {
        TerminateOnNaN { raise_error: false }
    }

    /// Sets whether training ends with an error, so that the program fails. Default: `false`.
    pub fn raise_error(mut self, yes: bool) -> Self {
        self.raise_error = yes;
        self
    }
}

impl ConfigCallback for TerminateOnNaN {}

impl Callback for TerminateOnNaN {
    fn on_train_batch_end(&mut self, cx: &mut FitCx<'_>) -> Result<()> {
        if cx.logs.get("loss").is_some_and(|v| !v.is_finite()) {
            let what = || format!("the loss is not finite at step {}", cx.model.steps());
            let why = cx.stop_because.get_or_insert_with(what);
            if self.raise_error {
                let (what, because) = why.split_once(": ").unwrap_or((why, "its value is not a number"));
                return Err(Error::new(ErrorKind::Data, what).because(because).hint(
                    "try a smaller learning rate; without raise_error, training ends without an error and the \
                    model is saved",
                ));
            }
        }
        Ok(())
    }
}
