//! Parses StableHLO text into a graph. Accepts the output of [`print`](super::print) with other spacing and comments.
//! Errors have a line and column, also for malicious input.

mod values;

use super::cursor::{TextReader, TokenCursor};
use super::lexer::Token;
use crate::graph::Graph;
use crate::op::{Op, OpSource, entry, op_source::AttrValue};
use crate::{GraphBuilder, Mesh, Sharding, Shardings, Tensor, control_builders, ensure};
use std::collections::HashMap;
use std::sync::Arc;
use systole_base::{Result, TensorType, err};

/// Maximum number of results of one op.
const MAX_RESULTS: usize = 1 << 16;

/// A parsed StableHLO module: its function, donated parameters and shardings.
#[derive(Clone, Debug)]
pub struct StableHloProgram {
    /// Graph of the function.
    pub graph: Arc<Graph>,
    /// Pairs `(p, r)`: parameter `p` donates its memory to result `r`.
    pub donated: Vec<(usize, usize)>,
    /// Shardings of parameters and results, if the module has a mesh.
    pub spread: Option<Shardings>,
}

/// Parses a StableHLO module with one function. See the [module](super) for the format.
///
/// Errors have a line and column.
pub fn parse(text: &str) -> Result<Arc<Graph>> {
    Ok(parse_program(text)?.graph)
}

/// Like [`parse`], but also reads what [`print_program`](super::print_program) adds: donated parameters, mesh and shardings.
pub fn parse_program(text: &str) -> Result<StableHloProgram> {
    let mut p = TokenCursor::new(text)?;
    p.named_locations()?;
    let mut mesh = None;
    let wrapped = p.eat_word("module")?;
    if wrapped {
        if matches!(p.token, Token::Symbol(_)) {
            p.advance()?;
        }
        if p.eat_word("attributes")? {
            p.dictionary()?;
        }
        p.expect('{')?;
        mesh = p.mesh()?;
    }
    let function = p.function()?;
    if wrapped {
        p.expect('}')?;
    }
    p.location()?;
    p.named_locations()?;
    match p.token {
        Token::End => function.program(mesh),
        _ => Err(p.unexpected("exactly one function")),
    }
}

/// A parsed function with the attributes of its parameters and results.
struct ParsedFunction {
    graph: Arc<Graph>,
    params: Vec<NamedAttrs>,
    results: Vec<NamedAttrs>,
}

type NamedAttrs = Vec<(String, AttrValue)>;

impl ParsedFunction {
    fn program(self, mesh: Option<Mesh>) -> Result<StableHloProgram> {
        let wrong = |what: String| err!(Data, "cannot read the StableHLO text: {what}");
        let mut donated: Vec<(usize, usize)> = Vec::new();
        for (p, attributes) in self.params.iter().enumerate() {
            let Some(AttrValue::Int(r)) = find(attributes, "tf.aliasing_output") else { continue };
            let free = |r: &usize| *r < self.results.len() && donated.iter().all(|(_, taken)| taken != r);
            let r = usize::try_from(*r).ok().filter(free);
            donated.push((
                p,
                r.ok_or_else(|| wrong(format!("parameter {p} has an invalid tf.aliasing_output: the result does not exist or is aliased twice")))?,
            ));
        }
        let shardings = |list: &[NamedAttrs], types: Vec<TensorType>| {
            list.iter().zip(types).map(|(a, ty)| sharding(a, mesh.as_ref(), &ty)).collect::<Result<Vec<_>>>()
        };
        let params = shardings(&self.params, self.graph.param_types()).map_err(|e| wrong(e.to_string()))?;
        let results =
            shardings(&self.results, self.graph.result_types()).map_err(|e| wrong(e.to_string()))?;
        let spread = mesh.map(|mesh| Shardings { mesh, params, results });
        Ok(StableHloProgram { graph: self.graph, donated, spread })
    }
}

fn find<'a>(attributes: &'a NamedAttrs, name: &str) -> Option<&'a AttrValue> {
    attributes.iter().find(|(n, _)| n == name).map(|(_, value)| value)
}

/// Parses an array's sharding; arrays without one are replicated.
fn sharding(attributes: &NamedAttrs, mesh: Option<&Mesh>, ty: &TensorType) -> Result<Sharding> {
    let Some(AttrValue::Split(dims)) = find(attributes, "sdy.sharding") else {
        return Ok(Sharding::replicated(ty.rank()));
    };
    let whole = || err!(Data, "an array is sharded, but the module has no mesh");
    Sharding::of_axes(dims, mesh.ok_or_else(whole)?, ty)
}

/// A graph being parsed, and the values in scope by name.
struct ParseScope<'a> {
    builder: GraphBuilder,
    values: HashMap<&'a str, Vec<Tensor>>,
}

/// Parsed parts of an op between its name and its types.
#[derive(Default)]
struct OpSyntaxParts {
    operands: Vec<Tensor>,
    attrs: Vec<(String, AttrValue)>,
    regions: Vec<(GraphBuilder, Vec<Tensor>)>,
}

