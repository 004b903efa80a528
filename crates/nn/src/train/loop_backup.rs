//! [`LoopBackup`]: backups of custom training loops, in the format of [`BackupAndRestore`].

use crate::checkpoint::backup::{BackupAndRestore, BackupWriter, LoadedBackup, RunPosition, RunState};
use crate::model::accelerator::LoopState;
use crate::model::history::History;
use crate::model::model_file::ModelFile;
use systole_data::PipelinePosition;
use systole_ir::{Error, Literal, Result, ResultExt, err};
use systole_runtime::{Buffer, Params};

/// Backs up a custom training loop in a folder and resumes it: states and data position.
///
/// A killed loop resumes at its last backup, also in the middle of an epoch, and ends with the same bits, provided that
/// each step depends only on the state, the step number and the data.
///
/// ```
/// use systole_data::Dataset;
/// use systole_ir::{Literal, Result, Tensor};
/// use systole_nn::{optimizer::adam, Accelerator, BackupAndRestore, Cx, LoopBackup};
/// use systole_runtime::{Buffer, Params};
/// # fn main() -> Result<()> {
/// let data = Dataset::from_tensor_slices([("x", Literal::from_slice([8], &[1f32; 8])?)])?.shuffle(8, 0).batch(2);
/// let dir = std::env::temp_dir().join(format!("doc-loop-{}", std::process::id()));
/// let accelerator = Accelerator::default();
/// let optimizer = adam(0.1);
/// let step = accelerator.step(&optimizer, |_: &mut Cx, p: &Params, x: &Tensor| ((x - &p["w"]) * (x - &p["w"])).mean_all())?;
///
/// let start = [("w".to_string(), Buffer::from(Literal::from_slice([1], &[0f32])?))].into_iter().collect();
/// let mut state = accelerator.prepare(&optimizer, start)?;
/// let mut backup = LoopBackup::open(BackupAndRestore::new(&dir).every_steps(3))?;
/// let mut place = backup.restore(&mut [&mut state])?.unwrap_or_default();
/// for epoch in place.epoch..2 {
///     let mut batches = data.iter_at(&place);
///     while let Some(batch) = batches.next() {
///         step.call(&mut state, batch?.get("x")?.clone().into())?;
///         backup.after_step(&[&state], &batches.position())?;
///     }
///     place = systole_data::PipelinePosition::new(epoch + 1, 0);
/// }
/// backup.finish(&[&state], &place)?;
/// assert_eq!(state.steps, 8);
/// # std::fs::remove_dir_all(dir).unwrap();
/// # Ok(())
/// # }
/// ```
pub struct LoopBackup {
    backups: BackupWriter,
}

impl LoopBackup {
    /// Locks a folder for this loop and prepares it for backups.
    ///
    /// # Errors
    /// If the folder cannot be created or written, or another process uses it.
    pub fn open(options: BackupAndRestore) -> Result<LoopBackup> {
        Ok(LoopBackup { backups: BackupWriter::open(options)? })
    }

    /// Restores the loop's states from the newest intact backup and returns the data position of the next step; `None`
    /// if there is no backup.
    ///
    /// # Errors
    /// If no backup is intact, or the states in it have other arrays.
    pub fn restore(&self, states: &mut [&mut LoopState]) -> Result<Option<PipelinePosition>> {
        let Some(LoadedBackup { file, run, path }) = self.backups.latest()? else { return Ok(None) };
        let at = || path.display().to_string();
        let known = |name: &str| file.tensors.iter().any(|(n, _)| n == name);
        let there = (0..).take_while(|k| known(&format!("{k}/{STEPS}"))).count();
        if there != states.len() {
            let e = err!(Config, "the number of states in the backup is {there}, expected {}", states.len())
                .at(at());
            return Err(e.hint("pass restore the states of after_step, in the same order"));
        }
        for (k, state) in states.iter_mut().enumerate() {
            let put =
                |part: &str, old: &mut Params<Buffer>| taken(&file, &format!("{k}/{part}/"), old).at(at);
            put("params", &mut state.params)?;
            put("frozen", &mut state.frozen)?;
            put("optimizer", &mut state.optimizer)?;
            let steps = file.get(&format!("{k}/{STEPS}")).and_then(|n| n.to_f64s().first().copied());
            let lost = || err!(Data, "the backup lacks `{k}/{STEPS}`").at(at());
            state.steps = steps.filter(|n| *n >= 0.0).ok_or_else(lost)? as u64;
        }
        run.position().at(at).map(Some)
    }

    /// Starts a backup if one is due; `data` is the data position of the next step. A thread writes it while training
    /// continues.
    ///
    /// # Errors
    /// If an earlier backup failed (such as for a full disk); the loop may continue without it.
    pub fn after_step(&mut self, states: &[&LoopState], data: &PipelinePosition) -> Result<()> {
        let step = steps(states);
        if !self.backups.is_due(step, false) {
            return Ok(());
        }
        self.backups.save(step, false, || snapshot(states, data, false))
    }

    /// Writes a final backup of the loop and waits for it.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn finish(mut self, states: &[&LoopState], data: &PipelinePosition) -> Result<()> {
        self.backups.save(steps(states), true, || snapshot(states, data, true))
    }
}

const STEPS: &str = "steps";

/// Returns the total step count, which identifies backups.
fn steps(states: &[&LoopState]) -> u64 {
    states.iter().map(|state| state.steps).sum()
}

fn snapshot(states: &[&LoopState], data: &PipelinePosition, finished: bool) -> Result<ModelFile> {
    let place = RunPosition {
        epoch: usize::try_from(data.epoch).unwrap_or(usize::MAX),
        steps: usize::try_from(data.taken).unwrap_or(usize::MAX),
        finished,
        stopped_because: None,
        trained_seconds: None,
        validated_seconds: None,
        data: data.to_string(),
    };
    let mut file = RunState::new(place, &History::default(), &[], Vec::new()).in_file(ModelFile::default())?;
    for (k, state) in states.iter().enumerate() {
        let parts = [("params", &state.params), ("frozen", &state.frozen), ("optimizer", &state.optimizer)];
        for (part, tree) in parts {
            for (name, value) in tree.iter() {
                file.tensors.push((format!("{k}/{part}/{name}"), value.to_literal()?));
            }
        }
        file.tensors.push((format!("{k}/{STEPS}"), Literal::from_slice([1], &[state.steps])?));
    }
    Ok(file)
}

/// Reads the arrays of a tree from a file; names and types must match.
fn taken(file: &ModelFile, prefix: &str, old: &mut Params<Buffer>) -> Result<()> {
    let mut new = Params::new();
    for (name, value) in old.iter() {
        match file.get(&format!("{prefix}{name}")) {
            Some(found) if found.ty() == value.ty() => new.insert(name, found.clone().into()),
            Some(found) => {
                return Err(other(&format!(
                    "{name} is {} in the backup and {} in the state",
                    found.ty(),
                    value.ty()
                )));
            }
            None => return Err(other(&format!("{name} is missing from the backup"))),
        }
    }
    let mut there = file.tensors.iter().filter_map(|(name, _)| name.strip_prefix(prefix));
    if let Some(name) = there.find(|name| new.get(name).is_none()) {
        return Err(other(&format!("{name} is in the backup, but not in the state")));
    }
    *old = new;
    Ok(())
}

fn other(why: &str) -> Error {
    err!(Config, "the backup is from a different training loop")
        .because(why)
        .hint("build the state with the weights and optimizer of the backup's loop, or choose another folder")
}
