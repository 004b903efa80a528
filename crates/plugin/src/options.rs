//! Parses compile options (`xla.CompileOptionsProto`), as far as the plugin uses them.

use crate::call::{CallError, CallResult};
use systole_runtime::protobuf::{ProtoValue, fields};

/// Maximum number of replicas.
const MOST_REPLICAS: usize = 1024;

/// Values of a switch that is given as text.
const SWITCH_VALUES: [&str; 6] = ["true", "True", "1", "false", "False", "0"];

/// XLA's switches for CPUs and all platforms: their values are checked, and have no effect except of
/// `xla_allow_excess_precision`.
#[rustfmt::skip]
const SWITCHES: &[&str] = &[
    "xla_allow_excess_precision", "xla_cpu_copy_insertion_use_region_analysis",
    "xla_cpu_enable_concurrency_optimized_scheduler", "xla_cpu_enable_fast_math", "xla_cpu_enable_fast_min_max",
    "xla_cpu_enable_platform_dependent_math", "xla_cpu_enable_xprof_traceme", "xla_cpu_fast_math_honor_division",
    "xla_cpu_fast_math_honor_functions", "xla_cpu_fast_math_honor_infs", "xla_cpu_fast_math_honor_nans", "xla_cpu_ftz",
    "xla_cpu_multi_thread_eigen", "xla_cpu_strict_dot_conv_math", "xla_cpu_use_acl", "xla_cpu_use_fusion_emitters",
    "xla_cpu_use_onednn", "xla_cpu_use_xnnpack", "xla_detailed_logging", "xla_disable_all_hlo_passes",
    "xla_dump_hlo_as_dot", "xla_dump_hlo_as_html", "xla_dump_hlo_as_long_text", "xla_dump_hlo_as_proto",
    "xla_dump_hlo_as_text", "xla_dump_hlo_as_url", "xla_dump_hlo_snapshots", "xla_dump_include_timestamp",
    "xla_dump_large_constants", "xla_dump_module_metadata", "xla_eliminate_hlo_implicit_broadcast",
    "xla_embed_ir_in_executable", "xla_enable_fast_math", "xla_hlo_evaluator_use_fast_path",
    "xla_hlo_graph_addresses", "xla_hlo_graph_sharding_color", "xla_hlo_profile", "xla_keep_shardings_after_spmd",
    "xla_llvm_disable_expensive_passes", "xla_llvm_enable_alias_scope_metadata",
    "xla_llvm_enable_invariant_load_metadata", "xla_llvm_enable_noalias_metadata",
];

/// Device assignment of a program and numerical options.
#[derive(Debug)]
pub(crate) struct CompileSettings {
    pub(crate) partitions: usize,
    /// Number of replicas.
    pub(crate) replicas: usize,
    /// Devices of each partition's replicas; empty if the caller leaves the choice.
    devices: Vec<Vec<i32>>,
    /// For each result, whether the compiler may choose its sharding.
    pub(crate) chooses_results: Vec<bool>,
    /// Whether narrow floats may keep excess precision within a program.
    pub(crate) excess_precision: bool,
    /// Whether products and sums may be contracted to fused multiply-adds.
    pub(crate) contraction: bool,
    /// Whether denormals may be flushed to zero.
    pub(crate) flush_denormals: bool,
    /// Whether convolutions may use Winograd transforms.
    pub(crate) winograd: bool,
}

impl CompileSettings {
    /// Parses the options. Field numbers:
    /// <https://github.com/openxla/xla/blob/main/xla/pjrt/proto/compile_options.proto>.
    pub(crate) fn read(bytes: &[u8]) -> CallResult<CompileSettings> {
        // Defaults of JAX's own CPU compiler.
        let mut options = CompileSettings {
            partitions: 1,
            replicas: 1,
            devices: Vec::new(),
            chooses_results: Vec::new(),
            excess_precision: true,
            contraction: true,
            flush_denormals: true,
            winograd: false,
        };
        for field in fields(bytes) {
            match field? {
                (3, ProtoValue::Bytes(build)) => options.read_build(build)?,
                (7, ProtoValue::Bytes(entry)) => options.read_override(entry)?,
                _ => {}
            }
        }
        Ok(options)
    }

