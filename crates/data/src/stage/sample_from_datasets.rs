//! `sample_from_datasets` and `choose_from_datasets`: take each element from one of several datasets.
//!
//! The dataset is chosen by random weights, or by another dataset.

use super::rejection_resample::are_shares;
use crate::Dataset;
use crate::pipeline::{
    Cardinality, DatasetStage, ElementCursor, IteratorState, PipelineRun, StageNode, foreign, open,
};
use crate::sample::{ElementSpec, Sample};
use systole_base::rng::{RandomStream, hash_name, mix};
use systole_base::{Error, ErrorKind, Result, ensure, err};

impl Dataset {
    /// Takes each element from a random dataset with these weights: a pure function of (seed, epoch, index).
    /// `stop_on_empty`: the first dataset that ends ends the result; otherwise the others continue.
    pub fn sample_from_datasets(
        datasets: impl IntoIterator<Item = Dataset>,
        weights: &[f64],
        seed: u64,
        stop_on_empty: bool,
    ) -> Dataset {
        let by = SelectionRule::Weights { weights: weights.to_vec(), seed };
        Dataset::new(SelectStage {
            up: datasets.into_iter().map(Dataset::into_node).collect(),
            by,
            stop_on_empty,
        })
    }

    /// Takes each element from the dataset whose index is the next element of `choice` (its first field, an integer).
    pub fn choose_from_datasets(
        datasets: impl IntoIterator<Item = Dataset>,
        choice: &Dataset,
        stop_on_empty: bool,
    ) -> Dataset {
        let by = SelectionRule::Choice(choice.clone().into_node());
        Dataset::new(SelectStage {
            up: datasets.into_iter().map(Dataset::into_node).collect(),
            by,
            stop_on_empty,
        })
    }
}

enum SelectionRule {
    Weights { weights: Vec<f64>, seed: u64 },
    Choice(StageNode),
}

struct SelectStage {
    up: Vec<StageNode>,
    by: SelectionRule,
    stop_on_empty: bool,
}

impl DatasetStage for SelectStage {
    fn label(&self) -> String {
        match self.by {
            SelectionRule::Weights { .. } => "sample_from_datasets".into(),
            SelectionRule::Choice(_) => "choose_from_datasets".into(),
        }
    }

    fn inputs(&self) -> Vec<StageNode> {
        let choice = if let SelectionRule::Choice(node) = &self.by { Some(node.clone()) } else { None };
        self.up.iter().cloned().chain(choice).collect()
    }

    fn cardinality(&self) -> Cardinality {
        Cardinality::Unknown
    }

    fn stream(&self, run: &PipelineRun) -> Result<Box<dyn ElementCursor>> {
        let wrong = |what: &str| {
            Error::new(ErrorKind::Config, what)
                .at(self.label())
                .hint("pass one weight for each dataset, none negative, not all 0")
        };
        ensure!(!self.up.is_empty(), wrong("the list of datasets is empty"));
        let turns = match &self.by {
            SelectionRule::Weights { weights, seed } => {
                if weights.len() != self.up.len() || !are_shares(weights) {
                    return Err(wrong("the weights do not match the datasets"));
                }
                SelectionSequence::Drawn {
                    weights: weights.clone(),
                    seed: *seed,
                    epoch: run.epoch(),
                    count: 0,
                }
            }
            SelectionRule::Choice(node) => SelectionSequence::Told(open(node, run)?),
        };
        let up = self.up.iter().map(|n| open(n, run)).collect::<Result<Vec<_>>>()?;
        Ok(Box::new(SelectCursor {
            ended: vec![false; up.len()],
            up,
            turns,
            stop_on_empty: self.stop_on_empty,
        }))
    }

    fn spec(&self) -> Result<ElementSpec> {
        self.up
            .first()
            .map_or_else(|| Err(err!(Config, "the list of datasets to sample from is empty")), |n| n.spec())
    }

    fn is_random(&self) -> bool {
        matches!(self.by, SelectionRule::Weights { .. }) || self.inputs().iter().any(|n| n.is_random())
    }
}

/// Sequence of dataset choices.
enum SelectionSequence {
    Drawn { weights: Vec<f64>, seed: u64, epoch: u64, count: u64 },
    Told(Box<dyn ElementCursor>),
}

impl SelectionSequence {
    /// Returns the next choice; `None` at the end.
    fn next(&mut self, ended: &[bool]) -> Option<Result<usize>> {
        match self {
            SelectionSequence::Drawn { weights, seed, epoch, count } => {
                let left = |i: usize| if ended[i] { 0.0 } else { weights[i] };
                let all: f64 = (0..weights.len()).map(left).sum();
                if all <= 0.0 {
                    return None;
                }
                let stream = hash_name("sample_from_datasets") ^ mix(*epoch);
                let mut at = RandomStream::new(*seed, stream, *count).uniform_f64() * all;
                *count += 1;
                let last = (0..weights.len()).rfind(|&i| left(i) > 0.0)?;
                for i in 0..last {
                    at -= left(i);
                    if at < 0.0 {
                        return Some(Ok(i));
                    }
                }
                Some(Ok(last))
            }
            SelectionSequence::Told(choice) => Some(choice.next()?.and_then(|s| index(&s, ended.len()))),
        }
    }
}

