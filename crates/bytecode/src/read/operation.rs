//! Reads the module, functions, regions and ops of MLIR bytecode.

use super::raise::plain;
use super::reader::{BytecodeReader, MAX_DEPTH, unknown};
use crate::byte_io::{ByteReader, wrong};
use crate::file::section;
use crate::vhlo_tables::{OTHERS, versions};
use systole_base::{Result, ResultExt, ensure};
use systole_mlir::syntax::{
    Attribute, FunctionValue, MlirFunction, MlirModule, MlirRegion, MlirType, NamedAttributes, Operation,
    ShardyMesh, SourceSpan, take,
};

/// Bits of an op's presence mask.
mod part {
    pub(super) const ATTRIBUTES: u8 = 1;
    pub(super) const RESULTS: u8 = 2;
    pub(super) const OPERANDS: u8 = 4;
    pub(super) const SUCCESSORS: u8 = 8;
    pub(super) const REGIONS: u8 = 16;
    pub(super) const USES: u8 = 32;
    pub(super) const PROPERTIES: u8 = 64;
}

/// Memory charged for an op in addition to its lists.
const OPERATION_BYTES: usize = size_of::<Operation>() + 64;

/// Reads the module of a file.
pub(super) fn module(reader: &BytecodeReader<'_>) -> Result<MlirModule> {
    let mut walk = OpReader {
        reader,
        module: MlirModule::default(),
        values: Vec::new(),
        scopes: vec![ValueScope::default()],
        names: Vec::new(),
    };
    let mut bytes = reader.file.ir;
    let (count, arguments) = bytes.flagged()?;
    ensure!(count == 1 && !arguments, bytes.wrong("expected a single module"));
    let found = walk.operation(&mut bytes, Enclosing::File, 0)?;
    match found {
        Some(op) => Err(unknown(format!("expected a module, got {}", op.name), bytes.at)),
        None => {
            let named = reader.file.resources.iter();
            for (name, blob) in named {
                reader.charge(blob.len() + name.len() + 64)?;
                walk.module.resources.push(((*name).into(), blob.to_vec()));
            }
            Ok(walk.module)
        }
    }
}

/// Parent of an op: file, module, function or another op.
#[derive(Clone, Copy, PartialEq)]
enum Enclosing {
    File,
    Module,
    Function,
    Op,
}

/// Values by number from the start of an isolated region.
#[derive(Default)]
struct ValueScope {
    /// Value for each number, once defined.
    values: Vec<Option<FunctionValue>>,
    /// Next number of each open region.
    next: Vec<usize>,
}

/// Reads the ops of a module.
struct OpReader<'r, 'a> {
    reader: &'r BytecodeReader<'a>,
    module: MlirModule,
    /// Types of the values of the current function.
    values: Vec<MlirType>,
    scopes: Vec<ValueScope>,
    /// Argument names of the block that was read last.
    names: Vec<String>,
}

/// An op before its regions.
struct OpHeader {
    /// Name with dialect and version: `vhlo.add_v1`.
    name: String,
    /// The op's own attributes by VHLO name, and all others.
    own: NamedAttributes,
    others: NamedAttributes,
    results: Vec<MlirType>,
    operands: Vec<u64>,
    place: usize,
}