/// Functions, bodies and ops.
impl<'a> TokenCursor<'a> {
    fn function(&mut self) -> Result<ParsedFunction> {
        ensure!(self.eat_word("func.func")?, self.unexpected("`func.func`"));
        let _ = self.eat_word("public")? || self.eat_word("private")?;
        let name = self.symbol()?;
        let mut frame = ParseScope { builder: GraphBuilder::new(&name), values: HashMap::new() };
        let args = self.list('(', ')', Self::argument)?;
        let mut params = Vec::new();
        for (name, (ty, attributes), label) in args {
            self.define(&mut frame, name, |b| vec![b.parameter(ty, &label)])?;
            params.push(attributes);
        }
        let mut declared = Vec::new();
        if self.token == Token::Arrow {
            self.advance()?;
            declared = if self.is('(') {
                self.list('(', ')', Self::annotated_type)?
            } else {
                vec![(self.tensor_type()?, Vec::new())]
            };
        }
        if self.eat_word("attributes")? {
            self.dictionary()?;
        }
        self.expect('{')?;
        let at = self.at;
        let mut frames = vec![frame];
        let results = self.ops(&mut frames)?;
        self.expect('}')?;
        self.location()?;
        if !results.iter().map(Tensor::ty).eq(declared.iter().map(|(ty, _)| ty)) {
            return Err(self.error_at(at, "the returned types differ from the declared result types"));
        }
        let graph = frames[0].builder.finish(&results)?;
        Ok(ParsedFunction { graph, params, results: declared.into_iter().map(|(_, a)| a).collect() })
    }

    /// `%arg0: tensor<2xf32> {…} loc("x")`
    fn argument(&mut self) -> Result<(&'a str, (TensorType, NamedAttrs), String)> {
        let Token::Value(name) = self.token else { return Err(self.unexpected("an argument")) };
        self.advance()?;
        self.expect(':')?;
        let ty = self.annotated_type()?;
        Ok((name, ty, self.location()?))
    }

    fn annotated_type(&mut self) -> Result<(TensorType, NamedAttrs)> {
        let ty = self.tensor_type()?;
        let attributes = if self.is('{') { self.dictionary()? } else { Vec::new() };
        Ok((ty, attributes))
    }

    fn define(
        &mut self,
        frame: &mut ParseScope<'a>,
        name: &'a str,
        make: impl FnOnce(&GraphBuilder) -> Vec<Tensor>,
    ) -> Result<()> {
        ensure!(!frame.values.contains_key(name), self.error(format!("`%{name}` is defined twice")));
        frame.values.insert(name, make(&frame.builder));
        Ok(())
    }

    /// Parses ops up to the terminator; returns the returned values.
    fn ops(&mut self, frames: &mut Vec<ParseScope<'a>>) -> Result<Vec<Tensor>> {
        loop {
            match &self.token {
                Token::Word("return" | "func.return") if frames.len() == 1 => {
                    self.advance()?;
                    return self.plain_return(frames);
                }
                Token::Str(name) if name == "stablehlo.return" || name == "func.return" => {
                    if (name == "func.return") != (frames.len() == 1) {
                        return Err(self.error(format!("unexpected terminator `{name}` in this body")));
                    }
                    self.advance()?;
                    let at = self.at;
                    let results = self.list('(', ')', |p| p.value(frames))?;
                    let (from, to) = self.function_type()?;
                    if !results.iter().map(Tensor::ty).eq(&from) || !to.is_empty() {
                        return Err(self.error_at(at, "the types differ from those of the returned values"));
                    }
                    self.location()?;
                    return Ok(results);
                }
                Token::Str(_) | Token::Value(_) => self.op(frames)?,
                _ => return Err(self.unexpected("an op or the end of the body")),
            }
        }
    }

