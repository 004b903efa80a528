//! Device topologies of remote machines, and ahead-of-time compilation for them.

use crate::compile_options::XlaCompileOptions;
use crate::plugin::{NamedValues, Plugin, PluginValue, program, slice, taken, text, values};
use crate::sys::{self, ApiArgs, OpaquePtr};
use std::collections::BTreeMap;
use systole_ir::{Error, ErrorKind, Result, err};
use systole_runtime::{AotMemory, AotTopology};

/// A device topology: devices and their interconnect.
pub struct Topology {
    plugin: Plugin,
    object: OpaquePtr,
}

/// A device of a PJRT topology.
#[derive(Clone, Debug)]
pub struct TopologyDevice {
    /// Device id; ids of several slices are not consecutive.
    pub id: i64,
    /// Device kind: `TPU v5 lite`.
    pub kind: String,
    /// Attributes stated by the plugin: coordinates, memory.
    pub attributes: BTreeMap<String, PluginValue>,
}

impl Topology {
    /// Creates the topology of a TPU slice, or of GPUs if their properties are given.
    pub fn new(plugin: &Plugin, slice: &AotTopology) -> Result<Topology> {
        let (topology, name) = match &slice.gpu {
            Some(figures) => (Topology::gpus(plugin, slice, figures), "XLA's CUDA plugin"),
            None => (Topology::tpus(plugin, slice), "libtpu"),
        };
        topology.map_err(|e| {
            e.hint(format!("check that the library is {name}: `systole devices` lists the plugins"))
        })
    }

    /// Without these two options the CUDA plugin searches for local GPUs.
    fn gpus(plugin: &Plugin, slice: &AotTopology, figures: &str) -> Result<Topology> {
        let extents: Vec<String> = slice.extents.iter().map(usize::to_string).collect();
        let mut options = NamedValues::default();
        options.push("target_config", PluginValue::Text(figures.into()));
        options.push("topology", PluginValue::Text(extents.join("x")));
        Topology::create(plugin, &slice.topology, &options)
    }

    fn tpus(plugin: &Plugin, slice: &AotTopology) -> Result<Topology> {
        let mut options = NamedValues::default();
        if let Some(config) = &slice.chip_config {
            options.push("chip_config_name", PluginValue::Text(config.clone()));
        }
        if slice.rings.contains(&true) {
            let rings = (0..3).map(|axis| i64::from(slice.rings.get(axis) == Some(&true)));
            options.push("wrap", PluginValue::Ints(rings.collect()));
        }
        if let Some(host) = host_bounds(&slice.extents) {
            options.push("chips_per_host_bounds", PluginValue::Ints(host));
        }
        if slice.count > 1 {
            options.push("num_slices", PluginValue::Int(slice.count as i64));
        }
        Topology::create(plugin, &slice.topology, &options)
    }

    fn create(plugin: &Plugin, name: &str, options: &NamedValues) -> Result<Topology> {
        let raw = options.raw();
        let args = plugin
            .call(sys::TopologyDescription_Create {
                topology_name: name.as_ptr(),
                topology_name_size: name.len(),
                create_options: raw.as_ptr(),
                num_options: raw.len(),
                ..ApiArgs::new()
            })
            .map_err(|e| e.at(format!("topology {name}")))?;
        Ok(Topology { plugin: plugin.clone(), object: args.topology })
    }

    /// Returns the topology's platform and version as the plugin reports them.
    pub fn version(&self) -> Result<String> {
        let args = self
            .plugin
            .call(sys::TopologyDescription_PlatformVersion { topology: self.object, ..ApiArgs::new() })?;
        // SAFETY: the string belongs to the topology, which is alive.
        Ok(unsafe { text(args.platform_version, args.platform_version_size) })
    }

    /// Returns the topology's attributes.
    pub fn attributes(&self) -> Result<Vec<(String, PluginValue)>> {
        let args = self
            .plugin
            .call(sys::TopologyDescription_Attributes { topology: self.object, ..ApiArgs::new() })?;
        // SAFETY: the list belongs to the topology, which is alive.
        Ok(unsafe { values(args.attributes, args.num_attributes) })
    }

