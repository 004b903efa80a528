//! Parses the pretty forms of StableHLO, CHLO, func and Shardy ops.

use super::attribute::not_read;
use super::{MlirParser, ParsedOp};
use crate::syntax::{
    Attribute, DenseElements, ElementData, FunctionValue, MlirRegion, MlirType, NamedAttributes, Operation,
    RankedTensorType,
};
use systole_base::Result;
use systole_ir::text::Token;
use systole_ir::text::cursor::TextReader;

/// Returns an op's name with its dialect.
pub(super) fn full_name(name: &str) -> String {
    match (name, name.strip_prefix("mhlo.")) {
        ("return" | "call", _) => format!("func.{name}"),
        // MHLO is StableHLO's predecessor; it has some CHLO ops of its own.
        (_, Some("topk")) => "chlo.top_k".into(),
        (_, Some(op @ ("acos" | "acosh" | "asin" | "asinh" | "atanh" | "cosh" | "erf" | "sinh"))) => {
            format!("chlo.{op}")
        }
        (_, Some(op)) if op != "copy" => format!("stablehlo.{op}"),
        _ => name.into(),
    }
}

/// Keywords of the pretty forms and the attributes that they set, by op.
const WORDS: &[(&str, &str, &str)] = &[
    ("broadcast_in_dim", "dims", "broadcast_dimensions"),
    ("dynamic_broadcast_in_dim", "dims", "broadcast_dimensions"),
    ("broadcast", "sizes", "broadcast_sizes"),
    ("reverse", "dims", "dimensions"),
    ("transpose", "dims", "permutation"),
    ("dynamic_slice", "sizes", "slice_sizes"),
    ("concatenate", "dim", "dimension"),
    ("iota", "dim", "iota_dimension"),
    ("dynamic_iota", "dim", "iota_dimension"),
    ("get_dimension_size", "dim", "dimension"),
    ("set_dimension_size", "dim", "dimension"),
    ("pad", "low", "edge_padding_low"),
    ("pad", "high", "edge_padding_high"),
    ("pad", "interior", "interior_padding"),
    ("fft", "type", "fft_type"),
    ("fft", "length", "fft_length"),
    ("rng_bit_generator", "algorithm", "rng_algorithm"),
    ("rng", "distribution", "rng_distribution"),
    ("einsum", "config", "einsum_config"),
    ("unary_einsum", "config", "einsum_config"),
    ("dot", "precision", "precision_config"),
    ("dot_general", "precision", "precision_config"),
    ("convolution", "precision", "precision_config"),
    ("convolution", "stride", "window_strides"),
    ("convolution", "pad", "padding"),
    ("convolution", "lhs_dilate", "lhs_dilation"),
    ("convolution", "rhs_dilate", "rhs_dilation"),
    ("convolution", "reverse", "window_reversal"),
];

/// Returns an op's name without its dialect.
fn mnemonic(name: &str) -> &str {
    name.rsplit_once('.').map_or(name, |(_, rest)| rest)
}

impl<'a> MlirParser<'a> {
    /// Parses an op's pretty form after its name. `named`: number of named results.
    pub(super) fn pretty(&mut self, name: &str, named: usize) -> Result<ParsedOp> {
        match name {
            "stablehlo.constant" => self.constant(),
            "stablehlo.compare" | "chlo.broadcast_compare" => self.compare(name),
            "stablehlo.dot_general" => self.dot_general(),
            "stablehlo.convolution" if self.is('(') => self.convolution(),
            "stablehlo.reduce" => self.reduce(),
            "stablehlo.while" => self.while_loop(),
            "chlo.scan" => self.scan(),
            "stablehlo.slice" => self.slice(),
            "stablehlo.get_tuple_element" => self.tuple_element(),
            "stablehlo.reduce_precision" => self.reduce_precision(),
            "stablehlo.custom_call" | "func.call" => self.call(name),
            "stablehlo.composite" => self.composite(),
            "sdy.sharding_constraint" | "sdy.reshard" => self.sharding_constraint(),
            "sdy.sharding_group" => self.sharding_group(name),
            "sdy.manual_computation" => self.manual_computation(),
            _ if name.starts_with("sdy.") && name != "sdy.return" => {
                Err(not_read(format!("unsupported op `{name}`")).at(self.place_of(self.at).to_string()))
            }
            _ => self.plain(name, named),
        }
    }

