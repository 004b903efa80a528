//! Trait for optimizer update rules (Adam, SGD, …): arguments, state slots per parameter, update formula.

use crate::did_you_mean::{unknown_argument, with_reason};
use crate::json::Serialize;
use serde::Serializer;
use serde::de::DeserializeOwned;
use serde::ser::SerializeStruct;
use serde_json::{Map, Value};
use std::fmt::Debug;
use std::sync::Arc;
use systole_ir::{Error, ErrorKind, Result, Tensor, TensorType, bug, err};
use systole_runtime::Params;

/// Registered name of an optimizer rule.
pub(super) trait OptimizerName {
    /// Returns the class name in lower case: the name in configurations and of the constructor.
    fn name(&self) -> &'static str;

    /// Returns the name of the struct.
    fn struct_name(&self) -> &'static str;
}

/// Update rule of an optimizer. Its arguments are the fields of the struct, with Keras's names.
pub(super) trait OptimizerRule: OptimizerName + Debug + Send + Sync {
    /// Returns Keras's class name, as stored in model files: `RMSprop`. The struct's name by default.
    fn class_name(&self) -> &'static str {
        self.struct_name()
    }

    /// Returns the arguments that must be between 0 and 1.
    fn fractions(&self) -> Vec<(&'static str, f64)> {
        Vec::new()
    }

    /// Returns the names of the state slots kept for each parameter.
    fn slots(&self) -> Vec<&'static str>;

    /// Returns the type of a slot of the parameter `param: ty`; `None` if this parameter does not need the slot.
    fn slot_type(&self, slot: &str, param: &str, ty: &TensorType) -> Option<TensorType> {
        let _ = (slot, param);
        Some(ty.clone())
    }

    /// Returns the initial value of a slot.
    fn start(&self, slot: &str) -> SlotInit {
        let _ = slot;
        SlotInit::Value(0.0)
    }

    /// Returns the weight decay of the parameter `param: ty`; `common` is the optimizer's own `weight_decay`.
    fn weight_decay(&self, param: &str, ty: &TensorType, common: Option<f64>) -> Option<f64> {
        let _ = (param, ty);
        common
    }

    /// Whether the rule has a momentum (β₁) that a schedule can set: [`OptimizerSlots::momentum`].
    fn takes_momentum(&self) -> bool {
        false
    }

    /// `→ f32[]`: learning rate including the factors common to all parameters. `updates: i64[]` is the number of
    /// earlier updates; `momentum: f32[]` is this step's momentum if it has a schedule.
    fn rate(&self, learning_rate: &Tensor, updates: &Tensor, momentum: Option<&Tensor>) -> Tensor {
        let _ = (updates, momentum);
        learning_rate.clone()
    }

    /// Returns the parameter `p` updated by gradient `g`.
    fn step(&self, p: &Tensor, g: &Tensor, rate: &Tensor, slots: &mut OptimizerSlots) -> Tensor;
}

/// Initial value of a state slot: see [`OptimizerRule::start`].
pub(super) enum SlotInit {
    /// Every element has this value.
    Value(f64),
    /// The parameter's initial value.
    Parameter,
}

/// Object-safe rule whose arguments can be read and replaced by name.
pub(super) trait ErasedOptimizerRule: OptimizerRule {
    fn config(&self) -> Value;
    fn reread(&self, config: Value) -> serde_json::Result<OptimizerKind>;
}

impl<R: OptimizerRule + Serialize + DeserializeOwned + 'static> ErasedOptimizerRule for R {
    fn config(&self) -> Value {
        // Serialization fails only for maps with non-string keys, which no rule has.
        serde_json::to_value(self).unwrap_or_else(|e| bug!("arguments do not serialize: {e}"))
    }

    fn reread(&self, config: Value) -> serde_json::Result<OptimizerKind> {
        Ok(OptimizerKind::of(serde_json::from_value::<R>(config)?))
    }
}

/// An optimizer's update rule with its arguments, type-erased.
#[derive(Clone, Debug)]
pub struct OptimizerKind(Arc<dyn ErasedOptimizerRule>);

impl OptimizerKind {
    pub(super) fn of(rule: impl ErasedOptimizerRule + 'static) -> OptimizerKind {
        OptimizerKind(Arc::new(rule))
    }

    pub(super) fn rule(&self) -> &dyn OptimizerRule {
        &*self.0
    }

