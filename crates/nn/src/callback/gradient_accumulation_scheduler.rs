//! The callback that gathers gradients of more or fewer steps from some epoch on.

use super::callback_trait::{Callback, CallbackState, FitCx};
use super::config_callback::{ArgumentCheck, ConfigCallback, checked};
use crate::model::gradient_accumulation::AccumulationPhase;
use crate::model::{Model, counted};
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::collections::BTreeMap;
use systole_ir::{Error, ErrorKind, Result};

/// Sets the optimizer's `gradient_accumulation_steps` by the epoch: `{0: 8, 4: 4, 10: 1}` gathers gradients of eight steps for each
/// change of the weights, of four from the fifth epoch on, and changes them at every step from the eleventh.
///
/// Each change of the number compiles the step anew. Gradients of a group that is not whole then are left out, which is told. At the end
/// the optimizer has the number that it was given.
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
    /// Epochs, from 0, and the number of steps whose gradients are gathered from each on. Required.
    pub scheduling: BTreeMap<usize, usize>,
    /// What the optimizer had, and what it has now.
    #[serde(skip)]
    own: Option<usize>,
    #[serde(skip)]
    phase: Option<AccumulationPhase>,
}

impl GradientAccumulationScheduler {
    /// From these epochs, counted from 0, on so many steps.
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
                e.hint("epochs from 0 and numbers of steps from 1 on, such as { 0 = 8, 10 = 1 }"),
            ))
        };
        match self.scheduling.values().min() {
            None => wrong("scheduling names no epoch"),
            Some(0) => wrong("scheduling gathers gradients of 0 steps"),
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

    /// The backup's optimizer has the number of its epoch.
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
                "gradients of {lost} are left out: their group was not whole when its size changed"
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
