//! Pipeline transformations (tf.data's), one file each, with the method of [`crate::Dataset`] that adds it.
//!
//! A custom stage implements [`DatasetStage`].

pub(crate) mod batch;
pub(crate) mod cache;
pub(crate) mod cache_file;
pub(crate) mod concatenate;
pub(crate) mod delegate;
pub(crate) mod enumerate;
pub(crate) mod filter;
pub(crate) mod group_by_window;
pub(crate) mod ignore_errors;
pub(crate) mod interleave;
pub(crate) mod map;
pub(crate) mod map_random;
pub(crate) mod padded_batch;
pub(crate) mod prefetch;
pub(crate) mod rejection_resample;
pub(crate) mod repeat;
pub(crate) mod sample_from_datasets;
pub(crate) mod scan;
pub(crate) mod shard;
pub(crate) mod shuffle;
pub(crate) mod skip;
pub(crate) mod take;
pub(crate) mod take_while;
pub(crate) mod unbatch;
pub(crate) mod unique;
pub(crate) mod window;
pub(crate) mod with_options;
pub(crate) mod zip;

pub use crate::pipeline::{
    DatasetStage, ElementCursor, MapFn, RandomAccess, StageNode, ThreadCount, access, open,
};

#[cfg(test)]
pub(crate) mod test {
    //! Helpers for the tests of all stages.

    use crate::{Cardinality, Dataset, HostArray, PipelinePosition, Sample};
    use systole_base::{DType, Literal};

    /// Creates a test dataset: `x: i32[]` = 0 … n-1, with random access.
    pub fn ints(n: i32) -> Dataset {
        let x = Literal::from_slice([n as usize], &(0..n).collect::<Vec<_>>()).unwrap();
        Dataset::from_tensor_slices([("x", x)]).unwrap()
    }

    /// Creates the test dataset of [`ints`] without random access.
    pub fn stream(n: i32) -> Dataset {
        Dataset::from_generator(move || {
            (0..n).map(|i| Ok(Sample::new([("x", HostArray::scalar(DType::I32, i.into()))])))
        })
    }

    /// Returns all elements of a test dataset's first fields, flattened.
    pub fn values(d: &Dataset) -> Vec<i64> {
        values_of(d.iter())
    }

    pub fn values_of(iter: impl Iterator<Item = systole_base::Result<Sample>>) -> Vec<i64> {
        let first = |s: Sample| s.fields().next().unwrap().1.get().unwrap().to_f64s();
        iter.flat_map(|s| first(s.unwrap())).map(|v| v as i64).collect()
    }

    /// Every element as text, including errors.
    fn shown(iter: impl Iterator<Item = systole_base::Result<Sample>>, n: usize) -> Vec<String> {
        let show =
            |s: Sample| s.fields().map(|(k, v)| format!("{k}={:?};", v.get().unwrap())).collect::<String>();
        iter.take(n).map(|s| s.map_or_else(|e| e.to_string(), show)).collect()
    }

    /// Tests that a dataset resumes: saves the state before each element and restores it; the remainder must be
    /// identical, and the cardinality true.
    pub fn resumes(d: &Dataset) {
        for epoch in [0, 3] {
            let limit = 40;
            let whole = shown(d.iter_epoch(epoch), limit);
            assert!(!whole.is_empty(), "{d:?}: nothing to test");
            match d.cardinality() {
                Cardinality::Finite(n) => assert_eq!(whole.len() as u64, n.min(limit as u64), "{d:?}"),
                Cardinality::Infinite => assert_eq!(whole.len(), limit, "{d:?}"),
                Cardinality::Unknown => {}
            }
            let mut iter = d.iter_epoch(epoch);
            for taken in 0..=whole.len() {
                let position: PipelinePosition = iter.position().to_string().parse().unwrap();
                assert_eq!((position.epoch, position.taken), (epoch, taken as u64));
                let rest = shown(d.iter_at(&position), limit - taken);
                assert_eq!(rest, whole[taken..], "{d:?} at {position}");
                let counted = PipelinePosition::new(epoch, taken as u64);
                let rest = shown(d.iter_at(&counted), limit - taken);
                assert_eq!(rest, whole[taken..], "{d:?} at {counted}");
                iter.next();
            }
        }
    }

    #[test]
    fn every_pipeline_resumes_before_each_element() {
        for source in [ints(11), stream(11), Dataset::range(11)] {
            let odd = |s: &Sample| s.fields().next().unwrap().1.get().unwrap().get(0).as_i64() % 2 == 1;
            let double = |s: Sample| {
                let name = s.names().next().unwrap().to_string();
                s.map(&name, |x| x * 2)
            };
            let pipelines = [
                source.clone(),
                source.map(double).shuffle(100, 7).repeat().batch(4),
                source.shuffle(3, 7).repeat_n(2).batch(3),
                source.repeat_n(2).shuffle(5, 1).map(double),
                source.repeat().shuffle(5, 1).take(23),
                source.filter(odd).shuffle(4, 2).repeat_n(3).batch(2),
                source.filter(odd).repeat(),
                source.shuffle(11, 3).take(7).skip(2).repeat_n(2),
                source.shuffle(11, 3).cache().shuffle(11, 4).repeat(),
                source.filter(odd).cache().repeat_n(3),
                source.batch_drop_remainder(3).repeat().unbatch(),
                source.batch(4).unbatch().shuffle(6, 5).batch(2),
                source.enumerate().shuffle(11, 9).repeat_n(2).enumerate_again(),
                Dataset::zip([source.clone(), source.shuffle(4, 1).rename_first("y")]).repeat(),
                source.skip(3).repeat().skip(20).batch_drop_remainder(5),
                source.shuffle(4, 8).repeat_n(2).repeat_n(2),
                // Sequential, but of known length.
                source.prefetch(1).shuffle(4, 1).repeat().skip(14).take(20),
                source.prefetch(2).repeat_n(3).skip(4).batch(3),
                source.map(|s| s.map("nothing", |x| x)).repeat_n(2).batch(3),
            ];
            for d in &pipelines {
                resumes(d);
                resumes(&d.prefetch(2));
                resumes(&d.prefetch(1).map(|s| s).prefetch(3));
            }
        }
    }

    #[test]
    fn prefetch_depth_does_not_change_the_stream() {
        let d = ints(23).shuffle(9, 4).repeat().batch(5);
        let plain = values_of(d.iter().take(30));
        for depth in [0, 1, 8, 32, crate::AUTOTUNE] {
            assert_eq!(values_of(d.prefetch(depth).iter().take(30)), plain, "depth {depth}");
        }
    }

    impl Dataset {
        fn rename_first(&self, to: &'static str) -> Dataset {
            self.map(move |s: Sample| {
                let name = s.names().next().unwrap().to_string();
                s.rename(&name, to)
            })
        }

        fn enumerate_again(&self) -> Dataset {
            self.map(|s: Sample| s.rename("index", "inner")).enumerate()
        }
    }
}

// Names of the previous version.
systole_base::renamed! { Node => StageNode, Threads => ThreadCount }
#[doc(hidden)]
pub use self::{DatasetStage as Stage, ElementCursor as Cursor, RandomAccess as Access};
