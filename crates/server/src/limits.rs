//! The limits of a server. Each has its own status and code, so that a client knows which one it met.

use std::time::Duration;

/// Largest body of a request, bytes; more is 413 `body_too_large`. A request with 10,240 GPUs by name has about 100 kB.
pub const BODY_BYTES_MAX: usize = 4 << 20;
/// Longest time in which a body arrives; more is 408 `body_too_slow`.
pub const BODY_TIME: Duration = Duration::from_secs(20);
/// Longest line of a stream of requests, bytes; more is 413 `line_too_long`.
pub const LINE_BYTES_MAX: usize = 1 << 20;
/// Maximum number of lines of a stream of requests; the line after it ends the stream with `too_many_lines`.
pub const LINES_MAX: usize = 100_000;
/// Longest time in which the header of a request arrives, and longest silence of a kept connection; more closes the
/// connection.
pub const HEADER_TIME: Duration = Duration::from_secs(30);
/// Longest handshake of TLS; a slower one gives its connection up.
pub const HANDSHAKE_TIME: Duration = Duration::from_secs(10);
/// Longest time in which a client reads nothing of an answer; more closes the connection.
pub const WRITE_TIME: Duration = Duration::from_secs(30);
/// Largest header of a request, bytes, and its largest number of fields; more is 431.
pub const HEADER_BYTES_MAX: usize = 32 << 10;
/// Maximum number of fields of a header.
pub const HEADERS_MAX: usize = 64;
/// Longest work on a request; more is 504 `too_slow`. The work goes on, so a repetition under the same key finds its result.
pub const WORK_TIME: Duration = Duration::from_secs(60);
/// Maximum number of requests that wait for a worker; more is 503 `overloaded`.
pub const WAITING_MAX: usize = 1024;
/// Maximum number of requests with long work that wait, among these; more is 503 `overloaded`.
pub const LONG_WAITING_MAX: usize = 64;
/// Maximum number of connections; more is 503 `too_many_connections`, and the connection is closed.
pub const CONNECTIONS_MAX: usize = 2048;
/// Maximum number of open streams of events; more is 503 `too_many_streams`.
pub const STREAMS_MAX: usize = 64;
/// Requests per second of one client, on average; twice as many may come at once after a pause. More is 429
/// `too_many_requests`.
pub const RATE_PER_S: f64 = 5_000.0;
/// Wrong tokens per second from one address; more is 429 `too_many_wrong_tokens`.
pub const WRONG_TOKENS_PER_S: f64 = 1.0;
/// Wrong tokens that an address may send at once after a pause.
pub const WRONG_TOKENS_BURST: f64 = 20.0;
/// Tokens per second that are examined for an address with too many wrong ones: others behind the same proxy may send right ones.
pub const EXAMINED_PER_S: f64 = 100.0;
/// Maximum number of clients whose rate is known; beyond it the idle ones are forgotten.
pub const CLIENTS_MAX: usize = 10_000;
/// Number of slow tasks that wait; more is 503 `too_many_tasks`.
pub const TASKS_WAITING_MAX: usize = 8;
/// Number of tasks that are kept; of more, the oldest ones that have ended are forgotten.
pub const TASKS_KEPT_MAX: usize = 64;
/// Longest result of a task that is kept, bytes.
pub const TASK_RESULT_BYTES_MAX: usize = 8 << 20;
/// Time between two signs of life of a task in the state.
pub const TASK_BEAT: Duration = Duration::from_secs(1);
/// Time without a sign of life after which a task of another server is lost.
pub const TASK_LOST: Duration = Duration::from_secs(30);
/// Time that a running task gets to end when the server stops. A task that is cancelled ends within about a second.
pub const TASK_STOP_TIME: Duration = Duration::from_secs(5);
/// Longest time between two looks at the state for leases that ended, new events and revoked tokens.
pub const TICK: Duration = Duration::from_millis(250);
/// Time between two looks at the files of certificates.
pub const CERTIFICATES_LOOK: Duration = Duration::from_secs(2);
/// Time for which a token that was found valid is not looked up again: a revocation takes effect within this time.
pub const TOKEN_TIME: Duration = Duration::from_secs(1);
/// Time that open connections get when the server stops.
pub const STOP_TIME: Duration = Duration::from_secs(10);
/// Most busy GPUs that the metrics list, one series each.
pub const GPU_SERIES_MAX: usize = 20_480;
/// Requests of jobs that the pages remember; older ones are forgotten. About 1 kB each.
pub const PAGE_ASKED_MAX: usize = 2_000;
/// Predictions beside what jobs got that the pages remember; older ones are forgotten. 24 bytes each.
pub const PAGE_SAID_MAX: usize = 2_000;
/// Most communicators of the NCCL plugin that the metrics list, seven series each, and most of its arms, one series each.
pub const PLUGIN_SERIES_MAX: usize = 2_000;
/// Most jobs that the metrics list, two series each.
pub const JOB_SERIES_MAX: usize = 2_000;

/// Number of requests of one kind that the engine works on at once. Each kind has its own workers, so that long
/// questions of some clients delay neither the changes of others nor the checks of tokens.
pub fn workers(kind: Kind) -> usize {
    let cores = std::thread::available_parallelism().map_or(2, usize::from);
    match kind {
        Kind::Look => 2,
        Kind::Change => cores + 1, // commits wait for the disk
        Kind::Question => cores,
        Kind::Long => (cores / 2).max(1), // the other cores stay for the rest
    }
}

/// Kinds of work on the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Reads a few rows: tokens, the newest event, readiness.
    Look,
    /// Changes the state, or reads what is as long as the state.
    Change,
    /// Computes without a change: choices without a commit, explanations.
    Question,
    /// Computes for seconds: diagnoses, and choices by a search that examines every candidate, also with a commit.
    Long,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Kind; 4] = [Kind::Look, Kind::Change, Kind::Question, Kind::Long];
}
