//! Tests of the tasks of one server.

use super::*;
use crate::app::tests::{app, flood, run};
use crate::auth::Scope;

fn a_fit() -> (Work, Client) {
    (Work::Fit(FitRequest { kind: Some("nccl".into()), ..FitRequest::default() }), Client::new("ann", Scope::Operate))
}

#[test]
fn a_waiting_task_begins_while_no_request_is_taken() {
    let (_folder, app) = app(None);
    run(async {
        let turn = app.tasks.turn.lock().await;
        let (work, ann) = a_fit();
        let id = start(&app, work, &ann, None).await.unwrap().id;
        let flood = flood(&app);
        drop(turn);
        while !lock(&app.tasks.own).is_empty() {
            tokio::time::sleep(TASK_BEAT / 100).await;
        }
        drop(flood);
        let ended = get(&app, id, &ann).await.unwrap();
        assert!(!ended.problem.is_some_and(|p| p.get().contains("overloaded")), "{:?}", ended.state);
    });
}

#[test]
fn a_task_that_is_cancelled_when_it_begins_ends_as_cancelled() {
    let (_folder, app) = app(None);
    run(async {
        let (work, ann) = a_fit();
        let new = NewTask { what: "fit", waiting_max: 1, kept_max: 1, alone: false };
        let id = app.engine.add_task(&new, None, &crate::app::by(&ann)).unwrap().value.unwrap();
        let (progress, _) = app.tasks.add(id);
        // The state lets it run, and its server does not know that yet.
        assert!(app.engine.begin_task(id).unwrap());
        assert_eq!(cancel(&app, id, &ann).await.unwrap().state, TaskState::Running);
        assert!(app.tasks.runs(id), "it runs to its end");
        let done = work.run(&app.engine, &ann, &progress);
        assert!(matches!(done, Err(EngineError::Cancelled)), "it ends at its first look");
    });
}

#[test]
fn a_cancelled_task_waits_for_no_turn() {
    let (_folder, app) = app(None);
    run(async {
        let turn = app.tasks.turn.lock().await;
        for _ in 0..3 * TASKS_WAITING_MAX {
            let (work, ann) = a_fit();
            let id = start(&app, work, &ann, None).await.unwrap().id;
            assert_eq!(cancel(&app, id, &ann).await.unwrap().state, TaskState::Cancelled);
        }
        while !lock(&app.tasks.own).is_empty() {
            tokio::time::sleep(TASK_BEAT / 100).await;
        }
        drop(turn);
    });
}

#[test]
fn a_task_is_lost_when_its_count_stands_still_under_this_servers_eyes_and_not_after_a_gap() {
    let (mut others, begin) = (Others::default(), Instant::now());
    let at = |s: u64| begin + std::time::Duration::from_secs(s);
    let lost_s = TASK_LOST.as_secs();
    for s in 0..lost_s {
        assert_eq!(others.lost(&[(1, 7), (2, s as i64)], at(s)), [], "{s}");
    }
    assert_eq!(others.lost(&[(1, 7), (2, 99)], at(lost_s)), [(1, 7)]);
    // No server could reach the state, so none could report this task.
    assert_eq!(others.lost(&[(1, 7), (2, 99)], at(lost_s + 100)), []);
    for s in 101..100 + lost_s {
        assert_eq!(others.lost(&[(2, 99)], at(lost_s + s)), [], "{s}");
    }
    assert_eq!(others.lost(&[(2, 99)], at(lost_s + 100 + lost_s)), [(2, 99)]);
}
