//! Loads PJRT plugins and calls their function table; converts their errors.

use crate::sys::{self, ApiArgs, OpaquePtr, named};
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use std::ffi::c_void;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use systole_ir::{Error, ErrorKind, Result, ensure, err};

/// A PJRT plugin, loaded from a file or linked into this program. Clones share the library, which stays loaded until the
/// process ends, since plugins start threads that outlive every handle.
#[derive(Clone)]
pub struct Plugin {
    api: *const sys::Api,
    path: PathBuf,
}

// SAFETY: the table is constant once loaded, and PJRT's functions may be called from any thread.
unsafe impl Send for Plugin {}
// SAFETY: as above.
unsafe impl Sync for Plugin {}

/// StableHLO version of the programs that Systole writes.
const WRITTEN: &[i64] = &[1, 0, 0];

/// Value of a PJRT plugin option or attribute.
#[derive(Clone, Debug, PartialEq)]
pub enum PluginValue {
    /// Text.
    Text(String),
    /// An integer.
    Int(i64),
    /// Integers.
    Ints(Vec<i64>),
    /// A float.
    Float(f32),
    /// A bool.
    Bool(bool),
}

impl PluginValue {
    /// Returns the plugin value if it is a number.
    pub fn number(&self) -> Option<f64> {
        match self {
            PluginValue::Int(n) => Some(*n as f64),
            PluginValue::Float(x) => Some(f64::from(*x)),
            _ => None,
        }
    }
}

impl std::fmt::Display for PluginValue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            PluginValue::Text(text) => f.write_str(text),
            PluginValue::Int(n) => n.fmt(f),
            PluginValue::Ints(list) => {
                f.write_str(&list.iter().map(i64::to_string).collect::<Vec<_>>().join("."))
            }
            PluginValue::Float(x) => x.fmt(f),
            PluginValue::Bool(yes) => yes.fmt(f),
        }
    }
}

/// Whether a plugin was loaded in this process.
static LOADED: AtomicBool = AtomicBool::new(false);

impl Plugin {
    /// Loads and initializes a PJRT plugin. Set the environment variables that the plugin reads before.
    ///
    /// # Errors
    /// If the file is missing, for another machine, not a PJRT plugin, too old, or its initialization fails.
    pub fn load(path: &Path) -> Result<Plugin> {
        let plugin = Plugin::peek(path)?;
        LOADED.store(true, Ordering::Relaxed);
        plugin.initialized()
    }

    /// Initializes a PJRT plugin that is linked into this program, given the result of its `GetPjrtApi`. Its path is the
    /// program's.
    ///
    /// # Safety
    /// `api` points to a PJRT function table that is constant until the process ends.
    ///
    /// # Errors
    /// See [`load`](Plugin::load).
    pub unsafe fn linked(api: *const sys::Api) -> Result<Plugin> {
        let path = std::env::current_exe().unwrap_or_else(|_| "systole".into());
        Plugin { api, path }.initialized()
    }

    fn initialized(self) -> Result<Plugin> {
        self.check_version()?;
        self.call(sys::Plugin_Initialize::new())?;
        self.check_dialect()?;
        Ok(self)
    }

    /// Whether any PJRT plugin was loaded in this process.
    pub fn any_loaded() -> bool {
        LOADED.load(Ordering::Relaxed)
    }

    /// Returns the minimum and maximum StableHLO version that the plugin supports, if it states them.
    pub fn stablehlo(&self) -> Option<(Vec<i64>, Vec<i64>)> {
        let attributes = self.attributes().ok()?;
        let version = |name: &str| match attributes.iter().find(|(n, _)| n == name)? {
            (_, PluginValue::Ints(version)) => Some(version.clone()),
            _ => None,
        };
        Some((version("stablehlo_minimum_version")?, version("stablehlo_current_version")?))
    }

