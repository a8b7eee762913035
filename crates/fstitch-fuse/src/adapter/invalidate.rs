//! Telling the kernel about changes that it does not notice by itself.

use std::sync::{Arc, OnceLock};

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

    fn tell(&self, node: Node, tell: impl FnOnce(&Device, Node) -> std::io::Result<()>) {
        let Some(device) = self.device.get() else { return };
        if let Err(e) = tell(device, node) {
            tracing::debug!("invalidating inode {}: {e}", node.0);
        }
    }
}
