//! A connection on its I/O thread: the state machine, its paths, its buffers.
//!
//! ```text
//!  connecting ──first path ready, others ready or PATHS_WAIT_US over──► ready ──close()──► lingering ──peer closed, or LINGER_US──► gone
//!      └── no path within CONNECT_US_MAX ──► failed ◄── no path for GONE_US, or the peer closed with requests open ──┘
//! ```

mod reader;
mod roads;

use crate::buffer::Buffer;
use crate::dialer::Dialer;
use crate::frame::{Frame, Slot};
use crate::handle::RailAddress;
use crate::limits::{GROUPED_MAX, PATHS_MAX};
use crate::path::{Path, Source as Bytes};
use crate::plan::Source;
use crate::rails::{Cells, View};
use crate::rdma::{Places, Rdma};
use crate::reach::Way;
use crate::receiver::Receiver;
use crate::sender::{Micros, Order, Outbox, Sender, Shares};
use crate::shared::{Common, Job, Link, Post, Shared, Status};
use crate::sockets::{SILENT_HOST_US_MAX, Socket};
use reader::Into;
use std::collections::{HashMap, VecDeque};
use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A connection without any path for this time has failed.
const GONE_US: Micros = 10_000_000;
/// Bound that the documents promise: a peer whose host is gone is an error after this time. The slack is for timers and a busy machine.
const BOUND_US: Micros = 30_000_000;
const SLACK_US: Micros = 4_000_000;
const _: () = assert!(SILENT_HOST_US_MAX + GONE_US + SLACK_US <= BOUND_US);
/// A connection attempt that has no path after this time has failed.
pub(crate) const CONNECT_US_MAX: Micros = 20_000_000;
/// Time that a closed connection keeps its sockets, so that its last acknowledgements arrive.
const LINGER_US: Micros = 2_000_000;
/// After the peer's first word that it closes, other paths may bring what was sent before for this time.
const BYE_US: Micros = 500_000;
/// Bytes that a path may be ahead of its share in a plan, which is renewed every 100 ms from what was sent before; and in fixed shares.
const PLAN_SLACK_BYTES: u64 = 512 << 10;
const FIXED_SLACK_BYTES: u64 = 64 << 10;
/// Places that a sender keeps: as many as it keeps announcements.
const PLACES_MAX: usize = crate::limits::ANNOUNCED_MAX + crate::limits::SENDS_MAX;

#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "one per connection")]
pub(crate) enum Core {
    Send(Sender),
    Receive(Receiver),
}

type Buffers = [Option<Buffer>; GROUPED_MAX];

#[derive(Debug)]
pub(crate) struct Connection {
    pub shared: Arc<Shared>,
    pub core: Core,
    pub paths: [Option<Path>; PATHS_MAX],
    pub dialer: Option<Dialer>,
    /// For a receiving connection: its listener and its number there.
    pub origin: Option<(u64, u64)>,
    /// Peer on this host: its bytes load no rail.
    pub near: bool,
    buffers: Vec<Buffers>,
    posts: VecDeque<Post>,
    begun: Micros,
    down_since: Option<Micros>,
    bye_since: Option<Micros>,
    closing: Option<Micros>,
    failed: bool,
    repeated: u64,
    copies: u64,
    /// Why a path was lost last, or could not be dialled.
    cause: Option<String>,
    /// Bytes that the program has sent and that are not in [`Common::sent`] yet.
    sent: u64,
    /// The plan whose shares hold.
    plan: u64,
    /// The queue pairs of paths that have one.
    pub rdma: [Option<Rdma>; PATHS_MAX],
    /// Of every path: the dials up to this one are over. A sender tells its peer; a receiver was told.
    down: [u32; PATHS_MAX],
    /// The newest dial of every path.
    dials: [u32; PATHS_MAX],
    /// Where the peer's announced receives are.
    places: HashMap<u64, Places>,
    /// Rail of this host on every path.
    rails: [usize; PATHS_MAX],
}

