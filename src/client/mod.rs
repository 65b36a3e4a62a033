//! The other end of the API: connections, and subscriptions that keep what they are told. For the command line, the demo,
//! the tests and the benches; knows the protocol and the checksum, and nothing else of the gateway.

mod connect;
mod fold;
mod state;
mod subscription;
mod trouble;

pub use connect::{ClientOptions, ClientSecurity, MeshClient, connect};
pub use fold::{Change, Cluster, Entry, Fold, FoldError, Mesh, Update};
pub use state::StateError;
pub use subscription::{Event, Subscription, SubscriptionOptions};
pub use trouble::ClientError;
