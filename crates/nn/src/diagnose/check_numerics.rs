//! Explains a non-finite loss: finds the first of data, weights and layer outputs that is not finite.
//!
//! It recomputes the forward pass of that step and is not part of any step. The training step does not update weights
//! if its loss is not finite, so they are still those that it read.

use crate::layer::{Cx, Precision};
use crate::model::architecture::{LayerNode, NodeInput};
use crate::model::batch::Batch;
use crate::model::compile::Compile;
use crate::model::compiled_steps::{TracedStep, controls, union};
use crate::model::output_losses::OutputLosses;
use crate::model::step_input::values;
use crate::model::train_step::BatchTree;
use crate::model::{Model, counted};
use systole_ir::{DType, Literal, Result, Tensor};
use systole_runtime::{Buffer, Params, jit};

/// Trainable and frozen weights, the batch, step and seed.
type NumericsInputs = (Params, Params, BatchTree, (Tensor, Tensor));
/// For each layer, then for the loss: number of non-finite values, and the maximum magnitude.
type NumericsOutputs = Vec<Tensor>;

/// Cause of a non-finite loss, and a hint.
struct NonFiniteCause {
    what: String,
    hint: String,
}

/// Magnitudes above this are reported.
const LARGE: f64 = 1e4;

const SLOWER: &str = "try a smaller learning rate, or clip gradients (clipnorm = 1.0)";

impl Model {
    /// Explains why the loss of the last step on `batch` is not finite, in one line: the step, the first non-finite
    /// value and a hint. `exactly`: whether it was this step, not an earlier unchecked one.
    pub(crate) fn explain_loss(&self, batch: &Batch, exactly: bool) -> String {
        let at = if exactly { "at step" } else { "by step" };
        let found = self.first_not_finite(batch, exactly);
        let NonFiniteCause { what, hint } = found.unwrap_or_else(|e| NonFiniteCause {
            what: format!("the cause was not found: {e}"),
            hint: SLOWER.into(),
        });
        format!("the loss is not finite {at} {}: {what}; {hint}", self.step)
    }

    fn first_not_finite(&self, batch: &Batch, exactly: bool) -> Result<NonFiniteCause> {
        if let Some(found) = self.in_batch(batch) {
            return Ok(found);
        }
        // Weights sharded over hosts are not available here.
        if self.hosts().is_some() {
            return Ok(NonFiniteCause {
                what: "the data on this host is finite".into(),
                hint: SLOWER.into(),
            });
        }
        match self.in_weights()? {
            Some(found) => Ok(found),
            None if self.compiled()?.config.train_step.is_some() => Ok(NonFiniteCause {
                what: "data and weights are finite, but the step's results are not".into(),
                hint: "log parts of the loss (cx.log), or try a smaller learning rate".into(),
            }),
            None => self.in_forward_pass(batch, exactly),
        }
    }

    /// Returns what was not finite before the step: its data or weights.
    pub(crate) fn given_not_finite(&self, batch: &Batch) -> Result<Option<String>> {
        let found = match self.in_batch(batch) {
            Some(found) => Some(found),
            None => self.in_weights()?,
        };
        Ok(found.map(|found| found.what))
    }

    fn in_batch(&self, batch: &Batch) -> Option<NonFiniteCause> {
        let names = self.batch_fields().inputs;
        let inputs = names.iter().map(|n| format!("the input `{n}`")).zip(&batch.inputs);
        let label = batch.labels().map(|x| ("the label".to_string(), x));
        let weights = batch.weights();
        let weight = weights.iter().map(|x| ("the sample weight".to_string(), x));
        let mut all = inputs.chain(label).chain(weight);
        all.find_map(|(name, x)| {
            let (first, count) = odd_numbers(x)?;
            let each = x.ty().elements() / x.shape().first().copied().unwrap_or(1).max(1);
            let value = x.get(first).as_f64();
            let others = if count > 1 {
                format!(" and {} more", counted(count as u64 - 1, "number"))
            } else {
                String::new()
            };
            let what =
                format!("{name} has {value}{others}, first in sample {} of the batch", first / each.max(1));
            Some(NonFiniteCause {
                what,
                hint: "fix or remove such samples: this step did not change any weight".into(),
            })
        })
    }

    /// Returns the last layer with non-finite weights: the backward pass reaches it first.
    fn in_weights(&self) -> Result<Option<NonFiniteCause>> {
        let mut found: Vec<(&str, usize, usize)> = Vec::new();
        for (path, buffer) in self.weights() {
            if let Some((_, count)) = odd_numbers(&buffer.to_literal()?) {
                found.push((path, count, buffer.ty().elements()));
            }
        }
        let place = |path: &str| {
            let layer = path.split('/').next().unwrap_or(path);
            self.architecture.nodes.iter().position(|n| n.name == layer)
        };
        let Some(&(path, count, of)) = found.iter().max_by_key(|(path, ..)| place(path)) else {
            return Ok(None);
        };
        let layer = path.split('/').next().unwrap_or(path);
        let others = match found.len() - 1 {
            0 => String::new(),
            n => format!(", as were some of {}", counted(n as u64, "other weight")),
        };
        let since = match self.step {
            0 | 1 => "before the first step: initialized, loaded or set to such values".to_string(),
            n => format!("since the update of step {}, whose loss was finite", n - 1),
        };
        let what = format!(
            "weights of layer `{layer}` were not finite {since} ({count} of {of} numbers of {path}{others})"
        );
        let hint = if self.step < 2 { "start with other weights" } else { SLOWER };
        Ok(Some(NonFiniteCause { what, hint: hint.into() }))
    }

