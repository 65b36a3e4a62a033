//! A peer that hangs or fails at one stage says which, and holds up nobody.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use meshgate::telemetry::{ClusterState, ClusterStatus};
use meshgate::tls::{ServerTls, ServerTlsFiles};
use tokio::net::TcpListener;
use tokio::time::Instant;
use tokio_rustls::TlsAcceptor;
use tokio_util::task::AbortOnDropHandle;

use super::play::Play;
use crate::peer::{DEADLINE, Rig, Store, timing};
use crate::support::fill::Cluster;
use crate::support::{CertSpec, EtcdOptions, EtcdServer, Pki, eventually};

/// A port whose server takes connections, shakes hands if it has certificates, and says nothing more.
pub(super) struct Mute {
    port: u16,
    _task: AbortOnDropHandle<()>,
}

impl Mute {
    pub(super) fn port(&self) -> u16 {
        self.port
    }

    pub(super) async fn start(tls: Option<Arc<ServerTls>>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let task = tokio::spawn(async move {
            let mut held = Vec::new();
            loop {
                let (tcp, _) = listener.accept().await.unwrap();
                match &tls {
                    None => held.push((Some(tcp), None)),
                    Some(tls) => {
                        if let Ok(stream) = TlsAcceptor::from(tls.config()).accept(tcp).await {
                            held.push((None, Some(stream)));
                        }
                    }
                }
            }
        });
        Self { port, _task: AbortOnDropHandle::new(task) }
    }
}

/// One etcd that holds the caches of nine clusters.
async fn nine(pki: &Pki) -> (EtcdServer, Vec<Cluster>) {
    let etcd = EtcdServer::start(EtcdOptions::mtls("nine", pki).unwrap().in_memory()).await.unwrap();
    let mut kv = etcd.client().kv_client();
    let mut clusters = Vec::new();
    for id in 11..20 {
        let cluster = Cluster::new(&format!("healthy-{id}"), id).cached();
        let set = format!("k8s:io.cilium.k8s.policy.cluster={};", cluster.name);
        kv.put(cluster.identity_key(*cluster.numbers().start()), set, None).await.unwrap();
        kv.put(cluster.canary_key(), "2026-11-30T21:37:03Z", None).await.unwrap();
        kv.put(cluster.config_key(), cluster.config_json(), None).await.unwrap();
        clusters.push(cluster);
    }
    (etcd, clusters)
}

/// A bad peer first, then nine healthy ones: these are synced although that one hangs.
async fn beside_nine(pki: &Pki, yaml: &str) -> (Rig, EtcdServer, Vec<Cluster>) {
    let (etcd, clusters) = nine(pki).await;
    let rig = Rig::with(|settings| {
        settings.timing = timing();
        settings.timing.etcd.dial = Duration::from_millis(500);
        settings.timing.etcd.call = Duration::from_millis(500);
        settings.timing.etcd.page = Duration::from_millis(500);
        settings.timing.etcd.watch_created = Duration::from_millis(500);
    });
    rig.write("bad", yaml);
    for cluster in &clusters {
        rig.write(&cluster.name, &etcd.config_yaml());
    }
    let began = Instant::now();
    for cluster in &clusters {
        rig.until_state(&cluster.name, ClusterState::Synced).await;
    }
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    (rig, etcd, clusters)
}

/// At the end the nine are as they were.
async fn undisturbed(rig: Rig, etcd: &EtcdServer, clusters: &[Cluster]) {
    for cluster in clusters {
        let key = cluster.identity_key(cluster.numbers().start() + 1);
        let set = format!("k8s:app=late;k8s:io.cilium.k8s.policy.cluster={};", cluster.name);
        etcd.client().kv_client().put(key, set, None).await.unwrap();
    }
    for cluster in clusters {
        let id = u16::try_from(cluster.id).unwrap();
        eventually("a change is seen", DEADLINE, async || rig.shown(id).len() == 2).await;
        let status = rig.status(&cluster.name).unwrap();
        assert_eq!((status.failures, status.session), (0, 1), "{status:#?}");
    }
    rig.stop().await;
}

