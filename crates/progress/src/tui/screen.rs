//! The terminal's alternate screen with raw key input, and its restoration.

use super::canvas::CharacterGrid;
use rustix::termios::{OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use std::fs::File;
use std::io::{IsTerminal, Result, Write, stdin, stdout};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Settings of the terminal before raw input; `None` while it is not raw.
static BEFORE: Mutex<Option<Termios>> = Mutex::new(None);

/// A terminal that shows a canvas and reads keys.
pub(super) struct AlternateScreen {
    keys: OwnedFd,
    shown: Option<CharacterGrid>,
}

impl AlternateScreen {
    /// Switches to the alternate screen and raw key input.
    pub(super) fn enter() -> Result<AlternateScreen> {
        let keys = keyboard()?;
        let before = tcgetattr(&keys)?;
        let mut raw = before.clone();
        raw.make_raw();
        // A read returns after a tenth of a second without a key.
        raw.special_codes[SpecialCodeIndex::VMIN] = 0;
        raw.special_codes[SpecialCodeIndex::VTIME] = 1;
        tcsetattr(&keys, OptionalActions::Now, &raw)?;
        *BEFORE.lock().unwrap_or_else(PoisonError::into_inner) = Some(before);
        write("\x1b[?1049h\x1b[?25l")?;
        Ok(AlternateScreen { keys, shown: None })
    }

    /// Draws a frame of the terminal's size.
    pub(super) fn draw(&mut self, draw: impl FnOnce(&mut CharacterGrid)) -> Result<()> {
        let size = tcgetwinsize(stdout())?;
        let mut canvas = CharacterGrid::new(size.ws_col.into(), size.ws_row.into());
        draw(&mut canvas);
        write(&canvas.update(self.shown.as_ref()))?;
        self.shown = Some(canvas);
        Ok(())
    }

    /// Waits up to a tenth of a second for a key; returns whether it was `q` or Ctrl-C.
    pub(super) fn reads_quit(&self) -> bool {
        const WAIT: Duration = Duration::from_millis(100);
        const CONTROL_C: u8 = 3;
        let (began, mut bytes) = (Instant::now(), [0; 64]);
        match rustix::io::read(&self.keys, &mut bytes) {
            Ok(n @ 1..) => bytes[..n].iter().any(|key| [b'q', CONTROL_C].contains(key)),
            // Nothing was typed, or keys cannot be read.
            _ => {
                std::thread::sleep(WAIT.saturating_sub(began.elapsed()));
                false
            }
        }
    }
}

/// Opens standard input, or the controlling terminal if standard input is something else.
fn keyboard() -> Result<OwnedFd> {
    if stdin().is_terminal() {
        stdin().as_fd().try_clone_to_owned()
    } else {
        Ok(File::open("/dev/tty")?.into())
    }
}

/// Restores the screen and the key input.
pub(super) fn leave() {
    if let Some(before) = BEFORE.lock().unwrap_or_else(PoisonError::into_inner).take()
        && let Ok(keys) = keyboard()
    {
        let _ = tcsetattr(keys, OptionalActions::Now, &before);
    }
    let _ = write("\x1b[?1049l\x1b[?25h");
}

fn write(text: &str) -> Result<()> {
    let mut out = stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}
