//! Downloads files and verifies their published digests (SHA-256, MD5).
//!
//! No TLS here: a file is trusted only if its digests match. A file grows as `NAME.part`, resumes after an
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

/// Maximum number of requests to one address; all but the first resume a download that made progress.
const ATTEMPTS: usize = 20;
/// Maximum number of redirects that a download follows.
const REDIRECTS: usize = 5;

/// Published digest of a file, in lowercase hexadecimal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileDigest {
    /// SHA-256: 64 digits.
    Sha256(&'static str),
    /// MD5: 32 digits. Detects damaged downloads, but not deliberate changes.
    Md5(&'static str),
}

impl FileDigest {
    /// Returns the name of the algorithm: `SHA-256` or `MD5`.
    pub fn algorithm(self) -> &'static str {
        match self {
            FileDigest::Sha256(_) => "SHA-256",
            FileDigest::Md5(_) => "MD5",
        }
    }

    /// Returns the digest in lowercase hexadecimal.
    pub fn hex(self) -> &'static str {
        match self {
            FileDigest::Sha256(hex) | FileDigest::Md5(hex) => hex,
        }
    }
}

/// Remote file with its expected size and digests.
#[derive(Clone, Copy, Debug)]
pub struct RemoteFile {
    /// Name of the file; an address is that of the source followed by this name.
    pub file: &'static str,
    /// Size in bytes.
    pub size: u64,
    /// Published digests, at least one; all are verified.
    pub digests: &'static [FileDigest],
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
        return Err(Error::new(ErrorKind::Io, "another process is downloading the same files")
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

/// Downloads the missing `files` into `folder`, each from the first of `sources` that has it.
///
/// # Errors
/// `Io` if no server answers within `timeout` or every source rejects the request; `Data` for a wrong digest. Partial
/// downloads are kept for the next attempt.
pub(super) fn fetch_missing(
    files: &[RemoteFile],
    sources: &[&str],
    folder: &Path,
    timeout: Duration,
    progress: &dyn Fn(&str, u64, u64),
) -> Result<()> {
    let deadline = Instant::now() + timeout;
    let mut download = DownloadPolicy { sources, folder, progress, deadline, answered: false, timeout };
    let mut lacking = files.iter().filter(|r| !folder.join(r.file).is_file());
    lacking.try_for_each(|remote| download.fetch(remote))
}

/// Settings shared by all files of a dataset, and the timeout. Until the first answer, all attempts share one timeout.
struct DownloadPolicy<'a> {
    sources: &'a [&'a str],
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