/// A socket that becomes a path.
#[derive(Debug)]
pub(crate) struct NewPath {
    pub path: usize,
    /// Rail of this host.
    pub rail: usize,
    pub socket: Socket,
    /// Key of its events.
    pub key: u64,
    /// Number of the dial, and the queue pair that was made with it.
    pub dial: u32,
    pub rdma: Option<Rdma>,
}

/// What the I/O thread must do after a call.
#[derive(Debug, Default)]
pub(crate) struct After {
    /// Keys of paths whose wish for room changed.
    pub changed: Vec<usize>,
    /// Sockets that are closed now, to be taken out of epoll before they are dropped.
    pub dropped: Vec<Path>,
}

impl Connection {
    pub fn new(shared: Arc<Shared>, core: Core, now: Micros) -> Self {
        Connection {
            shared,
            core,
            paths: Default::default(),
            dialer: None,
            origin: None,
            near: false,
            buffers: Vec::new(),
            posts: VecDeque::new(),
            begun: now,
            down_since: Some(now),
            bye_since: None,
            closing: None,
            failed: false,
            repeated: 0,
            copies: 0,
            cause: None,
            sent: 0,
            plan: 0,
            rdma: Default::default(),
            down: [0; PATHS_MAX],
            dials: [0; PATHS_MAX],
            places: HashMap::new(),
            rails: [0; PATHS_MAX],
        }
    }

    /// Keeps why a path was lost, or could not be dialled, for the error of the connection.
    pub fn note(&mut self, path: usize, why: impl std::fmt::Display) {
        let name = self.dialer.as_ref().and_then(|d| d.name(path)).unwrap_or_else(|| format!("path {path}"));
        self.cause = Some(format!("{name}: {why}"));
    }

    /// An error with the last cause.
    fn with_cause(&self, what: &str) -> String {
        match &self.cause {
            Some(cause) => format!("{what}; last: {cause}"),
            None if self.dialer.as_ref().is_some_and(|d| d.ways.is_empty()) => format!("{what}; no way to it is known"),
            None => what.to_owned(),
        }
    }

    /// The sender follows the table of the settings.
    fn follow_table(&mut self, common: &Common) {
        let (Source::Fixed(table), Some(d), Core::Send(s)) = (&common.settings.plan, &self.dialer, &mut self.core)
        else {
            return;
        };
        if self.near {
            return;
        }
        let ips = |list: &[RailAddress]| list.iter().map(|a| a.ip).collect::<Vec<_>>();
        let (own, peer, home) = (ips(&common.addresses), ips(&d.remote), d.home());
        let mut of = [0; PATHS_MAX];
        for (i, (of, way)) in of.iter_mut().zip(&d.ways).enumerate() {
            *of = table.share(&own, &peer, way.local, i == home);
        }
        s.set_shares(Some(Shares { of, slack: FIXED_SLACK_BYTES }));
    }

    /// The sender follows the newest common plan, and the bytes that it was given are counted for the next one.
    fn follow_plan(&mut self, common: &Common) {
        let (Source::Common, Some(d), Core::Send(s)) = (&common.settings.plan, &self.dialer, &mut self.core) else {
            return;
        };
        if !d.over_relays {
            return;
        }
        let sent = std::mem::take(&mut self.sent);
        if sent > 0 {
            *crate::shared::lock(&common.sent).entry(d.handle.host).or_default() += sent;
        }
        let plan = crate::shared::lock(&common.plan);
        if plan.number == self.plan {
            return;
        }
        self.plan = plan.number;
        s.set_shares(plan.of.get(&d.handle.host).map(|rails| {
            let mut of = [0; PATHS_MAX];
            for (of, way) in of.iter_mut().zip(&d.ways) {
                *of = rails.get(way.local).copied().unwrap_or(0);
            }
            Shares { of, slack: PLAN_SLACK_BYTES }
        }));
    }

