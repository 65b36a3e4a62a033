//! The allocator on real etcds.
//!
//! What takes long at the size that proves something has a small size here and a variable for the large one. Those runs are
//! longer than the runner lets a test be, so they go without it:
//! `VARIABLE=COUNT cargo test --release --test blackbox -- --exact --nocapture allocator::FILE::TEST`.
//!
//! | variable | size of the proof | test |
//! | --- | --- | --- |
//! | `MESHGATE_CONTEST_ROUNDS` | 100,000 | `contest::a02_lock_takers_and_fast_writers_never_disagree` |
//! | `MESHGATE_GC_ROUNDS` (of each of 8 users; 1,250 without) | 10,000 | `collect::a04_collectors_never_take_a_record_that_is_in_use` |
//! | `MESHGATE_LEASE_ROUNDS` | 100,000 | `leases::g04_the_number_of_leases_stays_bounded` |
//! | `MESHGATE_WIPED_KEYS` | 10,000 | `basics::a05_a_wiped_store_is_filled_again_under_the_same_numbers` |
//! | `MESHGATE_CHAOS_SETS` | 20,000 | `chaos::one_record_for_each_label_set_whoever_dies` |
//!
//! Where a plan is random its seed is printed, and `MESHGATE_SEED` replays it.

mod basics;
mod chaos;
mod cilium;
mod collect;
mod command;
mod contest;
mod errors;
mod faults;
mod flaky;
mod leases;
mod locks;
mod outages;
mod support;
