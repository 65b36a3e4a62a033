//! The directory that names the peers: which files count, what is in them, and what changed.
//!
//! Looked at again and again rather than watched: a kubelet mount swaps a symlink that a file watch misses, and an event
//! that is lost costs a peer (P3). Contents are compared, never times (P2), the certificates that a file names included.
//! A change counts when two looks in a row agree on it, so a file that is being written, or replaced by way of a deletion,
//! is not acted upon half-way.

#[cfg(test)]
pub(super) mod tests;

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep, sleep_until};
use twox_hash::XxHash3_64;

use crate::identity::ClusterName;
use crate::kvstore::EtcdConfig;
use crate::kvstore::jittered;
use crate::mirror::Failure;

/// Longer files are cut: no etcd client configuration is that long, and no key or certificate either.
const MAX_FILE: u64 = 1 << 20;

/// Between two looks that must agree.
const SETTLE: Duration = Duration::from_millis(100);

/// Looks after which a directory that never comes to rest is taken as it is.
const MAX_LOOKS: u32 = 20;

/// One peer's file.
#[derive(Debug)]
pub struct PeerFile {
    /// What it says.
    pub config: Result<EtcdConfig, Failure>,
    /// Of its bytes and of those of the files that it names.
    fingerprint: u64,
}

impl PartialEq for PeerFile {
    fn eq(&self, other: &Self) -> bool {
        self.fingerprint == other.fingerprint
    }
}

/// What the directory holds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Picture {
    /// The peers.
    pub peers: BTreeMap<ClusterName, Arc<PeerFile>>,
    /// Files that are peers by their contents, but whose names are no cluster names; what is wrong with them.
    pub misnamed: BTreeMap<String, Failure>,
}

/// What is different from before.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// A peer is new, or its contents are.
    Present(ClusterName, Arc<PeerFile>),
    /// A peer's file is gone.
    Removed(ClusterName),
    /// A file has no cluster's name.
    Misnamed(String, Failure),
    /// That file is gone.
    MisnamedRemoved(String),
}

/// The directory, and what was told of it.
#[derive(Debug)]
pub struct Directory {
    path: PathBuf,
    ours: ClusterName,
    interval: Duration,
    told: Option<Picture>,
    next_look: Instant,
    readable: bool,
}

impl Directory {
    /// Looks at `path` each `interval` (jittered); a file named `ours` is our own and ignored, as Cilium does.
    #[must_use]
    pub fn new(path: PathBuf, ours: ClusterName, interval: Duration) -> Self {
        Self { path, ours, interval, told: None, next_look: Instant::now(), readable: true }
    }

    /// The next changes. The first time what is there, at once and even if it is nothing; then only when something changed.
    /// May be dropped at any time.
    pub async fn changes(&mut self) -> Vec<Change> {
        loop {
            sleep_until(self.next_look).await;
            let look = self.settled_look().await;
            self.next_look = Instant::now() + jittered(self.interval);
            let picture = match look {
                Ok(picture) => {
                    self.readable = true;
                    picture
                }
                Err(error) => {
                    // Peers are not gone because we cannot see their files.
                    if std::mem::replace(&mut self.readable, false) {
                        tracing::error!(path = %self.path.display(), %error, "the peer directory cannot be read; peers stay as they are");
                    }
                    continue;
                }
            };
            let first = self.told.is_none();
            let changes = difference(self.told.as_ref().unwrap_or(&Picture::default()), &picture);
            self.told = Some(picture);
            if first || !changes.is_empty() {
                return changes;
            }
        }
    }

    /// Looks once if nothing changed, otherwise until two looks agree. The first picture is taken as it is: it adds only.
    async fn settled_look(&self) -> io::Result<Picture> {
        let mut picture = self.look().await?;
        let Some(told) = &self.told else { return Ok(picture) };
        for _ in 1..MAX_LOOKS {
            if picture == *told {
                break;
            }
            sleep(SETTLE).await;
            let again = self.look().await?;
            if again == picture {
                break;
            }
            picture = again;
        }
        Ok(picture)
    }

    async fn look(&self) -> io::Result<Picture> {
        let (path, ours) = (self.path.clone(), self.ours.clone());
        // A hung network mount blocks a thread of its own, nobody else.
        tokio::task::spawn_blocking(move || look(&path, Some(&ours))).await.map_err(io::Error::other)?
    }
}

