//! Train/test leakage of an evaluation: counts the evaluated samples that the model was trained on.

use crate::models::tflite::rows;
use crate::render::screen::{Screen, counted};
use crate::run::run_data::{DataMatch, RunData};
use crate::run::run_summary::one;
use std::collections::HashSet;
use systole_base::rng::fnv1a;
use systole_config::RunConfig;
use systole_data::Dataset;
use systole_datasets::TrainingData;
use systole_ir::Result;
use systole_nn::{LABEL_FIELDS, Model};

/// Maximum number of training samples that are read for a comparison.
const MOST: usize = 100_000;

/// Whether evaluated samples were used in training.
#[derive(Debug, PartialEq)]
pub(crate) enum TrainingOverlap {
    /// A test split that training held out.
    HeldOut,
    /// Number of evaluated samples that training used.
    Counted(usize),
    /// Reason why the samples were not compared.
    Unknown(&'static str),
}

impl TrainingOverlap {
    /// Compares the test samples of `data` with the training samples of the model's run.
    pub(crate) fn of(
        run: &RunData,
        model: &Model,
        (config, data): (&RunConfig, &TrainingData),
        screen: &Screen,
    ) -> Result<TrainingOverlap> {
        if !config.data.is_own() && data.language.is_none() {
            return Ok(TrainingOverlap::HeldOut);
        }
        match run.matches(config, data) {
            DataMatch::Same => return Ok(TrainingOverlap::HeldOut),
            DataMatch::Changed => return Ok(TrainingOverlap::Unknown("the data has changed since training")),
            DataMatch::Other => {}
        }
        if run.train_len().is_some_and(|n| n > MOST) {
            return Ok(TrainingOverlap::Unknown("the training data is too large to compare"));
        }
        // A failure means that the training data is no longer at its location.
        let Some((trained, its_config)) = training_data(run, model, screen) else {
            return Ok(TrainingOverlap::Unknown("the training data is not available"));
        };
        if !matches!(run.matches(&its_config, &trained), DataMatch::Same) {
            return Ok(TrainingOverlap::Unknown("the training data has changed since training"));
        }
        if data.language.is_some() {
            let ids = tokens(&trained.train)?.concat();
            return Ok(TrainingOverlap::Counted(contained(&tokens(&data.test)?, &ids)));
        }
        let train = its_config.true_pictures(&trained, false);
        let trained = TrainingData { test_len: trained.train_len, test: train, ..trained };
        let mut unlimited = config.clone();
        unlimited.data.test_samples = None;
        let tested = marks(&config.test_pipeline(data))?;
        let seen: HashSet<u64> = marks(&unlimited.test_pipeline(&trained))?.into_iter().collect();
        Ok(TrainingOverlap::Counted(tested.iter().filter(|mark| seen.contains(mark)).count()))
    }

    /// Describes the evaluated samples: `20 test images of pets`, `50 images of pets, 40 of them used in training`.
    pub(crate) fn describe(&self, samples: usize, data: &TrainingData) -> String {
        let (one, name) = (one(data.elements), &data.name);
        let all = counted(samples as u64, one);
        match self {
            TrainingOverlap::HeldOut => {
                format!("{} of {name}", counted(samples as u64, &format!("test {one}")))
            }
            TrainingOverlap::Counted(0) => format!("{all} of {name}, none of them used in training"),
            TrainingOverlap::Counted(n) if *n == samples => {
                format!("{all} of {name}, all of them used in training")
            }
            TrainingOverlap::Counted(n) => format!("{all} of {name}, {n} of them used in training"),
            TrainingOverlap::Unknown(why) => {
                format!("{all} of {name}, some of them perhaps used in training ({why})")
            }
        }
    }

    /// Warns about metrics of training samples.
    pub(crate) fn warning(&self, model: &str) -> Option<String> {
        matches!(self, TrainingOverlap::Counted(1..)).then(|| {
            format!(
                "  metrics of training samples overestimate the accuracy on new ones: `systole evaluate {model}` uses \
                 only the test split"
            )
        })
    }

    /// Number of training samples among the evaluated ones; `None` if unknown.
    pub(crate) fn training_samples(&self) -> Option<usize> {
        match self {
            TrainingOverlap::HeldOut => Some(0),
            TrainingOverlap::Counted(n) => Some(*n),
            TrainingOverlap::Unknown(_) => None,
        }
    }
}

/// Loads the run's data with the run's configuration; `None` if it is not available.
fn training_data(run: &RunData, model: &Model, screen: &Screen) -> Option<(TrainingData, RunConfig)> {
    let mut config = run.draft(model).ok()??.finish().ok()?;
    let data = run.load_unmatched(model, &mut config, &screen.silent()).ok()?;
    Some((data, config))
}

/// Returns a fingerprint of the inputs of each sample, as the model receives them.
fn marks(batches: &Dataset) -> Result<Vec<u64>> {
    let mut all = Vec::new();
    for batch in batches.iter() {
        let batch = batch?;
        let mut of_batch: Vec<u64> = Vec::new();
        for name in batch.names().filter(|name| !LABEL_FIELDS.contains(name)) {
            let inputs = rows(batch.get(name)?)?;
            of_batch.resize(inputs.len(), 0);
            for (mark, input) in of_batch.iter_mut().zip(&inputs) {
                *mark = mark.rotate_left(17) ^ fnv1a(input.bytes());
            }
        }
        all.extend(of_batch);
    }
    Ok(all)
}

/// Returns the tokens of each sequence.
fn tokens(sequences: &Dataset) -> Result<Vec<Vec<i32>>> {
    sequences.iter().map(|s| Ok(s?.get("tokens")?.as_slice::<i32>()?.to_vec())).collect()
}

/// Counts the sequences, all of one length, that occur at any offset of `text`.
fn contained(sequences: &[Vec<i32>], text: &[i32]) -> usize {
    let Some(length) = sequences.first().map(Vec::len).filter(|n| *n > 0) else { return 0 };
    // Rolling polynomial hash: the hash of the next window costs two multiplications.
    const BASE: u64 = 0x9e37_79b9_7f4a_7c15;
    let hash = |ids: &[i32]| ids.iter().fold(0u64, |h, id| h.wrapping_mul(BASE).wrapping_add(*id as u64 + 1));
    let highest = (1..length).fold(1u64, |power, _| power.wrapping_mul(BASE));
    let wanted: Vec<u64> = sequences.iter().map(|ids| hash(ids)).collect();
    let all: HashSet<u64> = wanted.iter().copied().collect();
    let mut found = HashSet::new();
    let mut window = text.get(..length).map_or(0, hash);
    for (end, &id) in text.iter().enumerate().skip(length - 1) {
        if end >= length {
            let first = (text[end - length] as u64 + 1).wrapping_mul(highest);
            window = window.wrapping_sub(first).wrapping_mul(BASE).wrapping_add(id as u64 + 1);
        }
        if all.contains(&window) {
            found.insert(window);
        }
    }
    wanted.iter().filter(|h| found.contains(h)).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequences_are_found_at_any_offset() {
        let text = [3, 1, 4, 1, 5, 9, 2, 6];
        let sequences = [vec![1, 4, 1], vec![9, 2, 6], vec![3, 1, 4], vec![1, 4, 2]];
        assert_eq!(contained(&sequences, &text), 3);
        assert_eq!((contained(&sequences, &text[..2]), contained(&[], &text)), (0, 0));
    }
}
