//! A subscriber in another language, from the published proto: `subscribe.py`, run by the environment that `scripts/setup`
//! makes from `requirements.txt`.

use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use meshgate::access::Access;
use meshgate::api::{self, Parts, Security, ServerOptions};
use meshgate::identity::{ClusterId, ClusterName, IdentityRange, MaxConnectedClusters, NumericIdentity};
use meshgate::telemetry::{Metrics, Readiness, StatusBoard};
use meshgate::view::{ClusterBuilder, Interner, SourcePosition, View};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines};
use tokio::net::TcpListener;
use tokio::process::{ChildStdout, Command};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

/// Python starts and generates its stubs within this, on a busy machine too.
const SOON: Duration = Duration::from_mins(1);
const WIDTH: MaxConnectedClusters = MaxConnectedClusters::C255;

#[expect(clippy::print_stderr, reason = "a test that does nothing says so")]
fn python() -> Option<PathBuf> {
    let python = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/target/interop/bin/python3"));
    if !python.exists() {
        eprintln!(
            "SKIPPED: no {}; scripts/setup makes it where python3 with venv and PyPI are to be had",
            python.display()
        );
        return None;
    }
    Some(python)
}

/// A gateway's API on a view.
async fn serve(view: &View) -> (String, CancellationToken) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let (status, stop) = (StatusBoard::default(), CancellationToken::new());
    let parts = Parts {
        cluster: ClusterName::new("a").unwrap(),
        view: view.clone(),
        metrics: Metrics::new(status.clone()),
        status,
        readiness: Readiness::default(),
        access: Access::default(),
    };
    tokio::spawn(api::serve(listener, Security::Plaintext, parts, ServerOptions::default(), stop.clone()));
    (address, stop)
}

fn put(builder: &mut ClusterBuilder, offset: u32, app: &str) {
    let number = NumericIdentity::new(builder.current().range().min() + offset);
    builder.upsert(number, &format!("k8s:app={app};k8s:größe={offset};"), 1).unwrap();
}

fn publish(view: &View, builder: &mut ClusterBuilder, revision: i64) {
    builder.set_synced(SourcePosition { etcd_cluster_id: 1, revision });
    view.publish(builder.build());
}

async fn next(lines: &mut Lines<BufReader<ChildStdout>>) -> Value {
    let line = timeout(SOON, lines.next_line()).await.expect("Python says something in time").unwrap();
    serde_json::from_str(&line.expect("Python goes on")).unwrap()
}

#[tokio::test]
async fn a_python_client_folds_filters_and_resumes() {
    let Some(python) = python() else { return };
    let id = ClusterId::new(1, WIDTH).unwrap();
    let view = View::new(WIDTH, id);
    let range = IdentityRange::of(id, WIDTH);
    let mut a = ClusterBuilder::new(Interner::new(), ClusterName::new("a").unwrap(), id, range);
    // Every third is selected; several chunks, compressed.
    for offset in 0..30_000 {
        put(&mut a, offset, ["web", "db", "cache"][offset as usize % 3]);
    }
    publish(&view, &mut a, 7);
    let (first, stop) = serve(&view).await;
    let (second, _stop) = serve(&view).await;

    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/interop/subscribe.py");
    let proto = concat!(env!("CARGO_MANIFEST_DIR"), "/proto");
    let mut python = Command::new(python);
    python.args([script, proto, "--selector", "app=web", &first, &second]).kill_on_drop(true);
    let mut python = python.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(python.stdout.take().unwrap()).lines();
    let synced = next(&mut lines).await;
    assert_eq!((&synced["event"], &synced["count"]), (&"synced".into(), &10_000.into()));
    assert_eq!(next(&mut lines).await["event"], "all_synced");

    // One enters the filter, two leave it, one of those by being deleted.
    put(&mut a, 1, "web");
    put(&mut a, 0, "db");
    a.remove(NumericIdentity::new(range.min() + 3));
    publish(&view, &mut a, 8);
    let batch = next(&mut lines).await;
    assert_eq!((&batch["event"], &batch["count"]), (&"batch".into(), &9_999.into()));

    // The gateway stops; the other one goes on from the token. Python has compared every checksum, or had ended.
    stop.cancel();
    assert_eq!(next(&mut lines).await["event"], "go_away");
    let ended = next(&mut lines).await;
    assert_eq!((&ended["event"], &ended["code"]), (&"ended".into(), &"UNAVAILABLE".into()));
    let resumed = next(&mut lines).await;
    assert_eq!((&resumed["resumed"], &resumed["count"]), (&true.into(), &9_999.into()));
    assert_eq!(resumed["checksum"], batch["checksum"]);
}
