//! End-to-end tests of the wheel for JAX: it is installed into a fresh virtual environment beside JAX, and used with only
//! `JAX_PLATFORMS=systole` set. Also tests the notebooks, which install the wheel themselves.

#![allow(clippy::print_stdout, reason = "says what was skipped")]

use crate::packaging::{ROOT, package, succeed};
use crate::program::Folder;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A fresh environment beside the packages of the Python that SYSTOLE_PYTHON names.
struct Environment {
    folder: Folder,
    python: PathBuf,
}

impl Environment {
    /// With the wheel in it. `None`: there is no Python with the packages that a test needs.
    fn new(test: &str, packages: &str) -> Option<Environment> {
        let e = Environment::without_wheel(test, packages)?;
        let install =
            ["-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--disable-pip-version-check"];
        succeed(Command::new(&e.python).args(install).arg(wheel()));
        Some(e)
    }

    fn without_wheel(test: &str, packages: &str) -> Option<Environment> {
        let told = |why: &str| println!("SKIPPED {test}: {why}");
        let Ok(base) = std::env::var("SYSTOLE_PYTHON") else {
            told("SYSTOLE_PYTHON names no Python");
            return None;
        };
        let site = "import sysconfig; print(sysconfig.get_path('purelib'))";
        let found = Command::new(&base).args(["-c", &format!("import {packages}\n{site}")]).output();
        let Some(found) = found.ok().filter(|out| out.status.success()) else {
            told(&format!("{base} lacks one of {packages}"));
            return None;
        };
        let folder = Folder::new(&format!("wheel-{test}"));
        succeed(Command::new(&base).args(["-m", "venv"]).arg(folder.path("venv")));
        let python = folder.path("venv/bin/python");
        let own = succeed(Command::new(&python).args(["-c", site]));
        let beside = Path::new(own.trim()).join("beside.pth");
        std::fs::write(beside, found.stdout).unwrap();
        Some(Environment { folder, python })
    }

    /// Runs a script, which checks its own numbers.
    fn run(&self, script: &str, devices: usize) -> String {
        let mut command = Command::new(&self.python);
        command.arg("-c").arg(script).current_dir(&self.folder.0).env("SYSTOLE_DEVICES", devices.to_string());
        command.env("JAX_PLATFORMS", "systole").env("TPU_SKIP_MDS_QUERY", "1");
        let said = succeed(&mut command);
        assert!(said.ends_with("the end\n"), "{said}");
        said
    }
}

/// The wheel with the plugin.
fn wheel() -> PathBuf {
    package("systole_jax-", ".whl")
}

#[test]
fn twenty_programs_a_sharded_loop_and_systole_run_through_the_wheel() {
    let Some(e) = Environment::new("programs", "jax, scipy") else { return };
    e.run(include_str!("wheel/programs.py"), 1);
    e.run(include_str!("wheel/sharded.py"), 8);
    e.run(include_str!("wheel/module.py"), 1);
    // It stands below JAX's own CPU.
    let usual =
        "import jax; assert jax.default_backend() == 'cpu'; assert jax.devices('systole'); print('the end')";
    let mut command = Command::new(&e.python);
    assert_eq!(succeed(command.arg("-c").arg(usual).env("TPU_SKIP_MDS_QUERY", "1")), "the end\n");
    succeed(Command::new(e.folder.path("venv/bin/systole")).arg("--version"));
}

#[test]
fn flax_trains_through_the_wheel() {
    let Some(e) = Environment::new("flax", "jax, flax, optax") else { return };
    e.run(include_str!("wheel/flax_training.py"), 1);
}

/// What is there for notebooks.
const FOR_NOTEBOOKS: &str = "nbclient, ipykernel, matplotlib, lammps_jax_pjrt_cpu";

