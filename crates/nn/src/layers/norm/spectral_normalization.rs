//! SpectralNormalization wrapper: divides a layer's kernel by its largest singular value (power iteration).

use super::rms_normalization::unit;
use crate::layer::WeightSpec;
use crate::layers::built_in::*;
use crate::layers::conv::convolution::conv2d;
use crate::layers::core::dense::dense;
use crate::layers::sample::*;
use crate::layers::spec::LayerSpec;
use crate::layers::wrapped_layer::WrappedLayer;
use crate::setters::{arguments, setters};
use systole_ir::GraphBuilder;

arguments! {
    /// `x: T[B, …] → T[B, …']`: wraps a layer and divides its kernel by the kernel's largest singular value.
    ///
    /// As in Keras, each training step normalizes the stored kernel with `power_iterations` iterations, starting from
    /// the previous step's vector. The layer uses the normalized kernel, and the optimizer updates it. Inference uses
    /// the stored kernel unchanged. The kernel is treated as a matrix of its last dimension by all others. Weights:
    /// those of the layer, under its name, and, not trainable, `vector_u: f32[1, F]`. Source: Miyato et al. 2018.
    ///
    /// With `keeps_kernel`, as in PyTorch and BigGAN, the stored kernel is not normalized: each call normalizes it, in
    /// training and inference, and gradients flow to the unnormalized kernel.
    ///
    /// ```
    /// use systole_nn::layers::{conv2d, flatten, spectral_normalization};
    /// assert!(spectral_normalization(conv2d(16, 3)).power_iterations(2).check().is_ok());
    /// assert!(spectral_normalization(conv2d(16, 3)).power_iterations(0).check().is_err());
    /// ```
    pub struct SpectralNormalization {
        /// Wrapped layer, which has a `kernel` or `embeddings`. Required.
        pub layer: WrappedLayer = WrappedLayer::default(),
        /// Power iterations per training step. Default: 1.
        pub power_iterations: usize = 1,
        /// Whether the unnormalized kernel is stored. Not in Keras. Default: false.
        pub keeps_kernel: bool = false,
        /// Minimum norm of power iteration vectors, and minimum divisor of the kernel. Default: 1e-12.
        pub epsilon: f64 = 1e-12,
    }
}

const CLASS: &str = "SpectralNormalization";

impl SpectralNormalization {
    fn call_as(&self, cx: &mut Cx, inputs: &[Tensor], trains: bool) -> Tensor {
        one_input(self, cx, inputs, |cx, x| {
            let inner = self.layer.of(CLASS)?.clone().trainable(trains);
            let name = WrappedLayer::name(&inner);
            let known = kernel_of(cx, &inner, x)?;
            sized(CLASS, "kernel", &known.shape)?;
            let kernel =
                cx.scope(&name, |cx| cx.variable(&known.path, &known.shape, &known.initializer, true));
            let features = known.shape.last().copied().unwrap_or(1);
            let start = Initializer::TruncatedNormal { mean: 0.0, stddev: 0.02 };
            let u = cx.variable("vector_u", &[1, features], &start, false);
            if self.keeps_kernel {
                return Ok(self.call_divided(cx, (&inner, x), (&name, &known.path), (&kernel, &u), trains));
            }
            if cx.training() && trains {
                let (normal, u) = self.normalised(&kernel, &u);
                cx.update("vector_u", u);
                cx.scope(&name, |cx| {
                    // The gradient is that of the normalized kernel.
                    let used = &kernel + (&normal - &kernel).stop_gradient();
                    cx.replace_own(&known.path, &used);
                    cx.update(&known.path, used.clone());
                });
            }
            Ok(cx.scope(&name, |cx| inner.call(cx, std::slice::from_ref(x))))
        })
    }

    /// Calls the layer with its kernel normalized in this call only.
    fn call_divided(
        &self,
        cx: &mut Cx,
        (inner, x): (&LayerSpec, &Tensor),
        (name, path): (&str, &str),
        (kernel, u): (&Tensor, &Tensor),
        trains: bool,
    ) -> Tensor {
        let (normal, moved) = self.normalised(kernel, u);
        if cx.training() && trains {
            cx.update("vector_u", moved);
        }
        cx.scope(name, |cx| {
            cx.replace_own(path, &normal);
            let y = inner.call(cx, std::slice::from_ref(x));
            cx.replace_own(path, kernel);
            y
        })
    }

    /// `kernel: f32[…, F], u: f32[1, F] → f32[…, F], f32[1, F]`: the kernel divided by its largest singular value, and
    /// the updated power iteration vector.
    fn normalised(&self, kernel: &Tensor, u: &Tensor) -> (Tensor, Tensor) {
        let features = u.dim(1);
        let rows = kernel.ty().elements() / features.max(1);
        let matrix = kernel.reshape([rows, features]);
        let (mut u, mut v) = (u.clone(), None);
        // Both vectors are constants of the gradient.
        let fixed = if self.keeps_kernel { matrix.stop_gradient() } else { matrix.clone() };
        for _ in 0..self.power_iterations {
            let next = self.unit(&u.dot(&fixed.transpose(&[1, 0])));
            u = self.unit(&next.dot(&fixed));
            v = Some(next);
        }
        let stretched = v.map_or(u.clone(), |v| v.dot(&matrix));
        let sigma = (stretched * &u).sum(&[0, 1]);
        // A kernel of zeros has value 0 and is kept unchanged.
        let zero = sigma.equal(&sigma.zeros_like());
        let divisor = zero.select(&sigma.ones_like(), &sigma);
        (kernel / divisor.broadcast_to(kernel.shape()), u)
    }
}

