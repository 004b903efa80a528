//! Custom losses and metrics: the traits [`CustomLoss`] and [`CustomMetric`], and functions as either.
//!
//! Model files store name and arguments, never code.

use crate::json::{Deserialize, Serialize};
use serde::{Deserializer, Serializer};
use serde_json::Value;
use std::fmt::Debug;
use std::panic::Location;
use std::sync::Arc;
use systole_ir::{DType, Error, ErrorKind, Literal, Result, Tensor, TensorType, err, user_line};
use systole_runtime::Params;

/// A custom loss. [`Loss::from`](crate::loss::Loss) converts it for `compile`; a plain function needs no type:
/// [`Loss::custom`](crate::loss::Loss::custom).
///
/// ```
/// use systole_ir::Tensor;
/// use systole_nn::loss::{CustomLoss, Loss};
/// /// `|t − p|ᵖ`, averaged over the last axis.
/// #[derive(Debug)]
/// struct PowerLoss { power: f64 }
/// impl CustomLoss for PowerLoss {
///     fn name(&self) -> &str { "power_loss" }
///     fn call(&self, y_true: &Tensor, y_pred: &Tensor) -> Tensor {
///         let error = (y_true - y_pred).abs();
///         error.power(&error.scalar_like(self.power)).mean(&[error.rank() - 1])
///     }
///     fn config(&self) -> serde_json::Value { serde_json::json!({ "power": self.power }) }
/// }
/// let loss = Loss::from(PowerLoss { power: 1.5 });
/// assert_eq!(loss.name(), "power_loss");
/// ```
pub trait CustomLoss: Debug + Send + Sync {
    /// Returns the name in logs and model files.
    fn name(&self) -> &str;

    /// Computes the loss of each sample (pixel, token), traced into the training step: `y_true: T[B, …], y_pred: f32[B,
    /// …] → f32[B, …]`. The caller handles means over the batch, sample weights and gradients.
    ///
    /// Float labels are converted to f32, integer labels are unchanged. Ranks that differ by a last axis of 1 are made
    /// equal, as in Keras, so that `[B] − [B, 1]` is not `[B, B]`. A scalar counts for the whole batch.
    fn call(&self, y_true: &Tensor, y_pred: &Tensor) -> Tensor;

    /// Returns which values of [`CustomLoss::call`] count: 1 or true; 0 or false for labels to ignore. `None`, the
    /// default: all.
    fn mask(&self, _y_true: &Tensor) -> Option<Tensor> {
        None
    }

    /// Returns the type of one label for an output of this type, to compile programs before data is known. Default: the
    /// output's type. Class indices are integers without the output's last axis; `accuracy` then means sparse accuracy.
    fn label(&self, output: &TensorType) -> TensorType {
        output.clone()
    }

    /// Returns the loss's arguments, which model files store and compare.
    fn config(&self) -> Value {
        Value::Null
    }
}

/// A custom metric. [`Metric::from`](crate::metric::Metric) converts it for `compile`; the mean of a plain function
/// needs no type: [`Metric::custom`](crate::metric::Metric::custom).
///
/// ```
/// use systole_ir::{DType::F64, Literal, Tensor};
/// use systole_nn::metric::{CustomMetric, Metric};
/// use systole_runtime::Params;
/// /// Maximum error so far.
/// #[derive(Debug)]
/// struct WorstError;
/// impl CustomMetric for WorstError {
///     fn name(&self) -> &str { "worst_error" }
///     fn state(&self) -> Params<Literal> { [("worst".to_string(), Literal::scalar(F64, 0.0))].into_iter().collect() }
///     fn update(&self, state: &Params, y_true: &Tensor, y_pred: &Tensor, _: Option<&Tensor>) -> Params {
///         let error = (y_true - y_pred).abs();
///         let worst = error.reduce_max(&(0..error.rank()).collect::<Vec<_>>()).convert(F64);
///         state.map(|_, seen| seen.maximum(&worst))
///     }
///     fn result(&self, state: &Params<Literal>) -> f64 { state["worst"].to_f64s()[0] }
/// }
/// assert_eq!(Metric::from(WorstError).name(), "worst_error");
/// ```
pub trait CustomMetric: Debug + Send + Sync {
    /// Returns the name in logs and model files.
    fn name(&self) -> &str;

