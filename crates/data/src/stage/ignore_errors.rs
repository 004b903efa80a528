//! `ignore_errors`: skips elements that are errors, up to a quota.

use crate::Dataset;
use crate::pipeline::{DatasetStage, ElementCursor, PipelineRun, StageNode, first_spec, open};
use crate::sample::{ElementSpec, Sample};
use crate::stage::delegate::delegate;
use std::sync::Arc;
use systole_base::{Error, Result};

type ErrorCallback = Arc<dyn Fn(&Error) + Send + Sync>;

impl Dataset {
    /// Skips elements that are errors, up to `quota` of them in an epoch; the next one is yielded. A quota of
    /// `u64::MAX` is tf.data's behavior.
    pub fn ignore_errors(&self, quota: u64) -> Dataset {
        self.ignore_errors_with(quota, |_| ())
    }

    /// [`Dataset::ignore_errors`] with a callback for each error (to log or count errors).
    pub fn ignore_errors_with(&self, quota: u64, tell: impl Fn(&Error) + Send + Sync + 'static) -> Dataset {
        self.then(|up| IgnoreErrorsStage { up, quota, tell: Arc::new(tell) })
    }
}

struct IgnoreErrorsStage {
    up: StageNode,
    quota: u64,
    tell: ErrorCallback,
}

impl DatasetStage for IgnoreErrorsStage {
    delegate!(inputs, fewer);

    fn label(&self) -> String {
        match self.quota {
            u64::MAX => "ignore_errors".into(),
            n => format!("ignore_errors({n})"),
        }
    }

    fn stream(&self, run: &PipelineRun) -> Result<Box<dyn ElementCursor>> {
        Ok(Box::new(IgnoreErrorsCursor {
            up: open(&self.up, run)?,
            quota: self.quota,
            tell: self.tell.clone(),
            left_out: 0,
        }))
    }

    fn spec(&self) -> Result<ElementSpec> {
        self.up.spec().or_else(|_| first_spec(self, &PipelineRun::inspecting()))
    }
}

struct IgnoreErrorsCursor {
    up: Box<dyn ElementCursor>,
    quota: u64,
    tell: ErrorCallback,
    left_out: u64,
}

impl ElementCursor for IgnoreErrorsCursor {
    fn next(&mut self) -> Option<Result<Sample>> {
        loop {
            match self.up.next()? {
                Err(e) if self.left_out < self.quota => {
                    self.left_out += 1;
                    (self.tell)(&e);
                }
                Err(e) => {
                    return Some(Err(e.because(format!("{} errors were already skipped", self.left_out))));
                }
                item => return Some(item),
            }
        }
    }

    delegate!(position left_out);
}

#[cfg(test)]
mod tests {
    use crate::stage::test::{ints, resumes, stream, values};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn up_to_the_quota() {
        for d in [ints(8), stream(8)] {
            let d = d.map(|s| if s.get("x").unwrap().get(0).as_i64() % 3 == 1 { s.without("?") } else { s });
            assert_eq!(values(&d.ignore_errors(u64::MAX)), [0, 2, 3, 5, 6]);
            resumes(&d.ignore_errors(9).batch(2).repeat_n(2));
            let told = Arc::new(AtomicUsize::new(0));
            let count = told.clone();
            let some = d.ignore_errors_with(2, move |_| {
                count.fetch_add(1, Ordering::Relaxed);
            });
            let items: Vec<_> = some.iter().collect();
            assert_eq!((items.len(), told.load(Ordering::Relaxed)), (6, 2));
            let e = items[5].as_ref().unwrap_err().to_string();
            assert!(e.contains("2 errors"), "{e}");
        }
    }
}
