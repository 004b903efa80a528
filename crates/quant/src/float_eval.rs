//! Evaluates TFLite graphs in floats on the CPU engine, many samples at once, by way of their ONNX export and the IR.
//! int8 tensors are rounded like QuantizeLinear: within one step of the integers.

use std::sync::Arc;
use systole_cpu::CpuBackend;
use systole_ir::{DType, Graph, Literal, Result, TensorType, err};
use systole_onnx::{DimSize, DimSizes, OnnxNode};
use systole_runtime::{Backend, Buffer, CompileOptions, Executable, ExecutableArg};
use systole_tflite::{TfliteInterpreter, TfliteModel};

/// Maximum bytes of results per call.
const MOST_BYTES: usize = 64 << 20;
/// Maximum number of samples per call.
const MOST_SAMPLES: usize = 64;

/// Data collected from tensors: all values, or minimum and maximum.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum TensorQuery {
    /// All values.
    Values,
    /// Minimum and maximum of each tensor: two results.
    Ends,
}

/// A graph in floats for a batch of samples, to be compiled.
pub(crate) struct FloatGraph {
    graph: Arc<Graph>,
    batch: usize,
}

/// A graph compiled for a batch of samples.
pub(crate) struct FloatEvaluator {
    executable: Arc<dyn Executable>,
    inputs: Vec<TensorType>,
    batch: usize,
}

impl FloatGraph {
    /// Returns a TFLite graph in floats; it returns computed `tensors`, for batches of at most `samples`.
    ///
    /// # Errors
    /// If an operator has no ONNX counterpart.
    pub fn of(
        model: &TfliteModel,
        tensors: &[usize],
        wanted: TensorQuery,
        samples: usize,
    ) -> Result<FloatGraph> {
        let asked = TfliteModel { outputs: tensors.to_vec(), ..model.clone() };
        let mut onnx = systole_onnx::export(&asked)?;
        let is_open = onnx.graph.inputs.iter().all(|p| {
            let first = p.sizes.as_deref().and_then(|s| s.first());
            matches!(first, Some(DimSize::Named(_)))
        });
        let bytes: usize = tensors.iter().map(|&t| model.tensor(t).map_or(0, |t| t.ty.bytes())).sum();
        let room = (MOST_BYTES / bytes.max(1)).clamp(1, MOST_SAMPLES).min(samples.max(1));
        let batch = if is_open { room } else { 1 };
        if wanted == TensorQuery::Ends {
            let mut ends = Vec::new();
            for port in std::mem::take(&mut onnx.graph.outputs) {
                for op in ["ReduceMin", "ReduceMax"] {
                    let name = format!("{}/{op}", port.name);
                    let node = OnnxNode::new(op, [port.name.as_str()], name.as_str());
                    onnx.graph.nodes.push(node.with("keepdims", systole_onnx::OnnxAttribute::Int(0)));
                    ends.push(systole_onnx::ValueInfo { name, ..systole_onnx::ValueInfo::default() });
                }
            }
            onnx.graph.outputs = ends;
        }
        let named =
            if is_open { [(systole_onnx::BATCH.to_string(), batch)].into() } else { Default::default() };
        let graph = onnx.import(&DimSizes { named, ..DimSizes::default() })?.graph;
        Ok(FloatGraph { graph, batch })
    }

    /// Compiles the graph.
    ///
    /// # Errors
    /// If it needs more memory than there is.
    pub fn compiled(self, backend: &CpuBackend, options: &CompileOptions) -> Result<FloatEvaluator> {
        let executable = backend.compile(&self.graph, options)?;
        Ok(FloatEvaluator { executable, inputs: self.graph.param_types().to_vec(), batch: self.batch })
    }
}

impl FloatEvaluator {
    /// Compiles a TFLite graph for float evaluation.
    ///
    /// # Errors
    /// See [`FloatGraph::of`] and [`FloatGraph::compiled`].
    pub fn new(
        backend: CpuBackend,
        model: &TfliteModel,
        tensors: &[usize],
        wanted: TensorQuery,
        samples: usize,
    ) -> Result<FloatEvaluator> {
        FloatGraph::of(model, tensors, wanted, samples)?.compiled(&backend, &CompileOptions::default())
    }

    /// Evaluates all samples batch by batch; `each` gets the results and the number of samples in the batch. The last
    /// batch may be padded with copies.
    ///
    /// # Errors
    /// If a sample does not match the input, or `each` returns an error.
    pub fn run(
        &self,
        samples: &[Vec<Literal>],
        mut each: impl FnMut(usize, &[Literal]) -> Result<()>,
    ) -> Result<()> {
        for part in samples.chunks(self.batch) {
            let mut inputs = Vec::new();
            for (i, ty) in self.inputs.iter().enumerate() {
                let mut bytes = Vec::with_capacity(ty.bytes());
                for k in 0..self.batch {
                    let x = part.get(k).or(part.last()).and_then(|sample| sample.get(i));
                    let x = x.ok_or_else(|| err!(Data, "the model's input {i} is missing"))?;
                    bytes.extend_from_slice(x.bytes());
                    if x.dtype() != ty.dtype || x.ty().bytes() * self.batch != ty.bytes() {
                        return Err(err!(
                            Data,
                            "the sample is {}, the model requires {ty} in batches of {}",
                            x.ty(),
                            self.batch
                        ));
                    }
                }
                inputs.push(ExecutableArg::Donate(Buffer::from(Literal::from_bytes(ty.clone(), &bytes)?)));
            }
            let made = self.executable.run(inputs)?;
            each(part.len(), &made.iter().map(Buffer::to_literal).collect::<Result<Vec<_>>>()?)?;
        }
        Ok(())
    }

