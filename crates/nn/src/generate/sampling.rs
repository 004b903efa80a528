//! Token sampling: greedy, temperature, top-k and top-p (nucleus).

use crate::setters::with_defaults;
use systole_ir::{Error, ErrorKind, Result, err, rng};

with_defaults! {
    /// Token sampling options. Scores are divided by `temperature`, then restricted to the `top_k` best, then to the
    /// smallest set whose probabilities sum to `top_p`, in the same order as Hugging Face's `generate`.
    ///
    /// The same seed gives the same tokens: each random draw depends only on the seed and the position.
    ///
    /// ```
    /// use systole_nn::Sampling;
    /// let scores = [1.0, 3.0, 2.0];
    /// let likeliest = Sampling { temperature: 0.0, ..Sampling::default() };
    /// assert_eq!(likeliest.pick(&scores, 0)?, 1);
    /// let of_two = Sampling { top_k: Some(2), ..Sampling::default() };
    /// assert!((0..100).all(|place| of_two.pick(&scores, place).unwrap() != 0));
    /// # Ok::<(), systole_ir::Error>(())
    /// ```
    #[derive(Clone, Debug, PartialEq)]
    pub struct Sampling {
        /// Divisor of the scores; 0 selects the most likely token (greedy). Default: 1.
        pub temperature: f64 = 1.0,
        /// Number of best tokens to sample from; ties with the last are included. Default: all.
        pub top_k: Option<usize> = None,
        /// Samples from the smallest set of best tokens whose probabilities sum to this. Default: all.
        pub top_p: Option<f64> = None,
        /// Random seed. Default: 0.
        pub seed: u64 = 0,
    }
}

impl Sampling {
    /// Validates the sampling options.
    ///
    /// # Errors
    /// If `temperature` is below 0, `top_k` is 0, or `top_p` is not above 0 and at most 1.
    pub fn check(&self) -> Result<()> {
        let refuse = |what: String, hint: &str| Err(Error::new(ErrorKind::Config, what).hint(hint));
        if !(self.temperature >= 0.0 && self.temperature.is_finite()) {
            return refuse(
                format!("`temperature` is {}, expected at least 0", self.temperature),
                "choose 0 for greedy decoding, 1 for the model's own probabilities, or another value above 0",
            );
        }
        if self.top_k == Some(0) {
            return refuse("top_k is 0".into(), "choose top_k of at least 1");
        }
        match self.top_p {
            Some(p) if !(p > 0.0 && p <= 1.0) => {
                refuse(format!("top_p is {p}, expected a probability"), "choose top_p above 0 and at most 1")
            }
            _ => Ok(()),
        }
    }

    /// Samples a token from its scores for position `index` of a text; −∞ excludes a token.
    ///
    /// # Errors
    /// See [`Sampling::check`]; `Data` if a score is NaN, or none is above −∞.
    pub fn pick(&self, scores: &[f32], index: u64) -> Result<u32> {
        self.check()?;
        let best = best(scores)?;
        if self.temperature == 0.0 {
            return Ok(best as u32);
        }
        let kept = self.kept(scores, f64::from(scores.get(best).copied().unwrap_or_default()));
        let total: f64 = kept.iter().map(|(_, p)| p).sum();
        let mut draws = rng::RandomStream::new(self.seed, rng::hash_name("generate"), index);
        let mut rest = draws.uniform_f64() * total;
        for (id, p) in &kept {
            rest -= p;
            if rest < 0.0 {
                return Ok(*id as u32);
            }
        }
        Ok(kept.last().map_or(best, |(id, _)| *id) as u32)
    }

    /// Returns the tokens to sample from, with values proportional to their probabilities.
    fn kept(&self, scores: &[f32], most: f64) -> Vec<(usize, f64)> {
        let weight = |s: f32| ((f64::from(s) - most) / self.temperature).exp();
        let mut kept: Vec<(usize, f64)> = scores
            .iter()
            .enumerate()
            .filter(|(_, s)| **s > f32::NEG_INFINITY)
            .map(|(id, s)| (id, weight(*s)))
            .collect();
        if let Some(k) = self.top_k.filter(|k| *k < kept.len()) {
            let mut weights: Vec<f64> = kept.iter().map(|(_, w)| *w).collect();
            let (_, least, _) = weights.select_nth_unstable_by(k - 1, |a, b| b.total_cmp(a));
            let least = *least;
            kept.retain(|(_, w)| *w >= least);
        }
        if let Some(p) = self.top_p.filter(|p| *p < 1.0) {
            kept.sort_by(|a, b| b.1.total_cmp(&a.1));
            let total: f64 = kept.iter().map(|(_, w)| w).sum();
            // From the least likely on: drops tokens whose probabilities sum to at most 1 − p.
            let mut sum = 0.0;
            while let [_, .., (_, w)] = kept.as_slice() {
                sum += w / total;
                if sum > 1.0 - p {
                    break;
                }
                kept.pop();
            }
        }
        kept
    }
}

