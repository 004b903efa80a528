//! Environment variables of Systole (`SYSTOLE_…`): name, type, default and description of each. `systole knobs` prints
//! this table; no other code reads these environment variables.

use crate::{Error, Result, err};
use std::env;
use std::sync::{Mutex, PoisonError};

/// Declaration of an environment variable: name, type, default and description.
#[derive(Clone, Copy, Debug)]
pub struct EnvVar {
    /// Name of the environment variable.
    pub name: &'static str,
    /// Accepted values.
    pub values: &'static str,
    /// Value if the variable is unset.
    pub default: &'static str,
    /// One-line description.
    pub doc: &'static str,
}

/// Declares the table of variables: description, name without the prefix `SYSTOLE_`, accepted values, default.
macro_rules! knobs {
    ($($(#[doc = $doc:literal])+ $name:ident: $values:literal, $default:literal;)+) => {
        $($(#[doc = $doc])+
        pub const $name: EnvVar = EnvVar {
            name: concat!("SYSTOLE_", stringify!($name)),
            values: $values,
            default: $default,
            doc: concat!($($doc),+).trim_ascii(),
        };)+

        /// All environment variables of Systole, in the order in which `systole knobs` prints them.
        pub const KNOBS: &[EnvVar] = &[$($name),+];
    };
}

knobs! {
    /// log level; 1: devices, compile times, and the source line of a hint; 2: each kernel's time and rate; 3: each compiler pass; 4: each program's schedule
    LOG: "0..4", "0";
    /// what SYSTOLE_LOG=2 prints when a program ends; layers: time per layer and the slowest kernels; kernels: each kernel
    PROFILE: "layers|kernels", "kernels";
    /// number of worker threads of the CPU backend; 0: one per core this process may use. Results do not depend on it
    THREADS: "0..1024", "0";
    /// highest instruction set that CPU kernels may use; a level that the machine does not support is an error
    ISA: "auto|portable|avx2|avx512|avx512bf16|amx", "auto";
    /// on: f32 matrix products may use only 16 bits of each factor where that is faster (with AMX); off: exact
    TENSOR_FLOAT_32: "on|off", "off";
    /// on: training, prediction and imported ONNX and .tflite models compute 3x3 convolutions with the Winograd algorithm (16 products instead of 36) where that is faster; off: direct convolution
    WINOGRAD: "on|off", "on";
    /// on: in training and prediction, fused bf16 or f16 ops keep intermediate values in f32; off: each op rounds its result
    EXCESS_PRECISION: "on|off", "on";
    /// on: run parts of a program on blocks of samples that fit into the cache; off: run one op after the other; a number: use this block size, for experiments
    BLOCKS: "on|off|ROWS", "on";
    /// on: compile element-wise programs to machine code, on CPUs with AVX2 or AVX-512; off: interpret them, with the same results
    JIT: "on|off", "on";
    /// CPU kernel to prefer within its family, or to avoid with a leading -, for experiments; steps that it does not
    /// support run as usual. `systole show MODEL --stage kernels` lists a model's kernels
    KERNEL: "[-]FAMILY/CANDIDATE", "";
    /// backend that compiles and runs graphs (--device); ref: the slow reference interpreter; xla: XLA on this CPU;
    /// pjrt: the plugin in SYSTOLE_PJRT_PLUGIN, or Systole's own
    BACKEND: "auto|cpu|ref|tpu|cuda|xla|pjrt", "auto";
    /// PJRT plugin for TPU or GPU, such as libtpu.so; empty: the first one found (`systole devices` shows where)
    PJRT_PLUGIN: "PATH", "";
    /// options passed to the PJRT plugin when it creates its client: num_devices=8 for Systole's plugin,
    /// cpu_device_count=8 for XLA's CPU plugin, memory_fraction=0.5 for CUDA; --plugin-option adds to them
    PJRT_OPTIONS: "NAME=VALUE,…", "";
    /// number of logical devices of Systole's PJRT plugin, for JAX, if the option num_devices is not set
    DEVICES: "1..1024", "1";
    /// command with which `launch --hosts` reaches other machines; host name and remote command are appended
    SSH: "PROGRAM [ARGUMENTS]", "ssh -T -o BatchMode=yes -o ConnectTimeout=20 -o ServerAliveInterval=15 -o ServerAliveCountMax=4";
    /// secret of at least 16 characters that the processes of a run prove to each other; `launch` sets it unless a cluster starts the launchers
    SECRET: "TEXT", "";
    /// Python interpreter whose installed packages are searched for plugins; it is not executed
    PYTHON: "PATH", "";
    /// memory limit of this process; a program that needs more is rejected before it runs. Empty: the machine's or control group's free memory
    MEMORY_LIMIT: "BYTES|512MiB|4GiB", "";
    /// folder with datasets, one subfolder each (fashion-mnist, mnist)
    DATA: "PATH", "";
    /// maximum size of a decoded image in bytes; larger images are rejected before they are decoded
    PICTURE_LIMIT: "BYTES|512MiB|4GiB", "192MiB";
    /// folder for downloads; empty: the user's cache folder
    CACHE: "PATH", "";
    /// maximum size of the cache of compiled accelerator programs, oldest evicted first; off: no cache
    COMPILE_CACHE: "BYTES|8GiB|off", "8GiB";
    /// on: GPU programs give the same bits in every run (xla_gpu_deterministic_ops); off: XLA picks the fastest algorithms
    GPU_DETERMINISM: "on|off", "on";
    /// cuda: `--device xla` gets programs in the form for GPUs (unrolled layers, GPU workarounds and flags), to test that form without a GPU
    XLA_FORM: "cpu|cuda", "cpu";
    /// time in which training may finish its step and save after Ctrl-C or SIGTERM; afterwards it exits with the last backup
    GRACE: "SECONDS", "25";
    /// 1: verify the graph after every compiler pass (always on in debug builds)
    PARANOID: "0|1", "0";
}

/// Environment variables with which clouds, notebooks and libtpu describe the available TPUs, with descriptions.
pub const TPU_VARIABLES: &[(&str, &str)] = &[
    ("TPU_NAME", "name of the TPU in the cloud"),
    ("TPU_ZONE", "zone of the TPU"),
    ("TPU_PROJECT", "project that is billed for the TPU"),
    ("TPU_ACCELERATOR_TYPE", "slice type: v5litepod-16"),
    ("TPU_TOPOLOGY", "chips along each axis: 4x4"),
    ("TPU_WORKER_ID", "index of this host in the slice, from 0"),
    ("TPU_WORKER_HOSTNAMES", "hosts of the slice, comma-separated"),
    ("MEGASCALE_NUM_SLICES", "number of slices in a multi-slice job"),
    ("MEGASCALE_SLICE_ID", "index of this slice, from 0"),
    ("COLAB_TPU_ADDR", "address of a TPU node (retired by Colab)"),
    ("KUBERNETES_SERVICE_HOST", "set if the program runs in Kubernetes"),
    ("COLAB_RELEASE_TAG", "set if the program runs in Colab"),
    ("TPU_LIBRARY_PATH", "path of libtpu"),
    ("TPU_SKIP_MDS_QUERY", "set: libtpu does not query the cloud's metadata server"),
    ("LIBTPU_INIT_ARGS", "command-line options for libtpu"),
];

/// Variables of the cloud providers' tools with credentials, of which `object_store` reads more itself, and of Hugging Face.
pub const CLOUD_VARIABLES: &[(&str, &str)] = &[
    ("CLOUDSDK_AUTH_ACCESS_TOKEN", "access token printed by `gcloud auth print-access-token`"),
    ("STORAGE_EMULATOR_HOST", "emulator of Google Cloud Storage, without credentials: 127.0.0.1:4443"),
    ("AWS_PROFILE", "profile written by `aws configure`; default: default"),
    ("AWS_SHARED_CREDENTIALS_FILE", "credentials file, if not ~/.aws/credentials"),
    ("AWS_CONFIG_FILE", "configuration file with regions, if not ~/.aws/config"),
    ("AWS_WEB_IDENTITY_TOKEN_FILE", "set if Kubernetes provides the identity: profiles are ignored"),
    ("HF_ENDPOINT", "mirror of Hugging Face's hub for `systole import hf:…`: https://HOST"),
    ("HF_TOKEN", "token of Hugging Face's hub, for gated models"),
    ("HOME", "the user's home folder"),
];

/// Returns the value of a [`TPU_VARIABLES`] or [`CLOUD_VARIABLES`] entry, if it is set and not empty.
pub fn variable(name: &str) -> Option<String> {
    let known = TPU_VARIABLES.iter().chain(CLOUD_VARIABLES).any(|(known, _)| *known == name);
    env::var(name).ok().filter(|value| known && !value.is_empty())
}

/// Values set by command-line options: setting environment variables is unsafe once threads run.
static OVERRIDES: Mutex<Vec<(&str, String)>> = Mutex::new(Vec::new());

/// Overrides a variable for this process, with priority over the environment. For command-line options, before threads start.
pub fn override_value(knob: EnvVar, value: impl Into<String>) {
    let mut overrides = OVERRIDES.lock().unwrap_or_else(PoisonError::into_inner);
    overrides.retain(|(name, _)| *name != knob.name);
    overrides.push((knob.name, value.into()));
}

impl EnvVar {
    /// Returns the variable's override, or else the environment variable, or else the default.
    pub fn get(&self) -> String {
        let overrides = OVERRIDES.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, value)) = overrides.iter().find(|(name, _)| *name == self.name) {
            return value.clone();
        }
        env::var(self.name).ok().filter(|v| !v.is_empty()).unwrap_or_else(|| self.default.to_string())
    }

    /// Whether the environment variable, an `on`/`off` switch, is `on`.
    ///
    /// # Errors
    /// If the value is neither `on` nor `off`.
    pub fn is_on(&self) -> Result<bool> {
        match self.get().trim() {
            "on" => Ok(true),
            "off" => Ok(false),
            other => Err(self.no_value(other)),
        }
    }

    /// Creates the error for an invalid value of an environment variable.
    pub fn no_value(&self, value: &str) -> Error {
        err!(Config, "invalid value `{value}` of environment variable {}", self.name)
            .at(self.name)
            .hint(format!("{}: {}", self.values, self.doc))
    }

    /// Returns an environment variable's value as an integer.
    ///
    /// # Errors
    /// If the value is not a non-negative integer.
    pub fn number(&self) -> Result<usize> {
        let value = self.get();
        value.trim().parse().map_err(|_| self.no_value(&value))
    }

    /// Returns an environment variable's value as an integer, or the default if it does not parse.
    pub fn get_usize(&self) -> usize {
        self.number().unwrap_or_else(|_| self.default.parse().unwrap_or(0))
    }

    /// Returns an environment variable's value as a number of bytes, or `None` if it is empty.
    ///
    /// # Errors
    /// If the value is not a number of bytes.
    pub fn get_bytes(&self) -> Result<Option<usize>> {
        match self.get() {
            text if text.trim().is_empty() => Ok(None),
            text => parse_bytes(&text).map(Some).map_err(|e| e.at(self.name)),
        }
    }
}

/// Parses a number of bytes: `1000000`, `512MiB` or `1.5 GB`.
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
        err!(Config, "expected a number of bytes, got `{text}`")
            .hint("write a number of bytes as 2000000000, 512MiB or 4GiB")
    })
}

crate::renamed! { Knob => EnvVar }
