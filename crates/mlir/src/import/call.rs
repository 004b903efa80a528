//! An op as the functions that import it see it, and a row of the table of ops: which function that is.

use super::attribute;
use super::complex_number::RealOrComplex;
use super::importer::{CallFrame, Importer};
use super::types::{held, not_there, wrong};
use super::value::ImportedValue;
use crate::syntax::{MlirModule, MlirType, Operation};
use std::sync::Arc;
use systole_base::{DType, Result, TensorType};
use systole_ir::op::{Op, OpSource, entry};
use systole_ir::{Graph, GraphBuilder, Tensor};

/// A row of the table: what is known of an op.
pub(super) struct OpImport {
    /// With its dialect: `chlo.erf`; of a custom call what it calls: `Qr`.
    pub name: &'static str,
    /// Whether it is a custom call.
    pub is_call: bool,
    pub import: ImportRule,
    pub complex: ComplexRule,
    /// Whether results are elements of operands or have been fitted already, where the IR holds elements in wider ones.
    pub keeps_elements: bool,
    /// Whether the type of the result says its shape.
    pub is_shaped: bool,
}

type ImporterFn = for<'m> fn(
    &mut Importer<'m>,
    &'m Operation,
    Vec<ImportedValue>,
    &mut CallFrame<'m>,
    &GraphBuilder,
) -> Result<Vec<ImportedValue>>;

/// The results of an op; `None`: it is imported as the IR's own.
pub(super) type OpResults = Result<Option<Vec<Tensor>>>;

/// How an op is imported.
#[derive(Clone, Copy)]
pub(super) enum ImportRule {
    /// As the IR's op of the same name.
    Native,
    /// By what knows the functions, tokens and devices of the module.
    Importer(ImporterFn),
    /// On real and complex numbers.
    Values(fn(&OpCall) -> Result<Vec<ImportedValue>>),
    /// On real arrays; `None`: as the IR's own.
    Arrays(fn(&ArrayCall) -> OpResults),
    /// A function of elements.
    Elements(ElementwiseFn),
    /// On arrays, and bodies whose first parameters are the captured values.
    Bodies(fn(&ArrayCall, &[Tensor], &[Arc<Graph>]) -> OpResults),
    /// Not at all, and why.
    Refused(&'static str),
}

/// A function of elements.
#[derive(Clone, Copy)]
pub(super) enum ElementwiseFn {
    /// Of any element type.
    Any(fn(&Tensor) -> Tensor),
    /// Of floats, narrow ones in f32.
    Floats(fn(&Tensor) -> Tensor),
    /// As [`ElementwiseFn::Floats`], of two operands.
    FloatPairs(fn(&Tensor, &Tensor) -> Tensor),
    /// Of two operands; `None`: not of their type.
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
            _ => return Err(wrong(format!("{name} of {} operands", operands.len()))),
        };
        made.ok_or_else(|| not_there(format!("{name} is not defined on {}", operands[0].dtype())))
    }
}

/// What becomes of an op of complex numbers.
#[derive(Clone, Copy)]
pub(super) enum ComplexRule {
    /// It is refused.
    Refused,
    /// The op itself on each part: it moves elements.
    Parts,
    /// The op itself on each part where its body is a sum or the last value.
    Folds,
    /// As [`ComplexRule::Folds`], else the parts are values of their own.
    FoldsOrApart,
    /// The parts are values of their own.
    Apart,
    /// The operands as they are.
    Nothing,
    /// The elements of a constant.
    Constant,
    Unary(fn(&RealOrComplex) -> RealOrComplex),
    Binary(fn(&RealOrComplex, &RealOrComplex) -> RealOrComplex),
    /// Of as many operands as the first says.
    Number(usize, fn(&OpCall) -> Result<RealOrComplex>),
}

/// A row of an op that the IR has.
pub(super) const fn op(name: &'static str) -> OpImport {
    let (import, complex) = (ImportRule::Native, ComplexRule::Refused);
    OpImport { name, is_call: false, import, complex, keeps_elements: false, is_shaped: false }
}

/// A row of a custom call.
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

    /// Of complex numbers.
    pub const fn unary(self, f: fn(&RealOrComplex) -> RealOrComplex) -> OpImport {
        self.complex(ComplexRule::Unary(f))
    }

    /// Of complex numbers.
    pub const fn binary(self, f: fn(&RealOrComplex, &RealOrComplex) -> RealOrComplex) -> OpImport {
        self.complex(ComplexRule::Binary(f))
    }

    pub const fn keeps_elements(self) -> OpImport {
        OpImport { keeps_elements: true, ..self }
    }

    /// Its results are elements of its operands.
    pub const fn moves(self) -> OpImport {
        self.complex(ComplexRule::Parts).keeps_elements()
    }

    pub const fn shaped(self) -> OpImport {
        OpImport { is_shaped: true, ..self }
    }
}

/// One op on values.
pub(super) struct OpCall<'a> {
    pub row: &'a OpImport,
    pub module: &'a MlirModule,
    pub op: &'a Operation,
    pub operands: &'a [ImportedValue],
    /// Types of the results, as the module says them.
    pub results: &'a [&'a MlirType],
    pub g: &'a GraphBuilder,
}

impl OpCall<'_> {
    pub fn number(&self, i: usize) -> Result<RealOrComplex> {
        self.operands.get(i).ok_or_else(|| wrong("an operand is missing"))?.number()
    }

    /// The first result, as the module says it.
    pub fn result(&self) -> Result<&MlirType> {
        self.results.first().copied().ok_or_else(|| wrong("a result is missing"))
    }

    /// The type of each part of the first result.
    pub fn ty(&self) -> Result<TensorType> {
        held(self.result()?)?.into_iter().next().ok_or_else(|| wrong("a result without a type"))
    }

    /// The op itself on other operands, which are real.
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

/// One op on arrays.
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

    /// All operands, which must be so many.
    pub fn all<const N: usize>(&self) -> Result<&'a [Tensor; N]> {
        let found = self.operands.try_into();
        found.map_err(|_| wrong(format!("{} operands, not {N}", self.operands.len())))
    }

    pub fn result(&self) -> Result<&'a TensorType> {
        self.results.first().ok_or_else(|| wrong("a result is missing"))
    }

    /// Another op on other operands.
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

/// The IR's own op of the same name.
pub(super) fn emit(
    module: &MlirModule,
    op: &Operation,
    operands: Vec<Tensor>,
    results: Vec<TensorType>,
    (captured, regions): (Vec<Tensor>, Vec<Arc<Graph>>),
    g: &GraphBuilder,
) -> Result<Vec<Tensor>> {
    let name = op.name.strip_prefix("stablehlo.").unwrap_or(&op.name);
    let known = entry(name).ok_or_else(|| not_there(format!("{} is not supported", op.name)))?;
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
        return Err(wrong(format!("it has no {} regions", source.regions.len())));
    }
    if read.rule().captures() != captured.len() {
        return Err(not_there("its regions use values from outside of it"));
    }
    read.rule().infer(&types).map_err(|c| wrong(format!("({}) {}", c.label, c.message)))?;
    Ok(g.emit(read, &inputs))
}

/// Operands of products with two element types, which XLA takes: both as the wider one, of bf16 and f16 as f32.
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
