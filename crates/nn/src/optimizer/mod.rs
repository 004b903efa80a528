//! Optimizers (Adam, SGD, …) with Keras's names, formulas and order of operations.
//!
//! `init` creates the state; `update` is traced into the training step and returns new parameters and state. Includes
//! loss scaling for `mixed_float16`.
//!
//! One file per optimizer: the update rule with its arguments, its constructor, Keras's defaults and its parity test
//! cases.

mod from_config;
mod loss_scale;
mod optimizer_config;
mod param_groups;
mod rule;
pub mod schedule;
mod scheduled_values;
mod swa;
mod update;
mod weight_averaging;

pub use constructors::*;
pub use loss_scale::LossScale;
pub use optimizer_config::{Optimizer, UpdateInputs};
pub use rule::OptimizerKind;
pub use scheduled_values::ScheduledValue;
pub use swa::{Annealing, Swa};

/// A row of the table of optimizers.
struct OptimizerRow {
    /// Constructor with Keras's defaults.
    defaults: fn() -> Optimizer,
    /// Parity test cases as JSON.
    parity: &'static str,
}

macro_rules! optimizers {
    ($($rule:ident in mod $module:ident, $learning_rate:literal;)*) => {
        $(mod $module;
        pub use $module::$rule;

        impl rule::OptimizerName for $rule {
            fn name(&self) -> &'static str {
                stringify!($module)
            }

            fn struct_name(&self) -> &'static str {
                stringify!($rule)
            }
        })*

        /// Constructors of all optimizers.
        pub mod constructors {
            $(pub use super::$module::$module;)*
        }

        /// Optimizer names that `Optimizer::from_str` and configurations accept.
        pub const NAMES: &[&str] = &[$(stringify!($module)),*];

        const TABLE: &[OptimizerRow] =
            &[$(OptimizerRow { defaults: || $module::$module($learning_rate), parity: $module::PARITY }),*];
    };
}

// Registers the optimizers. Each row gives the update rule's type, its module (also the constructor's name and the name
// in configurations) and Keras's default learning rate.
optimizers! {
    Sgd in mod sgd, 0.01;
    Adam in mod adam, 0.001;
    AdamW in mod adamw, 0.001;
    RmsProp in mod rmsprop, 0.001;
    Lion in mod lion, 0.001;
    Lamb in mod lamb, 0.001;
    Adamax in mod adamax, 0.001;
    Nadam in mod nadam, 0.001;
    Adagrad in mod adagrad, 0.001;
    Adadelta in mod adadelta, 0.001;
    Ftrl in mod ftrl, 0.001;
    Adafactor in mod adafactor, 0.001;
    Muon in mod muon, 0.001;
    ScheduleFreeAdamW in mod schedulefreeadamw, 0.0025;
}

/// Returns the parity test cases of all optimizers, each a JSON array.
pub fn parity_cases() -> impl Iterator<Item = &'static str> {
    TABLE.iter().map(|row| row.parity)
}

// Names of the previous version.
#[doc(hidden)]
pub use self::ScheduledValue as Scheduled;
