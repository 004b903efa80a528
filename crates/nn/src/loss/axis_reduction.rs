//! [`Loss::axis`] and [`Loss::reduction`]: class axis and reduction of any loss, by [`Loss::Adapted`].
//!
//! Serialized as two more arguments of the wrapped loss.

use super::{Loss, Prediction, Reduction};
use crate::json::{self, Deserialize, FromJson, Serialize};
use serde::{Deserializer, Serializer, de, ser};
use serde_json::{Map, Value};
use systole_ir::{Result, Tensor, TensorType, err};

/// Default axis of the classes.
const LAST: i64 = -1;

impl Loss {
    /// Sets the axis of the classes or vector values; the batch is axis 0. Cross-entropies and `cosine_similarity`
    /// reduce over it, by default -1, the last. Dice and Tversky sum over it.
    ///
    /// ```
    /// use systole_nn::loss::{Loss, categorical_crossentropy, mean_squared_error};
    /// let channels_first = categorical_crossentropy().axis(1);
    /// let json = serde_json::to_value(&channels_first)?;
    /// assert_eq!(json["config"]["axis"], 1);
    /// assert_eq!(serde_json::from_value::<Loss>(json)?, channels_first);
    /// assert_eq!(mean_squared_error().axis(1), mean_squared_error());
    /// # Ok::<(), serde_json::Error>(())
    /// ```
    pub fn axis(mut self, value: i64) -> Loss {
        match self.base_mut() {
            Loss::Dice { axis } | Loss::Tversky { axis, .. } => *axis = vec![value],
            base if base.has_axis() => return self.adapted(Some(value), None),
            _ => {}
        }
        self
    }

    /// Sets how the losses of samples are reduced; the default is the mean.
    ///
    /// ```
    /// use systole_nn::loss::{Reduction, mean_squared_error};
    /// let summed = mean_squared_error().reduction(Reduction::Sum);
    /// assert_eq!((summed.name(), summed.reduced()), ("mean_squared_error", Reduction::Sum));
    /// ```
    pub fn reduction(self, how: Reduction) -> Loss {
        self.adapted(None, Some(how))
    }

    /// Returns how the losses of samples are reduced.
    pub fn reduced(&self) -> Reduction {
        match self {
            Loss::Adapted { reduction, .. } => *reduction,
            _ => Reduction::default(),
        }
    }

    /// Returns the wrapped loss, without another axis or reduction.
    pub fn base(&self) -> &Loss {
        match self {
            Loss::Adapted { loss, .. } => loss.base(),
            base => base,
        }
    }

    /// Mutable version of [`Loss::base`].
    pub(crate) fn base_mut(&mut self) -> &mut Loss {
        match self {
            Loss::Adapted { loss, .. } => loss.base_mut(),
            base => base,
        }
    }

    /// Whether the loss supports classes along another axis than the last.
    fn has_axis(&self) -> bool {
        matches!(
            self,
            Loss::SparseCategoricalCrossentropy { .. }
                | Loss::CategoricalCrossentropy { .. }
                | Loss::BinaryCrossentropy { .. }
                | Loss::BinaryFocalCrossentropy { .. }
                | Loss::CategoricalFocalCrossentropy { .. }
                | Loss::CosineSimilarity
        )
    }

    /// Wraps the loss with the given axis and reduction; returns it unwrapped if both are the defaults.
    fn adapted(self, axis: Option<i64>, reduction: Option<Reduction>) -> Loss {
        let (loss, old_axis, old) = match self {
            Loss::Adapted { loss, axis, reduction } => (loss, axis, reduction),
            plain => (Box::new(plain), LAST, Reduction::default()),
        };
        let (axis, reduction) = (axis.unwrap_or(old_axis), reduction.unwrap_or(old));
        match (axis, reduction) {
            (LAST, Reduction::SumOverBatchSize) => *loss,
            (axis, reduction) => Loss::Adapted { loss, axis, reduction },
        }
    }

    /// Returns the number of classes in an output of a sample.
    pub(crate) fn classes(&self, output: &TensorType) -> Option<usize> {
        let axis = if let Loss::Adapted { axis, .. } = self { *axis } else { LAST };
        place(axis, output.shape.rank() + 1).map(|at| output.shape[at - 1])
    }

