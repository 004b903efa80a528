//! Assigns a scale to each tensor: operators that only move or compare integers share one scale, some operators have a
//! fixed scale, others are free.

use crate::calibrate::{TensorRanges, is_float, layer_of};
use crate::quantize_weights::{asymmetric, range_of};
use systole_ir::{Result, ResultExt, err};
use systole_tflite::{ScaleRule, TfliteModel, TfliteOp};

/// Returns scale and zero point of each float tensor that an int8 operator reads or writes.
pub(crate) fn assign(
    model: &TfliteModel,
    ranges: &TensorRanges,
    is_int8: &[bool],
) -> Result<Vec<Option<(f32, i32)>>> {
    let (groups, fixed) = groups(model, is_int8);
    let joint = joint(model, ranges, &groups)?;
    let scale = |i: usize| {
        let root = groups.root(i);
        Ok(match (fixed[root], joint[root]) {
            (Some(fixed), _) => Some(fixed),
            (None, Some(range)) => Some(asymmetric(range).at(|| place(model, i))?),
            (None, None) => None,
        })
    };
    (0..model.tensors.len()).map(scale).collect()
}

/// Extends ranges to tensors without one that share a scale, for partially quantized graphs.
pub(crate) fn spread(
    model: &TfliteModel,
    ranges: &TensorRanges,
    is_int8: &[bool],
) -> Result<Vec<Option<(f32, f32)>>> {
    let (groups, fixed) = groups(model, is_int8);
    let joint = joint(model, ranges, &groups)?;
    let range = |i: usize| {
        let root = groups.root(i);
        let of_fixed = fixed[root].map(|(scale, zero)| {
            let at = |end: i32| scale * (end - zero) as f32;
            (at(-128), at(127))
        });
        let is_value = is_float(model, i) && model.tensors[i].data.is_none();
        of_fixed.or(joint[root]).filter(|_| is_value)
    };
    Ok((0..model.tensors.len()).map(range).collect())
}

type FixedScales = Vec<Option<(f32, i32)>>;

/// Returns the groups of tensors that share a scale, and the fixed scales at their roots.
fn groups(model: &TfliteModel, is_int8: &[bool]) -> (ScaleGroups, FixedScales) {
    let mut groups = ScaleGroups::new(model.tensors.len());
    let mut fixed = vec![None; model.tensors.len()];
    for (o, _) in model.operators.iter().zip(is_int8).filter(|(_, int8)| **int8) {
        let own = o.outputs.first().copied();
        match (o.op.scales(), own) {
            (ScaleRule::Fixed(scale, zero), Some(y)) => fixed[y] = Some((scale, zero)),
            (ScaleRule::Same, Some(y)) => {
                let movable = |&x: &usize| is_float(model, x) && model.tensors[x].data.is_none();
                let inputs: Vec<usize> = o.inputs.iter().flatten().copied().filter(movable).collect();
                for x in inputs.iter().chain(&o.outputs) {
                    // If one of several operands has a fixed scale, it is requantized first.
                    let (a, b) = (groups.root(*x), groups.root(y));
                    if inputs.len() == 1 || fixed[a].is_none() && fixed[b].is_none() {
                        let one = fixed[a].or(fixed[b]);
                        groups.join(a, b);
                        fixed[groups.root(y)] = one;
                    }
                }
            }
            _ => {}
        }
    }
    (groups, fixed)
}

