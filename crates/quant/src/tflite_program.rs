//! Runs TFLite graphs: a float graph as a compiled program of the CPU engine, an int8 graph with int8 kernels.

use crate::float_eval::{FloatEvaluator, TensorQuery};
use std::sync::Arc;
use std::time::Duration;
use systole_cpu::{Level, ThreadPool};
use systole_int8::{Int8Program, Settings};
use systole_ir::{DType, Literal, Result};
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
    /// If the graph is invalid, or this machine does not support the instruction set that the environment asks for.
    pub fn new(model: TfliteModel, engine: GraphEngine, threads: usize) -> Result<TfliteProgram> {
        model.check()?;
        let team = || if threads > 0 { ThreadPool::new(threads) } else { ThreadPool::from_knob() };
        let float = match engine == GraphEngine::Fast && is_float(&model) {
            true => {
                let backend = systole_cpu::CpuBackend::with(team(), Level::from_knob()?)?;
                // Operators that the engine does not have run in the interpreter, as those of int8 graphs.
                FloatEvaluator::new(backend, &model, &model.outputs, TensorQuery::Values, 1).ok()
            }
            false => None,
        };
        let graph = match (float, engine) {
            (Some(float), _) => ProgramGraph::Float(float),
            (None, GraphEngine::Fast) => {
                let settings = Settings { team: Arc::new(team()), ..Settings::from_knobs()? };
                ProgramGraph::Int8(Box::new(Int8Program::new(model.clone(), &settings)?))
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
