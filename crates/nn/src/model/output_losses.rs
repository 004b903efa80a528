//! Per-output losses, loss weights and metrics, as configured by [`Compile`].

use crate::did_you_mean::unknown;
use crate::layer::Cx;
use crate::loss::{Loss, Prediction};
use crate::metric::Metric;
use crate::model::architecture::Architecture;
use crate::model::compile::Compile;
use std::sync::Arc;
use systole_ir::{Error, ErrorKind, Result, Tensor, err};

/// Loss, loss weight and metrics of one output. Outputs without loss and metrics have none.
#[derive(Clone, Debug)]
pub(crate) struct OutputLoss {
    /// Index of the model's output.
    pub output: usize,
    /// Name of the output and of its label field.
    pub name: String,
    pub loss: Option<Loss>,
    /// Loss for soft labels (class probabilities).
    pub soft: Option<Loss>,
    /// Loss weight.
    pub loss_weight: Option<f64>,
    /// Metrics, and whether sample weights apply to them.
    pub metrics: Vec<(Metric, bool)>,
}

/// Losses and metrics of all outputs, in order.
#[derive(Clone, Debug, Default)]
pub(crate) struct OutputLosses {
    pub all: Arc<Vec<OutputLoss>>,
    /// Whether logs and labels are keyed by output name.
    pub by_name: bool,
}

/// Losses of a batch.
pub(crate) struct BatchLosses {
    /// `f32[]`: weighted sum of all losses.
    pub loss: Tensor,
    /// Unweighted loss per output, in order.
    pub each: Vec<Option<Tensor>>,
}

impl OutputLosses {
    /// Resolves the losses and metrics of a compiled model; empty for a custom training step.
    pub fn of(architecture: &Architecture, config: &Compile) -> Result<OutputLosses> {
        if config.train_step.is_some() {
            return Ok(OutputLosses::default());
        }
        let names = architecture.output_names();
        config.check_names(&names)?;
        let by_name = names.len() > 1;
        if by_name && config.soft_labels {
            let what = "soft labels (class probabilities) require a model with one output";
            return Err(Error::new(ErrorKind::Config, what).hint("train without mixup and cutmix"));
        }
        if by_name && !(config.metrics.is_empty() && config.weighted_metrics.is_empty()) {
            return Err(err!(Config, "cannot assign metrics to one of {} outputs", names.len())
                .hint(format!("use output_metrics with these names: {}", names.join(", "))));
        }
        let goal = |(output, name): (usize, &&str)| config.goal(output, name);
        let all: Vec<OutputLoss> = names.iter().enumerate().map(goal).collect();
        if all.iter().all(|goal| goal.loss.is_none()) {
            return Err(err!(Config, "no output of the model has a loss")
                .hint(format!("set a loss for one of these outputs: {}", names.join(", "))));
        }
        let is_asked = |goal: &OutputLoss| goal.loss.is_some() || !goal.metrics.is_empty();
        Ok(OutputLosses { all: Arc::new(all.into_iter().filter(is_asked).collect()), by_name })
    }

    /// Names of the label fields; empty if the single label has a conventional name.
    pub fn label_names(&self) -> Vec<String> {
        if self.by_name { self.all.iter().map(|goal| goal.name.clone()).collect() } else { Vec::new() }
    }

    /// Iterates over all metrics, unweighted ones first: index and settings of the output, the metric, and whether
    /// sample weights apply.
    pub fn metrics(&self) -> impl Iterator<Item = (usize, &OutputLoss, &(Metric, bool))> {
        let all = move |weighted: bool| {
            let of = self.all.iter().enumerate().flat_map(|(i, g)| g.metrics.iter().map(move |m| (i, g, m)));
            of.filter(move |(_, _, m)| m.1 == weighted)
        };
        all(false).chain(all(true))
    }

    /// Log names of the metrics, in order. Names are unique: a weighted metric whose name is taken is `weighted_…`,
    /// others are numbered. With several outputs the output's name comes first.
    pub fn metric_names(&self) -> Vec<String> {
        let prefixed = self.metrics().map(|(_, goal, (metric, weighted))| {
            let before = if self.by_name { format!("{}_", goal.name) } else { String::new() };
            (before, metric.name(), *weighted)
        });
        numbered(prefixed)
    }

    /// Returns the output losses that are logged separately: index and name.
    pub fn losses(&self) -> impl Iterator<Item = (usize, String)> {
        let apart = self.has_several_losses();
        let with_loss = self.all.iter().enumerate().filter(move |(_, goal)| apart && goal.loss.is_some());
        with_loss.map(|(i, goal)| (i, format!("{}_loss", goal.name)))
    }

