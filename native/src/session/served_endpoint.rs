//! One socket that the engine serves.

use bytes::Bytes;
use tokio::runtime::Handle;

use crate::quic::endpoint::Endpoint;
use crate::quic::tls::Identity;

/// One socket and who we are on it.
pub(super) struct ServedEndpoint {
    pub(super) number: u64,
    pub(super) endpoint: Endpoint,
    pub(super) thread: Handle,
    pub(super) identity: Identity,
    pub(super) hello: Bytes,
    pub(super) bulk: bool,
}
