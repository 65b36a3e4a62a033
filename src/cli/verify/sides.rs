//! The gateways that are compared, each followed by a subscription.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures_util::future::select_all;
use tokio::time::{Instant, interval, timeout_at};

use super::compare::{Difference, differences, is_equal};
use crate::api::pb;
use crate::cli::output::Trouble;
use crate::client::{ClientError, ClientOptions, Cluster, Event, MeshClient, Subscription, Update, connect};

/// How often the gateway is asked what it says of its clusters.
const ASK: Duration = Duration::from_millis(250);
/// What differs at both ends of this time is no change on its way.
const SETTLE: Duration = Duration::from_secs(2);

/// What came of comparing two pictures of one cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Compared {
    /// They were equal at a moment.
    Equal,
    /// Those stay different; none, where only count or checksum tell that.
    Differs(BTreeSet<Difference>),
    /// They could not be compared, and why.
    Unknown(String),
}

/// A cluster's own gateway.
struct Side {
    cluster: String,
    subscription: Subscription,
    /// Why it is of no use at the moment.
    trouble: Option<String>,
}

/// Our gateway, followed, and the others.
pub(super) struct Sides {
    options: ClientOptions,
    status: MeshClient,
    here: Subscription,
    /// Every cluster was told, but for those that the gateway itself has not.
    complete: bool,
    others: Vec<Side>,
    /// Clusters for which the gateway's own count and checksum were once those of its subscriber.
    told: BTreeSet<String>,
    /// Clusters that were once the same here and at their own gateway.
    equal: BTreeSet<String>,
    pub(super) results: BTreeMap<String, Compared>,
}

impl Sides {
    /// Subscribes to our gateway and to those of the clusters. One of those that cannot be reached is a result.
    pub(super) async fn open(options: ClientOptions, own: Vec<(String, ClientOptions)>) -> Result<Self, ClientError> {
        let status = connect(&options).await?;
        let here = Subscription::open(options.clone(), pb::SubscribeRequest::default()).await?;
        let (mut others, mut results) = (Vec::new(), BTreeMap::new());
        for (cluster, options) in own {
            let request = pb::SubscribeRequest { clusters: vec![cluster.clone()], ..Default::default() };
            match Subscription::open(options, request).await {
                Ok(subscription) => others.push(Side { cluster, subscription, trouble: None }),
                Err(error) => drop(results.insert(cluster, Compared::Unknown(error.to_string()))),
            }
        }
        let (told, equal) = Default::default();
        Ok(Self { options, status, here, complete: false, others, told, equal, results })
    }

    /// The clusters of our gateway as it says itself.
    pub(super) async fn ask(&mut self) -> Result<Vec<pb::ClusterInfo>, ClientError> {
        let answer = self.status.list_clusters(pb::ListClustersRequest {}).await;
        let clusters = answer.map_err(|status| ClientError::of_status(&self.options.address, &status))?;
        Ok(clusters.into_inner().clusters)
    }

    /// What we hold of a cluster as a subscriber.
    pub(super) fn held(&self, cluster: &str) -> Option<&Cluster> {
        self.here.mesh().get(cluster)
    }

    /// Follows all of them until everything was equal once, at the latest until then; what differs still, and goes on to,
    /// is named.
    pub(super) async fn compare(&mut self, deadline: Instant) -> Result<Vec<pb::ClusterInfo>, Trouble> {
        let clusters = self.follow(deadline).await?;
        let first = self.unequal();
        if !first.is_empty() {
            let before: Vec<_> = first.iter().map(|(cluster, own)| self.difference(cluster, *own)).collect();
            self.follow(Instant::now() + SETTLE).await?;
            for ((cluster, own), before) in first.into_iter().zip(before) {
                let result = match (self.equal.contains(&cluster), &self.others[own].trouble, before) {
                    (true, ..) => Compared::Equal,
                    (_, Some(trouble), _) => Compared::Unknown(trouble.clone()),
                    (_, None, None) => Compared::Unknown("one of the two has not told all of it".to_owned()),
                    (_, None, Some(before)) => {
                        let still = self.difference(&cluster, own).unwrap_or_default();
                        let lasting: BTreeSet<_> = before.intersection(&still).cloned().collect();
                        // What was different then is equal now, and the other way round: it changes all the time.
                        if lasting.is_empty() { Compared::Equal } else { Compared::Differs(lasting) }
                    }
                };
                self.results.insert(cluster, result);
            }
        }
        for cluster in &self.equal {
            self.results.insert(cluster.clone(), Compared::Equal);
        }
        Ok(clusters)
    }

