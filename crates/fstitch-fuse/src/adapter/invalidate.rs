//! Telling the kernel about changes that it does not notice by itself.

use std::sync::{Arc, OnceLock};

use fuser::{INodeNo, Notifier};

/// The way to the kernel, once it is there. Only helpers may use it: a worker that waits for the kernel, which
/// may wait for that worker, would wait for ever.
#[derive(Clone, Debug, Default)]
pub(crate) struct Invalidations {
    notifier: Arc<OnceLock<Notifier>>,
}

impl Invalidations {
    pub(crate) fn connect(&self, notifier: Notifier) {
        // A second notifier would lead to the same kernel.
        self.notifier.get_or_init(|| notifier);
    }

    /// Has the kernel fetch the attributes of `node` again; its pages stay.
    pub(super) fn attributes(&self, node: INodeNo) {
        let Some(notifier) = self.notifier.get() else { return };
        if let Err(e) = notifier.inval_inode(node, -1, 0) {
            tracing::debug!("invalidating inode {}: {e}", node.0);
        }
    }
}
