//! [`OptimizerRule`]: what is an optimizer's own, by which a gradient becomes a change.

use crate::did_you_mean::{unknown_argument, with_reason};
use serde::de::DeserializeOwned;
use serde::ser::SerializeStruct;
use serde::{Serialize, Serializer};
use serde_json::{Map, Value};
use std::fmt::Debug;
use std::sync::Arc;
use systole_ir::{Error, ErrorKind, Result, Tensor, TensorType, bug};
use systole_runtime::Params;

/// What the table of optimizers says of a rule.
pub(super) trait OptimizerName {
    /// The class in lower case: what it is called in configurations, and the name of its function.
    fn name(&self) -> &'static str;
}

/// The rule of an optimizer. Its arguments are the fields of the struct, with Keras's names.
pub(super) trait OptimizerRule: OptimizerName + Debug + Send + Sync {
    /// Keras's class, in model files: `RMSprop`.
    fn class_name(&self) -> &'static str;

    /// Arguments that must lie between 0 and 1.
    fn fractions(&self) -> Vec<(&'static str, f64)>;

    /// Names of what is kept for each parameter.
    fn slots(&self) -> Vec<&'static str>;

    /// The type of a slot of the parameter `param: ty`; `None` where this parameter needs none.
    fn slot_type(&self, slot: &str, param: &str, ty: &TensorType) -> Option<TensorType> {
        let _ = (slot, param);
        Some(ty.clone())
    }

    /// What a slot holds before the first step.
    fn start(&self, slot: &str) -> SlotInit {
        let _ = slot;
        SlotInit::Value(0.0)
    }

    /// The weight decay of the parameter `param: ty`; `common` is what all have.
    fn weight_decay(&self, param: &str, ty: &TensorType, common: Option<f64>) -> Option<f64> {
        let _ = (param, ty);
        common
    }

    /// Whether it has a momentum (β₁) that a schedule can set: [`OptimizerSlots::momentum`].
    fn takes_momentum(&self) -> bool {
        false
    }

    /// `→ f32[]`: the learning rate with what is common to all parameters. `updates: i64[]` counts the earlier ones,
    /// `momentum: f32[]` is this step's where it has a schedule.
    fn rate(&self, learning_rate: &Tensor, updates: &Tensor, momentum: Option<&Tensor>) -> Tensor {
        let _ = (updates, momentum);
        learning_rate.clone()
    }

    /// The parameter after one change by gradient `g`.
    fn step(&self, p: &Tensor, g: &Tensor, rate: &Tensor, slots: &mut OptimizerSlots) -> Tensor;
}

/// See [`OptimizerRule::start`].
pub(super) enum SlotInit {
    /// This in every element.
    Value(f64),
    /// The parameter's own first value.
    Parameter,
}

/// A rule whose arguments can be read and written by name.
pub(super) trait ErasedOptimizerRule: OptimizerRule {
    fn config(&self) -> Value;
    fn reread(&self, config: Value) -> serde_json::Result<OptimizerKind>;
}

impl<R: OptimizerRule + Serialize + DeserializeOwned + 'static> ErasedOptimizerRule for R {
    fn config(&self) -> Value {
        // Only a map with keys that are not text fails, which no rule has.
        serde_json::to_value(self).unwrap_or_else(|e| bug!("arguments do not serialise: {e}"))
    }

    fn reread(&self, config: Value) -> serde_json::Result<OptimizerKind> {
        Ok(OptimizerKind::of(serde_json::from_value::<R>(config)?))
    }
}

/// The rule by which a gradient becomes a change, with its own arguments.
#[derive(Clone, Debug)]
pub struct OptimizerKind(Arc<dyn ErasedOptimizerRule>);

impl OptimizerKind {
    pub(super) fn of(rule: impl ErasedOptimizerRule + 'static) -> OptimizerKind {
        OptimizerKind(Arc::new(rule))
    }

    pub(super) fn rule(&self) -> &dyn OptimizerRule {
        &*self.0
    }