/// Returns the range of each group, at its root.
fn joint(
    model: &TfliteModel,
    ranges: &TensorRanges,
    groups: &ScaleGroups,
) -> Result<Vec<Option<(f32, f32)>>> {
    let mut joint: Vec<Option<(f32, f32)>> = vec![None; model.tensors.len()];
    let masked = masked(model);
    for i in 0..model.tensors.len() {
        let root = groups.root(i);
        // Masked scores lie slightly below the observed minimum. Trained ranges include that already.
        let is_trained = |y: usize| {
            masked[y] && ranges.seen.get(y).copied().flatten().is_some_and(|(low, _)| low > MASKED / 2.0)
        };
        if masked[i] && !is_trained(i) {
            continue;
        }
        let Some((mut low, high)) = own_range(model, ranges, i)? else { continue };
        let hidden: Vec<usize> = (0..masked.len()).filter(|&y| masked[y] && groups.root(y) == root).collect();
        if !hidden.is_empty() && !hidden.into_iter().any(is_trained) {
            low -= BELOW;
        }
        let (l, h) = joint[root].unwrap_or((low, high));
        joint[root] = Some((l.min(low), h.max(high)));
    }
    Ok(joint)
}

/// Value that masks a position before a softmax: the minimum of it and the score.
pub(crate) const MASKED: f32 = -1e9;
/// Distance of masked scores below the minimum score in int8: their softmax weight is at most e⁻⁸ of that score's.
const BELOW: f32 = 8.0;

/// Returns which tensors are partially masked scores.
fn masked(model: &TfliteModel) -> Vec<bool> {
    let mut found = vec![false; model.tensors.len()];
    let hides = |x: usize| {
        let data = model.tensors[x].data.as_ref().and_then(|data| data.as_slice::<f32>().ok());
        data.is_some_and(|values| values.contains(&MASKED))
    };
    for o in model.operators.iter().filter(|o| o.op == TfliteOp::Minimum) {
        if o.inputs.iter().flatten().any(|&x| hides(x)) {
            o.outputs.iter().for_each(|&y| found[y] = true);
        }
    }
    found
}

fn place(model: &TfliteModel, tensor: usize) -> String {
    let name = model.tensors.get(tensor).map_or("", |t| t.name.as_str());
    let kind = if model.inputs.contains(&tensor) { "input" } else { "layer" };
    format!("{kind} {}", layer_of(name))
}

fn own_range(model: &TfliteModel, ranges: &TensorRanges, tensor: usize) -> Result<Option<(f32, f32)>> {
    if !is_float(model, tensor) {
        return Ok(None);
    }
    if model.tensors[tensor].data.is_some() {
        return range_of(&model.tensors[tensor]).map(Some);
    }
    let Some((low, high)) = ranges.chosen.get(tensor).copied().flatten() else { return Ok(None) };
    if !low.is_finite() || !high.is_finite() || low > high {
        let e = err!(Numeric, "invalid range from {low} to {high}");
        return Err(e.at(place(model, tensor)).hint("calibrate again, on samples without NaN"));
    }
    Ok(Some((low, high)))
}

/// Union-find over tensors that share a scale.
struct ScaleGroups(Vec<usize>);

impl ScaleGroups {
    fn new(n: usize) -> ScaleGroups {
        ScaleGroups((0..n).collect())
    }

    fn root(&self, mut at: usize) -> usize {
        while self.0[at] != at {
            at = self.0[at];
        }
        at
    }

