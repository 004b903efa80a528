//! convolution: strides, padding, dilation, groups and any layout; input and kernel gradients.

use super::attr::ints;
use super::dot::sum_of_products;
use super::window::{WindowDim, checked_type, reach_of};
use super::*;

impl ConvDims {
    /// Channels-last layout (Keras) with `n` spatial dimensions: input `[B, …, C]`, kernel `[…, C, F]`, output `[B, …,
    /// F]`.
    pub fn channels_last(n: usize) -> ConvDims {
        let spatial: Dims = (1..=n).collect();
        ConvDims {
            input_batch: 0,
            input_feature: n + 1,
            input_spatial: spatial.clone(),
            kernel_input_feature: n,
            kernel_output_feature: n + 1,
            kernel_spatial: (0..n).collect(),
            output_batch: 0,
            output_feature: n + 1,
            output_spatial: spatial,
        }
    }

    /// Channels-first layout (PyTorch) with `n` spatial dimensions: input `[B, C, …]`, kernel `[F, C, …]`, output `[B,
    /// F, …]`.
    pub fn channels_first(n: usize) -> ConvDims {
        let spatial: Dims = (2..n + 2).collect();
        ConvDims {
            input_batch: 0,
            input_feature: 1,
            input_spatial: spatial.clone(),
            kernel_input_feature: 1,
            kernel_output_feature: 0,
            kernel_spatial: spatial.clone(),
            output_batch: 0,
            output_feature: 1,
            output_spatial: spatial,
        }
    }

    /// Layout of the convolution that computes the input gradient: the output's cotangent with the flipped kernel.
    fn for_input_gradient(&self) -> ConvDims {
        ConvDims {
            input_batch: self.output_batch,
            input_feature: self.output_feature,
            input_spatial: self.output_spatial.clone(),
            kernel_input_feature: self.kernel_output_feature,
            kernel_output_feature: self.kernel_input_feature,
            kernel_spatial: self.kernel_spatial.clone(),
            output_batch: self.input_batch,
            output_feature: self.input_feature,
            output_spatial: self.input_spatial.clone(),
        }
    }

    /// Layout of the convolution that computes the kernel gradient: the input with the output's cotangent, batch and
    /// features exchanged.
    fn for_kernel_gradient(&self) -> ConvDims {
        ConvDims {
            input_batch: self.input_feature,
            input_feature: self.input_batch,
            input_spatial: self.input_spatial.clone(),
            kernel_input_feature: self.output_batch,
            kernel_output_feature: self.output_feature,
            kernel_spatial: self.output_spatial.clone(),
            output_batch: self.kernel_input_feature,
            output_feature: self.kernel_output_feature,
            output_spatial: self.kernel_spatial.clone(),
        }
    }

    /// Layout of the convolution that computes the flipped kernel gradient: the output's cotangent with the dilated
    /// input.
    fn for_transposed_kernel_gradient(&self) -> ConvDims {
        ConvDims {
            input_batch: self.output_feature,
            input_feature: self.output_batch,
            input_spatial: self.output_spatial.clone(),
            kernel_input_feature: self.input_batch,
            kernel_output_feature: self.input_feature,
            kernel_spatial: self.input_spatial.clone(),
            output_batch: self.kernel_output_feature,
            output_feature: self.kernel_input_feature,
            output_spatial: self.kernel_spatial.clone(),
        }
    }
}

/// Padding `[before, after]` for ⌈size/stride⌉ outputs, as Keras's and TensorFlow's `padding="same"`; an odd element
/// goes to the end. `dilation` is that of the window.
///
/// ```
/// use systole_ir::op::conv::same_padding;
/// assert_eq!(same_padding(28, 3, 1, 1), [1, 1]);
/// assert_eq!(same_padding(28, 3, 2, 1), [0, 1]);
/// ```
pub fn same_padding(size: usize, window: usize, stride: usize, dilation: usize) -> [i64; 2] {
    let stride = stride.max(1);
    let out = size.div_ceil(stride);
    let reach = window.saturating_sub(1).saturating_mul(dilation).saturating_add(1);
    let needed = out.saturating_mul(stride).saturating_add(reach).saturating_sub(stride).saturating_sub(size);
    let total = i64::try_from(needed).unwrap_or(i64::MAX);
    [total / 2, total - total / 2]
}

impl Convolution {
    /// Channels-last convolution `x: T[B, …, C], kernel: T[…, C/groups, F] → U[B, …', F]` with Keras's attributes.
    /// `strides`, `padding` and `dilation` have one entry per spatial dimension.
    pub fn channels_last(
        strides: &[usize],
        padding: &[[i64; 2]],
        dilation: &[usize],
        groups: usize,
        element_type: DType,
    ) -> Convolution {
        let n = strides.len();
        Convolution {
            strides: strides.into(),
            padding: padding.into(),
            lhs_dilation: smallvec![1; n],
            rhs_dilation: dilation.into(),
            reversal: vec![false; n],
            dims: ConvDims::channels_last(n),
            feature_groups: groups,
            batch_groups: 1,
            element_type,
        }
    }

