//! Machine types, zones and API names of TPU generations in Google Cloud and GKE.

use serde::Deserialize;

/// Google Cloud names of a TPU generation.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CloudNames {
    /// Accelerator type in the Cloud TPU API, if the generation has TPU VMs.
    pub api: Option<String>,
    /// Runtime image of the TPU VMs.
    #[serde(default)]
    pub runtime: String,
    /// GKE names of single-machine slices, if there are any.
    #[serde(default)]
    pub alone: GkeNode,
    /// GKE names of machines in multi-machine slices, if they differ.
    pub together: Option<GkeNode>,
    /// Numbers of chips that a single-machine slice may have.
    pub alone_chips: Vec<usize>,
    /// Zones that offer the generation.
    pub zones: Vec<String>,
    /// Zones that offer multi-machine slices, if they are fewer.
    #[serde(default)]
    pub pod_zones: Vec<String>,
    /// Whether Vertex AI training supports the generation.
    #[serde(default)]
    pub vertex: bool,
}

/// GKE names of a machine; empty if GKE does not offer it.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GkeNode {
    /// Value of the label `cloud.google.com/gke-tpu-accelerator`.
    pub label: String,
    /// Machine type without the number of chips and the `t`.
    pub machine: String,
}

impl CloudNames {
    /// Returns the number of chips per machine in a slice of `chips` chips.
    ///
    /// ```
    /// let tables = systole_plan::ChipTables::built_in()?;
    /// let v5e = tables.tpu("v5e").unwrap().cloud.as_ref().unwrap();
    /// assert_eq!((v5e.chips_of_a_machine(8), v5e.chips_of_a_machine(16)), (8, 4));
    /// assert_eq!((v5e.machines(16), v5e.machine_type(16)), (4, "ct5lp-hightpu-4t".to_string()));
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    pub fn chips_of_a_machine(&self, chips: usize) -> usize {
        if self.alone_chips.contains(&chips) { chips } else { 4.min(chips) }
    }

    /// Returns the number of machines in a slice of `chips` chips.
    pub fn machines(&self, chips: usize) -> usize {
        chips / self.chips_of_a_machine(chips)
    }

    /// Returns the GKE names for a slice of `chips` chips.
    pub fn node(&self, chips: usize) -> &GkeNode {
        self.together.as_ref().filter(|_| self.machines(chips) > 1).unwrap_or(&self.alone)
    }

    /// Returns the machine type for a slice of `chips` chips, such as `ct5lp-hightpu-4t`.
    pub fn machine_type(&self, chips: usize) -> String {
        format!("{}{}t", self.node(chips).machine, self.chips_of_a_machine(chips))
    }

    /// Returns the zones that offer a slice of `chips` chips.
    pub fn zones_of(&self, chips: usize) -> &[String] {
        if self.machines(chips) > 1 && !self.pod_zones.is_empty() { &self.pod_zones } else { &self.zones }
    }
}
