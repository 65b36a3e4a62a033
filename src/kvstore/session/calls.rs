//! What can be asked of a session.

use bytes::Bytes;
use etcd_client::{DeleteOptions, GetOptions, PutOptions, Txn, TxnResponse};

use super::{A_PAGE, A_WATCH, DECODE_LIMIT, Session};
use crate::kvstore::types::end_of_prefix;
use crate::kvstore::watch::{self, Watch};
use crate::kvstore::{KeyValue, RangePage, Reads, SessionError};

impl Session {
    /// Reads one key, linearizably; also the revision of the answer.
    ///
    /// # Errors
    /// Any [`SessionError`].
    pub async fn get(&self, key: &[u8]) -> Result<(Option<KeyValue>, i64), SessionError> {
        self.get_at(key, 0).await
    }

    /// Reads one key as of an older revision; also the current revision.
    ///
    /// # Errors
    /// Any [`SessionError`]; [`SessionError::Compacted`] where `revision` is.
    pub async fn get_at(&self, key: &[u8], revision: i64) -> Result<(Option<KeyValue>, i64), SessionError> {
        let mut kv = self.kv()?;
        let options = GetOptions::new().with_revision(revision);
        let (mut answer, known) = self.call("a read", kv.get(key, Some(options))).await?;
        let current = self.check_current(answer.header(), known)?;
        Ok((answer.take_kvs().into_iter().next().map(KeyValue::from), current))
    }

    /// One page of `[from, end)`, at `revision` if that is not 0. Linearizable.
    ///
    /// # Errors
    /// Any [`SessionError`]; [`SessionError::Compacted`] where `revision` is.
    pub async fn range_page(
        &self,
        from: &[u8],
        end: &[u8],
        limit: i64,
        revision: i64,
        keys_only: bool,
    ) -> Result<RangePage, SessionError> {
        let mut kv = self.kv()?;
        let mut options = GetOptions::new().with_range(end).with_limit(limit).with_revision(revision);
        if keys_only {
            options = options.with_keys_only();
        }
        let asked = kv.get(from, Some(options));
        let (mut answer, known) = self.call_within(A_PAGE, self.0.timing.page, asked).await?;
        let revision = self.check_current(answer.header(), known)?;
        Ok(RangePage {
            more: answer.more(),
            entries: answer.take_kvs().into_iter().map(KeyValue::from).collect(),
            revision,
        })
    }

    /// One page of a list; see [`Reads`].
    ///
    /// # Errors
    /// As [`Self::range_page`].
    pub async fn list_page(
        &self,
        from: &[u8],
        end: &[u8],
        limit: i64,
        revision: i64,
        reads: Reads,
    ) -> Result<RangePage, SessionError> {
        if reads == Reads::Serializable
            && let Some(page) = self.member_page(from, end, limit, revision).await?
        {
            return Ok(page);
        }
        self.range_page(from, end, limit, revision, false).await
    }

    /// One page as the member at hand has it, unless that is behind what we know.
    async fn member_page(
        &self,
        from: &[u8],
        end: &[u8],
        limit: i64,
        revision: i64,
    ) -> Result<Option<RangePage>, SessionError> {
        let mut kv = self.kv()?;
        let options = GetOptions::new().with_range(end).with_limit(limit).with_revision(revision).with_serializable();
        let asked = kv.get(from, Some(options));
        let (mut answer, known) = match self.call_within(A_PAGE, self.0.timing.page, asked).await {
            // A revision that the member does not have yet.
            Err(SessionError::Other(_)) => return Ok(None),
            answer => answer?,
        };
        let revision = self.check(answer.header())?;
        if revision < known {
            return Ok(None);
        }
        self.saw(revision);
        let entries = answer.take_kvs().into_iter().map(KeyValue::from).collect();
        Ok(Some(RangePage { more: answer.more(), entries, revision }))
    }

    /// The keys behind `prefix`, without their values, that were written after the revision `since`, as of `revision`; and
    /// how many keys there were in all. Linearizable.
    ///
    /// # Errors
    /// Any [`SessionError`]; [`SessionError::Compacted`] where `revision` is.
    pub async fn keys_written_since(
        &self,
        prefix: &[u8],
        since: i64,
        revision: i64,
    ) -> Result<(Vec<KeyValue>, u64), SessionError> {
        let mut kv = self.kv()?;
        let options = GetOptions::new()
            .with_range(end_of_prefix(prefix))
            .with_keys_only()
            .with_min_mod_revision(since + 1)
            .with_revision(revision);
        let asked = kv.get(prefix, Some(options));
        let (mut answer, known) = self.call_within(A_PAGE, self.0.timing.page, asked).await?;
        self.check_current(answer.header(), known)?;
        let count = u64::try_from(answer.count()).unwrap_or_default();
        Ok((answer.take_kvs().into_iter().map(KeyValue::from).collect(), count))
    }

