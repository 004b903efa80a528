//! Parses modules, functions, regions and ops in MLIR text.

use super::pretty;
use super::{MlirParser, ParsedOp};
use crate::syntax::{
    Attribute, FunctionValue, MlirFunction, MlirModule, MlirRegion, MlirType, NamedAttributes, Operation,
    ShardyMesh, find,
};
use systole_base::{Result, ensure};
use systole_ir::text::Token;
use systole_ir::text::cursor::TextReader;

/// Maximum number of results of an op.
const MOST_RESULTS: usize = 1 << 16;

/// Modules and functions.
impl<'a> MlirParser<'a> {
    pub(super) fn module(&mut self) -> Result<MlirModule> {
        let mut module = MlirModule::default();
        self.top(&mut module, false)?;
        match self.token {
            Token::End if !module.functions.is_empty() => Ok(module),
            Token::End => Err(self.error("expected a function, got an empty module")),
            _ => Err(self.unexpected("a function, a module or the end")),
        }
    }

    /// Parses an item that may appear inside or next to a module.
    fn top(&mut self, module: &mut MlirModule, inside: bool) -> Result<()> {
        loop {
            match self.token.clone() {
                Token::Attr(_) | Token::Bang(_) if !inside => self.alias()?,
                Token::Word("module") | Token::Word("builtin.module") if !inside => {
                    self.advance()?;
                    if matches!(self.token, Token::Symbol(_)) {
                        self.advance()?;
                    }
                    if self.eat_word("attributes")? {
                        module.attributes = self.dictionary()?;
                    }
                    self.expect('{')?;
                    self.top(module, true)?;
                    self.expect('}')?;
                    self.location()?;
                }
                Token::Str(name) if !inside && name == "builtin.module" => {
                    self.advance()?;
                    self.list('(', ')', Self::value)?;
                    if self.eat('<')? {
                        module.attributes = self.dictionary()?;
                        self.expect('>')?;
                    }
                    self.expect('(')?;
                    self.expect('{')?;
                    if matches!(self.token, Token::Block(_)) {
                        self.block_head()?;
                    }
                    self.top(module, true)?;
                    self.expect('}')?;
                    self.expect(')')?;
                    if self.is('{') {
                        module.attributes.extend(self.dictionary()?);
                    }
                    self.expect(':')?;
                    self.function_type()?;
                    self.location()?;
                }
                Token::Word("func.func") => module.functions.push(self.function()?),
                Token::Str(name) if name == "func.func" => module.functions.push(self.generic_function()?),
                Token::Word("sdy.mesh") => self.mesh(module)?,
                Token::Mark('{') if !inside => self.metadata(module)?,
                _ => return Ok(()),
            }
        }
    }

    /// Parses `#map = …`, `!ty = …`, `#loc1 = loc("x")`
    fn alias(&mut self) -> Result<()> {
        let (Token::Attr(name) | Token::Bang(name)) = self.advance()? else { return Ok(()) };
        self.expect('=')?;
        if self.token == Token::Word("loc") {
            self.location()?;
            return Ok(());
        }
        let value = self.attribute()?;
        self.aliases.insert(name, value);
        Ok(())
    }

    /// Parses `sdy.mesh @mesh = <["x"=2, "y"=4], device_ids=[…]>`
    fn mesh(&mut self, module: &mut MlirModule) -> Result<()> {
        self.advance()?;
        let name = self.symbol()?;
        self.expect('=')?;
        self.expect('<')?;
        let axes = self.list('[', ']', |p| {
            let name = p.string()?;
            p.expect('=')?;
            Ok((name, p.size(1 << 31)? as u64))
        })?;
        let mut devices = Vec::new();
        while self.eat(',')? {
            self.word()?;
            self.expect('=')?;
            devices = self.list('[', ']', |p| Ok(p.size(1 << 31)? as u64))?;
        }
        self.expect('>')?;
        if self.is('{') {
            self.dictionary()?;
        }
        module.meshes.push(ShardyMesh { name, axes, devices });
        if self.is('{') {
            self.dictionary()?;
        }
        self.location().map(drop)
    }

