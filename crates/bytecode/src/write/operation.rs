//! Writes modules, functions, regions and ops as MLIR bytecode.

use super::attribute::TargetDialect::{self, Builtin, Vhlo};
use super::writer::{MAX_DEPTH, ModuleWriter, refused};
use crate::byte_io::ByteSink;
use crate::file::section;
use crate::vhlo_tables::OTHERS;
use systole_base::{Result, ResultExt, ensure, err};
use systole_mlir::syntax::{
    Attribute, FunctionValue, MlirFunction, MlirRegion, MlirType, NamedAttributes, Operation, find,
};

/// Parts of an op.
#[derive(Default)]
struct OpParts<'a> {
    attributes: Option<u64>,
    properties: Option<u64>,
    results: &'a [u64],
    operands: &'a [u64],
}

/// Writes the module op.
pub(super) fn module(writer: &mut ModuleWriter<'_>) -> Result<ByteSink> {
    let module = writer.module;
    let mut block = ByteSink::default();
    block.flagged((module.meshes.len() + module.functions.len()) as u64, false);
    for mesh in &module.meshes {
        let axes = writer.mesh(mesh);
        let name = writer.attribute(&Attribute::String(mesh.name.clone()), Builtin, 0)?;
        let properties = Some(writer.tables.property(ByteSink::of([axes, name])));
        writer.head(&mut block, ("sdy", "mesh"), OpParts { properties, ..OpParts::default() }, false);
    }
    for f in &module.functions {
        let mut body = BodyWriter { writer, function: f, numbers: vec![None; f.values.len()], reserved: 0 };
        body.function(&mut block).at(|| format!("@{}", f.name))?;
    }
    let mut region = ByteSink::of([1, 0]);
    region.0.extend(&block.0);

    let mut out = ByteSink::default();
    out.flagged(1, false);
    let attributes = match module.attributes.is_empty() {
        true => None,
        false => Some(writer.dictionary(&module.attributes, Builtin)?),
    };
    let properties = Some(writer.tables.property(ByteSink::of([0, 0])));
    writer.head(
        &mut out,
        ("builtin", "module"),
        OpParts { attributes, properties, ..OpParts::default() },
        true,
    );
    out.flagged(1, true);
    out.section(section::IR, &region);
    Ok(out)
}

impl ModuleWriter<'_> {
    /// Writes an op up to its regions, and its mask.
    fn head(&mut self, out: &mut ByteSink, (dialect, name): (&str, &str), parts: OpParts<'_>, regions: bool) {
        let has = |present: bool, bit: u8| if present { bit } else { 0 };
        out.number(self.tables.op(dialect, name));
        out.byte(
            has(parts.attributes.is_some(), 1)
                | has(!parts.results.is_empty(), 2)
                | has(!parts.operands.is_empty(), 4)
                | has(regions, 16)
                | has(parts.properties.is_some(), 64),
        );
        out.number(self.nowhere());
        parts.attributes.into_iter().for_each(|n| out.number(n));
        parts.properties.into_iter().for_each(|n| out.number(n));
        [parts.results, parts.operands]
            .into_iter()
            .filter(|all| !all.is_empty())
            .for_each(|all| out.numbers(all));
    }

    /// Returns the unknown location.
    fn nowhere(&mut self) -> u64 {
        self.tables.attribute("builtin", ByteSink::of([15]))
    }

    /// Returns a name location.
    fn name(&mut self, name: &str) -> Result<u64> {
        let name = self.attribute(&Attribute::String(name.into()), Builtin, 0)?;
        let nowhere = self.nowhere();
        Ok(self.tables.attribute("builtin", ByteSink::of([14, name, nowhere])))
    }

    /// Writes attributes that are not the op's own; `None` if there are none.
    fn others(&mut self, attributes: &NamedAttributes, values: TargetDialect) -> Result<Option<u64>> {
        if attributes.is_empty() { Ok(None) } else { self.dictionary(attributes, values).map(Some) }
    }
}

/// Writes the ops of a function.
struct BodyWriter<'w, 'm> {
    writer: &'w mut ModuleWriter<'m>,
    function: &'m MlirFunction,
    /// Number of each value, once defined.
    numbers: Vec<Option<u64>>,
    /// Number of values of all open regions.
    reserved: u64,
}

/// Whether an op is Shardy's; its types are builtin, so casts are inserted around it.
fn is_shardy(op: &Operation) -> bool {
    op.name.starts_with("sdy.")
}

/// Counts the values of a region's arguments and ops, including casts around Shardy ops.
fn count(region: &MlirRegion, shardy: bool) -> u64 {
    let of_op = |op: &Operation| match is_shardy(op) {
        true => op.operands.len() + 2 * op.results.len(),
        false => op.results.len(),
    };
    let arguments = region.arguments.len() * if shardy { 2 } else { 1 };
    (arguments + region.operations.iter().map(of_op).sum::<usize>()) as u64
}

