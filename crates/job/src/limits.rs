//! Limits of the process that its command inherits.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the soft limit of open files to the hard one. The plugin's processes connect to each other and use at most half of the limit, which is
/// 1,024 in most shells: jobs of more than 512 processes would stay at AUTO. Failure leaves the limit as it is.
pub fn raise_open_files() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current.is_some() && current != maximum {
        let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
    }
}
