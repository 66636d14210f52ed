//! Slurm's accounting in the lab: slurmdbd on a MariaDB of its own.

use super::{Lab, has, root};
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

/// Where Debian's MariaDB has the statements that make its own tables.
const TABLES: [&str; 2] = ["/usr/share/mysql/mysql_system_tables.sql", "/usr/share/mysql/mysql_system_tables_data.sql"];

/// Lines of slurm.conf for a slurmdbd at this port.
pub fn config(at: &str, port: u16) -> String {
    format!(
        "AccountingStorageType=accounting_storage/slurmdbd\nAccountingStorageHost=127.0.0.1\nAccountingStoragePort={port}\n\
         AccountingStoragePass={at}/run/munge.sock\nAccountingStorageTRES=gres/gpu\nAccountingStoreFlags=job_comment\n\
         JobAcctGatherType=jobacct_gather/none\n"
    )
}

/// Makes sure that the programs are there. Err: why they are not.
pub fn prepared() -> Result<(), String> {
    let there = || has("mariadbd") && has("slurmdbd") && TABLES.iter().all(|t| Path::new(t).exists());
    if there() {
        return Ok(());
    }
    if !root() || !has("apt-get") {
        return Err("MariaDB or slurmdbd is not installed, and installing them needs root and apt-get".into());
    }
    let done = Command::new("apt-get")
        .args([
            "install",
            "-y",
            "-q",
            "--no-install-recommends",
            "mariadb-server-core",
            "slurmdbd",
            "slurm-wlm-mysql-plugin",
        ])
        .env("DEBIAN_FRONTEND", "noninteractive")
        .stdin(Stdio::null())
        .output();
    if done.is_ok_and(|o| o.status.success()) && there() {
        Ok(())
    } else {
        Err("apt-get cannot install MariaDB and slurmdbd".into())
    }
}

/// Starts both, and makes the lab's cluster known. `ports`: MariaDB's and slurmdbd's.
pub fn start(lab: &Lab, ports: [u16; 2]) -> Result<(), String> {
    let data = lab.at("mariadb");
    std::fs::create_dir_all(&data).unwrap();
    let folder = format!("--datadir={data}");
    let user = if root() { "--user=root" } else { "--skip-grant-tables=0" };
    let common = ["--no-defaults", user, &folder, "--innodb-log-file-size=8M", "--innodb-buffer-pool-size=32M"];
    let mut make = Command::new("mariadbd")
        .args(common)
        .args(["--bootstrap"])
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(std::fs::File::create(lab.at("log/mariadb-tables")).unwrap())
        .spawn()
        .map_err(|e| format!("mariadbd: {e}"))?;
    let mut tables = String::from("CREATE DATABASE mysql;\nUSE mysql;\n");
    TABLES.iter().for_each(|t| tables += &std::fs::read_to_string(t).unwrap());
    make.stdin.take().unwrap().write_all(tables.as_bytes()).map_err(|e| format!("mariadbd: {e}"))?;
    if !make.wait().is_ok_and(|s| s.success()) {
        return Err("mariadbd cannot make its tables".into());
    }
    let sql = "CREATE DATABASE slurm;\nCREATE USER 'slurm'@'127.0.0.1' IDENTIFIED BY 'lab';\nGRANT ALL ON slurm.* TO 'slurm'@'127.0.0.1';\n";
    std::fs::write(lab.at("etc/start.sql"), sql).unwrap();
    let [database, accounts] = ports;
    let (port, socket, pid) =
        (format!("--port={database}"), format!("--socket={data}/socket"), format!("--pid-file={data}/pid"));
    let first = format!("--init-file={}", lab.at("etc/start.sql"));
    let more = ["--bind-address=127.0.0.1", "--skip-name-resolve", "--innodb-flush-log-at-trx-commit=0"];
    lab.daemon("mariadbd", &[&common[..], &[&port, &socket, &pid, &first], &more].concat());
    let said = |log: &str, word: &str| std::fs::read_to_string(lab.at(log)).unwrap_or_default().contains(word);
    lab.until("MariaDB is ready", || said("log/mariadbd.out", "ready for connections"));
    let user = lab.user();
    let text = format!(
        "AuthType=auth/munge\nAuthInfo=socket={0}/run/munge.sock\nDbdHost=localhost\nDbdAddr=127.0.0.1\nDbdPort={accounts}\nSlurmUser={user}\n\
         LogFile={0}/log/dbd.log\nPidFile={0}/run/dbd.pid\nStorageType=accounting_storage/mysql\nStorageHost=127.0.0.1\nStoragePort={database}\n\
         StorageUser=slurm\nStoragePass=lab\nStorageLoc=slurm\n",
        lab.folder.0.path().display()
    );
    std::fs::write(lab.at("etc/slurmdbd.conf"), text).unwrap();
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(lab.at("etc/slurmdbd.conf"), std::fs::Permissions::from_mode(0o600)).unwrap();
    lab.daemon("slurmdbd", &["-D"]);
    lab.until("slurmdbd has started", || said("log/dbd.log", "started"));
    lab.client("sacctmgr", &["-i", "add", "cluster", "lab"]);
    Ok(())
}

/// A job as the accounting has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Account {
    /// Its number.
    pub job: u32,
    /// `COMPLETED`, ...
    pub state: String,
    /// Number of its GPUs.
    pub gpus: usize,
    /// Its AdminComment.
    pub note: String,
}

/// Every job of the accounting, a requeued one once: its last run.
pub fn sacct(lab: &Lab) -> Vec<Account> {
    let text = lab.client(
        "sacct",
        &["-X", "-a", "-n", "-P", "-S", "now-1days", "-o", "jobid,state,alloctres%200,admincomment%500"],
    );
    let account = |line: &str| {
        let mut words = line.splitn(4, '|');
        let mut next = || words.next().unwrap_or_default().to_owned();
        let (job, state, tres, note) = (next(), next(), next(), next());
        let gpus = tres.split(',').find_map(|t| t.strip_prefix("gres/gpu=")?.parse().ok()).unwrap_or_default();
        Some(Account { job: job.parse().ok()?, state: state.split(' ').next()?.to_owned(), gpus, note })
    };
    text.lines().filter_map(account).collect()
}
