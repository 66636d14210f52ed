//! The installed PostgreSQL for a test: its own data folder, a local socket only, ended with the test whatever happens.

use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Longest wait for the server to accept connections, also after a crash on a busy machine.
const START_MAX: Duration = Duration::from_secs(120);
/// The user `nobody`, for tests that run as root: PostgreSQL refuses root.
const NOBODY: u32 = 65534;

/// Runs the server, again and again if it is killed. When the pipe from the test closes, so also when the test is killed, it ends the
/// server and removes the folder.
const UNTIL_THE_TEST_ENDS: &str = r#"
folder=$1; shift
run() { while [ ! -e "$folder/end" ]; do "$@"; sleep 0.1; done; }
run "$@" & r=$!
read -r _
touch "$folder/end"
while kill -0 $r; do kill -QUIT $(head -n 1 "$folder/data/postmaster.pid"); sleep 0.1; done
rm -rf "$folder"
"#;

/// A server.
pub struct Server {
    folder: PathBuf,
    bin: PathBuf,
    guard: Child,
    port: u16,
}

/// The folder of PostgreSQL's programs; none where it is not installed.
fn programs() -> Option<PathBuf> {
    let on_path = std::env::var_os("PATH").into_iter().flat_map(|p| std::env::split_paths(&p).collect::<Vec<_>>());
    let packaged =
        std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten().map(|d| d.path().join("bin"));
    let mut found: Vec<PathBuf> = packaged.chain(on_path).filter(|d| d.join("initdb").exists()).collect();
    found.sort();
    found.into_iter().find(|d| d.join("postgres").exists())
}

impl Server {
    /// Starts a server; none where PostgreSQL is not installed.
    pub fn start() -> Option<Server> {
        Server::start_in(Path::new("/tmp"))
    }

    /// Starts a server with its folder in `parent`.
    pub fn start_in(parent: &Path) -> Option<Server> {
        Server::start_at(parent, 5432, &[], |_| {})
    }

    /// Starts a server with more settings. `prepare` puts files into its data folder, which become the server's own.
    pub fn start_with(port: u16, settings: &[&str], prepare: impl FnOnce(&Path)) -> Option<Server> {
        Server::start_at(Path::new("/tmp"), port, settings, prepare)
    }

    fn start_at(parent: &Path, port: u16, settings: &[&str], prepare: impl FnOnce(&Path)) -> Option<Server> {
        let bin = programs()?;
        // The path of a socket has at most 107 bytes.
        let folder = tempfile::Builder::new().prefix("lwpg").tempdir_in(parent).expect("a folder").keep();
        std::fs::set_permissions(&folder, PermissionsExt::from_mode(0o755)).expect("the folder's mode");
        let data = folder.join("data");
        std::fs::create_dir(&data).expect("the data folder");
        if is_root() {
            for f in [&folder, &data] {
                chown(f, Some(NOBODY), Some(NOBODY)).expect("the folder's owner");
            }
        }
        let made = as_user(Command::new(bin.join("initdb")))
            .args(["-U", "tester", "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync", "-D"])
            .arg(&data)
            .current_dir(&folder)
            .output()
            .expect("initdb runs");
        assert!(made.status.success(), "initdb: {}", String::from_utf8_lossy(&made.stderr));
        prepare(&data);
        own_files(&data);
        let guard = guarded(&folder, &bin, port, settings);
        let server = Server { folder, bin, guard, port };
        server.wait();
        Some(server)
    }

    /// The URL of a database.
    pub fn url(&self, database: &str) -> String {
        format!("postgres://tester@/{database}?host={}&port={}", self.folder.display(), self.port)
    }

    /// The folder of its sockets.
    #[allow(dead_code)] // the test of the pooler asks
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Makes a database and returns its URL.
    pub fn database(&self) -> String {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let name = format!("d{}", NEXT.fetch_add(1, Ordering::Relaxed));
        self.psql("postgres", &format!("CREATE DATABASE {name}"));
        self.url(&name)
    }

    /// Runs SQL in a database.
    pub fn psql(&self, database: &str, sql: &str) -> String {
        let out = self.try_psql(database, sql);
        out.unwrap_or_else(|e| panic!("psql: {e}"))
    }

    fn try_psql(&self, database: &str, sql: &str) -> Result<String, String> {
        let out = Command::new(self.bin.join("psql"))
            .args(["-X", "-q", "-A", "-t", "-U", "tester", "-d", database, "-c", sql, "-h"])
            .arg(&self.folder)
            .args(["-p", &self.port.to_string()])
            .output()
            .expect("psql runs");
        match out.status.success() {
            true => Ok(String::from_utf8_lossy(&out.stdout).trim().to_owned()),
            false => Err(String::from_utf8_lossy(&out.stderr).into_owned()),
        }
    }

