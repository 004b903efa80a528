//! Shared code of the built-in layers: arguments by name, input checks, casts and error constructors.

use crate::did_you_mean::{unknown_argument, with_reason};
pub(super) use crate::json::{Deserialize, Serialize};
pub(super) use crate::layer::adapter::no_adapters;
pub(super) use crate::layer::argument::{self, Axes, Edges, Padding, SizeArgument, Sizes, config_of};
pub(super) use crate::layer::capability::{ChannelPruning, IncrementalDecoding};
pub(super) use crate::layer::initializer::Initializer;
pub(super) use crate::layer::lowering::{
    self, ConvolutionKind, ElementWise, LayerLowering, RecurrentCell, no_operators,
};
pub(super) use crate::layer::masks::MaskPropagation;
pub(super) use crate::layer::weight_role::{WeightLayout, WeightRole, attention_roles};
pub(super) use crate::layer::{Cx, Layer};
use serde::Serializer;
use serde::de::DeserializeOwned;
use serde::ser::SerializeStruct;
use serde_json::Map;
pub(super) use serde_json::Value;
use std::sync::Arc;
pub(super) use systole_ir::{DType, Error, ErrorKind, Result, Shape, Tensor, TensorType, ensure, err};

/// Implements the [`Layer`] methods shared by all built-in layers: class name, and arguments for model files. With
/// `one_input` also [`Layer::call`], by [`Arguments::output`].
macro_rules! named {
    ($class:expr, one_input) => {
        named!($class);

        fn call(&self, cx: &mut Cx, inputs: &[Tensor]) -> Tensor {
            one_input(self, cx, inputs, |cx, x| self.output(cx, x))
        }
    };
    ($class:expr) => {
        fn class_name(&self) -> &'static str {
            $class
        }

        fn config(&self) -> Value {
            config_of(self)
        }
    };
}

/// Implements [`Layer::lowering`]: by operators without arguments, or by an expression of the layer.
macro_rules! lowered {
    ($layer:ident => $lowering:expr) => {
        fn lowering(&$layer) -> Result<LayerLowering> {
            $lowering
        }
    };
    ($lowering:ident) => {
        fn lowering(&self) -> Result<LayerLowering> {
            Ok(LayerLowering::$lowering)
        }
    };
}

/// Implements [`Layer::masks`] by one rule.
macro_rules! masked {
    ($masks:ident) => {
        fn masks(&self) -> Result<MaskPropagation> {
            Ok(MaskPropagation::$masks)
        }
    };
}

/// Implements [`Layer::weight_roles`]: each weight's name here and in PyTorch, with its layout there if it differs; `or
/// none` if files may lack it.
macro_rules! weights {
    (@role $name:literal $torch:literal none) => { WeightRole::optional($name, $torch) };
    (@role $name:literal $torch:literal) => { WeightRole::new($name, $torch, WeightLayout::Same) };
    (@role $name:literal $torch:literal $layout:ident) => { WeightRole::new($name, $torch, WeightLayout::$layout) };
    ($($name:literal => $torch:literal $(as $layout:ident)? $(or $none:ident)?),+) => {
        fn weight_roles(&self) -> Vec<WeightRole> {
            vec![$(weights!(@role $name $torch $($layout)? $($none)?)),+]
        }
    };
}

pub(super) use {lowered, masked, named, weights};

