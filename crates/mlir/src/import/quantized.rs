//! Rewrites a module with quantized types as one with their integers: data movement works on the integers, other ops on
//! `scale · (q − zero point)`, and their results are quantized again.
//!
//! Source: the StableHLO specification, "Quantized types" and `dequantize_op_quantize`. The compiler computes products of
//! such values in integers.

use super::table;
use super::types::{not_there, wrong};
use crate::quantized_type::{QuantizedType, float_text};
use crate::syntax::{
    Attribute, DenseElements, ElementData, FunctionValue, MlirFunction, MlirModule, MlirRegion, MlirType,
    NamedAttributes, Operation, RankedTensorType, SourceSpan,
};
use systole_base::{Result, ResultExt, ensure};

/// Maximum depth of nested regions.
const MAX_DEPTH: usize = 64;

/// Returns the module in integers; `None` if it has no quantized types.
///
/// # Errors
/// `Unsupported` for quantized types with scales per block.
pub(super) fn in_storage_types(module: &MlirModule) -> Result<Option<MlirModule>> {
    let is_quantized = |ty: &MlirType| element_of(ty).is_some_and(|e| e.starts_with("!quant."));
    if !module.functions.iter().any(|f| f.values.iter().any(is_quantized)) {
        return Ok(None);
    }
    let mut own = module.clone();
    own.functions.iter_mut().try_for_each(rewrite)?;
    Ok(Some(own))
}

fn element_of(ty: &MlirType) -> Option<&str> {
    match ty {
        MlirType::Tensor(ranked) => Some(&ranked.element),
        _ => None,
    }
}

/// Returns the quantized element type of a tensor, if it is one.
fn quantization(ty: &MlirType) -> Result<Option<QuantizedType>> {
    match element_of(ty).filter(|e| e.starts_with("!quant.")) {
        None => Ok(None),
        Some(name) => QuantizedType::parse(name).map(Some).ok_or_else(|| {
            not_there(format!("unsupported quantized type {name}"))
                .because("a type has one scale, or one per slice of a dimension")
                .hint("export the program with scales per tensor or per axis")
        }),
    }
}

fn with_element(ty: &MlirType, element: String) -> MlirType {
    match ty {
        MlirType::Tensor(ranked) => MlirType::Tensor(RankedTensorType { element, ..ranked.clone() }),
        other => other.clone(),
    }
}

/// Replaces a quantized type by that of its integers.
fn store(ty: &mut MlirType) -> Result<Option<QuantizedType>> {
    let quantized = quantization(ty)?;
    if let Some(q) = &quantized {
        *ty = with_element(ty, q.storage());
    }
    Ok(quantized)
}

fn rewrite(function: &mut MlirFunction) -> Result<()> {
    let types = function.values.iter_mut().map(store).collect::<Result<_>>()?;
    for (ty, _) in &mut function.results {
        store(ty)?;
    }
    let mut rewriter =
        QuantizedOpRewriter { values: &mut function.values, types, place: SourceSpan::default() };
    rewriter.region(&mut function.body, 0)
}

/// Rewrites the ops of a function.
struct QuantizedOpRewriter<'a> {
    /// Types of all values, new ones included.
    values: &'a mut Vec<MlirType>,
    /// Quantized types of the original values.
    types: Vec<Option<QuantizedType>>,
    place: SourceSpan,
}

/// Ops that replace one op.
type Replacement = Vec<Operation>;

