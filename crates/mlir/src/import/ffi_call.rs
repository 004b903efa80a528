//! Imports calls of FFI handlers (`jax.ffi.ffi_call`): C functions that the host program registers by name.
//!
//! In the IR, the call is a host function ([`CustomCall`]) named [`PREFIX`] plus the handler's name. Its configuration
//! is the call as MLIR text, which [`FfiCall::parse`] reads: types, attributes, and results that share memory with operands.

use super::attribute::{literal, text};
use super::call::{ImportRule, OpImport, call};
use super::effects::{PREFIX, has_side_effect};
use super::importer::{CallFrame, Importer};
use super::types::{element, held, is_settled, not_there, unsettled, wrong};
use super::value::ImportedValue;
use crate::interface::ProgramPort;
use crate::syntax::{
    Attribute, DenseElements, ElementData, MlirFunction, MlirModule, MlirRegion, MlirType, NamedAttributes,
    Operation, RankedTensorType, find,
};
use std::sync::atomic::{AtomicI64, Ordering};
use systole_base::{DType, Literal, Result, TensorType, ensure};
use systole_ir::op::CustomCall;
use systole_ir::text::parse_element;
use systole_ir::{GraphBuilder, Tensor};

/// Row of a call of a registered FFI handler.
pub(super) const FFI_CALL: OpImport =
    call("", ImportRule::Importer(|i, op, operands, frame, g| i.ffi_call(op, &operands, frame, g)));

const ALIASES: &str = "aliases";
const API_VERSION: &str = "api_version";
/// The `api_version` of calls of typed FFI handlers.
const TYPED: i64 = 4;
/// Distinguishes calls with equal attributes, each of which has its own state.
const SITE: &str = "site";

/// A call of an FFI handler: types, attributes, and results that share memory with operands.
#[derive(Clone, Debug, PartialEq)]
pub struct FfiCall {
    /// Name of the handler.
    pub target: String,
    /// Operands; `None` is a token. `first` is the index among the arrays that hold all operands.
    pub operands: Vec<Option<ProgramPort>>,
    /// Results, like the operands.
    pub results: Vec<Option<ProgramPort>>,
    /// Pairs of an operand and a result with the same memory.
    pub aliases: Vec<(usize, usize)>,
    /// Attributes in order of name.
    pub attributes: Vec<(String, FfiAttribute)>,
    /// Set for calls of C functions without typed arguments.
    pub untyped: Option<UntypedCall>,
}

/// How a C function without typed arguments is called (`jax.ffi.ffi_call(custom_call_api_version=1)`).
#[derive(Clone, Debug, PartialEq)]
pub struct UntypedCall {
    /// 1: results and operands; 2: also a status; 3: also `opaque`.
    pub api_version: i64,
    /// The call's `backend_config`.
    pub opaque: String,
}

/// An attribute of an FFI call.
#[derive(Clone, Debug, PartialEq)]
pub enum FfiAttribute {
    /// A number.
    Scalar(Literal),
    /// A one-dimensional array.
    Array(Literal),
    /// A string.
    String(String),
    /// Attributes in order of name.
    Dictionary(Vec<(String, FfiAttribute)>),
}

impl FfiCall {
    /// Parses the configuration of a call in the IR.
    ///
    /// # Errors
    /// `Data` for text that is not a call, `Unsupported` for attributes that FFI handlers cannot receive.
    pub fn parse(config: &str) -> Result<FfiCall> {
        let module = crate::text::parse(config)?;
        let f = module.functions.first().ok_or_else(|| wrong("an FFI call without a function"))?;
        let op = f.body.operations.first().ok_or_else(|| wrong("an FFI call without an operation"))?;
        let ports = |values: &[usize]| {
            let mut first = 0;
            let one = |v: &usize| port(f.values.get(*v).unwrap_or(&MlirType::Token), &mut first);
            values.iter().map(one).collect::<Result<Vec<_>>>()
        };
        let attributes = match find(&op.attributes, "mhlo.backend_config") {
            Some(Attribute::Dictionary(fields)) => dictionary(fields)?,
            _ => Vec::new(),
        };
        let aliases = match find(&op.attributes, ALIASES) {
            Some(Attribute::Array(_, items)) => items.iter().filter_map(index).collect(),
            _ => Vec::new(),
        };
        Ok(FfiCall {
            target: text(op, "call_target_name").unwrap_or_default().to_owned(),
            operands: ports(&op.operands)?,
            results: ports(&op.results)?,
            aliases: aliases.chunks_exact(2).map(|pair| (pair[0], pair[1])).collect(),
            attributes,
            untyped: untyped(op),
        })
    }
}

