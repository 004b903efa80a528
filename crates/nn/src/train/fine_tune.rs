//! Two-phase fine-tuning as fastai's `fine_tune`: first the head, then all layers with discriminative rates.
//!
//! A callback switches the phase between two epochs, so that both phases are one run: one history, one best model, and
//! backups that resume in either.

use crate::callback::{Callback, CallbackState, FitCx};
use crate::model::gradient_accumulation::AccumulationPhase;
use crate::model::history::History;
use crate::model::{Model, counted};
use crate::optimizer::Optimizer;
use crate::optimizer::schedule::Schedule;
use crate::setters::with_defaults;
use crate::train::fit::Fit;
use crate::train::transfer_learning::{FrozenBatchNorm, layer_of};
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use systole_data::Dataset;
use systole_ir::{Error, ErrorKind, Result, err};

with_defaults! {
    /// Fine-tunes a pretrained model on new data: `freeze_epochs` in which only the head trains, then `epochs` in which
    /// all layers train.
    ///
    /// Each phase is one cycle of the learning rate ([`Schedule::OneCycle`]) with opposite momentum (0.95, 0.85, 0.95).
    /// In the first phase the rate rises to `base_lr` for 99 % of the steps. In the second it rises from 1/`div` to
    /// half of `base_lr` for `pct_start` of the steps. This is the rate of the head; rates of earlier layers fall
    /// geometrically to 1/`lr_mult` of it at the input. Other optimizer arguments are unchanged; its state is reset for
    /// the second phase, as in Keras after recompiling a model. Source: fastai's `Learner.fine_tune`, with its
    /// defaults.
    ///
    /// ```
    /// # use systole_data::Dataset;
    /// # use systole_ir::Literal;
    /// use systole_nn::{layers::dense, optimizer::adam, Compile, FineTune, Fit, Model};
    /// # let x = Literal::from_slice([4, 2], &[-1f32, 0., 1., 0., -1., 1., 1., 1.])?;
    /// # let y = Literal::from_slice([4], &[0i32, 1, 0, 1])?;
    /// # let data = Dataset::from_tensor_slices([("x", x), ("label", y)])?.batch(2);
    /// let mut model = Model::sequential([dense(8).activation("relu").name("body"), dense(2).activation("softmax").name("head")]);
    /// model.compile(Compile { optimizer: adam(1e-3), ..Default::default() })?;
    /// # model.build(&[systole_ir::TensorType::new(systole_ir::DType::F32, [2])])?;
    /// // model.take_weights(&pretrained, None, true)?;
    /// let history = model.fine_tune(&data, FineTune { epochs: 2, ..Default::default() }, Fit::default())?;
    /// assert_eq!(history.epochs.len(), 3); // 1 of the head, 2 of all layers
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    #[derive(Clone, Debug, PartialEq)]
    pub struct FineTune {
        /// Epochs in which all layers train. Default: 1.
        pub epochs: usize = 1,
        /// Initial epochs in which only the head trains. Default: 1.
        pub freeze_epochs: usize = 1,
        /// Highest learning rate of the first phase; the second uses half of it. Default: 0.002.
        pub base_lr: f64 = 2e-3,
        /// Ratio of the learning rates of the head and of the layers next to the input. Default: 100.
        pub lr_mult: f64 = 100.0,
        /// Fraction of the second phase with rising learning rate. Default: 0.3.
        pub pct_start: f64 = 0.3,
        /// Ratio of the second phase's highest and first learning rates. Default: 5.
        pub div: f64 = 5.0,
        /// Number of layer groups with different rates: the head, and equal groups of the layers before it. Default: 3.
        pub groups: usize = 3,
        /// First layer of the head. Default: the last layer with weights.
        pub freeze_until: Option<String> = None,
        /// Behavior of batch normalization before the head in the first phase. Default: it trains.
        pub frozen_batch_norm: FrozenBatchNorm = FrozenBatchNorm::Train,
    }
}

/// fastai's divisor, fraction of rising steps and momentum of the first phase.
const DIV: f64 = 25.0;
const HEAD_PCT_START: f64 = 0.99;
const MOMS: [f64; 3] = [0.95, 0.85, 0.95];
/// Learning-rate factor of batch normalization before the head in the first phase: fastai's `slice(lr)`.
const BODY_PART: f64 = 0.1;

impl FineTune {
    /// Returns an error for invalid fine-tuning arguments.
    pub fn check(&self) -> Result<()> {
        self.wrong().map_or(Ok(()), |(key, what, hint)| {
            Err(Error::new(ErrorKind::Config, what).at(format!("{key} of fine_tune")).hint(hint))
        })
    }