    /// Checks that the plugin supports the StableHLO version that Systole writes.
    fn check_dialect(&self) -> Result<()> {
        let Some((least, greatest)) = self.stablehlo() else { return Ok(()) };
        let shown = |version: &[i64]| PluginValue::Ints(version.to_vec()).to_string();
        let (newer, older) = (least.as_slice() > WRITTEN, greatest.as_slice() < WRITTEN);
        if !newer && !older {
            return Ok(());
        }
        let read = format!("it supports {} to {}", shown(&least), shown(&greatest));
        let e = err!(
            Unsupported,
            "the plugin does not support StableHLO {}, which Systole writes",
            shown(WRITTEN)
        )
        .at(self.path.display().to_string())
        .because(read);
        Err(e.hint(format!("install a newer version of {}", if newer { "Systole" } else { "the plugin" })))
    }

    /// Loads a PJRT plugin without initializing it, to query its version.
    ///
    /// # Errors
    /// See [`load`](Plugin::load), except version and initialization errors.
    pub fn peek(path: &Path) -> Result<Plugin> {
        let refused = |what: &str| Error::new(ErrorKind::Unsupported, what).at(path.display().to_string());
        check_file(path)?;
        // SAFETY: loading runs the initializers of a library that the user chose.
        let library = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL) };
        let library = library.map_err(|e| {
            let e = refused("cannot load the plugin").because(e.to_string());
            e.hint("install the plugin again for this machine; run `systole doctor` to see what is missing")
        })?;
        // SAFETY: the symbol has this type in every PJRT plugin.
        let entry = unsafe { library.get::<unsafe extern "C" fn() -> *const sys::Api>(b"GetPjrtApi\0") };
        let entry = entry.map_err(|_| {
            refused("the library is not a PJRT plugin")
                .because("the library does not export GetPjrtApi")
                .hint("pass libtpu.so, or another PJRT plugin library")
        })?;
        // SAFETY: it takes no arguments and returns a constant table.
        let api = unsafe { entry() };
        std::mem::forget(library);
        ensure!(!api.is_null(), refused("the plugin returned no function table"));
        Ok(Plugin { api, path: path.into() })
    }

    fn check_version(&self) -> Result<()> {
        let (major, minor) = self.version();
        if major != sys::API_VERSION.0 {
            let ours = format!("{}.{}", sys::API_VERSION.0, sys::API_VERSION.1);
            let what = format!("the plugin has PJRT version {major}.{minor}, Systole requires {ours}");
            let newer = if major > sys::API_VERSION.0 { "Systole" } else { "the plugin" };
            let e = Error::new(ErrorKind::Unsupported, what).at(self.path.display().to_string());
            return Err(e.hint(format!("install a newer version of {newer}")));
        }
        Ok(())
    }

    /// Returns the file that the plugin was loaded from, or the program that it is linked into.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the major and minor version of the plugin's PJRT C API.
    pub fn version(&self) -> (i32, i32) {
        // SAFETY: every version of the table starts with this header.
        unsafe { ((*self.api).major, (*self.api).minor) }
    }

    /// Calls a function of the plugin.
    ///
    /// # Errors
    /// The plugin's error with its message; or if it lacks the function.
    pub(crate) fn call<A: ApiArgs>(&self, mut args: A) -> Result<A> {
        let function = self.function(A::SLOT).ok_or_else(|| self.lacks(A::NAME))?;
        // SAFETY: the slot's function takes this structure, which states its size (contract of `ApiArgs`).
        let error = unsafe { function((&raw mut args).cast()) };
        self.check(error, A::NAME).map(|()| args)
    }

    /// Calls a destructor, whose errors are ignored.
    pub(crate) fn free<A: ApiArgs>(&self, args: A) {
        let _ = self.call(args);
    }

    /// Returns the extension of this type, if the plugin has it.
    pub(crate) fn extension(&self, type_: i32) -> Option<*const sys::ExtensionHeader> {
        // SAFETY: every version of the table starts with its list of extensions.
        let mut at: *const sys::ExtensionHeader = unsafe { (*self.api).extension_start }.cast();
        // SAFETY: each is null or points to a permanent extension.
        while let Some(extension) = unsafe { at.as_ref() } {
            if extension.type_ == type_ {
                return Some(at);
            }
            at = extension.next.cast();
        }
        None
    }

    fn function(&self, slot: usize) -> Option<sys::ApiFunction> {
        // SAFETY: every version of the table starts with its size.
        let size = unsafe { (*self.api).struct_size };
        if slot + size_of::<usize>() > size {
            return None;
        }
        // SAFETY: the table is at least that long; a slot is a function of this type or null.
        unsafe { *self.api.byte_add(slot).cast::<Option<sys::ApiFunction>>() }
    }

    fn lacks(&self, name: &str) -> Error {
        let (major, minor) = self.version();
        err!(Unsupported, "the plugin does not offer {name}")
            .at(self.path.display().to_string())
            .because(format!("the plugin has PJRT version {major}.{minor}"))
            .hint("install a newer version of the plugin")
    }

    /// Converts an error object and frees it.
    pub(crate) fn check(&self, error: OpaquePtr, name: &str) -> Result<()> {
        if error.is_null() {
            return Ok(());
        }
        let mut message = sys::Error_Message { error, ..ApiArgs::new() };
        let mut code = sys::Error_GetCode { error, ..ApiArgs::new() };
        self.raw(&mut message);
        self.raw(&mut code);
        // SAFETY: the message belongs to the error, which is freed below.
        let text = unsafe { text(message.message, message.message_size) };
        self.raw(&mut sys::Error_Destroy { error, ..ApiArgs::new() });
        let kind = match code.code {
            sys::code::INVALID_ARGUMENT | sys::code::NOT_FOUND => ErrorKind::Config,
            sys::code::INTERNAL => ErrorKind::Bug,
            _ => ErrorKind::Unsupported,
        };
        // XLA appends the whole program to some messages.
        let said = text.split("******* Full HLO module").next().unwrap_or_default();
        let mut lines = said.trim().lines();
        let first = lines.next().unwrap_or("the plugin failed without a message");
        let mut e = Error::new(kind, first).at(name);
        let mut rest = Vec::new();
        for line in lines.take(20) {
            // Systole's own plugin states reasons and a hint.
            match (line.trim().strip_prefix("why: "), line.trim().strip_prefix("try: ")) {
                (Some(why), _) => e = e.because(why),
                (_, Some(hint)) => e = e.hint(hint),
                _ => rest.push(line),
            }
        }
        if !rest.is_empty() {
            e = e.because(rest.join("\n").trim());
        }
        Err(e)
    }

    /// Calls a function whose result is not an error or is ignored.
    fn raw<A: ApiArgs>(&self, args: &mut A) {
        if let Some(function) = self.function(A::SLOT) {
            // SAFETY: as in `call`; the result is ignored.
            unsafe { function((&raw mut *args).cast()) };
        }
    }

    /// Returns the plugin's attributes, such as XLA and StableHLO versions.
    pub fn attributes(&self) -> Result<Vec<(String, PluginValue)>> {
        let args = self.call(sys::Plugin_Attributes::new())?;
        // SAFETY: the plugin's list, alive as long as the plugin.
        Ok(unsafe { values(args.attributes, args.num_attributes) })
    }
}

