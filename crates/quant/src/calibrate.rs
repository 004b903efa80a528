//! Calibration: records tensor values on samples and chooses the quantization range of each tensor (min-max,
//! percentile, entropy, MSE).

use crate::float_eval::{FloatEvaluator, TensorQuery, made};
use crate::tflite_program::GraphEngine;
use std::collections::BTreeMap;
use systole_cpu::CpuBackend;
use systole_ir::{DType, Error, ErrorKind, Literal, Result, ResultExt, ensure, err};
use systole_nn::with_defaults;
use systole_tflite::{TfliteInterpreter, TfliteModel};

/// Number of histogram bins.
const BINS: usize = 2048;

/// How a quantization range is chosen from the observed values: min-max, percentile, entropy or MSE.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub enum RangeMethod {
    /// From the minimum to the maximum.
    #[default]
    MinMax,
    /// Keeps this percentage of the values, without outliers.
    Percentile(f64),
    /// Minimizes the Kullback-Leibler divergence, like TensorRT's calibration (2017).
    Entropy,
    /// Minimizes the mean squared error.
    Mse,
}

with_defaults! {
    /// Settings of int8 calibration.
    #[derive(Clone, Copy, PartialEq, Debug)]
    pub struct Calibration {
        /// Range selection method.
        pub method: RangeMethod = RangeMethod::MinMax,
        /// Number of threads when samples run in the interpreter. The ranges do not depend on it.
        pub threads: usize = 1,
        /// Evaluator of the float graph: the CPU engine, which processes batches, or the interpreter.
        pub engine: GraphEngine = GraphEngine::Fast,
    }
}

/// Quantization ranges of a graph's tensors.
#[derive(Clone, PartialEq, Debug)]
pub struct TensorRanges {
    /// Chosen range of each float tensor that is an input or computed.
    pub chosen: Vec<Option<(f32, f32)>>,
    /// Observed range.
    pub seen: Vec<Option<(f32, f32)>>,
    /// Fraction of the observed values outside the chosen range.
    pub clipped: Vec<f64>,
    /// Trained weight scales (QAT), by weight tensor: one, or one per channel. Other scales follow from the largest
    /// weight.
    pub steps: BTreeMap<usize, Vec<f32>>,
}

impl TensorRanges {
    fn none() -> TensorRanges {
        TensorRanges { chosen: Vec::new(), seen: Vec::new(), clipped: Vec::new(), steps: BTreeMap::new() }
    }
}

impl Calibration {
    /// Computes the ranges of a float graph on `samples`, each an input `f32[1, …]`.
    ///
    /// # Errors
    /// If there are no samples, one does not match the input, all inputs are 0, or a value is NaN or infinite; names
    /// the tensor.
    pub fn ranges(&self, model: &TfliteModel, samples: &[Literal]) -> Result<TensorRanges> {
        self.ranges_of_inputs(model, &samples.iter().map(|x| vec![x.clone()]).collect::<Vec<_>>())
    }

    /// Like [`Calibration::ranges`], for a graph with several inputs: each sample has one array per input.
    pub fn ranges_of_inputs(&self, model: &TfliteModel, samples: &[Vec<Literal>]) -> Result<TensorRanges> {
        if samples.is_empty() {
            return Err(err!(Data, "there are no calibration samples").hint("pass at least one sample"));
        }
        let seen = self.seen(model, samples)?;
        for &i in &model.inputs {
            if seen[i] == Some((0.0, 0.0)) {
                return Err(err!(Data, "all values of the calibration data are 0")
                    .at(format!("input {}", model.tensor(i)?.name))
                    .hint_command("calibrate on representative samples: --data-dir, --samples"));
            }
        }
        if self.method == RangeMethod::MinMax {
            return Ok(TensorRanges {
                chosen: seen.clone(),
                clipped: vec![0.0; seen.len()],
                seen,
                ..TensorRanges::none()
            });
        }
        let histograms = self.histograms(model, samples, &seen)?;
        let clipped = vec![0.0; seen.len()];
        let mut ranges = TensorRanges { chosen: seen.clone(), clipped, seen, ..TensorRanges::none() };
        for (i, bins) in histograms.iter().enumerate() {
            let Some(range) = ranges.seen[i].filter(|(low, high)| high > low) else { continue };
            let h = Histogram { bins, range };
            let chosen = h.choose(self.method);
            ranges.chosen[i] = Some(chosen);
            ranges.clipped[i] = h.outside(chosen);
        }
        Ok(ranges)
    }

