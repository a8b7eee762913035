//! Requests through `/dev/fuse`.

use std::io::{IoSlice, Result};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::io::Errno as Os;
use zerocopy::{FromBytes, IntoBytes};

use super::{Server, TRANSFER_MAX, dispatch};
use crate::wire::{InHeader, Node, OutHeader, Reply, Route, fixed_len};

/// What a worker reads into: the longest write and what is before it.
const MESSAGE_MAX: usize = TRANSFER_MAX + 4096;

/// The number of the notice that has attributes fetched again.
const INVALIDATE_INODE: i32 = 2;
/// The number of the notice that has a name looked up again.
const INVALIDATE_ENTRY: i32 = 3;

/// The connection to the kernel.
#[derive(Debug)]
pub(crate) struct Device(OwnedFd);

/// Back through the device.
#[derive(Debug)]
pub(crate) struct DeviceRoute(Arc<Device>);

impl Device {
    pub(super) fn new(device: OwnedFd) -> Self {
        Self(device)
    }

    /// Waits for the next message; `None` when the mount is gone.
    pub(super) fn receive(&self, memory: &mut [u8]) -> Result<Option<usize>> {
        loop {
            match rustix::io::read(&self.0, &mut *memory) {
                Ok(len) => return Ok(Some(len)),
                // A request that was withdrawn while it was being read.
                Err(Os::NOENT | Os::INTR | Os::AGAIN) => {}
                Err(Os::NODEV) => return Ok(None),
                Err(error) => return Err(error.into()),
            }
        }
    }

    pub(super) fn send(&self, unique: u64, error: i32, parts: [&[u8]; 2]) -> Result<()> {
        let len = size_of::<OutHeader>() + parts[0].len() + parts[1].len();
        let len = u32::try_from(len).expect("messages are far shorter than 4 GiB");
        let header = OutHeader { len, error, unique };
        let slices = [header.as_bytes(), parts[0], parts[1]].map(IoSlice::new);
        let used = 1 + usize::from(!parts[0].is_empty()) + usize::from(!parts[1].is_empty());
        rustix::io::writev(&self.0, &slices[..used])?;
        Ok(())
    }

    /// Has the kernel fetch the attributes of `node` again; its pages stay.
    pub(crate) fn invalidate_attributes(&self, node: Node) -> Result<()> {
        self.invalidate(node, -1)
    }

    /// Has it drop the pages of `node` as well; dirty ones arrive before.
    pub(crate) fn invalidate_contents(&self, node: Node) -> Result<()> {
        self.invalidate(node, 0)
    }

    /// Has it look `name` up again in `parent`.
    pub(crate) fn invalidate_name(&self, parent: Node, name: &[u8]) -> Result<()> {
        let len = u32::try_from(name.len()).map_err(std::io::Error::other)?;
        let mut notice = Vec::from(parent.0.to_ne_bytes());
        notice.extend(len.to_ne_bytes());
        notice.extend(0_u32.to_ne_bytes());
        notice.extend(name);
        notice.push(0);
        self.send(0, INVALIDATE_ENTRY, [&notice, &[]])
    }

    /// `offset`: where pages are dropped from, to the end; nowhere if it is negative.
    fn invalidate(&self, node: Node, offset: i64) -> Result<()> {
        let len = 0_i64;
        let mut notice = Vec::from(node.0.to_ne_bytes());
        notice.extend(offset.to_ne_bytes());
        notice.extend(len.to_ne_bytes());
        self.send(0, INVALIDATE_INODE, [&notice, &[]])
    }

    pub(super) fn as_fd(&self) -> &OwnedFd {
        &self.0
    }
}

impl DeviceRoute {
    pub(super) fn to(device: &Arc<Device>) -> Self {
        Self(Arc::clone(device))
    }

    pub(crate) fn send(self, unique: u64, error: i32, parts: [&[u8]; 2]) {
        if let Err(failure) = self.0.send(unique, error, parts) {
            // Usually the request was withdrawn meanwhile.
            tracing::debug!("answering request {unique}: {failure}");
        }
    }
}

/// Serves until the mount is gone, or until after a request `leaves` says so.
pub(super) fn serve(device: &Arc<Device>, server: &dyn Server, leaves: impl Fn() -> bool) -> Result<()> {
    let mut memory = vec![0; MESSAGE_MAX];
    while let Some(len) = device.receive(&mut memory)? {
        let Ok((header, _)) = InHeader::read_from_prefix(&memory[..len]) else {
            return Err(std::io::Error::other(format!("a message of {len} bytes")));
        };
        let head = size_of::<InHeader>();
        let fixed = fixed_len(header.opcode).min(len - head);
        let (before, rest) = memory.split_at_mut(head + fixed);
        let reply = Reply::new(header.unique, Route::Device(DeviceRoute::to(device)));
        dispatch(server, header, (&before[head..], rest, len - head - fixed), reply);
        if leaves() {
            break;
        }
    }
    Ok(())
}
