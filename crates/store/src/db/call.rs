//! [`Caller`]: a connection to PostgreSQL whose every call ends in time, with an answer or without.
//!
//! The kernel ends a connection whose peer confirms nothing, but a server that is stopped, or a proxy in front of a server that is gone,
//! confirms every byte and answers none. So each call has a deadline here. After a missed one the connection is given up: what was sent
//! may be executed later, and the callers treat it like a connection that broke.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout;
use tokio_postgres::{Client, Config, Error};
use tokio_postgres_rustls::MakeRustlsConnect;

/// Longest goodbye to a server.
const CLOSE_MAX: Duration = Duration::from_secs(1);

/// The reason why a call has no answer.
pub(super) enum CallError {
    /// PostgreSQL or the driver said why.
    Said(Error),
    /// There was no answer within the time.
    Silent(Duration),
    /// The system gives no timers or sockets.
    System(std::io::Error),
}

/// A connection. It moves only during calls, on the thread of the caller.
pub(super) struct Caller {
    /// None: closed.
    runtime: Option<Runtime>,
    client: Option<Client>,
    connection: Pin<Box<dyn Future<Output = Result<(), Error>> + Send>>,
    /// The connection has ended, or a call has missed its deadline.
    is_lost: bool,
}

impl Caller {
    /// Connects: finds the host, connects, encrypts and signs in, all within `limit`.
    pub fn connect(config: &Config, tls: MakeRustlsConnect, limit: Duration) -> Result<Caller, CallError> {
        let runtime = Builder::new_current_thread().enable_all().build().map_err(CallError::System)?;
        // The timer needs the runtime, so it is made inside.
        match runtime.block_on(async { timeout(limit, config.connect(tls)).await }) {
            Ok(Ok((client, connection))) => Ok(Caller {
                runtime: Some(runtime),
                client: Some(client),
                connection: Box::pin(connection),
                is_lost: false,
            }),
            Ok(Err(why)) => {
                runtime.shutdown_background();
                Err(CallError::Said(why))
            }
            Err(_) => {
                runtime.shutdown_background(); // a name may still be looked up
                Err(CallError::Silent(limit))
            }
        }
    }

    /// True if the next call needs a new connection.
    pub fn is_lost(&self) -> bool {
        self.is_lost || self.client.as_ref().is_none_or(Client::is_closed)
    }

    /// Calls, and waits for the answer for at most `limit`.
    pub fn call<T>(
        &mut self,
        limit: Duration,
        call: impl AsyncFnOnce(&Client) -> Result<T, Error>,
    ) -> Result<T, CallError> {
        let Caller { runtime: Some(runtime), client: Some(client), connection, is_lost } = self else {
            return Err(CallError::Silent(limit));
        };
        let mut call = pin!(call(client));
        let answer = poll_fn(|context| {
            if !*is_lost {
                match connection.as_mut().poll(context) {
                    Poll::Ready(ended) => {
                        *is_lost = true;
                        if let Err(why) = ended {
                            return Poll::Ready(Err(why));
                        }
                    }
                    Poll::Pending => {}
                }
            }
            call.as_mut().poll(context)
        });
        match runtime.block_on(async { timeout(limit, answer).await }) {
            Ok(answer) => answer.map_err(CallError::Said),
            Err(_) => {
                *is_lost = true;
                Err(CallError::Silent(limit))
            }
        }
    }
}

impl Drop for Caller {
    /// Says goodbye, so that PostgreSQL logs no lost connection. The executor must not end on a thread of another one, such as a server's.
    fn drop(&mut self) {
        let Some(runtime) = self.runtime.take() else { return };
        drop(self.client.take());
        let lost = std::mem::replace(&mut self.is_lost, true);
        let connection = std::mem::replace(&mut self.connection, Box::pin(async { Ok(()) }));
        let close = move || {
            if !lost {
                _ = runtime.block_on(async { timeout(CLOSE_MAX, connection).await });
            }
            runtime.shutdown_background();
        };
        _ = std::thread::Builder::new().name("linkwise-close".into()).spawn(close).map(std::thread::JoinHandle::join);
    }
}