    /// Whether the losses of several outputs are logged separately.
    pub fn has_several_losses(&self) -> bool {
        self.all.iter().filter(|goal| goal.loss.is_some()).count() > 1
    }

    /// Computes the losses of outputs with labels and sample weights, and adds the layers' penalties. With `soft`,
    /// labels may be class probabilities.
    pub fn outcome(
        &self,
        cx: &mut Cx,
        outputs: &[Tensor],
        (labels, weights): (&[Tensor], &[Tensor]),
        soft: bool,
    ) -> BatchLosses {
        let mut each = Vec::new();
        let mut total: Option<Tensor> = None;
        for (i, goal) in self.all.iter().enumerate() {
            let of = goal.soft.as_ref().filter(|_| soft).or(goal.loss.as_ref());
            let (Some(loss), Some(label), Some(y)) = (of, labels.get(i), outputs.get(goal.output)) else {
                each.push(None);
                continue;
            };
            let logits = cx.logits_of(y);
            let prediction = Prediction { value: y, logits: logits.as_ref() };
            let mask = cx.mask_of(y);
            let value = loss.value_of_counted(label, prediction, weights.get(i), mask.as_ref());
            let weighed = goal.loss_weight.map_or_else(|| value.clone(), |weight| &value * weight);
            total = Some(match total {
                Some(sum) => sum + weighed,
                None => weighed,
            });
            each.push(Some(value));
        }
        let none = || {
            let e = err!(Graph, "the batch contains no labels").hint("add a field `label`");
            cx.builder().scalar(systole_ir::DType::F32, 0.0).fail(e)
        };
        let total = total.unwrap_or_else(none);
        BatchLosses { loss: cx.with_penalties(&total, |_| true), each }
    }
}

/// Makes metric names unique, from prefix, name and whether the metric is weighted.
pub(crate) fn numbered<'a>(metrics: impl Iterator<Item = (String, &'a str, bool)>) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for (before, name, weighted) in metrics {
        let mut stem = format!("{before}{name}");
        if weighted && names.contains(&stem) {
            stem = format!("{before}weighted_{name}");
        }
        let numbered = (1..).map(|n: usize| format!("{stem}_{n}"));
        let free = std::iter::once(stem.clone()).chain(numbered).find(|name| !names.contains(name));
        names.extend(free);
    }
    names
}

impl Compile {
    fn check_names(&self, outputs: &[&str]) -> Result<()> {
        let given = [
            ("losses", self.losses.keys().collect::<Vec<_>>()),
            ("loss_weights", self.loss_weights.keys().collect()),
            ("output_metrics", self.output_metrics.keys().collect()),
            ("output_weighted_metrics", self.output_weighted_metrics.keys().collect()),
        ];
        for (argument, names) in given {
            if let Some(name) = names.into_iter().find(|name| !outputs.contains(&name.as_str())) {
                let what = format!("unknown output `{name}` in {argument}");
                return Err(unknown(&what, name, outputs));
            }
        }
        match self.loss_weights.iter().find(|(_, weight)| !weight.is_finite()) {
            Some((name, weight)) => Err(err!(Config, "invalid loss weight {weight} for output {name}")
                .hint("use a finite number as loss weight")),
            None => Ok(()),
        }
    }

    fn goal(&self, output: usize, name: &str) -> OutputLoss {
        let loss = match self.losses.is_empty() {
            true => Some(self.loss.clone()),
            false => self.losses.get(name).cloned(),
        };
        let by_name = self.output_metrics.get(name).into_iter().flatten();
        let plain = self.metrics.iter().chain(by_name).map(|m| (m.clone(), false));
        let by_name = self.output_weighted_metrics.get(name).into_iter().flatten();
        let weighted = self.weighted_metrics.iter().chain(by_name).map(|m| (m.clone(), true));
        OutputLoss {
            output,
            name: name.into(),
            soft: loss.as_ref().filter(|_| self.soft_labels).and_then(Loss::of_shares),
            loss,
            loss_weight: self.loss_weights.get(name).copied(),
            metrics: plain.chain(weighted).collect(),
        }
    }

    /// Checks the arguments of all losses and metrics.
    pub(crate) fn check_arguments(&self) -> Result<()> {
        self.loss.check()?;
        self.losses.values().try_for_each(Loss::check)?;
        let by_name = self.output_metrics.values().chain(self.output_weighted_metrics.values()).flatten();
        self.metrics.iter().chain(&self.weighted_metrics).chain(by_name).try_for_each(Metric::check)
    }
}
