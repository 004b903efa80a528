//! HTTP transport, request signing and a blocking executor for the object-store client (crate `object_store`).
//!
//! See [`HttpConnection`], [`RequestSigner`] and [`block_on`].

use crate::hmac::HmacSha256;
use crate::web::Request;
use crate::with_defaults;
use object_store::client::{
    ClientConfigKey, ClientOptions, CryptoProvider, DigestAlgorithm, DigestContext, HmacContext, HttpClient,
    HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpService, Signer,
    SigningAlgorithm,
};
use rsa::pkcs1::DecodeRsaPrivateKey;
use rsa::pkcs8::DecodePrivateKey;
use rsa::{Pkcs1v15Sign, PrivateKey};
use sha2::{Digest, Sha256};
use std::future::Future;
use std::io::Read;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;
use systole_base::ensure;

/// Maximum length of an answer in bytes.
const LONGEST_ANSWER: u64 = 64 << 20;
/// Maximum wait between attempts.
const LONGEST_WAIT: Duration = Duration::from_secs(10);

with_defaults! {
    /// Retry policy of object-store requests: number of attempts and timeouts.
    ///
    /// Default: 7 attempts within 19 seconds, plus up to 30 seconds of server silence each.
    #[derive(Clone, Copy, Debug, PartialEq)]
    pub struct RetryPolicy {
        /// Maximum number of attempts per request.
        pub attempts: u32 = 7,
        /// Wait before the second attempt; doubles for each next one, up to 10 seconds.
        pub wait: Duration = Duration::from_millis(300),
        /// Maximum time without data from the server.
        pub answer: Duration = Duration::from_secs(30),
    }
}

/// Sends requests through [`crate::http`] with retries: for connection failures, truncated or stalled answers, and busy
/// servers (408, 429, 5xx). Read requests are idempotent.
#[derive(Clone, Copy, Debug)]
pub(super) struct HttpConnection(pub RetryPolicy);

impl HttpConnector for HttpConnection {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        // The metadata servers of cloud machines get one second.
        let at_once =
            options.get_config_value(&ClientConfigKey::ConnectTimeout).as_deref() == Some("1 seconds");
        let patience = match at_once {
            true => RetryPolicy { attempts: 1, answer: Duration::from_secs(2), ..self.0 },
            false => self.0,
        };
        Ok(HttpClient::new(HttpConnection(patience)))
    }
}

type HttpResult = Pin<Box<dyn Future<Output = Result<HttpResponse, HttpError>> + Send>>;

impl HttpService for HttpConnection {
    fn call<'a, 'b>(
        &'a self,
        request: HttpRequest,
    ) -> Pin<Box<dyn Future<Output = Result<HttpResponse, HttpError>> + Send + 'b>>
    where
        'a: 'b,
        Self: 'b,
    {
        let answer: HttpResult = Box::pin(std::future::ready(self.send(request)));
        answer
    }
}

impl HttpConnection {
    fn send(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let (parts, body) = request.into_parts();
        let fields: Vec<(String, String)> = parts
            .headers
            .iter()
            .map(|(n, v)| (n.to_string(), String::from_utf8_lossy(v.as_bytes()).into_owned()))
            .collect();
        let url = parts.uri.to_string();
        let request = Request {
            method: parts.method.as_str(),
            url: &url,
            fields: &fields,
            body: body.as_bytes().map_or(&[][..], |b| b),
            patience: self.0.answer,
            follow: false,
        };
        let mut wait = self.0.wait;
        for attempt in 1.. {
            let trouble = match once(&request) {
                Ok(answer) if !is_busy(answer.status().as_u16()) => return Ok(answer),
                Ok(answer) => format!("the server returned status {}", answer.status()),
                Err(e) => e,
            };
            if attempt >= self.0.attempts {
                let times = if attempt == 1 { String::new() } else { format!(" ({attempt} attempts)") };
                return Err(HttpError::new_boxed(HttpErrorKind::Unknown, format!("{trouble}{times}").into()));
            }
            thread::sleep(wait);
            wait = (wait * 2).min(LONGEST_WAIT);
        }
        Err(HttpError::new_boxed(HttpErrorKind::Unknown, "no attempt was made".into()))
    }
}

/// Whether a status means that a retry may help.
fn is_busy(status: u16) -> bool {
    matches!(status, 408 | 429 | 500..)
}

