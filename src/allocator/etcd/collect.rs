//! What the garbage collectors read and delete.

use std::collections::HashSet;

use super::EtcdBackend;
use super::store::{Compare, Op, Txn};
use crate::allocator::AllocError;
use crate::allocator::backend::{LockRecord, MasterRecord, Removal};
use crate::allocator::keys::is_slave_of;

impl EtcdBackend {
    pub(super) async fn list_masters(&self) -> Result<Vec<MasterRecord>, AllocError> {
        let entries = self.0.store.list(&self.0.paths.masters()).await?;
        let record = |entry: crate::kvstore::KeyValue| {
            Some(MasterRecord {
                number: self.0.paths.number_of_master(&entry.key)?,
                // What is not text cannot be told from other labels, so it is left alone.
                labels: String::from_utf8(entry.value).ok()?.into(),
                revision: entry.mod_revision,
            })
        };
        Ok(entries.into_iter().filter_map(record).collect())
    }

    pub(super) async fn without_references(&self, records: Vec<MasterRecord>) -> Result<Vec<MasterRecord>, AllocError> {
        let references = self.0.store.list(&self.0.paths.all_slaves()).await?;
        let users: HashSet<(&[u8], &[u8])> = (references.iter())
            .filter_map(|entry| {
                let end = memchr::memrchr(b'/', &entry.key)?;
                Some((&entry.key[..=end], entry.value.as_slice()))
            })
            .collect();
        let unused = |record: &MasterRecord| match self.0.paths.slaves_of_text(&record.labels) {
            Some(slaves) => !users.contains(&(slaves.as_bytes(), record.number.to_string().as_bytes())),
            None => false,
        };
        Ok(records.into_iter().filter(unused).collect())
    }

    pub(super) async fn delete_unused(&self, record: &MasterRecord) -> Result<Removal, AllocError> {
        let paths = &self.0.paths;
        let (Some(slaves), Some(locks)) = (paths.slaves_of_text(&record.labels), paths.locks_of_text(&record.labels))
        else {
            return Ok(Removal::Touched);
        };
        let master = paths.master(record.number);
        let text = record.number.to_string();
        let delete = || vec![Op::Delete(master.clone())];
        // References to the labels by another number are those of a duplicate that is in use: this one is not (A2).
        let duplicate = Txn {
            when: vec![Compare::NoneBelowIs(slaves.clone(), text.clone().into())],
            then: delete(),
            or_else: vec![Op::List(slaves.clone())],
        };
        let unused =
            Txn { when: vec![Compare::NoneBelow(slaves.clone())], then: delete(), or_else: vec![Op::Txn(duplicate)] };
        let txn = Txn {
            when: vec![
                Compare::Modified(master.clone(), record.revision),
                Compare::NoneBelow(locks),
                Compare::NoneBelow(paths.gc_locks(record.number)),
            ],
            then: vec![Op::Txn(unused)],
            or_else: vec![Op::Get(master.clone())],
        };
        let answer = self.0.store.txn(txn).await?;
        let Some(unused) = answer.within(0) else {
            return Ok(if answer.read(0).is_empty() { Removal::Gone } else { Removal::Touched });
        };
        if unused.succeeded {
            return Ok(Removal::Removed);
        }
        let Some(duplicate) = unused.within(0) else { return Ok(Removal::Touched) };
        if duplicate.succeeded {
            return Ok(Removal::Removed);
        }
        let by_number =
            duplicate.read(0).iter().any(|entry| is_slave_of(&slaves, &entry.key) && entry.value == text.as_bytes());
        Ok(if by_number { Removal::InUse } else { Removal::Touched })
    }

    pub(super) async fn list_locks(&self) -> Result<Vec<LockRecord>, AllocError> {
        let entries = self.0.store.list(&self.0.paths.all_locks()).await?;
        let record = |entry: crate::kvstore::KeyValue| {
            Some(LockRecord {
                path: String::from_utf8(entry.key).ok()?,
                revision: entry.mod_revision,
                leased: entry.lease != 0,
            })
        };
        Ok(entries.into_iter().filter_map(record).collect())
    }

    pub(super) async fn delete_lock(&self, lock: &LockRecord) -> Result<bool, AllocError> {
        let txn = Txn {
            when: vec![Compare::Modified(lock.path.clone(), lock.revision)],
            then: vec![Op::Delete(lock.path.clone())],
            or_else: Vec::new(),
        };
        Ok(self.0.store.txn(txn).await?.succeeded)
    }
}
