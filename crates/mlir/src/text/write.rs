//! Prints an [`MlirModule`] as text: ops in generic form, Shardy ops in their pretty form.

use crate::syntax::{
    Attribute, DenseElements, ElementData, FunctionValue, MlirFunction, MlirModule, MlirRegion, MlirType,
    NamedAttributes, OPEN, Operation, ShardyMesh, find,
};
use std::fmt::Write;

/// Prints an MLIR module; [`super::parse`] reads it back unchanged.
pub fn write(module: &MlirModule) -> String {
    let mut out = TextWriter::default();
    out.push("module");
    if !module.attributes.is_empty() {
        out.push(" attributes ");
        out.dictionary(&module.attributes);
    }
    out.push(" {\n");
    for ShardyMesh { name, axes, devices } in &module.meshes {
        let all: Vec<String> = axes.iter().map(|(name, size)| format!("{}={size}", quoted(name))).collect();
        let devices: Vec<String> = devices.iter().map(u64::to_string).collect();
        let order = match devices.is_empty() {
            true => String::new(),
            false => format!(", device_ids=[{}]", devices.join(", ")),
        };
        out.push(&format!("  sdy.mesh {} = <[{}]{order}>\n", symbol(name), all.join(", ")));
    }
    module.functions.iter().for_each(|f| out.function(f));
    out.push("}\n");
    if !module.resources.is_empty() {
        // The first four bytes contain the alignment.
        let one =
            |(name, bytes): &(String, Vec<u8>)| format!("{}: \"0x04000000{}\"", quoted(name), hex(bytes));
        let all: Vec<String> = module.resources.iter().map(one).collect();
        out.push(&format!("{{-# dialect_resources: {{ builtin: {{ {} }} }} #-}}\n", all.join(", ")));
    }
    out.0
}

/// int32 attributes; all other integer attributes are int64.
const OF_32_BITS: &[&str] = &[
    "index",
    "exponent_bits",
    "mantissa_bits",
    "version",
    "api_version",
    "tf.aliasing_output",
    "mhlo.num_partitions",
    "mhlo.num_replicas",
];

/// Output buffer of the printer.
#[derive(Default)]
struct TextWriter(String);

impl TextWriter {
    fn push(&mut self, text: &str) {
        self.0.push_str(text);
    }

    /// Writes a comma-separated list.
    fn list<T>(&mut self, all: impl IntoIterator<Item = T>, mut one: impl FnMut(&mut Self, T)) {
        for (i, item) in all.into_iter().enumerate() {
            self.push(if i > 0 { ", " } else { "" });
            one(self, item);
        }
    }

    fn values(&mut self, all: &[FunctionValue]) {
        self.list(all, |out, v| out.push(&format!("%{v}")));
    }

    fn types(&mut self, f: &MlirFunction, all: &[FunctionValue]) {
        self.list(all, |out, v| out.push(&ty(f, *v)));
    }

    fn function(&mut self, f: &MlirFunction) {
        self.push(if f.is_private { "  func.func private " } else { "  func.func " });
        self.push(&symbol(&f.name));
        self.push("(");
        self.list(f.body.arguments.iter().enumerate(), |out, (i, v)| {
            out.push(&format!("%{v}: {}", ty(f, *v)));
            out.annotation(f.parameters.get(i));
            if let Some(name) = f.names.get(i).filter(|name| !name.is_empty()) {
                out.push(&format!(" loc({})", quoted(name)));
            }
        });
        self.push(")");
        if !f.results.is_empty() {
            self.push(" -> (");
            self.list(&f.results, |out, (ty, attributes)| {
                out.push(&ty.to_string());
                out.annotation(Some(attributes));
            });
            self.push(")");
        }
        if !f.attributes.is_empty() {
            self.push(" attributes ");
            self.dictionary(&f.attributes);
        }
        if !f.body.operations.is_empty() {
            self.push(" {\n");
            self.operations(f, &f.body, 2);
            self.push("  }");
        }
        self.push("\n");
    }

    /// Writes ` {…}` if there are attributes.
    fn annotation(&mut self, attributes: Option<&NamedAttributes>) {
        if let Some(attributes) = attributes.filter(|a| !a.is_empty()) {
            self.push(" ");
            self.dictionary(attributes);
        }
    }

    fn operations(&mut self, f: &MlirFunction, region: &MlirRegion, depth: usize) {
        for op in &region.operations {
            self.push(&"  ".repeat(depth));
            if !op.results.is_empty() {
                self.values(&op.results);
                self.push(" = ");
            }
            match op.name.as_str() {
                "sdy.sharding_constraint" | "sdy.reshard" => self.sharding_constraint(f, op),
                "sdy.manual_computation" => self.manual_computation(f, op, depth),
                _ => self.generic(f, op, depth),
            }
            self.push("\n");
        }
    }

