//! Reads from ELF files which version of glibc a program or library requires, and which one this machine has.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

/// Section types of the GNU symbol versions that a file defines and requires.
const VERDEF: u32 = 0x6fff_fffd;
const VERNEED: u32 = 0x6fff_fffe;
/// Sections larger than this hold no symbol versions.
const LARGEST: u64 = 1 << 24;
/// Size of a section header of a 64-bit file.
const HEADER: usize = 64;

/// Major and minor version.
pub(super) type GlibcVersion = (u32, u32);

/// Newest glibc version that a file requires: the newest symbol version that it imports. `None` if the file cannot be read,
/// is no 64-bit ELF file, or imports none.
pub(super) fn required(path: &Path) -> Option<GlibcVersion> {
    newest(&read_sections(path, VERNEED)?)
}

/// Glibc version of this machine: the newest symbol version that the C library of this process defines. `None` without
/// glibc.
pub(super) fn installed() -> Option<GlibcVersion> {
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    let is_libc = |path: &&str| Path::new(path).file_name().is_some_and(|name| name == "libc.so.6");
    let path = maps.lines().filter_map(|line| line.split_whitespace().nth(5)).find(is_libc)?;
    newest(&read_sections(&PathBuf::from(path), VERDEF)?)
}

/// Newest `GLIBC_2.N` among zero-terminated names.
fn newest(names: &[u8]) -> Option<GlibcVersion> {
    let names = names.split(|byte| *byte == 0).filter_map(|name| std::str::from_utf8(name).ok());
    names.filter_map(|name| version(name.strip_prefix("GLIBC_")?)).max()
}

/// Parses `2.34`, and `2.2.5` without its last number.
fn version(text: &str) -> Option<GlibcVersion> {
    let mut numbers = text.split('.').map(|number| number.parse().ok());
    Some((numbers.next()??, numbers.next()??))
}

/// Returns the names of the string table that belongs to the section of type `kind`, if the file has that section.
fn read_sections(path: &Path, kind: u32) -> Option<Vec<u8>> {
    let mut file = File::open(path).ok()?;
    let head = part(&mut file, 0, 64)?;
    if !head.starts_with(b"\x7fELF\x02\x01") {
        return None;
    }
    let (start, count) = (number(&head, 0x28, 8)?, number(&head, 0x3c, 2)? as usize);
    let headers = part(&mut file, start, (count * HEADER) as u64)?;
    let header = |index: usize| headers.get(index * HEADER..(index + 1) * HEADER);
    let versions = (0..count).filter_map(header).find(|h| number(h, 4, 4) == Some(kind.into()))?;
    let strings = header(number(versions, 0x28, 4)? as usize)?;
    let section = |h: &[u8], file: &mut File| part(file, number(h, 0x18, 8)?, number(h, 0x20, 8)?);
    let (versions, strings) = (section(versions, &mut file)?, section(strings, &mut file)?);
    let at = if kind == VERNEED { required_names(&versions) } else { defined_names(&versions) };
    let name = |at: usize| strings.get(at..)?.split(|byte| *byte == 0).next();
    Some(at?.into_iter().filter_map(name).flat_map(|name| [name, b"\0"].concat()).collect())
}

/// Offsets of the names of the versions that a file requires. Versions of weak symbols only are left out, since the loader
/// accepts their absence.
fn required_names(section: &[u8]) -> Option<Vec<usize>> {
    const WEAK: u64 = 2;
    let (mut names, mut at) = (Vec::new(), 0);
    loop {
        let mut entry = at + number(section, at + 8, 4)? as usize;
        for _ in 0..number(section, at + 2, 2)? {
            if number(section, entry + 4, 2)? & WEAK == 0 {
                names.push(number(section, entry + 8, 4)? as usize);
            }
            entry += number(section, entry + 12, 4)? as usize;
        }
        match number(section, at + 12, 4)? as usize {
            0 => return Some(names),
            next => at += next,
        }
    }
}

/// Offsets of the names of the versions that a library defines.
fn defined_names(section: &[u8]) -> Option<Vec<usize>> {
    let (mut names, mut at) = (Vec::new(), 0);
    loop {
        let entry = at + number(section, at + 12, 4)? as usize;
        names.push(number(section, entry, 4)? as usize);
        match number(section, at + 16, 4)? as usize {
            0 => return Some(names),
            next => at += next,
        }
    }
}

fn part(file: &mut File, start: u64, bytes: u64) -> Option<Vec<u8>> {
    if bytes > LARGEST {
        return None;
    }
    let mut part = vec![0; bytes as usize];
    file.seek(SeekFrom::Start(start)).ok()?;
    file.read_exact(&mut part).ok()?;
    Some(part)
}

/// Reads a little-endian number of `bytes` bytes.
fn number(data: &[u8], at: usize, bytes: usize) -> Option<u64> {
    let field = data.get(at..at + bytes)?;
    Some(field.iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_program_requires_no_newer_glibc_than_this_machine_has() {
        let own = required(&std::env::current_exe().unwrap()).unwrap();
        let here = installed().unwrap();
        assert!((2, 2) < own && own <= here && here < (3, 0), "{own:?} {here:?}");
    }

    #[test]
    fn versions_are_compared_as_numbers_and_other_files_have_none() {
        assert_eq!(newest(b"GLIBC_2.2.5\0GLIBC_2.17\0GLIBC_2.9\0GCC_3.0\0GLIBC_PRIVATE\0"), Some((2, 17)));
        assert_eq!(newest(b"GCC_3.0\0"), None);
        assert_eq!(required(Path::new("/proc/self/maps")), None);
        assert_eq!(required(Path::new("no such file")), None);
    }
}