    /// Convolution without padding (Keras's `padding="valid"`) for an input and kernel of these types.
    pub fn valid(x: &TensorType, strides: &[usize], dilation: &[usize], groups: usize) -> Convolution {
        Convolution::channels_last(strides, &vec![[0, 0]; strides.len()], dilation, groups, x.dtype)
    }

    /// Convolution with ⌈size/stride⌉ outputs (Keras's `padding="same"`) for an input `[B, …, C]` and kernel `[…,
    /// C/groups, F]`.
    pub fn same(
        x: &TensorType,
        kernel: &TensorType,
        strides: &[usize],
        dilation: &[usize],
        groups: usize,
    ) -> Convolution {
        // Missing dimensions count as 1: infer then reports the ranks.
        let size = |t: &TensorType, d: usize| t.shape.get(d).copied().unwrap_or(1);
        let pad =
            |(i, (&s, &d)): (usize, (&usize, &usize))| same_padding(size(x, i + 1), size(kernel, i), s, d);
        let padding: Vec<[i64; 2]> = strides.iter().zip(dilation).enumerate().map(pad).collect();
        Convolution::channels_last(strides, &padding, dilation, groups, x.dtype)
    }

    /// Window of the kernel along spatial dimension `i`.
    pub(crate) fn along(&self, i: usize, x: &Shape, kernel: &Shape) -> WindowDim {
        WindowDim {
            size: x[self.dims.input_spatial[i]],
            window: kernel[self.dims.kernel_spatial[i]],
            stride: self.strides[i],
            base_dilation: self.lhs_dilation[i],
            window_dilation: self.rhs_dilation[i],
            padding: self.padding[i],
        }
    }

    fn check_attributes(&self, n: usize) -> Result<(), SpecConstraint> {
        let spatial = n - 2;
        let sized = |v: &[usize]| v.len() == spatial;
        let positive = |v: &[usize]| v.iter().all(|&s| s > 0);
        require!(sized(&self.strides), "C2", "got {} window_strides for rank {n}", self.strides.len());
        require!(positive(&self.strides), "C3", "window_strides must be positive");
        require!(
            self.padding.len() == spatial,
            "C4",
            "got {} padding pairs for rank {n}",
            self.padding.len()
        );
        require!(
            sized(&self.lhs_dilation),
            "C5",
            "got {} entries of lhs_dilation for rank {n}",
            self.lhs_dilation.len()
        );
        require!(positive(&self.lhs_dilation), "C6", "lhs_dilation must be positive");
        require!(
            sized(&self.rhs_dilation),
            "C7",
            "got {} entries of rhs_dilation for rank {n}",
            self.rhs_dilation.len()
        );
        require!(positive(&self.rhs_dilation), "C8", "rhs_dilation must be positive");
        require!(
            self.reversal.len() == spatial,
            "C9",
            "got {} entries of window_reversal for rank {n}",
            self.reversal.len()
        );
        require!(self.feature_groups > 0, "C21", "feature_group_count must be positive");
        require!(self.batch_groups > 0, "C22", "batch_group_count must be positive");
        require!(
            self.feature_groups == 1 || self.batch_groups == 1,
            "C23",
            "feature_group_count and batch_group_count cannot both be above 1"
        );
        self.check_layout(n)
    }

    fn check_layout(&self, n: usize) -> Result<(), SpecConstraint> {
        let d = &self.dims;
        let each_once = |first: usize, second: usize, rest: &[usize]| {
            let mut all: Dims = [&[first, second], rest].concat().into();
            all.sort_unstable();
            all.iter().copied().eq(0..n)
        };
        let sized = |v: &[usize]| v.len() == n - 2;
        require!(
            sized(&d.input_spatial),
            "C12",
            "got {} input_spatial_dimensions for this rank",
            d.input_spatial.len()
        );
        require!(
            each_once(d.input_batch, d.input_feature, &d.input_spatial),
            "C13",
            "the input's dimension numbers must list each of {n} dimensions once"
        );
        require!(
            sized(&d.kernel_spatial),
            "C17",
            "got {} kernel_spatial_dimensions for this rank",
            d.kernel_spatial.len()
        );
        require!(
            each_once(d.kernel_input_feature, d.kernel_output_feature, &d.kernel_spatial),
            "C18",
            "the kernel's dimension numbers must list each of {n} dimensions once"
        );
        require!(
            sized(&d.output_spatial),
            "C19",
            "got {} output_spatial_dimensions for this rank",
            d.output_spatial.len()
        );
        require!(
            each_once(d.output_batch, d.output_feature, &d.output_spatial),
            "C20",
            "the output's dimension numbers must list each of {n} dimensions once"
        );
        Ok(())
    }