    /// Parses `{-# dialect_resources: { builtin: { name: "0x…" } } #-}`
    fn metadata(&mut self, module: &mut MlirModule) -> Result<()> {
        self.expect('{')?;
        self.expect('-')?;
        let Token::Attr("") = self.advance()? else { return Err(self.unexpected("`{-#`")) };
        while !matches!(self.token, Token::Attr("")) {
            self.resources(module, 0)?;
            if !self.eat(',')? {
                break;
            }
        }
        self.advance()?;
        self.expect('-')?;
        self.expect('}')
    }

    fn resources(&mut self, module: &mut MlirModule, depth: usize) -> Result<()> {
        let name = match self.advance()? {
            Token::Word(w) => w.to_string(),
            Token::Str(s) => s,
            _ => return Err(self.unexpected("the name of a resource")),
        };
        self.expect(':')?;
        if let Token::Str(text) = self.token.clone() {
            self.advance()?;
            // Other strings are external resources for tools.
            if text.starts_with("0x") {
                // The first four bytes contain the alignment.
                let bytes = systole_ir::text::parse_hex(&text).and_then(|b| b.get(4..).map(<[u8]>::to_vec));
                let bytes = bytes.ok_or_else(|| self.error(format!("resource {name} is truncated")))?;
                module.resources.push((name, bytes));
            }
            return Ok(());
        }
        ensure!(depth != 3, self.unexpected("a string"));
        self.list('{', '}', |p| p.resources(module, depth + 1)).map(drop)
    }

    fn function(&mut self) -> Result<MlirFunction> {
        self.advance()?;
        let is_private = self.eat_word("private")?;
        let _ = self.eat_word("public")? || self.eat_word("nested")?;
        let mut f = MlirFunction { name: self.symbol()?, is_private, ..MlirFunction::default() };
        self.values.clear();
        self.scopes = vec![Default::default()];
        let arguments = self.list('(', ')', Self::parameter)?;
        for (value, attributes, name) in arguments {
            f.body.arguments.extend(value);
            f.parameters.push(attributes);
            f.names.push(name);
        }
        if self.token == Token::Arrow {
            self.advance()?;
            f.results = if self.is('(') {
                self.list('(', ')', Self::annotated_type)?
            } else {
                // A `{` after it starts the body.
                vec![(self.ty()?, Vec::new())]
            };
        }
        if self.eat_word("attributes")? {
            f.attributes = self.dictionary()?;
        }
        if self.eat('{')? {
            if matches!(self.token, Token::Block(_)) {
                self.block_head()?;
            }
            f.body.operations = self.operations()?;
            self.expect('}')?;
        }
        self.location()?;
        f.values = std::mem::take(&mut self.values);
        Ok(f)
    }

    /// Parses `%arg0: tensor<2xf32> {…} loc("x")`; a declaration has only the type.
    fn parameter(&mut self) -> Result<(Option<FunctionValue>, NamedAttributes, String)> {
        let Token::Value(name) = self.token else {
            let (_, attributes) = self.annotated_type()?;
            return Ok((None, attributes, String::new()));
        };
        self.advance()?;
        self.expect(':')?;
        let (ty, attributes) = self.annotated_type()?;
        let value = self.define(name, vec![ty])?.first().copied();
        Ok((value, attributes, self.location()?))
    }

    fn annotated_type(&mut self) -> Result<(MlirType, NamedAttributes)> {
        let ty = self.ty()?;
        let attributes = if self.is('{') { self.dictionary()? } else { Vec::new() };
        Ok((ty, attributes))
    }

