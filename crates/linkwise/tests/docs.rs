//! Every block of README.md and docs/ runs as a reader would paste it, and every link, target and flag that they name exists.
//!
//! Each document has a folder of its own with `examples` and, where the published tables are at hand, `DATA`. Its blocks run in order,
//! by `bash -euo pipefail`, with the built programs first on PATH. The language of a fence says what happens:
//!
//! | fence | what |
//! |---|---|
//! | `sh` | runs and must end with 0 |
//! | `console` | lines after `$ ` run, the rest is their output and is compared (`normal`); a line `...` stands for any lines |
//! | `yaml` | a whole cluster file: `linkwise topology show` loads it |
//! | `json` | one JSON document, or one a line |
//! | `bash` | not run here (it installs or builds); its make targets and scripts exist |
//! | others | nothing |
//!
//! `LINKWISE_DOCS=update cargo test -p linkwise --test docs` writes the present output into the `console` blocks that differ.

use std::collections::{BTreeSet, HashMap};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;
use wait_timeout::ChildExt;

/// Blocks with these words are skipped, with a line that says so, until the programs have them.
const NOT_YET: [&str; 0] = [];

/// Rooms of docs/architecture.md and crates/README.md that are not built yet.
const ROOMS_TO_COME: [&str; 0] = [];

/// One block takes no longer.
const PATIENCE: Duration = Duration::from_secs(120);

