//! Policies by name, for programs that take a policy name from the user.

use topology::diagnose::did_you_mean;
use tune::registry::POLICIES;

/// No policy has this name.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("there is no policy `{name}`; known are {}{hint}", names().join(", "))]
pub struct UnknownPolicy {
    /// The name.
    pub name: String,
    hint: String,
}

fn names() -> Vec<&'static str> {
    POLICIES.iter().map(|p| p.name).collect()
}

/// The shipped policies with their descriptions, one line each, for help texts.
pub fn list() -> String {
    let width = names().iter().map(|n| n.len()).max().unwrap_or(0);
    POLICIES.iter().map(|p| format!("  {:<width$}  {}\n", p.name, p.about)).collect()
}

/// Checks that a shipped policy has this name.
///
/// # Errors
/// [`UnknownPolicy`] with the known names and the nearest one.
pub fn check_policy(name: &str) -> Result<(), UnknownPolicy> {
    if names().contains(&name) {
        return Ok(());
    }
    let hint = did_you_mean(name, names()).map_or(String::new(), |n| format!("; did you mean `{n}`?"));
    Err(UnknownPolicy { name: name.to_owned(), hint })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_policy_is_refused_with_the_nearest_and_all_names() {
        assert_eq!(check_policy("adaptive"), Ok(()));
        let e = check_policy("adaptiv").unwrap_err().to_string();
        assert!(
            e.contains("no policy `adaptiv`") && e.contains("round-robin") && e.ends_with("did you mean `adaptive`?"),
            "{e}"
        );
    }
}
