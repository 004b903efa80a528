//! Callbacks with Keras's names and arguments. One file each: its arguments as fields, which are the keys of its table in
//! configurations too, and what it does. What has closures for arguments has no table.

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

/// What the table has of a callback.
struct CallbackRow {
    /// With the arguments of a table.
    read: fn(Value) -> serde_json::Result<Box<dyn ConfigCallback>>,
    /// All arguments at their defaults.
    defaults: fn() -> serde_json::Result<Value>,
}

macro_rules! callbacks {
    ($($callback:ident in mod $module:ident;)*) => {
        $(mod $module;
        pub use $module::$callback;)*

        /// All callbacks, without what belongs to them.
        pub mod classes {
            pub use super::lambda_callback::LambdaCallback;
            pub use super::learning_rate_scheduler::LearningRateScheduler;
            $(pub use super::$module::$callback;)*
        }

        /// The callbacks that configurations can name.
        pub const CALLBACK_NAMES: &[&str] = &[$(stringify!($callback)),*];

        /// In the order of [`CALLBACK_NAMES`].
        const TABLE: &[CallbackRow] = &[$(CallbackRow {
            read: |arguments| Ok(Box::new(serde_json::from_value::<$callback>(arguments)?)),
            defaults: || serde_json::to_value(<$callback>::default()),
        }),*];
    };
}

// A row makes all of a callback known.
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
