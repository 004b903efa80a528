//! EinsumDense layer: a dense layer along any axes, given by an einsum equation.

use crate::layer::activation::Activation;
use crate::layers::built_in::*;
use crate::layers::sample::*;
use crate::layers::spec::LayerSpec;
use crate::setters::{arguments, setters};
use serde::Deserializer;
use serde::de::Error as _;

arguments! {
    /// `x: T[B, …] → T[B, …]`: einsum of the input and a kernel, plus bias and activation.
    ///
    /// `"abc,cd->abd"` is a dense layer on sequences; `...` at the start or end stands for any number of dimensions.
    /// `output_shape` lists the output's sizes without the batch, −1 to keep the input's size. Weights: `kernel`,
    /// shaped by the equation, and `bias`, with the output's sizes in `bias_axes` and 1 in the axes after them.
    ///
    /// ```
    /// use systole_nn::layers::einsum_dense;
    /// assert!(einsum_dense("...x,xy->...y", [64]).bias_axes("y").activation("relu").check().is_ok());
    /// let e = einsum_dense("ab,bc-ac", [64]).check().unwrap_err().to_string();
    /// assert!(e.contains("an equation like"), "{e}");
    /// ```
    pub struct EinsumDense {
        /// Einsum equation of input, kernel and output: `"abc,cd->abd"`. Required.
        pub equation: String = String::new(),
        /// Output sizes without the batch; −1 keeps the input's size. Required.
        #[serde(deserialize_with = "sizes")]
        pub output_shape: Vec<i64> = Vec::new(),
        /// Activation of the output. Default: linear.
        #[serde(deserialize_with = "argument::activation")]
        pub activation: Activation = Activation::Linear,
        /// Output letters along which the bias varies. Default: no bias.
        pub bias_axes: Option<String> = None,
        /// Initializer of the kernel. Default: `glorot_uniform`.
        pub kernel_initializer: Initializer = Initializer::GlorotUniform,
        /// Initializer of the bias. Default: `zeros`.
        pub bias_initializer: Initializer = Initializer::Zeros,
    }
}

/// Deserializes one size or a list; Keras's `None` becomes −1.
fn sizes<'de, D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Vec<i64>, D::Error> {
    let size = |v: &Value| if v.is_null() { Some(-1) } else { v.as_i64() };
    let sizes = match &Value::deserialize(deserializer)? {
        Value::Array(list) => list.iter().map(size).collect(),
        one => size(one).map(|n| vec![n]),
    };
    sizes.ok_or_else(|| D::Error::custom("expected an integer or a list: 64 or [-1, 64]"))
}

/// Letters of an equation; dimensions of `...` get characters that are not letters.
struct EinsumEquation {
    input: Vec<char>,
    kernel: Vec<char>,
    output: Vec<char>,
    /// Number of dimensions that `...` stands for, and whether they are at the start.
    elided: (usize, bool),
}

impl EinsumDense {
    /// Splits the equation into input, kernel and output and validates the letters.
    fn parts(&self) -> Result<[&str; 3]> {
        let bad = |why: String| {
            let e = wrong("EinsumDense", "an equation like \"abc,cd->abd\"", format!("{:?}", self.equation));
            Err(e.because(why))
        };
        let Some((input, rest)) = self.equation.split_once(',') else { return bad("it has no comma".into()) };
        let Some((kernel, output)) = rest.split_once("->") else { return bad("it has no arrow".into()) };
        let letters = |part: &str| -> String {
            part.strip_prefix("...").or(part.strip_suffix("...")).unwrap_or(part).into()
        };
        let [i, k, o] = [input, kernel, output].map(letters);
        for part in [&i, &k, &o] {
            let once = part.chars().enumerate().all(|(at, c)| part.find(c) == Some(at));
            if part.is_empty() || !part.chars().all(|c| c.is_ascii_alphabetic()) || !once {
                return bad(format!("`{part}` contains a repeated letter or another character"));
            }
        }
        if kernel.contains('.')
            || input.starts_with('.') != output.starts_with('.')
            || input.contains('.') != output.contains('.')
        {
            return bad("`...` must be at the same end of input and output".into());
        }
        if let Some(c) = o.chars().find(|c| !i.contains(*c) && !k.contains(*c)) {
            return bad(format!("output letter `{c}` is in neither input nor kernel"));
        }
        if let Some(c) = k.chars().find(|c| !i.contains(*c) && !o.contains(*c)) {
            return bad(format!("kernel letter `{c}` is in neither input nor output"));
        }
        Ok([input, kernel, output])
    }

