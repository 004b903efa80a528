//! Vision transformer (ViT): transformer blocks over image patches.

use super::common::*;

/// Vision transformer: `image: T[B, image_size, image_size, C] → T[B, classes]`: patch embedding, class token, pre-norm
/// transformer blocks, and a dense layer on the class token.
///
/// Arguments are KerasHub's, with `patch_size` and `image_size` as single numbers. `classes = 0` leaves the last layer
/// out: `→ T[B, hidden_dim]`. Weights: `patch_embedding/kernel`, `class_token/token`, `position_embedding/embeddings`,
/// `transformer_layer_0/…` (see [`TransformerBlock`]), `layer_norm/gamma`, `predictions/kernel`. Source: Dosovitskiy et
/// al. 2020.
///
/// ```
/// use systole_nn::{Model, applications::ViT};
/// use systole_ir::{DType, TensorType};
/// let small = ViT { classes: 10, image_size: 16, patch_size: 8, num_layers: 1, num_heads: 2, hidden_dim: 8, mlp_dim: 16, ..Default::default() };
/// let mut small = Model::new(small.architecture()?);
/// small.build(&[TensorType::new(DType::F32, [16, 16, 3])])?;
/// assert_eq!(small.output_type().unwrap().shape.dims(), [10]);
/// # Ok::<(), systole_ir::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ViT {
    /// Number of classes; 0 leaves the last layer out. Default: 1000.
    pub classes: usize,
    /// Activation of the last layer. Default: softmax.
    pub classifier_activation: Activation,
    /// Height and width of the images. Default: 224.
    pub image_size: usize,
    /// Height and width of a patch, a divisor of `image_size`.
    pub patch_size: usize,
    /// Number of transformer blocks.
    pub num_layers: usize,
    /// Number of attention heads.
    pub num_heads: usize,
    /// Hidden size.
    pub hidden_dim: usize,
    /// Hidden width of the feed-forward network.
    pub mlp_dim: usize,
    /// Dropout rate. Default: 0.
    pub dropout_rate: f64,
    /// Epsilon added to variances. Default: 1e-6.
    pub layer_norm_epsilon: f64,
    /// Input of the head: the class token, `"token"`, or the mean of all steps, `"gap"`. Default: token.
    pub pooling: String,
    /// Whether the backward pass recomputes blocks (rematerialization). Default: false.
    pub remat: bool,
}

impl Default for ViT {
    fn default() -> ViT {
        ViT::of(16, 12, 768)
    }
}

/// Initializer: truncated normal with σ = 0.02.
const VIT_INITIALIZER: Initializer = Initializer::TruncatedNormal { mean: 0.0, stddev: 0.02 };

impl ViT {
    /// Returns the variant with this patch size, depth and hidden size; heads have size 64.
    pub(super) fn of(patch_size: usize, num_layers: usize, hidden_dim: usize) -> ViT {
        ViT {
            classes: 1000,
            classifier_activation: Activation::Softmax,
            image_size: 224,
            patch_size,
            num_layers,
            num_heads: hidden_dim / 64,
            hidden_dim,
            mlp_dim: 4 * hidden_dim,
            dropout_rate: 0.0,
            layer_norm_epsilon: 1e-6,
            pooling: "token".into(),
            remat: false,
        }
    }

    fn check(&self) -> Result<()> {
        let sizes = [
            ("image_size", self.image_size),
            ("patch_size", self.patch_size),
            ("hidden_dim", self.hidden_dim),
        ];
        for (argument, value) in sizes {
            at_least_1("vit", argument, value)?;
        }
        at_most("vit", "num_layers", self.num_layers, MOST_BLOCKS)?;
        at_most("vit", "image_size", self.image_size, 1 << 16)?;
        if !self.image_size.is_multiple_of(self.patch_size) {
            return Err(err!(
                Config,
                "vit's patch_size of {} does not divide its image_size of {}",
                self.patch_size,
                self.image_size
            )
            .hint("use the usual patch_size 16 and image_size 224"));
        }
        if !["token", "gap"].contains(&self.pooling.as_str()) {
            let e = err!(Config, "unknown pooling `{}` of vit", self.pooling);
            return Err(e.hint("use one of these poolings: token, gap"));
        }
        Ok(())
    }

    /// Builds the vision transformer's architecture (layers without weights).
    ///
    /// # Errors
    /// If an argument is 0, there are more than 1,000 blocks, or `patch_size` does not divide `image_size`.
    pub fn architecture(&self) -> Result<Architecture> {
        self.check()?;
        let side = self.image_size / self.patch_size;
        let image = any_input("image");
        let patches = conv2d(self.hidden_dim, self.patch_size).strides(self.patch_size);
        let x = image
            .apply(patches.kernel_initializer(VIT_INITIALIZER).name("patch_embedding"))
            .apply(reshape([(side * side) as i64, self.hidden_dim as i64]).name("patches"))
            .apply(class_token().name("class_token"));
        let positions = position_embedding(side * side + 1).initializer(VIT_INITIALIZER);
        let positions = x.apply(positions.name("position_embedding"));
        let x = add().name("embeddings_add").on(&[&x, &positions]);
        let mut x = x.apply(dropout(self.dropout_rate).name("embeddings_dropout"));
        for i in 0..self.num_layers {
            x = x.apply(self.block().name(format!("transformer_layer_{i}")).remat(self.remat));
        }
        let x = x.apply(layer_normalization().epsilon(self.layer_norm_epsilon).name("layer_norm"));
        let mut y = match self.pooling.as_str() {
            "token" => x.apply(first_step().name("first_step")),
            _ => x.apply(global_average_pooling1d().name("avg_pool")),
        };
        if self.classes > 0 {
            let head = dense(self.classes).activation(self.classifier_activation);
            y = y.apply(head.kernel_initializer(VIT_INITIALIZER).name("predictions"));
        }
        Architecture::functional(&[image], &y)
    }

    fn block(&self) -> LayerSpec {
        transformer_block(self.mlp_dim, self.num_heads)
            .dropout(self.dropout_rate)
            .activation(Activation::Gelu { approximate: false })
            .layer_norm_epsilon(self.layer_norm_epsilon)
            .kernel_initializer(VIT_INITIALIZER)
            .normalize_first(true)
    }
}
