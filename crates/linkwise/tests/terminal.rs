//! What a terminal expects of every command: pipes that close, disks that are full, Ctrl-C, 80 columns, the umask.

mod common;

use common::{Folder, linkwise, said};
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// A folder with a store of simulated measurements and a demand of 8 ranks.
fn workplace() -> Folder {
    let folder = Folder::new();
    let rows: Vec<String> =
        (0..8).map(|i| (0..8).map(|j| if i == j { "0" } else { "1048576" }).collect::<Vec<_>>().join(",")).collect();
    std::fs::write(folder.at("demand.csv"), rows.join("\n") + "\n").unwrap();
    let mut measure = linkwise("measure", &["--cluster", "h100", "--backend", "simulated", "--samples", "5"]);
    measure.args(["--store", "s.db"]).current_dir(&folder.0);
    let (code, out, err) = said(measure);
    assert_eq!(code, 0, "{err}");
    too_wide(&out, "measure");
    let header = "stage points taken failed outliers rejected suspect run s GPU";
    assert_eq!(out.lines().next().unwrap().split_whitespace().collect::<Vec<_>>().join(" "), header, "{out}");
    assert!(out.contains("run s and GPU min are simulated"), "{out}");
    folder
}

/// No line of a text that fits 80 columns is longer.
fn too_wide(text: &str, what: &str) {
    let wide: Vec<&str> = text.lines().filter(|l| l.chars().count() > 80).collect();
    assert!(wide.is_empty(), "{what}: {wide:#?}");
}

/// Commands that print much, and whether the text is for people.
const PRINT_MUCH: [(&[&str], bool); 13] = [
    (&["--help"], true),
    (&["measure", "--help"], true),
    (&["completion", "bash"], false),
    (&["completion", "zsh"], false),
    (&["topology", "show", "h100"], true),
    (&["topology", "show", "h100", "--format", "json"], false),
    (&["topology", "types"], true),
    (&["topology", "schema"], false),
    (&["nccl", "explain", "--cluster", "h100", "--gpus", "n0 n1:[0-3]"], true),
    (&["nccl", "advise", "--cluster", "h100", "--gpus", "n[0-2]:[0-2]", "--unchecked"], true),
    (&["route", "plan", "demand.csv", "--cluster", "rails2x4"], true),
    (&["route", "plan", "demand.csv", "--cluster", "rails2x4", "--format", "json"], false),
    (&["measure", "--cluster", "h100", "--store", "s.db", "--export", "-"], false),
];

fn command(folder: &Folder, args: &[&str]) -> Command {
    let mut c = Command::new(env!("CARGO_BIN_EXE_linkwise"));
    c.args(args).current_dir(&folder.0).env("COLUMNS", "80").stdin(Stdio::null()).stderr(Stdio::piped());
    c
}

#[test]
fn a_closed_pipe_ends_a_command_quietly() {
    let folder = workplace();
    for (args, _) in PRINT_MUCH {
        let mut child = command(&folder, args).stdout(Stdio::piped()).spawn().unwrap();
        drop(child.stdout.take());
        let out = child.wait_with_output().unwrap();
        let err = String::from_utf8(out.stderr).unwrap();
        assert_eq!(out.status.code(), Some(0), "{args:?}: {err}");
        assert!(!err.contains("panicked") && !err.contains("error") && !err.contains("backtrace"), "{args:?}: {err}");
    }
}

#[test]
fn a_full_disk_is_one_error() {
    let folder = workplace();
    for (args, _) in PRINT_MUCH {
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let out = command(&folder, args).stdout(full).output().unwrap();
        let err = String::from_utf8(out.stderr).unwrap();
        assert_eq!(out.status.code(), Some(2), "{args:?}: {err}");
        assert_eq!(err.matches("error: cannot write to standard output").count(), 1, "{args:?}: {err}");
        assert!(!err.contains("panicked"), "{args:?}: {err}");
    }
}

#[test]
fn text_fits_80_columns_without_a_terminal() {
    let folder = workplace();
    for (args, _) in PRINT_MUCH.iter().filter(|(_, people)| *people) {
        let out = command(&folder, args).output().unwrap();
        too_wide(&String::from_utf8(out.stdout).unwrap(), &format!("{args:?}"));
    }
}

#[test]
fn help_pages_fit_80_columns() {
    let folder = Folder::new();
    let pages: [&[&str]; 24] = [
        &[],
        &["topology"],
        &["topology", "show"],
        &["topology", "import"],
        &["measure"],
        &["fit"],
        &["place"],
        &["explain"],
        &["cluster"],
        &["cluster", "drain"],
        &["observe"],
        &["readings"],
        &["readings", "list"],
        &["doctor"],
        &["nccl", "explain"],
        &["nccl", "advise"],
        &["tune"],
        &["tune", "profile"],
        &["tune", "characterize"],
        &["tune", "report"],
        &["route"],
        &["route", "plan"],
        &["run"],
        &["plugin", "check"],
    ];
    for page in pages {
        let out = command(&folder, &[page, &["--help"]].concat()).output().unwrap();
        let help = String::from_utf8(out.stdout).unwrap();
        too_wide(&help, &format!("{page:?}"));
        // A broken command goes on after a backslash, so that it can be pasted.
        for (line, next) in help.lines().zip(help.lines().skip(1)) {
            let goes_on = line.starts_with("  linkwise") && next.starts_with("      --");
            assert!(!goes_on || line.ends_with('\\'), "{page:?}: {line}");
        }
        if page == ["run"] {
            let words = help.split_whitespace().collect::<Vec<_>>().join(" ");
            assert!(
                words.contains("may change NCCL's choices") && words.contains("not been run on GPUs yet"),
                "{help}"
            );
            assert!(help.contains("round-robin") && help.contains("MASTER_ADDR"), "{help}");
        }
    }
}

