//! Five peers, continuous change, and one random fault after the other from a printed seed. After each of them every
//! subscriber's map, the view and the stores agree, nothing was removed that was there all along, and nobody else noticed.
//!
//! `MESHGATE_SOAK` says for how long (`docs/testing.md`); without it there are a few faults only.

mod changes;
mod faults;
mod gateway;
mod mesh;
mod peer;
mod subscriber;
mod tally;

use std::time::Duration;

use tokio::time::Instant;

use self::faults::Fault;
use self::mesh::Mesh;
pub use self::tally::Resources;
use self::tally::Tally;

/// Faults without `MESHGATE_SOAK`.
const FEW: usize = 10;
/// The longest that a fault lasts: below and above every deadline of the gateway's.
const SHORT: Duration = Duration::from_millis(1_500);
const LONG: Duration = Duration::from_secs(8);

#[derive(Clone, Copy, Debug)]
enum Until {
    Faults(usize),
    Time(Instant),
}

impl Until {
    fn over(self, faults: usize) -> bool {
        match self {
            Self::Faults(enough) => faults >= enough,
            Self::Time(end) => Instant::now() >= end,
        }
    }
}

fn seed() -> u64 {
    std::env::var("MESHGATE_SEED")
        .map_or_else(|_| fastrand::u64(..1_000_000_000), |text| text.parse().expect("MESHGATE_SEED is a number"))
}

#[tokio::test(flavor = "multi_thread")]
async fn every_subscriber_agrees_after_every_fault() {
    let seed = seed();
    let time = std::env::var("MESHGATE_SOAK").ok();
    let time = time.map(|text| humantime::parse_duration(&text).expect("MESHGATE_SOAK is a time, such as 30m"));
    eprintln!("soak with MESHGATE_SEED={seed}");
    let mut dice = fastrand::Rng::with_seed(seed);
    let mut mesh = Box::pin(Mesh::start(seed)).await;
    let longest = if time.is_some() { LONG } else { SHORT };
    let until = time.map_or(Until::Faults(FEW), |time| Until::Time(Instant::now() + time));
    let began = Instant::now();
    let (mut tally, mut count, mut deck) = (Tally::default(), 0, Vec::new());
    let (mut before, mut rounds) = (mesh.resources().await, 0);
    while !until.over(count) {
        if deck.is_empty() {
            // Every kind once, in another order each time.
            deck.extend(Fault::ALL);
            dice.shuffle(&mut deck);
            // Caches and pools are warm behind the first round of all.
            if rounds < 2 {
                before = mesh.resources().await;
            }
            rounds += 1;
        }
        let Some(fault) = deck.pop() else { continue };
        let suitable: Vec<usize> = (0..mesh.peers.len()).filter(|at| fault.suits(&mesh.peers[*at])).collect();
        let at = dice.choice(suitable).expect("each fault suits a peer");
        let hold = Duration::from_millis(dice.u64(200..u64::try_from(longest.as_millis()).unwrap()));
        let mut faults = vec![fault];
        // One in four comes with others, at the same peer and without a pause to get over it.
        if dice.u8(..4) == 0 {
            faults.extend(
                dice.choose_multiple(Fault::ALL, 2)
                    .into_iter()
                    .filter(|next| next.suits(&mesh.peers[at]) && *next != Fault::FileRewritten),
            );
        }
        count += 1;
        let names: Vec<_> = faults.iter().map(|fault| fault.name()).collect();
        let (name, seconds) = (mesh.peers[at].name(), began.elapsed().as_secs_f64());
        eprintln!("{seconds:>7.1} s  {count:>4}  {} at {name}, {hold:?}", names.join(" + "));
        let took = mesh.round(&faults, at, hold, &mut dice).await;
        tally.add(if faults.len() == 1 { fault.name() } else { "several in a row" }, took);
        if count.is_multiple_of(50) {
            eprintln!("{}", mesh.resources().await);
        }
    }
    eprintln!("\n{count} faults in {:.0?}, MESHGATE_SEED={seed}\n{tally}", began.elapsed());
    let after = mesh.settled_resources(&before).await;
    eprintln!("before: {before}\nafter:  {after}");
    // In a short one the history for those that come back was empty before.
    after.assert_not_above(&before, if rounds < 2 { 8 << 20 } else { 2 << 20 });
    mesh.stop().await;
}
