//! The plugin's lines and the agent's answers. `integrations/slurm/message.h` reads the answers.

use crate::policy::Wish;
use topology::GPUS_PER_HOST_MAX;

/// Maximum length of a line of the plugin, bytes: 10,000 nodes of 16 GPUs each are about 600 kB.
pub const LINE_BYTES_MAX: usize = 4 << 20;
/// Maximum length of an answer, bytes; the plugin's own limit.
pub const ANSWER_BYTES_MAX: usize = 65_000;
/// Maximum length of a note, bytes; the plugin cuts longer ones.
pub const NOTE_BYTES_MAX: usize = 500;
/// Maximum number of nodes of a question.
pub const NODES_MAX: usize = 65_536;
/// Version of the protocol.
pub const VERSION: u32 = 2;

/// A line of the plugin.
#[derive(Clone, Debug, PartialEq)]
pub enum FromPlugin {
    /// The first line.
    Hello {
        /// Release of the controller.
        slurm: String,
        /// Time in which the plugin expects an answer, milliseconds.
        silence_ms: u64,
    },
    /// A job that Slurm would start now.
    Ask(Box<Ask>),
    /// The job runs on the GPUs of the order.
    Took {
        /// The job.
        job: u32,
    },
    /// The job does not run on them.
    Refused {
        /// The job.
        job: u32,
        /// The reason, in words.
        why: String,
    },
}

/// A job, its request, and the free GPUs that it may use.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Ask {
    /// The job.
    pub job: u32,
    /// Number of the question.
    pub seq: u32,
    /// Number of GPUs.
    pub gpus: usize,
    /// GPUs per node, if the job names them.
    pub per_node: usize,
    /// GPUs per task, if the job names them.
    pub per_task: usize,
    /// Number of tasks; 0: not named.
    pub tasks: usize,
    /// Tasks per node; 0: not named.
    pub tasks_per_node: usize,
    /// True if the user named the number of tasks: then every node runs at least one of them.
    pub tasks_set: bool,
    /// The job gets whole nodes.
    pub exclusive: bool,
    /// Maximum number of leaf switches; 0: any.
    pub switches: usize,
    /// Minimum number of nodes.
    pub nodes_min: usize,
    /// Maximum number of nodes.
    pub nodes_max: usize,
    /// Nodes that the job must have, in Slurm's notation; empty: any.
    pub must: String,
    /// Its QOS, and the policy that its comment names.
    pub wish: Wish,
    /// Free GPUs: node and indices.
    pub free: Vec<(String, Vec<u8>)>,
}

impl Ask {
    /// Number of free GPUs.
    pub fn free_gpus(&self) -> usize {
        self.free.iter().map(|n| n.1.len()).sum()
    }
}

/// An answer to the plugin.
#[derive(Clone, Debug, PartialEq)]
pub enum ToPlugin {
    /// Start the job on these GPUs.
    Take(Vec<(String, Vec<u8>)>),
    /// No set of free GPUs fits.
    Wait,
    /// Orders before this answer get these GPUs: the plugin asks again with what is left.
    Soon,
    /// Slurm places the job itself.
    Pass,
}

/// A line that the plugin does not write.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a line of linkwise's plugin: {what} in `{line}`")]
pub struct Rubbish {
    what: &'static str,
    line: String,
}

/// Reads a line without its newline. O(bytes).
pub fn read(line: &str) -> Result<FromPlugin, Rubbish> {
    let bad = |what| Rubbish { what, line: line.chars().take(80).filter(|c| !c.is_control()).collect() };
    let mut words = line.split(' ');
    let word = words.next().unwrap_or_default();
    let mut number = |what| words.next().and_then(|w| w.parse::<u32>().ok()).ok_or_else(|| bad(what));
    match word {
        "hello" => {
            if number("version")? != VERSION {
                return Err(bad("another version of the protocol; install plugin and agent of one release"));
            }
            let slurm = words.next().filter(|v| v.len() < 32).ok_or_else(|| bad("release"))?.to_owned();
            let silence_ms = words.next().and_then(|w| w.parse().ok()).ok_or_else(|| bad("time"))?;
            Ok(FromPlugin::Hello { slurm, silence_ms })
        }
        "took" => Ok(FromPlugin::Took { job: number("job")? }),
        "refused" => {
            let job = number("job")?;
            number("question")?;
            Ok(FromPlugin::Refused { job, why: words.collect::<Vec<_>>().join(" ").chars().take(200).collect() })
        }
        "ask" => {
            let (job, seq) = (number("job")?, number("question")?);
            let mut ask = Ask { job, seq, ..Ask::default() };
            for word in words {
                field(&mut ask, word).map_err(bad)?;
            }
            if ask.gpus == 0 { Err(bad("no number of GPUs")) } else { Ok(FromPlugin::Ask(Box::new(ask))) }
        }
        _ => Err(bad("unknown word")),
    }
}

