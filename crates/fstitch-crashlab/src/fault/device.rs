//! The device that does wrong.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use fstitch_core::lock::Unpoisoned;
use fstitch_core::num::{to_u64, to_usize};
use fstitch_core::{
    BlockDevice, BlockKind, BlockNo, BlockRead, BlockWrite, Error, Geometry, IoOp, Result, Seed,
};

use super::plan::{Defect, FaultPlan, Request};
use crate::medium::{SECTOR, check_request};

/// What passes the time of a slow request: moves a clock, sleeps, or does nothing.
type Delay = Arc<dyn Fn(Duration) + Send + Sync>;

/// Requests that came, whatever became of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Requests {
    /// Blocks to be read.
    pub reads: u64,
    /// Blocks to be written.
    pub writes: u64,
    /// Flushes.
    pub flushes: u64,
    /// Discards.
    pub discards: u64,
}

/// Passes requests on to another device, but for what its plan says.
pub struct FaultDevice<D> {
    device: D,
    delay: Delay,
    /// Whether some fault needs the version before.
    remembers: bool,
    state: Mutex<State>,
}

struct State {
    plan: FaultPlan,
    /// For each fault, the requests that matched and how often it struck.
    counts: Vec<(u64, u64)>,
    dice: Seed,
    dead: bool,
    injected: BTreeMap<&'static str, u64>,
    requests: Requests,
    /// What blocks held before they were written last.
    before: BTreeMap<u64, Vec<u8>>,
}

impl<D: BlockDevice> FaultDevice<D> {
    /// A device that fails as `plan` says. Slow requests are counted, but take no time.
    #[must_use]
    pub fn new(device: D, plan: FaultPlan) -> Self {
        Self::with_delay(device, plan, Arc::new(|_| {}))
    }

    /// The same; `delay` passes the time of slow requests.
    #[must_use]
    pub fn with_delay(device: D, plan: FaultPlan, delay: Arc<dyn Fn(Duration) + Send + Sync>) -> Self {
        let remembers = plan.faults.iter().any(|fault| fault.defect == Defect::Stale);
        let state = State {
            counts: vec![(0, 0); plan.faults.len()],
            dice: Seed::new(plan.seed),
            plan,
            dead: false,
            injected: BTreeMap::new(),
            requests: Requests::default(),
            before: BTreeMap::new(),
        };
        Self { device, delay, remembers, state: Mutex::new(state) }
    }

    /// Replaces the plan; its requests are counted from now on. A dead device comes back to life.
    pub fn set_plan(&self, plan: FaultPlan) {
        let mut state = self.state();
        state.counts = vec![(0, 0); plan.faults.len()];
        state.dice = Seed::new(plan.seed);
        state.dead = false;
        state.plan = plan;
    }

    /// How often each defect struck, by its name. A dead device counts each request that it refuses.
    #[must_use]
    pub fn injected(&self) -> BTreeMap<&'static str, u64> {
        self.state().injected.clone()
    }

    /// The requests that came so far.
    #[must_use]
    pub fn requests(&self) -> Requests {
        self.state().requests
    }

    /// The device below.
    pub fn device(&self) -> &D {
        &self.device
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unpoisoned()
    }

    /// What goes wrong with a request; slowness is over when this returns.
    fn strike(&self, request: &Request) -> Option<Defect> {
        let (defect, slow) = self.state().strike(request);
        if !slow.is_zero() {
            (self.delay)(slow);
        }
        defect
    }

    fn unit(&self) -> usize {
        to_usize(self.device.geometry().block_size)
    }

    /// A block that is not this one, if there is any.
    fn elsewhere(&self, block: BlockNo) -> BlockNo {
        let blocks = self.device.geometry().block_count.max(1);
        let distance = 1 + self.state().dice.below(blocks.saturating_sub(1));
        BlockNo((block.get() + distance) % blocks)
    }

    fn flip(&self, data: &mut [u8], bits: u32) {
        let mut state = self.state();
        let len = to_u64(data.len());
        for _ in 0..bits {
            let at = BlockNo(state.dice.below(len)).index();
            data[at] ^= 1 << state.dice.below(8);
        }
    }

    /// A mixture of the old and the new sectors of a block, at least one of each. A block of one sector is torn in
    /// the middle.
    fn tear(&self, write: &BlockWrite<'_>) -> Result<Vec<u8>> {
        let mut torn = vec![0; self.unit()];
        self.device.read(&mut [BlockRead { block: write.block, kind: write.kind, data: &mut torn }])?;
        let piece = if torn.len() > SECTOR { SECTOR } else { torn.len() / 2 };
        let pieces = torn.len() / piece;
        let mut state = self.state();
        let place = |dice: &mut Seed| BlockNo(dice.below(pieces.try_into().expect("64-bit machine"))).index();
        let old = place(&mut state.dice);
        let new = (old + 1 + place(&mut state.dice) % (pieces - 1)) % pieces;
        for at in 0..pieces {
            if at == new || (at != old && state.dice.chance(1, 2)) {
                let range = at * piece..(at + 1) * piece;
                torn[range.clone()].copy_from_slice(&write.data[range]);
            }
        }
        Ok(torn)
    }

    /// Writes, having kept what was there before if some fault will ask for it.
    fn put(&self, writes: &[BlockWrite<'_>]) -> Result<()> {
        if self.remembers {
            for write in writes {
                let mut data = vec![0; self.unit()];
                self.device.read(&mut [BlockRead {
                    block: write.block,
                    kind: write.kind,
                    data: &mut data,
                }])?;
                self.state().before.insert(write.block.get(), data);
            }
        }
        if writes.is_empty() { Ok(()) } else { self.device.write(writes) }
    }

    fn get(&self, block: BlockNo, kind: BlockKind, data: &mut [u8]) -> Result<()> {
        self.device.read(&mut [BlockRead { block, kind, data }])
    }

    fn read_with(&self, defect: Option<Defect>, read: &mut BlockRead<'_>) -> Result<()> {
        let (block, kind) = (read.block, read.kind);
        match defect {
            Some(Defect::Error | Defect::Dead) => Err(failed(IoOp::Read, block)),
            Some(Defect::Misdirected) => self.get(self.elsewhere(block), kind, read.data),
            Some(Defect::Corrupted { bits }) => {
                self.get(block, kind, read.data)?;
                self.flip(read.data, bits);
                Ok(())
            }
            Some(Defect::Stale) => {
                self.get(block, kind, read.data)?;
                if let Some(before) = self.state().before.get(&block.get()) {
                    read.data.copy_from_slice(before);
                }
                Ok(())
            }
            _ => self.get(block, kind, read.data),
        }
    }

    /// Carries out a write with a defect that does not fail it.
    fn write_with(&self, defect: Defect, write: &BlockWrite<'_>) -> Result<()> {
        match defect {
            Defect::Torn => {
                let data = self.tear(write)?;
                self.put(&[BlockWrite { data: &data, ..*write }])
            }
            Defect::Misdirected => self.put(&[BlockWrite { block: self.elsewhere(write.block), ..*write }]),
            Defect::Corrupted { bits } => {
                let mut data = write.data.to_vec();
                self.flip(&mut data, bits);
                self.put(&[BlockWrite { data: &data, ..*write }])
            }
            Defect::Lost => Ok(()),
            _ => self.put(std::slice::from_ref(write)),
        }
    }
}

