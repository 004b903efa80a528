//! Where floats become integers and integers floats, outside the graph; whole models on floats.

use systole_ir::{DType, Error, ErrorKind, Literal, Result};
use systole_tflite::{Interpreter, Model, Tensor};

/// What a model of one input and one output says of each of `samples`, `f32[1, …] → f32[1, …]`: rounded to what the file takes
/// and back, by so many threads.
///
/// # Errors
/// When a sample does not fit, or the model has several inputs or outputs.
pub fn answers(model: &Model, samples: &[Literal], threads: usize) -> Result<Vec<Literal>> {
    let ([input], [output]) = (&model.inputs[..], &model.outputs[..]) else {
        return Err(Error::new(ErrorKind::Unsupported, "a model of several inputs or outputs")
            .hint("`systole run FILE.tflite --input IN.npz` takes any"));
    };
    let (input, output) = (model.tensor(*input)?, model.tensor(*output)?);
    let interpreter = Interpreter::new(model)?;
    let one = |x: &Literal| {
        let y = interpreter.run(&[quantized(x, input)?])?;
        dequantized(y.first().ok_or_else(|| Error::new(ErrorKind::Bug, "no output"))?, output)
    };
    let per = samples.len().div_ceil(threads.max(1)).max(1);
    std::thread::scope(|scope| {
        let one = &one;
        let part = |part| scope.spawn(move || <[Literal]>::iter(part).map(one).collect::<Result<Vec<_>>>());
        let threads: Vec<_> = samples.chunks(per).map(part).collect();
        let defect = || Error::new(ErrorKind::Bug, "a thread of the interpreter ended early");
        let parts: Vec<Vec<Literal>> =
            threads.into_iter().map(|t| t.join().map_err(|_| defect())?).collect::<Result<_>>()?;
        Ok(parts.concat())
    })
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
