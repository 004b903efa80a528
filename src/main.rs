//! The `systole` program: all of it is in the library, its command line in `cli/`.

fn main() -> std::process::ExitCode {
    systole::cli::main()
}