/// Returns how an untyped function is called; `None` for typed FFI handlers. The default version of StableHLO is 1.
fn untyped(op: &Operation) -> Option<UntypedCall> {
    let api_version = match find(&op.attributes, API_VERSION) {
        Some(Attribute::Int(n)) => i64::try_from(*n).unwrap_or(i64::MAX),
        _ if matches!(find(&op.attributes, "mhlo.backend_config"), Some(Attribute::Dictionary(_))) => TYPED,
        _ => 1,
    };
    let opaque = text(op, "backend_config").unwrap_or_default().to_owned();
    (api_version < TYPED).then_some(UntypedCall { api_version, opaque })
}

fn index(a: &Attribute) -> Option<usize> {
    if let Attribute::Int(i) = a { usize::try_from(*i).ok() } else { None }
}

fn port(ty: &MlirType, first: &mut usize) -> Result<Option<ProgramPort>> {
    let MlirType::Tensor(ranked) = ty else { return Ok(None) };
    let element = element(ty)?;
    let dims = ranked.dims.iter().flatten().map(|d| *d as usize).collect();
    let port = ProgramPort { dims, element, first: *first };
    *first += element.held().len();
    Ok(Some(port))
}

fn dictionary(fields: &NamedAttributes) -> Result<Vec<(String, FfiAttribute)>> {
    let mut all = fields
        .iter()
        .map(|(name, value)| Ok((name.clone(), attribute(name, value)?)))
        .collect::<Result<Vec<_>>>()?;
    all.sort_by(|a, b| a.0.cmp(&b.0));
    Ok(all)
}

fn attribute(name: &str, value: &Attribute) -> Result<FfiAttribute> {
    let number = |dtype: &str, word: &str| {
        let made =
            DType::parse(dtype).filter(|d| d.name() == dtype).map(|d| numbers(d, &[word.to_owned()], &[]));
        made.unwrap_or_else(|| Err(unsupported(name)))
    };
    Ok(match value {
        Attribute::Bool(b) => FfiAttribute::Scalar(Literal::from_bools([], &[*b])?),
        Attribute::Int(i) => FfiAttribute::Scalar(number("i64", &i.to_string())?),
        Attribute::Float(digits, ty) => FfiAttribute::Scalar(number(ty, digits)?),
        Attribute::Other(ty, digits) => FfiAttribute::Scalar(number(ty, digits)?),
        Attribute::String(text) => FfiAttribute::String(text.clone()),
        Attribute::Dictionary(fields) => FfiAttribute::Dictionary(dictionary(fields)?),
        Attribute::Dense(dense) => {
            let array = literal(dense, &MlirModule::default())?;
            FfiAttribute::Array(array.reshape([array.ty().elements()])?)
        }
        Attribute::Array(ty, items) => {
            let word = |item: &Attribute| match item {
                Attribute::Int(i) => Ok(i.to_string()),
                Attribute::Bool(b) => Ok(b.to_string()),
                Attribute::Float(digits, _) => Ok(digits.clone()),
                _ => Err(unsupported(name)),
            };
            let words = items.iter().map(word).collect::<Result<Vec<_>>>()?;
            let dtype = DType::parse(ty).ok_or_else(|| unsupported(name))?;
            FfiAttribute::Array(numbers(dtype, &words, &[words.len()])?)
        }
        _ => return Err(unsupported(name)),
    })
}

fn unsupported(name: &str) -> systole_base::Error {
    not_there(format!("unsupported type of the FFI attribute `{name}`"))
        .because("FFI handlers receive numbers, arrays of numbers, strings and dictionaries")
        .hint("pass lists as NumPy arrays")
}

