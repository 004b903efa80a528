//! Hints that name a command or a setting and that no case follows, with reasons. May only shrink.

/// Number of places that no case follows. May only shrink.
pub(super) const MOST: usize = 33;

/// File, start of the hint, and the reason.
pub(super) const LEFT: &[(&str, &str, &str)] = &[
    (
        "crates/cli/src/args/suggest.rs",
        "see the options",
        "clap prints the usage error itself; this hint is only in the JSON object",
    ),
    ("crates/cli/src/commands/bench/mod.rs", "signal 9", "needs a child process that is killed"),
    ("crates/cli/src/commands/devices/watch.rs", "remove --watch", "needs a system without /proc"),
    ("crates/cli/src/commands/generate.rs", "provide UTF-8 text", "needs standard input that is not UTF-8"),
    (
        "crates/cli/src/commands/launch/command_line.rs",
        "name a run folder",
        "needs a run record that vanishes while it is read",
    ),
    ("crates/cli/src/commands/launch/wizard.rs", "no file was written", "needs a terminal that ends"),
    ("crates/cli/src/commands/man.rs", "choose another folder", "writing to memory does not fail"),
    ("crates/cli/src/commands/plan/compiler_estimates.rs", "pass a --mesh", "needs a TPU plugin"),
    (
        "crates/cli/src/commands/predict/mod.rs",
        "use another model",
        "needs a model with weights that are not finite",
    ),
    (
        "crates/cli/src/commands/show/rate_schedule.rs",
        "pass a preset",
        "every model file of the program is compiled",
    ),
    (
        "crates/cli/src/commands/show/rate_schedule.rs",
        "pass --steps",
        "data without a sample is rejected before",
    ),
    (
        "crates/cli/src/commands/shrink.rs",
        "pass devices that differ",
        "needs a program on which two devices differ",
    ),
    ("crates/cli/src/models/predictor.rs", "write the file again", "needs damaged metadata"),
    (
        "crates/cli/src/models/program.rs",
        "check that the file",
        "needs a file larger than an eighth of the memory",
    ),
    ("crates/cli/src/models/test_time_augmentation.rs", "remove --tta", "every trained model has a loss"),
    ("crates/cli/src/run/generator_scores.rs", "train a classifier and", "needs a trained BigGAN"),
    ("crates/cli/src/run/generator_scores.rs", "train a classifier on", "needs a trained BigGAN"),
    ("crates/cli/src/run/generator_scores.rs", "train it for", "needs a trained BigGAN"),
    (
        "crates/cli/src/run/training.rs",
        "hint",
        "needs a folder without write permission, and a user other than root",
    ),
    ("crates/cloud/src/chips.rs", "use a slice of v2", "no chip of the tables lacks a machine type"),
    (
        "crates/config/src/auto_batch_size.rs",
        "pass --max-memory",
        "needs a device that does not report its memory",
    ),
    ("crates/config/src/auto_batch_size.rs", "`systole plan`", "needs a device without a memory plan"),
    (
        "crates/config/src/biggan.rs",
        "set biggan.n_classes",
        "the number of classes is set from the data before",
    ),
    ("crates/config/src/launch.rs", "help", "every error of a launch file has a nearer hint"),
    ("crates/data/src/tools.rs", "use 1 to 99999", "the command line checks the number before"),
    (
        "crates/datasets/src/records/mod.rs",
        "check data.records",
        "an empty list of patterns means the folder",
    ),
    ("crates/datasets/src/tokenizer/mod.rs", "choose a size", "the configuration checks the size before"),
    (
        "crates/datasets/src/tokenizer/mod.rs",
        "name another tokenizer file",
        "one of two sites needs a file of more than 100 MB",
    ),
    ("crates/launch/src/lib.rs", "run the same command", "needs a process that is killed"),
    ("crates/quant/src/quantize.rs", "keep the layer", "every operator of the exporter has an int8 form"),
    ("crates/quant/src/quantize_weights.rs", "keep this layer", "needs weights beyond the range of float32"),
    (
        "crates/weights/src/weight_mapping.rs",
        "OTHER_MODEL",
        "every set of rules has all weights in their shapes; guards against a wrong set",
    ),
];
