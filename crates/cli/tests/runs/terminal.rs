//! Tests of the training progress display in pseudo-terminals of several widths, and in one that is resized.
#![cfg(unix)]

use crate::program::{Folder, TINY};
use rustix::fs::{Mode, OFlags, open};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};

/// A pseudo-terminal: this side of it.
struct Pty(OwnedFd);

impl Pty {
    /// So many columns wide, and its other side.
    fn open(columns: u16) -> (Pty, File) {
        let own = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&own).unwrap();
        unlockpt(&own).unwrap();
        let name = ptsname(&own, Vec::new()).unwrap();
        let other = open(&*name, OFlags::RDWR | OFlags::NOCTTY, Mode::empty()).unwrap();
        let pty = Pty(own);
        pty.resize(columns);
        (pty, File::from(other))
    }

    fn resize(&self, columns: u16) {
        tcsetwinsize(&self.0, Winsize { ws_row: 24, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
    }
}

/// One line of the screen; `goes_on`: it is the rest of the one above, which was too long.
#[derive(Clone, Default)]
struct Line {
    cells: Vec<char>,
    goes_on: bool,
}

/// A terminal that knows what the program uses.
struct Terminal {
    width: usize,
    /// Whether lines that become too long are broken, else cut off.
    reflows: bool,
    lines: Vec<Line>,
    row: usize,
    column: usize,
    wraps: bool,
    /// Bytes of an escape sequence, or of a character, that has not come to its end.
    pending: Vec<u8>,
    /// What was written since the cursor was in the first column last.
    drawn: String,
    /// The lines that were to be drawn over: what the screen shows from there on, and what was written.
    frames: Vec<(String, String)>,
    /// Characters that went to the next line, as there was no room.
    overflows: usize,
}

impl Terminal {
    fn new(width: usize, reflows: bool) -> Terminal {
        Terminal {
            width,
            reflows,
            lines: vec![Line::default()],
            row: 0,
            column: 0,
            wraps: true,
            pending: Vec::new(),
            drawn: String::new(),
            frames: Vec::new(),
            overflows: 0,
        }
    }

    fn feed(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.pending.push(byte);
            if let Ok(text) = std::str::from_utf8(&self.pending) {
                let text = text.to_string();
                match text.starts_with('\x1b') {
                    true if text.len() > 2 && text.ends_with(|c: char| c.is_ascii_alphabetic()) => {
                        self.escape(&text)
                    }
                    true => continue,
                    false => text.chars().for_each(|c| self.character(c)),
                }
                self.pending.clear();
            }
        }
    }

    fn escape(&mut self, text: &str) {
        match text {
            "\x1b[?7l" => self.wraps = false,
            "\x1b[?7h" => self.wraps = true,
            "\x1b[K" | "\x1b[J" => {
                let column = self.column;
                self.lines[self.row].cells.truncate(column);
                if text.ends_with('J') {
                    self.lines.truncate(self.row + 1);
                }
            }
            "\x1b[2K" => self.lines[self.row].cells.clear(),
            other => panic!("the test's terminal does not know {other:?}"),
        }
    }

    fn character(&mut self, c: char) {
        match c {
            '\r' => {
                if self.column > 0 && !self.drawn.is_empty() {
                    let shown = self.screen().into_iter().skip(self.row).collect::<Vec<_>>().join("\n");
                    self.frames.push((shown, std::mem::take(&mut self.drawn)));
                }
                self.column = 0;
            }
            '\n' => {
                self.drawn.clear();
                // A line that stays is no frame.
                self.frames.pop();
                self.down();
            }
            c => {
                if self.column == self.width && self.wraps {
                    self.overflows += 1;
                    self.down();
                    self.column = 0;
                    self.lines[self.row].goes_on = true;
                }
                let at = self.column.min(self.width - 1);
                let cells = &mut self.lines[self.row].cells;
                cells.resize(cells.len().max(at + 1), ' ');
                cells[at] = c;
                self.column = at + 1;
                self.drawn.push(c);
            }
        }
    }

    fn down(&mut self) {
        self.row += 1;
        if self.row == self.lines.len() {
            self.lines.push(Line::default());
        }
    }

    fn text(&self, row: usize) -> String {
        self.lines[row].cells.iter().collect::<String>().trim_end().to_string()
    }

    fn resize(&mut self, width: usize) {
        self.width = width;
        if !self.reflows {
            self.lines.iter_mut().for_each(|line| line.cells.truncate(width));
            self.column = self.column.min(width);
            return;
        }
        let (lines, row, column) = (std::mem::take(&mut self.lines), self.row, self.column);
        let mut whole: Vec<Vec<char>> = Vec::new();
        let mut cursor = (0, 0);
        for (k, line) in lines.into_iter().enumerate() {
            let before = match whole.last_mut().filter(|_| line.goes_on) {
                Some(last) => {
                    let before = last.len();
                    last.extend(line.cells);
                    before
                }
                None => {
                    whole.push(line.cells);
                    0
                }
            };
            if k == row {
                cursor = (whole.len() - 1, before + column);
            }
        }
        for (k, cells) in whole.into_iter().enumerate() {
            if k == cursor.0 {
                (self.row, self.column) = (self.lines.len() + cursor.1 / width, cursor.1 % width);
            }
            let pieces = cells.chunks(width).enumerate();
            let pieces: Vec<Line> = pieces.map(|(p, c)| Line { cells: c.to_vec(), goes_on: p > 0 }).collect();
            let empty = pieces.is_empty().then(Line::default);
            self.lines.extend(pieces.into_iter().chain(empty));
        }
        self.lines.resize(self.lines.len().max(self.row + 1), Line::default());
    }

    /// Its lines, without the empty ones at the end.
    fn screen(&self) -> Vec<String> {
        let mut all: Vec<String> = (0..self.lines.len()).map(|row| self.text(row)).collect();
        while all.last().is_some_and(String::is_empty) {
            all.pop();
        }
        all
    }

    /// No line that is drawn over lacks the loss or shows what was there before it.
    #[track_caller]
    fn check_frames(&self) {
        assert!(!self.frames.is_empty(), "{:?}", self.screen());
        for (shown, drawn) in &self.frames {
            assert!(shown.contains("loss: "), "{shown:?}");
            assert_eq!(shown, drawn.trim_end(), "what was drawn is not what is shown");
        }
    }
}

