//! What a server does without a request: it ends leases, sees what other processes changed, and notices tokens.

use crate::app::{App, now_unix_s};
use crate::auth::{Client, Scope};
use crate::limits::{Kind, TICK};
use crate::tasks::Work;
use engine::FitRequest;
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
    let mut looks = true; // at the number of new readings
    loop {
        tokio::select! {
            () = async { _ = stopping.wait_for(|s| *s).await } => return,
            () = tokio::time::sleep(TICK) => {}
        }
        let now = (Instant::now(), now_unix_s());
        let jumped = ((now.1 - before.1) - (now.0 - before.0).as_secs_f64()).abs() > JUMP_S;
        before = now;
        let looked = app
            .work(move |engine| {
                if jumped {
                    // Clients renew by their own clocks: a jump of this one neither ends nor lengthens a lease.
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
                let changed = app.newest.send_if_modified(|n| std::mem::replace(n, newest) != newest);
                looks |= changed;
                if looks && let Some(enough) = app.refit_after {
                    looks = app.tasks.busy(); // readings that come during a fit are counted when it is over
                    if !looks {
                        refit(&app, enough).await;
                    }
                }
                sync_models(&app);
                if tokens {
                    app.asks_for_tokens.store(true, Ordering::Release);
                }
            }
            Err(p) => app.metrics.broken(&p.code),
        }
    }
}

/// Uses the model that another process promoted or taught. A large one is read beside the tick.
fn sync_models(app: &Arc<App>) {
    if app.syncs_models.swap(true, Ordering::AcqRel) {
        return; // the one before still reads
    }
    let app = app.clone();
    tokio::spawn(async move {
        if let Err(p) = app.work_as(Kind::Look, |engine| engine.sync_models()).await {
            app.metrics.broken(&p.code);
        }
        app.syncs_models.store(false, Ordering::Release);
    });
}

/// Starts a fit if enough readings are new.
async fn refit(app: &Arc<App>, enough: usize) {
    match app.work(|engine| Ok((engine.readings_since_fit()?, engine.model_if_any()))).await {
        Ok((new, model)) if new >= enough => {
            let mut by = Client::new("server", Scope::Administer);
            by.why = format!("{new} readings came since the last fit");
            let collective = model.map(|m| m.collective());
            let request = FitRequest { collective, ..FitRequest::default() };
            if let Err(p) = crate::tasks::start(app, Work::Fit(request), &by) {
                app.metrics.broken(&p.code);
            }
        }
        Ok(_) => {}
        Err(p) => app.metrics.broken(&p.code),
    }
}
