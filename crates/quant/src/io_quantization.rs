//! Quantizes inputs and dequantizes outputs of a TFLite model; runs whole models with float inputs and outputs.

use crate::tflite_program::{GraphEngine, TfliteProgram};
use systole_ir::{DType, Literal, Result, err};
use systole_tflite::{TfliteInterpreter, TfliteModel, TfliteTensor};

/// Predictor over a TFLite graph with one input and one output, both in floats.
pub struct FloatPredictor {
    input: TfliteTensor,
    output: TfliteTensor,
    graph: TfliteProgram,
    engine: GraphEngine,
    threads: usize,
}

impl FloatPredictor {
    /// Prepares a TFLite graph for this number of threads.
    ///
    /// # Errors
    /// If the graph is invalid, or has several inputs or outputs.
    pub fn new(model: &TfliteModel, engine: GraphEngine, threads: usize) -> Result<FloatPredictor> {
        model.check()?;
        let ([input], [output]) = (&model.inputs[..], &model.outputs[..]) else {
            return Err(err!(Unsupported, "the model has several inputs or outputs")
                .hint_command("run `systole run FILE.tflite --input IN.npz`"));
        };
        let (input, output) = (model.tensor(*input)?.clone(), model.tensor(*output)?.clone());
        let graph = TfliteProgram::new(model.clone(), engine, threads)?;
        Ok(FloatPredictor { input, output, graph, engine, threads })
    }

    /// Predicts for each sample, `f32[1, …] → f32[1, …]`; inputs are quantized and outputs dequantized as the file
    /// requires.
    ///
    /// # Errors
    /// If a sample does not match the input.
    pub fn of(&self, samples: &[Literal]) -> Result<Vec<Literal>> {
        let made = match self.engine {
            GraphEngine::Fast => {
                let given = samples.iter().map(|x| quantized(x, &self.input)).collect::<Result<Vec<_>>>()?;
                let each: Vec<&[Literal]> = given.iter().map(std::slice::from_ref).collect();
                self.graph.run_all(&each)?
            }
            GraphEngine::Reference => {
                self.interpreted(&TfliteInterpreter::new(self.graph.model())?, samples)?
            }
        };
        let one = |y: Vec<Literal>| {
            dequantized(y.first().ok_or_else(|| err!(Bug, "the model returned no output"))?, &self.output)
        };
        made.into_iter().map(one).collect()
    }

    /// Runs samples one by one, distributed over the threads.
    fn interpreted(&self, interpreter: &TfliteInterpreter, samples: &[Literal]) -> Result<Vec<Vec<Literal>>> {
        let one = |x: &Literal| interpreter.run(&[quantized(x, &self.input)?]);
        let per = samples.len().div_ceil(self.threads.max(1)).max(1);
        std::thread::scope(|scope| {
            let one = &one;
            let part =
                |part| scope.spawn(move || <[Literal]>::iter(part).map(one).collect::<Result<Vec<_>>>());
            let threads: Vec<_> = samples.chunks(per).map(part).collect();
            let defect = || err!(Bug, "an interpreter thread ended early");
            let parts: Vec<Vec<Vec<Literal>>> =
                threads.into_iter().map(|t| t.join().map_err(|_| defect())?).collect::<Result<_>>()?;
            Ok(parts.concat())
        })
    }
}

/// Predicts float samples with a TFLite model, without keeping the compiled graph: see [`FloatPredictor::of`].
///
/// # Errors
/// See [`FloatPredictor`].
pub fn answers(
    model: &TfliteModel,
    samples: &[Literal],
    engine: GraphEngine,
    threads: usize,
) -> Result<Vec<Literal>> {
    FloatPredictor::new(model, engine, threads)?.of(samples)
}

/// Quantizes `x: f32[…]` to the scale of a tensor of the file; unchanged if the tensor is not int8.
///
/// # Errors
/// If the tensor's scale is invalid.
pub fn quantized(x: &Literal, tensor: &TfliteTensor) -> Result<Literal> {
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

/// Dequantizes a tensor of the file to `f32[…]`.
///
/// # Errors
/// If the tensor's scale is invalid.
pub fn dequantized(y: &Literal, tensor: &TfliteTensor) -> Result<Literal> {
    if tensor.quantization.is_none() || y.dtype().is_float() {
        return Ok(y.convert(DType::F32));
    }
    let (scale, zero) = tensor.scale()?;
    let values: Vec<f32> =
        y.to_f32s().iter().map(|q| (f64::from(scale) * f64::from(q - zero as f32)) as f32).collect();
    Literal::from_slice(y.shape(), &values)
}

#[cfg(test)]
mod tests {
    use super::*;
    use systole_tflite::TfliteQuantization;

    #[test]
    fn values_are_rounded_to_steps_from_the_zero_point() {
        let tensor = |dtype, zero| {
            TfliteTensor::new("x", [1, 5], dtype).quantized(TfliteQuantization::per_tensor(0.5, zero))
        };
        let x = Literal::from_slice([5], &[-1.0f32, 0.2, 0.3, 3.0, 1000.0]).unwrap();
        let q = quantized(&x, &tensor(DType::I8, 3)).unwrap();
        assert_eq!(q, Literal::from_slice([1, 5], &[1i8, 3, 4, 9, 127]).unwrap());
        let values = dequantized(&q, &tensor(DType::I8, 3)).unwrap();
        assert_eq!(values, Literal::from_slice([1, 5], &[-1.0f32, 0.0, 0.5, 3.0, 62.0]).unwrap());
        let q = quantized(&x, &tensor(DType::U8, 1)).unwrap();
        assert_eq!(q, Literal::from_slice([1, 5], &[0u8, 1, 2, 7, 255]).unwrap());
        let plain = TfliteTensor::new("x", [1, 5], DType::F32);
        assert_eq!(quantized(&x, &plain).unwrap().to_f32s(), x.to_f32s());
        assert_eq!(dequantized(&x, &plain).unwrap(), x);
    }
}
