//! Best-model file (`KeepBest`): which epoch is kept, and robustness to kills and full disks.
//!
//! Also tests out-of-range labels and token ids.

use std::path::{Path, PathBuf};
use systole_data::Dataset;
use systole_ir::{DType, Error, ErrorKind, Literal, Result};
use systole_nn::callback::{Callback, FitCx, LearningRateScheduler};
use systole_nn::layers::{dense, embedding};
use systole_nn::loss::{mean_squared_error, sparse_categorical_crossentropy};
use systole_nn::optimizer::sgd;
use systole_nn::{BackupAndRestore, BestEpoch, Compile, Fit, History, KeepBest, Logs, Model, input_of};
use systole_runtime::backend;

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
    let dir = std::env::temp_dir().join(format!("systole-best-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(&dir).unwrap();
    dir
}

fn data() -> Dataset {
    let x: Vec<f32> = (0..60).map(|i| (i as f32 * 0.37).sin()).collect();
    let y: Vec<f32> = x.chunks(3).map(|c| c[0] - c[2]).collect();
    let x = Literal::from_slice([20, 3], &x).unwrap();
    let y = Literal::from_slice([20, 1], &y).unwrap();
    Dataset::from_tensor_slices([("x", x), ("label", y)]).unwrap()
}

/// Trains five epochs of four steps: the third is the best, then the learning rate is too high.
fn run(dir: &Path, kill: Option<u64>) -> Result<(Model, History)> {
    let mut model = Model::sequential([dense(1)]);
    model.compile(Compile {
        optimizer: sgd(0.1),
        loss: mean_squared_error(),
        backend: Some(backend("ref")?),
        ..Compile::default()
    })?;
    let rate = LearningRateScheduler(|epoch, _| if epoch < 3 { 0.1 } else { 3.0 });
    let fit = Fit {
        epochs: 5,
        validation: Some(data().batch(20)),
        callbacks: vec![Box::new(rate), Box::new(Killer(kill))],
        backup: Some(BackupAndRestore::new(dir).every_steps(3).every(None)),
        best: Some(KeepBest::new(dir.join("best.safetensors"), "val_loss")),
        verbose: 0,
        ..Fit::default()
    };
    let history = model.fit(&data().shuffle(20, 1).batch(5), fit)?;
    Ok((model, history))
}

#[test]
fn the_best_model_is_the_same_after_a_kill_at_any_step() {
    let (whole, cut) = (folder("whole"), folder("cut"));
    let (model, history) = run(&whole, None).unwrap();
    let best = history.best.clone().unwrap();
    let losses = history.get("val_loss");
    assert_eq!((best.epoch, best.value), (3, losses[2]));
    assert!(losses.iter().all(|loss| *loss >= best.value), "{losses:?}");
    let of = |dir: &Path| std::fs::read(dir.join("best.safetensors")).unwrap();
    assert_eq!(Model::load(whole.join("best.safetensors")).unwrap().epochs(), 3);
    for kill in 1..model.steps() {
        let _ = std::fs::remove_dir_all(&cut);
        std::fs::create_dir_all(&cut).unwrap();
        for kill in [kill, kill + 1] {
            assert!(run(&cut, Some(kill)).is_err());
        }
        let (again, history) = run(&cut, None).unwrap();
        assert!(of(&cut) == of(&whole), "killed after {kill}");
        assert_eq!(history.best, Some(best.clone()), "killed after {kill}");
        assert_eq!(again.to_file().unwrap(), model.to_file().unwrap(), "killed after {kill}");
    }
    // A finished run knows it, and one that begins anew does not believe what it finds.
    assert_eq!(run(&whole, None).unwrap().1.best, Some(best.clone()));
    std::fs::remove_dir_all(&cut).unwrap();
    std::fs::create_dir_all(&cut).unwrap();
    std::fs::write(cut.join("best.safetensors"), "anything").unwrap();
    assert_eq!(run(&cut, None).unwrap().1.best, Some(best));
    for dir in [whole, cut] {
        std::fs::remove_dir_all(dir).unwrap();
    }
}

#[test]
fn what_is_not_measured_cannot_be_the_best_and_a_later_value_can() {
    let dir = folder("later");
    let mut model = Model::sequential([dense(1)]);
    let backend = Some(backend("ref").unwrap());
    model
        .compile(Compile { optimizer: sgd(0.1), loss: mean_squared_error(), backend, ..Compile::default() })
        .unwrap();
    let keep = |monitor| KeepBest::new(dir.join("best.safetensors"), monitor);
    let fit = |keep: &KeepBest, validation_freq| Fit {
        epochs: 3,
        validation: Some(data().batch(20)),
        validation_freq,
        best: Some(keep.clone()),
        verbose: 0,
        ..Fit::default()
    };
    let e = model.fit(&data().batch(5), fit(&keep("val_acuracy"), 1)).unwrap_err().to_string();
    assert!(e.contains("val_acuracy") && e.contains("val_loss"), "{e}");
    // Measured in the second of three epochs, and by the caller after the last.
    let keep = keep("val_loss");
    let mut history = model.fit(&data().batch(5), fit(&keep, 2)).unwrap();
    assert_eq!(history.best.as_ref().unwrap().epoch, 2);
    let values = model.evaluate(&data().batch(20)).unwrap();
    history.epochs.last_mut().unwrap().extend_with_prefix("val_", &values);
    keep.update(&mut model, &mut history).unwrap();
    assert_eq!((history.best.as_ref().unwrap().epoch, history.best.unwrap().value), (3, values["loss"]));
    assert_eq!(Model::load(dir.join("best.safetensors")).unwrap().steps(), model.steps());
    // Where nothing was validated while training, there is nothing to choose from.
    let mut history = model.fit(&data().batch(5), fit(&keep, 9)).unwrap();
    keep.update(&mut model, &mut history).unwrap();
    assert!(history.best.is_none() && !dir.join("best.safetensors").exists());
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn a_value_measured_again_replaces_the_note_in_the_file() {
    let dir = folder("remeasured");
    let path = dir.join("best.safetensors");
    let (_, mut history) = run(&dir, None).unwrap();
    let (keep, best) = (KeepBest::new(&path, "val_loss"), history.best.clone().unwrap());
    assert_eq!(BestEpoch::of(&Model::load(&path).unwrap()), Some(best.clone()));
    let measured = |value: f64| {
        let mut logs = Logs::new();
        logs.insert("loss", value);
        logs
    };
    let before = std::fs::metadata(&path).unwrap().modified().unwrap();
    keep.remeasure(&mut history, |_| Ok(measured(best.value))).unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().modified().unwrap(), before, "the same value: not written");
    keep.remeasure(&mut history, |model| {
        assert_eq!(model.epochs(), 3);
        Ok(measured(0.125))
    })
    .unwrap();
    let expected = BestEpoch { value: 0.125, ..best };
    assert_eq!(history.best, Some(expected.clone()));
    assert_eq!(BestEpoch::of(&Model::load(&path).unwrap()), Some(expected));
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn a_best_model_that_cannot_be_written_is_reported_at_first_and_at_the_end() {
    let dir = folder("unwritable");
    let mut model = Model::sequential([dense(1)]);
    model.compile(Compile { optimizer: sgd(0.1), loss: mean_squared_error(), ..Compile::default() }).unwrap();
    let fit = Fit {
        epochs: 3,
        validation: Some(data().batch(20)),
        best: Some(KeepBest::new(dir.join("missing").join("best.safetensors"), "val_loss")),
        verbose: 0,
        ..Fit::default()
    };
    let history = model.fit(&data().batch(5), fit).unwrap();
    assert_eq!(history.epochs.len(), 3);
    assert_eq!(history.notes.len(), 2, "{:?}", history.notes);
    assert!(history.notes.iter().all(|note| note.contains("best model")), "{:?}", history.notes);
    assert!(history.best.is_none());
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn labels_and_ids_without_a_place_are_refused_before_the_step() {
    let tokens = input_of("tokens", DType::I32, [2]);
    let scores = tokens.apply(embedding(6, 4)).apply(dense(3).activation("softmax"));
    let mut model = Model::functional(&[tokens], &scores).unwrap();
    let loss = sparse_categorical_crossentropy();
    model.compile(Compile { loss, backend: Some(backend("ref").unwrap()), ..Compile::default() }).unwrap();
    let mut fit = |ids: [i32; 4], labels: [i32; 4]| {
        let ids = Literal::from_slice([2, 2], &ids).unwrap();
        let labels = Literal::from_slice([2, 2], &labels).unwrap();
        let data = Dataset::from_tensor_slices([("tokens", ids), ("label", labels)]).unwrap().batch(2);
        let steps = model.steps();
        let trained = model.fit(&data, Fit { verbose: 0, ..Fit::default() }).map(drop);
        let measured = model.evaluate(&data).map(drop);
        assert_eq!((trained.is_ok(), model.steps() - steps), (measured.is_ok(), u64::from(trained.is_ok())));
        trained.map_err(|e| e.to_string())
    };
    assert_eq!(fit([0, 5, 1, 2], [0, 2, 1, 1]), Ok(()));
    for (id, says) in [(6, "tokens has an id 6"), (-1, "tokens has an id -1")] {
        let e = fit([0, 1, id, 2], [0; 4]).unwrap_err();
        assert!(
            e.contains(says) && e.contains("sample 1") && e.contains("position 0") && e.contains("0 to 5"),
            "{e}"
        );
    }
    for (label, says) in [(3, "label 3 is out of range"), (-1, "label -1 is out of range")] {
        let e = fit([0; 4], [0, label, 0, 0]).unwrap_err();
        assert!(
            e.contains(says) && e.contains("sample 0") && e.contains("position 1") && e.contains("try: "),
            "{e}"
        );
    }
}
