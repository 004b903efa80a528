//! `LambdaCallback`: a callback from closures.

use super::callback_trait::{Callback, FitCx};
use crate::setters::field_setters;
use systole_ir::{Error, Result};

/// Closure for a hook.
type Hook = Box<dyn FnMut(&mut FitCx<'_>) -> Result<()> + Send>;
/// Closure that receives an error.
type ErrorHook = Box<dyn FnMut(&mut FitCx<'_>, &Error) + Send>;

/// Callback made of closures, without its own type. Closures have no state in backups, and cannot be used in
/// configurations.
///
/// ```
/// # use systole_data::Dataset;
/// # use systole_ir::Literal;
/// # use systole_nn::{layers::dense, loss::mean_squared_error, optimizer::sgd, Compile, Model};
/// # let x = Literal::from_slice([4, 1], &[0f32, 1., 2., 3.])?;
/// # let data = Dataset::from_tensor_slices([("x", x.clone()), ("label", x)])?.batch(4);
/// # let mut model = Model::sequential([dense(1)]);
/// # model.compile(Compile { optimizer: sgd(0.05), loss: mean_squared_error(), ..Default::default() })?;
/// use systole_nn::{callback::LambdaCallback, Fit};
/// let stop = LambdaCallback::new().on_epoch_end(|cx| {
///     if cx.logs["loss"] < 100.0 {
///         *cx.stop_because = Some("good enough".into());
///     }
///     Ok(())
/// });
/// let history = model.fit(&data, Fit { epochs: 50, callbacks: vec![Box::new(stop)], ..Default::default() })?;
/// assert_eq!((history.epochs.len(), history.stopped_because.as_deref()), (1, Some("good enough")));
/// # Ok::<(), systole_ir::Error>(())
/// ```
#[derive(Default)]
pub struct LambdaCallback {
    on_train_begin: Option<Hook>,
    on_epoch_begin: Option<Hook>,
    on_train_batch_end: Option<Hook>,
    on_validation_end: Option<Hook>,
    on_epoch_end: Option<Hook>,
    on_exception: Option<ErrorHook>,
    on_train_end: Option<Hook>,
}

impl LambdaCallback {
    /// Creates a [`LambdaCallback`] without closures.
    pub fn new() -> LambdaCallback {
        LambdaCallback::default()
    }
}

field_setters! {
    impl LambdaCallback {
        /// Sets the closure called before the first epoch. Default: none.
        on_train_begin(f: impl FnMut(&mut FitCx<'_>) -> Result<()> + Send + 'static) => Some(Box::new(f));
        /// Sets the closure called before each epoch. Default: none.
        on_epoch_begin(f: impl FnMut(&mut FitCx<'_>) -> Result<()> + Send + 'static) => Some(Box::new(f));
        /// Sets the closure called after each step; devices then wait after each step. Default: none.
        on_train_batch_end(f: impl FnMut(&mut FitCx<'_>) -> Result<()> + Send + 'static) => Some(Box::new(f));
        /// Sets the closure called after a validation within an epoch. Default: none.
        on_validation_end(f: impl FnMut(&mut FitCx<'_>) -> Result<()> + Send + 'static) => Some(Box::new(f));
        /// Sets the closure called after each epoch, including validation. Default: none.
        on_epoch_end(f: impl FnMut(&mut FitCx<'_>) -> Result<()> + Send + 'static) => Some(Box::new(f));
        /// Sets the closure called after the last epoch. Default: none.
        on_train_end(f: impl FnMut(&mut FitCx<'_>) -> Result<()> + Send + 'static) => Some(Box::new(f));
        /// Sets the closure called with the error when training fails. Default: none.
        on_exception(f: impl FnMut(&mut FitCx<'_>, &Error) + Send + 'static) => Some(Box::new(f));
    }
}

fn call(hook: &mut Option<Hook>, cx: &mut FitCx<'_>) -> Result<()> {
    hook.as_mut().map_or(Ok(()), |f| f(cx))
}

impl Callback for LambdaCallback {
    fn wants_batch(&self, _step: u64) -> bool {
        self.on_train_batch_end.is_some()
    }

    fn on_train_begin(&mut self, cx: &mut FitCx<'_>) -> Result<()> {
        call(&mut self.on_train_begin, cx)
    }

    fn on_epoch_begin(&mut self, cx: &mut FitCx<'_>) -> Result<()> {
        call(&mut self.on_epoch_begin, cx)
    }

    fn on_train_batch_end(&mut self, cx: &mut FitCx<'_>) -> Result<()> {
        call(&mut self.on_train_batch_end, cx)
    }

    fn on_validation_end(&mut self, cx: &mut FitCx<'_>) -> Result<()> {
        call(&mut self.on_validation_end, cx)
    }

    fn on_epoch_end(&mut self, cx: &mut FitCx<'_>) -> Result<()> {
        call(&mut self.on_epoch_end, cx)
    }

    fn on_train_end(&mut self, cx: &mut FitCx<'_>) -> Result<()> {
        call(&mut self.on_train_end, cx)
    }

    fn on_exception(&mut self, cx: &mut FitCx<'_>, error: &Error) {
        if let Some(f) = &mut self.on_exception {
            f(cx, error);
        }
    }
}
