//! Splits a bytecode file into its sections: strings, dialects and op names, unparsed attributes and types, properties,
//! resources.

use crate::byte_io::{ByteReader, wrong};
use systole_base::Result;

/// Newest supported version of the format.
pub(crate) const NEWEST: u64 = 6;
pub(crate) const MAGIC: [u8; 4] = *b"ML\xEFR";

/// Section ids.
pub(crate) mod section {
    pub(crate) const STRINGS: u8 = 0;
    pub(crate) const DIALECTS: u8 = 1;
    pub(crate) const ATTRIBUTES: u8 = 2;
    pub(crate) const OFFSETS: u8 = 3;
    pub(crate) const IR: u8 = 4;
    pub(crate) const RESOURCES: u8 = 5;
    pub(crate) const RESOURCE_OFFSETS: u8 = 6;
    pub(crate) const PROPERTIES: u8 = 8;
    pub(crate) const COUNT: usize = 9;
}

/// An unparsed attribute or type.
#[derive(Clone, Copy)]
pub(crate) struct UnparsedEntry<'a> {
    pub(crate) dialect: &'a str,
    /// Whether it uses the dialect's own encoding instead of text.
    pub(crate) custom: bool,
    pub(crate) bytes: ByteReader<'a>,
}

/// The sections of a file.
pub(crate) struct BytecodeFile<'a> {
    pub(crate) version: u64,
    pub(crate) producer: &'a str,
    strings: Vec<&'a [u8]>,
    dialects: Vec<&'a str>,
    /// Dialect and name of each op, and whether the writer had it registered.
    pub(crate) ops: Vec<(&'a str, &'a str, bool)>,
    pub(crate) attributes: Vec<UnparsedEntry<'a>>,
    pub(crate) types: Vec<UnparsedEntry<'a>>,
    pub(crate) properties: Vec<ByteReader<'a>>,
    pub(crate) ir: ByteReader<'a>,
    /// Names and bytes of the resources that attributes refer to by number.
    pub(crate) resources: Vec<(&'a str, &'a [u8])>,
}

/// Returns the producer string of a file; `None` if it is not bytecode.
pub(crate) fn producer(bytes: &[u8]) -> Option<&str> {
    let mut bytes = ByteReader::new(bytes.strip_prefix(&MAGIC)?, MAGIC.len());
    bytes.number().ok()?;
    bytes.text().ok()
}

impl<'a> BytecodeFile<'a> {
    /// Splits a file into its sections.
    pub(crate) fn new(input: &'a [u8]) -> Result<BytecodeFile<'a>> {
        let rest = input.strip_prefix(&MAGIC);
        let rest = rest.ok_or_else(|| {
            wrong(0, "expected it to start with `ML\u{EF}R`")
                .hint("read StableHLO text with `systole_mlir::text`")
        })?;
        let mut bytes = ByteReader::new(rest, MAGIC.len());
        let version = bytes.number()?;
        if version > NEWEST {
            return Err(bytes
                .wrong(format!("unsupported format version {version}"))
                .because(format!("versions up to {NEWEST} are supported")));
        }
        let producer = bytes.text()?;
        let mut sections = [None; section::COUNT];
        while !bytes.is_empty() {
            let at = bytes.at;
            let (id, content) = bytes.section()?;
            match sections.get_mut(usize::from(id)) {
                Some(slot @ None) => *slot = Some(content),
                _ => return Err(wrong(at, format!("unknown or repeated section {id}"))),
            }
        }
        let empty = ByteReader::new(&[], bytes.at);
        let part = |id: u8| sections.get(usize::from(id)).copied().flatten().unwrap_or(empty);
        let mut file = BytecodeFile {
            version,
            producer,
            strings: strings(part(section::STRINGS))?,
            dialects: Vec::new(),
            ops: Vec::new(),
            attributes: Vec::new(),
            types: Vec::new(),
            properties: Vec::new(),
            ir: part(section::IR),
            resources: Vec::new(),
        };
        file.dialects(part(section::DIALECTS))?;
        file.entries(part(section::OFFSETS), part(section::ATTRIBUTES))?;
        file.properties(part(section::PROPERTIES))?;
        file.resources(part(section::RESOURCE_OFFSETS), part(section::RESOURCES))?;
        Ok(file)
    }

    /// Returns a string by number.
    pub(crate) fn string(&self, n: u64, at: usize) -> Result<&'a str> {
        let found = usize::try_from(n).ok().and_then(|n| self.strings.get(n)).copied();
        let found = found.ok_or_else(|| wrong(at, format!("string {n} does not exist")))?;
        std::str::from_utf8(found).map_err(|_| wrong(at, format!("string {n} is not UTF-8")))
    }

