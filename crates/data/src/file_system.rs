//! Atomic and durable file writes: [`AtomicFile`], [`write_atomically`], and the trait [`FileSystem`].
//!
//! A file appears under its name only when it is complete and synced. Interrupted calls (EINTR) are retried, and short
//! writes are continued. Tests replace the file system to inject faults.

use std::ffi::OsStr;
use std::fs::{self, File, TryLockError};
use std::io::{self, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use systole_base::{Error, Result, err};

/// Prefix of the names of temporary files.
const TEMPORARY: &str = ".systole-";

/// File system operations used for writing; tests inject a failure into each of them.
pub trait FileSystem {
    /// Open file.
    type File;

    /// Creates a new file; fails if it exists.
    fn create(&self, path: &Path) -> io::Result<Self::File>;

    /// Like [`FileSystem::create`], but the file may get its name only by [`FileSystem::link`]: then nothing is left of it if
    /// the process is killed before.
    fn create_unnamed(&self, path: &Path) -> io::Result<Self::File> {
        self.create(path)
    }

    /// Gives a file of [`FileSystem::create_unnamed`] its name, unless it has it.
    fn link(&self, _file: &Self::File, _path: &Path) -> io::Result<()> {
        Ok(())
    }

    /// Opens a file for writing (after [`FileSystem::truncate`]), and creates it if it is missing.
    fn open(&self, path: &Path) -> io::Result<Self::File>;

    /// Locks the file for this process; [`TryLockError::WouldBlock`] if another process holds the lock.
    fn lock(&self, file: &Self::File) -> Result<(), TryLockError>;

    /// Appends bytes and returns the number written, which may be smaller.
    fn write(&self, file: &mut Self::File, bytes: &[u8]) -> io::Result<usize>;

    /// Truncates the file and moves the write position to its end.
    fn truncate(&self, file: &mut Self::File, length: u64) -> io::Result<()>;

    /// Waits until the file's bytes are on disk (fsync).
    fn sync(&self, file: &mut Self::File) -> io::Result<()>;

    /// Renames a file atomically, replacing an existing one.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Waits until a directory's entries are on disk.
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;

    /// Deletes a file.
    fn remove(&self, path: &Path) -> io::Result<()>;

    /// Creates a symbolic link to `to`; unsupported by default.
    fn symlink(&self, _to: &Path, _link: &Path) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// File system operations of the operating system.
#[derive(Clone, Copy, Debug, Default)]
pub struct OsFileSystem;

impl FileSystem for OsFileSystem {
    type File = File;

    fn create(&self, path: &Path) -> io::Result<File> {
        File::options().write(true).create_new(true).open(path)
    }

    #[cfg(all(target_os = "linux", feature = "unnamed-files"))]
    fn create_unnamed(&self, path: &Path) -> io::Result<File> {
        unnamed::create(path).or_else(|_| self.create(path))
    }

    #[cfg(all(target_os = "linux", feature = "unnamed-files"))]
    fn link(&self, file: &File, path: &Path) -> io::Result<()> {
        unnamed::link(file, path)
    }

    fn open(&self, path: &Path) -> io::Result<File> {
        File::options().read(true).write(true).create(true).truncate(false).open(path)
    }

    fn lock(&self, file: &File) -> Result<(), TryLockError> {
        file.try_lock()
    }

    fn write(&self, file: &mut File, bytes: &[u8]) -> io::Result<usize> {
        file.write(bytes)
    }

    fn truncate(&self, file: &mut File, length: u64) -> io::Result<()> {
        file.set_len(length)?;
        file.seek(SeekFrom::Start(length)).map(drop)
    }

    fn sync(&self, file: &mut File) -> io::Result<()> {
        file.sync_all()
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        if let Ok(old) = fs::metadata(to) {
            // Renaming needs no write permission on the old file: respect its write protection and keep its
            // permissions.
            if old.permissions().readonly() {
                return Err(io::Error::new(
                    io::ErrorKind::PermissionDenied,
                    "the existing file is write-protected",
                ));
            }
            fs::set_permissions(from, old.permissions())?;
        }
        fs::rename(from, to)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        // Some file systems cannot sync a directory; systems other than Unix cannot open one.
        if !cfg!(unix) {
            return Ok(());
        }
        match File::open(dir)?.sync_all() {
            Err(e) if matches!(e.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported) => Ok(()),
            result => result,
        }
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    #[cfg(unix)]
    fn symlink(&self, to: &Path, link: &Path) -> io::Result<()> {
        std::os::unix::fs::symlink(to, link)
    }
}

/// Files without a name (Linux's `O_TMPFILE`), which vanish with the process that writes them.
#[cfg(all(target_os = "linux", feature = "unnamed-files"))]
mod unnamed {
    use super::{File, Path, folder_of, fs, io};
    use rustix::fs::{AtFlags, CWD, Mode, OFlags, linkat, openat};
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::MetadataExt;

    /// Fails where the file system has no such files, or `/proc`, through which they get a name, is missing.
    pub fn create(path: &Path) -> io::Result<File> {
        fs::metadata("/proc/self/fd")?;
        let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
        let mode = Mode::RUSR | Mode::WUSR | Mode::RGRP | Mode::WGRP | Mode::ROTH | Mode::WOTH;
        Ok(openat(CWD, folder_of(path), flags, mode)?.into())
    }

    pub fn link(file: &File, path: &Path) -> io::Result<()> {
        if file.metadata()?.nlink() > 0 {
            return Ok(());
        }
        let open = format!("/proc/self/fd/{}", file.as_raw_fd());
        let link = || linkat(CWD, &open, CWD, path, AtFlags::SYMLINK_FOLLOW).map_err(io::Error::from);
        match link() {
            // Left by a killed process with the same process id.
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => fs::remove_file(path).and_then(|()| link()),
            linked => linked,
        }
    }
}

/// Retries a call while signals interrupt it (EINTR).
pub(crate) fn again<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}

/// Writes all bytes, in as many calls as needed.
///
/// # Errors
/// Errors of the file system.
pub fn write_all<F: FileSystem>(files: &F, file: &mut F::File, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match again(|| files.write(file, bytes))? {
            0 => return Err(io::ErrorKind::WriteZero.into()),
            n => {
                bytes = bytes
                    .get(n..)
                    .ok_or_else(|| io::Error::other("write returned more bytes than it was given"))?
            }
        }
    }
    Ok(())
}

/// Appends bytes to a file, creating it if it is missing. If the bytes cannot be written completely, the file keeps its
/// length.
///
/// # Errors
/// Errors of the file system.
pub fn append<F: FileSystem>(files: &F, path: &Path, bytes: &[u8]) -> io::Result<()> {
    let length = fs::metadata(path).map_or(0, |m| m.len());
    let mut file = again(|| files.open(path))?;
    again(|| files.truncate(&mut file, length))?;
    write_all(files, &mut file, bytes).inspect_err(|_| {
        // A partial line could pass for a complete one. If truncation fails too, the first error is reported.
        let _ = again(|| files.truncate(&mut file, length));
    })
}

/// Truncates a file to `length` bytes, or creates an empty one.
///
/// # Errors
/// Errors of the file system.
pub fn cut<F: FileSystem>(files: &F, path: &Path, length: u64) -> io::Result<()> {
    let mut file = again(|| files.open(path))?;
    again(|| files.truncate(&mut file, length))
}

/// File that is written without a name, or under a temporary one in the same directory, and renamed by
/// [`AtomicFile::publish`]. An existing
/// file stays intact on any failure or crash. Dropping it before `publish` removes the temporary file.
pub struct AtomicFile<F: FileSystem> {
    files: F,
    file: F::File,
    temporary: PathBuf,
    path: PathBuf,
    /// Number of bytes written so far, including failed writes.
    size: usize,
    published: bool,
}

impl<F: FileSystem> AtomicFile<F> {
    /// Starts writing the file `path` atomically.
    ///
    /// # Errors
    /// If its directory is missing, protected or full.
    pub fn create(files: F, path: &Path) -> Result<AtomicFile<F>> {
        if path.file_name().is_none() {
            let e =
                err!(Io, "cannot save as `{}`", path.display()).because("the output path has no file name");
            return Err(e.hint_command("add a file name to the output path"));
        }
        let (temporary, file) = create_temporary(&files, folder_of(path))
            .map_err(|e| save_error(path, 0, "creating a file in its folder", &e))?;
        Ok(AtomicFile { files, file, temporary, path: path.into(), size: 0, published: false })
    }

    /// Like [`AtomicFile::create`], with a fixed temporary name, so that the next attempt replaces what a killed process
    /// left. Not for files that two processes may write at once.
    pub fn create_partial(files: F, path: &Path) -> Result<AtomicFile<F>> {
        let mut temporary = path.as_os_str().to_owned();
        temporary.push(".partial");
        let temporary = PathBuf::from(temporary);
        let removed = match again(|| files.remove(&temporary)) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
            _ => Ok(()),
        };
        let file = removed
            .and_then(|()| again(|| files.create(&temporary)))
            .map_err(|e| save_error(path, 0, "creating a file in its folder", &e))?;
        Ok(AtomicFile { files, file, temporary, path: path.into(), size: 0, published: false })
    }

    /// Syncs the file and renames it to its final name.
    ///
    /// # Errors
    /// If any step fails; the temporary file is removed.
    pub fn publish(mut self) -> Result<()> {
        again(|| self.files.sync(&mut self.file)).map_err(|e| self.fail("syncing to disk", &e))?;
        again(|| self.files.link(&self.file, &self.temporary))
            .map_err(|e| self.fail("giving it a temporary name", &e))?;
        again(|| self.files.rename(&self.temporary, &self.path))
            .map_err(|e| self.fail("renaming it to its final name", &e))?;
        self.published = true;
        again(|| self.files.sync_dir(folder_of(&self.path))).map_err(|e| {
            save_error(&self.path, self.size, "syncing its folder", &e)
                .because("the new file is in place but might not survive a power failure")
        })
    }

    /// Returns the error and removes the temporary file.
    fn fail(&mut self, step: &str, e: &io::Error) -> Error {
        let error =
            save_error(&self.path, self.size, step, e).because("the previous file, if any, is unchanged");
        match self.abandon() {
            Ok(()) => error,
            Err(_) => {
                error.because(format!("the temporary file {} could not be removed", self.temporary.display()))
            }
        }
    }

    fn abandon(&mut self) -> io::Result<()> {
        self.published = true;
        match again(|| self.files.remove(&self.temporary)) {
            // It had no name yet.
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed,
        }
    }
}

