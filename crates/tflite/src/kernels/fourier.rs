//! RFFT2D, and REAL, IMAG and COMPLEX_ABS of complex numbers. A complex number is stored as the bits of its two floats, real
//! part first, in an element of 8 bytes.

use super::call::{KernelOperand, OperatorCall};
use super::op_row::operators;
use crate::model::broken;
use std::f64::consts::PI;
use systole_base::{DType, Literal, Result, ensure};

operators! {
    Rfft2d "RFFT2D" 131; options 105 []; versions 1 1; NoInt8; real_fourier
    Imag "IMAG" 133; options 0 []; versions 1 1; NoInt8; |call| parts(call, |_, imaginary| imaginary)
    Real "REAL" 134; options 0 []; versions 1 1; NoInt8; |call| parts(call, |real, _| real)
    ComplexAbs "COMPLEX_ABS" 135; options 0 []; versions 1 1; NoInt8; |call| parts(call, f32::hypot)
}

/// A complex number: real and imaginary part.
type Complex = [f64; 2];

fn product(a: Complex, b: Complex) -> Complex {
    [a[0] * b[0] - a[1] * b[1], a[0] * b[1] + a[1] * b[0]]
}

/// Fourier transform of a power of two of numbers, in place (Cooley and Tukey 1965).
fn fourier(x: &mut [Complex]) {
    let n = x.len();
    for i in 1..n {
        let j = i.reverse_bits() >> (usize::BITS - n.trailing_zeros());
        if i < j {
            x.swap(i, j);
        }
    }
    let mut half = 1;
    while half < n {
        for start in (0..n).step_by(2 * half) {
            for k in 0..half {
                let angle = -PI * k as f64 / half as f64;
                let turned = product(x[start + half + k], [angle.cos(), angle.sin()]);
                let own = x[start + k];
                x[start + k] = [own[0] + turned[0], own[1] + turned[1]];
                x[start + half + k] = [own[0] - turned[0], own[1] - turned[1]];
            }
        }
        half *= 2;
    }
}

fn packed(x: Complex) -> u64 {
    let [real, imaginary] = x.map(|v| u64::from((v as f32).to_bits()));
    real | imaginary << 32
}

/// Computes RFFT2D: `x: f32[…, H, W]`, lengths `[h, w]` → the first `w / 2 + 1` columns of the transform, `[…, h, w / 2 + 1]`. The
/// input is cut or filled with 0 to `[h, w]`.
fn real_fourier(call: &OperatorCall) -> Result<Vec<Literal>> {
    let (x, lengths) = (call.input(0)?, call.input(1)?.indices()?);
    let length = |i: usize| lengths.get(i).and_then(|&n| usize::try_from(n).ok()).filter(|n| *n < 1 << 24);
    let (Some(h), Some(w), [outer @ .., rows, columns]) = (length(0), length(1), x.dims()) else {
        return Err(broken(format!("lengths {lengths:?} do not match {}", x.ty())));
    };
    ensure!(
        h.is_power_of_two() && w.is_power_of_two(),
        call.unsupported(format_args!("lengths {h} and {w}, which are no powers of two,"))
    );
    let bins = w / 2 + 1;
    let n = call.check_output(&[outer, &[h, bins]].concat())?;
    let mut y = Vec::with_capacity(n);
    for image in x.elements::<f32>()?.chunks_exact((rows * columns).max(1)) {
        let mut table = vec![[0.0; 2]; h * bins];
        for (r, row) in image.chunks_exact((*columns).max(1)).take(h).enumerate() {
            let mut line: Vec<Complex> = row.iter().take(w).map(|v| [f64::from(*v), 0.0]).collect();
            line.resize(w, [0.0; 2]);
            fourier(&mut line);
            table[r * bins..(r + 1) * bins].copy_from_slice(&line[..bins]);
        }
        for k in 0..bins {
            let mut line: Vec<Complex> = (0..h).map(|r| table[r * bins + k]).collect();
            fourier(&mut line);
            line.into_iter().enumerate().for_each(|(r, v)| table[r * bins + k] = v);
        }
        y.extend(table.into_iter().map(packed));
    }
    Ok(vec![Literal::from_slice(call.output_type()?.shape, &y)?])
}

/// Computes a function of the real and imaginary parts.
fn parts(call: &OperatorCall, of: fn(f32, f32) -> f32) -> Result<Vec<Literal>> {
    let x: KernelOperand = call.input(0)?;
    ensure!(x.dtype() == DType::U64, broken(format!("the operand is {}, expected complex numbers", x.ty())));
    call.check_output(x.dims())?;
    let float = |bits: u64| f32::from_bits(bits as u32);
    call.made(&x.elements::<u64>()?.iter().map(|v| of(float(*v), float(v >> 32))).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{TfliteInterpreter, TfliteModel, TfliteOp, TfliteOperator, TfliteTensor};

    /// Real parts, imaginary parts and magnitudes of RFFT2D.
    fn transform(x: &Literal, lengths: [i32; 2], output: &[usize]) -> Vec<Vec<f32>> {
        let mut m = TfliteModel {
            tensors: vec![
                TfliteTensor::new("x", x.shape().clone(), DType::F32),
                TfliteTensor::constant("lengths", Literal::from_slice([2], &lengths).unwrap()),
                TfliteTensor::new("y", output, DType::U64),
            ],
            operators: vec![TfliteOperator::new(TfliteOp::Rfft2d, [0, 1], [2])],
            inputs: vec![0],
            ..TfliteModel::default()
        };
        for op in [TfliteOp::Real, TfliteOp::Imag, TfliteOp::ComplexAbs] {
            m.outputs.push(m.tensors.len());
            m.operators.push(TfliteOperator::new(op, [2], [m.tensors.len()]));
            m.tensors.push(TfliteTensor::new(op.name(), output, DType::F32));
        }
        let y = TfliteInterpreter::new(&m)
            .and_then(|i| i.run(std::slice::from_ref(x)))
            .unwrap_or_else(|e| panic!("{e}"));
        y.iter().map(Literal::to_f32s).collect()
    }

    #[test]
    fn transforms_are_sums_of_waves() {
        let values: Vec<f32> = (0..24).map(|i| ((7 * i * i + 3) % 11) as f32 - 5.0).collect();
        let x = Literal::from_slice([4, 6], &values).unwrap();
        // Four rows, of which the last two are cut; six columns, filled up to eight.
        let y = transform(&x, [2, 8], &[2, 5]);
        for (u, v) in (0..2).flat_map(|u| (0..5).map(move |v| (u, v))) {
            let term = |r: usize, c: usize| {
                let angle = -2.0 * PI * ((u * r) as f64 / 2.0 + (v * c) as f64 / 8.0);
                let value = f64::from(values[r * 6 + c]);
                [value * angle.cos(), value * angle.sin()]
            };
            let all = (0..2).flat_map(|r| (0..6).map(move |c| (r, c)));
            let sum = all.fold([0.0; 2], |s, (r, c)| [s[0] + term(r, c)[0], s[1] + term(r, c)[1]]);
            let expected = [sum[0], sum[1], sum[0].hypot(sum[1])];
            for (found, expected) in y.iter().map(|part| part[u * 5 + v]).zip(expected) {
                assert!((f64::from(found) - expected).abs() < 1e-5, "{u} {v}: {found}, not {expected}");
            }
        }
        assert_eq!(
            transform(&Literal::from_slice([1, 1], &[3f32]).unwrap(), [1, 1], &[1, 1]),
            [[3.0], [0.0], [3.0]]
        );
    }
}
