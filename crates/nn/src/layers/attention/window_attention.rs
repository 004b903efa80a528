//! WindowAttention layer: Swin's self-attention within shifted windows of an image, with relative position biases.

use super::multi_head_attention::MultiHeadAttention;
use crate::layers::built_in::*;
use crate::layers::sample::*;
use crate::layers::spec::LayerSpec;
use crate::setters::{arguments, setters};
use systole_ir::Literal;

arguments! {
    /// `x: T[B, H, W, C] → T[B, H, W, C]`: multi-head self-attention within square windows that are moved by `shift_size`.
    ///
    /// Images whose sides are no multiples of `window_size` are padded with zeros. Positions that the shift brings
    /// together from opposite borders do not attend to each other. Weights: those of
    /// [`MultiHeadAttention`](crate::layers::MultiHeadAttention), and `relative_position_bias_table: f32[(2 ·
    /// window_size − 1)², num_heads]`. Source: Liu et al. 2021.
    ///
    /// ```
    /// use systole_nn::layers::window_attention;
    /// assert!(window_attention(3, 7).shift_size(3).check().is_ok());
    /// ```
    pub struct WindowAttention {
        /// Number of attention heads, a divisor of the channels. Required.
        pub num_heads: usize = 0,
        /// Height and width of the windows. Required.
        pub window_size: usize = 0,
        /// Rows and columns by which the windows are moved. Default: 0.
        pub shift_size: usize = 0,
        /// Fraction of the attention weights dropped in training. Default: 0.
        pub dropout: f64 = 0.0,
    }
}

impl Arguments for WindowAttention {
    fn check(&self) -> Result<()> {
        for (name, size) in [("num_heads", self.num_heads), ("window_size", self.window_size)] {
            if size == 0 {
                return Err(wrong("WindowAttention", &format!("{name} of at least 1"), size));
            }
        }
        match self.shift_size < self.window_size {
            true => Ok(()),
            false => Err(wrong("WindowAttention", "a shift_size below its window_size", self.shift_size)),
        }
    }
}

/// Grid of windows over a padded image.
struct WindowGrid {
    window: usize,
    shift: usize,
    /// Number of windows along height and width.
    windows: [usize; 2],
}

impl WindowGrid {
    fn sides(&self) -> [usize; 2] {
        self.windows.map(|n| n * self.window)
    }

    /// `x: T[B, H, W, C] → T[B · windows, window², C]`.
    fn split(&self, x: &Tensor) -> Tensor {
        let ([rows, columns], w, c) = (self.windows, self.window, x.dim(3));
        x.reshape([x.dim(0), rows, w, columns, w, c]).transpose(&[0, 1, 3, 2, 4, 5]).reshape([
            x.dim(0) * rows * columns,
            w * w,
            c,
        ])
    }

    /// The inverse of [`WindowGrid::split`].
    fn join(&self, x: &Tensor, batch: usize) -> Tensor {
        let ([rows, columns], w, c) = (self.windows, self.window, x.dim(2));
        let [height, width] = self.sides();
        x.reshape([batch, rows, columns, w, w, c])
            .transpose(&[0, 1, 3, 2, 4, 5])
            .reshape([batch, height, width, c])
    }

    /// Scores that the shift forbids: `→ f32[windows, window², window²]`, 0 or −100 as in Swin.
    fn mask(&self) -> Result<Literal> {
        let [height, width] = self.sides();
        let region = |at: usize, side: usize| match () {
            _ if at < side - self.window => 0,
            _ if at < side - self.shift => 1,
            _ => 2,
        };
        let (w, [rows, columns]) = (self.window, self.windows);
        let mut values = Vec::with_capacity(rows * columns * w.pow(4));
        for window in 0..rows * columns {
            let regions: Vec<usize> = (0..w * w)
                .map(|i| {
                    let (y, x) = (window / columns * w + i / w, window % columns * w + i % w);
                    3 * region(y, height) + region(x, width)
                })
                .collect();
            for a in &regions {
                values.extend(regions.iter().map(|b| if a == b { 0f32 } else { -100.0 }));
            }
        }
        Literal::from_slice([rows * columns, w * w, w * w], &values)
    }

    /// Row of the bias table for each pair of positions of a window: `→ i32[window², window²]`.
    fn bias_rows(&self) -> Result<Literal> {
        let (n, w) = (self.window * self.window, self.window);
        let row = |a: usize, b: usize| {
            let (dy, dx) = (a / w + w - 1 - b / w, a % w + w - 1 - b % w);
            (dy * (2 * w - 1) + dx) as i32
        };
        let rows: Vec<i32> = (0..n).flat_map(|a| (0..n).map(move |b| row(a, b))).collect();
        Literal::from_slice([n, n], &rows)
    }
}

/// Moves the image by `shift` rows and columns towards the origin, around the borders.
fn rolled(x: &Tensor, shift: [usize; 2]) -> Tensor {
    shift.into_iter().zip([1, 2]).fold(x.clone(), |x, (by, dim)| match by {
        0 => x,
        by => {
            let size = x.shape()[dim];
            Tensor::concatenate(&[&x.slice_dim(dim, by, size), &x.slice_dim(dim, 0, by)], dim)
        }
    })
}

