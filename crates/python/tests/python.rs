//! Runs the tests of the Python package, `python/tests`, with the module that cargo has built.
//!
//! They run in a virtual environment in the user's cache (`python`), with NumPy from the package index. Without Python or the index each
//! test prints a SKIP line. The tests of `linkwise.torch` need PyTorch, which is large: `make test-torch` installs it there, and without it
//! they are skipped.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, OnceLock, PoisonError};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// The folder of virtual environments.
fn cache() -> Result<PathBuf, String> {
    let set = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    set("LINKWISE_CACHE")
        .or_else(|| set("XDG_CACHE_HOME").map(|p| p.join("linkwise")))
        .or_else(|| set("HOME").map(|p| p.join(".cache/linkwise")))
        .ok_or_else(|| "LINKWISE_CACHE, XDG_CACHE_HOME and HOME are not set".into())
}

fn run(command: &mut Command) -> Result<String, String> {
    let out = command.output().map_err(|e| format!("{:?}: {e}", command.get_program()))?;
    let said = String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
    match out.status.success() {
        true => Ok(said),
        false => Err(said),
    }
}

/// The interpreter of the virtual environment, made on the first call, with NumPy.
fn interpreter() -> Result<PathBuf, String> {
    with_package("numpy")
}

/// The same with a package of the index. Tests of other processes wait for the lock.
fn with_package(package: &str) -> Result<PathBuf, String> {
    let folder = cache()?.join("python");
    std::fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let lock = folder.join("lock");
    std::fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(&lock)
        .map_err(|e| format!("{}: {e}", lock.display()))?;
    let _lock = files::FileLock::acquire(&lock).map_err(|e| e.to_string())?;
    let python = folder.join("bin/python");
    let import = format!("import {package}");
    let runs = |code: &str| Command::new(&python).args(["-c", code]).output().is_ok_and(|o| o.status.success());
    if !runs("import pip") {
        run(Command::new("python3").args(["-m", "venv"]).arg(&folder)).map_err(|e| format!("no python3 venv: {e}"))?;
    }
    if !runs(&import) {
        let pip = ["-m", "pip", "install", "--quiet", "--retries", "1", "--timeout", "60", package];
        run(Command::new(&python).args(pip)).map_err(|e| {
            let why = e.lines().find(|l| l.contains("ERROR")).unwrap_or("it failed").to_owned();
            format!("pip cannot fetch {package}: {why}")
        })?;
    }
    Ok(python)
}

/// The package with the built module, and an entry point as an installed package has it.
struct Staged {
    python: PathBuf,
    folder: tempfile::TempDir,
}

fn stage() -> Result<Staged, String> {
    let python = interpreter()?;
    let folder = tempfile::tempdir().map_err(|e| e.to_string())?;
    let native = std::env::current_exe().map_err(|e| e.to_string())?.with_file_name("liblinkwise_python.so");
    assert!(native.exists(), "cargo builds liblinkwise_python.so with the tests");
    copy(&Path::new(ROOT).join("python"), folder.path());
    std::fs::copy(native, folder.path().join("linkwise/_native.abi3.so")).map_err(|e| e.to_string())?;
    let page = Path::new(ROOT).join("docs/python.md");
    std::fs::copy(page, folder.path().join("tests/python.md")).map_err(|e| e.to_string())?;
    let info = folder.path().join("linkwise-0.dist-info");
    std::fs::create_dir(&info).map_err(|e| e.to_string())?;
    let files = [
        ("METADATA", "Metadata-Version: 2.1\nName: linkwise\nVersion: 0\n"),
        ("entry_points.txt", "[torchrun.handlers]\nlinkwise = linkwise.torch.rendezvous:generator\n"),
    ];
    for (name, text) in files {
        std::fs::write(info.join(name), text).map_err(|e| e.to_string())?;
    }
    Ok(Staged { python, folder })
}

/// Copies a folder without what Python has compiled.
fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap().map(Result::unwrap) {
        let (path, to) = (entry.path(), to.join(entry.file_name()));
        match path.is_dir() {
            true if entry.file_name() == "__pycache__" || entry.file_name() == "linkwise.data" => {}
            true => copy(&path, &to),
            false => drop(std::fs::copy(&path, &to).unwrap()),
        }
    }
}

