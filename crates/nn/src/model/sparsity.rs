//! Magnitude pruning during training: sparsity schedule and mask selection.

use crate::json::{Deserialize, Serialize};
use crate::layer::adapter::is_adapter;
use crate::name_pattern::means;
use crate::setters::field_setters;
use systole_ir::{Error, ErrorKind, Result};

/// Prefix of the masks' names among the optimizer slots.
pub(crate) const MASK: &str = "pruning_mask/";

/// Fraction of zero weights (sparsity) as a function of the step. Source: TF-MOT.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub enum PruningSchedule {
    /// Constant sparsity from a step on.
    ConstantSparsity {
        /// Fraction of zero weights.
        target_sparsity: f64,
    },
    /// From an initial to a final sparsity: `final + (initial − final) · (1 − progress)^power`.
    PolynomialDecay {
        /// Sparsity at `begin_step`.
        initial_sparsity: f64,
        /// Sparsity at `end_step`.
        final_sparsity: f64,
        /// Exponent; larger values prune earlier. Default: 3.
        power: f64,
    },
}

/// Magnitude pruning during training, like TF-MOT's `prune_low_magnitude`: the smallest weights become and stay zero.
///
/// From `begin_step` to `end_step`, before every `frequency`-th step, the weights with the smallest absolute values get
/// a mask of zeros, per `kernel` or `embeddings` or over all of them. Each step multiplies the weights by their masks
/// after the optimizer's update. Backups contain the masks. A saved model has plain weights with zeros, so there is
/// nothing to strip.
///
/// ```
/// # use systole_data::Dataset;
/// # use systole_ir::Literal;
/// use systole_nn::{layers::dense, loss::mean_squared_error, optimizer::sgd, Compile, Fit, Model, Pruning};
/// # let x = Literal::from_slice([4, 2], &[0f32, 1., 2., 3., 4., 5., 6., 7.])?;
/// # let y = Literal::from_slice([4], &[1f32, 2., 3., 4.])?;
/// # let data = Dataset::from_tensor_slices([("x", x), ("label", y)])?.batch(2);
/// let mut model = Model::sequential([dense(8), dense(1)]);
/// let pruning = Some(Pruning::constant_sparsity(0.5).frequency(2));
/// model.compile(Compile { optimizer: sgd(0.01), loss: mean_squared_error(), pruning, ..Default::default() })?;
/// model.fit(&data, Fit { epochs: 2, ..Default::default() })?;
/// assert!(model.sparsity()?.iter().all(|layer| layer.zeros * 2 == layer.weights));
/// # Ok::<(), systole_ir::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pruning {
    /// Sparsity schedule.
    pub schedule: PruningSchedule,
    /// First step with pruning. Default: 0.
    pub begin_step: u64,
    /// Last step at which masks are updated; `None` updates them to the end.
    pub end_step: Option<u64>,
    /// Number of steps between mask updates. Default: 100.
    pub frequency: u64,
    /// Whether weights are ranked over all layers together instead of per layer. Default: false.
    pub global: bool,
    /// `[m, n]` structured sparsity: the m smallest of every n consecutive weights along the inputs are zero,
    /// regardless of the schedule. Only for kernels with two or four dimensions. Default: none.
    pub sparsity_m_by_n: Option<[usize; 2]>,
    /// Layers to prune, by path or its last component; `*` is a wildcard. Default: all with a `kernel` or `embeddings`.
    pub layers: Vec<String>,
    /// Whether whole output channels of convolutions and dense layers are pruned: those with the smallest sum of
    /// absolute weights, with their biases and normalization. [`Model::remove_channels`](crate::Model::remove_channels)
    /// removes them. Default: false.
    #[serde(default)]
    pub channels: bool,
}

field_setters! {
    impl Pruning {
        /// Sets the first training step with pruning.
        begin_step(begin_step: u64);
        /// Sets the last training step at which pruning masks are updated.
        end_step(end_step: u64) => Some(end_step);
        /// Sets the number of steps between updates of the pruning masks.
        frequency(frequency: u64);
        /// Sets whether pruning ranks the weights of all layers together.
        global(global: bool);
        /// Sets whether pruning removes whole channels.
        channels(channels: bool);
        /// Sets the layers to prune.
        layers(layers: &[&str]) => layers.iter().map(|l| l.to_string()).collect();
    }
}

impl Pruning {
    fn of(schedule: PruningSchedule, end_step: Option<u64>) -> Pruning {
        let layers = vec!["*".into()];
        Pruning {
            schedule,
            begin_step: 0,
            end_step,
            frequency: 100,
            global: false,
            sparsity_m_by_n: None,
            layers,
            channels: false,
        }
    }

