//! Everything a program usually needs: `use systole::prelude::*;`

pub use crate::datasets::{self, DataDir};
pub use crate::report::RunReport;
pub use crate::{Sequential, backend, functional, jit, load_model, load_model_with};
pub use systole_data::{AUTOTUNE, Dataset, HostArray, Sample};
pub use systole_dist::Strategy;
pub use systole_ir::DType::{self, BF16, Bool, F16, F32, F64, I8, I16, I32, I64, U8, U16, U32, U64};
pub use systole_ir::{Error, ErrorKind, Literal, Result, Scalar, Shape, Tensor, TensorType, grad};
pub use systole_nn::callback::{
    CSVLogger, Callback, EarlyStopping, FitCx, GradientAccumulationScheduler, LambdaCallback,
    LearningRateMonitor, LearningRateScheduler, LoggingInterval, Mode, ModelCheckpoint, ReduceLROnPlateau,
    SaveFreq, SaveLast, SpikeDetection, SwapEMAWeights, TensorBoard, TerminateOnNaN, ThroughputMonitor,
    Timer, TimerInterval, UpdateFreq,
};
pub use systole_nn::layers::*;
pub use systole_nn::loss::{
    CustomLoss, Loss, Reduction, binary_crossentropy, categorical_crossentropy, huber, mean_absolute_error,
    mean_squared_error, sparse_categorical_crossentropy,
};
pub use systole_nn::metric::{
    CustomMetric, Metric, auc, binary_accuracy, categorical_accuracy, expected_calibration_error, f1_score,
    mean_iou, precision, r2_score, recall, root_mean_squared_error, sparse_categorical_accuracy,
    sparse_top_k_categorical_accuracy, top_k_categorical_accuracy,
};
pub use systole_nn::optimizer::constructors::*;
pub use systole_nn::optimizer::{Optimizer, UpdateInputs};
pub use systole_nn::schedule::Schedule;
pub use systole_nn::{
    Accelerator, Activation, BackupAndRestore, BatchSizeFinder, Compile, Constraint, Cx, FineTune, Fit,
    FrozenBatchNorm, History, Initializer, Layer, Logs, LoopBackup, LoopState, LoraOptions, LrFind, Model,
    Precision, Pruning, PruningSchedule, Quantize, QuantizeRanges, Regularizer, StepCx, Symbol, TrainStep,
    ValCheckInterval, input, input_of,
};
pub use systole_runtime::{Buffer, Params, named_scope, value_and_grad};

/// The default value of any options type: `Fit { epochs: 5, ..default() }`.
pub fn default<T: Default>() -> T {
    T::default()
}
