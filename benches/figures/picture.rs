//! A peer's picture on disk: its size, and what reading and writing it take beside a list of the same peer from its etcd.

use std::error::Error;
use std::hint::black_box;
use std::time::{Instant, SystemTime};

use meshgate::devkit::fill::{Cluster, FillOptions, LabelMix, fill};
use meshgate::devkit::{EtcdOptions, EtcdServer, Pki};
use meshgate::identity::{ClusterId, ClusterName, MaxConnectedClusters};
use meshgate::kvstore::ListWatchOptions;
use meshgate::picture::{Fit, Picture, PictureStore, encode};
use meshgate::view::Interner;

use crate::report::{Against, Report, Runs};
use crate::sync::{ID, IDENTITIES, NAME, connect, synced};

const RUNS: usize = 7;

pub async fn run(report: &mut Report) -> Result<(), Box<dyn Error>> {
    let pki = Pki::temporary()?;
    let etcd = EtcdServer::start(EtcdOptions::mtls(NAME, &pki)?.in_memory()).await?;
    let cluster = Cluster::new(NAME, ID);
    let options = FillOptions { count: IDENTITIES, ..FillOptions::default() };
    fill(&etcd.client(), &cluster, &LabelMix::new(NAME, 1), &options).await?;
    let prefix = cluster.identity_prefix();

    let width = MaxConnectedClusters::C255;
    let fit = Fit { name: ClusterName::new(NAME)?, width, max_key_string: 16_384 };
    let directory = tempfile::tempdir()?;
    let store = PictureStore::open(directory.path())?;
    let (mut list, mut write, mut save, mut load, mut size) = (vec![], vec![], vec![], vec![], 0);
    // In turn, so that what else the machine does meets all of them.
    for _ in 0..RUNS {
        let session = connect(etcd.config()).await?;
        let (view, took) = synced(&session, &prefix, ListWatchOptions::default()).await?;
        list.push(took.as_secs_f64() * 1e3);
        let mesh = view.load();
        let version = mesh.cluster(ClusterId::new(ID, width)?).ok_or("not shown")?.clone();
        let position = version.position().ok_or("not synced")?;
        let saved_at = SystemTime::now();
        let picture = Picture { version, position, prefix: prefix.clone(), saved_at, unavailable_since: None };
        let start = Instant::now();
        size = black_box(encode(&picture, width)).len();
        write.push(start.elapsed().as_secs_f64() * 1e3);
        let start = Instant::now();
        store.save(&picture, width)?;
        save.push(start.elapsed().as_secs_f64() * 1e3);
        // As after a start: no label is known yet.
        let interner = Interner::new();
        let start = Instant::now();
        let back = store.load(&fit, &interner)?.ok_or("no picture")?;
        load.push(start.elapsed().as_secs_f64() * 1e3);
        if back.version.checksum() != picture.version.checksum() {
            return Err("what came back is something else".into());
        }
    }
    let floor = Runs::new(list).median();
    let against = |target| Against { floor: Some(floor), target };
    report.figure(
        "picture/65000_read_and_decoded",
        &Runs::new(load),
        "ms",
        &against("< 100 ms; floor: a list from etcd"),
    );
    report.figure("picture/65000_encoded", &Runs::new(write), "ms", &against("beside the same list"));
    report.figure("picture/65000_encoded_written_synced", &Runs::new(save), "ms", &against("beside the same list"));
    let per = Runs::new(vec![size as f64 / f64::from(IDENTITIES)]);
    report.figure("picture/bytes_per_identity", &per, "bytes", &Against { floor: None, target: "about 1 MB in all" });
    Ok(())
}