    /// Compiles a graph whose results describe all computed float tensors, if the engine supports it.
    fn on_engine(
        &self,
        model: &TfliteModel,
        wanted: TensorQuery,
        samples: usize,
    ) -> Option<(Vec<usize>, FloatEvaluator)> {
        let tensors = made(model);
        if self.engine == GraphEngine::Reference || tensors.is_empty() {
            return None;
        }
        let floats = FloatEvaluator::new(CpuBackend::new().ok()?, model, &tensors, wanted, samples).ok()?;
        Some((tensors, floats))
    }

    /// Returns the observed ranges from the engine; `None` if the interpreter must find a faulty sample.
    fn seen_fast(&self, model: &TfliteModel, samples: &[Vec<Literal>]) -> Option<Vec<Option<(f32, f32)>>> {
        let (tensors, floats) = self.on_engine(model, TensorQuery::Ends, samples.len())?;
        let mut all = vec![None; model.tensors.len()];
        let mut add = |t: usize, low: f32, high: f32| {
            let (least, greatest) = all[t].unwrap_or((f32::INFINITY, f32::NEG_INFINITY));
            all[t] = Some((low.min(least), high.max(greatest)));
            low.is_finite() && high.is_finite()
        };
        let mut is_finite = true;
        for (i, x) in samples.iter().flat_map(|sample| model.inputs.iter().zip(sample)) {
            // Token ids have no range.
            let values = if x.dtype() == DType::F32 { x.as_slice::<f32>().ok()? } else { &[] };
            for &v in values {
                is_finite &= add(*i, v, v);
            }
        }
        let ran = floats.run(samples, |_, ends| {
            for (&t, ends) in tensors.iter().zip(ends.chunks_exact(2)) {
                let [low, high] =
                    [&ends[0], &ends[1]].map(|x| x.to_f32s().first().copied().unwrap_or(f32::NAN));
                is_finite &= add(t, low, high);
            }
            Ok(())
        });
        (ran.is_ok() && is_finite).then_some(all)
    }

    fn seen(&self, model: &TfliteModel, samples: &[Vec<Literal>]) -> Result<Vec<Option<(f32, f32)>>> {
        if let Some(all) = self.seen_fast(model, samples) {
            return Ok(all);
        }
        let n = model.tensors.len();
        let parts = self.gather(
            model,
            samples,
            || vec![None; n],
            |all: &mut Vec<Option<(f32, f32)>>, i, x| {
                let (low, high) = all[i].unwrap_or((f32::INFINITY, f32::NEG_INFINITY));
                let mut range = (low, high);
                for &v in x {
                    ensure!(v.is_finite(), not_finite(model, i));
                    range = (range.0.min(v), range.1.max(v));
                }
                all[i] = Some(range);
                Ok(())
            },
        )?;
        let join = |a: Option<(f32, f32)>, b: Option<(f32, f32)>| match (a, b) {
            (Some(a), Some(b)) => Some((a.0.min(b.0), a.1.max(b.1))),
            (a, b) => a.or(b),
        };
        Ok(parts
            .into_iter()
            .fold(vec![None; n], |all, part| all.into_iter().zip(part).map(|(a, b)| join(a, b)).collect()))
    }