fn failed(stage: &str, reason: &str) -> impl Fn(&ClusterStatus) -> bool {
    let (stage, reason) = (stage.to_owned(), reason.to_owned());
    move |status| {
        status.failures >= 2
            && status
                .last_error
                .as_ref()
                .is_some_and(|error| error.reason == reason && error.message.contains(&stage) && !error.hint.is_empty())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn r16_a_peer_that_takes_connections_only() {
    let mute = Mute::start(None).await;
    let pki = Pki::temporary().unwrap();
    let files = pki.issue(&CertSpec::client("bad")).unwrap();
    let yaml = format!("endpoints: ['https://127.0.0.1:{}']\ntrusted-ca-file: {}\n", mute.port, files.ca.display());
    let (rig, etcd, clusters) = beside_nine(&pki, &yaml).await;
    rig.until("bad", "says that TLS hangs", failed("tls https", "tls-timeout")).await;
    undisturbed(rig, &etcd, &clusters).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn r16_a_peer_that_shakes_hands_only() {
    let pki = Pki::temporary().unwrap();
    let (server, client) =
        (pki.issue(&CertSpec::server("mute")).unwrap(), pki.issue(&CertSpec::client("bad")).unwrap());
    let tls = ServerTlsFiles { cert: server.cert, key: server.key, client_ca: server.ca };
    let mute = Mute::start(Some(Arc::new(ServerTls::load(tls).unwrap()))).await;
    let yaml = format!(
        "endpoints: ['https://127.0.0.1:{}']\ntrusted-ca-file: {}\ncert-file: {}\nkey-file: {}\n",
        mute.port,
        client.ca.display(),
        client.cert.display(),
        client.key.display()
    );
    let (rig, etcd, clusters) = beside_nine(&pki, &yaml).await;
    rig.until("bad", "says that the first call hangs", failed("first-call https", "deadline")).await;
    undisturbed(rig, &etcd, &clusters).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn r16_a_peer_that_never_confirms_a_watch() {
    let pki = Pki::temporary().unwrap();
    let play = Play::new("bad", 2, &["a"]);
    let mut fake = play.start().await;
    let (rig, etcd, clusters) = beside_nine(&pki, &Play::yaml(&fake)).await;
    rig.until("bad", "says that the watch hangs", failed("a watch", "deadline")).await;
    assert_eq!(rig.shown(2), play.shown(&[(1, "a")]), "what was listed is shown");
    // As soon as it does, all is well.
    tokio::select! {
        () = rig.until("bad", "is synced", |status| status.state == ClusterState::Synced && status.stage == "watch") => {}
        never = play.confirm(&mut fake) => match never {},
    }
    undisturbed(rig, &etcd, &clusters).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn r16_a_peer_that_sends_one_page_only() {
    let apps: Vec<String> = (0..5).map(|n| format!("app{n}")).collect();
    let apps: Vec<&str> = apps.iter().map(String::as_str).collect();
    let pki = Pki::temporary().unwrap();
    let play = Play::new("bad", 2, &apps);
    let mut fake = play.start().await;
    // The rig's pages hold two.
    let answering = Arc::new(AtomicBool::new(false));
    let answers = Arc::clone(&answering);
    fake.ignore(move |request| {
        !request.range_end.is_empty() && request.revision != 0 && !answers.load(Ordering::SeqCst)
    });
    let (rig, etcd, clusters) = beside_nine(&pki, &Play::yaml(&fake)).await;
    let telling = async {
        rig.until("bad", "says that a page hangs", failed("a page", "deadline")).await;
        assert!(!rig.status("bad").unwrap().synced_once);
        // Each attempt waits twice as long as the one before, so a store that is merely slow gets its turn.
        let failures = rig.status("bad").unwrap().failures;
        rig.until("bad", "has tried again", |status| status.failures > failures).await;
        answering.store(true, Ordering::SeqCst);
        rig.until("bad", "is synced", |status| status.synced_once && status.identities == 5).await;
    };
    tokio::select! {
        () = telling => {}
        never = play.confirm(&mut fake) => match never {},
    }
    undisturbed(rig, &etcd, &clusters).await;
}

/// Each stage has its name in the status, with a reason and what to do.
#[tokio::test(flavor = "multi_thread")]
async fn m03_the_status_names_the_stage_of_each_fault() {
    let (pki, strangers) = (Pki::temporary().unwrap(), Pki::temporary().unwrap());
    let good = Store::new(&pki, "good", 2, &["a"]).await;
    let stranger = Store::new(&strangers, "stranger", 3, &["a"]).await;
    let config = |name: &str| Cluster::new(name, 9);
    let rig = Rig::with(|settings| {
        settings.timing = timing();
        settings.timing.etcd.dial = Duration::from_millis(500);
        settings.timing.etcd.call = Duration::from_millis(500);
        settings.timing.etcd.page = Duration::from_millis(500);
    });
    let yaml = good.yaml();
    let at = |host: &str| yaml.replace(&format!("127.0.0.1:{}", good.etcd.port()), host);
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let mute = Mute::start(None).await;
    rig.write("no-name", &at("no.such.host.invalid:2379"));
    rig.write("refused", &at(&closed.to_string()));
    rig.write("mute", &at(&format!("127.0.0.1:{}", mute.port)));
    rig.write("wrong-ca", &at(&format!("127.0.0.1:{}", stranger.etcd.port())));
    let past = std::time::SystemTime::now() - Duration::from_mins(10);
    let expired = pki.issue(&CertSpec::client("expired").not_after(past)).unwrap();
    let certs = good.etcd.client_certs().unwrap();
    rig.write(
        "expired",
        &yaml
            .replace(&certs.cert.display().to_string(), &expired.cert.display().to_string())
            .replace(&certs.key.display().to_string(), &expired.key.display().to_string()),
    );
    rig.write("no-config", &yaml);
    // Whose ID the other one wants.
    rig.write("good", &yaml);
    rig.until_state("good", ClusterState::Synced).await;
    for (name, cluster) in [
        ("clash", Cluster::new("clash", 2)),
        ("width", Cluster { width: meshgate::identity::MaxConnectedClusters::C511, ..config("width") }),
        ("no-canary", Cluster::new("no-canary", 8)),
    ] {
        good.put(&cluster.config_key(), cluster.config_json()).await;
        rig.write(name, &yaml);
    }
    let stalled = Play::new("stalled", 7, &["a"]);
    let fake = stalled.start().await;
    fake.ignore(|request| !request.range_end.is_empty());
    rig.write("stalled", &Play::yaml(&fake));
    for (name, stage, reason) in [
        ("no-name", "resolve https", "resolve-failed"),
        ("refused", "dial https", "dial-refused"),
        ("mute", "tls https", "tls-timeout"),
        ("wrong-ca", "tls https", "we-refused-theirs-unknown-issuer"),
        ("expired", "tls https", "they-refused-ours"),
        ("no-config", "cilium/cluster-config/no-config", "config-missing"),
        ("clash", "", "cluster-id-taken"),
        ("width", "", "max-connected-clusters"),
        ("no-canary", "cilium/synced/no-canary", "canary-missing"),
        ("stalled", "a page", "deadline"),
    ] {
        rig.until(name, &format!("says {stage} and {reason}"), |status| {
            status.last_error.as_ref().is_some_and(|error| {
                error.reason.starts_with(reason) && error.message.contains(stage) && !error.hint.is_empty()
            })
        })
        .await;
    }
    for (name, state, stage) in [
        ("no-config", ClusterState::ReadingConfig, "cluster-config"),
        ("clash", ClusterState::Refused, "cluster-id"),
        ("width", ClusterState::Refused, "cluster-config"),
        ("no-canary", ClusterState::AwaitingCanary, "canary"),
    ] {
        let status = rig.status(name).unwrap();
        assert_eq!((status.state, status.stage), (state, stage), "{name}");
    }
    rig.stop().await;
}
