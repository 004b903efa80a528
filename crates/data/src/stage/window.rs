//! `window`: overlapping or strided windows of consecutive elements, each stacked like a batch.
//!
//! tf.data's window yields datasets, to be flattened and batched; here the stacked window is the element.

use crate::Dataset;
use crate::pipeline::{
    Cardinality, DatasetStage, ElementCursor, HeldElements, IteratorState, NumberedSample, PipelineRun,
    StageNode, foreign, open, stack_all,
};
use crate::sample::Sample;
use crate::stage::delegate::delegate;
use std::collections::VecDeque;
use systole_base::{Result, err};

/// Options of [`Dataset::window_with`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WindowOptions {
    /// Number of elements in a window.
    pub size: usize,
    /// Number of elements between the starts of consecutive windows.
    pub shift: usize,
    /// Distance between the elements of a window.
    pub stride: usize,
    /// Whether to drop incomplete windows at the end.
    pub drop_remainder: bool,
}

impl Dataset {
    /// Sliding windows: `name: T[…] → name: T[size, …]`, each `shift` elements after the previous one; only complete
    /// ones.
    pub fn window(&self, size: usize, shift: usize) -> Dataset {
        self.window_with(WindowOptions { size, shift, stride: 1, drop_remainder: true })
    }

    /// [`Dataset::window`] with all options.
    pub fn window_with(&self, options: WindowOptions) -> Dataset {
        self.then(|up| WindowStage { up, options })
    }
}

struct WindowStage {
    up: StageNode,
    options: WindowOptions,
}

impl DatasetStage for WindowStage {
    delegate!(inputs);

    fn label(&self) -> String {
        let WindowOptions { size, shift, stride, drop_remainder } = self.options;
        format!("window({size}, {shift}, {stride}, {drop_remainder})")
    }

    fn cardinality(&self) -> Cardinality {
        let WindowOptions { size, shift, stride, drop_remainder } = self.options;
        let (shift, span) = (shift.max(1) as u64, (size.max(1) as u64 - 1).saturating_mul(stride as u64) + 1);
        self.up.cardinality().map(|n| match drop_remainder {
            true if n < span => 0,
            true => (n - span) / shift + 1,
            false => n.div_ceil(shift),
        })
    }

    fn stream(&self, run: &PipelineRun) -> Result<Box<dyn ElementCursor>> {
        let WindowOptions { size, shift, stride, .. } = self.options;
        if size == 0 || shift == 0 || stride == 0 {
            return Err(err!(Config, "size, shift and stride of a window must be at least 1")
                .at(self.label())
                .hint("set shift to size for windows that do not overlap"));
        }
        let up = HeldElements::new(open(&self.up, run)?);
        Ok(Box::new(WindowCursor { up, options: self.options, held: VecDeque::new(), gap: 0 }))
    }
}

struct WindowCursor {
    up: HeldElements,
    options: WindowOptions,
    held: VecDeque<NumberedSample>,
    /// Number of elements between the last window and the next one.
    gap: u64,
}

impl ElementCursor for WindowCursor {
    fn next(&mut self) -> Option<Result<Sample>> {
        let WindowOptions { size, shift, stride, drop_remainder } = self.options;
        let span = (size - 1).saturating_mul(stride).saturating_add(1);
        for _ in 0..std::mem::take(&mut self.gap) {
            drop(self.up.pull()?);
        }
        while self.held.len() < span
            && let Some(item) = self.up.pull()
        {
            self.held.push_back(item);
        }
        self.up.forget(|| self.held.front().map(|(seq, _)| *seq));
        if self.held.is_empty() || (drop_remainder && self.held.len() < span) {
            self.held.clear();
            return None;
        }
        let items = self.held.iter().step_by(stride).take(size).map(|(_, item)| item.clone()).collect();
        let gone = shift.min(self.held.len());
        self.held.drain(..gone);
        self.gap = (shift - gone) as u64;
        Some(stack_all(items))
    }

    fn save(&self) -> IteratorState {
        let held: Vec<u64> = self.held.iter().map(|(seq, _)| *seq).collect();
        IteratorState::at([self.gap]).over(self.up.save(&held))
    }

    fn restore(&mut self, state: &IteratorState) -> Result<()> {
        self.gap = state.number(0)?;
        self.held = self.up.restore(state.above(0)?)?.into();
        if self.gap > self.options.shift as u64 { Err(foreign()) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::WindowOptions;
    use crate::stage::test::{ints, resumes, stream};

    #[test]
    fn windows_are_tensorflows() {
        // tf.data.Dataset.range(n).window(size, shift, stride, drop_remainder).flat_map(lambda w: w.batch(size))
        type Case = (i32, [usize; 3], bool, &'static [&'static [f64]]);
        let cases: [Case; 5] = [
            (10, [3, 2, 2], false, &[&[0., 2., 4.], &[2., 4., 6.], &[4., 6., 8.], &[6., 8.], &[8.]]),
            (10, [3, 2, 2], true, &[&[0., 2., 4.], &[2., 4., 6.], &[4., 6., 8.]]),
            (7, [3, 3, 1], false, &[&[0., 1., 2.], &[3., 4., 5.], &[6.]]),
            (7, [2, 3, 1], false, &[&[0., 1.], &[3., 4.], &[6.]]),
            (
                6,
                [4, 1, 1],
                false,
                &[&[0., 1., 2., 3.], &[1., 2., 3., 4.], &[2., 3., 4., 5.], &[3., 4., 5.], &[4., 5.], &[5.]],
            ),
        ];
        for (n, [size, shift, stride], drop_remainder, expected) in cases {
            for d in [ints(n), stream(n)] {
                let d = d.window_with(WindowOptions { size, shift, stride, drop_remainder });
                let windows: Vec<_> = d.iter().map(|w| w.unwrap().get("x").unwrap().to_f64s()).collect();
                assert_eq!(windows, expected, "{d:?}");
                resumes(&d);
                resumes(&d.repeat_n(2));
            }
        }
        assert!(ints(3).window(2, 0).iter().next().unwrap().is_err());
    }
}
