//! Optimizers as two functions: `init` makes the state, `update` (traced) gives new parameters and new state from
//! gradients. Names, formulas and order of operations are Keras's. Also loss scaling for `mixed_float16`.
//!
//! One file each: the rule with its arguments, its function, Keras's defaults and the cases of its parity test.

mod averages;
mod common;
mod groups;
mod loss_scale;
mod read;
mod rule;
pub mod schedule;
mod swa;
mod update;
mod values;

pub use common::{Optimizer, UpdateInputs};
pub use constructors::*;
pub use loss_scale::LossScale;
pub use rule::OptimizerKind;
pub use swa::{Annealing, Swa};
pub use values::Scheduled;

/// What the table has of an optimizer.
struct OptimizerRow {
    /// With Keras's defaults.
    defaults: fn() -> Optimizer,
    /// Cases of the parity test, as JSON.
    parity: &'static str,
}

macro_rules! optimizers {
    ($($rule:ident in mod $module:ident;)*) => {
        $(mod $module;
        pub use $module::$rule;)*

        /// The functions that make optimizers.
        pub mod constructors {
            $(pub use super::$module::$module;)*
        }

        /// The names that `Optimizer::from_str` and configurations take.
        pub const NAMES: &[&str] = &[$(stringify!($module)),*];

        const TABLE: &[OptimizerRow] =
            &[$(OptimizerRow { defaults: $module::defaults, parity: $module::PARITY }),*];
    };
}

// A row makes all of an optimizer known: its function has the name of its file, which is its name in configurations.
optimizers! {
    Sgd in mod sgd;
    Adam in mod adam;
    AdamW in mod adamw;
    RmsProp in mod rmsprop;
    Lion in mod lion;
    Lamb in mod lamb;
    Adamax in mod adamax;
    Nadam in mod nadam;
    Adagrad in mod adagrad;
    Adadelta in mod adadelta;
    Ftrl in mod ftrl;
    Adafactor in mod adafactor;
    Muon in mod muon;
    ScheduleFreeAdamW in mod schedulefreeadamw;
}

/// The cases of the parity test that the optimizers list, each as a JSON array.
pub fn parity_cases() -> impl Iterator<Item = &'static str> {
    TABLE.iter().map(|row| row.parity)
}
