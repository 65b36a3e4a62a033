//! Starts the command line, nothing else.

fn main() -> std::process::ExitCode {
    meshgate::cli::main()
}
