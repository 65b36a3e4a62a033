//! The generated server of every method but `Subscribe`, which writes its messages itself (`subscribe::wire`).
#![allow(
    missing_docs,
    clippy::all,
    clippy::pedantic,
    clippy::allow_attributes_without_reason,
    reason = "generated; its documentation is the proto's"
)]

include!(concat!(env!("OUT_DIR"), "/server/meshgate.v1.rs"));
