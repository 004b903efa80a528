//! Programs on dequantized 8-bit values, as ONNX files with QuantizeLinear and DequantizeLinear have them.

use std::sync::Arc;
use systole_ir::DType::{self, F32, I8, I32, U8};
use systole_ir::op::{ConvDims, Convolution, Monoid, Window};
use systole_ir::rng::RandomStream;
use systole_ir::{Graph, GraphBuilder, Literal, Tensor, TensorType};

/// `(x − low) / 255` levels of a range that contains 0: the zero point of an 8-bit type, and the scale.
#[derive(Clone, Copy)]
pub struct Levels {
    pub dtype: DType,
    pub zero: f64,
    pub scale: f64,
}

impl Levels {
    pub fn of(dtype: DType, low: f64, high: f64) -> Levels {
        let scale = (high - low) / 255.0;
        Levels { dtype, zero: (dtype.lowest().as_f64() - low / scale).round(), scale }
    }

    pub fn quantize(&self, x: &Tensor) -> Tensor {
        let q = (x / self.scale).round_nearest_even() + self.zero;
        let [low, high] =
            [self.dtype.lowest(), self.dtype.highest()].map(|v| x.builder().scalar(F32, v.as_f64()));
        q.clamp(&low, &high).convert(self.dtype)
    }

    pub fn dequantize(&self, q: &Tensor) -> Tensor {
        (q.convert(F32) - self.zero) * self.scale
    }

    pub fn both(&self, x: &Tensor) -> Tensor {
        self.dequantize(&self.quantize(x))
    }
}

/// Random int8 or uint8 elements.
pub fn bytes(dtype: DType, dims: &[usize], seed: u64) -> Literal {
    let mut stream = RandomStream::new(seed, 21, 0);
    let all: Vec<u8> = (0..dims.iter().product()).map(|_| stream.next_u32() as u8).collect();
    Literal::from_bytes(TensorType::new(dtype, dims), &all).unwrap()
}

/// Constant weights with one scale for each index of the last dimension; uint8 weights have the zero point 128.
fn weights(g: &GraphBuilder, dtype: DType, dims: &[usize], seed: u64) -> Tensor {
    let q = g.constant(bytes(dtype, dims, seed));
    let n = dims[dims.len() - 1];
    let scales: Vec<f32> = (0..n).map(|i| 0.002 + 0.0001 * (i % 7) as f32).collect();
    let scales = g.constant(Literal::from_slice([n], &scales).unwrap());
    let x = q.convert(F32) - if dtype == U8 { 128.0 } else { 0.0 };
    &x * scales.broadcast_in_dim(x.shape(), &[dims.len() - 1])
}

fn bias(g: &GraphBuilder, n: usize) -> Tensor {
    let all: Vec<f32> = (0..n).map(|i| (i % 5) as f32 * 0.3 - 0.7).collect();
    g.constant(Literal::from_slice([n], &all).unwrap())
}

fn convolve(x: &Tensor, w: &Tensor, stride: usize, before: i64, after: i64) -> Tensor {
    let spec = Convolution {
        strides: vec![stride; 2].into(),
        padding: vec![[before, after]; 2],
        lhs_dilation: vec![1; 2].into(),
        rhs_dilation: vec![1; 2].into(),
        reversal: vec![false; 2],
        dims: ConvDims::channels_last(2),
        feature_groups: 1,
        batch_groups: 1,
        element_type: if x.dtype() == I8 { I32 } else { x.dtype() },
    };
    x.convolution(w, spec)
}

/// `x: f32[M, K]`: a dense layer with relu of quantized values, `w: [K, N]`; the result has 8 bits.
pub fn dense(dtype: DType, weight: DType, [m, k, n]: [usize; 3]) -> Arc<Graph> {
    let g = GraphBuilder::new("dense");
    let x = g.parameter(TensorType::new(F32, [m, k]), "x");
    let x = Levels::of(dtype, -1.0, 1.2).both(&x);
    let w = weights(&g, weight, &[k, n], 3);
    let y = (x.dot(&w) + bias(&g, n)).relu();
    g.finish(&[Levels::of(dtype, -0.5, 6.0).quantize(&y)]).unwrap()
}