    /// Parses `%0, %1, word = value {…} : types`, with or without parentheses.
    fn plain(&mut self, name: &str, named: usize) -> Result<ParsedOp> {
        let at = self.at;
        let mut said = ParsedOp::default();
        let mut expected = None;
        let closed = self.eat('(')?;
        while matches!(self.token, Token::Value(_) | Token::Word(_)) {
            match self.token {
                // `check.expect_eq_const %0, dense<…> : tensor<…>`: one type for both.
                Token::Word("dense") => expected = Some(self.elements()?),
                Token::Word(_) => said.attributes.extend(self.word_value(name)?),
                _ => said.operands.push(self.value()?),
            }
            if !self.eat(',')? {
                break;
            }
        }
        if closed {
            self.expect(')')?;
        }
        if self.is('{') {
            said.attributes.extend(self.dictionary()?);
        }
        if self.eat(':')? {
            self.plain_types(name, named, &mut said, at)?;
            // `check.expect_almost_eq_const %0, dense<…> : tensor<…> {tolerance = 0.1 : f64}`
            if name.starts_with("check.") && self.is('{') {
                said.attributes.extend(self.dictionary()?);
            }
        } else if !said.operands.is_empty() {
            return Err(self.unexpected("`:`"));
        }
        if let (Some(elements), Some(v)) = (expected, said.operands.first()) {
            let dense =
                DenseElements { ty: self.values.get(*v).cloned().unwrap_or(MlirType::Token), elements };
            said.attributes.push(("value".into(), Attribute::Dense(dense)));
        }
        Ok(said)
    }

    /// Parses `dims = [0, 1]`, `type = FFT`, `format = …`
    fn word_value(&mut self, name: &str) -> Result<NamedAttributes> {
        let word = self.word()?;
        self.expect('=')?;
        let op = mnemonic(name);
        let known = WORDS.iter().find(|(o, w, _)| *o == op && *w == word);
        let attribute = known.map_or(word, |(.., attribute)| attribute);
        let value = match self.token {
            Token::Word(w) if w != "true" && w != "false" => {
                self.advance()?;
                Attribute::Keyword(attribute.into(), w.into())
            }
            // The `:` after it belongs to the op.
            Token::Number(digits) if digits.contains(['.', 'e']) && !digits.starts_with("0x") => {
                self.advance()?;
                Attribute::Float(digits.into(), "f64".into())
            }
            Token::Number(_) => Attribute::Int(self.int()?),
            Token::Str(ref text) => {
                let text = text.clone();
                self.advance()?;
                Attribute::String(text)
            }
            Token::Mark('<') => self.structure("dot_algorithm")?,
            _ => of_words(attribute, self.attribute()?),
        };
        Ok(vec![(attribute.into(), value)])
    }

    /// Parses `{…} : types`, the end of most forms.
    fn end(&mut self, name: &str, named: usize, mut said: ParsedOp, at: usize) -> Result<ParsedOp> {
        if self.is('{') {
            said.attributes.extend(self.dictionary()?);
        }
        self.expect(':')?;
        self.plain_types(name, named, &mut said, at)?;
        Ok(said)
    }

    /// Parses the types of an op's plain form.
    fn plain_types(&mut self, name: &str, named: usize, said: &mut ParsedOp, at: usize) -> Result<()> {
        if self.is('(') {
            let (from, to) = self.function_type()?;
            self.same_types(&said.operands, &from, at)?;
            said.results = to;
            return Ok(());
        }
        let mut types = self.separated(Self::ty)?;
        if self.token == Token::Arrow {
            self.advance()?;
            said.results = self.result_types()?;
            if types.len() == 1 {
                types = vec![types[0].clone(); said.operands.len()];
            }
            return self.same_types(&said.operands, &types, at);
        }
        let one = types[0].clone();
        match mnemonic(name) {
            "return" => return self.same_types(&said.operands, &types, at),
            "optimization_barrier" => said.results = types.clone(),
            "select" if types.len() == 2 => {
                said.results = vec![types[1].clone()];
                types.push(types[1].clone());
            }
            "tuple" | "complex" => {
                said.results = types;
                return Ok(());
            }
            _ if types.len() > 1 => said.results = Vec::new(),
            _ => {
                // Ops that only have side effects have no results.
                let is_check = name.starts_with("check.") || name == "interpreter.print";
                said.results = vec![one.clone(); if is_check { 0 } else { named.max(1) }];
                types = vec![one; said.operands.len()];
            }
        }
        self.same_types(&said.operands, &types, at)
    }

