//! Pictures of peers on disk: what was last known of each, so that a restart loses nothing (static stability).
//!
//! [`encode`] and [`decode`] know the bytes and nothing else; [`PictureStore`] knows the directory and its files. Who keeps
//! what and when is decided in [`crate::peer`]. Knows only `identity` and `view`.
//!
//! Whoever can write to the directory can say anything in a peer's name: it is the gateway's alone, as its keys are.

mod bytes;
mod format;
mod store;
#[cfg(test)]
mod tests;

pub use format::{Fit, FormatError, Picture, decode, encode};
pub use store::{LoadError, OpenError, PictureStore};
