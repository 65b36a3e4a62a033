//! One key kept in sight: what it holds, and every change of that.

use std::time::Duration;

use tokio::time::sleep;

use super::{Backoff, Event, Heard, KeyValue, Session, SessionError, Watch};

/// Between attempts to watch, where the server ends a watch.
const PAUSE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(10));

/// A key and its value, as new as the store tells. Belongs to one session.
#[derive(Debug)]
pub struct KeyWatch {
    session: Session,
    key: Vec<u8>,
    value: Option<Vec<u8>>,
    /// What is known is of this revision.
    revision: i64,
    watch: Option<Watch>,
    backoff: Backoff,
}

impl KeyWatch {
    /// Reads the key, linearizably. Watching it begins with [`Self::changed`].
    ///
    /// # Errors
    /// Any [`SessionError`].
    pub async fn open(session: &Session, key: &[u8]) -> Result<Self, SessionError> {
        let (value, revision) = session.get(key).await?;
        Ok(Self {
            session: session.clone(),
            key: key.to_vec(),
            value: value.map(|entry| entry.value),
            revision,
            watch: None,
            backoff: Backoff::new(PAUSE.0, PAUSE.1),
        })
    }

    /// The value, if the key is there.
    #[must_use]
    pub fn value(&self) -> Option<&[u8]> {
        self.value.as_deref()
    }

    /// Waits until the value is another one than before. Dropping the future loses nothing.
    ///
    /// # Errors
    /// Any [`SessionError`]; what ends a watch only does not come here.
    pub async fn changed(&mut self) -> Result<(), SessionError> {
        loop {
            let watch = match &mut self.watch {
                Some(watch) => watch,
                none => none.insert(self.session.watch_key(&self.key, self.revision + 1).await?),
            };
            let last = match watch.next().await? {
                Heard::Events(events) => {
                    self.backoff.reset();
                    events.into_iter().next_back()
                }
                Heard::Progress(revision) => {
                    self.revision = self.revision.max(revision);
                    None
                }
                Heard::Alive => None,
                // Whatever happened since is in what is there now.
                Heard::Compacted | Heard::Ended(_) => {
                    self.watch = None;
                    sleep(self.backoff.next_delay()).await;
                    let (value, revision) = self.session.get(&self.key).await?;
                    self.revision = revision;
                    if self.replace(value.map(|entry| entry.value)) {
                        return Ok(());
                    }
                    continue;
                }
            };
            let Some(last) = last else { continue };
            self.revision = self.revision.max(last.mod_revision());
            let value = match last {
                Event::Put(KeyValue { value, .. }) => Some(value),
                Event::Delete { .. } => None,
            };
            if self.replace(value) {
                return Ok(());
            }
        }
    }

    fn replace(&mut self, value: Option<Vec<u8>>) -> bool {
        let changed = self.value != value;
        self.value = value;
        changed
    }
}