fn numbers(dtype: DType, words: &[String], dims: &[usize]) -> Result<Literal> {
    let mut bytes = Vec::new();
    for word in words {
        let bits = parse_element(word, dtype).map_err(wrong)?;
        bytes.extend_from_slice(&bits.to_le_bytes()[..dtype.size()]);
    }
    Literal::from_bytes(TensorType::new(dtype, dims), &bytes)
}

/// Writes integers with their type: the printer chooses the type of some by their name.
fn typed(value: &Attribute) -> Attribute {
    match value {
        Attribute::Int(i) => Attribute::Other("i64".into(), i.to_string()),
        Attribute::Dictionary(fields) => Attribute::Dictionary(all_typed(fields)),
        other => other.clone(),
    }
}

fn all_typed(fields: &NamedAttributes) -> NamedAttributes {
    fields.iter().map(|(name, value)| (name.clone(), typed(value))).collect()
}

/// Returns the configuration of a call: a module with a function that contains only the call.
fn description(op: &Operation, operands: &[&MlirType], results: &[&MlirType]) -> Result<String> {
    static CALLS: AtomicI64 = AtomicI64::new(0);
    let (n, all) = (operands.len(), operands.len() + results.len());
    let mut attributes = vec![("call_target_name".into(), text_of(op, "call_target_name"))];
    if let Some(Attribute::Dictionary(fields)) = find(&op.attributes, "mhlo.backend_config") {
        attributes.push(("mhlo.backend_config".into(), Attribute::Dictionary(all_typed(fields))));
    }
    let UntypedCall { api_version, opaque } =
        untyped(op).unwrap_or(UntypedCall { api_version: TYPED, opaque: String::new() });
    attributes.push((API_VERSION.into(), Attribute::Int(api_version.into())));
    if !opaque.is_empty() {
        attributes.push(("backend_config".into(), Attribute::String(opaque)));
    }
    attributes.push((ALIASES.into(), Attribute::Array("i64".into(), aliases(op)?)));
    let site = CALLS.fetch_add(1, Ordering::Relaxed);
    attributes.push((SITE.into(), Attribute::Int(site.into())));
    let values: Vec<usize> = (0..all).collect();
    let called = Operation {
        name: op.name.clone(),
        operands: values[..n].to_vec(),
        results: values[n..].to_vec(),
        attributes,
        ..Operation::default()
    };
    let end =
        Operation { name: "func.return".into(), operands: values[n..].to_vec(), ..Operation::default() };
    let main = MlirFunction {
        name: "main".into(),
        parameters: vec![NamedAttributes::new(); n],
        names: vec![String::new(); n],
        results: results.iter().map(|ty| ((*ty).clone(), NamedAttributes::new())).collect(),
        values: operands.iter().chain(results).map(|ty| (*ty).clone()).collect(),
        body: MlirRegion { arguments: values[..n].to_vec(), operations: vec![called, end] },
        ..MlirFunction::default()
    };
    Ok(crate::text::write(&MlirModule { functions: vec![main], ..MlirModule::default() }))
}

fn text_of(op: &Operation, name: &str) -> Attribute {
    Attribute::String(text(op, name).unwrap_or_default().into())
}

/// Returns pairs of an operand's and a result's index, one after the other.
fn aliases(op: &Operation) -> Result<Vec<Attribute>> {
    let Some(Attribute::List(items)) = find(&op.attributes, "output_operand_aliases") else {
        return Ok(Vec::new());
    };
    let mut all = Vec::new();
    for item in items {
        let Attribute::Struct(_, fields) = item else {
            return Err(wrong("invalid `output_operand_aliases`"));
        };
        let result = match find(fields, "output_tuple_indices") {
            Some(Attribute::List(items) | Attribute::Array(_, items)) => items.first().cloned(),
            _ => None,
        };
        all.push(find(fields, "operand_index").cloned().unwrap_or(Attribute::Int(0)));
        all.push(result.unwrap_or(Attribute::Int(0)));
    }
    Ok(all)
}