fn field(ask: &mut Ask, word: &str) -> Result<(), &'static str> {
    let (key, value) = word.split_once('=').ok_or("a field without `=`")?;
    let number = || value.parse::<u32>().map(|n| n as usize).map_err(|_| "no number");
    match key {
        "gpus" => ask.gpus = number()?,
        "node" => ask.per_node = number()?,
        "task" => ask.per_task = number()?,
        "tasks" => ask.tasks = number()?,
        "tasks_per_node" => ask.tasks_per_node = number()?,
        "switches" => ask.switches = number()?,
        "set" => ask.tasks_set = value == "1",
        "exclusive" => ask.exclusive = value == "1",
        "must" => ask.must = value.to_owned(),
        "qos" => ask.wish.qos = value.to_owned(),
        "policy" => ask.wish.policy = Some(value.to_owned()).filter(|p| !p.is_empty()),
        "nodes" => {
            let (min, max) = value.split_once('-').ok_or("no range of nodes")?;
            let count = |s: &str| s.parse::<u32>().map(|n| n as usize).map_err(|_| "no range of nodes");
            ask.nodes_min = count(min)?.max(1);
            // Slurm writes 0 and its own large numbers for "any".
            ask.nodes_max = Some(count(max)?).filter(|n| *n > 0).unwrap_or(usize::MAX);
        }
        "free" => {
            for node in value.split(',').filter(|n| !n.is_empty()) {
                let (name, list) = node.rsplit_once(':').ok_or("a node without GPUs")?;
                let gpus: Result<Vec<u8>, _> = list.split('.').map(str::parse).collect();
                let gpus = gpus.map_err(|_| "no index of a GPU")?;
                if gpus.is_empty() || name.is_empty() || ask.free.len() >= NODES_MAX {
                    return Err("too many nodes, or a node without a name");
                }
                ask.free.push((name.to_owned(), gpus));
            }
        }
        // A later plugin may tell more.
        _ => {}
    }
    Ok(())
}

/// Writes an answer with its note, as one line with its newline. An order that is too long for the plugin becomes `pass`.
pub fn write(ask: &Ask, answer: &ToPlugin, note: &str) -> String {
    let note: String = note.chars().filter(|c| (' '..='~').contains(c)).take(NOTE_BYTES_MAX).collect();
    let (job, seq) = (ask.job, ask.seq);
    match answer {
        ToPlugin::Take(nodes) => {
            let node = |(name, gpus): &(String, Vec<u8>)| {
                let list: Vec<String> = gpus.iter().map(u8::to_string).collect();
                format!("{name}:{}", list.join("."))
            };
            let picks: Vec<String> = nodes.iter().map(node).collect();
            let line = format!("take {job} {seq} {} {note}\n", picks.join(","));
            if line.len() > ANSWER_BYTES_MAX { write(ask, &ToPlugin::Pass, "the order is too long") } else { line }
        }
        ToPlugin::Wait => format!("wait {job} {seq} {note}\n"),
        ToPlugin::Pass => format!("pass {job} {seq} {note}\n"),
        ToPlugin::Soon => format!("soon {job} {seq} {note}\n"),
    }
}

/// True if linkwise can name this index: its hosts have at most [`GPUS_PER_HOST_MAX`] GPUs.
pub(crate) fn nameable(index: u8) -> bool {
    usize::from(index) < GPUS_PER_HOST_MAX
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_question_is_read_with_its_free_gpus() {
        let line = "ask 7 3 part=main gpus=8 job=8 node=0 task=0 tasks=2 tasks_per_node=0 nodes=1-0 set=1 must=n[1,3] \
                    free=n1:0.1,n-3.x:7";
        let FromPlugin::Ask(ask) = read(line).unwrap() else { panic!("no question") };
        assert_eq!((ask.job, ask.seq, ask.gpus, ask.tasks, ask.tasks_set), (7, 3, 8, 2, true));
        assert_eq!((ask.nodes_min, ask.nodes_max), (1, usize::MAX));
        assert_eq!(ask.must, "n[1,3]");
        assert_eq!(ask.free, [("n1".to_owned(), vec![0, 1]), ("n-3.x".to_owned(), vec![7])]);
        let order = ToPlugin::Take(vec![("n1".into(), vec![0, 1])]);
        assert_eq!(write(&ask, &order, "{\"a\":\n1}"), "take 7 3 n1:0.1 {\"a\":1}\n");
    }

    #[test]
    fn other_lines_are_refused_with_the_reason() {
        for line in [
            "",
            "ask",
            "ask 1",
            "ask 1 2",
            "ask 1 2 gpus=x",
            "ask 1 2 gpus=1 free=n1",
            "ask 1 2 gpus=1 free=:1",
            "hello 3 22.05.8 5000",
            "took",
        ] {
            assert!(read(line).is_err(), "{line}");
        }
    }

    proptest! {
        #[test]
        fn any_line_is_read_or_refused(line in "(ask |hello |took |refused )?[ -~]{0,200}") {
            let _ = read(&line);
        }
    }
}