    /// A socket becomes a path; it replaces the one of the same number.
    pub fn attach(
        &mut self,
        new: NewPath,
        now: Micros,
        rails: &View<'_, impl Cells>,
        common: &Common,
        after: &mut After,
    ) {
        let sends = matches!(self.core, Core::Send(_));
        let path = new.path;
        let (Some(newest), Some(over)) = (self.dials.get_mut(path), self.down.get(path)) else { return };
        if new.dial < *newest || (!sends && new.dial <= *over) {
            return; // its dialler has given it up
        }
        *newest = new.dial;
        self.drop_path(path, rails, after);
        if let (Some(r), Some(rail)) = (self.rdma.get_mut(path), self.rails.get_mut(path)) {
            (*r, *rail) = (new.rdma, new.rail);
        }
        let Some(slot) = self.paths.get_mut(path) else { return };
        let mut socket = Path::new(new.socket, new.key);
        if sends {
            let over = self.down.iter().enumerate().filter(|(_, dial)| **dial > 0);
            over.for_each(|(p, dial)| socket.insist(&Frame::Down { path: p as u8, dial: *dial }));
        }
        *slot = Some(socket);
        let links = self.dialer.as_ref().and_then(|d| d.ways.get(path)).map_or(1, Way::links);
        let home = self.dialer.as_ref().map_or(0, Dialer::home);
        match &mut self.core {
            Core::Send(s) => {
                s.path_up(path, new.rail, links, now);
                s.set_home(home);
            }
            Core::Receive(r) => r.set_up(path, true),
        }
        self.follow_table(common);
        self.down_since = None;
        if let Some(d) = &mut self.dialer {
            d.up(path, now);
        } else {
            self.shared.set_ready();
        }
    }

    fn drop_path(&mut self, path: usize, rails: &View<'_, impl Cells>, after: &mut After) {
        match &mut self.core {
            Core::Send(s) => s.path_down(path, rails),
            Core::Receive(r) => r.set_up(path, false),
        }
        after.dropped.extend(self.paths.get_mut(path).and_then(Option::take));
        let Some(lost) = self.rdma.get_mut(path).and_then(Option::take) else { return };
        // What was written over it goes again over TCP, after this word.
        if let (Core::Send(_), Some(down)) = (&self.core, self.down.get_mut(path)) {
            *down = lost.dial;
            let word = Frame::Down { path: path as u8, dial: lost.dial };
            self.paths.iter_mut().flatten().for_each(|p| p.insist(&word));
        }
    }

    /// The path's socket is of no more use.
    pub fn lose(&mut self, path: usize, now: Micros, rails: &View<'_, impl Cells>, after: &mut After) {
        if self.paths.get(path).is_some_and(|p| p.is_some()) {
            self.drop_path(path, rails, after);
        }
        if let Some(d) = &mut self.dialer {
            d.again(path, now);
        }
        if self.paths.iter().all(|p| p.is_none()) {
            self.down_since.get_or_insert(now);
        }
    }

    /// Another connection's path on the same rails does not move. A path that has not moved lately either is dialled anew, which is also the probe.
    pub fn suspect(&mut self, link: Link, now: Micros, rails: &View<'_, impl Cells>, after: &mut After) {
        let Core::Send(s) = &self.core else { return };
        let Some(d) = &self.dialer else { return };
        let of_link = |p: &usize| d.link(*p) == Some(link) && s.is_up(*p) && s.ups() > 1 && !s.has_moved(*p, now);
        if let Some(path) = (0..PATHS_MAX).find(of_link) {
            self.lose(path, now, rails, after);
        }
    }

    pub fn fail(&mut self, why: &str, common: &Common, after: &mut After) {
        if !self.failed {
            self.failed = true;
            self.detach(after);
            if self.closing.is_none() {
                common.log(&format!("a connection has failed: {why}"));
            }
            self.shared.fail(why);
            (0..PATHS_MAX).for_each(|p| self.say_on(p, &Frame::Bye, common));
        }
    }

