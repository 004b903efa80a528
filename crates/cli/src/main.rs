//! Entry point of the `systole` program; calls the library `systole_cli`.

/// Refused memory is an error with a message and an exit code, not an abort.
#[global_allocator]
static ALLOCATOR: systole_cpu::CheckedAllocator =
    systole_cpu::CheckedAllocator::new(systole_cli::report_out_of_memory);

fn main() -> std::process::ExitCode {
    systole_cli::main()
}