    /// Parses `{…} dense<…> : tensor<…>`, or the generic form behind its name.
    fn constant(&mut self) -> Result<ParsedOp> {
        if self.is('(') {
            return self.generic();
        }
        let mut said = ParsedOp::default();
        if self.is('{') {
            said.attributes = self.dictionary()?;
        }
        let value = self.attribute()?;
        let Attribute::Dense(dense) = &value else { return Err(self.unexpected("the elements of an array")) };
        said.results.push(dense.ty.clone());
        said.attributes.push(("value".into(), value));
        Ok(said)
    }

    /// Parses `LT, %0, %1, FLOAT : (…) -> …`
    fn compare(&mut self, name: &str) -> Result<ParsedOp> {
        let at = self.at;
        if matches!(self.token, Token::Value(_)) {
            return self.plain(name, 1);
        }
        let mut said = ParsedOp::default();
        let keyword = |kind: &str, word: &str| Attribute::Keyword(kind.into(), word.into());
        let direction = self.word()?;
        said.attributes.push(("comparison_direction".into(), keyword("comparison_direction", direction)));
        while self.eat(',')? {
            if let Token::Word(word) = self.token {
                self.advance()?;
                said.attributes.push(("compare_type".into(), keyword("comparison_type", word)));
                break;
            }
            said.operands.push(self.value()?);
        }
        self.end(name, 1, said, at)
    }

    /// Parses `%0, %1, batching_dims = [0] x [0], contracting_dims = [2] x [1], precision = […] : (…) -> …`
    fn dot_general(&mut self) -> Result<ParsedOp> {
        let at = self.at;
        let mut said = ParsedOp::default();
        let mut dims: NamedAttributes = Vec::new();
        loop {
            match self.token {
                Token::Value(_) => said.operands.push(self.value()?),
                Token::Word(word @ ("batching_dims" | "contracting_dims")) => {
                    self.advance()?;
                    self.expect('=')?;
                    let lhs = self.attribute()?;
                    self.expect_word("x")?;
                    let kind = word.trim_end_matches("_dims");
                    dims.push((format!("lhs_{kind}_dimensions"), lhs));
                    dims.push((format!("rhs_{kind}_dimensions"), self.attribute()?));
                }
                Token::Word(_) => said.attributes.extend(self.word_value("dot_general")?),
                _ => break,
            }
            if !self.eat(',')? {
                break;
            }
        }
        said.attributes.push(("dot_dimension_numbers".into(), Attribute::Struct("dot".into(), dims)));
        self.end("dot_general", 1, said, at)
    }

    /// Parses `(%0, %1) dim_numbers = […]x[…]->[…], window = {stride = […], …} {…} : (…) -> …`
    fn convolution(&mut self) -> Result<ParsedOp> {
        let at = self.at;
        let mut said = ParsedOp { operands: self.list('(', ')', Self::value)?, ..ParsedOp::default() };
        while let Token::Word(word) = self.token {
            match word {
                "dim_numbers" => {
                    self.advance()?;
                    self.expect('=')?;
                    let layouts = Attribute::Convolution(self.layouts()?);
                    said.attributes.push(("dimension_numbers".into(), layouts));
                }
                "window" => {
                    self.advance()?;
                    self.expect('=')?;
                    let window = self.list('{', '}', |p| p.word_value("convolution"))?;
                    said.attributes.extend(window.into_iter().flatten());
                }
                _ => said.attributes.extend(self.word_value("convolution")?),
            }
            if !self.eat(',')? {
                break;
            }
        }
        self.end("convolution", 1, said, at)
    }

    /// Parses `%0 [0:3, 4:8:2] : (…) -> …`
    fn slice(&mut self) -> Result<ParsedOp> {
        let at = self.at;
        let mut said = ParsedOp { operands: vec![self.value()?], ..ParsedOp::default() };
        let ranges = self.list('[', ']', |p| {
            let from = p.int()?;
            p.expect(':')?;
            let to = p.int()?;
            let step = if p.eat(':')? { p.int()? } else { 1 };
            Ok([from, to, step])
        })?;
        for (i, name) in ["start_indices", "limit_indices", "strides"].into_iter().enumerate() {
            let all = ranges.iter().map(|range| Attribute::Int(range[i])).collect();
            said.attributes.push((name.into(), Attribute::Array("i64".into(), all)));
        }
        self.end("slice", 1, said, at)
    }

