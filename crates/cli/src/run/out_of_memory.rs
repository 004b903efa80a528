//! Reports that the system refused memory, and ends the program with a documented exit code.

use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Whether the error is a JSON object on standard output too.
static IS_JSON: AtomicBool = AtomicBool::new(false);

/// Makes the report of refused memory a JSON object too.
pub(crate) fn report_as_json() {
    IS_JSON.store(true, Relaxed);
}

/// Called by the allocator: prints the error without allocating, and exits.
pub fn report(bytes: usize) {
    let mut text = [0; 512];
    write(rustix::stdio::stderr(), &mut text, |to| {
        writeln!(to, "error[unsupported]: out of memory: {bytes} bytes were refused")?;
        writeln!(
            to,
            "  why: the memory or the address space of the process is limited (ulimit -v, a container)"
        )?;
        writeln!(to, "  try: raise the limit, or use a smaller batch: --batch-size")
    });
    if IS_JSON.load(Relaxed) {
        write(rustix::stdio::stdout(), &mut text, |to| {
            write!(
                to,
                r#"{{"error":"out of memory: {bytes} bytes were refused","kind":"unsupported","where":null,"#
            )?;
            write!(to, r#""why":"the memory or the address space of the process is limited","#)?;
            writeln!(to, r#""try":"raise the limit, or use a smaller batch: --batch-size","exit_code":1}}"#)
        });
    }
    std::process::exit(1);
}

/// Writes what `compose` makes to a descriptor, through a buffer that exists already.
fn write(
    to: rustix::fd::BorrowedFd<'_>,
    text: &mut [u8; 512],
    compose: impl Fn(&mut &mut [u8]) -> std::io::Result<()>,
) {
    let mut left = &mut text[..];
    let whole = left.len();
    // A message that does not fit is cut.
    let _ = compose(&mut left);
    let length = whole - left.len();
    // There is no place to report a failed write to.
    let _ = rustix::io::write(to, &text[..length]);
}