    /// Prunes this fraction of the weights from the first step on: TF-MOT's `ConstantSparsity`.
    pub fn constant_sparsity(target_sparsity: f64) -> Pruning {
        Pruning::of(PruningSchedule::ConstantSparsity { target_sparsity }, None)
    }

    /// Increases the sparsity up to `end_step`: TF-MOT's `PolynomialDecay` with power 3.
    pub fn polynomial_decay(initial_sparsity: f64, final_sparsity: f64, end_step: u64) -> Pruning {
        let schedule = PruningSchedule::PolynomialDecay { initial_sparsity, final_sparsity, power: 3.0 };
        Pruning::of(schedule, Some(end_step))
    }

    /// Sets m:n structured sparsity along the inputs; GPUs accelerate 2 of 4.
    pub fn sparsity_m_by_n(self, m: usize, n: usize) -> Pruning {
        Pruning { sparsity_m_by_n: Some([m, n]), ..self }
    }

    /// Rejects invalid pruning arguments.
    pub fn check(&self) -> Result<()> {
        self.wrong().map_or(Ok(()), |(key, what, hint)| {
            Err(Error::new(ErrorKind::Config, what).at(format!("{key} of pruning")).hint(hint))
        })
    }

    /// Returns the first invalid pruning argument, the problem, and a hint.
    pub fn wrong(&self) -> Option<(&'static str, String, &'static str)> {
        let parts = match &self.schedule {
            PruningSchedule::ConstantSparsity { target_sparsity } => {
                vec![("target_sparsity", *target_sparsity)]
            }
            PruningSchedule::PolynomialDecay { initial_sparsity, final_sparsity, .. } => {
                vec![("initial_sparsity", *initial_sparsity), ("final_sparsity", *final_sparsity)]
            }
        };
        if let Some((key, part)) = parts.into_iter().find(|(_, part)| !(0.0..1.0).contains(part)) {
            return Some((
                key,
                format!("invalid {key} {part}"),
                "use a fraction of the weights, from 0 to below 1",
            ));
        }
        if self.frequency == 0 {
            return Some(("frequency", "`frequency` is 0".into(), "use a number of steps of at least 1"));
        }
        if let PruningSchedule::PolynomialDecay { power, .. } = self.schedule {
            if !(power > 0.0 && power.is_finite()) {
                return Some((
                    "power",
                    format!("invalid power {power}"),
                    "use a number above 0: 3 in TF-MOT",
                ));
            }
            if self.end_step.is_none() {
                let what = "PolynomialDecay has no end_step".to_string();
                return Some(("end_step", what, "set the step at which final_sparsity is reached"));
            }
        }
        if self.end_step.is_some_and(|end| end < self.begin_step) {
            let what = format!("end_step is before begin_step {}", self.begin_step);
            return Some(("end_step", what, "set end_step to at least begin_step"));
        }
        if self.channels && (self.global || self.sparsity_m_by_n.is_some()) {
            return Some((
                "channels",
                "`channels` excludes `global` and `sparsity_m_by_n`: channels are ranked per layer".into(),
                "remove global and sparsity_m_by_n, or channels",
            ));
        }
        match self.sparsity_m_by_n {
            Some([m, n]) if m == 0 || m >= n => Some((
                "sparsity_m_by_n",
                format!("invalid sparsity_m_by_n [{m}, {n}]"),
                "use fewer zeros than weights: [2, 4]",
            )),
            Some(_) if self.global => Some((
                "global",
                "global cannot be combined with sparsity_m_by_n: its blocks are ranked separately".into(),
                "remove global or sparsity_m_by_n",
            )),
            _ => None,
        }
    }

    /// Whether masks are updated before this step.
    pub(crate) fn is_due(&self, step: u64) -> bool {
        let is_over = self.end_step.is_some_and(|end| step > end);
        step >= self.begin_step && !is_over && (step - self.begin_step).is_multiple_of(self.frequency)
    }

    /// Returns the sparsity from this step on.
    pub fn sparsity_at(&self, step: u64) -> f64 {
        match self.schedule {
            PruningSchedule::ConstantSparsity { target_sparsity } => target_sparsity,
            PruningSchedule::PolynomialDecay { initial_sparsity, final_sparsity, power } => {
                let whole = self.end_step.unwrap_or(step).saturating_sub(self.begin_step).max(1);
                let gone = step.saturating_sub(self.begin_step) as f64 / whole as f64;
                final_sparsity + (initial_sparsity - final_sparsity) * (1.0 - gone.min(1.0)).powf(power)
            }
        }
    }

