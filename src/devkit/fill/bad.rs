//! Entries that a gateway must refuse.

use super::Cluster;

/// A way to be wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadEntry {
    /// A number of another cluster's range.
    ForeignNumber,
    /// The labels of another cluster.
    ForeignLabels,
    /// The cluster's name from another source than `k8s`, beside the right one.
    ForeignSource,
    /// No cluster label.
    NoClusterLabel,
    /// Not a canonical number.
    LeadingZero,
    /// Not a number.
    NotANumber,
    /// A path with one segment too many.
    ExtraSegment,
    /// An upsert without labels.
    EmptyValue,
    /// Bytes that are no text.
    NotUtf8,
}

impl BadEntry {
    /// All ways.
    pub const ALL: [Self; 9] = [
        Self::ForeignNumber,
        Self::ForeignLabels,
        Self::ForeignSource,
        Self::NoClusterLabel,
        Self::LeadingZero,
        Self::NotANumber,
        Self::ExtraSegment,
        Self::EmptyValue,
        Self::NotUtf8,
    ];

    /// Key and value of such an entry, at that number where the number is not what is wrong.
    #[must_use]
    pub fn entry(self, cluster: &Cluster, number: u32) -> (String, Vec<u8>) {
        let prefix = cluster.identity_prefix();
        let label = |source: &str, name: &str| format!("{source}:io.cilium.k8s.policy.cluster={name};");
        let good = format!("k8s:app=web;{}", label("k8s", &cluster.name));
        let key = match self {
            Self::ForeignNumber => cluster.identity_key(cluster.numbers().end().wrapping_add(1 + (number & 0xff))),
            Self::LeadingZero => format!("{prefix}0{number}"),
            Self::NotANumber => format!("{prefix}{number}-web"),
            Self::ExtraSegment => format!("{prefix}{number}/web"),
            _ => cluster.identity_key(number),
        };
        let value = match self {
            Self::ForeignLabels => label("k8s", "somewhere-else"),
            Self::ForeignSource => label("k8s", &cluster.name) + &label("container", &cluster.name),
            Self::NoClusterLabel => "k8s:app=web;".to_owned(),
            Self::EmptyValue => String::new(),
            Self::NotUtf8 => return (key, [good.as_bytes(), b"k8s:blob=\xff\xfe;"].concat()),
            _ => good,
        };
        (key, value.into_bytes())
    }
}
