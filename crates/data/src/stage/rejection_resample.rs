//! `rejection_resample`: randomly drops elements to reach a target class distribution.

use crate::Dataset;
use crate::pipeline::{DatasetStage, ElementCursor, IteratorState, PipelineRun, StageNode, foreign, open};
use crate::sample::Sample;
use crate::stage::delegate::delegate;
use std::sync::Arc;
use systole_base::rng::{RandomStream, hash_name, mix};
use systole_base::{Result, err};

type ClassFn = Arc<dyn Fn(&Sample) -> Result<usize> + Send + Sync>;

impl Dataset {
    /// Drops elements so that class `k` makes up `target[k]` of the rest. `initial` is the original distribution;
    /// without it, it is estimated while running, starting uniform. The kept elements are a pure function of (seed,
    /// epoch, index) and are yielded unchanged (tf.data adds the class).
    pub fn rejection_resample(
        &self,
        class: impl Fn(&Sample) -> Result<usize> + Send + Sync + 'static,
        target: &[f64],
        initial: Option<&[f64]>,
        seed: u64,
    ) -> Dataset {
        let (target, initial) = (target.to_vec(), initial.map(<[f64]>::to_vec));
        self.then(|up| ResampleStage { up, class: Arc::new(class), target, initial, seed })
    }
}

struct ResampleStage {
    up: StageNode,
    class: ClassFn,
    target: Vec<f64>,
    initial: Option<Vec<f64>>,
    seed: u64,
}

impl DatasetStage for ResampleStage {
    delegate!(inputs, fewer, spec);

    fn label(&self) -> String {
        "rejection_resample".into()
    }

    fn stream(&self, run: &PipelineRun) -> Result<Box<dyn ElementCursor>> {
        let fits = self.initial.as_ref().is_none_or(|i| i.len() == self.target.len() && are_shares(i));
        if !are_shares(&self.target) || !fits {
            return Err(err!(Config, "invalid class distributions")
                .at(self.label())
                .because(format!(
                    "the target distribution is {:?}, the initial distribution is {:?}",
                    self.target, self.initial
                ))
                .hint("pass one number for each class, none negative, not all 0"));
        }
        Ok(Box::new(ResampleCursor {
            up: open(&self.up, run)?,
            class: self.class.clone(),
            target: self.target.clone(),
            initial: self.initial.clone(),
            draws: (self.seed, hash_name("rejection_resample") ^ mix(run.epoch())),
            counts: vec![0; self.target.len()],
            taken: 0,
        }))
    }

    fn is_random(&self) -> bool {
        true
    }
}

/// Whether none is negative and not all are 0.
pub(super) fn are_shares(shares: &[f64]) -> bool {
    shares.iter().all(|s| *s >= 0.0 && s.is_finite()) && shares.iter().sum::<f64>() > 0.0
}

struct ResampleCursor {
    up: Box<dyn ElementCursor>,
    class: ClassFn,
    target: Vec<f64>,
    initial: Option<Vec<f64>>,
    draws: (u64, u64),
    /// Number of elements of each class so far.
    counts: Vec<u64>,
    /// Number of elements so far.
    taken: u64,
}

impl ResampleCursor {
    /// Whether to keep an element: with a probability proportional to how underrepresented its class is.
    fn stays(&mut self, sample: &Sample) -> Result<bool> {
        let class = (self.class)(sample)?;
        let Some(count) = self.counts.get_mut(class) else {
            return Err(err!(Data, "class {class} is out of range")
                .because(format!("the target distribution has {} classes", self.target.len()))
                .hint("pass a number for each class"));
        };
        *count += 1;
        let share = |k: usize| match &self.initial {
            Some(initial) => initial[k],
            None => (self.counts[k] + 1) as f64,
        };
        let lack = |k: usize| match share(k) {
            0.0 => 0.0,
            share => self.target[k] / share,
        };
        let most = (0..self.target.len()).map(lack).fold(0.0, f64::max);
        let draw = RandomStream::new(self.draws.0, self.draws.1, self.taken - 1).uniform_f64();
        Ok(draw * most < lack(class))
    }
}

impl ElementCursor for ResampleCursor {
    fn next(&mut self) -> Option<Result<Sample>> {
        loop {
            let item = self.up.next()?;
            self.taken += 1;
            match item.and_then(|sample| Ok((self.stays(&sample)?, sample))) {
                Ok((false, _)) => {}
                Ok((true, sample)) => return Some(Ok(sample)),
                Err(e) => return Some(Err(e)),
            }
        }
    }

    fn save(&self) -> IteratorState {
        let numbers: Vec<u64> = std::iter::once(self.taken).chain(self.counts.iter().copied()).collect();
        IteratorState::at(numbers).over(self.up.save())
    }

    fn restore(&mut self, state: &IteratorState) -> Result<()> {
        match state.numbers.split_first() {
            Some((taken, counts)) if counts.len() == self.counts.len() => {
                self.taken = *taken;
                self.counts.copy_from_slice(counts);
            }
            _ => return Err(foreign()),
        }
        self.up.restore(state.above(0)?)
    }
}

#[cfg(test)]
mod tests {
    use crate::stage::test::{ints, resumes, stream, values};
    use crate::{Dataset, Sample};

    /// One of ten is of class 1.
    fn resampled(d: &Dataset, initial: Option<&[f64]>) -> Dataset {
        let class = |s: &Sample| Ok(usize::from(s.get("x")?.get(0).as_i64() % 10 == 0));
        d.rejection_resample(class, &[0.5, 0.5], initial, 7)
    }

    #[test]
    fn classes_come_as_often_as_wanted() {
        for initial in [None, Some(&[0.9, 0.1][..])] {
            let of = values(&resampled(&ints(4000), initial));
            let rare = of.iter().filter(|v| *v % 10 == 0).count();
            assert!((380..=400).contains(&rare), "nearly all of the rare class stay: {rare}");
            let share = rare as f64 / of.len() as f64;
            assert!((share - 0.5).abs() < 0.05, "{share}");
            assert!(of.is_sorted());
            let again = values(&resampled(&stream(4000), initial).debug());
            assert_eq!(again, of);
            resumes(&resampled(&ints(60), initial).repeat_n(2).batch(3));
            resumes(&resampled(&stream(60), initial).shuffle(4, 1));
        }
        let other = ints(4).rejection_resample(|_| Ok(5), &[1.0, 1.0], None, 1);
        assert!(other.iter().next().unwrap().unwrap_err().to_string().contains("class 5"));
        let wrong = ints(4).rejection_resample(|_| Ok(0), &[1.0, -1.0], None, 1);
        assert!(wrong.iter().next().unwrap().unwrap_err().hint_text().is_some());
    }
}
