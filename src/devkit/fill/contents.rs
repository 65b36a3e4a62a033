//! What a gateway ought to show of a store, read and judged apart from all other code.

use std::collections::BTreeMap;

use etcd_client::{Client, Error, GetOptions};

use super::Cluster;

/// The label that names the cluster; its source must be `k8s`.
const CLUSTER_LABEL: &str = "io.cilium.k8s.policy.cluster";
/// 4,096 identities are well below the client's limit of 4 MiB a message.
const PAGE: i64 = 4096;

/// Identities by number, as key strings.
pub type Contents = BTreeMap<u32, String>;

/// Reads the identities of that cluster from its store, those left out that a peer has no right to say.
///
/// # Errors
/// Etcd does not answer.
pub async fn valid_contents(client: &Client, cluster: &Cluster) -> Result<Contents, Error> {
    let prefix = cluster.identity_prefix();
    let (mut from, end) = (prefix.clone().into_bytes(), range_end(&prefix));
    let (mut contents, mut revision) = (Contents::new(), 0);
    loop {
        let options = GetOptions::new().with_range(end.clone()).with_limit(PAGE).with_revision(revision);
        let page = client.kv_client().get(from, Some(options)).await?;
        if revision == 0 {
            revision = page.header().map_or(0, etcd_client::ResponseHeader::revision);
        }
        for kv in page.kvs() {
            if let Some((number, key_string)) = judge(cluster, &prefix, kv.key(), kv.value()) {
                contents.insert(number, key_string.to_owned());
            }
        }
        match page.kvs().last() {
            Some(last) if page.more() => from = [last.key(), b"\0"].concat(),
            _ => return Ok(contents),
        }
    }
}

/// The first key behind all that begin with `prefix`, which ends in `/`.
fn range_end(prefix: &str) -> Vec<u8> {
    let mut end = prefix.as_bytes().to_vec();
    if let Some(last) = end.last_mut() {
        *last += 1;
    }
    end
}

fn judge<'a>(cluster: &Cluster, prefix: &str, key: &[u8], value: &'a [u8]) -> Option<(u32, &'a str)> {
    let digits = std::str::from_utf8(key.strip_prefix(prefix.as_bytes())?).ok()?;
    let number: u32 = digits.parse().ok()?;
    // A number that prints as another text was not canonical: a sign, a leading zero.
    let canonical = number.to_string() == digits;
    let key_string = std::str::from_utf8(value).ok().filter(|value| !value.is_empty())?;
    (canonical && cluster.numbers().contains(&number) && is_of(cluster, key_string)).then_some((number, key_string))
}

fn is_of(cluster: &Cluster, key_string: &str) -> bool {
    let mut owners = key_string.split(';').filter_map(|label| {
        let (source, rest) = label.split_once(':')?;
        let (key, value) = rest.split_once('=')?;
        (key == CLUSTER_LABEL).then_some((source, value))
    });
    owners.next() == Some(("k8s", &cluster.name)) && owners.next().is_none()
}

#[cfg(test)]
mod tests {
    use super::super::BadEntry;
    use super::*;

    #[test]
    fn judges_by_path_number_and_cluster_label() {
        let cluster = Cluster::new("cluster-a", 5);
        let (prefix, own) = (cluster.identity_prefix(), b"k8s:io.cilium.k8s.policy.cluster=cluster-a;");
        let key = cluster.identity_key(327_681);
        assert!(judge(&cluster, &prefix, key.as_bytes(), own).is_some());
        assert!(judge(&cluster, &prefix, cluster.identity_key(5).as_bytes(), own).is_none());
        for bad in BadEntry::ALL {
            let (key, value) = bad.entry(&cluster, 327_681);
            assert!(judge(&cluster, &prefix, key.as_bytes(), &value).is_none(), "{bad:?}");
        }
    }
}
