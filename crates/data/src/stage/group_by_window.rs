//! `group_by_window` and `bucket_by_sequence_length`: group elements by a key and batch each group.

use super::padded_batch::{PaddingOptions, padded_stack};
use crate::Dataset;
use crate::pipeline::{
    DatasetStage, ElementCursor, HeldElements, IteratorState, PipelineRun, StageNode, foreign, open,
    stack_all,
};
use crate::sample::Sample;
use crate::stage::delegate::delegate;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;
use systole_base::{Error, Result, ensure, err};

type GroupKeyFn = Arc<dyn Fn(&Sample) -> i64 + Send + Sync>;
type GroupSizeFn = Arc<dyn Fn(i64) -> usize + Send + Sync>;
/// Function of key, elements and whether the group is complete; returns the output element, or `None` to drop it.
type FinishGroupFn = Arc<dyn Fn(i64, Vec<Sample>, bool) -> Result<Option<Sample>> + Send + Sync>;

/// Options of [`Dataset::bucket_by_sequence_length_with`].
#[derive(Clone, Debug, Default)]
pub struct BucketOptions {
    /// Whether to pad to the bucket's boundary instead of the longest element of the batch: few distinct shapes, as
    /// compiled programs need. Elements of the last, unbounded bucket are then an error.
    pub pad_to_bucket_boundary: bool,
    /// Whether to drop incomplete batches at the end.
    pub drop_remainder: bool,
    /// Padding values.
    pub padding: PaddingOptions,
}

impl Dataset {
    /// Groups elements by key: `name: T[…] → name: T[n, …]`, `window_size` at a time, stacked; incomplete groups follow
    /// at the end by ascending key.
    pub fn group_by_window(
        &self,
        key: impl Fn(&Sample) -> i64 + Send + Sync + 'static,
        window_size: usize,
    ) -> Dataset {
        let finish =
            |_: i64, items: Vec<Sample>, _: bool| stack_all(items.into_iter().map(Ok).collect()).map(Some);
        self.grouped("group_by_window", Arc::new(key), Arc::new(move |_| window_size), Arc::new(finish))
    }

    /// Batches elements of similar length: `name: T[len, …] → name: T[n, longest, …]`. Bucket `i` contains lengths
    /// below `boundaries[i]` (the last one all others) and yields batches of `batch_sizes[i]`, zero-padded.
    pub fn bucket_by_sequence_length(
        &self,
        length: impl Fn(&Sample) -> usize + Send + Sync + 'static,
        boundaries: &[usize],
        batch_sizes: &[usize],
    ) -> Dataset {
        self.bucket_by_sequence_length_with(length, boundaries, batch_sizes, BucketOptions::default())
    }

    /// [`Dataset::bucket_by_sequence_length`] with all options.
    pub fn bucket_by_sequence_length_with(
        &self,
        length: impl Fn(&Sample) -> usize + Send + Sync + 'static,
        boundaries: &[usize],
        batch_sizes: &[usize],
        options: BucketOptions,
    ) -> Dataset {
        let (bounds, sizes) = (boundaries.to_vec(), batch_sizes.to_vec());
        // A group size of 0 is rejected when the run starts.
        let fits = sizes.len() == bounds.len() + 1 && bounds.is_sorted();
        let limits = bounds.clone();
        let key = move |s: &Sample| limits.partition_point(|&b| b <= length(s)) as i64;
        let size = move |k: i64| if fits { sizes.get(k as usize).copied().unwrap_or(0) } else { 0 };
        let finish = move |k: i64, items: Vec<Sample>, whole: bool| {
            if options.drop_remainder && !whole {
                return Ok(None);
            }
            let mut padding = options.padding.clone();
            if options.pad_to_bucket_boundary {
                let bound = bounds.get(k as usize).ok_or_else(too_long)?;
                padding.first = Some(bound - 1);
            }
            padded_stack(items, &padding).map(Some)
        };
        self.grouped("bucket_by_sequence_length", Arc::new(key), Arc::new(size), Arc::new(finish))
    }

