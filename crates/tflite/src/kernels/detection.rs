//! NON_MAX_SUPPRESSION_V4 and V5: greedy choice of boxes that overlap little.

use super::call::OperatorCall;
use super::op_row::operators;
use crate::model::broken;
use systole_base::{Literal, Result, ensure};

operators! {
    NonMaxSuppressionV4 "NON_MAX_SUPPRESSION_V4" 120; options 95 []; versions 1 1; NoInt8; |call| {
        let Chosen { indices, valid, .. } = suppress(call, 0.0)?;
        Ok(vec![indices, valid])
    }
    NonMaxSuppressionV5 "NON_MAX_SUPPRESSION_V5" 121; options 96 []; versions 1 1; NoInt8; |call| {
        let Chosen { indices, scores, valid } = suppress(call, number(call, 5)?)?;
        Ok(vec![indices, scores, valid])
    }
}

/// Chosen boxes, filled up with 0, and their number.
struct Chosen {
    indices: Literal,
    scores: Literal,
    valid: Literal,
}

fn number(call: &OperatorCall, n: usize) -> Result<f32> {
    let x = call.input(n)?;
    ensure!(x.ty().elements() == 1, broken(format!("operand {n} is {}, expected a number", x.ty())));
    Ok(x.value.get(0).as_f64() as f32)
}

/// Returns the area of the intersection of two boxes, divided by that of their union.
fn overlap(a: &[f32], b: &[f32]) -> f32 {
    let ends = |x: &[f32], d: usize| (x[d].min(x[d + 2]), x[d].max(x[d + 2]));
    let area = |x: &[f32]| (x[2] - x[0]).abs() * (x[3] - x[1]).abs();
    let (own, other) = (area(a), area(b));
    if own <= 0.0 || other <= 0.0 {
        return 0.0;
    }
    let side = |d: usize| {
        let ((a0, a1), (b0, b1)) = (ends(a, d), ends(b, d));
        (a1.min(b1) - a0.max(b0)).max(0.0)
    };
    let common = side(0) * side(1);
    common / (own + other - common)
}

/// A box that may be chosen.
struct Candidate {
    index: usize,
    score: f32,
    /// Number of chosen boxes that it was compared with.
    compared: usize,
}

/// Chooses boxes `[N, 4]` by scores `[N]`; with `sigma`, overlapping boxes lose score instead (soft NMS).
fn suppress(call: &OperatorCall, sigma: f32) -> Result<Chosen> {
    let (boxes, scores) = (call.input(0)?, call.input(1)?);
    let [n, four] = boxes.of_rank::<2>()?;
    ensure!(four == 4 && scores.dims() == [n], broken(format!("{} are not boxes", boxes.ty())));
    let (boxes, scores) = (boxes.elements::<f32>()?, scores.elements::<f32>()?);
    let most = call.check_output(&[number(call, 2)?.max(0.0) as usize])?;
    let (limit, least) = (number(call, 3)?, number(call, 4)?);
    let mut waiting: Vec<Candidate> = (0..n)
        .filter(|&i| scores[i] > least)
        .map(|index| Candidate { index, score: scores[index], compared: 0 })
        .collect();
    // The best is last; of equal scores the first.
    let order = |a: &Candidate, b: &Candidate| a.score.total_cmp(&b.score).then(b.index.cmp(&a.index));
    waiting.sort_by(order);
    let mut chosen: Vec<Candidate> = Vec::new();
    while let Some(mut next) = waiting.pop().filter(|_| chosen.len() < most) {
        let before = next.score;
        let own = |i: usize| &boxes[4 * i..4 * i + 4];
        let mut is_dropped = false;
        for other in chosen[next.compared..].iter().rev() {
            let overlap = overlap(own(next.index), own(other.index));
            if overlap >= limit {
                is_dropped = true;
                break;
            }
            if sigma > 0.0 {
                next.score *= (-0.5 * overlap * overlap / sigma).exp();
            }
            if next.score <= least {
                is_dropped = true;
                break;
            }
        }
        next.compared = chosen.len();
        if is_dropped {
            continue;
        }
        if next.score == before {
            chosen.push(next);
        } else {
            let at = waiting.partition_point(|other| order(other, &next).is_lt());
            waiting.insert(at, next);
        }
    }
    let (mut indices, mut values) = (vec![0i32; most], vec![0f32; most]);
    for (slot, (index, value)) in chosen.iter().zip(indices.iter_mut().zip(&mut values)) {
        (*index, *value) = (slot.index as i32, slot.score);
    }
    Ok(Chosen {
        indices: Literal::from_slice([most], &indices)?,
        scores: Literal::from_slice([most], &values)?,
        valid: Literal::from_slice([], &[chosen.len() as i32])?,
    })
}
