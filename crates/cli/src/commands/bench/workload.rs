//! Benchmark workloads; expands names of the command line (`gemm`) to measurements (each size and precision).

use crate::args::missing_path::missing;
use crate::models::command_target::is_path;
use std::path::Path;
use systole_config::{ConfigDraft, PRESETS};
use systole_ir::{Result, err};
use systole_nn::Precision;
use systole_nn::did_you_mean::suggestion;

/// One measurement.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct BenchItem {
    /// Name: `mlp`, `gemm-2048` or a file path.
    pub(super) name: String,
    /// Precision policy, or for gemm the element type.
    pub(super) precision: String,
    /// Workload to run.
    pub(super) work: Workload,
}

impl std::fmt::Display for BenchItem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "workload {} ({})", self.name, self.precision)
    }
}

/// Kind of workload.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Workload {
    /// Training steps of a preset or TOML file.
    Train(String),
    /// Predictions of a preset's model.
    Predict(String),
    /// Predictions of an application's quantized graph, or of its layers.
    Int8(&'static str),
    /// A product of n × n matrices.
    Gemm(usize),
    /// Element-wise ops and row reductions on arrays larger than the caches.
    Elementwise(ElementwiseWorkload),
}

/// Element-wise workloads.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum ElementwiseWorkload {
    Adam,
    Gelu,
    Softmax,
    LayerNorm,
}

/// Unit of a result.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum ThroughputUnit {
    MsPerStep,
    Images,
    Tokens,
    Gflops,
    Bandwidth,
}

impl Workload {
    /// Whether it computes a model on batches.
    pub(super) fn has_batch(&self) -> bool {
        matches!(self, Workload::Train(_) | Workload::Predict(_) | Workload::Int8(_))
    }

    /// Unit in which the workload's result is reported.
    pub(super) fn unit(&self) -> ThroughputUnit {
        match self {
            Workload::Train(name) | Workload::Predict(name) => match name.as_str() {
                "resnet50" => ThroughputUnit::Images,
                "gpt2-small" => ThroughputUnit::Tokens,
                _ => ThroughputUnit::MsPerStep,
            },
            Workload::Int8("gpt2-small") => ThroughputUnit::Tokens,
            Workload::Int8(_) => ThroughputUnit::Images,
            Workload::Gemm(_) => ThroughputUnit::Gflops,
            Workload::Elementwise(_) => ThroughputUnit::Bandwidth,
        }
    }

    /// Returns the default precisions and all supported precisions.
    fn precisions(&self) -> (&'static [&'static str], &'static [&'static str]) {
        match self {
            Workload::Gemm(_) => {
                (&GEMM_TYPES, &["float32", "mixed_bfloat16", "mixed_float16", "bfloat16", "int8"])
            }
            Workload::Int8(_) => {
                (&["int8", "float32"], &["int8", "float32", "mixed_bfloat16", "mixed_float16"])
            }
            _ => (&["float32"], &Precision::NAMES),
        }
    }
}

const GEMM_TYPES: [&str; 3] = ["float32", "bfloat16", "int8"];
const GEMM_SIZES: [usize; 4] = [512, 1024, 2048, 4096];

/// Workload names that may expand to several measurements; see also [`single`].
const WORKLOADS: [&str; 13] = [
    "fashion-cnn",
    "mlp",
    "cifar-cnn",
    "resnet50",
    "gpt2-small",
    "lstm",
    "resnet50-inference",
    "gpt2-small-inference",
    "resnet50-int8",
    "mobilenet-int8",
    "gpt2-small-int8",
    "gemm",
    "elementwise",
];

/// Presets whose sample shapes depend on the user's files.
const OF_FILES: [&str; 2] = ["table", "tfrecord"];

const KINDS: [(&str, ElementwiseWorkload); 4] = [
    ("elementwise-adam", ElementwiseWorkload::Adam),
    ("elementwise-gelu", ElementwiseWorkload::Gelu),
    ("elementwise-softmax", ElementwiseWorkload::Softmax),
    ("elementwise-layernorm", ElementwiseWorkload::LayerNorm),
];

/// Expands names to measurements; all workloads if there are no names.
pub(super) fn items(names: &[String], precision: Option<&str>) -> Result<Vec<BenchItem>> {
    let all: Vec<String> = WORKLOADS.map(String::from).to_vec();
    let mut items = Vec::new();
    for name in if names.is_empty() { &all } else { names } {
        for (name, work) in works(name)? {
            let (usual, possible) = work.precisions();
            let own = own_precision(&work).filter(|_| !WORKLOADS.contains(&name.as_str()));
            let chosen = match (precision, own) {
                (Some(p), _) => vec![known(&name, p, possible)?],
                (None, Some(p)) => vec![known(&name, &p, possible)?],
                (None, None) => usual.to_vec(),
            };
            items.extend(chosen.into_iter().map(|p| BenchItem {
                name: name.clone(),
                precision: p.into(),
                work: work.clone(),
            }));
        }
    }
    Ok(items)
}

/// Returns the precision set in a file or preset. Errors in the file are reported when it is measured.
fn own_precision(work: &Workload) -> Option<String> {
    let Workload::Train(target) = work else { return None };
    let draft = if is_file(target) { ConfigDraft::read(target) } else { ConfigDraft::preset(target) };
    Some(draft.ok()?.finish().ok()?.compile.precision)
}