/// `x: f32[B, H, W, C]`: a residual block of 3×3 and 1×1 convolutions, with a pooled input; its result and the
/// result before the sum. The steps have no simple ratio: sums would often be exactly between two steps of the result.
pub fn residual(dtype: DType, [b, side, c, f]: [usize; 4], stride: usize) -> Arc<Graph> {
    let g = GraphBuilder::new("residual");
    let x = g.parameter(TensorType::new(F32, [b, side, side, c]), "x");
    let own = Levels::of(dtype, -1.1137, 1.0271);
    let x = own.both(&x);
    let pad = [[0, 0], [1, 1], [1, 1], [0, 0]];
    let x = own.both(&Monoid::Maximum.over_windows(&x, Window::new(&[1, 3, 3, 1], &[1, 1, 1, 1], &pad)));
    let inner = Levels::of(dtype, 0.0, 4.0613);
    let y = convolve(&x, &weights(&g, I8, &[3, 3, c, f], 5), stride, 1, 1) + bias(&g, f);
    let y = inner.both(&y.relu());
    let outer = Levels::of(dtype, -6.1373, 5.2411);
    let y = outer.both(&(convolve(&y, &weights(&g, I8, &[1, 1, f, f], 7), 1, 0, 0) + bias(&g, f)));
    let side_sum = convolve(&x, &weights(&g, I8, &[1, 1, c, f], 9), stride, 0, 0);
    let sum = (&y + outer.both(&side_sum)).relu();
    g.finish(&[Levels::of(dtype, 0.0, 7.9173).quantize(&sum), y]).unwrap()
}

/// `x: i8, w: i8 → i32`: products without an epilogue, `[M, K] · [K, N]` and `[M, K] · [N, K]ᵀ`.
pub fn sums([m, k, n]: [usize; 3]) -> Arc<Graph> {
    let g = GraphBuilder::new("sums");
    let x = g.parameter(TensorType::new(I8, [m, k]), "x");
    let [w, turned] = [[k, n], [n, k]].map(|dims| g.parameter(TensorType::new(I8, dims), "w"));
    let product = |w: &Tensor, along: usize| {
        let op = systole_ir::op::DotGeneral {
            lhs_batch: Default::default(),
            rhs_batch: Default::default(),
            lhs_contract: vec![1].into(),
            rhs_contract: vec![along].into(),
            element_type: I32,
        };
        g.emit(op, &[&x, w]).remove(0)
    };
    g.finish(&[product(&w, 0), product(&turned, 1)]).unwrap()
}

/// `x: i8[B, H, W, C], w: i8[h, w, C, F] → i32`, padded with −7.
pub fn windows([b, side, c, f]: [usize; 4], window: usize, stride: usize) -> Arc<Graph> {
    let g = GraphBuilder::new("windows");
    let x = g.parameter(TensorType::new(I8, [b, side, side, c]), "x");
    let w = g.parameter(TensorType::new(I8, [window, window, c, f]), "w");
    let value = g.scalar(I8, -7.0);
    let pad = (window / 2) as i64;
    let padded = x.pad(&value, &[0, pad, pad, 0], &[0, pad, pad, 0], &[0; 4]);
    g.finish(&[convolve(&padded, &w, stride, 0, 0)]).unwrap()
}

/// `x: f32[M, K]`: a product whose left operand is quantized with the range of the data, as DynamicQuantizeLinear and
/// MatMulInteger compute it; the weights' zero point is not 0.
pub fn dynamic([m, k, n]: [usize; 3]) -> Arc<Graph> {
    let g = GraphBuilder::new("dynamic");
    let x = g.parameter(TensorType::new(F32, [m, k]), "x");
    let low = x.reduce_min(&[0, 1]).minimum(&g.scalar(F32, 0.0));
    let high = x.reduce_max(&[0, 1]).maximum(&g.scalar(F32, 0.0));
    let scale = (high - &low) / 255.0;
    let clamped = |x: &Tensor| x.maximum(&x.scalar_like(0.0)).minimum(&x.scalar_like(255.0)).convert(U8);
    let zero = clamped(&(-low / &scale).round_nearest_even());
    let q = clamped(&((&x / &scale).round_nearest_even() + zero.convert(F32)));
    let w = g.constant(bytes(U8, &[k, n], 3)).convert(I32) - 119.0;
    let sums = (q.convert(I32) - zero.convert(I32)).dot(&w);
    g.finish(&[sums.convert(F32) * (scale * 0.01) + bias(&g, n), sums]).unwrap()
}

/// `i: i32[M, 1]`: rows of a quantized table.
pub fn rows() -> Arc<Graph> {
    let g = GraphBuilder::new("rows");
    let i = g.parameter(TensorType::new(I32, [5]), "i");
    let table = Levels::of(U8, -1.0, 2.0).dequantize(&g.constant(bytes(U8, &[900, 48], 4)));
    g.finish(&[table.take(&i)]).unwrap()
}