/// Returns the dimensions of each value from major to minor; `None` if row-major.
fn orders(op: &Operation, name: &str, count: usize) -> Result<Vec<Option<Vec<usize>>>> {
    let Some(Attribute::List(items)) = find(&op.attributes, name) else { return Ok(vec![None; count]) };
    let one = |item: &Attribute| {
        let Attribute::Dense(dense) = item else { return Err(wrong(format!("invalid `{name}`"))) };
        if matches!(dense.elements, ElementData::None) {
            return Ok(None);
        }
        let minor_to_major = literal(&as_i64(dense), &MlirModule::default())?;
        let dims = minor_to_major.to_f64s().into_iter().rev().map(|d| d as usize).collect::<Vec<_>>();
        Ok(Some(dims).filter(|dims| !dims.is_sorted()))
    };
    let mut all = items.iter().map(one).collect::<Result<Vec<_>>>()?;
    all.resize(count, None);
    Ok(all)
}

fn as_i64(dense: &DenseElements) -> DenseElements {
    let ty = match &dense.ty {
        MlirType::Tensor(ranked) => {
            MlirType::Tensor(RankedTensorType { element: "i64".into(), ..ranked.clone() })
        }
        other => other.clone(),
    };
    DenseElements { ty, elements: dense.elements.clone() }
}

fn is_permutation(dims: &[usize], rank: usize) -> bool {
    let mut sorted = dims.to_vec();
    sorted.sort_unstable();
    sorted.into_iter().eq(0..rank)
}

impl<'m> Importer<'m> {
    /// Arrays are passed in the memory order that the call requests; the handler sees the dimensions of the program.
    fn ffi_call(
        &mut self,
        op: &'m Operation,
        operands: &[ImportedValue],
        frame: &CallFrame<'m>,
        g: &GraphBuilder,
    ) -> Result<Vec<ImportedValue>> {
        let types = |values: &[usize]| values.iter().map(|v| frame.ty(*v)).collect::<Result<Vec<_>>>();
        let (from, to) = (types(&op.operands)?, types(&op.results)?);
        for ty in from.iter().chain(&to) {
            ensure!(is_settled(ty), unsettled(ty));
        }
        let mut inputs = Vec::new();
        for (value, order) in operands.iter().zip(orders(op, "operand_layouts", from.len())?) {
            for part in value.parts()? {
                inputs.push(match order.as_ref().filter(|dims| is_permutation(dims, part.rank())) {
                    Some(dims) => part.transpose(dims),
                    None => part,
                });
            }
        }
        let orders = orders(op, "result_layouts", to.len())?;
        let held = to.iter().map(|ty| held(ty)).collect::<Result<Vec<_>>>()?;
        let mut results = Vec::new();
        for (types, order) in held.iter().zip(&orders) {
            results.extend(types.iter().map(|ty| match order {
                Some(dims) if is_permutation(dims, ty.rank()) => {
                    TensorType::new(ty.dtype, dims.iter().map(|d| ty.shape[*d]).collect::<Vec<_>>())
                }
                _ => ty.clone(),
            }));
        }
        let has_side_effect = has_side_effect(op);
        let call = CustomCall {
            target: format!("{PREFIX}{}", text(op, "call_target_name").unwrap_or_default()),
            config: description(op, &from, &to)?,
            has_side_effect,
            results,
        };
        let mut made = self.emit_host_call(call, inputs, g).into_iter();
        let mut values = Vec::new();
        for (types, order) in held.iter().zip(orders) {
            let mut parts = made.by_ref().take(types.len()).map(|part| back(part, order.as_deref()));
            let value = ImportedValue::of_parts(&mut parts, types.len());
            values.push(value.ok_or_else(|| wrong("the call has too few results"))?);
        }
        Ok(values)
    }
}

