//! The `systole` program: runs the library `systole_cli`.

fn main() -> std::process::ExitCode {
    systole_cli::main()
}