impl<F: FileSystem> Write for AtomicFile<F> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let n = self.files.write(&mut self.file, bytes)?;
        self.size += n;
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<F: FileSystem> Drop for AtomicFile<F> {
    fn drop(&mut self) {
        if !self.published {
            // A partial file must not pass for a complete one.
            let _ = self.abandon();
        }
    }
}

/// Writes `parts` one after the other as the file `path`, atomically like [`AtomicFile`].
///
/// # Errors
/// If any step fails; the temporary file is removed.
pub fn write_atomically<F: FileSystem>(files: &F, path: &Path, parts: &[&[u8]]) -> Result<()> {
    write_unpublished(files, path, parts)?.publish()
}

/// Writes `parts` one after the other to a file that gets the name `path` by [`AtomicFile::publish`].
///
/// # Errors
/// If any step fails; the temporary file is removed.
pub fn write_unpublished<F: FileSystem>(files: F, path: &Path, parts: &[&[u8]]) -> Result<AtomicFile<F>> {
    let mut new = AtomicFile::create(files, path)?;
    for part in parts {
        if let Err(e) = new.write_all(part) {
            new.size = parts.iter().map(|p| p.len()).sum();
            return Err(new.fail("writing", &e));
        }
    }
    Ok(new)
}

impl<F: FileSystem> FileSystem for &F {
    type File = F::File;
    fn create(&self, path: &Path) -> io::Result<F::File> {
        (**self).create(path)
    }
    fn create_unnamed(&self, path: &Path) -> io::Result<F::File> {
        (**self).create_unnamed(path)
    }
    fn link(&self, file: &F::File, path: &Path) -> io::Result<()> {
        (**self).link(file, path)
    }
    fn open(&self, path: &Path) -> io::Result<F::File> {
        (**self).open(path)
    }
    fn lock(&self, file: &F::File) -> Result<(), TryLockError> {
        (**self).lock(file)
    }
    fn write(&self, file: &mut F::File, bytes: &[u8]) -> io::Result<usize> {
        (**self).write(file, bytes)
    }
    fn truncate(&self, file: &mut F::File, length: u64) -> io::Result<()> {
        (**self).truncate(file, length)
    }
    fn sync(&self, file: &mut F::File) -> io::Result<()> {
        (**self).sync(file)
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        (**self).rename(from, to)
    }
    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        (**self).sync_dir(dir)
    }
    fn remove(&self, path: &Path) -> io::Result<()> {
        (**self).remove(path)
    }
    fn symlink(&self, to: &Path, link: &Path) -> io::Result<()> {
        (**self).symlink(to, link)
    }
}

