//! Validates class labels and token ids against the model.
//!
//! A gather on a device clamps invalid indices silently, so they are checked on the host before a step.

use crate::layer::lowering::LayerLowering;
use crate::loss::Loss;
use crate::model::Model;
use crate::model::architecture::{LayerNode, NodeInput};
use crate::model::batch::Batch;
use crate::model::output_losses::OutputLoss;
use systole_ir::{Literal, Result, err};

impl Model {
    /// Checks the indices in a batch: labels against the number of classes, ids against the rows of an embedding.
    ///
    /// # Errors
    /// Names the first index that is out of range, its position, and the valid range.
    ///
    /// ```
    /// use systole_ir::{DType, Literal};
    /// use systole_nn::{input_of, layers::*, Batch, Compile, Model};
    /// let tokens = input_of("tokens", DType::I32, [2]);
    /// let logits = tokens.apply(embedding(60, 4)).apply(dense(60));
    /// let mut model = Model::functional(&[tokens], &logits)?;
    /// model.compile(Compile::default())?;
    /// let ids = Literal::from_slice([1, 2], &[7i32, 97])?;
    /// let batch = Batch { inputs: vec![ids], ..Default::default() };
    /// assert!(model.check_ids(&batch).unwrap_err().to_string().contains("tokens has an id 97"));
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    pub fn check_ids(&self, batch: &Batch) -> Result<()> {
        for (i, (spec, x)) in self.architecture.inputs.iter().zip(&batch.inputs).enumerate() {
            let fed = self.architecture.nodes.iter().filter(|node| node.inputs == [NodeInput::Input(i)]);
            for (node, rows) in fed.filter_map(|node| {
                Some((node, rows(node).filter(|_| x.dtype().is_int() && batch.rescale_of(i).is_none())?))
            }) {
                if let Some((at, id)) = outside(x, rows, None) {
                    return Err(err!(Data, "the input {} has an id {id}", spec.name)
                    .at(place(x, at))
                    .because(format!("layer {} has {rows} rows: ids must be 0 to {}", node.name, rows - 1))
                    .hint(format!(
                        "raise the layer's input_dim (vocabulary_size for applications) to at least {}, or \
                            use data with smaller ids",
                        id + 1.0
                    )));
                }
            }
        }
        let goals = self.compiled.as_ref().map_or(&[][..], |c| &c.goals.all);
        goals.iter().zip(batch.labels()).try_for_each(|(goal, label)| self.check_labels(goal, label))
    }

    fn check_labels(&self, goal: &OutputLoss, label: &Literal) -> Result<()> {
        let (loss, output) = (goal.loss.as_ref(), self.outputs.get(goal.output));
        let classes = output.zip(loss).and_then(|(output, loss)| loss.classes(output));
        let (Some(Loss::SparseCategoricalCrossentropy { ignore_class, .. }), Some(classes)) =
            (loss.map(Loss::base), classes)
        else {
            return Ok(());
        };
        // Class probabilities, in training.
        let rank = output.map_or(0, |output| output.shape.rank() + 1);
        if goal.soft.is_some() && label.dtype().is_float() && label.shape().rank() == rank {
            return Ok(());
        }
        let Some((at, found)) = outside(label, classes, *ignore_class) else { return Ok(()) };
        Err(err!(Data, "label {found} is out of range")
            .at(place(label, at))
            .because(format!(
                "the model has {classes} classes: labels must be 0 to {}",
                classes.saturating_sub(1)
            ))
            .hint(match found >= 0.0 {
                true => {
                    format!("end the model with at least {} units, or number the classes from 0", found + 1.0)
                }
                false => "number the classes from 0; to ignore a label, set the loss's ignore_class".into(),
            }))
    }
}

/// Returns the number of rows of a layer's embedding table; `None` if it has none.
fn rows(node: &LayerNode) -> Option<usize> {
    match node.layer.layer().lowering() {
        Ok(LayerLowering::Embedding { rows, .. } | LayerLowering::ReversibleEmbedding { rows, .. }) => {
            Some(rows)
        }
        _ => None,
    }
}

/// Returns the first number that is neither from 0 to `below` nor `also`: its index and value.
fn outside(x: &Literal, below: usize, also: Option<i64>) -> Option<(usize, f64)> {
    let limit = i32::try_from(below).unwrap_or(i32::MAX);
    if x.as_slice::<i32>().is_ok_and(|ids| ids.iter().all(|id| (0..limit).contains(id))) {
        return None;
    }
    let is_inside = |v: f64| (v >= 0.0 && v < below as f64) || also.is_some_and(|also| v == also as f64);
    x.to_f64s().into_iter().enumerate().find(|(_, v)| !is_inside(*v))
}

/// Describes a position: `sample 3 of the batch, position 17`.
fn place(x: &Literal, at: usize) -> String {
    let each = x.ty().elements() / x.shape().first().copied().unwrap_or(1).max(1);
    match each {
        0 | 1 => format!("sample {at} of the batch"),
        each => format!("sample {} of the batch, position {}", at / each, at % each),
    }
}
