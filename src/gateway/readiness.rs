//! What readiness waits for, told from the status board: the own store's first sync, and, for a bounded time, the peers'.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::timeout;

use crate::telemetry::{ClusterStatus, Guard, Readiness, StatusBoard};

/// Readiness waits for the first sync of our own store, however long it takes: before it, the gateway has nothing of its
/// own cluster to say. Its loss later changes nothing: what is known stays known.
pub(super) fn await_local(readiness: &Readiness, board: &StatusBoard, cluster: &str) -> Guard {
    let (board, cluster) = (board.clone(), cluster.to_owned());
    readiness.guard_with("local-store", move || {
        board.snapshot().get(&cluster).map_or_else(|| "not begun".to_owned(), explain)
    })
}

/// Ends that wait.
pub(super) async fn local_synced(guard: Guard, board: StatusBoard, cluster: String) {
    board.wait_for(|clusters| clusters.get(&cluster).is_some_and(|status| status.synced_once)).await;
    guard.ready();
}

/// Readiness waits for the peers too, but not for ever: two gateways that wait for each other must both start.
pub(super) fn await_peers(readiness: &Readiness, board: &StatusBoard) -> Guard {
    let board = board.clone();
    readiness.guard_with("peers", move || {
        let waiting = unsettled(&board.snapshot());
        if waiting.is_empty() { "reading their directory".to_owned() } else { waiting.join(", ") }
    })
}

/// Ends that wait. `looked` becomes true when the directory was read once, so that all peers are on the board; it may never
/// (somebody removed the directory), and that is bounded as well.
pub(super) async fn peers_settled(guard: Guard, mut looked: watch::Receiver<bool>, board: StatusBoard, wait: Duration) {
    let settled = async {
        // An error says that the manager is gone, with the gateway.
        let _ = looked.wait_for(|looked| *looked).await;
        board.wait_for(|clusters| unsettled(clusters).is_empty()).await;
    };
    if timeout(wait, settled).await.is_err() {
        let waiting = unsettled(&board.snapshot());
        tracing::warn!(?wait, peers = waiting.join(", "), "going on without the first sync of these peers");
    }
    guard.ready();
}

/// Peers from which a first sync may still come. A refused one is settled: someone has to change something. So is one that is
/// shown as it was last known: there is something to say of it.
fn unsettled(clusters: &BTreeMap<String, ClusterStatus>) -> Vec<String> {
    let settled = |status: &ClusterStatus| status.synced_once || status.stale || status.state.is_hopeless();
    clusters
        .iter()
        .filter(|(_, status)| !status.local && !settled(status))
        .map(|(name, status)| format!("{name} ({})", status.state.name()))
        .collect()
}

fn explain(status: &ClusterStatus) -> String {
    let state = status.state.name();
    match &status.last_error {
        Some(error) if error.hint.is_empty() => format!("{state}: {}", error.message),
        Some(error) => format!("{state}: {}; {}", error.message, error.hint),
        None => state.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;
    use crate::telemetry::{ClusterState, LastError};

    fn set(board: &StatusBoard, cluster: &str, state: ClusterState) {
        board.update(cluster, |status| {
            status.state = state;
            status.synced_once |= state == ClusterState::Synced;
        });
    }

    #[tokio::test(start_paused = true)]
    async fn peers_are_waited_for_up_to_the_bound() {
        let (readiness, board) = (Readiness::default(), StatusBoard::default());
        board.update("here", |status| status.local = true);
        set(&board, "a", ClusterState::Synced);
        set(&board, "b", ClusterState::Refused);
        set(&board, "c", ClusterState::Connecting);
        let (wait, begin) = (Duration::from_secs(30), tokio::time::Instant::now());
        let looked = watch::Sender::new(true);
        let guard = await_peers(&readiness, &board);
        assert_eq!(readiness.report().guards[0].why, "c (connecting)");
        peers_settled(guard, looked.subscribe(), board.clone(), wait).await;
        assert_eq!(begin.elapsed(), wait);
        assert!(readiness.report().ready);

        set(&board, "c", ClusterState::Synced);
        set(&board, "c", ClusterState::Reconnecting);
        peers_settled(await_peers(&readiness, &board), looked.subscribe(), board.clone(), wait).await;
        assert_eq!(begin.elapsed(), wait, "nothing left to wait for");

        looked.send_replace(false);
        peers_settled(await_peers(&readiness, &board), looked.subscribe(), board, wait).await;
        assert_eq!(begin.elapsed(), wait * 2, "a directory that cannot be read is bounded too");
    }

    #[tokio::test]
    async fn the_local_store_is_waited_for_and_says_why() {
        let (readiness, board) = (Readiness::default(), StatusBoard::default());
        let guard = await_local(&readiness, &board, "here");
        board.update("here", |status| {
            status.state = ClusterState::Connecting;
            status.last_error = Some(LastError {
                reason: "dial",
                message: "connection refused".to_owned(),
                hint: "is etcd running?".to_owned(),
                at: SystemTime::now(),
            });
        });
        assert_eq!(readiness.report().guards[0].why, "connecting: connection refused; is etcd running?");
        let waiting = tokio::spawn(local_synced(guard, board.clone(), "here".to_owned()));
        set(&board, "here", ClusterState::Synced);
        waiting.await.expect("synced");
        set(&board, "here", ClusterState::Reconnecting);
        assert!(readiness.report().ready, "the loss of the store is no reason to take the gateway away");
    }
}
