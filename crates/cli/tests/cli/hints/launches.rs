//! Hints of `launch`, and of its files and environment variables.

use super::{Case, case, with_table};
use crate::program::Folder;
use std::fs;

const TRAIN: &str = "-- train t.csv --print-config";

pub(super) fn cases() -> (Folder, Vec<Case>) {
    let f = with_table("hints-launch");
    f.write("invalid.toml", "nproc = [");
    f.write("wrong.toml", "nproc = \"two\"");
    f.write("none.toml", "nproc = 0");
    f.write("key.toml", "nprocs = 2");
    for (name, text) in [
        ("dash", "-x\n"),
        ("twice", "127.0.0.1\n127.0.0.1\n"),
        ("empty", "# none\n"),
        ("word", "127.0.0.1 two\n"),
        ("number", "127.0.0.1 slots=x\n"),
        ("sloots", "127.0.0.1 sloots=2\n"),
        ("one", "127.0.0.1\n"),
    ] {
        f.write(name, text);
    }
    f.write("file", "");
    f.write("ssh", "#!/bin/sh\nexec sh -c \"$3\"\n");
    #[cfg(unix)]
    fs::set_permissions(f.path("ssh"), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let launch = |options: &str| case(&format!("launch {options} {TRAIN}"));
    let hosts = |file: &str| launch(&format!("--hosts {file}"));
    let mut cases = vec![
        case("launch --nproc 1 -- fit t.csv")
            .typed("launch --nproc 1 -- train fashion-mnist --print-config")
            .own("--print-config"),
        launch("--nproc 2 --device cpu").typed(&format!("launch --nproc 2 {TRAIN}")),
        case("launch --nproc 2 --trace x.json -- train t.csv")
            .typed(&format!("launch --nproc 2 {TRAIN}"))
            .own("--print-config"),
        launch("").typed(&format!("launch --nproc 1 {TRAIN}")).own("1"),
        launch("--nproc 1 --elastic=1 --device tpu").typed(&format!("launch --nproc 1 --elastic=1 {TRAIN}")),
        launch("--config absent.toml")
            .typed("launch config --nproc 1 --out made.toml")
            .own("--nproc")
            .own("1")
            .own("--out")
            .own("made.toml"),
        launch("--config invalid.toml").mend("invalid.toml", "nproc = 1"),
        launch("--config wrong.toml").mend("wrong.toml", "nproc = 1"),
        launch("--config none.toml").mend("none.toml", "nproc = 1"),
        launch("--config key.toml").mend("key.toml", "nproc = 1"),
        case("launch config").own("2").typed("launch config --nproc 2"),
        launch("--slurm --elastic=2").typed(&format!("launch --nproc 2 --elastic=2 {TRAIN}")),
        launch("--tpu --elastic=2").typed(&format!("launch --nproc 2 --elastic=2 {TRAIN}")),
        case("launch --nproc 2 --elastic=1 -- train t.csv --batch-size auto --print-config")
            .typed("launch --nproc 2 --elastic=1 -- train t.csv --batch-size 256 --print-config"),
        case("launch --nproc 2 --elastic=1 -- train t.csv --set strategy.devices=2 --print-config")
            .typed("launch --nproc 2 --elastic=1 -- train t.csv --print-config"),
        case("launch --nproc 2 --elastic=1 -- train t.csv --epochs=1 --set fit.epoch=1")
            .typed("launch --nproc 2 --elastic=1 -- train t.csv --epochs=1 --set fit.epochs=1 --print-config")
            .own("--print-config"),
        launch("--nproc 1 --log file/x.log")
            .typed(&format!("launch --nproc 1 --log y.log {TRAIN}"))
            .own("y.log"),
        hosts("dash").mend("dash", "127.0.0.1\n"),
        hosts("twice").mend("twice", "127.0.0.1 slots=2\n"),
        hosts("empty").mend("empty", "127.0.0.1\n"),
        hosts("word").mend("word", "127.0.0.1 slots=2\n"),
        hosts("number").mend("number", "127.0.0.1 slots=2\n"),
        hosts("sloots").mend("sloots", "127.0.0.1 slots=2\n"),
        hosts("one").env("SYSTOLE_SSH", "no-such-shell").sets("SYSTOLE_SSH", "./ssh -T"),
        launch("--hosts one --env NOT_SET")
            .typed(&format!("launch --hosts one --env NOT_SET=1 {TRAIN}"))
            .own("1")
            .own("NOT_SET=1")
            .env("SYSTOLE_SSH", "./ssh -T"),
        launch("--hosts one --program ./absent")
            .env("SYSTOLE_SSH", "./ssh -T")
            .typed(
                &format!("launch --hosts one --program PROGRAM {TRAIN}")
                    .replace("PROGRAM", env!("CARGO_BIN_EXE_systole")),
            )
            .own(env!("CARGO_BIN_EXE_systole")),
    ];
    cases.extend(clusters());
    (f, cases)
}

/// Launches by a cluster, whose variables say what is missing.
fn clusters() -> Vec<Case> {
    let slurm = |names: &[(&'static str, &'static str)]| {
        let case = case(&format!("launch --slurm {TRAIN}"));
        names.iter().fold(case, |case, (name, value)| case.env(name, value))
    };
    let pods = |names: &[(&'static str, &'static str)]| {
        let case = case(&format!("launch --k8s {TRAIN}"));
        names.iter().fold(case, |case, (name, value)| case.env(name, value))
    };
    let task = [
        ("SLURM_JOB_ID", "7"),
        ("SLURM_STEP_ID", "0"),
        ("SLURM_PROCID", "0"),
        ("SLURM_NTASKS", "2"),
        ("SLURM_JOB_NODELIST", "127.0.0.1"),
    ];
    let pod = [("JOB_COMPLETION_INDEX", "0")];
    let two = [("JOB_COMPLETION_INDEX", "0"), ("NUM_PROCESSES", "2"), ("COORDINATOR_ADDRESS", "127.0.0.1")];
    vec![
        slurm(&task).sets("SYSTOLE_SECRET", "sixteen characters"),
        slurm(&task).env("SYSTOLE_SECRET", "short").sets("SYSTOLE_SECRET", "sixteen characters"),
        pods(&two).sets("SYSTOLE_SECRET", "sixteen characters"),
        pods(&pod).sets("NUM_PROCESSES", "1"),
        pods(&[]).sets("JOB_COMPLETION_INDEX", "0"),
        pods(&[("JOB_COMPLETION_INDEX", "x")]).env("NUM_PROCESSES", "1").sets("JOB_COMPLETION_INDEX", "0"),
        pods(&[("JOB_COMPLETION_INDEX", "0"), ("NUM_PROCESSES", "2")])
            .sets("COORDINATOR_ADDRESS", "127.0.0.1"),
    ]
}