fn index(sample: &Sample, n: usize) -> Result<usize> {
    let (name, x) = sample.fields().next().ok_or_else(foreign)?;
    let x = x.get()?;
    let value = if x.ty().elements() == 1 { x.get(0).as_i64() } else { -1 };
    usize::try_from(value).ok().filter(|&i| i < n).ok_or_else(|| {
        err!(Data, "invalid dataset index {value} in {name}: there are {n} datasets")
            .because("a choice is one integer from 0 to the number of datasets minus 1")
    })
}

struct SelectCursor {
    up: Vec<Box<dyn ElementCursor>>,
    turns: SelectionSequence,
    ended: Vec<bool>,
    stop_on_empty: bool,
}

impl ElementCursor for SelectCursor {
    fn next(&mut self) -> Option<Result<Sample>> {
        loop {
            if self.stop_on_empty && self.ended.contains(&true) {
                return None;
            }
            let at = match self.turns.next(&self.ended)? {
                Ok(at) => at,
                Err(e) => return Some(Err(e)),
            };
            if !self.ended[at] {
                match self.up[at].next() {
                    Some(item) => return Some(item),
                    None => self.ended[at] = true,
                }
            }
        }
    }

    fn save(&self) -> IteratorState {
        let mut saved = IteratorState::at(self.ended.iter().map(|&e| e as u64).collect::<Vec<_>>());
        for up in &self.up {
            saved = saved.over(up.save());
        }
        saved.over(match &self.turns {
            SelectionSequence::Drawn { count, .. } => IteratorState::at([*count]),
            SelectionSequence::Told(choice) => choice.save(),
        })
    }

    fn restore(&mut self, state: &IteratorState) -> Result<()> {
        for (i, up) in self.up.iter_mut().enumerate() {
            self.ended[i] = state.number(i)? == 1;
            up.restore(state.above(i)?)?;
        }
        let turns = state.above(self.up.len())?;
        match &mut self.turns {
            SelectionSequence::Drawn { count, .. } => *count = turns.number(0)?,
            SelectionSequence::Told(choice) => choice.restore(turns)?,
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stage::test::{ints, resumes, stream, values};
    use systole_base::Literal;

    fn choice() -> Dataset {
        let order = [0i64, 1, 2, 1, 1, 0, 2, 0, 0, 2];
        Dataset::from_tensor_slices([("c", Literal::from_slice([10], &order).unwrap())]).unwrap()
    }

    #[test]
    fn choices_are_tensorflows() {
        let three = || [ints(3), ints(12).skip(10), ints(25).skip(20)];
        let d = Dataset::choose_from_datasets(three(), &choice(), false);
        assert_eq!(values(&d), [0, 10, 20, 11, 1, 21, 2, 22]);
        resumes(&d.repeat_n(2));
        let d = Dataset::choose_from_datasets(three(), &choice(), true);
        assert_eq!(values(&d), [0, 10, 20, 11]);
        let wrong = Dataset::choose_from_datasets([ints(3)], &choice(), false);
        assert!(wrong.iter().nth(1).unwrap().unwrap_err().to_string().contains("index 1"));
    }

    #[test]
    fn draws_follow_the_weights() {
        let two = || [ints(1).repeat(), ints(2).skip(1).repeat()];
        let d = Dataset::sample_from_datasets(two(), &[1.0, 3.0], 5, true);
        let ones: i64 = crate::stage::test::values_of(d.iter().take(4000)).iter().sum();
        assert!((2850..3150).contains(&ones), "{ones}");
        let short = |stop| Dataset::sample_from_datasets([stream(3), ints(6)], &[0.5, 0.5], 1, stop);
        assert_eq!(values(&short(false)).len(), 9);
        assert!(values(&short(true)).len() < 9);
        resumes(&short(false).repeat_n(2));
        resumes(&short(true).batch(2));
        assert!(short(false).is_random_for_test());
        for weights in [&[1.0][..], &[0.0, 0.0], &[-1.0, 2.0], &[f64::NAN, 1.0]] {
            assert!(Dataset::sample_from_datasets(two(), weights, 1, true).iter().next().unwrap().is_err());
        }
    }

    impl Dataset {
        fn is_random_for_test(&self) -> bool {
            self.clone().into_node().is_random()
        }
    }
}
