//! Custom training loops with `Accelerator`: same steps as `fit`, with every strategy and precision.
//!
//! A stopped loop resumes with the same bits. Also covers custom training steps under `fit`.

use std::path::PathBuf;
use std::sync::Arc;
use systole_data::{Dataset, PipelinePosition};
use systole_dist::Strategy;
use systole_ir::{ErrorKind, Literal, Result, Tensor, TensorType};
use systole_nn::layers::*;
use systole_nn::loss::sparse_categorical_crossentropy;
use systole_nn::optimizer::{Optimizer, adam, sgd};
use systole_nn::schedule::Schedule;
use systole_nn::{
    Accelerator, BackupAndRestore, Batch, Compile, Cx, Fit, LoopBackup, LoopState, LoopStep, Model,
    Precision, StepCx, TrainStep,
};
use systole_runtime::{Buffer, Params, backend};
use systole_testing::assert_error;

fn accelerator() -> Accelerator {
    Accelerator { backend: Some(backend("ref").unwrap()), seed: 5, ..Accelerator::default() }
}

fn data() -> Dataset {
    let x: Vec<f32> = (0..64).map(|i| ((i * 37 % 64) as f32 / 32.0 - 1.0).sin()).collect();
    let label: Vec<i32> = (0..32).map(|i| i32::from(x[2 * i] > x[2 * i + 1])).collect();
    Dataset::from_tensor_slices([
        ("x", Literal::from_slice([32, 2], &x).unwrap()),
        ("label", Literal::from_slice([32], &label).unwrap()),
    ])
    .unwrap()
    .shuffle(32, 1)
    .batch(8)
}

/// With all that a step keeps: slots, moving statistics, draws.
fn model(optimizer: &Optimizer) -> Model {
    let mut model =
        Model::sequential([dense(6).activation("relu"), batch_normalization(), dropout(0.2), dense(2)]);
    let compile = Compile {
        optimizer: optimizer.clone(),
        loss: sparse_categorical_crossentropy().from_logits(true),
        backend: Some(backend("ref").unwrap()),
        seed: 5,
        ..Compile::default()
    };
    model.compile(compile).unwrap();
    model.build(&[TensorType::new(systole_ir::DType::F32, [2])]).unwrap();
    model
}

type Step = LoopStep<(Tensor, Tensor), ()>;

fn step(accelerator: &Accelerator, optimizer: &Optimizer, model: &Model) -> Step {
    let (layers, loss) = (model.architecture().clone(), sparse_categorical_crossentropy().from_logits(true));
    let f = move |cx: &mut Cx, _: &Params, (x, y): &(Tensor, Tensor)| {
        let scores = layers.call(cx, std::slice::from_ref(x));
        loss.value(y, &scores, None)
    };
    accelerator.step(optimizer, f).unwrap()
}

fn batch(sample: Result<systole_data::Sample>) -> (Buffer, Buffer) {
    let sample = sample.unwrap();
    (sample.get("x").unwrap().clone().into(), sample.get("label").unwrap().clone().into())
}

/// Losses of `epochs` epochs.
fn train(accelerator: &Accelerator, optimizer: &Optimizer, epochs: u64) -> (Vec<f64>, LoopState) {
    let model = model(optimizer);
    let mut state = accelerator.prepare_model(optimizer, &model).unwrap();
    let step = step(accelerator, optimizer, &model);
    let mut losses = Vec::new();
    for epoch in 0..epochs {
        for sample in data().iter_epoch(epoch) {
            losses.push(step.call(&mut state, batch(sample)).unwrap().to_f64().unwrap());
        }
    }
    assert_eq!((step.compiled_programs(), state.steps), (1, losses.len() as u64));
    (losses, state)
}

fn weights(state: &LoopState) -> Vec<(String, Literal)> {
    let all = state.params.iter().chain(state.frozen.iter()).chain(state.optimizer.iter());
    all.map(|(name, value)| (name.to_string(), value.to_literal().unwrap())).collect()
}

