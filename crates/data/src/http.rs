//! Minimal HTTP/1.1 client: plain HTTP is built in; https and proxies use the system's program `curl`.
//!
//! No TLS here, so no C dependency. A connection serves one request. `patience` limits the time to connect and the wait
//! for each next byte. Secrets (tokens, keys) are never passed on a command line.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};
use systole_base::{Error, ErrorKind, Result, ensure};

/// HTTP request: method, address, headers and body.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// Method: `GET`, `HEAD`, `PUT`, `POST`.
    pub method: &'a str,
    /// URL: `http://…` or `https://…`.
    pub url: &'a str,
    /// Header fields: names and values.
    pub fields: &'a [(String, String)],
    /// Request body.
    pub body: &'a [u8],
    /// Timeout to connect, and for each next byte.
    pub patience: Duration,
    /// Whether curl follows redirects.
    pub follow: bool,
}

/// HTTP response with a readable body.
pub struct Response {
    /// Status code.
    pub status: u16,
    fields: Vec<(String, String)>,
    body: ResponseBody,
}

enum ResponseBody {
    Empty,
    /// Body of known length: remaining bytes, total bytes.
    Sized {
        left: u64,
        all: u64,
        from: BufReader<TcpStream>,
    },
    /// Chunked body: bytes remaining in the current chunk.
    Chunked {
        left: u64,
        from: BufReader<TcpStream>,
    },
    UntilItEnds(BufReader<TcpStream>),
    Curl(Child, BufReader<ChildStdout>),
}

impl Request<'_> {
    /// Sends the request and reads the response up to its body.
    ///
    /// # Errors
    /// `Io` if there is no answer in time, or it is not HTTP. Any status is an answer.
    pub fn send(&self) -> Result<Response> {
        match self.url.strip_prefix("http://").map(|rest| rest.split_once('/').unwrap_or((rest, ""))) {
            Some((host, path)) if !is_proxied(host) => self.by_hand(host, path),
            _ => self.by_curl(),
        }
    }

    fn by_hand(&self, host: &str, path: &str) -> Result<Response> {
        let until = Instant::now() + self.patience;
        let stream = connect(host, self.patience)?;
        let wait = Some(self.patience);
        let set = stream.set_read_timeout(wait).and_then(|()| stream.set_write_timeout(wait));
        set.map_err(|e| failed(e.to_string()))?;
        let mut head = format!("{} /{path} HTTP/1.1\r\nHost: {host}\r\n", self.method);
        for (name, value) in self.usual_fields() {
            head += &format!("{name}: {value}\r\n");
        }
        head += "Connection: close\r\n\r\n";
        let sent = (&stream).write_all(&[head.as_bytes(), self.body].concat());
        sent.map_err(|e| failed(stalled(&e).to_string()))?;
        let mut from = BufReader::with_capacity(1 << 16, stream);
        let (status, fields) = head_of(&mut from, until)?;
        let mut response = Response { status, fields, body: ResponseBody::Empty };
        let length = response.field("content-length").map(str::parse::<u64>);
        let is_chunked = response.field("transfer-encoding").is_some_and(|v| v.contains("chunked"));
        response.body = match length {
            _ if self.method == "HEAD" || matches!(status, 204 | 304) => ResponseBody::Empty,
            _ if is_chunked => ResponseBody::Chunked { left: 0, from },
            Some(Ok(all)) => ResponseBody::Sized { left: all, all, from },
            Some(Err(_)) => return Err(failed("the server's Content-Length is invalid")),
            None => ResponseBody::UntilItEnds(from),
        };
        Ok(response)
    }

    /// Returns the header fields, including implied ones.
    fn usual_fields(&self) -> Vec<(String, String)> {
        let has = |name: &str| self.fields.iter().any(|(n, _)| n.eq_ignore_ascii_case(name));
        let mut fields: Vec<(String, String)> =
            self.fields.iter().filter(|(n, _)| !n.eq_ignore_ascii_case("host")).cloned().collect();
        for (name, value) in [("User-Agent", "systole"), ("Accept-Encoding", "identity")] {
            if !has(name) {
                fields.push((name.into(), value.into()));
            }
        }
        if !has("content-length") && matches!(self.method, "PUT" | "POST") {
            fields.push(("Content-Length".into(), self.body.len().to_string()));
        }
        fields
    }

    fn by_curl(&self) -> Result<Response> {
        let seconds = self.patience.as_secs_f64();
        let mut command = Command::new("curl");
        command.args(["--silent", "--show-error", "--include", "--suppress-connect-headers"]);
        command.args(["--connect-timeout", &format!("{seconds:.2}"), "--speed-limit", "1"]);
        command.args(["--speed-time", &format!("{}", seconds.ceil() as u64), "--config", "-"]);
        if self.follow {
            command.arg("--location");
        }
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child =
            command.spawn().map_err(|e| failed(format!("https requires the program curl: {e}")))?;
        if let Some(mut input) = child.stdin.take() {
            // A curl that does not read its options reports the reason when it ends.
            let _ = input.write_all(self.for_curl().as_bytes());
        }
        let out = child.stdout.take().ok_or_else(|| failed("curl has no output"))?;
        let mut body = ResponseBody::Curl(child, BufReader::with_capacity(1 << 16, out));
        let ResponseBody::Curl(child, out) = &mut body else { return Err(failed("curl has no output")) };
        loop {
            if out.fill_buf().map_err(|e| failed(e.to_string()))?.is_empty() {
                finish(child).map_err(|e| failed(e.to_string()))?;
                return Err(failed("curl returned no response"));
            }
            // curl itself limits the time.
            let (status, fields) = head_of(out, Instant::now() + self.patience)?;
            let goes_on = self.follow && (300..400).contains(&status);
            if !goes_on && status >= 200 {
                return Ok(Response { status, fields, body });
            }
        }
    }

    /// Returns the request as a curl config file, which other users cannot see, unlike arguments.
    fn for_curl(&self) -> String {
        let quoted = |text: &str| {
            let text = text.replace('\\', "\\\\").replace('"', "\\\"");
            text.replace('\n', "\\n").replace('\r', "\\r").replace('\t', "\\t")
        };
        let mut lines = format!("url = \"{}\"\n", quoted(self.url));
        for (name, value) in self.usual_fields() {
            if !name.eq_ignore_ascii_case("content-length") {
                lines += &format!("header = \"{}: {}\"\n", quoted(&name), quoted(&value));
            }
        }
        if !self.body.is_empty() {
            lines += &format!("data-raw = \"{}\"\n", quoted(&String::from_utf8_lossy(self.body)));
        }
        match self.method {
            "HEAD" => lines += "head\n",
            method => lines += &format!("request = \"{method}\"\n"),
        }
        lines
    }
}

