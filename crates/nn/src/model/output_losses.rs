//! What is asked of a model's outputs: the loss, its weight and the metrics of each, by the names that [`Compile`] gives them.

use crate::did_you_mean::unknown;
use crate::layer::Cx;
use crate::loss::{Loss, Prediction};
use crate::metric::Metric;
use crate::model::architecture::Architecture;
use crate::model::compile::Compile;
use std::sync::Arc;
use systole_ir::{Error, ErrorKind, Result, Tensor};

/// What is asked of one output. One without loss and metrics has none.
#[derive(Clone, Debug)]
pub(crate) struct OutputLoss {
    /// Its place among the model's outputs.
    pub output: usize,
    /// Its name, which is also that of the field of its labels.
    pub name: String,
    pub loss: Option<Loss>,
    /// The loss of labels that are shares of classes.
    pub soft: Option<Loss>,
    /// How much the loss counts.
    pub loss_weight: Option<f64>,
    /// Metrics, and whether weights of samples weigh them.
    pub metrics: Vec<(Metric, bool)>,
}

/// What is asked of all outputs, in their order.
#[derive(Clone, Debug, Default)]
pub(crate) struct OutputLosses {
    pub all: Arc<Vec<OutputLoss>>,
    /// Whether logs and labels go by the names of outputs.
    pub by_name: bool,
}

/// What a batch came to.
pub(crate) struct BatchLosses {
    /// `f32[]`: all losses, each by its weight.
    pub loss: Tensor,
    /// Those of the outputs, not weighed; in the order of the goals.
    pub each: Vec<Option<Tensor>>,
}

impl OutputLosses {
    /// What a compiled model's outputs are to do; nothing where its step is the user's own.
    pub fn of(architecture: &Architecture, config: &Compile) -> Result<OutputLosses> {
        if config.train_step.is_some() {
            return Ok(OutputLosses::default());
        }
        let names = architecture.output_names();
        config.check_names(&names)?;
        let by_name = names.len() > 1;
        if by_name && config.soft_labels {
            let what = "labels that are shares of classes are of models with one output";
            return Err(Error::new(ErrorKind::Config, what).hint("train without mixup and cutmix"));
        }
        if by_name && !(config.metrics.is_empty() && config.weighted_metrics.is_empty()) {
            let what = format!("metrics do not say which of {} outputs they measure", names.len());
            return Err(Error::new(ErrorKind::Config, what)
                .hint(format!("give output_metrics by name: {}", names.join(", "))));
        }
        let goal = |(output, name): (usize, &&str)| config.goal(output, name);
        let all: Vec<OutputLoss> = names.iter().enumerate().map(goal).collect();
        if all.iter().all(|goal| goal.loss.is_none()) {
            return Err(Error::new(ErrorKind::Config, "no output of the model has a loss")
                .hint(format!("give one of: {}", names.join(", "))));
        }
        let is_asked = |goal: &OutputLoss| goal.loss.is_some() || !goal.metrics.is_empty();
        Ok(OutputLosses { all: Arc::new(all.into_iter().filter(is_asked).collect()), by_name })
    }

    /// The names of the fields with labels; empty where the one label has one of its usual names.
    pub fn label_names(&self) -> Vec<String> {
        if self.by_name { self.all.iter().map(|goal| goal.name.clone()).collect() } else { Vec::new() }
    }

    /// Which goal, the goal, and a metric of it with whether weights of samples weigh it: those that they do not first.
    pub fn metrics(&self) -> impl Iterator<Item = (usize, &OutputLoss, &(Metric, bool))> {
        let all = move |weighted: bool| {
            let of = self.all.iter().enumerate().flat_map(|(i, g)| g.metrics.iter().map(move |m| (i, g, m)));
            of.filter(move |(_, _, m)| m.1 == weighted)
        };
        all(false).chain(all(true))
    }

    /// The names that the metrics are logged by, in their order, each once: a weighted one whose name is taken is `weighted_…`,
    /// others are numbered. Of several outputs the output's name comes first.
    pub fn metric_names(&self) -> Vec<String> {
        let prefixed = self.metrics().map(|(_, goal, (metric, weighted))| {
            let before = if self.by_name { format!("{}_", goal.name) } else { String::new() };
            (before, metric.name(), *weighted)
        });
        numbered(prefixed)
    }

    /// Which goals have losses of their own in the log, and their names.
    pub fn losses(&self) -> impl Iterator<Item = (usize, String)> {
        let apart = self.has_several_losses();
        let with_loss = self.all.iter().enumerate().filter(move |(_, goal)| apart && goal.loss.is_some());
        with_loss.map(|(i, goal)| (i, format!("{}_loss", goal.name)))
    }

    /// Whether several losses are told apart.
    pub fn has_several_losses(&self) -> bool {
        self.all.iter().filter(|goal| goal.loss.is_some()).count() > 1
    }

    /// The losses of outputs with labels and weights of samples, in the order of the goals; `soft`: labels may be shares of classes.
    /// Penalties of layers are added.
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
            let e = Error::new(ErrorKind::Graph, "the batch has no labels").hint("add a field `label`");
            cx.builder().scalar(systole_ir::DType::F32, 0.0).fail(e)
        };
        let total = total.unwrap_or_else(none);
        BatchLosses { loss: cx.with_penalties(&total, |_| true), each }
    }
}

/// Names of metrics, each once: what comes before the name, the name, and whether weights of samples weigh it.
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
                let what = format!("{argument} is given for `{name}`, which is no output of the model");
                return Err(unknown(&what, name, outputs));
            }
        }
        match self.loss_weights.iter().find(|(_, weight)| !weight.is_finite()) {
            Some((name, weight)) => {
                let what = format!("the loss of output {name} cannot be weighed by {weight}");
                Err(Error::new(ErrorKind::Config, what).hint("give a finite number"))
            }
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

    /// All losses and metrics.
    pub(crate) fn check_arguments(&self) -> Result<()> {
        self.loss.check()?;
        self.losses.values().try_for_each(Loss::check)?;
        let by_name = self.output_metrics.values().chain(self.output_weighted_metrics.values()).flatten();
        self.metrics.iter().chain(&self.weighted_metrics).chain(by_name).try_for_each(Metric::check)
    }
}