    fn dialect(&self, bytes: &mut ByteReader<'a>) -> Result<&'a str> {
        let n = bytes.number()?;
        let found = usize::try_from(n).ok().and_then(|n| self.dialects.get(n)).copied();
        found.ok_or_else(|| bytes.wrong(format!("dialect {n} does not exist")))
    }

    fn dialects(&mut self, mut bytes: ByteReader<'a>) -> Result<()> {
        for _ in 0..bytes.count()? {
            let mut name = bytes.number()?;
            if self.version >= 1 {
                if name & 1 == 1 {
                    bytes.section()?;
                }
                name >>= 1;
            }
            self.dialects.push(self.string(name, bytes.at)?);
        }
        if self.version >= 4 {
            bytes.number()?;
        }
        while !bytes.is_empty() {
            let dialect = self.dialect(&mut bytes)?;
            for _ in 0..bytes.count()? {
                let n = bytes.number()?;
                let (name, known) = if self.version >= 5 { (n >> 1, n & 1 == 1) } else { (n, true) };
                self.ops.push((dialect, self.string(name, bytes.at)?, known));
            }
        }
        Ok(())
    }

    fn entries(&mut self, mut sizes: ByteReader<'a>, mut content: ByteReader<'a>) -> Result<()> {
        let (attributes, types) = (sizes.count()?, sizes.number()?);
        let all = attributes.saturating_add(sizes.fits(types)?);
        let mut entries = Vec::new();
        while entries.len() < all {
            let dialect = self.dialect(&mut sizes)?;
            for _ in 0..sizes.count()? {
                let (size, custom) = sizes.flagged()?;
                let size = content.fits(size)?;
                entries.push(UnparsedEntry { dialect, custom, bytes: content.take(size)? });
            }
        }
        if entries.len() != all {
            return Err(sizes.wrong(format!("got {} attributes and types, expected {all}", entries.len())));
        }
        self.types = entries.split_off(attributes);
        self.attributes = entries;
        Ok(())
    }

    fn properties(&mut self, mut bytes: ByteReader<'a>) -> Result<()> {
        if !bytes.is_empty() {
            self.properties = bytes.list(ByteReader::blob)?;
        }
        Ok(())
    }

    fn resources(&mut self, mut sizes: ByteReader<'a>, mut content: ByteReader<'a>) -> Result<()> {
        if sizes.is_empty() {
            return Ok(());
        }
        // External resources come first; no attribute refers to them.
        for _ in 0..sizes.count()? {
            sizes.number()?;
            self.group(&mut sizes, &mut content)?;
        }
        self.resources.clear();
        while !sizes.is_empty() {
            self.dialect(&mut sizes)?;
            self.group(&mut sizes, &mut content)?;
        }
        Ok(())
    }

    fn group(&mut self, sizes: &mut ByteReader<'a>, content: &mut ByteReader<'a>) -> Result<()> {
        for _ in 0..sizes.count()? {
            let (key, size) = (sizes.number()?, sizes.number()?);
            let is_blob = sizes.byte()? == 0;
            let size = content.fits(size)?;
            let mut value = content.take(size)?;
            let mut blob: &[u8] = &[];
            if is_blob {
                let (alignment, n) = (value.number()?, value.number()?);
                value.align(alignment)?;
                let n = value.fits(n)?;
                blob = value.take(n)?.all();
            }
            self.resources.push((self.string(key, sizes.at)?, blob));
        }
        Ok(())
    }
}

/// Reads the string lengths, last to first, then the zero-terminated strings.
fn strings(mut bytes: ByteReader<'_>) -> Result<Vec<&[u8]>> {
    let mut lengths = bytes.list(ByteReader::number)?;
    let mut strings = Vec::with_capacity(lengths.len());
    while let Some(length) = lengths.pop() {
        let length = bytes.fits(length)?;
        let with_zero = bytes.take(length)?;
        let text = with_zero.all().strip_suffix(&[0]);
        strings.push(text.ok_or_else(|| with_zero.wrong("string has no terminating zero"))?);
    }
    Ok(strings)
}
