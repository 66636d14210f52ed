//! Releases of NCCL.

use std::fmt;
use std::str::FromStr;

/// A release of NCCL. A patch of `None` means any patch of the minor release, as in `--nccl 2.28`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(try_from = "String", into = "String"))]
pub struct Version {
    /// 2 in 2.28.9.
    pub major: u16,
    /// 28 in 2.28.9.
    pub minor: u16,
    /// 9 in 2.28.9.
    pub patch: Option<u16>,
}

impl Version {
    /// For example `Version::new(2, 28, 9)`.
    pub const fn new(major: u16, minor: u16, patch: u16) -> Self {
        Version { major, minor, patch: Some(patch) }
    }

    /// True for the release `major.minor.patch` and later ones. A version without a patch counts as the newest patch of
    /// its minor release.
    pub fn at_least(self, major: u16, minor: u16, patch: u16) -> bool {
        (self.major, self.minor, self.patch.unwrap_or(u16::MAX)) >= (major, minor, patch)
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)?;
        self.patch.map_or(Ok(()), |p| write!(f, ".{p}"))
    }
}

impl FromStr for Version {
    type Err = String;

    /// Parses `2.28`, `2.28.9` and `2.28.9-1`.
    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || format!("{text:?} is not an NCCL version; write it like 2.28 or 2.28.9");
        let number = |t: &str| t.parse::<u16>().map_err(|_| bad());
        let release = text.trim().split('-').next().unwrap_or_default();
        let parts: Vec<&str> = release.split('.').collect();
        match parts[..] {
            [major, minor] => Ok(Version { major: number(major)?, minor: number(minor)?, patch: None }),
            [major, minor, patch] => Ok(Version::new(number(major)?, number(minor)?, number(patch)?)),
            _ => Err(bad()),
        }
    }
}

impl TryFrom<String> for Version {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Version> for String {
    fn from(v: Version) -> String {
        v.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_with_and_without_patch_and_compare() {
        assert_eq!("2.28.9-1".parse(), Ok(Version::new(2, 28, 9)));
        let minor: Version = "2.28".parse().unwrap();
        assert!(minor.at_least(2, 28, 9) && !minor.at_least(2, 29, 1) && !Version::new(2, 28, 3).at_least(2, 28, 9));
        assert_eq!(minor.to_string(), "2.28");
        assert!("2".parse::<Version>().is_err() && "2.x".parse::<Version>().is_err());
    }
}
