//! Merge layers: Add, Subtract, Multiply, Average, Maximum, Minimum, Concatenate.

use crate::layers::built_in::*;
use crate::layers::sample::*;
use crate::layers::spec::LayerSpec;
use crate::setters::{arguments, constructors};

macro_rules! element_wise {
    ($($(#[$doc:meta])* $class:ident => $fold:expr;)*) => { $(
        $(#[$doc])*
        #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub struct $class {}

        impl Arguments for $class {}

        impl Layer for $class {
            named!(stringify!($class));

            fn call(&self, cx: &mut Cx, inputs: &[Tensor]) -> Tensor {
                merge((stringify!($class), ElementWise::$class), cx, inputs, $fold)
            }

            fn lowering(&self) -> Result<LayerLowering> {
                Ok(LayerLowering::ElementWise(ElementWise::$class))
            }
        }
    )* };
}

element_wise!(
    /// `x₀: T[…], x₁: T[…], … → T[…]`: sum of all inputs, with broadcasting of sizes of 1.
    Add => |xs| fold(xs, |a, b| a + b);
    /// `x₀: T[…], x₁: T[…] → T[…]`: difference of two inputs, with broadcasting of sizes of 1.
    Subtract => |xs| fold(xs, |a, b| a - b);
    /// `x₀: T[…], x₁: T[…], … → T[…]`: product of all inputs, with broadcasting of sizes of 1.
    Multiply => |xs| fold(xs, |a, b| a * b);
    /// `x₀: T[…], x₁: T[…], … → T[…]`: mean of all inputs, with broadcasting of sizes of 1.
    Average => |xs| fold(xs, |a, b| a + b) * (1.0 / xs.len() as f64);
    /// `x₀: T[…], x₁: T[…], … → T[…]`: element-wise maximum of all inputs, with broadcasting of sizes of 1.
    Maximum => |xs| fold(xs, |a, b| a.maximum(b));
    /// `x₀: T[…], x₁: T[…], … → T[…]`: element-wise minimum of all inputs, with broadcasting of sizes of 1.
    Minimum => |xs| fold(xs, |a, b| a.minimum(b));
);

/// Folds from first to last; `merge` guarantees at least two inputs.
fn fold(xs: &[Tensor], f: impl Fn(&Tensor, &Tensor) -> Tensor) -> Tensor {
    xs[1..].iter().fold(xs[0].clone(), |acc, x| f(&acc, x))
}

/// Checks the inputs of an element-wise merge, casts them and folds them.
fn merge(
    layer: (&str, ElementWise),
    cx: &Cx,
    inputs: &[Tensor],
    fold: impl FnOnce(&[Tensor]) -> Tensor,
) -> Tensor {
    if let Some(poisoned) = inputs.iter().find(|x| x.is_poisoned()) {
        return poisoned.clone();
    }
    if let Err(e) = check_mergeable(layer, inputs) {
        return refuse(cx, inputs, e);
    }
    let cast: Vec<Tensor> = inputs.iter().map(|x| cast(cx, x)).collect();
    fold(&cast)
}

fn check_mergeable((class, op): (&str, ElementWise), inputs: &[Tensor]) -> Result<()> {
    let exact = matches!(op, ElementWise::Subtract);
    if inputs.len() < 2 || (exact && inputs.len() > 2) {
        let needs = if exact { "two inputs" } else { "at least two inputs" };
        return Err(err!(Graph, "{class} needs {needs}, got {}", inputs.len()).hint(format!(
            "call the layer in a functional model: {}().on(&[&a, &b])",
            class.to_lowercase()
        )));
    }
    let mut common = inputs[0].shape().to_vec();
    for x in &inputs[1..] {
        let fits = x.rank() == common.len()
            && common.iter().zip(x.shape().iter()).all(|(a, b)| a == b || *a == 1 || *b == 1);
        if !fits {
            return Err(err!(Graph, "{class} needs inputs of one shape, got {}", list_types(inputs))
                .hint("reshape an input, or project it with dense or a 1×1 conv2d"));
        }
        common.iter_mut().zip(x.shape().iter()).filter(|(a, _)| **a == 1).for_each(|(a, b)| *a = *b);
    }
    Ok(())
}

fn list_types(inputs: &[Tensor]) -> String {
    inputs.iter().map(|x| x.ty().to_string()).collect::<Vec<_>>().join(" and ")
}

arguments! {
    /// `x₀: T[…, N₀, …], x₁: T[…, N₁, …], … → T[…, N₀ + N₁ + …, …]`: concatenates inputs along `axis`.
    pub struct Concatenate {
        /// Axis to concatenate along. Default: −1, the last.
        pub axis: i64 = -1,
    }
}

impl Arguments for Concatenate {}

impl Concatenate {
    fn join(&self, cx: &Cx, inputs: &[Tensor]) -> Result<Tensor> {
        let Some(first) = inputs.first() else {
            return Err(err!(Graph, "Concatenate needs at least one input, got 0")
                .hint("call the layer in a functional model: concatenate(-1).on(&[&a, &b])"));
        };
        let axis = dim_index("Concatenate", self.axis, first)?;
        let same = |x: &Tensor| {
            x.rank() == first.rank() && (0..x.rank()).all(|d| d == axis || x.shape()[d] == first.shape()[d])
        };
        if !inputs.iter().all(same) {
            return Err(err!(
                Graph,
                "Concatenate needs inputs that differ only along axis {}, got {}",
                self.axis,
                list_types(inputs)
            )
            .hint("reshape the inputs, or choose another axis"));
        }
        let one_type = inputs.iter().all(|x| x.dtype() == first.dtype());
        let cast_one = |x: &Tensor| if one_type { cast_floats(cx, x) } else { cast(cx, x) };
        let parts: Vec<Tensor> = inputs.iter().map(cast_one).collect();
        Ok(Tensor::concatenate(&parts.iter().collect::<Vec<_>>(), axis))
    }
}

impl Layer for Concatenate {
    named!("Concatenate");

    fn call(&self, cx: &mut Cx, inputs: &[Tensor]) -> Tensor {
        built(self, cx, inputs, |cx, inputs| self.join(cx, inputs))
    }

    lowered!(self => Ok(LayerLowering::Concatenation(self.axis)));
}

constructors!(LayerSpec:
    /// `x₀: T[…], x₁: T[…], … → T[…]`: sum of all inputs. Arguments: [`Add`].
    ///
    /// ```
    /// use systole_nn::{input, layers::add, Model};
    /// let (a, b) = (input("a", [8]), input("b", [8]));
    /// let y = add().on(&[&a, &b]);
    /// assert!(Model::functional(&[a, b], &y)?.summary().contains("(None, 8)"));
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    fn add() = Add {};

    /// `x₀: T[…], x₁: T[…] → T[…]`: first input minus second input. Arguments: [`Subtract`].
    ///
    /// ```
    /// use systole_nn::{input, layers::subtract, Model};
    /// let (a, b) = (input("a", [8]), input("b", [8]));
    /// let y = subtract().on(&[&a, &b]);
    /// assert!(Model::functional(&[a, b], &y)?.summary().contains("(None, 8)"));
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    fn subtract() = Subtract {};

    /// `x₀: T[…], x₁: T[…], … → T[…]`: product of all inputs. Arguments: [`Multiply`].
    ///
    /// ```
    /// use systole_nn::{input, layers::multiply, Model};
    /// let (a, b) = (input("a", [8]), input("b", [8]));
    /// let y = multiply().on(&[&a, &b]);
    /// assert!(Model::functional(&[a, b], &y)?.summary().contains("(None, 8)"));
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    fn multiply() = Multiply {};

    /// `x₀: T[…], x₁: T[…], … → T[…]`: mean of all inputs. Arguments: [`Average`].
    ///
    /// ```
    /// use systole_nn::{input, layers::average, Model};
    /// let (a, b) = (input("a", [8]), input("b", [8]));
    /// let y = average().on(&[&a, &b]);
    /// assert!(Model::functional(&[a, b], &y)?.summary().contains("(None, 8)"));
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    fn average() = Average {};

    /// `x₀: T[…], x₁: T[…], … → T[…]`: element-wise maximum of all inputs. Arguments: [`Maximum`].
    ///
    /// ```
    /// use systole_nn::{input, layers::maximum, Model};
    /// let (a, b) = (input("a", [8]), input("b", [8]));
    /// let y = maximum().on(&[&a, &b]);
    /// assert!(Model::functional(&[a, b], &y)?.summary().contains("(None, 8)"));
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    fn maximum() = Maximum {};

    /// `x₀: T[…], x₁: T[…], … → T[…]`: element-wise minimum of all inputs. Arguments: [`Minimum`].
    ///
    /// ```
    /// use systole_nn::{input, layers::minimum, Model};
    /// let (a, b) = (input("a", [8]), input("b", [8]));
    /// let y = minimum().on(&[&a, &b]);
    /// assert!(Model::functional(&[a, b], &y)?.summary().contains("(None, 8)"));
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    fn minimum() = Minimum {};

    /// `x₀: T[…, N₀, …], x₁: T[…, N₁, …], … → T[…, N₀ + N₁ + …, …]`: concatenates inputs along `axis`. Arguments:
    /// [`Concatenate`].
    ///
    /// ```
    /// use systole_nn::{input, layers::concatenate, Model};
    /// let (a, b) = (input("a", [8]), input("b", [4]));
    /// let y = concatenate(-1).on(&[&a, &b]);
    /// assert!(Model::functional(&[a, b], &y)?.summary().contains("(None, 12)"));
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    fn concatenate(axis: i64) = Concatenate { axis };
);

/// Test samples: layers with valid and invalid inputs.
pub(in crate::layers) fn samples() -> Vec<LayerSample> {
    vec![
        LayerSample::of_two(add(), &[2, 3, 4]),
        LayerSample::of_two(subtract(), &[2, 3, 4]),
        LayerSample::of_two(multiply(), &[2, 3, 4]),
        LayerSample::of_two(average(), &[2, 3, 4]),
        LayerSample::of_two(maximum(), &[2, 3, 4]),
        LayerSample::of_two(minimum(), &[2, 3, 4]),
        LayerSample::of_two(concatenate(-1), &[2, 3, 8]),
    ]
}

/// Keras parity test cases; `fixtures/keras/generate.py` reads them from this file.
pub(in crate::layers) const PARITY: &str = r#"[
    {"name": "add", "class": "Add", "x_shape": [[2, 3, 4], [2, 1, 4], [2, 3, 4]], "kwargs": {}},
    {"name": "subtract", "class": "Subtract", "x_shape": [[2, 3, 4], [2, 3, 4]], "kwargs": {}},
    {"name": "multiply", "class": "Multiply", "x_shape": [[2, 3, 4], [2, 1, 4], [2, 3, 4]], "kwargs": {}},
    {"name": "average", "class": "Average", "x_shape": [[2, 3, 4], [2, 1, 4], [2, 3, 4]], "kwargs": {}},
    {"name": "maximum", "class": "Maximum", "x_shape": [[2, 3, 4], [2, 1, 4], [2, 3, 4]], "kwargs": {}},
    {"name": "minimum", "class": "Minimum", "x_shape": [[2, 3, 4], [2, 1, 4], [2, 3, 4]], "kwargs": {}},
    {"name": "concatenate", "class": "Concatenate", "x_shape": [[2, 3, 4], [2, 3, 2]], "kwargs": {}},
    {"name": "concatenate_axis", "class": "Concatenate", "x_shape": [[2, 3, 4], [2, 1, 4], [2, 2, 4]], "kwargs": {"axis": 1}}
]"#;
