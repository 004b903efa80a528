//! How a training step is split over devices: which of its arrays, along which dimension.

use systole_ir::{Error, ErrorKind, Graph, Mesh, Result, Sharding, Spread, TensorType};

/// Ways to train on several devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
#[value(rename_all = "snake_case")]
pub(crate) enum Strategy {
    /// One device does everything
    OneDevice,
    /// Every device has the state, and its share of the batch
    DataParallel,
    /// State and batch are split; weights are gathered where they are used
    FullySharded,
}

impl Strategy {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Strategy::OneDevice => "one_device",
            Strategy::DataParallel => "data_parallel",
            Strategy::FullySharded => "fully_sharded",
        }
    }

    /// How the arrays of a training step lie on a mesh. The step's first arguments are its state, which its results
    /// replace in order; then come the batch, whose first dimension is split along the axis `data` (else the first),
    /// and scalars.
    pub(crate) fn spread(self, step: &Graph, mesh: &Mesh) -> Result<Spread> {
        let axis = mesh.axis("data").unwrap_or(0);
        let (params, results) = (step.param_types(), step.result_types());
        let state = |i: usize| results.get(i) == params.get(i);
        let shard = |(i, ty): (usize, &TensorType)| {
            let sharding = match self {
                Strategy::OneDevice => Sharding::replicated(ty.rank()),
                _ if !state(i) => split_batch(ty, axis),
                Strategy::DataParallel => Sharding::replicated(ty.rank()),
                Strategy::FullySharded => split_largest(ty, axis, mesh),
            };
            sharding.local(mesh, ty).map_err(|e| named(e, step, i))?;
            Ok(sharding)
        };
        let params: Vec<Sharding> = params.iter().enumerate().map(shard).collect::<Result<_>>()?;
        let results = results.iter().enumerate().map(|(i, ty)| match state(i) {
            true => params[i].clone(),
            false => Sharding::replicated(ty.rank()),
        });
        Ok(Spread { mesh: mesh.clone(), results: results.collect(), params })
    }
}

fn split_batch(ty: &TensorType, axis: usize) -> Sharding {
    let whole = Sharding::replicated(ty.rank());
    if ty.rank() == 0 { whole } else { whole.split(0, axis) }
}

/// Along the largest dimension that divides; whole where none does.
fn split_largest(ty: &TensorType, axis: usize, mesh: &Mesh) -> Sharding {
    let parts = mesh.axes()[axis].1;
    let whole = Sharding::replicated(ty.rank());
    let divides = (0..ty.rank()).filter(|&d| ty.shape[d] > 0 && ty.shape[d].is_multiple_of(parts));
    match divides.rev().max_by_key(|&d| ty.shape[d]) {
        Some(d) => whole.split(d, axis),
        None => whole,
    }
}

/// Of a batch that does not divide.
fn named(e: Error, step: &Graph, param: usize) -> Error {
    let name = step.param_names.get(param).map_or("", String::as_str);
    let batch = Error::new(ErrorKind::Config, "the batch cannot be split evenly over the devices");
    let hint = e.hint_text().unwrap_or_default().replace("make it", "make the batch size");
    batch.because(e.what()).at(format!("argument {name}")).hint(hint)
}

#[cfg(test)]
mod tests {
    use super::*;
    use systole_ir::{DType, GraphBuilder};

    #[test]
    fn state_lies_where_it_comes_back() {
        let g = GraphBuilder::new("step");
        let w = g.parameter(TensorType::new(DType::F32, [6, 16]), "w");
        let b = g.parameter(TensorType::new(DType::F32, [3]), "b");
        let x = g.parameter(TensorType::new(DType::F32, [8, 6]), "x");
        let rate = g.parameter(TensorType::scalar(DType::F32), "rate");
        let loss = x.dot(&w).sum_all();
        let step = g.finish(&[&w * &rate, &b * &rate, loss]).unwrap();
        let mesh: Mesh = "data=4".parse().unwrap();
        let texts = |s: &[Sharding]| s.iter().map(|s| s.text(&mesh)).collect::<Vec<_>>();
        let whole = Strategy::DataParallel.spread(&step, &mesh).unwrap();
        assert_eq!(texts(&whole.params), ["[{}, {}]", "[{}]", r#"[{"data"}, {}]"#, "[]"]);
        assert_eq!(texts(&whole.results), ["[{}, {}]", "[{}]", "[]"]);
        let split = Strategy::FullySharded.spread(&step, &mesh).unwrap();
        assert_eq!(texts(&split.params), [r#"[{}, {"data"}]"#, "[{}]", r#"[{"data"}, {}]"#, "[]"]);
        assert_eq!(texts(&split.results), [r#"[{}, {"data"}]"#, "[{}]", "[]"]);
        let mesh: Mesh = "data=3".parse().unwrap();
        let e = Strategy::DataParallel.spread(&step, &mesh).unwrap_err().to_string();
        assert!(e.contains("argument x") && e.contains("multiple of 3, such as 9"), "{e}");
    }
}
