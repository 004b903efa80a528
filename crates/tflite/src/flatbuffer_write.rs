//! Serializes a tree of tables and vectors as a flatbuffer. It is written from the root down, so every offset points
//! forward.

use std::rc::Rc;

/// A value that an offset refers to.
pub(crate) enum FlatbufferNode {
    Table(Vec<(u16, FlatbufferField)>),
    Text(String),
    Ints(Vec<i32>),
    Longs(Vec<i64>),
    Floats(Vec<f32>),
    /// Bytes of a constant, aligned to 16.
    Bytes(Rc<[u8]>),
    List(Vec<FlatbufferNode>),
}

/// A field of a table.
pub(crate) enum FlatbufferField {
    Byte(u8),
    /// Any four-byte scalar.
    Word(u32),
    Node(FlatbufferNode),
}

impl FlatbufferField {
    pub(crate) fn int(value: i32) -> FlatbufferField {
        FlatbufferField::Word(value as u32)
    }
}

/// Returns the file: root offset, identifier, tree.
pub(crate) fn file(identifier: &[u8; 4], root: &FlatbufferNode) -> Vec<u8> {
    let mut out = vec![0; 4];
    out.extend_from_slice(identifier);
    let at = write(&mut out, root);
    put(&mut out, 0, at as u32);
    out
}

fn put(out: &mut [u8], at: usize, value: u32) {
    if let Some(place) = out.get_mut(at..at + 4) {
        place.copy_from_slice(&value.to_le_bytes());
    }
}

fn align(out: &mut Vec<u8>, to: usize, offset: usize) {
    while !(out.len() + offset).is_multiple_of(to) {
        out.push(0);
    }
}

fn word(out: &mut Vec<u8>, value: u32) {
    out.extend_from_slice(&value.to_le_bytes());
}

/// Appends a node and returns its position.
fn write(out: &mut Vec<u8>, node: &FlatbufferNode) -> usize {
    match node {
        FlatbufferNode::Table(fields) => table(out, fields),
        FlatbufferNode::Text(text) => {
            align(out, 4, 0);
            let at = out.len();
            word(out, text.len() as u32);
            out.extend_from_slice(text.as_bytes());
            out.push(0);
            at
        }
        FlatbufferNode::Ints(values) => {
            vector(out, values.len(), 4, values.iter().flat_map(|v| v.to_le_bytes()))
        }
        FlatbufferNode::Longs(values) => {
            vector(out, values.len(), 8, values.iter().flat_map(|v| v.to_le_bytes()))
        }
        FlatbufferNode::Floats(values) => {
            vector(out, values.len(), 4, values.iter().flat_map(|v| v.to_le_bytes()))
        }
        FlatbufferNode::Bytes(bytes) => vector(out, bytes.len(), 16, bytes.iter().copied()),
        FlatbufferNode::List(nodes) => {
            let at = vector(out, nodes.len(), 4, std::iter::repeat_n(0, 4 * nodes.len()));
            for (i, node) in nodes.iter().enumerate() {
                let slot = at + 4 + 4 * i;
                let target = write(out, node);
                put(out, slot, (target - slot) as u32);
            }
            at
        }
    }
}

fn vector(out: &mut Vec<u8>, length: usize, aligned: usize, bytes: impl Iterator<Item = u8>) -> usize {
    // The elements are aligned; their count precedes them.
    align(out, aligned.max(4), 4);
    let at = out.len();
    word(out, length as u32);
    out.extend(bytes);
    at
}

/// Words come first, so that every field is aligned.
fn table(out: &mut Vec<u8>, fields: &[(u16, FlatbufferField)]) -> usize {
    let slots = fields.iter().map(|(id, _)| id + 1).max().unwrap_or(0);
    let is_byte = |slot: &FlatbufferField| matches!(slot, FlatbufferField::Byte(_));
    let words = fields.iter().filter(|(_, s)| !is_byte(s)).count();
    let size = 4 + 4 * words + (fields.len() - words);
    let vtable_size = 4 + 2 * usize::from(slots);
    align(out, 4, vtable_size);
    let vtable = out.len();
    let mut places = vec![0u16; slots.into()];
    let (mut next_word, mut next_byte) = (4u16, 4 + 4 * words as u16);
    for (id, slot) in fields {
        let (next, width) = if is_byte(slot) { (&mut next_byte, 1) } else { (&mut next_word, 4) };
        places[usize::from(*id)] = *next;
        *next += width;
    }
    out.extend_from_slice(&(vtable_size as u16).to_le_bytes());
    out.extend_from_slice(&(size as u16).to_le_bytes());
    out.extend(places.iter().flat_map(|p| p.to_le_bytes()));
    let at = out.len();
    word(out, (at - vtable) as u32);
    out.resize(at + size, 0);
    for (id, slot) in fields {
        let place = at + usize::from(places[usize::from(*id)]);
        match slot {
            FlatbufferField::Byte(value) => out[place] = *value,
            FlatbufferField::Word(value) => put(out, place, *value),
            FlatbufferField::Node(node) => {
                let target = write(out, node);
                put(out, place, (target - place) as u32);
            }
        }
    }
    at
}