/// Class name of a layer that is generic over 1 to `M` spatial dimensions.
pub(super) fn by_rank<const N: usize, const M: usize>(classes: [&'static str; M]) -> &'static str {
    const { assert!(1 <= N && N <= M, "unsupported number of spatial dimensions") };
    classes[N - 1]
}

/// Methods of built-in layers in addition to [`Layer`].
///
/// The arguments are the fields of the struct, with Keras's names; their defaults come from its `Default`.
pub(super) trait Arguments: Layer {
    /// Rejects arguments that are invalid for any input; reports the first.
    fn check(&self) -> Result<()> {
        Ok(())
    }

    /// Returns the output for one input, from a layer with `named!("Class", one_input)`.
    fn output(&self, _: &mut Cx, x: &Tensor) -> Result<Tensor> {
        Err(wrong_number(self, "several inputs", std::slice::from_ref(x)))
    }

    /// Axes along which [`LayerSpec::adapt`](crate::layers::LayerSpec::adapt) computes data statistics; `None` if the
    /// layer does not adapt.
    fn adapted_axes(&self) -> Option<&Axes> {
        None
    }

    /// Like [`Layer::call`], but with frozen weights.
    fn call_frozen(&self, cx: &mut Cx, inputs: &[Tensor]) -> Tensor {
        self.call(cx, inputs)
    }
}

/// A layer whose arguments can be read and set by name.
pub(super) trait NamedLayer: Arguments {
    fn reread(&self, config: Value) -> serde_json::Result<BuiltIn>;
}

impl<L: Arguments + DeserializeOwned + 'static> NamedLayer for L {
    fn reread(&self, config: Value) -> serde_json::Result<BuiltIn> {
        Ok(BuiltIn::of(serde_json::from_value::<L>(config)?))
    }
}

/// A built-in layer, which model files can store and load without registration.
#[derive(Clone, Debug)]
pub struct BuiltIn(Arc<dyn NamedLayer>);

impl BuiltIn {
    pub(super) fn of(layer: impl NamedLayer + 'static) -> BuiltIn {
        BuiltIn(Arc::new(layer))
    }

    /// Returns the layer as a trait object.
    pub fn layer(&self) -> &dyn Layer {
        &*self.0
    }

    pub(super) fn arguments(&self) -> &dyn Arguments {
        &*self.0
    }

    fn config(&self) -> Map<String, Value> {
        match self.0.config() {
            Value::Object(map) => map,
            _ => Map::new(),
        }
    }

    /// Creates a layer of this class with other arguments.
    pub(super) fn reread(&self, config: Value) -> serde_json::Result<BuiltIn> {
        self.0.reread(config)
    }

    /// Returns this layer with one argument replaced.
    pub(super) fn with(&self, key: &str, value: Value) -> Result<BuiltIn> {
        let (class, mut config) = (self.0.class_name(), self.config());
        let Some(slot) = config.get_mut(key) else {
            let known: Vec<&str> = config.keys().map(String::as_str).collect();
            return Err(unknown_argument(&format!("{class} has no argument `{key}`"), key, &known));
        };
        let shown = value.to_string();
        *slot = value;
        self.reread(Value::Object(config)).map_err(|e| {
            with_reason(err!(Config, "invalid value for {class}'s argument `{key}`: {shown}"), &e.to_string())
        })
    }
}

impl PartialEq for BuiltIn {
    fn eq(&self, other: &BuiltIn) -> bool {
        self.0.class_name() == other.0.class_name() && self.0.config() == other.0.config()
    }
}

impl Serialize for BuiltIn {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        let mut entry = serializer.serialize_struct("BuiltIn", 2)?;
        entry.serialize_field("class_name", self.0.class_name())?;
        entry.serialize_field("config", &self.0.config())?;
        entry.end()
    }
}

/// Applies a layer: checks its arguments, then builds. A failed input is the output.
pub(super) fn built<L: Arguments + ?Sized>(
    layer: &L,
    cx: &mut Cx,
    inputs: &[Tensor],
    build: impl FnOnce(&mut Cx, &[Tensor]) -> Result<Tensor>,
) -> Tensor {
    if let Some(poisoned) = inputs.iter().find(|x| x.is_poisoned()) {
        return poisoned.clone();
    }
    layer.check().and_then(|()| build(cx, inputs)).unwrap_or_else(|e| refuse(cx, inputs, e))
}

/// Applies a layer that takes one input, with [`built`].
pub(super) fn one_input<L: Arguments>(
    layer: &L,
    cx: &mut Cx,
    inputs: &[Tensor],
    build: impl FnOnce(&mut Cx, &Tensor) -> Result<Tensor>,
) -> Tensor {
    built(layer, cx, inputs, |cx, inputs| match inputs {
        [x] => build(cx, x),
        _ => Err(wrong_number(layer, "one input", inputs)
            .hint("combine several inputs with concatenate or add first")),
    })
}

/// Applies an attention layer to `[x]`, `[query, value]` or `[query, value, key]`; `example` creates the layer.
pub(super) fn query_value_key<L: Arguments>(
    layer: &L,
    cx: &mut Cx,
    inputs: &[Tensor],
    example: &str,
    attend: impl FnOnce(&mut Cx, [&Tensor; 3]) -> Result<Tensor>,
) -> Tensor {
    built(layer, cx, inputs, |cx, inputs| match inputs {
        [x] => attend(cx, [x, x, x]),
        [query, value] => attend(cx, [query, value, value]),
        [query, value, key] => attend(cx, [query, value, key]),
        _ => Err(wrong_number(layer, "1 to 3 inputs", inputs)
            .hint(format!("call the layer in a functional model: {example}.on(&[&query, &value])"))),
    })
}