    /// Whether what the gateway says of a cluster is what its subscriber holds.
    pub(super) async fn subscriber(&self, info: &pb::ClusterInfo) -> Result<Compared, ClientError> {
        if self.told.contains(&info.name) {
            return Ok(Compared::Equal);
        }
        let Some(held) = self.held(&info.name) else {
            return Ok(Compared::Unknown("the gateway does not show it".to_owned()));
        };
        // It is not to be seen by the checksum which identities these are; a subscriber that begins anew may tell.
        let request = pb::SubscribeRequest { clusters: vec![info.name.clone()], ..Default::default() };
        let mut fresh = Subscription::open(self.options.clone(), request).await?;
        let all_synced = async { while !matches!(fresh.next().await, Event::Update(Update::AllSynced { .. })) {} };
        let _ = timeout_at(Instant::now() + SETTLE, all_synced).await;
        let found = fresh.mesh().get(&info.name).map(|fresh| differences(fresh, held));
        Ok(Compared::Differs(found.unwrap_or_default()))
    }

    /// The clusters that were not equal yet, and the position of their own gateway.
    fn unequal(&self) -> Vec<(String, usize)> {
        let others = self.others.iter().enumerate().map(|(at, side)| (side.cluster.clone(), at));
        others.filter(|(cluster, _)| !self.equal.contains(cluster)).collect()
    }

    fn difference(&self, cluster: &str, own: usize) -> Option<BTreeSet<Difference>> {
        Some(differences(self.held(cluster)?, self.others[own].subscription.mesh().get(cluster)?))
    }

    async fn follow(&mut self, deadline: Instant) -> Result<Vec<pb::ClusterInfo>, Trouble> {
        let mut asks = interval(ASK);
        let mut clusters = self.ask().await?;
        loop {
            self.look(&clusters);
            let all_told = clusters
                .iter()
                .all(|cluster| cluster.state() != pb::ClusterState::Synced || self.told.contains(&cluster.name));
            if self.complete && all_told && self.unequal().is_empty() {
                return Ok(clusters);
            }
            // Longest first: a stream that says something must not keep the gateway from being asked, nor the end from coming.
            let event = tokio::select! {
                biased;
                () = tokio::time::sleep_until(deadline) => return Ok(clusters),
                _ = asks.tick() => {
                    clusters = self.ask().await?;
                    continue;
                }
                event = next(&mut self.here, &mut self.others) => event,
            };
            match event {
                (None, Event::Disconnected { why, .. }) => return Err(why.into()),
                (None, Event::Update(Update::AllSynced { .. })) => self.complete = true,
                (None, Event::Update(_)) => {}
                (Some(at), Event::Disconnected { why, .. }) => self.others[at].trouble = Some(why.to_string()),
                (Some(at), Event::Update(_)) => self.others[at].trouble = None,
            }
        }
    }

    /// Notes what is equal at this moment.
    fn look(&mut self, clusters: &[pb::ClusterInfo]) {
        for info in clusters {
            let said =
                |held: &Cluster| (held.identities.len() as u64, held.checksum()) == (info.identities, info.checksum);
            if self.here.mesh().get(&info.name).is_some_and(said) {
                self.told.insert(info.name.clone());
            }
        }
        for side in &self.others {
            let (here, there) = (self.here.mesh().get(&side.cluster), side.subscription.mesh().get(&side.cluster));
            if here.zip(there).is_some_and(|(here, there)| is_equal(here, there)) {
                self.equal.insert(side.cluster.clone());
            }
        }
    }
}

/// The next event of any of them; of ours if none is named. Dropped before it comes, nothing is lost.
async fn next(here: &mut Subscription, others: &mut [Side]) -> (Option<usize>, Event) {
    let here = std::iter::once((None, here));
    let others = others.iter_mut().enumerate().map(|(at, side)| (Some(at), &mut side.subscription));
    let all = here.chain(others).map(|(at, subscription)| Box::pin(async move { (at, subscription.next().await) }));
    select_all(all).await.0
}