    fn grouped(
        &self,
        label: &'static str,
        key: GroupKeyFn,
        size: GroupSizeFn,
        finish: FinishGroupFn,
    ) -> Dataset {
        self.then(|up| GroupStage { up, label, key, size, finish })
    }
}

fn too_long() -> Error {
    err!(Data, "an element is longer than the last boundary")
        .because("pad_to_bucket_boundary requires a boundary for every length")
        .hint("add a boundary, or filter out such elements")
}

struct GroupStage {
    up: StageNode,
    label: &'static str,
    key: GroupKeyFn,
    size: GroupSizeFn,
    finish: FinishGroupFn,
}

impl DatasetStage for GroupStage {
    delegate!(inputs, fewer);

    fn label(&self) -> String {
        self.label.into()
    }

    fn stream(&self, run: &PipelineRun) -> Result<Box<dyn ElementCursor>> {
        if (self.size)(0) == 0 {
            return Err(err!(Config, "invalid group sizes")
                .at(self.label())
                .because("the window size is 0, or the batch sizes do not match the ascending boundaries")
                .hint("pass n + 1 batch sizes of at least 1 for n boundaries"));
        }
        Ok(Box::new(GroupCursor {
            up: HeldElements::new(open(&self.up, run)?),
            key: self.key.clone(),
            size: self.size.clone(),
            finish: self.finish.clone(),
            groups: BTreeMap::new(),
        }))
    }
}

struct GroupCursor {
    up: HeldElements,
    key: GroupKeyFn,
    size: GroupSizeFn,
    finish: FinishGroupFn,
    groups: BTreeMap<i64, Vec<(u64, Sample)>>,
}

impl GroupCursor {
    /// Adds an element to its group; returns the group if it is complete.
    fn put(&mut self, seq: u64, sample: Sample) -> Option<(i64, Vec<Sample>)> {
        let key = (self.key)(&sample);
        let mut group = match self.groups.entry(key) {
            Entry::Occupied(group) => group,
            Entry::Vacant(new) => new.insert_entry(Vec::new()),
        };
        group.get_mut().push((seq, sample));
        let is_whole = group.get().len() >= (self.size)(key).max(1);
        is_whole.then(|| (key, group.remove().into_iter().map(|(_, s)| s).collect()))
    }

    fn held(&self) -> Vec<u64> {
        let mut held: Vec<u64> = self.groups.values().flatten().map(|(seq, _)| *seq).collect();
        held.sort_unstable();
        held
    }
}

impl ElementCursor for GroupCursor {
    fn next(&mut self) -> Option<Result<Sample>> {
        loop {
            let groups = &self.groups;
            self.up.forget(|| groups.values().filter_map(|g| g.first()).map(|(seq, _)| *seq).min());
            let (key, items, whole) = match self.up.pull() {
                Some((_, Err(e))) => return Some(Err(e)),
                Some((seq, Ok(sample))) => match self.put(seq, sample) {
                    Some((key, items)) => (key, items, true),
                    None => continue,
                },
                None => {
                    let (key, rest) = self.groups.pop_first()?;
                    (key, rest.into_iter().map(|(_, s)| s).collect(), false)
                }
            };
            if let Some(item) = (self.finish)(key, items, whole).transpose() {
                return Some(item);
            }
        }
    }

    fn save(&self) -> IteratorState {
        self.up.save(&self.held())
    }