    /// Expands `...` for an input of this rank.
    fn for_rank(&self, x: &Tensor) -> Result<EinsumEquation> {
        let [input, kernel, output] = self.parts()?;
        let own = input.trim_matches('.').len();
        let Some(n) = x.rank().checked_sub(own).filter(|n| *n == 0 || input.contains('.')) else {
            let needs = format!("inputs of {own} dimensions, for {input} in its equation");
            return Err(unfit("EinsumDense", &needs, x.ty()).hint("write ... for arbitrary dimensions"));
        };
        // Characters that cannot occur in the equation.
        let rest: Vec<char> = (0..n).filter_map(|i| char::from_u32(0x100 + i as u32)).collect();
        let full = |part: &str| -> Vec<char> {
            let letters: Vec<char> = part.trim_matches('.').chars().collect();
            match (part.starts_with('.'), part.ends_with('.')) {
                (true, _) => [rest.clone(), letters].concat(),
                (_, true) => [letters, rest.clone()].concat(),
                _ => letters,
            }
        };
        let front = input.starts_with('.');
        Ok(EinsumEquation {
            input: full(input),
            kernel: full(kernel),
            output: full(output),
            elided: (n, front),
        })
    }

    /// Returns the size of each output letter.
    fn output_sizes(&self, equation: &EinsumEquation, x: &Tensor) -> Result<Vec<usize>> {
        let of_input = |c: &char| equation.input.iter().position(|i| i == c).map(|d| x.dim(d as isize));
        let (n, front) = equation.elided;
        let mut given = self.output_shape.clone();
        // `...` and the batch keep the input's sizes.
        let kept = if front { n.max(1) } else { 1 };
        given.splice(0..0, vec![-1; kept]);
        given.extend(vec![-1; if front { 0 } else { n }]);
        if given.len() != equation.output.len() {
            let needs = format!(
                "{} sizes in output_shape, one per output letter except the batch",
                equation.output.len() - kept
            );
            return Err(wrong("EinsumDense", &needs, format!("{:?}", self.output_shape)));
        }
        let size = |(c, &given): (&char, &i64)| match (of_input(c), usize::try_from(given)) {
            (Some(n), Err(_)) => Ok(n),
            (Some(n), Ok(g)) if n == g => Ok(n),
            (None, Ok(g)) if g > 0 => Ok(g),
            (of_input, _) => Err(unfit(
                "EinsumDense",
                &format!("another size for `{c}` in output_shape than {given}"),
                x.ty(),
            )
            .because(of_input.map_or("the input has no such axis".into(), |n| format!("the input has {n}")))
            .hint("use −1 to keep the input's size")),
        };
        equation.output.iter().zip(&given).map(size).collect()
    }

    fn bias(&self, cx: &mut Cx, equation: &EinsumEquation, sizes: &[usize]) -> Result<Option<Tensor>> {
        let Some(axes) = &self.bias_axes else { return Ok(None) };
        let Some(first) = equation.output.iter().position(|c| axes.contains(*c)) else { return Ok(None) };
        let shape: Vec<usize> = (first..sizes.len())
            .map(|d| if axes.contains(equation.output[d]) { sizes[d] } else { 1 })
            .collect();
        let bias = weight(cx, "EinsumDense", "bias", &shape, &self.bias_initializer)?;
        let dims: Vec<usize> = (first..sizes.len()).filter(|d| shape[d - first] == sizes[*d]).collect();
        let narrow: Vec<usize> = dims.iter().map(|d| sizes[*d]).collect();
        Ok(Some(bias.reshape(narrow).broadcast_in_dim(&Shape::new(sizes), &dims)))
    }
}

impl Arguments for EinsumDense {
    fn check(&self) -> Result<()> {
        let [_, _, output] = self.parts()?;
        if let Some(c) = self.bias_axes.iter().flat_map(|axes| axes.chars()).find(|c| !output.contains(*c)) {
            return Err(wrong("EinsumDense", &format!("bias_axes from its output letters {output}"), c));
        }
        Ok(())
    }

    fn output(&self, cx: &mut Cx, x: &Tensor) -> Result<Tensor> {
        let equation = self.for_rank(x)?;
        let sizes = self.output_sizes(&equation, x)?;
        let at = |letters: &[char], c: &char| letters.iter().position(|l| l == c);
        let size = |c: &char| match (at(&equation.input, c), at(&equation.output, c)) {
            (Some(d), _) => x.dim(d as isize),
            (None, d) => d.map_or(1, |d| sizes[d]),
        };
        let shape: Vec<usize> = equation.kernel.iter().map(size).collect();
        let kernel = weight(cx, "EinsumDense", "kernel", &shape, &self.kernel_initializer)?;
        let mut y = einsum(&cast(cx, x), &kernel, &equation);
        if let Some(bias) = self.bias(cx, &equation, &sizes)? {
            y = y + bias;
        }
        Ok(cx.activate(self.activation, &y))
    }
}