/// Returns an array from its memory order to row-major.
fn back(part: Tensor, order: Option<&[usize]>) -> Tensor {
    let Some(dims) = order.filter(|dims| is_permutation(dims, part.rank())) else { return part };
    let mut inverse = vec![0; dims.len()];
    dims.iter().enumerate().for_each(|(i, d)| inverse[*d] = i);
    part.transpose(&inverse)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::interface::SourceElement;

    #[test]
    fn a_description_is_read_back() {
        let op = r#"func.func @main(%a: tensor<2x3xf32>, %b: tensor<complex<f32>>) -> tensor<2x3xf32> {
          %0 = stablehlo.custom_call @f(%a, %b) {mhlo.backend_config = {index = 5 : i64, z = true, s = "a\0A\"b",
            f = 0x7F800000 : f32, u = 3 : ui8, d = dense<[[1, 2]]> : tensor<1x2xi64>, e = array<i32>,
            sub = {y = 1.5 : f64, x = 2 : i32}}, output_operand_aliases = [
            #stablehlo.output_operand_alias<output_tuple_indices = [], operand_index = 0, operand_tuple_indices = []>]}
            : (tensor<2x3xf32>, tensor<complex<f32>>) -> tensor<2x3xf32>
          return %0 : tensor<2x3xf32>
        }"#;
        let module = crate::text::parse(op).unwrap();
        let f = &module.functions[0];
        let types: Vec<&MlirType> = f.values.iter().collect();
        let text = description(&f.body.operations[0], &types[..2], &types[2..]).unwrap();
        let call = FfiCall::parse(&text).unwrap_or_else(|e| panic!("{e}\n{text}"));
        let port = |dims: &[usize], element, first| Some(ProgramPort { dims: dims.into(), element, first });
        let f32s = SourceElement::Plain(DType::F32);
        assert_eq!(call.operands, [port(&[2, 3], f32s, 0), port(&[], SourceElement::Complex(DType::F32), 1)]);
        assert_eq!((call.target.as_str(), &call.results), ("f", &vec![port(&[2, 3], f32s, 0)]));
        assert_eq!((call.aliases, call.untyped), (vec![(0, 0)], None));
        let scalar = |dtype, value: f64| FfiAttribute::Scalar(Literal::scalar(dtype, value));
        let array =
            |values: &[i64]| FfiAttribute::Array(Literal::from_slice([values.len()], values).unwrap());
        let expected = [
            ("d", array(&[1, 2])),
            ("e", FfiAttribute::Array(Literal::from_slice::<i32>([0], &[]).unwrap())),
            ("f", scalar(DType::F32, f64::INFINITY)),
            ("index", scalar(DType::I64, 5.0)),
            ("s", FfiAttribute::String("a\n\"b".into())),
            (
                "sub",
                FfiAttribute::Dictionary(vec![
                    ("x".into(), scalar(DType::I32, 2.0)),
                    ("y".into(), scalar(DType::F64, 1.5)),
                ]),
            ),
            ("u", scalar(DType::U8, 3.0)),
            ("z", FfiAttribute::Scalar(Literal::from_bools([], &[true]).unwrap())),
        ];
        let found: Vec<(&str, FfiAttribute)> =
            call.attributes.iter().map(|(name, value)| (name.as_str(), value.clone())).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn an_untyped_call_keeps_its_version_and_text() {
        let op = |attributes: &str| {
            let text = format!(
                "func.func @main() -> tensor<f32> {{\n%0 = stablehlo.custom_call @f() {attributes} : () -> tensor<f32>\n\
                 return %0 : tensor<f32>\n}}"
            );
            let module = crate::text::parse(&text).unwrap();
            let f = &module.functions[0];
            let types: Vec<&MlirType> = f.values.iter().collect();
            FfiCall::parse(&description(&f.body.operations[0], &[], &types).unwrap()).unwrap().untyped
        };
        let untyped = |api_version, opaque: &str| Some(UntypedCall { api_version, opaque: opaque.into() });
        assert_eq!(op(""), untyped(1, ""));
        assert_eq!(op(r#"{api_version = 3 : i32, backend_config = "a\0A\"b"}"#), untyped(3, "a\n\"b"));
        assert_eq!(op("{api_version = 4 : i32}"), None);
    }

    #[test]
    fn lists_are_an_error_that_names_the_attribute() {
        let fields = vec![("words".to_owned(), Attribute::List(vec![Attribute::Int(1)]))];
        assert!(dictionary(&fields).unwrap_err().to_string().contains("`words`"));
    }
}
