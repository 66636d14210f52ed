//! One GPU of a host: reads what all GPUs send to each other, moves the bytes, checks every one, and prints begin and end of every round. The driver of
//! the proof (`examples/inside.rs`) starts one process per GPU; on real GPUs it is started the same way.
//!
//! `linkwise-inside FILE RANK DEVICE`; lines of the file: `ranks 4`, `chunk 65536`, `slots 8`, `folder PATH`, `rounds 3`, `path 0 2 1` (numbered from 0),
//! `send 0 1 0:5000 4:2500` (from, to, path:bytes).

use inside::cuda::Cuda;
use inside::{Device, Path, Plane, Shape};
use std::error::Error;
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Longest wait for the other processes.
const PATIENCE: Duration = Duration::from_secs(60);

struct Message {
    src: usize,
    dst: usize,
    split: Vec<(usize, u64)>,
}

impl Message {
    fn bytes(&self) -> u64 {
        self.split.iter().map(|s| s.1).sum()
    }
}

struct Spec {
    shape: Shape,
    folder: PathBuf,
    rounds: u64,
    messages: Vec<Message>,
}

fn parse(text: &str) -> Result<Spec, Box<dyn Error>> {
    let shape = Shape { ranks: 0, paths: Vec::new(), chunk_bytes: 0, slots: 0 };
    let mut spec = Spec { shape, folder: PathBuf::new(), rounds: 1, messages: Vec::new() };
    for (i, line) in text.lines().enumerate() {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        let numbers = || rest.split_whitespace().map(str::parse::<usize>).collect::<Result<Vec<_>, _>>();
        let at = |e: &dyn std::fmt::Display| format!("line {}: `{line}`: {e}", i + 1);
        match word {
            "ranks" => spec.shape.ranks = rest.parse().map_err(|e| at(&e))?,
            "chunk" => spec.shape.chunk_bytes = rest.parse().map_err(|e| at(&e))?,
            "slots" => spec.shape.slots = rest.parse().map_err(|e| at(&e))?,
            "rounds" => spec.rounds = rest.parse().map_err(|e| at(&e))?,
            "folder" => spec.folder = rest.into(),
            "path" => spec.shape.paths.push(Path { nodes: numbers().map_err(|e| at(&e))? }),
            "send" => spec.messages.push(message(rest).ok_or_else(|| at(&"expected FROM TO PATH:BYTES ..."))?),
            _ => return Err(at(&"not known").into()),
        }
    }
    Ok(spec)
}

fn message(text: &str) -> Option<Message> {
    let mut words = text.split_whitespace();
    let (src, dst) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    let share = |w: &str| w.split_once(':').and_then(|(p, b)| Some((p.parse().ok()?, b.parse().ok()?)));
    Some(Message { src, dst, split: words.map(share).collect::<Option<_>>()? })
}

/// The bytes of a message: each word depends on its place, the pair and the round.
fn fill(out: &mut [u8], src: usize, dst: usize, round: u64) {
    let seed = (src as u64) << 48 | (dst as u64) << 40 | round;
    for (i, word) in out.chunks_mut(8).enumerate() {
        let value =
            (seed ^ i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word.copy_from_slice(&value.to_le_bytes()[..word.len()]);
    }
}

fn now_s() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().collect();
    let [_, file, rank, device] = &args[..] else { return Err("usage: linkwise-inside FILE RANK DEVICE".into()) };
    let spec = parse(&std::fs::read_to_string(file)?)?;
    let me: usize = rank.parse()?;
    let mut plane = Plane::join(Cuda::new(device.parse()?)?, &spec.folder, me, spec.shape.clone(), PATIENCE)?;
    let total = |of: &dyn Fn(&Message) -> bool| spec.messages.iter().filter(|m| of(m)).map(Message::bytes).sum::<u64>();
    let (sends, receives) = (total(&|m| m.src == me), total(&|m| m.dst == me));
    let from = plane.device().allocate(sends.max(1) as usize)?;
    let to = plane.device().allocate(receives.max(1) as usize)?;
    let buffer = plane.register(to, receives.max(1))?;
    let mut host = vec![0; sends.max(receives).max(1) as usize];
    for round in 0..spec.rounds {
        let mut at = 0;
        for m in spec.messages.iter().filter(|m| m.src == me) {
            fill(&mut host[at..at + m.bytes() as usize], m.src, m.dst, round);
            at += m.bytes() as usize;
        }
        plane.device().write(from, &host[..at])?;
        plane.device().write(to, &vec![0xee; receives as usize])?;
        plane.barrier(PATIENCE)?;
        let begin = now_s();
        let mut at = 0;
        for m in spec.messages.iter().filter(|m| m.dst == me) {
            plane.receive(m.src, &buffer, at, m.bytes())?;
            at += m.bytes();
        }
        let mut at = 0;
        for m in spec.messages.iter().filter(|m| m.src == me) {
            plane.send(m.dst, from + at, &m.split)?;
            at += m.bytes();
        }
        plane.until(PATIENCE, "the bytes of a round", Plane::idle)?;
        let end = now_s();
        plane.barrier(PATIENCE)?;
        plane.device().read(&mut host[..receives as usize], to)?;
        let (mut wrong, mut at) = (0, 0);
        for m in spec.messages.iter().filter(|m| m.dst == me) {
            let n = m.bytes() as usize;
            let mut expected = vec![0; n];
            fill(&mut expected, m.src, m.dst, round);
            wrong += expected.iter().zip(&host[at..at + n]).filter(|(a, b)| a != b).count();
            at += n;
        }
        println!("round {round} {begin:.6} {end:.6} {at} {wrong}");
    }
    plane.barrier(PATIENCE)?;
    plane.leave();
    Ok(())
}