    /// Parses `%0[1] : (tuple<…>) -> …`
    fn tuple_element(&mut self) -> Result<ParsedOp> {
        let at = self.at;
        let mut said = ParsedOp { operands: vec![self.value()?], ..ParsedOp::default() };
        self.expect('[')?;
        said.attributes.push(("index".into(), Attribute::Int(self.int()?)));
        self.expect(']')?;
        self.end("get_tuple_element", 1, said, at)
    }

    /// Parses `%0, format = e8m10 : tensor<…>`
    fn reduce_precision(&mut self) -> Result<ParsedOp> {
        let at = self.at;
        let mut said = ParsedOp { operands: vec![self.value()?], ..ParsedOp::default() };
        self.expect(',')?;
        self.expect_word("format")?;
        self.expect('=')?;
        let word = self.word()?;
        let bits = word.strip_prefix('e').and_then(|rest| rest.split_once('m'));
        let bits = bits.and_then(|(e, m)| Some((e.parse::<i128>().ok()?, m.parse::<i128>().ok()?)));
        let (exponent, mantissa) =
            bits.ok_or_else(|| self.error(format!("expected a format like e8m10, got `{word}`")))?;
        said.attributes.push(("exponent_bits".into(), Attribute::Int(exponent)));
        said.attributes.push(("mantissa_bits".into(), Attribute::Int(mantissa)));
        self.end("reduce_precision", 1, said, at)
    }

    /// Parses `@name(%0, %1) {…} : (…) -> …`
    fn call(&mut self, name: &str) -> Result<ParsedOp> {
        let at = self.at;
        let target = match self.advance()? {
            Token::Symbol(name) | Token::Str(name) => name,
            other => {
                return Err(
                    self.error_at(at, format!("expected the called function, found {}", other.show()))
                );
            }
        };
        let mut said = ParsedOp { operands: self.list('(', ')', Self::value)?, ..ParsedOp::default() };
        let (key, target) = match name {
            "func.call" => ("callee", Attribute::Symbol(target)),
            _ => ("call_target_name", Attribute::String(target)),
        };
        said.attributes.push((key.into(), target));
        if self.is('{') {
            said.attributes.extend(self.dictionary()?);
        }
        self.with_types(said, at)
    }

    /// Parses `"name" %0, %1 {composite_attributes = {…}, decomposition = @f} : (…) -> …`
    fn composite(&mut self) -> Result<ParsedOp> {
        let name = self.string()?;
        let mut said = self.plain("composite", 1)?;
        said.attributes.push(("name".into(), Attribute::String(name)));
        Ok(said)
    }

    /// Parses `%0 <@mesh, [{"x"}, {}]> : tensor<…>`
    fn sharding_constraint(&mut self) -> Result<ParsedOp> {
        let at = self.at;
        let mut said = ParsedOp { operands: vec![self.value()?], ..ParsedOp::default() };
        said.attributes.push(("sharding".into(), self.sharding()?));
        self.expect(':')?;
        self.plain_types("sharding_constraint", 1, &mut said, at)?;
        Ok(said)
    }

    /// Parses `sdy.sharding_group %0 group_id=1 : tensor<…>`
    fn sharding_group(&mut self, name: &str) -> Result<ParsedOp> {
        let at = self.at;
        let mut said = ParsedOp { operands: vec![self.value()?], ..ParsedOp::default() };
        said.attributes.extend(self.word_value(name)?);
        self.expect(':')?;
        let ty = self.ty()?;
        self.same_types(&said.operands, &[ty], at)?;
        Ok(said)
    }
}

