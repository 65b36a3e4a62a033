//! Watches of real etcds over cuts, stops, compactions, replacements and restores.

use meshgate::kvstore::{Connector, ListKind, ListWatchOptions, SessionError, Timing};
use tokio::time::Instant;

use super::{
    Copy, DEADLINE, PREFIX, Seen, compact, connect, contents, delete, etcd, fill, put, session_of, through, timing,
};
use crate::support::proxy::{Direction, Proxy};
use crate::support::{EtcdCluster, EtcdOptions, EtcdServer, Pki, eventually};

/// A store of a thousand, a proxy before it, and a copy that is in step.
struct Rig {
    etcd: EtcdServer,
    proxy: Proxy,
    connector: Connector,
    copy: Copy,
}

impl Rig {
    async fn new(pki: &Pki, options: ListWatchOptions) -> Self {
        Self::of(etcd(pki, "alpha").await, options, timing()).await
    }

    async fn of(etcd: EtcdServer, options: ListWatchOptions, timing: Timing) -> Self {
        fill(&etcd.client(), 0, 1_000, "old").await;
        let proxy = Proxy::to(etcd.port()).await;
        let connector = Connector::new(through(etcd.config(), proxy.port()), timing);
        let mut copy = Copy::new(options);
        let session = session_of(&connector).await;
        copy.until(&session, Seen::Listed).await;
        // In step, and the watch is open.
        put(&etcd.client(), &format!("{PREFIX}first"), "event").await;
        copy.until(&session, Seen::Events).await;
        proxy.cut_off();
        copy.until_over(&session).await;
        copy.seen.clear();
        proxy.restore();
        Self { etcd, proxy, connector, copy }
    }

    async fn catch_up(&mut self) {
        let expected = contents(&self.etcd.client()).await;
        self.copy.until_holds(&self.connector, &expected).await;
    }
}

fn paged(page_size: i64) -> ListWatchOptions {
    ListWatchOptions { page_size, ..ListWatchOptions::default() }
}

#[tokio::test]
async fn a_watch_is_resumed_after_a_cut_without_a_list() {
    let pki = Pki::temporary().unwrap();
    let mut rig = Rig::new(&pki, paged(100)).await;
    let client = rig.etcd.client();
    for round in 0..5 {
        put(&client, &format!("{PREFIX}{round:06}"), "new").await;
        delete(&client, &format!("{PREFIX}{:06}", 900 + round)).await;
        rig.catch_up().await;
        rig.proxy.cut();
    }
    assert_eq!((rig.copy.lists(), rig.copy.count(&Seen::Resumed)), (0, 5), "{:?}", rig.copy.seen);
}

/// Too far behind, a list is cheaper than the replay.
#[tokio::test]
async fn far_behind_it_lists_again() {
    let pki = Pki::temporary().unwrap();
    let mut rig = Rig::new(&pki, ListWatchOptions { max_replay: 20, ..paged(100) }).await;
    let client = rig.etcd.client();
    for n in 0..21 {
        put(&client, &format!("{PREFIX}{n:06}"), "new").await;
    }
    delete(&client, &format!("{PREFIX}000900")).await;
    rig.catch_up().await;
    assert_eq!(rig.copy.count(&Seen::Started(ListKind::Again)), 1);
    assert_eq!(rig.copy.count(&Seen::Resumed), 0);
}

/// The deletes happened in a history that is gone (E1): one list, which tells them.
#[tokio::test]
async fn e01_compaction_while_away_lists_again() {
    let pki = Pki::temporary().unwrap();
    let mut rig = Rig::new(&pki, paged(100)).await;
    let client = rig.etcd.client();
    for n in 0..3 {
        delete(&client, &format!("{PREFIX}{n:06}")).await;
    }
    for n in 0..200 {
        put(&client, &format!("elsewhere/{n}"), "x").await;
    }
    compact(&client).await;
    rig.catch_up().await;
    assert_eq!((rig.copy.lists(), rig.copy.count(&Seen::Resumed)), (1, 0), "{:?}", rig.copy.seen);
}