impl Response {
    /// Returns a header field by its lowercase name.
    pub fn field(&self, name: &str) -> Option<&str> {
        self.fields.iter().find(|(n, _)| n == name).map(|(_, v)| v.as_str())
    }

    /// Returns all header fields; names are in lower case.
    pub fn fields(&self) -> &[(String, String)] {
        &self.fields
    }
}

impl Read for Response {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match &mut self.body {
            ResponseBody::Empty => Ok(0),
            ResponseBody::UntilItEnds(from) => from.read(buffer).map_err(|e| stalled(&e)),
            ResponseBody::Sized { left, all, from } => {
                let n = part(from, left, buffer)?;
                if n == 0 && *left > 0 && !buffer.is_empty() {
                    let why = format!("the connection ended after {} of {all} bytes", *all - *left);
                    return Err(io::Error::new(io::ErrorKind::UnexpectedEof, why));
                }
                Ok(n)
            }
            ResponseBody::Chunked { left, from } => {
                if *left == 0 {
                    *left = chunk(from)?;
                    if *left == 0 {
                        self.body = ResponseBody::Empty;
                        return Ok(0);
                    }
                }
                let n = part(from, left, buffer)?;
                ensure!(n != 0 || buffer.is_empty(), cut());
                if *left == 0 {
                    from.read_exact(&mut [0; 2]).map_err(|e| stalled(&e))?;
                }
                Ok(n)
            }
            ResponseBody::Curl(child, out) => match out.read(buffer)? {
                0 if !buffer.is_empty() => finish(child).map(|()| 0),
                n => Ok(n),
            },
        }
    }
}

