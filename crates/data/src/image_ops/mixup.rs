//! mixup and CutMix: mix the images of a batch in pairs, and their labels in the same proportion.
//!
//! In `mixup` and `cutmix` row i is paired with row n - 1 - i, so shuffle before batching; [`mixup_each`] pairs
//! randomly. Zhang and others, "mixup: beyond empirical risk minimization", 2017; Yun and others, "CutMix", 2019.
//! Labels must be f32 vectors (one_hot).

use super::augment::beta;
use crate::Sample;
use crate::host_array::bad;
use systole_base::rng::RandomStream;
use systole_base::{DType, Literal, Result};

/// Applies mixup to a batch: blends row i with row n − 1 − i, t · own + (1 − t) · partner. One t from Beta(alpha, alpha)
/// serves the whole batch. `image: f32[n, …]`, `label: f32[n, classes]`.
///
/// # Errors
/// If a field is missing or not f32, or the numbers of rows differ.
pub fn mixup(batch: Sample, image: &str, label: &str, alpha: f64, rng: &mut RandomStream) -> Result<Sample> {
    let (x, y) = (rows(&batch, image)?, rows(&batch, label)?);
    let t = draw(alpha, rng)?;
    let (x, y) = (blend(x, t)?, blend(y, t)?);
    batch.with(image, x).with(label, y).check()
}

/// Applies fastai's `MixUp`: each row of `image: f32[n, …], label: f32[n, classes]` becomes `t · own + (1 - t) ·
/// partner's`, with its own t from Beta(alpha, alpha), or 1 - t if that is greater, and a random permutation of
/// partners.
///
/// # Errors
/// See [`mixup`].
pub fn mixup_each(
    batch: Sample,
    image: &str,
    label: &str,
    alpha: f64,
    rng: &mut RandomStream,
) -> Result<Sample> {
    let (x, y) = (rows(&batch, image)?, rows(&batch, label)?);
    let n = x.shape()[0];
    let mut pairs = Vec::with_capacity(n);
    let mut order: Vec<usize> = (0..n).collect();
    for i in (1..n).rev() {
        order.swap(i, rng.below(i as u64 + 1) as usize);
    }
    for partner in order {
        let t = draw(alpha, rng)?;
        pairs.push((partner, t.max(1.0 - t)));
    }
    let (x, y) = (blend_each(x, &pairs)?, blend_each(y, &pairs)?);
    batch.with(image, x).with(label, y).check()
}

/// Applies CutMix: in `image: T[n, H, W, C]` a rectangle of each image is its partner's; `label: f32[n, classes]` is
/// mixed by area.
///
/// # Errors
/// Like [`mixup`]; images may have any type.
pub fn cutmix(batch: Sample, image: &str, label: &str, alpha: f64, rng: &mut RandomStream) -> Result<Sample> {
    let (x, y) = (batch.get(image)?.clone(), rows(&batch, label)?);
    let &[n, h, w, c] = x.shape().dims() else {
        return Err(bad(
            format!("cutmix does not support {}", x.ty()),
            "it requires images [n, height, width, channels]",
        ));
    };
    let side = (1.0 - draw(alpha, rng)?).sqrt();
    let span = |size: usize, rng: &mut RandomStream| {
        let half = side * size as f64 / 2.0;
        let middle = rng.uniform_f64() * size as f64;
        ((middle - half).max(0.0) as usize, ((middle + half) as usize).min(size))
    };
    let ((top, bottom), (left, right)) = (span(h, rng), span(w, rng));
    let cut = (bottom - top) * (right - left);
    let pixel = c * x.dtype().size();
    let mut out = x.clone();
    for i in 0..n {
        for row in top..bottom {
            let place = |i: usize| ((i * h + row) * w + left) * pixel;
            let len = (right - left) * pixel;
            out.bytes_mut()[place(i)..][..len].copy_from_slice(&x.bytes()[place(n - 1 - i)..][..len]);
        }
    }
    let own = 1.0 - cut as f64 / (h * w).max(1) as f64;
    let y = blend(y, own)?;
    batch.with(image, out).with(label, y).check()
}

fn draw(alpha: f64, rng: &mut RandomStream) -> Result<f64> {
    if alpha > 0.0 && alpha.is_finite() {
        return Ok(beta(alpha, rng));
    }
    Err(bad(format!("invalid alpha {alpha} for mixing"), "it must be a positive number").hint("try 0.2"))
}

