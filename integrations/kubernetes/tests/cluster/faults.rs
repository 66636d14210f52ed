//! Clients whose writes fail: all from a given one on, or those of one gang.

use http::{Method, Request};
use kube::Client;
use kube::client::Body;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use tokio::sync::Notify;

/// What happens at the given write, and to all later ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// It is not sent.
    Before,
    /// It is sent, and its answer is lost.
    After,
    /// It and all later ones are held, and sent when [`Fault::resume`] is called: a process that was stopped and goes on.
    Hold,
}

/// The fault of a client.
#[derive(Debug)]
pub struct Fault {
    stop: Stop,
    left: AtomicI64,
    stopped: AtomicBool,
    resumed: AtomicBool,
    at: Notify,
    go: Notify,
}

impl Fault {
    /// The writes until the fault, this one included: 1 is the first. Leases and events do not count.
    pub fn at(write: i64, stop: Stop) -> Arc<Fault> {
        Arc::new(Fault {
            stop,
            left: AtomicI64::new(write),
            stopped: AtomicBool::new(false),
            resumed: AtomicBool::new(false),
            at: Notify::new(),
            go: Notify::new(),
        })
    }

    /// True once the write was reached.
    pub fn is_reached(&self) -> bool {
        self.stopped.load(Ordering::SeqCst)
    }

    /// Sends what is held.
    pub fn resume(&self) {
        self.resumed.store(true, Ordering::SeqCst);
        self.go.notify_waiters();
    }

    async fn held(&self) {
        while !self.resumed.load(Ordering::SeqCst) {
            let _ = tokio::time::timeout(std::time::Duration::from_millis(20), self.go.notified()).await;
        }
    }

    /// A client with this fault.
    pub fn client(self: &Arc<Fault>, client: Client) -> Client {
        let fault = Arc::clone(self);
        let service = tower::service_fn(move |request: Request<Body>| {
            let (fault, client) = (Arc::clone(&fault), client.clone());
            async move {
                let path = request.uri().path();
                let writes = request.method() != Method::GET;
                let counts = writes && !path.contains("/leases") && !path.contains("/events");
                if fault.is_reached() && !fault.resumed.load(Ordering::SeqCst) {
                    match fault.stop {
                        // A process that was stopped reads nothing either.
                        Stop::Hold => fault.held().await,
                        Stop::Before | Stop::After => std::future::pending().await,
                    }
                } else if counts && fault.left.fetch_sub(1, Ordering::SeqCst) == 1 {
                    fault.stopped.store(true, Ordering::SeqCst);
                    fault.at.notify_waiters();
                    match fault.stop {
                        Stop::Before => std::future::pending().await,
                        Stop::Hold => fault.held().await,
                        Stop::After => {
                            let _ = client.send(request).await;
                            return std::future::pending().await;
                        }
                    }
                }
                client.send(request).await
            }
        });
        Client::new(service, "default")
    }
}

/// A client whose writes to objects with `part` in their path get the answer 500 while `is_ill`, and are not done.
pub fn ill(client: Client, part: &'static str, is_ill: &Arc<AtomicBool>) -> Client {
    let is_ill = Arc::clone(is_ill);
    let service = tower::service_fn(move |request: Request<Body>| {
        let (client, is_ill) = (client.clone(), Arc::clone(&is_ill));
        async move {
            let writes = request.method() != Method::GET && request.uri().path().contains(part);
            if !writes || !is_ill.load(Ordering::SeqCst) {
                return client.send(request).await;
            }
            let said = r#"{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"InternalError","message":"ill","code":500}"#;
            Ok(http::Response::builder().status(500).body(Body::from(said.as_bytes().to_vec())).unwrap())
        }
    });
    Client::new(service, "default")
}
