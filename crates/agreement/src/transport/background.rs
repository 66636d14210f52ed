//! Runs an endpoint that uses files on a thread of its own. A file system that hangs then delays neither the thread that agrees nor the job's end.

use super::{Endpoint, TransportEvent};
use crate::roster::{Announcement, ProcessId};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Interval between two polls of the endpoint, which itself decides when to read.
const TICK: Duration = Duration::from_millis(20);
/// Limit on messages that wait to be sent. Further ones are lost; their sender repeats them.
const UNSENT_MAX: usize = 4096;
/// Limit on events that wait to be taken. At the limit the endpoint reads nothing more.
const EVENTS_MAX: usize = 4096;

/// What the thread does.
enum Task {
    Announce(Announcement),
    Forget(u64),
    Send(ProcessId, Vec<u8>),
    Close(Duration),
}

/// What the thread has found.
enum Found {
    Event(TransportEvent),
    Note(String),
    Closed,
}

/// See the module documentation.
#[derive(Debug)]
pub struct Background {
    tasks: Sender<Task>,
    found: Receiver<Found>,
    unsent: Arc<AtomicUsize>,
    notes: Vec<String>,
    thread: Option<JoinHandle<()>>,
}

impl Background {
    /// Opens an endpoint on a new thread and waits for it, at most `patience`. The thread has the caller's signal mask.
    ///
    /// # Errors
    /// Those of `open`; the system refuses a thread; or `open` takes longer, in which case its thread is left alone.
    pub fn open<E: Endpoint>(
        patience: Duration,
        open: impl FnOnce() -> io::Result<E> + Send + 'static,
    ) -> io::Result<Self> {
        let (tasks, to_do) = channel();
        let (finds, found) = sync_channel(EVENTS_MAX);
        let (opens, opened) = channel();
        let (begins, has_begun) = channel();
        let unsent = Arc::new(AtomicUsize::new(0));
        let left = unsent.clone();
        let run = move || {
            let _ = begins.send(());
            let made = open();
            let (endpoint, result) = match made {
                Ok(endpoint) => (Some(endpoint), Ok(())),
                Err(e) => (None, Err(e)),
            };
            // If the opener has given up, the endpoint is dropped at once.
            if let (Ok(()), Some(endpoint)) = (opens.send(result), endpoint) {
                serve(endpoint, &to_do, &finds, &left);
            }
        };
        let thread = std::thread::Builder::new().name("linkwise-folder".into()).spawn(run)?;
        // A thread that runs keeps the library that contains it from being unloaded, if it should hang for ever.
        let _ = has_begun.recv();
        match opened.recv_timeout(patience) {
            Ok(Ok(())) => Ok(Background { tasks, found, unsent, notes: Vec::new(), thread: Some(thread) }),
            Ok(Err(e)) => {
                let _ = thread.join();
                Err(e)
            }
            Err(_) => Err(io::Error::new(io::ErrorKind::TimedOut, "the file system does not answer")),
        }
    }

    /// Takes a find; returns an event.
    fn take(&mut self, found: Found) -> Option<TransportEvent> {
        match found {
            Found::Event(event) => return Some(event),
            Found::Note(note) if self.notes.len() < super::NOTES_MAX => self.notes.push(note),
            Found::Note(_) | Found::Closed => {}
        }
        None
    }
}

/// Runs the endpoint until it is closed, or the other side has gone.
fn serve(mut endpoint: impl Endpoint, tasks: &Receiver<Task>, finds: &SyncSender<Found>, unsent: &AtomicUsize) {
    let mut events = Vec::new();
    loop {
        let mut next = tasks.recv_timeout(TICK);
        while let Ok(task) = next {
            match task {
                Task::Announce(a) => endpoint.announce(a),
                Task::Forget(comm) => endpoint.forget(comm),
                Task::Send(to, body) => {
                    endpoint.send(to, &body);
                    unsent.fetch_sub(1, Ordering::Relaxed);
                }
                Task::Close(deadline) => {
                    endpoint.close(deadline);
                    let _ = finds.send(Found::Closed);
                    return;
                }
            }
            next = tasks.try_recv().map_err(|_| RecvTimeoutError::Timeout);
        }
        if matches!(next, Err(RecvTimeoutError::Disconnected)) {
            return;
        }
        endpoint.poll(Duration::ZERO, &mut events);
        let all = events.drain(..).map(Found::Event).chain(endpoint.notes().into_iter().map(Found::Note));
        for found in all {
            if finds.send(found).is_err() {
                return;
            }
        }
    }
}

impl Endpoint for Background {
    fn announce(&mut self, announcement: Announcement) {
        let _ = self.tasks.send(Task::Announce(announcement));
    }

    fn forget(&mut self, comm: u64) {
        let _ = self.tasks.send(Task::Forget(comm));
    }