    /// Returns the first invalid fine-tuning argument, the problem and a hint.
    pub fn wrong(&self) -> Option<(&'static str, String, &'static str)> {
        let positive = |x: f64| x > 0.0 && x.is_finite();
        let wrong = |key: &'static str, value: String, hint| Some((key, format!("{key} is {value}"), hint));
        if self.epochs == 0 {
            return wrong("epochs", "0".into(), "epochs must be at least 1");
        }
        if !positive(self.base_lr) {
            return wrong(
                "base_lr",
                self.base_lr.to_string(),
                "choose a learning rate above 0, such as 0.002",
            );
        }
        if !(self.lr_mult >= 1.0 && self.lr_mult.is_finite()) {
            return wrong(
                "lr_mult",
                self.lr_mult.to_string(),
                "choose a value of at least 1, such as fastai's 100",
            );
        }
        if !(0.0..1.0).contains(&self.pct_start) {
            return wrong(
                "pct_start",
                self.pct_start.to_string(),
                "choose a fraction of the steps: at least 0, below 1",
            );
        }
        if !positive(self.div) {
            return wrong("div", self.div.to_string(), "choose a value above 0, such as fastai's 5");
        }
        if self.groups == 0 {
            return wrong("groups", "0".into(), "groups must be at least 1: the head");
        }
        None
    }

    /// Returns the optimizer of a phase, with a one-cycle schedule whose length is set later.
    fn optimizer(&self, base: &Optimizer, is_second: bool, parts: BTreeMap<String, f64>) -> Optimizer {
        let (highest, pct_start, div) = match is_second {
            true => (self.base_lr / 2.0, self.pct_start, self.div),
            false => (self.base_lr, HEAD_PCT_START, DIV),
        };
        let moms = match &base.momentum_schedule {
            Some(Schedule::OneCycleMomentum { moms, .. }) => *moms,
            _ => MOMS,
        };
        let momentum = Schedule::OneCycleMomentum { moms, total_steps: 0, begin: 0, pct_start };
        let mut optimizer = base.clone();
        optimizer.learning_rate = Schedule::OneCycle {
            max_learning_rate: highest,
            total_steps: 0,
            begin: 0,
            pct_start,
            div,
            div_final: 1e5,
        };
        optimizer.momentum_schedule = base.takes_momentum().then_some(momentum);
        optimizer.lr_mult = parts;
        optimizer
    }

    /// Returns the learning-rate factors of trainable layers before the head.
    fn parts(&self, model: &Model, is_second: bool) -> Result<BTreeMap<String, f64>> {
        let (body, _) = model.body_and_head(self.freeze_until.as_deref())?;
        let trained: BTreeSet<&str> =
            model.specs.iter().filter(|s| model.trains(s)).map(|s| layer_of(&s.path)).collect();
        let mut body: Vec<String> = body.into_iter().filter(|name| trained.contains(name.as_str())).collect();
        body.dedup();
        let (n, before) = (body.len(), self.groups - 1);
        let part = |i: usize| match (is_second, before) {
            (false, _) => BODY_PART,
            (true, 0) => 1.0,
            (true, _) => self.lr_mult.powf((i * before / n) as f64 / before as f64 - 1.0),
        };
        Ok(body.into_iter().enumerate().map(|(i, name)| (name, part(i))).collect())
    }
}

impl Model {
    /// Fine-tunes the model: trains the head, then all layers. `Fit::epochs` is replaced by the epochs of [`FineTune`].
    ///
    /// # Errors
    /// See [`Model::fit`]; also if an argument is invalid.
    pub fn fine_tune(&mut self, data: &Dataset, how: FineTune, mut options: Fit) -> Result<History> {
        if !self.is_built()
            && let Some(first) = data.iter().next()
        {
            let batch = self.batch_of(&first?)?;
            self.build_for(&batch)?;
        }
        options.epochs = options.initial_epoch + how.freeze_epochs + how.epochs;
        let phases = self.begin_fine_tuning(how, options.initial_epoch)?;
        options.callbacks.push(phases);
        self.fit(data, options)
    }

