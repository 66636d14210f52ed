//! Settings: `LINKWISE_*` variables and one file, `LINKWISE_CONFIG`. Variables override the file. All plugins read the same file, and each checks the
//! settings of its own.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// A setting that is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigError {
    /// A variable, or file:line.
    pub place: String,
    /// What was found and what was expected.
    pub what: String,
}

impl ConfigError {
    /// An error at this place.
    pub fn new(place: impl Into<String>, what: impl Into<String>) -> Self {
        ConfigError { place: place.into(), what: what.into() }
    }
}

impl std::fmt::Display for ConfigError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.place, self.what)
    }
}

/// The names of a plugin's settings in the file; the variable of `key` is `LINKWISE_KEY`.
#[derive(Debug, Clone, Copy)]
pub struct Keys {
    /// Settings for users.
    pub settings: &'static [&'static str],
    /// Settings that an error does not list: those of tests, and those that plugins share.
    pub unlisted: &'static [&'static str],
    /// Current and former names. Former names are accepted in the file and as variables.
    pub former: &'static [(&'static str, &'static str)],
    /// True for settings of other plugins.
    pub is_of_others: fn(&str) -> bool,
}

impl Keys {
    /// The current name of a setting.
    fn current<'a>(&self, key: &'a str) -> &'a str {
        self.former.iter().find(|(_, former)| *former == key).map_or(key, |(current, _)| current)
    }

    /// The variables of all settings, former names included.
    pub fn variables(&self) -> impl Iterator<Item = String> {
        let former = self.former.iter().map(|(_, former)| *former);
        self.settings.iter().chain(self.unlisted).copied().chain(former).map(variable)
    }

    /// Parses `key = value` lines; `#` begins a comment.
    fn parse(&self, path: &str, text: &str) -> Result<Vec<(String, Setting)>, ConfigError> {
        let mut all: Vec<(String, Setting)> = Vec::new();
        for (i, line) in text.lines().enumerate() {
            let line = line.split_once('#').map_or(line, |(l, _)| l).trim();
            if line.is_empty() {
                continue;
            }
            let place = format!("{path}:{}", i + 1);
            let wrong = |what: String| ConfigError::new(place.clone(), what);
            let (key, value) =
                line.split_once('=').ok_or_else(|| wrong(format!("`{line}` is not a setting; write key = value")))?;
            let (key, value) = (key.trim().to_ascii_lowercase(), value.trim().trim_matches('"'));
            let key = self.current(&key).to_owned();
            if !self.settings.contains(&key.as_str()) && !self.unlisted.contains(&key.as_str()) {
                if (self.is_of_others)(&key) {
                    continue;
                }
                return Err(wrong(format!("there is no setting `{key}`; there are {}", self.settings.join(", "))));
            }
            if all.iter().any(|(k, _)| *k == key) {
                return Err(wrong(format!("`{key}` is set twice")));
            }
            all.push((key, (value.into(), place)));
        }
        Ok(all)
    }
}

/// The variable of a setting.
pub fn variable(key: &str) -> String {
    format!("LINKWISE_{}", key.to_ascii_uppercase())
}

/// Letters to insert, delete or replace to make one word from the other: names the variable that a misspelt one means. O(a b).
pub fn edits(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, y) in b.bytes().enumerate() {
            let left = row[j];
            let replaced = diagonal + usize::from(x != y);
            diagonal = std::mem::replace(&mut row[j + 1], 0);
            row[j + 1] = replaced.min(diagonal + 1).min(left + 1);
        }
    }
    row[b.len()]
}

/// The value of a setting and its place: a variable, or file:line.
pub type Setting = (String, String);

/// The sources of a plugin's settings: variables, then the file that `LINKWISE_CONFIG` names.
pub struct Sources<'a> {
    /// Reads a variable.
    pub env: &'a dyn Fn(&str) -> Option<String>,
    read: &'a dyn Fn(&Path) -> Result<String, String>,
    former: &'static [(&'static str, &'static str)],
    file: Vec<(String, Setting)>,
}

impl<'a> Sources<'a> {
    /// Reads the file, if a variable names one. `read` limits the size and the time: [`crate::read::read_file_until`].
    ///
    /// # Errors
    /// The file cannot be read, or the first line of it that is wrong.
    pub fn open(
        keys: &Keys,
        env: &'a dyn Fn(&str) -> Option<String>,
        read: &'a dyn Fn(&Path) -> Result<String, String>,
    ) -> Result<Self, ConfigError> {
        let mut file = Vec::new();
        if let Some(path) = env("LINKWISE_CONFIG").filter(|p| !p.is_empty()) {
            let text = read(Path::new(&path)).map_err(|what| ConfigError::new(&path, what))?;
            file = keys.parse(&path, &text)?;
        }
        Ok(Sources { env, read, former: keys.former, file })
    }

    /// A variable that is set and not empty.
    pub fn set_variable(&self, name: &str) -> Option<Setting> {
        (self.env)(name).filter(|v| !v.is_empty()).map(|v| (v, name.into()))
    }

    /// The setting's value and place.
    pub fn get(&self, key: &str) -> Option<Setting> {
        let former = self.former.iter().filter(|(current, _)| *current == key).map(|(_, former)| variable(former));
        std::iter::once(variable(key))
            .chain(former)
            .find_map(|name| self.set_variable(&name))
            .or_else(|| self.file.iter().find(|(k, _)| k == key).map(|(_, s)| s.clone()))
    }

    /// The setting as a path.
    pub fn path(&self, key: &str) -> Option<PathBuf> {
        self.get(key).map(|(v, _)| PathBuf::from(v))
    }

