//! Runs TFLite graphs: a float graph as a compiled program of the CPU engine, an int8 graph with int8 kernels.

use crate::float_eval::{FloatEvaluator, FloatGraph, TensorQuery};
use std::sync::Arc;
use std::time::Duration;
use systole_cpu::{Level, ThreadPool};
use systole_int8::{Int8Program, Settings};
use systole_ir::{DType, Literal, Result};
use systole_runtime::CompileOptions;
use systole_tflite::{TfliteInterpreter, TfliteModel};

/// Engine that runs a TFLite graph: the interpreter or the CPU engine.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum GraphEngine {
    /// CPU engine.
    #[default]
    Fast,
    /// Interpreter of `systole-tflite`: slow, bit-identical.
    Reference,
}

/// A TFLite graph that is ready to run, with any number of inputs and outputs.
pub struct TfliteProgram {
    model: TfliteModel,
    graph: ProgramGraph,
}

enum ProgramGraph {
    Float(FloatEvaluator),
    Int8(Box<Int8Program>),
    Reference,
}

impl TfliteProgram {
    /// Prepares a TFLite graph for this number of threads (0: `SYSTOLE_THREADS`).
    ///
    /// # Errors
    /// If the graph is invalid, it needs more memory than there is, or this machine does not support the instruction set
    /// that the environment asks for.
    pub fn new(model: TfliteModel, engine: GraphEngine, threads: usize) -> Result<TfliteProgram> {
        let model = model.fold_constants()?;
        let team = || if threads > 0 { ThreadPool::new(threads) } else { ThreadPool::from_knob() };
        let float = match engine == GraphEngine::Fast && is_float(&model) {
            // Operators that the engine does not have run in the interpreter, as those of int8 graphs.
            true => FloatGraph::of(&model, &model.outputs, TensorQuery::Values, 1).ok(),
            false => None,
        };
        let graph = match (float, engine) {
            (Some(float), _) => {
                let backend = systole_cpu::CpuBackend::with(team(), Level::from_knob()?)?;
                // The order of sums is open in .tflite files.
                let options = CompileOptions { winograd: true, ..CompileOptions::default() };
                ProgramGraph::Float(float.compiled(&backend, &options)?)
            }
            (None, GraphEngine::Fast) => {
                let settings = Settings { team: Arc::new(team()), ..Settings::from_knobs()? };
                let program = Int8Program::new(model.clone(), &settings)?;
                systole_cpu::check_memory(program.arena_bytes())?;
                ProgramGraph::Int8(Box::new(program))
            }
            (None, GraphEngine::Reference) => ProgramGraph::Reference,
        };
        Ok(TfliteProgram { model, graph })
    }

    /// Returns the TFLite graph.
    pub fn model(&self) -> &TfliteModel {
        &self.model
    }

    /// Runs many samples, each with its inputs, and returns their outputs.
    ///
    /// # Errors
    /// If an input has the wrong shape or type, or an operator cannot be computed.
    pub fn run_all(&self, samples: &[&[Literal]]) -> Result<Vec<Vec<Literal>>> {
        match &self.graph {
            ProgramGraph::Float(float) => {
                samples.iter().map(|inputs| self.in_floats(float, inputs)).collect()
            }
            ProgramGraph::Int8(program) => program.run_all(samples),
            ProgramGraph::Reference => {
                let interpreter = TfliteInterpreter::new(&self.model)?;
                samples.iter().map(|inputs| interpreter.run(inputs)).collect()
            }
        }
    }

    /// Runs one sample and returns its outputs.
    ///
    /// # Errors
    /// See [`TfliteProgram::run_all`].
    pub fn run(&self, inputs: &[Literal]) -> Result<Vec<Literal>> {
        Ok(self.run_all(&[inputs])?.pop().unwrap_or_default())
    }

    fn in_floats(&self, float: &FloatEvaluator, inputs: &[Literal]) -> Result<Vec<Literal>> {
        let mut outputs = Vec::new();
        float.run(&[inputs.to_vec()], |_, made| {
            for (y, &t) in made.iter().zip(&self.model.outputs) {
                outputs.push(y.reshape(self.model.tensor(t)?.dims())?);
            }
            Ok(())
        })?;
        Ok(outputs)
    }