/// What the program writes to its end of the pseudo-terminal; reading fails once it has ended.
fn read(pty: &mut File) -> Option<Vec<u8>> {
    let mut buffer = vec![0; 4096];
    let n = pty.read(&mut buffer).unwrap_or(0);
    buffer.truncate(n);
    (n > 0).then_some(buffer)
}

fn start(f: &Folder, args: &[&str], terminal: File) -> Child {
    let mut command = f.command(args);
    command.env("TERM", "xterm").stdout(Stdio::null()).stderr(terminal);
    command.spawn().unwrap()
}

fn trained(f: &Folder, columns: u16, more: &[&str]) -> Terminal {
    let (pty, other) = Pty::open(columns);
    let mut args = vec!["train", "fashion-mnist", "--data-dir=data", "--out=out", "--resume=never"];
    args.push("--set=fit.validation_freq=1");
    args.extend(TINY);
    args.extend(more);
    let mut child = start(f, &args, other);
    let mut terminal = Terminal::new(columns.into(), true);
    let mut from = File::from(pty.0);
    while let Some(bytes) = read(&mut from) {
        terminal.feed(&bytes);
    }
    assert!(child.wait().unwrap().success(), "{:?}", terminal.screen());
    terminal
}

/// The lines of the epochs, without what a debug build says first.
fn of_epochs(terminal: &Terminal) -> Vec<String> {
    terminal.screen().into_iter().skip_while(|line| !line.starts_with("Epoch ")).collect()
}

#[test]
fn lines_fit_terminals_of_any_width() {
    let f = Folder::with_data("terminal-widths");
    for columns in [40, 80, 120] {
        let terminal = trained(&f, columns, &[]);
        terminal.check_frames();
        let lines = of_epochs(&terminal);
        assert_eq!(terminal.overflows, 0, "{columns}: {lines:#?}");
        assert!(lines.iter().all(|l| l.chars().count() < columns.into()), "{lines:#?}");
        for epoch in ["Epoch 1/2 loss: ", "Epoch 2/2 loss: "] {
            let firsts = lines.iter().map(|l| l.replace("  ", " ")).filter(|l| l.starts_with(epoch));
            assert_eq!(firsts.count(), 1, "{columns}: {lines:#?}");
        }
        // What does not fit in a line stands below it, further in.
        let parts = [" accuracy: ", " val_loss: ", " val_accuracy: ", "/step", "data wait"];
        let all = lines.join("\n").replace("sparse_categorical_", "");
        assert!(parts.iter().all(|part| all.matches(part).count() == 2), "{columns}: {all}");
        assert!(lines.iter().all(|l| l.starts_with("Epoch ") || l.starts_with("  ")), "{lines:#?}");
    }
}

