//! epoll and io_uring compared as back ends of an I/O thread: an echo of chunks over several loopback connections, the work of the plugin's I/O threads
//! without its protocol. Both arms, interleaved; GB/s and processor time per GB of all threads.
//!
//! ```sh
//! cargo run --release -p net --example uring
//! ```
//!
//! - `epoll`: sockets that do not block; one call per ready direction, as the plugin does.
//! - `io_uring`: one send and one receive of each connection under way; the kernel answers when all bytes of a chunk are there (`MSG_WAITALL`).
//! - `io_uring, zero copy`: the same with `SEND_ZC`. Over loopback the kernel copies the bytes nevertheless.

use io_uring::{IoUring, cqueue, opcode, types};
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use std::io::{self, ErrorKind, Read, Write};
use std::mem::MaybeUninit;
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::time::Instant;

const CHUNK: usize = 512 << 10;
/// Chunks of each connection under way.
const WINDOW: usize = 2;
const RAILS: usize = 4;
/// Chunks that each connection carries in each direction: 1 GB in all.
const CHUNKS: usize = (1 << 30) / CHUNK / RAILS / 2;
const ROUNDS: usize = 7;
const MSG_WAITALL: i32 = 0x100;

/// One connection on one side.
struct Rail {
    stream: TcpStream,
    /// Chunks that may be sent now, and bytes of the first that are sent.
    ready: usize,
    at: usize,
    sent: usize,
    /// Chunks received, and bytes of the next.
    got: usize,
    got_at: usize,
}

/// The I/O thread of one side.
struct Side {
    rails: Vec<Rail>,
    begins: bool,
    from: Vec<u8>,
    to: Vec<u8>,
}

impl Side {
    fn new(streams: Vec<TcpStream>, begins: bool) -> Self {
        let ready = if begins { WINDOW } else { 0 };
        let rail = |stream| Rail { stream, ready, at: 0, sent: 0, got: 0, got_at: 0 };
        let rails: Vec<Rail> = streams.into_iter().map(rail).collect();
        Side { to: vec![0; CHUNK * rails.len()], rails, begins, from: vec![1; CHUNK] }
    }

    fn is_over(&self) -> bool {
        self.rails.iter().all(|r| r.got == CHUNKS && r.sent == CHUNKS)
    }

    /// `n` bytes of a chunk were received.
    fn received(&mut self, i: usize, n: usize) {
        let begins = self.begins;
        let r = &mut self.rails[i];
        r.got_at += n;
        if r.got_at == CHUNK {
            (r.got, r.got_at) = (r.got + 1, 0);
            r.ready += usize::from(!begins || r.sent + r.ready < CHUNKS);
        }
    }

    fn wrote(&mut self, i: usize, n: usize) {
        let r = &mut self.rails[i];
        r.at += n;
        if r.at == CHUNK {
            (r.sent, r.ready, r.at) = (r.sent + 1, r.ready - 1, 0);
        }
    }

    fn epoll(mut self) -> io::Result<()> {
        let poll = epoll::create(CreateFlags::CLOEXEC)?;
        let mut wants = vec![false; self.rails.len()];
        for (i, r) in self.rails.iter().enumerate() {
            r.stream.set_nonblocking(true)?;
            epoll::add(&poll, &r.stream, EventData::new_u64(i as u64), EventFlags::IN)?;
        }
        let mut first = true;
        while !self.is_over() {
            let mut room = [const { MaybeUninit::uninit() }; 16];
            let events: Vec<usize> = if std::mem::take(&mut first) {
                (0..self.rails.len()).collect()
            } else {
                let (events, _) = epoll::wait(&poll, &mut room[..], None)?;
                events.iter().map(|e| e.data.u64() as usize).collect()
            };
            for i in events {
                while self.rails[i].got < CHUNKS {
                    let to = &mut self.to[i * CHUNK + self.rails[i].got_at..(i + 1) * CHUNK];
                    match self.rails[i].stream.read(to) {
                        Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                        Ok(n) => self.received(i, n),
                        Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                        Err(e) => return Err(e),
                    }
                }
                let mut full = false;
                while self.rails[i].ready > 0 && !full {
                    let at = self.rails[i].at;
                    match self.rails[i].stream.write(&self.from[at..]) {
                        Ok(n) => self.wrote(i, n),
                        Err(e) if e.kind() == ErrorKind::WouldBlock => full = true,
                        Err(e) => return Err(e),
                    }
                }
                if full != wants[i] {
                    wants[i] = full;
                    let flags = if full { EventFlags::IN | EventFlags::OUT } else { EventFlags::IN };
                    epoll::modify(&poll, &self.rails[i].stream, EventData::new_u64(i as u64), flags)?;
                }
            }
        }
        Ok(())
    }

