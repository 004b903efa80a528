//! Burn on its `flex` backend, the one that Burn advises for a CPU.
#![recursion_limit = "256"]

use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::pool::{MaxPool2d, MaxPool2dConfig};
use burn::nn::{
    BatchNorm, BatchNormConfig, Dropout, DropoutConfig, Embedding, EmbeddingConfig, LayerNorm,
    LayerNormConfig, Linear, LinearConfig, Lstm, LstmConfig, PaddingConfig2d,
};
use burn::optim::momentum::MomentumConfig;
use burn::optim::{AdamConfig, AdamWConfig, GradientsParams, ModuleOptimizer, SgdConfig};
use burn::prelude::*;
use burn::tensor::activation::{gelu_approximate, relu, softmax};
use burn::tensor::{DType, Distribution};
use peer_measure::*;

const PEER: &str = "burn";

#[derive(Module, Debug)]
struct FashionCnn {
    conv: Conv2d,
    pool: MaxPool2d,
    head: Linear,
}

impl FashionCnn {
    fn new(d: &Device) -> Self {
        Self {
            conv: Conv2dConfig::new([1, 64], [3, 3]).init(d),
            pool: MaxPool2dConfig::new([2, 2]).init(),
            head: LinearConfig::new(13 * 13 * 64, 10).init(d),
        }
    }

    fn forward(&self, x: Tensor<4>) -> Tensor<2> {
        self.head.forward(relu(self.pool.forward(self.conv.forward(x))).flatten::<2>(1, 3))
    }
}

#[derive(Module, Debug)]
struct Mlp {
    hidden: Linear,
    dropout: Dropout,
    head: Linear,
}

impl Mlp {
    fn new(d: &Device) -> Self {
        Self {
            hidden: LinearConfig::new(784, 512).init(d),
            dropout: DropoutConfig::new(0.2).init(),
            head: LinearConfig::new(512, 10).init(d),
        }
    }

    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        self.head.forward(self.dropout.forward(relu(self.hidden.forward(x))))
    }
}

/// A convolution without bias and its batch normalisation.
#[derive(Module, Debug)]
struct ConvNorm {
    conv: Conv2d,
    norm: BatchNorm,
}

impl ConvNorm {
    fn new(input: usize, filters: usize, kernel: usize, stride: usize, d: &Device) -> Self {
        let p = kernel / 2;
        let conv = Conv2dConfig::new([input, filters], [kernel, kernel])
            .with_stride([stride, stride])
            .with_padding(PaddingConfig2d::Explicit(p, p, p, p))
            .with_bias(false);
        Self { conv: conv.init(d), norm: BatchNormConfig::new(filters).init(d) }
    }

    fn forward(&self, x: Tensor<4>) -> Tensor<4> {
        self.norm.forward(self.conv.forward(x))
    }
}

#[derive(Module, Debug)]
struct CifarCnn {
    convs: Vec<ConvNorm>,
    pool: MaxPool2d,
    head: Linear,
}

impl CifarCnn {
    fn new(d: &Device) -> Self {
        let widths = [(3, 32), (32, 32), (32, 64), (64, 64), (64, 128), (128, 128)];
        Self {
            convs: widths.iter().map(|(i, o)| ConvNorm::new(*i, *o, 3, 1, d)).collect(),
            pool: MaxPool2dConfig::new([2, 2]).init(),
            head: LinearConfig::new(128 * 16, 10).init(d),
        }
    }

    fn forward(&self, mut x: Tensor<4>) -> Tensor<2> {
        for pair in self.convs.chunks(2) {
            for conv in pair {
                x = relu(conv.forward(x));
            }
            x = self.pool.forward(x);
        }
        self.head.forward(x.flatten::<2>(1, 3))
    }
}

#[derive(Module, Debug)]
struct Bottleneck {
    narrow: ConvNorm,
    middle: ConvNorm,
    wide: ConvNorm,
    side: Option<ConvNorm>,
}

impl Bottleneck {
    fn new(input: usize, width: usize, stride: usize, d: &Device) -> Self {
        let same = input == 4 * width && stride == 1;
        Self {
            narrow: ConvNorm::new(input, width, 1, stride, d),
            middle: ConvNorm::new(width, width, 3, 1, d),
            wide: ConvNorm::new(width, 4 * width, 1, 1, d),
            side: (!same).then(|| ConvNorm::new(input, 4 * width, 1, stride, d)),
        }
    }

    fn forward(&self, x: Tensor<4>) -> Tensor<4> {
        let y = relu(self.narrow.forward(x.clone()));
        let y = self.wide.forward(relu(self.middle.forward(y)));
        relu(
            y + match &self.side {
                Some(side) => side.forward(x),
                None => x,
            },
        )
    }
}

