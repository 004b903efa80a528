//! Trains the tutorial's whole recipe, ResNet-50 and GPT-2 small on the device under test, and compares the tutorial's
//! network on several devices with one.

use super::args::CheckSize;
use super::run_checks::{
    DeviceCheck, NEAR_FIRST, NEAR_LAST, TUTORIAL, compiled, difference, median_ms, tutorial,
};
use crate::render::screen::number_of;
use serde_json::{Value, json};
use std::sync::Arc;
use systole_config::{ConfigDraft, RunConfig};
use systole_dist::Strategy;
use systole_ir::{Result, TensorType};
use systole_nn::{Batch, Fit, Model};
use systole_runtime::{Backend, backend};

/// Settings of a preset, as `--set` takes them.
type Settings = &'static [(&'static str, &'static str)];

/// A preset that is trained on the device and on the CPU.
pub(super) struct ModelCheck {
    /// Name of the section and of the preset.
    pub(super) name: &'static str,
    small: Settings,
}

/// Presets that are trained for a few steps, besides the tutorial's network.
pub(super) const MODELS: [ModelCheck; 2] = [
    ModelCheck {
        name: "resnet50",
        small: &[
            ("data.image_size", "[32, 32]"),
            ("model.depths", "[1, 1, 1, 1]"),
            ("model.width", "8"),
            ("model.classes", "10"),
            ("fit.batch_size", "4"),
        ],
    },
    ModelCheck {
        name: "gpt2-small",
        small: &[
            ("data.sequence_length", "16"),
            ("model.vocabulary_size", "256"),
            ("model.num_layers", "3"),
            ("model.num_heads", "2"),
            ("model.hidden_dim", "32"),
            ("model.intermediate_dim", "64"),
            ("model.max_sequence_length", "16"),
        ],
    },
];

/// Epochs and steps of the tutorial in the small size.
const SHORT_TUTORIAL: Settings = &[
    ("fit.epochs", "2"),
    ("fit.steps_per_epoch", "8"),
    ("fit.batch_size", "32"),
    ("data.test_samples", "200"),
];
/// The tutorial's own batch, epochs and steps, on the synthetic images of the preset `glyphs`.
const WHOLE_TUTORIAL: Settings =
    &[("fit.epochs", "5"), ("fit.steps_per_epoch", "60"), ("fit.batch_size", "1000")];
/// Steps of a model that are compared with the CPU.
const MODEL_STEPS: usize = 3;
/// Steps compared on several devices.
const SPREAD_STEPS: usize = 10;
/// Numbers of devices that are compared, if the device has them.
const COUNTS: [usize; 3] = [2, 4, 8];
const METRIC: &str = "sparse_categorical_accuracy";

