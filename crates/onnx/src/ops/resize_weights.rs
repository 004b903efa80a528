//! Weights of resized dimensions: cubic and antialiased kernels, and crops of Resize.

use super::resize::{ResizeKernel, ResizeModes};
use systole_base::{Literal, Result};
use systole_ir::Tensor;

/// A crop in relative coordinates: starts and then ends of the dimensions.
pub(super) struct CropWindow {
    pub roi: Vec<f32>,
    /// Value of positions outside of the image.
    pub fill: f64,
}

impl CropWindow {
    /// Maps output index `i` of `new` to a source coordinate of dimension `k`, which has `old` elements.
    pub fn source(&self, k: usize, i: usize, old: usize, new: usize) -> f32 {
        let (start, end) = (self.roi[k], self.roi[k + self.roi.len() / 2]);
        let last = old as f32 - 1.0;
        match new {
            0 | 1 => 0.5 * (start + end) * last,
            _ => start * last + i as f32 * (end - start) * last / (new as f32 - 1.0),
        }
    }

    /// Replaces the positions along `dim` whose source is outside of the image.
    pub fn outside_filled(&self, x: &Tensor, dim: usize, places: &[f32], old: usize) -> Result<Tensor> {
        let is_inside = |p: &f32| (0.0..=old as f32 - 1.0).contains(p);
        if places.iter().all(is_inside) {
            return Ok(x.clone());
        }
        let inside: Vec<bool> = places.iter().map(is_inside).collect();
        let inside = x.builder().constant(Literal::from_bools([places.len()], &inside)?);
        let fill = x.scalar_like(self.fill).broadcast_to(x.shape());
        Ok(inside.broadcast_in_dim(x.shape(), &[dim]).select(x, &fill))
    }
}

impl ResizeKernel {
    fn radius(self) -> f64 {
        if let ResizeKernel::Cubic(_) = self { 2.0 } else { 1.0 }
    }

    /// Returns the weight at a distance.
    fn weight(self, d: f64) -> f64 {
        match self {
            ResizeKernel::Cubic(a) if d <= 1.0 => ((a + 2.0) * d - (a + 3.0)) * d * d + 1.0,
            ResizeKernel::Cubic(a) if d < 2.0 => ((a * d - 5.0 * a) * d + 8.0 * a) * d - 4.0 * a,
            ResizeKernel::Cubic(_) => 0.0,
            _ => (1.0 - d).max(0.0),
        }
    }
}

/// Returns the weights of the elements of a dimension at a source coordinate.
fn weights(modes: &ResizeModes, at: f32, old: usize, scale: f32) -> Vec<f64> {
    let scale = if modes.antialiases { f64::from(scale).min(1.0) } else { 1.0 };
    let first = f64::from(at.floor());
    let t = f64::from(at) - first;
    let start = (-modes.kernel.radius() / scale).floor() as i64 + 1;
    let mut row = vec![0.0; old];
    let last = old as i64 - 1;
    for i in start..2 - start {
        let weight = modes.kernel.weight(((i as f64 - t) * scale).abs());
        let own = first as i64 + i;
        let is_outside = !(0..=last).contains(&own);
        if !(is_outside && modes.excludes_outside)
            && let Some(slot) = row.get_mut(own.clamp(0, last) as usize)
        {
            *slot += weight;
        }
    }
    let sum: f64 = row.iter().sum();
    if sum != 0.0 && (modes.antialiases || modes.excludes_outside) {
        row.iter_mut().for_each(|w| *w /= sum);
    }
    row
}

/// Resizes a dimension by a product with the weights of all positions.
pub(super) fn weighted(
    modes: &ResizeModes,
    x: &Tensor,
    dim: usize,
    places: &[f32],
    scale: f32,
) -> Result<Tensor> {
    let old = x.shape()[dim];
    let table: Vec<f64> = places.iter().flat_map(|&p| weights(modes, p, old, scale)).collect();
    let table = Literal::from_slice([places.len(), old], &table)?.convert(x.dtype());
    let y = x.dot_general(&x.builder().constant(table), &[], &[], &[dim], &[1]);
    // The new dimension is last.
    let last = x.rank() - 1;
    let order: Vec<usize> =
        (0..=last).map(|d| if d == dim { last } else { d - usize::from(d > dim) }).collect();
    Ok(y.transpose(&order))
}

