//! Serializes compile options (`xla.CompileOptionsProto`): numbers of replicas and partitions, device assignment,
//! flags. Field numbers: <https://github.com/openxla/xla/blob/main/xla/pjrt/proto/compile_options.proto>.

use systole_ir::{Result, knobs};
use systole_runtime::protobuf::ProtoMessage;

/// Compile options of a program.
pub(crate) struct XlaCompileOptions<'a> {
    pub(crate) replicas: usize,
    pub(crate) partitions: usize,
    /// Device ids as a flattened `[replica][partition]` list; empty leaves the choice to the compiler.
    pub(crate) devices: &'a [i64],
    /// Whether to compile faster with less optimization.
    pub(crate) quick: bool,
    /// XLA flags for this program.
    pub(crate) flags: &'static [&'static str],
    /// Whether each kernel is launched separately, so that profiles can attribute it to an op.
    pub(crate) one_by_one: bool,
}

impl Default for XlaCompileOptions<'_> {
    /// One device, chosen by the compiler.
    fn default() -> Self {
        XlaCompileOptions {
            replicas: 1,
            partitions: 1,
            devices: &[],
            quick: false,
            flags: &[],
            one_by_one: false,
        }
    }
}

/// Lists of XLA flags that are tried in order.
type FlagAttempts = &'static [&'static [&'static str]];

/// Without these flags XLA's GPU kernels use atomic adds and autotuning. Some programs only compile with the second
/// list.
const DETERMINISTIC: FlagAttempts = &[
    &["xla_gpu_deterministic_ops", "xla_gpu_exclude_nondeterministic_ops"],
    &["xla_gpu_exclude_nondeterministic_ops"],
];

/// Whether an XLA platform has GPUs.
pub(crate) fn of_gpus(platform: &str) -> bool {
    ["cuda", "rocm"].contains(&platform)
}

/// Returns the flags that make a platform's programs deterministic.
pub(crate) fn deterministic_flags(platform: &str) -> Result<FlagAttempts> {
    let given = |flags: String| DETERMINISTIC.iter().flat_map(|list| *list).any(|flag| flags.contains(flag));
    let wanted =
        of_gpus(platform) && knobs::GPU_DETERMINISM.is_on()? && !std::env::var("XLA_FLAGS").is_ok_and(given);
    Ok(if wanted { DETERMINISTIC } else { &[&[]] })
}

/// `xla.ExecutionOptions.EFFORT_O1`: the effort level that still fuses and schedules, but searches less.
const EFFORT_O1: i64 = 19;

impl XlaCompileOptions<'_> {
    /// Returns the serialized options.
    pub(crate) fn compile_options(&self) -> Vec<u8> {
        const EXECUTABLE_BUILD_OPTIONS: u32 = 3;
        const ENV_OPTION_OVERRIDES: u32 = 7;
        let mut build = ProtoMessage::default()
            .int(1, -1) // device_ordinal: none
            .int(4, self.replicas as i64)
            .int(5, self.partitions as i64)
            .int(6, 1); // use_spmd_partitioning
        if !self.devices.is_empty() {
            build = build.bytes(9, &device_assignment(self.replicas, self.partitions, self.devices));
        }
        build = build.int(19, 1); // use_shardy_partitioner
        if self.quick {
            build = build.int(24, EFFORT_O1); // optimization_level
        }
        let options = ProtoMessage::default().bytes(EXECUTABLE_BUILD_OPTIONS, &build.done());
        let set = self.flags.iter().map(|flag| entry(flag, ProtoMessage::default().int(2, 1)));
        let graphs = self.one_by_one.then(|| entry(GRAPHS_FROM, ProtoMessage::default().int(3, NO_GRAPH)));
        let all = set.chain(graphs);
        all.fold(options, |options, entry| options.bytes(ENV_OPTION_OVERRIDES, &entry)).done()
    }
}

/// Serializes an `xla.DeviceAssignmentProto`: for each partition, the device of every replica. `devices` is a flattened
/// `[replica][partition]` list.
pub fn device_assignment(replicas: usize, partitions: usize, devices: &[i64]) -> Vec<u8> {
    let mut assignment = ProtoMessage::default().int(1, replicas as i64).int(2, partitions as i64);
    for part in 0..partitions {
        let devices = (0..replicas).map(|r| devices[r * partitions + part]);
        assignment = assignment.bytes(3, &ProtoMessage::default().packed(1, devices).done());
    }
    assignment.done()
}

/// XLA option for the minimum number of kernels in a GPU graph; set above any program's size to disable graphs.
const GRAPHS_FROM: &str = "xla_gpu_graph_min_graph_size";
const NO_GRAPH: i64 = 1 << 30;

/// Returns a map entry from an option's name to `xla.OptionOverrideProto`, which has a bool (2) and an integer (3)
/// field.
fn entry(name: &str, value: ProtoMessage) -> Vec<u8> {
    ProtoMessage::default().bytes(1, name.as_bytes()).bytes(2, &value.done()).done()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As JAX's encoder writes them, except for fields with default values.
    #[test]
    fn options_are_the_bytes_that_protobuf_writes() {
        let of =
            |partitions, devices| XlaCompileOptions { partitions, devices, ..XlaCompileOptions::default() };
        let one = of(1, &[0]).compile_options();
        let hex: String = one.iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(
            hex,
            "1a1f08ffffffffffffffffff0120012801300\
                         14a09080110011a030a0100980101"
        );
        let four = of(4, &[]).compile_options();
        let hex: String = four.iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(
            hex,
            "1a1408ffffffffffffffffff0120012804300\
                         1980101"
        );
    }

    #[test]
    fn flags_are_entries_of_a_map() {
        let flags = &["ab"];
        let with = XlaCompileOptions { flags, ..XlaCompileOptions::default() }.compile_options();
        assert!(with.ends_with(&[0x3a, 8, 0x0a, 2, b'a', b'b', 0x12, 2, 0x10, 1]), "{with:x?}");
        let alone = XlaCompileOptions { one_by_one: true, ..XlaCompileOptions::default() }.compile_options();
        assert!(alone.ends_with(&[b'e', 0x12, 6, 0x18, 0x80, 0x80, 0x80, 0x80, 4]), "{alone:x?}");
        for platform in ["tpu", "cpu"] {
            assert_eq!(deterministic_flags(platform).unwrap(), [&[] as &[&str]]);
        }
        assert_eq!(deterministic_flags("cuda").unwrap(), DETERMINISTIC);
    }
}
