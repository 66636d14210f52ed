//! Every interleaving of the two sides of a pipe, checked with loom: bytes arrive complete and in order, and no side sleeps forever.

use loom::sync::atomic as model;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use wire::pipe::{Cell, Pipe, Side, Words};

/// One word. `W` selects which ordering is weakened, to show that the checks detect it.
struct Word<const W: u8>(model::AtomicU64);

const AS_IT_IS: u8 = 0;
const NO_FENCE: u8 = 1;
const NO_ORDER: u8 = 2;

impl<const W: u8> Cell for Word<W> {
    fn load(&self, order: Ordering) -> u64 {
        self.0.load(if W == NO_ORDER { Ordering::Relaxed } else { order })
    }

    fn store(&self, value: u64, order: Ordering) {
        self.0.store(value, if W == NO_ORDER { Ordering::Relaxed } else { order });
    }

    fn swap(&self, value: u64, order: Ordering) -> u64 {
        self.0.swap(value, order)
    }

    fn fence() {
        if W != NO_FENCE {
            model::fence(Ordering::SeqCst);
        }
    }
}

struct Handle<const W: u8>(Arc<Vec<Word<W>>>);

impl<const W: u8> Words for Handle<W> {
    type Cell = Word<W>;

    fn words(&self) -> &[Word<W>] {
        &self.0
    }
}

/// Words of a ring: room for one chunk of one word.
const CAPACITY: usize = 2;

fn pair<const W: u8>() -> (Pipe<Handle<W>>, Pipe<Handle<W>>) {
    let words =
        Arc::new((0..Pipe::<Handle<W>>::words_needed(CAPACITY)).map(|_| Word(model::AtomicU64::new(0))).collect());
    let side = |s| Pipe::new(Handle(Arc::clone(&words)), s, CAPACITY).unwrap();
    (side(Side::A), side(Side::B))
}

fn model(what: impl Fn() + Sync + Send + 'static) {
    loom::model::Builder::new().check(what);
}

fn bytes_arrive<const W: u8>() {
    model(|| {
        let (mut a, mut b) = pair::<W>();
        let writer = loom::thread::spawn(move || {
            let mut left: &[u8] = &[1, 2, 3];
            for _ in 0..2 {
                let n = a.write(&left[..left.len().min(2)]).unwrap();
                left = &left[n..];
            }
            3 - left.len()
        });
        let mut got = Vec::new();
        for _ in 0..2 {
            b.read(&mut got).unwrap();
        }
        let wrote = writer.join().unwrap();
        b.read(&mut got).unwrap();
        assert_eq!(got, [1, 2, 3][..wrote]);
    });
}

/// Side B sleeps if it finds nothing; side A writes meanwhile.
fn a_sleeping_reader_is_woken<const W: u8>() {
    model(|| {
        let (mut a, mut b) = pair::<W>();
        let reader = loom::thread::spawn(move || {
            let found = b.read(&mut Vec::new()).unwrap() > 0;
            !found && b.prepare_to_sleep(false)
        });
        a.write(&[1]).unwrap();
        let rung = a.must_wake_reader();
        assert!(!reader.join().unwrap() || rung, "it sleeps although a byte waits");
    });
}

/// Side A finds its ring full and sleeps; side B reads meanwhile.
fn a_sleeping_writer_is_woken<const W: u8>() {
    model(|| {
        let (mut a, mut b) = pair::<W>();
        a.write(&[1]).unwrap();
        let writer = loom::thread::spawn(move || {
            let wrote = a.write(&[2]).unwrap() > 0;
            !wrote && a.prepare_to_sleep(true)
        });
        let read = b.read(&mut Vec::new()).unwrap() > 0;
        let rung = b.must_wake_writer();
        assert!(!writer.join().unwrap() || !read || rung, "it sleeps although there is room");
    });
}

#[test]
fn in_every_interleaving_the_reader_gets_the_bytes_written() {
    bytes_arrive::<AS_IT_IS>();
}

#[test]
#[should_panic]
fn without_release_and_acquire_the_check_finds_wrong_bytes() {
    bytes_arrive::<NO_ORDER>();
}

#[test]
fn in_no_interleaving_does_a_side_sleep_over_bytes_or_room() {
    a_sleeping_reader_is_woken::<AS_IT_IS>();
    a_sleeping_writer_is_woken::<AS_IT_IS>();
}

#[test]
#[should_panic(expected = "it sleeps although a byte waits")]
fn without_the_fence_the_check_finds_a_reader_that_is_not_woken() {
    a_sleeping_reader_is_woken::<NO_FENCE>();
}

#[test]
#[should_panic(expected = "it sleeps although there is room")]
fn without_the_fence_the_check_finds_a_writer_that_is_not_woken() {
    a_sleeping_writer_is_woken::<NO_FENCE>();
}
