//! Anomaly detection: finds the op of a training step that first produces NaN or infinity, and saves the batch.
//!
//! As in Lightning and PyTorch, it covers the forward and the backward pass. It runs the step's graph once more with
//! counters on all values before the step is applied, so that the weights are those the step would read. Inactive by
//! default; if enabled, each step takes about twice as long.

use crate::model::Model;
use crate::model::batch::Batch;
use crate::model::step_input::values;
use std::path::Path;
use std::sync::Arc;
use systole_data::file_system::{OsFileSystem, write_atomically};
use systole_data::format::npy;
use systole_ir::{DType, Graph, Literal, Op, Result, Tensor, TensorType, ValueId, err};
use systole_runtime::{Buffer, jit};

/// The training step with counters, for batches of certain types.
pub(crate) struct AnomalyProbe {
    types: Vec<TensorType>,
    graph: Arc<Graph>,
    /// Counted values: all floats.
    values: Vec<ValueId>,
    function: NonFiniteCounter,
}

/// Takes the step's arguments in order; returns for each value how many numbers are NaN, and how many are not finite.
type NonFiniteCounter =
    systole_runtime::Jit<Vec<Tensor>, Vec<Tensor>, Box<dyn Fn(Vec<Tensor>) -> Vec<Tensor> + Send + Sync>>;

/// A value, with its number of NaNs and of non-finite numbers.
type NonFiniteValue = (ValueId, [f64; 2]);

impl AnomalyProbe {
    fn new(model: &Model, batch: &Batch) -> Result<AnomalyProbe> {
        let compiled = model.compiled()?;
        let metrics = compiled.train.metrics.zeros(&model.output_shapes());
        let (graph, _) = compiled.train.trace(&model.state, metrics, batch, model.controls(), false)?;
        let is_float = |v: &ValueId| graph.ty(*v).dtype.is_float();
        let outs =
            |(i, node): (usize, &systole_ir::Node)| (0..node.outs.len()).map(move |k| ValueId::new(i, k));
        let values: Vec<ValueId> = graph.nodes.iter().enumerate().flat_map(outs).filter(is_float).collect();
        let whole = Graph { results: values.clone(), ..(*graph).clone() };
        let traced: Box<dyn Fn(Vec<Tensor>) -> Vec<Tensor> + Send + Sync> = Box::new(move |args| {
            let builder = args[0].builder().clone();
            let all = builder.inline(&whole, &args.iter().collect::<Vec<_>>());
            all.iter().flat_map(counted).collect()
        });
        let function = jit(traced).on(compiled.backend.clone()).named("detect anomaly").flush_denormals(true);
        Ok(AnomalyProbe { types: types(batch), graph, values, function })
    }

    /// Returns the arguments of a step in the order of its graph.
    fn arguments(model: &Model, batch: &Batch) -> Vec<Buffer> {
        let state = &model.state;
        let groups = [&state.trainable, &state.frozen, &state.optimizer, &state.metrics];
        let mut all: Vec<Buffer> = groups.iter().flat_map(|group| group.values().cloned()).collect();
        let (inputs, labels, weights) = batch.buffers();
        let (rate, step, seed) = model.controls();
        all.extend(values(inputs));
        all.extend(labels);
        all.extend(weights);
        all.extend([rate, step, seed]);
        all
    }

    /// Returns the first value that becomes non-finite, with its counts; the inner `None`: the step's inputs were
    /// already non-finite. The outer `None`: the step's results are finite.
    fn look(&self, model: &Model, batch: &Batch) -> Result<Option<Option<NonFiniteValue>>> {
        let counts = self.function.call(AnomalyProbe::arguments(model, batch))?;
        let counts: Vec<f64> = counts.iter().map(Buffer::to_f64).collect::<Result<_>>()?;
        let count_of = |v: &ValueId| {
            let at = self.values.iter().position(|value| value == v);
            at.map_or([0.0, 0.0], |at| [counts[2 * at], counts[2 * at + 1]])
        };
        let bad: Vec<ValueId> = self.graph.results.iter().copied().filter(|r| count_of(r)[1] > 0.0).collect();
        if bad.is_empty() {
            return Ok(None);
        }
        let live = self.graph.live(&bad);
        // Values produced inside the step that reach a result. Constants may be infinite, such as the initial value of
        // a maximum.
        let is_born = |v: &&ValueId| {
            let node = self.graph.node(**v);
            let given = matches!(node.op, Op::Parameter(_) | Op::Constant(_));
            let fed = node.inputs.iter().any(|input| count_of(input)[1] > 0.0);
            live[v.index()] && !given && !fed && count_of(v)[1] > 0.0
        };
        Ok(Some(self.values.iter().find(is_born).map(|v| (*v, count_of(v)))))
    }

