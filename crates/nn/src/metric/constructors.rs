//! Constructors of metrics with Keras's names and defaults: `precision()`, `auc()`, `mean_iou(10)`.

use super::*;
use crate::setters::constructors;

constructors!(Metric:
    /// `y_true: I[B, …], y_pred: T[B, …, C]`: accuracy: how often the highest score is the class label's.
    ///
    /// ```
    /// use systole_nn::{layers::dense, loss::sparse_categorical_crossentropy, metric::sparse_categorical_accuracy, Compile, Model};
    /// let mut model = Model::sequential([dense(10).activation("softmax")]);
    /// let metrics = vec![sparse_categorical_accuracy()];
    /// model.compile(Compile { loss: sparse_categorical_crossentropy(), metrics, ..Default::default() })?;
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    fn sparse_categorical_accuracy() = Metric::SparseCategoricalAccuracy;

    /// `y_true, y_pred: T[B, …, C]`: accuracy: how often the highest score is the one-hot label's class.
    ///
    /// ```
    /// use systole_nn::{layers::dense, loss::categorical_crossentropy, metric::categorical_accuracy, Compile, Model};
    /// let mut model = Model::sequential([dense(10).activation("softmax")]);
    /// let metrics = vec![categorical_accuracy()];
    /// model.compile(Compile { loss: categorical_crossentropy(), metrics, ..Default::default() })?;
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    fn categorical_accuracy() = Metric::CategoricalAccuracy;

    /// `y_true, y_pred: T[B, …]`: accuracy of scores, thresholded at 0.5, against labels 0 and 1.
    ///
    /// ```
    /// use systole_nn::{layers::dense, loss::binary_crossentropy, metric::binary_accuracy, Compile, Model};
    /// let mut model = Model::sequential([dense(1).activation("sigmoid")]);
    /// let metrics = vec![binary_accuracy()];
    /// model.compile(Compile { loss: binary_crossentropy(), metrics, ..Default::default() })?;
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    fn binary_accuracy() = Metric::BinaryAccuracy { threshold: 0.5 };

    /// `y_true: I[B, …], y_pred: T[B, …, C]`: how often the label's class is among the `k` highest scores.
    ///
    /// ```
    /// use systole_nn::{layers::dense, loss::sparse_categorical_crossentropy, metric::sparse_top_k_categorical_accuracy, Compile, Model};
    /// let mut model = Model::sequential([dense(10).activation("softmax")]);
    /// let metrics = vec![sparse_top_k_categorical_accuracy(5)];
    /// model.compile(Compile { loss: sparse_categorical_crossentropy(), metrics, ..Default::default() })?;
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    fn sparse_top_k_categorical_accuracy(k: usize) = Metric::SparseTopKCategoricalAccuracy { k };

    /// `y_true, y_pred: T[B, …, C]`: how often the one-hot label's class is among the `k` highest scores.
    ///
    /// ```
    /// use systole_nn::{layers::dense, loss::categorical_crossentropy, metric::top_k_categorical_accuracy, Compile, Model};
    /// let mut model = Model::sequential([dense(10).activation("softmax")]);
    /// let metrics = vec![top_k_categorical_accuracy(5)];
    /// model.compile(Compile { loss: categorical_crossentropy(), metrics, ..Default::default() })?;
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    fn top_k_categorical_accuracy(k: usize) = Metric::TopKCategoricalAccuracy { k };

    /// `y_true, y_pred: T[B, …]`: fraction of scores above 0.5 whose label is 1.
    ///
    /// ```
    /// use systole_nn::{layers::dense, loss::binary_crossentropy, metric::precision, Compile, Model};
    /// let mut model = Model::sequential([dense(1).activation("sigmoid")]);
    /// let metrics = vec![precision()];
    /// model.compile(Compile { loss: binary_crossentropy(), metrics, ..Default::default() })?;
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    fn precision() = Metric::Precision { thresholds: vec![0.5], top_k: None, class_id: None };

    /// `y_true, y_pred: T[B, …]`: fraction of labels 1 whose score is above 0.5.
    ///
    /// ```
    /// use systole_nn::{layers::dense, loss::binary_crossentropy, metric::recall, Compile, Model};
    /// let mut model = Model::sequential([dense(1).activation("sigmoid")]);
    /// let metrics = vec![recall()];
    /// model.compile(Compile { loss: binary_crossentropy(), metrics, ..Default::default() })?;
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    fn recall() = Metric::Recall { thresholds: vec![0.5], top_k: None, class_id: None };

    /// `y_pred: T[B, …]`: mean of the predictions; labels are ignored.
    ///
    /// ```
    /// use systole_nn::{layers::dense, loss::mean_squared_error, metric::mean, Compile, Model};
    /// let mut model = Model::sequential([dense(1)]);
    /// model.compile(Compile { loss: mean_squared_error(), metrics: vec![mean("mean_output")], ..Default::default() })?;
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    fn mean(name: &str) = Metric::Mean { name: name.into() };

    /// `y_true, y_pred: T[B, …]`: area under the ROC curve, at 200 thresholds; see [`AUC`] for other curves.
    ///
    /// ```
    /// use systole_nn::{layers::dense, loss::binary_crossentropy, metric::auc, Compile, Model};
    /// let mut model = Model::sequential([dense(1).activation("sigmoid")]);
    /// let metrics = vec![auc()];
    /// model.compile(Compile { loss: binary_crossentropy(), metrics, ..Default::default() })?;
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    fn auc() = AUC::default();

    /// `y_true, y_pred: T[B, C]`: harmonic mean of precision and recall per class; see [`F1Score`].
    ///
    /// ```
    /// use systole_nn::{layers::dense, loss::categorical_crossentropy, metric::f1_score, Compile, Model};
    /// let mut model = Model::sequential([dense(10).activation("softmax")]);
    /// let metrics = vec![f1_score()];
    /// model.compile(Compile { loss: categorical_crossentropy(), metrics, ..Default::default() })?;
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    fn f1_score() = F1Score::default();

    /// `y_true, y_pred: T[B, C]`: F-score with recall weighted `beta` times as much as precision; see [`FBetaScore`].
    ///
    /// ```
    /// use systole_nn::{layers::dense, loss::categorical_crossentropy, metric::fbeta_score, Compile, Model};
    /// let mut model = Model::sequential([dense(10).activation("softmax")]);
    /// let metrics = vec![fbeta_score(2.0)];
    /// model.compile(Compile { loss: categorical_crossentropy(), metrics, ..Default::default() })?;
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    fn fbeta_score(beta: f64) = FBetaScore { beta, ..FBetaScore::default() };

    /// `y_true, y_pred: T[B, C]`: coefficient of determination R², averaged over outputs; see [`R2Score`].
    ///
    /// ```
    /// use systole_nn::{layers::dense, loss::mean_squared_error, metric::r2_score, Compile, Model};
    /// let mut model = Model::sequential([dense(3)]);
    /// let metrics = vec![r2_score()];
    /// model.compile(Compile { loss: mean_squared_error(), metrics, ..Default::default() })?;
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    fn r2_score() = R2Score::default();

    /// `y_true, y_pred: T[B, …]`: root of the mean squared error.
    ///
    /// ```
    /// use systole_nn::{layers::dense, loss::mean_squared_error, metric::root_mean_squared_error, Compile, Model};
    /// let mut model = Model::sequential([dense(3)]);
    /// let metrics = vec![root_mean_squared_error()];
    /// model.compile(Compile { loss: mean_squared_error(), metrics, ..Default::default() })?;
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    fn root_mean_squared_error() = RootMeanSquaredError::default();

    /// `y_true, y_pred: T[B, …, C]`: mean cosine similarity along the last axis: 1 for the same direction.
    ///
    /// ```
    /// use systole_nn::{layers::dense, loss::mean_squared_error, metric::cosine_similarity, Compile, Model};
    /// let mut model = Model::sequential([dense(3)]);
    /// let metrics = vec![cosine_similarity()];
    /// model.compile(Compile { loss: mean_squared_error(), metrics, ..Default::default() })?;
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    fn cosine_similarity() = CosineSimilarity::default();

    /// `y_true, y_pred: T[B, …, C]`: mean Pearson correlation along the last axis.
    ///
    /// ```
    /// use systole_nn::{layers::dense, loss::mean_squared_error, metric::pearson_correlation, Compile, Model};
    /// let mut model = Model::sequential([dense(3)]);
    /// let metrics = vec![pearson_correlation()];
    /// model.compile(Compile { loss: mean_squared_error(), metrics, ..Default::default() })?;
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    fn pearson_correlation() = PearsonCorrelation::default();

    /// `y_true, y_pred: T[B, …, C]`: mean concordance correlation (Lin) along the last axis.
    ///
    /// ```
    /// use systole_nn::{layers::dense, loss::mean_squared_error, metric::concordance_correlation, Compile, Model};
    /// let mut model = Model::sequential([dense(3)]);
    /// let metrics = vec![concordance_correlation()];
    /// model.compile(Compile { loss: mean_squared_error(), metrics, ..Default::default() })?;
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    fn concordance_correlation() = ConcordanceCorrelation::default();
);

