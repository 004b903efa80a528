//! Downloads files and verifies their published digests (SHA-256, its first digits, MD5).
//!
//! A file is trusted if its digests match; one without a digest needs an https address. A file grows as `NAME.part`, resumes after an
//! interruption, and is renamed when complete. All waits have a timeout.

use md5::Md5;
use sha2::{Digest, Sha256};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::Path;
use std::time::{Duration, Instant};
use systole_base::{Error, ErrorKind, Result};
use systole_data::file_system::{FileSystem, OsFileSystem, write_all};
use systole_data::http::{Request, Response};

/// Marks a directory whose files are being downloaded, so that an incomplete set is not reported as broken.
pub(super) const MARK: &str = ".downloading";

/// First words of the error that lists the result of each address.
pub(super) const REFUSED: &str = "cannot download";

/// Reason of the error that reports a running download of the same files.
pub(super) const LOCKED: &str = "another process is downloading the same files";

/// Maximum number of requests to one address; all but the first resume a download that made progress.
const ATTEMPTS: usize = 20;
/// Maximum number of redirects that a download follows.
const REDIRECTS: usize = 5;

/// Published digest of a file, in lowercase hexadecimal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileDigest<'a> {
    /// SHA-256: 64 digits.
    Sha256(&'a str),
    /// First digits of the SHA-256, as in the names of torchvision's files.
    Sha256Prefix(&'a str),
    /// MD5: 32 digits. Detects damaged downloads, but not deliberate changes.
    Md5(&'a str),
}

impl<'a> FileDigest<'a> {
    /// Returns the name of the algorithm: `SHA-256`, `first digits of SHA-256` or `MD5`.
    pub fn algorithm(self) -> &'static str {
        match self {
            FileDigest::Sha256(_) => "SHA-256",
            FileDigest::Sha256Prefix(_) => "first digits of SHA-256",
            FileDigest::Md5(_) => "MD5",
        }
    }

    /// Returns the digest in lowercase hexadecimal.
    pub fn hex(self) -> &'a str {
        match self {
            FileDigest::Sha256(hex) | FileDigest::Sha256Prefix(hex) | FileDigest::Md5(hex) => hex,
        }
    }
}

/// Remote file with its expected size and digests.
#[derive(Clone, Copy, Debug)]
pub struct RemoteFile<'a> {
    /// Name of the file; an address is that of the source followed by this name.
    pub file: &'a str,
    /// Size in bytes; `None`: the publisher does not state it.
    pub size: Option<u64>,
    /// Published digests; all are verified.
    pub digests: &'a [FileDigest<'a>],
}

/// Runs `work`, which downloads into `folder`, while holding the folder's lock. The folder counts as incomplete
/// (marked by [`MARK`]) until `work` succeeds, or fails without leaving data: `has_data`.
///
/// # Errors
/// Those of `work`; `Io` if another process holds the lock or the folder cannot be written.
pub(super) fn locked(
    folder: &Path,
    has_data: impl Fn() -> bool,
    work: impl FnOnce() -> Result<()>,
) -> Result<()> {
    fs::create_dir_all(folder).map_err(|e| Error::io("cannot create", folder, e))?;
    let mark = folder.join(MARK);
    let lock = File::create(&mark).map_err(|e| Error::io("cannot create", &mark, e))?;
    if lock.try_lock().is_err() {
        return Err(Error::new(ErrorKind::Io, LOCKED)
            .at(folder.display().to_string())
            .hint("wait until that download has finished"));
    }
    let done = work();
    if done.is_ok() || !has_data() {
        fs::remove_file(&mark).map_err(|e| Error::io("cannot remove", &mark, e))?;
        // Succeeds only if the directory is empty, that is, if nothing was downloaded.
        let _ = fs::remove_dir(folder);
    }
    done
}

/// Downloads the missing `files` into `folder`, each from the first source that has it: base addresses, and header fields
/// of each request.
///
/// # Errors
/// `Io` if no server answers within `timeout` or every source rejects the request; `Data` for a wrong digest. Partial
/// downloads are kept for the next attempt.
pub(super) fn fetch_missing(
    files: &[RemoteFile<'_>],
    (sources, fields): (&[String], &[(String, String)]),
    folder: &Path,
    timeout: Duration,
    progress: &dyn Fn(&str, u64, u64),
) -> Result<()> {
    let deadline = Instant::now() + timeout;
    let mut download =
        DownloadPolicy { sources, fields, folder, progress, deadline, answered: false, timeout };
    let mut lacking = files.iter().filter(|r| !folder.join(r.file).is_file());
    lacking.try_for_each(|remote| download.fetch(remote))
}

/// Settings shared by all files of a dataset, and the timeout. Until the first answer, all attempts share one timeout.
struct DownloadPolicy<'a> {
    sources: &'a [String],
    fields: &'a [(String, String)],
    folder: &'a Path,
    progress: &'a dyn Fn(&str, u64, u64),
    deadline: Instant,
    answered: bool,
    timeout: Duration,
}

