//! Intersection-over-union (IoU) metrics, from a confusion matrix kept on the device.

use super::{MetricBatch, MetricRule, refused, wrong};
use crate::loss::aligned;
use crate::setters::arguments;
use systole_ir::{DType, Result, Tensor};

/// Arguments common to all IoU metrics.
#[derive(Default)]
struct IouConfig<'a> {
    num_classes: Option<usize>,
    /// Classes to average; empty: all.
    target_class_ids: &'a [usize],
    ignore_class: Option<i64>,
    sparse_y_true: bool,
    sparse_y_pred: bool,
    axis: i64,
    /// Scores of at least this are class 1, others class 0.
    threshold: Option<f64>,
}

impl IouConfig<'_> {
    fn classes(&self, outputs: usize) -> usize {
        self.num_classes.unwrap_or(outputs)
    }

    fn check(&self) -> Result<()> {
        if self.num_classes == Some(0) || (self.num_classes.is_none() && self.sparse_y_pred) {
            return Err(wrong("num_classes is missing".into(), "set num_classes to the number of classes"));
        }
        match self.target_class_ids.iter().max() {
            Some(class) if self.num_classes.is_some_and(|n| *class >= n) => {
                let what = format!("target_class_ids contains {class}, expected indices below num_classes");
                Err(wrong(what, "use class indices from 0 to num_classes - 1"))
            }
            _ => Ok(()),
        }
    }

    fn slots(&self, outputs: usize) -> Vec<(&'static str, Vec<usize>)> {
        vec![("total_confusion_matrix", vec![self.classes(outputs); 2])]
    }

    fn sums(&self, seen: &MetricBatch) -> Vec<Tensor> {
        let p = seen.pred.value.convert(DType::F32);
        let p = self
            .threshold
            .map_or(p.clone(), |limit| p.greater_equal(&p.scalar_like(limit)).convert(DType::F32));
        let axis = if self.axis < 0 { self.axis + p.rank() as i64 } else { self.axis };
        let pick = |x: &Tensor, sparse: bool| match sparse {
            true => Some(x.convert(DType::I32)),
            false if (0..x.rank() as i64).contains(&axis) => Some(x.argmax(axis as usize)),
            false => None,
        };
        let outputs = if (0..p.rank() as i64).contains(&axis) { p.dim(axis as isize) } else { 1 };
        let t = if self.sparse_y_true { seen.y_true.clone() } else { seen.y_true.convert(DType::F32) };
        match (pick(&t, self.sparse_y_true), pick(&p, self.sparse_y_pred)) {
            (Some(t), Some(p)) if t.shape().elements() == p.shape().elements() => {
                vec![self.matrix(&t, &p, self.classes(outputs), seen)]
            }
            _ => vec![refused(
                seen,
                "labels and predictions have different numbers of classes",
                "set sparse_y_true and sparse_y_pred: true for class indices, false for one score per class along axis",
            )],
        }
    }

    /// Confusion matrix `t, p: i32[…] → f64[C, C]`; row: true class, column: predicted class.
    fn matrix(&self, t: &Tensor, p: &Tensor, classes: usize, seen: &MetricBatch) -> Tensor {
        let n = p.shape().elements();
        let weight = match seen.weight {
            Some(w) => aligned(p, w).broadcast_to(p.shape()).reshape([n]),
            None => p.convert(DType::F32).ones_like().reshape([n]),
        };
        let (t, p) = (t.reshape([n]), p.reshape([n]));
        let mut one = t.one_hot(classes, DType::F32);
        if let Some(ignored) = self.ignore_class {
            let kept = t.not_equal(&t.scalar_like(ignored as f64)).convert(DType::F32);
            one = one * kept.broadcast_in_dim(&[n, classes].into(), &[0]);
        }
        // Class indices out of range are in no row or column.
        let one = one * weight.broadcast_in_dim(&[n, classes].into(), &[0]);
        one.dot_general(&p.one_hot(classes, DType::F32), &[], &[], &[0], &[0]).convert(DType::F64)
    }

    fn results(&self, sums: &[Vec<f64>]) -> Vec<f64> {
        let all = sums.first().map_or(&[][..], Vec::as_slice);
        let n = (all.len() as f64).sqrt().round() as usize;
        let row = |c: usize| all[c * n..(c + 1) * n].iter().sum::<f64>();
        let column = |c: usize| (0..n).map(|r| all[r * n + c]).sum::<f64>();
        let every: Vec<usize> = (0..n).collect();
        let targets = if self.target_class_ids.is_empty() { &every[..] } else { self.target_class_ids };
        let (mut sum, mut valid) = (0.0, 0.0);
        for &c in targets.iter().filter(|c| **c < n) {
            let hit = all[c * n + c];
            let union = row(c) + column(c) - hit;
            if union > 1e-9 {
                sum += hit / (union + 1e-7);
                valid += 1.0;
            }
        }
        vec![sum / (valid + 1e-7)]
    }
}