/// Notebooks start programs in terminals that keep what is drawn over.
#[test]
fn nothing_is_drawn_over_in_a_terminal_that_calls_itself_dumb() {
    let f = Folder::with_data("terminal-dumb");
    let (pty, other) = Pty::open(80);
    let mut args = vec!["train", "fashion-mnist", "--data-dir=data", "--out=out"];
    args.extend(TINY);
    let mut command = f.command(&args);
    let mut child = command.env("TERM", "dumb").stdout(Stdio::null()).stderr(other).spawn().unwrap();
    drop(command);
    let (mut bytes, mut from) = (Vec::new(), File::from(pty.0));
    while let Some(more) = read(&mut from) {
        bytes.extend(more);
    }
    assert!(child.wait().unwrap().success());
    let text = String::from_utf8(bytes).unwrap().replace("\r\n", "\n");
    assert!(!text.contains(['\x1b', '\r']), "{text:?}");
    assert_eq!(text.lines().filter(|line| line.starts_with("Epoch ")).count(), 2, "{text}");
}

#[test]
fn an_accuracy_is_called_as_it_was_asked_for() {
    let f = Folder::with_data("terminal-names");
    let terminal = trained(&f, 160, &["--set=compile.metrics=[\"accuracy\"]"]);
    let lines = of_epochs(&terminal);
    assert!(lines.len() == 2 && lines.iter().all(|l| l.contains("  accuracy: ")), "{lines:#?}");
    assert!(lines.iter().all(|l| l.contains("  val_accuracy: ")), "{lines:#?}");
    let done = f.run(&["evaluate", "out/fashion-mnist.safetensors", "--data-dir=data"]).ok();
    assert!(done.out.contains(", accuracy 0.") || done.out.contains(": accuracy 0."), "{}", done.out);
}

#[test]
fn counting_leaves_nothing_behind() {
    let f = Folder::with_data("terminal-ticker");
    let (pty, other) = Pty::open(40);
    let mut child = start(&f, &["data", "stats", "fashion-mnist", "--data-dir=data"], other);
    let (mut terminal, mut from) = (Terminal::new(40, true), File::from(pty.0));
    while let Some(bytes) = read(&mut from) {
        terminal.feed(&bytes);
    }
    assert!(child.wait().unwrap().success());
    assert_eq!((terminal.screen(), terminal.overflows), (Vec::new(), 0));
    assert_eq!(terminal.frames.last().unwrap().0, "64 of 64 elements counted");
}

#[test]
fn resizing_leaves_no_stale_lines() {
    let f = Folder::with_data("terminal-resized");
    let (pty, other) = Pty::open(120);
    let mut args = vec!["train", "fashion-mnist", "--data-dir=data", "--out=out"];
    args.extend(TINY.into_iter().filter(|arg| !arg.contains("epoch")));
    args.extend(["--epochs=1", "--steps-per-epoch=1000000"]);
    let mut child = start(&f, &args, other);
    let mut from = File::from(pty.0.try_clone().unwrap());
    let mut terminals = [true, false].map(|reflows| Terminal::new(120, reflows));
    let mut widths = [60, 40, 100, 41, 80].into_iter();
    let mut is_over = false;
    while let Some(bytes) = read(&mut from) {
        terminals.iter_mut().for_each(|t| t.feed(&bytes));
        if terminals[0].frames.len() < 3 || is_over {
            continue;
        }
        for t in &mut terminals {
            // The first was on its way when the width changed.
            t.frames.remove(0);
            t.check_frames();
            t.frames.clear();
        }
        match widths.next() {
            Some(width) => {
                pty.resize(width);
                terminals.iter_mut().for_each(|t| t.resize(width.into()));
            }
            None => {
                let done = Command::new("kill").args(["-INT", &child.id().to_string()]).status();
                is_over = done.unwrap().success();
            }
        }
    }
    assert_eq!(child.wait().unwrap().code(), Some(130));
    for t in &terminals {
        let lines = of_epochs(t);
        let all = lines.join("\n");
        assert_eq!(all.matches("loss: ").count(), 1, "no line is left of those that were drawn over: {all}");
        assert!(all.contains("/1000000 ") && !all.contains("1000000/1000000"), "{all}");
        assert!(lines.iter().all(|l| l.chars().count() < 80), "{all}");
    }
}