    fn histograms(
        &self,
        model: &TfliteModel,
        samples: &[Vec<Literal>],
        seen: &[Option<(f32, f32)>],
    ) -> Result<Vec<Vec<u64>>> {
        let n = model.tensors.len();
        let add = |all: &mut Vec<Vec<u64>>, i: usize, x: &[f32]| {
            let Some((low, high)) = seen[i].filter(|(low, high)| high > low) else { return Ok(()) };
            all[i].resize(BINS, 0);
            let factor = BINS as f64 / (f64::from(high) - f64::from(low));
            for &v in x {
                let bin = ((f64::from(v) - f64::from(low)) * factor) as usize;
                all[i][bin.min(BINS - 1)] += 1;
            }
            Ok(())
        };
        if let Some((tensors, floats)) = self.on_engine(model, TensorQuery::Values, samples.len()) {
            let mut all = vec![Vec::new(); n];
            for (i, x) in samples.iter().flat_map(|sample| model.inputs.iter().zip(sample)) {
                if x.dtype() == DType::F32 {
                    add(&mut all, *i, x.as_slice::<f32>()?)?;
                }
            }
            floats.run(samples, |there, made| {
                for (&t, y) in tensors.iter().zip(made) {
                    let values = y.as_slice::<f32>()?;
                    add(&mut all, t, &values[..values.len() / floats.batch() * there])?;
                }
                Ok(())
            })?;
            return Ok(all);
        }
        let parts = self.gather(model, samples, || vec![Vec::new(); n], add)?;
        let mut all = vec![Vec::new(); n];
        for (i, bins) in parts.into_iter().flat_map(|p| p.into_iter().enumerate()) {
            let sums: &mut Vec<u64> = &mut all[i];
            sums.resize(sums.len().max(bins.len()), 0);
            sums.iter_mut().zip(&bins).for_each(|(sum, b)| *sum += b);
        }
        Ok(all)
    }

    /// Accumulates statistics of the graph's float tensors on several threads.
    fn gather<A: Send>(
        &self,
        model: &TfliteModel,
        samples: &[Vec<Literal>],
        new: impl Fn() -> A + Sync,
        add: impl Fn(&mut A, usize, &[f32]) -> Result<()> + Sync,
    ) -> Result<Vec<A>> {
        let interpreter = TfliteInterpreter::new(model)?;
        let per = samples.len().div_ceil(self.threads.max(1)).max(1);
        let work = |part: &[Vec<Literal>], first: usize| {
            let mut all = new();
            for (n, sample) in part.iter().enumerate() {
                let mut failed = None;
                let each = |i: usize, x: &Literal| {
                    if let (None, Ok(x)) = (&failed, x.as_slice::<f32>()) {
                        failed = add(&mut all, i, x).err();
                    }
                };
                let ran = interpreter.run_with(sample, each);
                let place = || format!("calibration sample {}", first + n);
                failed.map_or(Ok(()), Err).and(ran.map(drop)).at(place)?;
            }
            Ok(all)
        };
        std::thread::scope(|scope| {
            let threads: Vec<_> = samples
                .chunks(per)
                .enumerate()
                .map(|(n, part)| {
                    scope.spawn({
                        let work = &work;
                        move || work(part, n * per)
                    })
                })
                .collect();
            let defect = || err!(Bug, "a calibration thread ended early");
            threads.into_iter().map(|t| t.join().map_err(|_| defect())?).collect()
        })
    }
}

fn not_finite(model: &TfliteModel, tensor: usize) -> Error {
    let name = model.tensors.get(tensor).map_or("", |t| t.name.as_str());
    let (what, hint) = match model.inputs.contains(&tensor) {
        true => ("the calibration data contains NaN or infinite values", "remove them from the data"),
        false => (
            "it has NaN or infinite values, so it has no range",
            "load an earlier checkpoint, or check the weights: the model's outputs are not finite",
        ),
    };
    let kind = if model.inputs.contains(&tensor) { "input" } else { "layer" };
    Error::new(ErrorKind::Numeric, what).at(format!("{kind} {}", layer_of(name))).hint(hint)
}