fn once(request: &Request) -> Result<HttpResponse, String> {
    let mut answer = request.send().map_err(|e| e.what().to_string())?;
    let mut body = Vec::new();
    (&mut answer).take(LONGEST_ANSWER + 1).read_to_end(&mut body).map_err(|e| e.to_string())?;
    ensure!(body.len() as u64 <= LONGEST_ANSWER, "the server sends more data than requested".into());
    let mut response = HttpResponse::new(body.into());
    *response.status_mut() =
        answer.status.try_into().map_err(|_| format!("invalid HTTP status {}", answer.status))?;
    for (name, value) in answer.fields() {
        let name = http::HeaderName::from_bytes(name.as_bytes());
        if let (Ok(name), Ok(value)) = (name, http::HeaderValue::from_str(value)) {
            response.headers_mut().append(name, value);
        }
    }
    Ok(response)
}

/// SHA-256, HMAC-SHA-256, and RSA signatures of service accounts.
#[derive(Debug)]
pub(super) struct RequestSigner;

impl CryptoProvider for RequestSigner {
    fn digest(&self, _: DigestAlgorithm) -> object_store::Result<Box<dyn DigestContext>> {
        Ok(Box::new(DigestState { digest: Sha256::new(), sum: [0; 32] }))
    }

    fn hmac(&self, _: DigestAlgorithm, secret: &[u8]) -> object_store::Result<Box<dyn HmacContext>> {
        Ok(Box::new(HmacState { hmac: HmacSha256::new(secret), code: [0; 32] }))
    }

    fn sign(&self, _: SigningAlgorithm, pem: &[u8]) -> object_store::Result<Box<dyn Signer>> {
        let text = String::from_utf8_lossy(pem);
        let key = PrivateKey::from_pkcs8_pem(&text).or_else(|e| {
            // Older key files have the form of PKCS #1. The first error is of the form that Google writes.
            PrivateKey::from_pkcs1_pem(&text).map_err(|_| e)
        });
        let key = key.map_err(|e| credentials_error(format!("the key file has no RSA private key: {e}")))?;
        Ok(Box::new(RsaSigner(key)))
    }
}

fn credentials_error(why: String) -> object_store::Error {
    object_store::Error::Generic { store: "credentials", source: why.into() }
}

/// RS256: RSASSA-PKCS1-v1_5 with SHA-256 (RFC 7518), for the tokens of a Google service account.
struct RsaSigner(PrivateKey);

impl Signer for RsaSigner {
    fn sign(&self, message: &[u8]) -> object_store::Result<Vec<u8>> {
        let scheme = Pkcs1v15Sign { hash_len: Some(32), prefix: SHA256_INFO.into() };
        let signature = self.0.sign(scheme, &Sha256::digest(message));
        signature.map_err(|e| credentials_error(format!("cannot sign with the service account's key: {e}")))
    }
}

/// DigestInfo of SHA-256 without the digest (RFC 8017, section 9.2, note 1).
pub(super) const SHA256_INFO: [u8; 19] = [
    0x30, 0x31, 0x30, 0x0d, 0x06, 0x09, 0x60, 0x86, 0x48, 0x01, 0x65, 0x03, 0x04, 0x02, 0x01, 0x05, 0x00,
    0x04, 0x20,
];

/// Running digest and its result.
struct DigestState {
    digest: Sha256,
    sum: [u8; 32],
}

impl DigestContext for DigestState {
    fn update(&mut self, data: &[u8]) {
        self.digest.update(data);
    }
    fn finish(&mut self) -> object_store::Result<&[u8]> {
        self.sum = self.digest.finalize_reset().into();
        Ok(&self.sum)
    }
}

/// Running authentication code and its result.
struct HmacState {
    hmac: HmacSha256,
    code: [u8; 32],
}

impl HmacContext for HmacState {
    fn update(&mut self, data: &[u8]) {
        self.hmac.update(data);
    }
    fn finish(&mut self) -> object_store::Result<&[u8]> {
        self.code = self.hmac.clone().finish();
        Ok(&self.code)
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Runs a future on this thread. A store's futures rarely wait: [`HttpConnection`] blocks until it has the answer.
pub(super) fn block_on<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut context = Context::from_waker(&waker);
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(value) => return value,
            Poll::Pending => thread::park(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|b| format!("{b:02x}")).collect()
    }

    #[test]
    fn sums_are_those_of_the_standards() {
        let mut plain = RequestSigner.digest(DigestAlgorithm::Sha256).unwrap();
        plain.update(b"abc");
        let abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(hex(plain.finish().unwrap()), abc);
        // RFC 4231, test case 2.
        let mut hmac = RequestSigner.hmac(DigestAlgorithm::Sha256, b"Jefe").unwrap();
        hmac.update(b"what do ya want for nothing?");
        let code = "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843";
        assert_eq!(hex(hmac.finish().unwrap()), code);
    }
}