    /// Returns the state by name at the start of an epoch or evaluation: Keras's `reset_state`. Default: `total` and
    /// `count`, f64 zeros.
    fn state(&self) -> Params<Literal> {
        let zero = |name: &str| (name.to_string(), Literal::scalar(DType::F64, 0.0));
        [zero("total"), zero("count")].into_iter().collect()
    }

    /// Traced: returns the state after one more batch, with unchanged names and types. `y_true: T[B, …], y_pred: f32[B,
    /// …]` as for [`CustomLoss`]; weights `T[B]` only in `weighted_metrics`.
    fn update(
        &self,
        state: &Params,
        y_true: &Tensor,
        y_pred: &Tensor,
        sample_weight: Option<&Tensor>,
    ) -> Params;

    /// Computes the result from a state, on the host. Default: `total / count`, or 0 if the count is 0.
    fn result(&self, state: &Params<Literal>) -> f64 {
        let value =
            |name: &str| state.get(name).and_then(|l| l.to_f64s().first().copied()).unwrap_or(f64::NAN);
        if value("count") == 0.0 { 0.0 } else { value("total") / value("count") }
    }

    /// Returns the metric's arguments, which model files store and compare.
    fn config(&self) -> Value {
        Value::Null
    }
}

/// Name and arguments of a custom object as stored in a model file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredCustomObject {
    name: String,
    #[serde(default)]
    config: Value,
}

/// A [`CustomLoss`] in a [`Loss`](crate::loss::Loss). Equality compares name and arguments.
#[derive(Clone)]
pub struct UserLoss {
    loss: Arc<dyn CustomLoss>,
    asked: Option<&'static Location<'static>>,
}

/// A [`CustomMetric`] in a [`Metric`](crate::metric::Metric). Equality compares name and arguments.
#[derive(Clone)]
pub struct UserMetric {
    metric: Arc<dyn CustomMetric>,
    asked: Option<&'static Location<'static>>,
    /// Function whose mean is the metric; `metric` holds its name and state.
    mean: Option<UserLoss>,
}

fn users(place: &'static Location<'static>) -> Option<&'static Location<'static>> {
    user_line(place).map(|_| place)
}

impl UserLoss {
    #[track_caller]
    pub(crate) fn new(loss: impl CustomLoss + 'static) -> UserLoss {
        UserLoss { loss: Arc::new(loss), asked: users(Location::caller()) }
    }

    #[track_caller]
    pub(crate) fn of_function(
        name: &str,
        f: impl Fn(&Tensor, &Tensor) -> Tensor + Send + Sync + 'static,
    ) -> UserLoss {
        UserLoss::new(FunctionLoss { name: name.into(), f })
    }

    /// Returns the custom loss.
    pub fn get(&self) -> &dyn CustomLoss {
        &*self.loss
    }

    /// Calls the loss and checks its values: one per sample, converted to f32.
    pub(crate) fn per_sample(&self, y_true: &Tensor, y_pred: &Tensor) -> Tensor {
        y_pred.builder().asked_at(self.asked, || {
            let values = self.loss.call(y_true, y_pred);
            let batch = y_pred.shape().first();
            let wrong = |hint: &str| {
                let what = format!("loss {} returned {}", self.loss.name(), values.ty());
                let why = format!("expected one float value for each sample of predictions {}", y_pred.ty());
                values.fail(Error::new(ErrorKind::Graph, what).because(why).hint(hint))
            };
            if values.is_poisoned() || y_pred.is_poisoned() {
                values
            } else if !values.dtype().is_float() {
                wrong("convert it to floats: .convert(F32)")
            } else if values.rank() > 0 && values.shape().first() != batch {
                wrong("reduce only the other dimensions, as .mean(&[1]) does for [batch, features]")
            } else {
                values.convert(DType::F32)
            }
        })
    }