    fn read_build(&mut self, bytes: &[u8]) -> CallResult {
        for field in fields(bytes) {
            match field? {
                (3, ProtoValue::Bytes(debug)) => self.read_debug(debug)?,
                (4, ProtoValue::Number(n)) => self.replicas = usize::try_from(n).unwrap_or(usize::MAX),
                (5, ProtoValue::Number(n)) => self.partitions = usize::try_from(n).unwrap_or(usize::MAX),
                (9, ProtoValue::Bytes(assignment)) => self.read_devices(assignment)?,
                (12, value) => self.chooses_results.extend(value.numbers().into_iter().map(|n| n != 0)),
                _ => {}
            }
        }
        Ok(())
    }

    /// Parses `xla.DebugOptions`: <https://github.com/openxla/xla/blob/main/xla/xla.proto>.
    fn read_debug(&mut self, bytes: &[u8]) -> CallResult {
        for field in fields(bytes) {
            // xla_allow_excess_precision
            if let (122, ProtoValue::Number(n)) = field? {
                self.excess_precision = n != 0;
            }
        }
        Ok(())
    }

    /// Parses a per-compilation option: `jax.jit(f, compiler_options={"systole_winograd": True})`.
    fn read_override(&mut self, entry: &[u8]) -> CallResult {
        let (mut name, mut on, mut text) = (String::new(), None, None);
        for field in fields(entry) {
            match field? {
                (1, ProtoValue::Bytes(text)) => name = String::from_utf8_lossy(text).into_owned(),
                (2, ProtoValue::Bytes(value)) => {
                    for field in fields(value) {
                        match field? {
                            (1, ProtoValue::Bytes(word)) => {
                                on = Some(matches!(word, b"true" | b"True" | b"1"));
                                text = Some(String::from_utf8_lossy(word).into_owned());
                            }
                            (2 | 3, ProtoValue::Number(n)) => on = Some(n != 0),
                            _ => {}
                        }
                    }
                }
                _ => {}
            }
        }
        let is_switch = name.starts_with("systole_") || SWITCHES.contains(&name.as_str());
        if let Some(text) = text.filter(|t| is_switch && !SWITCH_VALUES.contains(&t.as_str())) {
            // XLA's text.
            let what = format!("While setting option {name}, '{text}' is not a valid bool value.");
            return Err(CallError::invalid(what));
        }
        // Protobuf encodes `false` as an empty value.
        let on = on.unwrap_or(false);
        match name.as_str() {
            "systole_winograd" => self.winograd = on,
            "systole_flush_denormals" => self.flush_denormals = on,
            "systole_fp_contract" => self.contraction = on,
            "systole_excess_precision" | "xla_allow_excess_precision" => self.excess_precision = on,
            _ if name.starts_with("systole_") => {
                let what = format!("No such compile option: '{name}'");
                return Err(CallError::invalid(format!(
                    "{what}; available: systole_winograd, systole_flush_denormals, systole_excess_precision, \
                     systole_fp_contract"
                )));
            }
            _ if name.starts_with("xla_") => {}
            _ => return Err(CallError::invalid(format!("No such compile option: '{name}'"))),
        }
        Ok(())
    }

    /// Parses the device list of each partition's replicas.
    fn read_devices(&mut self, assignment: &[u8]) -> CallResult {
        for field in fields(assignment) {
            if let (3, ProtoValue::Bytes(part)) = field? {
                let mut own = Vec::new();
                for id in fields(part) {
                    own.extend(id?.1.numbers().into_iter().map(|id| i32::try_from(id).unwrap_or(-1)));
                }
                self.devices.push(own);
            }
        }
        Ok(())
    }

    /// Returns the number of devices that run the program.
    pub(crate) fn count(&self) -> usize {
        self.replicas.saturating_mul(self.partitions)
    }

    /// Returns the ids of `wanted` distinct devices; by default those from `first` on.
    pub(crate) fn devices(&self, wanted: usize, first: usize) -> CallResult<Vec<i32>> {
        let ids: Vec<i32> = match &self.devices[..] {
            [] => (first..first + wanted).map(|id| id as i32).collect(),
            // Replica-major order.
            wish => {
                let of = |r: usize| wish.iter().filter_map(move |part| part.get(r).copied());
                (0..self.replicas.min(MOST_REPLICAS)).flat_map(of).collect()
            }
        };
        if ids.len() != wanted {
            return Err(CallError::invalid(format!(
                "{} devices are assigned to {wanted} partitions",
                ids.len()
            )));
        }
        if let Some(twice) = (1..wanted).find(|&i| ids[..i].contains(&ids[i])) {
            return Err(CallError::invalid(format!("device {} is assigned twice", ids[twice])));
        }
        Ok(ids)
    }
}
