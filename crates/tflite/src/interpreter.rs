//! The interpreter: every operator in order, each by LiteRT's reference arithmetic. For bits, not for speed.

use crate::kernels::{OperatorCall, row};
use crate::model::{TfliteModel, broken};
use systole_base::{Error, ErrorKind, Literal, Result};

/// A model that is checked and can be run, from any number of threads.
pub struct TfliteInterpreter<'a> {
    model: &'a TfliteModel,
    /// The last operator that reads each tensor; later its memory is given back.
    last_reads: Vec<usize>,
}

impl<'a> TfliteInterpreter<'a> {
    /// An interpreter of a model.
    ///
    /// # Errors
    /// When the graph is not sound ([`Model::check`]).
    pub fn new(model: &'a TfliteModel) -> Result<TfliteInterpreter<'a>> {
        model.check()?;
        let mut last_reads = vec![0; model.tensors.len()];
        for (n, o) in model.operators.iter().enumerate() {
            for &i in o.inputs.iter().flatten().chain(&o.outputs) {
                last_reads[i] = n;
            }
        }
        model.outputs.iter().for_each(|&i| last_reads[i] = usize::MAX);
        Ok(TfliteInterpreter { model, last_reads })
    }

    /// The model.
    pub fn model(&self) -> &'a TfliteModel {
        self.model
    }

    /// The model's outputs for its inputs, each of the file's own type and shape.
    ///
    /// # Errors
    /// When an input is not of the model's type, or an operator cannot compute what the file says; names the operator.
    pub fn run(&self, inputs: &[Literal]) -> Result<Vec<Literal>> {
        self.run_with(inputs, |_, _| {})
    }

    /// As [`TfliteInterpreter::run`], showing each tensor that an operator makes, and the inputs, with their numbers.
    pub fn run_with(
        &self,
        inputs: &[Literal],
        mut each: impl FnMut(usize, &Literal),
    ) -> Result<Vec<Literal>> {
        let model = self.model;
        let mut values: Vec<Option<Literal>> = model.tensors.iter().map(|t| t.data.clone()).collect();
        if inputs.len() != model.inputs.len() {
            let what = format!("{} inputs were given, the model takes {}", inputs.len(), model.inputs.len());
            return Err(Error::new(ErrorKind::Data, what));
        }
        for (&i, given) in model.inputs.iter().zip(inputs) {
            let t = model.tensor(i)?;
            if given.ty() != &t.ty {
                let what = format!("input {} is {}, the model takes {}", t.name, given.ty(), t.ty);
                return Err(Error::new(ErrorKind::Data, what)
                    .hint("`systole summary FILE.tflite` shows what it takes"));
            }
            each(i, given);
            values[i] = Some(given.clone());
        }
        for (n, o) in model.operators.iter().enumerate() {
            let made = self.run_operator(n, &values)?;
            for (&i, y) in o.outputs.iter().zip(made) {
                each(i, &y);
                values[i] = Some(y);
            }
            for &i in o.inputs.iter().flatten().chain(&o.outputs) {
                if self.last_reads[i] <= n {
                    values[i] = None;
                }
            }
        }
        let output =
            |&i: &usize| values[i].clone().ok_or_else(|| broken(format!("nothing makes output tensor {i}")));
        model.outputs.iter().map(output).collect()
    }

    /// What one operator makes, of the file's types; `values`: what each tensor of the model holds by now.
    ///
    /// # Errors
    /// When there is no such operator, or it cannot compute what the file says; names it.
    pub fn run_operator(&self, n: usize, values: &[Option<Literal>]) -> Result<Vec<Literal>> {
        let model = self.model;
        let operator = model.operators.get(n).ok_or_else(|| broken(format!("there is no operator {n}")))?;
        let row =
            row(operator.op.code()).ok_or_else(|| broken(format!("{} is not known here", operator.op)))?;
        let made =
            (row.kernel)(&OperatorCall { model, operator, values }).map_err(|e| e.at(model.place(n)))?;
        for (&i, y) in operator.outputs.iter().zip(&made) {
            let t = model.tensor(i)?;
            if y.ty() != &t.ty {
                let why = format!("it makes {}, the file says {}", y.ty(), t.ty);
                return Err(broken(why).at(model.place(n)));
            }
        }
        Ok(made)
    }
}