/// Replaces `path` atomically by a relative symbolic link to a file in the same directory. Returns false if links are
/// not supported.
///
/// # Errors
/// If any step fails; the existing file stays.
pub fn link_atomically<F: FileSystem>(files: &F, path: &Path, to: &Path) -> Result<bool> {
    let name = format!("{TEMPORARY}{}-link.tmp", std::process::id());
    let temporary = folder_of(path).join(name);
    let within = to.strip_prefix(folder_of(path)).unwrap_or(to);
    let failed = |step: &'static str| move |e: io::Error| save_error(path, 0, step, &e);
    match again(|| files.symlink(within, &temporary)) {
        Err(e) if matches!(e.kind(), io::ErrorKind::Unsupported | io::ErrorKind::PermissionDenied) => {
            return Ok(false);
        }
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
            // Left by a killed process with the same process id.
            again(|| files.remove(&temporary)).map_err(failed("removing an old link"))?;
            again(|| files.symlink(within, &temporary)).map_err(failed("creating a link"))?;
        }
        made => made.map_err(failed("creating a link"))?,
    }
    again(|| files.rename(&temporary, path)).map_err(|e| {
        // The next save creates another one.
        let _ = files.remove(&temporary);
        save_error(path, 0, "renaming the link to its final name", &e)
    })?;
    again(|| files.sync_dir(folder_of(path))).map_err(failed("syncing its folder"))?;
    Ok(true)
}

