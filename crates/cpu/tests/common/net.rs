//! The convolutional network of the TPU tutorial as one train step.

use std::sync::Arc;
use systole_ir::DType::*;
use systole_ir::op::{Convolution, Monoid, Window};
use systole_ir::{Graph, GraphBuilder, Tensor, TensorType, grad};

/// Sizes of the network.
pub struct Net {
    pub batch: usize,
    pub side: usize,
    pub channels: usize,
    pub filters: usize,
    pub kernel: usize,
    pub classes: usize,
    pub same: bool,
}

/// `(x, labels, lr, conv kernel, conv bias, dense kernel, dense bias) → (loss, updated parameters…)`:
/// conv, bias, max pooling 2×2, relu, flatten, dense, softmax cross-entropy, SGD.
pub fn train_step(n: &Net) -> Arc<Graph> {
    let g = GraphBuilder::new("conv_net");
    let x = g.parameter(TensorType::new(F32, [n.batch, n.side, n.side, n.channels]), "x");
    let labels = g.parameter(TensorType::new(I32, [n.batch]), "labels");
    let lr = g.parameter(TensorType::scalar(F32), "lr");
    let kt = TensorType::new(F32, [n.kernel, n.kernel, n.channels, n.filters]);
    let k = g.parameter(kt.clone(), "kernel");
    let kb = g.parameter(TensorType::new(F32, [n.filters]), "bias");
    let conv = if n.same {
        Convolution::same(x.ty(), &kt, &[1, 1], &[1, 1], 1)
    } else {
        Convolution::valid(x.ty(), &[1, 1], &[1, 1], 1)
    };
    let h = x.convolution(&k, conv) + &kb;
    let pooled = Monoid::Maximum.over_windows(&h, Window::new(&[1, 2, 2, 1], &[1, 2, 2, 1], &[[0, 0]; 4]));
    let flat_size = pooled.shape()[1..].iter().product::<usize>();
    let flat = pooled.relu().reshape([n.batch, flat_size]);
    let w = g.parameter(TensorType::new(F32, [flat_size, n.classes]), "dense_kernel");
    let b = g.parameter(TensorType::new(F32, [n.classes]), "dense_bias");
    let logits = flat.dot(&w) + &b;
    let hot = labels.one_hot(n.classes, F32);
    let loss = -(logits.log_softmax() * hot).sum(&[1]).mean(&[0]);
    let params = [k, kb, w, b];
    let grads = grad(&loss, &params.iter().collect::<Vec<&Tensor>>());
    let updated = params.iter().zip(&grads).map(|(p, d)| p - &(d * &lr));
    let results: Vec<Tensor> = std::iter::once(loss).chain(updated).collect();
    g.finish(&results).unwrap_or_else(|e| panic!("{e}"))
}
