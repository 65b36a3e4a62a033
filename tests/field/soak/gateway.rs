//! A real gateway on a runtime of its own, so that its tasks can be counted.

use std::path::Path;
use std::time::Duration;

use clap::{Args as _, FromArgMatches as _};
use meshgate::config::{Config, Environment, Flags};
use meshgate::gateway::{Gateway as Starter, Running};
use meshgate::kvstore::Timing;
use tokio::runtime::Runtime;
use tokio::time::timeout;

use crate::support::DEADLINE;

/// The gateway. Dropping it ends it at once.
pub struct Gateway {
    runtime: Option<Runtime>,
    running: Option<Running>,
}

impl Gateway {
    pub async fn start(own: &Path, peers: &Path) -> Self {
        let flags = [
            ("cluster-name", "own"),
            ("cluster-id", "1"),
            ("listen", "127.0.0.1:0"),
            ("http-listen", "127.0.0.1:0"),
            ("kvstore-opt", &format!("etcd.config={}", own.display())),
            ("clustermesh-config", &peers.display().to_string()),
            ("peer-rescan-interval", "100ms"),
            ("audit-interval", "5s"),
            ("heartbeat-timeout", "5s"),
            // Full after the first round of faults: from then on memory must not grow.
            ("resume-history-age", "10s"),
            // Several pages a list.
            ("list-page-size", "64"),
        ];
        let mut flags: Vec<String> = flags.iter().map(|(flag, value)| format!("--{flag}={value}")).collect();
        flags.push("--plaintext".to_owned());
        let command = Flags::augment_args(clap::Command::new("run").no_binary_name(true));
        let matches = command.try_get_matches_from(flags).unwrap();
        let mut config = Config::load(Flags::from_arg_matches(&matches).unwrap(), &Environment::default()).unwrap();
        // Shorter than any operator would want them, longer than a busy machine's hiccups.
        config.stores.timing = Timing {
            dial: Duration::from_secs(2),
            call: Duration::from_secs(4),
            page: Duration::from_secs(4),
            watch_created: Duration::from_secs(4),
            progress_interval: Duration::from_secs(1),
            liveness: Duration::from_secs(4),
            backoff_base: Duration::from_millis(20),
            backoff_max: Duration::from_millis(500),
            ..config.stores.timing
        };
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let running = runtime.spawn(Starter::start(config)).await.unwrap().unwrap();
        Self { runtime: Some(runtime), running: Some(running) }
    }

    pub fn running(&self) -> &Running {
        self.running.as_ref().unwrap()
    }

    pub fn tasks(&self) -> usize {
        self.runtime.as_ref().unwrap().metrics().num_alive_tasks()
    }

    /// Stops it; nothing of it is left then.
    pub async fn stop(mut self) {
        let mut running = self.running.take().unwrap();
        running.shutdown();
        timeout(DEADLINE, running.done()).await.expect("it ends in time").unwrap();
        drop(running);
        let tasks = || async { self.tasks() == 0 };
        crate::support::eventually("no task is left", DEADLINE, tasks).await;
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        drop(self.running.take());
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}