/// Removes temporary files of killed processes from a directory that only this process writes to.
pub fn sweep(dir: &Path) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if name.starts_with(TEMPORARY) && name.ends_with(".tmp") {
            // A remaining file only costs disk space.
            let _ = fs::remove_file(entry.path());
        }
    }
}

fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(dir) if dir != Path::new("") => dir,
        _ => Path::new("."),
    }
}

/// Creates a file in `dir` under a name that is unique among processes and saves.
fn create_temporary<F: FileSystem>(files: &F, dir: &Path) -> io::Result<(PathBuf, F::File)> {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    loop {
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("{TEMPORARY}{}-{number}.tmp", std::process::id());
        let path = dir.join(OsStr::new(&name));
        match again(|| files.create_unnamed(&path)) {
            Ok(file) => return Ok((path, file)),
            // Left by a killed process with the same process id.
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists && number < u64::MAX => {}
            Err(e) => return Err(e),
        }
    }
}

fn save_error(path: &Path, size: usize, step: &str, e: &io::Error) -> Error {
    let hint = match e.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            format!("free {size} bytes on that disk, or save elsewhere")
        }
        io::ErrorKind::PermissionDenied => {
            "check the permissions of the file and its folder, or save elsewhere".into()
        }
        io::ErrorKind::NotFound => "create the folder first".into(),
        io::ErrorKind::ReadOnlyFilesystem => "save to a writable disk".into(),
        io::ErrorKind::IsADirectory | io::ErrorKind::DirectoryNotEmpty => "choose another name".into(),
        _ => "check the disk, or save elsewhere".into(),
    };
    err!(Io, "cannot save {}", path.display()).at(format!("while {step}")).because(e.to_string()).hint(hint)
}

/// Way in which a call of [`FaultInjectingFileSystem`] fails.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum InjectedFault {
    /// Fails with an error of this kind; a write first writes half of its bytes.
    Error(io::ErrorKind),
    /// Fails with the operating system's I/O error, `EIO`.
    Io,
    /// Fails with `Interrupted` (EINTR): the call is to be retried.
    Interrupted,
    /// Writes only one byte; other calls succeed.
    Short,
}

/// File system that counts its calls and lets one of them fail, or all from one on, for tests of code that writes
/// files.
#[derive(Debug)]
pub struct FaultInjectingFileSystem<F = OsFileSystem> {
    files: F,
    fault: InjectedFault,
    at: usize,
    forever: bool,
    calls: Mutex<Vec<&'static str>>,
}

impl FaultInjectingFileSystem {
    /// Creates a file system whose call `at` (from 0) fails.
    pub fn at(at: usize, fault: InjectedFault) -> FaultInjectingFileSystem {
        FaultInjectingFileSystem { files: OsFileSystem, fault, at, forever: false, calls: Mutex::default() }
    }