impl DeviceCheck<'_> {
    /// Size of the models: as in the presets where an accelerator computes them, otherwise small.
    fn size(&self, device: &dyn Backend) -> CheckSize {
        let is_accelerator = ["tpu", "cuda"].contains(&device.name());
        self.args.size.unwrap_or(if is_accelerator { CheckSize::Full } else { CheckSize::Small })
    }

    /// Trains the tutorial's recipe through `fit`, with its input pipeline and validation.
    pub(super) fn tutorial(&self, device: &Arc<dyn Backend>) -> Result<Value> {
        let settings = match self.size(&**device) {
            CheckSize::Full => WHOLE_TUTORIAL,
            CheckSize::Small => SHORT_TUTORIAL,
        };
        let config = preset(TUTORIAL, settings)?;
        let data = config.load_data(|dir| dir)?;
        let mut model = compiled(&config, &config.sample_of(&data), device, Strategy::one_device())?;
        let steps = config.fit.steps_per_epoch;
        let fit = Fit {
            epochs: config.fit.epochs,
            steps_per_epoch: steps,
            validation: Some(config.test_pipeline(&data)),
            validation_freq: config.fit.epochs,
            verbose: 0,
            ..Fit::default()
        };
        let history = model.fit(&config.train_pipeline(&data), fit)?;
        let epochs = |name: &str| history.get(name);
        let tested = epochs(&format!("val_{METRIC}")).last().copied().unwrap_or(f64::NAN);
        let last: Vec<f32> = history.step_ms.iter().rev().take(steps.unwrap_or(1)).copied().collect();
        let ms = last.iter().sum::<f32>() / last.len().max(1) as f32;
        if !epochs("loss").iter().all(|loss| loss.is_finite()) {
            self.fail("tutorial", "the loss is not finite", json!({"losses": epochs("loss")}));
        }
        let summary = format!(
            "{} of {}: test accuracy {tested:.4}, {ms:.2} ms for a step of the last epoch",
            number_of(history.step_ms.len() as u64, "step"),
            number_of(config.fit.batch_size as u64, "sample"),
        );
        Ok(json!({
            "summary": summary, "losses": epochs("loss"), "accuracies": epochs(METRIC), "test_accuracy": tested,
            "ms_per_step": ms, "first_step_ms": history.step_ms.first(),
        }))
    }

    /// Trains a preset for a few steps on one synthetic batch on both devices, and measures the device's step.
    pub(super) fn model(&self, check: &ModelCheck, device: &Arc<dyn Backend>) -> Result<Value> {
        let size = self.size(&**device);
        let config = preset(check.name, if size == CheckSize::Small { check.small } else { &[] })?;
        let sample = config.usual_sample();
        let on = |device: &Arc<dyn Backend>| compiled(&config, &sample, device, Strategy::one_device());
        self.begin(&format!("{}: compiling", check.name));
        let mut model = on(device)?;
        let batch = config.synthetic_batch(&model)?;
        let compile_ms = model.device_batch_training(&batch)?.compile_ms();
        let own = self.curve(check.name, &mut model, &batch, MODEL_STEPS)?;
        self.begin(&format!("{}: speed", check.name));
        let mut step = model.device_batch_training(&batch)?;
        let ms = median_ms(|| step.run().and_then(|()| step.loss().map(drop)))?;
        let peak = step.report().peak_bytes;
        drop(model);
        self.begin(&format!("{}: on the CPU", check.name));
        let host = self.curve(check.name, &mut on(&backend("cpu")?)?, &batch, MODEL_STEPS)?;
        let (first, last) =
            (difference(own[0], host[0]), difference(own[MODEL_STEPS - 1], host[MODEL_STEPS - 1]));
        // NaN must fail.
        let is_near = first <= NEAR_FIRST && last <= NEAR_LAST;
        if !is_near {
            let what = format!(
                "losses differ by {:.1} % at the start, {:.1} % at the end",
                100.0 * first,
                100.0 * last
            );
            self.fail(check.name, &what, json!({"losses": own, "losses_of_the_cpu": host}));
        }
        let summary = format!(
            "{}, {} of {}: losses within {:.2} % of the CPU's, {ms:.2} ms a step",
            size.name(),
            number_of(MODEL_STEPS as u64, "step"),
            number_of(config.fit.batch_size as u64, "sample"),
            100.0 * first.max(last),
        );
        Ok(json!({
            "summary": summary, "size": size.name(), "losses": own, "losses_of_the_cpu": host, "ms_per_step": ms,
            "compile_ms": compile_ms, "peak_bytes": peak,
        }))
    }

    /// Losses of `steps` steps on one batch.
    fn curve(&self, name: &str, model: &mut Model, batch: &Batch, steps: usize) -> Result<Vec<f64>> {
        let mut losses = Vec::with_capacity(steps);
        for i in 0..steps {
            self.begin(&format!("{name}, step {}", i + 1));
            losses.push(model.train_on_batch(batch)?.get("loss").unwrap_or(f64::NAN));
        }
        Ok(losses)
    }

    /// Trains the tutorial's network on 2, 4 and 8 devices with each strategy, and compares the losses with one device's.
    pub(super) fn several(&self, device: &Arc<dyn Backend>) -> Result<Value> {
        let counts: Vec<usize> = COUNTS.into_iter().filter(|n| offers(device, *n)).collect();
        let Some(most) = counts.last() else {
            let there = number_of(device.devices().len() as u64, "device");
            return Ok(json!({"summary": format!("{there}: nothing to compare"), "runs": []}));
        };
        // Each device gets the same number of samples.
        let batch_size = self.args.batch_size.next_multiple_of(*most as u64);
        let mut config = tutorial(batch_size)?;
        config.data.scale = 1.0 / 255.0;
        let sample = config.usual_sample();
        let batch = config.synthetic_batch(&compiled(&config, &sample, device, Strategy::one_device())?)?;
        let run = |strategy: Strategy| self.spread(&config, &sample, device, &batch, strategy);
        let one = run(Strategy::one_device())?;
        let (mut runs, mut worst) = (vec![json!({"devices": 1, "losses": one})], 0.0_f64);
        for n in &counts {
            for strategy in [Strategy::data_parallel(), Strategy::fully_sharded()] {
                let name = strategy.name();
                let losses = run(strategy.devices(*n))?;
                let apart = losses.iter().zip(&one).map(|(a, b)| difference(*a, *b));
                // `max` would drop a NaN.
                let apart = apart.fold(0.0, |most: f64, d| if d <= most { most } else { d });
                if apart.is_nan() || apart > NEAR_FIRST {
                    let what =
                        format!("losses of {name} on {n} devices differ by {:.1e} from one device's", apart);
                    self.fail("devices", &what, json!({"losses": losses, "losses_of_one_device": one}));
                }
                worst = worst.max(apart);
                runs.push(json!({"devices": n, "strategy": name, "losses": losses, "difference": apart}));
            }
        }
        let shown: Vec<String> = counts.iter().map(usize::to_string).collect();
        let summary = format!(
            "data_parallel and fully_sharded on {} devices: losses of {} within {worst:.1e} of one device",
            shown.join(", "),
            number_of(SPREAD_STEPS as u64, "step"),
        );
        Ok(json!({"summary": summary, "runs": runs}))
    }

    fn spread(
        &self,
        config: &RunConfig,
        sample: &TensorType,
        device: &Arc<dyn Backend>,
        batch: &Batch,
        strategy: Strategy,
    ) -> Result<Vec<f64>> {
        let name = format!("devices, {strategy}");
        self.begin(&name);
        self.curve(&name, &mut compiled(config, sample, device, strategy)?, batch, SPREAD_STEPS)
    }
}

/// Whether the device consists of so many, or can be opened with them. The CPU engine computes logical devices.
fn offers(device: &Arc<dyn Backend>, count: usize) -> bool {
    device.hosts().is_none()
        && (device.name() == "cpu"
            || device.devices().len() >= count
            || device.with_devices(count).is_some_and(|more| more.is_ok()))
}

/// A preset with settings.
fn preset(name: &str, settings: Settings) -> Result<RunConfig> {
    let mut draft = ConfigDraft::preset(name)?;
    for (key, value) in settings {
        draft.set(format!("--set {key}={value}"), key, value);
    }
    draft.finish().map_err(|refused| refused.error)
}
