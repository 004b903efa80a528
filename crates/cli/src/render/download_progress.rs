//! Progress of downloads and of reading data on a terminal.

use systole_datasets::DataDir;
use systole_progress::terminal;

/// Shows the progress of downloads and of reading, if there is a terminal.
pub(crate) fn with_progress(dir: DataDir) -> DataDir {
    if terminal::width().is_none() {
        return dir;
    }
    dir.progress(|what, have, all| {
        let percent = have * 100 / all.max(1);
        let text = || {
            let width = terminal::width().unwrap_or(usize::MAX);
            terminal::told_of(what, &format!(": {percent} %"), width)
        };
        // Small files are many: redraw once per percent.
        match have == all {
            true => terminal::print(&text()),
            false if percent != have.saturating_sub(1) * 100 / all.max(1) => terminal::draw(&text()),
            false => {}
        }
    })
}
