//! Rates of clients: a bucket each, which fills with time.

use crate::limits::CLIENTS_MAX;
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// A bucket per client.
pub struct Rates {
    per_s: f64,
    burst: f64,
    buckets: Mutex<HashMap<String, (f64, Instant)>>,
}

impl Rates {
    /// Buckets of `burst` requests that get `per_s` requests a second.
    pub fn new(per_s: f64, burst: f64) -> Rates {
        Rates { per_s, burst, buckets: Mutex::new(HashMap::new()) }
    }

    /// Takes one request from the client's bucket; the error is the time in seconds until it holds one.
    pub fn take(&self, client: &str, now: Instant) -> Result<(), f64> {
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        if buckets.len() >= CLIENTS_MAX && !buckets.contains_key(client) {
            let full_after = self.burst / self.per_s;
            buckets.retain(|_, (_, at)| now.saturating_duration_since(*at).as_secs_f64() < full_after);
            if buckets.len() >= CLIENTS_MAX {
                return Err(full_after);
            }
        }
        let (left, at) = buckets.entry(client.to_owned()).or_insert((self.burst, now));
        *left = (*left + now.saturating_duration_since(*at).as_secs_f64() * self.per_s).min(self.burst);
        *at = now;
        if *left < 1.0 {
            return Err((1.0 - *left) / self.per_s);
        }
        *left -= 1.0;
        Ok(())
    }

    /// True if the client's bucket holds a request.
    pub fn has(&self, client: &str, now: Instant) -> bool {
        let buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        buckets
            .get(client)
            .is_none_or(|(left, at)| left + now.saturating_duration_since(*at).as_secs_f64() * self.per_s >= 1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_client_gets_its_burst_then_its_rate_and_takes_nothing_from_others() {
        let (rates, start) = (Rates::new(2.0, 3.0), Instant::now());
        assert!((0..3).all(|_| rates.take("a", start).is_ok()));
        assert_eq!(rates.take("a", start), Err(0.5));
        assert!(rates.take("b", start).is_ok());
        let later = start + Duration::from_secs(1);
        assert!(rates.take("a", later).is_ok() && rates.take("a", later).is_ok() && rates.take("a", later).is_err());
    }
}