    /// Keras's class: `RMSprop`.
    pub fn class_name(&self) -> &'static str {
        self.0.class_name()
    }

    /// Its own arguments by name, as model files have them.
    pub fn config(&self) -> Map<String, Value> {
        match self.0.config() {
            Value::Object(map) => map,
            _ => Map::new(),
        }
    }

    /// The same rule with all of its arguments read from `config`.
    pub(super) fn reread(&self, config: Value) -> serde_json::Result<OptimizerKind> {
        self.0.reread(config)
    }

    /// The same rule with one argument replaced; `others` are the arguments that every optimizer has.
    pub(super) fn with(&self, key: &str, value: Value, others: &[&str]) -> Result<OptimizerKind> {
        let mut config = self.config();
        let Some(argument) = config.get_mut(key) else {
            let own: Vec<&str> = config.keys().map(String::as_str).collect();
            let known: Vec<&str> = own.iter().chain(others).copied().collect();
            let what = format!("{} has no argument `{key}`", self.0.name());
            let why = format!("its rule is set by {} alone", own.join(", "));
            return Err(unknown_argument(&what, key, &known).because(why));
        };
        let what = format!("{}'s argument `{key}` cannot be {value}", self.0.name());
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

/// The path of a parameter's slot in the state.
pub(super) fn key(slot: &str, param: &str) -> String {
    format!("{slot}/{param}")
}

/// The state of a parameter, or a poisoned tensor where the tree lacks it.
pub(super) fn slot(state: &Params, slot: &str, param: &str, like: &Tensor) -> Tensor {
    state.get(&key(slot, param)).cloned().unwrap_or_else(|| {
        like.fail(
            Error::new(ErrorKind::Graph, format!("the optimizer's state lacks {}", key(slot, param)))
                .hint("make it with this optimizer's init and the same parameters"),
        )
    })
}

/// The state of one parameter while it is updated.
pub(super) struct OptimizerSlots<'a> {
    pub(super) name: &'a str,
    pub(super) like: &'a Tensor,
    /// `i64[]`: counts the earlier updates.
    pub(super) updates: &'a Tensor,
    /// `f32[]`: this step's momentum, where it has a schedule.
    pub(super) momentum: Option<&'a Tensor>,
    pub(super) state: &'a mut Params,
}

impl OptimizerSlots<'_> {
    /// `→ T[]`: the number of this update, from 1, in the parameter's type.
    pub(super) fn number(&self) -> Tensor {
        (self.updates + 1.0).convert(self.like.dtype())
    }

    /// `→ T[]`: `base` to the power of this update's number, both in the parameter's type, as Keras does it.
    pub(super) fn power(&self, base: impl Into<Coefficient>) -> Tensor {
        let t = self.number();
        base.into().like(&t).power(&t)
    }

    /// The momentum of this step: that of the schedule, or the rule's own.
    pub(super) fn momentum(&self, own: f64) -> Coefficient {
        self.momentum.map_or(own.into(), |m| Coefficient::Traced(m.convert(self.like.dtype())))
    }

    pub(super) fn get(&self, name: &str) -> Tensor {
        slot(self.state, name, self.name, self.like)
    }

    /// The slots `momentum` and `velocity`: running means of the gradient and of its square, `g` added.
    /// β₁ is this step's momentum where that has a schedule.
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

/// A number of the rule, or of this step: `T[]`.
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
    /// `x` times it.
    pub(super) fn of(&self, x: &Tensor) -> Tensor {
        match self {
            Coefficient::Fixed(value) => x * *value,
            Coefficient::Traced(value) => x * value,
        }
    }

    /// `x` times what is left of 1.
    pub(super) fn rest_of(&self, x: &Tensor) -> Tensor {
        match self {
            Coefficient::Fixed(value) => x * (1.0 - value),
            Coefficient::Traced(value) => x * (1.0 - value),
        }
    }

    /// As a tensor of the type of `t`.
    pub(super) fn like(&self, t: &Tensor) -> Tensor {
        match self {
            Coefficient::Fixed(value) => t.scalar_like(*value),
            Coefficient::Traced(value) => value.convert(t.dtype()),
        }
    }
}
