//! Fréchet distance (FID) and inception score (IS) from features and class probabilities, in f64.
//!
//! Scores of different feature networks cannot be compared.

use systole_ir::{Error, ErrorKind, Result, err};

/// Maximum number of features; square roots of larger covariances take minutes.
const MOST: usize = 1024;

/// Mean and covariance of image features, accumulated image by image.
///
/// ```
/// use systole_nn::applications::biggan::{FeatureStatistics, frechet_distance};
/// let mut a = FeatureStatistics::new(1)?;
/// let mut b = FeatureStatistics::new(1)?;
/// [0.0, 2.0].iter().for_each(|x| a.add(&[*x]));
/// [3.0, 5.0].iter().for_each(|x| b.add(&[*x]));
/// assert!((frechet_distance(&a, &b)? - 9.0).abs() < 1e-12);   // the same spread, three apart
/// # Ok::<(), systole_ir::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct FeatureStatistics {
    n: usize,
    count: u64,
    mean: Vec<f64>,
    /// Sums of products of deviations from the running mean, row by row.
    products: Vec<f64>,
}

impl FeatureStatistics {
    /// Creates empty statistics of `n` features.
    ///
    /// # Errors
    /// If `n` is 0 or above 1,024.
    pub fn new(n: usize) -> Result<FeatureStatistics> {
        if !(1..=MOST).contains(&n) {
            return Err(err!(Config, "unsupported number of features: {n}")
                .because("the Fréchet distance needs the square root of the features' covariance")
                .hint(format!("use 1 to {MOST} features: end the network with a global average pooling")));
        }
        Ok(FeatureStatistics { n, count: 0, mean: vec![0.0; n], products: vec![0.0; n * n] })
    }

    /// Adds the features of an image; values beyond `n` are ignored.
    pub fn add(&mut self, features: &[f32]) {
        self.count += 1;
        let before: Vec<f64> = features.iter().zip(&self.mean).map(|(x, m)| f64::from(*x) - m).collect();
        for (m, d) in self.mean.iter_mut().zip(&before) {
            *m += d / self.count as f64;
        }
        let after: Vec<f64> = features.iter().zip(&self.mean).map(|(x, m)| f64::from(*x) - m).collect();
        for (row, a) in self.products.chunks_exact_mut(self.n).zip(&before) {
            row.iter_mut().zip(&after).for_each(|(p, b)| *p += a * b);
        }
    }

    /// Number of images in these feature statistics.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Returns the unbiased covariance, row by row.
    fn covariance(&self) -> Vec<f64> {
        let by = self.count.saturating_sub(1).max(1) as f64;
        let n = self.n;
        (0..n * n).map(|i| (self.products[i] + self.products[i % n * n + i / n]) / (2.0 * by)).collect()
    }
}

/// Squared Fréchet distance of two normal distributions: `|μ₁ − μ₂|² + tr(C₁ + C₂ − 2·(C₁C₂)^½)`. Source: Heusel et al.
/// 2017.
///
/// # Errors
/// If the numbers of features differ, there are fewer than two images, or features are not finite.
pub fn frechet_distance(a: &FeatureStatistics, b: &FeatureStatistics) -> Result<f64> {
    let wrong = |what: String| Err(Error::new(ErrorKind::Data, what));
    if a.n != b.n {
        return wrong(format!("cannot compare {} features with {}", a.n, b.n));
    }
    if a.count < 2 || b.count < 2 {
        return wrong("the Fréchet distance needs at least two images of each kind".into());
    }
    let (c1, c2) = (a.covariance(), b.covariance());
    if a.mean.iter().chain(&b.mean).chain(&c1).chain(&c2).any(|x| !x.is_finite()) {
        return wrong("features are not finite".into());
    }
    let n = a.n;
    let apart: f64 = a.mean.iter().zip(&b.mean).map(|(x, y)| (x - y) * (x - y)).sum();
    let trace = |c: &[f64]| (0..n).map(|i| c[i * n + i]).sum::<f64>();
    // C₁C₂ has the eigenvalues of C₁^½ C₂ C₁^½, which is symmetric.
    let root = root(&c1, n);
    let (between, _) = eigen(&product(&product(&root, &c2, n), &root, n), n);
    let shared: f64 = between.iter().map(|v| v.max(0.0).sqrt()).sum();
    Ok(apart + trace(&c1) + trace(&c2) - 2.0 * shared)
}

