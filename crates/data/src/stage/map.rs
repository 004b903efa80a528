//! `map`: a function of each sample.

use super::{Access, Cursor, Node, Stage, open};
use crate::dataset::Cardinality;
use crate::sample::Sample;
use std::sync::Arc;
use systole_base::Result;

pub(crate) type MapFn = Arc<dyn Fn(Sample) -> Result<Sample> + Send + Sync>;

pub(crate) struct Map {
    pub up: Node,
    pub f: MapFn,
}

impl Stage for Map {
    fn name(&self) -> String {
        format!("{}.map", self.up.name())
    }

    fn cardinality(&self) -> Cardinality {
        self.up.cardinality()
    }

    fn access(&self, epoch: u64) -> Result<Option<Box<dyn Access>>> {
        Ok(self.up.access(epoch)?.map(|up| Box::new(Mapped { up, f: self.f.clone() }) as _))
    }

    fn stream(&self, epoch: u64) -> Result<Box<dyn Cursor>> {
        Ok(Box::new(Mapped { up: open(&self.up, epoch)?, f: self.f.clone() }))
    }
}

struct Mapped<U> {
    up: U,
    f: MapFn,
}

impl<U> Mapped<U> {
    /// The function may build a sample anew: the origin must survive that, for messages further down.
    fn apply(&self, sample: Sample) -> Result<Sample> {
        let origin = sample.origin();
        match (self.f)(sample) {
            Ok(out) => out.with_origin(origin).check(),
            Err(e) => Err(Sample::default().with_origin(origin).locate(e)),
        }
    }
}

impl Access for Mapped<Box<dyn Access>> {
    fn len(&self) -> Option<u64> {
        self.up.len()
    }

    fn get(&mut self, index: u64) -> Result<Sample> {
        let sample = self.up.get(index)?;
        self.apply(sample)
    }
}

impl Cursor for Mapped<Box<dyn Cursor>> {
    fn next(&mut self) -> Option<Result<Sample>> {
        Some(self.up.next()?.and_then(|s| self.apply(s)))
    }

    fn skip(&mut self, n: u64) -> u64 {
        self.up.skip(n)
    }
}

#[cfg(test)]
mod tests {
    use crate::stage::test::{ints, stream, values};
    use crate::{HostArray, Sample};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use systole_base::{DType, Error, ErrorKind, Result};

    #[test]
    fn maps_samples_and_results() {
        for d in [ints(3), stream(3)] {
            assert_eq!(values(&d.map(|s| s.map("x", |x| x * 10))), [0, 10, 20]);
            let fails = d.map(|s: Sample| -> Result<Sample> {
                if s.get("x")?.get(0).as_i64() == 1 {
                    return Err(Error::new(ErrorKind::Data, "one is refused"));
                }
                Ok(Sample::new([("y", HostArray::scalar(DType::I32, 5.0))]))
            });
            let items: Vec<_> = fails.iter().collect();
            assert!(items[0].is_ok() && items[2].is_ok());
            let e = items[1].as_ref().unwrap_err().to_string();
            assert!(e.contains("one is refused") && e.contains("element 1 of "), "{e}");
        }
    }

    #[test]
    fn seeking_does_not_compute_what_it_leaves_out() {
        let calls = Arc::new(AtomicUsize::new(0));
        let seen = calls.clone();
        let d = ints(100).map(move |s| {
            seen.fetch_add(1, Ordering::Relaxed);
            s
        });
        let d = d.shuffle(100, 1).repeat().batch(10);
        let p = crate::Position { epoch: 0, taken: 55 };
        d.iter_at(&p).next().unwrap().unwrap();
        assert_eq!(calls.load(Ordering::Relaxed), 10);
    }
}
