//! What Google's clouds call the machines of a TPU generation: names that no formula gives, and how many machines a slice has.

use serde::Deserialize;

/// Names of a generation's machines.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CloudNames {
    /// As the API of Cloud TPU names it, where it has TPU VMs at all.
    #[serde(default)]
    pub api: Option<String>,
    /// The runtime image of its TPU VMs.
    #[serde(default)]
    pub runtime: String,
    /// What GKE calls a machine that is the whole slice, where it has any.
    #[serde(default)]
    pub alone: GkeNode,
    /// What it calls one of several, where that is another name.
    #[serde(default)]
    pub together: Option<GkeNode>,
    /// Chips that a machine alone may have.
    pub alone_chips: Vec<usize>,
    /// Zones that have it.
    pub zones: Vec<String>,
    /// Zones that have slices of several machines, where those are fewer.
    #[serde(default)]
    pub pod_zones: Vec<String>,
    /// Whether Vertex AI trains on it.
    #[serde(default)]
    pub vertex: bool,
}

/// What GKE calls a machine; both are empty where it has none.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GkeNode {
    /// The label `cloud.google.com/gke-tpu-accelerator`.
    pub label: String,
    /// The machine type without the number of chips and `t`.
    pub machine: String,
}

impl CloudNames {
    /// Chips of one of the machines that a slice of so many is made of.
    ///
    /// ```
    /// let tables = systole_plan::Tables::built_in()?;
    /// let v5e = tables.tpu("v5e").unwrap().cloud.as_ref().unwrap();
    /// assert_eq!((v5e.chips_of_a_machine(8), v5e.chips_of_a_machine(16)), (8, 4));
    /// assert_eq!((v5e.machines(16), v5e.machine_type(16)), (4, "ct5lp-hightpu-4t".to_string()));
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    pub fn chips_of_a_machine(&self, chips: usize) -> usize {
        if self.alone_chips.contains(&chips) { chips } else { 4.min(chips) }
    }

    /// Machines of a slice of so many chips.
    pub fn machines(&self, chips: usize) -> usize {
        chips / self.chips_of_a_machine(chips)
    }

    /// What GKE calls the machines of such a slice.
    pub fn node(&self, chips: usize) -> &GkeNode {
        self.together.as_ref().filter(|_| self.machines(chips) > 1).unwrap_or(&self.alone)
    }

    /// The machine type of such a slice, `ct5lp-hightpu-4t`.
    pub fn machine_type(&self, chips: usize) -> String {
        format!("{}{}t", self.node(chips).machine, self.chips_of_a_machine(chips))
    }

    /// Zones that have such a slice.
    pub fn zones_of(&self, chips: usize) -> &[String] {
        match self.machines(chips) > 1 && !self.pod_zones.is_empty() {
            true => &self.pod_zones,
            false => &self.zones,
        }
    }
}
