//! Opening: whose writes the maps are of, and what a crash has left.

use std::collections::BTreeSet;
use std::sync::Arc;

use fstitch_core::num::to_u64;
use fstitch_core::{BlockDevice, BlockKind, BlockNo, Error, Result, Structure};

use super::make::{checked, empty_sums};
use super::{Options, Shepherd, State};
use crate::map::shape::RUN;
use crate::map::sums::sum_of;
use crate::map::{Area, Counters, Doubt, Head, Owners, Part, Shape, Sums, head};

/// What was found at opening.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Opened {
    /// Whether it was not closed.
    pub was_in_use: bool,
    /// Whether somebody else has written to the volume since: sums and copies did not count any more, and there are none until
    /// [`Shepherd::renew`] has made them.
    pub is_foreign: bool,
    /// Blocks that were examined.
    pub examined: u64,
    /// Of these, those that fitted no sum: written as the power went, or damaged.
    pub unverified: u64,
    /// Homes that could not be read and got their contents back from a copy.
    pub restored: u64,
    /// Blocks of the maps that were lost in both places.
    pub maps_lost: u64,
    /// Blocks that are not at home, because that could not be written.
    pub moved: u64,
    /// Of those, after somebody else has written: homes that were written since, which count.
    pub moved_at_home: Vec<BlockNo>,
    /// And those that were not, so that what was moved counts; what the other has read there was old.
    pub moved_kept: Vec<BlockNo>,
}

impl Shepherd {
    /// Opens the volume on `device` whose maps are in `area`.
    ///
    /// # Errors
    /// `Corrupt` if there are no maps, or not of this device; `Unsupported` by the name of a step; when the medium fails.
    pub fn open(device: Arc<dyn BlockDevice>, area: &[BlockNo], options: Options) -> Result<(Self, Opened)> {
        let area = shaped(device, area)?;
        let (mut head, text) = Head::read(&area)?;
        if (head.volume, head.spares) != (area.shape.volume, area.shape.spares) {
            return Err(no_maps(&area, "they are of a volume of another size"));
        }
        let policy = checked(&text, &options)?;
        let mut opened = Opened { was_in_use: head.in_use, ..Opened::default() };
        opened.is_foreign = !head.seals.contains(&head.seal(&area, &[]));
        let (doubt, owners) = if opened.is_foreign {
            empty_sums(&area)?;
            (Doubt::none(&area)?, Owners::load(&area).only_moved(&area))
        } else {
            (Doubt::load(&area), Owners::load(&area))
        };
        head.in_use = true;
        area.write(&[head.next_write()])?;
        let sums = Sums::new(options.pages_max);
        let is_foreign = opened.is_foreign;
        let state = State {
            head,
            doubt,
            sums,
            owners,
            counters: Counters::load(&area),
            failed: BTreeSet::new(),
            is_foreign,
            seal_moves: false,
        };
        let shepherd = Self::over(policy, area, options, state);
        {
            let mut state = shepherd.state();
            for (block, there) in state.owners.moved() {
                shepherd.area.device.put(block, Some(shepherd.area.spare(there.spare)));
            }
            if is_foreign {
                (opened.moved_at_home, opened.moved_kept) = shepherd.judge_moved(&mut state)?;
            }
            opened.moved = fstitch_core::num::to_u64(state.owners.moved().count());
        }
        shepherd.examine_all(&mut opened)?;
        Ok((shepherd, opened))
    }

    /// Makes sums and copies of all blocks that hold something, after [`Opened::is_foreign`].
    ///
    /// # Errors
    /// When the medium fails.
    pub fn renew(&self, blocks: &[super::Stretch], progress: super::Progress<'_>) -> Result<()> {
        self.go_over(blocks, progress)?;
        let mut state = self.state();
        let seal = state.head.seal(&self.area, &[]);
        state.head.seals = [seal; 2];
        self.area.write(&[state.head.next_write()])?;
        state.is_foreign = false;
        Ok(())
    }