#[derive(Module, Debug)]
struct ResNet50 {
    stem: ConvNorm,
    pool: MaxPool2d,
    blocks: Vec<Bottleneck>,
    head: Linear,
}

impl ResNet50 {
    fn new(d: &Device) -> Self {
        let (mut blocks, mut channels) = (Vec::new(), 64);
        for (width, count, stride) in RESNET_STAGES {
            for i in 0..count {
                blocks.push(Bottleneck::new(channels, width, if i == 0 { stride } else { 1 }, d));
                channels = 4 * width;
            }
        }
        let pool = MaxPool2dConfig::new([3, 3]).with_strides([2, 2]);
        Self {
            stem: ConvNorm::new(3, 64, 7, 2, d),
            pool: pool.with_padding(PaddingConfig2d::Explicit(1, 1, 1, 1)).init(),
            blocks,
            head: LinearConfig::new(2048, 1000).init(d),
        }
    }

    fn forward(&self, x: Tensor<4>) -> Tensor<2> {
        let x = self.pool.forward(relu(self.stem.forward(x)));
        let x = self.blocks.iter().fold(x, |x, block| block.forward(x));
        let [batch, channels, ..] = x.dims();
        self.head.forward(x.flatten::<3>(2, 3).mean_dim(2).reshape([batch, channels]))
    }
}

#[derive(Module, Debug)]
struct Block {
    norm1: LayerNorm,
    qkv: Linear,
    out: Linear,
    norm2: LayerNorm,
    up: Linear,
    down: Linear,
}

impl Block {
    fn new(d: &Device) -> Self {
        let linear = |i: usize, o: usize| LinearConfig::new(i * WIDTH, o * WIDTH).init(d);
        Self {
            norm1: LayerNormConfig::new(WIDTH).init(d),
            qkv: linear(1, 3),
            out: linear(1, 1),
            norm2: LayerNormConfig::new(WIDTH).init(d),
            up: linear(1, 4),
            down: linear(4, 1),
        }
    }

    fn forward(&self, x: Tensor<3>, hidden: Tensor<4, Bool>) -> Tensor<3> {
        let [b, t, n] = x.dims();
        let qkv = self.qkv.forward(self.norm1.forward(x.clone()));
        let part =
            |i: usize| qkv.clone().narrow(2, i * n, n).reshape([b, t, HEADS, n / HEADS]).swap_dims(1, 2);
        let scores = part(0).matmul(part(1).swap_dims(2, 3)) * (1.0 / ((n / HEADS) as f64).sqrt());
        let shares = softmax(scores.mask_fill(hidden.expand([b, HEADS, t, t]), -1e9), 3);
        let seen = shares.matmul(part(2)).swap_dims(1, 2).reshape([b, t, n]);
        let x = x + self.out.forward(seen);
        x.clone() + self.down.forward(gelu_approximate(self.up.forward(self.norm2.forward(x))))
    }
}

#[derive(Module, Debug)]
struct Gpt2 {
    words: Embedding,
    places: Embedding,
    blocks: Vec<Block>,
    norm: LayerNorm,
}

impl Gpt2 {
    fn new(d: &Device) -> Self {
        Self {
            words: EmbeddingConfig::new(VOCABULARY, WIDTH).init(d),
            places: EmbeddingConfig::new(TOKENS, WIDTH).init(d),
            blocks: (0..BLOCKS).map(|_| Block::new(d)).collect(),
            norm: LayerNormConfig::new(WIDTH).init(d),
        }
    }

    fn forward(&self, tokens: Tensor<2, Int>, places: Tensor<2, Int>, hidden: Tensor<4, Bool>) -> Tensor<2> {
        let [b, t] = tokens.dims();
        let x = self.words.forward(tokens) + self.places.forward(places);
        let x = self.blocks.iter().fold(x, |x, block| block.forward(x, hidden.clone()));
        self.norm.forward(x).reshape([b * t, WIDTH]).matmul(self.words.weight.val().transpose())
    }
}

#[derive(Module, Debug)]
struct TextLstm {
    words: Embedding,
    first: Lstm,
    second: Lstm,
    head: Linear,
}

impl TextLstm {
    fn new(d: &Device) -> Self {
        let lstm = || LstmConfig::new(LSTM_UNITS, LSTM_UNITS, true).init(d);
        Self {
            words: EmbeddingConfig::new(LSTM_VOCABULARY, LSTM_UNITS).init(d),
            first: lstm(),
            second: lstm(),
            head: LinearConfig::new(LSTM_UNITS, LSTM_VOCABULARY).init(d),
        }
    }

    fn forward(&self, tokens: Tensor<2, Int>) -> Tensor<2> {
        let (x, _) = self.first.forward(self.words.forward(tokens), None);
        let (x, _) = self.second.forward(x, None);
        self.head.forward(x).flatten::<2>(0, 1)
    }
}

