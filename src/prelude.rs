//! Prelude: everything a program usually needs, by `use systole::prelude::*;`
//!
//! It exports every layer, loss, metric, optimizer and callback. One name is ambiguous: `cosine_similarity()` is the
//! loss; the metric is `metric::cosine_similarity()`.

#[cfg(feature = "training")]
pub use crate::datasets::{self, DataDir};
#[cfg(feature = "training")]
pub use crate::report::RunReport;
pub use crate::{Sequential, backend, functional, jit, load_model, load_model_with};
pub use systole_data::{AUTOTUNE, Dataset, HostArray, Sample};
pub use systole_dist::Strategy;
pub use systole_ir::DType::{self, BF16, Bool, F16, F32, F64, I8, I16, I32, I64, U8, U16, U32, U64};
pub use systole_ir::{Error, ErrorKind, Literal, Result, Scalar, Shape, Tensor, TensorType, grad};
pub use systole_nn::callback::classes::*;
pub use systole_nn::callback::{
    Callback, FitCx, LoggingInterval, Mode, SaveFreq, SaveLast, TimerInterval, UpdateFreq,
};
pub use systole_nn::layers::*;
pub use systole_nn::loss::constructors::*;
/// Cosine similarity loss. The metric of this name is [`metric::cosine_similarity`].
pub use systole_nn::loss::cosine_similarity;
pub use systole_nn::loss::{self, CustomLoss, Loss, Reduction};
pub use systole_nn::metric::constructors::*;
pub use systole_nn::metric::{self, CustomMetric, Metric};
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