impl<'m> BodyWriter<'_, 'm> {
    fn function(&mut self, out: &mut ByteSink) -> Result<()> {
        let f = self.function;
        let list = |all: Vec<&NamedAttributes>| {
            let items = all.iter().map(|a| Attribute::Dictionary((*a).clone())).collect();
            Attribute::List(if all.iter().all(|a| a.is_empty()) { Vec::new() } else { items })
        };
        let from = match f.body.arguments.is_empty() {
            true if f.parameters.is_empty() => Vec::new(),
            true => return Err(refused("cannot write a function declaration without argument types")),
            false => f.body.arguments.iter().map(|v| self.ty(*v).cloned()).collect::<Result<_>>()?,
        };
        let to = f.results.iter().map(|(ty, _)| ty.clone()).collect();
        let visibility = if f.is_private { "private" } else { "" };
        let own = [
            list(f.parameters.iter().collect()),
            Attribute::Type(MlirType::Function(from, to)),
            list(f.results.iter().map(|(_, a)| a).collect()),
            Attribute::String(f.name.clone()),
            Attribute::String(visibility.into()),
        ];
        let mut properties = ByteSink::default();
        for value in own {
            properties.number(self.writer.attribute(&value, Vhlo, 0)?);
        }
        let properties = Some(self.writer.tables.property(properties));
        let attributes = self.writer.others(&f.attributes, Vhlo)?;
        self.writer.head(
            out,
            ("vhlo", "func_v1"),
            OpParts { attributes, properties, ..OpParts::default() },
            true,
        );
        out.flagged(1, true);
        let mut region = ByteSink::default();
        self.region(&f.body, Vhlo, 0, &mut region)?;
        out.section(section::IR, &region);
        Ok(())
    }

    fn ty(&self, value: FunctionValue) -> Result<&'m MlirType> {
        let found = self.function.values.get(value);
        found.ok_or_else(|| err!(Data, "a value has no type"))
    }

    fn types(&mut self, values: &[FunctionValue], dialect: TargetDialect) -> Result<Vec<u64>> {
        values.iter().map(|v| self.ty(*v).and_then(|ty| self.writer.ty(ty, dialect, 0))).collect()
    }

    /// Writes a region whose arguments have types of a dialect.
    fn region(
        &mut self,
        region: &'m MlirRegion,
        dialect: TargetDialect,
        depth: usize,
        out: &mut ByteSink,
    ) -> Result<()> {
        ensure!(depth != MAX_DEPTH, refused(format!("regions are nested deeper than {MAX_DEPTH}")));
        if region.operations.is_empty() {
            out.number(0);
            return Ok(());
        }
        let values = count(region, dialect == Builtin);
        let mut next = self.reserved;
        self.reserved += values;
        let types = self.types(&region.arguments, dialect)?;
        let mut arguments = ByteSink::default();
        for (i, (value, ty)) in region.arguments.iter().zip(types).enumerate() {
            let name = self.function.names.get(i).filter(|name| depth == 0 && !name.is_empty());
            arguments.flagged(ty, name.is_some());
            if let Some(name) = name {
                arguments.number(self.writer.name(name)?);
            }
            self.set(*value, &mut next);
        }
        let (mut ops, mut block) = (0, ByteSink::default());
        if dialect == Builtin {
            self.casts(&region.arguments, Vhlo, &mut block, (&mut next, &mut ops))?;
        }
        for op in &region.operations {
            self.operation(op, &mut block, (&mut next, &mut ops), depth).at(|| op.name.clone())?;
        }
        self.reserved -= values;
        out.number(1);
        out.number(values);
        out.flagged(ops, !region.arguments.is_empty());
        if !region.arguments.is_empty() {
            out.number(region.arguments.len() as u64);
            out.0.extend(&arguments.0);
            out.byte(0);
        }
        out.0.extend(&block.0);
        Ok(())
    }

    /// Assigns the next number to a value.
    fn set(&mut self, value: FunctionValue, next: &mut u64) {
        if let Some(slot) = self.numbers.get_mut(value) {
            *slot = Some(*next);
        }
        *next += 1;
    }

    fn operands(&self, op: &Operation) -> Result<Vec<u64>> {
        let number = |v: &FunctionValue| self.numbers.get(*v).copied().flatten();
        let all = op
            .operands
            .iter()
            .map(|v| number(v).ok_or_else(|| err!(Data, "a value is used before its definition")));
        all.collect()
    }

    /// Writes casts of values to types of a dialect.
    fn casts(
        &mut self,
        values: &[FunctionValue],
        to: TargetDialect,
        out: &mut ByteSink,
        (next, ops): (&mut u64, &mut u64),
    ) -> Result<()> {
        for value in values {
            let ty = self.types(&[*value], to)?;
            let from = self.numbers.get(*value).copied().flatten();
            let from = from.ok_or_else(|| err!(Data, "a value is used before its definition"))?;
            let parts = OpParts { results: &ty, operands: &[from], ..OpParts::default() };
            self.writer.head(out, ("builtin", "unrealized_conversion_cast"), parts, false);
            self.set(*value, next);
            *ops += 1;
        }
        Ok(())
    }

    fn operation(
        &mut self,
        op: &'m Operation,
        out: &mut ByteSink,
        (next, ops): (&mut u64, &mut u64),
        depth: usize,
    ) -> Result<()> {
        *ops += 1;
        if is_shardy(op) {
            return self.shardy(op, out, (next, ops), depth);
        }
        let name = match op.name.split_once('.') {
            Some(("stablehlo", name)) => name,
            Some(("func", name @ ("return" | "call"))) => name,
            _ => {
                let what = format!("cannot write {}", op.name);
                return Err(
                    refused(what).because("portable artifacts contain only StableHLO, func and Shardy ops")
                );
            }
        };
        let row = self.writer.version_of(name)?;
        let (own, others) = self.writer.lower(op, name)?;
        self.since_constraints(op, name, &own)?;
        let mut properties = ByteSink::default();
        for (attribute, value) in &own {
            properties.number(match (attribute.as_str(), value) {
                ("api_version", Attribute::Int(n)) => self.writer.api_version(*n),
                _ => self.writer.attribute(value, Vhlo, 0).at(|| format!("`{attribute}`"))?,
            });
        }
        let properties = (!own.is_empty()).then(|| self.writer.tables.property(properties));
        let attributes = self.writer.others(&others, Vhlo)?;
        let (results, operands) = (self.types(&op.results, Vhlo)?, self.operands(op)?);
        let parts = OpParts { attributes, properties, results: &results, operands: &operands };
        let name = format!("{name}_v{}", row.version);
        self.writer.head(out, ("vhlo", &name), parts, !op.regions.is_empty());
        op.results.iter().for_each(|value| self.set(*value, next));
        self.regions(op, Vhlo, out, depth)
    }

    fn regions(
        &mut self,
        op: &'m Operation,
        dialect: TargetDialect,
        out: &mut ByteSink,
        depth: usize,
    ) -> Result<()> {
        if op.regions.is_empty() {
            return Ok(());
        }
        out.flagged(op.regions.len() as u64, false);
        op.regions.iter().try_for_each(|region| self.region(region, dialect, depth + 1, out))
    }

    /// Checks features of an op that depend on the version although the op's own version does not.
    fn since_constraints(&self, op: &Operation, name: &str, own: &NamedAttributes) -> Result<()> {
        if name != "custom_call" {
            return Ok(());
        }
        for (attribute, value) in own {
            match (attribute.as_str(), value) {
                ("backend_config", Attribute::Dictionary(_)) | ("api_version", Attribute::Int(4)) => {
                    self.writer.since((1, 3), &format!("this kind of `{attribute}`"))?;
                }
                _ => {}
            }
        }
        for value in &op.operands {
            if self.ty(*value)?.to_string().starts_with("!stablehlo.future") {
                self.writer.since((1, 17), "argument type !stablehlo.future")?;
            }
        }
        Ok(())
    }

    /// Writes a Shardy op with casts around it.
    fn shardy(
        &mut self,
        op: &'m Operation,
        out: &mut ByteSink,
        (next, ops): (&mut u64, &mut u64),
        depth: usize,
    ) -> Result<()> {
        let known = OTHERS.iter().find(|(name, _)| *name == op.name);
        let (_, names) = known.ok_or_else(|| refused(format!("cannot write {}", op.name)))?;
        // Later ops use the uncast operands.
        let before: Vec<_> =
            op.operands.iter().map(|v| (*v, self.numbers.get(*v).copied().flatten())).collect();
        self.casts(&op.operands, Builtin, out, (&mut *next, &mut *ops))?;
        let mut properties = ByteSink::default();
        for name in names.split_ascii_whitespace() {
            let found = find(&op.attributes, name);
            let found = found.ok_or_else(|| refused(format!("{} has no `{name}`", op.name)))?;
            properties.number(match found {
                Attribute::List(items) if items.is_empty() && name == "manual_axes" => self.writer.no_axes(),
                Attribute::List(items) => self.writer.shardy_list(items)?,
                value => self.writer.attribute(value, Builtin, 0)?,
            });
        }
        let properties = (!names.is_empty()).then(|| self.writer.tables.property(properties));
        let (results, operands) = (self.types(&op.results, Builtin)?, self.operands(op)?);
        let parts = OpParts { properties, results: &results, operands: &operands, ..OpParts::default() };
        let name = op.name.trim_start_matches("sdy.");
        self.writer.head(out, ("sdy", name), parts, !op.regions.is_empty());
        for (value, number) in before {
            if let Some(slot) = self.numbers.get_mut(value) {
                *slot = number;
            }
        }
        op.results.iter().for_each(|value| self.set(*value, next));
        self.regions(op, Builtin, out, depth)?;
        self.casts(&op.results, Vhlo, out, (next, ops))
    }
}

impl ModuleWriter<'_> {
    /// Writes the API version of a custom call.
    fn api_version(&mut self, n: i128) -> u64 {
        self.tables.attribute("vhlo", ByteSink::of([5, n as u64]))
    }

    /// Returns the empty list of axes.
    fn no_axes(&mut self) -> u64 {
        self.tables.attribute("sdy", ByteSink::of([0, 0]))
    }
}
