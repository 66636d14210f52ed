//! A TCP proxy that can be cut: the network between a client and the API.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::task::JoinHandle;

/// A proxy on a free port of loopback. While it is cut, open connections stay silent and new ones get no answer, as behind a firewall that drops
/// packets; after [`Proxy::heal`] all of them are closed.
#[derive(Debug)]
pub struct Proxy {
    port: u16,
    state: Arc<State>,
    task: JoinHandle<()>,
}

#[derive(Debug, Default)]
struct State {
    cut: AtomicBool,
    healed: Notify,
    connections: AtomicUsize,
}

impl Proxy {
    /// Starts in the present tokio runtime.
    ///
    /// # Errors
    /// No port is free.
    pub async fn to(target: u16) -> std::io::Result<Proxy> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let port = listener.local_addr()?.port();
        let state = Arc::new(State::default());
        let of = Arc::clone(&state);
        let task = tokio::spawn(async move {
            while let Ok((from, _)) = listener.accept().await {
                of.connections.fetch_add(1, Ordering::Relaxed);
                tokio::spawn(carry(from, target, Arc::clone(&of)));
            }
        });
        Ok(Proxy { port, state, task })
    }

    /// Its port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// No byte passes from now on.
    pub fn cut(&self) {
        self.state.cut.store(true, Ordering::SeqCst);
    }

    /// Bytes pass again, on new connections.
    pub fn heal(&self) {
        self.state.cut.store(false, Ordering::SeqCst);
        self.state.healed.notify_waiters();
    }

    /// Connections that were made so far.
    pub fn connections(&self) -> usize {
        self.state.connections.load(Ordering::Relaxed)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
        self.state.healed.notify_waiters();
    }
}

async fn carry(from: TcpStream, target: u16, state: Arc<State>) {
    let Ok(to) = TcpStream::connect(("127.0.0.1", target)).await else { return };
    let (mut from_read, mut from_write) = from.into_split();
    let (mut to_read, mut to_write) = to.into_split();
    let up = pass(&mut from_read, &mut to_write, &state);
    let down = pass(&mut to_read, &mut from_write, &state);
    // Either end closes both.
    tokio::select! { () = up => {}, () = down => {} }
}

async fn pass(from: &mut (impl AsyncReadExt + Unpin), to: &mut (impl AsyncWriteExt + Unpin), state: &State) {
    let mut bytes = vec![0; 1 << 14];
    loop {
        let Ok(n) = from.read(&mut bytes).await else { return };
        if n == 0 {
            return;
        }
        let mut was_cut = false;
        while state.cut.load(Ordering::SeqCst) {
            was_cut = true;
            // The timeout covers a heal between the check and the wait.
            let _ = tokio::time::timeout(Duration::from_millis(50), state.healed.notified()).await;
        }
        if was_cut || to.write_all(&bytes[..n]).await.is_err() {
            return;
        }
    }
}