    /// Writes `"name"(%0) ({…}) {…} : (…) -> (…)`
    fn generic(&mut self, f: &MlirFunction, op: &Operation, depth: usize) {
        self.push(&format!("\"{}\"(", op.name));
        self.values(&op.operands);
        self.push(")");
        if !op.regions.is_empty() {
            self.push(" (");
            self.list(&op.regions, |out, region| {
                out.push("{\n");
                if !region.arguments.is_empty() {
                    out.push(&format!("{}^bb0(", "  ".repeat(depth)));
                    out.arguments(f, region);
                    out.push("):\n");
                }
                out.operations(f, region, depth + 1);
                out.push(&format!("{}}}", "  ".repeat(depth)));
            });
            self.push(")");
        }
        self.annotation(Some(&op.attributes));
        self.signature(f, op);
    }

    fn arguments(&mut self, f: &MlirFunction, region: &MlirRegion) {
        self.list(&region.arguments, |out, v| out.push(&format!("%{v}: {}", ty(f, *v))));
    }

    /// Writes ` : (…) -> (…)`
    fn signature(&mut self, f: &MlirFunction, op: &Operation) {
        self.push(" : (");
        self.types(f, &op.operands);
        self.push(") -> (");
        self.types(f, &op.results);
        self.push(")");
    }

    fn sharding_constraint(&mut self, f: &MlirFunction, op: &Operation) {
        self.push(&format!("{} ", op.name));
        self.values(&op.operands);
        if let Some(Attribute::Sharding(mesh, dims)) = find(&op.attributes, "sharding") {
            self.push(&format!(" {}", sharding(mesh, dims)));
        }
        self.push(" : ");
        self.types(f, &op.operands);
    }

    fn manual_computation(&mut self, f: &MlirFunction, op: &Operation, depth: usize) {
        self.push(&format!("{}(", op.name));
        self.values(&op.operands);
        self.push(")");
        for name in ["in_shardings", "out_shardings", "manual_axes"] {
            let Some(Attribute::List(items)) = find(&op.attributes, name) else { continue };
            let (open, close) = if name == "manual_axes" { ("{", "}") } else { ("[", "]") };
            self.push(&format!(" {name}={open}"));
            self.list(items, |out, item| match item {
                Attribute::Sharding(mesh, dims) => out.push(&sharding(mesh, dims)),
                item => out.attribute(item),
            });
            self.push(close);
        }
        for region in &op.regions {
            self.push(" (");
            self.arguments(f, region);
            self.push(") {\n");
            self.operations(f, region, depth + 1);
            self.push(&format!("{}}}", "  ".repeat(depth)));
        }
        self.signature(f, op);
    }
}

/// Returns the type of a value.
fn ty(f: &MlirFunction, value: FunctionValue) -> String {
    f.values.get(value).map(ToString::to_string).unwrap_or_default()
}

/// Writes `<@mesh, [{"x"}, {}]>`
fn sharding(mesh: &str, dims: &[Vec<String>]) -> String {
    let axis = |a: &String| if a == OPEN { a.clone() } else { quoted(a) };
    let dim = |axes: &Vec<String>| format!("{{{}}}", axes.iter().map(axis).collect::<Vec<_>>().join(", "));
    format!("<{}, [{}]>", symbol(mesh), dims.iter().map(dim).collect::<Vec<_>>().join(", "))
}

/// Whether a name needs no quotes.
fn is_plain(name: &str) -> bool {
    let part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '$');
    name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_') && name.chars().all(part)
}

fn symbol(name: &str) -> String {
    // Symbols may be nested: `@outer::@inner`.
    let part = |name: &str| if is_plain(name) { format!("@{name}") } else { format!("@{}", quoted(name)) };
    name.split("::@").map(part).collect::<Vec<_>>().join("::")
}

/// Writes `"text"`
fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for b in text.bytes() {
        match b {
            b'"' | b'\\' | 0..=31 | 127.. => drop(write!(out, "\\{b:02X}")),
            b => out.push(char::from(b)),
        }
    }
    out + "\""
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut out, b| {
        let _ = write!(out, "{b:02X}");
        out
    })
}

/// Attributes.
impl TextWriter {
    fn dictionary(&mut self, entries: &NamedAttributes) {
        self.push("{");
        self.list(entries, |out, (name, value)| {
            out.push(&if is_plain(name) { name.clone() } else { quoted(name) });
            if *value == Attribute::Unit {
                return;
            }
            out.push(" = ");
            match value {
                Attribute::Int(n) if OF_32_BITS.contains(&name.as_str()) => out.push(&format!("{n} : i32")),
                value => out.attribute(value),
            }
        });
        self.push("}");
    }