    /// Parses `"func.func"() <{sym_name = "main", function_type = …}> ({…}) : () -> ()`
    fn generic_function(&mut self) -> Result<MlirFunction> {
        self.advance()?;
        self.list('(', ')', Self::value)?;
        let mut attributes = Vec::new();
        if self.eat('<')? {
            attributes = self.dictionary()?;
            self.expect('>')?;
        }
        self.values.clear();
        self.scopes = vec![Default::default()];
        let mut regions = if self.is('(') { self.list('(', ')', Self::region)? } else { Vec::new() };
        if self.is('{') {
            attributes.extend(self.dictionary()?);
        }
        self.expect(':')?;
        self.function_type()?;
        self.location()?;
        ensure!(regions.len() <= 1, self.error("a function has more than one body"));
        let body = regions.pop().unwrap_or_default();
        function_of(attributes, body, std::mem::take(&mut self.values)).map_err(|what| self.error(what))
    }
}

/// Builds an MLIR function from its generic-form or bytecode attributes, which include name and type.
///
/// # Errors
/// The attribute that is missing or invalid.
pub fn function_of(
    attributes: NamedAttributes,
    body: MlirRegion,
    values: Vec<MlirType>,
) -> Result<MlirFunction, String> {
    let name = match find(&attributes, "sym_name") {
        Some(Attribute::String(name)) => name.clone(),
        _ => return Err("a function has no name".into()),
    };
    let Some(Attribute::Type(MlirType::Function(from, to))) = find(&attributes, "function_type") else {
        return Err(format!("function @{name} has no type"));
    };
    let lists = |key: &str, n: usize| -> Vec<NamedAttributes> {
        let given = match find(&attributes, key) {
            Some(Attribute::List(items)) => items.as_slice(),
            _ => &[],
        };
        let one = |i: usize| match given.get(i) {
            Some(Attribute::Dictionary(entries)) => entries.iter().cloned().map(untyped).collect(),
            _ => Vec::new(),
        };
        (0..n).map(one).collect()
    };
    let is_private =
        matches!(find(&attributes, "sym_visibility"), Some(Attribute::String(v)) if v == "private");
    let (parameters, results) = (lists("arg_attrs", from.len()), lists("res_attrs", to.len()));
    let said = ["sym_name", "function_type", "sym_visibility", "arg_attrs", "res_attrs"];
    let results = to.iter().cloned().zip(results).collect();
    let (names, name) = (vec![String::new(); from.len()], name);
    let attributes = attributes.into_iter().filter(|(name, _)| !said.contains(&name.as_str())).collect();
    Ok(MlirFunction { is_private, names, parameters, results, name, attributes, values, body })
}

/// Drops the type of an integer attribute, as function attributes are stored.
fn untyped((name, value): (String, Attribute)) -> (String, Attribute) {
    match value {
        Attribute::Other(ty, digits) if ty.starts_with(['i', 's', 'u']) && digits.parse::<i128>().is_ok() => {
            (name, Attribute::Int(digits.parse().unwrap_or_default()))
        }
        value => (name, value),
    }
}

/// Regions and ops.
impl<'a> MlirParser<'a> {
    /// Parses `{ ^bb0(%arg0: tensor<…>): … }`
    pub(super) fn region(&mut self) -> Result<MlirRegion> {
        self.deeper(|p| {
            p.expect('{')?;
            p.scopes.push(Default::default());
            let region = p.open_region();
            p.scopes.pop();
            region
        })
    }

    /// Parses the rest of a region after `{`, with its arguments in scope.
    fn open_region(&mut self) -> Result<MlirRegion> {
        let arguments = if matches!(self.token, Token::Block(_)) { self.block_head()? } else { Vec::new() };
        let operations = self.operations()?;
        self.expect('}')?;
        Ok(MlirRegion { arguments, operations })
    }

