//! Writes the protobuf fields that PJRT compile options need.

/// Builds a protobuf message.
#[derive(Default)]
pub(crate) struct ProtoMessage(Vec<u8>);

impl ProtoMessage {
    /// Writes an integer field; a negative one takes ten bytes.
    pub(crate) fn int(mut self, field: u32, value: i64) -> ProtoMessage {
        self.varint(u64::from(field << 3));
        self.varint(value as u64);
        self
    }

    /// Writes a message, string or bytes field.
    pub(crate) fn bytes(mut self, field: u32, value: &[u8]) -> ProtoMessage {
        self.varint(u64::from(field << 3 | 2));
        self.varint(value.len() as u64);
        self.0.extend_from_slice(value);
        self
    }

    /// Writes a packed repeated integer field.
    pub(crate) fn packed(self, field: u32, values: impl IntoIterator<Item = i64>) -> ProtoMessage {
        let mut run = ProtoMessage::default();
        values.into_iter().for_each(|v| run.varint(v as u64));
        self.bytes(field, &run.0)
    }

    /// Returns the bytes.
    pub(crate) fn done(self) -> Vec<u8> {
        self.0
    }

    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }
}
