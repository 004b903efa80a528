//! Dot layer: batched dot product of two inputs along given axes.

use crate::layers::built_in::*;
use crate::layers::norm::rms_normalization::unit;
use crate::layers::sample::*;
use crate::layers::spec::LayerSpec;
use crate::setters::{arguments, constructors, setters};

arguments! {
    /// `a: T[B, …, n, …], b: T[B, …, n, …] → T[B, …a, …b]`: batched dot product along one axis of each input.
    ///
    /// For two vectors `T[B, n]` the result is `T[B, 1]`. With `normalize` both are L2-normalized along that axis, so
    /// the result is the cosine similarity.
    ///
    /// ```
    /// use systole_nn::{input, layers::dot, Model};
    /// let (a, b) = (input("a", [8]), input("b", [8]));
    /// let cosine = dot(1).normalize(true).on(&[&a, &b]);
    /// assert!(Model::functional(&[a, b], &cosine)?.summary().contains("(None, 1)"));
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    pub struct Dot {
        /// Axis of both inputs, or one axis of each; not 0, the batch. Required in Keras, the last here. Default: −1.
        pub axes: Axes = Axes(vec![-1]),
        /// Whether inputs are L2-normalized along that axis. Default: false.
        pub normalize: bool = false,
    }
}

impl Arguments for Dot {
    fn check(&self) -> Result<()> {
        match self.axes.0.len() {
            1 | 2 => Ok(()),
            n => Err(wrong("Dot", "one or two axes", format!("{n} axes"))),
        }
    }
}

impl Layer for Dot {
    named!("Dot");

    fn call(&self, cx: &mut Cx, inputs: &[Tensor]) -> Tensor {
        built(self, cx, inputs, |cx, inputs| match inputs {
            [a, b] => self.product(cx, a, b),
            _ => Err(wrong_number(self, "two inputs", inputs)
                .hint("call Dot in a functional model: dot(1).on(&[&a, &b])")),
        })
    }
}

impl Dot {
    fn product(&self, cx: &Cx, a: &Tensor, b: &Tensor) -> Result<Tensor> {
        let axis_of = |x: &Tensor, i: usize| -> Result<usize> {
            match dim_index("Dot", *self.axes.0.get(i).unwrap_or(&self.axes.0[0]), x)? {
                0 => Err(unfit("Dot", "axes other than the batch", x.ty())
                    .hint("count axes from 1; −1 is the last")),
                axis => Ok(axis),
            }
        };
        let (i, j) = (axis_of(a, 0)?, axis_of(b, 1)?);
        if a.dim(0) != b.dim(0) || a.dim(i as isize) != b.dim(j as isize) {
            return Err(err!(Graph, "Dot's inputs have incompatible shapes")
                .because(format!(
                    "the first input is {} (axis {i}), the second is {} (axis {j})",
                    a.ty(),
                    b.ty()
                ))
                .hint("use equal batch sizes and equal sizes along the axes"));
        }
        let ready = |x: &Tensor, axis: usize| match self.normalize {
            true => cast(cx, &unit(&cast(cx, x).convert(DType::F32), &[axis])),
            false => cast(cx, x),
        };
        // The batch, then the other dimensions, then the contracted axis.
        let order = |x: &Tensor, axis: usize| -> Vec<usize> {
            (0..x.rank()).filter(|d| *d != axis).chain([axis]).collect()
        };
        let flat = |x: &Tensor, axis: usize| {
            let n = x.dim(axis as isize);
            let places: usize =
                x.shape().iter().enumerate().filter(|(d, _)| *d != 0 && *d != axis).map(|(_, n)| n).product();
            ready(x, axis).transpose(&order(x, axis)).reshape([x.dim(0), places, n])
        };
        let y = flat(a, i).matmul(&flat(b, j).transpose(&[0, 2, 1]));
        let mut shape = vec![a.dim(0)];
        for (x, axis) in [(a, i), (b, j)] {
            shape
                .extend(x.shape().iter().enumerate().filter(|(d, _)| *d != 0 && *d != axis).map(|(_, n)| *n));
        }
        if shape.len() == 1 {
            shape.push(1);
        }
        Ok(y.reshape(shape))
    }
}

constructors!(LayerSpec:
    /// `a: T[B, …, n, …], b: T[B, …, n, …] → T[B, …a, …b]`: batched dot product along one axis of each input. Arguments:
    /// [`Dot`].
    ///
    /// ```
    /// use systole_nn::{input, layers::dot, Model};
    /// let (a, b) = (input("a", [8, 4]), input("b", [8, 2]));
    /// let y = dot(1).on(&[&a, &b]);
    /// assert!(Model::functional(&[a, b], &y)?.summary().contains("(None, 4, 2)"));
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    fn dot(axes: impl Into<Axes>) = Dot { axes: axes.into(), ..Default::default() };
);

setters!(LayerSpec:
    /// Whether Dot L2-normalizes its inputs.
    normalize: bool as bool;
);

/// Test samples: layers with valid and invalid inputs.
pub(in crate::layers) fn samples() -> Vec<LayerSample> {
    let of = |spec, b: &[usize], output: &[usize]| LayerSample {
        inputs: vec![f32s(&[2, 3, 4]), f32s(b)],
        refused: Some(vec![f32s(&[2, 3, 4]), f32s(&[2, 7, 9])]),
        ..LayerSample::new(spec, &[2, 3, 4], output, &[], None)
    };
    vec![of(dot([2, 1]), &[2, 4, 5], &[2, 3, 5]), of(dot(-1).normalize(true), &[2, 4], &[2, 3])]
}

/// Keras parity test cases; `fixtures/keras/generate.py` reads them from this file.
pub(in crate::layers) const PARITY: &str = r#"[
    {"name": "dot", "class": "Dot", "x_shape": [[2, 3, 4], [2, 4, 5]], "kwargs": {"axes": [2, 1]}},
    {"name": "dot_vectors", "class": "Dot", "x_shape": [[3, 4], [3, 4]], "kwargs": {"axes": 1, "normalize": true}},
    {"name": "dot_middle", "class": "Dot", "x_shape": [[2, 3, 2], [2, 3, 4]], "kwargs": {"axes": 1}}
]"#;
