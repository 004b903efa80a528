//! Table row of an importable MLIR op, and the arguments that import functions receive.

use super::attribute;
use super::complex_number::RealOrComplex;
use super::importer::{CallFrame, Importer};
use super::types::{held, not_there, wrong};
use super::value::ImportedValue;
use crate::syntax::{MlirModule, MlirType, Operation};
use std::sync::Arc;
use systole_base::{DType, Result, TensorType, ensure};
use systole_ir::op::{Op, OpSource, entry};
use systole_ir::{Graph, GraphBuilder, Tensor};

/// Table row: how an op is imported.
pub(super) struct OpImport {
    /// Op name with its dialect: `chlo.erf`; for a custom call its target: `Qr`.
    pub name: &'static str,
    /// Whether it is a custom call.
    pub is_call: bool,
    pub import: ImportRule,
    pub complex: ComplexRule,
    /// Whether results need no wrapping or rounding to a narrow type: they are elements of operands, or already
    /// rounded.
    pub keeps_elements: bool,
    /// Whether the result type determines the shape.
    pub is_shaped: bool,
}

type ImporterFn = for<'m> fn(
    &mut Importer<'m>,
    &'m Operation,
    Vec<ImportedValue>,
    &mut CallFrame<'m>,
    &GraphBuilder,
) -> Result<Vec<ImportedValue>>;

/// Results of an op; `None`: import it as the IR's op of the same name.
pub(super) type OpResults = Result<Option<Vec<Tensor>>>;

/// How an op is imported.
#[derive(Clone, Copy)]
pub(super) enum ImportRule {
    /// As the IR's op of the same name.
    Native,
    /// By a function that needs the importer's state: functions, tokens, devices.
    Importer(ImporterFn),
    /// By a function on real or complex values.
    Values(fn(&OpCall) -> Result<Vec<ImportedValue>>),
    /// By a function on real arrays; `None`: import as the IR's own op.
    Arrays(fn(&ArrayCall) -> OpResults),
    /// By an element-wise function.
    Elements(ElementwiseFn),
    /// By a function on arrays and bodies whose first parameters are the captured values.
    Bodies(fn(&ArrayCall, &[Tensor], &[Arc<Graph>]) -> OpResults),
    /// Rejected, with the reason.
    Refused(&'static str),
}

/// An element-wise function.
#[derive(Clone, Copy)]
pub(super) enum ElementwiseFn {
    /// On any element type.
    Any(fn(&Tensor) -> Tensor),
    /// On floats; narrow floats are computed in f32.
    Floats(fn(&Tensor) -> Tensor),
    /// Like [`ElementwiseFn::Floats`], with two operands.
    FloatPairs(fn(&Tensor, &Tensor) -> Tensor),
    /// With two operands; `None`: not defined on their type.
    Pairs(fn(&Tensor, &Tensor) -> Option<Tensor>),
}

impl ElementwiseFn {
    pub fn apply(self, name: &str, operands: &[Tensor]) -> Result<Tensor> {
        let wide = |x: &Tensor| match x.dtype() {
            dtype if !dtype.is_float() => None,
            DType::F64 => Some(x.clone()),
            _ => Some(x.convert(DType::F32)),
        };
        let made = match (self, operands) {
            (ElementwiseFn::Any(f), [x]) => Some(f(x)),
            (ElementwiseFn::Floats(f), [x]) => wide(x).map(|wide| f(&wide).convert(x.dtype())),
            (ElementwiseFn::FloatPairs(f), [x, y]) => {
                wide(x).map(|wide| f(&wide, &y.convert(wide.dtype())).convert(x.dtype()))
            }
            (ElementwiseFn::Pairs(f), [x, y]) => f(x, y),
            _ => return Err(wrong(format!("{name} got {} operands", operands.len()))),
        };
        made.ok_or_else(|| not_there(format!("{name} is not defined for {}", operands[0].dtype())))
    }
}

/// How an op on complex numbers is imported.
#[derive(Clone, Copy)]
pub(super) enum ComplexRule {
    /// Rejected.
    Refused,
    /// Applies the op to each part; it only moves elements.
    Parts,
    /// Applies the op to each part if its body is a sum or returns the last value.
    Folds,
    /// Like [`ComplexRule::Folds`], or with the parts as separate values.
    FoldsOrApart,
    /// With the parts as separate values.
    Apart,
    /// Returns the operands unchanged.
    Nothing,
    /// A constant.
    Constant,
    Unary(fn(&RealOrComplex) -> RealOrComplex),
    Binary(fn(&RealOrComplex, &RealOrComplex) -> RealOrComplex),
    /// A function with this number of operands.
    Number(usize, fn(&OpCall) -> Result<RealOrComplex>),
}

/// Row of an op that the IR supports.
pub(super) const fn op(name: &'static str) -> OpImport {
    let (import, complex) = (ImportRule::Native, ComplexRule::Refused);
    OpImport { name, is_call: false, import, complex, keeps_elements: false, is_shaped: false }
}

/// Row of a custom call.
pub(super) const fn call(name: &'static str, import: ImportRule) -> OpImport {
    OpImport { is_call: true, import, keeps_elements: true, ..op(name).complex(ComplexRule::Apart) }
}

impl OpImport {
    pub const fn import(self, import: ImportRule) -> OpImport {
        OpImport { import, ..self }
    }