/// What `new` has that `old` has not, and the other way round.
#[must_use]
pub fn difference(old: &Picture, new: &Picture) -> Vec<Change> {
    let removed = old.peers.keys().filter(|name| !new.peers.contains_key(name)).cloned().map(Change::Removed);
    let unnamed =
        old.misnamed.keys().filter(|file| !new.misnamed.contains_key(*file)).cloned().map(Change::MisnamedRemoved);
    let present = new
        .peers
        .iter()
        .filter(|(name, file)| old.peers.get(name) != Some(file))
        .map(|(name, file)| Change::Present(name.clone(), Arc::clone(file)));
    let misnamed = new
        .misnamed
        .iter()
        .filter(|(file, _)| !old.misnamed.contains_key(*file))
        .map(|(file, failure)| Change::Misnamed(file.clone(), failure.clone()));
    removed.chain(unnamed).chain(present).chain(misnamed).collect()
}

/// Reads the directory once; a file named `ours` is our own and passed over.
///
/// # Errors
/// The directory cannot be listed.
pub fn look(directory: &Path, ours: Option<&ClusterName>) -> io::Result<Picture> {
    let mut picture = Picture::default();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let file_name = entry.file_name().to_string_lossy().into_owned();
        if file_name.starts_with('.') || ours.is_some_and(|ours| file_name == ours.as_str()) {
            continue;
        }
        let path = entry.path();
        // Through symlinks; one that dangles is about to be replaced, or gone.
        if !fs::metadata(&path).is_ok_and(|metadata| metadata.is_file()) {
            continue;
        }
        let contents = read(&path);
        match (ClusterName::new(&file_name), contents) {
            (Ok(name), Ok(contents)) => {
                if is_peer(&contents) {
                    picture.peers.insert(name, Arc::new(peer_file(&path, &contents)));
                }
            }
            (_, Err(error)) if error.kind() == io::ErrorKind::NotFound => {}
            (Ok(name), Err(error)) => {
                picture.peers.insert(name, Arc::new(unreadable(&path, &error)));
            }
            (Err(error), Ok(contents)) if is_peer(&contents) => {
                let failure = Failure {
                    reason: "file-name",
                    message: format!("the file {} is not named after a cluster: {error}", path.display()),
                    hint: "name the file exactly as the cluster is named".into(),
                };
                picture.misnamed.insert(file_name, failure);
            }
            // Something else than a peer: a certificate, a key that is none of our business.
            (Err(_), _) => {}
        }
    }
    Ok(picture)
}

fn is_peer(contents: &[u8]) -> bool {
    contents.windows(ENDPOINTS.len()).any(|window| window == ENDPOINTS)
}

/// What tells an etcd client configuration from other files (Cilium's rule).
const ENDPOINTS: &[u8] = b"endpoints:";

fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut contents = Vec::new();
    fs::File::open(path)?.take(MAX_FILE).read_to_end(&mut contents)?;
    Ok(contents)
}

fn peer_file(path: &Path, contents: &[u8]) -> PeerFile {
    let mut fingerprint = Fingerprint::default();
    fingerprint.add(contents);
    // From these very bytes: the file may be another one by now.
    let text = std::str::from_utf8(contents).map_err(|error| error.to_string());
    let config = text
        .and_then(|text| EtcdConfig::from_yaml_str(text, path.parent().unwrap_or(Path::new("."))))
        .map_err(|problem| Failure {
            reason: "file-malformed",
            message: format!("{} {problem}", path.display()),
            hint: "compare it with the file that `cilium clustermesh connect` writes for another cluster".into(),
        });
    if let Ok(config) = &config {
        for named in [&config.trusted_ca_file, &config.cert_file, &config.key_file].into_iter().flatten() {
            match read(named) {
                Ok(contents) => fingerprint.add(&contents),
                // Connecting will say what is wrong with it; that it is readable again is a change.
                Err(error) => fingerprint.add(error.kind().to_string().as_bytes()),
            }
        }
    }
    PeerFile { config, fingerprint: fingerprint.value() }
}

fn unreadable(path: &Path, error: &io::Error) -> PeerFile {
    let mut fingerprint = Fingerprint::default();
    fingerprint.add(error.kind().to_string().as_bytes());
    let failure = Failure {
        reason: "file-unreadable",
        message: format!("{} cannot be read: {error}", path.display()),
        hint: "let the gateway's user read the file".into(),
    };
    PeerFile { config: Err(failure), fingerprint: fingerprint.value() }
}

/// A hash over several contents, each with its length, so that bytes cannot move from one to the next unseen.
#[derive(Default)]
struct Fingerprint(Vec<u64>);

impl Fingerprint {
    fn add(&mut self, contents: &[u8]) {
        self.0.extend([contents.len() as u64, XxHash3_64::oneshot(contents)]);
    }

    fn value(&self) -> u64 {
        let bytes: Vec<u8> = self.0.iter().flat_map(|part| part.to_le_bytes()).collect();
        XxHash3_64::oneshot(&bytes)
    }
}
