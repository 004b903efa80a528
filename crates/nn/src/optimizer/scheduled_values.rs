//! Scheduled values of a step: learning rates, momentum, averaging weight; changing them does not recompile.

use super::optimizer_config::Optimizer;
use crate::optimizer::schedule::Schedule;
use systole_ir::{DType, Error, ErrorKind, Literal, Result, Scalar, Tensor, TensorType, bug, err};

/// A value that depends on the training step: its name, and its value at a step.
pub type ScheduledValue<'a> = (String, Box<dyn Fn(u64) -> f64 + 'a>);

/// Scheduled values of one step, as tensors of the graph.
pub(super) struct StepValues {
    /// `f32[]`: the learning rate.
    pub(super) rate: Tensor,
    /// `f32[]`: the momentum, if it has a schedule.
    pub(super) momentum: Option<Tensor>,
    /// `f32[]`: SWA weight, the fraction by which the mean moves to the current weights.
    pub(super) swa: Option<Tensor>,
    /// `f32[]` each: the learning rates of `optimizer_map`, in its order.
    pub(super) mapped: Vec<Tensor>,
}

impl Optimizer {
    /// Returns the learning rate of a step.
    pub fn rate_at(&self, step: u64) -> f64 {
        let usual = |step| self.learning_rate.at(step);
        self.swa.as_ref().map_or_else(|| usual(step), |swa| swa.rate_at(step, usual))
    }

    /// Returns the momentum of a step: from `momentum_schedule`, or the rule's own (β₁ of Adam and its variants).
    /// `None` if the rule has no momentum.
    pub fn momentum_at(&self, step: u64) -> Option<f64> {
        let config = self.kind.config();
        let own = || ["momentum", "beta_1"].iter().find_map(|name| config.get(*name)?.as_f64());
        self.momentum_schedule.as_ref().map(|momentum| momentum.at(step)).or_else(own)
    }