    /// Parses a region whose arguments were named before it: `while`, `reduce`.
    pub(super) fn region_of(&mut self, arguments: Vec<(&'a str, MlirType)>) -> Result<MlirRegion> {
        self.deeper(|p| {
            p.expect('{')?;
            p.scopes.push(Default::default());
            let mut values = Vec::new();
            for (name, ty) in arguments {
                values.extend(p.define(name, vec![ty])?);
            }
            let region = p.open_region();
            p.scopes.pop();
            region.map(|r| MlirRegion { arguments: values, ..r })
        })
    }

    /// Parses `^bb0(%arg0: tensor<…>, …):`
    fn block_head(&mut self) -> Result<Vec<FunctionValue>> {
        self.advance()?;
        let parameters = if self.is('(') { self.list('(', ')', Self::parameter)? } else { Vec::new() };
        self.expect(':')?;
        Ok(parameters.into_iter().filter_map(|(value, ..)| value).collect())
    }

    fn operations(&mut self) -> Result<Vec<Operation>> {
        let mut all = Vec::new();
        while !self.is('}') {
            if matches!(self.token, Token::Block(_)) {
                return Err(
                    self.error("the region has a second block: branches between blocks are not supported")
                );
            }
            all.push(self.operation()?);
        }
        Ok(all)
    }

    /// Parses `%0:2, %1 = op …`
    fn operation(&mut self) -> Result<Operation> {
        let names = if matches!(self.token, Token::Value(_)) {
            let names = self.separated(Self::target)?;
            self.expect('=')?;
            names
        } else {
            Vec::new()
        };
        let at = self.at;
        let place = self.place_of(at);
        let (name, said) = match self.advance()? {
            Token::Str(name) => {
                let said = self.generic()?;
                (pretty::full_name(&name), said)
            }
            Token::Word(name) => {
                let name = pretty::full_name(name);
                let said = self.pretty(&name, names.iter().map(|(_, n)| n).sum())?;
                (name, said)
            }
            other => return Err(self.error_at(at, format!("expected an op, found {}", other.show()))),
        };
        self.location()?;
        let count: usize = names.iter().map(|(_, n)| n).sum();
        if count != said.results.len() && !names.is_empty() {
            let what = format!("{name} has {} results, but {count} are named", said.results.len());
            return Err(self.error_at(at, what));
        }
        let mut types = said.results.into_iter();
        let mut results = Vec::new();
        for (name, n) in &names {
            results.extend(self.define(name, types.by_ref().take(*n).collect())?);
        }
        // Unnamed results also count.
        for ty in types {
            results.push(self.values.len());
            self.values.push(ty);
        }
        Ok(Operation {
            name,
            operands: said.operands,
            results,
            attributes: said.attributes,
            regions: said.regions,
            place,
        })
    }

    /// Parses `%0` or `%0:2`
    fn target(&mut self) -> Result<(&'a str, usize)> {
        let Token::Value(name) = self.token else { return Err(self.unexpected("a value's name")) };
        self.advance()?;
        let count = if self.eat(':')? { self.size(MOST_RESULTS)? } else { 1 };
        Ok((name, count))
    }

    /// Parses `(…) <{…}> ({…}, {…}) {…} : (…) -> …`
    pub(super) fn generic(&mut self) -> Result<ParsedOp> {
        let at = self.at;
        let mut said = ParsedOp { operands: self.list('(', ')', Self::value)?, ..ParsedOp::default() };
        if self.eat('<')? {
            said.attributes = self.dictionary()?;
            self.expect('>')?;
        }
        if self.is('(') {
            said.regions = self.list('(', ')', Self::region)?;
        }
        if self.is('{') {
            said.attributes.extend(self.dictionary()?);
        }
        self.with_types(said, at)
    }

    /// Parses `: (operand types) -> result types` of an op.
    pub(super) fn with_types(&mut self, said: ParsedOp, at: usize) -> Result<ParsedOp> {
        self.expect(':')?;
        let (from, results) = self.function_type()?;
        self.same_types(&said.operands, &from, at)?;
        Ok(ParsedOp { results, ..said })
    }

    /// Checks operands against the stated types.
    pub(super) fn same_types(&self, operands: &[FunctionValue], types: &[MlirType], at: usize) -> Result<()> {
        let have = operands.iter().map(|v| self.values.get(*v));
        if have.len() != types.len() {
            let what = format!("got {} operands, but {} types", operands.len(), types.len());
            return Err(self.error_at(at, what));
        }
        for (have, said) in have.zip(types) {
            if have != Some(said) {
                let have = have.map(ToString::to_string).unwrap_or_default();
                return Err(self.error_at(at, format!("operand has type {have}, but {said} is stated")));
            }
        }
        Ok(())
    }
}
