//! The backend's contract, met with the transactions of the neighbours.

use std::borrow::Cow;

use tokio::sync::watch;
use tokio::time::Instant;

use super::{EtcdBackend, EtcdLock};
use crate::allocator::backend::{
    Attempt, Backend, BackendStatus, Created, LockRecord, MasterRecord, Removal, Update, Updated,
};
use crate::allocator::{AllocError, Key};
use crate::identity::NumericIdentity;

impl Backend for EtcdBackend {
    type Lock = EtcdLock;

    /// Etcd's keys are bytes: nothing has to be encoded.
    fn encode<'a>(&self, key: &'a Key) -> Cow<'a, str> {
        Cow::Borrowed(key.as_str())
    }

    async fn try_allocate(&self, number: NumericIdentity, key: &Key) -> Result<Attempt, AllocError> {
        if !self.0.terms.fast_path {
            return Ok(Attempt::Locked);
        }
        self.allocate_without_lock(number, key).await
    }

    async fn try_reference(&self, number: NumericIdentity, key: &Key) -> Result<Attempt, AllocError> {
        if !self.0.terms.fast_path {
            return Ok(Attempt::Locked);
        }
        self.reference_without_lock(number, key).await
    }

    async fn allocate(
        &self,
        number: NumericIdentity,
        key: &Key,
        lock: Option<&EtcdLock>,
    ) -> Result<Created, AllocError> {
        self.create_master(number, key, lock).await
    }

    async fn acquire_reference(
        &self,
        number: NumericIdentity,
        key: &Key,
        lock: Option<&EtcdLock>,
    ) -> Result<Attempt, AllocError> {
        self.write_reference(number, key, lock).await
    }

    async fn release(&self, number: NumericIdentity, key: &Key) -> Result<(), AllocError> {
        self.delete_reference(number, key).await
    }

    async fn update(
        &self,
        number: NumericIdentity,
        key: &Key,
        how: Update,
        lock: Option<&EtcdLock>,
    ) -> Result<Updated, AllocError> {
        self.write_missing(number, key, how, lock).await
    }

    async fn get(&self, key: &Key, lock: Option<&EtcdLock>) -> Result<Option<NumericIdentity>, AllocError> {
        self.read_number(key, lock).await
    }

    async fn get_by_id(&self, number: NumericIdentity) -> Result<Option<Box<str>>, AllocError> {
        let entry = self.0.store.get(&self.0.paths.master(number)).await?;
        Ok(entry.and_then(|entry| String::from_utf8(entry.value).ok()).map(Into::into))
    }

    async fn lock(&self, key: &Key, deadline: Instant) -> Result<EtcdLock, AllocError> {
        let deadline = deadline.min(Instant::now() + self.0.terms.lock_wait);
        EtcdLock::acquire(&self.0.paths.locks(key)?, &self.0.locks, &self.0.store, deadline).await
    }

    async fn masters(&self) -> Result<Vec<MasterRecord>, AllocError> {
        self.list_masters().await
    }

    async fn unused(&self, records: Vec<MasterRecord>) -> Result<Vec<MasterRecord>, AllocError> {
        self.without_references(records).await
    }

    async fn remove_unused(&self, record: &MasterRecord) -> Result<Removal, AllocError> {
        self.delete_unused(record).await
    }

    async fn locks(&self) -> Result<Vec<LockRecord>, AllocError> {
        self.list_locks().await
    }

    async fn remove_lock(&self, lock: &LockRecord) -> Result<bool, AllocError> {
        self.delete_lock(lock).await
    }

    fn bootstrapped(&self) {
        self.0.store.limiter().bootstrapped();
    }

    async fn status(&self) -> BackendStatus {
        let (leases, leased_keys) = self.0.references.counts();
        let lost_leases = *self.0.references.losses().borrow();
        let text = match self.0.store.get(self.0.paths.base()).await {
            Ok(_) => "etcd answers".to_owned(),
            Err(error) => error.to_string(),
        };
        BackendStatus { text, leases, leased_keys, lost_leases }
    }

    fn losses(&self) -> watch::Receiver<u64> {
        self.0.references.losses()
    }

    fn keeps_reference(&self, key: &Key) -> bool {
        self.0.paths.slave(key).is_ok_and(|slave| self.0.references.lease_of(&slave).is_some())
    }

    fn leases(&self) -> (usize, usize) {
        self.0.references.counts()
    }

    async fn release_all(&self) -> Result<(), AllocError> {
        self.0.references.revoke_all().await.map_err(Into::into)
    }
}
