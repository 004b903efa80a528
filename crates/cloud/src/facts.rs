//! What Google's documents call a generation's machines: names that no formula gives.

/// Names of one generation. Sources, read on 2026-11-27: docs.cloud.google.com/tpu/docs/regions-zones (zones),
/// cloud.google.com/kubernetes-engine/docs/concepts/plan-tpus (labels, machine types), and for machines of a slice
/// AI-Hypercomputer/xpk src/xpk/core/system_characteristics.py commit 02b0c092: slices of more than one machine have four chips
/// in each, v5e and v6e too, whose largest machine alone has eight.
pub(super) struct Facts {
    pub generation: &'static str,
    /// As the API of Cloud TPU names it, where it has TPU VMs at all.
    pub api: Option<&'static str>,
    /// The runtime image of its TPU VMs.
    pub runtime: &'static str,
    /// Where one machine is the whole slice.
    pub alone: Node,
    /// Where there are several.
    pub together: Node,
    /// Chips that a machine alone may have.
    pub alone_chips: &'static [usize],
    /// Zones that have it.
    pub zones: &'static [&'static str],
    /// Zones that have slices of several machines, where those are fewer.
    pub pod_zones: &'static [&'static str],
    /// Whether Vertex AI trains on it.
    pub vertex: bool,
}

/// What GKE calls a machine; both are empty where it has none.
pub(super) struct Node {
    /// The label `cloud.google.com/gke-tpu-accelerator`.
    pub label: &'static str,
    /// The machine type without the number of chips and `t`.
    pub machine: &'static str,
}

const NONE: Node = Node { label: "", machine: "" };
const V4: Node = Node { label: "tpu-v4-podslice", machine: "ct4p-hightpu-" };
const V5E: Node = Node { label: "tpu-v5-lite-podslice", machine: "ct5lp-hightpu-" };
const V5P: Node = Node { label: "tpu-v5p-slice", machine: "ct5p-hightpu-" };
const V6E: Node = Node { label: "tpu-v6e-slice", machine: "ct6e-standard-" };
const TPU7X: Node = Node { label: "tpu7x", machine: "tpu7x-standard-" };

static FACTS: [Facts; 7] = [
    Facts {
        generation: "v2",
        api: Some("V2"),
        runtime: "tpu-ubuntu2204-base",
        alone: NONE,
        together: NONE,
        alone_chips: &[4],
        zones: &["us-central1-b", "us-central1-c", "europe-west4-a", "asia-east1-c"],
        pod_zones: &["us-central1-a", "europe-west4-a"],
        vertex: false,
    },
    Facts {
        generation: "v3",
        api: Some("V3"),
        runtime: "tpu-ubuntu2204-base",
        alone: Node { label: "tpu-v3-device", machine: "ct3-hightpu-" },
        together: Node { label: "tpu-v3-slice", machine: "ct3p-hightpu-" },
        alone_chips: &[4],
        zones: &["us-central1-a", "us-central1-b", "europe-west4-a"],
        pod_zones: &["europe-west4-a"],
        vertex: false,
    },
    Facts {
        generation: "v4",
        api: Some("V4"),
        runtime: "tpu-ubuntu2204-base",
        alone: V4,
        together: V4,
        alone_chips: &[4],
        zones: &["us-central2-b"],
        pod_zones: &[],
        vertex: false,
    },
    Facts {
        generation: "v5e",
        api: Some("V5LITE_POD"),
        runtime: "v2-alpha-tpuv5-lite",
        alone: V5E,
        together: V5E,
        alone_chips: &[1, 4, 8],
        zones: &["us-central1-a", "us-south1-a", "us-west1-c", "us-west4-a", "europe-west4-b"],
        pod_zones: &[],
        vertex: true,
    },
    Facts {
        generation: "v5p",
        api: Some("V5P"),
        runtime: "v2-alpha-tpuv5",
        alone: V5P,
        together: V5P,
        alone_chips: &[4],
        zones: &["us-central1-a", "us-east5-a", "europe-west4-b"],
        pod_zones: &[],
        vertex: false,
    },
    Facts {
        generation: "v6e",
        api: Some("V6E"),
        runtime: "v2-alpha-tpuv6e",
        alone: V6E,
        together: V6E,
        alone_chips: &[1, 4, 8],
        zones: &[
            "us-central1-b",
            "us-east1-d",
            "us-east5-a",
            "us-east5-b",
            "europe-west4-a",
            "asia-northeast1-b",
        ],
        pod_zones: &[],
        vertex: true,
    },
    Facts {
        generation: "tpu7x",
        api: None,
        runtime: "",
        alone: TPU7X,
        together: TPU7X,
        alone_chips: &[4],
        zones: &["us-central1-c"],
        pod_zones: &[],
        vertex: false,
    },
];

impl Facts {
    /// Of a generation, by its name in the tables.
    pub fn of(generation: &str) -> Option<&'static Facts> {
        FACTS.iter().find(|f| f.generation == generation)
    }

    /// Chips of one of the machines that a slice of so many is made of.
    pub fn chips_of_a_machine(&self, chips: usize) -> usize {
        if self.alone_chips.contains(&chips) { chips } else { 4.min(chips) }
    }

    /// Machines of a slice of so many chips.
    pub fn machines(&self, chips: usize) -> usize {
        chips / self.chips_of_a_machine(chips)
    }

    /// What GKE calls the machines of such a slice.
    pub fn node(&self, chips: usize) -> &Node {
        if self.machines(chips) > 1 { &self.together } else { &self.alone }
    }

    /// The machine type of such a slice, `ct5lp-hightpu-4t`.
    pub fn machine_type(&self, chips: usize) -> String {
        format!("{}{}t", self.node(chips).machine, self.chips_of_a_machine(chips))
    }

    /// Zones that have such a slice.
    pub fn zones_of(&self, chips: usize) -> &'static [&'static str] {
        match self.machines(chips) > 1 && !self.pod_zones.is_empty() {
            true => self.pod_zones,
            false => self.zones,
        }
    }
}
