//! What a subscriber sees of a cluster: the selector that identities pass, and how they are told.

use std::sync::Arc;

use super::request::FrameLimits;
use super::selector::Selector;
use crate::identity::labels_of;
use crate::view::{ClusterView, Identity};

/// Everything on which the bytes of a frame depend beside the versions that it leads between: two subscribers of one shape
/// are told the same.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Shape {
    pub(super) limits: FrameLimits,
    pub(super) numbers_only: bool,
    pub(super) filter: Filter,
}

impl Shape {
    /// What tokens carry of it: a state seen through another filter, or without labels, is another state.
    pub(super) fn fingerprint(&self) -> u32 {
        let text = self.filter.0.as_ref().map_or("", |filter| &filter.text);
        let hash = twox_hash::XxHash3_64::oneshot_with_seed(u64::from(self.numbers_only), text.as_bytes());
        #[expect(clippy::cast_possible_truncation, reason = "the low half of a hash is a hash")]
        let fingerprint = hash as u32;
        fingerprint
    }
}

/// Lets identities pass, all or those that a selector selects; cheap to clone.
#[derive(Clone, Debug, Default)]
pub(super) struct Filter(Option<Arc<Selecting>>);

#[derive(Debug)]
struct Selecting {
    selector: Selector,
    /// The selector's own, the same for those that select the same.
    text: String,
}

impl Filter {
    pub(super) fn new(selector: Option<Selector>) -> Self {
        Self(selector.map(|selector| Arc::new(Selecting { text: selector.to_string(), selector })))
    }

    pub(super) fn is_open(&self) -> bool {
        self.0.is_none()
    }

    pub(super) fn passes(&self, identity: &Identity) -> bool {
        self.0.as_ref().is_none_or(|filter| filter.selector.selects(identity))
    }

    pub(super) fn passes_key_string(&self, key_string: &str) -> bool {
        self.0.as_ref().is_none_or(|filter| filter.selector.matches(&labels_of(key_string)))
    }
}

impl PartialEq for Filter {
    fn eq(&self, other: &Self) -> bool {
        self.0.as_ref().map(|filter| &filter.text) == other.0.as_ref().map(|filter| &filter.text)
    }
}

impl Eq for Filter {}

impl std::hash::Hash for Filter {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.0.as_ref().map(|filter| &filter.text).hash(state);
    }
}

/// Count and checksum of what passed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Tally {
    pub(super) count: u64,
    pub(super) checksum: u64,
}

impl Tally {
    pub(super) fn add(&mut self, identity: &Identity) {
        self.count += 1;
        self.checksum = self.checksum.wrapping_add(identity.contribution());
    }

    pub(super) fn take(&mut self, identity: &Identity) {
        self.count -= 1;
        self.checksum = self.checksum.wrapping_sub(identity.contribution());
    }

    /// Of all that passes.
    pub(super) fn of(version: &ClusterView, filter: &Filter) -> Self {
        let mut tally = Self { count: version.len() as u64, checksum: version.checksum() };
        if !filter.is_open() {
            tally = Self::default();
            version.iter().filter(|identity| filter.passes(identity)).for_each(|identity| tally.add(identity));
        }
        tally
    }
}
