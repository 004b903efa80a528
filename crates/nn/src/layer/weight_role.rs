//! What weights of a layer are called in PyTorch's module of that kind, and how their elements are laid out there.

/// A weight of a layer as PyTorch has it.
#[derive(Clone, Debug, PartialEq)]
pub struct WeightRole {
    /// Its path in the layer: `kernel`.
    pub name: String,
    /// Its name in the module: `weight`.
    pub torch: String,
    /// How the elements are laid out there.
    pub layout: WeightLayout,
    /// Whether zeros replace it where a file lacks it.
    pub is_optional: bool,
}

/// The layout of a weight in PyTorch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WeightLayout {
    /// The same.
    Same,
    /// `[out, in]` for `[in, out]`.
    Transposed,
    /// Transposed; inputs that were flattened just before have channels first there.
    Dense,
    /// `[out, in, window…]` for `[window…, in, out]`.
    Convolution,
    /// `[channels · multiplier, 1, window…]` for `[window…, channels, multiplier]`.
    Depthwise,
    /// One dimension.
    Flat,
    /// Transposed, the gates in this order.
    Gates(Vec<usize>),
    /// Two biases, `bias_ih_l0` and `bias_hh_l0`, that are added unless the layer has `both`.
    GateBiases {
        /// Order of the gates.
        order: Vec<usize>,
        /// Whether the layer has two biases, too.
        both: bool,
    },
    /// `[in, heads, width]`: this third of the rows `[3 · heads · width, in]`.
    InProjection(usize),
    /// `[heads, width]`: this third of `[3 · heads · width]`.
    InProjectionBias(usize),
    /// `[out, heads · width]` for `[heads, width, out]`.
    OutProjection,
}

impl WeightRole {
    /// A weight that files must have.
    pub fn new(name: &str, torch: &str, layout: WeightLayout) -> WeightRole {
        WeightRole { name: name.into(), torch: torch.into(), layout, is_optional: false }
    }

    /// A weight of the same layout that files may lack.
    pub fn optional(name: &str, torch: &str) -> WeightRole {
        WeightRole { is_optional: true, ..WeightRole::new(name, torch, WeightLayout::Same) }
    }
}

/// The weights of `nn.MultiheadAttention`, after prefixes here and there.
pub(crate) fn attention_roles(ours: &str, theirs: &str) -> Vec<WeightRole> {
    let role = |name: &str, torch: &str, layout| {
        WeightRole::new(&format!("{ours}{name}"), &format!("{theirs}{torch}"), layout)
    };
    let projected = ["query", "key", "value"].into_iter().enumerate().flat_map(|(i, name)| {
        let kernel = role(&format!("{name}/kernel"), "in_proj_weight", WeightLayout::InProjection(i));
        [kernel, role(&format!("{name}/bias"), "in_proj_bias", WeightLayout::InProjectionBias(i))]
    });
    let out = [
        role("attention_output/kernel", "out_proj.weight", WeightLayout::OutProjection),
        role("attention_output/bias", "out_proj.bias", WeightLayout::Same),
    ];
    projected.chain(out).collect()
}
