//! Runs the self-test checks in the process that loads the device plugin: ops, training, speed.

use super::args::SelftestArgs;
use super::model_checks::MODELS;
use super::protocol;
use crate::render::screen::{Screen, number_of};
use crate::run::run_summary::threads;
use serde_json::{Value, json};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use systole_config::{ConfigDraft, RunConfig};
use systole_dist::Strategy;
use systole_ir::op::{OpEntry, OpSample, TABLE};
use systole_ir::{DType, Literal, Result, TensorType, ensure, err, interp};
use systole_nn::{Batch, Model};
use systole_runtime::{Backend, Buffer, CompileOptions, DeviceId, ExecutableArg, backend};

/// Sections of the report, in order.
pub(super) const SECTIONS: [&str; 8] =
    ["machine", "ops", "training", "speed", "tutorial", "resnet50", "gpt2-small", "devices"];
/// Preset with the tutorial's network and synthetic images.
pub(super) const TUTORIAL: &str = "glyphs";
/// Relative error up to which a result counts as lower precision rather than wrong: bf16 products keep 8 bits.
const NEAR: f64 = 0.02;
/// Relative tolerance of the losses: of the first steps, and at the end, where all rounding errors accumulate.
pub(super) const NEAR_FIRST: f64 = 0.02;
pub(super) const NEAR_LAST: f64 = 0.15;
/// Number of steps averaged to one point of a loss curve.
const POINTS: usize = 10;
/// Duration of the step timing.
const TIMED: Duration = Duration::from_secs(2);
/// Number of elements shown for a failure.
const VALUES: usize = 8;

/// Runs all checks and prints each result as a JSON line.
pub(super) fn run(args: &SelftestArgs, screen: &Screen) -> Result<()> {
    let test = DeviceCheck { screen, args };
    test.begin("device");
    let device = match backend("auto") {
        Ok(device) => device,
        Err(e) => {
            test.fail("device", &e.to_string(), json!({}));
            return Ok(());
        }
    };
    test.section("machine", machine(&*device)?);
    test.section("ops", test.ops(&*device));
    test.guarded("training", || test.training(&device));
    test.guarded("speed", || test.speed(&device));
    test.guarded("tutorial", || test.tutorial(&device));
    for model in &MODELS {
        test.guarded(model.name, || test.model(model, &device));
    }
    test.guarded("devices", || test.several(&device));
    Ok(())
}

pub(super) struct DeviceCheck<'a> {
    screen: &'a Screen,
    pub(super) args: &'a SelftestArgs,
}

fn machine(device: &dyn Backend) -> Result<Value> {
    let describe = |b: &dyn Backend| b.devices().into_iter().map(|d| d.description).collect::<Vec<_>>();
    let (own, cpu) = (describe(device), describe(&*backend("cpu")?));
    let summary = format!("{} ({}), host {}", device.name(), own.join(", "), cpu.join(", "));
    Ok(json!({"summary": summary, "backend": device.name(), "devices": own, "host": cpu}))
}