    fn check_groups(&self, x: &TensorType, kernel: &TensorType) -> Result<(), SpecConstraint> {
        let d = &self.dims;
        let (batch, channels) = (x.shape[d.input_batch], x.shape[d.input_feature]);
        let (inputs, outputs) = (kernel.shape[d.kernel_input_feature], kernel.shape[d.kernel_output_feature]);
        let (fg, bg) = (self.feature_groups, self.batch_groups);
        require!(batch % bg == 0, "C10", "the batch size {batch} must be a multiple of {bg} batch groups");
        require!(
            channels % fg == 0,
            "C11",
            "the number of input features {channels} must be a multiple of {fg} feature groups"
        );
        require!(
            inputs == channels / fg,
            "C14",
            "the kernel {kernel} expects {inputs} input features per group, the input {x} has {channels} in {fg} groups"
        );
        require!(
            outputs % bg == 0,
            "C15",
            "the number of output features {outputs} must be a multiple of {bg} batch groups"
        );
        require!(
            outputs % fg == 0,
            "C16",
            "the number of output features {outputs} must be a multiple of {fg} feature groups"
        );
        Ok(())
    }

    /// Computes the output element at `index` as a sum over kernel positions.
    fn element(&self, x: &Literal, kernel: &Literal, index: &[usize]) -> Scalar {
        let d = &self.dims;
        let (xs, ks) = (x.shape().strides(), kernel.shape().strides());
        let (features, inputs) =
            (kernel.shape()[d.kernel_output_feature], kernel.shape()[d.kernel_input_feature]);
        let feature = index[d.output_feature];
        // Feature groups select a range of input features, batch groups a range of the batch.
        let group = feature / (features / (self.feature_groups * self.batch_groups));
        let batch_per_group = x.shape()[d.input_batch] / self.batch_groups;
        let group_of_batch = if self.batch_groups > 1 { group } else { 0 };
        let group_of_features = if self.feature_groups > 1 { group } else { 0 };
        let batch = group_of_batch * batch_per_group + index[d.output_batch];
        let x0 = batch * xs[d.input_batch] + group_of_features * inputs * xs[d.input_feature];
        let k0 = feature * ks[d.kernel_output_feature];
        let window: Shape = d.kernel_spatial.iter().map(|&k| kernel.shape()[k]).collect();
        let pairs = window.indices().filter_map(|at| {
            let (mut xi, mut ki) = (x0, k0);
            for (i, &w) in at.iter().enumerate() {
                let along = self.along(i, x.shape(), kernel.shape());
                xi += along.source(index[d.output_spatial[i]], w)? * xs[d.input_spatial[i]];
                let k = if self.reversal[i] { window[i] - 1 - w } else { w };
                ki += k * ks[d.kernel_spatial[i]];
            }
            Some((xi, ki))
        });
        let (sx, sk) = (xs[d.input_feature], ks[d.kernel_input_feature]);
        let products = pairs.flat_map(|(xi, ki)| (0..inputs).map(move |c| (xi + c * sx, ki + c * sk)));
        let elements = products.map(|(xi, ki)| (x.get(xi), kernel.get(ki)));
        sum_of_products(x.dtype(), self.element_type, elements)
    }

    /// Spatial dimensions along which the kernel is flipped.
    fn reversed_dims(&self) -> Vec<usize> {
        let dims = self.dims.kernel_spatial.iter().zip(&self.reversal);
        dims.filter(|(_, r)| **r).map(|(d, _)| *d).collect()
    }

    /// Gradient of the input: the dilated cotangent convolved with the flipped kernel. Padding as in JAX's
    /// `_conv_general_dilated_transpose_lhs`.
    fn input_gradient(&self, x: &Tensor, kernel: &Tensor, dy: &Tensor) -> Tensor {
        let d = &self.dims;
        let groups = self.feature_groups.max(self.batch_groups);
        let kernel_by_input = move_factor(kernel, d.kernel_output_feature, d.kernel_input_feature, groups);
        let spatial = d.output_spatial.iter().enumerate();
        let padding = spatial
            .map(|(i, &o)| self.along(i, x.shape(), kernel.shape()).cotangent_padding(dy.shape()[o]))
            .collect();
        let op = Convolution {
            strides: self.lhs_dilation.clone(),
            padding,
            lhs_dilation: self.strides.clone(),
            rhs_dilation: self.rhs_dilation.clone(),
            reversal: vec![false; self.reversal.len()],
            dims: d.for_input_gradient(),
            feature_groups: groups,
            batch_groups: 1,
            element_type: x.dtype(),
        };
        // A reverse node instead of window_reversal, because backends rarely have fast paths for the latter.
        let dx = dy.convolution(&reverse(&kernel_by_input, &d.kernel_spatial), op);
        if self.batch_groups > 1 {
            return move_factor(&dx, d.input_feature, d.input_batch, groups);
        }
        dx
    }

