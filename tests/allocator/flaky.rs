//! A backend that fails on demand, before or after it did what it was asked: the two ways in which a call can end in an error.

use std::borrow::Cow;
use std::sync::Arc;

use meshgate::allocator::backend::{
    Attempt, Backend, BackendStatus, Created, LockRecord, MasterRecord, Removal, Update, Updated,
};
use meshgate::allocator::etcd::{EtcdBackend, EtcdLock};
use meshgate::allocator::{AllocError, Key};
use meshgate::identity::NumericIdentity;
use tokio::sync::watch;
use tokio::time::Instant;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    None,
    /// Nothing was written.
    Before,
    /// It was written, and the answer was lost.
    After,
}

type Plan = Arc<dyn Fn(&'static str) -> Fault + Send + Sync>;

#[derive(Clone)]
pub struct Flaky {
    backend: EtcdBackend,
    plan: Plan,
}

impl std::fmt::Debug for Flaky {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.backend.fmt(f)
    }
}

impl Flaky {
    pub fn new(backend: EtcdBackend, plan: impl Fn(&'static str) -> Fault + Send + Sync + 'static) -> Self {
        Self { backend, plan: Arc::new(plan) }
    }

    async fn through<T>(
        &self,
        call: &'static str,
        future: impl Future<Output = Result<T, AllocError>> + Send,
    ) -> Result<T, AllocError> {
        let failed = || Err(AllocError::BackendUnavailable("on demand".to_owned()));
        match (self.plan)(call) {
            Fault::None => future.await,
            Fault::Before => failed(),
            Fault::After => {
                future.await?;
                failed()
            }
        }
    }
}

impl Backend for Flaky {
    type Lock = EtcdLock;

    fn encode<'a>(&self, key: &'a Key) -> Cow<'a, str> {
        self.backend.encode(key)
    }

    async fn try_allocate(&self, number: NumericIdentity, key: &Key) -> Result<Attempt, AllocError> {
        self.through("try_allocate", self.backend.try_allocate(number, key)).await
    }

    async fn try_reference(&self, number: NumericIdentity, key: &Key) -> Result<Attempt, AllocError> {
        self.through("try_reference", self.backend.try_reference(number, key)).await
    }

    async fn allocate(
        &self,
        number: NumericIdentity,
        key: &Key,
        lock: Option<&EtcdLock>,
    ) -> Result<Created, AllocError> {
        self.through("allocate", self.backend.allocate(number, key, lock)).await
    }

    async fn acquire_reference(
        &self,
        number: NumericIdentity,
        key: &Key,
        lock: Option<&EtcdLock>,
    ) -> Result<Attempt, AllocError> {
        self.through("acquire_reference", self.backend.acquire_reference(number, key, lock)).await
    }

    async fn release(&self, number: NumericIdentity, key: &Key) -> Result<(), AllocError> {
        self.through("release", self.backend.release(number, key)).await
    }

    async fn update(
        &self,
        number: NumericIdentity,
        key: &Key,
        how: Update,
        lock: Option<&EtcdLock>,
    ) -> Result<Updated, AllocError> {
        self.through("update", self.backend.update(number, key, how, lock)).await
    }

    async fn get(&self, key: &Key, lock: Option<&EtcdLock>) -> Result<Option<NumericIdentity>, AllocError> {
        self.through("get", self.backend.get(key, lock)).await
    }

    async fn get_by_id(&self, number: NumericIdentity) -> Result<Option<Box<str>>, AllocError> {
        self.through("get_by_id", self.backend.get_by_id(number)).await
    }

    async fn lock(&self, key: &Key, deadline: Instant) -> Result<EtcdLock, AllocError> {
        self.through("lock", Box::pin(self.backend.lock(key, deadline))).await
    }

    async fn masters(&self) -> Result<Vec<MasterRecord>, AllocError> {
        self.backend.masters().await
    }

    async fn unused(&self, records: Vec<MasterRecord>) -> Result<Vec<MasterRecord>, AllocError> {
        self.backend.unused(records).await
    }

    async fn remove_unused(&self, record: &MasterRecord) -> Result<Removal, AllocError> {
        self.through("remove_unused", self.backend.remove_unused(record)).await
    }

    async fn locks(&self) -> Result<Vec<LockRecord>, AllocError> {
        self.backend.locks().await
    }

    async fn remove_lock(&self, lock: &LockRecord) -> Result<bool, AllocError> {
        self.backend.remove_lock(lock).await
    }

    async fn status(&self) -> BackendStatus {
        self.backend.status().await
    }

    fn losses(&self) -> watch::Receiver<u64> {
        self.backend.losses()
    }

    fn keeps_reference(&self, key: &Key) -> bool {
        self.backend.keeps_reference(key)
    }

    fn leases(&self) -> (usize, usize) {
        self.backend.leases()
    }

    async fn release_all(&self) -> Result<(), AllocError> {
        self.backend.release_all().await
    }
}