impl Drop for ResponseBody {
    fn drop(&mut self) {
        if let ResponseBody::Curl(child, _) = self {
            // Kills a curl whose output is no longer needed; a finished one cannot be killed.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Whether a proxy applies; proxies are handled by curl.
fn is_proxied(host: &str) -> bool {
    let set = |name: &str| std::env::var_os(name).is_some_and(|v| !v.is_empty());
    !host.starts_with("127.0.0.1") && (set("http_proxy") || set("all_proxy") || set("ALL_PROXY"))
}

/// Returns an error about the server's behavior, without a path or place.
fn failed(why: impl Into<String>) -> Error {
    Error::new(ErrorKind::Io, why)
}

fn stalled(e: &io::Error) -> io::Error {
    match e.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            io::Error::new(io::ErrorKind::TimedOut, "the HTTP server stopped answering")
        }
        io::ErrorKind::UnexpectedEof => cut(),
        kind => io::Error::new(kind, e.to_string()),
    }
}

fn cut() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "the HTTP connection ended within the response")
}

/// Reads at most the remaining bytes.
fn part(from: &mut impl Read, left: &mut u64, buffer: &mut [u8]) -> io::Result<usize> {
    let most = buffer.len().min(usize::try_from(*left).unwrap_or(usize::MAX));
    let n = from.read(&mut buffer[..most]).map_err(|e| stalled(&e))?;
    *left -= n as u64;
    Ok(n)
}

/// Reads the length of the next chunk; after the last one, which is empty, also reads the trailer.
fn chunk(from: &mut impl BufRead) -> io::Result<u64> {
    let mut line = String::new();
    from.take(256).read_line(&mut line).map_err(|e| stalled(&e))?;
    let digits = line.split(';').next().unwrap_or_default().trim();
    u64::from_str_radix(digits, 16).map_err(|_| match line.is_empty() {
        true => cut(),
        false => io::Error::new(
            io::ErrorKind::InvalidData,
            format!("expected the length of a chunk, got {line:?}"),
        ),
    })
}

/// Reads status and header fields of a response.
fn head_of(reader: &mut impl BufRead, until: Instant) -> Result<(u16, Vec<(String, String)>)> {
    let mut text = Vec::new();
    // Byte by byte from the buffer: a slow response must not outlast the timeout either.
    while !text.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        reader.read_exact(&mut byte).map_err(|e| failed(stalled(&e).to_string()))?;
        text.push(byte[0]);
        if text.len() > 16 << 10 || Instant::now() > until {
            return Err(failed("the server's response does not start like HTTP"));
        }
    }
    let text = String::from_utf8_lossy(&text);
    let mut lines = text.lines();
    let status = lines.next().and_then(|l| l.strip_prefix("HTTP/")?.split(' ').nth(1)?.parse().ok());
    let status = status.ok_or_else(|| failed("the server does not use HTTP"))?;
    let field = |l: &str| l.split_once(':').map(|(n, v)| (n.to_ascii_lowercase(), v.trim().to_string()));
    Ok((status, lines.filter_map(field).collect()))
}

/// Connects in a separate thread, because name resolution has no timeout.
fn connect(host: &str, patience: Duration) -> Result<TcpStream> {
    let (sender, receiver) = channel();
    let target = if host.contains(':') { host.to_string() } else { format!("{host}:80") };
    thread::spawn(move || {
        let stream = target.to_socket_addrs().and_then(|addresses| {
            let mut last = io::Error::other("the name has no address");
            for address in addresses {
                match TcpStream::connect_timeout(&address, patience) {
                    Ok(stream) => return Ok(stream),
                    Err(e) => last = e,
                }
            }
            Err(last)
        });
        // The receiver is gone after the timeout.
        let _ = sender.send(stream);
    });
    match receiver.recv_timeout(patience) {
        Ok(stream) => stream.map_err(|e| failed(format!("cannot connect: {e}"))),
        Err(_) => Err(failed(format!("cannot connect within {patience:?}"))),
    }
}

