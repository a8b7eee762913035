//! Opening: whose writes the maps are of, and what a crash has left.

use std::collections::BTreeSet;
use std::sync::Arc;

use fstitch_core::lock::Unpoisoned;
use fstitch_core::num::to_u64;
use fstitch_core::{BlockDevice, BlockKind, BlockNo, Error, Result, Structure};

use super::make::{checked, empty_sums, unsealed};
use super::{Options, Shepherd, State};
use crate::map::head::Lists;
use crate::map::shape::RUN;
use crate::map::sums::{LOST, sum_of};
use crate::map::{Area, Counters, Doubt, Head, Owners, Part, Shape, Sums, head, list};
use crate::policy::Policy;

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
        let (area, mut head, policy) = known(device, area, &options)?;
        let mut opened = Opened { was_in_use: head.in_use, ..Opened::default() };
        if let Some(array) = options.disks.as_ref().filter(|_| head.in_use && !options.read_only) {
            array.make_alike()?;
        }
        opened.is_foreign = match head.seal(&area, &[]) {
            Some(seal) => !head.seals.contains(&seal),
            None if options.is_ours => false,
            None => return Err(unsealed()),
        };
        list::mend(&area)?;
        let (doubt, mut owners) = if opened.is_foreign {
            if !options.read_only {
                empty_sums(&area)?;
            }
            (Doubt::none(&area)?, Owners::load(&area).only_moved(&area))
        } else {
            (Doubt::load(&area), Owners::load(&area))
        };
        head.relocated.iter().for_each(|(_, spare)| owners.reserve(u64::from(*spare)));
        head.in_use = true;
        area.write(&[head.next_write()])?;
        let lost_said = head.lost;
        let is_foreign = opened.is_foreign;
        let is_blank = is_foreign && options.read_only;
        let sums = if is_blank { Sums::blank(options.pages_max) } else { Sums::new(options.pages_max) };
        let state = State {
            head,
            doubt,
            sums,
            owners,
            counters: Counters::load(&area),
            failed: BTreeSet::new(),
            is_foreign,
            seal_moves: false,
            lost_said,
            marks_taken: 0,
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
        {
            let _nobody_writes = shepherd.gate.write().unpoisoned();
            shepherd.examine_all(&mut opened)?;
        }
        Ok((shepherd, opened))
    }

    /// Makes sums and copies of all blocks that hold something, after [`Opened::is_foreign`].
    ///
    /// # Errors
    /// When the medium fails.
    pub fn renew(&self, blocks: &[super::Stretch], progress: super::Progress<'_>) -> Result<()> {
        self.go_over(blocks, progress)?;
        let mut state = self.state();
        state.head.seals = [state.head.seal(&self.area, &[]).ok_or_else(unsealed)?; 2];
        self.area.write(&[state.head.next_write()])?;
        state.is_foreign = false;
        Ok(())
    }

    /// Every run in doubt is looked at, and agreed again. By who has the gate.
    pub(super) fn examine_all(&self, opened: &mut Opened) -> Result<()> {
        let mut guard = self.state();
        let state = &mut *guard;
        let mut unsure = Vec::new();
        let in_doubt: Vec<u64> = state.doubt.runs().collect();
        for run in &in_doubt {
            for block in (run * RUN..((run + 1) * RUN).min(state.head.volume)).map(BlockNo) {
                unsure.extend(self.examine(state, block, opened));
            }
        }
        opened.maps_lost = state.sums.lost_pages + state.owners.lost_pages;
        drop(guard);
        // Before any of them is taken as it is: parity is of blocks that fit their sums.
        let computed: Vec<Option<Vec<u8>>> = unsure.iter().map(|unsure| self.by_parity(unsure)).collect();
        let mut right = Vec::new();
        for (unsure, computed) in unsure.into_iter().zip(computed) {
            match computed {
                Some(data) => {
                    opened.restored += u64::from(self.restore(unsure.block, &data));
                    right.push(unsure.block);
                }
                None => self.take_as_it_is(unsure, opened),
            }
        }
        self.renew_parity(&in_doubt, &right);
        self.settle_alone()
    }

    /// What a block that cannot be read holds by parity. That may be of another moment than the blocks are, so only what fits the block's sum is
    /// believed; then its group's parity is what it should be, whether the home can be written again or not. Of one that can be read it says
    /// nothing: two blocks of a group that were being written alike leave parity as it was, which then speaks for what was there before.
    fn by_parity(&self, unsure: &Unsure) -> Option<Vec<u8>> {
        if unsure.home.is_some() {
            return None;
        }
        let computed = self.computed_by_parity(unsure.block);
        computed.filter(|data| unsure.sum != 0 && unsure.sum == sum_of(&self.area.uuid, unsure.block, data))
    }

    /// One block of a run in doubt: invariant S2. What fits its last stable sum is right, be it a copy: what was flushed after that was
    /// flushed to home and copies alike, and then none of them would fit. Returns a block of which nothing fits.
    fn examine(&self, state: &mut State, block: BlockNo, opened: &mut Opened) -> Option<Unsure> {
        let sum = state.sums.get(&self.area, block);
        let spares = state.owners.of(block).to_vec();
        if (sum == 0 && spares.is_empty()) || sum == LOST {
            return None;
        }
        opened.examined += 1;
        let fits = |data: &Vec<u8>| sum == 0 || sum == sum_of(&self.area.uuid, block, data);
        // What kind of block it is nobody knows here.
        let home = self.area.read_at(block, BlockKind::Data).ok();
        let at: Vec<BlockNo> = spares.iter().map(|spare| self.area.spare(*spare)).collect();
        let copies = self.area.read_each(&at, BlockKind::Data);
        let Some(right) = [&home].into_iter().chain(&copies).flatten().find(|data| fits(data)).cloned()
        else {
            return Some(Unsure { block, sum, home, copies });
        };
        self.make_alike(state, (block, &spares), (home.as_deref(), &copies), &right, opened);
        None
    }

    /// Nothing of a block fits its sum: what was under way counts, as it is. The home first; a copy only if that cannot be read.
    fn take_as_it_is(&self, unsure: Unsure, opened: &mut Opened) {
        let Unsure { block, home, copies, .. } = unsure;
        let mut guard = self.state();
        let state = &mut *guard;
        let Some(right) = home.clone().or_else(|| copies.iter().flatten().next().cloned()) else {
            state.failed.insert(block.get() / RUN);
            return;
        };
        opened.unverified += 1;
        state.sums.set(&self.area, block, sum_of(&self.area.uuid, block, &right));
        let spares = state.owners.of(block).to_vec();
        self.make_alike(state, (block, &spares), (home.as_deref(), &copies), &right, opened);
    }

    /// Home and copies hold the same again, where they do not.
    fn make_alike(
        &self,
        state: &mut State,
        (block, spares): (BlockNo, &[u64]),
        (home, copies): (Option<&[u8]>, &[Option<Vec<u8>>]),
        right: &[u8],
        opened: &mut Opened,
    ) {
        if home != Some(right) && self.serves(block) {
            if self.area.write_each(&[block], &[right]).is_empty() {
                opened.restored += 1;
            } else {
                state.failed.insert(block.get() / RUN);
            }
        }
        for (spare, copy) in spares.iter().zip(copies) {
            // One that is given up is no copy that a scrub would look for.
            if copy.as_deref() != Some(right) {
                self.rewrite_copy(state, block, *spare, right);
            }
        }
    }
}