    /// Writes one key, under a lease unless that is 0; the revision of the write.
    ///
    /// # Errors
    /// Any [`SessionError`]; see [`SessionError::outcome_is_unknown`].
    pub async fn put(&self, key: &[u8], value: Bytes, lease: i64) -> Result<i64, SessionError> {
        let mut kv = self.kv()?;
        let options = PutOptions::new().with_lease(lease);
        let (answer, known) = self.call("a write", kv.put(key, value, Some(options))).await?;
        self.check_current(answer.header(), known)
    }

    /// Deletes one key; whether it was there.
    ///
    /// # Errors
    /// Any [`SessionError`]; see [`SessionError::outcome_is_unknown`].
    pub async fn delete(&self, key: &[u8]) -> Result<bool, SessionError> {
        Ok(self.delete_range(key, None).await? > 0)
    }

    /// Deletes all keys that begin with `prefix`; how many there were.
    ///
    /// # Errors
    /// Any [`SessionError`]; see [`SessionError::outcome_is_unknown`].
    pub async fn delete_prefix(&self, prefix: &[u8]) -> Result<i64, SessionError> {
        self.delete_range(prefix, Some(DeleteOptions::new().with_range(end_of_prefix(prefix)))).await
    }

    async fn delete_range(&self, key: &[u8], options: Option<DeleteOptions>) -> Result<i64, SessionError> {
        let mut kv = self.kv()?;
        let (answer, known) = self.call("a delete", kv.delete(key, options)).await?;
        self.check_current(answer.header(), known)?;
        Ok(answer.deleted())
    }

    /// Runs a transaction. Read the answer's raw fields (`.0`): `op_responses()` panics at an answer that is not etcd's.
    ///
    /// # Errors
    /// Any [`SessionError`]; see [`SessionError::outcome_is_unknown`].
    pub async fn txn(&self, txn: Txn) -> Result<TxnResponse, SessionError> {
        let mut kv = self.kv()?;
        let (answer, known) = self.call("a transaction", kv.txn(txn)).await?;
        self.check_current(answer.header(), known)?;
        Ok(answer)
    }

    /// Grants a lease of `ttl` seconds; its ID.
    ///
    /// # Errors
    /// Any [`SessionError`].
    pub async fn lease_grant(&self, ttl: i64) -> Result<i64, SessionError> {
        self.alive()?;
        let mut leases = self.0.client.lease_client();
        let (answer, _) = self.call("a lease", leases.grant(ttl, None)).await?;
        self.check(answer.header())?;
        Ok(answer.id())
    }

    /// Ends a lease and deletes its keys.
    ///
    /// # Errors
    /// Any [`SessionError`].
    pub async fn lease_revoke(&self, id: i64) -> Result<(), SessionError> {
        self.alive()?;
        let mut leases = self.0.client.lease_client();
        let (answer, _) = self.call("the end of a lease", leases.revoke(id)).await?;
        self.check(answer.header())?;
        Ok(())
    }

    /// Renews a lease, on the one stream that all renewals of the session share; the seconds that it has from now on.
    ///
    /// # Errors
    /// Any [`SessionError`]; [`SessionError::LeaseNotFound`] where it is gone.
    pub async fn lease_keep_alive(&self, id: i64) -> Result<i64, SessionError> {
        self.alive()?;
        let renewal = self.0.renewals.renew(self.0.client.lease_client(), id);
        let answer = self.patiently("the renewal of a lease", self.0.timing.call, renewal).await;
        if matches!(answer, Err(SessionError::Deadline(_))) {
            self.0.renewals.close();
        }
        let answer = self.judged(answer)?;
        self.check(answer.header())?;
        if answer.ttl() > 0 { Ok(answer.ttl()) } else { Err(SessionError::LeaseNotFound) }
    }

    /// Watches all keys that begin with `prefix`, from `start_revision` on (0: from now on); resolves when etcd has
    /// confirmed it.
    ///
    /// # Errors
    /// Any [`SessionError`]; a compacted start shows later, as [`crate::kvstore::Heard::Compacted`].
    pub async fn watch(&self, prefix: &[u8], start_revision: i64) -> Result<Watch, SessionError> {
        self.open_watch(prefix, Some(end_of_prefix(prefix)), start_revision).await
    }

    /// The same of one key.
    ///
    /// # Errors
    /// As [`Self::watch`].
    pub async fn watch_key(&self, key: &[u8], start_revision: i64) -> Result<Watch, SessionError> {
        self.open_watch(key, None, start_revision).await
    }

    async fn open_watch(&self, key: &[u8], end: Option<Vec<u8>>, start_revision: i64) -> Result<Watch, SessionError> {
        self.alive()?;
        let client = self.0.client.watch_client().max_decoding_message_size(DECODE_LIMIT);
        let opening = watch::open(client, self.clone(), key, end, start_revision);
        let opened = self.patiently(A_WATCH, self.0.timing.watch_created, opening).await;
        self.judged(opened)
    }
}
