//! The folder of the demo. Each of its own files is replaced atomically; other files are never changed.

use console::Failure;
use std::collections::BTreeSet;
use std::io::Write;
use std::path::{Path, PathBuf};

/// The list of the files that a demo wrote; the next demo may replace them.
const LIST: &str = "linkwise-demo.txt";
/// Its first line.
const LIST_HEAD: &str = "Files in this folder written by `linkwise-lab demo`, replaced by the next one:";
/// All files of a demo.
const FILES: [&str; 8] = [
    "hgx-h100.topo.txt",
    "cluster.yaml",
    "demo.db",
    "loop.db",
    "loop.state",
    "loop-model.json",
    "gbe-by-k.svg",
    "report.html",
];
/// Largest list that is read.
const LIST_BYTES_MAX: usize = 64 << 10;

/// The folder of a demo. None of its files with one of the demo's names is foreign.
pub struct Folder {
    path: PathBuf,
}

impl Folder {
    /// Creates the folder if necessary and claims the demo's names in it.
    ///
    /// # Errors
    /// A file has one of the demo's names but no demo wrote it; the folder cannot be created or written.
    pub fn open(path: &Path) -> Result<Self, Failure> {
        std::fs::create_dir_all(path).map_err(|e| Failure::file("make the folder", path, e))?;
        let list = path.join(LIST);
        let known: BTreeSet<String> = if list.symlink_metadata().is_ok() {
            let text = files::read_text(&list, LIST_BYTES_MAX)?;
            let mut lines = text.lines();
            if lines.next() != Some(LIST_HEAD) {
                return Err(foreign(&list));
            }
            lines.map(|l| l.trim().to_owned()).collect()
        } else {
            BTreeSet::new()
        };
        for name in FILES {
            let file = path.join(name);
            let Ok(meta) = file.symlink_metadata() else { continue };
            if !known.contains(name) || !meta.is_file() {
                return Err(foreign(&file));
            }
        }
        let folder = Folder { path: path.into() };
        // The list comes first: after a demo is killed half-way, the next one may replace its files.
        let names: Vec<String> = FILES.iter().map(|f| format!("  {f}")).collect();
        folder.put(&list, format!("{LIST_HEAD}\n{}\n", names.join("\n")).as_bytes())?;
        Ok(folder)
    }

    /// The path of one of the demo's files.
    pub fn claim(&self, name: &str) -> Result<PathBuf, Failure> {
        match FILES.contains(&name) {
            true => Ok(self.path.join(name)),
            false => Err(Failure::input(format!("`{name}` is not one of the demo's files"))),
        }
    }

    /// Writes one of the demo's files and replaces the old one atomically.
    pub fn write(&self, name: &str, text: &str) -> Result<PathBuf, Failure> {
        let path = self.claim(name)?;
        self.put(&path, text.as_bytes())?;
        Ok(path)
    }

    /// An empty folder inside this one, removed when dropped.
    pub fn temporary_folder(&self) -> Result<tempfile::TempDir, Failure> {
        tempfile::Builder::new()
            .prefix(".linkwise-demo-")
            .tempdir_in(&self.path)
            .map_err(|e| Failure::file("write into", &self.path, e))
    }

    /// Moves a finished file into the folder.
    pub fn adopt(&self, finished: &Path, name: &str) -> Result<(), Failure> {
        let path = self.claim(name)?;
        std::fs::rename(finished, &path).map_err(|e| Failure::file("write", &path, e))
    }

    fn put(&self, path: &Path, bytes: &[u8]) -> Result<(), Failure> {
        let write = || -> std::io::Result<()> {
            let mut file = tempfile::Builder::new().prefix(".linkwise-demo-").tempfile_in(&self.path)?;
            file.write_all(bytes)?;
            #[cfg(unix)]
            {
                use std::os::unix::fs::PermissionsExt;
                file.as_file().set_permissions(std::fs::Permissions::from_mode(0o644))?;
            }
            file.persist(path)?;
            Ok(())
        };
        write().map_err(|e| Failure::file("write", path, e))
    }
}

fn foreign(file: &Path) -> Failure {
    Failure::input(format!(
        "{} exists and no demo wrote it; it is not replaced. Name another folder with --out, or move the file away",
        file.display()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_demo_replaces_its_own_files_and_refuses_those_of_others() {
        let dir = tempfile::tempdir().unwrap();
        for round in ["one", "two"] {
            let folder = Folder::open(dir.path()).unwrap();
            let path = folder.write("report.html", round).unwrap();
            assert_eq!(std::fs::read_to_string(path).unwrap(), round);
        }
        assert!(Folder::open(dir.path()).unwrap().write("other.txt", "").is_err());

        let theirs = tempfile::tempdir().unwrap();
        let file = theirs.path().join("report.html");
        std::fs::write(&file, "my thesis").unwrap();
        let message = Folder::open(theirs.path()).err().unwrap().to_string();
        assert!(message.contains("report.html exists and no demo wrote it"), "{message}");
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "my thesis");
        assert!(!theirs.path().join(LIST).exists());
    }

    #[test]
    fn a_folder_or_a_link_under_a_name_of_the_demo_is_foreign_even_when_listed() {
        let dir = tempfile::tempdir().unwrap();
        Folder::open(dir.path()).unwrap();
        std::fs::create_dir(dir.path().join("demo.db")).unwrap();
        assert!(Folder::open(dir.path()).is_err());
        #[cfg(unix)]
        {
            let dir = tempfile::tempdir().unwrap();
            Folder::open(dir.path()).unwrap();
            std::os::unix::fs::symlink("elsewhere.html", dir.path().join("report.html")).unwrap();
            assert!(Folder::open(dir.path()).is_err());
        }
    }
}