/// Checks a file before loading: the dynamic linker's messages are unclear, and some plugins abort.
fn check_file(path: &Path) -> Result<()> {
    let mut head = [0u8; 20];
    let read = std::fs::File::open(path).and_then(|mut f| std::io::Read::read(&mut f, &mut head));
    let read = read.map_err(|e| {
        Error::io("cannot read the plugin", path, e)
            .hint("pass the path of a shared library such as libtpu.so")
    })?;
    let wrong = |why: &str| {
        let e = err!(Unsupported, "the file is not a library for this machine");
        e.at(path.display().to_string()).because(why)
    };
    if cfg!(target_os = "linux") {
        if read < head.len() || !head.starts_with(b"\x7fELF") {
            return Err(wrong("it is not an ELF file").hint("pass libtpu.so, or another PJRT plugin"));
        }
        let machine = u16::from_le_bytes([head[18], head[19]]);
        let ours = if cfg!(target_arch = "x86_64") { 62 } else { 183 };
        if machine != ours {
            let why = format!("it is for machine type {machine}, this machine is {}", std::env::consts::ARCH);
            return Err(wrong(&why).hint("install the package for this architecture"));
        }
    }
    Ok(())
}

/// # Safety
/// `start` is null or points to `len` bytes.
pub(crate) unsafe fn text(start: sys::CharPtr, len: usize) -> String {
    // SAFETY: same contract as this function.
    String::from_utf8_lossy(unsafe { slice(start, len) }).into_owned()
}

