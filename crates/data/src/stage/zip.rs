//! `zip`: merges the fields of corresponding elements of several datasets.

use crate::Dataset;
use crate::pipeline::{
    Cardinality, DatasetStage, ElementCursor, IteratorState, PipelineRun, RandomAccess, StageNode, access,
    open,
};
use crate::sample::Sample;
use systole_base::{Result, err};

impl Dataset {
    /// Merges the fields of corresponding elements of the datasets; ends with the shortest.
    pub fn zip(datasets: impl IntoIterator<Item = Dataset>) -> Dataset {
        Dataset::new(ZipStage { up: datasets.into_iter().map(Dataset::into_node).collect() })
    }
}

pub(crate) struct ZipStage {
    pub up: Vec<StageNode>,
}

impl ZipStage {
    fn check(&self) -> Result<()> {
        if self.up.is_empty() {
            return Err(
                err!(Config, "the list of datasets to zip is empty").hint("pass at least one dataset")
            );
        }
        Ok(())
    }
}

impl DatasetStage for ZipStage {
    fn label(&self) -> String {
        "zip".into()
    }

    fn inputs(&self) -> Vec<StageNode> {
        self.up.clone()
    }

    fn name(&self) -> String {
        let names: Vec<String> = self.up.iter().map(|n| n.name()).collect();
        format!("zip({})", names.join(", "))
    }

    fn cardinality(&self) -> Cardinality {
        let all = self.up.iter().map(|n| n.cardinality());
        all.reduce(|a, b| match (a, b) {
            (Cardinality::Finite(0), _) | (_, Cardinality::Finite(0)) => Cardinality::Finite(0),
            (Cardinality::Unknown, _) | (_, Cardinality::Unknown) => Cardinality::Unknown,
            (Cardinality::Finite(m), Cardinality::Finite(n)) => Cardinality::Finite(m.min(n)),
            (Cardinality::Infinite, other) | (other, Cardinality::Infinite) => other,
        })
        .unwrap_or(Cardinality::Finite(0))
    }

    fn access(&self, run: &PipelineRun) -> Result<Option<Box<dyn RandomAccess>>> {
        self.check()?;
        let all = self.up.iter().map(|n| access(n, run)).collect::<Result<Option<Vec<_>>>>()?;
        Ok(all.map(|up| Box::new(ZipReader { up }) as _))
    }

    fn stream(&self, run: &PipelineRun) -> Result<Box<dyn ElementCursor>> {
        self.check()?;
        Ok(Box::new(ZipReader { up: self.up.iter().map(|n| open(n, run)).collect::<Result<Vec<_>>>()? }))
    }
}

struct ZipReader<U> {
    up: Vec<U>,
}

fn merge(samples: Vec<Sample>) -> Result<Sample> {
    let origin = samples.first().and_then(Sample::origin);
    let fields: Vec<_> = samples.into_iter().flat_map(Sample::into_fields).collect();
    let clash = fields.iter().enumerate().find(|(i, (name, _))| fields[..*i].iter().any(|(n, _)| n == name));
    if let Some((_, (name, _))) = clash {
        return Err(err!(Data, "two of the zipped datasets have a field `{name}`")
            .hint("rename one of the two fields with map before zip"));
    }
    Ok(Sample::from_parts(fields, origin))
}

impl RandomAccess for ZipReader<Box<dyn RandomAccess>> {
    fn len(&self) -> Option<u64> {
        self.up.iter().filter_map(|a| a.len()).min()
    }

    fn get(&mut self, index: u64) -> Result<Sample> {
        merge(self.up.iter_mut().map(|a| a.get(index)).collect::<Result<_>>()?)
    }
}

impl ElementCursor for ZipReader<Box<dyn ElementCursor>> {
    fn next(&mut self) -> Option<Result<Sample>> {
        // All inputs advance even if one has an error, so that they stay aligned.
        let items: Vec<Result<Sample>> = self.up.iter_mut().map(|c| c.next()).collect::<Option<_>>()?;
        Some(items.into_iter().collect::<Result<_>>().and_then(merge))
    }

    fn skip(&mut self, n: u64) -> u64 {
        self.up.iter_mut().map(|c| c.skip(n)).min().unwrap_or(0)
    }

    fn save(&self) -> IteratorState {
        IteratorState { numbers: Vec::new(), inner: self.up.iter().map(|c| c.save()).collect() }
    }

    fn restore(&mut self, state: &IteratorState) -> Result<()> {
        self.up.iter_mut().enumerate().try_for_each(|(i, c)| c.restore(state.above(i)?))
    }
}

#[cfg(test)]
mod tests {
    use crate::stage::test::{ints, stream};
    use crate::{Cardinality, Dataset};

    #[test]
    fn ends_with_the_shortest_and_refuses_clashes() {
        for d in [ints(3), stream(3)] {
            let z = Dataset::zip([d.clone(), Dataset::range(5)]);
            let pairs: Vec<_> = z.iter().map(|s| s.unwrap().get("value").unwrap().get(0).as_i64()).collect();
            assert_eq!(pairs, [0, 1, 2]);
            assert_eq!(z.element_spec().unwrap().to_string(), "x: i32[], value: i64[]");
            let clash = Dataset::zip([d.clone(), d.clone()]);
            assert!(clash.iter().next().unwrap().unwrap_err().to_string().contains("a field `x`"));
        }
        let both = Dataset::zip([ints(3), Dataset::range(5).repeat()]);
        assert_eq!(both.cardinality(), Cardinality::Finite(3));
    }
}