impl Layer for EinsumDense {
    named!("EinsumDense", one_input);
}

/// Multiplies x and the kernel and sums over letters that are not in the output.
fn einsum(x: &Tensor, kernel: &Tensor, equation: &EinsumEquation) -> Tensor {
    let EinsumEquation { input, kernel: own, output, .. } = equation;
    let at = |letters: &[char], c: &char| letters.iter().position(|l| l == c);
    // Letters that occur only in the input are summed first.
    let alone: Vec<usize> =
        (0..input.len()).filter(|&d| !own.contains(&input[d]) && !output.contains(&input[d])).collect();
    let x = if alone.is_empty() { x.clone() } else { x.sum(&alone) };
    let input: Vec<char> = input.iter().copied().filter(|c| own.contains(c) || output.contains(c)).collect();
    let shared: Vec<char> = input.iter().copied().filter(|c| own.contains(c)).collect();
    let (batch, summed): (Vec<char>, Vec<char>) = shared.into_iter().partition(|c| output.contains(c));
    let dims =
        |letters: &[char], of: &[char]| -> Vec<usize> { of.iter().filter_map(|c| at(letters, c)).collect() };
    let y = x.dot_general(
        kernel,
        &dims(&input, &batch),
        &dims(own, &batch),
        &dims(&input, &summed),
        &dims(own, &summed),
    );
    let free = |letters: &[char]| -> Vec<char> {
        letters.iter().copied().filter(|c| !batch.contains(c) && !summed.contains(c)).collect()
    };
    let order = [batch.clone(), free(&input), free(own)].concat();
    y.transpose(&dims(&order, output))
}

/// `x: T[B, …] → T[B, …]`: a dense layer along the axes of an einsum equation. Arguments: [`EinsumDense`].
///
/// ```
/// use systole_ir::{DType::F32, TensorType};
/// use systole_nn::{layers::einsum_dense, Model};
/// let layer = einsum_dense("abc,cd->abd", [-1, 64]).bias_axes("d");
/// let output = Model::sequential([layer]).output_for(&[TensorType::new(F32, [16, 32])])?;
/// assert_eq!(output.shape.dims(), [16, 64]);
/// # Ok::<(), systole_ir::Error>(())
/// ```
#[track_caller]
pub fn einsum_dense(equation: &str, output_shape: impl AsRef<[i64]>) -> LayerSpec {
    LayerSpec::of(EinsumDense {
        equation: equation.into(),
        output_shape: output_shape.as_ref().into(),
        ..Default::default()
    })
}

setters!(LayerSpec:
    /// Output letters along which EinsumDense's bias varies.
    bias_axes: &str as Value;
);

/// Test samples: layers with valid and invalid inputs.
pub(in crate::layers) fn samples() -> Vec<LayerSample> {
    vec![
        LayerSample::new(
            einsum_dense("abc,cd->abd", [-1, 5]).bias_axes("d"),
            SEQUENCE,
            &[2, 7, 5],
            BOTH,
            FLAT,
        ),
        LayerSample::new(einsum_dense("...x,xy->...y", [3]), SEQUENCE, &[2, 7, 3], &["kernel"], Some(&[])),
        LayerSample::new(
            einsum_dense("abc,bde->ade", [2, 3]).bias_axes("de"),
            SEQUENCE,
            &[2, 2, 3],
            BOTH,
            FLAT,
        ),
    ]
}

/// Keras parity test cases; `fixtures/keras/generate.py` reads them from this file.
pub(in crate::layers) const PARITY: &str = r#"[
    {"name": "einsum_dense", "class": "EinsumDense", "x_shape": [2, 3, 4], "kwargs": {"equation": "abc,cd->abd", "output_shape": [null, 5], "bias_axes": "d", "activation": "relu"}},
    {"name": "einsum_dense_heads", "class": "EinsumDense", "x_shape": [2, 3, 4], "kwargs": {"equation": "abc,cde->adbe", "output_shape": [2, 3, 2], "bias_axes": "de"}},
    {"name": "einsum_dense_elided", "class": "EinsumDense", "x_shape": [2, 3, 2, 4], "kwargs": {"equation": "...x,xy->...y", "output_shape": 3, "bias_axes": "y"}},
    {"name": "einsum_dense_places", "class": "EinsumDense", "x_shape": [2, 3, 4], "kwargs": {"equation": "abc,bd->adc", "output_shape": [2, null], "bias_axes": "d"}},
    {"name": "einsum_dense_after", "class": "EinsumDense", "x_shape": [2, 3, 2, 2], "kwargs": {"equation": "ab...,bc->ac...", "output_shape": [4], "bias_axes": "c"}}
]"#;
