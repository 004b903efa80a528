//! Every switch of Systole, declared once: environment variable, type, default, what it does.
//! `systole knobs` lists this table; nothing else in the code reads an environment variable of ours.

use crate::{Error, ErrorKind, Result};
use std::env;
use std::sync::{Mutex, PoisonError};

/// A declared switch.
#[derive(Clone, Copy, Debug)]
pub struct EnvVar {
    /// Environment variable.
    pub name: &'static str,
    /// What values it takes.
    pub values: &'static str,
    /// The value when unset.
    pub default: &'static str,
    /// What it does.
    pub doc: &'static str,
}

/// A table of knobs: what each does, its values, its default. The variable is `SYSTOLE_` and the name.
macro_rules! knobs {
    ($($(#[doc = $doc:literal])+ $name:ident: $values:literal, $default:literal;)+) => {
        $($(#[doc = $doc])+
        pub const $name: EnvVar = EnvVar {
            name: concat!("SYSTOLE_", stringify!($name)),
            values: $values,
            default: $default,
            doc: concat!($($doc),+).trim_ascii(),
        };)+

        /// All knobs, in the order `systole knobs` shows them.
        pub const KNOBS: &[EnvVar] = &[$($name),+];
    };
}

knobs! {
    /// 1 devices and compile times; 2 each kernel with its time and rate; 3 what each pass did; 4 the schedule of every program
    LOG: "0..4", "0";
    /// what SYSTOLE_LOG=2 shows of a program when it ends: layers: time by layer, the slowest kernels; kernels: each kernel
    PROFILE: "layers|kernels", "kernels";
    /// worker threads of the CPU backend; 0: one for each core this process may use. Results do not depend on it
    THREADS: "0..1024", "0";
    /// highest instruction set that CPU kernels may use; a level the machine lacks is an error
    ISA: "auto|portable|avx2|avx512|avx512bf16|amx", "auto";
    /// on: products of f32 matrices may keep only 16 bits of each factor where that is faster (with amx); elsewhere they stay exact
    TENSOR_FLOAT_32: "on|off", "off";
    /// on: training and prediction compute convolutions with windows of 3 by 3 from 16 products where the definition has 36, where
    /// that is faster; off: by the definition
    WINOGRAD: "on|off", "on";
    /// on: in training and prediction, what bf16 or f16 ops of one kernel hand each other keeps f32's digits; off: each op rounds
    EXCESS_PRECISION: "on|off", "on";
    /// on: parts of a program run for blocks of samples that stay in the cache; off: one op after the other; a number: blocks of so
    /// many samples, for comparing
    BLOCKS: "on|off|ROWS", "on";
    /// on: element-wise programs become machine code when they are compiled, on machines with AVX2 or AVX-512; off: they are
    /// interpreted, with the same results
    JIT: "on|off", "on";
    /// a kernel of the CPU backend that is asked before the others of its family, or after them with a -, for comparing; steps that
    /// it refuses are computed as usual. `systole show MODEL --stage kernels` names those of a model
    KERNEL: "[-]FAMILY/CANDIDATE", "";
    /// what compiles and runs graphs (--device); ref is the slow reference interpreter, xla XLA on this processor, pjrt the plugin
    /// that SYSTOLE_PJRT_PLUGIN names
    BACKEND: "auto|cpu|ref|tpu|cuda|xla|pjrt", "auto";
    /// the PJRT plugin for TPU or GPU, such as libtpu.so; empty: the first that is found (`systole devices` shows where)
    PJRT_PLUGIN: "PATH", "";
    /// options that the PJRT plugin's devices are opened with, such as num_devices=8 for Systole's own, cpu_device_count=8 for
    /// XLA's on the processor or memory_fraction=0.5 for CUDA; --plugin-option adds to them
    PJRT_OPTIONS: "NAME=VALUE,…", "";
    /// logical devices that Systole's own PJRT plugin offers, for JAX, where no option num_devices says it
    DEVICES: "1..1024", "1";
    /// what `launch --hosts` reaches other machines by: the machine's name and one command are added to its arguments
    SSH: "PROGRAM [ARGUMENTS]", "ssh -T -o BatchMode=yes -o ConnectTimeout=20 -o ServerAliveInterval=15 -o ServerAliveCountMax=4";
    /// a Python interpreter whose installed packages are searched for plugins; it is not run
    PYTHON: "PATH", "";
    /// memory that this process may use; a program that needs more is refused before it runs. Empty: what the machine, or its
    /// control group, has left
    MEMORY_LIMIT: "BYTES|512MiB|4GiB", "";
    /// folder that holds data sets, one folder each (fashion-mnist, mnist)
    DATA: "PATH", "";
    /// bytes of pixels that a picture of any format may have; larger ones are refused before they are unpacked
    PICTURE_LIMIT: "BYTES|512MiB|4GiB", "192MiB";
    /// folder for downloads; empty: the user's cache folder
    CACHE: "PATH", "";
    /// how much compiled programs of accelerators may take in the folder for downloads, the oldest go first; off: none is kept
    COMPILE_CACHE: "BYTES|8GiB|off", "8GiB";
    /// on: programs for GPUs give the same bits in every run (xla_gpu_deterministic_ops); off: XLA takes what it finds fastest
    GPU_DETERMINISM: "on|off", "on";
    /// how long training may take to finish its step and save after Ctrl-C or SIGTERM; then it ends with what was saved before
    GRACE: "SECONDS", "25";
    /// 1: verify the graph after every compiler pass (always on in debug builds)
    PARANOID: "0|1", "0";
}

/// Variables by which clouds, notebooks and libtpu say which TPUs a program has, and what each is.
pub const TPU_VARIABLES: &[(&str, &str)] = &[
    ("TPU_NAME", "the name of the TPU in the cloud"),
    ("TPU_ZONE", "its zone"),
    ("TPU_PROJECT", "the project that pays for it"),
    ("TPU_ACCELERATOR_TYPE", "the slice: v5litepod-16"),
    ("TPU_TOPOLOGY", "chips along its axes: 4x4"),
    ("TPU_WORKER_ID", "which of the slice's hosts this is, from 0"),
    ("TPU_WORKER_HOSTNAMES", "the slice's hosts, separated by commas"),
    ("MEGASCALE_NUM_SLICES", "how many slices work together"),
    ("MEGASCALE_SLICE_ID", "which of them this is, from 0"),
    ("COLAB_TPU_ADDR", "the address of a TPU node, which Colab no longer has"),
    ("KUBERNETES_SERVICE_HOST", "set where Kubernetes runs the program"),
    ("COLAB_RELEASE_TAG", "set in Colab"),
    ("TPU_LIBRARY_PATH", "the file of libtpu"),
    ("TPU_SKIP_MDS_QUERY", "set: libtpu does not ask the cloud's metadata server"),
    ("LIBTPU_INIT_ARGS", "libtpu's own options"),
];

/// Variables of the clouds' own tools that say who asks an object store (feature `object-stores`). The crate `object_store`
/// takes more of `AWS_…` and `GOOGLE_…` by itself.
pub const CLOUD_VARIABLES: &[(&str, &str)] = &[
    ("CLOUDSDK_AUTH_ACCESS_TOKEN", "what `gcloud auth print-access-token` prints"),
    ("STORAGE_EMULATOR_HOST", "a server that stands for Google's, without credentials: 127.0.0.1:4443"),
    ("AWS_PROFILE", "which of the profiles that `aws configure` wrote down; default"),
    ("AWS_SHARED_CREDENTIALS_FILE", "where they are, if not in ~/.aws/credentials"),
    ("AWS_CONFIG_FILE", "where their regions are, if not in ~/.aws/config"),
    ("AWS_WEB_IDENTITY_TOKEN_FILE", "set where Kubernetes says who the program is: profiles are not read"),
    ("HOME", "the user's folder"),
];

/// The value of one of [`TPU_VARIABLES`] or [`CLOUD_VARIABLES`], where it is set and not empty.
pub fn variable(name: &str) -> Option<String> {
    let known = TPU_VARIABLES.iter().chain(CLOUD_VARIABLES).any(|(known, _)| *known == name);
    env::var(name).ok().filter(|value| known && !value.is_empty())
}

/// Values that the program's own arguments gave: setting environment variables is not safe once threads run.
static OVERRIDES: Mutex<Vec<(&str, String)>> = Mutex::new(Vec::new());

/// Sets a knob for this process, stronger than the environment. For programs' arguments, before anything starts.
pub fn override_value(knob: EnvVar, value: impl Into<String>) {
    let mut overrides = OVERRIDES.lock().unwrap_or_else(PoisonError::into_inner);
    overrides.retain(|(name, _)| *name != knob.name);
    overrides.push((knob.name, value.into()));
}

impl EnvVar {
    /// The overriding value, else the one set in the environment, else the default.
    pub fn get(&self) -> String {
        let overrides = OVERRIDES.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, value)) = overrides.iter().find(|(name, _)| *name == self.name) {
            return value.clone();
        }
        env::var(self.name).ok().filter(|v| !v.is_empty()).unwrap_or_else(|| self.default.to_string())
    }

    /// Whether it is `on`, of a knob that is `on` or `off`.
    ///
    /// # Errors
    /// When it is neither.
    pub fn is_on(&self) -> Result<bool> {
        match self.get().trim() {
            "on" => Ok(true),
            "off" => Ok(false),
            other => Err(self.no_value(other)),
        }
    }

    /// The error that it does not take this value.
    pub fn no_value(&self, value: &str) -> Error {
        Error::new(ErrorKind::Config, format!("`{value}` is no value of {}", self.name))
            .at(self.name)
            .hint(format!("{}: {}", self.values, self.doc))
    }

    /// The value as a number.
    ///
    /// # Errors
    /// When it is none.
    pub fn number(&self) -> Result<usize> {
        let value = self.get();
        value.trim().parse().map_err(|_| self.no_value(&value))
    }

    /// The value as a number; the default where it does not parse.
    pub fn get_usize(&self) -> usize {
        self.number().unwrap_or_else(|_| self.default.parse().unwrap_or(0))
    }

    /// The value as a number of bytes, `None` where it is empty.
    ///
    /// # Errors
    /// When it is not one.
    pub fn get_bytes(&self) -> Result<Option<usize>> {
        match self.get() {
            text if text.trim().is_empty() => Ok(None),
            text => parse_bytes(&text).map(Some).map_err(|e| e.at(self.name)),
        }
    }
}

/// The number of bytes that `1000000`, `512MiB` or `1.5 GB` stands for.
///
/// ```
/// use systole_base::knobs::parse_bytes;
/// assert_eq!(parse_bytes("4GiB").unwrap(), 4 << 30);
/// assert!(parse_bytes("much").is_err());
/// ```
pub fn parse_bytes(text: &str) -> Result<usize> {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let factor = match text[end..].trim().to_lowercase().as_str() {
        "" | "b" => Some(1.0),
        "k" | "kib" => Some(1024.0),
        "m" | "mib" => Some(1024.0 * 1024.0),
        "g" | "gib" => Some(1024.0 * 1024.0 * 1024.0),
        "kb" => Some(1e3),
        "mb" => Some(1e6),
        "gb" => Some(1e9),
        _ => None,
    };
    let bytes = text[..end].parse::<f64>().ok().zip(factor).map(|(n, f)| n * f);
    bytes.filter(|b| (1.0..9e15).contains(b)).map(|b| b as usize).ok_or_else(|| {
        Error::new(ErrorKind::Config, format!("`{text}` is no number of bytes"))
            .hint("write it as 2000000000, 512MiB or 4GiB")
    })
}
