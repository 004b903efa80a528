//! Imports ONNX RoiAlign: samples regions of a feature map bilinearly, averaged or maximal within each bin.

use super::call::{NodeCall, RuleResult, checked, output, unsupported};
use super::conv_pool::{channels_first, channels_last};
use super::op_row::operators;
use crate::model::broken;
use systole_base::{DType, Result, TensorType, ensure};
use systole_ir::Tensor;

operators! {
    "RoiAlign" 10..22: roi_align;
}

/// Maximum samples of a bin along a dimension.
const MOST_SAMPLES: usize = 64;

/// One spatial dimension of all regions: `T[R]` each.
struct RegionSide {
    start: Tensor,
    bin: Tensor,
    /// Number of samples in a bin.
    samples: Tensor,
    /// Size of the feature map, and number of bins.
    size: usize,
    bins: usize,
}

/// The neighbors of each sample along one axis and their interpolation weights: `T[R, bins]` each. `is_used` is 1 for existing samples.
struct SampleTaps {
    places: [Tensor; 2],
    weights: [Tensor; 2],
    is_used: Tensor,
}

impl RegionSide {
    /// Returns the elements around sample `i` of each bin. Samples outside of the feature map have weight 0.
    fn taps(&self, i: usize) -> SampleTaps {
        let ty = TensorType::new(self.start.dtype(), [self.start.dim(0), self.bins]);
        let wide = |t: &Tensor| t.broadcast_in_dim(&ty.shape, &[0]);
        let (bin, samples) = (wide(&self.bin), wide(&self.samples));
        let divisor = samples.maximum(&samples.scalar_like(1.0));
        let index = self.start.builder().iota(ty.clone(), 1);
        let within = index.scalar_like(i as f64 + 0.5) * &bin / divisor;
        let at = wide(&self.start) + index * &bin + within;
        let limit = |v: f64| at.scalar_like(v);
        let is_used = samples.greater(&limit(i as f64)).convert(at.dtype());
        let outside = at.less(&limit(-1.0)).or(&at.greater(&limit(self.size as f64)));
        let own = at.maximum(&limit(0.0));
        let last = limit(self.size as f64 - 1.0);
        let low = own.floor().minimum(&last);
        let high = (&low + 1.0).minimum(&last);
        // At the last element both places are the same one.
        let fraction = low.less(&last).select(&(own - &low), &at.zeros_like());
        let inside = outside.select(&at.zeros_like(), &at.ones_like()) * &is_used;
        let weights = [(1.0 - &fraction) * &inside, fraction * &inside];
        SampleTaps { places: [low, high].map(|t| t.convert(DType::I64)), weights, is_used }
    }
}

/// The feature map as rows `T[N·H·W, C]`, and where the sample of each region starts: `i64[R]`.
struct FeatureRows {
    rows: Tensor,
    batch: Tensor,
    width: usize,
}

impl FeatureRows {
    /// Returns the four weighted elements of a sample in each bin: `T[R, PH, PW, C]`.
    fn sampled(&self, y: &SampleTaps, x: &SampleTaps) -> Vec<Tensor> {
        let (regions, height, width) = (y.places[0].dim(0), y.places[0].dim(1), x.places[0].dim(1));
        let bins = systole_base::Shape::new([regions, height, width]);
        let (down, right) = (
            |t: &Tensor| t.broadcast_in_dim(&bins, &[0, 1]),
            |t: &Tensor| t.broadcast_in_dim(&bins, &[0, 2]),
        );
        let start = self.batch.broadcast_in_dim(&bins, &[0]);
        let mut all = Vec::new();
        for (row, of_row) in y.places.iter().zip(&y.weights) {
            for (column, of_column) in x.places.iter().zip(&x.weights) {
                let place = &start + down(row) * self.width as f64 + right(column);
                let element = self.rows.take(&place);
                let weight = down(of_row) * right(of_column);
                all.push(
                    &element * weight.convert(element.dtype()).broadcast_in_dim(element.shape(), &[0, 1, 2]),
                );
            }
        }
        all
    }
}