/// Inception score `exp(mean KL(p(y|x) ‖ p(y)))`: mean and standard deviation over `splits` of the images.
///
/// `probabilities` has N rows of `classes` values. Source: Salimans et al. 2016.
///
/// # Errors
/// If there are fewer images than splits.
pub fn inception_score(probabilities: &[f32], classes: usize, splits: usize) -> Result<(f64, f64)> {
    let rows = probabilities.len() / classes.max(1);
    if splits == 0 || rows < splits {
        return Err(err!(Data, "cannot split {rows} images into {splits}").hint("generate more images"));
    }
    let score = |i: usize| {
        let of = &probabilities[rows * i / splits * classes..rows * (i + 1) / splits * classes];
        let n = (of.len() / classes) as f64;
        let mut marginal = vec![0.0; classes];
        for row in of.chunks_exact(classes) {
            marginal.iter_mut().zip(row).for_each(|(m, p)| *m += f64::from(*p) / n);
        }
        let terms = of.chunks_exact(classes).flat_map(|row| row.iter().zip(&marginal));
        let kl: f64 =
            terms.filter(|(p, _)| **p > 0.0).map(|(p, m)| f64::from(*p) * (f64::from(*p) / m).ln()).sum();
        (kl / n).exp()
    };
    let scores: Vec<f64> = (0..splits).map(score).collect();
    let mean = scores.iter().sum::<f64>() / splits as f64;
    let variance = scores.iter().map(|s| (s - mean) * (s - mean)).sum::<f64>() / splits as f64;
    Ok((mean, variance.sqrt()))
}

/// Square root of a symmetric positive semidefinite matrix; slightly negative eigenvalues count as 0.
fn root(m: &[f64], n: usize) -> Vec<f64> {
    let (values, vectors) = eigen(m, n);
    let roots: Vec<f64> = values.iter().map(|v| v.max(0.0).sqrt()).collect();
    let mut scaled = vectors.clone();
    for row in scaled.chunks_exact_mut(n) {
        row.iter_mut().zip(&roots).for_each(|(x, r)| *x *= r);
    }
    let transposed: Vec<f64> = (0..n * n).map(|i| vectors[i % n * n + i / n]).collect();
    product(&scaled, &transposed, n)
}

fn product(a: &[f64], b: &[f64], n: usize) -> Vec<f64> {
    let mut out = vec![0.0; n * n];
    for (row, of) in out.chunks_exact_mut(n).zip(a.chunks_exact(n)) {
        for (x, line) in of.iter().zip(b.chunks_exact(n)) {
            row.iter_mut().zip(line).for_each(|(o, y)| *o += x * y);
        }
    }
    out
}

/// Eigenvalues and eigenvectors (in columns) of a symmetric matrix, by the Jacobi method.
fn eigen(m: &[f64], n: usize) -> (Vec<f64>, Vec<f64>) {
    let mut a: Vec<f64> = (0..n * n).map(|i| 0.5 * (m[i] + m[i % n * n + i / n])).collect();
    // Rows of `v` are eigenvectors, so that rotations access rows of both matrices.
    let mut v: Vec<f64> = (0..n * n).map(|i| f64::from(u8::from(i % n == i / n))).collect();
    let size: f64 = a.iter().map(|x| x * x).sum();
    for _ in 0..60 {
        let off: f64 = (0..n * n).filter(|i| i % n != i / n).map(|i| a[i] * a[i]).sum();
        if off <= 1e-30 * size {
            break;
        }
        for p in 0..n {
            for q in p + 1..n {
                rotate(&mut a, &mut v, n, p, q);
            }
        }
    }
    let values = (0..n).map(|i| a[i * n + i]).collect();
    (values, (0..n * n).map(|i| v[i % n * n + i / n]).collect())
}

/// Applies the Jacobi rotation that zeros element `p, q` of `a`.
fn rotate(a: &mut [f64], v: &mut [f64], n: usize, p: usize, q: usize) {
    let apq = a[p * n + q];
    if apq == 0.0 {
        return;
    }
    let theta = (a[q * n + q] - a[p * n + p]) / (2.0 * apq);
    let t = theta.signum() / (theta.abs() + (theta * theta + 1.0).sqrt());
    let t = if theta == 0.0 { 1.0 } else { t };
    let c = 1.0 / (t * t + 1.0).sqrt();
    let s = t * c;
    for k in 0..n {
        let (x, y) = (a[p * n + k], a[q * n + k]);
        (a[p * n + k], a[q * n + k]) = (c * x - s * y, s * x + c * y);
        let (x, y) = (v[p * n + k], v[q * n + k]);
        (v[p * n + k], v[q * n + k]) = (c * x - s * y, s * x + c * y);
    }
    for k in 0..n {
        let (x, y) = (a[k * n + p], a[k * n + q]);
        (a[k * n + p], a[k * n + q]) = (c * x - s * y, s * x + c * y);
    }
}