/// Ops with regions.
impl<'a> MlirParser<'a> {
    /// Parses `(%0 init: %c), (%1 init: %d) applies stablehlo.add across dimensions = [0] : (…) -> …`, or the same with
    /// a `reducer`.
    fn reduce(&mut self) -> Result<ParsedOp> {
        let at = self.at;
        let (mut inputs, mut inits) = (Vec::new(), Vec::new());
        for pair in self.separated(|p| {
            p.expect('(')?;
            let input = p.value()?;
            p.expect_word("init")?;
            p.expect(':')?;
            let init = p.value()?;
            p.expect(')')?;
            Ok((input, init))
        })? {
            inputs.push(pair.0);
            inits.push(pair.1);
        }
        let n = inputs.len();
        let mut said =
            ParsedOp { operands: inputs.into_iter().chain(inits).collect(), ..ParsedOp::default() };
        let applied = if self.eat_word("applies")? { Some(self.word()?) } else { None };
        self.expect_word("across")?;
        self.expect_word("dimensions")?;
        self.expect('=')?;
        said.attributes.push(("dimensions".into(), of_words("dimensions", self.attribute()?)));
        let mut said = self.end("reduce", n, said, at)?;
        let body = match applied {
            Some(name) => self.applied(name, &said.operands, n)?,
            None => self.reducer()?,
        };
        said.regions.push(body);
        Ok(said)
    }

    /// Parses `(%0) inits(%1) dimension=0 attributes {…} {…} : (…) -> …`
    fn scan(&mut self) -> Result<ParsedOp> {
        let at = self.at;
        let inputs = self.list('(', ')', Self::value)?;
        self.expect_word("inits")?;
        let inits = self.list('(', ')', Self::value)?;
        self.expect_word("dimension")?;
        self.expect('=')?;
        let counts = [inputs.len(), inits.len()].map(|n| Attribute::Int(n as i128)).to_vec();
        let mut said =
            ParsedOp { operands: inputs.into_iter().chain(inits).collect(), ..ParsedOp::default() };
        said.attributes.push(("dimension".into(), Attribute::Int(self.int()?)));
        said.attributes.push(("operandSegmentSizes".into(), Attribute::Array("i32".into(), counts)));
        if self.eat_word("attributes")? {
            said.attributes.extend(self.dictionary()?);
        }
        said.regions.push(self.region()?);
        self.expect(':')?;
        self.plain_types("scan", 1, &mut said, at)?;
        Ok(said)
    }

    /// Builds the body of a `reduce` that applies one op to scalars.
    fn applied(&mut self, name: &str, operands: &[FunctionValue], n: usize) -> Result<MlirRegion> {
        let init = operands.get(n).and_then(|v| self.values.get(*v)).cloned();
        let ty =
            init.filter(|_| n == 1).ok_or_else(|| self.error("`applies` requires exactly one operand"))?;
        let element = match ty {
            MlirType::Tensor(t) => MlirType::Tensor(RankedTensorType { dims: Vec::new(), ..t }),
            other => other,
        };
        let first = self.values.len();
        self.values.extend(vec![element; 3]);
        let place = self.place_of(self.at);
        let op = Operation {
            name: full_name(name),
            operands: vec![first, first + 1],
            results: vec![first + 2],
            place,
            ..Operation::default()
        };
        let end = Operation {
            name: "stablehlo.return".into(),
            operands: vec![first + 2],
            place,
            ..Operation::default()
        };
        Ok(MlirRegion { arguments: vec![first, first + 1], operations: vec![op, end] })
    }

    /// Parses `%a: tensor<f32> loc(…)`
    fn argument(&mut self) -> Result<(&'a str, MlirType)> {
        let Token::Value(name) = self.token else { return Err(self.unexpected("an argument")) };
        self.advance()?;
        self.expect(':')?;
        let ty = self.ty()?;
        self.location()?;
        Ok((name, ty))
    }

    /// Parses `reducer(%a: tensor<f32>, %b: tensor<f32>) (%c: …, %d: …) {…}`: one pair per array.
    fn reducer(&mut self) -> Result<MlirRegion> {
        self.expect_word("reducer")?;
        let (mut left, mut right) = (Vec::new(), Vec::new());
        while self.is('(') {
            let at = self.at;
            let pair = self.list('(', ')', Self::argument)?;
            let [a, b]: [_; 2] =
                pair.try_into().map_err(|_| self.error_at(at, "a reducer has pairs of arguments"))?;
            left.push(a);
            right.push(b);
        }
        left.extend(right);
        self.region_of(left)
    }