fn finish(child: &mut Child) -> io::Result<()> {
    if child.wait()?.success() {
        return Ok(());
    }
    let mut text = String::new();
    if let Some(mut err) = child.stderr.take() {
        // The message is optional; the failure is reported either way.
        let _ = err.read_to_string(&mut text);
    }
    Err(io::Error::other(format!("curl failed: {}", text.trim())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    /// Serves one answer per connection, and returns the requests.
    fn server(answers: &[&str]) -> (String, thread::JoinHandle<Vec<String>>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/a?b=c", listener.local_addr().unwrap());
        let answers: Vec<String> = answers.iter().map(|a| a.to_string()).collect();
        let served = thread::spawn(move || {
            let serve = |answer: String| {
                let (mut stream, _) = listener.accept().unwrap();
                let mut asked = String::new();
                let mut reader = BufReader::new(stream.try_clone().unwrap());
                while !asked.ends_with("\r\n\r\n") {
                    reader.read_line(&mut asked).unwrap();
                }
                let length = asked.lines().find_map(|l| l.strip_prefix("Content-Length: ")?.parse().ok());
                let mut body = vec![0; length.unwrap_or(0)];
                reader.read_exact(&mut body).unwrap();
                stream.write_all(answer.as_bytes()).unwrap();
                asked + &String::from_utf8(body).unwrap()
            };
            answers.into_iter().map(serve).collect()
        });
        (url, served)
    }

    fn request<'a>(method: &'a str, url: &'a str, fields: &'a [(String, String)]) -> Request<'a> {
        Request { method, url, fields, body: b"", patience: Duration::from_secs(10), follow: false }
    }

    fn text(response: Result<Response>) -> io::Result<(u16, String)> {
        let mut response = response.map_err(io::Error::other)?;
        let mut text = String::new();
        response.read_to_string(&mut text).map(|_| (response.status, text))
    }

    const CHUNKED: &str =
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nwhol\r\n2;x=y\r\ne!\r\n0\r\n\r\n";

    #[test]
    fn answers_of_every_length_are_read_whole_or_not_at_all() {
        let sized = "HTTP/1.1 404 Not Found\r\nContent-Length: 4\r\n\r\ngone";
        let (url, served) =
            server(&[CHUNKED, sized, "HTTP/1.0 200 OK\r\n\r\nto the end", &sized[..sized.len() - 2]]);
        let fields = [("X-Key".to_string(), "secret".to_string())];
        let get = || text(request("GET", &url, &fields).send());
        assert_eq!(get().unwrap(), (200, "whole!".into()));
        assert_eq!(get().unwrap(), (404, "gone".into()));
        assert_eq!(get().unwrap(), (200, "to the end".into()));
        assert_eq!(get().unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        let asked = served.join().unwrap();
        assert!(asked[0].starts_with("GET /a?b=c HTTP/1.1\r\nHost: 127.0.0.1:"), "{}", asked[0]);
        assert!(asked[0].contains("X-Key: secret\r\n"));
        let (url, served) = server(&[&CHUNKED[..CHUNKED.len() - 12]]);
        let e = text(request("GET", &url, &[]).send()).unwrap_err().to_string();
        assert!(e.contains("HTTP"), "{e}");
        served.join().unwrap();
    }

    #[test]
    #[allow(clippy::print_stderr)]
    fn curl_asks_and_answers_as_we_do() {
        if Command::new("curl").arg("--version").stdout(Stdio::null()).status().is_err() {
            eprintln!("SKIPPED curl_asks_and_answers_as_we_do: there is no curl");
            return;
        }
        let there = "HTTP/1.1 200 OK\r\nETag: \"1\"\r\nContent-Length: 4\r\n\r\n";
        let cut = format!("{there}12");
        let moved = "HTTP/1.1 302 Found\r\nLocation: /b\r\nContent-Length: 0\r\n\r\n";
        let (url, served) = server(&[CHUNKED, there, CHUNKED, &cut, moved, CHUNKED]);
        let fields = [("X-Key".to_string(), "a \"b\" \\c".to_string())];
        let get = request("GET", &url, &fields);
        assert_eq!(text(get.by_curl()).unwrap(), (200, "whole!".into()));
        let mut head = request("HEAD", &url, &[]).by_curl().unwrap();
        assert_eq!((head.status, head.field("etag")), (200, Some("\"1\"")));
        // curl shows the head of a response without a body, and no body.
        assert_eq!(head.read(&mut [0; 9]).unwrap(), 0);
        let post = Request { method: "POST", body: b"x=\"1\"&y=2", ..get };
        assert_eq!(text(post.by_curl()).unwrap().0, 200);
        assert_eq!(text(get.by_curl()).unwrap_err().kind(), io::ErrorKind::Other);
        assert_eq!(text(Request { follow: true, ..get }.by_curl()).unwrap().0, 200);
        let asked = served.join().unwrap();
        assert!(asked[0].contains("X-Key: a \"b\" \\c\r\n"), "{}", asked[0]);
        assert!(asked[1].starts_with("HEAD "), "{}", asked[1]);
        assert!(asked[2].starts_with("POST ") && asked[2].ends_with("\r\n\r\nx=\"1\"&y=2"), "{}", asked[2]);
        assert!(asked[5].starts_with("GET /b "), "{}", asked[5]);
    }
}