    /// Drops all copies of the program's buffers, and the paths that are writing from one: no zeros may arrive for a message that is still expected.
    fn detach(&mut self, after: &mut After) {
        if self.has_open() {
            // Devices leave the buffers alone from here on.
            self.rdma = Default::default();
            for p in &mut self.paths {
                if p.as_ref().is_some_and(Path::has_chunk) {
                    after.dropped.extend(p.take());
                }
            }
        }
        self.buffers.clear();
        self.posts.clear();
    }

    /// True if requests are under way.
    fn has_open(&self) -> bool {
        !self.posts.is_empty()
            || match &self.core {
                Core::Send(s) => s.sends() > 0,
                Core::Receive(r) => r.open() > 0,
            }
    }

    /// Takes what the program has posted.
    pub fn take_posts(&mut self, now: Micros, common: &Common) {
        self.shared.queued.store(false, Ordering::Release);
        let posts = std::mem::take(&mut *crate::shared::lock(&self.shared.posts));
        if self.failed || self.closing.is_some() {
            self.shared.pool.fail_all();
            return;
        }
        self.posts.extend(posts);
        self.start_posts(now, common);
    }

    fn start_posts(&mut self, now: Micros, common: &Common) {
        let mut out = Outbox::default();
        while let Some(post) = self.posts.front() {
            let (request, buffers) = match (post, &mut self.core) {
                (Post::Send { request, buffer, tag }, Core::Send(s)) => {
                    if !s.send(*request, *tag, buffer.len() as u64) {
                        break;
                    }
                    common.counts.messages.fetch_add(1, Ordering::Relaxed);
                    self.sent += buffer.len() as u64;
                    let mut b = Buffers::default();
                    b[0] = Some(*buffer);
                    (*request, b)
                }
                (Post::Receive { request, count, buffers, tags }, Core::Receive(r)) => {
                    let mut slots = [Slot::default(); GROUPED_MAX];
                    for ((slot, buffer), tag) in slots.iter_mut().zip(buffers).zip(tags) {
                        *slot = Slot { room: buffer.map_or(0, |b| b.len() as u64), tag: *tag };
                    }
                    if !r.receive(*request, slots.get(..*count).unwrap_or_default(), now, &mut out) {
                        break;
                    }
                    (*request, *buffers)
                }
                _ => {
                    self.posts.pop_front();
                    continue;
                }
            };
            let i = request as usize;
            if self.buffers.len() <= i {
                self.buffers.resize(i + 1, Buffers::default());
            }
            if let Some(to) = self.buffers.get_mut(i) {
                *to = buffers;
            }
            self.posts.pop_front();
        }
        self.say(out, common);
    }

    fn say(&mut self, out: Outbox, common: &Common) {
        for (path, frame) in &out.frames {
            self.say_on(*path, frame, common);
        }
        for (request, sizes) in &out.done {
            if let Some(b) = self.buffers.get_mut(*request as usize) {
                *b = Buffers::default();
            }
            self.shared.pool.done(*request, sizes);
        }
    }

