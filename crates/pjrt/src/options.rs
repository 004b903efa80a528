//! `xla.CompileOptionsProto`, written by hand: numbers of copies and parts, and which device runs which.
//! Field numbers: <https://github.com/openxla/xla/blob/main/xla/pjrt/proto/compile_options.proto>.

use crate::proto::Message;

/// Copies, parts and devices of a program.
pub(crate) struct Placement<'a> {
    pub(crate) replicas: usize,
    pub(crate) partitions: usize,
    /// Ids of the devices, `[replica][partition]` in one list; empty: the compiler's choice.
    pub(crate) devices: &'a [i64],
    /// Whether the compiler is to spend less on making the program fast.
    pub(crate) quick: bool,
}

/// `xla.ExecutionOptions.EFFORT_O1`: the effort level that still fuses and schedules, and searches less.
const EFFORT_O1: i64 = 19;

impl Placement<'_> {
    /// The serialized options.
    pub(crate) fn compile_options(&self) -> Vec<u8> {
        const EXECUTABLE_BUILD_OPTIONS: u32 = 3;
        let mut build = Message::default()
            .int(1, -1) // device_ordinal: none
            .int(4, self.replicas as i64)
            .int(5, self.partitions as i64)
            .int(6, 1); // use_spmd_partitioning
        if !self.devices.is_empty() {
            build = build.bytes(9, &self.device_assignment());
        }
        build = build.int(19, 1); // use_shardy_partitioner
        if self.quick {
            build = build.int(24, EFFORT_O1); // optimization_level
        }
        Message::default().bytes(EXECUTABLE_BUILD_OPTIONS, &build.done()).done()
    }

    /// `xla.DeviceAssignmentProto`: for each part, the device of every copy.
    pub(crate) fn device_assignment(&self) -> Vec<u8> {
        let mut assignment = Message::default().int(1, self.replicas as i64).int(2, self.partitions as i64);
        for part in 0..self.partitions {
            let devices = (0..self.replicas).map(|r| self.devices[r * self.partitions + part]);
            assignment = assignment.bytes(3, &Message::default().packed(1, devices).done());
        }
        assignment.done()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As JAX's own encoder writes them, but for fields that have their default value.
    #[test]
    fn options_are_the_bytes_that_protobuf_writes() {
        let one = Placement { replicas: 1, partitions: 1, devices: &[0], quick: false }.compile_options();
        let hex: String = one.iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(
            hex,
            "1a1f08ffffffffffffffffff0120012801300\
                         14a09080110011a030a0100980101"
        );
        let four = Placement { replicas: 1, partitions: 4, devices: &[], quick: false }.compile_options();
        let hex: String = four.iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(
            hex,
            "1a1408ffffffffffffffffff0120012804300\
                         1980101"
        );
    }
}
