//! `linkwise slurm agent --server`: `linkwise serve` decides.

use crate::common::{Served, linkwise, said};
use crate::lab::{Agent, Lab, site};
use crate::{lab, setup};
use std::process::Command;

/// `linkwise serve` on the lab's files. `listen`: an address with its port.
fn serve(lab: &Lab, cluster: &str, model: &str, listen: &str) -> Served {
    let state = lab.at("served.db");
    let mut command = Command::new(env!("CARGO_BIN_EXE_linkwise"));
    command.args(["serve", "--cluster", cluster, "--state", &state, "--model", model, "--listen", listen]);
    Served::start(command.args(["--format", "json"]))
}

/// The jobs that the server's state has.
fn jobs(url: &str, token: &str) -> String {
    let request = ureq::get(format!("{url}/v1/allocations")).header("Authorization", format!("Bearer {token}"));
    request.call().unwrap().body_mut().read_to_string().unwrap()
}

#[test]
fn a_server_decides_for_the_agent_and_while_it_is_gone_slurm_places_jobs() {
    let name = "a_server_decides_for_the_agent_and_while_it_is_gone_slurm_places_jobs";
    let Some(lab) = lab(name, setup(2, 0)) else { return };
    let (cluster, model) = site(&lab);
    let served = serve(&lab, &cluster, &model, "127.0.0.1:0");
    let url = format!("http://{}", served.at);
    let (code, token, error) =
        said(linkwise("token", &["create", "slurm", "--state", &lab.at("served.db"), "--scope", "operate"]));
    assert_eq!(code, 0, "{error}");
    let token = token.trim().to_owned();
    let (right, wrong) = (lab.at("token"), lab.at("wrong"));
    std::fs::write(&right, format!("{token}\n")).unwrap();
    std::fs::write(&wrong, "lw_nonsense\n").unwrap();
    // The server looks for new tokens every second.
    lab.until("the server asks for tokens", || ureq::get(format!("{url}/v1/cluster")).call().is_err());
    // A wrong token and a server of another cluster are one error each, before anything is answered.
    let refused = |args: &[&str], word: &str| {
        let mut c = linkwise("slurm", &[&["agent", "--server", &url, "--once"], args].concat());
        c.env("SLURM_CONF", lab.at("etc/slurm.conf"));
        let (code, _, error) = said(c);
        assert!(code == 2 && error.contains(word), "{args:?}: {code} {error}");
    };
    refused(&["--cluster", &cluster, "--token-file", &wrong], "token");
    refused(&["--cluster", &cluster], "token");
    refused(&["--cluster", "h100", "--token-file", &right], "serves the cluster");
    refused(&["--cluster", &cluster, "--model", &model], "cannot be used with");

    let agent = Agent::with(&lab, &["--cluster", &cluster, "--server", &url, "--token-file", &right]);
    let log = agent.log.clone();
    let note = |job: u32| lab.client("scontrol", &["show", "job", "-o", &job.to_string()]);
    let takes = |what: &str| {
        let job = lab.submit("600", &["--gpus=11"]);
        lab.until(&format!("{what}: the job runs"), || lab.books().contains_key(&job));
        assert!(note(job).contains(r#"{"linkwise":"took""#), "{what}: {}\n{}", note(job), Agent::about(&log, job));
        assert_eq!(lab.books().get(&job), Agent::orders(&log).get(&job), "{what}");
        lab.until("the server's state has the job", || jobs(&url, &token).contains(&format!("slurm-{job}")));
        lab.client("scancel", &[&job.to_string()]);
        lab.until("it has ended", || lab.state(job) == "CANCELLED");
        lab.until("the server's state has it no longer", || !jobs(&url, &token).contains(&format!("slurm-{job}")));
    };
    takes("a server");
    // Slurm's drains reach the server.
    lab.client("scontrol", &["update", "NodeName=n2", "State=drain", "Reason=fan"]);
    let state = || {
        ureq::get(format!("{url}/v1/cluster"))
            .header("Authorization", format!("Bearer {token}"))
            .call()
            .unwrap()
            .body_mut()
            .read_to_string()
            .unwrap()
    };
    lab.until("the server's state has the drain", || state().contains("Slurm: "));
    lab.client("scontrol", &["update", "NodeName=n2", "State=resume"]);
    lab.until("the server's state has it no longer", || !state().contains("Slurm: "));

    drop(served);
    let job = lab.submit("0", &["--gpus=5"]);
    lab.until("the job has ended without a server", || lab.state(job) == "COMPLETED");
    assert!(note(job).contains(r#"{"linkwise":"slurm","reason":"no answer of the server"#), "{}", note(job));
    let _served = serve(&lab, &cluster, &model, url.trim_start_matches("http://"));
    std::thread::sleep(std::time::Duration::from_millis(1500));
    takes("the server again");
    drop(agent);
}