impl DownloadPolicy<'_> {
    fn patience(&self) -> Result<Duration> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        match (self.answered, left.is_zero()) {
            (true, _) => Ok(self.timeout),
            (false, false) => Ok(left),
            (false, true) => Err(failed(format!("no answer within {:?}", self.timeout))),
        }
    }

    fn fetch(&mut self, remote: &RemoteFile<'_>) -> Result<()> {
        let part = self.folder.join(format!("{}.part", remote.file));
        if let Some(parent) = part.parent() {
            fs::create_dir_all(parent).map_err(|e| Error::io("cannot create", parent, e))?;
        }
        let mut reasons = Vec::new();
        let mut kind = ErrorKind::Io;
        for source in self.sources {
            let url = format!("{source}{}", remote.file);
            if remote.digests.is_empty() && !is_trusted(&url) {
                reasons.push(format!("{url}: a file without a published digest needs an https address"));
                continue;
            }
            // Retry after progress (an interrupted connection) or after a resumed file turned out wrong.
            for _ in 0..ATTEMPTS {
                let before = fs::metadata(&part).map_or(0, |m| m.len());
                match self.grow(remote, &url, &part).and_then(|()| accept(remote, &part, self.folder)) {
                    Ok(()) => return Ok(()),
                    Err(e) => {
                        let after = fs::metadata(&part).map_or(0, |m| m.len());
                        let again = if e.kind() == ErrorKind::Data { before > 0 } else { after > before };
                        if !again {
                            kind = if e.kind() == ErrorKind::Data { e.kind() } else { kind };
                            reasons.push(format!("{url}: {}", in_a_line(&e)));
                            break;
                        }
                    }
                }
            }
        }
        let e = Error::new(kind, format!("{REFUSED} {}", remote.file));
        Err(reasons.into_iter().fold(e, Error::because))
    }

    /// Appends the server's remaining bytes to the partial file.
    fn grow(&mut self, remote: &RemoteFile<'_>, url: &str, part: &Path) -> Result<()> {
        let mut have = fs::metadata(part).map_or(0, |m| m.len());
        if remote.size.is_some_and(|size| have >= size) {
            return Ok(());
        }
        let mut body = self.open(url, have, remote.size)?;
        let mut buffer = vec![0; 1 << 16];
        // Read before creating the file: a rejected request must leave no file behind.
        let mut n = body.read(&mut buffer)?;
        self.answered = true;
        have = body.start;
        let mut file = continue_at(part, have)?;
        while n > 0 {
            have += n as u64;
            if let Some(size) = body.size.filter(|size| have > *size) {
                return Err(failed(format!("the server sends more than the expected {size} bytes")));
            }
            write_all(&OsFileSystem, &mut file, &buffer[..n])
                .map_err(|e| Error::io("cannot write", part, e))?;
            (self.progress)(remote.file, have, body.size.unwrap_or(have));
            n = body.read(&mut buffer)?;
        }
        OsFileSystem.sync(&mut file).map_err(|e| Error::io("cannot write", part, e))?;
        match body.size.filter(|size| have < *size) {
            Some(size) => Err(failed(format!("the connection ended after {have} of {size} bytes"))),
            None => Ok(()),
        }
    }

    /// Requests the bytes from `start` of a file of `size` bytes.
    fn open(&self, url: &str, start: u64, size: Option<u64>) -> Result<DownloadBody> {
        let range = (start > 0).then(|| ("Range".to_string(), format!("bytes={start}-")));
        let fields: Vec<(String, String)> = range.iter().chain(self.fields).cloned().collect();
        let from = get(url, &fields, || self.patience())?;
        let begin = match from.status {
            200 => 0,
            206 if from.field("content-range").is_some_and(|r| r.starts_with(&format!("bytes {start}-"))) => {
                start
            }
            // The partial file has no byte too few.
            416 if start > 0 && size.is_none() => return self.open(url, 0, size),
            other => return Err(failed(format!("the server returned status {other}"))),
        };
        let told = from.field("content-length").and_then(|v| v.parse::<u64>().ok()).map(|n| begin + n);
        match (told, size) {
            (Some(told), Some(size)) if told != size => {
                Err(failed(format!("the server's file has {told} bytes, expected {size}")))
            }
            _ => Ok(DownloadBody { start: begin, size: size.or(told), from }),
        }
    }
}