    /// Parses `(%0) in_shardings=[<@mesh, …>] out_shardings=[…] manual_axes={"x"} (%1: …) {…} : (…) -> …`
    fn manual_computation(&mut self) -> Result<ParsedOp> {
        let at = self.at;
        let mut said = ParsedOp { operands: self.list('(', ')', Self::value)?, ..ParsedOp::default() };
        while let Token::Word(name) = self.token {
            self.advance()?;
            self.expect('=')?;
            let items = match name {
                "manual_axes" => self.list('{', '}', |p| p.string().map(Attribute::String))?,
                _ => self.list('[', ']', Self::sharding)?,
            };
            said.attributes.push((name.into(), Attribute::List(items)));
        }
        said.attributes.sort_by(|a, b| a.0.cmp(&b.0));
        let arguments = self.list('(', ')', Self::argument)?;
        said.regions.push(self.region_of(arguments)?);
        self.end("manual_computation", said.operands.len(), said, at)
    }

    /// Parses `(%i = %0, %x = %1) : types attributes {…} cond {…} do {…}`
    fn while_loop(&mut self) -> Result<ParsedOp> {
        let at = self.at;
        let state = self.list('(', ')', |p| {
            let Token::Value(name) = p.token else { return Err(p.unexpected("a name")) };
            p.advance()?;
            p.expect('=')?;
            Ok((name, p.value()?))
        })?;
        let mut said =
            ParsedOp { operands: state.iter().map(|(_, value)| *value).collect(), ..ParsedOp::default() };
        if self.eat(':')? {
            said.results = self.separated(Self::ty)?;
        }
        self.same_types(&said.operands, &said.results, at)?;
        if self.eat_word("attributes")? {
            said.attributes = self.dictionary()?;
        }
        let names: Vec<(&'a str, MlirType)> =
            state.iter().map(|(name, _)| *name).zip(said.results.iter().cloned()).collect();
        self.expect_word("cond")?;
        said.regions.push(self.region_of(names.clone())?);
        self.expect_word("do")?;
        said.regions.push(self.region_of(names)?);
        Ok(said)
    }
}

/// Converts `[[1, 2], [3, 4]]` to a two-dimensional array.
fn pairs(items: &[Attribute]) -> Option<DenseElements> {
    let mut words = Vec::new();
    for item in items {
        let Attribute::List(pair) = item else { return None };
        let [Attribute::Int(low), Attribute::Int(high)] = pair.as_slice() else { return None };
        words.extend([low.to_string(), high.to_string()]);
    }
    let dims = vec![Some(items.len() as u64), Some(2)];
    let elements =
        if words.is_empty() { ElementData::None } else { ElementData::List(vec![items.len(), 2], words) };
    Some(DenseElements {
        ty: MlirType::Tensor(RankedTensorType { dims, element: "i64".into(), encoding: None }),
        elements,
    })
}

/// Attributes that the generic form writes as `array<i64: …>`.
const ARRAYS: &[&str] = &[
    "broadcast_dimensions",
    "broadcast_sizes",
    "dimensions",
    "edge_padding_high",
    "edge_padding_low",
    "fft_length",
    "interior_padding",
    "lhs_dilation",
    "permutation",
    "rhs_dilation",
    "slice_sizes",
    "window_strides",
];

/// Converts `[DEFAULT, HIGHEST]` to precisions and lists of integers to arrays; returns other attributes unchanged.
pub(super) fn of_words(name: &str, value: Attribute) -> Attribute {
    if let Attribute::List(items) = &value {
        let all = |is: fn(&Attribute) -> bool| items.iter().all(is);
        if ARRAYS.contains(&name) && all(|item| matches!(item, Attribute::Int(_))) {
            return Attribute::Array("i64".into(), items.clone());
        }
        if name == "padding" && items.iter().all(|item| matches!(item, Attribute::List(_))) {
            return pairs(items).map_or(value, Attribute::Dense);
        }
        if name == "window_reversal" && all(|item| matches!(item, Attribute::Bool(_))) {
            return Attribute::Array("i1".into(), items.clone());
        }
    }
    let word = |item: &Attribute| match item {
        Attribute::Type(MlirType::Scalar(word)) => Some(Attribute::Keyword("precision".into(), word.clone())),
        _ => None,
    };
    match value {
        Attribute::List(items) => {
            let words: Option<Vec<Attribute>> = items.iter().map(word).collect();
            Attribute::List(words.unwrap_or(items))
        }
        other => other,
    }
}
