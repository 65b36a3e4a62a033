//! The limit on open files.

use nix::errno::Errno;
use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Raises the process' soft limit on open files to its hard limit, and returns that.
///
/// The soft limit is 1,024 by default, for the sake of programs that use `select`; as many subscribers may come. systemd and
/// container runtimes set the hard limit to what a server may use.
///
/// # Errors
/// What the system says.
pub fn raise_descriptor_limit() -> Result<u64, Errno> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    if soft < hard {
        setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?;
    }
    Ok(hard)
}