/// Returns a slice; an empty one may be null.
///
/// # Safety
/// `start` is null or points to `len` values that live as long as the result is used.
pub(crate) unsafe fn slice<'a, T>(start: *const T, len: usize) -> &'a [T] {
    if start.is_null() || len == 0 {
        return &[];
    }
    // SAFETY: same contract as this function.
    unsafe { std::slice::from_raw_parts(start, len) }
}

/// # Safety
/// `start` points to `len` named values from a plugin.
pub(crate) unsafe fn values(start: *const sys::NamedValue, len: usize) -> Vec<(String, PluginValue)> {
    // SAFETY: same contract as this function.
    let list = unsafe { slice(start, len) };
    // SAFETY: each value's string and list have the lengths stored next to them.
    list.iter().map(|v| unsafe { (text(v.name, v.name_size), value(v)) }).collect()
}

/// # Safety
/// The value's pointer has the length stored next to it.
unsafe fn value(v: &sys::NamedValue) -> PluginValue {
    match v.type_ {
        // SAFETY: same contract as this function.
        named::STRING => PluginValue::Text(unsafe { text(v.value as sys::CharPtr, v.value_size) }),
        // SAFETY: same contract as this function.
        named::INT64_LIST => {
            PluginValue::Ints(unsafe { slice(v.value as *const i64, v.value_size) }.to_vec())
        }
        named::FLOAT => PluginValue::Float(f32::from_bits(v.value as u32)),
        named::BOOL => PluginValue::Bool(v.value as u8 != 0),
        _ => PluginValue::Int(v.value as i64),
    }
}

/// Named values to pass to a plugin. The list from [`NamedValues::raw`] points into this.
#[derive(Default)]
pub(crate) struct NamedValues(Vec<(String, PluginValue)>);

impl NamedValues {
    pub(crate) fn push(&mut self, name: &str, value: PluginValue) {
        self.0.push((name.into(), value));
    }

    pub(crate) fn raw(&self) -> Vec<sys::NamedValue> {
        self.0.iter().map(|(name, value)| named_value(name, value)).collect()
    }
}

/// Returns the C representation, which borrows both.
pub(crate) fn named_value(name: &str, value: &PluginValue) -> sys::NamedValue {
    let (type_, bits, size) = match value {
        PluginValue::Text(t) => (named::STRING, t.as_ptr() as u64, t.len()),
        PluginValue::Int(n) => (named::INT64, *n as u64, 1),
        PluginValue::Ints(list) => (named::INT64_LIST, list.as_ptr() as u64, list.len()),
        PluginValue::Float(x) => (named::FLOAT, u64::from(x.to_bits()), 1),
        PluginValue::Bool(yes) => (named::BOOL, u64::from(*yes), 1),
    };
    sys::NamedValue {
        name: name.as_ptr(),
        name_size: name.len(),
        type_,
        value: bits,
        value_size: size,
        ..ApiArgs::new()
    }
}

/// Returns StableHLO text as a C program structure.
pub(crate) fn program(text: &str) -> sys::Program {
    const FORMAT: &str = "mlir";
    sys::Program {
        // The header's type is `char*`, but it is only read.
        code: text.as_ptr().cast_mut(),
        code_size: text.len(),
        format: FORMAT.as_ptr(),
        format_size: FORMAT.len(),
        ..ApiArgs::new()
    }
}