    /// `return %0, %1 : tensor<…>, tensor<…>`
    fn plain_return(&mut self, frames: &[ParseScope<'a>]) -> Result<Vec<Tensor>> {
        if !matches!(self.token, Token::Value(_)) {
            return Ok(Vec::new());
        }
        let results = self.separated(|p| p.value(frames))?;
        self.expect(':')?;
        for (i, t) in results.iter().enumerate() {
            if i > 0 {
                self.expect(',')?;
            }
            let at = self.at;
            if self.tensor_type()? != *t.ty() {
                return Err(self.error_at(at, format!("the value has type {}", t.ty())));
            }
        }
        self.location()?;
        Ok(results)
    }

    /// `%0` or `%0#1`
    fn value(&mut self, frames: &[ParseScope<'a>]) -> Result<Tensor> {
        let Token::Value(name) = self.token else { return Err(self.unexpected("a value")) };
        let at = self.at;
        self.advance()?;
        let mut part = 0;
        if let Token::Part(digits) = self.token {
            part = digits.parse().map_err(|_| self.error("result number is too large"))?;
            self.advance()?;
        }
        let known = frames.iter().rev().find_map(|f| f.values.get(name));
        let found = known.and_then(|outs| outs.get(part)).cloned();
        found.ok_or_else(|| self.error_at(at, format!("`%{name}` has no result {part} in this scope")))
    }

    /// `%0:2 = "stablehlo.name"(…) <{…}> ({…}, {…}) {…} : (…) -> …`
    fn op(&mut self, frames: &mut Vec<ParseScope<'a>>) -> Result<()> {
        let (target, count) = self.target()?;
        let at = self.at;
        let Token::Str(name) = self.advance()? else {
            return Err(self.error_at(at, "expected the quoted name of an op"));
        };
        let operands = self.list('(', ')', |p| p.value(frames))?;
        let mut parts = OpSyntaxParts { operands, ..Default::default() };
        if self.eat('<')? {
            parts.attrs = self.dictionary()?;
            self.expect('>')?;
        }
        if self.is('(') {
            parts.regions = self.deeper(|p| p.list('(', ')', |p| p.region(frames)))?;
        }
        if self.is('{') {
            parts.attrs.extend(self.dictionary()?);
        }
        let (from, to) = self.function_type()?;
        self.location()?;
        let outs = self.build(frames, &name, parts, (from, to), at)?;
        if outs.len() != count {
            return Err(self.error_at(at, format!("{name} has {} results, not {count}", outs.len())));
        }
        if let (Some(target), Some(frame)) = (target, frames.last_mut()) {
            self.define(frame, target, |_| outs)?;
        }
        Ok(())
    }

    fn target(&mut self) -> Result<(Option<&'a str>, usize)> {
        let Token::Value(name) = self.token else { return Ok((None, 0)) };
        self.advance()?;
        let mut count = 1;
        if self.eat(':')? {
            count = self.size(MAX_RESULTS as i64)?;
        }
        self.expect('=')?;
        Ok((Some(name), count))
    }

    /// `{ ^bb0(%arg0: tensor<…>): … "stablehlo.return"(…) … }`
    fn region(&mut self, frames: &mut Vec<ParseScope<'a>>) -> Result<(GraphBuilder, Vec<Tensor>)> {
        self.expect('{')?;
        let Some(outer) = frames.last() else { return Err(self.error("a body outside of a function")) };
        let mut frame = ParseScope { builder: outer.builder.child("body"), values: HashMap::new() };
        if let Token::Block(_) = self.token {
            self.advance()?;
            let args = if self.is('(') { self.list('(', ')', Self::argument)? } else { Vec::new() };
            for (name, (ty, _), label) in args {
                self.define(&mut frame, name, |b| vec![b.parameter(ty, &label)])?;
            }
            self.expect(':')?;
        }
        frames.push(frame);
        let results = self.ops(frames)?;
        self.expect('}')?;
        match frames.pop() {
            Some(frame) => Ok((frame.builder, results)),
            None => Err(self.error("a body is not closed correctly")),
        }
    }

    fn build(
        &mut self,
        frames: &[ParseScope<'a>],
        name: &str,
        parts: OpSyntaxParts,
        (from, to): (Vec<TensorType>, Vec<TensorType>),
        at: usize,
    ) -> Result<Vec<Tensor>> {
        let wrong = |what: String| self.error_at(at, format!("{name}: {what}"));
        let Some(entry) = entry(name.strip_prefix("stablehlo.").unwrap_or(name)) else {
            return Err(wrong("unknown op".into()));
        };
        if !parts.operands.iter().map(Tensor::ty).eq(&from) {
            return Err(wrong("the operand types differ from those of the operands".into()));
        }
        let (captured, regions) =
            control_builders::finish(&parts.regions).map_err(|e| wrong(e.to_string()))?;
        let operands: Vec<&Tensor> = captured.iter().chain(&parts.operands).collect();
        let types: Vec<&TensorType> = operands.iter().map(|t| t.ty()).collect();
        let source = OpSource {
            attrs: &parts.attrs,
            regions,
            captures: captured.len(),
            operands: types.iter().map(|&t| t.clone()).collect(),
            results: to,
        };
        let op: Op = (entry.parse)(&source).map_err(wrong)?;
        if op.rule().regions().len() != source.regions.len() {
            return Err(wrong(format!("wrong number of bodies: {}", source.regions.len())));
        }
        ensure!(op.rule().captures() == captured.len(), wrong("its bodies cannot use outer values".into()));
        let outs = op.rule().infer(&types).map_err(|c| wrong(format!("({}) {}", c.label, c.message)))?;
        if outs[..] != source.results[..] {
            return Err(wrong(format!("the results are {outs:?}, declared as {:?}", source.results)));
        }
        match frames.last() {
            Some(frame) => Ok(frame.builder.emit(op, &operands)),
            None => Err(wrong("op outside of a function".into())),
        }
    }
}