    /// Returns all scheduled values by name: `learning_rate`, those of `optimizer_map`, `momentum`.
    pub fn scheduled(&self) -> Vec<ScheduledValue<'_>> {
        let mut all: Vec<ScheduledValue<'_>> = Vec::new();
        all.push(("learning_rate".into(), Box::new(|step| self.rate_at(step))));
        for (pattern, own) in &self.optimizer_map {
            all.push((format!("learning_rate of {pattern}"), Box::new(|step| own.rate_at(step))));
        }
        if let Some(momentum) = &self.momentum_schedule {
            all.push(("momentum".into(), Box::new(|step| momentum.at(step))));
        }
        all
    }

    /// `→ f32[]`, or `f32[N]` if more than the learning rate changes: the value of
    /// [`UpdateInputs::learning_rate`](super::UpdateInputs::learning_rate) at a step.
    ///
    /// ```
    /// use systole_nn::{optimizer::sgd, schedule::Schedule};
    /// let plain = sgd(0.1).momentum(0.9);
    /// assert_eq!(plain.values_at(3).shape().rank(), 0);
    /// let cycled = plain.momentum_schedule(Schedule::momentum_cycle([0.95, 0.85, 0.95]).over(100));
    /// assert_eq!(cycled.values_at(0).to_f32s(), [0.1, 0.95]);
    /// ```
    pub fn values_at(&self, step: u64) -> Literal {
        let mut values = vec![self.rate_at(step)];
        values.extend(self.momentum_schedule.as_ref().map(|momentum| momentum.at(step)));
        values.extend(self.swa.as_ref().map(|swa| swa.weight_at(step)));
        values.extend(self.optimizer_map.values().map(|own| own.rate_at(step)));
        match values.as_slice() {
            [rate] => Literal::splat(TensorType::scalar(DType::F32), Scalar::Float(*rate)),
            values => {
                let bytes: Vec<u8> = values.iter().flat_map(|v| (*v as f32).to_le_bytes()).collect();
                let ty = TensorType::new(DType::F32, [values.len()]);
                Literal::from_bytes(ty, &bytes)
                    .unwrap_or_else(|e| bug!("cannot build an array of {} values: {e}", values.len()))
            }
        }
    }

    /// Returns the number of values.
    fn values(&self) -> usize {
        let (momentum, swa) = (self.momentum_schedule.is_some(), self.swa.is_some());
        1 + usize::from(momentum) + usize::from(swa) + self.optimizer_map.len()
    }

    /// Splits the array of [`Optimizer::values_at`] into its values.
    #[track_caller]
    pub(super) fn split(&self, learning_rate: &Tensor) -> StepValues {
        let n = self.values();
        let wanted: &[usize] = if n == 1 { &[] } else { &[n] };
        if learning_rate.shape().dims() != wanted {
            let e = err!(Graph, "the learning rate of the update is {}", learning_rate.ty())
                .because(format!("this optimizer has {n} values that change from step to step"))
                .hint("set UpdateInputs::learning_rate to Optimizer::values_at(step)");
            let poisoned = learning_rate.fail(e);
            let some = |is: bool| is.then(|| poisoned.clone());
            return StepValues {
                momentum: some(self.momentum_schedule.is_some()),
                swa: some(self.swa.is_some()),
                mapped: vec![poisoned.clone(); self.optimizer_map.len()],
                rate: poisoned,
            };
        }
        if n == 1 {
            return StepValues { rate: learning_rate.clone(), momentum: None, swa: None, mapped: Vec::new() };
        }
        let mut values = (0..n).map(|i| learning_rate.slice(&[i], &[i + 1], &[1]).reshape([]));
        let mut next = |is: bool| if is { values.next() } else { None };
        StepValues {
            rate: next(true).unwrap_or_else(|| learning_rate.clone()),
            momentum: next(self.momentum_schedule.is_some()),
            swa: next(self.swa.is_some()),
            mapped: values.collect(),
        }
    }

    /// Whether the rule has a momentum that a schedule can set.
    pub(crate) fn takes_momentum(&self) -> bool {
        self.kind.rule().takes_momentum()
    }

    pub(super) fn check_momentum(&self) -> Result<()> {
        let Some(schedule) = &self.momentum_schedule else { return Ok(()) };
        schedule.check()?;
        if !self.kind.rule().takes_momentum() {
            let what = format!("{} has no momentum to schedule", self.name());
            let with_one = "use sgd or rmsprop with a momentum, adam, adamw, adamax, lamb, lion or muon";
            return Err(Error::new(ErrorKind::Config, what).at("momentum_schedule").hint(with_one));
        }
        Ok(())
    }

    /// Returns all schedules, including those of `optimizer_map`.
    fn schedules(&mut self) -> Vec<&mut Schedule> {
        let mut all = vec![&mut self.learning_rate];
        all.extend(&mut self.momentum_schedule);
        all.extend(self.optimizer_map.values_mut().flat_map(Optimizer::schedules));
        all
    }

    /// Copies the schedules of the same optimizer from a run, where the number of steps may be filled in.
    pub(crate) fn take_schedules(&mut self, run: &Optimizer) {
        self.learning_rate = run.learning_rate.clone();
        if let (Some(own), Some(theirs)) = (&mut self.momentum_schedule, &run.momentum_schedule) {
            *own = theirs.clone();
        }
        if let (Some(own), Some(theirs)) = (&mut self.swa, &run.swa) {
            own.take_place(theirs);
        }
        for (pattern, own) in &mut self.optimizer_map {
            if let Some(theirs) = run.optimizer_map.get(pattern) {
                own.take_schedules(theirs);
            }
        }
    }

    /// Sets the lengths of a resumed run's schedules to those of `planned`, the same optimizer resolved for the new
    /// number of steps. `step` is the next step. Returns a note for the user if a length has changed.
    pub(crate) fn take_lengths(&mut self, planned: &Optimizer, step: u64) -> Option<String> {
        let before = self.rate_at(step);
        let mut planned_schedules = planned.clone();
        let pairs = self.schedules().into_iter().zip(planned_schedules.schedules());
        let changed: Vec<(u64, u64)> = pairs.filter_map(|(own, planned)| own.take_length(planned)).collect();
        let swa = match (&mut self.swa, &planned.swa) {
            (Some(own), Some(planned)) => own.take_length(planned, step),
            _ => None,
        };
        let after = self.rate_at(step);
        let spans = changed.first().map(|(was, now)| {
            format!("the schedule of the whole run now spans {now} steps instead of {was}")
        });
        let averages = swa.map(|begin| format!("weight averaging (SWA) now begins after step {begin}"));
        let told: Vec<String> = spans.into_iter().chain(averages).collect();
        (!told.is_empty()).then(|| {
            let rate = format!("the learning rate of step {} is {after:.3e}, was {before:.3e}", step + 1);
            format!("{}; {rate}", told.join("; "))
        })
    }

    /// Whether a schedule of the optimizer spans the whole run, whatever the run's number of steps.
    pub fn is_of_the_run(&self) -> bool {
        let of_run = |s: &Schedule| s.is_of_the_run();
        of_run(&self.learning_rate)
            || self.momentum_schedule.as_ref().is_some_and(of_run)
            || self.swa.as_ref().is_some_and(|swa| swa.is_of_the_run())
            || self.optimizer_map.values().any(Optimizer::is_of_the_run)
    }

    /// Sets the length of schedules that span the whole run: `steps` steps from step `from`, with `epoch_steps` per
    /// epoch. Called by `fit`.
    pub fn settle(&mut self, from: u64, steps: u64, epoch_steps: u64) {
        self.schedules().into_iter().for_each(|schedule| schedule.settle(from, steps));
        if let Some(swa) = &mut self.swa {
            swa.settle(from, steps, epoch_steps);
        }
    }
}
