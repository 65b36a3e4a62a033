//! Reads the keys of a prefix without their values, as of one revision.

use super::list_watch::{NextPage, next_page};
use super::types::end_of_prefix;
use super::{KeyValue, ListGate, Session, SessionError};

/// Pages of keys are a tenth of what pages of entries are, and etcd counts the rest for each.
const PAGE: i64 = 32_768;

/// Reads keys; takes its turn among all lists.
#[derive(Clone, Debug)]
pub struct KeyReader {
    session: Session,
    prefix: Vec<u8>,
    gate: ListGate,
}

impl KeyReader {
    pub(super) const fn new(session: Session, prefix: Vec<u8>, gate: ListGate) -> Self {
        Self { session, prefix, gate }
    }

    /// Shows `look` every key as of `revision`, page by page.
    ///
    /// # Errors
    /// Any [`SessionError`]; [`SessionError::Compacted`] where `revision` is.
    pub async fn all(&self, revision: i64, mut look: impl FnMut(&[KeyValue])) -> Result<(), SessionError> {
        let (mut from, end) = (self.prefix.clone(), end_of_prefix(&self.prefix));
        loop {
            let page = self.gate.pass(self.session.range_page(&from, &end, PAGE, revision, true)).await?;
            look(&page.entries);
            let last_key = page.entries.last().map(|last| last.key.as_slice());
            from = match next_page(&from, last_key, page.more) {
                NextPage::From(from) => from,
                NextPage::None => return Ok(()),
                NextPage::Impossible(why) => return Err(SessionError::NotEtcd(why.to_owned())),
            };
        }
    }

    /// The keys written after the revision `since`, as of `revision`, and how many keys there are in all.
    ///
    /// # Errors
    /// As [`Self::all`].
    pub async fn written_since(&self, since: i64, revision: i64) -> Result<(Vec<KeyValue>, u64), SessionError> {
        self.gate.pass(self.session.keys_written_since(&self.prefix, since, revision)).await
    }
}
