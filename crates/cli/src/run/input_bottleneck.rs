//! Diagnoses input-bound training and suggests the configuration key to change.
//!
//! Suggestions at program level come from [`History::verdict`].

use systole_config::RunConfig;
use systole_nn::History;

/// Says whether training is compute-bound or input-bound, which stage is slow, and which key to change.
pub(crate) fn of(history: &History, config: &RunConfig) -> String {
    let finding = history.finding();
    match remedy(history, config).filter(|_| history.waits_steadily()) {
        Some(remedy) => format!("{finding}; {remedy}"),
        None => finding,
    }
}

/// Suggests the key that speeds up the data pipeline.
fn remedy(history: &History, config: &RunConfig) -> Option<&'static str> {
    let report = history.data.as_ref()?;
    let all: f64 = report.stages.iter().map(|s| s.time.as_secs_f64()).sum();
    let slow = report.slowest().filter(|s| s.time.as_secs_f64() > 0.5 * all)?;
    // Augmentation is the only random stage.
    if !config.data.augment.is_empty() && slow.label.starts_with("map_random_parallel") {
        return Some("use fewer augmentations in data.augment");
    }
    let threads: usize = report.queues.iter().map(|q| q.threads).sum();
    let frozen = config.data.tuning.is_some() && threads < report.core_budget;
    frozen.then_some("remove data.tuning, which was tuned on fewer cores, to tune threads and queues again")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;
    use systole_config::ConfigDraft;
    use systole_data::DatasetOptions;

    /// Returns the verdict on a run that waits for data, and the time that the data takes.
    fn run(augment: &str) -> (String, f64) {
        let mut draft = ConfigDraft::preset("glyphs").unwrap();
        for (key, value) in [
            ("data.augment", augment),
            ("data.train_samples", "800"),
            ("fit.batch_size", "40"),
            ("fit.steps_per_epoch", "none"),
        ] {
            draft.set("the test", key, value);
        }
        let config = draft.finish().unwrap();
        let data = config.load_data(|dir| dir).unwrap();
        let measured = DatasetOptions { measure: Some(1), ..DatasetOptions::default() };
        let pipeline = config.train_pipeline(&data).with_options(measured);
        let (began, mut batches) = (Instant::now(), pipeline.iter());
        for batch in batches.by_ref() {
            batch.unwrap();
        }
        let seconds = began.elapsed().as_secs_f64();
        let (step_ms, wait_ms) = (vec![10.0; 5], vec![9.0; 5]);
        (
            of(&History { step_ms, wait_ms, data: Some(batches.report()), ..History::default() }, &config),
            seconds,
        )
    }

    #[test]
    fn changes_of_pictures_that_cost_most_are_told_and_fewer_take_less_time() {
        let (told, before) = run("[\"random_rotation\", \"random_zoom\", \"random_contrast\"]");
        assert!(told.starts_with("input-bound: 90.0 %") && told.contains("data.augment"), "{told}");
        let (told, after) = run("[]");
        assert!(after < before * 0.66, "{before} s, then {after} s");
        for no_key in ["core_budget", "ram_budget", "map_parallel(f", "data."] {
            assert!(!told.contains(no_key), "{told}");
        }
    }
}
