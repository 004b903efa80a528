//! `GradientAccumulationScheduler` callback: changes the number of gradient accumulation steps by epoch.

use super::callback_trait::{Callback, CallbackState, FitCx};
use super::config_callback::{ArgumentCheck, ConfigCallback, checked};
use crate::json::{Deserialize, Serialize};
use crate::model::gradient_accumulation::AccumulationPhase;
use crate::model::{Model, counted};
use serde_json::json;
use std::collections::BTreeMap;
use systole_ir::{Error, ErrorKind, Result};

/// Callback that sets the optimizer's `gradient_accumulation_steps` by epoch: `{0: 8, 4: 4, 10: 1}` accumulates
/// gradients of eight steps per update, of four steps from the fifth epoch on, and updates after every step from the
/// eleventh.
///
/// Each change recompiles the step. Gradients of an incomplete group are discarded, which is reported. The original
/// number is restored at the end.
///
/// ```
/// # use systole_data::Dataset;
/// # use systole_ir::Literal;
/// # use systole_nn::{layers::dense, loss::mean_squared_error, optimizer::sgd, Compile, Model};
/// # let x = Literal::from_slice([4, 1], &[0f32, 1., 2., 3.])?;
/// # let data = Dataset::from_tensor_slices([("x", x.clone()), ("label", x)])?.batch(2);
/// # let mut model = Model::sequential([dense(1)]);
/// # model.compile(Compile { optimizer: sgd(0.05), loss: mean_squared_error(), ..Default::default() })?;
/// use systole_nn::{callback::GradientAccumulationScheduler, Fit};
/// let schedule = GradientAccumulationScheduler::new([(0, 2), (3, 1)]);
/// model.fit(&data, Fit { epochs: 5, callbacks: vec![Box::new(schedule)], ..Default::default() })?;
/// assert_eq!(model.steps(), 10); // 3 changes, then 4
/// # Ok::<(), systole_ir::Error>(())
/// ```
#[derive(Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GradientAccumulationScheduler {
    /// Number of accumulation steps by first epoch, from 0. Required.
    pub scheduling: BTreeMap<usize, usize>,
    /// The optimizer's original and current number.
    #[serde(skip)]
    own: Option<usize>,
    #[serde(skip)]
    phase: Option<AccumulationPhase>,
}

impl GradientAccumulationScheduler {
    /// Creates the schedule from pairs of first epoch (from 0) and number of steps.
    pub fn new(scheduling: impl IntoIterator<Item = (usize, usize)>) -> GradientAccumulationScheduler {
        let scheduling = scheduling.into_iter().collect();
        GradientAccumulationScheduler { scheduling, own: None, phase: None }
    }

    fn of_epoch(&self, epoch: usize) -> Option<usize> {
        self.scheduling.range(..=epoch).next_back().map(|(_, factor)| *factor)
    }
}

impl ConfigCallback for GradientAccumulationScheduler {
    fn check(&self) -> ArgumentCheck {
        let wrong = |what: &str| {
            let e = Error::new(ErrorKind::Config, what);
            Err((
                "scheduling",
                e.hint("give epochs from 0 and numbers of steps from 1, such as { 0 = 8, 10 = 1 }"),
            ))
        };
        match self.scheduling.values().min() {
            None => wrong("scheduling has no epochs"),
            Some(0) => wrong("scheduling has 0 accumulation steps"),
            Some(_) => Ok(()),
        }
    }
}

impl Callback for GradientAccumulationScheduler {
    fn state(&self) -> Result<CallbackState> {
        let values = json!({"own": self.own, "phase": self.phase.map(AccumulationPhase::to_array)});
        Ok(CallbackState { values, ..Default::default() })
    }

    fn restore(&mut self, state: &CallbackState) -> Result<()> {
        self.own = state.values["own"].as_u64().and_then(|n| usize::try_from(n).ok());
        self.phase = AccumulationPhase::from_json(&state.values["phase"]);
        Ok(())
    }

    /// Sets the accumulation steps of the backup's epoch.
    fn prepare(&mut self, model: &mut Model) -> Result<()> {
        self.phase.map_or(Ok(()), |phase| model.accumulate_as(phase))
    }

    fn wants_batch(&self, _step: u64) -> bool {
        false
    }

    fn on_train_begin(&mut self, cx: &mut FitCx<'_>) -> Result<()> {
        checked(self, "GradientAccumulationScheduler")?;
        if self.phase.is_none() {
            self.own = Some(cx.model.accumulation());
        }
        Ok(())
    }

    fn on_epoch_begin(&mut self, cx: &mut FitCx<'_>) -> Result<()> {
        let Some(factor) = self.of_epoch(cx.epoch).filter(|factor| *factor != cx.model.accumulation()) else {
            return Ok(());
        };
        let lost = cx.model.gathered();
        let phase = cx.model.next_phase(factor);
        cx.model.accumulate_as(phase)?;
        self.phase = Some(phase);
        if lost > 0 {
            let lost = counted(lost, "step");
            cx.note(format!(
                "gradients of {lost} are discarded: the number of accumulation steps changed before their update"
            ));
        }
        Ok(())
    }

    fn on_train_end(&mut self, cx: &mut FitCx<'_>) -> Result<()> {
        match (self.own, self.phase.take()) {
            (Some(own), Some(_)) => cx.model.accumulate_as(AccumulationPhase::plain(own)),
            _ => Ok(()),
        }
    }
}