fn integers<const D: usize>(shape: [usize; D], limit: usize, d: &Device) -> Tensor<D, Int> {
    let values: Vec<i64> = draw(shape.iter().product(), limit as u64).map(|x| x as i64).collect();
    Tensor::from_data(TensorData::new(values, shape), d)
}

fn uniform<const D: usize>(shape: [usize; D], d: &Device) -> Tensor<D> {
    Tensor::random(shape, Distribution::Uniform(0.0, 1.0), d)
}

fn adam() -> (ModuleOptimizer, f64) {
    (AdamConfig::new().init(), 1e-3)
}

/// Complete training steps of `model`.
fn train<M: burn::module::Module + Clone>(
    a: &Arguments,
    model: M,
    (mut optimizer, rate): (ModuleOptimizer, f64),
    forward: impl Fn(&M) -> Tensor<2>,
    labels: Tensor<1, Int>,
    d: &Device,
) {
    let cross_entropy = CrossEntropyLossConfig::new().init(d);
    let mut model = Some(model);
    let step = || {
        let Some(m) = model.take() else { return };
        let loss = cross_entropy.forward(forward(&m), labels.clone());
        let gradients = GradientsParams::from_grads(loss.backward(), &m);
        model = Some(optimizer.step(rate, m, gradients));
        let loss: f32 = loss.into_scalar();
        assert!(loss.is_finite(), "the loss is {loss}");
    };
    report(PEER, a, &time_steps(step, a.seconds));
}

fn gemm(a: &Arguments, d: &Device) {
    let dtype = match a.precision.as_str() {
        "float32" => DType::F32,
        "bfloat16" => DType::BF16,
        other => skip(PEER, a, &format!("no product of {other} matrices")),
    };
    for &n in &a.sizes {
        let (x, y) = (uniform([n, n], d).cast(dtype), uniform([n, n], d).cast(dtype));
        let step = || {
            std::hint::black_box(x.clone().matmul(y.clone()));
            d.sync().expect("the device finishes");
        };
        report_gemm(PEER, a, n, &time_steps(step, a.seconds / a.sizes.len() as f64));
    }
}

fn main() {
    let a = &Arguments::parse(PEER);
    let mut plain = Device::flex();
    if a.workload == "gemm" {
        return gemm(a, &plain);
    }
    if a.precision == "mixed_bfloat16" && plain.configure(burn::tensor::FloatDType::BF16).is_err() {
        skip(PEER, a, "its device has no bfloat16");
    }
    let d = &plain.autodiff();
    let b = a.batch();
    match a.workload.as_str() {
        "fashion-cnn" => {
            let x = uniform([b, 1, 28, 28], d);
            train(a, FashionCnn::new(d), adam(), |m| m.forward(x.clone()), integers([b], 10, d), d);
        }
        "mlp" => {
            let x = uniform([b, 784], d);
            train(a, Mlp::new(d), adam(), |m| m.forward(x.clone()), integers([b], 10, d), d);
        }
        "cifar-cnn" => {
            let x = uniform([b, 3, 32, 32], d);
            train(a, CifarCnn::new(d), adam(), |m| m.forward(x.clone()), integers([b], 10, d), d);
        }
        "resnet50" => {
            let x = uniform([b, 3, 224, 224], d);
            let momentum = MomentumConfig::new().with_momentum(0.9).with_dampening(0.0);
            let sgd = (SgdConfig::new().with_momentum(Some(momentum)).init(), 0.1);
            train(a, ResNet50::new(d), sgd, |m| m.forward(x.clone()), integers([b], 1000, d), d);
        }
        "gpt2-small" => {
            let x = integers([b, TOKENS], VOCABULARY, d);
            let places = Tensor::<1, Int>::arange(0..TOKENS as i64, d).reshape([1, TOKENS]);
            let hidden: Tensor<4, Bool> =
                Tensor::<2, Bool>::tril_mask([TOKENS, TOKENS], 0, d).reshape([1, 1, TOKENS, TOKENS]);
            let forward = |m: &Gpt2| m.forward(x.clone(), places.clone(), hidden.clone());
            let adamw = (AdamWConfig::new().with_weight_decay(0.1).init(), 3e-4);
            train(a, Gpt2::new(d), adamw, forward, integers([b * TOKENS], VOCABULARY, d), d);
        }
        "lstm" => {
            let x = integers([b, LSTM_TOKENS], LSTM_VOCABULARY, d);
            let labels = integers([b * LSTM_TOKENS], LSTM_VOCABULARY, d);
            train(a, TextLstm::new(d), adam(), |m| m.forward(x.clone()), labels, d);
        }
        _ => skip(PEER, a, "not written"),
    }
}