/// `y_true, y_pred: I[B, …]`: mean intersection over union of the classes `target_class_ids`, for class indices as
/// labels and predictions; see [`IoU`].
///
/// ```
/// use systole_nn::{layers::dense, loss::mean_squared_error, metric::iou, Compile, Model};
/// let mut model = Model::sequential([dense(1)]);
/// let metrics = vec![iou(3, &[0, 2])];
/// model.compile(Compile { loss: mean_squared_error(), metrics, ..Default::default() })?;
/// # Ok::<(), systole_ir::Error>(())
/// ```
pub fn iou(num_classes: usize, target_class_ids: &[usize]) -> Metric {
    IoU { num_classes: Some(num_classes), target_class_ids: target_class_ids.to_vec(), ..IoU::default() }
        .into()
}

constructors!(Metric:
    /// `y_true, y_pred: I[B, …]`: mean intersection over union of all classes, for class indices as labels and predictions;
    /// see [`MeanIoU`] for scores.
    ///
    /// ```
    /// use systole_nn::{layers::dense, loss::mean_squared_error, metric::mean_iou, Compile, Model};
    /// let mut model = Model::sequential([dense(1)]);
    /// let metrics = vec![mean_iou(3)];
    /// model.compile(Compile { loss: mean_squared_error(), metrics, ..Default::default() })?;
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    fn mean_iou(num_classes: usize) = MeanIoU { num_classes: Some(num_classes), ..MeanIoU::default() };
);

