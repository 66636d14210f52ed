//! What a job or its QOS says about the choice: `linkwise=best` in the comment of a job, or a policy per QOS.

use std::collections::BTreeMap;
use std::fmt;

/// The policies, for messages.
pub const KNOWN: &str = "pack, balance, best, slack=5%, slack=1sd, off";

/// How the agent chooses the GPUs of a job.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Policy {
    /// The fewest hosts and switches, whatever bandwidth they cost.
    Pack,
    /// Bandwidth, where it gains more than the uncertainty of the prediction.
    #[default]
    Balance,
    /// The highest predicted bandwidth.
    Best,
    /// Bandwidth, where it gains more than this slack: `5%` or `1sd`.
    Slack(String),
    /// Slurm places the job.
    Off,
}

impl Policy {
    /// Reads a policy. The error says which there are.
    pub fn read(text: &str) -> Result<Policy, String> {
        let wrong = || {
            let text: String =
                text.chars().filter(|c| (' '..='~').contains(c) && *c != '"' && *c != '\\').take(24).collect();
            format!("linkwise={text} is no policy ({KNOWN})")
        };
        match text {
            "pack" => Ok(Policy::Pack),
            "balance" => Ok(Policy::Balance),
            "best" => Ok(Policy::Best),
            "off" => Ok(Policy::Off),
            _ => {
                let slack = text.strip_prefix("slack=").ok_or_else(wrong)?;
                let number = slack.strip_suffix('%').or_else(|| slack.strip_suffix("sd")).ok_or_else(wrong)?;
                let plain = !number.is_empty() && number.chars().all(|c| c.is_ascii_digit() || c == '.');
                let value = number.parse::<f64>().ok().filter(|v| plain && (0.0..=100.0).contains(v));
                value.map(|_| Policy::Slack(slack.to_owned())).ok_or_else(wrong)
            }
        }
    }

    /// The `slack` of the engine's request; none: the engine's own.
    pub fn slack(&self) -> Option<String> {
        match self {
            Policy::Pack => Some("100%".into()),
            Policy::Balance | Policy::Off => None,
            Policy::Best => Some("0%".into()),
            Policy::Slack(s) => Some(s.clone()),
        }
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Policy::Pack => f.write_str("pack"),
            Policy::Balance => f.write_str("balance"),
            Policy::Best => f.write_str("best"),
            Policy::Slack(s) => write!(f, "slack={s}"),
            Policy::Off => f.write_str("off"),
        }
    }
}

/// What a job says about itself, as the plugin's question has it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wish {
    /// Its QOS; empty: none.
    pub qos: String,
    /// The text behind the first `linkwise=` of its comment. Text of a user.
    pub policy: Option<String>,
}

/// The site's policies.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Policies {
    /// For jobs that name none.
    pub site: Policy,
    /// By QOS.
    pub by_qos: BTreeMap<String, Policy>,
}

/// The policy of a job.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Decided {
    /// The policy.
    pub policy: Policy,
    /// `comment`, `qos` or `site`.
    pub from: &'static str,
    /// A wrong policy in the comment, and the right ones.
    pub ignored: Option<String>,
}

impl Policies {
    /// The policy of the comment, else of the QOS, else of the site.
    pub fn of(&self, wish: &Wish) -> Decided {
        let rest = |ignored| match self.by_qos.get(&wish.qos) {
            Some(p) => Decided { policy: p.clone(), from: "qos", ignored },
            None => Decided { policy: self.site.clone(), from: "site", ignored },
        };
        match wish.policy.as_deref().map(Policy::read) {
            None => rest(None),
            Some(Ok(policy)) => Decided { policy, from: "comment", ignored: None },
            Some(Err(e)) => rest(Some(e)),
        }
    }

    /// Adds `NAME=POLICY` of `--qos-policy`.
    pub fn add(&mut self, text: &str) -> Result<(), String> {
        let (name, policy) = text
            .split_once('=')
            .filter(|(n, _)| !n.is_empty())
            .ok_or_else(|| format!("`{text}`: NAME=POLICY was expected"))?;
        self.by_qos.insert(name.to_owned(), Policy::read(policy).map_err(|e| format!("`{text}`: {e}"))?);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn policies() -> Policies {
        let mut p = Policies::default();
        p.add("urgent=best").unwrap();
        p.add("cheap=slack=5%").unwrap();
        p
    }

    fn wish(qos: &str, policy: &str) -> Wish {
        Wish { qos: qos.into(), policy: Some(policy.to_owned()).filter(|p| !p.is_empty()) }
    }

    #[test]
    fn the_comment_decides_then_the_qos_then_the_site() {
        let of = |qos: &str, policy: &str| policies().of(&wish(qos, policy));
        assert_eq!((of("urgent", "pack").policy, of("urgent", "").policy), (Policy::Pack, Policy::Best));
        assert_eq!((of("cheap", "").policy, of("", "").policy), (Policy::Slack("5%".into()), Policy::Balance));
        assert_eq!((of("urgent", "off").from, of("urgent", "").from, of("", "").from), ("comment", "qos", "site"));
        assert_eq!(of("a", "slack=2sd").policy.slack().as_deref(), Some("2sd"));
    }

    #[test]
    fn a_wrong_policy_is_named_and_the_next_rule_holds() {
        for wrong in ["fast", "slack=", "slack=%", "slack=-1%", "slack=1e1%", "slack=101%", "slack=nan%", "BEST"] {
            let d = policies().of(&wish("urgent", wrong));
            assert_eq!((d.policy, d.from), (Policy::Best, "qos"), "{wrong}");
            assert!(d.ignored.unwrap().contains("is no policy (pack,"), "{wrong}");
        }
        assert!(Policies::default().add("=best").is_err() && Policies::default().add("a=b").is_err());
    }

    proptest! {
        #[test]
        fn any_text_gives_a_policy(text in "[ -~\n]{0,80}") {
            let d = policies().of(&wish("urgent", &text));
            // The message goes into a JSON text of one line.
            prop_assert!(d.ignored.is_none_or(|i| i.len() < 120 && !i.contains(['"', '\\', '\n'])));
        }
    }
}