impl State {
    fn strike(&mut self, request: &Request) -> (Option<Defect>, Duration) {
        match request.op {
            IoOp::Read => self.requests.reads += 1,
            IoOp::Write => self.requests.writes += 1,
            IoOp::Flush => self.requests.flushes += 1,
            _ => self.requests.discards += 1,
        }
        if self.dead {
            *self.injected.entry(Defect::Dead.name()).or_default() += 1;
            return (Some(Defect::Dead), Duration::ZERO);
        }
        let (mut strike, mut slow) = (None, Duration::ZERO);
        for (fault, (matched, struck)) in self.plan.faults.iter().zip(&mut self.counts) {
            if !fault.matches(request) {
                continue;
            }
            *matched += 1;
            let is_slow = matches!(fault.defect, Defect::Slow { .. });
            if !fault.strikes(*matched, *struck) || (strike.is_some() && !is_slow) {
                continue;
            }
            *struck += 1;
            *self.injected.entry(fault.defect.name()).or_default() += 1;
            match fault.defect {
                Defect::Slow { ms } => slow += Duration::from_millis(ms),
                defect => strike = Some(defect),
            }
        }
        self.dead = strike == Some(Defect::Dead);
        (strike, slow)
    }
}

/// The error of a request that the plan lets fail.
fn failed(op: IoOp, block: BlockNo) -> Error {
    Error::io(op, block, io::Error::other("injected fault"))
}

impl<D: BlockDevice> BlockDevice for FaultDevice<D> {
    fn geometry(&self) -> Geometry {
        self.device.geometry()
    }

    fn read(&self, reads: &mut [BlockRead<'_>]) -> Result<()> {
        for read in reads {
            check_request(self.geometry(), IoOp::Read, read.block, read.data.len())?;
            let defect = self.strike(&Request::block(IoOp::Read, read.block, read.kind));
            self.read_with(defect, read)?;
        }
        Ok(())
    }

    fn write(&self, writes: &[BlockWrite<'_>]) -> Result<()> {
        let (mut plain, mut odd, mut failure) = (Vec::new(), Vec::new(), None);
        for write in writes {
            check_request(self.geometry(), IoOp::Write, write.block, write.data.len())?;
            match self.strike(&Request::block(IoOp::Write, write.block, write.kind)) {
                None => plain.push(*write),
                Some(Defect::Error | Defect::Dead) => {
                    failure.get_or_insert_with(|| failed(IoOp::Write, write.block));
                }
                Some(defect) => odd.push((defect, *write)),
            }
        }
        self.put(&plain)?;
        odd.iter().try_for_each(|(defect, write)| self.write_with(*defect, write))?;
        failure.map_or(Ok(()), Err)
    }

    fn flush(&self) -> Result<()> {
        match self.strike(&Request { op: IoOp::Flush, blocks: None, kind: None }) {
            Some(Defect::Error | Defect::Dead) => Err(failed(IoOp::Flush, BlockNo(0))),
            Some(Defect::Lying) => Ok(()),
            _ => self.device.flush(),
        }
    }

    fn discard(&self, start: BlockNo, count: u64) -> Result<()> {
        let blocks = Some((start.get(), start.get().saturating_add(count)));
        match self.strike(&Request { op: IoOp::Discard, blocks, kind: None }) {
            Some(Defect::Error | Defect::Dead) => Err(failed(IoOp::Discard, start)),
            _ => self.device.discard(start, count),
        }
    }

    fn intact(&self) -> Result<()> {
        self.device.intact()
    }
}
