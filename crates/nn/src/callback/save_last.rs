//! Lightning's `save_last`: whether `ModelCheckpoint` writes `last.safetensors`, as a file or a link.

use crate::json::{Deserialize, Serialize};
use serde::{Deserializer, Serializer};

/// Whether and how `ModelCheckpoint` writes `last.safetensors`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SaveLast {
    /// Not written.
    #[default]
    No,
    /// Each save is written twice.
    Yes,
    /// A symbolic link to the last checkpoint; a second copy if the disk does not support links.
    Link,
}

impl From<bool> for SaveLast {
    fn from(yes: bool) -> SaveLast {
        if yes { SaveLast::Yes } else { SaveLast::No }
    }
}

/// Serialized form in configurations.
#[derive(Serialize, Deserialize)]
#[serde(untagged, expecting = "expected true, false or \"link\"")]
enum SerializedSaveLast {
    Whether(bool),
    Named(LinkWord),
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum LinkWord {
    Link,
}

impl Serialize for SaveLast {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            SaveLast::Link => SerializedSaveLast::Named(LinkWord::Link),
            other => SerializedSaveLast::Whether(*other == SaveLast::Yes),
        }
        .serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for SaveLast {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<SaveLast, D::Error> {
        Ok(match SerializedSaveLast::deserialize(deserializer)? {
            SerializedSaveLast::Whether(yes) => yes.into(),
            SerializedSaveLast::Named(LinkWord::Link) => SaveLast::Link,
        })
    }
}
