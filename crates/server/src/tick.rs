//! What a server does without a request: it ends leases, sees what other processes changed, and notices tokens.

use crate::app::{App, now_unix_s};
use crate::limits::TICK;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;
use store::By;

/// A difference between the clock and the time that passed, seconds, that counts as a jump of the clock.
const JUMP_S: f64 = 5.0;

/// Looks at the state until the server stops.
pub async fn run(app: Arc<App>) {
    let mut stopping = app.stopping.subscribe();
    let mut before = (Instant::now(), now_unix_s());
    loop {
        tokio::select! {
            () = async { _ = stopping.wait_for(|s| *s).await } => return,
            () = tokio::time::sleep(TICK) => {}
        }
        let now = (Instant::now(), now_unix_s());
        let jumped = (now.1 - before.1) - (now.0 - before.0).as_secs_f64() > JUMP_S;
        before = now;
        let looked = app
            .work(move |engine| {
                if jumped {
                    // Clients renew by their own clocks: a jump of this one ends no lease.
                    engine.restart_leases(now.1)?;
                }
                let by = By { who: "server", why: "its lease ended", at_unix_s: now.1, own_only: false };
                let ended = engine.expire(by)?;
                Ok((ended.len(), engine.last_event()?, engine.has_tokens()?))
            })
            .await;
        match looked {
            Ok((ended, newest, tokens)) => {
                app.metrics.expired(ended);
                app.newest.send_if_modified(|n| std::mem::replace(n, newest) != newest);
                if tokens {
                    app.asks_for_tokens.store(true, Ordering::Release);
                }
            }
            Err(p) => app.metrics.broken(&p.code),
        }
    }
}