#[test]
fn steps_are_those_of_a_model() {
    let optimizer = adam(Schedule::cosine_decay(0.1, 20)).gradient_accumulation_steps(2);
    let (losses, state) = train(&accelerator(), &optimizer, 2);
    let mut trained = model(&optimizer);
    let mut expected = Vec::new();
    for epoch in 0..2 {
        for sample in data().iter_epoch(epoch) {
            let batch = Batch::from_sample(&sample.unwrap(), &["x".to_string()]).unwrap();
            expected.push(trained.train_on_batch(&batch).unwrap()["loss"]);
        }
    }
    assert_eq!(losses, expected);
    let mut own = model(&optimizer);
    state.put_into(&mut own).unwrap();
    for ((name, a), (_, b)) in own.weights().into_iter().zip(trained.weights()) {
        assert_eq!(a.to_literal().unwrap(), b.to_literal().unwrap(), "{name}");
    }
    // The same gathered by the accelerator instead of the optimizer.
    let plain = adam(Schedule::cosine_decay(0.1, 20));
    assert_eq!(train(&Accelerator { gradient_accumulation_steps: 2, ..accelerator() }, &plain, 2).0, losses);
    let twice =
        Accelerator { gradient_accumulation_steps: 3, ..accelerator() }.prepare(&optimizer, Params::new());
    assert!(twice.unwrap_err().to_string().contains("gradient_accumulation_steps: 3 and 2"));
}

#[test]
fn strategies_and_precisions_train_alike() {
    let optimizer = sgd(0.2).momentum(0.9);
    let (losses, _) = train(&accelerator(), &optimizer, 3);
    assert!(losses[11] < 0.8 * losses[0], "{losses:?}");
    let far = |other: &[f64]| losses.iter().zip(other).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
    for strategy in [Strategy::data_parallel(), Strategy::fully_sharded()] {
        let (split, _) =
            train(&Accelerator { strategy: strategy.devices(4), ..accelerator() }, &optimizer, 3);
        assert!(far(&split) < 1e-5, "{split:?}");
    }
    for (precision, near) in [(Precision::MixedBfloat16, 0.05), (Precision::MixedFloat16, 0.02)] {
        let (narrow, state) = train(&Accelerator { precision, ..accelerator() }, &optimizer, 3);
        assert!(far(&narrow) < near && far(&narrow) > 0.0, "{precision:?}: {narrow:?} {losses:?}");
        assert_eq!(state.optimizer.get("loss_scale/scale").is_some(), precision == Precision::MixedFloat16);
    }
}

#[test]
fn plain_tensors_are_cast_and_other_results_come_along() {
    let accelerator = Accelerator { precision: Precision::MixedBfloat16, ..accelerator() };
    let optimizer = sgd(0.1);
    let start = [("w".to_string(), Buffer::from(Literal::from_slice([2, 1], &[0.5f32, -0.5]).unwrap()))];
    let mut state = accelerator.prepare(&optimizer, start.into_iter().collect()).unwrap();
    let step = accelerator
        .step_with(&optimizer, |_, p: &Params, x: &Tensor| {
            let y = x.convert(p["w"].dtype()).dot(&p["w"]);
            ((&y * &y).mean_all(), (y.clone(), y.sum_all()))
        })
        .unwrap();
    let x: Buffer = Literal::from_slice([3, 2], &[1f32, 2., 3., 4., 5., 6.]).unwrap().into();
    let (loss, (y, _)) = step.call_with(&mut state, x.clone()).unwrap();
    assert_eq!((loss.ty().to_string(), y.ty().to_string()), ("f32[]".into(), "bf16[3, 1]".into()));
    let predict =
        accelerator.function(|_, p: &Params, x: &Tensor| x.convert(p["w"].dtype()).dot(&p["w"])).unwrap();
    assert_ne!(predict.call(&state, x.clone()).unwrap().to_literal().unwrap(), y.to_literal().unwrap());
    let nothing = accelerator
        .function(|cx, _: &Params, _: &()| cx.builder().scalar(systole_ir::DType::F32, 1.0))
        .unwrap();
    let empty = accelerator.prepare(&optimizer, Params::new()).unwrap();
    assert_eq!(nothing.call(&empty, ()).unwrap_err().kind(), ErrorKind::Config);
    let vector = accelerator
        .step(&optimizer, |_, p: &Params, x: &Tensor| x.convert(p["w"].dtype()).dot(&p["w"]))
        .unwrap();
    let e = vector.call(&mut state, x).unwrap_err().to_string();
    assert!(e.contains("bf16[3, 1]") && e.contains("mean_all"), "{e}");
}