    fn wait(&self) {
        let start = Instant::now();
        while let Err(e) = self.try_psql("postgres", "SELECT 1") {
            assert!(start.elapsed() < START_MAX, "PostgreSQL does not start: {e}; {}", self.log());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Copies a database into an empty one by `pg_dump` and `psql`.
    pub fn copy(&self, from: &str, to: &str) {
        let script = "\"$1/pg_dump\" -h \"$2\" -U tester \"$3\" | \"$1/psql\" -X -q -v ON_ERROR_STOP=1 -h \"$2\" -U tester -d \"$4\" > /dev/null";
        let mut sh = Command::new("bash");
        let done =
            sh.args(["-o", "pipefail", "-c", script, "copy"]).args([&self.bin, &self.folder]).args([from, to]).output();
        let done = done.expect("bash runs");
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    }

    /// The local socket.
    pub fn socket(&self) -> PathBuf {
        self.folder.join(".s.PGSQL.5432")
    }

    /// Lets the server need room on its disk. It may find none.
    pub fn use_room(&self) {
        let _ = self.try_psql("postgres", "CHECKPOINT; SELECT pg_switch_wal()");
        let _ =
            self.try_psql("postgres", "CREATE TABLE room AS SELECT repeat('x', 1000) FROM generate_series(1, 20000)");
    }

    /// What the server wrote.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.folder.join("log")).unwrap_or_default()
    }

    /// The process of the server and those of its connections.
    fn processes(&self) -> Vec<String> {
        let text = std::fs::read_to_string(self.folder.join("data/postmaster.pid")).unwrap_or_default();
        let Some(main) = text.lines().next().map(|l| l.trim().to_owned()) else { return Vec::new() };
        let children = std::fs::read_to_string(format!("/proc/{main}/task/{main}/children")).unwrap_or_default();
        [main].into_iter().chain(children.split_whitespace().map(str::to_owned)).collect()
    }

    /// Kills one process of a connection that is in a transaction, at which PostgreSQL ends all and recovers by itself.
    pub fn kill_a_connection(&self) {
        let pids =
            "SELECT pid FROM pg_stat_activity WHERE application_name = 'linkwise' ORDER BY state = 'active' DESC";
        if let Ok(pids) = self.try_psql("postgres", pids)
            && let Some(pid) = pids.lines().next()
        {
            kill(&[pid.to_owned()]);
        }
        self.wait();
    }

    /// Stops every process of the server until the value is dropped.
    pub fn stop_for_a_while(&self) -> Stopped {
        let stopped = Stopped(self.processes());
        signal("-STOP", &stopped.0);
        stopped
    }

    /// Kills every process of the server, and waits until it runs again.
    pub fn kill_all(&self) {
        kill(&self.processes());
        self.wait();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(mut pipe) = self.guard.stdin.take() {
            let _ = pipe.write_all(b"\n");
        }
        let _ = self.guard.wait();
    }
}

/// Processes that are stopped.
pub struct Stopped(Vec<String>);

impl Drop for Stopped {
    fn drop(&mut self) {
        signal("-CONT", &self.0);
    }
}

fn kill(pids: &[String]) {
    signal("-9", pids);
}

fn signal(name: &str, pids: &[String]) {
    // A process may have ended meanwhile.
    let _ = Command::new("kill").arg(name).args(pids).stderr(Stdio::null()).status();
}

/// Gives the files that were put into a folder to the user of the server, who alone may read them.
fn own_files(folder: &Path) {
    for file in std::fs::read_dir(folder).expect("the data folder").flatten().map(|f| f.path()) {
        if is_root() && std::fs::metadata(&file).is_ok_and(|m| m.uid() == 0) {
            chown(&file, Some(NOBODY), Some(NOBODY)).expect("the file's owner");
            std::fs::set_permissions(&file, PermissionsExt::from_mode(0o600)).expect("the file's mode");
        }
    }
}

fn guarded(folder: &Path, bin: &Path, port: u16, settings: &[&str]) -> Child {
    let log = std::fs::File::options().create(true).append(true).open(folder.join("log")).expect("the log");
    as_user(Command::new("sh"))
        .args(["-c", UNTIL_THE_TEST_ENDS, "guard"])
        .arg(folder)
        .arg(bin.join("postgres"))
        .arg("-D")
        .arg(folder.join("data"))
        .arg("-k")
        .arg(folder)
        .args([
            "-c",
            "listen_addresses=",
            "-c",
            "max_connections=60",
            "-c",
            "shared_buffers=16MB",
            "-p",
            &port.to_string(),
        ])
        .args(settings.iter().flat_map(|s| ["-c", s]))
        .stdin(Stdio::piped())
        .stdout(log.try_clone().expect("the log"))
        .stderr(log)
        .current_dir(folder)
        .process_group(0) // an interrupt of the test reaches it as the end of the pipe
        .spawn()
        .expect("sh runs")
}

fn is_root() -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|m| m.uid() == 0)
}

/// The user of the server, who can run other programs of a test as well.
#[allow(dead_code)] // the test of the pooler asks
pub fn as_user(mut command: Command) -> Command {
    if is_root() {
        command.uid(NOBODY).gid(NOBODY);
    }
    command
}

/// The server of this test binary; a line says so where there is none.
pub fn shared(test: &str) -> Option<&'static Server> {
    static SERVER: OnceLock<Option<Server>> = OnceLock::new();
    let server = SERVER.get_or_init(Server::start);
    if server.is_none() {
        skip(test);
    }
    server.as_ref()
}

/// Says that a test did not run.
pub fn skip(test: &str) {
    println!("SKIP {test}: PostgreSQL is not installed");
}
