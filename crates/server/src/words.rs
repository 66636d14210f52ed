//! The words of messages: what the engine says in the words of the command, the server says in those of requests.

/// Parts of messages that name a command's flag, and their words in a request.
const PHRASES: [(&str, &str); 18] = [
    ("`linkwise readings list`", "`GET /v1/readings`"),
    ("`--search exact`", "`\"search\": \"exact\"`"),
    ("--search threshold", "`\"search\": \"threshold\"`"),
    ("--model gp", "`\"kind\": \"gp\"`"),
    ("--model FILE", "a model file"),
    ("with --host-map", "with a host map,"),
    ("--planner linkwise", "`\"planner\": \"linkwise\"`"),
    ("`linkwise measure --store`", "`linkwise measure`"),
    ("`linkwise cluster init --cluster C --state FILE`", "`linkwise cluster init`"),
    ("`linkwise nccl explain --exact`", "the exact form of `linkwise nccl explain`"),
    ("--collective", "`collective`"),
    ("--search", "`search`"),
    ("--force", "`force`"),
    ("--store", "`store`"),
    ("--state", "`state`"),
    ("--gpus", "`gpus`"),
    ("--free", "`free`"),
    ("--planner", "`planner`"),
];
/// The command that ends a drain, around the GPUs.
const UNDO: (&str, &str) = ("`linkwise cluster drain ", " --undo`");

/// A message in the words of requests.
pub fn of_requests(text: String) -> String {
    if !text.contains("--") {
        return text;
    }
    let mut text = match (text.find(UNDO.0), text.find(UNDO.1)) {
        (Some(from), Some(to)) if from < to => {
            format!("{}`POST /v1/hosts/undrain`{}", &text[..from], &text[to + UNDO.1.len()..])
        }
        _ => text,
    };
    for (flag, field) in PHRASES {
        if text.contains(flag) {
            text = text.replace(flag, field);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    /// The strings with a flag in the sources of a crate, without comments and tests.
    fn strings_with_flags(file: &Path, found: &mut Vec<String>) {
        if file.is_dir() {
            for f in std::fs::read_dir(file).unwrap().flatten() {
                strings_with_flags(&f.path(), found);
            }
            return;
        }
        let Ok(text) = std::fs::read_to_string(file) else { return };
        let code = text.split("#[cfg(test)]").next().unwrap_or_default();
        let lines = code.lines().filter(|l| !l.trim_start().starts_with("//"));
        found.extend(lines.filter(|l| l.contains("--")).map(str::to_owned));
    }

    #[test]
    fn every_flag_in_the_messages_of_the_rooms_below_has_its_word_in_requests() {
        let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let mut all = Vec::new();
        for room in ["engine", "place", "predict", "diagnose", "store", "route", "nccl-model"] {
            strings_with_flags(&crates.join(room).join("src"), &mut all);
        }
        assert!(all.len() >= 10, "the rooms have messages with flags: {}", all.len());
        for line in all {
            let said = of_requests(line.clone());
            let flag = said.find("--").filter(|i| said[i + 2..].starts_with(|c: char| c.is_ascii_lowercase()));
            assert_eq!(flag, None, "{line} becomes {said}");
        }
    }

    #[test]
    fn the_end_of_a_drain_is_named_as_a_request() {
        let said = of_requests("n0:1 is drained; `linkwise cluster drain n0:1 --undo` ends the drain".into());
        assert_eq!(said, "n0:1 is drained; `POST /v1/hosts/undrain` ends the drain");
    }
}
