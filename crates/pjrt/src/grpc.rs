//! gRPC client for one unary call to a service on this machine: HTTP/2 without TLS (RFC 9113).
//!
//! The client sends headers without Huffman coding and does not decode the headers of the response: a call succeeds if a
//! message arrives. A call whose status is an error ends without one.

use std::io::{self, Error, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// Largest response that is accepted, and the window that the server may fill without waiting.
const WINDOW: u32 = 1 << 20;
/// First bytes of an HTTP/2 connection.
pub(crate) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Types of HTTP/2 frames.
pub(crate) mod frame {
    pub(crate) const DATA: u8 = 0;
    pub(crate) const HEADERS: u8 = 1;
    pub(crate) const RST_STREAM: u8 = 3;
    pub(crate) const SETTINGS: u8 = 4;
    pub(crate) const PING: u8 = 6;
    pub(crate) const GOAWAY: u8 = 7;
    pub(crate) const WINDOW_UPDATE: u8 = 8;
}
/// Flags of HTTP/2 frames: end of stream (for settings and pings: acknowledgment), end of headers, padding.
pub(crate) const END_STREAM: u8 = 1;
const ACK: u8 = 1;
pub(crate) const END_HEADERS: u8 = 4;
const PADDED: u8 = 8;

/// An HTTP/2 frame.
pub(crate) struct Frame {
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    pub(crate) stream: u32,
    pub(crate) payload: Vec<u8>,
}

/// Encodes an HTTP/2 frame.
pub(crate) fn encode(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = (payload.len() as u32).to_be_bytes()[1..].to_vec();
    bytes.extend([kind, flags]);
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
    bytes
}

/// Reads an HTTP/2 frame.
pub(crate) fn read_frame(from: &mut impl Read) -> io::Result<Frame> {
    let mut head = [0; 9];
    from.read_exact(&mut head)?;
    let [a, b, c, kind, flags, stream @ ..] = head;
    let length = u32::from_be_bytes([0, a, b, c]);
    if length > WINDOW {
        return Err(Error::new(ErrorKind::InvalidData, "an HTTP/2 frame is too large"));
    }
    let mut payload = vec![0; length as usize];
    from.read_exact(&mut payload)?;
    Ok(Frame { kind, flags, stream: u32::from_be_bytes(stream) & 0x7fff_ffff, payload })
}

/// Encodes request headers: literal fields without index and without Huffman coding (RFC 7541, section 6.2.2).
fn headers(authority: &str, path: &str) -> Vec<u8> {
    let fields = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", path),
        (":authority", authority),
        ("te", "trailers"),
        ("content-type", "application/grpc"),
        ("user-agent", "systole"),
    ];
    let mut bytes = Vec::new();
    for (name, value) in fields {
        bytes.push(0);
        for text in [name, value] {
            // Lengths from 127 on would take more than the seven bits of the first byte.
            let text = &text.as_bytes()[..text.len().min(126)];
            bytes.push(text.len() as u8);
            bytes.extend(text);
        }
    }
    bytes
}

/// Calls a unary gRPC method: `path` is `/PACKAGE.SERVICE/METHOD`, `message` the encoded request. Returns the encoded
/// response.
///
/// # Errors
/// If there is no server at `server`, if it does not answer within `time`, or if it answers without a message.
pub(crate) fn call(server: SocketAddr, path: &str, message: &[u8], time: Duration) -> io::Result<Vec<u8>> {
    let until = Instant::now() + time;
    let mut stream = TcpStream::connect_timeout(&server, time)?;
    stream.set_nodelay(true)?;
    stream.set_write_timeout(Some(time))?;
    let mut request = PREFACE.to_vec();
    // Setting 4: the initial window of a stream. The window of the connection has a frame of its own.
    request.extend(encode(frame::SETTINGS, 0, 0, &[&[0, 4][..], &WINDOW.to_be_bytes()].concat()));
    request.extend(encode(frame::WINDOW_UPDATE, 0, 0, &WINDOW.to_be_bytes()));
    request.extend(encode(frame::HEADERS, END_HEADERS, 1, &headers(&server.to_string(), path)));
    let prefixed = [&[0][..], &(message.len() as u32).to_be_bytes(), message].concat();
    request.extend(encode(frame::DATA, END_STREAM, 1, &prefixed));
    stream.write_all(&request)?;
    let mut answer = Vec::new();
    loop {
        let left = until.checked_duration_since(Instant::now()).filter(|d| !d.is_zero());
        stream.set_read_timeout(Some(left.ok_or(ErrorKind::TimedOut)?))?;
        let frame = read_frame(&mut stream)?;
        match frame.kind {
            frame::SETTINGS if frame.flags & ACK == 0 => {
                stream.write_all(&encode(frame::SETTINGS, ACK, 0, &[]))?;
            }
            frame::PING if frame.flags & ACK == 0 => {
                stream.write_all(&encode(frame::PING, ACK, 0, &frame.payload))?;
            }
            frame::DATA if frame.stream == 1 => answer.extend(without_padding(&frame)?),
            frame::RST_STREAM | frame::GOAWAY => {
                return Err(Error::new(ErrorKind::ConnectionReset, "the server closed the stream"));
            }
            _ => {}
        }
        if answer.len() > WINDOW as usize {
            return Err(Error::new(ErrorKind::InvalidData, "the response is too large"));
        }
        if let Some(message) = message_of(&answer)? {
            return Ok(message.to_vec());
        }
        if matches!(frame.kind, frame::DATA | frame::HEADERS) && frame.flags & END_STREAM != 0 {
            return Err(Error::new(ErrorKind::InvalidData, "the call ended without a message"));
        }
    }
}

