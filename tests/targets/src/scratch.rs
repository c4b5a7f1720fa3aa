//! Files that exist as long as a target reads them.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A name that no file had before, in a directory of this process's own; the file goes with the value. New names each time,
/// as files of models must not be changed while they are mapped.
pub struct Scratch(PathBuf);

impl Scratch {
    /// A file of these bytes.
    pub fn new(extension: &str, bytes: &[u8]) -> Scratch {
        static DIRECTORY: OnceLock<PathBuf> = OnceLock::new();
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let directory = DIRECTORY.get_or_init(|| {
            // In memory where there is such a place.
            let memory = Path::new("/dev/shm");
            let parent = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
            let made = tempfile::Builder::new().prefix("stepalloc-targets-").tempdir_in(parent);
            made.expect("a directory can be made").keep()
        });
        std::fs::create_dir_all(directory).expect("a directory can be made");
        let path = directory.join(format!("{}.{extension}", NEXT.fetch_add(1, Relaxed)));
        std::fs::write(&path, bytes).expect("a file can be written");
        Scratch(path)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// A file of the same name but for the extension.
    pub fn beside(&self, extension: &str, bytes: &[u8]) -> Scratch {
        let path = self.0.with_extension(extension);
        std::fs::write(&path, bytes).expect("a file can be written");
        Scratch(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
        // The last one takes the directory along.
        let _ = self.0.parent().map(std::fs::remove_dir);
    }
}