    /// Returns the topology's devices.
    pub fn devices(&self) -> Result<Vec<TopologyDevice>> {
        let args = self.plugin.call(sys::TopologyDescription_GetDeviceDescriptions {
            topology: self.object,
            ..ApiArgs::new()
        })?;
        // SAFETY: the list belongs to the topology, which is alive.
        let list = unsafe { slice(args.descriptions, args.num_descriptions) };
        list.iter().map(|d| describe(&self.plugin, *d)).collect()
    }

    /// Compiles StableHLO text with a function `@main` ahead of time for the topology.
    ///
    /// # Errors
    /// Errors of the compiler, with its message.
    pub fn compile(
        &self,
        text: &str,
        replicas: usize,
        partitions: usize,
        quick: bool,
    ) -> Result<AheadExecutable> {
        let devices = self.devices()?;
        let wanted = replicas * partitions;
        if wanted > devices.len() {
            return Err(err!(
                Config,
                "the program requires {wanted} devices, but the slice has {}",
                devices.len()
            )
            .hint("choose a larger slice or a smaller mesh"));
        }
        let ids: Vec<i64> = devices.iter().take(wanted).map(|d| d.id).collect();
        // XLA cannot choose GPU kernels without autotuning if there is no GPU: determinism flags are omitted.
        let options =
            XlaCompileOptions { replicas, partitions, devices: &ids, quick, ..XlaCompileOptions::default() };
        let options = options.compile_options();
        let program = program(text);
        let args = self
            .plugin
            .call(sys::Compile {
                topology: self.object,
                program: &raw const program,
                compile_options: options.as_ptr(),
                compile_options_size: options.len(),
                ..ApiArgs::new()
            })
            .map_err(assembler_told)?;
        Ok(AheadExecutable { plugin: self.plugin.clone(), object: args.executable })
    }
}

impl Drop for Topology {
    fn drop(&mut self) {
        self.plugin.free(sys::TopologyDescription_Destroy { topology: self.object, ..ApiArgs::new() });
    }
}

/// Adds a hint to errors about NVIDIA's assembler: XLA generates PTX, and NVIDIA's tools, which are not part of the
/// plugin, assemble it.
fn assembler_told(e: Error) -> Error {
    let says = |words: &str| e.what().contains(words);
    if says("No PTX compilation provider") || says("libdevice") {
        let told = e.what().split(". ").next().unwrap_or_default();
        let what = "the CUDA plugin cannot find NVIDIA's ptxas, nvlink and libdevice";
        return Error::new(ErrorKind::Unsupported, what).because(told).hint(
            "run `systole setup cuda` to install them with a plugin; for another plugin run `pip install nvidia-cuda-nvcc \
             nvidia-nvvm`",
        );
    }
    // The plugin interprets "is not defined for option 'gpu-name'" as an old version.
    if says("ptxas too old") {
        let what = "NVIDIA's ptxas does not support this GPU";
        return Error::new(ErrorKind::Unsupported, what).because(e.what()).hint(
            "pass a CUDA 12 plugin with its own ptxas with --plugin: CUDA 13 does not support V100 and older",
        );
    }
    e
}

/// Returns the chips per host if they are not 2 × 2: a slice with an odd extent has hosts with one row or one chip.
fn host_bounds(extents: &[usize]) -> Option<Vec<i64>> {
    let even = |axis: usize| extents.get(axis).is_some_and(|n| n.is_multiple_of(2));
    if even(0) && even(1) {
        return None;
    }
    Some(vec![if even(0) { 2 } else { 1 }, if even(1) { 2 } else { 1 }, 1])
}

pub(crate) fn describe(plugin: &Plugin, device_description: OpaquePtr) -> Result<TopologyDevice> {
    let id = plugin.call(sys::DeviceDescription_Id { device_description, ..ApiArgs::new() })?;
    let kind = plugin.call(sys::DeviceDescription_Kind { device_description, ..ApiArgs::new() })?;
    let attributes =
        plugin.call(sys::DeviceDescription_Attributes { device_description, ..ApiArgs::new() })?;
    Ok(TopologyDevice {
        id: id.id.into(),
        // SAFETY: the string belongs to the device, which lives as long as its topology or client.
        kind: unsafe { text(kind.device_kind, kind.device_kind_size) },
        // SAFETY: as above.
        attributes: unsafe { values(attributes.attributes, attributes.num_attributes) }.into_iter().collect(),
    })
}