    pub(crate) fn mask(&self, y_true: &Tensor) -> Option<Tensor> {
        y_true.builder().asked_at(self.asked, || self.loss.mask(y_true))
    }

    pub(crate) fn check(&self) -> Result<()> {
        check_name("loss", self.loss.name())
    }

    /// Finds this loss of a model file among the program's custom losses.
    pub(crate) fn found_in(&self, known: &[UserLoss]) -> Result<UserLoss> {
        let (kept, known_as) = (self.kept(), known.iter().map(UserLoss::kept));
        let at = place_of("loss", &kept, known_as)?;
        Ok(known[at].clone())
    }

    fn kept(&self) -> StoredCustomObject {
        StoredCustomObject { name: self.loss.name().into(), config: self.loss.config() }
    }
}

impl UserMetric {
    #[track_caller]
    pub(crate) fn new(metric: impl CustomMetric + 'static) -> UserMetric {
        UserMetric { metric: Arc::new(metric), asked: users(Location::caller()), mean: None }
    }

    #[track_caller]
    pub(crate) fn of_function(
        name: &str,
        f: impl Fn(&Tensor, &Tensor) -> Tensor + Send + Sync + 'static,
    ) -> UserMetric {
        let mean = Some(UserLoss::of_function(name, f));
        UserMetric {
            mean,
            ..UserMetric::new(UnresolvedCustomObject {
                kept: StoredCustomObject { name: name.into(), config: Value::Null },
            })
        }
    }

    /// Returns the custom metric.
    pub fn get(&self) -> &dyn CustomMetric {
        &*self.metric
    }

    /// Returns the function whose mean is the metric.
    pub(crate) fn mean(&self) -> Option<&UserLoss> {
        self.mean.as_ref()
    }

    /// Calls the update and checks its state: names and types must be unchanged.
    pub(crate) fn update(
        &self,
        state: &Params,
        y_true: &Tensor,
        y_pred: &Tensor,
        sample_weight: Option<&Tensor>,
    ) -> Params {
        y_pred.builder().asked_at(self.asked, || {
            let new = self.metric.update(state, y_true, y_pred, sample_weight);
            let kept = |name: &str, old: &Tensor| {
                let is = match new.get(name) {
                    Some(t) if t.is_poisoned() || t.ty() == old.ty() => return t.clone(),
                    Some(t) => format!("is returned as {}", t.ty()),
                    None => "is not returned".to_string(),
                };
                let name_of = self.metric.name();
                old.fail(
                    err!(Graph, "`{name}` of the metric {name_of} is {} and {is}", old.ty())
                        .because("an update must return the state's names with unchanged types")
                        .hint("map the old state, state.map(|name, old| …), and convert added values to the old type"),
                )
            };
            state.map(kept)
        })
    }

    pub(crate) fn check(&self) -> Result<()> {
        check_name("metric", self.metric.name())
    }

    /// Finds this metric of a model file among the program's custom metrics.
    pub(crate) fn found_in(&self, known: &[UserMetric]) -> Result<UserMetric> {
        let (kept, known_as) = (self.kept(), known.iter().map(UserMetric::kept));
        let at = place_of("metric", &kept, known_as)?;
        Ok(known[at].clone())
    }

    fn kept(&self) -> StoredCustomObject {
        StoredCustomObject { name: self.metric.name().into(), config: self.metric.config() }
    }
}