macro_rules! overlaps {
    ($($name:ident $(: $($field:ident),* $(, [$list:ident])?)?;)*) => {
        $($(impl $name {
            fn matrix(&self) -> IouConfig<'_> {
                IouConfig { $($field: self.$field,)* $($list: &self.$list,)? ..IouConfig::default() }
            }
        })?

        impl MetricRule for $name {
            fn check(&self) -> Result<()> {
                self.matrix().check()
            }

            fn slots(&self, outputs: usize) -> Vec<(&'static str, Vec<usize>)> {
                self.matrix().slots(outputs)
            }

            fn sums(&self, seen: &MetricBatch) -> Vec<Tensor> {
                self.matrix().sums(seen)
            }

            fn results(&self, sums: &[Vec<f64>]) -> Vec<f64> {
                self.matrix().results(sums)
            }
        })*
    };
}

// Each metric with its arguments, lists in brackets.
overlaps! {
    IoU: num_classes, ignore_class, sparse_y_true, sparse_y_pred, axis, [target_class_ids];
    MeanIoU: num_classes, ignore_class, sparse_y_true, sparse_y_pred, axis;
    OneHotIoU: num_classes, ignore_class, sparse_y_pred, axis, [target_class_ids];
    OneHotMeanIoU: num_classes, ignore_class, sparse_y_pred, axis;
    BinaryIoU;
}

arguments! {
    /// Mean intersection over union of some classes.
    #[serde(skip_serializing_none)]
    pub struct IoU {
        /// Number of classes. Default: the number of model outputs; Keras requires it.
        pub num_classes: Option<usize> = None,
        /// Classes to average. Default: all; Keras requires them.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub target_class_ids: Vec<usize> = Vec::new(),
        /// Label class to ignore.
        pub ignore_class: Option<i64> = None,
        /// Whether labels are class indices, not one value per class.
        pub sparse_y_true: bool = true,
        /// Whether predictions are class indices, not one score per class.
        pub sparse_y_pred: bool = true,
        /// Axis of the scores. Keras: −1.
        pub axis: i64 = -1,
    }
}

arguments! {
    /// Mean intersection over union of all classes.
    #[serde(skip_serializing_none)]
    pub struct MeanIoU {
        /// Number of classes. Default: the number of model outputs; Keras requires it.
        pub num_classes: Option<usize> = None,
        /// Label class to ignore.
        pub ignore_class: Option<i64> = None,
        /// Whether labels are class indices, not one value per class.
        pub sparse_y_true: bool = true,
        /// Whether predictions are class indices, not one score per class.
        pub sparse_y_pred: bool = true,
        /// Axis of the scores. Keras: −1.
        pub axis: i64 = -1,
    }
}

arguments! {
    /// Mean intersection over union of some classes, for one-hot labels.
    #[serde(skip_serializing_none)]
    pub struct OneHotIoU {
        /// Number of classes. Default: the number of model outputs; Keras requires it.
        pub num_classes: Option<usize> = None,
        /// Classes to average. Default: all; Keras requires them.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub target_class_ids: Vec<usize> = Vec::new(),
        /// Label class to ignore.
        pub ignore_class: Option<i64> = None,
        /// Whether predictions are class indices, not one score per class.
        pub sparse_y_pred: bool = false,
        /// Axis of the scores. Keras: −1.
        pub axis: i64 = -1,
    }
}

arguments! {
    /// Mean intersection over union of all classes, for one-hot labels.
    #[serde(skip_serializing_none)]
    pub struct OneHotMeanIoU {
        /// Number of classes. Default: the number of model outputs; Keras requires it.
        pub num_classes: Option<usize> = None,
        /// Label class to ignore.
        pub ignore_class: Option<i64> = None,
        /// Whether predictions are class indices, not one score per class.
        pub sparse_y_pred: bool = false,
        /// Axis of the scores. Keras: −1.
        pub axis: i64 = -1,
    }
}

arguments! {
    /// Mean intersection over union of labels 0 and 1.
    pub struct BinaryIoU {
        /// Classes to average. Keras: both.
        pub target_class_ids: Vec<usize> = vec![0, 1],
        /// Scores of at least this count as 1. Keras: 0.5.
        pub threshold: f64 = 0.5,
    }
}

impl BinaryIoU {
    fn matrix(&self) -> IouConfig<'_> {
        IouConfig {
            num_classes: Some(2),
            target_class_ids: &self.target_class_ids,
            sparse_y_true: true,
            sparse_y_pred: true,
            axis: -1,
            threshold: Some(self.threshold),
            ..IouConfig::default()
        }
    }
}
