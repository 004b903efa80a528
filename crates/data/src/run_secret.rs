//! Secret shared by the processes of one training run.

use crate::hmac::HmacSha256;
use std::fs::File;
use std::io::Read;
use systole_base::{Error, Result, err, knobs};

/// Minimum length of a secret in characters.
const SHORTEST: usize = 16;
/// Source of random bytes on Unix.
const RANDOM: &str = "/dev/urandom";

/// Shared secret with which the processes of a run authenticate before they exchange data.
#[derive(Clone)]
pub struct RunSecret(String);

impl RunSecret {
    /// Reads the secret in `SYSTOLE_SECRET`; `None` if the variable is not set.
    ///
    /// # Errors
    /// If the secret has fewer than 16 characters.
    pub fn from_environment() -> Result<Option<RunSecret>> {
        RunSecret::parse(&knobs::SECRET.get())
    }

    /// Parses a secret; `None` if the text is empty.
    ///
    /// # Errors
    /// If the secret has fewer than 16 characters.
    pub fn parse(text: &str) -> Result<Option<RunSecret>> {
        let text = text.trim();
        match text.chars().count() {
            0 => Ok(None),
            SHORTEST.. => Ok(Some(RunSecret(text.into()))),
            n => {
                let e = err!(Config, "the secret has {n} characters, expected at least {SHORTEST}")
                    .at(knobs::SECRET.name);
                Err(e.hint_setting(format!("set a random text: {}", RunSecret::command())))
            }
        }
    }

    /// Creates a random secret.
    ///
    /// # Errors
    /// If the system provides no random bytes.
    pub fn random() -> Result<RunSecret> {
        Ok(RunSecret(random_bytes()?.iter().map(|b| format!("{b:02x}")).collect()))
    }

    /// Text of the secret, for the environment of a child process.
    pub fn text(&self) -> &str {
        &self.0
    }

    /// Starts a message authenticated with the secret.
    pub fn hmac(&self) -> HmacSha256 {
        HmacSha256::new(self.0.as_bytes())
    }

    /// Shell command that sets a random secret.
    pub fn command() -> String {
        format!("export {}=$(head -c 32 {RANDOM} | base64)", knobs::SECRET.name)
    }
}

/// Returns random bytes that nobody can predict.
///
/// # Errors
/// If the system provides none.
pub fn random_bytes() -> Result<[u8; 32]> {
    let mut bytes = [0; 32];
    let read = File::open(RANDOM).and_then(|mut file| file.read_exact(&mut bytes));
    read.map_err(|e| Error::io("cannot read random bytes from", RANDOM, e))?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use systole_base::ErrorKind;
    use systole_testing::assert_error;

    #[test]
    fn secrets_are_long_and_random() {
        let [a, b] = [RunSecret::random().unwrap(), RunSecret::random().unwrap()];
        assert!(a.text() != b.text() && a.text().len() == 64);
        // A value as `base64` prints it.
        assert_eq!(RunSecret::parse(&format!("{}\n", a.text())).unwrap().unwrap().text(), a.text());
        assert!(RunSecret::parse(" \n").unwrap().is_none());
        let secret = "fifteen letters";
        let e = RunSecret::parse(secret).err().unwrap();
        assert_error(&e, ErrorKind::Config, &["15", "SYSTOLE_SECRET"]);
        assert!(!e.to_string().contains(secret), "{e}");
    }
}
