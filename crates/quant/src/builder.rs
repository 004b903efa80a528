//! Builder of a TFLite graph: adds constants and operators, and fuses activations and affine maps into the preceding
//! operator if nothing else reads its result.

use systole_ir::{DType, Literal, Result, Shape};
use systole_tflite::{
    FusedActivation, OptionField, TfliteModel, TfliteOp, TfliteOperator, TflitePadding, TfliteTensor,
};

/// A TFLite graph to which layers add operators.
pub(crate) struct TfliteBuilder {
    pub model: TfliteModel,
    /// Number of layers that read each tensor.
    pub readers: Vec<usize>,
}

impl TfliteBuilder {
    pub fn new() -> TfliteBuilder {
        TfliteBuilder {
            model: TfliteModel { description: "Systole".into(), ..TfliteModel::default() },
            readers: Vec::new(),
        }
    }

    pub fn tensor(&mut self, tensor: TfliteTensor) -> usize {
        self.model.tensors.push(tensor);
        self.readers.push(0);
        self.model.tensors.len() - 1
    }

    pub fn dims(&self, tensor: usize) -> Vec<usize> {
        self.model.tensors[tensor].dims().to_vec()
    }

    pub fn floats(&mut self, name: String, shape: impl Into<Shape>, values: &[f32]) -> Result<usize> {
        let data = Literal::from_slice(shape, values)?;
        Ok(self.tensor(TfliteTensor::constant(name, data)))
    }

    pub fn ints(&mut self, name: String, shape: impl Into<Shape>, values: &[i32]) -> Result<usize> {
        let data = Literal::from_slice(shape, values)?;
        Ok(self.tensor(TfliteTensor::constant(name, data)))
    }

    /// Adds a TFLite operator with one output of this shape.
    pub fn push(&mut self, name: &str, dims: impl Into<Shape>, mut operator: TfliteOperator) -> usize {
        let output = self.tensor(TfliteTensor::new(self.unique(name), dims, DType::F32));
        operator.outputs = vec![output];
        self.model.operators.push(operator);
        output
    }

    /// Adds a TFLite operator with several outputs of one shape.
    pub fn push_several(
        &mut self,
        name: &str,
        dims: &[usize],
        outputs: usize,
        mut operator: TfliteOperator,
    ) -> Vec<usize> {
        for k in 0..outputs {
            let output =
                self.tensor(TfliteTensor::new(self.unique(&format!("{name}/{k}")), dims, DType::F32));
            operator.outputs.push(output);
        }
        let made = operator.outputs.clone();
        self.model.operators.push(operator);
        made
    }

    /// Returns an unused tensor name.
    fn unique(&self, name: &str) -> String {
        let taken = |name: &str| self.model.tensors.iter().any(|t| t.name == name);
        let mut found = name.to_string();
        let mut n = 1;
        while taken(&found) {
            found = format!("{name}_{n}");
            n += 1;
        }
        found
    }

    /// Adds a TFLite operator without options.
    pub fn apply(&mut self, name: &str, op: TfliteOp, inputs: &[usize], dims: impl Into<Shape>) -> usize {
        self.push(name, dims, TfliteOperator::new(op, inputs.iter().copied(), []))
    }

    pub fn reshape(&mut self, name: &str, x: usize, dims: Vec<usize>) -> Result<usize> {
        let list: Vec<i32> = dims.iter().map(|&d| d as i32).collect();
        let shape = self.ints(format!("{name}/shape"), [dims.len()], &list)?;
        Ok(self.push(
            name,
            dims,
            TfliteOperator::new(TfliteOp::Reshape, [x, shape], []).with_list(OptionField::NewShape, list),
        ))
    }

    /// Returns the operator that computes a tensor, if only one operator reads the tensor.
    pub fn maker(&mut self, tensor: usize) -> Option<usize> {
        if self.readers[tensor] > 1 {
            return None;
        }
        self.model.operators.iter().rposition(|o| o.outputs.contains(&tensor))
    }

    /// Returns the operator whose values `x` holds, through MAX_POOL and data movement (clamping commutes with both).
    fn source_of_values(&mut self, x: usize) -> Option<usize> {
        let mut at = self.maker(x)?;
        while matches!(self.model.operators[at].op, TfliteOp::MaxPool2D | TfliteOp::Reshape) {
            let before = self.model.operators[at].inputs.first().copied().flatten()?;
            at = self.maker(before)?;
        }
        Some(at)
    }

    /// Applies an activation to `x`: fused into the operator that computes `x` if possible.
    pub fn activated(&mut self, name: &str, x: usize, activation: FusedActivation) -> usize {
        if activation == FusedActivation::None {
            return x;
        }
        let fuses = |op: TfliteOp| {
            matches!(
                op,
                TfliteOp::Conv2D
                    | TfliteOp::DepthwiseConv2D
                    | TfliteOp::FullyConnected
                    | TfliteOp::Add
                    | TfliteOp::Sub
                    | TfliteOp::Mul
            )
        };
        if let Some(at) = self.source_of_values(x) {
            let o = &mut self.model.operators[at];
            if fuses(o.op) && o.int(OptionField::Activation) == 0 {
                *o = o.clone().with(OptionField::Activation, activation.code());
                return x;
            }
        }
        let op = match activation {
            FusedActivation::Relu6 => TfliteOp::Relu6,
            FusedActivation::ReluN1To1 => TfliteOp::ReluN1To1,
            _ => TfliteOp::Relu,
        };
        let dims = self.dims(x);
        self.apply(name, op, &[x], dims)
    }
}

/// Sets an operator's window options.
pub(crate) fn window(
    operator: TfliteOperator,
    padding: TflitePadding,
    [sh, sw]: [usize; 2],
) -> TfliteOperator {
    let code = if padding == TflitePadding::Same { 0.0 } else { 1.0 };
    operator
        .with(OptionField::Padding, code)
        .with(OptionField::StrideH, sh as f64)
        .with(OptionField::StrideW, sw as f64)
}