    /// Gradient of the kernel: the input convolved with the dilated cotangent, batch and features exchanged.
    fn kernel_gradient(&self, x: &Tensor, kernel: &Tensor, dy: &Tensor) -> Tensor {
        let d = &self.dims;
        let is_transposed = self.lhs_dilation.iter().any(|s| *s > 1) && self.strides.iter().all(|s| *s == 1);
        if is_transposed && self.feature_groups == 1 && self.batch_groups == 1 {
            return self.transposed_kernel_gradient(x, kernel, dy);
        }
        let spatial = d.output_spatial.iter().enumerate();
        let padding = spatial
            .map(|(i, &o)| self.along(i, x.shape(), kernel.shape()).window_cotangent_padding(dy.shape()[o]))
            .collect();
        let op = Convolution {
            strides: self.rhs_dilation.clone(),
            padding,
            lhs_dilation: self.lhs_dilation.clone(),
            rhs_dilation: self.strides.clone(),
            reversal: vec![false; self.reversal.len()],
            dims: d.for_kernel_gradient(),
            feature_groups: self.batch_groups,
            batch_groups: self.feature_groups,
            element_type: kernel.dtype(),
        };
        x.convolution(dy, op)
    }

    /// Like [`Convolution::kernel_gradient`] for a dilated input and stride 1, with the operands exchanged: the dilated
    /// input becomes the window, which avoids a convolution over holes.
    fn transposed_kernel_gradient(&self, x: &Tensor, kernel: &Tensor, dy: &Tensor) -> Tensor {
        let d = &self.dims;
        let padding = (0..d.output_spatial.len()).map(|i| {
            let along = self.along(i, x.shape(), kernel.shape());
            let reach = reach_of(along.window, along.window_dilation);
            let out = dy.shape()[d.output_spatial[i]] as i64;
            let low = reach - 1 - along.padding[0];
            [low, reach - 1 + reach_of(along.size, along.base_dilation) - out - low]
        });
        let op = Convolution {
            strides: self.rhs_dilation.clone(),
            padding: padding.collect(),
            lhs_dilation: self.strides.clone(),
            rhs_dilation: self.lhs_dilation.clone(),
            reversal: vec![false; self.reversal.len()],
            dims: d.for_transposed_kernel_gradient(),
            feature_groups: 1,
            batch_groups: 1,
            element_type: kernel.dtype(),
        };
        reverse(&dy.convolution(x, op), &d.kernel_spatial)
    }
}

/// Splits dimension `from` of size `n·m` into `n` and `m`, and makes `n` the slower part of dimension `into`.
fn move_factor(t: &Tensor, from: usize, into: usize, n: usize) -> Tensor {
    if n == 1 {
        return t.clone();
    }
    let mut split = t.shape().to_vec();
    split[from] /= n;
    let mut merged = split.clone();
    merged[into] *= n;
    split.insert(from, n);
    let order = (0..t.rank()).flat_map(|d| {
        let moved = d + usize::from(d >= from);
        if d == into { vec![from, moved] } else { vec![moved] }
    });
    t.reshape(split).transpose(&order.collect::<Vec<_>>()).reshape(merged)
}

fn reverse(t: &Tensor, dims: &[usize]) -> Tensor {
    if dims.is_empty() { t.clone() } else { t.reverse(dims) }
}

impl ConvDims {
    /// Parses the layouts of input, kernel and output as written in text: `b`, `f`, `i`, `o`, and spatial dimensions by
    /// number.
    ///
    /// # Errors
    /// If a dimension is missing in a layout.
    pub fn of_layouts(layouts: &[Vec<String>; 3]) -> Result<ConvDims, String> {
        let read = |layout: &[String], first: &str, second: &str| {
            let place = |word: &str| layout.iter().position(|w| w == word);
            let spatial: Option<Dims> =
                (0..layout.len().saturating_sub(2)).map(|i| place(&i.to_string())).collect();
            let found = place(first).zip(place(second)).zip(spatial);
            found.ok_or_else(|| format!("the layout must contain `{first}`, `{second}` and 0, 1, …"))
        };
        let [input, kernel, output] = layouts;
        let ((input_batch, input_feature), input_spatial) = read(input, "b", "f")?;
        let ((kernel_input_feature, kernel_output_feature), kernel_spatial) = read(kernel, "i", "o")?;
        let ((output_batch, output_feature), output_spatial) = read(output, "b", "f")?;
        Ok(ConvDims {
            input_batch,
            input_feature,
            input_spatial,
            kernel_input_feature,
            kernel_output_feature,
            kernel_spatial,
            output_batch,
            output_feature,
            output_spatial,
        })
    }
}

impl OpRule for Convolution {
    lowered!(Contract);