impl Environment {
    /// Runs a notebook in a folder of its own, with the wheel beside it and these settings: what each cell says is looked at.
    fn notebook(&self, name: &str, folder: &str, settings: &[(&str, &str)], variables: &[(&str, PathBuf)]) {
        let place = self.folder.path(folder);
        std::fs::create_dir_all(&place).unwrap();
        std::fs::hard_link(wheel(), place.join(wheel().file_name().unwrap())).unwrap();
        let mut command = Command::new(&self.python);
        command.arg(Path::new(ROOT).join("fixtures/notebooks/run.py"));
        command.arg(Path::new(ROOT).join("notebooks").join(name).with_extension("ipynb")).arg(place);
        command.args(settings.iter().map(|(name, value)| format!("{name}={value}")));
        let path = std::env::var_os("PATH").unwrap_or_default();
        let programs = [self.folder.path("venv/bin")];
        let path = std::env::join_paths(programs.into_iter().chain(std::env::split_paths(&path))).unwrap();
        // Nothing is downloaded, into a folder below a file, and no settings of the user's count.
        for variable in ["SYSTOLE_DATA", "SYSTOLE_LOG", "SYSTOLE_THREADS", "SYSTOLE_BACKEND", "PYTHONPATH"] {
            command.env_remove(variable);
        }
        let cache = self.folder.write("no-folder", "").join("cache");
        command.env("PATH", path).env("SYSTOLE_CACHE", cache).env("PIP_DISABLE_PIP_VERSION_CHECK", "1");
        command.env("HOME", self.folder.path("home")).envs(variables.iter().cloned());
        let said = succeed(&mut command);
        assert!(said.starts_with("ran ") && said.ends_with(" cells\n"), "{name}: {said}");
    }

    fn json(&self, file: &str) -> serde_json::Value {
        let text = std::fs::read_to_string(self.folder.path(file)).unwrap();
        // Training tells other things before.
        let from = if file.ends_with("result.json") { text.trim_end().rfind('\n').unwrap_or(0) } else { 0 };
        serde_json::from_str(&text[from..]).unwrap()
    }

    /// The losses of the run of a notebook.
    fn losses(&self, folder: &str) -> Vec<f64> {
        let told = self.json(&format!("{folder}/result.json"));
        told["history"].as_array().unwrap().iter().map(|epoch| epoch["loss"].as_f64().unwrap()).collect()
    }
}

#[track_caller]
fn near(a: &[f64], b: &[f64]) {
    assert_eq!(a.len(), b.len());
    assert!(a.iter().zip(b).all(|(a, b)| (a - b).abs() <= 1e-3 * b.abs().max(1e-2)), "{a:?} {b:?}");
}

/// Small, on our engine and on XLA, with data that are found and with such as are drawn, where the place is as on Colab and on
/// Kaggle and where it is not.
#[test]
fn notebooks_of_training_run_as_they_stand() {
    let Some(e) = Environment::without_wheel("notebooks-training", FOR_NOTEBOOKS) else { return };
    let f = &e.folder;
    f.write_set("data/fashion-mnist", 64, 32);
    f.write("stub/google/__init__.py", "");
    f.write("stub/google/colab/__init__.py", "");
    f.write("stub/google/colab/drive.py", include_str!("wheel/drive.py"));
    let data = [("SYSTOLE_DATA", f.path("data"))];
    let epochs = |n| {
        let few =
            "--steps-per-epoch 2 --batch-size 16 --set data.train_samples=64 --set data.test_samples=32";
        format!("--epochs {n} {few}")
    };
    let found = ("DATA", r"fashion-mnist, the default; 64 \+ 32 images");
    let drawn = ("DATA", "glyphs, because ");
    let elsewhere = ("PLACE", "This is not Colab");

    for device in ["cpu", "xla"] {
        let settings = [("DEVICE", device), ("ARGUMENTS", &epochs(2)), found, elsewhere];
        e.notebook("colab_gpu", &format!("gpu-{device}"), &settings, &data);
    }
    let losses = e.losses("gpu-cpu");
    assert!(losses.len() == 2 && losses.iter().all(|loss| loss.is_finite()), "{losses:?}");
    near(&e.losses("gpu-xla"), &losses);

    let drive = f.path("drive").display().to_string();
    let settings =
        [("DEVICE", "cpu"), ("ARGUMENTS", &epochs(1)), drawn, ("DRIVE", &drive), ("PLACE", "Mounted at")];
    e.notebook("colab_tpu", "tpu-cpu", &settings, &[("PYTHONPATH", f.path("stub"))]);
    assert!(f.path("drive/MyDrive/systole/systole-fashion-mnist/glyphs.safetensors").is_file());
    e.notebook(
        "colab_tpu",
        "tpu-xla",
        &[("DEVICE", "xla"), ("ARGUMENTS", &epochs(1)), found, elsewhere],
        &data,
    );

    // A second session of Kaggle goes on with what the first one left.
    std::fs::create_dir_all(f.path("first/working")).unwrap();
    let (place, first) = (("PLACE", "Run folder:"), f.path("first").display().to_string());
    let arguments = format!("--strategy=data_parallel {}", epochs(2));
    let settings = [("DEVICE", "cpu"), ("ARGUMENTS", &arguments), found, place, ("KAGGLE", &first)];
    e.notebook("kaggle_tpu", "kaggle-cpu", &settings, &data);
    std::fs::create_dir_all(f.path("second/working")).unwrap();
    std::fs::create_dir_all(f.path("second/input/mine")).unwrap();
    let run = "systole-fashion-mnist";
    std::fs::rename(f.path("first/working").join(run), f.path("second/input/mine").join(run)).unwrap();
    let (place, second) = (("PLACE", "Resuming from"), f.path("second").display().to_string());
    let arguments = format!("--resume=force --strategy=data_parallel {}", epochs(3));
    let settings = [("DEVICE", "xla"), ("ARGUMENTS", &arguments), found, place, ("KAGGLE", &second)];
    e.notebook("kaggle_tpu", "kaggle-xla", &settings, &data);
    let (two, three) = (e.losses("kaggle-cpu"), e.losses("kaggle-xla"));
    assert!(three.len() == 3 && three[..2] == two[..], "{two:?} {three:?}");
}

