//! What `systole` prints without arguments: the five commands of a first session.

use super::screen;

/// Arguments and purpose of each command.
const COMMANDS: [(&str, &str); 5] = [
    ("train", "Train a first model on Fashion-MNIST or synthetic images"),
    ("train FOLDER", "Train on your images (a folder per class) or a table (.csv)"),
    ("predict MODEL FILE", "Run inference with a trained model or run folder"),
    ("plan fashion-mnist", "Estimate time, memory and cost on TPUs and GPUs"),
    ("doctor", "Check this machine: CPU, glibc, GPUs, TPUs, plugins"),
];

/// Returns the text, with the commands as they are typed in this shell.
pub(crate) fn first_steps() -> String {
    let program = screen::program();
    let widest = COMMANDS.iter().map(|(args, _)| args.len()).max().unwrap_or(0);
    let line = |(args, purpose): &(&str, &str)| format!("  {program} {args:<widest$}  {purpose}\n");
    format!(
        "Systole {} trains deep-learning models on the CPU, and compiles and plans them for TPUs and GPUs.\n\n{}\n\
         `{program} -h` lists all commands, `{program} COMMAND --help` the options of one.",
        env!("CARGO_PKG_VERSION"),
        COMMANDS.iter().map(line).collect::<String>()
    )
}
