//! Detects a loss that expects probabilities after a layer without softmax or sigmoid, and `from_logits = true` after
//! one with it.

use crate::layer::activation::Activation;
use crate::loss::Loss;
use crate::model::Model;
use crate::model::architecture::LayerNode;

/// Predictions that a loss expects.
struct ExpectedPredictions {
    /// Activation that computes the probabilities.
    activation: &'static str,
    /// Whether the loss computes them from logits; `None` if it cannot.
    from_logits: Option<bool>,
}

impl Loss {
    /// Returns the predictions that the loss expects; `None`: any numbers.
    fn expected_predictions(&self) -> Option<ExpectedPredictions> {
        let (activation, from_logits) = match self.base() {
            Loss::SparseCategoricalCrossentropy { from_logits, .. }
            | Loss::CategoricalCrossentropy { from_logits, .. }
            | Loss::CategoricalFocalCrossentropy { from_logits, .. } => ("softmax", Some(*from_logits)),
            Loss::BinaryCrossentropy { from_logits, .. }
            | Loss::BinaryFocalCrossentropy { from_logits, .. } => ("sigmoid", Some(*from_logits)),
            Loss::KLDivergence => ("softmax", None),
            Loss::Dice { .. } | Loss::Tversky { .. } => ("sigmoid", None),
            _ => return None,
        };
        Some(ExpectedPredictions { activation, from_logits })
    }
}

impl Model {
    /// Returns a warning for each output whose activation does not match its loss.
    pub fn loss_activation_warnings(&self) -> Vec<String> {
        let goals = self.compiled.as_ref().map_or(&[][..], |compiled| &compiled.goals.all);
        let warning = |output: usize, loss: &Loss| {
            let (node, activation) = self.architecture().output_activation(output)?;
            mismatch(node, activation, &loss.expected_predictions()?)
        };
        goals.iter().filter_map(|goal| warning(goal.output, goal.loss.as_ref()?)).collect()
    }
}

/// Whether the outputs of an activation can be probabilities.
fn gives_probabilities(activation: Activation) -> bool {
    use Activation::{HardSigmoid, Sigmoid, Softmax, SparseSigmoid};
    matches!(activation, Softmax | Sigmoid | HardSigmoid | SparseSigmoid)
}

/// Returns the warning if a layer's activation does not match the expected predictions.
fn mismatch(node: &LayerNode, activation: Activation, expected: &ExpectedPredictions) -> Option<String> {
    let (name, wanted) = (&node.name, expected.activation);
    match expected.from_logits {
        Some(true) if gives_probabilities(activation) => Some(format!(
            "the last layer `{name}` has a {activation}, but the loss expects logits (from_logits = true): remove \
             from_logits = true or the {activation}",
            activation = activation.name()
        )),
        Some(false) if !gives_probabilities(activation) => Some(format!(
            "the last layer `{name}` has no {wanted}, but the loss expects probabilities: set from_logits = true or \
             end with {wanted}"
        )),
        None if !gives_probabilities(activation) => Some(format!(
            "the last layer `{name}` has no {wanted}, but the loss expects probabilities: end with {wanted}"
        )),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layers::{LayerSpec, activation, dense, reshape, softmax};
    use crate::loss::{
        binary_crossentropy, categorical_focal_crossentropy, kl_divergence, mean_squared_error,
        sparse_categorical_crossentropy,
    };
    use crate::model::compile::Compile;
    use systole_ir::{DType, TensorType};

    fn warnings(layers: Vec<LayerSpec>, loss: Loss) -> Vec<String> {
        let mut model = Model::sequential(layers);
        model.compile(Compile { loss, ..Compile::default() }).unwrap();
        model.build(&[TensorType::new(DType::F32, [4])]).unwrap();
        model.loss_activation_warnings()
    }

    #[test]
    fn logits_and_probabilities_in_the_wrong_place_are_told() {
        let sparse = sparse_categorical_crossentropy;
        let cases = [
            (vec![dense(3)], sparse(), Some("set from_logits = true")),
            (vec![dense(3), activation("linear"), reshape([3])], sparse(), Some("`dense`")),
            (vec![dense(3)], sparse().from_logits(true), None),
            (vec![dense(3).activation("softmax"), activation("linear")], sparse(), None),
            (vec![dense(3), softmax()], sparse(), None),
            (vec![dense(3), softmax()], sparse().from_logits(true), Some("remove from_logits = true")),
            (vec![dense(3).activation("relu")], categorical_focal_crossentropy(), Some("softmax")),
            (vec![dense(1)], binary_crossentropy(), Some("sigmoid")),
            (vec![dense(1).activation("sigmoid")], binary_crossentropy(), None),
            (vec![dense(3)], kl_divergence(), Some("end with softmax")),
            (vec![dense(3)], mean_squared_error(), None),
        ];
        for (layers, loss, expected) in cases {
            let shown = format!("{layers:?} {loss:?}");
            let found = warnings(layers, loss);
            assert_eq!(found.len(), usize::from(expected.is_some()), "{shown}: {found:?}");
            assert!(expected.is_none_or(|text| found[0].contains(text)), "{shown}: {found:?}");
        }
    }
}