/// Sends a request and follows redirects. Other hosts do not get `Authorization`. `patience` returns the time left for a
/// request.
///
/// # Errors
/// `Io` if there is no answer in time, or too many redirects. Any status is an answer.
pub fn get(
    url: &str,
    fields: &[(String, String)],
    patience: impl Fn() -> Result<Duration>,
) -> Result<Response> {
    let mut url = url.to_string();
    let first = host_of(&url).to_string();
    for _ in 0..=REDIRECTS {
        let is_open = |name: &str| host_of(&url) == first || !name.eq_ignore_ascii_case("authorization");
        let fields: Vec<(String, String)> =
            fields.iter().filter(|(name, _)| is_open(name)).cloned().collect();
        // curl follows redirects of https addresses itself, and also sends `Authorization` only to the first host.
        let request = Request {
            method: "GET",
            url: &url,
            fields: &fields,
            body: b"",
            patience: patience()?,
            follow: true,
        };
        let answer = request.send()?;
        let target = answer.field("location").filter(|_| matches!(answer.status, 301..=303 | 307 | 308));
        let Some(target) = target else { return Ok(answer) };
        url = redirected(&url, target)?;
    }
    Err(failed(format!("the server redirects more than {REDIRECTS} times")))
}

/// Whether the answers of a server can be trusted without a digest: https, or a server on this machine.
pub fn is_trusted(url: &str) -> bool {
    let host = host_of(url);
    let name = host.rsplit_once(':').map_or(host, |(name, _)| name);
    url.starts_with("https://") || matches!(name, "127.0.0.1" | "localhost" | "[::1]")
}

/// Returns host and port of an address.
fn host_of(url: &str) -> &str {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    rest.split('/').next().unwrap_or(rest)
}

/// Returns what failed and why in one line, without places and hint.
pub(super) fn in_a_line(e: &Error) -> String {
    std::iter::once(e.what()).chain(e.reasons().iter().map(String::as_str)).collect::<Vec<_>>().join("; ")
}

fn failed(why: impl Into<String>) -> Error {
    Error::new(ErrorKind::Io, why)
}

fn continue_at(part: &Path, offset: u64) -> Result<File> {
    let open = || {
        let mut file = OsFileSystem.open(part)?;
        OsFileSystem.truncate(&mut file, offset)?;
        Ok(file)
    };
    open().map_err(|e| Error::io("cannot write", part, e))
}

/// Resolves the target of a redirect: an address, or a path on the same server.
fn redirected(url: &str, target: &str) -> Result<String> {
    let scheme_end = url.find("://").map_or(0, |at| at + 3);
    let host_end = url[scheme_end..].find('/').map_or(url.len(), |at| scheme_end + at);
    match target {
        _ if ["http://", "https://"].iter().any(|scheme| target.starts_with(scheme)) => Ok(target.into()),
        _ if target.starts_with('/') && !target.starts_with("//") => {
            Ok(format!("{}{target}", &url[..host_end]))
        }
        _ => {
            Err(failed(format!("the server redirects to `{target}`, which is not an http or https address")))
        }
    }
}

/// Renames the partial file if its digests match; otherwise removes it.
fn accept(remote: &RemoteFile<'_>, part: &Path, folder: &Path) -> Result<()> {
    if let Err(e) = verify(remote, part) {
        OsFileSystem.remove(part).map_err(|e| Error::io("cannot remove", part, e))?;
        return Err(e);
    }
    let path = folder.join(remote.file);
    let placed = OsFileSystem.rename(part, &path).and_then(|()| OsFileSystem.sync_dir(folder));
    placed.map_err(|e| Error::io("cannot rename to", path, e))
}

/// Verifies a file's digests.
///
/// # Errors
/// `Data` for another digest than published; `Io` if the file cannot be read.
pub(super) fn verify(remote: &RemoteFile<'_>, path: &Path) -> Result<()> {
    for digest in remote.digests {
        let found = match digest {
            FileDigest::Sha256(_) | FileDigest::Sha256Prefix(_) => sha256(path)?,
            FileDigest::Md5(_) => hex_digest::<Md5>(path)?,
        };
        let is_prefix = matches!(digest, FileDigest::Sha256Prefix(_));
        if found != digest.hex() && !(is_prefix && found.starts_with(digest.hex())) {
            let (name, expected) = (digest.algorithm(), digest.hex());
            return Err(Error::new(ErrorKind::Data, "the downloaded file is corrupt")
                .at(path.display().to_string())
                .because(format!("the {name} of the file is {found}, expected {expected}")));
        }
    }
    Ok(())
}

/// Returns the SHA-256 of a file in lowercase hexadecimal.
///
/// # Errors
/// `Io` if the file cannot be read.
pub fn sha256(path: &Path) -> Result<String> {
    hex_digest::<Sha256>(path)
}

fn hex_digest<D: Digest + Write>(path: &Path) -> Result<String> {
    let mut hash = D::new();
    let copied = File::open(path).and_then(|mut file| io::copy(&mut file, &mut hash));
    copied.map_err(|e| Error::io("cannot read", path, e))?;
    Ok(hash.finalize().iter().map(|b| format!("{b:02x}")).collect())
}

/// Running download: start offset in the file, its size if known, and the byte stream.
struct DownloadBody {
    start: u64,
    size: Option<u64>,
    from: Response,
}

impl DownloadBody {
    fn read(&mut self, buffer: &mut [u8]) -> Result<usize> {
        self.from.read(buffer).map_err(|e| failed(e.to_string()))
    }
}

#[cfg(test)]
pub(crate) mod tests;