    /// Freezes and compiles the model for the first fine-tuning phase; the returned callback switches to the second.
    /// Pass it to a run over `freeze_epochs + epochs` from `initial_epoch`.
    ///
    /// # Errors
    /// If an argument is invalid, the model is not compiled or built, or its optimizer already has per-layer learning
    /// rates.
    pub fn begin_fine_tuning(&mut self, how: FineTune, initial_epoch: usize) -> Result<Box<dyn Callback>> {
        how.check()?;
        let base = self.compiled()?.config.optimizer.clone();
        let own = [
            ("lr_mult", !base.lr_mult.is_empty()),
            ("optimizer_map", !base.optimizer_map.is_empty()),
            ("swa", base.swa.is_some()),
        ];
        if let Some((name, _)) = own.into_iter().find(|(_, is_set)| *is_set) {
            return Err(err!(
                Config,
                "the optimizer sets {name}, but fine-tuning sets the learning rate of each layer"
            )
            .hint(format!("remove {name}, or use freeze_until instead of fine_tune")));
        }
        let flags = self.trainable_flags();
        self.freeze_until(how.freeze_until.as_deref(), how.frozen_batch_norm)?;
        let optimizer = how.optimizer(&base, false, how.parts(self, false)?);
        let config = self.compiled()?.config.clone();
        self.adopt_config(crate::Compile { optimizer, ..config })?;
        Ok(Box::new(FineTunePhases { how, base, flags, initial_epoch, epoch_steps: 0, second: None }))
    }
}

/// Switches from the first to the second phase.
struct FineTunePhases {
    how: FineTune,
    /// The original optimizer.
    base: Optimizer,
    /// Which layers train in the second phase.
    flags: Vec<bool>,
    initial_epoch: usize,
    /// Steps per epoch; 0: not known yet.
    epoch_steps: u64,
    /// Start of the optimizer's step count, once the second phase has begun.
    second: Option<AccumulationPhase>,
}

impl FineTunePhases {
    /// Unfreezes all layers and resets the optimizer.
    fn set_free(&self, model: &mut Model, phase: AccumulationPhase) -> Result<()> {
        let earlier = model.state.optimizer.clone();
        model.set_trainable(&self.flags)?;
        let mut optimizer = self.how.optimizer(&self.base, true, self.how.parts(model, true)?);
        let epochs = self.how.epochs as u64;
        optimizer.settle(model.steps(), self.epoch_steps * epochs, self.epoch_steps);
        let config = model.compiled()?.config.clone();
        model.adopt_config(crate::Compile { optimizer, ..config })?;
        model.state.optimizer = model.compiled()?.train.optimizer_state(&model.state.trainable)?;
        model.keep_masks(&earlier);
        model.phase = Some(phase);
        Ok(())
    }
}

impl Callback for FineTunePhases {
    fn state(&self) -> Result<CallbackState> {
        let values =
            json!({"epoch_steps": self.epoch_steps, "second": self.second.map(AccumulationPhase::to_array)});
        Ok(CallbackState { values, ..Default::default() })
    }

    fn restore(&mut self, state: &CallbackState) -> Result<()> {
        self.epoch_steps = state.count("epoch_steps")? as u64;
        self.second = AccumulationPhase::from_json(&state.values["second"]);
        Ok(())
    }

    /// Restores layers and optimizer of the backup's phase; positions in the cycles come from the backup.
    fn prepare(&mut self, model: &mut Model) -> Result<()> {
        self.second.map_or(Ok(()), |phase| self.set_free(model, phase))
    }

    fn wants_batch(&self, _step: u64) -> bool {
        false
    }

    /// The head's cycle spans its own epochs, not the whole run.
    fn on_train_begin(&mut self, cx: &mut FitCx<'_>) -> Result<()> {
        if self.epoch_steps > 0 {
            return Ok(());
        }
        let step = cx.model.steps();
        let Some(compiled) = cx.model.compiled.as_mut() else { return Ok(()) };
        let mut whole = compiled.config.optimizer.learning_rate.clone();
        let epochs = (self.how.freeze_epochs + self.how.epochs) as u64;
        self.epoch_steps = whole.total_steps().unwrap_or(0) / epochs.max(1);
        let parts = compiled.config.optimizer.lr_mult.clone();
        let mut own = self.how.optimizer(&self.base, false, parts);
        let steps = self.epoch_steps * self.how.freeze_epochs.max(1) as u64;
        own.settle(step, steps, self.epoch_steps);
        compiled.config.optimizer.take_schedules(&own);
        Ok(())
    }

    fn on_epoch_begin(&mut self, cx: &mut FitCx<'_>) -> Result<()> {
        if self.second.is_some() || cx.epoch < self.initial_epoch + self.how.freeze_epochs {
            return Ok(());
        }
        let phase = cx.model.fresh_phase();
        self.set_free(cx.model, phase)?;
        self.second = Some(phase);
        let epochs = counted(self.how.epochs as u64, "epoch");
        cx.note(format!(
            "all layers train from now on, for {epochs}; layers near the input at 1/{} of the learning rate",
            self.how.lr_mult
        ));
        Ok(())
    }

    fn on_train_end(&mut self, cx: &mut FitCx<'_>) -> Result<()> {
        if self.second.take().is_some() {
            cx.model.phase = None;
        }
        Ok(())
    }
}