    #[allow(unsafe_code)]
    fn uring(mut self, zero_copy: bool) -> io::Result<()> {
        let mut ring: IoUring = IoUring::builder().setup_single_issuer().setup_coop_taskrun().build(64)?;
        // Under way: a receive (even numbers) or a send (odd).
        let mut busy = vec![[false; 2]; self.rails.len()];
        while !self.is_over() {
            for (i, busy) in busy.iter_mut().enumerate() {
                let r = &self.rails[i];
                let fd = types::Fd(r.stream.as_raw_fd());
                if !busy[0] && r.got < CHUNKS {
                    let to = &mut self.to[i * CHUNK + r.got_at..(i + 1) * CHUNK];
                    let op = opcode::Recv::new(fd, to.as_mut_ptr(), to.len() as u32).flags(MSG_WAITALL);
                    // SAFETY: the memory lives until the ring has answered.
                    unsafe { ring.submission().push(&op.build().user_data(2 * i as u64)) }.map_err(io::Error::other)?;
                    busy[0] = true;
                }
                if !busy[1] && r.ready > 0 {
                    let (from, data) = (&self.from[r.at..], 2 * i as u64 + 1);
                    let (at, n) = (from.as_ptr(), from.len() as u32);
                    let op = match zero_copy {
                        true => opcode::SendZc::new(fd, at, n).flags(MSG_WAITALL).build(),
                        false => opcode::Send::new(fd, at, n).flags(MSG_WAITALL).build(),
                    };
                    // SAFETY: as above.
                    unsafe { ring.submission().push(&op.user_data(data)) }.map_err(io::Error::other)?;
                    busy[1] = true;
                }
            }
            ring.submit_and_wait(1)?;
            let done: Vec<_> = ring.completion().map(|c| (c.user_data(), c.result(), c.flags())).collect();
            for (data, result, flags) in done {
                if cqueue::notif(flags) {
                    continue; // the memory of a send is free; it never changes here
                }
                let n = usize::try_from(result).map_err(|_| io::Error::from_raw_os_error(-result))?;
                let i = data as usize / 2;
                busy[i][data as usize % 2] = false;
                if data % 2 == 1 {
                    self.wrote(i, n);
                } else if n == 0 {
                    return Err(ErrorKind::UnexpectedEof.into());
                } else {
                    self.received(i, n);
                }
            }
        }
        Ok(())
    }
}

/// User and system time of this process, seconds.
fn cpu() -> f64 {
    let text = std::fs::read_to_string("/proc/self/stat").unwrap();
    let words: Vec<&str> = text.rsplit(')').next().unwrap().split_whitespace().collect();
    (words[11].parse::<f64>().unwrap() + words[12].parse::<f64>().unwrap()) / 100.0
}

/// GB/s and seconds of processor time per GB.
fn run(arm: &str) -> io::Result<(f64, f64)> {
    let (mut a, mut b) = (Vec::new(), Vec::new());
    for rail in 1..=RAILS {
        let listener = TcpListener::bind(format!("127.0.0.{rail}:0"))?;
        a.push(TcpStream::connect(listener.local_addr()?)?);
        b.push(listener.accept()?.0);
    }
    a.iter().chain(&b).try_for_each(|s| s.set_nodelay(true))?;
    let side = |streams, begins| {
        let side = Side::new(streams, begins);
        match arm {
            "epoll" => side.epoll(),
            "io_uring" => side.uring(false),
            _ => side.uring(true),
        }
    };
    let (begin, used) = (Instant::now(), cpu());
    std::thread::scope(|s| {
        let other = s.spawn(|| side(b, false));
        side(a, true)?;
        other.join().unwrap()
    })?;
    let gb = (CHUNK * CHUNKS * RAILS * 2) as f64 / 1e9;
    Ok((gb / begin.elapsed().as_secs_f64(), (cpu() - used) / gb))
}

fn main() {
    let arms = ["epoll", "io_uring", "io_uring, zero copy"];
    let mut all = arms.map(|_| Vec::new());
    for _ in 0..ROUNDS {
        for (arm, runs) in arms.iter().zip(&mut all) {
            match run(arm) {
                Ok(measured) => runs.push(measured),
                Err(e) => println!("SKIP {arm}: {e}"),
            }
        }
    }
    println!("{RAILS} loopback connections, chunks of {} KiB, {ROUNDS} rounds, arms interleaved; medians", CHUNK >> 10);
    for (arm, runs) in arms.iter().zip(&mut all) {
        let mut median = |of: fn(&(f64, f64)) -> f64| {
            runs.sort_by(|a, b| of(a).total_cmp(&of(b)));
            runs.get(runs.len() / 2).map_or(f64::NAN, of)
        };
        println!("{arm:20} {:.2} GB/s   {:.3} s of processor time per GB", median(|r| r.0), median(|r| r.1));
    }
}
