//! New numbers a second, with 1 and 16 callers, beside plain puts of the same bytes to the same etcd in the same run.
use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use etcd_client::Client;
use meshgate::allocator::etcd::{EtcdBackend, EtcdTerms, SessionKeeper, Store};
use meshgate::allocator::{
    AllocError, Allocator, AllocatorMetrics, AllocatorSettings, Key, MasterTable, NumberRange, Paths,
};
use meshgate::devkit::{EtcdOptions, EtcdServer};
use meshgate::kvstore::Timing;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::report::{Against, Report, Runs};

type Failure = Box<dyn Error + Send + Sync>;

const RUNS: usize = 5;
/// Writes of a run, by callers.
const WRITES: [(usize, usize); 2] = [(1, 1_500), (16, 6_000)];
/// What a real Cilium reaches on this kind of machine: the middle of what `golden/numbers` in the issue says.
const CILIUM: [f64; 2] = [238.0, 330.0];

pub async fn run(report: &mut Report) -> Result<(), Box<dyn Error>> {
    measure(report).await.map_err(|error| -> Box<dyn Error> { error })
}

async fn measure(report: &mut Report) -> Result<(), Failure> {
    let etcd = EtcdServer::start(EtcdOptions::plain("bench")).await?;
    let client = etcd.client();
    let range = NumberRange::new(5 << 16, (6 << 16) - 1, 0)?;
    let (keeper, sessions) = SessionKeeper::new(etcd.config(), Timing::default());
    let store = Store::new(sessions, Duration::from_secs(5));
    let paths = Paths::new("cilium/state/identities/v1", "10.1.0.11")?;
    let backend = EtcdBackend::new(store, paths, range, EtcdTerms::default());
    let allocator = Allocator::new(
        backend.clone(),
        Arc::new(MasterTable::default()),
        AllocatorSettings::new(range),
        AllocatorMetrics::new(),
    );
    allocator.listed([]);
    let cancel = CancellationToken::new();
    let mut tasks = JoinSet::new();
    tasks.spawn(keeper.run(cancel.clone()));
    tasks.spawn(backend.run(cancel.clone()));
    tasks.spawn({
        let (allocator, cancel) = (allocator.clone(), cancel.clone());
        async move { allocator.run(cancel).await }
    });

    let mut next = 0;
    for ((callers, writes), cilium) in WRITES.into_iter().zip(CILIUM) {
        let (mut puts, mut news) = (Vec::new(), Vec::new());
        for _ in 0..RUNS {
            puts.push(plain_puts(&client, callers, next, writes).await?);
            news.push(allocations(&allocator, callers, next, writes).await?);
            next += writes;
        }
        let puts = Runs::new(puts);
        let news = Runs::new(news);
        let name = |what: &str| format!("alloc/{what}, {callers} callers");
        let (share, times) =
            if callers == 1 { ("≥ 65 % of plain puts", "≥ 6 ×") } else { ("≥ 40 % of plain puts", "≥ 15 ×") };
        report.figure(&name("plain puts"), &puts, "1/s", &Against { floor: None, target: "the floor" });
        report.figure(&name("new numbers"), &news, "1/s", &Against { floor: Some(puts.median()), target: share });
        let target = format!("{times} Cilium's rate");
        report.figure(&name("new numbers"), &news, "1/s", &Against { floor: Some(cilium), target: &target });
    }
    cancel.cancel();
    while tasks.join_next().await.is_some() {}
    Ok(())
}

/// About as long as those of a real cluster.
fn labels(n: usize) -> Result<Key, AllocError> {
    let text = format!(
        "k8s:app=frontend-{n};k8s:app.kubernetes.io/name=frontend;k8s:app.kubernetes.io/version=1.2.3;\
         k8s:io.cilium.k8s.namespace.labels.kubernetes.io/metadata.name=shop;k8s:io.cilium.k8s.policy.cluster=cluster-a;\
         k8s:io.cilium.k8s.policy.serviceaccount=default;k8s:io.kubernetes.pod.namespace=shop;"
    );
    Key::from_labels(meshgate::identity::labels_of(&text))
}

async fn plain_puts(client: &Client, callers: usize, first: usize, writes: usize) -> Result<f64, Failure> {
    let since = Instant::now();
    let mut tasks = JoinSet::new();
    for caller in 0..callers {
        let client = client.clone();
        tasks.spawn(async move {
            for n in (first..first + writes).skip(caller).step_by(callers) {
                let value = labels(n)?.to_string();
                client.kv_client().put(format!("plain/{n}"), value, None).await?;
            }
            Ok::<(), Failure>(())
        });
    }
    for ended in tasks.join_all().await {
        ended?;
    }
    Ok(writes as f64 / since.elapsed().as_secs_f64())
}

async fn allocations(
    allocator: &Allocator<EtcdBackend>,
    callers: usize,
    first: usize,
    writes: usize,
) -> Result<f64, Failure> {
    let since = Instant::now();
    let mut tasks = JoinSet::new();
    for caller in 0..callers {
        let allocator = allocator.clone();
        tasks.spawn(async move {
            for n in (first..first + writes).skip(caller).step_by(callers) {
                let deadline = Instant::now() + Duration::from_secs(30);
                if !allocator.allocate(&labels(n)?, deadline).await?.is_new {
                    return Err(format!("the labels numbered {n} were there already").into());
                }
            }
            Ok::<(), Failure>(())
        });
    }
    for ended in tasks.join_all().await {
        ended?;
    }
    Ok(writes as f64 / since.elapsed().as_secs_f64())
}