/// Returns the layer name at the start of a tensor's name.
pub(crate) fn layer_of(tensor: &str) -> &str {
    tensor.split('/').next().unwrap_or(tensor)
}

/// Histogram of values with equal bins.
struct Histogram<'a> {
    bins: &'a [u64],
    range: (f32, f32),
}

impl Histogram<'_> {
    /// Returns the center of a bin.
    fn value(&self, bin: usize) -> f64 {
        let (low, high) = (f64::from(self.range.0), f64::from(self.range.1));
        low + (bin as f64 + 0.5) * (high - low) / self.bins.len() as f64
    }

    fn total(&self) -> f64 {
        self.bins.iter().sum::<u64>() as f64
    }

    fn outside(&self, (low, high): (f32, f32)) -> f64 {
        let inside = |v: f64| v >= low.into() && v <= high.into();
        let out: u64 =
            self.bins.iter().enumerate().filter(|(i, _)| !inside(self.value(*i))).map(|(_, n)| n).sum();
        out as f64 / self.total().max(1.0)
    }

    fn choose(&self, method: RangeMethod) -> (f32, f32) {
        match method {
            RangeMethod::MinMax => self.range,
            RangeMethod::Percentile(percent) => self.percentile(percent),
            RangeMethod::Entropy => self.entropy(),
            RangeMethod::Mse => self.least_error(),
        }
    }

    fn percentile(&self, percent: f64) -> (f32, f32) {
        let tail = self.total() * (1.0 - percent / 100.0).clamp(0.0, 1.0) / 2.0;
        let edge = |bins: &mut dyn Iterator<Item = usize>| {
            let mut sum = 0.0;
            for i in bins {
                sum += self.bins[i] as f64;
                if sum > tail {
                    return i;
                }
            }
            0
        };
        let (first, last) = (edge(&mut (0..self.bins.len())), edge(&mut (0..self.bins.len()).rev()));
        let width = (f64::from(self.range.1) - f64::from(self.range.0)) / self.bins.len() as f64;
        let low = if first == 0 { self.range.0 } else { (self.value(first) - width / 2.0) as f32 };
        let high =
            if last + 1 == self.bins.len() { self.range.1 } else { (self.value(last) + width / 2.0) as f32 };
        if low < high { (low, high) } else { self.range }
    }

    /// Returns the range with the lowest `cost` among ranges that shrink towards 0.
    fn best(&self, cost: impl Fn((f64, f64)) -> f64) -> (f32, f32) {
        let (low, high) = (f64::from(self.range.0.min(0.0)), f64::from(self.range.1.max(0.0)));
        let factors = (0..80).map(|i| 1.0 - f64::from(i) / 100.0);
        let mut best = (f64::INFINITY, self.range);
        for f in factors {
            let range = (low * f, high * f);
            let found = cost(range);
            if found < best.0 {
                best = (found, (range.0 as f32, range.1 as f32));
            }
        }
        best.1
    }

    fn least_error(&self) -> (f32, f32) {
        self.best(|(low, high)| {
            let step = (high - low) / 255.0;
            let error = |i: usize| {
                let v = self.value(i);
                let q = ((v.clamp(low, high) - low) / step).round() * step + low;
                (v - q) * (v - q) * self.bins[i] as f64
            };
            (0..self.bins.len()).map(error).sum()
        })
    }

    /// Returns the range that minimizes the divergence of 256 quantized levels from the clipped distribution.
    fn entropy(&self) -> (f32, f32) {
        let total = self.total();
        self.best(|(low, high)| {
            let step = (high - low) / 255.0;
            let mut levels = vec![(0.0f64, 0u32); 256];
            let mut reference = vec![0.0f64; self.bins.len()];
            let level = |v: f64| (((v - low) / step).round().max(0.0) as usize).min(255);
            for (i, &n) in self.bins.iter().enumerate() {
                let v = self.value(i).clamp(low, high);
                let folded = (((v - self.value(0)) / (self.value(1) - self.value(0))).round().max(0.0)
                    as usize)
                    .min(self.bins.len() - 1);
                reference[folded] += n as f64;
                if self.value(i) >= low && self.value(i) <= high && n > 0 {
                    let l = &mut levels[level(v)];
                    *l = (l.0 + n as f64, l.1 + 1);
                }
            }
            let kept: f64 = levels.iter().map(|l| l.0).sum();
            let one = |(i, &p): (usize, &f64)| {
                if p == 0.0 {
                    return 0.0;
                }
                let (sum, members) = levels[level(self.value(i).clamp(low, high))];
                let q = (sum / f64::from(members.max(1)) / kept.max(1.0)).max(1e-9);
                p / total * (p / total / q).ln()
            };
            reference.iter().enumerate().map(one).sum()
        })
    }
}

