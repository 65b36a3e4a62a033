//! The transactions that write records and references.
//!
//! Without a lock (the fast path) they are safe beside agents that take locks, because a lock's key is in the store for as
//! long as its holder may write: where no lock key is, nobody is between a look and a write. What holders check under the
//! lock (that nobody refers to the labels, that the number is free) is checked here in the same step as the write.

use super::store::{Compare, Op, Txn, TxnAnswer};
use super::{EtcdBackend, EtcdLock, LeaseId, LeasedKey};
use crate::allocator::backend::{Attempt, Created, Update, Updated};
use crate::allocator::keys::is_slave_of;
use crate::allocator::{AllocError, Key};
use crate::identity::NumericIdentity;
use crate::kvstore::{KeyValue, SessionError};

impl EtcdBackend {
    /// Runs what `make` makes for the lease that our reference is to hang on, with another one if that is lost (G2).
    async fn with_lease(
        &self,
        slave: &LeasedKey,
        make: impl Fn(LeaseId) -> Txn + Send,
    ) -> Result<TxnAnswer, SessionError> {
        loop {
            let lease = self.0.references.attach(slave).await?;
            match self.0.store.txn(make(lease)).await {
                Err(SessionError::LeaseNotFound) => {
                    // The others on it are told; this one is being written right here.
                    self.0.references.detach(slave);
                    self.0.references.not_found(lease);
                }
                result => return result,
            }
        }
    }

    /// Where nothing of ours is in the store under `slave`, it holds no place on a lease.
    fn not_written(&self, slave: &str, others: &[KeyValue]) {
        if !others.iter().any(|entry| entry.key == slave.as_bytes()) {
            self.0.references.detach(slave);
        }
    }

    pub(super) async fn allocate_without_lock(
        &self,
        number: NumericIdentity,
        key: &Key,
    ) -> Result<Attempt, AllocError> {
        let paths = &self.0.paths;
        let (master, slaves, locks) = (paths.master(number), paths.slaves(key)?, paths.locks(key)?);
        let slave: LeasedKey = paths.slave(key)?.into();
        let answer = self
            .with_lease(&slave, |lease| Txn {
                when: vec![
                    Compare::NoneBelow(locks.clone()),
                    Compare::NoneBelow(slaves.clone()),
                    // Nor does a collector hold a lock on a number that is not there.
                    Compare::Absent(master.clone()),
                ],
                then: vec![
                    Op::Put { key: master.clone(), value: key.as_str().into(), lease: 0 },
                    Op::Put { key: slave.to_string(), value: number.to_string().into(), lease },
                ],
                // The references are asked for afterwards, where it failed: all of this goes through etcd's log, and the
                // labels twice more would be a quarter of it.
                or_else: vec![Op::Get(master.clone())],
            })
            .await?;
        if answer.succeeded {
            return Ok(Attempt::Done(answer.revision));
        }
        let now = self.0.store.txn(Txn { then: vec![Op::List(slaves.clone())], ..Txn::default() }).await?;
        self.not_written(&slave, now.read(0));
        Ok(match (self.number_in_use(&slaves, now.read(0)), answer.read(0).first()) {
            (Some(number), _) => Attempt::InUseAs(number),
            (None, Some(_)) => Attempt::NumberTaken,
            (None, None) => Attempt::Locked,
        })
    }

    pub(super) async fn reference_without_lock(
        &self,
        number: NumericIdentity,
        key: &Key,
    ) -> Result<Attempt, AllocError> {
        let paths = &self.0.paths;
        let (master, slaves) = (paths.master(number), paths.slaves(key)?);
        let (locks, gc_locks) = (paths.locks(key)?, paths.gc_locks(number));
        let slave: LeasedKey = paths.slave(key)?.into();
        let text = number.to_string();
        let answer = self
            .with_lease(&slave, |lease| {
                let put = || Op::Put { key: slave.to_string(), value: text.clone().into(), lease };
                // Nobody refers to the labels, or everybody does by this number: a range compares as "all of it", and an
                // empty one has no value, so these are two questions.
                let among_others = Txn {
                    when: vec![Compare::AllBelow(slaves.clone(), text.clone().into())],
                    then: vec![put()],
                    or_else: vec![Op::List(slaves.clone())],
                };
                let alone_or_among_others = Txn {
                    when: vec![Compare::NoneBelow(slaves.clone())],
                    then: vec![put()],
                    or_else: vec![Op::Txn(among_others)],
                };
                Txn {
                    when: vec![
                        Compare::Value(master.clone(), key.as_str().into()),
                        Compare::NoneBelow(locks.clone()),
                        Compare::NoneBelow(gc_locks.clone()),
                    ],
                    then: vec![Op::Txn(alone_or_among_others)],
                    or_else: vec![Op::List(slaves.clone()), Op::Get(master.clone())],
                }
            })
            .await?;
        if !answer.succeeded {
            self.not_written(&slave, answer.read(0));
            return Ok(match answer.read(1).first() {
                None => Attempt::NumberGone,
                Some(master) if master.value != key.as_str().as_bytes() => Attempt::NumberTaken,
                Some(_) => Attempt::Locked,
            });
        }
        let within = answer.within(0);
        if within.is_some_and(|alone| alone.succeeded || alone.within(0).is_some_and(|among| among.succeeded)) {
            return Ok(Attempt::Done(answer.revision));
        }
        let others = within.and_then(|alone| alone.within(0)).map(|among| among.read(0)).unwrap_or_default();
        self.not_written(&slave, others);
        // Labels with slashes can have others' references below theirs; the lock's way tells them apart.
        Ok(match self.number_in_use(&slaves, others) {
            Some(other) if other != number => Attempt::InUseAs(other),
            _ => Attempt::Locked,
        })
    }