    fn fetch(&mut self, remote: &RemoteFile) -> Result<()> {
        let part = self.folder.join(format!("{}.part", remote.file));
        let mut reasons = Vec::new();
        let mut kind = ErrorKind::Io;
        for source in self.sources {
            let url = format!("{source}{}", remote.file);
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
    fn grow(&mut self, remote: &RemoteFile, url: &str, part: &Path) -> Result<()> {
        let mut have = fs::metadata(part).map_or(0, |m| m.len());
        if have >= remote.size {
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
            if have > remote.size {
                return Err(failed(format!("the server sends more than the expected {} bytes", remote.size)));
            }
            write_all(&OsFileSystem, &mut file, &buffer[..n])
                .map_err(|e| Error::io("cannot write", part, e))?;
            (self.progress)(remote.file, have, remote.size);
            n = body.read(&mut buffer)?;
        }
        OsFileSystem.sync(&mut file).map_err(|e| Error::io("cannot write", part, e))?;
        if have < remote.size {
            return Err(failed(format!("the connection ended after {have} of {} bytes", remote.size)));
        }
        Ok(())
    }

    /// Sends a request and follows redirects. curl follows those of https addresses itself.
    fn follow(&self, url: &str, fields: &[(String, String)]) -> Result<Response> {
        let mut url = url.to_string();
        for _ in 0..=REDIRECTS {
            let patience = self.patience()?;
            let answer =
                Request { method: "GET", url: &url, fields, body: b"", patience, follow: true }.send()?;
            let target = answer.field("location").filter(|_| matches!(answer.status, 301..=303 | 307 | 308));
            let Some(target) = target else { return Ok(answer) };
            url = redirected(&url, target)?;
        }
        Err(failed(format!("the server redirects more than {REDIRECTS} times")))
    }

    /// Requests the bytes from `start` of a file of `size` bytes.
    fn open(&self, url: &str, start: u64, size: u64) -> Result<DownloadBody> {
        let range = ("Range".to_string(), format!("bytes={start}-"));
        let fields = if start > 0 { &[range][..] } else { &[] };
        let from = self.follow(url, fields)?;
        let begin = match from.status {
            200 => 0,
            206 if from.field("content-range").is_some_and(|r| r.starts_with(&format!("bytes {start}-"))) => {
                start
            }
            other => return Err(failed(format!("the server returned status {other}"))),
        };
        match from.field("content-length").and_then(|v| v.parse::<u64>().ok()) {
            Some(n) if begin + n != size => {
                Err(failed(format!("the server's file has {} bytes, expected {size}", begin + n)))
            }
            _ => Ok(DownloadBody { start: begin, from }),
        }
    }
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
fn accept(remote: &RemoteFile, part: &Path, folder: &Path) -> Result<()> {
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
pub(super) fn verify(remote: &RemoteFile, path: &Path) -> Result<()> {
    for digest in remote.digests {
        let found = match digest {
            FileDigest::Sha256(_) => hex_digest::<Sha256>(path),
            FileDigest::Md5(_) => hex_digest::<Md5>(path),
        };
        let found = found.map_err(|e| Error::io("cannot read", path, e))?;
        if found != digest.hex() {
            let (name, expected) = (digest.algorithm(), digest.hex());
            return Err(Error::new(ErrorKind::Data, "the downloaded file is corrupt")
                .at(path.display().to_string())
                .because(format!("the {name} of the file is {found}, expected {expected}")));
        }
    }
    Ok(())
}

fn hex_digest<D: Digest + Write>(path: &Path) -> io::Result<String> {
    let mut hash = D::new();
    io::copy(&mut File::open(path)?, &mut hash)?;
    Ok(hash.finalize().iter().map(|b| format!("{b:02x}")).collect())
}

/// Running download: start offset in the file, and the byte stream.
struct DownloadBody {
    start: u64,
    from: Response,
}

impl DownloadBody {
    fn read(&mut self, buffer: &mut [u8]) -> Result<usize> {
        self.from.read(buffer).map_err(|e| failed(e.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_server::{Act, CONTENT, Server};
    use std::net::TcpListener;
    use systole_testing::assert_error;

    const SHA256: &str = "4db26b160a82f67c4868bd06b8b028f21c8ca5f25615b996326cc40c092633bf";
    const MD5: &str = "d88799ea915c2e290f816dc9b459ec91";

    fn remote() -> RemoteFile {
        let digests = &[FileDigest::Sha256(SHA256), FileDigest::Md5(MD5)];
        RemoteFile { file: "file.gz", size: CONTENT.len() as u64, digests }
    }

    fn fetch_all(
        files: &[RemoteFile],
        sources: &[&str],
        folder: &Path,
        timeout: Duration,
        progress: &dyn Fn(&str, u64, u64),
    ) -> Result<()> {
        let has_data = || files.iter().any(|r| folder.join(r.file).is_file());
        locked(folder, has_data, || fetch_missing(files, sources, folder, timeout, progress))
    }

    impl Server {
        fn fetch(&self, timeout: Duration) -> Result<()> {
            fetch_all(&[remote()], &[&self.base], &self.folder, timeout, &|_, _, _| ())
        }

        fn file(&self) -> Option<Vec<u8>> {
            fs::read(self.folder.join("file.gz")).ok()
        }
    }

    const SECOND: Duration = Duration::from_secs(10);

    #[test]
    fn a_good_file_arrives_whole_and_once() {
        let server = Server::new("good", &[Act::Serve]);
        server.fetch(SECOND).unwrap();
        assert_eq!(server.file().as_deref(), Some(CONTENT));
        server.fetch(SECOND).unwrap();
        assert_eq!(server.requests().len(), 1);
        assert_eq!(fs::read_dir(&server.folder).unwrap().count(), 1, "no part file, no mark");
    }

    #[test]
    fn a_wrong_checksum_is_told_and_leaves_nothing() {
        let server = Server::new("lie", &[Act::Lie]);
        let e = server.fetch(SECOND).unwrap_err();
        assert!(e.kind() == ErrorKind::Data && e.to_string().contains(SHA256), "{e}");
        assert!(!server.folder.exists());
    }

    #[test]
    fn a_cut_line_is_continued_where_it_ended() {
        let server = Server::new("cut", &[Act::Cut(30_000), Act::Cut(50_000), Act::Serve]);
        server.fetch(SECOND).unwrap();
        assert_eq!(server.file().as_deref(), Some(CONTENT));
        let requests = server.requests();
        assert!(!requests[0].contains("Range") && requests[1].contains("bytes=30000-"), "{requests:?}");
        assert!(requests[2].contains("bytes=80000-"));
    }

    #[test]
    fn another_run_continues_and_a_spoilt_part_is_fetched_anew() {
        let server = Server::new("spoilt", &[Act::Serve, Act::Serve]);
        fs::create_dir_all(&server.folder).unwrap();
        fs::write(server.folder.join("file.gz.part"), vec![9; 1000]).unwrap();
        server.fetch(SECOND).unwrap();
        assert_eq!(server.file().as_deref(), Some(CONTENT));
        let requests = server.requests();
        assert!(requests[0].contains("bytes=1000-") && !requests[1].contains("Range"));
    }

    #[test]
    fn silence_is_given_up_after_the_timeout() {
        let server = Server::new("silent", &[Act::Silence, Act::Silence]);
        let timeout = Duration::from_millis(300);
        let start = Instant::now();
        let sources = [server.base.as_str(), server.base.as_str()];
        let e = fetch_all(&[remote()], &sources, &server.folder, timeout, &|_, _, _| ()).unwrap_err();
        let took = start.elapsed();
        assert!(took >= timeout && took < 10 * timeout, "{took:?}");
        assert!(e.kind() == ErrorKind::Io && e.to_string().contains("answer"), "{e}");
    }

    #[test]
    fn each_digest_is_verified_by_itself() {
        let wrong = [
            (FileDigest::Sha256("0000000000000000000000000000000000000000000000000000000000000000"), SHA256),
            (FileDigest::Md5("00000000000000000000000000000000"), MD5),
        ];
        for (digest, found) in wrong {
            let server = Server::new("wrong", &[Act::Serve]);
            let files = [RemoteFile { digests: Vec::leak(vec![digest]), ..remote() }];
            let e = fetch_all(&files, &[&server.base], &server.folder, SECOND, &|_, _, _| ()).unwrap_err();
            assert!(e.kind() == ErrorKind::Data && e.to_string().contains(found), "{e}");
            assert!(e.to_string().contains(digest.algorithm()) && !server.folder.exists(), "{e}");
        }
        let server = Server::new("md5", &[Act::Serve]);
        let files = [RemoteFile { digests: &[FileDigest::Md5(MD5)], ..remote() }];
        fetch_all(&files, &[&server.base], &server.folder, SECOND, &|_, _, _| ()).unwrap();
        assert_eq!(server.file().as_deref(), Some(CONTENT));
    }

    #[test]
    fn slow_servers_are_waited_for_and_stalled_ones_are_asked_again() {
        let timeout = Duration::from_millis(1000);
        let server = Server::new("slow", &[Act::Slow(Duration::from_millis(200))]);
        let start = Instant::now();
        server.fetch(timeout).unwrap();
        assert!(start.elapsed() > timeout && server.file().as_deref() == Some(CONTENT));
        let server = Server::new("stalled", &[Act::Stall(40_000), Act::Serve]);
        server.fetch(timeout).unwrap();
        assert_eq!(server.file().as_deref(), Some(CONTENT));
        assert!(server.requests()[1].contains("bytes=40000-"));
    }

    #[test]
    fn redirects_are_followed_but_not_forever_and_not_to_files() {
        let server = Server::new("moved", &[Act::Redirect("/other/file.gz"), Act::Serve]);
        server.fetch(SECOND).unwrap();
        assert_eq!(server.file().as_deref(), Some(CONTENT));
        assert!(server.requests()[1].starts_with("GET /other/file.gz "));
        let server = Server::new("circle", &[Act::Redirect("/sets/file.gz"); 6]);
        assert_error(&server.fetch(SECOND).unwrap_err(), ErrorKind::Io, &[&server.base]);
        assert_eq!(server.requests().len(), 6);
        for target in ["file:///etc/passwd", "//elsewhere/file.gz", "file.gz"] {
            let server = Server::new("elsewhere", &[Act::Redirect(target)]);
            assert_error(&server.fetch(SECOND).unwrap_err(), ErrorKind::Io, &[target]);
            assert!(!server.folder.exists());
        }
    }

    #[test]
    fn refusals_name_each_source_and_the_next_is_tried() {
        let server = Server::new("refused", &[Act::Status(404), Act::Status(503), Act::Serve]);
        let sources = [server.base.as_str(), server.base.as_str()];
        let go = || fetch_all(&[remote()], &sources, &server.folder, SECOND, &|_, _, _| ());
        let e = go().unwrap_err().to_string();
        assert!(e.contains("404") && e.contains("503") && e.contains(&server.base), "{e}");
        go().unwrap();
    }

    #[test]
    fn nobody_there_is_an_ordinary_error() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let base = format!("http://{}/", listener.local_addr().unwrap());
        drop(listener);
        let server = Server::new("closed", &[]);
        let e = fetch_all(&[remote()], &[&base], &server.folder, SECOND, &|_, _, _| ()).unwrap_err();
        assert_error(&e, ErrorKind::Io, &[&base]);
    }
}