/// A program compiled ahead of time; it can be queried but not run.
pub struct AheadExecutable {
    plugin: Plugin,
    object: OpaquePtr,
}

impl AheadExecutable {
    /// Takes ownership of the object.
    pub(crate) fn new(plugin: Plugin, object: OpaquePtr) -> AheadExecutable {
        AheadExecutable { plugin, object }
    }

    /// Returns the number of results.
    pub(crate) fn count_outputs(&self) -> Result<usize> {
        let args =
            self.plugin.call(sys::Executable_NumOutputs { executable: self.object, ..ApiArgs::new() })?;
        Ok(args.num_outputs)
    }

    /// Returns the compiler's cost analysis, with its names; empty if there is none, as with the CUDA plugin.
    pub fn cost(&self) -> Result<BTreeMap<String, f64>> {
        let args = sys::Executable_GetCostAnalysis { executable: self.object, ..ApiArgs::new() };
        let args = match self.plugin.call(args) {
            Err(e) if e.kind() == ErrorKind::Unsupported => return Ok(BTreeMap::new()),
            args => args?,
        };
        // SAFETY: the list belongs to the executable, which is alive.
        let list = unsafe { values(args.properties, args.num_properties) };
        Ok(list.into_iter().filter_map(|(name, v)| Some((name, v.number()?))).collect())
    }

    /// Returns the memory that the compiled program needs on each device.
    pub fn memory(&self) -> Result<AotMemory> {
        let args = self
            .plugin
            .call(sys::Executable_GetCompiledMemoryStats { executable: self.object, ..ApiArgs::new() })?;
        let bytes = |n: i64| u64::try_from(n).unwrap_or(0);
        Ok(AotMemory {
            code: bytes(args.generated_code_size_in_bytes),
            arguments: bytes(args.argument_size_in_bytes),
            outputs: bytes(args.output_size_in_bytes),
            aliased: bytes(args.alias_size_in_bytes),
            temporaries: bytes(args.temp_size_in_bytes),
            peak: bytes(args.peak_memory_in_bytes),
        })
    }

    /// Returns the optimized program: a serialized `HloModuleProtoWithConfig`.
    pub fn optimized(&self) -> Result<Vec<u8>> {
        let mut program: sys::Program = ApiArgs::new();
        let args = sys::Executable_OptimizedProgram {
            executable: self.object,
            program: &raw mut program,
            ..ApiArgs::new()
        };
        // The first call returns the size, the second fills the buffer.
        let args = self.plugin.call(args)?;
        let mut bytes = vec![0u8; program.code_size];
        program.code = bytes.as_mut_ptr();
        self.plugin.call(sys::Executable_OptimizedProgram { program: &raw mut program, ..args })?;
        Ok(bytes)
    }

    /// Serializes the executable for this plugin build and topology.
    pub fn serialized(&self) -> Result<Vec<u8>> {
        let args =
            self.plugin.call(sys::Executable_Serialize { executable: self.object, ..ApiArgs::new() })?;
        // SAFETY: the plugin filled the structure in.
        Ok(unsafe {
            taken(
                args.serialized_bytes,
                args.serialized_bytes_size,
                args.serialized_executable,
                args.serialized_executable_deleter,
            )
        })
    }
}

impl Drop for AheadExecutable {
    fn drop(&mut self) {
        self.plugin.free(sys::Executable_Destroy { executable: self.object, ..ApiArgs::new() });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_assembler_is_told_with_what_to_install() {
        let told = |words: &str| assembler_told(Error::new(ErrorKind::Unsupported, words)).to_string();
        let long = "No PTX compilation provider is available. Neither ptxas/nvlink nor nvjtlink is available. Details:";
        for words in [long, "libdevice not found at ./libdevice.10.bc"] {
            assert!(told(words).contains("systole setup cuda"), "{}", told(words));
        }
        assert!(!told(long).contains("Details"), "{}", told(long));
        let old = told("/bin/ptxas ptxas too old. Falling back to the driver to compile.");
        assert!(old.contains("V100") && old.contains("CUDA 12"), "{old}");
        assert!(!told("out of memory").contains("CUDA"));
    }
}
