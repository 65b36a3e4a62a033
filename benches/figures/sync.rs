//! The first list of a peer: time to `Synced`, CPU and memory an identity.
//!
//! Time is measured here, in turn with its floor. CPU and memory are measured in a process of their own, which does nothing
//! else: this file is also that process (`--child`).

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use etcd_client::GetOptions;
use meshgate::devkit::fill::{Cluster, FillOptions, LabelMix, fill};
use meshgate::devkit::{EtcdOptions, EtcdServer, Pki};
use meshgate::identity::{ClusterId, ClusterName, IdentityRange, MaxConnectedClusters};
use meshgate::kvstore::{Connector, EtcdConfig, ListWatchOptions, Session, Timing};
use meshgate::mirror::{Admission, Follower, Mirror, Reporter};
use meshgate::telemetry::{Metrics, StatusBoard};
use meshgate::view::{ClusterBuilder, Interner, View};

use crate::report::{Against, Report, Runs};

pub const IDENTITIES: u32 = 65_000;
const RUNS: usize = 7;
const PAGES: [i64; 3] = [4_096, 8_192, 16_384];
pub const NAME: &str = "remote";
pub const ID: u32 = 7;
/// The first argument of the process that measures itself.
pub const CHILD: &str = "--child";

pub async fn run(report: &mut Report) -> Result<(), Box<dyn Error>> {
    let pki = Pki::temporary()?;
    let etcd = EtcdServer::start(EtcdOptions::mtls(NAME, &pki)?.in_memory()).await?;
    let cluster = Cluster::new(NAME, ID);
    let options = FillOptions { count: IDENTITIES, ..FillOptions::default() };
    fill(&etcd.client(), &cluster, &LabelMix::new(NAME, 1), &options).await?;
    let prefix = cluster.identity_prefix();

    let mut floor = Vec::new();
    let mut sync: Vec<(i64, Vec<f64>)> = PAGES.iter().map(|&page| (page, Vec::new())).collect();
    // In turn, so that what else the machine does meets all of them.
    for _ in 0..RUNS {
        floor.push(range(&etcd, &prefix).await?);
        for (page_size, sync) in &mut sync {
            let session = connect(etcd.config()).await?;
            let options = ListWatchOptions { page_size: *page_size, ..ListWatchOptions::default() };
            let (_view, took) = synced(&session, &prefix, options).await?;
            sync.push(took.as_secs_f64() * 1e3);
        }
    }
    let floor = Runs::new(floor).median();
    for (page_size, sync) in sync {
        let is_default = page_size == ListWatchOptions::default().page_size;
        let name = format!(
            "sync/65000_list_to_synced{}",
            if is_default { String::new() } else { format!("_pages_of_{page_size}") }
        );
        let target = if is_default { "≤ 1.5 × one plain unpaged range" } else { "another page size" };
        report.figure(&name, &Runs::new(sync), "ms", &Against { floor: Some(floor), target });
    }

    let config = pki.dir().join("child.yaml");
    std::fs::write(&config, etcd.config_yaml())?;
    let (mut cpu, mut resident) = (Vec::new(), Vec::new());
    for _ in 0..5 {
        let (cpu_ns, bytes) = measured_in_a_child(&config, &prefix)?;
        cpu.push(cpu_ns / 1e3);
        resident.push(bytes);
    }
    let against = |target| Against { floor: None, target };
    report.figure("sync/cpu_per_identity", &Runs::new(cpu), "µs", &against("≤ 4 µs (Cilium 1.18: 11)"));
    report.figure(
        "sync/resident_per_identity",
        &Runs::new(resident),
        "bytes",
        &against("≤ 400 bytes (Cilium 1.18: 1,770 to 1,820)"),
    );
    Ok(())
}