fn without_padding(frame: &Frame) -> io::Result<&[u8]> {
    if frame.flags & PADDED == 0 {
        return Ok(&frame.payload);
    }
    let content = frame.payload.split_first().and_then(|(&n, rest)| {
        let length = rest.len().checked_sub(n.into())?;
        rest.get(..length)
    });
    content.ok_or_else(|| Error::new(ErrorKind::InvalidData, "the padding of an HTTP/2 frame is too long"))
}

/// Returns the first message of a response: a byte for compression, four for the length, the message.
fn message_of(answer: &[u8]) -> io::Result<Option<&[u8]>> {
    let Some((&[compressed, a, b, c, d], rest)) = answer.split_first_chunk::<5>() else { return Ok(None) };
    if compressed != 0 {
        return Err(Error::new(ErrorKind::InvalidData, "the response is compressed"));
    }
    Ok(rest.get(..u32::from_be_bytes([a, b, c, d]) as usize))
}

#[cfg(test)]
pub(crate) use tests::{response, serve};

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    /// Serves calls on a port of this machine: `answer` gets path and message and returns the frames of the response.
    pub(crate) fn serve(answer: impl Fn(&[u8], &[u8]) -> Vec<u8> + Send + 'static) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                let mut preface = [0; PREFACE.len()];
                stream.read_exact(&mut preface).unwrap();
                assert_eq!(preface, PREFACE);
                stream.write_all(&encode(frame::SETTINGS, 0, 0, &[])).unwrap();
                let mut headers = Vec::new();
                while let Ok(read) = read_frame(&mut stream) {
                    match read.kind {
                        frame::HEADERS => headers = read.payload,
                        frame::DATA => {
                            let _ = stream.write_all(&answer(&headers, &read.payload[5..]));
                        }
                        _ => {}
                    }
                }
            }
        });
        address
    }

    /// Frames of a response: status 200, the message in two frames, of which one is padded, and trailers.
    pub(crate) fn response(message: &[u8]) -> Vec<u8> {
        let prefixed = [&[0][..], &(message.len() as u32).to_be_bytes(), message].concat();
        let (first, second) = prefixed.split_at(prefixed.len() / 2);
        let padded = [&[3][..], second, &[0; 3]].concat();
        [
            encode(frame::PING, 0, 0, &[7; 8]),
            encode(frame::HEADERS, END_HEADERS, 1, &[0x88]),
            encode(frame::DATA, 0, 1, first),
            encode(frame::DATA, PADDED, 1, &padded),
            encode(frame::HEADERS, END_HEADERS | END_STREAM, 1, &[0x88]),
        ]
        .concat()
    }

    const TIME: Duration = Duration::from_secs(5);

    #[test]
    fn a_call_returns_the_message() {
        let server = serve(|headers, message| {
            assert!(headers.windows(9).any(|w| w == b"/a.B/Call"), "the path is sent as it is");
            response(&[message, b" back"].concat())
        });
        assert_eq!(call(server, "/a.B/Call", b"there", TIME).unwrap(), b"there back");
        assert_eq!(call(server, "/a.B/Call", b"", TIME).unwrap(), b" back");
    }

    #[test]
    fn a_server_that_fails_or_lies_is_an_error() {
        let told = |frames: Vec<u8>| {
            let server = serve(move |_, _| frames.clone());
            call(server, "/a.B/Call", b"", TIME).unwrap_err().to_string()
        };
        let no_message = encode(frame::HEADERS, END_HEADERS | END_STREAM, 1, &[0x88]);
        assert!(told(no_message).contains("without a message"));
        assert!(told(encode(frame::RST_STREAM, 0, 1, &[0; 4])).contains("closed the stream"));
        assert!(told(encode(frame::DATA, PADDED, 1, &[9, 0])).contains("padding"));
        assert!(told(encode(frame::DATA, 0, 1, &[1, 0, 0, 0, 0])).contains("compressed"));
        assert!(told(vec![0xff; 9]).contains("too large"));
        let endless = encode(frame::DATA, 0, 1, &vec![0xff; (WINDOW - 1) as usize]).repeat(2);
        assert!(told([encode(frame::DATA, 0, 1, &[0]), endless].concat()).contains("too large"));
    }

    #[test]
    fn a_server_that_is_silent_or_not_there_is_an_error_in_time() {
        let silent = serve(|_, _| Vec::new());
        assert!(call(silent, "/a.B/Call", b"", Duration::from_millis(100)).is_err());
        let gone = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        assert!(call(gone, "/a.B/Call", b"", TIME).is_err());
    }
}
