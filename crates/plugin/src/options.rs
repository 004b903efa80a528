//! What callers ask of a compilation: `xla.CompileOptionsProto`, as far as it matters here.

use crate::table::Failure;
use systole_runtime::proto::{Value, fields};

/// Over how many devices a program is split, and which.
#[derive(Debug)]
pub(crate) struct Options {
    pub(crate) partitions: usize,
    /// Empty: the caller has no wish.
    devices: Vec<i32>,
}

impl Options {
    /// Field numbers: <https://github.com/openxla/xla/blob/main/xla/pjrt/proto/compile_options.proto>.
    pub(crate) fn read(bytes: &[u8]) -> Result<Options, Failure> {
        let mut options = Options { partitions: 1, devices: Vec::new() };
        for field in fields(bytes) {
            if let (3, Value::Bytes(build)) = field? {
                options.read_build(build)?;
            }
        }
        Ok(options)
    }

    fn read_build(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        for field in fields(bytes) {
            match field? {
                (4, Value::Number(replicas)) if replicas != 1 => {
                    return Err(Failure::unimplemented(format!(
                        "{replicas} replicas: programs have one here"
                    )));
                }
                (5, Value::Number(n)) => self.partitions = usize::try_from(n).unwrap_or(usize::MAX),
                (9, Value::Bytes(assignment)) => self.read_devices(assignment)?,
                _ => {}
            }
        }
        Ok(())
    }

    /// For each part a list of the devices of its copies, of which there is one.
    fn read_devices(&mut self, assignment: &[u8]) -> Result<(), Failure> {
        for field in fields(assignment) {
            if let (3, Value::Bytes(part)) = field? {
                for id in fields(part) {
                    let ids = id?.1.numbers().into_iter().map(|id| i32::try_from(id).unwrap_or(-1));
                    self.devices.extend(ids);
                }
            }
        }
        Ok(())
    }

    /// The ids of the `wanted` devices, each once. Without a wish they are those from `first` on.
    pub(crate) fn devices(&self, wanted: usize, first: usize) -> Result<Vec<i32>, Failure> {
        let ids = match &self.devices[..] {
            [] => (first..first + wanted).map(|id| id as i32).collect(),
            wish => wish.to_vec(),
        };
        if ids.len() != wanted {
            return Err(Failure::invalid(format!("{} devices are assigned to {wanted} parts", ids.len())));
        }
        if let Some(twice) = (1..wanted).find(|&i| ids[..i].contains(&ids[i])) {
            return Err(Failure::invalid(format!("device {} has two parts of the program", ids[twice])));
        }
        Ok(ids)
    }
}
