//! Executable metadata exposed through PJRT; owned for the executable's lifetime.

use crate::buffer_type::{BufferType, ProgramSignature};
use crate::device::MEMORY_KINDS;
use std::sync::Arc;
use systole_ir::{Graph, cost};
use systole_mlir::device_sharding::DeviceSharding;
use systole_pjrt::sys::{self, ApiArgs, CharPtr, LogicalIds, OpaquePtr, named};

/// Strings or byte arrays, in the form in which callers read lists of them.
#[derive(Default)]
pub(crate) struct StringLists {
    _own: Vec<Vec<u8>>,
    starts: Vec<CharPtr>,
    sizes: Vec<usize>,
}

impl StringLists {
    fn new(own: Vec<Vec<u8>>) -> StringLists {
        StringLists {
            starts: own.iter().map(|t| t.as_ptr()).collect(),
            sizes: own.iter().map(Vec::len).collect(),
            _own: own,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.starts.len()
    }

    /// Returns null if the list is empty, which means unknown.
    pub(crate) fn starts(&self) -> *const CharPtr {
        if self.starts.is_empty() { std::ptr::null() } else { self.starts.as_ptr() }
    }

    pub(crate) fn sizes(&self) -> *const usize {
        if self.sizes.is_empty() { std::ptr::null() } else { self.sizes.as_ptr() }
    }
}

/// Layouts, in the form in which callers read lists of them.
pub(crate) struct LayoutList {
    #[allow(clippy::vec_box, reason = "callers hold pointers to each")]
    _own: Vec<Box<String>>,
    objects: Vec<OpaquePtr>,
}

impl LayoutList {
    fn new(kinds: &[Arc<BufferType>]) -> LayoutList {
        let own: Vec<Box<String>> = kinds.iter().map(|k| Box::new(k.layout())).collect();
        let objects = own.iter().map(|t| std::ptr::from_ref(&**t).cast_mut().cast()).collect();
        LayoutList { _own: own, objects }
    }

    pub(crate) fn len(&self) -> usize {
        self.objects.len()
    }

    pub(crate) fn objects(&self) -> *const OpaquePtr {
        self.objects.as_ptr()
    }
}

/// Metadata of an executable.
pub(crate) struct ExecutableInfo {
    pub(crate) fingerprint: String,
    pub(crate) argument_memories: StringLists,
    pub(crate) result_memories: StringLists,
    pub(crate) argument_layouts: LayoutList,
    pub(crate) result_layouts: LayoutList,
    pub(crate) argument_shardings: StringLists,
    pub(crate) result_shardings: StringLists,
    pub(crate) result_types: Vec<i32>,
    /// Dimension sizes of all results, concatenated.
    pub(crate) result_dims: Vec<i64>,
    pub(crate) result_ranks: Vec<usize>,
    pub(crate) logical_ids: Vec<LogicalIds>,
    pub(crate) costs: Vec<sys::NamedValue>,
    /// Bytes per device: arguments, results, and results that alias arguments.
    pub(crate) argument_bytes: usize,
    pub(crate) result_bytes: usize,
    pub(crate) alias_bytes: usize,
}

/// Inputs of [`ExecutableInfo`].
pub(crate) struct ExecutableFacts<'a> {
    pub(crate) fingerprint: String,
    pub(crate) signature: &'a ProgramSignature,
    pub(crate) graph: &'a Graph,
    pub(crate) replicas: usize,
    pub(crate) partitions: usize,
    /// Range of this process's devices.
    pub(crate) own: std::ops::Range<usize>,
}

impl ExecutableInfo {
    pub(crate) fn new(facts: ExecutableFacts<'_>) -> ExecutableInfo {
        let io = facts.signature;
        let kinds = |all: &[Arc<BufferType>]| {
            StringLists::new(all.iter().map(|k| MEMORY_KINDS[k.memory].as_bytes().to_vec()).collect())
        };
        let tiles =
            |all: &[DeviceSharding]| StringLists::new(all.iter().map(DeviceSharding::to_proto).collect());
        let bytes = |all: &[Arc<BufferType>]| all.iter().map(|k| k.bytes()).sum();
        let given = io.arguments.iter().zip(&io.donated).filter(|(_, gives)| **gives);
        let alias: usize = given.map(|(k, _)| k.bytes()).sum();
        let result_bytes = bytes(&io.results);
        let id = |d: usize| LogicalIds {
            replica: (d / facts.partitions.max(1)) as i32,
            partition: (d % facts.partitions.max(1)) as i32,
        };
        debug_assert!(facts.own.end <= facts.replicas.max(1) * facts.partitions.max(1));
        ExecutableInfo {
            argument_memories: kinds(&io.arguments),
            result_memories: kinds(&io.results),
            argument_layouts: LayoutList::new(&io.arguments),
            result_layouts: LayoutList::new(&io.results),
            argument_shardings: tiles(&io.argument_tiles),
            result_shardings: tiles(&io.result_tiles),
            result_types: io.results.iter().map(|k| k.code).collect(),
            result_dims: io.results.iter().flat_map(|k| k.dims.iter().copied()).collect(),
            result_ranks: io.results.iter().map(|k| k.dims.len()).collect(),
            logical_ids: facts.own.clone().map(id).collect(),
            costs: costs(facts.graph),
            argument_bytes: bytes(&io.arguments),
            result_bytes,
            alias_bytes: alias.min(result_bytes),
            fingerprint: facts.fingerprint,
        }
    }
}

/// Returns the cost analysis with XLA's names.
fn costs(graph: &Graph) -> Vec<sys::NamedValue> {
    let cost = cost::cost(graph);
    let one = |name: &'static str, value: f64| sys::NamedValue {
        name: name.as_ptr(),
        name_size: name.len(),
        type_: named::FLOAT,
        value: u64::from((value as f32).to_bits()),
        value_size: 1,
        ..ApiArgs::new()
    };
    vec![one("flops", cost.flops as f64), one("bytes accessed", cost.bytes as f64)]
}
