//! Hints about keys, values and options of `train`.

use super::{Case, case, row, tried, with_table};
use crate::program::Folder;

/// Wrong settings of a run on `t.csv`.
const SETTINGS: &[&str] = &[
    "fit.epoch=1",
    "fit.lr=0.1",
    "lr=0.1",
    "optimizer.type=lino",
    "compile.loss=mean_sqared_error",
    "compile.metrics=[\"acuracy\"]",
    "compile.precision=mixed_bf16",
    "strategy.type=data_paralel",
    "layers.0.type=Dens",
    "layers.2.unit=3",
    "layers.9.units=1",
    "fit.monitor=acuracy",
    "warmup_steps=3",
    "data.dataset=record",
    "data.color_mode=grey",
    "fit.monitor=val_acc",
    "fit.monitor=val_los",
    "fit.epochs=0",
    "fit.batch_size=0",
    "data.background=2",
    "data.validation_split=5",
    "data.unreadable_quota=-1",
    "data.train_samples=0",
    "data.tta=0",
    "data.vocabulary=300",
    "data.records.compression=gz",
    "data.records.cycle_length=0",
    "optimizer.learning_rate=-1",
    "optimizer.learning_rate=nan",
    "optimizer.beta_1=-0.5",
    "callbacks=[{ type = \"EarlyStoping\" }]",
    "strategy.devices=0",
    "fit.class_weight=3",
    "fit.class_weight={ 0 = -1.0 }",
    "fit.class_weight={ 7 = 2.0 }",
    "optimizer.learning_rate=0",
    "layers.0.units=1e60",
    "data.records.encoding=latin7",
    "data.image_size=[0, 8]",
    "compile.metrics=[{ name = \"accuracy\" }]",
    "callbacks=[{ type = \"LearningRateScheduler\" }]",
    "callbacks=[{ type = \"CSVLogger\", filename = \"\" }]",
    "callbacks=[{ type = \"CSVLogger\", filename = \"run.json\" }]",
    "callbacks=[{ type = \"CSVLogger\", filename = \"x/\" }]",
    "callbacks=[{ type = \"ModelCheckpoint\", filepath = \"../x.safetensors\" }]",
    "callbacks=[{ type = \"CSVLogger\", filename = \"x.csv\" }, { type = \"CSVLogger\", filename = \"x.csv\" }]",
    "callbacks=[{ type = \"CSVLogger\", filename = \"t.safetensors\" }]",
    "optimizer={ learning_rate = 0.1 }",
    "layers=[]",
    "layers=[{ units = 3 }]",
    "layers=[{ type = \"Dense\", units = 2, inputs = [\"inpt\"] }]",
    "model.application=resnet5",
    "model.hidden=3",
];

fn set(setting: &str) -> Case {
    tried("t.csv", &format!("'--set={setting}'"))
}

pub(super) fn settings() -> (Folder, Vec<Case>) {
    (with_table("hints-settings"), SETTINGS.iter().map(|setting| set(setting)).collect())
}

pub(super) fn options() -> (Folder, Vec<Case>) {
    let f = with_table("hints-options");
    // A setting, and the one after following the hint.
    let again = |wrong: &str, right: &str| {
        let line = |setting: &str| {
            format!("train t.csv --out=out --epochs=1 --steps-per-epoch=1 --quiet '--set={setting}'")
        };
        row(&line(wrong), &line(right))
    };
    let cases = vec![
        again(
            "data.resize={ method = \"bilinear\", crop_to_aspect_ratio = true, pad_to_aspect_ratio = true }",
            "data.resize=`{ method = \"bilinear\", crop_to_aspect_ratio = true }`",
        ),
        again("data.resize={ method = \"area\", antialias = true }", "data.resize=`area`"),
        again("data.records.decimal=x", "data.records.decimal=,"),
        again("data.records.features=image", "data.records.features=`a: f32[]`"),
        again("data.scale=2", "data.scale=1/255"),
        again("data.scale=0", "data.scale=1"),
        again("data.dataset=my/files.csv", "data.dataset=records"),
        again(
            "optimizer.learning_rate={ type = \"CosinDecay\" }",
            "optimizer.learning_rate=`{ type = \"CosineDecay\", initial_learning_rate = 0.1, decay_steps = 3 }`",
        ),
        again("optimizer.learning_rate=1e400", "optimizer.learning_rate=`0.1`"),
        again(
            "compile.loss={ type = \"mse\", reduction = 3 }",
            "compile.loss=`sparse_categorical_crossentropy`",
        ),
        again("compile.metrics=[{ type = \"precision\", thresholds = \"x\" }]", "compile.metrics=`[]`"),
        again(
            "callbacks=[{ monitor = \"loss\" }]",
            "callbacks=`[{ monitor = \"loss\", type = \"EarlyStopping\" }]`",
        ),
        again(
            "callbacks=[{ type = \"EarlyStopping\", patience = -1 }]",
            "callbacks=`[{ type = \"EarlyStopping\", patience = 1 }]`",
        ),
        again(
            "layers=[{ type = \"Sequential\" }]",
            "layers=`[{ type = \"Sequential\", layers = [{ type = \"Dense\", units = 2 }] }]`",
        ),
        again(
            "layers=[{ type = \"Dense\", units = 2, inputs = [] }]",
            "layers=`[{ type = \"Dense\", units = 2 }]`",
        ),
        again(
            "layers=[{ type = \"Dense\", units = 2, inputs = [3] }]",
            "layers=`[{ type = \"Dense\", units = 2, inputs = [\"input\"] }]`",
        ),
        again(
            "layers=[{ type = \"Dense\", units = 2, name = \"a\", inputs = \"input\" }, { type = \"Dense\", units = 2, inputs = \"input\" }]",
            "layers=`[{ type = \"Dense\", units = 2, name = \"a\", inputs = \"input\" }, { type = \"Dense\", units = 2, inputs = \"a\" }]`",
        ),
        again("compile.metrics=[3]", "compile.metrics=`[\"accuracy\"]`"),
        set("device=cpu").knows("--device", "cpu"),
        set("threads=2").knows("--threads", "1"),
        set("output_dir=x").knows("--out", "other"),
        set("save_every=3").knows("--save-steps", "2").knows("--save-seconds", "1"),
        set("verbose=1"),
        set("data.validation_split=0").knows("data.records.test", "[\"u.csv\"]"),
        tried("t.csv", "--set epochs"),
        tried("t.csv", "--lr 0.1"),
        case("train t.csv --out=out --quiet --epoch 1"),
        tried("t.csv", "--optimizer sgd"),
        case("fit t.csv"),
        case("train t.cvs"),
        case("init my.toml").knows("PRESET", "table"),
        case("train --preset glyps --print-config"),
        // The table's numbers are not pixels: no argument follows, so the hint names the factor.
        set("data.scale=255").typed("train t.csv --out=out --epochs=1 --set=data.scale=1/255"),
    ];
    (f, cases)
}
