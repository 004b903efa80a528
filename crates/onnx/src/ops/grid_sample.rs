//! Imports ONNX GridSample (nearest, linear, cubic over any number of spatial dimensions) and AffineGrid.

use super::call::{NodeCall, RuleResult, checked, output, unsupported};
use super::conv_pool::{channels_first, channels_last, spatial, sums_in};
use super::op_row::operators;
use crate::model::broken;
use systole_base::{DType, Literal, Result, TensorType};
use systole_ir::Tensor;

operators! {
    "AffineGrid" 20..20: affine_grid;
    "GridSample" 16..22: grid_sample;
}

/// How samples are interpolated.
#[derive(Clone, Copy)]
enum SampleMode {
    Nearest,
    Linear,
    Cubic,
}

/// How indices outside of the image are treated.
#[derive(Clone, Copy)]
enum OutsideRule {
    Zeros,
    Border,
    Reflection,
}

struct SampleModes {
    interpolation: SampleMode,
    outside: OutsideRule,
    aligns_corners: bool,
}

/// An element that contributes to each sample along one dimension: its index (as float) and its weight, `T[N, P]`.
type Tap = (Tensor, Tensor);

impl SampleModes {
    fn of(c: &NodeCall) -> Result<SampleModes> {
        let interpolation = match c.word("mode", "linear")?.as_str() {
            "linear" | "bilinear" => SampleMode::Linear,
            "nearest" => SampleMode::Nearest,
            "cubic" | "bicubic" => SampleMode::Cubic,
            other => return Err(unsupported(format!("unsupported mode {other}"))),
        };
        let outside = match c.word("padding_mode", "zeros")?.as_str() {
            "zeros" => OutsideRule::Zeros,
            "border" => OutsideRule::Border,
            "reflection" => OutsideRule::Reflection,
            other => return Err(unsupported(format!("unsupported padding_mode {other}"))),
        };
        Ok(SampleModes { interpolation, outside, aligns_corners: c.is("align_corners", false)? })
    }

    /// Returns the taps of coordinates from −1 to 1 along a dimension.
    fn taps(&self, at: &Tensor, size: usize) -> Vec<Tap> {
        let n = size as f64;
        let at = match self.aligns_corners {
            true => (at + 1.0) * ((n - 1.0) / 2.0),
            false => ((at + 1.0) * n - 1.0) / 2.0,
        };
        let first = at.floor();
        let t = &at - &first;
        let taps = match self.interpolation {
            SampleMode::Nearest => vec![(at.round_nearest_even(), at.ones_like())],
            SampleMode::Linear => vec![(first.clone(), 1.0 - &t), (&first + 1.0, t)],
            SampleMode::Cubic => {
                let weights = cubic_weights(&t);
                weights.into_iter().enumerate().map(|(k, w)| (&first + (k as f64 - 1.0), w)).collect()
            }
        };
        taps.into_iter().map(|tap| self.inside(tap, size)).collect()
    }

    /// Moves a tap into the image.
    fn inside(&self, (at, weight): Tap, size: usize) -> Tap {
        let last = at.scalar_like(size.saturating_sub(1) as f64);
        let low = at.maximum(&at.scalar_like(0.0)).minimum(&last);
        match self.outside {
            OutsideRule::Border => (low, weight),
            OutsideRule::Zeros => {
                let is_inside = at.equal(&low);
                (low, is_inside.select(&weight, &weight.zeros_like()))
            }
            OutsideRule::Reflection => {
                // Border elements are repeated unless the corners are aligned.
                let (period, top) = match self.aligns_corners {
                    true => (2 * size.saturating_sub(1), 2 * size.saturating_sub(1)),
                    false => (2 * size, (2 * size).saturating_sub(1)),
                };
                let period = period.max(1) as f64;
                let own = &at - (&at / period).floor() * period;
                let mirrored = -&own + top as f64;
                let folded = own.minimum(&mirrored);
                (folded.maximum(&at.scalar_like(0.0)).minimum(&last), weight)
            }
        }
    }
}