/// A prefix that nobody writes stays resumable: etcd's periodic notifications advance the position (E1).
#[tokio::test]
async fn e01_a_quiet_prefix_does_not_fall_behind() {
    let pki = Pki::temporary().unwrap();
    let options = EtcdOptions::mtls("alpha", &pki).unwrap().in_memory();
    let options = options.args(["--experimental-watch-progress-notify-interval=100ms"]);
    let etcd = EtcdServer::start(options).await.unwrap();
    let mut rig = Rig::of(etcd, paged(100), timing()).await;
    let client = rig.etcd.client();
    let session = session_of(&rig.connector).await;
    rig.copy.until(&session, Seen::Resumed).await;
    for n in 0..50 {
        put(&client, &format!("elsewhere/{n}"), "x").await;
    }
    let now = put(&client, "elsewhere/last", "x").await;
    while rig.copy.revision < now {
        rig.copy.until(&session, Seen::Progress).await;
    }
    rig.proxy.cut();
    rig.copy.until_over(&session).await;
    client.kv_client().compact(now, None).await.unwrap();
    put(&client, &format!("{PREFIX}000000"), "new").await;
    rig.catch_up().await;
    assert_eq!((rig.copy.lists(), rig.copy.count(&Seen::Resumed)), (0, 2), "{:?}", rig.copy.seen);
}

/// Another etcd behind the same address: nothing of it is applied onto the old state (R5), whether its revisions are lower
/// or higher.
#[tokio::test]
async fn r05_another_etcd_in_mid_watch_is_listed() {
    let pki = Pki::temporary().unwrap();
    let mut rig = Rig::new(&pki, paged(100)).await;
    let other = etcd(&pki, "beta").await;
    fill(&other.client(), 500, 600, "beta's").await;
    let (mut lower, mut higher) = (other.port(), rig.etcd.port());
    for n in 0..3_000 {
        put(&other.client(), "elsewhere", &n.to_string()).await;
        if n % 1_000 == 0 {
            rig.proxy.retarget(lower);
            let expected = contents(&if lower == other.port() { other.client() } else { rig.etcd.client() }).await;
            rig.copy.until_holds(&rig.connector, &expected).await;
            std::mem::swap(&mut lower, &mut higher);
        }
    }
    assert_eq!((rig.copy.lists(), rig.copy.count(&Seen::Resumed)), (3, 0), "{:?}", rig.copy.seen);
}

#[tokio::test]
async fn r05_another_etcd_in_mid_page_is_listed_from_the_start() {
    let pki = Pki::temporary().unwrap();
    let (one, other) = (etcd(&pki, "one").await, etcd(&pki, "other").await);
    fill(&one.client(), 0, 1_000, "one's").await;
    fill(&other.client(), 500, 1_000, "other's").await;
    let proxy = Proxy::to(one.port()).await;
    let connector = Connector::new(through(one.config(), proxy.port()), timing());
    let session = session_of(&connector).await;
    let mut copy = Copy::paged(10);
    for _ in 0..5 {
        copy.until(&session, Seen::Page).await;
    }
    proxy.retarget(other.port());
    copy.until_over(&session).await;
    copy.until_holds(&connector, &contents(&other.client()).await).await;
    // Between list and watch.
    proxy.retarget(one.port());
    let session = session_of(&connector).await;
    copy.until(&session, Seen::Listed).await;
    proxy.retarget(other.port());
    copy.until_over(&session).await;
    copy.until_holds(&connector, &contents(&other.client()).await).await;
}

/// A stopped process answers no pings and no questions, while its kernel acknowledges everything (E3).
#[tokio::test]
async fn e03_a_stopped_etcd_is_noticed_within_liveness() {
    let pki = Pki::temporary().unwrap();
    let mut rig = Rig::new(&pki, paged(100)).await;
    let session = session_of(&rig.connector).await;
    rig.copy.until(&session, Seen::Resumed).await;
    rig.etcd.stop().unwrap();
    let stopped = Instant::now();
    let error = rig.copy.until_over(&session).await;
    let silent = timing().liveness;
    assert_eq!(error, SessionError::Silent(silent));
    assert!(stopped.elapsed() < silent + timing().progress_interval * 2, "{:?}", stopped.elapsed());
    assert_eq!(session.closed().await, error);
    rig.etcd.cont().unwrap();
    put(&rig.etcd.client(), &format!("{PREFIX}000000"), "new").await;
    rig.catch_up().await;
    assert_eq!(rig.copy.lists(), 0);
}

