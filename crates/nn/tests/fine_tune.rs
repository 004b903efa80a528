//! Fine-tuning: two phases compared with manual training, frozen layers, transferred weights, resuming after kills.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use systole_data::Dataset;
use systole_ir::{DType::F32, Error, ErrorKind, Literal, Result, TensorType};
use systole_nn::callback::{Callback, EarlyStopping, FitCx};
use systole_nn::layers::{LayerSpec, batch_normalization, dense, dropout};
use systole_nn::optimizer::{Optimizer, adam, sgd};
use systole_nn::schedule::Schedule;
use systole_nn::{BackupAndRestore, Compile, FineTune, Fit, FrozenBatchNorm, History, Model};

const BODY: [&str; 4] = ["a", "b", "c", "d"];

fn data() -> Dataset {
    let x: Vec<f32> = (0..72).map(|i| (i as f32 * 0.37).sin() * 2.0 + 0.5).collect();
    let y: Vec<i32> = x.chunks(3).map(|c| i32::from(c[0] * c[1] > c[2])).collect();
    let x = Literal::from_slice([24, 3], &x).unwrap();
    let y = Literal::from_slice([24], &y).unwrap();
    Dataset::from_tensor_slices([("x", x), ("label", y)]).unwrap()
}

/// Four layers and a head, with what `trains` says of each.
fn layers(classes: usize, batch_norm: bool, trains: impl Fn(&str) -> bool) -> Vec<LayerSpec> {
    let mut all = Vec::new();
    for name in BODY {
        all.push(dense(5).activation("tanh").name(name).trainable(trains(name)));
        if batch_norm && name == "b" {
            all.push(batch_normalization().momentum(0.5).name("bn").trainable(trains("bn")));
        }
    }
    all.push(dense(classes).activation("softmax").name("head"));
    all
}

fn compiled(layers: Vec<LayerSpec>, optimizer: Optimizer) -> Model {
    let mut model = Model::sequential(layers);
    model.compile(Compile { optimizer, seed: 4, ..Compile::default() }).unwrap();
    model.build(&[TensorType::new(F32, [3])]).unwrap();
    model
}

type Weights = Vec<(String, Literal)>;

fn weights(model: &Model) -> Weights {
    model.weights().iter().map(|(path, _)| (path.to_string(), model.weight(path).unwrap())).collect()
}

fn changed(before: &[(String, Literal)], after: &[(String, Literal)]) -> Vec<String> {
    before.iter().zip(after).filter(|(a, b)| a != b).map(|(a, _)| a.0.clone()).collect()
}

fn quiet() -> Fit {
    Fit { verbose: 0, ..Fit::default() }
}

fn cycle(highest: f64, pct_start: f64, div: f64, steps: u64) -> Schedule {
    Schedule::OneCycle {
        max_learning_rate: highest,
        total_steps: steps,
        begin: 0,
        pct_start,
        div,
        div_final: 1e5,
    }
}

fn momentum(pct_start: f64, steps: u64) -> Schedule {
    Schedule::OneCycleMomentum { moms: [0.95, 0.85, 0.95], total_steps: steps, begin: 0, pct_start }
}

#[test]
fn two_phases_are_what_two_runs_by_hand_give() {
    let all = |_: &str| true;
    let mut tuned = compiled(layers(2, false, all), adam(1e-3));
    let how = FineTune { epochs: 3, freeze_epochs: 2, base_lr: 0.02, ..FineTune::default() };
    let data = data().batch(6);
    let history = tuned.fine_tune(&data, how, quiet()).unwrap();
    assert_eq!((history.epochs.len(), tuned.steps(), tuned.epochs()), (5, 20, 5));

    let first = adam(cycle(0.02, 0.99, 25.0, 8)).momentum_schedule(momentum(0.99, 8));
    let mut head = compiled(layers(2, false, |_| false), first);
    head.fit(&data, Fit { epochs: 2, ..quiet() }).unwrap();
    // Four layers in two groups before the head: a hundredth, a tenth, all of half the rate.
    let second = adam(cycle(0.01, 0.3, 5.0, 12)).momentum_schedule(momentum(0.3, 12));
    let second = second.lr_mult("a", 0.01).lr_mult("b", 0.01).lr_mult("c", 0.1).lr_mult("d", 0.1);
    let mut whole = compiled(layers(2, false, all), second);
    assert_eq!(whole.take_weights(&head, None, false).unwrap().new, Vec::<String>::new());
    whole.fit(&data, Fit { epochs: 3, ..quiet() }).unwrap();
    assert_eq!(weights(&tuned), weights(&whole));
    assert!(tuned.architecture().nodes.iter().all(|n| n.layer.is_trainable()));
}

