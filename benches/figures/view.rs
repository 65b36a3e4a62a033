//! The pure core: build, look up, change, differ. No etcd, no network.

use std::hint::black_box;
use std::time::Instant;

use meshgate::identity::{ClusterId, ClusterName, IdentityRange, MaxConnectedClusters, NumericIdentity};
use meshgate::view::{ClusterBuilder, Interner, View, diff};

use crate::report::{Against, Report, Runs};

const IDENTITIES: u32 = 65_000;
const RUNS: usize = 7;
const CHANGES: u32 = 20_000;
const LOOKUPS: u32 = 200_000;

fn key(n: u32) -> String {
    format!(
        "k8s:app=app-{};k8s:app.kubernetes.io/name=app-{};k8s:app.kubernetes.io/version=1.{}.{};\
         k8s:io.cilium.k8s.namespace.labels.kubernetes.io/metadata.name=namespace-{};\
         k8s:io.cilium.k8s.policy.cluster=five;k8s:io.cilium.k8s.policy.serviceaccount=account-{};\
         k8s:io.kubernetes.pod.namespace=namespace-{};k8s:pod-template-hash={:010};",
        n % 500,
        n % 500,
        n % 7,
        n % 13,
        n % 300,
        n % 50,
        n % 300,
        n % 9_000
    )
}

pub fn run(report: &mut Report) -> Result<(), Box<dyn std::error::Error>> {
    let width = MaxConnectedClusters::C255;
    let (id, name) = (ClusterId::new(5, width)?, ClusterName::new("five")?);
    let number = |n: u32| NumericIdentity::new((5 << 16) + n);
    // In the order of a store's list: decimal strings, not numbers.
    let mut entries: Vec<(u32, String)> = (0..IDENTITIES).map(|n| (n, key(n))).collect();
    entries.sort_by_key(|(n, _)| number(*n).to_string());
    let bytes: usize = entries.iter().map(|(_, key)| key.len()).sum();

    let mut copy = Vec::new();
    let mut build = Vec::new();
    let mut relist = Vec::new();
    let mut change = Vec::new();
    let mut by_number = Vec::new();
    let mut by_labels = Vec::new();
    let mut removed = Vec::new();
    for _ in 0..RUNS {
        let start = Instant::now();
        let mut copied = Vec::with_capacity(bytes);
        for (_, key) in &entries {
            copied.extend_from_slice(black_box(key.as_bytes()));
        }
        black_box(&copied);
        copy.push(per(start, IDENTITIES));

        let mut builder = ClusterBuilder::new(Interner::new(), name.clone(), id, IdentityRange::of(id, width));
        let start = Instant::now();
        for (n, key) in &entries {
            let _ = black_box(builder.upsert(number(*n), key, 1));
        }
        let mut held = builder.build();
        build.push(per(start, IDENTITIES));

        let start = Instant::now();
        builder.begin_relist();
        for (n, key) in &entries {
            let _ = black_box(builder.upsert(number(*n), key, 2));
        }
        builder.finish_relist();
        relist.push(per(start, IDENTITIES));

        let view = View::new(width, id);
        view.publish(held.clone());
        let start = Instant::now();
        for round in 0..CHANGES {
            let n = round.wrapping_mul(2_654_435_761) % IDENTITIES;
            let _ = black_box(builder.upsert(number(n), &entries[((round + 1) % IDENTITIES) as usize].1, 3));
            let next = builder.build();
            view.publish(next.clone());
            black_box(diff(Some(&held), &next).count());
            held = next;
        }
        change.push(per(start, CHANGES));

        let start = Instant::now();
        for round in 0..LOOKUPS {
            let n = round.wrapping_mul(2_654_435_761) % IDENTITIES;
            black_box(view.read(|mesh| mesh.get(number(n)).is_some()));
        }
        by_number.push(per(start, LOOKUPS));
        let start = Instant::now();
        for round in 0..LOOKUPS {
            let at = round.wrapping_mul(2_654_435_761) % IDENTITIES;
            black_box(view.read(|mesh| mesh.lookup(&entries[at as usize].1).is_some()));
        }
        by_labels.push(per(start, LOOKUPS));

        // What a peer's removal costs whoever holds the last version.
        let start = Instant::now();
        view.withdraw(id);
        drop((held, builder));
        removed.push(per(start, IDENTITIES));
    }
    let copy = Runs::new(copy).median();
    let mut figure = |name: &str, runs: Vec<f64>, target: &str| {
        report.figure(name, &Runs::new(runs), "ns", &Against { floor: Some(copy), target });
    };
    figure("view/build_per_identity", build, "floor: copying its key string");
    figure("view/relist_unchanged_per_identity", relist, "floor: copying its key string");
    figure("view/change_publish_diff", change, "floor: copying its key string");
    figure("view/removed_per_identity", removed, "floor: copying its key string");
    figure("view/lookup_by_number", by_number, "< 50 ns");
    figure("view/lookup_by_labels", by_labels, "< 300 ns");
    Ok(())
}

/// Nanoseconds each.
fn per(start: Instant, count: u32) -> f64 {
    start.elapsed().as_nanos() as f64 / f64::from(count)
}