    fn infer(&self, args: &[&TensorType]) -> Result<ResultTypes, SpecConstraint> {
        expect_args(args, 2)?;
        let (x, kernel) = (args[0], args[1]);
        let n = x.rank();
        require!(n == kernel.rank() && n >= 2, "C1", "the ranks of {x} and {kernel} differ or are below 2");
        self.check_attributes(n)?;
        self.check_groups(x, kernel)?;
        require!(x.dtype == kernel.dtype, "C27", "element types differ: {x} and {kernel}");
        require!(
            x.dtype.is_float() == self.element_type.is_float(),
            "C27",
            "cannot accumulate products of {} in {}",
            x.dtype,
            self.element_type
        );
        let d = &self.dims;
        let mut dims: Dims = smallvec![0; n];
        dims[d.output_batch] = x.shape[d.input_batch] / self.batch_groups;
        dims[d.output_feature] = kernel.shape[d.kernel_output_feature];
        for (i, &o) in d.output_spatial.iter().enumerate() {
            let count = self.along(i, &x.shape, &kernel.shape).count();
            require!(count.is_some(), "C25", "the padded size of spatial dimension {i} overflows");
            dims[o] = count.unwrap_or(0);
        }
        Ok(smallvec![checked_type("C25", self.element_type, &dims)?])
    }

    fn eval(&self, _: &mut EvalCx, args: &[&Literal], outs: &ResultTypes) -> Result<Vec<Literal>> {
        let mut b = LiteralBuilder::new(outs[0].clone());
        for (i, index) in outs[0].shape.indices().enumerate() {
            b.set(i, self.element(args[0], args[1], &index));
        }
        Ok(vec![b.finish()])
    }

    fn vjp(&self, x: &[Tensor], _: &[Tensor], dy: &[Option<Tensor>]) -> Vec<Grad> {
        let Some(dy) = &dy[0] else { return vec![Grad::Zero, Grad::Zero] };
        let (x, kernel) = (&x[0], &x[1]);
        // Empty sums have no inverse convolution; their gradient is zero.
        if [x, kernel, dy].iter().any(|t| t.ty().elements() == 0) {
            return vec![Grad::Zero, Grad::Zero];
        }
        let dy = dy.convert(x.dtype());
        let backwards = self.reversed_dims();
        let kernel = reverse(kernel, &backwards);
        let dx = self.input_gradient(x, &kernel, &dy);
        let dk = self.kernel_gradient(x, &kernel, &dy);
        vec![Grad::Of(dx), Grad::Of(reverse(&dk, &backwards))]
    }

    fn attrs(&self) -> AttrList {
        vec![
            ("window_strides", ints(&self.strides)),
            ("padding", Attr::Pairs(self.padding.clone())),
            ("lhs_dilation", ints(&self.lhs_dilation)),
            ("rhs_dilation", ints(&self.rhs_dilation)),
            ("window_reversal", Attr::Bools(self.reversal.clone())),
            ("dimension_numbers", Attr::Conv(self.dims.clone())),
            ("feature_group_count", Attr::Int(self.feature_groups as i64)),
            ("batch_group_count", Attr::Int(self.batch_groups as i64)),
        ]
    }

    /// One multiply-add per output element and kernel position, including padding and holes.
    fn cost(&self, args: &[&TensorType], outs: &ResultTypes) -> OpCost {
        let features = args[1].shape[self.dims.kernel_output_feature].max(1);
        let per_output = args[1].elements() as f64 / features as f64;
        OpCost { flops: 2.0 * outs[0].elements() as f64 * per_output, bytes: moved_bytes(args, outs) }
    }
}

impl StructuralOp for Convolution {
    fn parse(s: &OpSource<'_>) -> OpParseResult<Self> {
        let dims = s.conv("dimension_numbers")?;
        let n = dims.input_spatial.len();
        let count = |name: &str| if s.has(name) { s.size(name) } else { Ok(1) };
        Ok(Convolution {
            strides: s.sizes_or_ones("window_strides", n)?,
            padding: s.pairs("padding", n)?,
            lhs_dilation: s.sizes_or_ones("lhs_dilation", n)?,
            rhs_dilation: s.sizes_or_ones("rhs_dilation", n)?,
            reversal: s.flags("window_reversal", n)?,
            feature_groups: count("feature_group_count")?,
            batch_groups: count("batch_group_count")?,
            element_type: s.result(0)?.dtype,
            dims,
        })
    }

    fn samples() -> Vec<OpSample> {
        elementwise_samples::every_dtype(samples())
    }

    fn row_op(&self, at: NodeView<'_>, rows: RowBlocking) -> Option<RowOp> {
        let d = &self.dims;
        let is_row = |k: usize, dim: usize| dim == 0 && at.ty(k).shape[0] == rows.rows;
        if self.batch_groups == 1 && is_row(0, d.input_batch) && d.output_batch == 0 {
            return RowOp::rows(self.clone(), [RowUse::Rows, RowUse::Whole]);
        }
        let sums = is_row(0, d.input_feature)
            && is_row(1, d.kernel_input_feature)
            && self.feature_groups == 1
            && self.batch_groups == 1
            && self.element_type != DType::Bool;
        let op = Convolution { element_type: sum_type(self.element_type), ..self.clone() };
        if sums { RowOp::sum(op, [RowUse::Rows, RowUse::Rows]) } else { None }
    }

