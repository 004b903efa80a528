//! `LearningRateScheduler` callback: sets the learning rate by a function of the epoch.

use super::callback_trait::{Callback, FitCx};
use crate::optimizer::schedule::Schedule;
use systole_ir::{Result, err};

/// Rejects a schedule: a callback and a schedule cannot both set the rate.
pub(super) fn refuse_schedule(cx: &FitCx<'_>, who: &str) -> Result<()> {
    let rate = cx.model.compile_config().map(|c| &c.optimizer.learning_rate);
    match rate {
        None | Some(Schedule::Constant(_)) => Ok(()),
        Some(_) => Err(err!(Config, "{who} cannot be combined with a learning-rate schedule")
            .because("the optimizer's schedule sets the learning rate at each step")
            .hint("give the optimizer a number as learning_rate, or remove the callback")),
    }
}

/// Callback that sets the learning rate before each epoch by a function of (epoch, current rate).
///
/// ```
/// # use systole_data::Dataset;
/// # use systole_ir::Literal;
/// # use systole_nn::{layers::dense, loss::mean_squared_error, optimizer::sgd, Compile, Model};
/// # let x = Literal::from_slice([4, 1], &[0f32, 1., 2., 3.])?;
/// # let data = Dataset::from_tensor_slices([("x", x.clone()), ("label", x)])?.batch(4);
/// # let mut model = Model::sequential([dense(1)]);
/// # model.compile(Compile { optimizer: sgd(0.05), loss: mean_squared_error(), ..Default::default() })?;
/// use systole_nn::{callback::LearningRateScheduler, Fit};
/// let halve = LearningRateScheduler(|epoch, rate| if epoch == 0 { rate } else { rate / 2.0 });
/// model.fit(&data, Fit { epochs: 3, callbacks: vec![Box::new(halve)], ..Default::default() })?;
/// assert_eq!(model.learning_rate(), 0.05 / 4.0);
/// # Ok::<(), systole_ir::Error>(())
/// ```
pub struct LearningRateScheduler<F>(pub F);

impl<F: FnMut(usize, f64) -> f64 + Send> Callback for LearningRateScheduler<F> {
    fn wants_batch(&self, _step: u64) -> bool {
        false
    }

    fn on_train_begin(&mut self, cx: &mut FitCx<'_>) -> Result<()> {
        refuse_schedule(cx, "LearningRateScheduler")
    }

    fn on_epoch_begin(&mut self, cx: &mut FitCx<'_>) -> Result<()> {
        let rate = (self.0)(cx.epoch, cx.model.learning_rate());
        cx.model.set_learning_rate(rate);
        Ok(())
    }
}
