//! Candle with its own CPU kernels.
//!
//! `resnet50` cannot be written with its operations: max-pooling has no gradient where windows overlap.

use candle_core::{D, DType, Device, Result, Tensor};
use candle_nn::batch_norm::{BatchNorm, batch_norm};
use candle_nn::rnn::{LSTM, LSTMConfig, RNN, lstm};
use candle_nn::{
    AdamW, Conv2d, Conv2dConfig, Dropout, Linear, Module, ModuleT, Optimizer, ParamsAdamW, VarBuilder,
    VarMap, conv2d, conv2d_no_bias, embedding, linear, ops,
};
use peer_measure::*;

const PEER: &str = "candle";

/// The fused LayerNorm has no gradient; this is the same in plain operations.
struct LayerNorm {
    scale: Tensor,
    shift: Tensor,
}

impl LayerNorm {
    fn new(vb: VarBuilder) -> Result<Self> {
        let scale = vb.get_with_hints(WIDTH, "scale", candle_nn::init::ONE)?;
        Ok(Self { scale, shift: vb.get_with_hints(WIDTH, "shift", candle_nn::init::ZERO)? })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let x = x.broadcast_sub(&x.mean_keepdim(D::Minus1)?)?;
        let variance = x.sqr()?.mean_keepdim(D::Minus1)?;
        x.broadcast_div(&(variance + 1e-5)?.sqrt()?)?.broadcast_mul(&self.scale)?.broadcast_add(&self.shift)
    }
}

struct Block {
    norm1: LayerNorm,
    qkv: Linear,
    out: Linear,
    norm2: LayerNorm,
    up: Linear,
    down: Linear,
}

impl Block {
    fn new(vb: VarBuilder) -> Result<Self> {
        let dense = |name: &str, i: usize, o: usize| linear(i * WIDTH, o * WIDTH, vb.pp(name));
        Ok(Self {
            norm1: LayerNorm::new(vb.pp("norm1"))?,
            qkv: dense("qkv", 1, 3)?,
            out: dense("out", 1, 1)?,
            norm2: LayerNorm::new(vb.pp("norm2"))?,
            up: dense("up", 1, 4)?,
            down: dense("down", 4, 1)?,
        })
    }

    fn forward(&self, x: &Tensor, hidden: &Tensor) -> Result<Tensor> {
        let (b, t, n) = x.dims3()?;
        let qkv = self.qkv.forward(&self.norm1.forward(x)?)?;
        let part = |i: usize| -> Result<Tensor> {
            qkv.narrow(2, i * n, n)?.reshape((b, t, HEADS, n / HEADS))?.transpose(1, 2)?.contiguous()
        };
        let scores = (part(0)?.matmul(&part(1)?.t()?.contiguous()?)? * (1.0 / ((n / HEADS) as f64).sqrt()))?;
        let shares = ops::softmax(&scores.broadcast_add(hidden)?, D::Minus1)?;
        let seen = shares.matmul(&part(2)?)?.transpose(1, 2)?.reshape((b, t, n))?;
        let x = (x + self.out.forward(&seen)?)?;
        let y = self.down.forward(&self.up.forward(&self.norm2.forward(&x)?)?.gelu()?)?;
        x + y
    }
}

fn conv_norm(input: usize, filters: usize, vb: VarBuilder) -> Result<(Conv2d, BatchNorm)> {
    let same = Conv2dConfig { padding: 1, ..Default::default() };
    Ok((conv2d_no_bias(input, filters, 3, same, vb.pp("conv"))?, batch_norm(filters, 1e-3, vb.pp("norm"))?))
}

fn integers(shape: &[usize], limit: usize) -> Result<Tensor> {
    let values: Vec<u32> = draw(shape.iter().product(), limit as u64).map(|x| x as u32).collect();
    Tensor::from_vec(values, shape, &Device::Cpu)
}

fn uniform(shape: &[usize], dtype: DType) -> Result<Tensor> {
    Tensor::rand(0_f32, 1_f32, shape, &Device::Cpu)?.to_dtype(dtype)
}

/// Complete training steps with Adam, or AdamW where weights decay.
fn train(
    a: &Arguments,
    weights: &VarMap,
    (lr, weight_decay): (f64, f64),
    forward: impl Fn() -> Result<Tensor>,
    labels: Tensor,
) -> Result<()> {
    let mut adam = AdamW::new(weights.all_vars(), ParamsAdamW { lr, weight_decay, ..Default::default() })?;
    let mut step = || -> Result<f32> {
        let loss = candle_nn::loss::cross_entropy(&forward()?.to_dtype(DType::F32)?, &labels)?;
        adam.backward_step(&loss)?;
        loss.to_scalar()
    };
    if let Err(e) = step() {
        skip(PEER, a, &e.to_string());
    }
    let timed = time_steps(|| assert!(step().is_ok_and(f32::is_finite), "the step failed"), a.seconds);
    report(PEER, a, &timed);
    Ok(())
}