    fn factors(&self, _: NodeView<'_>) -> Vec<ShardingFactor> {
        let d = &self.dims;
        let mut all = Vec::new();
        if self.batch_groups == 1 {
            all.push(ShardingFactor::dim([Some(d.input_batch), None], d.output_batch));
        }
        if self.batch_groups == 1 && self.feature_groups == 1 {
            all.push(ShardingFactor::dim([None, Some(d.kernel_output_feature)], d.output_feature));
            all.push(ShardingFactor::fold(
                [Some(d.input_feature), Some(d.kernel_input_feature)],
                Monoid::Add,
            ));
        }
        all
    }

    fn shard(&self, along: FactorResult, _: usize) -> Option<Op> {
        let element_type = sum_type(self.element_type);
        matches!(along, FactorResult::Fold(_)).then(|| Convolution { element_type, ..self.clone() }.into())
    }
}

/// Returns small test programs of convolution: each attribute differs from its default at least once.
pub fn samples() -> Vec<OpSample> {
    let floats = [DType::F32, DType::F64].into_iter().flat_map(cases);
    let mut all: Vec<OpSample> = floats.collect();
    for dtype in [DType::BF16, DType::F16, DType::I32] {
        all.push(case("same", dtype, &[1, 4, 5, 2], &[3, 3, 2, 3], |x, k| {
            Convolution::same(x, k, &[2, 1], &[1, 1], 1)
        }));
    }
    let wide = |x: &TensorType, _: &TensorType| Convolution {
        element_type: DType::F32,
        ..Convolution::valid(x, &[1], &[1], 1)
    };
    all.push(case("wide_sum", DType::BF16, &[2, 5, 3], &[2, 3, 2], wide));
    all
}

fn case(
    what: &str,
    dtype: DType,
    x: &[usize],
    kernel: &[usize],
    spec: impl Fn(&TensorType, &TensorType) -> Convolution,
) -> OpSample {
    let types = [TensorType::new(dtype, x), TensorType::new(dtype, kernel)];
    let op = spec(&types[0], &types[1]);
    let params = types.map(|t| (t, sample::WIDE));
    sample::sample(format!("{what}_{dtype}"), &params, 16, dtype == DType::F64, |x| {
        vec![x[0].convolution(&x[1], op)]
    })
}

#[rustfmt::skip]
fn cases(dtype: DType) -> Vec<OpSample> {
    let valid = |x: &TensorType, _: &TensorType| Convolution::valid(x, &[1, 1], &[1, 1], 1);
    let plain = |n: usize| Convolution::channels_last(&vec![1; n], &vec![[0, 0]; n], &vec![1; n], 1, dtype);
    vec![
        case("valid", dtype, &[2, 5, 4, 3], &[3, 2, 3, 2], valid),
        case("pointwise", dtype, &[2, 3, 3, 3], &[1, 1, 3, 5], valid),
        case("same_strided", dtype, &[1, 5, 7, 2], &[3, 2, 2, 3], |x, k| Convolution::same(x, k, &[2, 3], &[1, 1], 1)),
        case("no_space", dtype, &[3, 2], &[2, 4], |_, _| plain(0)),
        case("empty_batch", dtype, &[0, 5, 4, 3], &[3, 2, 3, 2], valid),
        case("no_window_fits", dtype, &[1, 2, 4, 1], &[3, 2, 1, 1], valid),
        case("no_channels", dtype, &[1, 3, 3, 0], &[2, 2, 0, 2], valid),
        case("uneven_padding", dtype, &[1, 6, 2], &[3, 2, 2], |_, _| Convolution { padding: vec![[2, -1]], strides: smallvec![2], ..plain(1) }),
        case("cropped", dtype, &[1, 9, 2], &[2, 2, 2], |_, _| Convolution { padding: vec![[-2, -3]], ..plain(1) }),
        case("dilated_kernel", dtype, &[1, 7, 7, 2], &[2, 3, 2, 2], |x, k| Convolution::same(x, k, &[1, 2], &[3, 2], 1)),
        case("dilated_input", dtype, &[1, 4, 3, 2], &[3, 2, 2, 3], |_, _| Convolution { lhs_dilation: smallvec![2, 3], padding: vec![[1, 2], [0, 1]], strides: smallvec![1, 2], ..plain(2) }),
        case("transposed", dtype, &[2, 3, 4, 2], &[4, 3, 2, 3], |_, _| Convolution { lhs_dilation: smallvec![2, 3], padding: vec![[2, 3], [1, 0]], ..plain(2) }),
        case("transposed_odd", dtype, &[3, 4, 2, 5], &[3, 3, 2, 2], |_, _| Convolution { dims: odd_layout(), lhs_dilation: smallvec![2, 1], rhs_dilation: smallvec![2, 1], padding: vec![[-1, 4], [2, 0]], reversal: vec![true, false], ..plain(2) }),
        case("all_dilations", dtype, &[1, 5, 2], &[3, 2, 2], |_, _| Convolution { lhs_dilation: smallvec![3], rhs_dilation: smallvec![2], strides: smallvec![2], padding: vec![[3, -2]], ..plain(1) }),
        case("reversed", dtype, &[1, 5, 5, 2], &[3, 2, 2, 3], |_, _| Convolution { reversal: vec![true, false], strides: smallvec![2, 1], ..plain(2) }),
        case("grouped", dtype, &[2, 5, 6], &[3, 2, 9], |_, _| Convolution { feature_groups: 3, strides: smallvec![2], padding: vec![[1, 1]], ..plain(1) }),
        case("depthwise", dtype, &[1, 4, 4, 3], &[3, 3, 1, 6], |x, k| Convolution::same(x, k, &[1, 1], &[1, 1], 3)),
        case("batch_groups", dtype, &[6, 5, 2], &[3, 2, 6], |_, _| Convolution { batch_groups: 3, strides: smallvec![2], padding: vec![[1, 0]], ..plain(1) }),
        case("channels_first", dtype, &[2, 3, 5, 4], &[4, 3, 2, 3], |_, _| Convolution { dims: ConvDims::channels_first(2), strides: smallvec![2, 1], padding: vec![[0, 1], [1, 1]], ..plain(2) }),
        case("odd_layout", dtype, &[3, 4, 2, 5], &[3, 3, 2, 2], |_, _| Convolution { dims: odd_layout(), padding: vec![[0, 1], [2, 0]], ..plain(2) }),
        case("odd_layout_groups", dtype, &[3, 4, 2, 5], &[3, 3, 1, 2], |_, _| Convolution { dims: odd_layout(), feature_groups: 2, reversal: vec![false, true], ..plain(2) }),
        case("three_d", dtype, &[1, 3, 2, 4, 2], &[2, 2, 3, 2, 2], |_, _| Convolution { padding: vec![[0, 1], [1, 0], [1, 1]], ..plain(3) }),
    ]
}

