//! Reads Shardy attributes from MLIR bytecode: meshes, shardings and sharding rules.
//!
//! Drops priorities and explicitly replicated axes; rejects sub-axes and inlined meshes.

use super::reader::{BytecodeReader, unknown};
use crate::byte_io::ByteReader;
use systole_base::Result;
use systole_mlir::syntax::{Attribute, NamedAttributes, OPEN, ShardyMesh};
use systole_mlir::text::unreduced_along;

/// Intermediate attributes on the way to a mesh and to a sharding rule.
const MESH: &str = "sdy.mesh";
const RULE: &str = "sdy.op_sharding_rule";
/// Name of the last field of a mesh, which follows the axes.
const DEVICES: &str = "device_ids";

/// Returns the letter of a factor in a sharding rule.
fn factor(n: i64) -> String {
    match u8::try_from(n).ok().filter(|n| *n < 18) {
        Some(n) => char::from(b'i' + n).to_string(),
        None => format!("z_{}", n.saturating_sub(17)),
    }
}

impl<'a> BytecodeReader<'a> {
    pub(super) fn shardy_attribute(&self, bytes: &mut ByteReader<'a>, depth: usize) -> Result<Attribute> {
        match bytes.number()? {
            0 => Ok(Attribute::List(self.list(bytes, depth)?)),
            1 => {
                let name = self.text(bytes)?;
                Ok(Attribute::Struct(
                    "mesh_axis".into(),
                    vec![(name, Attribute::Int(bytes.signed()?.into()))],
                ))
            }
            2 => {
                let axes = self.list(bytes, depth)?.into_iter().filter_map(|axis| match axis {
                    Attribute::Struct(_, mut fields) => fields.pop(),
                    _ => None,
                });
                let mut fields: NamedAttributes = axes.collect();
                let devices = bytes.list(ByteReader::signed)?;
                let devices = devices.into_iter().map(|device| Attribute::Int(device.into())).collect();
                fields.push((DEVICES.into(), Attribute::List(devices)));
                Ok(Attribute::Struct(MESH.into(), fields))
            }
            4 => {
                let name = self.text(bytes)?;
                match bytes.flagged()? {
                    (_, false) => Ok(Attribute::String(name)),
                    _ => Err(unknown("sub-axes are not supported", bytes.at)),
                }
            }
            // Axes of a dimension, and whether it is closed; the priority is dropped.
            5 => {
                let mut axes = self.list(bytes, depth)?;
                if bytes.byte()? == 0 {
                    axes.push(Attribute::String(OPEN.into()));
                }
                Ok(Attribute::List(axes))
            }
            6 => self.sharding(bytes, depth),
            15 | 17 => {
                let sharding = self.sharding(bytes, depth)?;
                let unreduced = self.list(bytes, depth)?;
                Ok(unreduced_along(sharding, unreduced))
            }
            8 => {
                let factors = bytes.list(ByteReader::signed)?.into_iter().map(factor).collect::<String>();
                self.part(factors)
            }
            9 => {
                let text = self.texts(bytes, depth)?;
                self.part(format!("[{text}]"))
            }
            10 => self.rule(bytes, depth),
            7 | 16 => Ok(Attribute::List(self.list(bytes, depth)?)),
            code => Err(unknown(format!("unsupported Shardy attribute {code}"), bytes.at)),
        }
    }

    /// Formats a part of a sharding rule.
    fn part(&self, text: String) -> Result<Attribute> {
        self.charge(text.len())?;
        Ok(Attribute::Other(RULE.into(), text))
    }

    /// Reads a comma-separated list of parts.
    fn texts(&self, bytes: &mut ByteReader<'a>, depth: usize) -> Result<String> {
        let all = self.list(bytes, depth)?.into_iter().map(|part| match part {
            Attribute::Other(_, text) => text,
            _ => String::new(),
        });
        Ok(all.collect::<Vec<_>>().join(", "))
    }

    /// Reads `([i, j])->([k]) {i=4, j=4, k=4} reduction={j}, custom`: how dimensions of operands and results
    /// correspond.
    fn rule(&self, bytes: &mut ByteReader<'a>, depth: usize) -> Result<Attribute> {
        let sizes = bytes.list(ByteReader::signed)?;
        let (operands, results) = (self.texts(bytes, depth)?, self.texts(bytes, depth)?);
        let mut text = format!("({operands})->({results})");
        let all: Vec<String> = (0..).zip(sizes).map(|(i, n)| format!("{}={n}", factor(i))).collect();
        if !all.is_empty() {
            text += &format!(" {{{}}}", all.join(", "));
        }
        for kind in ["reduction", "need_replication", "permutation", "blocked_propagation"] {
            let all: Vec<String> = bytes.list(ByteReader::signed)?.into_iter().map(factor).collect();
            if !all.is_empty() {
                text += &format!(" {kind}={{{}}}", all.join(", "));
            }
        }
        text += if bytes.byte()? == 1 { ", custom" } else { "" };
        self.part(text)
    }

    fn sharding(&self, bytes: &mut ByteReader<'a>, depth: usize) -> Result<Attribute> {
        let Attribute::Symbol(mesh) = self.attribute(bytes, depth)? else {
            return Err(unknown("a sharding with an inlined mesh is not supported", bytes.at));
        };
        let dims = self.list(bytes, depth)?.into_iter().map(|dim| match dim {
            Attribute::List(axes) => axes.into_iter().map(axis).collect(),
            _ => None,
        });
        let dims: Option<Vec<Vec<String>>> = dims.collect();
        let dims = dims.ok_or_else(|| bytes.wrong("a sharding has no axes"))?;
        // Explicitly replicated axes have no effect.
        self.list(bytes, depth)?;
        Ok(Attribute::Sharding(mesh, dims))
    }
}

fn axis(axis: Attribute) -> Option<String> {
    match axis {
        Attribute::String(name) => Some(name),
        _ => None,
    }
}

/// Returns a mesh without its name.
pub(super) fn mesh(attribute: Attribute) -> Option<ShardyMesh> {
    let Attribute::Struct(kind, mut fields) = attribute else { return None };
    let size = |size: &Attribute| match size {
        Attribute::Int(n) => u64::try_from(*n).ok(),
        _ => None,
    };
    let (_, Attribute::List(devices)) = fields.pop()? else { return None };
    let devices = devices.iter().map(size).collect::<Option<Vec<_>>>()?;
    let axes = fields.into_iter().map(|(name, n)| Some((name, size(&n)?)));
    let axes = axes.collect::<Option<Vec<_>>>().filter(|_| kind == MESH)?;
    Some(ShardyMesh { name: String::new(), axes, devices })
}
