//! The parts of a bytecode file: strings, dialects and names of ops, attributes and types (not yet read), properties, resources.

use crate::byte_io::{ByteReader, wrong};
use systole_base::Result;

/// The newest version of the format.
pub(crate) const NEWEST: u64 = 6;
pub(crate) const MAGIC: [u8; 4] = *b"ML\xEFR";

/// What sections hold.
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

/// An attribute or a type that has not been read.
#[derive(Clone, Copy)]
pub(crate) struct UnparsedEntry<'a> {
    pub(crate) dialect: &'a str,
    /// Whether it is in the dialect's own encoding; else in text.
    pub(crate) custom: bool,
    pub(crate) bytes: ByteReader<'a>,
}

/// A file in its parts.
pub(crate) struct BytecodeFile<'a> {
    pub(crate) version: u64,
    pub(crate) producer: &'a str,
    strings: Vec<&'a [u8]>,
    dialects: Vec<&'a str>,
    /// Dialect and name of each op, and whether its writer knew it.
    pub(crate) ops: Vec<(&'a str, &'a str, bool)>,
    pub(crate) attributes: Vec<UnparsedEntry<'a>>,
    pub(crate) types: Vec<UnparsedEntry<'a>>,
    pub(crate) properties: Vec<ByteReader<'a>>,
    pub(crate) ir: ByteReader<'a>,
    /// Names and bytes of what attributes refer to by number.
    pub(crate) resources: Vec<(&'a str, &'a [u8])>,
}

/// What a file says of its writer; `None`: it is no bytecode.
pub(crate) fn producer(bytes: &[u8]) -> Option<&str> {
    let mut bytes = ByteReader::new(bytes.strip_prefix(&MAGIC)?, MAGIC.len());
    bytes.number().ok()?;
    bytes.text().ok()
}

impl<'a> BytecodeFile<'a> {
    /// Takes a file apart.
    pub(crate) fn new(input: &'a [u8]) -> Result<BytecodeFile<'a>> {
        let rest = input.strip_prefix(&MAGIC);
        let rest = rest.ok_or_else(|| {
            wrong(0, "it does not begin with `ML\u{EF}R`")
                .hint("StableHLO text is read by `systole_mlir::text`")
        })?;
        let mut bytes = ByteReader::new(rest, MAGIC.len());
        let version = bytes.number()?;
        if version > NEWEST {
            return Err(bytes
                .wrong(format!("version {version} of the format is not known"))
                .because(format!("it is read up to version {NEWEST}")));
        }
        let producer = bytes.text()?;
        let mut sections = [None; section::COUNT];
        while !bytes.is_empty() {
            let at = bytes.at;
            let (id, content) = bytes.section()?;
            match sections.get_mut(usize::from(id)) {
                Some(slot @ None) => *slot = Some(content),
                _ => return Err(wrong(at, format!("section {id} is unknown or is there twice"))),
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

    /// A string by number.
    pub(crate) fn string(&self, n: u64, at: usize) -> Result<&'a str> {
        let found = usize::try_from(n).ok().and_then(|n| self.strings.get(n)).copied();
        let found = found.ok_or_else(|| wrong(at, format!("there is no string {n}")))?;
        std::str::from_utf8(found).map_err(|_| wrong(at, format!("string {n} is not UTF-8")))
    }

    fn dialect(&self, bytes: &mut ByteReader<'a>) -> Result<&'a str> {
        let n = bytes.number()?;
        let found = usize::try_from(n).ok().and_then(|n| self.dialects.get(n)).copied();
        found.ok_or_else(|| bytes.wrong(format!("there is no dialect {n}")))
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
            return Err(sizes.wrong(format!("{} attributes and types, not {all}", entries.len())));
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
        // Those of outside come first, and no attribute refers to them.
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

/// Lengths from the last string to the first, then all strings with a zero behind each.
fn strings(mut bytes: ByteReader<'_>) -> Result<Vec<&[u8]>> {
    let mut lengths = bytes.list(ByteReader::number)?;
    let mut strings = Vec::with_capacity(lengths.len());
    while let Some(length) = lengths.pop() {
        let length = bytes.fits(length)?;
        let with_zero = bytes.take(length)?;
        let text = with_zero.all().strip_suffix(&[0]);
        strings.push(text.ok_or_else(|| with_zero.wrong("a string without its zero byte"))?);
    }
    Ok(strings)
}