    fn attribute(&mut self, value: &Attribute) {
        match value {
            Attribute::Unit => self.push("unit"),
            Attribute::Bool(b) => self.push(&b.to_string()),
            Attribute::Int(n) => self.push(&format!("{n} : i64")),
            Attribute::Float(digits, ty) => self.push(&format!("{digits} : {ty}")),
            Attribute::String(text) => self.push(&quoted(text)),
            Attribute::Symbol(name) => self.push(&symbol(name)),
            Attribute::List(items) => {
                self.push("[");
                self.list(items, Self::attribute);
                self.push("]");
            }
            Attribute::Dictionary(entries) => self.dictionary(entries),
            Attribute::Array(element, items) => {
                self.push(&format!("array<{element}"));
                self.push(if items.is_empty() { "" } else { ": " });
                self.list(items, Self::field);
                self.push(">");
            }
            Attribute::Dense(dense) => self.dense(dense),
            Attribute::Type(ty) => self.push(&ty.to_string()),
            Attribute::Keyword(kind, word) => {
                let kind = match kind.as_str() {
                    "transpose_a" => "transpose",
                    "compare_type" => "comparison_type",
                    kind => kind,
                };
                self.push(&format!("#stablehlo<{kind} {word}>"));
            }
            Attribute::Struct(kind, fields) => {
                self.push(&format!("#stablehlo.{kind}<"));
                self.list(fields, |out, (name, value)| {
                    out.push(&format!("{name} = "));
                    out.field(value);
                });
                self.push(">");
            }
            Attribute::Convolution([lhs, rhs, out]) => {
                let [lhs, rhs, out] = [lhs, rhs, out].map(|layout| layout.join(", "));
                self.push(&format!("#stablehlo.conv<[{lhs}]x[{rhs}]->[{out}]>"));
            }
            Attribute::Sharding(mesh, dims) => self.push(&format!("#sdy.sharding{}", sharding(mesh, dims))),
            Attribute::Other(name, text) => self.other(name, text),
        }
    }

    fn other(&mut self, name: &str, text: &str) {
        let is_number = text.parse::<i128>().is_ok();
        match name {
            "sub_axis" => self.push(text),
            _ if is_number && !name.contains('.') => self.push(&format!("{text} : {name}")),
            "affine_map" | "sparse" | "opaque" | "distinct" | "strided" => {
                self.push(&format!("{name}<{text}>"))
            }
            _ if text.is_empty() => self.push(&format!("#{name}")),
            _ => self.push(&format!("#{name}<{text}>")),
        }
    }

    /// Writes a value in an attribute whose field type is known.
    fn field(&mut self, value: &Attribute) {
        match value {
            Attribute::Int(n) => self.push(&n.to_string()),
            Attribute::Float(digits, _) => self.push(digits),
            Attribute::List(items) => {
                self.push("[");
                self.list(items, Self::field);
                self.push("]");
            }
            value => self.attribute(value),
        }
    }

    fn dense(&mut self, dense: &DenseElements) {
        if let ElementData::Resource(name) = &dense.elements {
            let name = if is_plain(name) { name.clone() } else { quoted(name) };
            return self.push(&format!("dense_resource<{name}> : {}", dense.ty));
        }
        let (mut element, mut count) = ("", 1);
        if let MlirType::Tensor(ranked) = &dense.ty {
            element = &ranked.element;
            count = ranked.dims.iter().flatten().product();
        }
        self.push("dense<");
        match &dense.elements {
            ElementData::None | ElementData::Resource(_) => {}
            ElementData::Splat(words) => self.words(words, element),
            ElementData::List(dims, words) => self.nested(dims, words, element),
            // Readers differ in how they pack i1.
            ElementData::Bytes(bytes) if element == "i1" => {
                let bit =
                    |i: u64| bytes.get(i as usize / 8).is_some_and(|b| b >> (i % 8) & 1 == 1).to_string();
                let words: Vec<String> = (0..count.min(8 * bytes.len() as u64)).map(bit).collect();
                let MlirType::Tensor(ranked) = &dense.ty else { return };
                let dims: Vec<usize> = ranked.dims.iter().flatten().map(|d| *d as usize).collect();
                self.nested(&dims, &words, element);
            }
            ElementData::Bytes(bytes) => self.push(&format!("\"0x{}\"", hex(bytes))),
        }
        self.push(&format!("> : {}", dense.ty));
    }

    /// Writes one element; a complex value has two words.
    fn words(&mut self, words: &[String], element: &str) {
        let joined = words.join(", ");
        self.push(&if element.starts_with("complex") { format!("({joined})") } else { joined });
    }

    fn nested(&mut self, dims: &[usize], words: &[String], element: &str) {
        let Some((n, inner)) = dims.split_first() else { return self.words(words, element) };
        self.push("[");
        let size = words.len().checked_div(*n).unwrap_or(0).max(1);
        self.list(words.chunks(size), |out, part| out.nested(inner, part, element));
        self.push("]");
    }
}