    pub(super) async fn create_master(
        &self,
        number: NumericIdentity,
        key: &Key,
        lock: Option<&EtcdLock>,
    ) -> Result<Created, AllocError> {
        let master = self.0.paths.master(number);
        let txn = Txn {
            when: vec![Compare::Absent(master.clone()), Compare::NoneBelow(self.0.paths.gc_locks(number))],
            then: vec![Op::Put { key: master.clone(), value: key.as_str().into(), lease: 0 }],
            or_else: vec![Op::Get(master.clone())],
        };
        let answer = self.fenced(txn, lock).await?;
        match answer.read(0) {
            _ if answer.succeeded => Ok(Created::Yes(answer.revision)),
            [] => Err(COLLECTED),
            [..] => Ok(Created::NumberTaken),
        }
    }

    pub(super) async fn write_reference(
        &self,
        number: NumericIdentity,
        key: &Key,
        lock: Option<&EtcdLock>,
    ) -> Result<Attempt, AllocError> {
        let paths = &self.0.paths;
        let master = paths.master(number);
        let slave: LeasedKey = paths.slave(key)?.into();
        let answer = self
            .with_lease(&slave, |lease| {
                // Collectors do not take the lock on the labels: theirs is on the number, and must be respected too (A4).
                let txn = Txn {
                    when: vec![
                        Compare::Value(master.clone(), key.as_str().into()),
                        Compare::NoneBelow(paths.gc_locks(number)),
                    ],
                    then: vec![Op::Put { key: slave.to_string(), value: number.to_string().into(), lease }],
                    or_else: vec![Op::Get(master.clone()), Op::Get(slave.to_string())],
                };
                fence(txn, lock)
            })
            .await?;
        let answer = unfence(answer, lock).inspect_err(|_| self.0.references.detach(&slave))?;
        if answer.succeeded {
            return Ok(Attempt::Done(answer.revision));
        }
        self.not_written(&slave, answer.read(1));
        Ok(match answer.read(0).first() {
            None => Attempt::NumberGone,
            Some(entry) if entry.value == key.as_str().as_bytes() => Attempt::Locked,
            Some(_) => Attempt::NumberTaken,
        })
    }

    pub(super) async fn delete_reference(&self, number: NumericIdentity, key: &Key) -> Result<(), AllocError> {
        let slave = self.0.paths.slave(key)?;
        let txn = Txn {
            when: vec![Compare::Value(slave.clone(), number.to_string().into())],
            then: vec![Op::Delete(slave.clone())],
            or_else: Vec::new(),
        };
        self.0.store.txn(txn).await?;
        self.0.references.detach(&slave);
        Ok(())
    }