/// Programs that need hardware, and what stands in for them. They print fixtures of this repository, in the form of the real program.
const STAND_INS: [(&str, &str); 3] = [
    // The matrix of an HGX H100, which `linkwise-lab demo` reads, too.
    ("nvidia-smi", "#!/bin/sh\ncat examples/hgx-h100.topo.txt\n"),
    // One row per size and iteration: TREE/SIMPLE takes 60 us, AUTO 100, others more.
    ("all_reduce_perf", include_str!("stand-ins/all_reduce_perf.sh")),
    // Runs the program once.
    ("torchrun", "#!/bin/sh\nexec true\n"),
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

fn programs() -> PathBuf {
    Path::new(env!("CARGO_BIN_EXE_linkwise")).parent().unwrap().to_path_buf()
}

fn published() -> Option<PathBuf> {
    let named = std::env::var_os("LINKWISE_DATA").map(PathBuf::from);
    let beside = root().join("../shared/data");
    named.into_iter().chain([beside]).find(|p| p.join("bandpilot").is_dir()).and_then(|p| p.canonicalize().ok())
}

/// README.md and docs/**/*.md.
fn documents() -> Vec<PathBuf> {
    let mut found = vec![root().join("README.md")];
    let mut folders = vec![root().join("docs")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == "md") {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

fn name_of(document: &Path) -> String {
    document.strip_prefix(root()).unwrap().display().to_string()
}

/// A fenced block: its language, the line of its fence (from 1) and what it holds.
struct Block {
    language: String,
    line: usize,
    body: Vec<String>,
}

fn blocks(text: &str) -> Vec<Block> {
    let mut found = Vec::new();
    let mut open: Option<Block> = None;
    for (i, line) in text.lines().enumerate() {
        match (line.strip_prefix("```"), &mut open) {
            (Some(language), None) => {
                open = Some(Block { language: language.trim().into(), line: i + 1, body: Vec::new() });
            }
            (Some(_), Some(_)) => found.extend(open.take()),
            (None, Some(block)) => block.body.push(line.into()),
            (None, None) => {}
        }
    }
    assert!(open.is_none(), "a block that does not end");
    found
}

/// Why a block cannot run here.
fn why_not(body: &str) -> Option<String> {
    if let Some(words) = NOT_YET.iter().find(|w| body.contains(**w)) {
        return Some(format!("no program has `{}` yet", words.trim()));
    }
    if body.contains("linkwise-lab") && !programs().join("linkwise-lab").is_file() {
        return Some("linkwise-lab is not built".into());
    }
    if ["linkwise run", "linkwise plugin"].iter().any(|w| body.contains(w)) {
        let found = Command::new(env!("CARGO_BIN_EXE_linkwise")).args(["plugin", "path"]).output();
        if !found.is_ok_and(|o| o.status.success()) || !programs().join("linkwise-plugin-check").is_file() {
            return Some("the NCCL plugin is not built".into());
        }
    }
    if body.contains("DATA/") && published().is_none() {
        return Some("the published tables are not at hand (docs/data.md)".into());
    }
    None
}

/// A folder as a reader in a clone has it, with stand-ins beside.
fn folder() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let to = |name: &str| dir.path().join(name);
    std::os::unix::fs::symlink(root().join("examples"), to("examples")).unwrap();
    if let Some(data) = published() {
        std::os::unix::fs::symlink(data, to("DATA")).unwrap();
    }
    std::fs::create_dir(to(".stand-ins")).unwrap();
    for (name, text) in STAND_INS {
        use std::os::unix::fs::PermissionsExt;
        let path = to(".stand-ins").join(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    dir
}

/// Exit code and everything that was said, standard error where it came.
fn bash(script: &str, dir: &Path) -> (i32, String) {
    let said = tempfile::tempfile().unwrap();
    let path = std::env::var("PATH").unwrap_or_default();
    let mut child = Command::new("bash")
        .args(["-euo", "pipefail", "-c", script])
        .current_dir(dir)
        .env("PATH", format!("{}:{}:{path}", dir.join(".stand-ins").display(), programs().display()))
        .env("TZ", "UTC")
        .env_remove("COLUMNS")
        .stdin(Stdio::null())
        .stdout(said.try_clone().unwrap())
        .stderr(said.try_clone().unwrap())
        .spawn()
        .unwrap();
    let code = match child.wait_timeout(PATIENCE).unwrap() {
        Some(status) => status.code().unwrap_or(-1),
        None => {
            let _ = child.kill();
            -1
        }
    };
    let mut text = String::new();
    let mut said = said;
    std::io::Seek::rewind(&mut said).unwrap();
    std::io::Read::read_to_string(&mut said, &mut text).unwrap();
    (code, text)
}

/// A line without what differs from run to run or from machine to machine: times, dates, the width of columns and rules.
fn normal(line: &str) -> String {
    let line = &without_json_times(line);
    let rule = |w: &str| w.chars().all(|c| "─═│┌┐└┘├┤┬┴┼╞╡╪-".contains(c)) && w.chars().count() > 2;
    let number =
        |w: &str| w.starts_with(|c: char| c.is_ascii_digit()) && w.chars().all(|c| "0123456789.,:".contains(c));
    let date = |w: &str| {
        let w = w.trim_matches(|c: char| "(),;.".contains(c));
        w.len() == 10
            && w.bytes().enumerate().all(|(i, b)| if i == 4 || i == 7 { b == b'-' } else { b.is_ascii_digit() })
    };
    let unit = |w: &str| {
        let w = w.trim_matches(|c: char| "(),;.".contains(c));
        ["ns", "us", "µs", "ms", "s", "min", "h", "second", "seconds", "minute", "minutes"].contains(&w)
    };
    let clock = |w: &str| {
        let w = w.trim_matches(|c: char| "(),;.".contains(c));
        w.len() >= 5 && w.len() <= 8 && w.contains(':') && w.chars().all(|c| c.is_ascii_digit() || c == ':')
    };
    let words: Vec<&str> = line.split_whitespace().collect();
    let mut out: Vec<&str> = Vec::new();
    let mut i = 0;
    while i < words.len() {
        let word = words[i];
        if number(word.trim_start_matches('(')) && words.get(i + 1).is_some_and(|w| unit(w)) {
            out.push("TIME");
            i += 2;
            continue;
        }
        out.push(match word {
            w if rule(w) => "RULE",
            w if date(w) => "DATE",
            w if clock(w) => "CLOCK",
            w => w,
        });
        i += 1;
    }
    out.join(" ")
}

/// A line of JSON without the numbers after `_us":`.
fn without_json_times(line: &str) -> String {
    let mut parts = line.split("_us\":");
    let first = parts.next().unwrap_or("").to_string();
    parts.fold(first, |out, part| out + "_us\":" + part.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.'))
}

/// Whether lines fit what is expected of them; `...` stands for any lines.
fn fits(expected: &[String], got: &[String]) -> bool {
    match expected.split_first() {
        None => got.is_empty(),
        Some((first, rest)) if first.trim() == "..." => (0..=got.len()).any(|skip| fits(rest, &got[skip..])),
        Some((first, rest)) => {
            got.split_first().is_some_and(|(line, more)| normal(first) == normal(line) && fits(rest, more))
        }
    }
}

/// What to write in place of lines that do not fit: as many before and after a `...` as there were.
fn renewed(expected: &[String], got: &[String]) -> Vec<String> {
    let got: Vec<String> = got.iter().map(|l| l.trim_end().to_string()).collect();
    match expected.iter().position(|l| l.trim() == "...") {
        Some(before) if expected.len() <= got.len() => {
            let after = expected.len() - before - 1;
            [&got[..before], &["...".to_string()], &got[got.len() - after..]].concat()
        }
        _ => got,
    }
}

/// The commands of a `console` block, each with the output that it shows.
fn sessions(body: &[String]) -> Vec<(Vec<String>, Vec<String>)> {
    let mut found: Vec<(Vec<String>, Vec<String>)> = Vec::new();
    let mut more = false;
    for line in body {
        match (line.strip_prefix("$ "), more) {
            (Some(command), _) => {
                found.push((vec![command.into()], Vec::new()));
                more = command.ends_with('\\');
            }
            (None, true) => {
                found.last_mut().unwrap().0.push(line.clone());
                more = line.ends_with('\\');
            }
            (None, false) => found.last_mut().expect("a console block begins with `$ `").1.push(line.clone()),
        }
    }
    found
}

/// Runs a document's blocks; failures, and the text with the output as it is now.
fn run(document: &Path) -> (Vec<String>, String) {
    let text = std::fs::read_to_string(document).unwrap();
    let mut lines: Vec<String> = text.lines().map(String::from).collect();
    let dir = folder();
    let mut failures = Vec::new();
    let mut renewals: Vec<(usize, usize, Vec<String>)> = Vec::new();
    for block in blocks(&text) {
        let at = format!("{}:{}", name_of(document), block.line);
        let body = block.body.join("\n");
        if ["sh", "console"].contains(&block.language.as_str())
            && let Some(reason) = why_not(&body)
        {
            println!("SKIP every_block_runs_as_it_is_pasted: {at}: {reason}");
            continue;
        }
        match block.language.as_str() {
            "sh" => {
                let (code, said) = bash(&body, dir.path());
                if code != 0 {
                    failures.push(format!("{at}: exit code {code}\n{body}\n{said}"));
                }
            }
            "console" => {
                let mut now = Vec::new();
                let mut differs = false;
                for (command, expected) in sessions(&block.body) {
                    let (code, said) = bash(&command.join("\n"), dir.path());
                    let got: Vec<String> = said.lines().map(String::from).collect();
                    if code < 0 {
                        failures.push(format!("{at}: {}: does not end", command.join("\n")));
                    }
                    now.push(format!("$ {}", command.join("\n")));
                    if fits(&expected, &got) {
                        now.extend(expected);
                    } else {
                        differs = true;
                        failures.push(format!(
                            "{at}: $ {}\nthe document shows:\n{}\nit says:\n{said}",
                            command.join("\n"),
                            expected.join("\n")
                        ));
                        now.extend(renewed(&expected, &got));
                    }
                }
                if differs {
                    renewals.push((block.line, block.body.len(), now));
                }
            }
            "yaml" => {
                let file = dir.path().join("block.yaml");
                std::fs::write(&file, &body).unwrap();
                let (code, said) = bash("linkwise topology show block.yaml", dir.path());
                if code != 0 {
                    failures.push(format!("{at}: {said}"));
                }
            }
            "json" => {
                let whole = serde_json::from_str::<serde_json::Value>(&body).map(|_| ());
                let each = block.body.iter().try_for_each(|l| serde_json::from_str::<serde_json::Value>(l).map(|_| ()));
                if let (Err(e), Err(_)) = (&whole, &each) {
                    failures.push(format!("{at}: {e}"));
                }
            }
            // `crates/python/tests` runs Python.
            "bash" | "text" | "rust" | "python" | "" => {}
            other => failures.push(format!("{at}: language `{other}` is not one of this test's")),
        }
        if block.language.is_empty() {
            failures.push(format!("{at}: a block without a language"));
        }
    }
    for (line, length, now) in renewals.into_iter().rev() {
        lines.splice(line..line + length, now);
    }
    (failures, lines.join("\n") + "\n")
}

#[test]
fn every_block_runs_as_it_is_pasted() {
    let update = std::env::var_os("LINKWISE_DOCS").is_some_and(|v| v == "update");
    let mut failures = String::new();
    for document in documents() {
        let begin = std::time::Instant::now();
        let (found, text) = run(&document);
        println!("{} {:.1} s", name_of(&document), begin.elapsed().as_secs_f64());
        if update && !found.is_empty() {
            std::fs::write(&document, text).unwrap();
        }
        for f in found {
            let _ = writeln!(failures, "{f}\n");
        }
    }
    assert!(failures.is_empty(), "(LINKWISE_DOCS=update rewrites outputs)\n\n{failures}");
}

#[test]
fn every_link_leads_somewhere() {
    let mut dead = Vec::new();
    let mut asked = 0;
    let crates = std::fs::read_dir(root().join("crates")).unwrap().map(|e| e.unwrap().path().join("README.md"));
    let pages = ["crates/README.md", "examples/README.md", "CHANGELOG.md"].map(|p| root().join(p));
    let more = crates.chain(pages).filter(|p| p.is_file());
    for document in documents().into_iter().chain(more) {
        let text = std::fs::read_to_string(&document).unwrap();
        for part in text.split("](").skip(1) {
            let target = part.split(')').next().unwrap_or("");
            if target.contains("://") || target.contains(' ') || target.is_empty() {
                continue;
            }
            asked += 1;
            let (file, heading) = target.split_once('#').unwrap_or((target, ""));
            let path = if file.is_empty() { document.clone() } else { document.parent().unwrap().join(file) };
            let found = path.exists() && (heading.is_empty() || headings(&path).contains(heading));
            if !found {
                dead.push(format!("{}: {target}", name_of(&document)));
            }
        }
    }
    assert!(dead.is_empty() && asked > 20, "{asked} links; dead:\n{}", dead.join("\n"));
}

/// Names that GitHub gives to a page's headings.
fn headings(page: &Path) -> BTreeSet<String> {
    let text = std::fs::read_to_string(page).unwrap();
    let headings = text.lines().filter(|l| l.starts_with('#')).map(|l| l.trim_start_matches('#').trim());
    let letters =
        |h: &str| h.to_lowercase().chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c)).collect::<String>();
    headings.map(|h| letters(h).replace(' ', "-")).collect()
}

/// Commands of a document: in backticks, and lines of blocks.
fn commands(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut outside = String::new();
    for (i, part) in text.split("```").enumerate() {
        if i % 2 == 1 {
            let (_, body) = part.split_once('\n').unwrap_or(("", ""));
            let joined = body.replace("\\\n", " ");
            found.extend(joined.lines().map(|l| l.trim_start_matches("$ ").trim().to_string()));
        } else {
            outside += &part.replace('\n', " ");
        }
    }
    found.extend(outside.split('`').skip(1).step_by(2).map(str::to_string));
    found
}

#[test]
fn every_flag_that_a_document_names_is_one_of_its_command() {
    let mut help: HashMap<String, Option<String>> = HashMap::new();
    let mut wrong = BTreeSet::new();
    let mut asked = 0;
    for document in documents() {
        let text = std::fs::read_to_string(&document).unwrap();
        for command in commands(&text) {
            let command = command.split(" # ").next().unwrap_or("").split(" -- ").next().unwrap_or("").to_string();
            if NOT_YET.iter().any(|w| command.contains(w.trim())) {
                continue;
            }
            for part in command.split(['|', ';', '&']) {
                let words: Vec<&str> = part.split_whitespace().collect();
                let Some((program, rest)) =
                    words.split_first().filter(|(p, _)| ["linkwise", "linkwise-lab"].contains(p))
                else {
                    continue;
                };
                if !programs().join(program).is_file() {
                    continue;
                }
                let sub: Vec<&str> = rest
                    .iter()
                    .take(2)
                    .take_while(|w| w.chars().all(|c| c.is_ascii_lowercase() || c == '-') && !w.starts_with('-'))
                    .copied()
                    .collect();
                // The page of the longest command that these words are; with words there must be one.
                let page = (sub.len().min(1)..=sub.len()).rev().find_map(|n| {
                    help.entry(format!("{program} {}", sub[..n].join(" ")))
                        .or_insert_with(|| {
                            let mut c = Command::new(programs().join(program));
                            let out = c.args(&sub[..n]).arg("--help").stdin(Stdio::null()).output().unwrap();
                            out.status.success().then(|| String::from_utf8_lossy(&out.stdout).into_owned())
                        })
                        .clone()
                });
                let Some(page) = page else {
                    wrong.insert(format!("{}: `{}`: no such command", name_of(&document), part.trim()));
                    continue;
                };
                asked += 1;
                for flag in rest.iter().filter(|w| w.starts_with("--") && w.len() > 2) {
                    let flag = flag.split('=').next().unwrap_or("").trim_end_matches([',', '.', ')', ']']);
                    let known = page.split(|c: char| c.is_whitespace() || ",=[<".contains(c)).any(|w| w == flag);
                    if !known {
                        wrong.insert(format!("{}: `{}`: no flag {flag}", name_of(&document), part.trim()));
                    }
                }
            }
        }
    }
    let wrong: Vec<String> = wrong.into_iter().collect();
    assert!(wrong.is_empty() && asked > 50, "{asked} commands; wrong:\n{}", wrong.join("\n"));
}

#[test]
fn every_target_script_and_test_that_a_document_names_exists() {
    let makefile = std::fs::read_to_string(root().join("Makefile")).unwrap();
    let mut wrong = Vec::new();
    for document in documents() {
        let text = std::fs::read_to_string(&document).unwrap();
        for command in commands(&text) {
            let words: Vec<&str> = command.split_whitespace().collect();
            let miss = match words.as_slice() {
                ["make", target, ..] => !makefile.contains(&format!("\n{target}: ")),
                [script, ..] if script.starts_with("scripts/") => !root().join(script.trim_matches(',')).exists(),
                ["cargo", "test" | "bench" | "run", ..] => {
                    let after =
                        |flag: &str| words.iter().position(|w| *w == flag).and_then(|i| words.get(i + 1)).copied();
                    let folder = after("-p").and_then(|p| {
                        ["crates", "lab", "testbed", "integrations"]
                            .iter()
                            .map(|f| root().join(f).join(p))
                            .find(|d| d.is_dir())
                    });
                    let file = |flag: &str, sub: &str| {
                        after(flag).is_none_or(|name| {
                            folder.as_ref().is_some_and(|f| {
                                f.join(sub).join(format!("{name}.rs")).is_file() || f.join(sub).join(name).is_dir()
                            })
                        })
                    };
                    (after("-p").is_some() && folder.is_none() && after("-p") != Some("linkwise-lab"))
                        || (folder.is_some()
                            && !(file("--test", "tests")
                                && file("--example", "examples")
                                && file("--bench", "benches")))
                }
                _ => false,
            };
            if miss {
                wrong.push(format!("{}: `{command}`", name_of(&document)));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_room_is_drawn_and_every_room_that_is_drawn_stands() {
    let rooms = |page: &str| -> BTreeSet<String> {
        let text = std::fs::read_to_string(root().join(page)).unwrap();
        let rows = text.lines().filter(|l| l.starts_with("| ")).filter_map(|l| l.split('|').nth(2).map(str::to_string));
        let names = rows.flat_map(|cell| cell.split('`').skip(1).step_by(2).map(str::to_string).collect::<Vec<_>>());
        names.map(|n| n.trim_end_matches('/').to_string()).collect()
    };
    let folders: BTreeSet<String> = std::fs::read_dir(root().join("crates"))
        .unwrap()
        .map(|e| e.unwrap().path())
        .filter(|p| p.join("Cargo.toml").is_file())
        .map(|p| p.file_name().unwrap().to_string_lossy().into_owned())
        .collect();
    for page in ["docs/architecture.md", "crates/README.md"] {
        let drawn = rooms(page);
        let missing: Vec<_> = folders.difference(&drawn).collect();
        assert!(missing.is_empty(), "{page} has no line for {missing:?}");
        for name in drawn {
            let stands = folders.contains(&name) || (name.starts_with("lab") && root().join(&name).is_dir());
            let to_come = ROOMS_TO_COME.contains(&name.as_str());
            assert!(stands != to_come, "{page}: `{name}` (stands: {stands}, still in ROOMS_TO_COME: {to_come})");
        }
    }
}

#[test]
fn no_line_of_the_readme_is_longer_than_150_characters() {
    let text = std::fs::read_to_string(root().join("README.md")).unwrap();
    let long: Vec<&str> = text.lines().filter(|l| l.chars().count() > 150).collect();
    assert!(long.is_empty(), "{}", long.join("\n"));
}

#[test]
fn every_example_cluster_loads_and_shows_no_note() {
    let mut seen = 0;
    for entry in std::fs::read_dir(root().join("examples")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|e| e == "yaml") {
            seen += 1;
            let out =
                Command::new(env!("CARGO_BIN_EXE_linkwise")).args(["topology", "show"]).arg(&path).output().unwrap();
            assert!(out.status.success() && out.stderr.is_empty(), "{}", String::from_utf8_lossy(&out.stderr));
        }
    }
    assert!(seen >= 3, "{seen} examples");
}

#[test]
fn a_block_that_fails_and_an_output_that_differs_are_found() {
    let dir = folder();
    assert_eq!(bash("false; true", dir.path()).0, 1, "every command of a block must end with 0");
    assert_eq!(bash("false | true", dir.path()).0, 1, "every part of a pipe, too");
    let lines = |t: &str| t.lines().map(String::from).collect::<Vec<_>>();
    assert!(fits(&lines("a  took 3 ms\n───"), &lines("a took 12.5 us\n──────")));
    assert!(fits(&lines("{\"elapsed_us\":12.5,\"a\":1}"), &lines("{\"elapsed_us\":7,\"a\":1}")));
    assert!(fits(&lines("a\n...\nd"), &lines("a\nb\nc\nd")) && fits(&lines("a\n..."), &lines("a")));
    assert!(!fits(&lines("12 GB/s"), &lines("13 GB/s")) && !fits(&lines("a"), &lines("a\nb")));
    assert_eq!(renewed(&lines("x\n...\ny"), &lines("a\nb\nc\nd")), lines("a\n...\nd"));
    assert_eq!(renewed(&lines("x"), &lines("a\nb")), lines("a\nb"));
    assert_eq!(sessions(&lines("$ a \\\n  b\nout\n$ c"))[0], (lines("a \\\n  b"), lines("out")));
}
