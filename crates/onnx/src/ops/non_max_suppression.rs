//! Imports ONNX NonMaxSuppression: selects boxes by score that overlap little. Boxes and scores must be known.

use super::call::{NodeCall, RuleResult, output, unsupported};
use super::op_row::operators;
use crate::model::broken;
use std::cmp::Ordering;
use systole_base::{Literal, Result, ensure};

operators! {
    "NonMaxSuppression" 10..11: non_max_suppression;
}

/// A box: smallest and largest x and y.
#[derive(Clone, Copy)]
struct BoxCorners {
    x: [f32; 2],
    y: [f32; 2],
}

impl BoxCorners {
    /// Reads `[y1, x1, y2, x2]` of two opposite corners, or `[x, y, width, height]` of the center.
    fn of(numbers: &[f32], is_center: bool) -> BoxCorners {
        let [a, b, c, d] = [0, 1, 2, 3].map(|i| numbers.get(i).copied().unwrap_or(0.0));
        let sorted = |a: f32, b: f32| if a > b { [b, a] } else { [a, b] };
        match is_center {
            true => {
                let (w, h) = (c / 2.0, d / 2.0);
                BoxCorners { x: [a - w, a + w], y: [b - h, b + h] }
            }
            false => BoxCorners { x: sorted(b, d), y: sorted(a, c) },
        }
    }

    fn area(self) -> f32 {
        (self.x[1] - self.x[0]) * (self.y[1] - self.y[0])
    }

    /// Whether the intersection over union is above a threshold, with ONNX Runtime's order of operations.
    fn overlaps(self, other: BoxCorners, threshold: f32) -> bool {
        let side = |a: [f32; 2], b: [f32; 2]| a[1].min(b[1]) - a[0].max(b[0]);
        let (width, height) = (side(self.x, other.x), side(self.y, other.y));
        if width <= 0.0 || height <= 0.0 {
            return false;
        }
        let both = width * height;
        let union = self.area() + other.area() - both;
        both > 0.0 && self.area() > 0.0 && other.area() > 0.0 && union > 0.0 && both / union > threshold
    }
}

/// Returns the selected boxes of a class, in the order of their scores; equal scores in the order of the boxes.
fn selected(boxes: &[BoxCorners], scores: &[f32], limits: &Limits) -> Vec<usize> {
    let is_candidate = |i: &usize| limits.score.is_none_or(|least| scores[*i] > least);
    let mut order: Vec<usize> = (0..boxes.len()).filter(is_candidate).collect();
    order.sort_by(|&a, &b| scores[b].partial_cmp(&scores[a]).unwrap_or(Ordering::Equal));
    let mut kept: Vec<usize> = Vec::new();
    for i in order {
        if kept.len() >= limits.count {
            break;
        }
        if kept.iter().all(|&k| !boxes[i].overlaps(boxes[k], limits.overlap)) {
            kept.push(i);
        }
    }
    kept
}

/// Limits of the selection: boxes per class, overlap and score.
struct Limits {
    count: usize,
    overlap: f32,
    score: Option<f32>,
}

impl Limits {
    fn of(c: &mut NodeCall) -> Result<Limits> {
        let count = if c.has(2) { c.number(2)? } else { 0 };
        let mut float = |i: usize| -> Result<Option<f32>> {
            Ok(if c.has(i) { c.known(i)?.to_f32s().first().copied() } else { None })
        };
        let (overlap, score) = (float(3)?.unwrap_or(0.0), float(4)?);
        Ok(Limits { count: usize::try_from(count).unwrap_or(0), overlap, score })
    }
}

