//! Telling the kernel about changes that it does not notice by itself.

use std::sync::{Arc, OnceLock, Weak};

use fstitch_core::InodeNo;

use super::convert::View;
use super::core::Core;
use crate::transport::Device;
use crate::wire::Node;

/// The way to the kernel, once it is there. Only helpers may use it: a worker that waits for the kernel, which
/// may wait for that worker, would wait for ever.
#[derive(Clone, Debug, Default)]
pub(crate) struct Invalidations {
    device: Arc<OnceLock<Arc<Device>>>,
}

impl Invalidations {
    pub(crate) fn connect(&self, device: Arc<Device>) {
        // A second one would lead to the same kernel.
        self.device.get_or_init(|| device);
    }

    /// Has the kernel fetch the attributes of `node` again; its pages stay.
    pub(super) fn attributes(&self, node: Node) {
        self.tell(node, Device::invalidate_attributes);
    }

    /// Has it fetch the contents again, too.
    pub(super) fn contents(&self, node: Node) {
        self.tell(node, Device::invalidate_contents);
    }

    /// Has it look a name up again.
    fn name(&self, parent: Node, name: &[u8]) {
        self.tell(parent, |device, parent| device.invalidate_name(parent, name));
    }

    fn tell(&self, node: Node, tell: impl FnOnce(&Device, Node) -> std::io::Result<()>) {
        let Some(device) = self.device.get() else { return };
        if let Err(e) = tell(device, node) {
            tracing::debug!("invalidating inode {}: {e}", node.0);
        }
    }
}

/// Tells the kernel that what it remembers is not so any more, for a file system that has changed behind its back. Each call may wait until
/// requests have been answered that are under way: a thread that answers them must not make it. It does not keep the file system open.
#[derive(Clone)]
pub struct Invalidator {
    pub(super) invalidations: Invalidations,
    pub(super) view: View,
    pub(super) core: Weak<Core>,
}

impl Invalidator {
    /// Contents and attributes of `ino` are fetched again.
    pub fn inode(&self, ino: InodeNo) {
        if let Some(core) = self.core.upgrade() {
            core.without_capability.forget(ino);
        }
        self.invalidations.contents(self.view.node(ino));
    }

    /// `name` is looked up again in `parent`, whether it was there or not.
    pub fn name(&self, parent: InodeNo, name: &[u8]) {
        self.invalidations.name(self.view.node(parent), name);
    }
}

impl std::fmt::Debug for Invalidator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Invalidator")
    }
}
