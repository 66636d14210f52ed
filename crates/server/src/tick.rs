//! What a server does without a request: it ends leases, sees what other processes changed, and notices tokens.

use crate::app::{App, now_unix_s};
use crate::auth::{Client, Scope};
use crate::limits::{Kind, TASK_BEAT, TICK};
use crate::tasks::Work;
use engine::FitRequest;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;
use store::By;

/// A difference between the clock and the time that passed, seconds, that counts as a jump of the clock.
const JUMP_S: f64 = 5.0;

/// True if the clock went by another time than the one that passed, both in seconds.
fn jumped(passed_s: f64, clock_s: f64) -> bool {
    (clock_s - passed_s).abs() > JUMP_S
}

/// Looks at the state until the server stops.
pub async fn run(app: Arc<App>) {
    let mut stopping = app.stopping.subscribe();
    let mut before = (Instant::now(), now_unix_s());
    let mut looks = true; // at the number of new readings
    let mut tended = Instant::now();
    loop {
        tokio::select! {
            () = async { _ = stopping.wait_for(|s| *s).await } => return,
            () = tokio::time::sleep(TICK) => {}
        }
        let now = (Instant::now(), now_unix_s());
        let jumped = jumped((now.0 - before.0).as_secs_f64(), now.1 - before.1);
        before = now;
        let looked = app
            .own_work(move |engine| {
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
                    looks = !refit(&app, enough).await;
                }
                sync_models(&app);
                if tended.elapsed() >= TASK_BEAT {
                    tended = Instant::now();
                    if let Err(p) = crate::tasks::tend(&app).await {
                        app.metrics.broken(&p.code);
                    }
                }
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

/// Starts a fit if enough readings are new. False while a task waits or runs: readings that come during a fit are counted when it is over.
async fn refit(app: &Arc<App>, enough: usize) -> bool {
    let count = |engine: &engine::Engine| {
        if !engine.open_tasks()?.is_empty() {
            return Ok(None);
        }
        // Of several servers, another one may just have fitted.
        engine.sync_models()?;
        Ok(Some((engine.readings_since_fit()?, engine.model_if_any())))
    };
    match app.own_work(count).await {
        Ok(None) => return false,
        Ok(Some((new, model))) if new >= enough => {
            let mut by = Client::new("server", Scope::Administer);
            by.why = format!("{new} readings came since the last fit");
            let collective = model.map(|m| m.collective());
            let request = FitRequest { collective, ..FitRequest::default() };
            if let Err(p) = crate::tasks::start_alone(app, Work::Fit(request), &by).await {
                app.metrics.broken(&p.code);
            }
        }
        Ok(Some(_)) => {}
        Err(p) => app.metrics.broken(&p.code),
    }
    true
}

#[cfg(test)]
mod tests {
    use super::jumped;

    #[test]
    fn a_jump_of_the_clock_is_told_from_a_slow_tick_in_both_directions() {
        // A tick of a busy machine may take minutes, and a clock is adjusted by less than a second.
        for (passed, clock) in [(0.25, 0.25), (120.0, 120.0), (0.25, 4.9), (6.0, 1.5)] {
            assert!(!jumped(passed, clock), "{passed} {clock}");
        }
        for (passed, clock) in [(0.25, 5.5), (0.25, 3600.0), (0.25, -3600.0), (120.0, 0.25), (6.0, 0.5)] {
            assert!(jumped(passed, clock), "{passed} {clock}");
        }
    }
}
