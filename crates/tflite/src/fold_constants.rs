//! Computes operators of constants once: DEQUANTIZE of f16 or int8 weights, DENSIFY of sparse ones.

use crate::interpreter::TfliteInterpreter;
use crate::model::{TfliteModel, TfliteTensor};
use crate::op::TfliteOp;
use systole_base::{DType, Literal, Result};

/// Operators that do more than compute their outputs.
const WITH_EFFECTS: [TfliteOp; 4] =
    [TfliteOp::CallOnce, TfliteOp::VarHandle, TfliteOp::ReadVariable, TfliteOp::AssignVariable];

impl TfliteModel {
    /// Replaces operators whose operands are constants by their results; the constants that only they read are dropped.
    ///
    /// # Errors
    /// If the graph is invalid ([`TfliteModel::check`]).
    pub fn fold_constants(mut self) -> Result<TfliteModel> {
        let mut values: Vec<Option<Literal>> = self.tensors.iter().map(|t| t.data.clone()).collect();
        let mut folded = vec![false; self.operators.len()];
        let interpreter = TfliteInterpreter::new(&self)?;
        for (n, o) in self.operators.iter().enumerate() {
            let is_known = |i: &Option<usize>| i.is_none_or(|i| values[i].is_some());
            let has_operands = o.inputs.iter().any(Option::is_some);
            let is_listed = o.outputs.iter().any(|y| self.outputs.contains(y));
            if WITH_EFFECTS.contains(&o.op) || !has_operands || is_listed || !o.inputs.iter().all(is_known) {
                continue;
            }
            // An operator that fails is reported when the model runs.
            if let Ok(made) = interpreter.run_operator(n, &values) {
                o.outputs.iter().zip(made).for_each(|(&i, y)| values[i] = Some(y));
                folded[n] = true;
            }
        }
        if !folded.contains(&true) {
            return Ok(self);
        }
        let mut is_folded = folded.into_iter();
        self.operators.retain(|_| !is_folded.next().unwrap_or(false));
        let mut is_read = vec![false; self.tensors.len()];
        let reads = self.operators.iter().flat_map(|o| o.inputs.iter().flatten()).chain(&self.outputs);
        reads.for_each(|&i| is_read[i] = true);
        for ((t, value), is_read) in self.tensors.iter_mut().zip(values).zip(is_read) {
            match value {
                Some(_) if !is_read => *t = TfliteTensor::new(t.name.clone(), [1], DType::F32),
                value => t.data = value,
            }
        }
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::TfliteOperator;
    use systole_base::f16;

    #[test]
    fn weights_in_f16_become_floats_and_the_rest_stays() {
        let half = Literal::from_slice([2], &[f16::from_f32(0.5), f16::from_f32(-2.0)]).unwrap();
        let floats = |name: &str| TfliteTensor::new(name, [2], DType::F32);
        let model = TfliteModel {
            tensors: vec![TfliteTensor::constant("half", half), floats("w"), floats("x"), floats("y")],
            operators: vec![
                TfliteOperator::new(TfliteOp::Dequantize, [0], [1]),
                TfliteOperator::new(TfliteOp::Mul, [2, 1], [3]),
            ],
            inputs: vec![2],
            outputs: vec![3],
            ..TfliteModel::default()
        };
        let folded = model.fold_constants().unwrap();
        assert_eq!(folded.operators.len(), 1);
        assert_eq!(folded.tensors[1].data.as_ref().unwrap().to_f32s(), [0.5, -2.0]);
        assert!(folded.tensors[0].data.is_none());
        let x = Literal::from_slice([2], &[3.0f32, 4.0]).unwrap();
        assert_eq!(TfliteInterpreter::new(&folded).unwrap().run(&[x]).unwrap()[0].to_f32s(), [1.5, -8.0]);
    }
}
