//! What may enter a cluster's table: the validator of every key and value that a store shows us.

use std::fmt;

use crate::identity::{ClusterLabelError, ClusterName, IdentityRange, NumericIdentity, check_cluster_label, labels_of};

/// Bytes a key string may have. The largest label that Kubernetes allows takes less than 400 bytes here, so this holds 40 of
/// the largest or hundreds of usual ones (a usual identity has 330 bytes in all), while a hostile peer that fills its whole
/// range stays at 1 GiB instead of the 96 GiB that etcd would take.
pub const DEFAULT_MAX_KEY_STRING: usize = 16 * 1024;

/// Why an entry was refused, as a metric label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RejectReason {
    /// More path segments than one behind the prefix.
    NestedPath,
    /// Not a canonical decimal number of 32 bits.
    BadNumber,
    /// A number of another cluster.
    OutOfRange,
    /// An upsert without a value.
    EmptyValue,
    /// Longer than the limit.
    TooLong,
    /// Not UTF-8.
    NotUtf8,
    /// No label that names the cluster.
    MissingClusterLabel,
    /// The label names another cluster.
    WrongClusterLabel,
    /// The label that names the cluster comes from another source than `k8s`.
    WrongLabelSource,
}

impl RejectReason {
    /// All of them, in the order of their discriminants.
    pub const ALL: [Self; 9] = [
        Self::NestedPath,
        Self::BadNumber,
        Self::OutOfRange,
        Self::EmptyValue,
        Self::TooLong,
        Self::NotUtf8,
        Self::MissingClusterLabel,
        Self::WrongClusterLabel,
        Self::WrongLabelSource,
    ];

    /// The name in metrics, status and logs.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::NestedPath => "nested-path",
            Self::BadNumber => "bad-number",
            Self::OutOfRange => "out-of-range",
            Self::EmptyValue => "empty-value",
            Self::TooLong => "too-long",
            Self::NotUtf8 => "not-utf8",
            Self::MissingClusterLabel => "missing-cluster-label",
            Self::WrongClusterLabel => "wrong-cluster-label",
            Self::WrongLabelSource => "wrong-label-source",
        }
    }
}

/// A refusal. Nothing is formatted unless somebody asks: there may be very many.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reject {
    /// Why.
    pub reason: RejectReason,
    detail: Detail,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Detail {
    None,
    Range(NumericIdentity, IdentityRange),
    Length(usize, usize),
    Offset(usize),
    Found(String),
}

impl Reject {
    pub(super) const fn new(reason: RejectReason) -> Self {
        Self { reason, detail: Detail::None }
    }

    const fn with(reason: RejectReason, detail: Detail) -> Self {
        Self { reason, detail }
    }
}

impl From<ClusterLabelError> for Reject {
    fn from(error: ClusterLabelError) -> Self {
        match error {
            ClusterLabelError::Missing => Self::new(RejectReason::MissingClusterLabel),
            ClusterLabelError::WrongCluster { got } => Self::with(RejectReason::WrongClusterLabel, Detail::Found(got)),
            ClusterLabelError::WrongSource { got } => Self::with(RejectReason::WrongLabelSource, Detail::Found(got)),
        }
    }
}

impl fmt::Display for Reject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.reason {
            RejectReason::NestedPath => "the path has more than one segment behind the prefix",
            RejectReason::BadNumber => "the path's last segment is not a decimal number without sign and leading zeros",
            RejectReason::OutOfRange => "the number belongs to another cluster",
            RejectReason::EmptyValue => "there is no value",
            RejectReason::TooLong => "the key string is too long",
            RejectReason::NotUtf8 => "the key string is not UTF-8",
            RejectReason::MissingClusterLabel => "no label names the cluster",
            RejectReason::WrongClusterLabel => "a label names another cluster",
            RejectReason::WrongLabelSource => "the label that names the cluster has another source than k8s",
        })?;
        match &self.detail {
            Detail::None => Ok(()),
            Detail::Range(number, range) => write!(f, ": {number} is not in {} to {}", range.min(), range.max()),
            Detail::Length(length, limit) => write!(f, ": {length} bytes, at most {limit} are taken"),
            Detail::Offset(offset) => write!(f, " from byte {offset} on"),
            // Of a peer's choosing, hence of any length.
            Detail::Found(text) => {
                let end = text.char_indices().nth(64).map_or(text.len(), |(end, _)| end);
                write!(f, ": {:?}", &text[..end])
            }
        }
    }
}

/// What one cluster may say.
#[derive(Clone, Debug)]
pub struct Admission {
    range: IdentityRange,
    cluster_label: Option<ClusterName>,
    max_key_string: usize,
}

impl Admission {
    /// For our own cluster: its numbers, whatever their labels (an identity of before clusters had names has no cluster label).
    #[must_use]
    pub const fn local(range: IdentityRange) -> Self {
        Self { range, cluster_label: None, max_key_string: DEFAULT_MAX_KEY_STRING }
    }

    /// For a peer: its numbers, and each entry says itself that it is the peer's (WIRE.md, "Remote clusters").
    #[must_use]
    pub const fn peer(range: IdentityRange, name: ClusterName) -> Self {
        Self { range, cluster_label: Some(name), max_key_string: DEFAULT_MAX_KEY_STRING }
    }

    /// The same with another limit on a key string's length in bytes.
    #[must_use]
    pub const fn with_max_key_string(mut self, bytes: usize) -> Self {
        self.max_key_string = bytes;
        self
    }

    /// The numbers that are let in.
    #[must_use]
    pub const fn range(&self) -> IdentityRange {
        self.range
    }

    /// The number that a key names, from what follows the prefix. All that is asked of a delete.
    ///
    /// # Errors
    /// Nested path, bad number, out of range.
    pub fn number(&self, suffix: &[u8]) -> Result<NumericIdentity, Reject> {
        let number = NumericIdentity::parse_canonical(suffix).map_err(|_| {
            let nested = suffix.contains(&b'/');
            Reject::new(if nested { RejectReason::NestedPath } else { RejectReason::BadNumber })
        })?;
        if self.range.contains(number) {
            Ok(number)
        } else {
            Err(Reject::with(RejectReason::OutOfRange, Detail::Range(number, self.range)))
        }
    }

    /// The key string in a value.
    ///
    /// # Errors
    /// Every reason that is not about the number.
    pub fn key_string<'a>(&self, value: &'a [u8]) -> Result<&'a str, Reject> {
        if value.is_empty() {
            return Err(Reject::new(RejectReason::EmptyValue));
        }
        if value.len() > self.max_key_string {
            return Err(Reject::with(RejectReason::TooLong, Detail::Length(value.len(), self.max_key_string)));
        }
        let text = std::str::from_utf8(value)
            .map_err(|error| Reject::with(RejectReason::NotUtf8, Detail::Offset(error.valid_up_to())))?;
        match &self.cluster_label {
            Some(name) => match check_cluster_label(labels_of(text), name.as_str()) {
                Ok(()) => Ok(text),
                Err(error) => Err(error.into()),
            },
            None => Ok(text),
        }
    }
}