    fn send(&mut self, to: ProcessId, body: &[u8]) {
        if self.unsent.load(Ordering::Relaxed) < UNSENT_MAX {
            self.unsent.fetch_add(1, Ordering::Relaxed);
            let _ = self.tasks.send(Task::Send(to, body.to_vec()));
        }
    }

    fn poll(&mut self, timeout: Duration, events: &mut Vec<TransportEvent>) {
        let first = match self.found.recv_timeout(timeout) {
            Ok(found) => found,
            Err(RecvTimeoutError::Timeout) => return,
            // The thread has ended by a panic: nothing arrives any more.
            Err(RecvTimeoutError::Disconnected) => return std::thread::sleep(timeout),
        };
        let mut next = Some(first);
        while let Some(found) = next {
            events.extend(self.take(found));
            next = self.found.try_recv().ok();
        }
    }

    fn notes(&mut self) -> Vec<String> {
        std::mem::take(&mut self.notes)
    }

    /// Waits at most `deadline`. A thread that hangs is left alone.
    fn close(&mut self, deadline: Duration) {
        let _ = self.tasks.send(Task::Close(deadline));
        let until = Instant::now() + deadline;
        let is_closed = loop {
            let left = until.saturating_duration_since(Instant::now());
            match self.found.recv_timeout(left) {
                Ok(Found::Closed) | Err(RecvTimeoutError::Disconnected) => break true,
                Ok(_) => {}
                Err(RecvTimeoutError::Timeout) => break false,
            }
        };
        if let Some(thread) = self.thread.take().filter(|_| is_closed) {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An endpoint that echoes messages, and hangs where it is told to.
    struct Echo {
        sent: Vec<Vec<u8>>,
        hangs_at_poll: bool,
        hangs_at_close: bool,
        closed: Sender<()>,
    }

    fn hang() {
        loop {
            std::thread::park();
        }
    }

    impl Endpoint for Echo {
        fn announce(&mut self, _: Announcement) {}
        fn forget(&mut self, comm: u64) {
            self.sent.push(format!("forget {comm}").into_bytes());
        }
        fn send(&mut self, _: ProcessId, body: &[u8]) {
            self.sent.push(body.to_vec());
        }
        fn poll(&mut self, _: Duration, events: &mut Vec<TransportEvent>) {
            if self.hangs_at_poll && !self.sent.is_empty() {
                hang();
            }
            events.extend(self.sent.drain(..).map(|body| TransportEvent::Message { from: 1, body }));
        }
        fn notes(&mut self) -> Vec<String> {
            Vec::new()
        }
        fn close(&mut self, _: Duration) {
            if self.hangs_at_close {
                hang();
            }
            let _ = self.closed.send(());
        }
    }

    fn echo(hangs_at_poll: bool, hangs_at_close: bool) -> (Background, Receiver<()>) {
        let (closed, is_closed) = channel();
        let open = move || Ok(Echo { sent: Vec::new(), hangs_at_poll, hangs_at_close, closed });
        (Background::open(PATIENCE, open).unwrap(), is_closed)
    }

    const PATIENCE: Duration = Duration::from_secs(60);

    #[test]
    fn what_is_sent_arrives_in_order_and_the_endpoint_is_closed() {
        let (mut end, is_closed) = echo(false, false);
        (0..10u8).for_each(|i| end.send(1, &[i]));
        end.forget(7);
        let (mut events, begin) = (Vec::new(), Instant::now());
        while events.len() < 11 && begin.elapsed() < PATIENCE {
            end.poll(Duration::from_millis(5), &mut events);
        }
        let expected = (0..10u8).map(|i| vec![i]).chain([b"forget 7".to_vec()]);
        assert_eq!(events, expected.map(|body| TransportEvent::Message { from: 1, body }).collect::<Vec<_>>());
        end.close(PATIENCE);
        assert_eq!(is_closed.try_recv(), Ok(()));
    }

    #[test]
    fn an_endpoint_that_hangs_delays_nothing_and_its_queue_is_limited() {
        for (at_poll, at_close) in [(true, false), (false, true)] {
            let (mut end, _closed) = echo(at_poll, at_close);
            let begin = Instant::now();
            (0..2 * UNSENT_MAX).for_each(|_| end.send(1, b"x"));
            let mut events = Vec::new();
            end.poll(Duration::from_millis(1), &mut events);
            end.close(Duration::from_millis(50));
            assert!(begin.elapsed() < PATIENCE && end.unsent.load(Ordering::Relaxed) <= UNSENT_MAX);
        }
    }

    #[test]
    fn an_endpoint_that_cannot_be_opened_says_why_and_one_that_hangs_is_given_up() {
        let refused = Background::open::<Echo>(PATIENCE, || Err(io::Error::other("no")));
        assert_eq!(refused.unwrap_err().to_string(), "no");
        let hangs = Background::open::<Echo>(Duration::from_millis(10), || {
            hang();
            Err(io::Error::other("never"))
        });
        assert_eq!(hangs.unwrap_err().kind(), io::ErrorKind::TimedOut);
    }
}