/// Records learning rates, and the weights after each epoch.
#[derive(Clone, Default)]
struct Seen(Arc<Mutex<(Vec<f64>, Vec<Weights>)>>);

impl Callback for Seen {
    fn on_train_batch_end(&mut self, cx: &mut FitCx<'_>) -> Result<()> {
        let optimizer = &cx.model.compile_config().unwrap().optimizer;
        self.0.lock().unwrap().0.push(optimizer.rate_at(cx.model.steps() - 1));
        Ok(())
    }

    fn on_epoch_end(&mut self, cx: &mut FitCx<'_>) -> Result<()> {
        self.0.lock().unwrap().1.push(weights(cx.model));
        Ok(())
    }
}

#[test]
fn only_the_head_and_batch_normalisations_train_at_first() {
    for (batch_norm, expected) in [
        (
            FrozenBatchNorm::Train,
            vec!["bn/gamma", "bn/beta", "bn/moving_mean", "bn/moving_variance", "head/kernel", "head/bias"],
        ),
        (FrozenBatchNorm::Inference, vec!["head/kernel", "head/bias"]),
    ] {
        let seen = Seen::default();
        let mut model = compiled(layers(2, true, |_| true), sgd(0.1));
        let start = weights(&model);
        let how = FineTune { frozen_batch_norm: batch_norm, base_lr: 0.5, ..FineTune::default() };
        let fit = Fit { callbacks: vec![Box::new(seen.clone())], ..quiet() };
        model.fine_tune(&data().batch(6), how, fit).unwrap();
        let seen = seen.0.lock().unwrap();
        assert_eq!(changed(&start, &seen.1[0]), expected, "{batch_norm:?}");
        assert_eq!(
            changed(&seen.1[0], &seen.1[1]).len(),
            start.len(),
            "all layers train in the second phase"
        );
        // fastai's cycles: from 0.5 / 25 up for 99 %, then from 0.25 / 5.
        assert_eq!((seen.0.len(), seen.0[0], seen.0[4]), (8, 0.02, 0.05));
        assert!(seen.0[3] > seen.0[2] && seen.0[5] > seen.0[4] && seen.0[7] < seen.0[6]);
    }
}

#[test]
fn a_later_first_layer_of_the_head_freezes_fewer_layers() {
    let mut model = compiled(layers(2, true, |_| true), adam(0.01));
    assert_eq!(model.freeze_until(Some("c"), FrozenBatchNorm::Inference).unwrap(), ["a", "b", "bn"]);
    let start = weights(&model);
    model.fit(&data().batch(6), Fit { epochs: 1, ..quiet() }).unwrap();
    let moved = changed(&start, &weights(&model));
    assert_eq!(moved, ["c/kernel", "c/bias", "d/kernel", "d/bias", "head/kernel", "head/bias"]);
    let e = model.freeze_until(Some("heat"), FrozenBatchNorm::Train).unwrap_err().to_string();
    assert!(e.contains("`heat`") && e.contains("`head`"), "{e}");
}

#[test]
fn weights_of_another_model_come_by_name_and_shape() {
    let all = |_: &str| true;
    let old = compiled(layers(5, false, all), adam(0.01));
    let mut new = compiled(layers(2, false, all), adam(0.01));
    let taken = new.take_weights(&old, None, false).unwrap();
    assert_eq!(
        (taken.taken.len(), taken.new.as_slice()),
        (8, ["head/kernel".to_string(), "head/bias".into()].as_slice())
    );
    assert_eq!(taken.left, ["head/bias", "head/kernel"]);
    // The same number of classes, but others.
    let mut same = compiled(layers(5, false, all), adam(0.01));
    assert_eq!(same.take_weights(&old, None, true).unwrap().new, ["head/kernel", "head/bias"]);
    assert_eq!(same.take_weights(&old, Some("d"), true).unwrap().new.len(), 4);

    let mut wide = layers(5, false, all);
    wide[1] = dense(7).name("b");
    let e = compiled(wide, adam(0.01)).take_weights(&old, None, false).unwrap_err().to_string();
    assert!(e.contains("b/kernel") && e.contains("[5, 7]") && e.contains("[5, 5]"), "{e}");
    let mut other = layers(5, false, all);
    other[0] = dense(5).name("stem");
    let e = compiled(other, adam(0.01)).take_weights(&old, None, false).unwrap_err().to_string();
    assert!(e.contains("stem/kernel") && e.contains("[3, 5]") && e.contains("a, b, c, d, head"), "{e}");
}