    pub const fn arrays(self, f: fn(&ArrayCall) -> OpResults) -> OpImport {
        self.import(ImportRule::Arrays(f))
    }

    pub const fn importer(self, f: ImporterFn) -> OpImport {
        self.import(ImportRule::Importer(f))
    }

    pub const fn complex(self, complex: ComplexRule) -> OpImport {
        OpImport { complex, ..self }
    }

    pub const fn refused(self, why: &'static str) -> OpImport {
        self.import(ImportRule::Refused(why))
    }

    /// Adds the implementation on complex numbers to a unary op's import row.
    pub const fn unary(self, f: fn(&RealOrComplex) -> RealOrComplex) -> OpImport {
        self.complex(ComplexRule::Unary(f))
    }

    /// Adds the implementation on complex numbers to a binary op's import row.
    pub const fn binary(self, f: fn(&RealOrComplex, &RealOrComplex) -> RealOrComplex) -> OpImport {
        self.complex(ComplexRule::Binary(f))
    }

    pub const fn keeps_elements(self) -> OpImport {
        OpImport { keeps_elements: true, ..self }
    }

    /// Marks an op's import row: the op only moves elements.
    pub const fn moves(self) -> OpImport {
        self.complex(ComplexRule::Parts).keeps_elements()
    }

    pub const fn shaped(self) -> OpImport {
        OpImport { is_shaped: true, ..self }
    }
}

/// An op on real or complex values.
pub(super) struct OpCall<'a> {
    pub row: &'a OpImport,
    pub module: &'a MlirModule,
    pub op: &'a Operation,
    pub operands: &'a [ImportedValue],
    /// Result types stated by the module.
    pub results: &'a [&'a MlirType],
    pub g: &'a GraphBuilder,
}

impl OpCall<'_> {
    pub fn number(&self, i: usize) -> Result<RealOrComplex> {
        self.operands.get(i).ok_or_else(|| wrong("an operand is missing"))?.number()
    }

    /// Returns the stated type of the MLIR op's first result.
    pub fn result(&self) -> Result<&MlirType> {
        self.results.first().copied().ok_or_else(|| wrong("a result is missing"))
    }

    /// Returns the IR type of the op's first result; for a complex result, that of its real and imaginary part.
    pub fn ty(&self) -> Result<TensorType> {
        held(self.result()?)?.into_iter().next().ok_or_else(|| wrong("a result has no type"))
    }

    /// Imports the MLIR op itself on other, real operands.
    pub fn on_arrays(
        &self,
        operands: Vec<Tensor>,
        results: Vec<TensorType>,
        bodies: Vec<Arc<Graph>>,
    ) -> Result<Vec<Tensor>> {
        if let ImportRule::Arrays(f) = self.row.import {
            let (module, op, g) = (self.module, self.op, self.g);
            if let Some(made) = f(&ArrayCall { module, op, operands: &operands, results: &results, g })? {
                return Ok(made);
            }
        }
        emit(self.module, self.op, operands, results, (Vec::new(), bodies), self.g)
    }
}

/// An op on real arrays.
pub(super) struct ArrayCall<'a> {
    pub module: &'a MlirModule,
    pub op: &'a Operation,
    pub operands: &'a [Tensor],
    pub results: &'a [TensorType],
    pub g: &'a GraphBuilder,
}

