//! Tests of the `--tui` dashboard in a pseudo-terminal: it is drawn, `q` ends the run like a signal, and the terminal
//! is restored. Without a suitable terminal nothing of it is written.
#![cfg(all(unix, feature = "tui"))]

use crate::program::{Folder, TINY};
use rustix::fs::{Mode, OFlags, open};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};
use std::fs::File;
use std::io::{Read, Write};
use std::process::Child;
use std::time::{Duration, Instant};

const LONG: [&str; 8] = [
    "train",
    "fashion-mnist",
    "--data-dir=data",
    "--tui",
    "--set=layers.0.filters=2",
    "--batch-size=16",
    "--seed=3",
    "--threads=1",
];
/// What enters and leaves the other screen, and shows the cursor.
const ENTER: &str = "\x1b[?1049h";
const LEAVE: &str = "\x1b[?1049l";

/// A pseudo-terminal with a program in it.
struct Screen {
    own: File,
    other: File,
    child: Running,
    seen: String,
}

/// A program that does not outlive a test that fails.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Screen {
    fn new(f: &Folder, args: &[&str], term: &str) -> Screen {
        let own = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&own).unwrap();
        unlockpt(&own).unwrap();
        let name = ptsname(&own, Vec::new()).unwrap();
        let other = File::from(open(&*name, OFlags::RDWR | OFlags::NOCTTY, Mode::empty()).unwrap());
        let side = || other.try_clone().unwrap();
        let mut command = f.command(args);
        command.env("TERM", term).stdin(side()).stdout(side()).stderr(side());
        let screen = Screen {
            child: Running(command.spawn().unwrap()),
            own: File::from(own),
            other,
            seen: String::new(),
        };
        screen.resize(100, 30);
        screen
    }

    fn resize(&self, columns: u16, rows: u16) {
        let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&self.own, size).unwrap();
    }

    /// Reads until this text was seen, counted from `from` bytes on.
    #[track_caller]
    fn until(&mut self, text: &str, from: usize) {
        let began = Instant::now();
        let mut bytes = [0; 4096];
        while !self.seen[from.min(self.seen.len())..].contains(text) {
            assert!(began.elapsed() < Duration::from_secs(60), "no {text:?} in {} bytes", self.seen.len());
            let n = self.own.read(&mut bytes).unwrap_or(0);
            self.seen += &String::from_utf8_lossy(&bytes[..n]);
        }
    }

    /// To the program's end: its exit code, and all that it wrote.
    fn end(mut self) -> (Option<i32>, String) {
        let is_raw =
            || !tcgetattr(&self.other).unwrap().local_modes.contains(LocalModes::ICANON | LocalModes::ECHO);
        // Read on, or the program waits for room.
        let mut reader = self.own.try_clone().unwrap();
        let rest = std::thread::spawn(move || {
            let (mut bytes, mut all) = ([0; 4096], Vec::new());
            while let Ok(n @ 1..) = reader.read(&mut bytes) {
                all.extend_from_slice(&bytes[..n]);
            }
            all
        });
        let code = self.child.0.wait().unwrap().code();
        assert!(!is_raw(), "the terminal shows what is typed again");
        drop(self.other);
        self.seen += &String::from_utf8_lossy(&rest.join().unwrap());
        (code, self.seen)
    }
}

#[test]
fn q_ends_the_run_as_a_signal_does_and_the_terminal_is_as_it_was() {
    let f = Folder::with_data("tui-quit");
    let args = [&LONG[..], &["--epochs=100000", "--steps-per-epoch=4", "--out=run"]].concat();
    let mut screen = Screen::new(&f, &args, "xterm");
    screen.until(ENTER, 0);
    screen.until("memory──", 0);
    screen.until("loss", 0);
    // Another size is drawn anew: the panels stand below each other.
    let at = screen.seen.len();
    screen.resize(50, 40);
    screen.until("memory──", at);
    screen.own.write_all(b"q").unwrap();
    let (code, seen) = screen.end();
    assert_eq!(code, Some(130));
    let (_, after) = seen.split_once(LEAVE).expect("the screen is handed back");
    assert!(seen.matches(ENTER).count() == 1 && !after.contains(ENTER), "{after}");
    assert!(
        seen.contains("\x1b[?25h")
            && after.contains("Stopped on request")
            && after.contains("Epoch 1/100000"),
        "{after}"
    );
    assert!(f.files("run/backups").iter().any(|name| !name.ends_with(".tmp")));
}

#[test]
fn control_c_is_a_key_there_and_an_end_by_itself_hands_the_screen_back() {
    let f = Folder::with_data("tui-ends");
    let args = [&LONG[..], &["--epochs=100000", "--steps-per-epoch=4", "--out=stopped"]].concat();
    let mut screen = Screen::new(&f, &args, "xterm");
    screen.until("memory──", 0);
    screen.own.write_all(b"\x03").unwrap();
    assert_eq!(screen.end().0, Some(130));

    let args = [&LONG[..], &["--epochs=2", "--steps-per-epoch=2", "--out=whole"]].concat();
    let (code, seen) = Screen::new(&f, &args, "xterm").end();
    assert_eq!(code, Some(0), "{seen}");
    let (_, after) = seen.split_once(LEAVE).expect("the screen is handed back");
    assert!(after.contains("Epoch 2/2") && after.contains("Report: whole/report.html"), "{after}");
    let args = [
        &LONG[..],
        &[
            "--epochs=2",
            "--steps-per-epoch=2",
            "--out=failed",
            "--set=optimizer.learning_rate=1e30",
            "--set=callbacks=[{type=\"TerminateOnNaN\"}]",
        ],
    ]
    .concat();
    let (_, seen) = Screen::new(&f, &args, "xterm").end();
    assert_eq!(seen.matches(ENTER).count(), seen.matches(LEAVE).count(), "{seen}");
}

#[test]
fn without_a_terminal_for_it_there_are_plain_lines() {
    let f = Folder::with_data("tui-plain");
    let args = [&LONG[..4], &TINY].concat();
    let (code, seen) = Screen::new(&f, &[&args[..], &["--out=dumb"]].concat(), "dumb").end();
    assert!(code == Some(0) && !seen.contains(ENTER), "{seen}");
    let piped = f.run(&[&args[..], &["--out=piped"]].concat()).ok();
    assert!(
        !piped.out.contains('\x1b') && !piped.err.contains('\x1b') && piped.err.contains("Epoch 2/2"),
        "{}",
        piped.err
    );
    let (_, seen) = Screen::new(&f, &[&args[..], &["--out=json", "--json"]].concat(), "xterm").end();
    assert!(!seen.contains(ENTER), "{seen}");
    // It is told at the end by another door, and changes nothing of the model.
    f.run(
        &[&["train", "fashion-mnist", "--data-dir=data", "--out=key", "--set=fit.tui=true"][..], &TINY]
            .concat(),
    )
    .ok();
    let model = |run: &str| std::fs::read(f.path(&format!("{run}/fashion-mnist.safetensors"))).unwrap();
    assert!(model("key") == model("piped") && model("dumb") == model("piped"));
}