/// Validates a name. Names are keys of logs and of state, which `/` separates; `loss` is the loss's own key.
fn check_name(of: &str, name: &str) -> Result<()> {
    if !name.is_empty() && !name.contains('/') && name != "loss" {
        return Ok(());
    }
    Err(err!(Config, "`{name}` cannot be the name of a {of}")
        .because(
            "the name is a key of the logs: it cannot be empty, contain `/`, or be `loss`, the key of the \
        mean loss",
        )
        .hint("choose a name such as focal_loss"))
}

fn place_of(
    of: &str,
    kept: &StoredCustomObject,
    known: impl Iterator<Item = StoredCustomObject>,
) -> Result<usize> {
    let name = &kept.name;
    let Some((at, found)) = known.enumerate().filter(|(_, k)| k.name == *name).last() else {
        return Err(err!(Config, "unknown custom {of} `{name}`")
            .because("a model file stores the name and arguments of custom objects, not their code")
            .hint(format!(
                "load the model with CustomObjects::new().{of}(…), or for prediction only with \
                 CustomObjects::new().uncompiled()"
            )));
    };
    if found.config == kept.config {
        return Ok(at);
    }
    Err(err!(Config, "the {of} `{name}` has different arguments")
        .because(format!("the file has the arguments {}, this program {}", kept.config, found.config))
        .hint(format!("give CustomObjects the {of} with the file's arguments")))
}

/// A loss or metric from a function of labels and predictions.
struct FunctionLoss<F> {
    name: String,
    f: F,
}

impl<F> Debug for FunctionLoss<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Function({})", self.name)
    }
}

impl<F: Fn(&Tensor, &Tensor) -> Tensor + Send + Sync> CustomLoss for FunctionLoss<F> {
    fn name(&self) -> &str {
        &self.name
    }

    fn call(&self, y_true: &Tensor, y_pred: &Tensor) -> Tensor {
        (self.f)(y_true, y_pred)
    }
}

/// A custom object of a model file whose code is unknown, or that has only a name and state.
#[derive(Debug)]
struct UnresolvedCustomObject {
    kept: StoredCustomObject,
}

impl UnresolvedCustomObject {
    fn error(&self, of: &str) -> Error {
        let none = std::iter::empty();
        let bug = || err!(Bug, "the {of} `{}` has no code", self.kept.name);
        place_of(of, &self.kept, none).err().unwrap_or_else(bug)
    }
}

impl CustomLoss for UnresolvedCustomObject {
    fn name(&self) -> &str {
        &self.kept.name
    }

    fn call(&self, _: &Tensor, y_pred: &Tensor) -> Tensor {
        y_pred.fail(self.error("loss"))
    }

    fn config(&self) -> Value {
        self.kept.config.clone()
    }
}

impl CustomMetric for UnresolvedCustomObject {
    fn name(&self) -> &str {
        &self.kept.name
    }

    fn update(&self, state: &Params, _: &Tensor, y_pred: &Tensor, _: Option<&Tensor>) -> Params {
        let poisoned = y_pred.fail(self.error("metric"));
        state.map(|_, _| poisoned.clone())
    }

    fn config(&self) -> Value {
        self.kept.config.clone()
    }
}

/// Implements equality, Debug and serde by name and arguments.
macro_rules! kept {
    ($($user:ident { $field:ident, $($rest:tt)* })*) => { $(
        impl PartialEq for $user {
            fn eq(&self, other: &$user) -> bool {
                self.kept() == other.kept()
            }
        }

        impl Debug for $user {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, "{}({})", stringify!($user), self.$field.name())
            }
        }

        impl Serialize for $user {
            fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
                self.kept().serialize(serializer)
            }
        }

        impl<'de> Deserialize<'de> for $user {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<$user, D::Error> {
                let kept = StoredCustomObject::deserialize(deserializer)?;
                Ok($user { $field: Arc::new(UnresolvedCustomObject { kept }), asked: None, $($rest)* })
            }
        }
    )* };
}

kept! {
    UserLoss { loss, }
    UserMetric { metric, mean: None }
}