/// Returns the number of samples per bin as a tensor, and its maximum over the regions.
fn sample_count(c: &mut NodeCall, bin: &Tensor) -> Result<(Tensor, usize)> {
    let ratio = c.int("sampling_ratio", 0)?;
    if ratio > 0 {
        let count = usize::try_from(ratio).ok().filter(|n| *n <= MOST_SAMPLES);
        let count = count.ok_or_else(|| unsupported(format!("unsupported sampling_ratio {ratio}")))?;
        return Ok((bin.zeros_like() + count as f64, count));
    }
    let samples = bin.ceil();
    let most = samples.reduce_max(&[0]).maximum(&c.g.scalar(bin.dtype(), 0.0));
    let most = c.known_value(&most, "the largest region")?.get(0).as_f64();
    ensure!(most <= MOST_SAMPLES as f64, unsupported(format!("a region needs {most} samples per bin")));
    Ok((samples, most as usize))
}

/// `x: T[N, C, H, W], rois: T[R, 4], batch: I[R] → T[R, C, PH, PW]`.
fn roi_align(c: &mut NodeCall) -> RuleResult {
    let (x, rois, batch) = (c.tensor(0)?, c.tensor(1)?, c.tensor(2)?);
    let (bins_high, bins_wide) = (c.count("output_height", 1)?, c.count("output_width", 1)?);
    let is_average = match c.word("mode", "avg")?.as_str() {
        "avg" => true,
        "max" => false,
        other => return Err(unsupported(format!("unsupported mode {other}"))),
    };
    let default = if c.opset >= 16 { "half_pixel" } else { "output_half_pixel" };
    let is_half_pixel = c.word("coordinate_transformation_mode", default)? == "half_pixel";
    let (scale, regions) = (c.float("spatial_scale", 1.0)?, rois.shape().first().copied().unwrap_or(0));
    let fits = x.rank() == 4 && rois.shape().dims() == [regions, 4] && batch.shape().dims() == [regions];
    let &[_, channels, height, width] = x.shape().dims() else { return Err(broken("x must have rank 4")) };
    ensure!(
        fits && height > 0 && width > 0,
        broken(format!("cannot sample {} in {} regions {}", x.ty(), batch.ty(), rois.ty()))
    );
    checked(vec![regions, bins_high, bins_wide, channels])?;
    let mut side = |dim: usize, size: usize, bins: usize| -> Result<(RegionSide, usize)> {
        let column = |i: usize| rois.slice_dim(1, i, i + 1).reshape([regions]).convert(DType::F32) * scale;
        let offset = if is_half_pixel { 0.5 } else { 0.0 };
        let (start, end) = (column(dim) - offset, column(dim + 2) - offset);
        let extent = &end - &start;
        let extent = if is_half_pixel { extent } else { extent.maximum(&extent.scalar_like(1.0)) };
        let bin = extent / bins as f64;
        let (samples, most) = sample_count(c, &bin)?;
        Ok((RegionSide { start, bin, samples, size, bins }, most))
    };
    let ((rows, most_rows), (columns, most_columns)) =
        (side(1, height, bins_high)?, side(0, width, bins_wide)?);
    let features = FeatureRows {
        rows: channels_last(&x)
            .reshape([x.shape().elements() / channels.max(1), channels])
            .convert(DType::F32),
        batch: batch.convert(DType::I64) * (height * width) as f64,
        width,
    };
    let zeros = TensorType::new(DType::F32, [regions, bins_high, bins_wide, channels]);
    let mut y = None::<Tensor>;
    for (i, j) in (0..most_rows).flat_map(|i| (0..most_columns).map(move |j| (i, j))) {
        let (down, right) = (rows.taps(i), columns.taps(j));
        let parts = features.sampled(&down, &right);
        let join = |a: Tensor, b: Tensor| if is_average { a + b } else { a.maximum(&b) };
        let sample = parts.into_iter().reduce(join);
        let sample = sample.map(|t| if is_average { t } else { only_used(&t, &down, &right) });
        y = match (y, sample) {
            (Some(a), Some(b)) => Some(join(a, b)),
            (a, b) => a.or(b),
        };
    }
    let y = y.unwrap_or_else(|| c.g.full(&zeros, 0.0));
    let count = (&rows.samples * &columns.samples).maximum(&rows.samples.scalar_like(1.0));
    let y = match is_average {
        true => &y / count.broadcast_in_dim(y.shape(), &[0]),
        false => y,
    };
    output(channels_first(&y).convert(x.dtype()))
}