fn gemm(a: &Arguments) -> Result<()> {
    let dtype = match a.precision.as_str() {
        "float32" => DType::F32,
        "bfloat16" => DType::BF16,
        other => skip(PEER, a, &format!("no product of {other} matrices")),
    };
    for &n in &a.sizes {
        let (x, y) = (uniform(&[n, n], dtype)?, uniform(&[n, n], dtype)?);
        let step = || drop(std::hint::black_box(x.matmul(&y)));
        report_gemm(PEER, a, n, &time_steps(step, a.seconds / a.sizes.len() as f64));
    }
    Ok(())
}

fn main() -> Result<()> {
    let a = &Arguments::parse(PEER);
    let dtype = if a.precision == "mixed_bfloat16" { DType::BF16 } else { DType::F32 };
    let weights = VarMap::new();
    let vb = VarBuilder::from_varmap(&weights, dtype, &Device::Cpu);
    let b = a.batch();
    match a.workload.as_str() {
        "gemm" => gemm(a),
        "fashion-cnn" => {
            let conv = conv2d(1, 64, 3, Conv2dConfig::default(), vb.pp("conv"))?;
            let head = linear(13 * 13 * 64, 10, vb.pp("head"))?;
            let x = uniform(&[b, 1, 28, 28], dtype)?;
            let forward = || head.forward(&conv.forward(&x)?.max_pool2d(2)?.relu()?.flatten_from(1)?);
            train(a, &weights, (1e-3, 0.0), forward, integers(&[b], 10)?)
        }
        "mlp" => {
            let (hidden, head) = (linear(784, 512, vb.pp("hidden"))?, linear(512, 10, vb.pp("head"))?);
            let (dropout, x) = (Dropout::new(0.2), uniform(&[b, 784], dtype)?);
            let forward = || head.forward(&dropout.forward(&hidden.forward(&x)?.relu()?, true)?);
            train(a, &weights, (1e-3, 0.0), forward, integers(&[b], 10)?)
        }
        "cifar-cnn" => {
            let widths = [(3, 32), (32, 32), (32, 64), (64, 64), (64, 128), (128, 128)];
            let convs = widths.iter().enumerate().map(|(i, (c, f))| conv_norm(*c, *f, vb.pp(i.to_string())));
            let convs = convs.collect::<Result<Vec<_>>>()?;
            let head = linear(128 * 16, 10, vb.pp("head"))?;
            let x = uniform(&[b, 3, 32, 32], dtype)?;
            let forward = || {
                let mut x = x.clone();
                for pair in convs.chunks(2) {
                    for (conv, norm) in pair {
                        x = norm.forward_t(&conv.forward(&x)?, true)?.relu()?;
                    }
                    x = x.max_pool2d(2)?;
                }
                head.forward(&x.flatten_from(1)?)
            };
            train(a, &weights, (1e-3, 0.0), forward, integers(&[b], 10)?)
        }
        "gpt2-small" => {
            let (words, places) =
                (embedding(VOCABULARY, WIDTH, vb.pp("words"))?, embedding(TOKENS, WIDTH, vb.pp("places"))?);
            let blocks = (0..BLOCKS).map(|i| Block::new(vb.pp(i.to_string()))).collect::<Result<Vec<_>>>()?;
            let norm = LayerNorm::new(vb.pp("norm"))?;
            let x = integers(&[b, TOKENS], VOCABULARY)?;
            let at = Tensor::arange(0_u32, TOKENS as u32, &Device::Cpu)?;
            let later = |i: usize| if i % TOKENS > i / TOKENS { -1e9_f32 } else { 0.0 };
            let hidden: Vec<f32> = (0..TOKENS * TOKENS).map(later).collect();
            let hidden = Tensor::from_vec(hidden, (1, 1, TOKENS, TOKENS), &Device::Cpu)?.to_dtype(dtype)?;
            let forward = || {
                let mut h = words.forward(&x)?.broadcast_add(&places.forward(&at)?)?;
                for block in &blocks {
                    h = block.forward(&h, &hidden)?;
                }
                norm.forward(&h)?.reshape((b * TOKENS, WIDTH))?.matmul(&words.embeddings().t()?)
            };
            train(a, &weights, (3e-4, 0.1), forward, integers(&[b * TOKENS], VOCABULARY)?)
        }
        "lstm" => {
            let words = embedding(LSTM_VOCABULARY, LSTM_UNITS, vb.pp("words"))?;
            let layer = |name: &str| lstm(LSTM_UNITS, LSTM_UNITS, LSTMConfig::default(), vb.pp(name));
            let (first, second) = (layer("first")?, layer("second")?);
            let head = linear(LSTM_UNITS, LSTM_VOCABULARY, vb.pp("head"))?;
            let x = integers(&[b, LSTM_TOKENS], LSTM_VOCABULARY)?;
            let through = |layer: &LSTM, x: &Tensor| layer.states_to_tensor(&layer.seq(x)?);
            let forward = || {
                let h = through(&second, &through(&first, &words.forward(&x)?)?)?;
                head.forward(&h)?.reshape((b * LSTM_TOKENS, LSTM_VOCABULARY))
            };
            train(a, &weights, (1e-3, 0.0), forward, integers(&[b * LSTM_TOKENS], LSTM_VOCABULARY)?)
        }
        "resnet50" => skip(PEER, a, "max-pooling has no gradient where windows overlap"),
        _ => skip(PEER, a, "not written"),
    }
}
