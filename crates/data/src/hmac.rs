//! HMAC-SHA-256 (RFC 2104): authenticates messages between holders of a key.

use sha2::{Digest, Sha256};

/// Block size of SHA-256 in bytes.
const BLOCK: usize = 64;

/// Running HMAC-SHA-256 of a message.
#[derive(Clone, Debug)]
pub struct HmacSha256 {
    inner: Sha256,
    outer: Sha256,
}

impl HmacSha256 {
    /// Starts a message authenticated with `key`.
    pub fn new(key: &[u8]) -> HmacSha256 {
        let mut block = [0; BLOCK];
        match key.len() > BLOCK {
            true => block[..32].copy_from_slice(&Sha256::digest(key)),
            false => block[..key.len()].copy_from_slice(key),
        }
        let with = |pad: u8| Sha256::new_with_prefix(block.map(|b| b ^ pad));
        HmacSha256 { inner: with(0x36), outer: with(0x5c) }
    }

    /// Appends bytes to the message.
    pub fn update(&mut self, bytes: &[u8]) {
        self.inner.update(bytes);
    }

    /// Returns the authentication code of the message.
    pub fn finish(self) -> [u8; 32] {
        self.outer.chain_update(self.inner.finalize()).finalize().into()
    }
}

/// Compares two authentication codes in constant time.
pub fn codes_match(a: &[u8; 32], b: &[u8; 32]) -> bool {
    std::hint::black_box(a.iter().zip(b).fold(0, |differs, (a, b)| differs | (a ^ b))) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(key: &[u8], text: &str) -> String {
        let mut hmac = HmacSha256::new(key);
        // A message may arrive in parts.
        text.as_bytes().chunks(5).for_each(|part| hmac.update(part));
        hmac.finish().iter().map(|b| format!("{b:02x}")).collect()
    }

    #[test]
    fn codes_are_those_of_the_standard() {
        // RFC 4231, test cases 2 and 6.
        let short = "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843";
        assert_eq!(code(b"Jefe", "what do ya want for nothing?"), short);
        let long = "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54";
        assert_eq!(code(&[0xaa; 131], "Test Using Larger Than Block-Size Key - Hash Key First"), long);
    }

    #[test]
    fn codes_match_only_if_every_byte_does() {
        let code = HmacSha256::new(b"key").finish();
        assert!(codes_match(&code, &code.clone()));
        for k in 0..code.len() {
            let mut other = code;
            other[k] ^= 1;
            assert!(!codes_match(&code, &other), "byte {k}");
        }
    }
}