/// Replaces samples that do not exist by the lowest value.
fn only_used(t: &Tensor, y: &SampleTaps, x: &SampleTaps) -> Tensor {
    let (down, right) =
        (y.is_used.broadcast_in_dim(t.shape(), &[0, 1]), x.is_used.broadcast_in_dim(t.shape(), &[0, 2]));
    (down * right).greater(&t.zeros_like()).select(t, &t.scalar_like(f64::from(f32::MIN)))
}

#[cfg(test)]
mod tests {
    use crate::model::{OnnxAttribute, OnnxNode};
    use crate::test_node::{assert_close, floats, ints, node_error, run_constants, run_node};
    use systole_base::Literal;

    fn node(ratio: i64, mode: &str) -> OnnxNode {
        OnnxNode::new("RoiAlign", ["x", "rois", "batch"], "y")
            .with("output_height", OnnxAttribute::Int(1))
            .with("output_width", OnnxAttribute::Int(2))
            .with("spatial_scale", OnnxAttribute::Float(0.5))
            .with("sampling_ratio", OnnxAttribute::Int(ratio))
            .with("mode", OnnxAttribute::Text(mode.into()))
    }

    /// A map whose value is 10·y + x, so that a sample is a linear function of its place; the second image is negative.
    fn map() -> Literal {
        let value = |i: usize| (10 * (i / 6 % 6) + i % 6) as f32 * if i < 36 { 1.0 } else { -1.0 };
        Literal::from_slice([2, 1, 6, 6], &(0..72).map(value).collect::<Vec<_>>()).unwrap()
    }

    #[test]
    fn bins_average_samples_or_take_the_largest() {
        // Regions [1, 2] to [9, 6] and [3, 1] to [7, 9], halved and moved by half a pixel.
        let rois = floats([2, 4], [2.0, 4.0, 10.0, 8.0, 4.0, 2.0, 8.0, 10.0]);
        let batch = ints([2], [0, 1]);
        // Centers of the bins: y = 2.5, x = 1.5 and 3.5; y = 2.5, x = 2 and 3.
        let expected = [26.5, 28.5, -27.0, -28.0];
        for ratio in [1, 2, 3] {
            assert_close(&run_node(16, node(ratio, "avg"), &[&map(), &rois, &batch])[0], &expected);
        }
        // As many samples as a bin has pixels, which the regions decide.
        let y = run_constants(16, node(0, "avg"), &[&map(), &rois, &batch]);
        assert_eq!(y[0].shape().dims(), [2, 1, 1, 2]);
        assert_close(&y[0], &expected);
        let e = node_error(16, node(0, "avg"), &[&map(), &rois, &batch]);
        assert!(e.contains("RoiAlign") && e.contains("--input"), "{e}");
        // The largest weighted element, as ONNX Runtime computes it.
        let y = run_constants(16, node(2, "max"), &[&map(), &rois, &batch]);
        assert_close(&y[0].reshape([4]).unwrap(), &[32.0, 34.0, -1.375, -1.5]);
        let e = node_error(16, node(2, "median"), &[&map(), &rois, &batch]);
        assert!(e.contains("median"), "{e}");
    }
}