    fn join(&mut self, a: usize, b: usize) {
        let (a, b) = (self.root(a), self.root(b));
        self.0[a.max(b)] = a.min(b);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use systole_ir::ErrorKind;
    use systole_ir::{DType, Literal};
    use systole_tflite::{TfliteOperator, TfliteTensor};

    /// x → RESHAPE → a → SOFTMAX → b; x and y → CONCATENATION → c.
    fn model() -> TfliteModel {
        let tensor = |name: &str| TfliteTensor::new(name, [1, 4], DType::F32);
        TfliteModel {
            tensors: ["x", "a/1", "b", "y", "c"].map(tensor).to_vec(),
            operators: vec![
                TfliteOperator::new(TfliteOp::Reshape, [0], [1]),
                TfliteOperator::new(TfliteOp::Softmax, [1], [2]),
                TfliteOperator::new(TfliteOp::Concatenation, [0, 3], [4]),
            ],
            inputs: vec![0, 3],
            outputs: vec![2, 4],
            ..TfliteModel::default()
        }
    }

    fn ranges(chosen: [(f32, f32); 5]) -> TensorRanges {
        let chosen: Vec<_> = chosen.into_iter().map(Some).collect();
        TensorRanges { seen: chosen.clone(), chosen, clipped: vec![0.0; 5], steps: BTreeMap::new() }
    }

    #[test]
    fn tensors_that_are_moved_share_a_scale_and_a_softmax_has_its_own() {
        let ranges = ranges([(-1.0, 1.0), (-2.0, 0.5), (0.0, 0.9), (0.0, 3.1), (-1.0, 2.0)]);
        let scales = assign(&model(), &ranges, &[true; 3]).unwrap();
        // The joint range of x, a, y and c is -2 to 3.1: 255 steps of 0.02.
        let joint = Some((0.02, -28));
        assert_eq!(scales, [joint, joint, Some((1.0 / 256.0, -128)), joint, joint]);
        let spread = spread(&model(), &ranges, &[true; 3]).unwrap();
        let joint = Some((-2.0, 3.1));
        assert_eq!(spread, [joint, joint, Some((0.0, 255.0 / 256.0)), joint, joint]);
        // Without the concatenation in int8, only x and a share a scale.
        let scales = assign(&model(), &ranges, &[true, true, false]).unwrap();
        assert_eq!(scales[0], scales[1]);
        assert_eq!(
            (scales[0], scales[3]),
            (Some((3.0 / 255.0, 42)), Some(((f64::from(3.1f32) / 255.0) as f32, -128)))
        );
    }

    #[test]
    fn fixed_scales_pass_through_one_operand_but_do_not_join_several() {
        let mut model = model();
        // b, whose scale is fixed, is reshaped to d, and concatenated with y to e.
        model.tensors.extend(["d", "e"].map(|name| TfliteTensor::new(name, [1, 4], DType::F32)));
        model.operators.push(TfliteOperator::new(TfliteOp::Reshape, [2], [5]));
        model.operators.push(TfliteOperator::new(TfliteOp::Concatenation, [2, 3], [6]));
        let mut ranges = ranges([(-1.0, 1.0), (-2.0, 0.5), (0.0, 0.9), (0.0, 3.1), (-1.0, 2.0)]);
        ranges.chosen.extend([Some((0.0, 0.9)), Some((0.0, 3.1))]);
        let scales = assign(&model, &ranges, &[true, true, false, true, true]).unwrap();
        let fixed = Some((1.0 / 256.0, -128));
        assert_eq!((scales[2], scales[5]), (fixed, fixed));
        assert_eq!(scales[6], scales[3]);
        assert_eq!(scales[3], Some(((f64::from(3.1f32) / 255.0) as f32, -128)));
    }

    #[test]
    fn constants_and_invalid_ranges() {
        let mut model = model();
        let all = ranges([(-1.0, 1.0), (-2.0, 0.5), (0.0, 0.9), (0.0, 3.1), (-1.0, 2.0)]);
        model.tensors[3] = TfliteTensor::constant("k", Literal::from_slice([1, 2], &[-3.0f32, 0.5]).unwrap());
        model.tensors.push(TfliteTensor::new("ids", [1], DType::I32));
        assert_eq!(own_range(&model, &all, 0).unwrap(), Some((-1.0, 1.0)));
        assert_eq!(own_range(&model, &all, 3).unwrap(), Some((-3.0, 0.5)));
        assert_eq!(own_range(&model, &all, 5).unwrap(), None);
        let invalid = ranges([(2.0, 1.0), (f32::NAN, 0.5), (0.0, f32::INFINITY), (0.0, 0.0), (0.0, 0.0)]);
        for (tensor, place) in [(0, "input x"), (1, "layer a"), (2, "layer b")] {
            let e = own_range(&model, &invalid, tensor).unwrap_err();
            assert_eq!((e.kind(), e.places()), (ErrorKind::Numeric, &[place.to_string()][..]));
        }
    }
}
