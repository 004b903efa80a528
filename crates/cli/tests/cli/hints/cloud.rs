//! Hints of `cloud`.

use super::{Case, case};
use crate::program::Folder;
use std::fs;

/// Arguments of `cloud`, and those after following the hint, with the user's own words between back-ticks.
const ROWS: &[(&str, &str)] = &[
    ("aws mlp --slice v5e-8 --synthetic", "tpu-vm mlp --slice v5e-8 --synthetic"),
    ("tpu-vm mlp --slice v5e-7 --synthetic", "tpu-vm mlp --slice v5litepod-8 --synthetic"),
    ("tpu-vm mlp --slice 0*h100 --synthetic", "`slurm` mlp --slice 8*h100 --synthetic"),
    ("tpu-vm mlp --slice h100 --synthetic", "slurm mlp --slice h100 --synthetic"),
    ("tpu-vm mlp --slice h100 --synthetic", "tpu-vm mlp --slice v5e-8 --synthetic"),
    (
        "tpu-vm mlp --slice v5e-8 --synthetic --region mars",
        "tpu-vm mlp --slice v5e-8 --synthetic --region us-central1",
    ),
    (
        "tpu-vm mlp --slice v5e-8 --synthetic --region us-east7",
        "tpu-vm mlp --slice v5e-8 --synthetic --zone us-east7-a",
    ),
    (
        "tpu-vm mlp --slice v5e-8 --synthetic --zone mars",
        "tpu-vm mlp --slice v5e-8 --synthetic --zone us-central1-a",
    ),
    (
        "tpu-vm mlp --slice tpu7x-2x2x1 --synthetic",
        "gke mlp --slice tpu7x-2x2x1 --synthetic `--bucket` `gs://mine` `--image` `x`",
    ),
    (
        "tpu-vm mlp --slice v5e-8 --synthetic --spot",
        "tpu-vm mlp --slice v5e-8 --synthetic --spot --bucket `gs://mine`",
    ),
    (
        "tpu-vm mlp --slice v5e-16 --synthetic --bucket mine",
        "tpu-vm mlp --slice v5e-16 --synthetic --bucket `gs://mine`",
    ),
    (
        "tpu-vm mlp --slice v5e-8 --num-slices 2 --bucket gs://mine --synthetic",
        "tpu-vm mlp --slice v5e:4x4 --num-slices 2 --bucket gs://mine --synthetic",
    ),
    (
        "tpu-vm mlp --slice 2*v5e-16 --num-slices 3 --bucket gs://mine --synthetic",
        "tpu-vm mlp --slice v5litepod-16 --num-slices 3 --bucket gs://mine --synthetic -- `--batch-size` `144`",
    ),
    (
        "tpu-vm mlp --slice v5e-8 --name My_Run --synthetic",
        "tpu-vm mlp --slice v5e-8 --name my-run-2 --synthetic",
    ),
    ("tpu-vm mlp --slice v5e-8 --image x --synthetic", "tpu-vm mlp --slice v5e-8 --synthetic"),
    (
        "tpu-vm mine.toml --slice v5p-2048 --bucket gs://mine --synthetic",
        "tpu-vm mine.toml --slice v5p-2048 --bucket gs://mine --synthetic -- --batch-size 1024",
    ),
    ("tpu-vm mlp --slice v5e-8 --synthetic -- --epoch 3", "help train"),
    ("tpu-vm mlp --slice v5e-8 --synthetic -- --out x", "tpu-vm mlp --slice v5e-8 --synthetic --name `x`"),
    (
        "gke mlp --slice v5e-8 --bucket gs://mine --synthetic",
        "gke mlp --slice v5e-8 --bucket gs://mine --synthetic --image `eu.gcr.io/a/b`",
    ),
    (
        "gke mlp --slice v2-8 --bucket gs://mine --image x --synthetic",
        "tpu-vm mlp --slice v2-8 --bucket gs://mine --synthetic",
    ),
    (
        "vertex mlp --slice v5e-16 --spot --bucket gs://mine --image x --synthetic",
        "vertex mlp --slice v5e-16 --bucket gs://mine --image x --synthetic",
    ),
    (
        "vertex mlp --slice v5e-16 --num-slices 2 --bucket gs://mine --image x --synthetic",
        "gke mlp --slice v5e-16 --num-slices 2 --bucket gs://mine --image x --synthetic",
    ),
    ("slurm mlp --slice h100-4 --synthetic", "slurm mlp --slice 4*h100 --synthetic"),
    ("ray mlp --slice 8xA100 --synthetic", "ray mlp --slice 8*a100 --synthetic"),
    ("slurm mlp --slice v5e-8 --synthetic", "slurm mlp --slice 8*h100 --synthetic"),
    ("slurm mlp --slice 8*h100 --nodes 2 --synthetic", "slurm mlp --slice 16*cpu --nodes 2 --synthetic"),
    ("slurm mlp --slice v5e-16 --nodes 2 --synthetic", "slurm mlp --slice v5e-16 --synthetic"),
    ("slurm mlp --slice no*cpu --synthetic", "slurm mlp --slice 16*cpu --synthetic"),
    ("ray mlp --slice 16*cpu --synthetic", "slurm mlp --slice 16*cpu --synthetic"),
    (
        "ray mlp --slice tpu7x-2x2x1 --synthetic",
        "gke mlp --slice tpu7x-2x2x1 --synthetic `--bucket` `gs://mine` `--image` `x`",
    ),
    ("slurm mlp --slice h100 --spot --synthetic", "slurm mlp --slice h100 --synthetic"),
    ("colab mlp --slice v5e-8 --synthetic", "colab mlp --slice v5e-1 --synthetic"),
    ("ray mlp --slice h100 --num-slices 2 --synthetic", "ray mlp --slice 8*h100 --synthetic"),
    ("ray mlp --slice h100 --region mars --synthetic", "ray mlp --slice h100 --synthetic --region lambda"),
    ("tpu-vm mlp --slice v5e-8", "tpu-vm mlp --slice v5e-8 --synthetic"),
    ("tpu-vm gpt2-small --slice v5e-4", "tpu-vm gpt2-small --slice v5e-4 -- --data-dir `my.txt`"),
    ("tpu-vm folder --slice v5e-8", "tpu-vm folder --slice v5e-8 -- --data-dir `runs/album`"),
    ("tpu-vm mnist --slice v5e-8 --synthetic", "tpu-vm mnist --slice v5e-8"),
    ("tpu-vm album --slice v5e-8", "tpu-vm `mnist` --slice v5e-8"),
    ("tpu-vm model.safetensors --slice v5e-8", "init `mnist` --out run.toml"),
];