#[tokio::test]
async fn e03_a_black_hole_in_either_direction_is_noticed_within_liveness() {
    let pki = Pki::temporary().unwrap();
    let mut rig = Rig::new(&pki, paged(100)).await;
    for directions in [&[Direction::ToClient][..], &[Direction::ToServer], &[Direction::ToClient, Direction::ToServer]]
    {
        let session = session_of(&rig.connector).await;
        rig.copy.until(&session, Seen::Resumed).await;
        for direction in directions {
            rig.proxy.stall(*direction);
        }
        let stalled = Instant::now();
        assert_eq!(rig.copy.until_over(&session).await.reason(), "silent", "{directions:?}");
        assert!(stalled.elapsed() < timing().liveness + timing().progress_interval * 2, "{:?}", stalled.elapsed());
        drop(session);
        rig.proxy.flow();
        put(&rig.etcd.client(), &format!("{PREFIX}000000"), "new").await;
        rig.catch_up().await;
    }
    assert_eq!(rig.copy.lists(), 0);
    // Three sessions and three caught up, none of them left behind.
    eventually("dead connections are closed", DEADLINE, async || rig.proxy.open() <= 1).await;
}

/// A quiet watch that answers our questions lives on.
#[tokio::test]
async fn a_quiet_watch_is_kept() {
    let pki = Pki::temporary().unwrap();
    let mut rig = Rig::new(&pki, paged(100)).await;
    let session = session_of(&rig.connector).await;
    rig.copy.until(&session, Seen::Resumed).await;
    let quiet = tokio::time::timeout(timing().liveness * 3, rig.copy.list_watch.step(&session)).await;
    assert!(quiet.is_err(), "{quiet:?}");
    put(&rig.etcd.client(), &format!("{PREFIX}000000"), "new").await;
    assert_eq!(rig.copy.step(&session).await.unwrap(), Seen::Events);
    assert_eq!(rig.proxy.open(), 1);
}

/// A consumer that did not look for longer than `liveness` does not take that for the etcd's silence.
#[tokio::test]
async fn a_consumer_that_was_away_keeps_its_session() {
    let pki = Pki::temporary().unwrap();
    let mut rig = Rig::new(&pki, paged(100)).await;
    let session = session_of(&rig.connector).await;
    rig.copy.until(&session, Seen::Resumed).await;
    tokio::time::sleep(timing().liveness * 2).await;
    let still = tokio::time::timeout(timing().progress_interval * 2, rig.copy.list_watch.step(&session)).await;
    assert!(still.is_err(), "{still:?}");
    put(&rig.etcd.client(), &format!("{PREFIX}000000"), "new").await;
    assert_eq!(rig.copy.step(&session).await.unwrap(), Seen::Events);
}

/// A graceful restart is no end (E14).
#[tokio::test]
async fn e14_a_graceful_restart_is_got_over() {
    let pki = Pki::temporary().unwrap();
    let mut rig = Rig::new(&pki, paged(100)).await;
    let session = session_of(&rig.connector).await;
    rig.copy.until(&session, Seen::Resumed).await;
    rig.etcd.terminate().unwrap();
    assert!(rig.copy.until_over(&session).await.is_retryable());
    rig.etcd.restart().await.unwrap();
    put(&rig.etcd.client(), &format!("{PREFIX}000000"), "new").await;
    rig.catch_up().await;
    assert_eq!(rig.copy.lists(), 0);
}

/// Etcd cuts what is above 2 MiB into fragments; revisions are handed out whole.
#[tokio::test]
async fn fragments_of_a_catch_up_are_joined() {
    let pki = Pki::temporary().unwrap();
    let mut rig = Rig::new(&pki, paged(100)).await;
    let client = rig.etcd.client();
    // Twenty revisions of a hundred keys, 1.2 MB each.
    for round in 0..20 {
        fill(&client, 5_000 + round * 100, 100, &"x".repeat(12_000)).await;
    }
    let expected = contents(&client).await;
    let session = session_of(&rig.connector).await;
    let mut events = 0;
    while rig.copy.published != expected {
        let before = rig.copy.published.len();
        if rig.copy.step(&session).await.unwrap() == Seen::Events {
            let new = rig.copy.published.len() - before;
            assert_eq!(new % 100, 0, "whole revisions");
            events += new;
        }
    }
    assert_eq!((events, rig.copy.lists()), (2_000, 0));
}

