//! What changes from step to step without compiling anew: learning rates, momentum, how much a mean takes up.

use super::optimizer_config::Optimizer;
use crate::optimizer::schedule::Schedule;
use systole_ir::{DType, Error, ErrorKind, Literal, Result, Scalar, Tensor, TensorType, bug};

/// A value that follows a schedule: its name, and what it is at a step.
pub type ScheduledValue<'a> = (String, Box<dyn Fn(u64) -> f64 + 'a>);

/// The values of one step, in the graph.
pub(super) struct StepValues {
    /// `f32[]`: the learning rate.
    pub(super) rate: Tensor,
    /// `f32[]`: the momentum, where it has a schedule.
    pub(super) momentum: Option<Tensor>,
    /// `f32[]`: how much of the way to the weights their mean goes.
    pub(super) swa: Option<Tensor>,
    /// `f32[]` each: the learning rates of `optimizer_map`, in its order.
    pub(super) mapped: Vec<Tensor>,
}

impl Optimizer {
    /// The learning rate of a step.
    pub fn rate_at(&self, step: u64) -> f64 {
        let usual = |step| self.learning_rate.at(step);
        self.swa.as_ref().map_or_else(|| usual(step), |swa| swa.rate_at(step, usual))
    }

    /// The momentum of a step: that of `momentum_schedule`, or the rule's own (β₁ of Adam and its kin). `None`: it has none.
    pub fn momentum_at(&self, step: u64) -> Option<f64> {
        let config = self.kind.config();
        let own = || ["momentum", "beta_1"].iter().find_map(|name| config.get(*name)?.as_f64());
        self.momentum_schedule.as_ref().map(|momentum| momentum.at(step)).or_else(own)
    }

    /// What follows a schedule, by name: `learning_rate`, those of `optimizer_map`, `momentum`; each as a function of the step.
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

    /// `→ f32[]`, or `f32[N]` where more than the learning rate changes from step to step: what
    /// [`UpdateInputs::learning_rate`](super::UpdateInputs::learning_rate) is to be at a step.
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
                    .unwrap_or_else(|e| bug!("{} values do not fit: {e}", values.len()))
            }
        }
    }

    /// How many values there are.
    fn values(&self) -> usize {
        let (momentum, swa) = (self.momentum_schedule.is_some(), self.swa.is_some());
        1 + usize::from(momentum) + usize::from(swa) + self.optimizer_map.len()
    }

    /// Takes apart what [`Optimizer::values_at`] puts together.
    #[track_caller]
    pub(super) fn split(&self, learning_rate: &Tensor) -> StepValues {
        let n = self.values();
        let wanted: &[usize] = if n == 1 { &[] } else { &[n] };
        if learning_rate.shape().dims() != wanted {
            let what = format!("the learning rate of the update is {}", learning_rate.ty());
            let e = Error::new(ErrorKind::Graph, what)
                .because(format!("this optimizer has {n} values that change from step to step"))
                .hint("give UpdateInputs::learning_rate what Optimizer::values_at gives");
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

    /// Whether the rule has a momentum that could follow a schedule.
    pub(crate) fn takes_momentum(&self) -> bool {
        self.kind.rule().takes_momentum()
    }

    pub(super) fn check_momentum(&self) -> Result<()> {
        let Some(schedule) = &self.momentum_schedule else { return Ok(()) };
        schedule.check()?;
        if !self.kind.rule().takes_momentum() {
            let what = format!("{} has no momentum that could follow a schedule", self.name());
            let with_one =
                "take sgd with a momentum, rmsprop with one, adam, adamw, adamax, lamb, lion or muon";
            return Err(Error::new(ErrorKind::Config, what).at("momentum_schedule").hint(with_one));
        }
        Ok(())
    }

    /// All schedules, those of `optimizer_map` included.
    fn schedules(&mut self) -> Vec<&mut Schedule> {
        let mut all = vec![&mut self.learning_rate];
        all.extend(&mut self.momentum_schedule);
        all.extend(self.optimizer_map.values_mut().flat_map(Optimizer::schedules));
        all
    }

    /// Takes over the schedules of the same optimizer as a run has them, which may know its steps.
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

    /// Whether something goes over all steps of a run, however many these are.
    pub fn is_of_the_run(&self) -> bool {
        let of_run = |s: &Schedule| s.is_of_the_run();
        of_run(&self.learning_rate)
            || self.momentum_schedule.as_ref().is_some_and(of_run)
            || self.swa.as_ref().is_some_and(|swa| swa.is_of_the_run())
            || self.optimizer_map.values().any(Optimizer::is_of_the_run)
    }

    /// Fills in a run of `steps` that begins at step `from`, with epochs of `epoch_steps`, where something goes over all of it.
    /// `fit` does so.
    pub fn settle(&mut self, from: u64, steps: u64, epoch_steps: u64) {
        self.schedules().into_iter().for_each(|schedule| schedule.settle(from, steps));
        if let Some(swa) = &mut self.swa {
            swa.settle(from, steps, epoch_steps);
        }
    }
}