/// The floor: all keys and values in one answer, by the same client crate, looked at by nobody.
async fn range(etcd: &EtcdServer, prefix: &str) -> Result<f64, Box<dyn Error>> {
    let mut kv = etcd.client().kv_client().max_decoding_message_size(usize::MAX);
    // A connection that is already there, as the session's is.
    kv.get("warm", None).await?;
    let start = Instant::now();
    let answer = kv.get(prefix, Some(GetOptions::new().with_prefix())).await?;
    let took = start.elapsed().as_secs_f64() * 1e3;
    if answer.count() != i64::from(IDENTITIES) {
        return Err(format!("{} keys instead of {IDENTITIES}", answer.count()).into());
    }
    Ok(took)
}

pub async fn connect(config: EtcdConfig) -> Result<Session, Box<dyn Error>> {
    Ok(Connector::new(config, Timing::default()).connect(&|_, _| {}).await?)
}

/// From the start of the list to the publication of the complete cluster.
pub async fn synced(
    session: &Session,
    prefix: &str,
    options: ListWatchOptions,
) -> Result<(View, Duration), Box<dyn Error>> {
    let width = MaxConnectedClusters::C255;
    let (id, name) = (ClusterId::new(ID, width)?, ClusterName::new(NAME)?);
    let range = IdentityRange::of(id, width);
    let view = View::new(width, ClusterId::new(1, width)?);
    let builder = ClusterBuilder::new(Interner::new(), name.clone(), id, range);
    let mirror = Mirror::new(prefix.as_bytes().to_vec(), Admission::peer(range, name), builder);
    let mut follower = Follower::new(mirror, prefix.as_bytes().to_vec(), options, view.clone());
    let board = StatusBoard::default();
    let reporter = Reporter::new(NAME, false, board.clone(), Metrics::new(board));
    let mut changes = view.changes();
    let start = Instant::now();
    tokio::select! {
        error = follower.follow(session, &reporter) => Err(error.into()),
        _ = changes.wait_for(|_| view.read(|mesh| mesh.cluster(id).is_some_and(|cluster| cluster.is_synced()))) => {
            let took = start.elapsed();
            let held = view.read(meshgate::view::MeshView::len);
            if held == IDENTITIES as usize { Ok((view, took)) } else { Err(format!("{held} are held").into()) }
        }
    }
}

fn measured_in_a_child(config: &Path, prefix: &str) -> Result<(f64, f64), Box<dyn Error>> {
    let output = Command::new(std::env::current_exe()?).arg(CHILD).arg(config).arg(prefix).output()?;
    let text = String::from_utf8(output.stdout)?;
    let mut numbers = text.split_whitespace().map(str::parse::<f64>);
    match (output.status.success(), numbers.next(), numbers.next()) {
        (true, Some(Ok(cpu)), Some(Ok(resident))) => Ok((cpu, resident)),
        _ => Err(format!("the child failed: {}", String::from_utf8_lossy(&output.stderr)).into()),
    }
}

/// The child: connects, then syncs; prints CPU nanoseconds and resident bytes an identity.
pub async fn child(config: PathBuf, prefix: String) -> Result<(), Box<dyn Error>> {
    let session = connect(EtcdConfig::from_yaml_file(&config)?).await?;
    let (cpu, resident) = (cpu_ns()?, resident_bytes()?);
    let (view, _) = synced(&session, &prefix, ListWatchOptions::default()).await?;
    let (cpu, resident) = (cpu_ns()? - cpu, resident_bytes()? - resident);
    println!("{} {}", cpu / f64::from(IDENTITIES), resident / f64::from(IDENTITIES));
    drop(view);
    Ok(())
}

/// Time on a processor of all threads of this process.
fn cpu_ns() -> Result<f64, Box<dyn Error>> {
    let mut sum = 0.0;
    for task in std::fs::read_dir("/proc/self/task")? {
        let schedstat = std::fs::read_to_string(task?.path().join("schedstat"))?;
        sum += schedstat.split_whitespace().next().ok_or("no schedstat")?.parse::<f64>()?;
    }
    Ok(sum)
}

fn resident_bytes() -> Result<f64, Box<dyn Error>> {
    let statm = std::fs::read_to_string("/proc/self/statm")?;
    let pages: f64 = statm.split_whitespace().nth(1).ok_or("no statm")?.parse()?;
    Ok(pages * 4096.0)
}