    /// Returns the kernel and the time of each operator for one sample; `None` if operators are not run one by one.
    ///
    /// # Errors
    /// See [`TfliteProgram::run_all`].
    pub fn operator_times(&self, inputs: &[Literal]) -> Result<Option<Vec<(&'static str, Duration)>>> {
        let ProgramGraph::Int8(program) = &self.graph else { return Ok(None) };
        let (_, times) = program.run_timed(&[inputs])?;
        Ok(Some(program.forms().zip(times).collect()))
    }

    /// Returns the kernel of each operator; `interpreter` if it has none, nothing if the graph is compiled as a whole.
    pub fn kernels(&self) -> Vec<&'static str> {
        match &self.graph {
            ProgramGraph::Float(_) => Vec::new(),
            ProgramGraph::Int8(program) => program.forms().collect(),
            ProgramGraph::Reference => vec!["interpreter"; self.model.operators.len()],
        }
    }

    /// Returns the bytes of intermediate results for one sample, as planned for int8 graphs; otherwise 0.
    pub fn arena_bytes(&self) -> usize {
        match &self.graph {
            ProgramGraph::Int8(program) => program.arena_bytes(),
            _ => 0,
        }
    }

    /// Returns the number of operators that run in the interpreter.
    pub fn interpreted(&self) -> usize {
        match &self.graph {
            ProgramGraph::Float(_) => 0,
            ProgramGraph::Int8(program) => program.interpreted(),
            ProgramGraph::Reference => self.model.operators.len(),
        }
    }
}

/// Whether all values are floats, or integers without a scale.
fn is_float(model: &TfliteModel) -> bool {
    let known = |dtype| matches!(dtype, DType::F32 | DType::I32 | DType::I64 | DType::Bool);
    model.tensors.iter().all(|t| known(t.ty.dtype))
}

#[cfg(test)]
mod tests {
    use super::*;
    use systole_tflite::{TfliteOp, TfliteOperator, TfliteQuantization, TfliteTensor};

    /// x → RELU → y → NEG → z, with two outputs.
    fn model(tensor: fn(&str) -> TfliteTensor) -> TfliteModel {
        TfliteModel {
            tensors: ["x", "y", "z"].map(tensor).to_vec(),
            operators: vec![
                TfliteOperator::new(TfliteOp::Relu, [0], [1]),
                TfliteOperator::new(TfliteOp::Neg, [1], [2]),
            ],
            inputs: vec![0],
            outputs: vec![1, 2],
            ..TfliteModel::default()
        }
    }

    #[test]
    fn every_engine_returns_all_outputs() {
        let floats = || model(|name| TfliteTensor::new(name, [1, 2], DType::F32));
        let program = |model, engine| TfliteProgram::new(model, engine, 1).unwrap();
        let (fast, reference) =
            (program(floats(), GraphEngine::Fast), program(floats(), GraphEngine::Reference));
        assert_eq!((fast.interpreted(), reference.interpreted()), (0, 2));
        let samples =
            [[1.5f32, -2.0], [-0.5, 4.0]].map(|values| [Literal::from_slice([1, 2], &values).unwrap()]);
        let expected = [[[1.5, 0.0], [-1.5, 0.0]], [[0.0, 4.0], [0.0, -4.0]]];
        let values = |made: Vec<Literal>| made.iter().map(Literal::to_f32s).collect::<Vec<_>>();
        for program in [&fast, &reference] {
            let all = program.run_all(&samples.each_ref().map(|sample| &sample[..])).unwrap();
            assert_eq!(all.into_iter().map(values).collect::<Vec<_>>(), expected);
            assert_eq!(values(program.run(&samples[1]).unwrap()), expected[1]);
            assert!(program.operator_times(&samples[0]).unwrap().is_none());
        }
        let int8 = TfliteModel {
            operators: vec![TfliteOperator::new(TfliteOp::Relu, [0], [1])],
            outputs: vec![1],
            ..model(|name| {
                TfliteTensor::new(name, [1, 2], DType::I8).quantized(TfliteQuantization::per_tensor(0.5, 0))
            })
        };
        let fast = program(int8, GraphEngine::Fast);
        let q = |values: [i8; 2]| Literal::from_slice([1, 2], &values).unwrap();
        assert_eq!(fast.run(&[q([3, -4])]).unwrap(), [q([3, 0])]);
        assert_eq!(fast.interpreted(), 0);
        assert_eq!(fast.operator_times(&[q([3, -4])]).unwrap().map(|times| times.len()), Some(1));
    }
}