/// Weights of the four elements around a position, a fraction `t` after the second (Keys, a = −0.75).
fn cubic_weights(t: &Tensor) -> [Tensor; 4] {
    let a = -0.75;
    let near = |t: &Tensor| ((t * (a + 2.0)) - (a + 3.0)) * t * t + 1.0;
    let far = |t: &Tensor| ((t * a - 5.0 * a) * t + 8.0 * a) * t - 4.0 * a;
    let back = 1.0 - t;
    [far(&(t + 1.0)), near(t), near(&back), far(&(back + 1.0))]
}

/// Imports GridSample: `x: T[N, C, …], grid: T[N, …', n] → T[N, C, …']`.
fn grid_sample(c: &mut NodeCall) -> RuleResult {
    let (x, grid) = (c.tensor(0)?, c.tensor(1)?);
    let sizes = spatial(&x)?;
    let (n, batch, channels) = (sizes.len(), x.shape()[0], x.shape()[1]);
    let shape = grid.shape().to_vec();
    if shape.len() != n + 2 || shape[0] != batch || shape[n + 1] != n || sizes.contains(&0) {
        return Err(broken(format!("cannot sample {} at {}", x.ty(), grid.ty())));
    }
    let modes = SampleModes::of(c)?;
    let (points, image) = (shape[1..=n].iter().product::<usize>(), sizes.iter().product::<usize>());
    let wide = sums_in(x.dtype());
    let grid = grid.reshape([batch, points, n]).convert(sums_in(grid.dtype()));
    let places = TensorType::new(DType::I64, [batch, points]);
    let mut taps = vec![(c.g.iota(places, 0) * image as f64, None::<Tensor>)];
    for (d, &size) in sizes.iter().enumerate() {
        // The first component of a grid point is its position along the last dimension.
        let at = grid.slice_dim(2, n - 1 - d, n - d).reshape([batch, points]);
        let stride = sizes[d + 1..].iter().product::<usize>() as f64;
        let own = modes.taps(&at, size);
        let join = |(place, weight): &(Tensor, Option<Tensor>), (at, w): &Tap| {
            let weight = weight.as_ref().map_or(w.clone(), |all| all * w);
            (place + at.convert(DType::I64) * stride, Some(weight))
        };
        taps = taps.iter().flat_map(|tap| own.iter().map(move |more| join(tap, more))).collect();
    }
    let rows = channels_last(&x).reshape([batch * image, channels]);
    let sampled = taps.iter().map(|(place, weight)| {
        let y = rows.take(place).convert(wide);
        match weight {
            Some(w) => &y * w.convert(wide).broadcast_in_dim(y.shape(), &[0, 1]),
            None => y,
        }
    });
    let y = sampled.reduce(|a, b| a + b).ok_or_else(|| broken("the grid is empty"))?;
    let dims = [&shape[..=n], &[channels]].concat();
    output(channels_first(&y.reshape(checked(dims)?)).convert(x.dtype()))
}

/// Imports AffineGrid: the points of a grid of constant size under one affine map per sample.
fn affine_grid(c: &mut NodeCall) -> RuleResult {
    let (theta, size) = (c.tensor(0)?, c.numbers(1)?);
    let aligns = c.is("align_corners", false)?;
    let size = size.iter().map(|&s| usize::try_from(s).ok()).collect::<Option<Vec<usize>>>();
    let size = checked(size.ok_or_else(|| broken("a size is negative"))?)?;
    let n = size.len().saturating_sub(2);
    if n == 0 || theta.shape().dims() != [size[0], n, n + 1] {
        return Err(broken(format!("maps {} do not match size {size:?}", theta.ty())));
    }
    let sizes = &size[2..];
    let points = sizes.iter().product::<usize>();
    c.spend(points * (n + 1))?;
    let coordinate = |i: usize, s: usize| match aligns {
        true if s > 1 => 2.0 * i as f64 / (s - 1) as f64 - 1.0,
        true => 0.0,
        false => (2 * i + 1) as f64 / s as f64 - 1.0,
    };
    let mut table = Vec::new();
    for p in 0..points {
        let mut rest = p;
        for &s in sizes.iter().rev() {
            table.push(coordinate(rest % s, s));
            rest /= s;
        }
        table.push(1.0);
    }
    let table = c.g.constant(Literal::from_slice([points, n + 1], &table)?.convert(theta.dtype()));
    let y = theta.dot_general(&table, &[], &[], &[2], &[1]).transpose(&[0, 2, 1]);
    output(y.reshape([&[size[0]], sizes, &[n]].concat()))
}