/// The same etcd cluster ID, but an older store: restored from a backup (R6).
#[tokio::test]
async fn r06_a_restored_backup_is_listed_again() {
    let pki = Pki::temporary().unwrap();
    let home = tempfile::tempdir().unwrap();
    let options = EtcdOptions::mtls("alpha", &pki).unwrap().data_in(home.path());
    let etcd = EtcdServer::start(options).await.unwrap();
    let mut rig = Rig::of(etcd, paged(100), timing()).await;
    let backup = tempfile::tempdir().unwrap();
    let data = std::fs::read_dir(home.path()).unwrap().next().unwrap().unwrap().path();
    let copy_over = |from: &std::path::Path, to: &std::path::Path| {
        let copied = std::process::Command::new("cp").arg("-a").arg(from.join(".")).arg(to).status().unwrap();
        assert!(copied.success());
    };
    rig.etcd.kill().unwrap();
    copy_over(&data, backup.path());
    rig.etcd.restart().await.unwrap();
    for n in 0..50 {
        put(&rig.etcd.client(), &format!("{PREFIX}lost/{n}"), "x").await;
    }
    rig.catch_up().await;
    let id = connect(rig.etcd.config()).await.etcd_cluster_id();

    rig.etcd.kill().unwrap();
    for entry in std::fs::read_dir(&data).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { std::fs::remove_dir_all(path).unwrap() } else { std::fs::remove_file(path).unwrap() }
    }
    copy_over(backup.path(), &data);
    rig.etcd.restart().await.unwrap();
    assert_eq!(connect(rig.etcd.config()).await.etcd_cluster_id(), id, "it claims to be the same");
    rig.copy.seen.clear();
    put(&rig.etcd.client(), &format!("{PREFIX}added"), "x").await;
    delete(&rig.etcd.client(), &format!("{PREFIX}000000")).await;
    rig.catch_up().await;
    assert_eq!((rig.copy.lists(), rig.copy.count(&Seen::Resumed)), (1, 0), "{:?}", rig.copy.seen);
    // And goes on as usual.
    rig.proxy.cut();
    put(&rig.etcd.client(), &format!("{PREFIX}000001"), "new").await;
    rig.catch_up().await;
    assert_eq!((rig.copy.lists(), rig.copy.count(&Seen::Resumed)), (1, 1), "{:?}", rig.copy.seen);
}

/// A member without a leader ends the watch instead of keeping it open and silent, and says so at connecting, too (E5).
#[tokio::test]
async fn e05_a_member_without_a_quorum_is_left() {
    let mut etcd = EtcdCluster::start(3, &EtcdOptions::plain("alpha").in_memory()).await.unwrap();
    let client = etcd.members()[0].client();
    fill(&client, 0, 100, "old").await;
    let timing = Timing { liveness: DEADLINE, ..timing() };
    let connector = Connector::new(etcd.config(), timing);
    let session = session_of(&connector).await;
    assert_eq!(session.endpoint(), etcd.members()[0].client_url());
    let mut copy = Copy::paged(10);
    copy.until(&session, Seen::Listed).await;
    put(&client, &format!("{PREFIX}000000"), "new").await;
    copy.until(&session, Seen::Events).await;
    // It lives on, alone.
    etcd.member(1).stop().unwrap();
    etcd.member(2).stop().unwrap();
    assert_eq!(copy.until_over(&session).await.reason(), "unavailable");
    let error = connector.connect(&|_, _| {}).await.unwrap_err();
    assert!(error.attempts().iter().any(|(_, failure)| failure.reason == "unavailable"), "{error}");
    assert!(error.is_retryable());
    // It is alone and stopped, and the majority goes on.
    etcd.member(0).stop().unwrap();
    etcd.member(1).cont().unwrap();
    etcd.member(2).cont().unwrap();
    let other = etcd.members()[1].client();
    let written = async || other.kv_client().put(format!("{PREFIX}000001"), "new", None).await.is_ok();
    eventually("the majority takes writes", DEADLINE, written).await;
    copy.until_holds(&connector, &contents(&other).await).await;
    assert_eq!(copy.lists(), 1, "revisions of members are comparable: {:?}", copy.seen);
}
