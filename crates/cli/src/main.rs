//! Entry point of the `systole` program; calls the library `systole_cli`.

fn main() -> std::process::ExitCode {
    systole_cli::main()
}
