//! `--requests`: a JSON object per line in, one per line out, in order, as they are ready.

use super::answer::Reply;
use super::state::as_things_stand;
use super::{answered, search};
use console::Failure;
use place::Search;
use place::read::{Bad, LINE_BYTES_MAX, Reader};
use predict::Model;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use store::State;
use topology::Cluster;

/// What every line is answered with.
pub struct Stream<'a> {
    pub cluster: &'a Cluster,
    pub model: &'a Model,
    pub reader: Reader<'a>,
    /// Of lines that name none.
    pub search: Box<dyn Search>,
    pub seed: u64,
    /// What is free comes from here, looked up anew for every line.
    pub state: Option<State>,
    pub nccl: Option<topology::nccl::Version>,
}

impl Stream<'_> {
    /// Answers every line. Bad lines get an error object and the stream goes on; only failing to read or write ends it.
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
                error(&Value::Null, &e)
            } else if line.iter().all(u8::is_ascii_whitespace) {
                continue;
            } else {
                self.reply(&line)
            };
            // A reader that has gone away (head, a killed script) is no failure of ours.
            if writeln!(out, "{reply}").and_then(|()| out.flush()).is_err() {
                return Ok(());
            }
        }
    }

    /// The answer to one line, or its error object.
    fn reply(&self, line: &[u8]) -> Value {
        let start = std::time::Instant::now();
        let (id, asked) = self.reader.line(line);
        let replied = asked.and_then(|asked| {
            let named = asked.search.map(|name| search(name, self.seed)).transpose()?;
            let search = named.as_deref().unwrap_or(&*self.search);
            let (cluster, model) = (self.cluster, self.model);
            let request = &match &self.state {
                Some(s) => {
                    let now = s.snapshot().map_err(|e| Bad::new("state", e))?;
                    as_things_stand(&asked.request, &now)
                }
                None => asked.request,
            };
            let answer = answered(cluster, model, request, search)?;
            Ok(Reply { cluster, model, request, answer: &answer, elapsed: start.elapsed(), nccl: self.nccl }
                .json(Some(&id)))
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

fn error(id: &Value, e: &Bad) -> Value {
    json!({"id": id, "error": {"code": e.code, "message": e.message}})
}