    /// Whether a weight with this path and shape is pruned.
    pub(crate) fn prunes(&self, path: &str, shape: &[usize]) -> bool {
        let (layer, name) = path.rsplit_once('/').unwrap_or(("", path));
        let is_kernel = name.ends_with("kernel") || name == "embeddings";
        let fits = match self.sparsity_m_by_n {
            Some(_) => [2, 4].contains(&shape.len()),
            None => shape.len() > 1,
        };
        is_kernel && fits && !is_adapter(path) && self.layers.iter().any(|pattern| means(pattern, layer))
    }

    /// Returns a mask per weight: 1 keeps, 0 prunes the smallest ones.
    pub(crate) fn masks(&self, weights: &[(&[f32], &[usize])], step: u64) -> Vec<Vec<f32>> {
        if let Some([m, n]) = self.sparsity_m_by_n {
            return weights.iter().map(|(w, shape)| blocks(w, shape, m, n)).collect();
        }
        let part = self.sparsity_at(step);
        if !self.global {
            return weights.iter().map(|(w, _)| least(w, part)).collect();
        }
        let all: Vec<f32> = weights.iter().flat_map(|(w, _)| w.iter().copied()).collect();
        let mask = least(&all, part);
        let mut rest = &mask[..];
        let own = weights.iter().map(|(w, _)| {
            let (own, after) = rest.split_at(w.len());
            rest = after;
            own.to_vec()
        });
        own.collect()
    }
}

/// Returns 0 for the smallest fraction `part` of the weights (the first ones on ties) and 1 for the others.
fn least(w: &[f32], part: f64) -> Vec<f32> {
    let zeros = w.len() - ((w.len() as f64 * (1.0 - part)).round() as usize).min(w.len());
    let mut order: Vec<usize> = (0..w.len()).collect();
    let mut mask = vec![1.0; w.len()];
    if zeros > 0 && zeros < w.len() {
        order.select_nth_unstable_by(zeros, |&a, &b| w[a].abs().total_cmp(&w[b].abs()).then(a.cmp(&b)));
    }
    order.iter().take(zeros).for_each(|&i| mask[i] = 0.0);
    mask
}

/// `w: f32[…, in, out]`: 0 for the m smallest of every n along the inputs; an incomplete last block is kept.
fn blocks(w: &[f32], shape: &[usize], m: usize, n: usize) -> Vec<f32> {
    let mut mask = vec![1.0; w.len()];
    let [.., inputs, out] = *shape else { return mask };
    for matrix in 0..w.len() / (inputs * out).max(1) {
        for (block, column) in (0..inputs / n).flat_map(|block| (0..out).map(move |column| (block, column))) {
            let place = |k: usize| (matrix * inputs + block * n + k) * out + column;
            let mut order: Vec<usize> = (0..n).map(place).collect();
            order.sort_by(|&a, &b| w[a].abs().total_cmp(&w[b].abs()).then(a.cmp(&b)));
            order.iter().take(m).for_each(|&i| mask[i] = 0.0);
        }
    }
    mask
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schedules_are_tf_mots() {
        let p = Pruning::polynomial_decay(0.2, 0.8, 1100).begin_step(100);
        // TF-MOT's PolynomialDecay: (initial − final) · (1 − p)³ + final.
        for (step, part) in [(100, 0.2), (600, 0.725), (1100, 0.8), (5000, 0.8)] {
            assert!((p.sparsity_at(step) - part).abs() < 1e-12, "{step}");
        }
        let due: Vec<u64> = (0..1500).filter(|&s| p.is_due(s)).collect();
        assert_eq!((due[0], due[1], due.len()), (100, 200, 11));
        assert_eq!(Pruning::constant_sparsity(0.5).sparsity_at(3), 0.5);
    }

    #[test]
    fn the_least_are_masked() {
        let w: &[f32] = &[3.0, -1.0, 0.5, -4.0, 2.0, 2.0, 1.0, 0.25];
        let by = |p: &Pruning| p.masks(&[(w, &[4, 2])], 0).swap_remove(0);
        assert_eq!(by(&Pruning::constant_sparsity(0.5)), [1., 0., 0., 1., 1., 1., 0., 0.]);
        // Along the inputs: columns 3, 0.5, 2, 1 and −1, −4, 2, 0.25.
        let blocks = by(&Pruning::constant_sparsity(0.5).sparsity_m_by_n(2, 4));
        assert_eq!(blocks, [1., 0., 0., 1., 1., 1., 0., 0.]);
        let both = [(w, &[4usize, 2][..]), (&[0.1, 9.0][..], &[1, 2][..])];
        let global = Pruning::constant_sparsity(0.2).global(true).masks(&both, 0);
        assert_eq!((global[0].iter().sum::<f32>(), &global[1][..]), (7.0, &[0.0, 1.0][..]));
    }
}