#[test]
fn arguments_that_make_no_sense_are_refused() {
    let tune = |how: FineTune, optimizer: Optimizer| {
        let mut model = compiled(layers(2, false, |_| true), optimizer);
        model.fine_tune(&data().batch(6), how, quiet()).unwrap_err().to_string()
    };
    let of = FineTune::default;
    for (how, part) in [
        (FineTune { epochs: 0, ..of() }, "epochs is 0"),
        (FineTune { base_lr: f64::NAN, ..of() }, "base_lr is NaN"),
        (FineTune { lr_mult: 0.5, ..of() }, "lr_mult is 0.5"),
        (FineTune { pct_start: 1.0, ..of() }, "pct_start is 1"),
        (FineTune { div: 0.0, ..of() }, "div is 0"),
        (FineTune { groups: 0, ..of() }, "groups is 0"),
        (FineTune { freeze_until: Some("hed".into()), ..of() }, "`head`"),
    ] {
        let e = tune(how, adam(0.1));
        assert!(e.contains(part), "{part}: {e}");
    }
    let e = tune(of(), adam(0.1).lr_mult("a", 0.1));
    assert!(e.contains("lr_mult"), "{e}");
}

/// Fails after a step, as if the process were killed.
struct Killer(Option<u64>);

impl Callback for Killer {
    fn on_train_batch_end(&mut self, cx: &mut FitCx<'_>) -> Result<()> {
        match self.0 {
            Some(at) if cx.model.steps() == at => Err(Error::new(ErrorKind::Io, "killed")),
            _ => Ok(()),
        }
    }
}

fn folder(name: &str) -> PathBuf {
    let dir = std::env::temp_dir().join(format!("systole-fine-tune-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&dir);
    dir
}

/// A run of 2 + 3 epochs of 3 steps with everything that has a state.
fn run(dir: Option<&Path>, kill: Option<u64>) -> Result<(Model, History)> {
    let mut own = layers(2, true, |_| true);
    own.insert(3, dropout(0.3));
    let mut model = compiled(own, adam(1e-3));
    let how = FineTune { epochs: 3, freeze_epochs: 2, base_lr: 0.05, ..FineTune::default() };
    let fit = Fit {
        validation: Some(data().batch(24)),
        callbacks: vec![
            Box::new(EarlyStopping::new("val_loss", 9).restore_best_weights(true)),
            Box::new(Killer(kill)),
        ],
        backup: dir.map(|d| BackupAndRestore::new(d).every_steps(1).every(None)),
        ..quiet()
    };
    let history = model.fine_tune(&data().shuffle(9, 5).batch(8), how, fit)?;
    Ok((model, history))
}

#[test]
fn a_run_killed_in_either_phase_or_between_them_ends_with_the_same_bits() {
    let (whole, expected) = run(None, None).unwrap();
    assert_eq!(whole.steps(), 15);
    let dir = folder("kill");
    for kill in 1..whole.steps() {
        let _ = std::fs::remove_dir_all(&dir);
        assert!(run(Some(&dir), Some(kill)).is_err());
        // A second time, a step later.
        let twice = run(Some(&dir), Some(kill + 1));
        let (model, history) = twice.or_else(|_| run(Some(&dir), None)).unwrap();
        assert_eq!(weights(&model), weights(&whole), "killed after step {kill}");
        assert_eq!(history.get("loss"), expected.get("loss"), "killed after step {kill}");
        assert_eq!(history.get("val_loss"), expected.get("val_loss"), "killed after step {kill}");
        assert_eq!(
            model.to_file().unwrap().tensors,
            whole.to_file().unwrap().tensors,
            "killed after step {kill}"
        );
    }
    std::fs::remove_dir_all(dir).unwrap();
}