/// A block in doubt of which nothing fits its sum.
struct Unsure {
    block: BlockNo,
    sum: u32,
    home: Option<Vec<u8>>,
    copies: Vec<Option<Vec<u8>>>,
}

fn no_maps(area: &Area, why: &str) -> Error {
    Error::corrupt(Structure::Other("maps of the shepherd"), area.blocks.first().copied(), why)
}

/// The area with what its head says, blocks of it that are in spares, and the policy.
pub(super) fn known(
    device: Arc<dyn BlockDevice>,
    area: &[BlockNo],
    options: &Options,
) -> Result<(Area, Head, Policy)> {
    let volume = options.disks.as_ref().map(|array| array.volume());
    let area = shaped(device, area, volume)?;
    let head = Head::read(&area)?;
    let zone = options.disks.as_ref().map(|array| array.label().zone);
    if (head.volume, head.spares) != (area.shape.volume, area.shape.spares)
        || zone.is_some_and(|zone| zone != 2 * area.shape.half())
        || head.lists != Lists::of(&area)
    {
        return Err(no_maps(&area, "they are of a volume of another size"));
    }
    for (place, spare) in &head.relocated {
        let (place, spare) = (u64::from(*place), u64::from(*spare));
        if place >= area.len() || spare >= area.shape.spares {
            return Err(no_maps(&area, "a block of them is in a spare that there is not"));
        }
        area.device.put(area.at(place), Some(area.spare(spare)));
    }
    let policy = checked(&head.text(&area)?, options)?;
    Ok((area, head, policy))
}

/// The area, shaped for the volume that its heads name. The medium may have grown behind it.
fn shaped(device: Arc<dyn BlockDevice>, blocks: &[BlockNo], told: Option<u64>) -> Result<Area> {
    let geometry = device.geometry();
    if blocks.iter().any(|block| block.get() >= geometry.block_count) {
        let first = blocks.first().copied();
        return Err(Error::corrupt(
            Structure::Other("maps of the shepherd"),
            first,
            "they end behind the medium",
        ));
    }
    let shape = |volume, list| Shape::fit(geometry.block_size, volume, to_u64(blocks.len()), list);
    let mut area = Area::new(device, blocks, shape(told.unwrap_or(geometry.block_count), 0)?, [0; 16]);
    // The first head is the first block, whatever the shape is; where the second one is goes by the shape.
    let mut found = area.raw(0, Part::Head, 0).and_then(|bytes| head::named(&bytes));
    for list in [list::blocks_for(geometry.block_size, blocks), 0] {
        let Ok(shape) = shape(area.shape.volume, list) else { continue };
        area.shape = shape;
        found = found.or_else(|| head::named(&area.raw(1, Part::Head, 0)?));
    }
    let named = found.ok_or_else(|| no_maps(&area, "there is no head"))?;
    if named.volume > geometry.block_count {
        return Err(no_maps(&area, "they are of a volume that is larger than this medium"));
    }
    let list = named.lists.map_or(0, |lists| u64::from(lists.blocks));
    (area.uuid, area.shape) = (named.uuid, shape(named.volume, list)?);
    Ok(area)
}