#[cfg(test)]
mod tests {
    use crate::model::{OnnxAttribute, OnnxNode};
    use crate::test_node::{assert_close, floats, ints, model_of, run_node};

    fn sampled(options: &[(&str, &str)], aligns: i64, at: [f32; 4]) -> Vec<f32> {
        let x = floats([1, 1, 1, 3], [10.0, 20.0, 40.0]);
        let grid = floats([1, 1, 4, 2], [at[0], 0.0, at[1], 0.0, at[2], 0.0, at[3], 0.0]);
        let mut node = OnnxNode::new("GridSample", ["x", "g"], "y");
        node = node.with("align_corners", OnnxAttribute::Int(aligns));
        for (name, value) in options {
            node = node.with(name, OnnxAttribute::Text(value.to_string()));
        }
        run_node(20, node, &[&x, &grid])[0].to_f32s()
    }

    /// With aligned corners −1 is the center of the first of three pixels, otherwise its edge.
    #[test]
    fn samples_are_interpolated_and_padded() {
        let at = [-1.0, 0.5, 1.0, 2.0];
        assert_eq!(sampled(&[], 1, at), [10.0, 30.0, 40.0, 0.0]);
        assert_eq!(sampled(&[("padding_mode", "border")], 1, at), [10.0, 30.0, 40.0, 40.0]);
        assert_eq!(sampled(&[("padding_mode", "reflection")], 1, at), [10.0, 30.0, 40.0, 20.0]);
        assert_eq!(sampled(&[], 0, at), [5.0, 35.0, 20.0, 0.0]);
        // 2 is index 4, which the edge at 2.5 reflects to 1.
        assert_eq!(sampled(&[("padding_mode", "reflection")], 0, at), [10.0, 35.0, 40.0, 20.0]);
        assert_eq!(sampled(&[("mode", "nearest")], 1, [-1.0, 0.4, 0.6, 1.2]), [10.0, 20.0, 40.0, 40.0]);
        // Between 20 and 40, with 10 before and 0 after.
        let y = sampled(&[("mode", "cubic")], 1, [-1.0, 0.5, 1.0, 0.0]);
        let expected = [10.0, 0.59375 * 60.0 - 0.09375 * 10.0, 40.0, 20.0];
        assert!(y.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-4), "{y:?}");
    }

    #[test]
    fn grids_follow_their_map() {
        // x' = 2x + 1, y' = y.
        let theta = floats([1, 2, 3], [2.0, 0.0, 1.0, 0.0, 1.0, 0.0]);
        let node = OnnxNode::new("AffineGrid", ["t", "s"], "y");
        let mut m = model_of(20, node, &[&theta], false);
        m.graph.constants.insert("s".into(), ints([4], [1, 1, 1, 2]));
        let given = vec![("t".to_string(), vec![1, 2, 3])];
        let program = m.import(&crate::DimSizes { given, ..Default::default() }).unwrap();
        let y = systole_ir::interp::run(&program.graph, &[&theta]).unwrap();
        assert_close(&y[0], &[0.0, 0.0, 2.0, 0.0]);
    }
}