/// Copies bytes that a call returned and frees them with its deleter.
///
/// # Safety
/// The arguments are as a plugin filled them in.
pub(crate) unsafe fn taken(
    start: sys::CharPtr,
    len: usize,
    owner: OpaquePtr,
    free: Option<sys::Deleter>,
) -> Vec<u8> {
    // SAFETY: same contract as this function.
    let bytes = unsafe { slice(start, len) }.to_vec();
    if let Some(free) = free {
        // SAFETY: the call returned both together.
        unsafe { free(owner.cast::<c_void>()) };
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::c_void;

    /// A plugin's function table of any version and length.
    #[repr(C)]
    struct Table {
        head: sys::Api,
        functions: [Option<sys::ApiFunction>; 5],
    }

    /// Creates a plugin with the first `slots` functions. Tables are leaked, like plugins.
    fn plugin(version: (i32, i32), slots: usize, attributes: sys::ApiFunction) -> Plugin {
        let head = sys::Api {
            struct_size: sys::FIRST_SLOT + slots * size_of::<usize>(),
            extension_start: std::ptr::null_mut(),
            version_size: 24,
            version_extension: std::ptr::null_mut(),
            major: version.0,
            minor: version.1,
        };
        let functions = [None, None, None, Some(nothing as sys::ApiFunction), Some(attributes)];
        let table = Box::leak(Box::new(Table { head, functions }));
        Plugin { api: (&raw const *table).cast(), path: "fake.so".into() }
    }

    unsafe extern "C" fn nothing(_: *mut c_void) -> OpaquePtr {
        std::ptr::null_mut()
    }

    /// States that it supports only StableHLO `N.0.0`.
    unsafe extern "C" fn reads<const N: i64>(args: *mut c_void) -> OpaquePtr {
        let version: &'static [i64] = Box::leak(Box::new([N, 0, 0]));
        let (least, greatest) = ("stablehlo_minimum_version", "stablehlo_current_version");
        let list = [least, greatest].map(|name| named_value(name, &PluginValue::Ints(version.to_vec())));
        let list = list.map(|v| sys::NamedValue { value: version.as_ptr() as u64, ..v });
        // SAFETY: the client passes this structure.
        let args = unsafe { &mut *args.cast::<sys::Plugin_Attributes>() };
        (args.attributes, args.num_attributes) = (Box::leak(Box::new(list)).as_ptr(), 2);
        std::ptr::null_mut()
    }

    fn refused<T>(result: Result<T>) -> String {
        result.err().map(|e| e.to_string()).unwrap_or_default()
    }

    #[test]
    fn plugins_of_other_versions_are_refused_or_used_as_far_as_they_go() {
        // Other minor versions only add functions.
        for minor in [54, 90, 130] {
            assert_eq!(refused(plugin((0, minor), 5, reads::<1>).check_version()), "");
        }
        let newer = refused(plugin((1, 0), 5, reads::<1>).check_version());
        assert!(newer.contains("PJRT version 1.0") && newer.contains("newer version of Systole"), "{newer}");
        let older = refused(plugin((-1, 9), 5, reads::<1>).check_version());
        assert!(older.contains("newer version of the plugin"), "{older}");
        // A table that ends before a function.
        for slots in [3, 4] {
            let short = plugin((0, 40), slots, reads::<1>);
            let e = refused(short.attributes().map(drop));
            assert!(e.contains("PJRT_Plugin_Attributes") && e.contains("0.40"), "{e}");
        }
        // A table with a null function.
        let e = refused(plugin((0, 40), 5, reads::<1>).call(sys::Error_Destroy::new()));
        assert!(e.contains("PJRT_Error_Destroy"), "{e}");
    }

    #[test]
    fn plugins_that_read_another_stablehlo_are_refused() {
        assert_eq!(refused(plugin((0, 117), 5, reads::<1>).check_dialect()), "");
        let older = refused(plugin((0, 117), 5, reads::<0>).check_dialect());
        assert!(
            older.contains("supports 0.0.0 to 0.0.0") && older.contains("newer version of the plugin"),
            "{older}"
        );
        let newer = refused(plugin((0, 117), 5, reads::<2>).check_dialect());
        assert!(newer.contains("newer version of Systole"), "{newer}");
        // A plugin without the attribute is accepted.
        assert_eq!(refused(plugin((0, 117), 3, reads::<2>).check_dialect()), "");
    }
}
