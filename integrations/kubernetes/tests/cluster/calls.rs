//! A client that counts its requests and times its writes.

use http::{Method, Request};
use kube::Client;
use kube::client::Body;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Instant;

/// The requests of a client.
#[derive(Debug, Default)]
pub struct Calls {
    /// Number of requests by what they are for.
    counts: Mutex<BTreeMap<&'static str, u64>>,
    /// Milliseconds of every write of a decision: claims and pods.
    writes: Mutex<Vec<f64>>,
}

/// What a request is for.
fn kind(method: &Method, uri: &http::Uri) -> &'static str {
    let (path, query) = (uri.path(), uri.query().unwrap_or(""));
    let is = |part: &str| path.contains(part);
    match *method {
        _ if is("/leases") => "lease",
        Method::GET if query.contains("watch=true") => "watch",
        Method::GET => "read",
        _ if is("/events") => "event",
        _ if is("/pods/") && is("/status") => "condition",
        _ if is("/pods/") => "pod",
        _ if is("/resourceclaims/") => "claim",
        _ => "other",
    }
}

impl Calls {
    /// A client that counts here.
    pub fn client(self: &Arc<Calls>, client: Client) -> Client {
        let calls = Arc::clone(self);
        let service = tower::service_fn(move |request: Request<Body>| {
            let (calls, client) = (Arc::clone(&calls), client.clone());
            let kind = kind(request.method(), request.uri());
            async move {
                *calls.counts.lock().unwrap().entry(kind).or_default() += 1;
                let begin = Instant::now();
                let answer = client.send(request).await;
                if ["pod", "claim"].contains(&kind) {
                    calls.writes.lock().unwrap().push(begin.elapsed().as_secs_f64() * 1e3);
                }
                answer
            }
        });
        Client::new(service, "default")
    }

    /// Requests of a gang, by what they are for, for so many gangs.
    pub fn of_a_gang(&self, gangs: u64) -> String {
        let counts = self.counts.lock().unwrap();
        let each = |n: u64| n as f64 / gangs.max(1) as f64;
        let parts: Vec<String> = counts.iter().map(|(kind, n)| format!("{kind} {:.2}", each(*n))).collect();
        format!("{:.1} ({})", each(counts.values().sum()), parts.join(", "))
    }

    /// Median and 99th percentile of the writes, milliseconds.
    pub fn write_ms(&self) -> [f64; 2] {
        let mut all = self.writes.lock().unwrap().clone();
        [0.5, 0.99].map(|share| quantile(&mut all, share))
    }
}

/// A quantile by rank; 0 of none.
pub fn quantile(values: &mut [f64], share: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    let at = (share * values.len() as f64).ceil() as usize;
    values.get(at.saturating_sub(1)).copied().unwrap_or(0.0)
}

#[test]
fn requests_are_told_apart() {
    for (method, uri, is) in [
        (Method::GET, "/api/v1/pods?watch=true&x=1", "watch"),
        (Method::GET, "/api/v1/pods?limit=500", "read"),
        (Method::PATCH, "/api/v1/namespaces/a/pods/p", "pod"),
        (Method::PATCH, "/api/v1/namespaces/a/pods/p/status", "condition"),
        (Method::PATCH, "/apis/resource.k8s.io/v1/namespaces/a/resourceclaims/c/status", "claim"),
        (Method::PUT, "/apis/coordination.k8s.io/v1/namespaces/l/leases/x", "lease"),
        (Method::POST, "/apis/events.k8s.io/v1/namespaces/a/events", "event"),
    ] {
        assert_eq!(kind(&method, &uri.parse().unwrap()), is, "{uri}");
    }
    assert_eq!([0.5, 0.99, 1.0].map(|s| quantile(&mut [3.0, 1.0, 2.0, 4.0], s)), [2.0, 4.0, 4.0]);
    assert_eq!(quantile(&mut [], 0.5), 0.0);
}
