//! GPU description for ahead-of-time compilation with XLA: the text of a `stream_executor.GpuTargetConfigProto`.
//!
//! Fields: <https://github.com/openxla/xla/blob/main/xla/stream_executor/device_description.proto>.

use crate::table::{Gpu, GpuTarget};
use systole_ir::{Result, err};
use systole_runtime::AotTopology;

impl Gpu {
    /// Returns the ahead-of-time compile target for `count` GPUs of one machine.
    ///
    /// ```
    /// let tables = systole_plan::ChipTables::built_in()?;
    /// let four = tables.gpu("h100").unwrap().ahead(4)?;
    /// assert_eq!((four.to_string().as_str(), four.extents), ("4*h100", vec![1, 1, 4]));
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    ///
    /// # Errors
    /// If the table has no compiler data for the GPU.
    pub fn ahead(&self, count: usize) -> Result<AotTopology> {
        let target = self.target.as_ref().ok_or_else(|| {
            err!(Config, "the table has no compiler data for the GPU `{}`", self.name).hint(
                "add [gpu.target] to the GPU's entry, with the fields as in crates/plan/tables/gpu.toml",
            )
        })?;
        let name = if count == 1 { self.name.clone() } else { format!("{count}*{}", self.name) };
        Ok(AotTopology::gpus(&name, target.text(), count))
    }
}

impl GpuTarget {
    /// Returns the proto text for the compiler.
    fn text(&self) -> String {
        let [major, minor] = self.compute_capability;
        let features = if self.accelerated_features { "ACCELERATED_FEATURES" } else { "NONE" };
        format!(
            "gpu_device_info {{
  threads_per_block_limit: 1024
  threads_per_warp: 32
  shared_memory_per_block: 49152
  shared_memory_per_core: {}
  threads_per_core_limit: 2048
  core_count: {}
  fpus_per_core: {}
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  memory_bandwidth: {}
  l2_cache_size: {}
  clock_rate_ghz: {}
  device_memory_size: {}
  shared_memory_per_block_optin: {}
  cuda_compute_capability {{ major: {major} minor: {minor} feature_extension: {features} }}
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
  thread_dim_limit_x: 1024
  thread_dim_limit_y: 1024
  thread_dim_limit_z: 64
  name: \"{device}\"
}}
platform_name: \"CUDA\"
dnn_version_info {{ major: 9 minor: 10 }}
runtime_version {{ major: 12 minor: 8 }}
device_description_str: \"{device}\"
",
            self.shared_memory_per_core,
            self.cores,
            self.fpus_per_core,
            self.memory_per_s,
            self.l2_cache,
            self.clock_ghz,
            self.memory,
            self.shared_memory_per_block_optin,
            device = self.device,
        )
    }
}

#[cfg(test)]
mod tests {
    use crate::table::{ChipTables, Gpu};

    fn gpus() -> Vec<Gpu> {
        ChipTables::built_in().unwrap().gpus
    }

    /// Two tables that were written down apart from each other.
    #[test]
    fn what_compilers_are_told_agrees_with_the_data_sheets() {
        for g in gpus() {
            let t = g.target.as_ref().unwrap();
            // Each unit multiplies and adds once a cycle; the data sheets' clocks are a few percent lower or higher.
            let tflops = 2.0 * f64::from(t.cores * t.fpus_per_core) * t.clock_ghz / 1e3;
            for (what, told, published) in [
                ("f32", tflops, g.peak_tflops["f32"]),
                ("memory", t.memory as f64 / 1e9, g.memory_gb),
                ("memory a second", t.memory_per_s as f64 / 1e9, g.memory_gb_per_s),
            ] {
                assert!((told / published - 1.0).abs() < 0.08, "{} {what}: {told} and {published}", g.name);
            }
            assert!(t.shared_memory_per_block_optin <= t.shared_memory_per_core, "{}", g.name);
        }
    }

    /// As XLA's own files write it: every bracket closed, and each field with its value.
    #[test]
    fn the_text_is_a_message_of_fields_and_values() {
        for g in gpus() {
            let slice = g.ahead(1).unwrap();
            let text = slice.gpu.unwrap();
            let count = |c: char| text.matches(c).count();
            assert_eq!((count('{'), count('"') % 2), (count('}'), 0), "{text}");
            let value = |field: &str| {
                let line = text.lines().find_map(|l| l.trim().strip_prefix(field)?.strip_prefix(": "));
                line.unwrap_or_else(|| panic!("no {field} in {text}")).to_string()
            };
            let t = g.target.unwrap();
            assert_eq!(value("core_count"), t.cores.to_string());
            assert_eq!(value("device_memory_size"), t.memory.to_string());
            assert_eq!(value("device_description_str"), format!("\"{}\"", t.device));
        }
    }

    #[test]
    fn a_gpu_without_figures_is_refused() {
        let mine = "[[gpu]]\nname = 'l4'\nproduct = 'L4'\npeak_tflops = { bf16 = 121, f32 = 30 }\nmemory_gb = 24\n\
                    memory_gb_per_s = 300\nlink_gb_per_s = 0\nwatts = 72\n";
        let tables = ChipTables::with(mine, "mine.toml").unwrap();
        let e = tables.gpu("l4").unwrap().ahead(1).unwrap_err().to_string();
        assert!(e.contains("`l4`") && e.contains("[gpu.target]"), "{e}");
    }
}
