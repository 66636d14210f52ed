//! `--requests`: reads one JSON object per line and answers each line with one, in order, as soon as it is ready.

use super::reply::Reply;
use console::{Failure, now_unix_s};
use engine::{Engine, EngineError, PlaceQuery};
use place::read::{Bad, LINE_BYTES_MAX, Reader};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use topology::nccl::Version;

/// Settings common to all lines.
pub struct Stream<'a> {
    pub engine: &'a Engine,
    pub reader: Reader<'a>,
    /// Search for lines that name none.
    pub search: &'a str,
    pub seed: u64,
    pub nccl: Option<Version>,
}

impl Stream<'_> {
    /// Answers every line. A bad line gets an error object and the stream continues; only a failed read or write ends
    /// the stream.
    pub fn run(&self, file: &Path) -> Result<(), Failure> {
        let input: Box<dyn Read> = if file == Path::new("-") {
            Box::new(std::io::stdin().lock())
        } else {
            Box::new(std::fs::File::open(file).map_err(|e| Failure::file("open", file, e))?)
        };
        let mut input = BufReader::new(input);
        let mut out = std::io::stdout().lock();
        let mut line = Vec::new();
        let mut number = 0u64;
        loop {
            line.clear();
            number += 1;
            let n = input
                .by_ref()
                .take(LINE_BYTES_MAX as u64 + 1)
                .read_until(b'\n', &mut line)
                .map_err(|e| Failure::file("read", file, e))?;
            if n == 0 {
                return Ok(());
            }
            let reply = if n > LINE_BYTES_MAX {
                if line.last() != Some(&b'\n') {
                    skip_line(&mut input).map_err(|e| Failure::file("read", file, e))?;
                }
                let e = Bad::new("bad_request", format!("line {number} is longer than {LINE_BYTES_MAX} bytes"));
                error(&Value::Null, &e.into())
            } else if line.iter().all(u8::is_ascii_whitespace) {
                continue;
            } else {
                self.reply(&line)
            };
            // A closed pipe (`head`, a killed script) ends the stream without an error; a full disk is one.
            match writeln!(out, "{reply}").and_then(|()| out.flush()) {
                Ok(()) => {}
                Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => return Ok(()),
                Err(e) => return Err(Failure::input(format!("cannot write to standard output: {e}"))),
            }
        }
    }

    /// The answer to one line, or its error object.
    fn reply(&self, line: &[u8]) -> Value {
        let start = std::time::Instant::now();
        let (id, asked) = self.reader.line(line);
        let replied = asked.map_err(EngineError::from).and_then(|asked| {
            let search = asked.search.unwrap_or(self.search).to_owned();
            let query = PlaceQuery { search, seed: self.seed, ..PlaceQuery::new(asked.request) };
            let answer = self.engine.place(&query, now_unix_s())?;
            let cluster = self.engine.cluster();
            Ok(Reply { cluster, answer: &answer, elapsed: start.elapsed(), nccl: self.nccl }.json(Some(&id)))
        });
        replied.unwrap_or_else(|e| error(&id, &e))
    }
}

fn skip_line(input: &mut impl BufRead) -> std::io::Result<()> {
    loop {
        let (used, end) = {
            let buffer = input.fill_buf()?;
            match buffer.iter().position(|b| *b == b'\n') {
                Some(i) => (i + 1, true),
                None => (buffer.len(), buffer.is_empty()),
            }
        };
        input.consume(used);
        if end {
            return Ok(());
        }
    }
}

fn error(id: &Value, e: &EngineError) -> Value {
    json!({"id": id, "error": e})
}
