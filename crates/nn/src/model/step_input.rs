//! Inputs of a step: arrays as the data has them. The step converts pixels that are still integers.

use systole_data::Rescale;
use systole_ir::{DType, Tensor, bug};
use systole_runtime::{Buffer, TensorTree, TreeStructure};

/// An input of a step: `T[B, …]`. While the step is traced, pixels are converted already.
#[derive(Clone, Debug)]
pub(crate) struct StepInput<T = Tensor> {
    pub value: T,
    /// How the step converts `value`; `None`: it is the model's input as it is.
    pub rescale: Option<Rescale>,
}

impl<T> From<T> for StepInput<T> {
    fn from(value: T) -> StepInput<T> {
        StepInput { value, rescale: None }
    }
}

/// Converts and scales pixels, in the arithmetic of [`systole_data::HostArray::rescale`]: `x: T[…] → f32[…]`.
fn rescaled(x: &Tensor, rescale: Rescale) -> Tensor {
    let x = x.convert(DType::F32);
    match (rescale.scale() == 1.0, rescale.divisor()) {
        (true, _) => x,
        (false, Some(n)) => x / n,
        (false, None) => x * rescale.scale(),
    }
}

/// Returns the values of a step's inputs.
pub(crate) fn values<T>(inputs: Vec<StepInput<T>>) -> Vec<T> {
    inputs.into_iter().map(|input| input.value).collect()
}

fn note(rescale: Option<Rescale>) -> TreeStructure {
    rescale.map_or(TreeStructure::Leaf, |rescale| TreeStructure::Annotated(rescale.to_string()))
}

fn noted(structure: &TreeStructure) -> Option<Rescale> {
    match structure {
        TreeStructure::Annotated(note) => note.parse().ok(),
        _ => None,
    }
}

impl TensorTree for StepInput {
    type Host = StepInput<Buffer>;

    fn flatten(&self, out: &mut Vec<Tensor>) -> TreeStructure {
        out.push(self.value.clone());
        note(self.rescale)
    }

    fn unflatten(structure: &TreeStructure, leaves: &mut dyn Iterator<Item = Tensor>) -> StepInput {
        let Some(x) = leaves.next() else { bug!("an input of a step is missing") };
        noted(structure).map_or(x.clone(), |rescale| rescaled(&x, rescale)).into()
    }

    fn flatten_host(host: StepInput<Buffer>, out: &mut Vec<Buffer>) -> TreeStructure {
        out.push(host.value);
        note(host.rescale)
    }

    fn unflatten_host(
        structure: &TreeStructure,
        leaves: &mut dyn Iterator<Item = Buffer>,
    ) -> StepInput<Buffer> {
        let Some(value) = leaves.next() else { bug!("an input of a step is missing") };
        StepInput { value, rescale: noted(structure) }
    }
}