/// Returns the default value of any options type: `Fit { epochs: 5, ..default() }`.
pub fn default<T: Default>() -> T {
    T::default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use systole_nn::callback::CALLBACK_NAMES;
    use systole_nn::{layers, loss, metric, optimizer};

    /// Calls functions of type `$of`, and returns their names. Compiles only if the prelude exports each of them.
    macro_rules! functions {
        ($of:ty: $($name:ident($($argument:expr),*))*) => {{
            $(let _ = || -> $of { $name($($argument),*) };)*
            vec![$(stringify!($name)),*]
        }};
    }

    /// Returns the names of types. Compiles only if the prelude exports each of them.
    macro_rules! types {
        ($($name:ident)*) => {{
            $(let _ = std::any::type_name::<$name>();)*
            vec![$(stringify!($name)),*]
        }};
    }

    /// Returns the names that are only in the table or only in the list.
    fn differences<'a>(table: &[&'a str], list: &[&'a str]) -> Vec<&'a str> {
        let not_in = |a: &[&'a str], b: &[&'a str]| a.iter().copied().filter(|n| !b.contains(n)).collect();
        let (missing, unknown): (Vec<&str>, Vec<&str>) = (not_in(table, list), not_in(list, table));
        [missing, unknown].concat()
    }

    #[test]
    fn every_loss_is_in_the_prelude() {
        let list = functions!(Loss:
            sparse_categorical_crossentropy() categorical_crossentropy() binary_crossentropy() mean_squared_error()
            mean_absolute_error() huber() mean_absolute_percentage_error() mean_squared_logarithmic_error()
            cosine_similarity() log_cosh() hinge() squared_hinge() categorical_hinge() kl_divergence() poisson()
            binary_focal_crossentropy() categorical_focal_crossentropy() dice() tversky() circle() ctc()
            categorical_generalized_cross_entropy());
        assert_eq!(differences(&loss::NAMES, &list), [""; 0]);
    }

    #[test]
    fn every_metric_is_in_the_prelude() {
        let mut list = functions!(Metric:
            sparse_categorical_accuracy() categorical_accuracy() binary_accuracy() sparse_top_k_categorical_accuracy(5)
            top_k_categorical_accuracy(5) precision() recall() auc() f1_score() fbeta_score(2.0) r2_score()
            root_mean_squared_error() pearson_correlation() concordance_correlation() iou(2, &[1])
            mean_iou(2) one_hot_iou(2, &[1]) one_hot_mean_iou(2) binary_iou() true_positives() true_negatives()
            false_positives() false_negatives() sensitivity_at_specificity(0.5) specificity_at_sensitivity(0.5)
            precision_at_recall(0.5) recall_at_precision(0.5) expected_calibration_error());
        let _ = || -> Metric { metric::cosine_similarity() };
        // `accuracy` resolves to one of three, depending on the loss.
        list.extend(["cosine_similarity", "accuracy"]);
        assert_eq!(differences(metric::NAMES, &list), [""; 0]);
    }

    #[test]
    fn every_optimizer_is_in_the_prelude() {
        let list = functions!(Optimizer:
            sgd(0.1) adam(0.1) adamw(0.1) rmsprop(0.1) lion(0.1) lamb(0.1) adamax(0.1) nadam(0.1) adagrad(0.1)
            adadelta(0.1) ftrl(0.1) adafactor(0.1) muon(0.1) schedulefreeadamw(0.1));
        assert_eq!(differences(optimizer::NAMES, &list), [""; 0]);
    }

    #[test]
    fn every_callback_is_in_the_prelude() {
        let list = types!(EarlyStopping ReduceLROnPlateau ModelCheckpoint CSVLogger TerminateOnNaN TensorBoard
            LearningRateMonitor Timer SpikeDetection SwapEMAWeights GradientAccumulationScheduler ThroughputMonitor);
        assert_eq!(differences(CALLBACK_NAMES, &list), [""; 0]);
        let _ = (LambdaCallback::new(), LearningRateScheduler(()));
    }

    #[test]
    fn every_layer_is_in_the_prelude() {
        let list = types!(Dense EinsumDense Conv2D DepthwiseConv2D Conv1D Conv3D SeparableConv1D SeparableConv2D
            DepthwiseConv1D Conv1DTranspose Conv2DTranspose Conv3DTranspose MaxPooling2D AveragePooling2D
            GlobalMaxPooling2D GlobalAveragePooling2D MaxPooling1D AveragePooling1D MaxPooling3D
            AveragePooling3D GlobalMaxPooling1D GlobalAveragePooling1D GlobalMaxPooling3D
            GlobalAveragePooling3D AdaptiveAveragePooling1D AdaptiveAveragePooling2D
            AdaptiveAveragePooling3D AdaptiveMaxPooling1D AdaptiveMaxPooling2D AdaptiveMaxPooling3D Flatten
            Reshape Permute RepeatVector Identity Activation ReLU LeakyReLU ELU Softmax PReLU ResidualGain
            Dropout SpatialDropout1D SpatialDropout2D SpatialDropout3D ActivityRegularization GaussianNoise
            GaussianDropout AlphaDropout BatchNormalization LayerNormalization GroupNormalization
            RMSNormalization UnitNormalization SpectralNormalization Embedding PositionEmbedding
            ReversibleEmbedding Rescaling Normalization CategoryEncoding Discretization Add Subtract
            Multiply Average Maximum Minimum Concatenate ZeroPadding2D ZeroPadding1D ZeroPadding3D
            Cropping1D Cropping2D Cropping3D UpSampling1D UpSampling2D UpSampling3D Resizing CenterCrop
            RandomCrop RandomFlip RandomTranslation RandomRotation RandomZoom RandomBrightness
            RandomContrast LSTM GRU SimpleRNN Bidirectional TimeDistributed Masking Dot MultiHeadAttention
            Attention AdditiveAttention GroupQueryAttention TransformerBlock ClassToken FirstStep LayerScale
            StochasticDepth ModelOutput TokenStep RelativePositionBias WindowAttention MelSpectrogram SelectStep
            SliceSteps ConvLSTM1D ConvLSTM2D ConvLSTM3D);
        assert_eq!(differences(layers::LAYER_NAMES, &list), [""; 0]);
    }
}