impl DeviceCheck<'_> {
    pub(super) fn begin(&self, what: &str) {
        self.screen.object(&json!({protocol::BEGIN: what}));
    }

    pub(super) fn fail(&self, check: &str, what: &str, more: Value) {
        let mut failure = json!({"check": check, "what": what});
        if let (Some(all), Value::Object(more)) = (failure.as_object_mut(), more) {
            all.extend(more);
        }
        self.screen.object(&json!({protocol::FAILURE: failure}));
    }

    fn section(&self, name: &str, result: Value) {
        self.screen.object(&json!({protocol::SECTION: name, "result": result}));
    }

    /// Runs a section and reports an error as a failure.
    fn guarded(&self, name: &str, part: impl FnOnce() -> Result<Value>) {
        self.begin(name);
        match part() {
            Ok(result) => self.section(name, result),
            Err(e) => self.fail(name, &e.to_string(), json!({})),
        }
    }

    /// Compares each sample of each op with the interpreter. Runs on all CPU threads, because compilers of accelerators
    /// need up to a second per sample.
    fn ops(&self, device: &dyn Backend) -> Value {
        let began = Instant::now();
        let wanted = &self.args.ops;
        let ops = || operations().filter(|e| wanted.is_empty() || wanted.iter().any(|name| name == e.name));
        let samples: Vec<(String, OpSample)> = ops()
            .flat_map(|entry| (entry.samples)().into_iter().map(|s| (entry.name, s)))
            .map(|(name, sample)| (format!("op {name} {}", sample.label), sample))
            .collect();
        let (next, running) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
        let each = || {
            let mut counts = CheckCounts::default();
            while let Some((check, sample)) = samples.get(next.fetch_add(1, Ordering::Relaxed)) {
                self.begin_beside(&running, check);
                counts.count(self.sample(check, sample, device));
                lock(&running).retain(|c| *c != check);
            }
            counts
        };
        let all = std::thread::scope(|scope| {
            let workers: Vec<_> = (1..threads()).map(|_| scope.spawn(each)).collect();
            workers.into_iter().filter_map(|w| w.join().ok()).fold(each(), CheckCounts::and)
        });
        let CheckCounts { equal, near, failed } = all;
        // A thread that panicked counted nothing.
        let failed = failed + samples.len() - (equal + near + failed);
        let (samples, operations) = (samples.len(), ops().count());
        let summary = format!(
            "{samples} samples of {operations} operations: {equal} within the required precision, {near} of lower precision, {failed} wrong"
        );
        json!({
            "summary": summary, "operations": operations, "samples": samples, "equal": equal,
            "lower_precision": near, "wrong": failed, "seconds": began.elapsed().as_secs_f64(),
        })
    }

    /// Reports all checks that are running: a library that aborts the process may have done so in any of them.
    fn begin_beside<'s>(&self, running: &Mutex<Vec<&'s str>>, check: &'s str) {
        let mut running = lock(running);
        running.push(check);
        self.begin(&running.join(", "));
    }

    fn sample(&self, check: &str, sample: &OpSample, device: &dyn Backend) -> SampleVerdict {
        match WorstDifference::of(sample, device) {
            Ok(c) if c.is_equal(sample) => SampleVerdict::Equal,
            Ok(c) if c.distance <= NEAR => SampleVerdict::Near,
            Ok(c) => {
                self.fail(check, &format!("result {} differs by {:.1e}", c.result, c.distance), c.values());
                SampleVerdict::Wrong
            }
            Err(e) => {
                self.fail(check, &e.to_string(), json!({}));
                SampleVerdict::Wrong
            }
        }
    }

    /// Trains the tutorial's network on the device and on the CPU, and compares the losses.
    fn training(&self, device: &Arc<dyn Backend>) -> Result<Value> {
        let config = tutorial(self.args.batch_size)?;
        let data = config.load_data(|dir| dir)?;
        let batches = config.train_pipeline(&data);
        let sample = config.sample_of(&data);
        let on = |device: &Arc<dyn Backend>| compiled(&config, &sample, device, Strategy::one_device());
        let mut models = [on(&backend("cpu")?)?, on(device)?];
        let [mut host, mut own] = [Vec::new(), Vec::new()];
        for (i, sample) in batches.iter().take(self.args.steps as usize).enumerate() {
            self.begin(&format!("training, step {}", i + 1));
            let batch = Batch::from_sample(&sample?, &["image".to_string()])?;
            for (model, curve) in models.iter_mut().zip([&mut host, &mut own]) {
                curve.push(model.train_on_batch(&batch)?.get("loss").unwrap_or(f64::NAN));
            }
        }
        let (host, own) = (points(&host), points(&own));
        let each: Vec<f64> = own.iter().zip(&host).map(|(a, b)| difference(*a, *b)).collect();
        let (first, last) = (each.first().copied().unwrap_or(0.0), each.last().copied().unwrap_or(0.0));
        // NaN must fail.
        let is_near = first <= NEAR_FIRST && last <= NEAR_LAST;
        let learns = own.len() < 2 || own.last() < own.first();
        if !is_near || !learns {
            let what = format!(
                "losses differ by {:.1} % at the start, {:.1} % at the end",
                100.0 * first,
                100.0 * last
            );
            self.fail("training", &what, json!({"losses": own, "losses_of_the_cpu": host}));
        }
        let show = |curve: &[f64]| curve.last().copied().unwrap_or(f64::NAN);
        let summary = format!(
            "{} of {}: loss {:.4} on the device, {:.4} on the CPU, difference {:.2} %",
            number_of(self.args.steps, "step"),
            number_of(self.args.batch_size, "sample"),
            show(&own),
            show(&host),
            100.0 * last
        );
        Ok(json!({"summary": summary, "losses": own, "losses_of_the_cpu": host}))
    }

    /// Measures the step time in ms with the batch on the device.
    fn speed(&self, device: &Arc<dyn Backend>) -> Result<Value> {
        let config = tutorial(self.args.batch_size)?;
        let mut times = Vec::new();
        let mut shown = Vec::new();
        for (name, device) in [(device.name().to_string(), device.clone()), ("cpu".into(), backend("cpu")?)] {
            self.begin(&format!("speed of {name}"));
            let mut model = compiled(&config, &config.usual_sample(), &device, Strategy::one_device())?;
            let batch = config.synthetic_batch(&model)?;
            let mut step = model.device_batch_training(&batch)?;
            let ms = median_ms(|| step.run().and_then(|()| step.loss().map(drop)))?;
            shown.push(format!("{ms:.2} ms on {name}"));
            times.push(json!({"device": name, "ms_per_step": ms, "compile_ms": step.compile_ms()}));
        }
        let samples = number_of(self.args.batch_size, "sample");
        let summary = format!("a step of {samples}: {}", shown.join(", "));
        Ok(json!({"summary": summary, "steps": times}))
    }
}