    /// Returns the batch size of the compiled graph.
    pub fn batch(&self) -> usize {
        self.batch
    }
}

/// Evaluates float `tensors` sample by sample: on the CPU engine, or in the interpreter if the engine does not support
/// the graph. `each` gets the sample's index and the value of each tensor.
pub(crate) fn each_sample(
    model: &TfliteModel,
    tensors: &[usize],
    samples: &[Literal],
    mut each: impl FnMut(usize, &[&[f32]]) -> Result<()>,
) -> Result<()> {
    let compiled = CpuBackend::new()
        .and_then(|backend| FloatEvaluator::new(backend, model, tensors, TensorQuery::Values, samples.len()));
    let Ok(floats) = compiled else {
        let interpreter = TfliteInterpreter::new(model)?;
        for (k, sample) in samples.iter().enumerate() {
            let mut held = vec![Vec::new(); tensors.len()];
            interpreter.run_with(std::slice::from_ref(sample), |t, x| {
                tensors
                    .iter()
                    .zip(&mut held)
                    .filter(|(own, _)| **own == t)
                    .for_each(|(_, h)| *h = x.to_f32s());
            })?;
            each(k, &held.iter().map(Vec::as_slice).collect::<Vec<_>>())?;
        }
        return Ok(());
    };
    let given: Vec<Vec<Literal>> = samples.iter().map(|x| vec![x.clone()]).collect();
    let mut done = 0;
    floats.run(&given, |n, made| {
        let values = made.iter().map(Literal::as_slice::<f32>).collect::<Result<Vec<_>>>()?;
        for k in 0..n {
            let own =
                |all: &'_ [f32]| (all.len() / floats.batch()) * k..(all.len() / floats.batch()) * (k + 1);
            let rows: Vec<&[f32]> = values.iter().map(|all| &all[own(all)]).collect();
            each(done + k, &rows)?;
        }
        done += n;
        Ok(())
    })
}

/// Returns the float tensors that operators compute.
pub(crate) fn made(model: &TfliteModel) -> Vec<usize> {
    let all = model.operators.iter().flat_map(|o| o.outputs.iter().copied());
    all.filter(|&t| model.tensors.get(t).is_some_and(|t| t.ty.dtype == DType::F32)).collect()
}

/// Predicts with a graph that has float inputs and outputs, `f32[1, …] → f32[1, …]`: on the CPU engine, many samples at
/// once. int8 tensors inside are computed in floats and rounded, so results may differ by one step.
///
/// # Errors
/// If an operator has no ONNX counterpart, or a sample does not match the input.
pub fn in_floats(model: &TfliteModel, samples: &[Literal]) -> Result<Vec<Literal>> {
    let floats =
        FloatEvaluator::new(CpuBackend::new()?, model, &model.outputs, TensorQuery::Values, samples.len())?;
    let samples: Vec<Vec<Literal>> = samples.iter().map(|x| vec![x.clone()]).collect();
    let mut all = Vec::with_capacity(samples.len());
    floats.run(&samples, |n, made| {
        let y = made.first().ok_or_else(|| err!(Bug, "the model returned no output"))?;
        let dims = y.shape().dims();
        let one: Vec<usize> = std::iter::once(1).chain(dims.iter().skip(1).copied()).collect();
        let size = y.ty().bytes() / floats.batch().max(1);
        for bytes in y.bytes().chunks_exact(size.max(1)).take(n) {
            all.push(Literal::from_bytes(y.ty().with_shape(&one[..]), bytes)?.convert(DType::F32));
        }
        Ok(())
    })?;
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use systole_ir::ErrorKind;
    use systole_tflite::{TfliteOp, TfliteOperator, TfliteTensor};

    #[test]
    fn samples_run_in_batches_and_those_of_another_type_or_size_are_refused() {
        let tensor = |name: &str| TfliteTensor::new(name, [1, 2], DType::F32);
        let model = TfliteModel {
            tensors: ["x", "y"].map(tensor).to_vec(),
            operators: vec![TfliteOperator::new(TfliteOp::Relu, [0], [1])],
            inputs: vec![0],
            outputs: vec![1],
            ..TfliteModel::default()
        };
        let sample = |values: &[f32]| Literal::from_slice([1, values.len()], values).unwrap();
        let samples: Vec<Literal> = (0..70).map(|i| sample(&[i as f32, -1.0])).collect();
        let expected: Vec<Literal> = (0..70).map(|i| sample(&[i as f32, 0.0])).collect();
        assert_eq!(in_floats(&model, &samples).unwrap(), expected);
        // Small results are computed for up to 64 samples at once.
        for (samples, batch) in [(1, 1), (3, 3), (70, 64)] {
            let backend = CpuBackend::new().unwrap();
            let floats =
                FloatEvaluator::new(backend, &model, &model.outputs, TensorQuery::Values, samples).unwrap();
            assert_eq!(floats.batch(), batch);
        }
        for wrong in [Literal::from_slice([1, 2], &[1i32, 2]).unwrap(), sample(&[1.0; 3])] {
            let e = in_floats(&model, &[sample(&[1.0, 2.0]), wrong]).unwrap_err();
            assert_eq!(e.kind(), ErrorKind::Data, "{e}");
        }
    }
}