/// Whether a name ends in `.toml`.
pub(super) fn is_file(target: &str) -> bool {
    target.to_lowercase().ends_with(".toml")
}

fn known<'a>(name: &str, precision: &str, possible: &[&'a str]) -> Result<&'a str> {
    possible.iter().copied().find(|p| *p == precision).ok_or_else(|| {
        err!(Config, "{name} does not support precision `{precision}`")
            .at("--precision")
            .hint_command(suggestion(precision, possible))
    })
}

/// Expands a name to its workloads.
fn works(name: &str) -> Result<Vec<(String, Workload)>> {
    let one = |work: Workload| Ok(vec![(name.to_string(), work)]);
    let gemm = |n: usize| (format!("gemm-{n}"), Workload::Gemm(n));
    if let Some(n) = GEMM_SIZES.into_iter().find(|n| name == format!("gemm-{n}")) {
        return one(Workload::Gemm(n));
    }
    if let Some((_, kind)) = KINDS.into_iter().find(|(k, _)| *k == name) {
        return one(Workload::Elementwise(kind));
    }
    if is_file(name) {
        return one(Workload::Train(name.into()));
    }
    match name {
        "gemm" => Ok(GEMM_SIZES.into_iter().map(gemm).collect()),
        "elementwise" => {
            Ok(KINDS.map(|(name, kind)| (name.to_string(), Workload::Elementwise(kind))).to_vec())
        }
        "fashion-cnn" => one(Workload::Train("fashion-mnist".into())),
        "resnet50-inference" => one(Workload::Predict("resnet50".into())),
        "gpt2-small-inference" => one(Workload::Predict("gpt2-small".into())),
        "resnet50-int8" => one(Workload::Int8("resnet50")),
        "mobilenet-int8" => one(Workload::Int8("mobilenet")),
        "gpt2-small-int8" => one(Workload::Int8("gpt2-small")),
        preset if WORKLOADS.contains(&preset) => one(Workload::Train(preset.into())),
        own if OF_FILES.contains(&own) => {
            Err(err!(Config, "cannot benchmark the preset {own} without files")
                .because("the preset's sample shapes depend on the columns and fields of your files")
                .hint_command(
                    "measure training with `systole train FILES`, or reading with `systole data bench FILES`",
                ))
        }
        preset if PRESETS.contains(&preset) => one(Workload::Train(preset.into())),
        path if is_path(path) && !Path::new(path).exists() => Err(missing(Path::new(path))),
        other => {
            let is_more = |preset: &&str| !WORKLOADS.contains(preset) && !OF_FILES.contains(preset);
            let names: Vec<&str> = WORKLOADS.into_iter().chain(PRESETS.into_iter().filter(is_more)).collect();
            Err(err!(Config, "unknown workload `{other}`")
                .because("expected a workload, a preset or a .toml file")
                .hint_command(suggestion(other, &names)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(names: &[&str], precision: Option<&str>) -> Vec<(String, String)> {
        let names: Vec<String> = names.iter().map(|n| n.to_string()).collect();
        items(&names, precision).unwrap().into_iter().map(|i| (i.name, i.precision)).collect()
    }

    #[test]
    fn names_stand_for_measurements() {
        assert_eq!(named(&["mlp"], None), [("mlp".into(), "float32".into())]);
        let gemm = named(&["gemm"], Some("int8"));
        assert_eq!(gemm.len(), GEMM_SIZES.len());
        assert_eq!(gemm[2], ("gemm-2048".into(), "int8".into()));
        assert_eq!(named(&["gpt-micro"], None), [("gpt-micro".into(), "float32".into())]);
        assert_eq!(named(&["biggan"], Some("mixed_bfloat16")), [("biggan".into(), "mixed_bfloat16".into())]);
        assert_eq!(named(&["gemm-512"], None).len(), GEMM_TYPES.len());
        assert_eq!(
            named(&["mobilenet-int8"], None).into_iter().map(|(_, p)| p).collect::<Vec<_>>(),
            ["int8", "float32"]
        );
        let all = named(&[], None);
        // Quantised graphs are measured beside their layers.
        let models = WORKLOADS.len() - 2 + WORKLOADS.iter().filter(|name| name.ends_with("-int8")).count();
        assert_eq!(all.len(), models + GEMM_SIZES.len() * GEMM_TYPES.len() + KINDS.len());
        // Every name that a child is started with stands for itself alone.
        assert!(all.iter().all(|(name, p)| named(&[name], Some(p)).len() == 1));
    }

    #[test]
    fn mistakes_are_told_with_the_nearest_name() {
        let told = |name: &str, p: Option<&str>| items(&[name.to_string()], p).unwrap_err().to_string();
        assert!(told("fashon-cnn", None).contains("`fashion-cnn`"));
        assert!(told("bigan", None).contains("`biggan`"));
        assert!(told("table", None).contains("your files"));
        let others = told("nothing of this name", None);
        assert_eq!((others.matches(" mlp").count(), others.matches("tfrecord").count()), (1, 0), "{others}");
        assert!(told("mlp", Some("int8")).contains("mlp does not support precision `int8`"));
        assert!(told("mlp", Some("mixed_bfloat61")).contains("`mixed_bfloat16`"));
    }
}