    /// Reads a path that is readable.
    pub fn read(&mut self, path: usize, now: Micros, rails: &View<'_, impl Cells>, common: &Common, after: &mut After) {
        let Some(Some(p)) = self.paths.get_mut(path) else { return };
        let mut own = self.rdma.get_mut(path).and_then(Option::take);
        let mut out = Outbox::default();
        let mut into = Into {
            core: &mut self.core,
            buffers: &self.buffers,
            path,
            now,
            rails,
            out: &mut out,
            bytes: 0,
            chunks: 0,
            rdma: &mut self.rdma,
            down: &mut self.down,
            places: &mut self.places,
            bye: false,
        };
        // The queue pair first: the socket may say that the peer has closed.
        let read = own.as_mut().map_or(Ok(()), |r| r.read(&mut into)).and_then(|()| p.read(&mut into));
        p.bye |= into.bye;
        common.counts.received.fetch_add(into.bytes, Ordering::Relaxed);
        common.counts.chunks.fetch_add(into.chunks, Ordering::Relaxed);
        if p.bye {
            self.bye_since.get_or_insert(now);
        }
        let freed = !out.done.is_empty();
        let is_down = own.as_ref().zip(self.down.get(path)).is_some_and(|(r, down)| r.dial <= *down);
        if let Some(r) = self.rdma.get_mut(path).filter(|_| !is_down) {
            *r = own;
        }
        self.say(out, common);
        match read {
            Ok(()) => {}
            Err(e) if e.kind() == ErrorKind::InvalidData => {
                self.fail(&format!("the peer broke the protocol: {e}"), common, after);
                self.lose(path, now, rails, after);
            }
            Err(e) => {
                self.note(path, e);
                self.lose(path, now, rails, after);
            }
        }
        if freed && !self.posts.is_empty() {
            self.start_posts(now, common);
        }
    }

    /// Gives chunks to paths and writes. True if chunks still wait.
    pub fn push(&mut self, now: Micros, rails: &View<'_, impl Cells>, common: &Common, after: &mut After) -> bool {
        if let Core::Send(_) = self.core
            && !self.failed
        {
            loop {
                let mut ready = [false; PATHS_MAX];
                for ((r, p), rdma) in ready.iter_mut().zip(&self.paths).zip(&self.rdma) {
                    let is_ready = p.as_ref().is_some_and(Path::is_ready);
                    *r = is_ready && rdma.as_ref().is_none_or(Rdma::takes_chunk);
                }
                let Core::Send(s) = &mut self.core else { break };
                let Some(order) = s.next(now, &ready, rails) else { break };
                if let Some(rail) = self.dialer.as_ref().and_then(|d| d.ways.get(order.path)).map(|p| p.local)
                    && let Some(c) = common.counts.bytes.get(rail)
                {
                    c.fetch_add(u64::from(order.bytes), Ordering::Relaxed);
                }
                match self.write_by_device(&order, common) {
                    Ok(true) => continue,
                    Ok(false) => {}
                    Err(e) => {
                        self.note(order.path, e);
                        self.lose(order.path, now, rails, after);
                        continue;
                    }
                }
                if let Some(Some(p)) = self.paths.get_mut(order.path) {
                    p.begin(order);
                }
                self.write(order.path, now, rails, after);
            }
        }
        self.flush(now, rails, after);
        matches!(&self.core, Core::Send(s) if s.has_unsent())
    }

    /// Writes what waits on all paths.
    pub fn flush(&mut self, now: Micros, rails: &View<'_, impl Cells>, after: &mut After) {
        for i in 0..PATHS_MAX {
            if let Some(Err(e)) = self.rdma.get_mut(i).and_then(Option::as_mut).map(Rdma::flush) {
                self.note(i, e);
                self.lose(i, now, rails, after);
            }
        }
        for i in 0..PATHS_MAX {
            if self.paths.get(i).and_then(|p| p.as_ref()).is_some_and(|p| !p.is_flushed() && !p.wants_room) {
                self.write(i, now, rails, after);
            }
        }
    }

    /// Writes on one path.
    pub fn write(&mut self, path: usize, now: Micros, rails: &View<'_, impl Cells>, after: &mut After) {
        let Some(Some(p)) = self.paths.get_mut(path) else { return };
        let wanted = p.wants_room;
        let (core, buffers) = (&self.core, &self.buffers);
        let source = |o: &Order| match core {
            Core::Send(s) if s.needs(o.chunk) => {
                buffers.get(o.request as usize).and_then(|b| b[0]).map_or(Bytes::Gone, Bytes::Buffer)
            }
            _ => Bytes::Zeros,
        };
        match p.write(source) {
            Ok(()) if p.wants_room != wanted => after.changed.push(path),
            Ok(()) => {}
            Err(e) => {
                self.note(path, e);
                self.lose(path, now, rails, after);
            }
        }
    }

