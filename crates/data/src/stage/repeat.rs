//! `repeat`: repeats the upstream stages; each round is their next epoch.

use crate::Dataset;
use crate::pipeline::{
    Cardinality, DatasetStage, ElementCursor, IteratorState, PipelineRun, RandomAccess, StageNode, access,
    foreign, open,
};
use crate::sample::Sample;
use crate::stage::delegate::delegate;
use systole_base::{Result, ensure};

impl Dataset {
    /// Repeats the dataset endlessly. Each round is the next epoch of the upstream stages.
    pub fn repeat(&self) -> Dataset {
        self.then(|up| RepeatStage { up, count: None })
    }

    /// Repeats the dataset `count` times; each round is the next epoch of the upstream stages.
    pub fn repeat_n(&self, count: u64) -> Dataset {
        self.then(|up| RepeatStage { up, count: Some(count) })
    }
}

pub(crate) struct RepeatStage {
    pub up: StageNode,
    /// Number of rounds; `None`: endless.
    pub count: Option<u64>,
}

impl RepeatStage {
    /// Returns the first upstream epoch of an epoch of this stage.
    fn first_round(&self, run: &PipelineRun) -> PipelineRun {
        run.at_epoch(run.epoch().saturating_mul(self.count.unwrap_or(1)))
    }
}

impl DatasetStage for RepeatStage {
    delegate!(inputs, spec);

    fn label(&self) -> String {
        match self.count {
            Some(n) => format!("repeat_n({n})"),
            None => "repeat".into(),
        }
    }

    fn cardinality(&self) -> Cardinality {
        match (self.up.cardinality(), self.count) {
            (Cardinality::Finite(0), _) | (_, Some(0)) => Cardinality::Finite(0),
            (Cardinality::Finite(n), Some(k)) => Cardinality::Finite(n.saturating_mul(k)),
            (up, Some(_)) => up,
            // As in tf.data; the input may still turn out to be empty.
            (_, None) => Cardinality::Infinite,
        }
    }

    fn access(&self, run: &PipelineRun) -> Result<Option<Box<dyn RandomAccess>>> {
        let base = self.first_round(run);
        let Some(up) = access(&self.up, &base)? else { return Ok(None) };
        let Some(n) = up.len().filter(|&n| n > 0) else { return Ok(Some(up)) };
        let len = self.count.map(|k| n.saturating_mul(k));
        Ok(Some(Box::new(RepeatAccess { node: self.up.clone(), up, base, round: 0, n, len })))
    }

    fn stream(&self, run: &PipelineRun) -> Result<Box<dyn ElementCursor>> {
        let base = self.first_round(run);
        Ok(Box::new(RepeatCursor {
            up: open(&self.up, &base)?,
            node: self.up.clone(),
            base,
            round: 0,
            rounds: self.count.unwrap_or(u64::MAX),
            at: 0,
        }))
    }
}

/// Returns the run of a later round.
fn later(base: &PipelineRun, rounds: u64) -> PipelineRun {
    base.at_epoch(base.epoch().saturating_add(rounds))
}

struct RepeatAccess {
    node: StageNode,
    up: Box<dyn RandomAccess>,
    base: PipelineRun,
    round: u64,
    n: u64,
    len: Option<u64>,
}

impl RepeatAccess {
    fn go_to(&mut self, round: u64) -> Result<()> {
        if round != self.round {
            if let Some(up) = access(&self.node, &later(&self.base, round))? {
                self.up = up;
            }
            self.round = round;
        }
        Ok(())
    }
}

impl RandomAccess for RepeatAccess {
    fn len(&self) -> Option<u64> {
        self.len
    }

    fn get(&mut self, index: u64) -> Result<Sample> {
        self.go_to(index / self.n)?;
        self.up.get(index % self.n)
    }

    /// Only for elements of one round.
    fn gather(&mut self, indices: &[u64]) -> Option<Result<Sample>> {
        let round = indices.first()? / self.n;
        if indices.iter().any(|i| i / self.n != round) {
            return None;
        }
        match self.go_to(round) {
            Ok(()) => self.up.gather(&indices.iter().map(|i| i % self.n).collect::<Vec<_>>()),
            Err(e) => Some(Err(e)),
        }
    }
}

struct RepeatCursor {
    node: StageNode,
    up: Box<dyn ElementCursor>,
    base: PipelineRun,
    round: u64,
    rounds: u64,
    /// Number of elements of this round so far.
    at: u64,
}

impl RepeatCursor {
    fn go_to(&mut self, round: u64) -> Result<()> {
        self.round = round;
        self.at = 0;
        if round < self.rounds {
            self.up = open(&self.node, &later(&self.base, round))?;
        }
        Ok(())
    }
}

impl ElementCursor for RepeatCursor {
    fn next(&mut self) -> Option<Result<Sample>> {
        while self.round < self.rounds {
            if let Some(item) = self.up.next() {
                self.at += 1;
                return Some(item);
            }
            if self.at == 0 {
                // An empty round: the next would be empty too, and the search would never end.
                self.rounds = 0;
            } else if let Err(e) = self.go_to(self.round + 1) {
                self.rounds = 0;
                return Some(Err(e));
            }
        }
        None
    }

    fn skip(&mut self, n: u64) -> u64 {
        let Cardinality::Finite(size @ 1..) = self.node.cardinality() else {
            return (0..n).take_while(|_| self.next().is_some()).count() as u64;
        };
        let done = self.round.saturating_mul(size) + self.at;
        let target = done.saturating_add(n).min(self.rounds.saturating_mul(size));
        if target / size != self.round && self.go_to(target / size).is_err() {
            return 0;
        }
        if self.round < self.rounds {
            self.at += self.up.skip(target % size - self.at);
        }
        self.round.saturating_mul(size) + self.at - done
    }

    fn save(&self) -> IteratorState {
        IteratorState::at([self.round, self.at]).over(self.up.save())
    }

    fn restore(&mut self, state: &IteratorState) -> Result<()> {
        let round = state.number(0)?;
        ensure!(round <= self.rounds, foreign());
        if round > 0 {
            self.go_to(round)?;
        }
        self.at = state.number(1)?;
        if round < self.rounds { self.up.restore(state.above(0)?) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use crate::stage::test::{ints, stream, values, values_of};
    use crate::{Cardinality, Dataset};

    #[test]
    fn counts_rounds() {
        for d in [ints(3), stream(3)] {
            assert_eq!(values(&d.repeat_n(2)), [0, 1, 2, 0, 1, 2]);
            assert_eq!(values(&d.repeat_n(0)), [] as [i64; 0]);
            assert_eq!(values_of(d.repeat().iter().take(7)), [0, 1, 2, 0, 1, 2, 0]);
        }
        assert_eq!(ints(3).repeat().cardinality(), Cardinality::Infinite);
        assert_eq!(ints(3).repeat_n(4).cardinality(), Cardinality::Finite(12));
    }

    #[test]
    fn nothing_repeated_is_nothing() {
        assert_eq!(ints(0).repeat().iter().count(), 0);
        assert_eq!(stream(0).repeat().iter().count(), 0);
        assert_eq!(Dataset::range(0).repeat_n(5).batch(2).iter().count(), 0);
    }

    #[test]
    fn epochs_of_the_whole_continue_the_rounds() {
        let s = ints(20).shuffle(20, 1);
        let twice = s.repeat_n(2);
        let expected = [values_of(s.iter_epoch(6)), values_of(s.iter_epoch(7))].concat();
        assert_eq!(values_of(twice.iter_epoch(3)), expected);
    }
}