pub(super) fn cases() -> (Folder, Vec<Case>) {
    let f = Folder::new("hints-cloud");
    f.write("full/notes.txt", "mine");
    f.write("file", "");
    f.write("model.safetensors", "");
    fs::create_dir(f.path("album")).unwrap();
    let mine = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cli/cloud/mine.toml");
    fs::copy(mine, f.path("mine.toml")).unwrap();
    let mut cases: Vec<Case> = ROWS.iter().map(|(wrong, right)| row(wrong, right)).collect();
    for folder in ["full", "file/below"] {
        let line = |out: &str| format!("cloud tpu-vm mlp --slice v5e-8 --synthetic --out {out}");
        cases.push(case(&line(folder)).knows("--out", "out").typed(&line("out")));
    }
    (f, cases)
}

/// A row as a case; the words between back-ticks are the user's.
fn row(wrong: &str, right: &str) -> Case {
    let line = |arguments: &str| match arguments.split_once(" -- ") {
        Some((ours, theirs)) => format!("cloud {ours} --out out -- {theirs}"),
        None => format!("cloud {arguments} --out out"),
    };
    let own = right.split('`').skip(1).step_by(2);
    let plain = right.replace('`', "");
    let is_cloud = !["help", "init", "chips"].iter().any(|command| plain.starts_with(command));
    let right = if is_cloud { line(&plain) } else { plain };
    own.fold(case(&line(wrong)).typed(&right), |case, word| case.own(word))
        .own("cloud")
        .own("--out")
        .own("out")
}