/// Freeze, one cycle, discriminative rates, test-time augmentation, most confused: from a clean kernel, with nothing set.
#[test]
fn the_notebook_of_fine_tuning_runs_as_it_stands() {
    let Some(e) = Environment::without_wheel("notebooks-fine-tuning", FOR_NOTEBOOKS) else { return };
    e.notebook("resnet50_fine_tuning", "cpu", &[], &[]);
    let told = e.json("cpu/result.json");
    assert!(told["val_sparse_categorical_accuracy"].as_f64() > Some(0.5), "{told}");
}

/// The JAX notebook (training on Systole and on JAX's CPU backend, eight devices, an exported program) runs in a new kernel
/// without environment variables.
#[test]
fn the_notebook_of_jax_runs_as_it_stands() {
    let Some(e) = Environment::without_wheel("notebooks-jax", "jax, nbclient, ipykernel, matplotlib") else {
        return;
    };
    e.notebook("jax_on_systole", "cpu", &[], &[]);
}

/// The checkpoint is a small ResNet that is trained here and written as Keras would; with nothing set, the notebook trains
/// one itself and fetches it from its own server.
#[test]
fn the_notebook_of_resnet50_runs_as_it_stands() {
    let Some(e) = Environment::without_wheel("notebooks-resnet50", FOR_NOTEBOOKS) else { return };
    e.notebook("resnet50_inference", "clean", &[], &[]);
    assert_eq!(e.json("clean/answers.json")[0]["top"].as_array().unwrap().len(), 5);
    let f = &e.folder;
    let small = ["classes=10", "depths=[1, 1]", "width=8"].map(|part| format!("--set=model.{part}"));
    let few = ["image_size=[32, 32]", "train_samples=16", "test_samples=16"]
        .map(|part| format!("--set=data.{part}"));
    let mut args = vec!["train", "resnet50", "--epochs=1", "--steps-per-epoch=1", "--out=small", "--quiet"];
    args.extend(small.iter().chain(&few).map(String::as_str));
    f.run(&args).ok();
    f.run(&["export", "small/colour-glyphs.safetensors", "--format=keras", "--out=small.keras"]).ok();
    let checkpoint = f.path("small.keras").display().to_string();
    // From the wheel beside it, and from the archive.
    let archive = package("systole-", ".tar.gz").display().to_string();
    for (device, source) in [("cpu", ""), ("xla", &archive)] {
        let settings =
            [("DEVICE", device), ("CHECKPOINT", &checkpoint), ("SCALE", "1/255"), ("SOURCE", source)];
        e.notebook("resnet50_inference", device, &settings, &[]);
    }
    let told = ["cpu", "xla"].map(|device| e.json(&format!("{device}/answers.json"))[0].clone());
    // As the model itself answers, which never was a checkpoint of Keras.
    let picture = told[0]["image"].as_str().unwrap();
    let own =
        f.run(&["predict", "small/colour-glyphs.safetensors", picture, "--top=5", "--json"]).ok().json();
    let ranked = |answer: &serde_json::Value, key: &str| -> Vec<f64> {
        answer["top"].as_array().unwrap().iter().map(|one| one[key].as_f64().unwrap()).collect()
    };
    assert_eq!(ranked(&own, "label").len(), 5);
    for answer in &told {
        assert_eq!(ranked(answer, "label"), ranked(&own, "label"));
        near(&ranked(answer, "probability"), &ranked(&own, "probability"));
    }
}
