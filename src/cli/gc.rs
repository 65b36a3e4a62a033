//! `meshgate gc`: one collection of identities that nobody uses and of locks that nobody gives up, in two rounds, or what it
//! would collect.

use std::process::ExitCode;
use std::time::Duration;

use anstream::println;
use anstyle::Style;
use anyhow::Context;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::{FAILURE, USAGE, block_on, fail};
use crate::allocator::backend::{Backend, MasterRecord};
use crate::allocator::etcd::{EtcdBackend, EtcdTerms, SessionKeeper, Store};
use crate::allocator::{GcSettings, IdentityGc, Key, LockGc, NumberRange, Paths};
use crate::config::{Config, Environment, Flags};
use crate::identity::IdentityRange;
use crate::kvstore::EtcdConfig;
use crate::mirror::layout::STATE_PREFIX;

const BOLD: Style = Style::new().bold();
const DIMMED: Style = Style::new().dimmed();

/// Collects the identities of this cluster that nobody refers to, and locks that nobody gives up: looks, waits, looks again,
/// and deletes what is still unused, or held, and was not touched in between. Takes the same settings as `meshgate run`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Only print what would be deleted, and why
    #[arg(long)]
    dry_run: bool,
    /// Time between the two looks; an identity that is taken into use within it stays, and so does a lock that is younger
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = humantime::parse_duration)]
    wait: Duration,
    #[command(flatten)]
    flags: Flags,
}

/// Exit codes: 0 done, 1 failed, 2 wrong configuration.
pub(super) fn run(args: Args) -> ExitCode {
    let config = match Config::load(args.flags, &Environment::of_process()) {
        Ok(config) => config,
        Err(error) => return fail(USAGE, &error),
    };
    block_on(async {
        match collect(&config, args.dry_run, args.wait).await {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => fail(FAILURE, &format_args!("{error:#}")),
        }
    })
}

async fn collect(config: &Config, dry_run: bool, wait: Duration) -> anyhow::Result<()> {
    let numbers = NumberRange::try_from(IdentityRange::of(config.cluster.id, config.cluster.width))?;
    let etcd = EtcdConfig::from_yaml_file(&config.stores.local)?;
    let (keeper, sessions) = SessionKeeper::new(etcd, config.stores.timing.clone());
    let _keeper = AbortOnDropHandle::new(tokio::spawn(keeper.run(CancellationToken::new())));
    let store = Store::new(sessions, config.stores.timing.call);
    // Collecting writes no reference, so the node's name does not matter.
    let backend = EtcdBackend::new(store, Paths::new(STATE_PREFIX, "gc")?, numbers, EtcdTerms::default());

    let mut gc = IdentityGc::new(GcSettings { numbers, times: config.allocating.gc });
    let first = gc.round(&backend).await.context("cannot read the identities")?;
    println!("{BOLD}{} identities of {}, {} unused{BOLD:#}", first.alive, config.cluster.name, first.marked.len());
    let held = backend.locks().await.context("cannot read the locks")?;
    if !held.is_empty() {
        println!("{BOLD}{} locks held{BOLD:#}", held.len());
    }
    if dry_run {
        for record in &first.marked {
            println!(
                "would delete {}  {DIMMED}{}{DIMMED:#}  {}",
                record.number,
                why(&backend, record).await,
                record.labels
            );
        }
        for lock in &held {
            let wait = humantime::format_duration(wait);
            println!("would delete {}  {DIMMED}if it is unchanged in {wait}{DIMMED:#}", lock.path);
        }
        return Ok(());
    }
    if first.marked.is_empty() && held.is_empty() {
        return Ok(());
    }
    let mut locks = LockGc::default();
    locks.round(&backend).await.context("cannot read the locks")?;
    println!("{DIMMED}looking again in {}{DIMMED:#}", humantime::format_duration(wait));
    sleep(wait).await;
    let second = gc.round(&backend).await.context("cannot read the identities")?;
    for record in &second.removed {
        println!("deleted {}  {}", record.number, record.labels);
    }
    println!("{BOLD}{} deleted, {} stay{BOLD:#}", second.removed.len(), second.alive);
    let locks = locks.round(&backend).await.context("cannot read the locks")?;
    for lock in &locks.removed {
        println!("deleted {}", lock.path);
    }
    if !held.is_empty() {
        println!("{BOLD}{} locks deleted, {} stay{BOLD:#}", locks.removed.len(), locks.alive);
    }
    Ok(())
}

async fn why(backend: &EtcdBackend, record: &MasterRecord) -> String {
    let Ok(key) = Key::parse(&record.labels) else { return "nobody refers to it".to_owned() };
    match backend.get(&key, None).await {
        Ok(Some(other)) => format!("its labels are in use as {other}"),
        Ok(None) => "nobody refers to it".to_owned(),
        Err(error) => format!("nobody refers to it ({error})"),
    }
}
