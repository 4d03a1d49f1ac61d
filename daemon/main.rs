//! The daemon's binary: flags in, exit code out.

use std::process::ExitCode;

fn main() -> ExitCode {
    ollm_daemon::run(&ollm_daemon::Flags::of_process(env!("OLLM_BUILD")))
}
