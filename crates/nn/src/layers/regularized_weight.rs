//! Weights with regularizers and constraints, and the common end of Dense and convolution layers (bias, activation,
//! penalty).

use super::built_in::*;
use crate::layer::activation::Activation;
use crate::layer::constraint::Constraint;
use crate::layer::regularizer::Regularizer;

/// Regularizer and constraint of a weight.
pub(super) type WeightRules = (Option<Regularizer>, Option<Constraint>);

/// Returns a trainable weight and registers its regularizer and constraint.
pub(super) fn ruled_weight(
    cx: &mut Cx,
    class: &str,
    name: &str,
    shape: &[usize],
    initializer: &Initializer,
    (regularizer, constraint): WeightRules,
) -> Result<Tensor> {
    let made = weight(cx, class, name, shape, initializer)?;
    if let (Some(regularizer), Some((both, _))) = (regularizer, cx.adapters_of(name, shape)) {
        // The frozen weight has no penalty. As in Keras, its regularizer applies to the adapters.
        both.iter().for_each(|(name, adapter)| cx.penalize_weight(name, || regularizer.of(adapter)));
    } else if let Some(regularizer) = regularizer {
        let stored = cx.variable(name, shape, initializer, true);
        cx.penalize_weight(name, || regularizer.of(&stored));
    }
    if let Some(constraint) = constraint {
        constraint.check(shape.len()).map_err(|e| e.at(format!("{class}'s {name}")))?;
        cx.constrain(name, constraint);
    }
    Ok(made)
}

/// Adds the penalty on a layer's output to the loss.
pub(super) fn penalize_output(cx: &mut Cx, regularizer: Option<Regularizer>, y: &Tensor) {
    if let Some(regularizer) = regularizer {
        cx.penalize_output(|| regularizer.of(y));
    }
}

/// `y: T[…, F] → T[…, F]`: adds the bias, if any, applies the activation, and penalizes the output.
pub(super) fn finished(
    cx: &mut Cx,
    class: &str,
    y: Tensor,
    bias: Option<(&Initializer, WeightRules)>,
    (activation, penalty): (Activation, Option<Regularizer>),
) -> Result<Tensor> {
    let y = match bias {
        Some((initializer, rules)) => {
            let units = y.dim(-1);
            y + ruled_weight(cx, class, "bias", &[units], initializer, rules)?
        }
        None => y,
    };
    let y = cx.activate(activation, &y);
    penalize_output(cx, penalty, &y);
    Ok(y)
}

/// Rejects regularizer factors that are negative or not finite.
pub(super) fn check_rules(class: &str, regularizers: [Option<Regularizer>; 3]) -> Result<()> {
    match regularizers.into_iter().flatten().find(|r| !r.is_sound()) {
        Some(r) => Err(wrong(
            class,
            "regularizers with l1 and l2 of at least 0",
            format!("l1 {}, l2 {}", r.l1, r.l2),
        )),
        None => Ok(()),
    }
}