impl<'a> OpReader<'_, 'a> {
    /// Reads an op; `None` if it was added to the module or computes nothing.
    fn operation(
        &mut self,
        bytes: &mut ByteReader<'a>,
        within: Enclosing,
        depth: usize,
    ) -> Result<Option<Operation>> {
        self.reader.charge(OPERATION_BYTES)?;
        let (head, mask) = self.head(bytes)?;
        let (regions, isolated) = if mask & part::REGIONS != 0 { bytes.flagged()? } else { (0, false) };
        let place = head.place;
        match (within, head.name.as_str()) {
            (Enclosing::File, "builtin.module") => {
                self.module.attributes =
                    head.others.into_iter().map(|(name, value)| (name, plain(value))).collect();
                self.regions(bytes, (regions, isolated), Enclosing::Module, depth)?;
                return Ok(None);
            }
            (Enclosing::Module, "sdy.mesh") => {
                self.mesh(head.own).ok_or_else(|| wrong(place, "a mesh has no name or no axes"))?;
                return Ok(None);
            }
            (Enclosing::Module, "vhlo.func_v1") => {
                let function = self.function(head, bytes, (regions, isolated), depth)?;
                self.module.functions.push(function);
                return Ok(None);
            }
            (Enclosing::Function | Enclosing::Op, "builtin.unrealized_conversion_cast") => {
                // VHLO types and builtin types are represented alike.
                let operands = self.operands(&head)?;
                if operands.len() != head.results.len() {
                    return Err(wrong(place, "a cast has different numbers of operands and results"));
                }
                operands.into_iter().try_for_each(|value| self.number(value, place))?;
                return Ok(None);
            }
            (Enclosing::Function | Enclosing::Op, _) => {}
            (_, name) => return Err(unknown(format!("unsupported op {name} in a module"), place)),
        }
        let operands = self.operands(&head)?;
        let name = full_name(&head.name, within)
            .ok_or_else(|| unknown(format!("unsupported op {}", head.name), place))?;
        let mut results = Vec::new();
        for ty in head.results {
            results.push(self.define(ty, place)?);
        }
        let regions = self.regions(bytes, (regions, isolated), Enclosing::Op, depth).at(|| name.clone())?;
        let raised = match name.split_once('.') {
            Some(("sdy", _)) => head.own,
            Some((_, op)) => self.reader.raise(op, head.own, place)?,
            None => NamedAttributes::new(),
        };
        let others = head.others.into_iter().map(|(name, value)| (name, plain(value)));
        let attributes = raised.into_iter().chain(others).collect();
        let place = SourceSpan { line: 0, column: place };
        Ok(Some(Operation { name, operands, results, attributes, regions, place }))
    }

    /// Reads an op up to its regions, and its mask.
    fn head(&mut self, bytes: &mut ByteReader<'a>) -> Result<(OpHeader, u8)> {
        let place = bytes.at;
        let n = bytes.number()?;
        let (dialect, name, known) = *usize::try_from(n)
            .ok()
            .and_then(|n| self.reader.file.ops.get(n))
            .ok_or_else(|| wrong(place, format!("op name {n} does not exist")))?;
        let mask = bytes.byte()?;
        bytes.number()?;
        let name = format!("{dialect}.{name}");
        let has = |part: u8| mask & part != 0;
        let mut all = NamedAttributes::new();
        if has(part::ATTRIBUTES) {
            let Attribute::Dictionary(entries) = self.reader.attribute(bytes, 0)? else {
                return Err(wrong(place, "an op's attributes must be a dictionary"));
            };
            all = entries;
        }
        let mut own = match has(part::PROPERTIES) {
            true if known => self.properties(&name, bytes)?,
            true => {
                return Err(unknown(
                    format!("unsupported op {name}, which was unregistered in the writer"),
                    place,
                ));
            }
            false => NamedAttributes::new(),
        };
        if self.reader.file.version < 5 {
            for name in own_names(&name).unwrap_or_default() {
                own.extend(take(&mut all, name).map(|value| (name.to_owned(), value)));
            }
        }
        let results = if has(part::RESULTS) { self.reader.types(bytes, 0)? } else { Vec::new() };
        let operands = if has(part::OPERANDS) { bytes.list(ByteReader::number)? } else { Vec::new() };
        self.reader.charge(8 * (operands.len() + results.len()))?;
        if has(part::SUCCESSORS) {
            return Err(unknown(format!("{name}: branches between blocks are not supported"), place));
        }
        if has(part::USES) {
            orders(bytes, results.len())?;
        }
        Ok((OpHeader { name, own, others: all, results, operands, place }, mask))
    }

    /// Reads an op's properties: attribute numbers in order of their names.
    fn properties(&self, name: &str, bytes: &mut ByteReader<'a>) -> Result<NamedAttributes> {
        let n = bytes.number()?;
        let found = usize::try_from(n).ok().and_then(|n| self.reader.file.properties.get(n)).copied();
        let mut given = found.ok_or_else(|| bytes.wrong(format!("properties {n} do not exist")))?;
        let names = own_names(name).ok_or_else(|| unknown(format!("unsupported op {name}"), bytes.at))?;
        let mut own = NamedAttributes::new();
        for name in names {
            match name.strip_prefix('?') {
                None => own.push((name.into(), self.reader.attribute(&mut given, 0)?)),
                Some(name) => {
                    if let (n, true) = given.flagged()? {
                        own.push((name.into(), self.reader.attribute_of(n, given.at, 0)?));
                    }
                }
            }
        }
        Ok(own)
    }

    fn operands(&self, head: &OpHeader) -> Result<Vec<FunctionValue>> {
        let one = |n: &u64| {
            let scope = self.scopes.last()?;
            *scope.values.get(usize::try_from(*n).ok()?)?
        };
        let values = head.operands.iter().map(|n| {
            let found = one(n);
            found
                .ok_or_else(|| wrong(head.place, format!("{} uses a value before its definition", head.name)))
        });
        values.collect()
    }

    /// Adds a value.
    fn define(&mut self, ty: MlirType, place: usize) -> Result<FunctionValue> {
        let value = self.values.len();
        self.values.push(ty);
        self.number(value, place)?;
        Ok(value)
    }

    /// Assigns the next number to a value.
    fn number(&mut self, value: FunctionValue, place: usize) -> Result<()> {
        let slot = self.scopes.last_mut().and_then(|scope| {
            let next = scope.next.last_mut()?;
            let slot = scope.values.get_mut(*next)?;
            *next += 1;
            Some(slot)
        });
        *slot.ok_or_else(|| wrong(place, "the region has more values than it declares"))? = Some(value);
        Ok(())
    }

    fn mesh(&mut self, mut own: NamedAttributes) -> Option<()> {
        let mesh = super::shardy::mesh(take(&mut own, "mesh")?)?;
        let Attribute::String(name) = take(&mut own, "sym_name")? else { return None };
        self.module.meshes.push(ShardyMesh { name, ..mesh });
        Some(())
    }

    fn function(
        &mut self,
        head: OpHeader,
        bytes: &mut ByteReader<'a>,
        regions: (u64, bool),
        depth: usize,
    ) -> Result<MlirFunction> {
        let others = head.others.into_iter().map(|(name, value)| (name, plain(value)));
        let attributes: NamedAttributes = head.own.into_iter().chain(others).collect();
        self.values.clear();
        let mut body = self.regions(bytes, regions, Enclosing::Function, depth)?;
        ensure!(body.len() <= 1, wrong(head.place, "a function has more than one body"));
        let names = std::mem::take(&mut self.names);
        let (body, values) = (body.pop().unwrap_or_default(), std::mem::take(&mut self.values));
        let function = systole_mlir::text::function_of(attributes, body, values)
            .map_err(|what| wrong(head.place, what))?;
        let function = match names.len() == function.names.len() {
            true => MlirFunction { names, ..function },
            false => function,
        };
        if !function.body.operations.is_empty() && function.body.arguments.len() != function.parameters.len()
        {
            return Err(wrong(head.place, format!("arguments of @{} do not match its type", function.name)));
        }
        Ok(function)
    }

    /// Reads the regions of an op.
    fn regions(
        &mut self,
        bytes: &mut ByteReader<'a>,
        (count, isolated): (u64, bool),
        within: Enclosing,
        depth: usize,
    ) -> Result<Vec<MlirRegion>> {
        if depth == MAX_DEPTH && count > 0 {
            return Err(bytes.wrong(format!("regions are nested deeper than {MAX_DEPTH}")));
        }
        let mut regions = Vec::new();
        let mut part;
        let bytes = match isolated && self.reader.file.version >= 2 && count > 0 {
            true => {
                let (id, content) = bytes.section()?;
                ensure!(id == section::IR, content.wrong(format!("expected a region, got section {id}")));
                part = content;
                &mut part
            }
            false => bytes,
        };
        if isolated {
            self.scopes.push(ValueScope::default());
        }
        for _ in 0..bytes.fits(count)? {
            self.reader.charge(size_of::<MlirRegion>())?;
            regions.push(self.region(bytes, within, depth)?);
        }
        if isolated {
            self.scopes.pop();
        }
        Ok(regions)
    }

    fn region(&mut self, bytes: &mut ByteReader<'a>, within: Enclosing, depth: usize) -> Result<MlirRegion> {
        let blocks = bytes.number()?;
        if blocks == 0 {
            return Ok(MlirRegion::default());
        }
        if blocks > 1 {
            return Err(unknown(
                "the region has a second block: branches between blocks are not supported",
                bytes.at,
            ));
        }
        let count = bytes.count()?;
        self.reader.charge(count * size_of::<Option<FunctionValue>>())?;
        let (from, scope) = (self.scopes.last().map_or(0, |s| s.values.len()), self.scopes.last_mut());
        if let Some(scope) = scope {
            scope.values.resize(from + count, None);
            scope.next.push(from);
        }
        let (ops, has_arguments) = bytes.flagged()?;
        let arguments = if has_arguments { self.arguments(bytes)? } else { Vec::new() };
        let names = std::mem::take(&mut self.names);
        let mut operations = Vec::new();
        for _ in 0..bytes.fits(ops)? {
            operations.extend(self.operation(bytes, within, depth + 1)?);
        }
        self.names = names;
        if let Some(scope) = self.scopes.last_mut() {
            scope.values.truncate(from);
            scope.next.pop();
        }
        Ok(MlirRegion { arguments, operations })
    }

    fn arguments(&mut self, bytes: &mut ByteReader<'a>) -> Result<Vec<FunctionValue>> {
        let mut values = Vec::new();
        self.names.clear();
        for _ in 0..bytes.count()? {
            let n = bytes.number()?;
            let (ty, located) = if self.reader.file.version >= 4 { (n >> 1, n & 1 == 1) } else { (n, true) };
            let ty = self.reader.type_of(ty, bytes.at, 0)?;
            self.reader.charge(32)?;
            values.push(self.define(ty, bytes.at)?);
            let name = if located { self.name(bytes)? } else { String::new() };
            self.names.push(name);
        }
        if self.reader.file.version >= 3 && bytes.byte()? != 0 {
            orders(bytes, values.len())?;
        }
        Ok(values)
    }

    /// Reads the name in a location.
    fn name(&self, bytes: &mut ByteReader<'a>) -> Result<String> {
        let n = bytes.number()?;
        let entry = BytecodeReader::entry(&self.reader.file.attributes, n, "attribute", bytes.at)?;
        let mut location = entry.bytes;
        if entry.dialect != "builtin" || !entry.custom || location.number()? != 14 {
            return Ok(String::new());
        }
        match self.reader.attribute(&mut location, 0)? {
            Attribute::String(name) => Ok(name),
            _ => Err(location.wrong("a location's name must be a string")),
        }
    }
}

