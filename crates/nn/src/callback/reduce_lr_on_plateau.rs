//! `ReduceLROnPlateau` callback: lowers the learning rate when a monitored value stops improving.

use super::callback_trait::{Callback, CallbackState, FitCx};
use super::config_callback::{ArgumentCheck, CallbackRunInfo, ConfigCallback, checked};
use super::learning_rate_scheduler::refuse_schedule;
use super::monitored_value::{Mode, is_better, is_upward, watched};
use crate::json::{Deserialize, Serialize};
use crate::setters::{field_setters, with_defaults};
use serde_json::json;
use systole_ir::{Result, err};

with_defaults! {
    /// Callback that lowers the learning rate when a monitored value has stopped improving.
    ///
    /// ```
    /// # use systole_data::Dataset;
    /// # use systole_ir::Literal;
    /// # use systole_nn::{layers::dense, loss::mean_squared_error, optimizer::sgd, Compile, Model};
    /// # let x = Literal::from_slice([4, 1], &[0f32, 1., 2., 3.])?;
    /// # let data = Dataset::from_tensor_slices([("x", x.clone()), ("label", x)])?.batch(4);
    /// # let mut model = Model::sequential([dense(1)]);
    /// # model.compile(Compile { optimizer: sgd(0.05), loss: mean_squared_error(), ..Default::default() })?;
    /// use systole_nn::{callback::ReduceLROnPlateau, Fit};
    /// let reduce = ReduceLROnPlateau::new("loss").factor(0.5).patience(5).min_lr(1e-5);
    /// model.fit(&data, Fit { epochs: 2, callbacks: vec![Box::new(reduce)], ..Default::default() })?;
    /// assert_eq!(model.learning_rate(), 0.05); // the loss falls
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    #[derive(Serialize, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    pub struct ReduceLROnPlateau {
        /// Monitored value.
        pub monitor: String = "val_loss".into(),
        /// Factor for the learning rate, which must be a number, not a schedule.
        pub factor: f64 = 0.1,
        /// Epochs without improvement before the rate is lowered.
        pub patience: usize = 10,
        /// Epochs after a change that do not count.
        pub cooldown: usize = 0,
        /// Lower bound of the rate.
        pub min_lr: f64 = 0.0,
        #[serde(skip)]
        best: Option<f64> = None,
        #[serde(skip)]
        wait: usize = 0,
        #[serde(skip)]
        cooling: usize = 0,
    }
}

impl ReduceLROnPlateau {
    /// Creates a callback that monitors `monitor` and multiplies the rate by 0.1 after 10 epochs without improvement
    /// (Keras's defaults).
    pub fn new(monitor: &str) -> ReduceLROnPlateau {
        ReduceLROnPlateau { monitor: monitor.into(), ..ReduceLROnPlateau::default() }
    }
}

field_setters! {
    impl ReduceLROnPlateau {
        /// Sets the factor, below 1.
        factor(factor: f64);
        /// Sets the number of epochs without improvement before the rate is lowered.
        patience(patience: usize);
        /// Sets how many epochs after a change do not count.
        cooldown(epochs: usize);
        /// Sets the lower bound of the rate.
        min_lr(min_lr: f64);
    }
}

impl ConfigCallback for ReduceLROnPlateau {
    fn check(&self) -> ArgumentCheck {
        match self.factor >= 0.0 && self.factor < 1.0 {
            true => Ok(()),
            false => Err((
                "factor",
                err!(Config, "factor is {}", self.factor)
                    .because("the learning rate is multiplied by `factor` and must decrease")
                    .hint("choose a factor of at least 0 and below 1; the usual one is 0.1"),
            )),
        }
    }

    fn monitor(&self) -> Option<&str> {
        Some(&self.monitor)
    }

    fn take_place(&mut self, place: &CallbackRunInfo<'_>) {
        self.monitor = (place.logged)(&self.monitor);
    }
}

impl Callback for ReduceLROnPlateau {
    fn state(&self) -> Result<CallbackState> {
        let best = CallbackState::float(self.best);
        let values = json!({"best": best, "wait": self.wait, "cooling": self.cooling});
        Ok(CallbackState { values, ..Default::default() })
    }

    fn restore(&mut self, state: &CallbackState) -> Result<()> {
        self.best = state.float_of("best")?;
        (self.wait, self.cooling) = (state.count("wait")?, state.count("cooling")?);
        Ok(())
    }

    fn wants_batch(&self, _step: u64) -> bool {
        false
    }

    fn on_train_begin(&mut self, cx: &mut FitCx<'_>) -> Result<()> {
        checked(self, "ReduceLROnPlateau")?;
        refuse_schedule(cx, "ReduceLROnPlateau")
    }

    fn on_epoch_end(&mut self, cx: &mut FitCx<'_>) -> Result<()> {
        let Some(value) = watched(&self.monitor, cx.logs)? else { return Ok(()) };
        // Keras's minimum change that counts.
        let improved = is_better(value, self.best, is_upward(Mode::Auto, &self.monitor), 1e-4);
        if improved {
            self.best = Some(value);
        }
        if self.cooling > 0 {
            self.cooling -= 1;
            self.wait = 0;
        }
        if improved {
            self.wait = 0;
        } else if self.cooling == 0 {
            self.wait += 1;
            let rate = cx.model.learning_rate();
            if self.wait >= self.patience && rate > self.min_lr {
                cx.model.set_learning_rate((rate * self.factor).max(self.min_lr));
                self.cooling = self.cooldown;
                self.wait = 0;
            }
        }
        Ok(())
    }
}
