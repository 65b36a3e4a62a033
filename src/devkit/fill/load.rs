//! Writing a great deal in a short time.

use etcd_client::{Client, Error, PutOptions, Txn, TxnOp};
use futures_util::{StreamExt, TryStreamExt, stream};

use super::{Cluster, Contents, LabelMix};

/// Etcd takes at most 128 operations in a transaction.
const BATCH: usize = 100;
/// With more writers at once etcd gets no faster.
const WRITERS: usize = 8;

/// What to fill a store with.
#[derive(Clone, Debug, Default)]
pub struct FillOptions {
    /// Identities.
    pub count: u32,
    /// Names of nodes that hold a reference to every identity each; only a cluster's own store has such keys.
    pub nodes: Vec<String>,
    /// Lease of the identities, where the writer gives them one; 0 for none, as allocating agents do.
    pub identity_lease: i64,
    /// Lease of the references.
    pub reference_lease: i64,
}

/// Writes the first `count` label sets of the mix under numbers spread over the cluster's range, and returns them.
///
/// # Errors
/// Etcd does not answer.
pub async fn fill(
    client: &Client,
    cluster: &Cluster,
    mix: &LabelMix,
    options: &FillOptions,
) -> Result<Contents, Error> {
    let contents: Contents =
        numbers(cluster, options.count).zip(0..).map(|(number, n)| (number, mix.key_string(n))).collect();
    let identities = contents.iter().map(|(&number, set)| (cluster.identity_key(number), set.clone()));
    load(client, identities, options.identity_lease).await?;
    let references = contents.iter().flat_map(|(number, set)| {
        options.nodes.iter().map(move |node| (cluster.reference_key(set, node), number.to_string()))
    });
    load(client, references, options.reference_lease).await?;
    Ok(contents)
}

/// `count` different numbers of the cluster's range, as scattered as those that an allocator draws.
fn numbers(cluster: &Cluster, count: u32) -> impl Iterator<Item = u32> {
    let range = cluster.numbers();
    let (first, size) = (*range.start(), cluster.size());
    // A factor that shares no divisor with the size (a power of two, or one less 256) meets every number once.
    (0..count.min(size)).scan(0, move |offset, _| {
        let number = first + *offset;
        *offset = (*offset + 40_507 % size) % size;
        Some(number)
    })
}

/// Writes pairs, in no particular order; lease 0 is none.
///
/// # Errors
/// Etcd does not answer.
pub async fn load<K, V>(client: &Client, pairs: impl IntoIterator<Item = (K, V)>, lease: i64) -> Result<(), Error>
where
    K: Into<Vec<u8>>,
    V: Into<Vec<u8>>,
{
    let puts = pairs.into_iter().map(|(key, value)| TxnOp::put(key, value, Some(PutOptions::new().with_lease(lease))));
    stream::iter(puts)
        .chunks(BATCH)
        .map(|batch| async move { client.kv_client().txn(Txn::new().and_then(batch)).await.map(|_| ()) })
        .buffer_unordered(WRITERS)
        .try_collect()
        .await
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn numbers_are_all_of_the_range_once() {
        for id in [0, 1, 255] {
            let cluster = Cluster::new("a", id);
            let all: BTreeSet<u32> = numbers(&cluster, u32::MAX).collect();
            assert!(all.into_iter().eq(cluster.numbers()), "cluster {id}");
        }
    }
}
