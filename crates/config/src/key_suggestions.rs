//! Suggestions for unknown configuration keys.
//!
//! Sources: synonyms from other frameworks, keys of other tables, and command-line options.

use systole_nn::did_you_mean::{similar, suggestion, synonym};

/// Tables and their keys, without those of specific optimizers and layers. The first entry is the top level.
const TABLES: [(&str, &[&str]); 6] = [
    (
        "",
        &[
            "seed",
            "data",
            "model",
            "layers",
            "biggan",
            "optimizer",
            "compile",
            "fit",
            "strategy",
            "callbacks",
        ],
    ),
    (
        "fit",
        &[
            "epochs",
            "batch_size",
            "steps_per_epoch",
            "validation_freq",
            "val_check_interval",
            "limit_train_batches",
            "limit_val_batches",
            "overfit_batches",
            "fast_dev_run",
            "max_time",
            "num_sanity_val_steps",
            "detect_anomaly",
            "barebones",
            "class_weight",
        ],
    ),
    ("compile", &["loss", "metrics", "weighted_metrics", "precision"]),
    (
        "optimizer",
        &[
            "learning_rate",
            "weight_decay",
            "momentum",
            "clipnorm",
            "clipvalue",
            "global_clipnorm",
            "gradient_accumulation_steps",
        ],
    ),
    (
        "data",
        &[
            "dataset",
            "dir",
            "scale",
            "shuffle",
            "image_size",
            "color_mode",
            "validation_split",
            "unreadable_quota",
            "augment",
            "records",
            "sequence_length",
            "train_samples",
            "test_samples",
            "tuning",
        ],
    ),
    ("strategy", &["devices", "mesh"]),
];

/// Names from other frameworks that are not configuration keys, and what to use instead.
const OTHERWISE: [(&str, &str); 9] = [
    (
        "early_stopping earlystopping early_stop patience",
        "to stop training early, add [[callbacks]] with type = \"EarlyStopping\"",
    ),
    (
        "device accelerator backend gpu gpus tpu cuda",
        "choose the device on the command line: --device cpu, tpu, cuda or pjrt:FILE",
    ),
    (
        "threads num_threads num_workers workers n_jobs core_budget cpu_budget",
        "set the thread count on the command line: --threads N; pipeline threads are tuned at run time",
    ),
    (
        "out output output_dir out_dir save_dir log_dir checkpoint_dir default_root_dir",
        "set the output folder on the command line: --out DIR",
    ),
    (
        "from pretrained checkpoint ckpt ckpt_path weights init_from load_model",
        "pass a saved model on the command line: train --from MODEL",
    ),
    ("resume auto_resume", "run the same command again to resume, or use: resume FOLDER"),
    (
        "save_steps save_every save_freq checkpoint_every save_interval save_seconds",
        "set the backup interval on the command line: --save-steps N or --save-seconds S",
    ),
    ("verbose quiet log_level logging progress_bar", "set the verbosity on the command line: -v or --quiet"),
    (
        "warmup warmup_steps num_warmup_steps warmup_ratio",
        "use a warm-up schedule: optimizer.learning_rate = { type = \"LinearWarmup\", initial_learning_rate = 0.0, \
         warmup_steps = 100, then = 0.001 }",
    ),
];

/// BigGAN-PyTorch options that are general training settings here, and the keys that set them.
const OF_BIGGAN: [(&str, &str); 9] = [
    ("batch_size", "fit.batch_size, the batch of one update, which is computed in num_D_accumulations parts"),
    ("num_epochs", "fit.epochs, with fit.steps_per_epoch"),
    ("dataset", "data.dataset"),
    ("augment", "data.augment = [\"flip\"]"),
    ("shuffle", "data.shuffle"),
    ("G_fp16 D_fp16 G_mixed_precision D_mixed_precision", "compile.precision = \"mixed_bfloat16\""),
    ("cross_replica mybn sync_bn", "nothing, since batch statistics always cover the whole batch"),
    (
        "toggle_grads split_D skip_init",
        "nothing, since each update computes only its own network's gradients",
    ),
    (
        "which_best no_fid test_every num_inception_images",
        "compute scores after training: systole evaluate RUN --features CLASSIFIER",
    ),
];

/// Returns the hint for a key that is not among the `known` ones of its table.
pub(super) fn hint(key: &str, known: &[&str]) -> String {
    if let Some((_, what)) = OF_BIGGAN.iter().find(|(names, _)| known.contains(&"G_lr") && same(key, names)) {
        return format!("use this instead of BigGAN-PyTorch's option: {what}");
    }
    if synonym(key, known).is_some() {
        return suggestion(key, known);
    }
    let otherwise = OTHERWISE.iter().find(|(names, _)| same(key, names));
    if let Some((_, what)) = otherwise {
        return (*what).into();
    }
    match (home(key, synonym), similar(key, known), home(key, similar)) {
        (Some(home), ..) | (None, None, Some(home)) => format!("did you mean `{home}` (another table)?"),
        _ => suggestion(key, known),
    }
}

/// Whether a key equals one of the names, ignoring case, `_` and `-`.
fn same(key: &str, names: &str) -> bool {
    let plain = |name: &str| name.replace(['_', '-'], "").to_lowercase();
    names.split(' ').any(|name| plain(name) == plain(key))
}

/// Returns the full path of a key: `optimizer.learning_rate` for `lr`.
pub fn home_of(key: &str) -> Option<String> {
    home(key, synonym)
}

type FindKeyFn = for<'a> fn(&str, &[&'a str]) -> Option<&'a str>;

fn home(key: &str, find: FindKeyFn) -> Option<String> {
    TABLES.iter().find_map(|(table, keys)| {
        let found = find(key, keys)?;
        Some(if table.is_empty() { found.to_string() } else { format!("{table}.{found}") })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ConfigDraft;

    #[test]
    fn the_tables_have_these_keys() {
        for (table, keys) in TABLES {
            for key in keys {
                let path = if table.is_empty() { key.to_string() } else { format!("{table}.{key}") };
                let mut draft = ConfigDraft::preset("fashion-mnist").unwrap();
                draft.set("the test", "optimizer.type", "sgd");
                draft.set("the test", &path, "\"?\"");
                let text = draft.finish().err().map_or(String::new(), |r| r.error.to_string());
                assert!(!text.contains("unknown key") && !text.contains("has no argument"), "{path}: {text}");
            }
        }
    }

    #[test]
    fn a_key_of_another_table_or_of_the_command_line_is_told() {
        let fit = ["epochs", "batch_size", "steps_per_epoch", "validation_freq"];
        let cases = [
            ("bs", "`batch_size`"),
            ("epoch", "`epochs`"),
            ("lr", "`optimizer.learning_rate`"),
            ("learning_rat", "`optimizer.learning_rate`"),
            ("metrics", "`compile.metrics`"),
            ("early_stopping", "EarlyStopping"),
            ("EarlyStopping", "EarlyStopping"),
            ("num_workers", "--threads"),
            ("device", "--device"),
            ("colour_of_the_sky", "one of: epochs, batch_size"),
        ];
        for (key, part) in cases {
            let told = hint(key, &fit);
            assert!(told.contains(part), "{key}: {told}");
        }
    }
}