#[cfg(test)]
mod tests {
    use crate::DimSizes;
    use crate::model::{OnnxAttribute, OnnxNode};
    use crate::test_node::{floats, model_of};

    /// Resizes `[1, 2, 4, 8]` along a row.
    fn resized(scale: f32, roi: [f32; 2], options: &[(&str, OnnxAttribute)]) -> Vec<f32> {
        let x = floats([1, 4], [1.0, 2.0, 4.0, 8.0]);
        let mut node = OnnxNode::new("Resize", ["x", "roi", "s"], "y");
        for (name, value) in options {
            node = node.with(name, value.clone());
        }
        let mut m = model_of(19, node, &[&x], false);
        m.graph.constants.insert("s".into(), floats([2], [1.0, scale]));
        m.graph.constants.insert("roi".into(), floats([4], [0.0, roi[0], 1.0, roi[1]]));
        let given = vec![("x".to_string(), vec![1, 4])];
        let program = m.import(&DimSizes { given, ..DimSizes::default() }).unwrap_or_else(|e| panic!("{e}"));
        systole_ir::interp::run(&program.graph, &[&x]).unwrap()[0].to_f32s()
    }

    #[track_caller]
    fn close(y: Vec<f32>, expected: &[f32]) {
        assert!(
            y.len() == expected.len() && y.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-4),
            "{y:?}"
        );
    }

    #[test]
    fn cubic_kernels_repeat_or_exclude_what_is_outside() {
        let (word, int) = (|s: &str| OnnxAttribute::Text(s.into()), OnnxAttribute::Int);
        let mode = ("mode", word("cubic"));
        let asymmetric = ("coordinate_transformation_mode", word("asymmetric"));
        // At 0.5 the weights are −3/32, 19/32, 19/32, −3/32.
        let y = resized(2.0, [0.0, 1.0], &[mode.clone(), asymmetric.clone()]);
        let half = |a: f32, b: f32, c: f32, d: f32| (19.0 * (b + c) - 3.0 * (a + d)) / 32.0;
        let ends = [half(1.0, 1.0, 2.0, 4.0), half(2.0, 4.0, 8.0, 8.0), half(4.0, 8.0, 8.0, 8.0)];
        close(y, &[1.0, ends[0], 2.0, half(1.0, 2.0, 4.0, 8.0), 4.0, ends[1], 8.0, ends[2]]);
        let y = resized(2.0, [0.0, 1.0], &[mode, asymmetric, ("exclude_outside", int(1))]);
        close(y[1..2].to_vec(), &[(19.0 * 3.0 - 3.0 * 4.0) / 35.0]);
    }

    #[test]
    fn shrinking_with_antialias_averages() {
        let options = [("mode", OnnxAttribute::Text("linear".into())), ("antialias", OnnxAttribute::Int(1))];
        // At 0.5 and 2.5 with a triangle of radius 2: weights 1/8, 3/8, 3/8, 1/8 with repeated borders.
        let y = resized(0.5, [0.0, 1.0], &options);
        close(y, &[(1.0 + 3.0 + 6.0 + 4.0) / 8.0, (2.0 + 12.0 + 24.0 + 8.0) / 8.0]);
    }

    #[test]
    fn crops_are_filled_outside() {
        let options = [
            ("mode", OnnxAttribute::Text("linear".into())),
            ("coordinate_transformation_mode", OnnxAttribute::Text("tf_crop_and_resize".into())),
            ("extrapolation_value", OnnxAttribute::Float(-1.0)),
        ];
        // From coordinate 1.5 to 4.5 in steps of 1.
        close(resized(1.0, [0.5, 1.5], &options), &[3.0, 6.0, -1.0, -1.0]);
    }
}