/// Result of an op sample.
enum SampleVerdict {
    Equal,
    Near,
    Wrong,
}

#[derive(Clone, Copy, Default)]
struct CheckCounts {
    equal: usize,
    near: usize,
    failed: usize,
}

impl CheckCounts {
    fn count(&mut self, verdict: SampleVerdict) {
        *match verdict {
            SampleVerdict::Equal => &mut self.equal,
            SampleVerdict::Near => &mut self.near,
            SampleVerdict::Wrong => &mut self.failed,
        } += 1;
    }

    fn and(self, other: CheckCounts) -> CheckCounts {
        CheckCounts {
            equal: self.equal + other.equal,
            near: self.near + other.near,
            failed: self.failed + other.failed,
        }
    }
}

/// Operations that a device can run: accelerators cannot call functions of this program.
pub(super) fn operations() -> impl Iterator<Item = &'static OpEntry> {
    TABLE.iter().filter(|entry| entry.name != "custom_call")
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Relative difference of two losses.
pub(super) fn difference(a: f64, b: f64) -> f64 {
    (a - b).abs() / b.abs().max(1e-3)
}

pub(super) fn tutorial(batch_size: u64) -> Result<RunConfig> {
    let mut draft = ConfigDraft::preset(TUTORIAL)?;
    draft.set("--batch-size", "fit.batch_size", &batch_size.to_string());
    draft.finish().map_err(|r| r.error)
}

/// Builds the configuration's model on a device, with the same weights on each.
pub(super) fn compiled(
    config: &RunConfig,
    sample: &TensorType,
    device: &Arc<dyn Backend>,
    strategy: Strategy,
) -> Result<Model> {
    let mut model = config.layers_only()?;
    let output = model.output_for(std::slice::from_ref(sample))?.shape.to_vec();
    let mut compile = config.compile_config(&output)?;
    compile.backend = Some(device.clone());
    compile.strategy = strategy;
    model.compile(compile)?;
    model.build(std::slice::from_ref(sample))?;
    Ok(model)
}

/// Averages neighboring losses to points.
fn points(losses: &[f64]) -> Vec<f64> {
    losses.chunks(POINTS).map(|c| c.iter().sum::<f64>() / c.len() as f64).collect()
}

pub(super) fn median_ms(mut step: impl FnMut() -> Result<()>) -> Result<f64> {
    step()?;
    let (began, mut times) = (Instant::now(), Vec::new());
    while times.is_empty() || began.elapsed() < TIMED {
        let start = Instant::now();
        step()?;
        times.push(start.elapsed().as_secs_f64() * 1e3);
    }
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}

