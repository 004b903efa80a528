//! Derives findings from a run's metrics: diverged, overfitted, still improving.

use crate::html::Tone;
use std::collections::BTreeMap;
use systole_nn::History;

/// An epoch: its number from 1 and its metrics; validation metrics start with `val_`.
pub type EpochMetrics = (u64, BTreeMap<String, f64>);

/// Ratio of the last to the best test loss from which the model counts as overfitted.
const WORSE: f64 = 1.05;
/// Ratio of successive training losses below which the loss is still falling.
const FALLS: f64 = 0.98;
/// Width of the name column of a profile.
const NAMES: usize = 28;

/// Describes how the run ended, if it ended early.
pub(super) fn of_end(history: &History) -> Option<(Tone, String)> {
    match (&history.stopped_because, history.interrupted) {
        (_, true) => {
            Some((Tone::Warn, "Stopped on request before the end: the figures cover the steps done.".into()))
        }
        (Some(why), _) => Some((Tone::Plain, format!("Ended early: {why}"))),
        _ => None,
    }
}

/// Describes whether the model learned, overfitted or diverged.
pub(super) fn of_curves(epochs: &[EpochMetrics]) -> Option<(Tone, String)> {
    let curve = |name: &str| -> Vec<(u64, f64)> {
        epochs.iter().filter_map(|(n, values)| Some((*n, *values.get(name)?))).collect()
    };
    let (loss, tested) = (curve("loss"), curve("val_loss"));
    if let Some((epoch, _)) = loss.iter().chain(&tested).find(|(_, v)| !v.is_finite()) {
        return Some((Tone::Bad, format!("Diverged: the loss of epoch {epoch} is not finite.")));
    }
    let (first, last) = (loss.first()?.1, loss.last()?.1);
    let best = tested.iter().copied().reduce(|best, at| if at.1 < best.1 { at } else { best });
    if let (Some(best), Some(now)) = (best, tested.last().copied())
        && now.0 > best.0
        && now.1 > WORSE * best.1
        && last < first
    {
        let text = format!(
            "Overfits since epoch {}: the training loss kept falling while the test loss rose from {:.4} to {:.4}. The model of the best epoch is kept next to the last one.",
            best.0, best.1, now.1
        );
        return Some((Tone::Warn, text));
    }
    let before = loss.len().checked_sub(2).map(|i| loss[i].1)?;
    Some(match (last < FALLS * before, last >= first) {
        (_, true) => {
            (Tone::Warn, format!("Did not learn: the training loss went from {first:.4} to {last:.4}."))
        }
        (true, _) => {
            (Tone::Plain, "The training loss was still falling at the end: more epochs may help.".into())
        }
        _ => (Tone::Good, "The training loss has leveled off.".into()),
    })
}

/// Parses the `--profile` table: layers with their share and ms per run.
pub(super) fn layers_of_profile(table: &str) -> Vec<(String, f64, f64)> {
    let rows = table.lines().skip_while(|l| !l.starts_with("layer ")).skip(1);
    let row = |line: &str| {
        let (at, _) = line.char_indices().nth(NAMES)?;
        let (name, numbers) = line.split_at(at);
        let words: Vec<&str> = numbers.split_whitespace().filter(|w| *w != "%").collect();
        let [.., ms, share] = words.as_slice() else { return None };
        Some((
            name.trim().to_string(),
            share.trim_end_matches('%').parse::<f64>().ok()? / 100.0,
            ms.parse().ok()?,
        ))
    };
    rows.map_while(row).take_while(|(name, ..)| name != "total").collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn run(loss: &[f64], val: &[f64]) -> Option<(Tone, String)> {
        let epoch = |(i, loss): (usize, &f64)| {
            let mut values = BTreeMap::from([("loss".to_string(), *loss)]);
            values.extend(val.get(i).map(|v| ("val_loss".to_string(), *v)));
            (i as u64 + 1, values)
        };
        let epochs: Vec<EpochMetrics> = loss.iter().enumerate().map(epoch).collect();
        of_curves(&epochs)
    }

    #[test]
    fn a_run_is_judged_by_its_curves() {
        let (tone, text) = run(&[1.0, 0.5, 0.2], &[1.0, 0.8, 1.2]).unwrap();
        assert!(tone == Tone::Warn && text.starts_with("Overfits since epoch 2"), "{text}");
        assert!(run(&[1.0, f64::NAN], &[]).unwrap().1.contains("epoch 2 is not finite"));
        assert!(run(&[1.0, 0.5], &[1.0, 0.6]).unwrap().1.contains("still falling"));
        assert_eq!(run(&[1.0, 0.5, 0.499], &[]).unwrap().0, Tone::Good);
        assert!(run(&[1.0, 1.5], &[]).unwrap().1.contains("Did not learn"));
        assert_eq!((run(&[1.0], &[]), run(&[], &[])), (None, None));
    }
}
