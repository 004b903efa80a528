//! Callbacks with Keras's names and arguments, one file each.
//!
//! The fields are the arguments, and also the keys of the callback's table in configurations. Callbacks with closures
//! as arguments cannot be used in configurations.

mod callback_trait;
mod checkpoint_retention;
mod config_callback;
mod from_config;
mod lambda_callback;
mod learning_rate_scheduler;
mod monitored_value;
mod path_template;
pub mod progress;
mod save_last;
pub(crate) mod trainer_limits;

pub use callback_trait::{Callback, CallbackState, EpochPace, FitCx};
pub use config_callback::{ArgumentCheck, CallbackRunInfo, ConfigCallback};
pub use from_config::{class_of, defaults_of, from_table};
pub use lambda_callback::LambdaCallback;
pub use learning_rate_monitor::LoggingInterval;
pub use learning_rate_scheduler::LearningRateScheduler;
pub use model_checkpoint::SaveFreq;
pub use monitored_value::{Mode, grows};
pub use save_last::SaveLast;
pub use systole_data::format::tensorboard_events::HParamValue;
pub use tensorboard::UpdateFreq;
pub use timer::TimerInterval;

pub(crate) use callback_trait::{WriteRetry, duration};
pub(crate) use monitored_value::BestValue;

use serde_json::Value;

/// A row of the table of callbacks.
struct CallbackRow {
    /// Creates the callback with the arguments of a table.
    read: fn(Value) -> serde_json::Result<Box<dyn ConfigCallback>>,
    /// Returns all arguments with their defaults.
    defaults: fn() -> serde_json::Result<Value>,
}

macro_rules! callbacks {
    ($($callback:ident in mod $module:ident;)*) => {
        $(mod $module;
        pub use $module::$callback;)*

        /// All callback types, without their helper types.
        pub mod classes {
            pub use super::lambda_callback::LambdaCallback;
            pub use super::learning_rate_scheduler::LearningRateScheduler;
            $(pub use super::$module::$callback;)*
        }

        /// Names of callbacks that configurations accept.
        pub const CALLBACK_NAMES: &[&str] = &[$(stringify!($callback)),*];

        /// Rows in the order of [`CALLBACK_NAMES`].
        const TABLE: &[CallbackRow] = &[$(CallbackRow {
            read: |arguments| Ok(Box::new(serde_json::from_value::<$callback>(arguments)?)),
            defaults: || serde_json::to_value(<$callback>::default()),
        }),*];
    };
}

// Registers the callbacks.
callbacks! {
    EarlyStopping in mod early_stopping;
    ReduceLROnPlateau in mod reduce_lr_on_plateau;
    ModelCheckpoint in mod model_checkpoint;
    CSVLogger in mod csv_logger;
    TerminateOnNaN in mod terminate_on_nan;
    TensorBoard in mod tensorboard;
    LearningRateMonitor in mod learning_rate_monitor;
    Timer in mod timer;
    SpikeDetection in mod spike_detection;
    SwapEMAWeights in mod swap_ema_weights;
    GradientAccumulationScheduler in mod gradient_accumulation_scheduler;
    ThroughputMonitor in mod throughput_monitor;
}

// Names of the previous version.
systole_ir::renamed! { Checked => ArgumentCheck, HParam => HParamValue, Pace => EpochPace }
#[doc(hidden)]
pub use self::{CallbackRunInfo as Place, ConfigCallback as Configured};