/// The result of an op sample that differs most from the interpreter's.
struct WorstDifference {
    result: usize,
    /// Maximum error relative to the maximum value; infinite if integers, infinities or NaNs differ.
    distance: f64,
    got: Literal,
    want: Literal,
}

impl WorstDifference {
    fn of(sample: &OpSample, device: &dyn Backend) -> Result<WorstDifference> {
        let args = sample.specified_arguments(0);
        let want = interp::run(&sample.graph, &args.iter().collect::<Vec<_>>())?;
        let program = device.compile(&sample.graph, &CompileOptions::default())?;
        let buffers = args.iter().map(|a| device.put(a, DeviceId(0))).collect::<Result<Vec<Buffer>>>()?;
        let got = program.run(buffers.iter().map(ExecutableArg::Borrow).collect())?;
        let mut worst = None;
        for (i, (got, want)) in got.iter().zip(want).enumerate() {
            let got = got.to_literal()?;
            let distance = distance(&got, &want)?;
            if worst.as_ref().is_none_or(|w: &WorstDifference| distance > w.distance) {
                worst = Some(WorstDifference { result: i, distance, got, want });
            }
        }
        worst.ok_or_else(|| err!(Bug, "the tested op has no results"))
    }

    /// Whether the error is within the rounding that the sample allows.
    fn is_equal(&self, sample: &OpSample) -> bool {
        let digits = match self.want.dtype() {
            DType::F16 => 11,
            DType::BF16 => 8,
            DType::F32 => 24,
            _ => 53,
        };
        self.distance <= f64::from(sample.ulp) * 2f64.powi(1 - digits)
    }

    fn values(&self) -> Value {
        let some = |x: &Literal| x.to_f64s().iter().take(VALUES).map(f64::to_string).collect::<Vec<_>>();
        json!({
            "type": self.want.ty().to_string(), "first_values": some(&self.got),
            "first_values_of_the_interpreter": some(&self.want), "relative_distance": self.distance.to_string(),
        })
    }
}

fn distance(got: &Literal, want: &Literal) -> Result<f64> {
    ensure!(got.ty() == want.ty(), err!(Data, "a result has the type {}, expected {}", got.ty(), want.ty()));
    let (a, b) = (got.to_f64s(), want.to_f64s());
    if !want.dtype().is_float() {
        return Ok(if got.bytes() == want.bytes() { 0.0 } else { f64::INFINITY });
    }
    let most = b.iter().filter(|v| v.is_finite()).fold(0.0, |m: f64, v| m.max(v.abs()));
    let apart = |(a, b): (&f64, &f64)| match a == b || (a.is_nan() && b.is_nan()) {
        true => 0.0,
        false if a.is_finite() && b.is_finite() => (a - b).abs() / most.max(f64::MIN_POSITIVE),
        false => f64::INFINITY,
    };
    Ok(a.iter().zip(&b).map(apart).fold(0.0, f64::max))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_are_parts_of_the_greatest_value() {
        let f = |x: &[f32]| Literal::from_slice([x.len()], x).unwrap();
        let of = |a: &[f32], b: &[f32]| distance(&f(a), &f(b)).unwrap();
        assert_eq!(of(&[1.0, f32::NAN, f32::INFINITY], &[1.0, f32::NAN, f32::INFINITY]), 0.0);
        assert_eq!(of(&[1.0, 7.0], &[2.0, 8.0]), 0.125);
        assert_eq!(of(&[f32::NAN], &[1.0]), f64::INFINITY);
        assert_eq!(of(&[f32::INFINITY], &[f32::NEG_INFINITY]), f64::INFINITY);
        let ints = |x: &[i32]| Literal::from_slice([x.len()], x).unwrap();
        assert_eq!(distance(&ints(&[1]), &ints(&[2])).unwrap(), f64::INFINITY);
        assert!(distance(&ints(&[1]), &f(&[1.0])).is_err());
    }

    #[test]
    fn curves_are_means_of_steps() {
        let losses: Vec<f64> = (0..25).map(f64::from).collect();
        assert_eq!(points(&losses), [4.5, 14.5, 22.0]);
    }
}
