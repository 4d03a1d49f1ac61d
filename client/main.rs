//! `ollmctl`: the command line of ollmd. Everything it does lives in `ollm-client`.

use std::process::ExitCode;

fn main() -> ExitCode {
    ollm_client::run(std::env::args_os(), &ollm_client::Environment::read(), env!("OLLM_BUILD"))
}
