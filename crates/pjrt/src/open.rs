//! Opens a plugin's devices as a backend, after checking for a device node: without one, libtpu would query the
//! metadata server for minutes.

use crate::device_nodes::require_node;
use crate::{
    AcceleratorPlatform, Client, CompileCache, PjrtBackend, Plugin, PluginValue, Search, TpuClusterResolver,
};
use std::path::Path;
use std::sync::Arc;
use systole_ir::{Result, err, knobs};
use systole_runtime::Backend;

/// Opens a platform's devices through the plugin that was found, as a backend; compiled programs are cached in `cache`.
///
/// # Errors
/// If this machine has no such device, there is no plugin, or the plugin returns an error.
pub fn open(
    platform: AcceleratorPlatform,
    search: &Search,
    cache: Option<CompileCache>,
) -> Result<Arc<dyn Backend>> {
    require_node(platform)?;
    let plugin = Plugin::load(&search.require(platform)?)?;
    let client = open_client(&plugin, cache)?;
    let (index, count) = client.process();
    if count > 1 && platform == AcceleratorPlatform::Tpu {
        TpuClusterResolver::new("")?.check(index, count)?;
    }
    Ok(Arc::new(PjrtBackend::new(platform.name(), client)))
}

/// Opens the devices of a plugin file given by the user.
///
/// # Errors
/// See [`open`].
pub fn open_file(path: &Path, cache: Option<CompileCache>) -> Result<Arc<dyn Backend>> {
    for platform in AcceleratorPlatform::ACCELERATORS {
        if path.file_name().is_some_and(|name| name == platform.file()) {
            require_node(platform)?;
        }
    }
    open_plugin(&Plugin::load(path)?, cache)
}

/// Opens the devices of an initialized plugin as the backend `pjrt`.
///
/// # Errors
/// If the plugin rejects the options in `SYSTOLE_PJRT_OPTIONS` or cannot create its client.
pub fn open_plugin(plugin: &Plugin, cache: Option<CompileCache>) -> Result<Arc<dyn Backend>> {
    Ok(Arc::new(PjrtBackend::new("pjrt", open_client(plugin, cache)?)))
}

/// Opens the plugin's client with the options in `SYSTOLE_PJRT_OPTIONS`.
fn open_client(plugin: &Plugin, cache: Option<CompileCache>) -> Result<Client> {
    let text = knobs::PJRT_OPTIONS.get();
    let options = options(&text).map_err(|e| e.at(knobs::PJRT_OPTIONS.name))?;
    let names = || options.iter().map(|(name, _)| *name).collect::<Vec<_>>().join("`, `");
    let client =
        Client::open(plugin, &options).map_err(|e| match options.is_empty() || e.hint_text().is_some() {
            true => e,
            false => e.hint(format!(
                "check the option names and values in the documentation of `{}` (--plugin-option, {})",
                names(),
                knobs::PJRT_OPTIONS.name
            )),
        })?;
    let client = match cache {
        Some(cache) => client.with_cache(cache),
        None => client,
    };
    match knobs::XLA_FORM.get().as_str() {
        "cpu" => Ok(client),
        "cuda" if client.platform()?.0 == "cpu" => Ok(client.with_form("cuda")),
        "cuda" => Ok(client),
        other => Err(knobs::XLA_FORM.no_value(other)),
    }
}

/// Parses options separated by commas, or by lines if a value contains a comma; the last one with a name wins.
fn options(text: &str) -> Result<Vec<(&str, PluginValue)>> {
    let between = if text.contains('\n') { '\n' } else { ',' };
    let mut all: Vec<(&str, PluginValue)> = Vec::new();
    for text in text.split(between).map(str::trim).filter(|o| !o.is_empty()) {
        let (name, value) = option(text)?;
        all.retain(|(before, _)| *before != name);
        all.push((name, value));
    }
    Ok(all)
}

/// Parses `num_devices=8`; a value is an integer, a float, `true` or `false`, or text.
fn option(text: &str) -> Result<(&str, PluginValue)> {
    let (name, value) = text.split_once('=').ok_or_else(|| {
        err!(Config, "invalid option `{text}`")
            .hint("write plugin options as NAME=VALUE, for example num_devices=8")
    })?;
    let number = || value.parse().map(PluginValue::Int).or_else(|_| value.parse().map(PluginValue::Float));
    let word = || value.parse().map(PluginValue::Bool).unwrap_or_else(|_| PluginValue::Text(value.into()));
    Ok((name, number().unwrap_or_else(|_| word())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use systole_ir::ErrorKind;

    #[test]
    fn options_have_the_type_of_their_value() {
        for (text, value) in [
            ("a=8", PluginValue::Int(8)),
            ("a=-0.5", PluginValue::Float(-0.5)),
            ("a=true", PluginValue::Bool(true)),
            ("a=b=c", PluginValue::Text("b=c".into())),
        ] {
            assert_eq!(option(text).unwrap(), ("a", value));
        }
        let e = option("num_devices").unwrap_err();
        systole_testing::assert_error(&e, ErrorKind::Config, &["`num_devices`"]);
    }

    #[test]
    fn the_last_of_two_options_counts() {
        let of = |text| options(text).unwrap();
        assert_eq!(of(""), []);
        assert_eq!(of("a=1, b=2,a=3"), [("b", PluginValue::Int(2)), ("a", PluginValue::Int(3))]);
        assert_eq!(
            of("a=1,2\nb=x\n"),
            [("a", PluginValue::Text("1,2".into())), ("b", PluginValue::Text("x".into()))]
        );
        assert!(options("a=1,b").is_err());
    }
}
