//! The border of this crate.

#[test]
fn linkwise_imports_only_what_its_border_allows() {
    house::assert_imports(
        env!("CARGO_MANIFEST_DIR"),
        &[
            "agreement",
            "autotune",
            "draw",
            "import",
            "engine",
            "fabric",
            "files",
            "job",
            "linkwise-console",
            "measure",
            "nccl-bench",
            "nccl-model",
            "papers",
            "place",
            "predict",
            "report",
            "route",
            "server",
            "slurm",
            "stats",
            "store",
            "topology",
            "tune",
        ],
    );
}

/// Modules of `cmd` that every command may use.
const SHARED: [&str; 1] = ["open"];

/// Paths in `file`, whose modules from `cmd` down are `own`, that reach another of `commands`.
fn foreign(file: &str, own: &[String], commands: &[String]) -> Vec<String> {
    let other = |module: &str| {
        let shared = module == own[0] || SHARED.contains(&module);
        !shared && commands.iter().any(|c| c == module)
    };
    let first_word =
        |path: &str| path.split(|c: char| !(c.is_alphanumeric() || c == '_')).next().unwrap_or("").to_owned();
    let mut out = Vec::new();
    let up = "super::".repeat(own.len());
    for prefix in ["crate::cmd::", &up] {
        for (at, _) in file.match_indices(prefix) {
            let rest = &file[at + prefix.len()..];
            let inside_a_longer_path = file[..at].ends_with("::");
            if !inside_a_longer_path && (other(&first_word(rest)) || rest.starts_with('{')) {
                out.push(file[at..].lines().next().unwrap_or("").to_owned());
            }
        }
    }
    out
}

/// Every file below `folder`, with its modules from `folder` down.
fn modules(folder: &std::path::Path, above: &[String]) -> Vec<(std::path::PathBuf, Vec<String>)> {
    let mut out = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let stem = path.file_stem().unwrap().to_string_lossy().into_owned();
        let below: Vec<String> = above.iter().cloned().chain((stem != "mod").then_some(stem)).collect();
        match path.is_dir() {
            true => out.extend(modules(&path, &below)),
            false => out.push((path, below)),
        }
    }
    out
}

#[test]
fn no_command_imports_another_one() {
    let mut files = modules(&std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/cmd"), &[]);
    files.retain(|(_, own)| !own.is_empty());
    let commands: Vec<String> = files.iter().map(|(_, own)| own[0].clone()).collect();
    assert!(commands.len() > 30, "{} files were found", commands.len());
    let found = files.iter().flat_map(|(path, own)| {
        let text = std::fs::read_to_string(path).unwrap();
        foreign(&text, own, &commands).into_iter().map(|line| format!("{}: {line}", path.display())).collect::<Vec<_>>()
    });
    let found: Vec<String> = found.collect();
    assert!(found.is_empty(), "move what two commands need out of `cmd`, or to {SHARED:?}: {found:#?}");
}

#[test]
fn an_import_of_another_command_is_found_in_every_form() {
    let words = |path: &str| path.split('/').map(str::to_owned).collect::<Vec<_>>();
    let found = |file: &str, own: &str| foreign(file, &words(own), &words("open/place/run/tune"));
    assert_eq!(found("use crate::cmd::tune::report;", "place/reply"), ["crate::cmd::tune::report;"]);
    assert_eq!(found("use super::tune::report;", "run"), ["super::tune::report;"]);
    assert_eq!(found("use super::super::tune::report;", "place/reply"), ["super::super::tune::report;"]);
    assert_eq!(found("use crate::cmd::{tune, open};", "run"), ["crate::cmd::{tune, open};"]);
    let own =
        "use super::tune::x; use super::*; use crate::cmd::open; use crate::cmd::place::text; use super::super::open;";
    assert!(found(own, "place/reply").is_empty());
}
