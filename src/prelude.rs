//! Everything a program usually needs: `use systole::prelude::*;`

pub use crate::datasets::{self, DataDir};
pub use crate::{Sequential, functional, jit, load_model, load_model_with};
pub use systole_data::{AUTOTUNE, Dataset, HostArray, Sample};
pub use systole_ir::DType::{self, Bool, BF16, F16, F32, F64, I8, I16, I32, I64, U8, U16, U32, U64};
pub use systole_ir::{Error, ErrorKind, Literal, Result, Scalar, Shape, Tensor, TensorType, grad};
pub use systole_nn::callback::{
    Callback, CsvLogger, EarlyStopping, FitCx, LearningRateScheduler, Mode, ModelCheckpoint, ReduceLROnPlateau,
    TerminateOnNaN,
};
pub use systole_nn::layers::*;
pub use systole_nn::loss::*;
pub use systole_nn::metric::*;
pub use systole_nn::optimizer::*;
pub use systole_nn::schedule::*;
pub use systole_nn::{
    Activation, Compile, Cx, Fit, History, Initializer, Layer, Logs, Model, Precision, Symbol, input, input_of,
};
pub use systole_runtime::{Buffer, Params, value_and_grad};

/// The default value of any options type: `Fit { epochs: 5, ..default() }`.
pub fn default<T: Default>() -> T {
    T::default()
}
