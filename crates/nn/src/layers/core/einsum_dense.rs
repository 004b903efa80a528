//! EinsumDense: a dense layer along any dimensions, by an equation.

use crate::layer::activation::Activation;
use crate::layers::built_in::*;
use crate::layers::sample::*;
use crate::layers::spec::LayerSpec;
use crate::setters::setters;
use serde::Deserializer;
use serde::de::Error as _;

arguments! {
    /// `x: T[B, …] → T[B, …]`: sums of products of x and a kernel over the dimensions that an equation leaves out.
    ///
    /// `"abc,cd->abd"` is a dense layer of sequences; `...` in front or at the end stands for any dimensions. `output_shape`
    /// has the sizes of the output without the batch, −1 for those of the input. Weights: `kernel`, of the shape that the
    /// equation says, and `bias`, of the output's sizes in `bias_axes` and 1 after them.
    ///
    /// ```
    /// use systole_nn::layers::einsum_dense;
    /// assert!(einsum_dense("...x,xy->...y", [64]).bias_axes("y").activation("relu").check().is_ok());
    /// let e = einsum_dense("ab,bc-ac", [64]).check().unwrap_err().to_string();
    /// assert!(e.contains("an equation like"), "{e}");
    /// ```
    pub struct EinsumDense {
        /// Letters of the input, the kernel and the output: `"abc,cd->abd"`. Required.
        pub equation: String = String::new(),
        /// Sizes of the output without the batch; −1 is the input's. Required.
        #[serde(deserialize_with = "sizes")]
        pub output_shape: Vec<i64> = Vec::new(),
        /// Applied at the end. Default: linear.
        #[serde(deserialize_with = "argument::activation")]
        pub activation: Activation = Activation::Linear,
        /// Letters of the output along which the bias differs. Default: no bias.
        pub bias_axes: Option<String> = None,
        /// How the kernel starts. Default: `glorot_uniform`.
        #[serde(deserialize_with = "argument::named")]
        pub kernel_initializer: Initializer = Initializer::GlorotUniform,
        /// How the bias starts. Default: `zeros`.
        #[serde(deserialize_with = "argument::named")]
        pub bias_initializer: Initializer = Initializer::Zeros,
    }
}

/// A size or several; Keras's `None` is −1.
fn sizes<'de, D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Vec<i64>, D::Error> {
    let size = |v: &Value| if v.is_null() { Some(-1) } else { v.as_i64() };
    let sizes = match &Value::deserialize(deserializer)? {
        Value::Array(list) => list.iter().map(size).collect(),
        one => size(one).map(|n| vec![n]),
    };
    sizes.ok_or_else(|| D::Error::custom("it takes a size or several: 64 or [-1, 64]"))
}

/// The letters of an equation; those of `...` are digits of dimensions.
struct EinsumEquation {
    input: Vec<char>,
    kernel: Vec<char>,
    output: Vec<char>,
    /// Dimensions that `...` stands for, in front (true) or at the end.
    elided: (usize, bool),
}

impl EinsumDense {
    /// The three parts, checked: each letter once, kernel's and output's known.
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
                return bad(format!("`{part}` is not different letters"));
            }
        }
        if kernel.contains('.')
            || input.starts_with('.') != output.starts_with('.')
            || input.contains('.') != output.contains('.')
        {
            return bad("`...` stands in the input and the output, at the same end".into());
        }
        if let Some(c) = o.chars().find(|c| !i.contains(*c) && !k.contains(*c)) {
            return bad(format!("`{c}` comes from nowhere"));
        }
        if let Some(c) = k.chars().find(|c| !i.contains(*c) && !o.contains(*c)) {
            return bad(format!("`{c}` is in the kernel alone"));
        }
        Ok([input, kernel, output])
    }

    /// The equation for an input of this rank.
    fn for_rank(&self, x: &Tensor) -> Result<EinsumEquation> {
        let [input, kernel, output] = self.parts()?;
        let own = input.trim_matches('.').len();
        let Some(n) = x.rank().checked_sub(own).filter(|n| *n == 0 || input.contains('.')) else {
            let needs = format!("inputs of {own} dimensions, as {input} of its equation");
            return Err(
                unfit("EinsumDense", &needs, x.ty()).hint("write ... for dimensions that do not matter")
            );
        };
        // Not letters, so none of the equation's own.
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

    /// The size of each letter of the output.
    fn output_sizes(&self, equation: &EinsumEquation, x: &Tensor) -> Result<Vec<usize>> {
        let of_input = |c: &char| equation.input.iter().position(|i| i == c).map(|d| x.dim(d as isize));
        let (n, front) = equation.elided;
        let mut given = self.output_shape.clone();
        // `...` and the batch have the input's sizes.
        let kept = if front { n.max(1) } else { 1 };
        given.splice(0..0, vec![-1; kept]);
        given.extend(vec![-1; if front { 0 } else { n }]);
        if given.len() != equation.output.len() {
            let needs = format!(
                "{} sizes in output_shape, as its equation has without the batch",
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
                &format!("an output_shape with another size for `{c}` than {given}"),
                x.ty(),
            )
            .because(of_input.map_or("the input has no such letter".into(), |n| format!("the input has {n}")))
            .hint("−1 takes the input's size")),
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
            return Err(wrong("EinsumDense", &format!("bias_axes of its output {output}"), c));
        }
        Ok(())
    }
}

impl Layer for EinsumDense {
    named!("EinsumDense");

    fn call(&self, cx: &mut Cx, inputs: &[Tensor]) -> Tensor {
        one_input(self, cx, inputs, |cx, x| {
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
        })
    }
}

/// Products of x and the kernel, summed over what is not in the output.
fn einsum(x: &Tensor, kernel: &Tensor, equation: &EinsumEquation) -> Tensor {
    let EinsumEquation { input, kernel: own, output, .. } = equation;
    let at = |letters: &[char], c: &char| letters.iter().position(|l| l == c);
    // Letters of the input alone are summed first.
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

/// `x: T[B, …] → T[B, …]`: a dense layer along the dimensions that an equation names. Arguments: [`EinsumDense`].
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
    /// The letters of EinsumDense's output along which its bias differs.
    bias_axes: &str as Value;
);

/// Layers with inputs that they take and refuse.
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

/// Cases of the parity test, in Keras's terms; `fixtures/keras/generate.py` reads them here.
pub(in crate::layers) const PARITY: &str = r#"[
    {"name": "einsum_dense", "class": "EinsumDense", "x_shape": [2, 3, 4], "kwargs": {"equation": "abc,cd->abd", "output_shape": [null, 5], "bias_axes": "d", "activation": "relu"}},
    {"name": "einsum_dense_heads", "class": "EinsumDense", "x_shape": [2, 3, 4], "kwargs": {"equation": "abc,cde->adbe", "output_shape": [2, 3, 2], "bias_axes": "de"}},
    {"name": "einsum_dense_elided", "class": "EinsumDense", "x_shape": [2, 3, 2, 4], "kwargs": {"equation": "...x,xy->...y", "output_shape": 3, "bias_axes": "y"}},
    {"name": "einsum_dense_places", "class": "EinsumDense", "x_shape": [2, 3, 4], "kwargs": {"equation": "abc,bd->adc", "output_shape": [2, null], "bias_axes": "d"}},
    {"name": "einsum_dense_after", "class": "EinsumDense", "x_shape": [2, 3, 2, 2], "kwargs": {"equation": "ab...,bc->ac...", "output_shape": [4], "bias_axes": "c"}}
]"#;
