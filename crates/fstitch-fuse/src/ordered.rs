//! Who uses ordered fsync on a mount: what `status` shows.

use std::sync::Arc;
use std::time::Duration;

use crate::scopes::Scopes;

/// Tells who uses ordered fsync, also while the mount is served.
#[derive(Clone)]
pub struct OrderedFsync {
    pub(crate) scopes: Arc<Scopes>,
}

/// A process whose `fsync` only orders.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct OrderedProcess {
    /// Its number, as this process sees it.
    pub pid: u32,
    /// How often its changes are made stable; `None`: when the file system does that by itself.
    pub durable_every: Option<Duration>,
}

impl OrderedFsync {
    /// Whether the mount was made with `fsync=ordered`; then everybody uses it, and nobody is listed.
    #[must_use]
    pub fn is_everybody(&self) -> bool {
        self.scopes.orders_everybody()
    }

    /// The processes that asked for it, or inherited it and were seen, by number.
    #[must_use]
    pub fn processes(&self) -> Vec<OrderedProcess> {
        let users = self.scopes.users().into_iter();
        users.map(|(pid, durable_every)| OrderedProcess { pid, durable_every }).collect()
    }
}

impl std::fmt::Debug for OrderedFsync {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OrderedFsync").field("is_everybody", &self.is_everybody()).finish_non_exhaustive()
    }
}