/// Skips the order of uses.
fn orders(bytes: &mut ByteReader<'_>, values: usize) -> Result<()> {
    let count = if values > 1 { bytes.count()? } else { 1 };
    for _ in 0..count {
        if values > 1 {
            bytes.number()?;
        }
        let (n, _) = bytes.flagged()?;
        for _ in 0..bytes.fits(n)? {
            bytes.number()?;
        }
    }
    Ok(())
}

/// Splits `add_v1` into `add` and 1.
fn versioned(name: &str) -> Option<(&str, u16)> {
    let (name, version) = name.rsplit_once("_v")?;
    Some((name, version.parse().ok()?))
}

/// Returns the names of an op's own attributes, in the order in which they are written.
fn own_names(name: &str) -> Option<Vec<&'static str>> {
    if let Some((name, version)) = name.strip_prefix("vhlo.").and_then(versioned) {
        let row = versions(name).find(|row| row.version == version)?;
        return Some(row.attributes().collect());
    }
    let (_, names) = OTHERS.iter().find(|(op, _)| *op == name)?;
    Some(names.split_ascii_whitespace().collect())
}

/// Returns the op's name in StableHLO text.
fn full_name(name: &str, within: Enclosing) -> Option<String> {
    let Some(op) = name.strip_prefix("vhlo.") else {
        return OTHERS.iter().any(|(known, _)| *known == name).then(|| name.to_owned());
    };
    let (op, version) = versioned(op)?;
    versions(op).find(|row| row.version == version)?;
    match (op, within) {
        ("return", Enclosing::Function) => Some("func.return".into()),
        ("call", _) => Some("func.call".into()),
        _ => Some(format!("stablehlo.{op}")),
    }
}