    /// Describes a value: `stablehlo.log of layer `dense`, in the backward pass`.
    fn name(&self, value: ValueId) -> String {
        let node = self.graph.node(value);
        let pass = if self.graph.is_derivative(node) { "the backward pass" } else { "the forward pass" };
        let scope = self.graph.scope(node);
        let place = match scope.split('/').next().unwrap_or_default() {
            "" => String::new(),
            "loss" => " of the loss".into(),
            "optimizer" => return format!("{} of the optimizer's update", node.op.name()),
            _ => format!(" of layer `{scope}`"),
        };
        format!("{}{place}, in {pass}", node.op.name())
    }
}

fn types(batch: &Batch) -> Vec<TensorType> {
    let (inputs, labels, weights) = batch.buffers();
    values(inputs).iter().chain(&labels).chain(&weights).map(|x| x.ty().clone()).collect()
}

/// Counts NaNs and non-finite numbers: `f32[]` each.
fn counted(x: &Tensor) -> [Tensor; 2] {
    let count = |is: Tensor| is.convert(DType::F32).sum_all();
    [count(x.equal(x).not()), count(x.is_finite().not())]
}

impl Model {
    /// Returns an error if the next step on `batch` would produce non-finite numbers: names the op, the layer and the
    /// pass that first produce them. Writes the batch to `file`, an `.npz`.
    pub(crate) fn detect_anomaly(
        &self,
        probe: &mut Option<AnomalyProbe>,
        batch: &Batch,
        file: &Path,
    ) -> Result<()> {
        let probe = match probe {
            Some(probe) if probe.types == types(batch) => probe,
            other => other.insert(AnomalyProbe::new(self, batch)?),
        };
        let Some(found) = probe.look(self, batch)? else { return Ok(()) };
        let born = found.map(|(value, [nan, all])| {
            let (kind, count) = if nan > 0.0 { ("NaN", nan) } else { ("infinity", all) };
            let of = probe.graph.ty(value).elements();
            format!("the first {kind} is produced by {} ({count} of {of} numbers)", probe.name(value))
        });
        let all: Vec<String> = self.given_not_finite(batch)?.into_iter().chain(born).collect();
        let because = all.join("; ");
        let e = err!(Data, "step {} would produce non-finite numbers", self.steps() + 1)
            .because(format!("{because} (detect_anomaly)"));
        Err(match self.write_batch(batch, file) {
            Ok(()) => e.hint(format!("inspect the batch of this step: {}", file.display())),
            Err(written) => e.hint(format!("the batch of this step could not be written: {written}")),
        })
    }

    /// Writes the arrays of a batch under their field names.
    fn write_batch(&self, batch: &Batch, file: &Path) -> Result<()> {
        if !self.leads() {
            return Ok(());
        }
        let fields = self.batch_fields();
        let (labels, weights) = (fields.label_names(), batch.weights());
        let weight_names = fields.weight_names();
        let inputs = fields.inputs.into_iter().zip(&batch.inputs);
        let label = labels.into_iter().zip(batch.labels());
        let weight = weight_names.into_iter().zip(&weights);
        let array = |(name, x): (String, &Literal)| {
            // NumPy has no bfloat16.
            let x = if x.dtype() == DType::BF16 { x.convert(DType::F32) } else { x.clone() };
            let raw = npy::raw_from_bytes(&name, &npy::to_bytes(&x)?)?;
            Ok((name, raw))
        };
        let arrays = inputs.chain(label).chain(weight).map(array).collect::<Result<Vec<_>>>()?;
        let parts = npy::npz_parts(&arrays)?;
        write_atomically(&OsFileSystem, file, &parts.iter().map(|part| &part[..]).collect::<Vec<_>>())
    }
}