impl QuantizedOpRewriter<'_> {
    fn region(&mut self, region: &mut MlirRegion, depth: usize) -> Result<()> {
        ensure!(depth < MAX_DEPTH, wrong(format!("regions are nested deeper than {MAX_DEPTH}")));
        for mut op in std::mem::take(&mut region.operations) {
            self.place = op.place;
            for inner in &mut op.regions {
                self.region(inner, depth + 1)?;
            }
            let place = op.place;
            self.operation(op, &mut region.operations).at(|| place.to_string())?;
        }
        Ok(())
    }

    fn ty(&self, value: FunctionValue) -> Result<&MlirType> {
        self.values.get(value).ok_or_else(|| wrong("a value has no type"))
    }

    fn quantized(&self, value: FunctionValue) -> Option<&QuantizedType> {
        self.types.get(value).and_then(Option::as_ref)
    }

    fn operation(&mut self, mut op: Operation, out: &mut Replacement) -> Result<()> {
        let all = || op.operands.iter().chain(&op.results);
        if all().all(|v| self.quantized(*v).is_none()) {
            out.push(op);
            return Ok(());
        }
        self.place = op.place;
        match op.name.as_str() {
            "stablehlo.uniform_dequantize" => {
                let [x, y] = [first(&op.operands)?, first(&op.results)?];
                self.dequantize(x, y, out)
            }
            "stablehlo.uniform_quantize" => {
                let [x, y] = [first(&op.operands)?, first(&op.results)?];
                let x = self.real(x, out)?;
                self.quantize(x, y, out)
            }
            _ if self.is_on_integers(&op) => {
                for (_, value) in &mut op.attributes {
                    if let Attribute::Dense(dense) = value {
                        store(&mut dense.ty)?;
                    }
                }
                self.promote(&mut op, out)?;
                out.push(op);
                Ok(())
            }
            _ => self.on_reals(op, out),
        }
    }

    /// Whether an op computes the same on the integers: it moves or orders values of one scale, or has bodies.
    fn is_on_integers(&self, op: &Operation) -> bool {
        let scales =
            |v: &FunctionValue| self.quantized(*v).map(|q| (&q.scales, q.range, q.bits, q.is_signed));
        let mut all = op.operands.iter().chain(&op.results).filter_map(scales);
        let is_one = all.next().is_none_or(|one| all.all(|other| other == one));
        let passes = op.name.ends_with(".return") || op.name.ends_with(".call");
        passes || !op.regions.is_empty() || (table::row(op).keeps_elements && is_one)
    }

    /// Quantizes the operands of a reduction like its results, whose type may be wider.
    fn promote(&mut self, op: &mut Operation, out: &mut Replacement) -> Result<()> {
        if !matches!(op.name.as_str(), "stablehlo.reduce" | "stablehlo.reduce_window") {
            return Ok(());
        }
        let results = op.results.clone();
        for (operand, y) in op.operands.iter_mut().zip(results.iter().cycle()) {
            let (Some(from), Some(to)) = (self.quantized(*operand), self.quantized(*y).cloned()) else {
                continue;
            };
            if *from != to {
                let real = self.real(*operand, out)?;
                let ty = with_element(self.ty(*operand)?, to.storage());
                let promoted = self.value(ty);
                self.types.resize(self.values.len(), None);
                self.types[promoted] = Some(to);
                self.quantize(real, promoted, out)?;
                *operand = promoted;
            }
        }
        Ok(())
    }

    /// Dequantizes the operands of an op, and quantizes its results.
    fn on_reals(&mut self, mut op: Operation, out: &mut Replacement) -> Result<()> {
        for x in &mut op.operands {
            *x = self.real(*x, out)?;
        }
        let results = op.results.clone();
        for y in &mut op.results {
            if let Some(q) = self.quantized(*y) {
                let ty = with_element(self.ty(*y)?, q.expressed.clone());
                *y = self.value(ty);
            }
        }
        let reals = op.results.clone();
        out.push(op);
        for (real, y) in reals.into_iter().zip(results).filter(|(real, y)| real != y) {
            self.quantize(real, y, out)?;
        }
        Ok(())
    }

    /// Returns the dequantized value; a value that is not quantized is returned unchanged.
    fn real(&mut self, x: FunctionValue, out: &mut Replacement) -> Result<FunctionValue> {
        let Some(q) = self.quantized(x) else { return Ok(x) };
        let ty = with_element(self.ty(x)?, q.expressed.clone());
        let y = self.value(ty);
        self.dequantize(x, y, out)?;
        Ok(y)
    }

    /// Adds `y = scale · (x − zero point)`.
    fn dequantize(&mut self, x: FunctionValue, y: FunctionValue, out: &mut Replacement) -> Result<()> {
        let q = self
            .quantized(x)
            .cloned()
            .ok_or_else(|| wrong("uniform_dequantize of a value that is not quantized"))?;
        let real = with_element(self.ty(x)?, q.expressed.clone());
        let mut whole = self.value(real.clone());
        self.op("convert", &[x], Some(whole), out);
        if let Some(zero) = self.zero_points(&q, &real, out)? {
            whole = self.op("subtract", &[whole, zero], None, out);
        }
        let scale = self.spread(&q, &real, |(scale, _)| float_text(scale), out)?;
        self.op("multiply", &[whole, scale], Some(y), out);
        Ok(())
    }

    /// Adds `y = clamp(round(x / scale) + zero point)`.
    fn quantize(&mut self, x: FunctionValue, y: FunctionValue, out: &mut Replacement) -> Result<()> {
        let q = self
            .quantized(y)
            .cloned()
            .ok_or_else(|| wrong("uniform_quantize to a type that is not quantized"))?;
        let real = with_element(self.ty(x)?, q.expressed.clone());
        let scale = self.spread(&q, &real, |(scale, _)| float_text(scale), out)?;
        let mut whole = self.op("divide", &[x, scale], None, out);
        whole = self.op("round_nearest_even", &[whole], None, out);
        if let Some(zero) = self.zero_points(&q, &real, out)? {
            whole = self.op("add", &[whole, zero], None, out);
        }
        let bound = RankedTensorType { dims: Vec::new(), element: q.expressed.clone(), encoding: None };
        let [low, high] =
            [q.range.0, q.range.1].map(|n| self.constant(bound.clone(), vec![float_text(n as f64)], out));
        let clamped = self.value(real);
        self.op("clamp", &[low, whole, high], Some(clamped), out);
        self.op("convert", &[clamped], Some(y), out);
        Ok(())
    }

    /// Returns the zero points as reals; `None` if all are 0.
    fn zero_points(
        &mut self,
        q: &QuantizedType,
        like: &MlirType,
        out: &mut Replacement,
    ) -> Result<Option<FunctionValue>> {
        if q.scales.iter().all(|(_, zero)| *zero == 0) {
            return Ok(None);
        }
        self.spread(q, like, |(_, zero)| float_text(zero as f64), out).map(Some)
    }

    /// Adds a number of each slice, broadcast to a type.
    fn spread(
        &mut self,
        q: &QuantizedType,
        like: &MlirType,
        number: impl Fn((f64, i64)) -> String,
        out: &mut Replacement,
    ) -> Result<FunctionValue> {
        let MlirType::Tensor(ranked) = like else {
            return Err(wrong(format!("{like} is not a tensor type")));
        };
        let words: Vec<String> = q.scales.iter().map(|scale| number(*scale)).collect();
        let Some(axis) = q.axis else {
            ensure!(words.len() == 1, wrong("a quantized type has several scales but no axis"));
            return Ok(self.constant(ranked.clone(), words, out));
        };
        let size = ranked.dims.get(axis as usize).copied().flatten();
        ensure!(
            size == Some(words.len() as u64),
            wrong(format!("{} scales for dimension {axis} of {like}", words.len()))
        );
        let vector = RankedTensorType { dims: vec![size], element: q.expressed.clone(), encoding: None };
        let vector = self.constant(vector, words, out);
        let y = self.value(like.clone());
        let dims = Attribute::Array("i64".into(), vec![Attribute::Int(i128::from(axis))]);
        self.push("broadcast_in_dim", &[vector], y, vec![("broadcast_dimensions".into(), dims)], out);
        Ok(y)
    }

    /// Adds a constant: one word for all elements, or one for each.
    fn constant(&mut self, ty: RankedTensorType, words: Vec<String>, out: &mut Replacement) -> FunctionValue {
        let ty = MlirType::Tensor(ty);
        let elements = match words.len() {
            1 => ElementData::Splat(words),
            n => ElementData::List(vec![n], words),
        };
        let y = self.value(ty.clone());
        let value = Attribute::Dense(DenseElements { ty, elements });
        self.push("constant", &[], y, vec![("value".into(), value)], out);
        y
    }

    /// Adds an op whose result has the type of its last operand, unless it is given.
    fn op(
        &mut self,
        name: &str,
        operands: &[FunctionValue],
        y: Option<FunctionValue>,
        out: &mut Replacement,
    ) -> FunctionValue {
        let y = y.unwrap_or_else(|| {
            let ty = operands.last().and_then(|x| self.values.get(*x)).cloned();
            self.value(ty.unwrap_or(MlirType::Token))
        });
        self.push(name, operands, y, NamedAttributes::new(), out);
        y
    }

    fn push(
        &self,
        name: &str,
        operands: &[FunctionValue],
        y: FunctionValue,
        attributes: NamedAttributes,
        out: &mut Replacement,
    ) {
        let (operands, results, place) = (operands.to_vec(), vec![y], self.place);
        let name = format!("stablehlo.{name}");
        out.push(Operation { name, operands, results, attributes, regions: Vec::new(), place });
    }

    /// Adds a value of a type.
    fn value(&mut self, ty: MlirType) -> FunctionValue {
        self.values.push(ty);
        self.values.len() - 1
    }
}

fn first(values: &[FunctionValue]) -> Result<FunctionValue> {
    values.first().copied().ok_or_else(|| wrong("an operand or a result is missing"))
}
