//! Moves bytes over TCP, as a test's process inside of a host.
//!
//! ```text
//! netns-probe listen ADDRESS:PORT           prints "listening", then answers each connection with the number of its bytes, until stdin ends
//! netns-probe send ADDRESS:PORT BYTES       sends BYTES, and prints bytes and microseconds
//! ```

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// A peer that is silent for so long is given up.
const SILENCE: Duration = Duration::from_secs(60);

fn main() -> ExitCode {
    let all: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = all.iter().map(String::as_str).collect();
    let done = match words[..] {
        ["listen", at] => listen(at),
        ["send", to, bytes] => send(to, bytes.parse().unwrap_or(0)),
        _ => {
            eprintln!("netns-probe listen ADDRESS:PORT | netns-probe send ADDRESS:PORT BYTES");
            return ExitCode::from(2);
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("netns-probe {}: {e}", all.join(" "));
            ExitCode::FAILURE
        }
    }
}

fn listen(at: &str) -> std::io::Result<()> {
    let listener = TcpListener::bind(at)?;
    println!("listening");
    std::thread::spawn(|| {
        // The starter has ended, or needs no listener any more.
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        std::process::exit(0);
    });
    for stream in listener.incoming().flatten() {
        std::thread::spawn(move || answer(stream));
    }
    Ok(())
}

fn answer(mut stream: TcpStream) -> std::io::Result<()> {
    let mut head = [0; 8];
    stream.set_read_timeout(Some(SILENCE))?;
    stream.read_exact(&mut head)?;
    let expected = u64::from_le_bytes(head);
    let got = std::io::copy(&mut (&mut stream).take(expected), &mut std::io::sink())?;
    stream.write_all(&got.to_le_bytes())
}

/// The time ends with the listener's answer: then all bytes have arrived.
fn send(to: &str, bytes: u64) -> std::io::Result<()> {
    let to: SocketAddr = to.parse().map_err(std::io::Error::other)?;
    let mut stream = TcpStream::connect_timeout(&to, SILENCE)?;
    stream.set_read_timeout(Some(SILENCE))?;
    let begin = Instant::now();
    stream.write_all(&bytes.to_le_bytes())?;
    std::io::copy(&mut std::io::repeat(1).take(bytes), &mut stream)?;
    let mut got = [0; 8];
    stream.read_exact(&mut got)?;
    println!("{} {}", u64::from_le_bytes(got), begin.elapsed().as_micros());
    Ok(())
}
