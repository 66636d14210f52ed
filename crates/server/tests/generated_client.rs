//! A client generated from the OpenAPI document by a program that is not ours.

mod common;

use common::{Server, skip};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The folder of the generator's programs: that of `make fuzz-server`.
fn programs() -> Option<PathBuf> {
    let home = || std::env::var_os("HOME").map(|h| PathBuf::from(h).join(".cache"));
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).or_else(home)?;
    let folder = cache.join("linkwise/schemathesis/bin");
    folder.join("openapi-python-client").is_file().then_some(folder)
}

fn run(command: &mut Command) -> String {
    let done = command.output().unwrap();
    let told = String::from_utf8_lossy(&done.stdout).into_owned() + &String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{command:?}: {told}");
    told
}

#[test]
fn a_client_that_is_generated_from_the_document_reads_the_cluster() {
    let test = "a_client_that_is_generated_from_the_document_reads_the_cluster";
    let Some(programs) = programs() else {
        return skip(test, "needs openapi-python-client, which `make fuzz-server` installs");
    };
    let s = Server::new(2);
    let document = Path::new(env!("CARGO_MANIFEST_DIR")).join("openapi.json");
    let out = s.folder.path().join("linkwise_client");
    run(Command::new(programs.join("openapi-python-client"))
        .args(["generate", "--meta", "none", "--path"])
        .arg(&document)
        .arg("--output-path")
        .arg(&out)
        .current_dir(s.folder.path()));
    let program = format!(
        "from linkwise_client import Client\n\
         from linkwise_client.api.cluster import cluster\n\
         a = cluster.sync(client=Client(base_url='http://{}'))\n\
         print('GPUs', a.gpus, a.cluster)\n",
        s.at
    );
    let told = run(Command::new(programs.join("python")).args(["-c", &program]).current_dir(s.folder.path()));
    assert!(told.contains("GPUs 16 "), "{told}");
}