    /// [`Loss::per_sample`] with classes along `axis`.
    #[track_caller]
    pub(super) fn along(&self, axis: i64, y_true: &Tensor, pred: Prediction<'_>) -> Tensor {
        if axis == LAST {
            return self.per_sample(y_true, pred);
        }
        let Some(at) = place(axis, pred.value.rank()) else {
            let e = err!(Graph, "axis {axis} of predictions {} cannot be the class axis", pred.value.ty())
                .at(format!("loss {}", self.name()));
            return pred.value.fail(
                e.because("axis 0 of the loss is the batch")
                    .hint("remove axis to use -1, the last dimension"),
            );
        };
        let moved = |x: &Tensor| {
            let mut order: Vec<usize> = (0..x.rank()).collect();
            let classes = order.remove(at);
            order.push(classes);
            x.transpose(&order)
        };
        let (value, logits) = (moved(pred.value), pred.logits.map(moved));
        let y_true = if y_true.rank() == pred.value.rank() { moved(y_true) } else { y_true.clone() };
        self.per_sample(&y_true, Prediction { value: &value, logits: logits.as_ref() })
    }

    /// [`Loss::label`] with classes along `axis`; the type of a sample has no batch dimension.
    pub(super) fn label_along(&self, axis: i64, output: &TensorType) -> TensorType {
        let rank = output.shape.rank() + 1;
        let Some(at) = place(axis, rank).filter(|_| axis != LAST) else { return self.label(output) };
        let mut dims = output.shape.to_vec();
        let classes = dims.remove(at - 1);
        dims.push(classes);
        let label = self.label(&TensorType::new(output.dtype, &dims[..]));
        if label.shape.rank() == dims.len() { output.with_dtype(label.dtype) } else { label }
    }
}

/// Resolves an axis for `rank` dimensions; `None` for the batch axis or an axis out of range.
fn place(axis: i64, rank: usize) -> Option<usize> {
    let at = if axis < 0 { axis + rank as i64 } else { axis };
    usize::try_from(at).ok().filter(|at| (1..rank).contains(at))
}

impl Serialize for Loss {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Loss::Adapted { loss, axis, reduction } = self else { return json::serialize(self, serializer) };
        let mut json = serde_json::to_value(&**loss).map_err(ser::Error::custom)?;
        if *axis != LAST {
            json["config"]["axis"] = (*axis).into();
        }
        if *reduction != Reduction::default() {
            json["config"]["reduction"] = serde_json::to_value(reduction).map_err(ser::Error::custom)?;
        }
        json.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Loss {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Loss, D::Error> {
        let mut json = Value::deserialize(deserializer)?;
        let class: Value = [("class_name".to_string(), json["class_name"].clone())].into_iter().collect();
        // A loss without own arguments has no `config`; classes with an axis are known by name.
        let plain = Loss::from_json(class.clone()).ok();
        let (mut axis, mut reduction) = (None, None);
        let mut names = "`reduction`".to_string();
        if let Some(config) = json.get_mut("config").and_then(Value::as_object_mut) {
            reduction = taken::<Reduction, D::Error>(config, "reduction")?;
            let class = class["class_name"].as_str().unwrap_or_default();
            if class.ends_with("Crossentropy") || class == "CosineSimilarity" {
                axis = taken::<i64, D::Error>(config, "axis")?;
                names = "`axis`, `reduction`".into();
            }
            if let (Some(key), Some(_)) = (config.keys().next(), &plain) {
                return Err(de::Error::custom(format!("unknown field `{key}`, expected one of {names}")));
            }
        }
        let loss = match plain {
            Some(loss) => loss,
            None => Loss::from_json(json).map_err(|e| match e.to_string() {
                known if known.starts_with("unknown field") => de::Error::custom(format!("{known}, {names}")),
                other => de::Error::custom(other),
            })?,
        };
        Ok(loss.adapted(axis, reduction))
    }
}

/// Removes and parses an argument.
fn taken<T: de::DeserializeOwned, E: de::Error>(
    config: &mut Map<String, Value>,
    name: &str,
) -> Result<Option<T>, E> {
    let value = config.remove(name).map(serde_json::from_value).transpose();
    value.map_err(de::Error::custom)
}
