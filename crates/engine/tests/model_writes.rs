//! While a large model is written, the writes of others go on: no transaction is longer than a part, and between two parts others have a turn.

mod common;

use common::{cluster, model};
use engine::Engine;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};
use store::state::{KeptModel, ModelText, ModelsChange, PART_BYTES_MAX, text_digest};
use store::{State, Store};

/// Name of the thread that writes models.
const WRITER: &str = "writes models";

/// Most models that are written until others had their turns.
const ROUNDS_MAX: usize = 40;

/// The model that is written.
static ROUND: AtomicUsize = AtomicUsize::new(0);
/// Writing transactions in the order of their ends: the round of a writer of models, none for others.
static WRITES: Mutex<Vec<Option<usize>>> = Mutex::new(Vec::new());

fn note(t: &store::watch::Transaction) {
    if t.writes {
        let writer = std::thread::current().name() == Some(WRITER);
        WRITES.lock().unwrap().push(writer.then(|| ROUND.load(SeqCst)));
    }
}

#[test]
fn others_have_a_turn_between_two_parts_of_a_model() {
    let (folder, mut c) = (tempfile::tempdir().unwrap(), cluster(1280));
    for (n, host) in c.hosts.iter_mut().enumerate() {
        host.gpu_uuids = (0..8).map(|g| format!("GPU-{n:08x}-0000-4000-8000-{g:012x}")).collect();
    }
    let (path, end) = (folder.path().join("s.state"), AtomicBool::new(false));
    let text = model(&c).save().unwrap();
    let parts = text.len() / PART_BYTES_MAX;
    assert!(parts >= 3, "the model has {} bytes", text.len());
    drop(State::init(&path, &c, 0.0).unwrap());
    store::watch::on_transaction(note);
    std::thread::scope(|s| {
        s.spawn(|| {
            let mut state = State::open(&path).unwrap();
            let one = c.parse_gpus(["n0:0"]).unwrap();
            while !end.load(SeqCst) {
                state.drain(&one, "", 1.0).unwrap();
                state.undrain(&one).unwrap();
                std::thread::sleep(Duration::from_millis(1)); // a client that writes without a pause starves all others
            }
        });
        let write = || {
            let mut rounds = 0..ROUNDS_MAX;
            while let (Some(round), false) = (rounds.next(), shared(parts)) {
                ROUND.store(round, SeqCst);
                let store = Store::create(&folder.path().join("r.db"), &c).unwrap();
                let builder = Engine::builder(c.clone()).state(State::open(&path).unwrap()).store(store);
                // The same model with another digest is another file.
                let text = format!("{text}{}", " ".repeat(round));
                builder.models_in_state().model_text(&text).unwrap().build().unwrap();
            }
            end.store(true, SeqCst);
        };
        std::thread::Builder::new().name(WRITER.into()).spawn_scoped(s, write).unwrap();
    });
    assert!(shared(parts), "{parts} parts; gaps of the rounds, and those in which others wrote: {:?}", gaps());
}

/// Gaps between the writes of a round, and those in which others wrote; by round.
fn gaps() -> Vec<(usize, usize)> {
    let writes = WRITES.lock().unwrap();
    let own: Vec<(usize, usize)> = writes.iter().enumerate().filter_map(|(i, w)| w.map(|round| (i, round))).collect();
    let of = |round| {
        let gaps = own.windows(2).filter(move |w| w[0].1 == round && w[1].1 == round).map(|w| w[1].0 - w[0].0 - 1);
        gaps.fold((0, 0), |(all, used), n| (all + 1, used + usize::from(n > 0)))
    };
    (0..=ROUND.load(SeqCst)).map(of).collect()
}

/// True if in a whole round others wrote in a third of the gaps. Without a pause between the parts they write in hardly any gap of any round,
/// and on a busy machine in few of some.
fn shared(parts: usize) -> bool {
    gaps().iter().any(|&(all, used)| all >= parts && 3 * used >= all)
}

/// A text of 64 parts in a state.
fn put(state: &mut State) -> ModelText {
    let text = "x".repeat(64 * PART_BYTES_MAX);
    let id = state.begin_model_text().unwrap();
    for (n, part) in (0..).zip(store::state::parts_of(&text)) {
        state.put_model_part(id, n, part).unwrap();
    }
    ModelText { id, parts: 64, bytes: text.len() as i64, digest: text_digest(&text) }
}

#[test]
fn the_change_of_the_version_in_use_reads_and_removes_no_text() {
    let (folder, c) = (tempfile::tempdir().unwrap(), cluster(1));
    let path = folder.path().join("s.state");
    let mut state = State::init(&path, &c, 0.0).unwrap();
    let other = rusqlite::Connection::open(&path).unwrap();
    let (mut change, mut by_hand) = (f64::INFINITY, f64::INFINITY);
    for version in 1..5 {
        let mut models = state.models().unwrap();
        let (before, text) = (models.versions.pop(), put(&mut state));
        models.versions = vec![KeptModel { version, text, lesson: 0, about: "{}".into() }];
        (models.present, models.newest) = (version, version);
        let begun = Instant::now();
        let done = state.change_models(&ModelsChange { models: &models, learned: &[], log: None }).unwrap();
        change = change.min(begun.elapsed().as_secs_f64());
        assert!(done.is_some());
        // What a transaction that holds the lock would do besides: remove the text before.
        if let Some(gone) = before {
            let begun = Instant::now();
            let removed = other.execute("DELETE FROM model_part WHERE text = ?1", [gone.text.id]).unwrap();
            by_hand = by_hand.min(begun.elapsed().as_secs_f64());
            assert_eq!(removed, 64, "the change left the text in its place");
        }
    }
    println!("the change {:.1} ms, the removal of a text at once {:.1} ms", 1e3 * change, 1e3 * by_hand);
}
