//! Expected calibration error (ECE): difference between confidence and accuracy.

use super::{MetricBatch, MetricRule, confusion::check_number, refused, share};
use crate::loss::{aligned, as_index};
use crate::setters::arguments;
use systole_ir::{DType, Result, Tensor};

arguments! {
    /// Expected calibration error: mean |confidence − accuracy| over bins of equal confidence width (Guo et al. 2017).
    pub struct ExpectedCalibrationError {
        /// Number of bins from 0 to 1.
        pub num_bins: usize = 15,
        /// Whether predictions are logits, not probabilities.
        pub from_logits: bool = false,
    }
}

impl ExpectedCalibrationError {
    /// Returns the confidence of each sample and whether it is correct, `→ f32[N], f32[N]`. With a single output: its
    /// value and the label.
    fn answers(&self, seen: &MetricBatch) -> Option<(Tensor, Tensor)> {
        let p = seen.pred.value.convert(DType::F32);
        let n = p.shape().elements();
        if p.rank() == 0 || p.dim(-1) == 1 {
            let (t, p) = seen.same_shape(&if self.from_logits { p.logistic() } else { p })?;
            return Some((p.reshape([n]), t.reshape([n])));
        }
        let (last, classes) = (p.rank() - 1, p.dim(-1));
        let p = if self.from_logits { p.softmax() } else { p };
        let label = match seen.y_true.shape().elements() {
            e if e == n && seen.y_true.rank() == p.rank() => seen.y_true.convert(DType::F32).argmax(last),
            e if e == n / classes => as_index(seen.y_true).convert(DType::I32),
            _ => {
                refused(
                    seen,
                    "expected class indices or one-hot labels",
                    "give one label for each row of predictions",
                );
                return None;
            }
        };
        let rows = n / classes;
        let right = label.reshape([rows]).equal(&p.argmax(last).reshape([rows])).convert(DType::F32);
        Some((p.reduce_max(&[last]).reshape([rows]), right))
    }
}

impl MetricRule for ExpectedCalibrationError {
    fn check(&self) -> Result<()> {
        check_number("num_bins", self.num_bins, 1)
    }

    fn slots(&self, _: usize) -> Vec<(&'static str, Vec<usize>)> {
        ["count", "confidence", "right"].map(|name| (name, vec![self.num_bins])).to_vec()
    }

    fn sums(&self, seen: &MetricBatch) -> Vec<Tensor> {
        let Some((confidence, right)) = self.answers(seen) else {
            return vec![seen.pred.value.convert(DType::F64); 3];
        };
        let n = confidence.dim(0);
        let weight = match seen.weight {
            Some(w) if w.shape().elements() > 0 && n % w.shape().elements() == 0 => {
                let (samples, rest) = (w.shape().elements(), n / w.shape().elements());
                let wide = confidence.reshape([samples, rest]);
                aligned(&wide, &w.reshape([samples])).broadcast_to(wide.shape()).reshape([n])
            }
            _ => confidence.ones_like(),
        };
        // Bins are (i / n, (i + 1) / n]; a confidence of 0 is in the first.
        let bin = (&confidence * self.num_bins as f64).ceil() - 1.0;
        let bin = bin
            .clamp(&bin.scalar_like(0.0), &bin.scalar_like(self.num_bins as f64 - 1.0))
            .convert(DType::I32);
        let place = bin.one_hot(self.num_bins, DType::F32);
        let sum = |x: Tensor| (&place * x.reshape([n, 1])).sum(&[0]).convert(DType::F64);
        vec![sum(weight.clone()), sum(&weight * &confidence), sum(&weight * &right)]
    }

    fn results(&self, sums: &[Vec<f64>]) -> Vec<f64> {
        let [count, confidence, right] = sums else { return Vec::new() };
        let apart = confidence.iter().zip(right).map(|(c, r)| (c - r).abs()).sum();
        vec![share(apart, count.iter().sum())]
    }
}