    /// The setting as `parse` reads it. `expected` completes the sentence: `x` is not ….
    ///
    /// # Errors
    /// `parse` refuses the value.
    pub fn parsed_as<T>(
        &self,
        key: &str,
        expected: &str,
        parse: impl FnOnce(&str) -> Option<T>,
    ) -> Result<Option<T>, ConfigError> {
        let Some((v, place)) = self.get(key) else { return Ok(None) };
        parse(&v).map(Some).ok_or_else(|| ConfigError::new(place, format!("`{v}` is not {expected}")))
    }

    /// The setting as its type parses it.
    ///
    /// # Errors
    /// The type's own sentence about the value.
    pub fn parsed<T: std::str::FromStr<Err = String>>(&self, key: &str) -> Result<Option<T>, ConfigError> {
        let Some((v, place)) = self.get(key) else { return Ok(None) };
        v.parse().map(Some).map_err(|what| ConfigError::new(place, what))
    }

    /// The meaning of the setting's word, in any case.
    ///
    /// # Errors
    /// The value is none of the words.
    pub fn word<T: Copy>(&self, key: &str, words: &[(&str, T)]) -> Result<Option<T>, ConfigError> {
        let Some((v, place)) = self.get(key) else { return Ok(None) };
        let meaning = words.iter().find(|(w, _)| w.eq_ignore_ascii_case(&v)).map(|(_, meaning)| *meaning);
        let list = || words.iter().map(|(w, _)| *w).collect::<Vec<_>>().join(", ");
        meaning.map(Some).ok_or_else(|| ConfigError::new(place, format!("`{v}` is none of {}", list())))
    }

    /// A setting of 0 or 1.
    ///
    /// # Errors
    /// The value is neither.
    pub fn flag(&self, key: &str) -> Result<Option<bool>, ConfigError> {
        self.word(key, &[("0", false), ("1", true)])
    }

    /// Parses the file that a setting names; `parse` reports errors with their line.
    ///
    /// # Errors
    /// The file cannot be read, or its first line that is wrong.
    pub fn parsed_file<T>(
        &self,
        key: &str,
        parse: impl Fn(&str) -> Result<T, (usize, String)>,
    ) -> Result<Option<T>, ConfigError> {
        let Some((path, place)) = self.get(key) else { return Ok(None) };
        let text = (self.read)(Path::new(&path)).map_err(|e| ConfigError::new(place, format!("{path}: {e}")))?;
        parse(&text).map(Some).map_err(|(line, what)| ConfigError::new(format!("{path}:{line}"), what))
    }
}

/// The first `LINKWISE_*` variable whose value is not UTF-8.
pub fn not_text(vars: impl IntoIterator<Item = (OsString, OsString)>) -> Option<ConfigError> {
    let ours = vars.into_iter().filter(|(name, _)| name.to_string_lossy().starts_with("LINKWISE_"));
    let wrong = ours.filter(|(_, value)| value.to_str().is_none()).map(|(name, _)| name).min()?;
    Some(ConfigError::new(wrong.to_string_lossy(), "its value is not UTF-8"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEYS: Keys = Keys {
        settings: &["mode", "place"],
        unlisted: &["token"],
        former: &[("place", "meeting")],
        is_of_others: |key| key.starts_with("net"),
    };

    /// The values of `mode`, `place` and `token`, or the error.
    fn read(vars: &[(&str, &str)], file: &str) -> Result<Vec<Option<String>>, String> {
        let env = |k: &str| vars.iter().find(|(n, _)| *n == k).map(|(_, v)| v.to_string());
        let read = |_: &Path| Ok(file.to_owned());
        let from = Sources::open(&KEYS, &env, &read).map_err(|e| e.to_string())?;
        Ok(["mode", "place", "token"].map(|k| from.get(k).map(|s| s.0)).to_vec())
    }

    #[test]
    fn variables_override_the_file_and_former_names_are_accepted() {
        let some = |values: [&str; 3]| Ok(values.map(|v| (!v.is_empty()).then(|| v.to_owned())).to_vec());
        let file = "mode = a # a comment\nnet = other\n\nmeeting = \"b\"\nTOKEN=t\n";
        assert_eq!(read(&[("LINKWISE_CONFIG", "/x")], file), some(["a", "b", "t"]));
        let vars =
            [("LINKWISE_CONFIG", "/x"), ("LINKWISE_MODE", "c"), ("LINKWISE_MEETING", "d"), ("LINKWISE_TOKEN", "")];
        assert_eq!(read(&vars, file), some(["c", "d", "t"]));
        assert_eq!(read(&[], file), some(["", "", ""]));
    }

    #[test]
    fn a_wrong_line_is_named_by_its_number() {
        let error = |file: &str| read(&[("LINKWISE_CONFIG", "/x")], file).unwrap_err();
        assert_eq!(error("\nmode\n"), "/x:2: `mode` is not a setting; write key = value");
        assert_eq!(error("speed = 1\n"), "/x:1: there is no setting `speed`; there are mode, place");
        assert_eq!(error("place = a\nmeeting = b\n"), "/x:2: `place` is set twice");
    }

    #[test]
    fn a_value_that_is_no_text_is_an_error() {
        use std::os::unix::ffi::OsStringExt;
        let var = |name: &str, value: &[u8]| (OsString::from(name), OsString::from_vec(value.to_vec()));
        assert_eq!(not_text([var("LINKWISE_MODE", b"off"), var("OTHER", b"\xff")]), None);
        let e = not_text([var("LINKWISE_MODE", b"observe\xff")]).unwrap();
        assert_eq!(e.to_string(), "LINKWISE_MODE: its value is not UTF-8");
    }
}
