//! The engine over HTTP: REST, events, metrics and a page.
//!
//! The server is a door. A request becomes one [`engine::Request`], the engine answers it, and the answer is the body: the
//! same JSON as the command prints. The server adds what a network needs: who asks and what that client may do ([`auth`]),
//! limits ([`limits`]), the words of HTTP ([`problem`]), streams, metrics, a description ([`openapi`]) and a page.
//!
//! Threads: connections live on two threads of tokio. Every call of the engine runs on a thread for blocking work, at most
//! [`limits::workers`] at once; the engine decides without a lock and commits if its basis is unchanged.

#![forbid(unsafe_code)]

mod app;
pub mod auth;
mod body;
mod client;
mod connection;
mod endpoints;
mod events;
mod fetch;
pub mod limits;
mod lists;
mod log;
mod metrics;
mod oidc;
pub mod openapi;
mod page;
mod plugin_status;
pub mod problem;
mod rate;
mod read;
mod renew;
mod routes;
mod serve;
#[cfg_attr(not(feature = "otel"), path = "no_spans.rs")]
mod spans;
mod stream;
mod tasks;
mod tenant;
mod tick;
mod tls;
mod words;

pub use client::Client;
pub use log::Log;
pub use oidc::Oidc;
pub use serve::{Config, Running, ServeError, start};
pub use tls::Tls;
