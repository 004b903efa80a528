//! Confusion matrix on test images and the most frequent confusions.

use crate::models::accuracy::likeliest;
use crate::models::binary_output::BinaryOutput;
use serde_json::{Value, json};
use systole_data::Dataset;
use systole_ir::{Literal, Result};
use systole_nn::Model;

/// Number of class pairs shown.
const SHOWN: usize = 5;

/// Maximum number of classes; beyond it no matrix is built.
const MOST_CLASSES: usize = 2000;

/// Confusion matrix over the classes of a model.
#[derive(Clone)]
pub(crate) struct Confusion {
    names: Vec<String>,
    /// Rows are true classes, columns are predicted classes.
    counts: Vec<Vec<u64>>,
}

/// A frequent confusion of two classes.
struct ConfusedPair {
    is: usize,
    taken_for: usize,
    times: u64,
    of: u64,
}

impl Confusion {
    /// Creates an empty matrix.
    pub(crate) fn new(names: Vec<String>) -> Confusion {
        // The matrix has a row and a column per class.
        let classes = if names.len() > MOST_CLASSES { 0 } else { names.len() };
        Confusion { counts: vec![vec![0; classes]; classes], names }
    }

    /// Counts one prediction.
    pub(crate) fn add(&mut self, is: usize, taken_for: usize) {
        let slot = self.counts.get_mut(is).and_then(|row| row.get_mut(taken_for));
        slot.into_iter().for_each(|n| *n += 1);
    }

    /// Returns the class names and the matrix.
    pub(crate) fn table(&self) -> (Vec<String>, Vec<Vec<u64>>) {
        (self.names.clone(), self.counts.clone())
    }

    /// Runs the model over batches with an input and a `label`, and counts the predictions.
    pub(crate) fn count(model: &mut Model, test: &Dataset) -> Result<Confusion> {
        let mut confusion = Confusion::new(model.class_names.clone());
        if confusion.counts.is_empty() {
            return Ok(confusion);
        }
        let binary_output = BinaryOutput::of_layers(model);
        for batch in test {
            let batch = batch?;
            confusion.add_batch(batch.get("label")?, &model.predict_on_sample(&batch)?, binary_output);
        }
        Ok(confusion)
    }

    /// Counts the predictions of a batch: `labels: i32[B]`, `predictions: f32[B, K]`.
    pub(crate) fn add_batch(&mut self, labels: &Literal, predictions: &Literal, binary: BinaryOutput) {
        for (i, best) in likeliest(predictions, binary).into_iter().enumerate() {
            self.add(labels.get(i).as_i64() as usize, best);
        }
    }

    /// Returns the most frequent confusions; ties are in class order.
    fn mistakes(&self) -> Vec<ConfusedPair> {
        let all = self.counts.iter().enumerate().flat_map(|(is, row)| {
            let of = row.iter().sum();
            row.iter().enumerate().map(move |(taken_for, &times)| ConfusedPair { is, taken_for, times, of })
        });
        let mut wrong: Vec<ConfusedPair> = all.filter(|m| m.is != m.taken_for && m.times > 0).collect();
        wrong.sort_by_key(|m| std::cmp::Reverse(m.times));
        wrong.truncate(SHOWN);
        wrong
    }

    /// Formats as `Most confused: cat predicted as dog (12 of 40), …`.
    pub(crate) fn text(&self) -> String {
        let one = |m: &ConfusedPair| {
            format!("{} predicted as {} ({} of {})", self.names[m.is], self.names[m.taken_for], m.times, m.of)
        };
        let wrong: Vec<String> = self.mistakes().iter().map(one).collect();
        if self.counts.is_empty() {
            return format!("Most confused: not counted for {} classes", self.names.len());
        }
        match wrong.is_empty() {
            true => "Most confused: none, all predictions are correct".into(),
            false => format!("Most confused: {}", wrong.join(", ")),
        }
    }

    /// Formats the confusions as JSON.
    pub(crate) fn json(&self) -> Value {
        let one = |m: &ConfusedPair| json!({"class": self.names[m.is], "taken_for": self.names[m.taken_for], "times": m.times, "of": m.of});
        self.mistakes().iter().map(one).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_many_classes_no_table_is_made() {
        let c = Confusion { names: vec!["x".into(); 374_586], counts: Vec::new() };
        assert!(
            c.text().contains("not counted for 374586 classes") && c.json().as_array().unwrap().is_empty()
        );
    }

    #[test]
    fn the_most_frequent_mistakes_come_first() {
        let names = ["cat", "dog", "fox"].map(String::from).to_vec();
        let c = Confusion { names, counts: vec![vec![8, 2, 0], vec![0, 5, 5], vec![0, 0, 9]] };
        assert_eq!(c.text(), "Most confused: dog predicted as fox (5 of 10), cat predicted as dog (2 of 10)");
        assert_eq!(c.json()[0]["taken_for"], "fox");
        let right = Confusion { counts: vec![vec![3, 0, 0], vec![0, 1, 0], vec![0, 0, 2]], ..c };
        assert!(right.text().contains("none") && right.json().as_array().unwrap().is_empty());
    }
}
