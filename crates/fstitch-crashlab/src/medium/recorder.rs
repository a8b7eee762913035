//! A device that remembers everything that is done to it.

use std::sync::Mutex;

use fstitch_core::lock::Unpoisoned;
use fstitch_core::{BlockDevice, BlockNo, BlockRead, BlockWrite, Geometry, IoOp, Result};

use super::image::check_request;
use super::log::{Event, Log, Mark, RequestNo};

/// Passes everything on to another device and logs it.
pub struct Recorder<D> {
    device: D,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    log: Log,
    next: u32,
}

impl State {
    fn request(&mut self) -> RequestNo {
        self.next += 1;
        RequestNo(self.next - 1)
    }
}

impl<D: BlockDevice> Recorder<D> {
    /// Records what is done to `device` from now on.
    #[must_use]
    pub fn new(device: D) -> Self {
        let state = State { log: Log::new(device.geometry()), next: 0 };
        Self { device, state: Mutex::new(state) }
    }

    /// Sets a mark.
    pub fn mark(&self, mark: Mark) {
        self.state().log.events.push(Event::Mark(mark));
    }

    /// The log so far; recording goes on with an empty one.
    #[must_use]
    pub fn take(&self) -> Log {
        let geometry = self.device.geometry();
        std::mem::replace(&mut self.state().log, Log::new(geometry))
    }

    /// The device below.
    pub fn device(&self) -> &D {
        &self.device
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unpoisoned()
    }

    fn issue(&self, writes: &[BlockWrite<'_>]) -> Vec<RequestNo> {
        let mut state = self.state();
        writes
            .iter()
            .map(|write| {
                let request = state.request();
                state.log.events.push(Event::Write {
                    request,
                    block: write.block.get(),
                    kind: write.kind,
                    data: write.data.into(),
                    fua: false,
                });
                request
            })
            .collect()
    }

    fn acknowledge(&self, requests: &[RequestNo]) {
        self.state().log.events.extend(requests.iter().map(|&request| Event::Ack(request)));
    }
}

impl<D: BlockDevice> BlockDevice for Recorder<D> {
    fn geometry(&self) -> Geometry {
        self.device.geometry()
    }

    fn read(&self, reads: &mut [BlockRead<'_>]) -> Result<()> {
        self.device.read(reads)
    }

    fn write(&self, writes: &[BlockWrite<'_>]) -> Result<()> {
        // What the device refuses without touching anything is no part of its history.
        let geometry = self.device.geometry();
        for write in writes {
            check_request(geometry, IoOp::Write, write.block, write.data.len())?;
        }
        let requests = self.issue(writes);
        // A failed batch stays unacknowledged: each block may hold the old or the new version.
        self.device.write(writes)?;
        self.acknowledge(&requests);
        Ok(())
    }

    fn flush(&self) -> Result<()> {
        let request = {
            let mut state = self.state();
            let request = state.request();
            state.log.events.push(Event::FlushIssued(request));
            request
        };
        let outcome = self.device.flush();
        let event = if outcome.is_ok() { Event::FlushAcked(request) } else { Event::FlushFailed(request) };
        self.state().log.events.push(event);
        outcome
    }

    fn discard(&self, start: BlockNo, count: u64) -> Result<()> {
        if start.get().checked_add(count).is_none_or(|end| end > self.device.geometry().block_count) {
            return self.device.discard(start, count);
        }
        let request = {
            let mut state = self.state();
            let request = state.request();
            state.log.events.push(Event::Discard { request, start: start.get(), count });
            request
        };
        self.device.discard(start, count)?;
        self.acknowledge(&[request]);
        Ok(())
    }

    fn intact(&self) -> Result<()> {
        self.device.intact()
    }
}
