//! The directory in which pictures are kept: a file a cluster, replaced whole. Blocks; callers see to it where.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::format::{Fit, FormatError, Picture, decode, encode};
use crate::identity::{ClusterName, MaxConnectedClusters};
use crate::view::Interner;

/// Behind the cluster's name.
const EXTENSION: &str = "picture";
/// Behind that, while a file is being written; a dot stands before. One that is found was torn by a crash.
const UNFINISHED: &str = "new";
/// Behind the extension: what could not be used, the newest first.
const DAMAGED: &str = "damaged";
/// How many of those are kept of one cluster.
const MAX_DAMAGED: u32 = 3;
/// Held by the one gateway that uses the directory.
const LOCK: &str = ".lock";
/// Twice what a cluster can hold whose every identity has the longest key string that we take.
const MAX_FILE: u64 = 2 << 30;

/// Why a directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// It cannot be made, read or written.
    #[error("the directory {path} cannot be used: {source}; let the gateway's user write there, or give another", path = .path.display())]
    Unusable {
        /// The directory, or a file in it.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// Another gateway uses it.
    #[error("the directory {path} is in use by another gateway; give each one of its own", path = .path.display())]
    InUse {
        /// The directory.
        path: PathBuf,
    },
}

/// Why a picture cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The file cannot be read.
    #[error("{path} cannot be read: {source}", path = .path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// It was of no use, and is out of the way.
    #[error("{path}: {why}; it was set aside as {to}", path = .path.display(), to = .to.display())]
    SetAside {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: FormatError,
        /// Where it is now.
        to: PathBuf,
    },
    /// It is whole, but not for us as we are set now; it stays where it is.
    #[error("{path}: {why}", path = .path.display())]
    Unfit {
        /// The file.
        path: PathBuf,
        /// What does not fit.
        why: FormatError,
    },
}

/// The pictures of all peers; cheap to clone. The directory is ours while any clone lives.
#[derive(Clone, Debug)]
pub struct PictureStore(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    path: PathBuf,
    _lock: File,
}

impl PictureStore {
    /// Takes the directory, making it if need be, and clears away what a crash left half-written.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(path: &Path) -> Result<Self, OpenError> {
        let unusable = |path: &Path, source| OpenError::Unusable { path: path.to_owned(), source };
        DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(|error| unusable(path, error))?;
        let lock_path = path.join(LOCK);
        let lock = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&lock_path);
        let lock = lock.map_err(|error| unusable(&lock_path, error))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(OpenError::InUse { path: path.to_owned() }),
            Err(TryLockError::Error(error)) => return Err(unusable(&lock_path, error)),
        }
        let store = Self(Arc::new(Inner { path: path.to_owned(), _lock: lock }));
        store.clear_unfinished().map_err(|error| unusable(path, error))?;
        Ok(store)
    }

    /// The picture of a cluster; none if there is none.
    ///
    /// # Errors
    /// [`LoadError`]; after [`LoadError::SetAside`] there is none.
    pub fn load(&self, fit: &Fit, interner: &Interner) -> Result<Option<Picture>, LoadError> {
        let path = self.path(&fit.name);
        let bytes = match read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(LoadError::Unreadable { path, source }),
        };
        match decode(&bytes, fit, interner) {
            Ok(picture) => Ok(Some(picture)),
            Err(why @ FormatError::Width { .. }) => Err(LoadError::Unfit { path, why }),
            Err(why) => match self.set_aside(&fit.name) {
                Ok(to) => Err(LoadError::SetAside { path, why, to }),
                Err(source) => Err(LoadError::Unreadable { path, source }),
            },
        }
    }

    /// Keeps a picture in place of an earlier one; after a crash at any moment there is one of the two, whole. Returns its
    /// size in bytes.
    ///
    /// # Errors
    /// The system's; the earlier picture is still there then, as a rule.
    pub fn save(&self, picture: &Picture, width: MaxConnectedClusters) -> io::Result<u64> {
        let bytes = encode(picture, width);
        let path = self.path(picture.version.name());
        let unfinished = self.unfinished(picture.version.name());
        let written = (|| {
            let options = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).clone();
            let mut file = options.open(&unfinished)?;
            file.write_all(&bytes)?;
            // Or a crash could leave the new name with nothing behind it.
            file.sync_all()?;
            fs::rename(&unfinished, &path)
        })();
        if let Err(error) = written {
            // A full disk should not stay so by our fault; if this fails too, the next start does it.
            let _ = fs::remove_file(&unfinished);
            return Err(error);
        }
        self.sync()?;
        Ok(bytes.len() as u64)
    }

    /// Removes all there is of a cluster.
    ///
    /// # Errors
    /// The system's.
    pub fn remove(&self, name: &ClusterName) -> io::Result<()> {
        let files = [self.path(name), self.unfinished(name)];
        let files = files.into_iter().chain((1..=MAX_DAMAGED).map(|n| self.damaged(name, n)));
        for file in files {
            if let Err(error) = fs::remove_file(file)
                && error.kind() != io::ErrorKind::NotFound
            {
                return Err(error);
            }
        }
        self.sync()
    }

    /// The clusters of which there is a picture, whole or not.
    ///
    /// # Errors
    /// The system's.
    pub fn names(&self) -> io::Result<Vec<ClusterName>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.0.path)? {
            let file = entry?.file_name();
            let stem = file.to_str().and_then(|file| file.strip_suffix(EXTENSION)?.strip_suffix('.'));
            names.extend(stem.and_then(|stem| ClusterName::new(stem).ok()));
        }
        names.sort_unstable();
        Ok(names)
    }

    fn clear_unfinished(&self) -> io::Result<()> {
        let end = format!(".{EXTENSION}.{UNFINISHED}");
        for entry in fs::read_dir(&self.0.path)? {
            let entry = entry?;
            let is_ours = |file: &str| file.starts_with('.') && file.ends_with(&end);
            if entry.file_name().to_str().is_some_and(is_ours) {
                fs::remove_file(entry.path())?;
            }
        }
        Ok(())
    }

    /// Out of the way, but not gone: somebody may want to know what happened to it.
    fn set_aside(&self, name: &ClusterName) -> io::Result<PathBuf> {
        for n in (1..MAX_DAMAGED).rev() {
            let from = self.damaged(name, n);
            if from.exists() {
                fs::rename(from, self.damaged(name, n + 1))?;
            }
        }
        let to = self.damaged(name, 1);
        fs::rename(self.path(name), &to)?;
        self.sync()?;
        Ok(to)
    }

    /// A rename or removal is there after a crash only once the directory was written.
    fn sync(&self) -> io::Result<()> {
        File::open(&self.0.path)?.sync_all()
    }

    fn path(&self, name: &ClusterName) -> PathBuf {
        self.0.path.join(format!("{name}.{EXTENSION}"))
    }

    fn unfinished(&self, name: &ClusterName) -> PathBuf {
        self.0.path.join(format!(".{name}.{EXTENSION}.{UNFINISHED}"))
    }

    fn damaged(&self, name: &ClusterName, n: u32) -> PathBuf {
        self.0.path.join(format!("{name}.{EXTENSION}.{DAMAGED}-{n}"))
    }
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    let file = File::open(path)?;
    let length = file.metadata()?.len();
    if length > MAX_FILE {
        // Cut, so that it is found damaged, and set aside.
        return Ok(Vec::new());
    }
    let mut bytes = Vec::with_capacity(usize::try_from(length).unwrap_or_default());
    file.take(MAX_FILE).read_to_end(&mut bytes)?;
    Ok(bytes)
}