/// Returns the first token with the highest score.
fn best(scores: &[f32]) -> Result<usize> {
    let is_no_number = scores.iter().any(|s| s.is_nan() || *s == f32::INFINITY);
    let mut best: Option<(usize, f32)> = None;
    for (id, s) in scores.iter().enumerate().filter(|(_, s)| **s > f32::NEG_INFINITY) {
        if best.is_none_or(|(_, most)| *s > most) {
            best = Some((id, *s));
        }
    }
    match best.filter(|_| !is_no_number) {
        Some((id, _)) => Ok(id),
        None => Err(err!(Data, "the model's token scores are NaN or all −∞")
            .because("training diverged, or the weights are damaged")
            .hint("train again with a smaller learning rate")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use systole_testing::assert_error;

    fn ids(sampling: &Sampling, scores: &[f32]) -> Vec<usize> {
        let mut ids: Vec<usize> = sampling.kept(scores, 0.0).into_iter().map(|(id, _)| id).collect();
        ids.sort_unstable();
        ids
    }

    #[test]
    fn the_order_is_temperature_then_the_best_k_then_the_probable() {
        // Probabilities 0.4, 0.3, 0.2, 0.1 at temperature 1.
        let scores: Vec<f32> = [0.2f32, 0.4, 0.1, 0.3].iter().map(|p| p.ln()).collect();
        let with = |temperature: f64, top_k, top_p| Sampling { temperature, top_k, top_p, seed: 0 };
        assert_eq!(ids(&with(1.0, None, Some(0.65)), &scores), [1, 3]);
        assert_eq!(ids(&with(1.0, None, Some(0.75)), &scores), [0, 1, 3]);
        // Of the best three the first has 0.44: alone it is enough for 0.4.
        assert_eq!(ids(&with(1.0, Some(3), Some(0.4)), &scores), [1]);
        // Cold: the first has 0.53 of all.
        assert_eq!(ids(&with(0.5, None, Some(0.5)), &scores), [1]);
        assert_eq!(ids(&with(1.0, Some(2), None), &[1.0, 2.0, 1.0, 0.0]), [0, 1, 2], "equals stay");
        assert_eq!(ids(&with(1.0, None, Some(1e-9)), &scores), [1], "one always stays");
    }

    #[test]
    fn draws_follow_the_probabilities_and_the_seed() {
        let scores = [0.1f32.ln(), 0.6f32.ln(), 0.3f32.ln(), f32::NEG_INFINITY];
        let count = |seed| {
            let mut counts = [0usize; 4];
            let sampling = Sampling { seed, ..Sampling::default() };
            (0..20_000).for_each(|i| counts[sampling.pick(&scores, i).unwrap() as usize] += 1);
            counts
        };
        let counts = count(1);
        assert_eq!(counts, count(1));
        assert_ne!(counts, count(2));
        for (n, p) in counts.into_iter().zip([0.1, 0.6, 0.3, 0.0]) {
            assert!((n as f64 / 20_000.0 - p).abs() < 0.015, "{counts:?}");
        }
    }

    #[test]
    fn numbers_that_make_no_sense_are_refused() {
        let refused = |s: Sampling| s.pick(&[0.0], 0).unwrap_err().to_string();
        assert!(refused(Sampling { temperature: -1.0, ..Default::default() }).contains("`temperature`"));
        assert!(refused(Sampling { top_k: Some(0), ..Default::default() }).contains("top_k"));
        assert!(refused(Sampling { top_p: Some(1.5), ..Default::default() }).contains("1.5"));
        for scores in [vec![], vec![f32::NAN, 1.0], vec![f32::NEG_INFINITY]] {
            let e = Sampling::default().pick(&scores, 0).unwrap_err();
            assert_error(&e, ErrorKind::Data, &["NaN"]);
            assert!(e.hint_text().is_some(), "{e}");
        }
    }
}