/// Returns the error for a wrong number of inputs.
pub(super) fn wrong_number(layer: &(impl Layer + ?Sized), takes: &str, inputs: &[Tensor]) -> Error {
    err!(Graph, "{} takes {takes}, got {}", layer.class_name(), inputs.len())
}

/// Returns the lowering `own` if export formats support the layer's rank, otherwise an error.
pub(super) fn operators_if(layer: &impl Layer, has_them: bool, own: LayerLowering) -> Result<LayerLowering> {
    if has_them { Ok(own) } else { Err(no_operators(layer.class_name())) }
}

/// Records that a layer rejects its inputs.
pub(super) fn refuse(cx: &Cx, inputs: &[Tensor], error: Error) -> Tensor {
    match inputs.first() {
        Some(x) => cx.fail(x, error),
        None => cx.builder().scalar(DType::F32, 0.0).fail(error),
    }
}

/// Casts to the compute type: `x: T[…] → compute type[…]`.
pub(super) fn cast(cx: &Cx, x: &Tensor) -> Tensor {
    x.convert(cx.precision().compute_dtype())
}

/// Casts floats to the compute type. Integers stay, because they may be embedding indices.
pub(super) fn cast_floats(cx: &Cx, x: &Tensor) -> Tensor {
    if x.dtype().is_float() { cast(cx, x) } else { x.clone() }
}

/// Returns a trainable weight in the compute type, or an error if it is too large.
pub(super) fn weight(
    cx: &mut Cx,
    class: &str,
    name: &str,
    shape: &[usize],
    initializer: &Initializer,
) -> Result<Tensor> {
    sized(class, name, shape)?;
    Ok(cx.weight(name, shape, initializer))
}

/// Rejects weights with more elements than any machine holds, before their count overflows.
pub(super) fn sized(class: &str, name: &str, shape: &[usize]) -> Result<()> {
    let shape = Shape::new(shape);
    match shape.checked_elements() {
        Some(n) if n < 1 << 40 => Ok(()),
        _ => Err(err!(Graph, "{class}'s weight {name} is too large: f32{shape}")
            .because("the weight has more than 2⁴⁰ elements")
            .hint("make the layer or its input smaller")),
    }
}

/// Rejects a convolution with 0 filters.
pub(super) fn check_filters(class: &str, filters: usize) -> Result<()> {
    if filters == 0 { Err(wrong(class, "filters of at least 1", filters)) } else { Ok(()) }
}

/// Rejects sizes of 0; `argument` is the layer's name for them.
pub(super) fn check_size<const N: usize>(class: &str, argument: &str, sizes: &Sizes<N>) -> Result<()> {
    match sizes.0.contains(&0) {
        true => Err(wrong(class, &format!("{argument} of at least 1 each"), sizes)),
        false => Ok(()),
    }
}

/// Returns the size of the channel dimension; 0 is rejected.
pub(super) fn channels_of(class: &str, x: &Tensor) -> Result<usize> {
    match x.dim(-1) {
        0 => Err(unfit(class, "at least one channel in the last dimension", x.ty())
            .hint("check the preceding layers: one of them outputs no channels")),
        channels => Ok(channels),
    }
}

/// Returns an input type error: `Conv2D needs images [B, H, W, C], got f32[1000, 784]`. The caller adds a hint.
pub(super) fn unfit(class: &str, needs: &str, got: &TensorType) -> Error {
    err!(Graph, "{class} needs {needs}, got {got}")
}

/// Returns an argument error: `Dense needs units of at least 1, got 0`.
pub(super) fn wrong(class: &str, needs: &str, is: impl std::fmt::Display) -> Error {
    err!(Config, "{class} needs {needs}, got {is}")
}

/// Rejects arguments that are negative or not finite.
pub(super) fn at_least_0(class: &str, argument: &str, value: f64) -> Result<()> {
    ensure!(value.is_finite() && value >= 0.0, wrong(class, &format!("{argument} of at least 0"), value));
    Ok(())
}

/// Converts an axis, which may count from the last, to a dimension index below `rank`.
pub(super) fn dim_index(class: &str, axis: i64, x: &Tensor) -> Result<usize> {
    let rank = x.rank() as i64;
    let index = if axis < 0 { axis.saturating_add(rank) } else { axis };
    match usize::try_from(index) {
        Ok(i) if index < rank => Ok(i),
        _ => Err(unfit(class, &format!("an input with dimension {axis} (its axis)"), x.ty()).hint(format!(
            "count axes from 0, or from −1 for the last: {} to {}",
            -rank,
            rank - 1
        ))),
    }
}