/// `y_true, y_pred: T[B, …, C]`: mean intersection over union of the classes `target_class_ids`, for one-hot labels;
/// see [`OneHotIoU`].
///
/// ```
/// use systole_nn::{layers::dense, loss::categorical_crossentropy, metric::one_hot_iou, Compile, Model};
/// let mut model = Model::sequential([dense(10).activation("softmax")]);
/// let metrics = vec![one_hot_iou(10, &[0, 2])];
/// model.compile(Compile { loss: categorical_crossentropy(), metrics, ..Default::default() })?;
/// # Ok::<(), systole_ir::Error>(())
/// ```
pub fn one_hot_iou(num_classes: usize, target_class_ids: &[usize]) -> Metric {
    OneHotIoU {
        num_classes: Some(num_classes),
        target_class_ids: target_class_ids.to_vec(),
        ..OneHotIoU::default()
    }
    .into()
}

constructors!(Metric:
    /// `y_true, y_pred: T[B, …, C]`: mean intersection over union of all classes, for one-hot labels; see
    /// [`OneHotMeanIoU`].
    ///
    /// ```
    /// use systole_nn::{layers::dense, loss::categorical_crossentropy, metric::one_hot_mean_iou, Compile, Model};
    /// let mut model = Model::sequential([dense(10).activation("softmax")]);
    /// let metrics = vec![one_hot_mean_iou(10)];
    /// model.compile(Compile { loss: categorical_crossentropy(), metrics, ..Default::default() })?;
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    fn one_hot_mean_iou(num_classes: usize) =
        OneHotMeanIoU { num_classes: Some(num_classes), ..OneHotMeanIoU::default() };

    /// `y_true, y_pred: T[B, …]`: mean intersection over union of labels 0 and 1; scores of at least 0.5 count as 1.
    ///
    /// ```
    /// use systole_nn::{layers::dense, loss::binary_crossentropy, metric::binary_iou, Compile, Model};
    /// let mut model = Model::sequential([dense(1).activation("sigmoid")]);
    /// let metrics = vec![binary_iou()];
    /// model.compile(Compile { loss: binary_crossentropy(), metrics, ..Default::default() })?;
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    fn binary_iou() = BinaryIoU::default();

    /// `y_true, y_pred: T[B, …]`: number of samples labelled 1 with a score above 0.5.
    ///
    /// ```
    /// use systole_nn::{layers::dense, loss::binary_crossentropy, metric::true_positives, Compile, Model};
    /// let mut model = Model::sequential([dense(1).activation("sigmoid")]);
    /// let metrics = vec![true_positives()];
    /// model.compile(Compile { loss: binary_crossentropy(), metrics, ..Default::default() })?;
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    fn true_positives() = TruePositives::default();

    /// `y_true, y_pred: T[B, …]`: number of samples labelled 0 with a score of at most 0.5.
    ///
    /// ```
    /// use systole_nn::{layers::dense, loss::binary_crossentropy, metric::true_negatives, Compile, Model};
    /// let mut model = Model::sequential([dense(1).activation("sigmoid")]);
    /// let metrics = vec![true_negatives()];
    /// model.compile(Compile { loss: binary_crossentropy(), metrics, ..Default::default() })?;
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    fn true_negatives() = TrueNegatives::default();

    /// `y_true, y_pred: T[B, …]`: number of samples labelled 0 with a score above 0.5.
    ///
    /// ```
    /// use systole_nn::{layers::dense, loss::binary_crossentropy, metric::false_positives, Compile, Model};
    /// let mut model = Model::sequential([dense(1).activation("sigmoid")]);
    /// let metrics = vec![false_positives()];
    /// model.compile(Compile { loss: binary_crossentropy(), metrics, ..Default::default() })?;
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    fn false_positives() = FalsePositives::default();

    /// `y_true, y_pred: T[B, …]`: number of samples labelled 1 with a score of at most 0.5.
    ///
    /// ```
    /// use systole_nn::{layers::dense, loss::binary_crossentropy, metric::false_negatives, Compile, Model};
    /// let mut model = Model::sequential([dense(1).activation("sigmoid")]);
    /// let metrics = vec![false_negatives()];
    /// model.compile(Compile { loss: binary_crossentropy(), metrics, ..Default::default() })?;
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    fn false_negatives() = FalseNegatives::default();

    /// `y_true, y_pred: T[B, …]`: highest sensitivity at a specificity of at least `specificity`, from 0 to 1.
    ///
    /// ```
    /// use systole_nn::{layers::dense, loss::binary_crossentropy, metric::sensitivity_at_specificity, Compile, Model};
    /// let mut model = Model::sequential([dense(1).activation("sigmoid")]);
    /// let metrics = vec![sensitivity_at_specificity(0.9)];
    /// model.compile(Compile { loss: binary_crossentropy(), metrics, ..Default::default() })?;
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    fn sensitivity_at_specificity(specificity: f64) =
        SensitivityAtSpecificity { specificity, ..SensitivityAtSpecificity::default() };

    /// `y_true, y_pred: T[B, …]`: highest specificity at a sensitivity of at least `sensitivity`, from 0 to 1.
    ///
    /// ```
    /// use systole_nn::{layers::dense, loss::binary_crossentropy, metric::specificity_at_sensitivity, Compile, Model};
    /// let mut model = Model::sequential([dense(1).activation("sigmoid")]);
    /// let metrics = vec![specificity_at_sensitivity(0.9)];
    /// model.compile(Compile { loss: binary_crossentropy(), metrics, ..Default::default() })?;
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    fn specificity_at_sensitivity(sensitivity: f64) =
        SpecificityAtSensitivity { sensitivity, ..SpecificityAtSensitivity::default() };

    /// `y_true, y_pred: T[B, …]`: highest precision at a recall of at least `recall`, from 0 to 1.
    ///
    /// ```
    /// use systole_nn::{layers::dense, loss::binary_crossentropy, metric::precision_at_recall, Compile, Model};
    /// let mut model = Model::sequential([dense(1).activation("sigmoid")]);
    /// let metrics = vec![precision_at_recall(0.9)];
    /// model.compile(Compile { loss: binary_crossentropy(), metrics, ..Default::default() })?;
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    fn precision_at_recall(recall: f64) = PrecisionAtRecall { recall, ..PrecisionAtRecall::default() };

    /// `y_true, y_pred: T[B, …]`: highest recall at a precision of at least `precision`, from 0 to 1.
    ///
    /// ```
    /// use systole_nn::{layers::dense, loss::binary_crossentropy, metric::recall_at_precision, Compile, Model};
    /// let mut model = Model::sequential([dense(1).activation("sigmoid")]);
    /// let metrics = vec![recall_at_precision(0.9)];
    /// model.compile(Compile { loss: binary_crossentropy(), metrics, ..Default::default() })?;
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    fn recall_at_precision(precision: f64) = RecallAtPrecision { precision, ..RecallAtPrecision::default() };

    /// `y_true: I[B, …] or T[B, …, C], y_pred: T[B, …, C]`: mean difference between confidence and accuracy, over 15 bins;
    /// see [`ExpectedCalibrationError`].
    ///
    /// ```
    /// use systole_nn::{layers::dense, loss::sparse_categorical_crossentropy, metric::expected_calibration_error, Compile, Model};
    /// let mut model = Model::sequential([dense(10).activation("softmax")]);
    /// let metrics = vec![expected_calibration_error()];
    /// model.compile(Compile { loss: sparse_categorical_crossentropy(), metrics, ..Default::default() })?;
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    fn expected_calibration_error() = ExpectedCalibrationError::default();
);