/// Whether a tensor has a range.
pub(crate) fn is_float(model: &TfliteModel, tensor: usize) -> bool {
    model.tensors.get(tensor).is_some_and(|t| t.ty.dtype == DType::F32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_end_at_the_edges_of_bins() {
        let h = Histogram { bins: &[2, 2, 2, 2], range: (-1.0, 3.0) };
        assert_eq!([0, 1, 2, 3].map(|i| h.value(i)), [-0.5, 0.5, 1.5, 2.5]);
        assert_eq!(h.choose(RangeMethod::MinMax), (-1.0, 3.0));
        assert_eq!(h.choose(RangeMethod::Percentile(100.0)), (-1.0, 3.0));
        // A quarter of the eight values is cut off at each end.
        assert_eq!(h.choose(RangeMethod::Percentile(50.0)), (0.0, 2.0));
        assert_eq!(h.outside((0.0, 2.0)), 0.5);
        assert_eq!(h.outside((-1.0, 2.0)), 0.25);
        assert_eq!(h.outside((-0.5, 2.5)), 0.0);
        assert_eq!(Histogram { bins: &[0, 0], range: (0.0, 1.0) }.outside((0.0, 0.0)), 0.0);
        // Outliers: one of 100 values at each end.
        let h = Histogram { bins: &[1, 0, 98, 1], range: (0.0, 8.0) };
        assert_eq!(h.choose(RangeMethod::Percentile(97.0)), (4.0, 6.0));
        assert_eq!(h.choose(RangeMethod::Percentile(99.0)), (0.0, 8.0));
    }

    /// Expected ranges from a NumPy program, which evaluates 80 candidate ranges and keeps the one with the minimum error.
    #[test]
    fn error_and_entropy_cut_off_an_outlier() {
        let bins: Vec<u64> =
            (0..2048).map(|i| if i == 2047 { 1 } else { 512u64.saturating_sub(i) }).collect();
        let h = Histogram { bins: &bins, range: (0.0, 8.0) };
        assert_eq!(h.choose(RangeMethod::Mse), (0.0, 6.88));
        assert_eq!(h.choose(RangeMethod::Entropy), (0.0, 2.0));
        // Every other bin; a range that cuts off values counts the remaining ones only.
        let odd: Vec<u64> = (0..512)
            .map(|i| {
                if i % 2 == 0 {
                    0
                } else if i < 128 {
                    100
                } else {
                    5
                }
            })
            .collect();
        assert_eq!(Histogram { bins: &odd, range: (0.0, 8.0) }.choose(RangeMethod::Entropy), (0.0, 7.84));
        let even: Vec<u64> = (0..1024).map(|i| i % 7 + 1).collect();
        let h = Histogram { bins: &even, range: (-1.0, 3.0) };
        assert_eq!(h.choose(RangeMethod::Mse), (-1.0, 3.0));
        assert_eq!(h.choose(RangeMethod::Entropy), (-1.0, 3.0));
    }
}