    /// The program closes the connection.
    pub fn close(&mut self, now: Micros, common: &Common, after: &mut After) {
        self.detach(after);
        self.shared.pool.fail_all();
        self.failed = true;
        self.closing = Some(now + LINGER_US);
        common.lingering.fetch_add(1, Ordering::Relaxed);
        (0..PATHS_MAX).for_each(|p| self.say_on(p, &Frame::Bye, common));
        self.shared.set_detached();
    }

    /// Time passes. False: the connection is over.
    pub fn tick(&mut self, now: Micros, rails: &View<'_, impl Cells>, common: &Common, after: &mut After) -> bool {
        let mut out = Outbox::default();
        self.follow_plan(common);
        match &mut self.core {
            Core::Send(s) => {
                for (path, way) in self.dialer.iter().flat_map(|d| d.ways.iter().enumerate()) {
                    if !way.onward.is_empty() {
                        let map = crate::shared::lock(&common.map);
                        s.set_price(path, way.onward.iter().map(|(host, rail)| map.work(*host, *rail)).sum());
                    }
                }
                s.tick(now, rails, &mut out);
                let r = s.repeated();
                common.counts.repeated.fetch_add(r - std::mem::replace(&mut self.repeated, r), Ordering::Relaxed);
            }
            Core::Receive(r) => {
                r.tick(now, &mut out);
                let c = r.copies();
                common.counts.copies.fetch_add(c - std::mem::replace(&mut self.copies, c), Ordering::Relaxed);
            }
        }
        for path in std::mem::take(&mut out.lost) {
            common.counts.lost_paths.fetch_add(1, Ordering::Relaxed);
            if let Some(link) = self.dialer.as_ref().and_then(|d| d.link(path)) {
                common.log_lost(link.local, now);
                common.threads.iter().for_each(|t| t.hand_over(Job::Suspect(link)));
            }
            self.note(path, "nothing arrives");
            self.lose(path, now, rails, after);
        }
        self.say(out, common);
        let over = |since: Option<Micros>, limit| since.is_some_and(|t| now >= t + limit);
        if let Some(until) = self.closing {
            let idle = self.paths.iter().flatten().all(|p| p.is_flushed() && p.bye)
                && self.rdma.iter().flatten().all(Rdma::is_idle);
            return now < until && !idle;
        }
        let connecting = self.shared.status() == Status::Connecting;
        if connecting && self.dialer.as_ref().is_some_and(|d| d.settled(now)) {
            self.shared.set_ready();
        }
        let byes = self.paths.iter().flatten().all(|p| p.bye);
        if self.bye_since.is_some() && (byes || over(self.bye_since, BYE_US)) && self.has_open() {
            self.fail("the peer closed the connection before all was done", common, after);
        } else if connecting && over(Some(self.begun), CONNECT_US_MAX) {
            self.fail(&self.with_cause("the peer cannot be reached over any rail"), common, after);
        } else if !connecting && over(self.down_since, GONE_US) {
            self.fail(&self.with_cause("no path to the peer is left"), common, after);
        }
        true
    }

    /// True if [`tick`](Connection::tick) has something to watch.
    pub fn needs_ticks(&self) -> bool {
        let core = match &self.core {
            Core::Send(s) => s.has_held() || s.has_unsent(),
            Core::Receive(r) => r.has_unconfirmed(),
        };
        let connecting = self.shared.status() == Status::Connecting;
        let watched = self.closing.is_some() || self.bye_since.is_some() || self.down_since.is_some();
        core || connecting || watched || self.dialer.as_ref().is_some_and(|d| d.is_waiting())
    }

    /// The connection is over: all sockets go.
    pub fn drop_all(&mut self, rails: &View<'_, impl Cells>, after: &mut After) {
        (0..PATHS_MAX).for_each(|path| self.drop_path(path, rails, after));
    }

    pub fn is_closing(&self) -> bool {
        self.closing.is_some()
    }
}