    fn in_forward_pass(&self, batch: &Batch, exactly: bool) -> Result<NonFiniteCause> {
        let compiled = self.compiled()?;
        let function = forward(self, &compiled.config, &compiled.goals)
            .on(compiled.backend.clone())
            .named("check numerics");
        let (_, step, seed) = controls(
            compiled.config.optimizer.values_at(0),
            self.step.saturating_sub(1),
            compiled.config.seed,
        );
        let state = (self.state.trainable.clone(), self.state.frozen.clone());
        let counts = function.call((state.0, state.1, batch.buffers(), (step, seed)))?;
        let values: Vec<f64> = counts.iter().map(Buffer::to_f64).collect::<Result<_>>()?;
        let nodes = &self.architecture.nodes;
        if let Some(i) = (0..nodes.len()).find(|i| values[2 * i] > 0.0) {
            let (node, count) = (&nodes[i], values[2 * i] as u64);
            let class = node.layer.class_name();
            let evidence = self.greatest(node, &values)?;
            let what = format!(
                "the first non-finite output is that of layer `{}` ({class}), in {}{evidence}",
                node.name,
                counted(count, "number")
            );
            let hint = match compiled.config.precision {
                Precision::MixedFloat16 => {
                    "float16 ends at 65504: scale the data, use mixed_bfloat16, or a smaller learning rate"
                        .into()
                }
                _ => SLOWER.to_string(),
            };
            return Ok(NonFiniteCause { what, hint });
        }
        let names = compiled.goals.all.iter().filter_map(|goal| Some(goal.loss.as_ref()?.name()));
        let name = names.collect::<Vec<_>>().join(", ");
        Ok(match values.get(2 * nodes.len()) {
            Some(count) if *count > 0.0 => NonFiniteCause {
                what: format!("all layer outputs are finite, but the loss ({name}) is not"),
                hint: "check that labels are in the loss's range, and check the sample weights".into(),
            },
            _ if exactly => NonFiniteCause {
                what: format!("when recomputed, all layer outputs and the loss ({name}) are finite: values are close to overflow"),
                hint: SLOWER.into(),
            },
            _ => NonFiniteCause {
                what: "all layer outputs are finite for this batch: the cause is an earlier batch since the last check of the loss"
                    .into(),
                hint: "check for non-finite samples, or try a smaller learning rate".into(),
            },
        })
    }

    /// Returns the maximum magnitudes of a layer's weights and input, for a message.
    fn greatest(&self, node: &LayerNode, values: &[f64]) -> Result<String> {
        let mut parts = Vec::new();
        let own = |path: &str| path.split('/').next() == Some(&node.name);
        for (path, buffer) in self.weights().into_iter().filter(|(path, _)| own(path)) {
            let most = buffer.to_literal()?.to_f64s().into_iter().fold(0.0, |m: f64, v| m.max(v.abs()));
            if most > LARGE {
                parts.push(format!("{path} reaches {most:.1e}"));
            }
        }
        if let Some(NodeInput::Layer(j)) = node.inputs.first()
            && values[2 * j + 1] > LARGE
        {
            parts.push(format!("its input reaches {:.1e}", values[2 * j + 1]));
        }
        Ok(if parts.is_empty() { String::new() } else { format!(" ({})", parts.join(", ")) })
    }
}

/// Returns the index of the first non-finite number, and their count.
fn odd_numbers(x: &Literal) -> Option<(usize, usize)> {
    if !x.dtype().is_float() {
        return None;
    }
    let values = x.to_f64s();
    let first = values.iter().position(|v| !v.is_finite())?;
    Some((first, values.iter().filter(|v| !v.is_finite()).count()))
}

/// Traces the forward pass of a training step; returns the results listed in [`NumericsOutputs`].
fn forward(
    model: &Model,
    config: &Compile,
    goals: &OutputLosses,
) -> TracedStep<NumericsInputs, NumericsOutputs> {
    let (architecture, goals) = (model.architecture.clone(), goals.clone());
    let precision = config.precision;
    let traced: Box<dyn Fn(NumericsInputs) -> NumericsOutputs + Send + Sync> =
        Box::new(move |(trainable, frozen, (inputs, labels, weights), (step, seed))| {
            let cx = Cx::new(step.builder(), union(&trainable, &frozen), precision);
            let mut cx = cx.training_with(&seed, &step);
            let mut seen = Vec::new();
            let outputs = architecture.call_with(&mut cx, &values(inputs), |_, y| seen.extend(measured(y)));
            seen.extend(measured(&goals.outcome(&mut cx, &outputs, (&labels, &weights), true).loss));
            seen
        });
    // Compiled with the same options as the training step.
    jit(traced).flush_denormals(true).winograd(true).excess_precision(true).batch(2)
}

/// Returns the number of non-finite values, and the maximum magnitude: `f32[]` each.
fn measured(x: &Tensor) -> [Tensor; 2] {
    if !x.dtype().is_float() {
        return [x.builder().scalar(DType::F32, 0.0), x.builder().scalar(DType::F32, 0.0)];
    }
    let all: Vec<usize> = (0..x.rank()).collect();
    let count = x.is_finite().not().convert(DType::F32).sum_all();
    [count, x.abs().convert(DType::F32).reduce_max(&all)]
}