    /// Creates a file system whose calls all fail from `at` on.
    pub fn from(at: usize, fault: InjectedFault) -> FaultInjectingFileSystem {
        FaultInjectingFileSystem { forever: true, ..FaultInjectingFileSystem::at(at, fault) }
    }

    /// Creates a file system that only counts calls and never fails.
    pub fn never() -> FaultInjectingFileSystem {
        FaultInjectingFileSystem::at(usize::MAX, InjectedFault::Io)
    }
}

impl<F> FaultInjectingFileSystem<F> {
    /// Returns the names of the calls so far.
    pub fn calls(&self) -> Vec<&'static str> {
        crate::mutex::lock(&self.calls).clone()
    }

    /// Counts a call; returns the fault to inject, if any.
    fn turn(&self, call: &'static str) -> Option<InjectedFault> {
        let mut calls = crate::mutex::lock(&self.calls);
        calls.push(call);
        let n = calls.len() - 1;
        (n == self.at || (self.forever && n > self.at)).then_some(self.fault)
    }

    fn check(&self, call: &'static str) -> io::Result<()> {
        self.turn(call).map_or(Ok(()), InjectedFault::result)
    }
}

impl InjectedFault {
    fn result(self) -> io::Result<()> {
        match self {
            InjectedFault::Error(kind) => Err(kind.into()),
            InjectedFault::Io => Err(io::Error::from_raw_os_error(5)),
            InjectedFault::Interrupted => Err(io::ErrorKind::Interrupted.into()),
            InjectedFault::Short => Ok(()),
        }
    }
}

impl<F: FileSystem> FileSystem for FaultInjectingFileSystem<F> {
    type File = F::File;
    fn create(&self, path: &Path) -> io::Result<F::File> {
        self.check("create").and_then(|()| self.files.create(path))
    }
    fn open(&self, path: &Path) -> io::Result<F::File> {
        self.check("open").and_then(|()| self.files.open(path))
    }
    fn lock(&self, file: &F::File) -> Result<(), TryLockError> {
        self.files.lock(file)
    }
    fn write(&self, file: &mut F::File, bytes: &[u8]) -> io::Result<usize> {
        match self.turn("write") {
            None => self.files.write(file, bytes),
            Some(InjectedFault::Short) => self.files.write(file, &bytes[..bytes.len().min(1)]),
            Some(InjectedFault::Interrupted) => Err(io::ErrorKind::Interrupted.into()),
            Some(fault) => {
                self.files.write(file, &bytes[..bytes.len() / 2])?;
                fault.result().map(|()| 0)
            }
        }
    }
    fn truncate(&self, file: &mut F::File, length: u64) -> io::Result<()> {
        self.check("truncate").and_then(|()| self.files.truncate(file, length))
    }
    fn sync(&self, file: &mut F::File) -> io::Result<()> {
        self.check("sync").and_then(|()| self.files.sync(file))
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.check("rename").and_then(|()| self.files.rename(from, to))
    }
    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.check("sync_dir").and_then(|()| self.files.sync_dir(dir))
    }
    fn remove(&self, path: &Path) -> io::Result<()> {
        self.check("remove").and_then(|()| self.files.remove(path))
    }
    fn symlink(&self, to: &Path, link: &Path) -> io::Result<()> {
        self.check("symlink").and_then(|()| self.files.symlink(to, link))
    }
}

// Names of the previous version.
systole_base::renamed! { Fault => InjectedFault }
#[doc(hidden)]
pub use self::{AtomicFile as NewFile, FaultInjectingFileSystem as Faulty, OsFileSystem as Disk};

#[cfg(test)]
mod tests {
    use super::*;
    use systole_base::ErrorKind;
    use systole_testing::assert_error;

    const FULL: InjectedFault = InjectedFault::Error(io::ErrorKind::StorageFull);

