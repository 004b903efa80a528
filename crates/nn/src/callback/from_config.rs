//! Creates callbacks by name from configuration tables.

use super::config_callback::ConfigCallback;
use super::{CALLBACK_NAMES, TABLE};
use serde_json::{Map, Value};

/// Creates the callback of a class with these arguments; missing arguments have their defaults. The class is one of
/// [`CALLBACK_NAMES`], verbatim or in snake case.
///
/// ```
/// use serde_json::json;
/// use systole_nn::callback::from_table;
/// let arguments = json!({"monitor": "loss", "patience": 3}).as_object().unwrap().clone();
/// assert_eq!(from_table("early_stopping", arguments).unwrap().unwrap().monitor(), Some("loss"));
/// assert!(from_table("EarlyStoping", Default::default()).is_none());
/// ```
///
/// # Errors
/// Serde's, for an unknown key or a value of the wrong type. Returns `None` for an unknown class.
pub fn from_table(
    class: &str,
    arguments: Map<String, Value>,
) -> Option<serde_json::Result<Box<dyn ConfigCallback>>> {
    let class = class_of(class)?;
    let at = CALLBACK_NAMES.iter().position(|known| *known == class)?;
    Some((TABLE[at].read)(Value::Object(arguments)))
}

/// Returns the callback class for a name: EarlyStopping for `early_stopping`.
pub fn class_of(name: &str) -> Option<&'static str> {
    let plain = |name: &str| name.replace('_', "").to_lowercase();
    CALLBACK_NAMES.iter().copied().find(|known| plain(known) == plain(name))
}

/// Returns the arguments of a callback class with their defaults.
pub fn defaults_of(class: &str) -> Option<Value> {
    let at = CALLBACK_NAMES.iter().position(|known| *known == class)?;
    (TABLE[at].defaults)().ok()
}
