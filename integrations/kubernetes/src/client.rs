//! The client of the API.

use kube::{Client, Config, Error};

/// A client that sends every request once. The library's default sends a refused one (429, 503, 504) up to 15 times again: a write would go out after the
/// lease was lost, and an eviction that a disruption budget refuses would end without an answer.
///
/// # Errors
/// The configuration cannot be used.
pub fn once(mut config: Config) -> Result<Client, Error> {
    config.default_retry = false;
    Client::try_from(config)
}