#[test]
fn written_files_follow_the_umask() {
    let folder = workplace();
    for (file, args) in [
        ("all.csv", "measure --cluster h100 --store s.db --export all.csv"),
        ("h100.yaml", "topology show h100 --format yaml -o h100.yaml"),
        ("plan.json", "route plan demand.csv --cluster rails2x4 --format json -o plan.json"),
    ] {
        for (umask, mode) in [("027", 0o640), ("002", 0o664)] {
            let line = format!("umask {umask} && exec \"$0\" {args}");
            let mut c = Command::new("sh");
            c.args(["-c", &line, env!("CARGO_BIN_EXE_linkwise")]).current_dir(&folder.0);
            let out = c.output().unwrap();
            assert!(out.status.success(), "{args}: {}", String::from_utf8_lossy(&out.stderr));
            let permissions = std::fs::metadata(folder.at(file)).unwrap().permissions();
            assert_eq!(permissions.mode() & 0o777, mode, "{args} under umask {umask}");
        }
    }
}

/// Waits for it, at most a minute.
fn wait_for(what: &str, done: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !done() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn pid_in(file: &str) -> Option<u32> {
    std::fs::read_to_string(file).ok()?.trim().parse().ok()
}

/// Sends Ctrl-C to the command once `ready`; its exit code and standard error. What wrote its number into the file `pid` must end.
fn interrupted(folder: &Folder, args: &[&str], ready: impl Fn() -> bool) -> (Option<i32>, String) {
    let mut child = command(folder, args).stdout(Stdio::null()).spawn().unwrap();
    wait_for("the program did not start", ready);
    let pid = pid_in(&folder.at("pid")).unwrap();
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    let code = child.wait().unwrap().code();
    let state = || std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    wait_for("what was measured goes on", || state().is_empty() || state().contains(") Z "));
    let mut err = String::new();
    // A grandchild may hold the pipe: no end of it is waited for beyond the check above.
    child.stderr.take().unwrap().read_to_string(&mut err).unwrap();
    (code, err)
}

#[test]
fn ctrl_c_during_measure_says_what_is_kept_and_the_same_command_goes_on() {
    let folder = Folder::new();
    let bench = r#"#!/bin/sh
while read -r line; do
  id=${line#*\"id\":}; id=${id%%[,\}]*}
  if [ "$id" -ge 4 ] && [ ! -e "$(dirname "$0")/go" ]; then echo $$ > "$(dirname "$0")/pid"; sleep 100; fi
  echo '{"id":'"$id"',"busbw_gb_per_s":100.5}'
done
"#;
    let script = folder.script("bench.sh", bench);
    let args = ["measure", "--cluster", "h100", "--backend", "command", "--command", &script, "--idle", "n0:[0-2]"];
    let args = [&args[..], &["--samples", "0", "--store", "s.db"]].concat();
    let (code, err) = interrupted(&folder, &args, || pid_in(&folder.at("pid")).is_some());
    assert_eq!(code, Some(130), "{err}");
    let line = err.lines().last().unwrap_or_default();
    assert!(line.starts_with("stopped: ") && line.contains("s.db") && line.contains("same command goes on"), "{err}");
    std::fs::write(folder.at("go"), "").unwrap();
    let out = command(&folder, &args).output().unwrap();
    let (out, err) = (String::from_utf8(out.stdout).unwrap(), String::from_utf8(out.stderr).unwrap());
    assert!(out.contains("the campaign is finished"), "{out}{err}");
}

#[test]
fn ctrl_c_during_tune_profile_says_what_is_kept() {
    let folder = Folder::new();
    let program = folder.script("hangs", "#!/bin/sh\necho $$ > \"$(dirname \"$0\")/pid\"\nsleep 100\n");
    let args = ["tune", "profile", "--arms", "AUTO", "--sizes", "8", "-o", "policy.json", "--", &program];
    let (code, err) = interrupted(&folder, &args, || pid_in(&folder.at("pid")).is_some());
    assert_eq!(code, Some(130), "{err}");
    let line = err.lines().last().unwrap_or_default();
    assert!(line.starts_with("stopped: the readings of 0 launches") && line.contains("--restart"), "{err}");
}

#[test]
fn import_reads_standard_input_and_types_are_json_for_scripts() {
    let folder = Folder::new();
    let topo = "\tGPU0\tGPU1\nGPU0\t X \tNV12\nGPU1\tNV12\t X \n";
    let mut c = linkwise("topology", &["import", "-", "--gpu-model", "A100", "--name", "lab"]);
    c.write_stdin(topo).current_dir(&folder.0);
    let (code, out, err) = said(c);
    assert!(code == 0 && out.contains("lab"), "{out}{err}");
    let mut c = linkwise("topology", &["import", "-"]);
    c.write_stdin("nonsense");
    let (code, _, err) = said(c);
    assert!(code == 2 && err.contains("standard input"), "{err}");
    let (code, out, _) = said(linkwise("topology", &["types", "--format", "json"]));
    let types: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert!(code == 0 && types.as_array().unwrap().iter().any(|t| t["name"] == "h100-4gpu"), "{out}");
}
