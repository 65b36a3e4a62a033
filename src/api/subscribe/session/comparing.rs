//! What a new version of the view means for the feeds: which clusters have changed, came, moved or are gone.

use std::sync::Arc;

use super::Session;
use crate::api::subscribe::feed::Feed;
use crate::identity::ClusterId;
use crate::view::{ClusterView, MeshView};

impl Session {
    /// Compares the feeds with the current version of the view.
    pub(super) fn refresh(&mut self) {
        if self.shared.view.read(MeshView::version) == self.mesh.version() {
            return;
        }
        let before = std::mem::replace(&mut self.mesh, self.shared.view.load());
        for id in changed(&before, &self.mesh) {
            self.compare(id);
        }
    }

    /// Compares one ID's feed with the cluster that has the ID now.
    pub(super) fn compare(&mut self, id: ClusterId) {
        let now = self.mesh.cluster(id);
        let wanted = now.filter(|now| self.plan.wants(now.name().as_str()) && self.is_where_its_name_is(now));
        if let Some(feed) = self.feeds.get_mut(&id) {
            let passed_on = now.is_some_and(|now| now.name() != feed.name());
            if let Some(removal) = feed.judge(wanted.filter(|now| now.name() == feed.name()), passed_on) {
                self.expected.removed(feed.name().as_str());
                self.first.push_back(removal);
            }
        }
        match wanted.map(|now| now.name().clone()) {
            None => {
                self.loading.remove(&id);
                self.behind.remove(&id);
                self.catching_up.remove(&id);
            }
            Some(name) => {
                let is_new = self.feeds.get(&id).is_none_or(|feed| *feed.name() != name);
                if is_new {
                    // A token counts once: what is removed in this stream is not held any more.
                    let token = self.plan.tokens.get(name.as_str()).and_then(|token| token.ok());
                    let token = token.filter(|_| self.used.insert(name.to_string()));
                    self.feeds.insert(id, Feed::new(name.clone(), id, token));
                    self.catching_up.remove(&id);
                }
                if self.feeds.get(&id).is_some_and(Feed::is_live) {
                    self.behind.entry(id).or_insert(None);
                } else {
                    self.behind.remove(&id);
                    self.loading.insert(id);
                }
                // A cluster that moved to this ID is gone from the one that it had, whether or not that is cleared already.
                let moved = self.feeds.iter().find(|(other, feed)| **other != id && *feed.name() == name);
                if let Some(other) = moved.filter(|_| is_new).map(|(other, _)| *other) {
                    self.compare(other);
                }
            }
        }
    }

    /// Frames name a cluster, not an ID. While a name stands at two IDs, the newer one counts.
    pub(super) fn is_where_its_name_is(&self, cluster: &ClusterView) -> bool {
        self.mesh.cluster_named(cluster.name().as_str()).is_none_or(|named| named.id() == cluster.id())
    }
}

/// The IDs whose clusters differ between two versions of the mesh; both name them in ascending order.
fn changed(before: &MeshView, now: &MeshView) -> Vec<ClusterId> {
    let (mut before, mut now) = (before.clusters().peekable(), now.clusters().peekable());
    let mut changed = Vec::new();
    loop {
        let (old, new) = (before.peek().copied(), now.peek().copied());
        let id = match (old, new) {
            (None, None) => return changed,
            (Some(one), None) | (None, Some(one)) => one.id(),
            (Some(old), Some(new)) => old.id().min(new.id()),
        };
        let old = before.next_if(|old| old.id() == id);
        let new = now.next_if(|new| new.id() == id);
        if !matches!((old, new), (Some(old), Some(new)) if Arc::ptr_eq(old, new)) {
            changed.push(id);
        }
    }
}
