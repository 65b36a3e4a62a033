//! x
mod play;
mod replicas;
mod rounds;
mod soak;
mod stages;
