//! The `systole` program. Everything it does is a call into the library; the command line itself is in `cli/`.

mod cli;

fn main() -> std::process::ExitCode {
    cli::main()
}