impl<'a> ArrayCall<'a> {
    pub fn operand(&self, i: usize) -> Result<&'a Tensor> {
        self.operands.get(i).ok_or_else(|| wrong("an operand is missing"))
    }

    /// Returns all operands of the MLIR op; their number must be `N`.
    pub fn all<const N: usize>(&self) -> Result<&'a [Tensor; N]> {
        let found = self.operands.try_into();
        found.map_err(|_| wrong(format!("got {} operands, expected {N}", self.operands.len())))
    }

    pub fn result(&self) -> Result<&'a TensorType> {
        self.results.first().ok_or_else(|| wrong("a result is missing"))
    }

    /// Imports another MLIR op on other operands.
    pub fn emit(
        &self,
        op: &Operation,
        operands: Vec<Tensor>,
        results: Vec<TensorType>,
        bodies: Vec<Arc<Graph>>,
    ) -> Result<Vec<Tensor>> {
        emit(self.module, op, operands, results, (Vec::new(), bodies), self.g)
    }
}

/// Emits the IR's op of the same name.
pub(super) fn emit(
    module: &MlirModule,
    op: &Operation,
    operands: Vec<Tensor>,
    results: Vec<TensorType>,
    (captured, regions): (Vec<Tensor>, Vec<Arc<Graph>>),
    g: &GraphBuilder,
) -> Result<Vec<Tensor>> {
    let name = op.name.strip_prefix("stablehlo.").unwrap_or(&op.name);
    let known = entry(name).ok_or_else(|| not_there(format!("unsupported op {}", op.name)))?;
    if let Some((wide, to)) = product_of_kinds(name, &operands, &results) {
        let operands = operands.iter().map(|x| x.convert(wide)).collect();
        let results = results.into_iter().map(|ty| ty.with_dtype(wide)).collect();
        let made = emit(module, op, operands, results, (captured, regions), g)?;
        return Ok(made.iter().map(|y| y.convert(to)).collect());
    }
    let attrs = attribute::all(op, module)?;
    let operands = of_one_type(name, operands);
    let inputs: Vec<&Tensor> = captured.iter().chain(&operands).collect();
    let types: Vec<&TensorType> = inputs.iter().map(|t| t.ty()).collect();
    let source = OpSource {
        attrs: &attrs,
        regions,
        captures: captured.len(),
        operands: types.iter().map(|&t| t.clone()).collect(),
        results,
    };
    let read: Op = (known.parse)(&source).map_err(wrong)?;
    if read.rule().regions().len() != source.regions.len() {
        return Err(wrong(format!("the op must have {} regions", source.regions.len())));
    }
    ensure!(read.rule().captures() == captured.len(), not_there("its regions capture values from outside"));
    read.rule().infer(&types).map_err(|c| wrong(format!("({}) {}", c.label, c.message)))?;
    Ok(g.emit(read, &inputs))
}

/// Returns the type in which products with a result of another kind are computed, and the result's: integers with a
/// floating-point result, and counts of bools.
fn product_of_kinds(name: &str, operands: &[Tensor], results: &[TensorType]) -> Option<(DType, DType)> {
    let to = results.first()?.dtype;
    let all = |is: fn(DType) -> bool| operands.iter().all(|x| is(x.dtype()));
    let wide = match to {
        _ if !matches!(name, "dot_general" | "convolution") || all(DType::is_float) => return None,
        DType::F64 => DType::F64,
        to if to.is_float() && all(|dtype| !dtype.is_float()) => DType::F32,
        to if to.is_int() && all(|dtype| dtype == DType::Bool) => to,
        _ => return None,
    };
    Some((wide, to))
}

/// Converts operands of mixed element types, which XLA accepts in products, to the wider one; bf16 with f16 to f32.
fn of_one_type(name: &str, operands: Vec<Tensor>) -> Vec<Tensor> {
    let [a, b] = operands.as_slice() else { return operands };
    let (x, y) = (a.dtype(), b.dtype());
    if !matches!(name, "dot_general" | "convolution") || x == y || !x.is_float() || !y.is_float() {
        return operands;
    }
    let wide = match x.bits().cmp(&y.bits()) {
        std::cmp::Ordering::Greater => x,
        std::cmp::Ordering::Less => y,
        std::cmp::Ordering::Equal => DType::F32,
    };
    vec![a.convert(wide), b.convert(wide)]
}