fn rows<'a>(batch: &'a Sample, name: &str) -> Result<&'a Literal> {
    let x = batch.get(name)?;
    if x.dtype() == DType::F32 && x.ty().rank() > 0 {
        return Ok(x);
    }
    Err(bad(format!("cannot mix {name}: {}", x.ty()), "mixing requires f32 with one row per element")
        .hint("cast images to f32 and convert labels to vectors with one_hot, before batch"))
}

fn blend(x: &Literal, own: f64) -> Result<Literal> {
    let n = x.shape()[0];
    blend_each(x, &(0..n).map(|i| (n - 1 - i, own)).collect::<Vec<_>>())
}

/// Mixes each row with the given row; the number is the weight of the row itself.
fn blend_each(x: &Literal, pairs: &[(usize, f64)]) -> Result<Literal> {
    let n = x.shape()[0];
    if n != pairs.len() {
        return Err(bad(
            format!("cannot mix {n} rows with {}", pairs.len()),
            "images and labels must have equal numbers of rows",
        ));
    }
    let mut out = x.clone();
    let row = x.ty().elements() / n.max(1);
    let from = x.as_slice::<f32>()?;
    for (to, (partner, own)) in out.as_mut_slice::<f32>()?.chunks_exact_mut(row.max(1)).zip(pairs) {
        let (partner, t) = (&from[partner * row..][..row], *own as f32);
        to.iter_mut().zip(partner).for_each(|(o, p)| *o = t * *o + (1.0 - t) * p);
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use systole_base::rng::hash_name;

    fn batch() -> Sample {
        let images: Vec<f32> = (0..3).flat_map(|i| vec![i as f32; 16]).collect();
        let labels = [1.0f32, 0., 0., 0., 1., 0., 0., 0., 1.];
        Sample::new([
            ("image", Literal::from_slice([3, 4, 4, 1], &images).unwrap()),
            ("label", Literal::from_slice([3, 3], &labels).unwrap()),
        ])
    }

    #[test]
    fn labels_keep_the_proportion_of_the_pictures() {
        for i in 0..50 {
            for cut in [false, true] {
                let mut rng = RandomStream::new(1, hash_name("test"), i);
                let mix = if cut { cutmix } else { mixup };
                let out = mix(batch(), "image", "label", 1.0, &mut rng).unwrap();
                let (x, y) = (out.get("image").unwrap().to_f32s(), out.get("label").unwrap().to_f32s());
                // Row 0 is 0 and its partner 2, so its mean is twice the partner's weight.
                let share = x[..16].iter().sum::<f32>() / 32.0;
                assert!((y[2] - share).abs() < 1e-5 && (y[0] - (1.0 - share)).abs() < 1e-5, "{cut} {i}");
                assert!(x[16..32].iter().all(|&v| (v - 1.0).abs() < 1e-6), "the middle is its own partner");
            }
        }
    }

    #[test]
    fn each_row_has_a_share_and_a_partner_of_its_own() {
        let mut shares = Vec::new();
        for i in 0..50 {
            let mut rng = RandomStream::new(1, hash_name("each"), i);
            let out = mixup_each(batch(), "image", "label", 0.4, &mut rng).unwrap();
            let (x, y) = (out.get("image").unwrap().to_f32s(), out.get("label").unwrap().to_f32s());
            for row in 0..3 {
                let mean = (0..3).map(|c| c as f32 * y[3 * row + c]).sum::<f32>();
                assert!((x[16 * row] - mean).abs() < 1e-5, "pixels and labels are mixed alike");
                assert!(y[3 * row + row] >= 0.5 - 1e-6, "at least half is its own");
                shares.push(y[3 * row + row]);
            }
        }
        let own = shares.iter().filter(|s| **s < 0.999).count();
        assert!(own > 40 && shares.windows(2).any(|w| w[0] != w[1]), "{shares:?}");
    }

    #[test]
    fn what_cannot_be_mixed_is_named() {
        let mut rng = RandomStream::new(1, 1, 1);
        let integers = batch().map("label", |x| x.cast(DType::I32));
        assert!(
            mixup(integers, "image", "label", 0.2, &mut rng).unwrap_err().to_string().contains("one_hot")
        );
        assert!(mixup(batch(), "image", "label", 0.0, &mut rng).is_err());
        assert!(cutmix(batch().map("image", |x| x.flatten()), "image", "label", 1.0, &mut rng).is_err());
    }
}