    fn examine_all(&self, opened: &mut Opened) -> Result<()> {
        let mut guard = self.state();
        let state = &mut *guard;
        let mut lost = Vec::new();
        let in_doubt: Vec<u64> = state.doubt.runs().collect();
        for run in &in_doubt {
            for block in (run * RUN..((run + 1) * RUN).min(state.head.volume)).map(BlockNo) {
                if !self.examine(state, block, opened) {
                    lost.push(block);
                }
            }
        }
        opened.maps_lost = state.sums.lost_pages + state.owners.lost_pages;
        drop(guard);
        let right: Vec<BlockNo> =
            lost.into_iter().filter(|block| self.examine_by_parity(*block, opened)).collect();
        self.renew_parity(&in_doubt, &right);
        self.settle()
    }

    /// A home that cannot be read and has no copy. Parity may be of another moment than the blocks are, so only what fits the block's sum is
    /// believed; then its group's parity is what it should be, whether the home can be written again or not.
    fn examine_by_parity(&self, block: BlockNo, opened: &mut Opened) -> bool {
        let sum = self.state().sums.get(&self.area, block);
        let computed = self.from_parity(block);
        let computed = computed.filter(|data| sum != 0 && sum == sum_of(&self.area.uuid, block, data));
        let Some(data) = computed else { return false };
        opened.restored += u64::from(self.restore(block, &data));
        true
    }

    /// One block of a run in doubt: invariant S2. False if nothing can be read of it.
    fn examine(&self, state: &mut State, block: BlockNo, opened: &mut Opened) -> bool {
        let sum = state.sums.get(&self.area, block);
        let spares = state.owners.of(block).to_vec();
        if sum == 0 && spares.is_empty() {
            return true;
        }
        opened.examined += 1;
        let fits = |data: &[u8]| sum == 0 || sum == sum_of(&self.area.uuid, block, data);
        // What kind of block it is nobody knows here.
        let kind = BlockKind::Data;
        let home = self.area.read_at(block, kind).ok();
        let home_is_lost = home.is_none();
        let Some(contents) = home.or_else(|| self.best_copy(&spares, &fits)) else {
            state.failed.insert(block.get() / RUN);
            return false;
        };
        if !fits(&contents) {
            opened.unverified += 1;
            state.sums.set(&self.area, block, sum_of(&self.area.uuid, block, &contents));
        }
        if home_is_lost && self.area.write_each(&[block], std::slice::from_ref(&contents)).is_empty() {
            opened.restored += 1;
        } else if home_is_lost {
            state.failed.insert(block.get() / RUN);
        }
        let at: Vec<BlockNo> = spares.iter().map(|spare| self.area.spare(*spare)).collect();
        for no in self.area.write_each(&at, &vec![contents; at.len()]) {
            state.owners.give_up(&self.area, block, spares[no]);
        }
        true
    }

    /// A copy that fits the last stable sum, or else any that can be read: it was stable, perhaps, when its sum was not yet.
    fn best_copy(&self, spares: &[u64], fits: &dyn Fn(&[u8]) -> bool) -> Option<Vec<u8>> {
        let read = |spare: &u64| self.area.read_at(self.area.spare(*spare), BlockKind::Data).ok();
        let mut copies: Vec<Vec<u8>> = spares.iter().filter_map(read).collect();
        let best = copies.iter().position(|copy| fits(copy)).unwrap_or(0);
        (best < copies.len()).then(|| copies.swap_remove(best))
    }
}

fn no_maps(area: &Area, why: &str) -> Error {
    Error::corrupt(Structure::Other("maps of the shepherd"), area.blocks.first().copied(), why)
}

/// The area with the shape that its size gives it, of the volume that its heads name.
fn shaped(device: Arc<dyn BlockDevice>, blocks: &[BlockNo]) -> Result<Area> {
    let geometry = device.geometry();
    let shape = Shape::fit(geometry.block_size, geometry.block_count, to_u64(blocks.len()))?;
    let mut area = Area::new(device, blocks, shape, [0; 16]);
    let halves = [0, 1].map(|half| area.raw(half, Part::Head, 0));
    area.uuid = head::uuid(halves.into_iter().flatten()).ok_or_else(|| no_maps(&area, "there is no head"))?;
    Ok(area)
}