    fn restore(&mut self, state: &IteratorState) -> Result<()> {
        for (seq, item) in self.up.restore(state)? {
            ensure!(self.put(seq, item?).is_none(), foreign());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stage::test::{resumes, stream};
    use systole_base::ErrorKind;
    use systole_base::Literal;

    const LENS: [usize; 11] = [1, 5, 3, 9, 2, 8, 4, 7, 6, 10, 3];

    /// Element `i` is `LENS[i]` times `i`.
    fn sequences(longest: usize) -> Dataset {
        Dataset::from_generator(move || {
            let all = LENS.into_iter().enumerate().filter(move |(_, n)| *n <= longest);
            all.map(|(i, n)| Ok(Sample::new([("x", Literal::from_slice([n], &vec![i as i32; n])?)])))
        })
    }

    fn rows(d: &Dataset) -> Vec<(String, Vec<f64>)> {
        let row = |s: Result<Sample>| {
            let s = s.unwrap();
            let x = s.get("x").unwrap();
            (x.ty().to_string(), x.to_f64s())
        };
        d.iter().map(row).collect()
    }

    fn length(s: &Sample) -> usize {
        s.get("x").map_or(0, |x| x.ty().elements())
    }

    /// The shapes, and for each batch the first elements of its rows.
    fn shape(d: &Dataset) -> Vec<(String, Vec<i64>)> {
        let first = |(ty, v): (String, Vec<f64>)| {
            let rows: usize = ty[4..].split(',').next().unwrap().parse().unwrap();
            let width = v.len() / rows;
            (ty, v.chunks(width).map(|r| r[0] as i64).collect())
        };
        rows(d).into_iter().map(first).collect()
    }

    fn expected(list: &[(&str, &[i64])]) -> Vec<(String, Vec<i64>)> {
        list.iter().map(|(ty, v)| (format!("i32[{ty}]"), v.to_vec())).collect()
    }

    #[test]
    fn buckets_are_tensorflows() {
        // tf.data: bucket_by_sequence_length(len, [4, 8], [2, 3, 2]) of the same elements.
        let d = sequences(99).bucket_by_sequence_length(length, &[4, 8], &[2, 3, 2]);
        let whole: [(&str, &[i64]); 6] = [
            ("2, 3", &[0, 2]),
            ("2, 9", &[3, 5]),
            ("3, 7", &[1, 6, 7]),
            ("2, 3", &[4, 10]),
            ("1, 6", &[8]),
            ("1, 10", &[9]),
        ];
        assert_eq!(shape(&d), expected(&whole));
        assert_eq!(rows(&d)[0].1, [0., 0., 0., 2., 2., 2.]);
        resumes(&d);
        resumes(&d.repeat_n(2));
        let with = |d: &Dataset, o| shape(&d.bucket_by_sequence_length_with(length, &[4, 8], &[2, 3, 2], o));
        let dropped = BucketOptions { drop_remainder: true, ..BucketOptions::default() };
        assert_eq!(with(&sequences(99), dropped), expected(&whole[..4]));
        let bound = BucketOptions { pad_to_bucket_boundary: true, ..BucketOptions::default() };
        let padded: [(&str, &[i64]); 4] =
            [("2, 3", &[0, 2]), ("3, 7", &[1, 6, 7]), ("2, 3", &[4, 10]), ("1, 7", &[8])];
        assert_eq!(with(&sequences(7), bound), expected(&padded));
    }

    #[test]
    fn groups_are_tensorflows() {
        let d = stream(10).group_by_window(|s| s.get("x").unwrap().get(0).as_i64() % 3, 3);
        let groups: Vec<_> = rows(&d).into_iter().map(|(_, v)| v).collect();
        assert_eq!(groups, [vec![0., 3., 6.], vec![1., 4., 7.], vec![2., 5., 8.], vec![9.]]);
        resumes(&d);
        for wrong in [
            stream(3).group_by_window(|_| 0, 0),
            sequences(9).bucket_by_sequence_length(length, &[4], &[1]),
            sequences(9).bucket_by_sequence_length(length, &[8, 4], &[1, 1, 1]),
        ] {
            assert_eq!(wrong.iter().next().unwrap().unwrap_err().kind(), ErrorKind::Config);
        }
    }
}
