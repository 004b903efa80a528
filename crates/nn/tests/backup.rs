//! Backup and restore: a run stopped at any step and resumed ends with the same bits as an uninterrupted run.

use std::path::{Path, PathBuf};
use std::time::Duration;
use systole_data::Dataset;
use systole_ir::{DType, Error, ErrorKind, Literal, Result, TensorType};
use systole_nn::callback::{CSVLogger, Callback, EarlyStopping, FitCx, ReduceLROnPlateau};
use systole_nn::layers::{batch_normalization, dense, dropout};
use systole_nn::loss::mean_squared_error;
use systole_nn::metric::{mean, r2_score};
use systole_nn::optimizer::adam;
use systole_nn::{BackupAndRestore, Compile, Fit, History, Model, ModelFile, Precision};

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
    let dir = std::env::temp_dir().join(format!("systole-backup-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&dir);
    dir
}

/// Lists a folder's files in order.
fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn data() -> Dataset {
    let x: Vec<f32> = (0..60).map(|i| (i as f32 * 0.37).sin()).collect();
    let y: Vec<f32> = x.chunks(3).map(|c| c[0] * c[1] - c[2]).collect();
    let x = Literal::from_slice([20, 3], &x).unwrap();
    let y = Literal::from_slice([20, 1], &y).unwrap();
    Dataset::from_tensor_slices([("x", x), ("label", y)]).unwrap()
}

#[derive(Clone, Copy)]
struct Case {
    precision: Precision,
    steps_per_epoch: Option<usize>,
    batch: usize,
}

/// Runs four epochs with everything that has state; `kill`: fails after that step.
fn run(case: Case, dir: Option<&Path>, csv: &Path, kill: Option<u64>) -> Result<(Model, History)> {
    let mut model =
        Model::sequential([dense(8).activation("relu"), batch_normalization(), dropout(0.3), dense(1)]);
    model.compile(Compile {
        optimizer: adam(0.01),
        loss: mean_squared_error(),
        metrics: vec![mean("prediction"), r2_score()],
        precision: case.precision,
        seed: 3,
        ..Compile::default()
    })?;
    let mut train = data().shuffle(7, 5);
    if case.steps_per_epoch.is_some() {
        train = train.repeat();
    }
    let fit = Fit {
        epochs: 4,
        steps_per_epoch: case.steps_per_epoch,
        validation: Some(data().batch(20)),
        callbacks: vec![
            Box::new(EarlyStopping::new("val_loss", 3).restore_best_weights(true)),
            Box::new(ReduceLROnPlateau::new("loss").patience(1).factor(0.5)),
            Box::new(CSVLogger::new(csv)),
            Box::new(Killer(kill)),
        ],
        backup: dir.map(|d| BackupAndRestore::new(d).every_steps(2).every(None)),
        verbose: 0,
        ..Fit::default()
    };
    let history = model.fit(&train.batch(case.batch).prefetch(2), fit)?;
    Ok((model, history))
}

fn cases() -> Vec<Case> {
    let case = |precision, steps_per_epoch, batch| Case { precision, steps_per_epoch, batch };
    vec![
        case(Precision::Float32, None, 6),
        case(Precision::Float32, Some(3), 8),
        case(Precision::MixedFloat16, None, 5),
    ]
}

#[test]
fn a_run_killed_at_any_step_ends_with_the_same_bits() {
    for (k, case) in cases().into_iter().enumerate() {
        let dir = folder(&format!("kill-{k}"));
        let csv =
            |name: &str| std::env::temp_dir().join(format!("systole-{name}-{k}-{}.csv", std::process::id()));
        let (whole, expected) = run(case, None, &csv("whole"), None).unwrap();
        let lines = std::fs::read_to_string(csv("whole")).unwrap();
        for kill in 1..whole.steps() {
            let _ = std::fs::remove_dir_all(&dir);
            assert!(run(case, Some(&dir), &csv("cut"), Some(kill)).is_err());
            // A second time, a step later.
            let twice = run(case, Some(&dir), &csv("cut"), Some(kill + 1));
            assert!(twice.is_err(), "{kill}");
            let (model, history) = run(case, Some(&dir), &csv("cut"), None).unwrap();
            assert_eq!(model.to_file().unwrap(), whole.to_file().unwrap(), "case {k}, killed after {kill}");
            assert_eq!(history.epochs, expected.epochs, "case {k}, killed after {kill}");
            assert_eq!(std::fs::read_to_string(csv("cut")).unwrap(), lines, "case {k}, killed after {kill}");
        }
        std::fs::remove_dir_all(dir).unwrap();
        for name in ["whole", "cut"] {
            std::fs::remove_file(csv(name)).unwrap();
        }
    }
}

#[test]
fn a_finished_run_is_not_trained_again_and_few_backups_are_kept() {
    let (dir, csv) = (folder("finished"), folder("finished-csv"));
    let case = cases()[0];
    let (first, _) = run(case, Some(&dir), &csv, None).unwrap();
    let place = BackupAndRestore::new(&dir).place().unwrap().unwrap();
    assert!(place.finished && place.epoch == 4 && place.steps == 0);
    let (again, history) = run(case, Some(&dir), &csv, None).unwrap();
    assert_eq!((history.step_ms.len(), history.epochs.len()), (0, 4));
    assert_eq!(again.to_file().unwrap(), first.to_file().unwrap());
    let names = names(&dir);
    assert_eq!((names.len(), &*names[2]), (3, "step-000000000016.safetensors"));
    assert_eq!(names[0], "lock");
    std::fs::remove_dir_all(dir).unwrap();
    std::fs::remove_file(csv).unwrap();
}

#[test]
fn a_damaged_backup_is_passed_over_for_the_one_before() {
    let (dir, csv) = (folder("damaged"), folder("damaged-csv"));
    let case = cases()[0];
    let (whole, _) = run(case, None, &csv, None).unwrap();
    assert!(run(case, Some(&dir), &csv, Some(9)).is_err());
    // A slow disk may get no further than one backup in that time.
    while names(&dir).iter().filter(|n| n.starts_with("step-")).count() < 2 {
        assert!(run(case, Some(&dir), &csv, Some(9)).is_err());
    }
    let newest = dir.join(names(&dir).pop().unwrap());
    let place = |dir: &Path| BackupAndRestore::new(dir).place().unwrap().unwrap();
    let before = place(&dir);
    let mut bytes = std::fs::read(&newest).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    std::fs::write(&newest, bytes).unwrap();
    assert!(ModelFile::load(&newest).is_err());
    let now = place(&dir);
    assert!((now.epoch, now.steps) < (before.epoch, before.steps));
    std::fs::write(dir.join(".systole-1-0.tmp"), b"half").unwrap();
    let (model, _) = run(case, Some(&dir), &csv, None).unwrap();
    assert_eq!(model.to_file().unwrap(), whole.to_file().unwrap());
    assert!(!dir.join(".systole-1-0.tmp").exists());
    for entry in std::fs::read_dir(&dir).unwrap().flatten() {
        std::fs::write(entry.path(), b"nothing").unwrap();
    }
    let e = run(case, Some(&dir), &csv, None).unwrap_err().to_string();
    assert!(e.contains(&dir.display().to_string()), "{e}");
    let backup = BackupAndRestore::new(&dir).restart(true).every(Duration::from_secs(9));
    let mut model = Model::sequential([dense(1)]);
    model.compile(Compile { loss: mean_squared_error(), ..Compile::default() }).unwrap();
    model.fit(&data().batch(5), Fit { backup: Some(backup), verbose: 0, ..Fit::default() }).unwrap();
    assert_eq!(model.steps(), 4);
    std::fs::remove_dir_all(dir).unwrap();
    std::fs::remove_file(csv).unwrap();
}

#[test]
fn a_run_of_another_model_is_refused_with_what_differs() {
    let (dir, csv) = (folder("other"), folder("other-csv"));
    let case = cases()[0];
    assert!(run(case, Some(&dir), &csv, Some(5)).is_err());
    let other = Case { precision: Precision::MixedBfloat16, ..case };
    let e = run(other, Some(&dir), &csv, None).unwrap_err().to_string();
    assert!(e.contains("precision"), "{e}");
    let mut model = Model::sequential([dense(1)]);
    model.compile(Compile { loss: mean_squared_error(), ..Compile::default() }).unwrap();
    let callbacks: Vec<Box<dyn Callback>> =
        (0..4).map(|_| Box::new(Killer(None)) as Box<dyn Callback>).collect();
    let backup = Some(BackupAndRestore::new(&dir));
    let fit = Fit { callbacks, backup: backup.clone(), verbose: 0, ..Fit::default() };
    let e = model.fit(&data().batch(5), fit).unwrap_err().to_string();
    assert!(e.contains("layers"), "{e}");
    let e =
        model.fit(&data().batch(5), Fit { backup, verbose: 0, ..Fit::default() }).unwrap_err().to_string();
    assert!(e.contains("4 callbacks"), "{e}");
    std::fs::remove_dir_all(dir).unwrap();
    std::fs::remove_file(csv).unwrap();
}

/// Model of one layer, compiled with this seed.
fn small(seed: u64) -> Model {
    let mut model = Model::sequential([dense(1)]);
    model.compile(Compile { loss: mean_squared_error(), seed, ..Compile::default() }).unwrap();
    model
}

#[test]
fn the_model_of_a_backup_is_the_one_that_trained() {
    let dir = folder("model");
    let options = BackupAndRestore::new(&dir);
    assert!(options.model().unwrap().is_none());
    let mut model = small(1);
    let fit = Fit { backup: Some(options.clone()), verbose: 0, ..Fit::default() };
    model.fit(&data().batch(5), fit).unwrap();
    let found = options.model().unwrap().unwrap();
    assert_eq!((found.steps(), found.epochs()), (4, 1));
    assert_eq!(found.to_file().unwrap(), model.to_file().unwrap());
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn a_backup_is_of_another_run_if_class_names_or_seeds_differ() {
    let dir = folder("classes");
    let resume = |mut model: Model, names: &[&str], epochs| {
        model.class_names = names.iter().map(|n| n.to_string()).collect();
        let backup = Some(BackupAndRestore::new(&dir));
        model
            .fit(&data().batch(5), Fit { epochs, backup, verbose: 0, ..Fit::default() })
            .map(|_| model.steps())
    };
    assert_eq!(resume(small(1), &["Cat", "Dog"], 1).unwrap(), 4);
    assert_eq!(resume(small(1), &["Cat", "Dog"], 1).unwrap(), 4);
    let e = resume(small(1), &["Cat", "Cow"], 1).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Config);
    assert!(e.to_string().contains("Cat, Dog") && e.to_string().contains("Cat, Cow"), "{e}");
    // A run without names resumes one that has them, and the other way round.
    assert_eq!(resume(small(1), &[], 2).unwrap(), 8);
    assert_eq!(resume(small(1), &["Cat", "Cow"], 2).unwrap(), 8);
    // Weights with the seed of the backup, but another seed for dropout and shuffling.
    let mut other = small(1);
    other.build(&[TensorType::new(DType::F32, [3])]).unwrap();
    other.compile(Compile { loss: mean_squared_error(), seed: 2, ..Compile::default() }).unwrap();
    for model in [other, small(2)] {
        let e = resume(model, &[], 2).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Config);
        assert!(e.to_string().contains("seed"), "{e}");
    }
    std::fs::remove_dir_all(dir).unwrap();
}