    pub(super) async fn write_missing(
        &self,
        number: NumericIdentity,
        key: &Key,
        how: Update,
        lock: Option<&EtcdLock>,
    ) -> Result<Updated, AllocError> {
        let paths = &self.0.paths;
        let master = paths.master(number);
        let slave: LeasedKey = paths.slave(key)?.into();
        let text = number.to_string();
        // A read costs the store no write of its log, and mostly there is nothing to do.
        if how == Update::IfDifferent
            && let Some(revision) = self.is_as_it_should_be(&master, &slave, &text, key).await?
        {
            return Ok(Updated { revision, ..Updated::default() });
        }
        let answer = self
            .with_lease(&slave, |lease| {
                let put = Op::Put { key: slave.to_string(), value: text.clone().into(), lease };
                let unchanged = match how {
                    Update::IfDifferent => {
                        vec![
                            Compare::Value(slave.to_string(), text.clone().into()),
                            Compare::Lease(slave.to_string(), lease),
                        ]
                    }
                    Update::Missing => vec![Compare::Exists(slave.to_string())],
                };
                let reference = Op::Txn(Txn { when: unchanged, then: Vec::new(), or_else: vec![put] });
                let record = Op::Put { key: master.clone(), value: key.as_str().into(), lease: 0 };
                let missing = Txn {
                    when: vec![Compare::Absent(master.clone())],
                    then: vec![record, reference.clone()],
                    or_else: vec![Op::Get(master.clone())],
                };
                let txn = Txn {
                    when: vec![Compare::Value(master.clone(), key.as_str().into())],
                    then: vec![reference],
                    or_else: vec![Op::Txn(missing)],
                };
                // A collector that has looked already would delete the record under our reference.
                let uncollected = Compare::NoneBelow(paths.gc_locks(number));
                fence(Txn { when: vec![uncollected], then: vec![Op::Txn(txn)], or_else: Vec::new() }, lock)
            })
            .await?;
        let answer = unfence(answer, lock)?;
        let revision = answer.revision;
        let answer = answer.within(0).ok_or(COLLECTED)?;
        if answer.succeeded {
            let slave = answer.within(0).is_some_and(|reference| !reference.succeeded);
            return Ok(Updated { master: false, slave, revision });
        }
        match answer.within(0) {
            Some(missing) if missing.succeeded => {
                let slave = missing.within(1).is_some_and(|reference| !reference.succeeded);
                Ok(Updated { master: true, slave, revision })
            }
            _ => Err(AllocError::Conflict { number }),
        }
    }

    /// The revision at which record and reference are there, the latter on the lease that it should hang on.
    async fn is_as_it_should_be(
        &self,
        master: &str,
        slave: &str,
        number: &str,
        key: &Key,
    ) -> Result<Option<i64>, SessionError> {
        let Some(lease) = self.0.references.lease_of(slave) else { return Ok(None) };
        let gets = vec![Op::Get(master.to_owned()), Op::Get(slave.to_owned())];
        let answer = self.0.store.txn(Txn { then: gets, ..Txn::default() }).await?;
        let as_it_should = answer.read(0).first().is_some_and(|entry| entry.value == key.as_str().as_bytes())
            && answer.read(1).first().is_some_and(|entry| entry.value == number.as_bytes() && entry.lease == lease);
        Ok(as_it_should.then_some(answer.revision))
    }

    pub(super) async fn read_number(
        &self,
        key: &Key,
        lock: Option<&EtcdLock>,
    ) -> Result<Option<NumericIdentity>, AllocError> {
        let slaves = self.0.paths.slaves(key)?;
        let txn = Txn { then: vec![Op::List(slaves.clone())], ..Txn::default() };
        let answer = self.fenced(txn, lock).await?;
        Ok(self.number_in_use(&slaves, answer.read(0)))
    }

    /// The number by which somebody refers to the labels whose references begin with `slaves`. Numbers of other ranges are
    /// none (G9). Of several, which is what a duplicate looks like, the one in the oldest reference.
    fn number_in_use(&self, slaves: &str, entries: &[KeyValue]) -> Option<NumericIdentity> {
        (entries.iter())
            .filter(|entry| is_slave_of(slaves, &entry.key))
            .filter_map(|entry| Some((entry.create_revision, NumericIdentity::parse_canonical(&entry.value).ok()?)))
            .filter(|(_, number)| self.0.numbers.contains(*number))
            .min_by_key(|(created, _)| *created)
            .map(|(_, number)| number)
    }

    async fn fenced(&self, txn: Txn, lock: Option<&EtcdLock>) -> Result<TxnAnswer, AllocError> {
        unfence(self.0.store.txn(fence(txn, lock)).await?, lock)
    }
}

/// To be tried again when the collector has done, whatever it did.
const COLLECTED: AllocError = AllocError::AnotherWriter("the identity is being collected");

/// The same transaction, only if the lock is still held.
fn fence(txn: Txn, lock: Option<&EtcdLock>) -> Txn {
    match lock {
        None => txn,
        Some(lock) => Txn { when: vec![lock.is_held()], then: vec![Op::Txn(txn)], or_else: Vec::new() },
    }
}

fn unfence(answer: TxnAnswer, lock: Option<&EtcdLock>) -> Result<TxnAnswer, AllocError> {
    if lock.is_none() {
        return Ok(answer);
    }
    let revision = answer.revision;
    // A transaction within has no revision of its own in every version of etcd.
    answer.within(0).cloned().map(|within| TxnAnswer { revision, ..within }).ok_or(AllocError::LockLost)
}
