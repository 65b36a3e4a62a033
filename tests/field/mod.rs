//! x
mod access;
mod certificates;
mod play;
mod replicas;
mod rounds;
mod soak;
mod stages;
