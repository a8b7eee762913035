//! Answering requests.

use fstitch_core::{Errno, waiting};
use zerocopy::IntoBytes;

use super::layout::{AttrOut, EntryOut, OpenOut, StatfsOut};
use super::request::Room;
use crate::transport::{DeviceRoute, RingRoute};

/// The obligation to answer one request, from any thread. Dropped, it answers `EIO`.
#[derive(Debug)]
pub(crate) struct Reply {
    unique: u64,
    /// `None` once it is answered.
    route: Option<Route>,
}

/// The way back to the kernel.
#[derive(Debug)]
pub(crate) enum Route {
    Device(DeviceRoute),
    Ring(RingRoute),
}

impl Reply {
    pub(crate) fn new(unique: u64, route: Route) -> Self {
        Self { unique, route: Some(route) }
    }

    fn send(&mut self, error: i32, parts: [&[u8]; 2]) {
        match self.route.take() {
            Some(Route::Device(route)) => route.send(self.unique, error, parts),
            Some(Route::Ring(route)) => route.send(self.unique, error, parts),
            None => {}
        }
    }

    /// Nobody waits for an answer to what was asked.
    pub(crate) fn unneeded(mut self) {
        self.route = None;
    }

    /// The request would have to wait, and this thread must not: its transport has it done again, from its beginning, by one
    /// that may. Only the transport whose thread refuses to wait can.
    pub(crate) fn put_off(mut self) {
        debug_assert!(waiting::refuses(), "this thread may wait");
        match self.route.take() {
            Some(Route::Ring(route)) if waiting::refuses() => route.put_off(self.unique),
            // It would be put off again for ever.
            route => self.route = route,
        }
    }

    pub(crate) fn error(mut self, error: Errno) {
        self.send(-error.0, [&[], &[]]);
    }

    pub(crate) fn ok(mut self) {
        self.send(0, [&[], &[]]);
    }

    pub(crate) fn bytes(mut self, bytes: &[u8]) {
        self.send(0, [bytes, &[]]);
    }

    /// The first `len` bytes of the room that came with the request.
    pub(crate) fn filled(mut self, room: Room<'_>, len: usize) {
        if len > room.0.len() {
            // A file system that says so is wrong; whoever asked must not wait for ever.
            return self.error(Errno::IO);
        }
        match self.route.take() {
            Some(Route::Device(route)) => route.send(self.unique, 0, [&room.0[..len], &[]]),
            Some(Route::Ring(route)) => route.send_in_place(self.unique, room, len),
            None => {}
        }
    }

    pub(crate) fn entry(self, entry: &EntryOut) {
        self.bytes(entry.as_bytes());
    }

    /// An entry that is opened at once, with flags `FOPEN_…`.
    pub(crate) fn entry_opened(mut self, entry: &EntryOut, open_flags: u32) {
        let open = OpenOut { fh: 0, open_flags, backing_id: 0 };
        self.send(0, [entry.as_bytes(), open.as_bytes()]);
    }

    pub(crate) fn attr(self, attr: &AttrOut) {
        self.bytes(attr.as_bytes());
    }

    /// Opened, with flags `FOPEN_…`.
    pub(crate) fn opened(self, open_flags: u32) {
        self.bytes(OpenOut { fh: 0, open_flags, backing_id: 0 }.as_bytes());
    }

    pub(crate) fn written(self, bytes: u32) {
        self.bytes([bytes, 0].as_bytes());
    }

    pub(crate) fn statfs(self, statfs: &StatfsOut) {
        self.bytes(statfs.as_bytes());
    }

    /// The length of an extended attribute's value, for who asked for that.
    pub(crate) fn size(self, bytes: u32) {
        self.bytes([bytes, 0].as_bytes());
    }

    pub(crate) fn offset(self, offset: u64) {
        self.bytes(offset.as_bytes());
    }

    /// What an ioctl gives back.
    pub(crate) fn ioctl(mut self, out: &[u8]) {
        self.send(0, [[0_u32; 4].as_bytes(), out]);
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        if self.route.is_some() {
            self.send(-Errno::IO.0, [&[], &[]]);
        }
    }
}