fn folder(name: &str) -> PathBuf {
    let dir = std::env::temp_dir().join(format!("systole-loops-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&dir);
    dir
}

/// Three epochs of a loop that is kept in a folder; gives up after `most` steps of this start.
fn kept(dir: &PathBuf, most: usize) -> Option<LoopState> {
    let (accelerator, optimizer) = (accelerator(), adam(0.05));
    let model = model(&optimizer);
    let mut state = accelerator.prepare_model(&optimizer, &model).unwrap();
    let step = step(&accelerator, &optimizer, &model);
    let mut backup = LoopBackup::open(BackupAndRestore::new(dir).every_steps(3).every(None)).unwrap();
    let mut place = backup.restore(&mut [&mut state]).unwrap().unwrap_or_default();
    let mut taken = 0;
    for epoch in place.epoch..3 {
        let mut batches = data().iter_at(&place);
        while let Some(sample) = batches.next() {
            if taken == most {
                return None;
            }
            step.call(&mut state, batch(sample)).unwrap();
            backup.after_step(&[&state], &batches.position()).unwrap();
            taken += 1;
        }
        place = PipelinePosition::new(epoch + 1, 0);
    }
    backup.finish(&[&state], &place).unwrap();
    Some(state)
}

#[test]
fn a_loop_that_was_stopped_goes_on_with_the_same_bits() {
    let (whole, cut) = (folder("whole"), folder("cut"));
    let expected = weights(&kept(&whole, usize::MAX).unwrap());
    for most in [4, 5, 3] {
        assert!(kept(&cut, most).is_none());
    }
    assert_eq!(weights(&kept(&cut, usize::MAX).unwrap()), expected);
    // A loop that is over takes no step.
    assert_eq!(weights(&kept(&cut, 0).unwrap()), expected);

    let backup = LoopBackup::open(BackupAndRestore::new(&cut)).unwrap();
    let mut other = accelerator().prepare_model(&sgd(0.1).momentum(0.9), &model(&sgd(0.1))).unwrap();
    let e = backup.restore(&mut [&mut other]).unwrap_err().to_string();
    assert!(e.contains("velocity/dense/kernel"), "{e}");
    let mut second = other.clone();
    let e = backup.restore(&mut [&mut other, &mut second]).unwrap_err();
    assert_error(&e, ErrorKind::Config, &["1", "2"]);
    let e = LoopBackup::open(BackupAndRestore::new(&cut)).err().unwrap().to_string();
    assert!(e.contains(&cut.display().to_string()), "{e}");
    [whole, cut].iter().for_each(|dir| std::fs::remove_dir_all(dir).unwrap());
}

/// What `fit` does without a step of one's own.
#[derive(Debug)]
struct Plain;

impl TrainStep for Plain {
    fn name(&self) -> &str {
        "plain"
    }

    fn training_step(&self, cx: &mut StepCx) -> Tensor {
        let x = cx.field(0);
        let scores = cx.forward(&[&x]);
        sparse_categorical_crossentropy().from_logits(true).value(&cx.label(), &scores, None)
    }
}

fn fit(model: &mut Model, data: &Dataset, epochs: usize) -> systole_nn::History {
    let fit = Fit { epochs, validation: Some(data.clone()), verbose: 0, ..Fit::default() };
    model.fit(data, fit).unwrap()
}

fn all_weights(model: &Model) -> Vec<(String, Literal)> {
    model.weights().into_iter().map(|(n, v)| (n.to_string(), v.to_literal().unwrap())).collect()
}

#[test]
fn a_step_of_ones_own_under_fit_is_what_it_says() {
    let optimizer = adam(Schedule::one_cycle(0.1));
    for precision in [Precision::Float32, Precision::MixedFloat16] {
        let mut usual = model(&optimizer);
        usual.compile(Compile { precision, ..usual.compile_config().unwrap().clone() }).unwrap();
        let mut own = model(&optimizer);
        let config = own.compile_config().unwrap().clone();
        own.compile(Compile { precision, train_step: Some(Arc::new(Plain)), ..config }).unwrap();
        let (a, b) = (fit(&mut usual, &data(), 3), fit(&mut own, &data(), 3));
        assert_eq!(a.epochs, b.epochs, "{precision:?}");
        assert_eq!(all_weights(&usual), all_weights(&own), "{precision:?}");
        assert_eq!(usual.predict(&data()).unwrap(), own.predict(&data()).unwrap());
    }
}

/// Two networks that train against each other, at rates of their own.
#[derive(Debug)]
struct Gan;

impl TrainStep for Gan {
    fn name(&self) -> &str {
        "gan"
    }

    fn configure_optimizers(&self) -> Option<Optimizer> {
        Some(adam(1e-2).betas(0.5, 0.999).map_optimizer("discriminator", sgd(0.05).momentum(0.5)))
    }

    fn fields(&self) -> Vec<String> {
        vec!["x".into()]
    }

    fn logged(&self) -> Vec<String> {
        vec!["d_loss".into(), "g_loss".into()]
    }

    fn training_step(&self, cx: &mut StepCx) -> Tensor {
        let real = cx.field(0);
        let noise = cx.normal(&[real.dim(0), 3]);
        let d_loss = cx.minimize("discriminator", |cx| {
            let fake = cx.forward(&[&noise]).stop_gradient();
            let (real, fake) = (cx.network("discriminator", &[&real]), cx.network("discriminator", &[&fake]));
            (-real).softplus().mean_all() + fake.softplus().mean_all()
        });
        let g_loss = cx.minimize("", |cx| {
            let fake = cx.forward(&[&noise]);
            (-cx.network("discriminator", &[&fake])).softplus().mean_all()
        });
        cx.log("d_loss", &d_loss);
        cx.log("g_loss", &g_loss);
        d_loss + g_loss
    }
}

fn gan() -> Model {
    let ty = |n: usize| TensorType::new(systole_ir::DType::F32, [n]);
    let discriminator = Model::sequential([dense(8).activation("tanh"), dropout(0.1), dense(1)]);
    let generator = Model::sequential([dense(8).activation("relu"), batch_normalization(), dense(2)]);
    let both = generator.architecture().clone();
    let both = both.with_network("discriminator", discriminator.architecture().clone(), &[ty(2)]).unwrap();
    let mut model = Model::new(both);
    model.build(&[ty(3)]).unwrap();
    let backend = Some(backend("ref").unwrap());
    model.compile(Compile { train_step: Some(Arc::new(Gan)), backend, ..Compile::default() }).unwrap();
    model
}

#[test]
fn two_networks_train_against_each_other_and_go_on_after_a_stop() {
    let dir = folder("gan");
    let train = |epochs: usize, backup: Option<BackupAndRestore>| {
        let mut model = gan();
        let fit = Fit { epochs, validation: Some(data()), backup, verbose: 0, ..Fit::default() };
        let history = model.fit(&data(), fit).unwrap();
        (model, history)
    };
    let before = all_weights(&gan());
    let (whole, history) = train(4, None);
    for ((name, old), (_, new)) in before.iter().zip(&all_weights(&whole)) {
        assert_ne!(old, new, "{name} was trained");
    }
    assert!(whole.summary().contains("discriminator/dense (Dense)"), "{}", whole.summary());
    let last = history.last();
    assert!((last["loss"] - last["d_loss"] - last["g_loss"]).abs() < 1e-6, "{last:?}");
    assert!(last["val_loss"].is_finite() && last["val_d_loss"] > 0.0);
    let again = gan().evaluate(&data()).unwrap();
    assert_eq!(again, gan().evaluate(&data()).unwrap(), "validation draws the same");
    // The discriminator's weights are the work of another optimizer.
    let slots: Vec<String> = whole.to_file().unwrap().tensors.into_iter().map(|(name, _)| name).collect();
    assert!(!slots.iter().any(|n| n.contains("velocity/discriminator")), "{slots:?}");

    let backup = || Some(BackupAndRestore::new(&dir).every_steps(3));
    train(2, backup());
    let (cut, resumed) = train(4, backup());
    assert_eq!(all_weights(&cut), all_weights(&whole));
    assert_eq!(resumed.epochs, history.epochs);
    let path = dir.join("gan.safetensors");
    cut.save(&path).unwrap();
    let e = Model::load(&path).err().unwrap().to_string();
    assert!(e.contains("`gan`") && e.contains("uncompiled"), "{e}");
    let custom = systole_nn::layers::CustomObjects::new().uncompiled();
    assert_eq!(all_weights(&Model::load_with(&path, &custom).unwrap()), all_weights(&cut));
    std::fs::remove_dir_all(dir).unwrap();
}

/// Says nothing of what it promises.
#[derive(Debug)]
struct Wrong(u8);

impl TrainStep for Wrong {
    fn name(&self) -> &str {
        "wrong"
    }

    fn logged(&self) -> Vec<String> {
        if self.0 == 0 { vec!["size".into()] } else { Vec::new() }
    }

    fn training_step(&self, cx: &mut StepCx) -> Tensor {
        let x = cx.field(0);
        let y = cx.forward(&[&x]);
        match self.0 {
            0 => y.mean_all(),
            1 => y,
            2 => cx.network("critic", &[&y]).mean_all(),
            3 => cx.minimize("critic", |_| y.mean_all()),
            4 => cx.field(1).mean_all(),
            _ => cx.label().mean_all(),
        }
    }
}

#[test]
fn mistakes_in_a_step_are_told() {
    let unlabelled = Dataset::from_tensor_slices([("x", Literal::from_slice([4, 2], &[0f32; 8]).unwrap())]);
    let unlabelled = unlabelled.unwrap().batch(2);
    for (n, what) in [
        (0, "did not log `size`"),
        (1, "must be a scalar, got f32[2, 2]"),
        (2, "unknown network `critic`"),
        (3, "`critic` has no trainable weights"),
        (4, "reads field 1, but the batch has 1 fields"),
        (5, "the data contains none"),
    ] {
        let mut model = model(&adam(0.1));
        let config = model.compile_config().unwrap().clone();
        model.compile(Compile { train_step: Some(Arc::new(Wrong(n))), ..config }).unwrap();
        let e = model.fit(&unlabelled, Fit { verbose: 0, ..Fit::default() }).unwrap_err().to_string();
        assert!(e.contains(what), "{n}: {e}");
    }
    let two = gan().architecture().clone();
    for (name, what) in
        [("discriminator", "already exists"), ("", "first component"), ("a/b", "first component")]
    {
        let network = Model::sequential([dense(1)]).architecture().clone();
        let e = two.clone().with_network(name, network, &[]).unwrap_err().to_string();
        assert!(e.contains(what), "{e}");
    }
}
