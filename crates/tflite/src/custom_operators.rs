//! Custom operators of MediaPipe's files that LiteRT computes too, read as builtin ones.

use crate::model::{TfliteOperator, TfliteTensor, broken};
use crate::op::{OptionField, TflitePadding};
use systole_base::{Literal, Result, ensure};

/// `x: f32[B, H, W, I], w: f32[O, h, w, I], bias: f32[O] → f32[B, H', W', O]`: TRANSPOSE_CONV without an operand for the
/// shape of its output. Source: MediaPipe, `transpose_conv_bias.cc`.
pub(crate) const TRANSPOSE_CONV_BIAS: &str = "Convolution2DTransposeBias";

/// Returns the code of the builtin operator that a custom one is read as.
pub(crate) fn builtin_code(custom: &str) -> Option<i32> {
    (custom == TRANSPOSE_CONV_BIAS).then_some(67)
}

/// Sets the attributes: padding (1 SAME, 2 VALID), horizontal and vertical stride, as little-endian integers.
pub(crate) fn with_options(o: TfliteOperator, bytes: &[u8]) -> Result<TfliteOperator> {
    let word = |i: usize| {
        let word = bytes.get(4 * i..4 * i + 4).and_then(|word| word.try_into().ok());
        word.map(i32::from_le_bytes)
            .ok_or_else(|| broken(format!("the options of {TRANSPOSE_CONV_BIAS} have {} bytes", bytes.len())))
    };
    let padding = match word(0)? {
        1 => TflitePadding::Same,
        2 => TflitePadding::Valid,
        other => return Err(broken(format!("{TRANSPOSE_CONV_BIAS} has the unknown padding {other}"))),
    };
    let o = o.with(OptionField::Padding, padding as i32);
    Ok(o.with(OptionField::StrideW, word(1)?).with(OptionField::StrideH, word(2)?))
}

/// Puts the operands in the order of TRANSPOSE_CONV: the shape of the output as a constant, filter, input, bias.
pub(crate) fn with_output_shape(o: &mut TfliteOperator, tensors: &mut Vec<TfliteTensor>) -> Result<()> {
    let output = o.outputs.first().and_then(|&i| tensors.get(i));
    let output = output.ok_or_else(|| broken(format!("{TRANSPOSE_CONV_BIAS} has no output")))?;
    ensure!(o.inputs.len() == 3, broken(format!("{TRANSPOSE_CONV_BIAS} has {} operands", o.inputs.len())));
    let dims = output.ty.shape.iter().map(|&d| i32::try_from(d)).collect::<Result<Vec<_>, _>>();
    let dims = dims.map_err(|_| broken(format!("the output of {TRANSPOSE_CONV_BIAS} is too large")))?;
    let name = format!("{}/shape", output.name);
    tensors.push(TfliteTensor::constant(name, Literal::from_slice([dims.len()], &dims)?));
    o.inputs = vec![Some(tensors.len() - 1), o.inputs[1], o.inputs[0], o.inputs[2]];
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::TfliteOp;
    use crate::{TfliteInterpreter, TfliteModel};
    use systole_base::{DType, TensorType};

    /// A file of one operator, as it is read: 2 × 2 pixels to 4 × 4.
    fn model(options: &[u8]) -> Result<TfliteModel> {
        let constant = |dims: &[usize], values: &[f32]| {
            TfliteTensor::constant("c", Literal::from_slice(dims, values).unwrap())
        };
        let mut tensors = vec![
            TfliteTensor::new("x", [1, 2, 2, 1], DType::F32),
            constant(&[1, 2, 2, 1], &[1.0, 2.0, 3.0, 4.0]),
            constant(&[1], &[0.5]),
            TfliteTensor::new("y", [1, 4, 4, 1], DType::F32),
        ];
        let mut o = with_options(TfliteOperator::new(TfliteOp::TransposeConv, [0, 1, 2], [3]), options)?;
        with_output_shape(&mut o, &mut tensors)?;
        Ok(TfliteModel {
            inputs: vec![0],
            outputs: vec![3],
            tensors,
            operators: vec![o],
            ..TfliteModel::default()
        })
    }

    #[test]
    fn each_pixel_spreads_over_its_window_and_the_bias_is_added() {
        let options: Vec<u8> = [1i32, 2, 2].iter().flat_map(|word| word.to_le_bytes()).collect();
        let model = model(&options).unwrap();
        let x = Literal::from_slice([1, 2, 2, 1], &[1f32, 10.0, 100.0, 1000.0]).unwrap();
        let y = TfliteInterpreter::new(&model).unwrap().run(&[x]).unwrap();
        assert_eq!(y[0].ty(), &TensorType::new(DType::F32, [1, 4, 4, 1]));
        let rows = [[1., 2., 10., 20.], [3., 4., 30., 40.], [100., 200., 1e3, 2e3], [300., 400., 3e3, 4e3]];
        assert_eq!(y[0].to_f32s(), rows.concat().iter().map(|v| v + 0.5).collect::<Vec<f32>>());
    }

    #[test]
    fn damaged_options_are_errors() {
        assert!(model(&[1, 0, 0, 0, 2, 0]).is_err());
        let padding: Vec<u8> = [7i32, 2, 2].iter().flat_map(|word| word.to_le_bytes()).collect();
        assert!(model(&padding).unwrap_err().to_string().contains("padding 7"));
    }
}