impl SpectralNormalization {
    /// L2-normalizes: `f32[1, N] → f32[1, N]`.
    fn unit(&self, x: &Tensor) -> Tensor {
        if self.epsilon == 1e-12 {
            return unit(x, &[0, 1]);
        }
        let squares = (x * x).sum(&[0, 1]);
        let floor = squares.builder().full(squares.ty(), self.epsilon * self.epsilon);
        x * squares.maximum(&floor).rsqrt().broadcast_to(x.shape())
    }
}

/// Returns the spec of the layer's kernel or table, with its path in the layer; an error if the layer rejects its
/// input.
fn kernel_of(cx: &Cx, inner: &LayerSpec, x: &Tensor) -> Result<WeightSpec> {
    let g = GraphBuilder::new("kernel");
    let mut apart = Cx::collecting(&g, cx.precision());
    let y = inner.call(&mut apart, &[g.parameter(x.ty().clone(), "x")]);
    let fits = !y.is_poisoned();
    let kernel = apart.into_specs().into_iter().find(|w| ["kernel", "embeddings"].contains(&w.path.as_str()));
    kernel.filter(|_| fits).ok_or_else(|| {
        let e = unfit(CLASS, &format!("an input that its {} accepts", inner.class_name()), x.ty());
        let inside = g.error();
        let hint =
            inside.as_ref().and_then(|i| i.hint_text()).unwrap_or("check the wrapped layer").to_string();
        inside.map_or(e.clone(), |i| e.because(i.what())).hint(hint)
    })
}

impl Arguments for SpectralNormalization {
    fn check(&self) -> Result<()> {
        ensure!(self.power_iterations != 0, wrong(CLASS, "power_iterations of at least 1", 0));
        at_least_0(CLASS, "epsilon", self.epsilon)?;
        let class = self.layer.of(CLASS)?.class_name();
        match HAVE_KERNELS.contains(&class) {
            true => Ok(()),
            false => Err(wrong(CLASS, &format!("a layer with a kernel: {}", HAVE_KERNELS.join(", ")), class)),
        }
    }

    fn call_frozen(&self, cx: &mut Cx, inputs: &[Tensor]) -> Tensor {
        self.call_as(cx, inputs, false)
    }
}

/// Layers with a single `kernel` or `embeddings`.
const HAVE_KERNELS: &[&str] = &[
    "Dense",
    "EinsumDense",
    "Conv1D",
    "Conv2D",
    "Conv3D",
    "Conv1DTranspose",
    "Conv2DTranspose",
    "Conv3DTranspose",
    "DepthwiseConv1D",
    "DepthwiseConv2D",
    "Embedding",
];

impl Layer for SpectralNormalization {
    named!(CLASS);

    fn call(&self, cx: &mut Cx, inputs: &[Tensor]) -> Tensor {
        self.call_as(cx, inputs, true)
    }

    fn adapters(&self) -> Result<()> {
        Err(no_adapters(CLASS))
    }
}

/// `x: T[B, …] → T[B, …']`: wraps a layer and divides its kernel by the kernel's largest singular value. Arguments:
/// [`SpectralNormalization`].
///
/// ```
/// use systole_ir::{DType::F32, TensorType};
/// use systole_nn::{layers::{conv2d, spectral_normalization}, Model};
/// let layer = spectral_normalization(conv2d(16, 3).padding("same"));
/// let output = Model::sequential([layer]).output_for(&[TensorType::new(F32, [28, 28, 8])])?;
/// assert_eq!(output.shape.dims(), [28, 28, 16]);
/// # Ok::<(), systole_ir::Error>(())
/// ```
#[track_caller]
pub fn spectral_normalization(layer: impl Into<LayerSpec>) -> LayerSpec {
    let layer = layer.into();
    LayerSpec::of(SpectralNormalization { layer: WrappedLayer::new(layer.clone()), ..Default::default() })
        .with_mistakes_of(&layer)
}

setters!(LayerSpec:
    /// Power iterations of SpectralNormalization per training step.
    power_iterations: usize as usize;
    /// Whether SpectralNormalization stores the unnormalized kernel.
    keeps_kernel: bool as bool;
);

/// Test samples: layers with valid and invalid inputs.
pub(in crate::layers) fn samples() -> Vec<LayerSample> {
    let own = &["own/kernel", "vector_u", "own/bias"];
    vec![
        LayerSample::new(spectral_normalization(dense(4).name("own")), &[2, 5], &[2, 4], own, Some(&[2, 0])),
        LayerSample::new(
            spectral_normalization(conv2d(4, 3).name("own")).power_iterations(3),
            IMAGE,
            &[2, 4, 3, 4],
            own,
            Some(&[2, 30]),
        ),
        LayerSample::new(
            spectral_normalization(dense(4).name("own")).keeps_kernel(true),
            &[2, 5],
            &[2, 4],
            own,
            Some(&[2, 0]),
        ),
    ]
}

/// Keras parity test cases; `fixtures/keras/generate.py` reads them from this file.
pub(in crate::layers) const PARITY: &str = r#"[
    {"name": "spectral_dense_train", "class": "SpectralNormalization", "x_shape": [3, 4], "training": true, "kwargs": {"layer": {"class_name": "Dense", "config": {"units": 3}}}},
    {"name": "spectral_dense_infer", "class": "SpectralNormalization", "x_shape": [3, 4], "kwargs": {"layer": {"class_name": "Dense", "config": {"units": 3}}}},
    {"name": "spectral_conv_train", "class": "SpectralNormalization", "x_shape": [1, 4, 3, 2], "training": true, "kwargs": {"power_iterations": 3, "layer": {"class_name": "Conv2D", "config": {"filters": 3, "kernel_size": 2}}}}
]"#;