/// `boxes: T[B, N, 4], scores: T[B, C, N] → i64[M, 3]`: batch, class and box of the selected boxes.
fn non_max_suppression(c: &mut NodeCall) -> RuleResult {
    let all = c.known_together(&[0, 1])?;
    let [boxes, scores] = &all[..] else { return Err(broken("boxes or scores are missing")) };
    let is_center = c.is("center_point_box", false)?;
    let ([batch, n, 4], &[samples, classes, count]) = (boxes.shape().dims(), scores.shape().dims()) else {
        return Err(broken(format!("cannot select among boxes {} by scores {}", boxes.ty(), scores.ty())));
    };
    ensure!(*batch == samples && *n == count, broken("boxes and scores have different sizes"));
    if !boxes.dtype().is_float() || !scores.dtype().is_float() {
        return Err(unsupported("boxes and scores must be floats"));
    }
    let limits = Limits::of(c)?;
    let (corners, scores) = (boxes.to_f32s(), scores.to_f32s());
    let corners: Vec<BoxCorners> = corners.chunks(4).map(|four| BoxCorners::of(four, is_center)).collect();
    let mut table = Vec::new();
    for (b, own) in corners.chunks(count.max(1)).enumerate() {
        for class in 0..classes {
            let start = (b * classes + class) * count;
            for i in selected(own, &scores[start..start + count], &limits) {
                table.extend([b as i64, class as i64, i as i64]);
            }
        }
    }
    c.spend(table.len())?;
    output(c.g.constant(Literal::from_slice([table.len() / 3, 3], &table)?))
}

#[cfg(test)]
mod tests {
    use crate::model::{OnnxAttribute, OnnxNode};
    use crate::test_node::{floats, ints, node_error, run_constants};
    use systole_base::Literal;

    fn select(boxes: &Literal, scores: &Literal, limits: [f32; 3], is_center: i64) -> Vec<i64> {
        let node = OnnxNode::new("NonMaxSuppression", ["b", "s", "n", "o", "t"], "y");
        let node = node.with("center_point_box", OnnxAttribute::Int(is_center));
        let (n, o, t) = (ints([1], [limits[0] as i64]), floats([1], [limits[1]]), floats([1], [limits[2]]));
        let y = run_constants(17, node, &[boxes, scores, &n, &o, &t]).remove(0);
        (0..y.ty().elements()).map(|i| y.get(i).as_i64()).collect()
    }

    #[test]
    fn boxes_are_selected_by_score_unless_they_overlap() {
        // Of ONNX's own node tests: the third box has its corners the other way around.
        let boxes = [
            0.0, 0.0, 1.0, 1.0, 0.0, 0.1, 1.0, 1.1, 1.0, 0.9, 0.0, -0.1, 0.0, 10.0, 1.0, 11.0, 0.0, 10.1,
            1.0, 11.1, 0.0, 100.0, 1.0, 101.0,
        ];
        let boxes = Literal::from_slice([1, 6, 4], &boxes.map(|v: f64| v as f32)).unwrap();
        let scores = Literal::from_slice([1, 1, 6], &[0.9f32, 0.75, 0.6, 0.95, 0.5, 0.3]).unwrap();
        assert_eq!(select(&boxes, &scores, [3.0, 0.5, 0.0], 0), [0, 0, 3, 0, 0, 0, 0, 0, 5]);
        assert_eq!(select(&boxes, &scores, [3.0, 0.5, 0.4], 0), [0, 0, 3, 0, 0, 0]);
        assert_eq!(select(&boxes, &scores, [2.0, 0.99, 0.0], 0), [0, 0, 3, 0, 0, 0]);
        assert_eq!(select(&boxes, &scores, [0.0, 0.5, 0.0], 0), [0i64; 0]);
        // Equal scores: the first box wins. The same boxes by center and size.
        let same = Literal::from_slice([1, 1, 6], &[0.5f32; 6]).unwrap();
        assert_eq!(select(&boxes, &same, [9.0, 0.5, 0.0], 0), [0, 0, 0, 0, 0, 3, 0, 0, 5]);
        let centers = [0.5f32, 0.5, 1.0, 1.0, 0.6, 0.5, 1.0, 1.0, 10.5, 0.5, 1.0, 1.0];
        let centers = Literal::from_slice([1, 3, 4], &centers).unwrap();
        let scores = Literal::from_slice([1, 1, 3], &[0.9f32, 0.75, 0.6]).unwrap();
        assert_eq!(select(&centers, &scores, [9.0, 0.5, 0.0], 1), [0, 0, 0, 0, 0, 2]);
        let node = OnnxNode::new("NonMaxSuppression", ["b", "s"], "y");
        let e = node_error(17, node, &[&boxes, &scores]);
        assert!(e.contains("NonMaxSuppression") && e.contains("--input"), "{e}");
    }
}
