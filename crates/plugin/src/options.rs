//! What callers ask of a compilation: `xla.CompileOptionsProto`, as far as it matters here.

use crate::call::CallError;
use systole_runtime::protobuf::{ProtoValue, fields};

/// More copies than this are a mistake.
const MOST_REPLICAS: usize = 1024;

/// Over how many devices a program is split, and which; and how it may be computed.
#[derive(Debug)]
pub(crate) struct CompileSettings {
    pub(crate) partitions: usize,
    /// Copies of the program.
    pub(crate) replicas: usize,
    /// For each part the devices of its copies. Empty: the caller has no wish.
    devices: Vec<Vec<i32>>,
    /// For each result whether the compiler may choose how it is split.
    pub(crate) chooses_results: Vec<bool>,
    /// Whether narrow floats may keep more digits within a program.
    pub(crate) excess_precision: bool,
    /// Whether tiny numbers may become zero.
    pub(crate) flush_denormals: bool,
    /// Whether convolutions may be computed by way of transforms.
    pub(crate) winograd: bool,
}

impl CompileSettings {
    /// Field numbers: <https://github.com/openxla/xla/blob/main/xla/pjrt/proto/compile_options.proto>.
    pub(crate) fn read(bytes: &[u8]) -> Result<CompileSettings, CallError> {
        // What JAX's own CPU compiler does unless it is told otherwise.
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

    fn read_build(&mut self, bytes: &[u8]) -> Result<(), CallError> {
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

    /// `xla.DebugOptions`: <https://github.com/openxla/xla/blob/main/xla/xla.proto>.
    fn read_debug(&mut self, bytes: &[u8]) -> Result<(), CallError> {
        for field in fields(bytes) {
            // xla_allow_excess_precision
            if let (122, ProtoValue::Number(n)) = field? {
                self.excess_precision = n != 0;
            }
        }
        Ok(())
    }

    /// An option of one compilation: `jax.jit(f, compiler_options={"systole_winograd": True})`.
    fn read_override(&mut self, entry: &[u8]) -> Result<(), CallError> {
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
        // An empty value is proto's way to write `false`.
        let on = on.unwrap_or(false);
        match name.as_str() {
            "systole_winograd" => self.winograd = on,
            "systole_flush_denormals" => self.flush_denormals = on,
            "systole_excess_precision" | "xla_allow_excess_precision" => self.excess_precision = on,
            _ if name.starts_with("systole_") => {
                let what = format!("No such compile option: '{name}'");
                return Err(CallError::invalid(format!(
                    "{what}; there are systole_winograd, systole_flush_denormals and systole_excess_precision"
                )));
            }
            _ if name.starts_with("xla_") => {}
            _ => return Err(CallError::invalid(format!("No such compile option: '{name}'"))),
        }
        Ok(())
    }

    /// For each part a list of the devices of its copies.
    fn read_devices(&mut self, assignment: &[u8]) -> Result<(), CallError> {
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

    /// How many devices run the program.
    pub(crate) fn count(&self) -> usize {
        self.replicas.saturating_mul(self.partitions)
    }

    /// The ids of the `wanted` devices, each once. Without a wish they are those from `first` on.
    pub(crate) fn devices(&self, wanted: usize, first: usize) -> Result<Vec<i32>, CallError> {
        let ids: Vec<i32> = match &self.devices[..] {
            [] => (first..first + wanted).map(|id| id as i32).collect(),
            // Replica by replica.
            wish => {
                let of = |r: usize| wish.iter().filter_map(move |part| part.get(r).copied());
                (0..self.replicas.min(MOST_REPLICAS)).flat_map(of).collect()
            }
        };
        if ids.len() != wanted {
            return Err(CallError::invalid(format!("{} devices are assigned to {wanted} parts", ids.len())));
        }
        if let Some(twice) = (1..wanted).find(|&i| ids[..i].contains(&ids[i])) {
            return Err(CallError::invalid(format!("device {} has two parts of the program", ids[twice])));
        }
        Ok(ids)
    }
}
