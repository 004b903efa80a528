//! Parses compile options (`xla.CompileOptionsProto`), as far as the plugin uses them.

use crate::call::{CallError, CallResult};
use systole_runtime::protobuf::{ProtoValue, fields};

/// Maximum number of replicas.
const MOST_REPLICAS: usize = 1024;

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
        let (mut name, mut on) = (String::new(), None);
        for field in fields(entry) {
            match field? {
                (1, ProtoValue::Bytes(text)) => name = String::from_utf8_lossy(text).into_owned(),
                (2, ProtoValue::Bytes(value)) => {
                    for field in fields(value) {
                        match field? {
                            (1, ProtoValue::Bytes(text)) => {
                                on = Some(matches!(text, b"true" | b"True" | b"1"))
                            }
                            (2 | 3, ProtoValue::Number(n)) => on = Some(n != 0),
                            _ => {}
                        }
                    }
                }
                _ => {}
            }
        }
        // Protobuf encodes `false` as an empty value.
        let on = on.unwrap_or(false);
        match name.as_str() {
            "systole_winograd" => self.winograd = on,
            "systole_flush_denormals" => self.flush_denormals = on,
            "systole_excess_precision" | "xla_allow_excess_precision" => self.excess_precision = on,
            _ if name.starts_with("systole_") => {
                let what = format!("No such compile option: '{name}'");
                return Err(CallError::invalid(format!(
                    "{what}; available: systole_winograd, systole_flush_denormals, systole_excess_precision"
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
