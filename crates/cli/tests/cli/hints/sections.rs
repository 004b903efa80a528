//! Hints about sections of the configuration: fine-tuning, LoRA, pruning, quantization, BigGAN and others.

use super::{Case, case, row, tried, with_table};
use crate::program::Folder;

/// Settings that cannot be combined, and those after following the hint.
const ROWS: &[(&str, &str)] = &[
    ("strategy.devices=1|strategy.mesh=data=1", "strategy.mesh=data=1"),
    ("lora.rank=0", "lora.rank=1"),
    ("fine_tune.base_lr=-1", "fine_tune.base_lr=0.002"),
    (
        "fine_tune.base_lr=0.01|callbacks=[{ type = \"GradientAccumulationScheduler\", scheduling = { 0 = 2 } }]",
        "fine_tune.base_lr=0.01",
    ),
    ("lr_find.num_it=0", "lr_find.num_it=100"),
    ("lr_find.suggest=valey", "lr_find.suggest=valley"),
    ("lr_find.num_it=20|fine_tune.base_lr=0.01", "lr_find.num_it=20"),
    (
        "lr_find.num_it=20|optimizer.learning_rate={ type = \"PiecewiseConstantDecay\", boundaries = [1], values = [0.1, 0.01] }",
        "lr_find.num_it=20|optimizer.learning_rate=`0.01`",
    ),
    ("lr_find.num_it=20|lr_find.suggest=slide", "lr_find.num_it=200|lr_find.suggest=slide"),
    ("pruning.sparsity_m_by_n=[2]", "pruning.sparsity_m_by_n=[2, 4]"),
    ("pruning.target_sparsity=2", "pruning.target_sparsity=`0.5`"),
    ("pruning.type=linear", "pruning.type=PolynomialDecay"),
    ("quantize.bits=4", "quantize.per_channel=`false`"),
    ("quantize.ema_decay=2", "quantize.ema_decay=`0.5`"),
    ("quantize.freeze_bn_delay=-1", "quantize.freeze_bn_delay=1"),
];

fn settings(line: &str) -> String {
    line.split('|').map(|setting| format!("'--set={setting}' ")).collect()
}

pub(super) fn cases() -> (Folder, Vec<Case>) {
    let f = with_table("hints-sections");
    let line = |all: &str| {
        format!("train t.csv --out=out --epochs=1 --steps-per-epoch=1 --threads=1 --quiet {}", settings(all))
    };
    let cases = ROWS.iter().map(|(wrong, right)| row(&line(wrong), &line(right)));
    let mut cases: Vec<Case> = cases.collect();
    f.write("bad.toml", "[fit\nepochs = 1\n");
    f.write("part.toml", "[data]\ndataset = \"glyphs\"\n");
    cases.extend([
        tried("t.csv", "--set=model.application=resnet50")
            .typed("train t.csv --out=out --epochs=1 --steps-per-epoch=1"),
        tried("bad.toml", ""),
        tried("part.toml", ""),
        tried("absent.toml", ""),
    ]);
    (f, cases)
}

/// Settings of BigGAN, and those after following the hint.
const GAN: &[(&str, &str)] = &[
    ("biggan.G_chanels=3", "biggan.G_ch=3"),
    ("biggan.batch_size=3", "fit.batch_size=3"),
    ("biggan.resolution=48", "biggan.resolution=32"),
    ("biggan.resolution=64", "biggan.resolution=64|data.image_size=[64,64]"),
    ("biggan.num_D_accumulations=3", "biggan.num_D_accumulations=3|fit.batch_size=3"),
    ("optimizer.learning_rate=0.1", "biggan.G_lr=0.1"),
    ("optimizer.type=sgd", "optimizer.type=adam"),
    ("compile.loss=mse", "compile.loss=hinge"),
    ("compile.metrics=[\"accuracy\"]", "compile.metrics=[]"),
    ("compile.precision=mixed_float16", "compile.precision=mixed_bfloat16"),
    ("data.scale=1", "data.scale=1/255"),
    ("data.dataset=glyphs", "data.dataset=cifar10"),
    ("data.augment=[\"mixup\"]", "data.augment=[\"flip\"]"),
    ("model.application=resnet50", "biggan.resolution=32"),
    ("fit.class_weight=balanced", "biggan.resolution=32"),
    ("lora.rank=1", "biggan.resolution=32"),
    ("pruning.final_sparsity=0.5", "biggan.resolution=32"),
    ("quantize.per_channel=true", "biggan.resolution=32"),
    ("lr_find.num_it=20", "biggan.resolution=32"),
];

pub(super) fn biggan() -> (Folder, Vec<Case>) {
    let f = Folder::new("hints-biggan");
    let line = |all: &str| format!("train biggan --print-config --out=out {}", settings(all));
    let own = ["biggan.resolution", "32", "0.1", "3", "64"];
    let row = |(wrong, right): &(&str, &str)| {
        own.iter().fold(case(&line(wrong)).typed(&line(right)), |case, word| case.own(word))
    };
    (f, GAN.iter().map(row).collect())
}