/// Unusual layout: input `[s1, s0, f, b]`, kernel `[s0, s1, i, o]`, output `[f, s1, b, s0]`.
fn odd_layout() -> ConvDims {
    ConvDims {
        input_batch: 3,
        input_feature: 2,
        input_spatial: smallvec![1, 0],
        kernel_input_feature: 2,
        kernel_output_feature: 3,
        kernel_spatial: smallvec![0, 1],
        output_batch: 2,
        output_feature: 0,
        output_spatial: smallvec![3, 1],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{GraphBuilder, grad, interp};

    #[test]
    fn samples_and_their_derivatives() {
        sample::check::all(&samples());
    }

    fn run(op: Convolution, x: &Literal, k: &Literal) -> Literal {
        let g = GraphBuilder::new("main");
        let (a, b) = (g.parameter(x.ty().clone(), "x"), g.parameter(k.ty().clone(), "k"));
        let graph = g.finish(&[a.convolution(&b, op)]).unwrap();
        interp::run(&graph, &[x, k]).unwrap().remove(0)
    }

    /// Example from the specification.
    #[test]
    fn dilated_input_of_the_specification() {
        let x = [1, 2, 5, 6, 3, 4, 7, 8, 10, 11, 14, 15, 12, 13, 16, 17];
        let x = Literal::from_slice([1, 4, 4, 1], &x).unwrap();
        let k = Literal::from_slice([3, 3, 1, 1], &[1i32; 9]).unwrap();
        let op = Convolution {
            lhs_dilation: smallvec![2, 2],
            ..Convolution::channels_last(&[4, 4], &[[0, 0]; 2], &[1, 1], 1, DType::I32)
        };
        let y = run(op, &x, &k);
        assert_eq!(y, Literal::from_slice([1, 2, 2, 1], &[10i32, 26, 46, 62]).unwrap());
    }

    #[test]
    fn reversal_and_groups_by_hand() {
        let x = Literal::from_slice([1, 3, 2], &[1f32, 10., 2., 20., 3., 30.]).unwrap();
        let k = Literal::from_slice([2, 1, 2], &[1f32, 2., 3., 4.]).unwrap();
        let grouped = Convolution::channels_last(&[1], &[[0, 1]], &[1], 2, DType::F32);
        // Feature 0 sees x's feature 0 with taps (1, 3), feature 1 sees feature 1 with (2, 4).
        assert_eq!(run(grouped.clone(), &x, &k).to_f32s(), [7., 100., 11., 160., 3., 60.]);
        let reversed = Convolution { reversal: vec![true], ..grouped };
        assert_eq!(run(reversed, &x, &k).to_f32s(), [5., 80., 9., 140., 9., 120.]);
        // Batch groups: output feature 0 comes from the first half of the batch, 1 from the second.
        let x = Literal::from_slice([2, 2, 1], &[1f32, 2., 3., 4.]).unwrap();
        let k = Literal::from_slice([1, 1, 2], &[1f32, 10.]).unwrap();
        let batched = Convolution {
            batch_groups: 2,
            ..Convolution::channels_last(&[1], &[[0, 0]], &[1], 1, DType::F32)
        };
        assert_eq!(run(batched, &x, &k).to_f32s(), [1., 30., 2., 40.]);
    }

    #[test]
    fn same_padding_as_keras() {
        for (size, window, stride, dilation, pad) in [
            (5, 3, 1, 1, [1, 1]),
            (5, 2, 1, 1, [0, 1]),
            (6, 3, 2, 1, [0, 1]),
            (5, 3, 2, 1, [1, 1]),
            (7, 3, 1, 2, [2, 2]),
            (4, 1, 2, 1, [0, 0]),
            (0, 3, 1, 1, [1, 1]),
        ] {
            assert_eq!(
                same_padding(size, window, stride, dilation),
                pad,
                "{size} {window} {stride} {dilation}"
            );
        }
        assert_eq!(same_padding(usize::MAX, usize::MAX, 1, usize::MAX), [0, 0]);
    }

    /// bf16 in, f32 out: the cotangent is converted to the operands' type.
    #[test]
    fn mixed_types_have_gradients_of_the_operands_types() {
        let g = GraphBuilder::new("main");
        let x = g.parameter(TensorType::new(DType::BF16, [1, 3, 1]), "x");
        let k = g.parameter(TensorType::new(DType::BF16, [2, 1, 1]), "k");
        let op = Convolution { element_type: DType::F32, ..Convolution::valid(x.ty(), &[1], &[1], 1) };
        let y = x.convolution(&k, op);
        assert_eq!(y.dtype(), DType::F32);
        let grads = grad(&y.sum_all(), &[&x, &k]);
        let graph = g.finish(&grads).unwrap();
        let x = Literal::from_slice([1, 3, 1], &[1f32, 2., 4.]).unwrap().convert(DType::BF16);
        let k = Literal::from_slice([2, 1, 1], &[3f32, 5.]).unwrap().convert(DType::BF16);
        let out = interp::run(&graph, &[&x, &k]).unwrap();
        assert_eq!(out[0].dtype(), DType::BF16);
        assert_eq!(out[0].to_f32s(), [3., 8., 5.]);
        assert_eq!(out[1].to_f32s(), [3., 6.]);
    }

    #[test]
    fn violations_name_their_constraint() {
        let x = TensorType::new(DType::F32, [2, 5, 4]);
        let k = TensorType::new(DType::F32, [3, 4, 6]);
        let plain = || Convolution::channels_last(&[1], &[[0, 0]], &[1], 1, DType::F32);
        let label = |op: Convolution| op.infer(&[&x, &k]).unwrap_err().label;
        let of = |f: &dyn Fn(&mut Convolution)| {
            let mut op = plain();
            f(&mut op);
            label(op)
        };
        assert!(plain().infer(&[&x, &k]).is_ok());
        assert_eq!(of(&|c| c.strides = smallvec![1, 1]), "C2");
        assert_eq!(of(&|c| c.strides = smallvec![0]), "C3");
        assert_eq!(of(&|c| c.padding = vec![]), "C4");
        assert_eq!(of(&|c| c.lhs_dilation = smallvec![0]), "C6");
        assert_eq!(of(&|c| c.rhs_dilation = smallvec![0]), "C8");
        assert_eq!(of(&|c| c.reversal = vec![]), "C9");
        assert_eq!(of(&|c| c.batch_groups = 4), "C10");
        assert_eq!(of(&|c| c.feature_groups = 3), "C11");
        assert_eq!(of(&|c| c.feature_groups = 2), "C14");
        assert_eq!(of(&|c| c.dims.input_batch = 1), "C13");
        assert_eq!(of(&|c| c.dims.kernel_spatial = smallvec![9]), "C18");
        assert_eq!(of(&|c| c.dims.output_feature = 0), "C20");
        assert_eq!(of(&|c| c.feature_groups = 0), "C21");
        assert_eq!(of(&|c| (c.feature_groups, c.batch_groups) = (2, 2)), "C23");
        assert_eq!(of(&|c| c.element_type = DType::I32), "C27");
        for padding in [[i64::MAX, 1], [i64::MAX, i64::MAX], [i64::MIN, 0], [i64::MAX / 2, 0]] {
            assert_eq!(of(&|c| c.padding = vec![padding]), "C25");
        }
        assert_eq!(of(&|c| c.rhs_dilation = smallvec![usize::MAX]), "C25");
        assert_eq!(plain().infer(&[&x]).unwrap_err().label, "-");
    }
}
