//! Whatever is published and read in whatever order: a subscriber holds what was published, and never goes back.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

#[derive(Clone, Debug)]
enum Op {
    Put(usize, u32, u32),
    Remove(usize, u32),
    Publish(usize),
    Synced(usize),
    /// Withdraws what is there and begins a new list under a name and an ID.
    Restart(usize, u8, u32),
    Read(u8),
}

fn op() -> impl Strategy<Value = Op> {
    let cluster = 0..3usize;
    prop_oneof![
        8 => (cluster.clone(), 0..40u32, 0..4u32).prop_map(|(cluster, offset, value)| Op::Put(cluster, offset, value)),
        3 => (cluster.clone(), 0..40u32).prop_map(|(cluster, offset)| Op::Remove(cluster, offset)),
        4 => cluster.clone().prop_map(Op::Publish),
        2 => cluster.clone().prop_map(Op::Synced),
        1 => (cluster, 0..3u8, 1..4u32).prop_map(|(cluster, name, id)| Op::Restart(cluster, name, id)),
        6 => (0..6u8).prop_map(Op::Read),
    ]
}

type Contents = BTreeMap<u32, String>;

/// What the subscriber holds of complete clusters is, at each marker, a version that was published, never an older one than
/// it held before; and in the end it is the view.
fn check(ops: &[Op], max_items: u32) {
    let (view, status) = mesh();
    let mut builders = [builder("x", 1), builder("y", 2), builder("z", 3)];
    let mut published: Vec<(String, Contents)> = Vec::new();
    let mut sub = Subscriber::new(&view, &status, pb::SubscribeRequest { max_items, ..Default::default() });
    let mut position: BTreeMap<String, usize> = BTreeMap::new();
    let mut read = |sub: &mut Subscriber, published: &[(String, Contents)]| {
        let Some((_, updates)) = sub.next() else { return false };
        for update in updates {
            let (Update::Synced { cluster, .. } | Update::Changed { cluster, .. }) = update else { continue };
            let held = sub.fold.mesh()[&cluster].identities.values();
            let held: Contents = held.map(|entry| (entry.number, entry.key_string())).collect();
            let from = position.get(&cluster).copied().unwrap_or(0);
            let at = published.iter().skip(from).position(|(name, contents)| *name == cluster && *contents == held);
            position.insert(cluster, from + at.expect("what is held was published, and not before what was held"));
        }
        true
    };
    for op in ops {
        match *op {
            Op::Put(at, offset, value) => put(&mut builders[at], offset, value),
            Op::Remove(at, offset) => {
                // A first list only grows.
                if builders[at].current().is_synced() {
                    let min = builders[at].current().range().min();
                    builders[at].remove(NumericIdentity::new(min + offset));
                }
            }
            Op::Synced(at) => sync(&mut builders[at]),
            Op::Publish(at) => {
                // Each ID belongs to one builder at a time, as the register of the peers sees to.
                let version = builders[at].build();
                let contents =
                    version.iter().map(|identity| (identity.number().get(), identity.key_string())).collect();
                published.push((version.name().to_string(), contents));
                view.publish(version);
            }
            Op::Restart(at, name, to) => {
                let name = ["x", "y", "z"][usize::from(name)];
                let taken =
                    |other: &ClusterBuilder| other.current().name().as_str() == name || other.current().id() == id(to);
                if builders.iter().enumerate().any(|(other, builder)| other != at && taken(builder)) {
                    continue;
                }
                view.withdraw(builders[at].current().id());
                builders[at] = builder(name, to);
            }
            Op::Read(count) => {
                (0..count).all(|_| read(&mut sub, &published));
            }
        }
    }
    while read(&mut sub, &published) {}
    let held = |sub: &Subscriber| -> BTreeMap<String, (u32, usize, u64)> {
        let clusters = sub.fold.mesh().iter();
        clusters
            .map(|(name, cluster)| (name.clone(), (cluster.id, cluster.identities.len(), cluster.checksum())))
            .collect()
    };
    let mesh = view.load();
    let complete = mesh.clusters().filter(|cluster| cluster.is_synced()).map(|cluster| {
        let held = (u32::from(cluster.id().get()), cluster.len(), cluster.checksum());
        (cluster.name().to_string(), held)
    });
    assert_eq!(held(&sub), complete.collect());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn whatever_happens_the_subscriber_holds_what_was_published(
        ops in prop::collection::vec(op(), 1..120),
        max_items in 1..12u32,
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async { check(&ops, max_items) });
    }
}