    fn folder(name: &str) -> PathBuf {
        let dir = std::env::temp_dir().join(format!("systole-disk-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir_all(&dir).unwrap();
        dir
    }

    fn names(dir: &Path) -> Vec<String> {
        fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().to_string_lossy().into_owned()).collect()
    }

    #[test]
    fn whichever_call_fails_the_file_is_whole_and_nothing_is_left_behind() {
        let dir = folder("faults");
        let path = dir.join("f");
        let healthy = FaultInjectingFileSystem::never();
        write_atomically(&healthy, &path, &[b"old", b" one"]).unwrap();
        let calls = healthy.calls();
        // The existing file is replaced only after the new file is on disk.
        assert_eq!(calls, ["create", "write", "write", "sync", "rename", "sync_dir"]);
        for fault in [FULL, InjectedFault::Io] {
            for n in 0..calls.len() {
                fs::write(&path, "old one").unwrap();
                let e = write_atomically(
                    &FaultInjectingFileSystem::at(n, fault),
                    &path,
                    &[b"new", b" and longer"],
                )
                .unwrap_err();
                assert_error(&e, ErrorKind::Io, &[&path.display().to_string()]);
                assert!(e.hint_text().is_some(), "{e}");
                // Only the last call, syncing the directory, comes after the new file is in place.
                let expected = if n + 1 == calls.len() { "new and longer" } else { "old one" };
                assert_eq!(fs::read_to_string(&path).unwrap(), expected, "call {n}");
                assert_eq!(names(&dir), ["f"], "call {n}");
            }
        }
        for fault in [InjectedFault::Interrupted, InjectedFault::Short] {
            for n in 0..calls.len() {
                fs::write(&path, "old one").unwrap();
                write_atomically(&FaultInjectingFileSystem::at(n, fault), &path, &[b"new", b" and longer"])
                    .unwrap();
                assert_eq!(fs::read_to_string(&path).unwrap(), "new and longer", "{fault:?} in call {n}");
                assert_eq!(names(&dir), ["f"], "{fault:?} in call {n}");
            }
        }
        fs::remove_dir_all(dir).unwrap();
    }

    #[cfg(all(target_os = "linux", feature = "unnamed-files"))]
    #[test]
    #[allow(clippy::print_stderr)]
    fn a_file_has_no_name_before_it_is_whole() {
        let dir = folder("unnamed");
        if unnamed::create(&dir.join("f")).is_err() {
            eprintln!("SKIPPED a_file_has_no_name_before_it_is_whole: the disk has no files without a name");
            return;
        }
        let path = dir.join("f");
        let mut file = AtomicFile::create(OsFileSystem, &path).unwrap();
        file.write_all(b"new").unwrap();
        assert!(names(&dir).is_empty(), "{:?}", names(&dir));
        // Left by a killed process with the same process id.
        fs::write(&file.temporary, "half").unwrap();
        file.publish().unwrap();
        assert_eq!((names(&dir), fs::read_to_string(&path).unwrap()), (vec!["f".into()], "new".into()));
        drop(AtomicFile::create(OsFileSystem, &dir.join("g")).unwrap());
        assert_eq!(names(&dir), ["f"]);
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn whichever_call_fails_no_half_line_is_added() {
        let dir = folder("append");
        let path = dir.join("log");
        let healthy = FaultInjectingFileSystem::never();
        append(&healthy, &path, b"one\n").unwrap();
        assert_eq!(healthy.calls(), ["open", "truncate", "write"]);
        for fault in [FULL, InjectedFault::Io] {
            for n in 0..3 {
                append(&FaultInjectingFileSystem::at(n, fault), &path, b"lost\n").unwrap_err();
                assert_eq!(fs::read_to_string(&path).unwrap(), "one\n", "call {n}");
            }
        }
        for fault in [InjectedFault::Interrupted, InjectedFault::Short] {
            (0..3).for_each(|n| append(&FaultInjectingFileSystem::at(n, fault), &path, b"more\n").unwrap());
        }
        assert_eq!(fs::read_to_string(&path).unwrap(), "one\n".to_string() + &"more\n".repeat(6));
        cut(&OsFileSystem, &path, 4).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "one\n");
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn a_disk_that_fails_for_good_leaves_the_file_whole_and_names_the_litter() {
        let dir = folder("dead");
        let path = dir.join("f");
        fs::write(&path, "old").unwrap();
        for n in 0..5 {
            let dead = FaultInjectingFileSystem::from(n, FULL);
            let e = write_atomically(&dead, &path, &[b"new", b"er"]).unwrap_err();
            assert_eq!(e.reasons().len() > 2, n > 0, "the last reason names the temporary file: {e}");
            assert_eq!(fs::read_to_string(&path).unwrap(), "old", "call {n}");
        }
        sweep(&dir);
        assert_eq!(names(&dir), ["f"], "the next start removes it");
        fs::remove_dir_all(dir).unwrap();
    }
}