fn staged(test: &str) -> Option<&'static Staged> {
    static STAGED: OnceLock<Result<Staged, String>> = OnceLock::new();
    match STAGED.get_or_init(stage) {
        Ok(staged) => Some(staged),
        Err(why) => {
            eprintln!("SKIP {test}: {why}");
            None
        }
    }
}

/// Runs one file of Python tests; every failure in it fails this test.
fn python(test: &str, folder: &str, module: &str) {
    let Some(staged) = staged(test) else { return };
    // One interpreter at a time: PyTorch and the placements of eight threads on two cores only wait for each other.
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let at = staged.folder.path().join(folder);
    let mut command = Command::new(&staged.python);
    command.args(["-m", "unittest", "-v", module]).current_dir(&at).env("PYTHONPATH", staged.folder.path());
    let plugin = std::env::current_exe().unwrap().with_file_name("liblinkwise_nccl.so");
    if plugin.exists() {
        command.env("LINKWISE_TEST_PLUGIN", plugin);
    }
    match run(&mut command) {
        Ok(said) => {
            assert!(said.contains("\nOK"), "{said}");
            said.lines().filter(|l| l.contains("... skipped")).for_each(|l| eprintln!("SKIP {test}: {l}"));
        }
        Err(said) => panic!("{module}:\n{said}"),
    }
}

/// Skips a test without PyTorch.
fn with_torch(test: &str, module: &str) {
    let Some(staged) = staged(test) else { return };
    let has = Command::new(&staged.python)
        .args(["-c", "import importlib.util as u; exit(not u.find_spec('torch'))"])
        .status();
    match has.is_ok_and(|s| s.success()) {
        true => python(test, "tests/torch", module),
        false => eprintln!("SKIP {test}: no PyTorch; `make test-torch` installs it (6 GB) and runs this"),
    }
}

#[test]
fn decisions_state_learning_and_routes_from_python() {
    python("decisions_state_learning_and_routes_from_python", "tests", "test_engine");
}

#[test]
fn arrays_go_in_and_out_of_python() {
    python("arrays_go_in_and_out_of_python", "tests", "test_arrays");
}

#[test]
fn threads_of_python_share_an_engine() {
    python("threads_of_python_share_an_engine", "tests", "test_threads");
}

#[test]
fn hostile_arguments_from_python_are_refused() {
    python("hostile_arguments_from_python_are_refused", "tests", "test_hostile");
}

#[test]
fn steps_are_marked_without_pytorch() {
    python("steps_are_marked_without_pytorch", "tests", "test_marks");
}

#[test]
fn traffic_of_experts_becomes_a_demand() {
    python("traffic_of_experts_becomes_a_demand", "tests", "test_moe");
}

#[test]
fn the_examples_in_docstrings_are_true() {
    python("the_examples_in_docstrings_are_true", "tests", "test_documents");
}

#[test]
fn the_stub_tells_what_the_module_has() {
    let test = "the_stub_tells_what_the_module_has";
    let Some(staged) = staged(test) else { return };
    let python = match with_package("mypy") {
        Ok(python) => python,
        Err(why) => return eprintln!("SKIP {test}: {why}"),
    };
    let (folder, config) = (staged.folder.path(), staged.folder.path().join("mypy.ini"));
    std::fs::write(&config, "[mypy]\nignore_missing_imports = True\nfollow_untyped_imports = True\n").unwrap();
    let mut command = Command::new(python);
    command.args(["-m", "mypy.stubtest", "linkwise._native", "--ignore-disjoint-bases", "--mypy-config-file"]);
    command.arg(config).current_dir(folder).env("PYTHONPATH", folder).env("MYPYPATH", folder);
    run(&mut command).unwrap();
}

#[test]
fn training_loops_report_their_steps_to_the_real_plugin() {
    with_torch("training_loops_report_their_steps_to_the_real_plugin", "test_steps");
}

#[test]
fn torchrun_gives_hosts_the_ranks_of_the_placement() {
    with_torch("torchrun_gives_hosts_the_ranks_of_the_placement", "test_rendezvous");
}