    /// Returns Keras's class name of the optimizer: `RMSprop`.
    pub fn class_name(&self) -> &'static str {
        self.0.class_name()
    }

    /// Returns the update rule's own arguments by name, as stored in model files.
    pub fn config(&self) -> Map<String, Value> {
        match self.0.config() {
            Value::Object(map) => map,
            _ => Map::new(),
        }
    }

    /// Returns the same rule with all arguments read from `config`.
    pub(super) fn reread(&self, config: Value) -> serde_json::Result<OptimizerKind> {
        self.0.reread(config)
    }

    /// Returns the same rule with one argument replaced; `others` are the arguments that every optimizer has.
    pub(super) fn with(&self, key: &str, value: Value, others: &[&str]) -> Result<OptimizerKind> {
        let mut config = self.config();
        let Some(argument) = config.get_mut(key) else {
            let known: Vec<&str> = config.keys().map(String::as_str).chain(others.iter().copied()).collect();
            let what = format!("{} has no argument `{key}`", self.0.name());
            return Err(unknown_argument(&what, key, &known));
        };
        let what = format!("invalid value for {}'s argument `{key}`: {value}", self.0.name());
        *argument = value;
        self.reread(Value::Object(config))
            .map_err(|e| with_reason(Error::new(ErrorKind::Config, what), &e.to_string()))
    }
}

impl PartialEq for OptimizerKind {
    fn eq(&self, other: &OptimizerKind) -> bool {
        self.class_name() == other.class_name() && self.config() == other.config()
    }
}

impl Serialize for OptimizerKind {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        let mut entry = serializer.serialize_struct("OptimizerKind", 2)?;
        entry.serialize_field("class_name", self.class_name())?;
        entry.serialize_field("config", &self.0.config())?;
        entry.end()
    }
}

/// Returns the path of a parameter's slot in the state.
pub(super) fn key(slot: &str, param: &str) -> String {
    format!("{slot}/{param}")
}

/// Returns a parameter's state slot, or a poisoned tensor if the state lacks it.
pub(super) fn slot(state: &Params, slot: &str, param: &str, like: &Tensor) -> Tensor {
    state.get(&key(slot, param)).cloned().unwrap_or_else(|| {
        like.fail(
            err!(Graph, "the optimizer's state lacks {}", key(slot, param))
                .hint("create the state with this optimizer's init and the same parameters"),
        )
    })
}

/// State of one parameter during its update.
pub(super) struct OptimizerSlots<'a> {
    pub(super) name: &'a str,
    pub(super) like: &'a Tensor,
    /// `i64[]`: number of earlier updates.
    pub(super) updates: &'a Tensor,
    /// `f32[]`: this step's momentum if it has a schedule.
    pub(super) momentum: Option<&'a Tensor>,
    pub(super) state: &'a mut Params,
}

impl OptimizerSlots<'_> {
    /// `→ T[]`: number of this update, from 1, in the parameter's type.
    pub(super) fn number(&self) -> Tensor {
        (self.updates + 1.0).convert(self.like.dtype())
    }

    /// `→ T[]`: `base` to the power of this update's number, both in the parameter's type, as in Keras.
    pub(super) fn power(&self, base: impl Into<Coefficient>) -> Tensor {
        let t = self.number();
        base.into().like(&t).power(&t)
    }

    /// Returns this step's momentum: from the schedule if there is one, otherwise `own`, the rule's argument.
    pub(super) fn momentum(&self, own: f64) -> Coefficient {
        self.momentum.map_or(own.into(), |m| Coefficient::Traced(m.convert(self.like.dtype())))
    }

    pub(super) fn get(&self, name: &str) -> Tensor {
        slot(self.state, name, self.name, self.like)
    }

    /// Updates the slots `momentum` and `velocity`, the running means of the gradient and of its square, with `g`. β₁
    /// is this step's momentum if that has a schedule.
    pub(super) fn moments(&mut self, g: &Tensor, beta_1: f64, beta_2: f64) -> (Tensor, Tensor) {
        let (m, v) = (self.get("momentum"), self.get("velocity"));
        let m = &m + self.momentum(beta_1).rest_of(&(g - &m));
        let v = &v + (g * g - &v) * (1.0 - beta_2);
        self.set("momentum", &m);
        self.set("velocity", &v);
        (m, v)
    }

    pub(super) fn set(&mut self, name: &str, value: &Tensor) {
        self.state.insert(key(name, self.name), value.clone());
    }
}

/// Scalar coefficient `T[]`: a constant of the rule, or a traced value of this step.
pub(super) enum Coefficient {
    Fixed(f64),
    Traced(Tensor),
}

impl From<f64> for Coefficient {
    fn from(value: f64) -> Coefficient {
        Coefficient::Fixed(value)
    }
}

impl Coefficient {
    /// Returns `coefficient · x`.
    pub(super) fn of(&self, x: &Tensor) -> Tensor {
        match self {
            Coefficient::Fixed(value) => x * *value,
            Coefficient::Traced(value) => x * value,
        }
    }

    /// Returns `(1 − coefficient) · x`.
    pub(super) fn rest_of(&self, x: &Tensor) -> Tensor {
        match self {
            Coefficient::Fixed(value) => x * (1.0 - value),
            Coefficient::Traced(value) => x * (1.0 - value),
        }
    }

    /// Returns the coefficient as a tensor with the element type of `t`.
    pub(super) fn like(&self, t: &Tensor) -> Tensor {
        match self {
            Coefficient::Fixed(value) => t.scalar_like(*value),
            Coefficient::Traced(value) => value.convert(t.dtype()),
        }
    }
}
