//! PyTorch counterparts of a layer's weights: parameter names and layouts of the corresponding PyTorch module.

/// Correspondence of a layer's weight to a PyTorch parameter.
#[derive(Clone, Debug, PartialEq)]
pub struct WeightRole {
    /// Path in the layer: `kernel`.
    pub name: String,
    /// Name in the PyTorch module: `weight`.
    pub torch: String,
    /// Layout of the elements in PyTorch.
    pub layout: WeightLayout,
    /// Whether zeros replace it if a file lacks it.
    pub is_optional: bool,
}

/// Layout of a weight in PyTorch, compared with Keras.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WeightLayout {
    /// Same layout as here.
    Same,
    /// `[out, in]` for `[in, out]`.
    Transposed,
    /// Transposed. Inputs that come directly from a flatten are channels-first in PyTorch.
    Dense,
    /// `[out, in, window…]` for `[window…, in, out]`.
    Convolution,
    /// `[channels · multiplier, 1, window…]` for `[window…, channels, multiplier]`.
    Depthwise,
    /// Flattened to one dimension.
    Flat,
    /// Transposed, with the gates in this order.
    Gates(Vec<usize>),
    /// Two biases, `bias_ih_l0` and `bias_hh_l0`, which are summed unless the layer has `both`.
    GateBiases {
        /// Order of the gates.
        order: Vec<usize>,
        /// Whether the layer also has two biases.
        both: bool,
    },
    /// `[in, heads, width]`: this third of the rows of `in_proj_weight`, `[3 · heads · width, in]`.
    InProjection(usize),
    /// `[heads, width]`: this third of `in_proj_bias`, `[3 · heads · width]`.
    InProjectionBias(usize),
    /// `[out, heads · width]` for `[heads, width, out]`.
    OutProjection,
}

impl WeightRole {
    /// Creates the role of a weight that PyTorch files must contain.
    pub fn new(name: &str, torch: &str, layout: WeightLayout) -> WeightRole {
        WeightRole { name: name.into(), torch: torch.into(), layout, is_optional: false }
    }

    /// Creates the role of a weight of the same layout that PyTorch files may lack.
    pub fn optional(name: &str, torch: &str) -> WeightRole {
        WeightRole { is_optional: true, ..WeightRole::new(name, torch, WeightLayout::Same) }
    }
}

/// Returns the roles of `nn.MultiheadAttention`'s weights, with a prefix in the layer and in PyTorch.
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
