//! Files that are written: whoever opens one sees what was there before, or all of what is new.

use std::fs::{File, Permissions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use stepalloc_graph::Error;

/// Writes a file. One that is there is replaced when all is written, and may be mapped meanwhile. Links stay, and what is no plain file
/// is written to as it is.
pub fn put(path: &Path, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<(), Error> {
    let written = || {
        let target = path.canonicalize().unwrap_or_else(|_| path.into());
        if target.metadata().is_ok_and(|found| !found.is_file()) {
            let mut to = BufWriter::new(File::create(&target)?);
            write(&mut to)?;
            return to.flush();
        }
        let folder = target.parent().filter(|folder| !folder.as_os_str().is_empty());
        // As files usually are: the user's mask takes from it.
        let permissions = Permissions::from_mode(0o666);
        let new = tempfile::Builder::new()
            .prefix(".stepalloc-")
            .permissions(permissions)
            .tempfile_in(folder.unwrap_or(Path::new(".")))?;
        let mut to = BufWriter::new(new);
        write(&mut to)?;
        let new = to.into_inner().map_err(io::IntoInnerError::into_error)?;
        new.as_file().sync_all()?;
        new.persist(&target).map(drop).map_err(|error| error.error)
    };
    written().map_err(|source| Error::File { path: path.into(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_stay_and_what_fails_leaves_all_as_it_was() {
        let folder = tempfile::TempDir::new().expect("a directory");
        let (file, link) = (folder.path().join("file"), folder.path().join("link"));
        std::fs::write(&file, "old").expect("it is written");
        std::os::unix::fs::symlink("file", &link).expect("a link");
        let failed = put(&link, |to| to.write_all(b"half").and(Err(io::ErrorKind::StorageFull.into())));
        assert!(matches!(failed, Err(Error::File { path, .. }) if path == link));
        assert_eq!(std::fs::read(&file).expect("it is there"), b"old");
        put(&link, |to| to.write_all(b"new")).expect("it is written");
        assert_eq!(std::fs::read(&file).expect("it is there"), b"new");
        assert!(link.symlink_metadata().expect("it is there").is_symlink());
        assert_eq!(std::fs::read_dir(folder.path()).expect("a directory").count(), 2);
        put(Path::new("/dev/null"), |to| to.write_all(b"new")).expect("it takes everything");
    }
}