impl WindowAttention {
    fn attend(&self, cx: &mut Cx, x: &Tensor) -> Result<Tensor> {
        let fits = x.rank() == 4 && x.dim(1) * x.dim(2) * x.dim(3) > 0;
        if !fits || !x.dim(3).is_multiple_of(self.num_heads) {
            let needs = format!("images [B, H, W, C] with channels divisible by {} heads", self.num_heads);
            return Err(unfit("WindowAttention", &needs, x.ty())
                .hint("choose num_heads that divides the last dimension"));
        }
        let (batch, height, width) = (x.dim(0), x.dim(1), x.dim(2));
        // A window that covers the image is not moved.
        let window = self.window_size.min(height.min(width));
        let shift = if height.min(width) <= self.window_size { 0 } else { self.shift_size };
        let grid = WindowGrid { window, shift, windows: [height.div_ceil(window), width.div_ceil(window)] };
        let [high, wide] = grid.sides();
        let x = cast(cx, x);
        let zero = x.builder().scalar(x.dtype(), 0.0);
        let padding = [0, (high - height) as i64, (wide - width) as i64, 0];
        let padded = if [high, wide] == [height, width] {
            x.clone()
        } else {
            x.pad(&zero, &[0; 4], &padding, &[0; 4])
        };
        let windows = grid.split(&rolled(&padded, [shift; 2]));
        let bias = self.bias(cx, &grid, &windows)?;
        let attention = MultiHeadAttention {
            num_heads: self.num_heads,
            key_dim: x.dim(3) / self.num_heads,
            dropout: self.dropout,
            use_attention_bias: true,
            ..Default::default()
        };
        let y = grid.join(&attention.call(cx, &[windows, bias]), batch);
        let y = rolled(&y, [high - shift, wide - shift].map(|by| if shift == 0 { 0 } else { by }));
        Ok(y.slice_dim(1, 0, height).slice_dim(2, 0, width))
    }

    /// Position biases and the mask of the shift: `→ T[B · windows, num_heads, window², window²]`.
    fn bias(&self, cx: &mut Cx, grid: &WindowGrid, windows: &Tensor) -> Result<Tensor> {
        let (side, n) = (2 * grid.window - 1, grid.window * grid.window);
        let start = Initializer::TruncatedNormal { mean: 0.0, stddev: 0.02 };
        let shape = [side * side, self.num_heads];
        let table = weight(cx, "WindowAttention", "relative_position_bias_table", &shape, &start)?;
        let rows = windows.builder().constant(grid.bias_rows()?);
        let bias = table.take(&rows).transpose(&[2, 0, 1]);
        let count = grid.windows[0] * grid.windows[1];
        let all = Shape::new([windows.dim(0) / count, count, self.num_heads, n, n]);
        let mut bias = bias.broadcast_in_dim(&all, &[2, 3, 4]);
        if grid.shift > 0 {
            let mask = windows.builder().constant(grid.mask()?).convert(bias.dtype());
            bias = bias + mask.broadcast_in_dim(&all, &[1, 3, 4]);
        }
        Ok(bias.reshape([windows.dim(0), self.num_heads, n, n]))
    }
}

impl Layer for WindowAttention {
    named!("WindowAttention");

    fn call(&self, cx: &mut Cx, inputs: &[Tensor]) -> Tensor {
        one_input(self, cx, inputs, |cx, x| self.attend(cx, x))
    }

    fn weight_roles(&self) -> Vec<WeightRole> {
        let mut all = attention_roles("", "");
        let table = "relative_position_bias_table";
        all.push(WeightRole::new(table, table, WeightLayout::Same));
        all
    }
}

/// `x: T[B, H, W, C] → T[B, H, W, C]`: self-attention within windows of an image. Arguments: [`WindowAttention`].
///
/// ```
/// use systole_ir::{DType::F32, TensorType};
/// use systole_nn::{layers::window_attention, Model};
/// let layer = window_attention(2, 4).shift_size(2);
/// let output = Model::sequential([layer]).output_for(&[TensorType::new(F32, [8, 8, 6])])?;
/// assert_eq!(output.shape.dims(), [8, 8, 6]);
/// # Ok::<(), systole_ir::Error>(())
/// ```
#[track_caller]
pub fn window_attention(num_heads: usize, window_size: usize) -> LayerSpec {
    LayerSpec::of(WindowAttention { num_heads, window_size, ..Default::default() })
}

setters!(LayerSpec:
    /// Rows and columns by which WindowAttention's windows are moved.
    shift_size: usize as usize;
);

const WEIGHTS: &[&str] = &[
    "relative_position_bias_table",
    "query/kernel",
    "query/bias",
    "key/kernel",
    "key/bias",
    "value/kernel",
    "value/bias",
    "attention_output/kernel",
    "attention_output/bias",
];

/// Test samples: layers with valid and invalid inputs.
pub(in crate::layers) fn samples() -> Vec<LayerSample> {
    vec![
        LayerSample::new(window_attention(3, 3), IMAGE, IMAGE, WEIGHTS, FLAT),
        LayerSample::new(window_attention(1, 2).shift_size(1), IMAGE, IMAGE, WEIGHTS, FLAT),
    ]
}

/// Not in Keras.
pub(in crate::layers) const PARITY: &str = "[]";
