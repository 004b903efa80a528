//! Where floats become integers and integers floats, outside the graph; whole models on floats.

use std::sync::Arc;
use systole_cpu::Team;
use systole_int8::{Program, Settings};
use systole_ir::{DType, Error, ErrorKind, Literal, Result};
use systole_tflite::{Interpreter, Model, Tensor};

/// What computes a graph.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Engine {
    /// The CPU engine's kernels: `systole_int8::Program`.
    #[default]
    Fast,
    /// The interpreter of `systole-tflite`, which is slow: the same bits.
    Reference,
}

/// A graph of one input and one output that answers in floats.
pub struct Answers {
    input: Tensor,
    output: Tensor,
    graph: Graph,
    threads: usize,
}

enum Graph {
    Fast(Box<Program>),
    Reference(Model),
}

impl Answers {
    /// Prepares a graph for so many threads.
    ///
    /// # Errors
    /// When the graph is not sound, or has several inputs or outputs.
    pub fn new(model: &Model, engine: Engine, threads: usize) -> Result<Answers> {
        model.check()?;
        let ([input], [output]) = (&model.inputs[..], &model.outputs[..]) else {
            return Err(Error::new(ErrorKind::Unsupported, "a model of several inputs or outputs")
                .hint("`systole run FILE.tflite --input IN.npz` takes any"));
        };
        let (input, output) = (model.tensor(*input)?.clone(), model.tensor(*output)?.clone());
        let graph = match engine {
            Engine::Fast => {
                let settings = Settings { team: Arc::new(Team::new(threads)), ..Settings::from_knobs()? };
                Graph::Fast(Box::new(Program::new(model.clone(), &settings)?))
            }
            Engine::Reference => Graph::Reference(model.clone()),
        };
        Ok(Answers { input, output, graph, threads })
    }

    /// What the graph says of each of `samples`, `f32[1, …] → f32[1, …]`: rounded to what the file takes and back.
    ///
    /// # Errors
    /// When a sample does not fit.
    pub fn of(&self, samples: &[Literal]) -> Result<Vec<Literal>> {
        let made = match &self.graph {
            Graph::Fast(program) => {
                let given = samples.iter().map(|x| quantized(x, &self.input)).collect::<Result<Vec<_>>>()?;
                let each: Vec<&[Literal]> = given.iter().map(std::slice::from_ref).collect();
                program.run_all(&each)?
            }
            Graph::Reference(model) => self.interpreted(&Interpreter::new(model)?, samples)?,
        };
        let one = |y: Vec<Literal>| {
            dequantized(y.first().ok_or_else(|| Error::new(ErrorKind::Bug, "no output"))?, &self.output)
        };
        made.into_iter().map(one).collect()
    }

    /// Sample by sample, each by one of the threads.
    fn interpreted(&self, interpreter: &Interpreter, samples: &[Literal]) -> Result<Vec<Vec<Literal>>> {
        let one = |x: &Literal| interpreter.run(&[quantized(x, &self.input)?]);
        let per = samples.len().div_ceil(self.threads.max(1)).max(1);
        std::thread::scope(|scope| {
            let one = &one;
            let part =
                |part| scope.spawn(move || <[Literal]>::iter(part).map(one).collect::<Result<Vec<_>>>());
            let threads: Vec<_> = samples.chunks(per).map(part).collect();
            let defect = || Error::new(ErrorKind::Bug, "a thread of the interpreter ended early");
            let parts: Vec<Vec<Vec<Literal>>> =
                threads.into_iter().map(|t| t.join().map_err(|_| defect())?).collect::<Result<_>>()?;
            Ok(parts.concat())
        })
    }
}

/// As [`Answers::of`], of a graph that is asked once.
///
/// # Errors
/// As of [`Answers`].
pub fn answers(model: &Model, samples: &[Literal], engine: Engine, threads: usize) -> Result<Vec<Literal>> {
    Answers::new(model, engine, threads)?.of(samples)
}

/// `x: f32[…]` as a tensor of the file takes it: rounded where that is int8.
///
/// # Errors
/// When the tensor's scale is none.
pub fn quantized(x: &Literal, tensor: &Tensor) -> Result<Literal> {
    let x = x.reshape(tensor.dims())?;
    let values = x.to_f32s();
    let (low, high) = match tensor.ty.dtype {
        DType::I8 => (-128.0, 127.0),
        DType::U8 => (0.0, 255.0),
        other => return Ok(x.convert(other)),
    };
    let (scale, zero) = tensor.scale()?;
    let q = values.iter().map(|v| ((v / scale).round() + zero as f32).clamp(low, high));
    match tensor.ty.dtype {
        DType::I8 => Literal::from_slice(tensor.dims(), &q.map(|q| q as i8).collect::<Vec<_>>()),
        _ => Literal::from_slice(tensor.dims(), &q.map(|q| q as u8).collect::<Vec<_>>()),
    }
}

/// What a tensor of the file says, in floats: `→ f32[…]`.
///
/// # Errors
/// When the tensor's scale is none.
pub fn dequantized(y: &Literal, tensor: &Tensor) -> Result<Literal> {
    if tensor.quantization.is_none() || y.dtype().is_float() {
        return Ok(y.convert(DType::F32));
    }
    let (scale, zero) = tensor.scale()?;
    let values: Vec<f32> =
        y.to_f32s().iter().map(|q| (f64::from(scale) * f64::from(q - zero as f32)) as f32).collect();
    Literal::from_slice(y.shape(), &values)
}
