//! Opening by maps that were found by a search: what the format needs to find them itself is given back to it from what they hold.
//!
//! # What is believed
//!
//! Nothing is written, and nothing that is found is believed, before all of this has been shown:
//!
//! - **R1.** The volume says itself that it follows these maps: its superblock and its inode for maps, at home or as the maps have them, name
//!   this UUID and these very blocks.
//! - **R2.** Nobody else has written since: the sealed sectors are what they were, at home if the volume's superblock is there. If it is not,
//!   they are so in the copy, and everything else of which there is a sum or a copy, and that is not in doubt, still fits it.
//! - **R3.** What is given back is what fits its sum, where there is one.
//!
//! Stale maps fail at R1 where the inode can be read, at R2 where it cannot: whoever took the policy away, made another volume, or restored an
//! image has written blocks of which they have copies. Maps that have nothing to compare are not believed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use fstitch_core::lock::Unpoisoned;
use fstitch_core::num::to_u64;
use fstitch_core::{
    BlockDevice, BlockKind, BlockNo, BlockRead, BlockWrite, Error, Geometry, IoOp, Result, Structure,
};

use super::search::Found;
use super::{Options, Remedy, Rules, Shepherd, State, run_of};
use crate::map::sums::{LOST, sum_of};
use crate::map::{Counters, Doubt, Owners, Sums};

/// Times that a volume is asked, each with more of what it could not read the last time.
const ROUNDS: usize = 8;
/// Blocks that are compared at once.
const AT_ONCE: usize = 256;

/// What a format is asked of a volume, on devices that have more and more of it.
pub trait Asked {
    /// The volume's UUID, if its superblock can be read and is one.
    ///
    /// # Errors
    /// `Corrupt` if it is none; when the medium fails.
    fn uuid(&self, device: &dyn BlockDevice) -> Result<[u8; 16]>;
    /// Whether the volume says that it follows maps in these blocks.
    ///
    /// # Errors
    /// `Corrupt` if it cannot be told; when the medium fails.
    fn follows(&self, device: &dyn BlockDevice, area: &[BlockNo]) -> Result<bool>;
    /// The UUID in a copy of the superblock that the format keeps, if there is one.
    fn uuid_of_backup(&self, device: &dyn BlockDevice) -> Option<[u8; 16]>;
}

/// For a volume at which is only looked: who judges nothing, and mends nothing.
struct Nobody;

impl Rules for Nobody {
    fn judge(&self, _: BlockKind, _: BlockNo, _: &[u8]) -> Option<String> {
        None
    }
}

impl Remedy for Nobody {
    fn full_check(&self) -> bool {
        false
    }

    fn remount(&self) -> bool {
        false
    }
}

/// What must be given back to a volume so that its format finds its maps.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rescue {
    /// Blocks that are lost at home, and what they hold.
    pub blocks: BTreeMap<BlockNo, Vec<u8>>,
    /// Homes that were compared with their sums or copies to know that nobody else has written.
    pub compared: u64,
}

fn refused(why: impl Into<String>) -> Error {
    Error::corrupt(Structure::Other("maps of the shepherd"), None, why)
}

impl Shepherd {
    /// What the maps have of those blocks of a volume without which its format does not find them. Nothing is written.
    ///
    /// # Errors
    /// `Corrupt`, saying why they are not believed; when the medium fails.
    pub fn rescue(
        device: Arc<dyn BlockDevice>,
        found: &Found,
        asked: &dyn Asked,
        progress: super::Progress<'_>,
    ) -> Result<Rescue> {
        let (rules, remedy) = (Some(Arc::new(Nobody) as _), Some(Arc::new(Nobody) as _));
        let options = Options { rules, remedy, read_only: true, ..Options::default() };
        let (area, head, policy) = super::recover::known(device, &found.area, &options)?;
        let sums = Sums::new(options.pages_max);
        let state = State {
            lost_said: head.lost,
            marks_taken: 0,
            doubt: Doubt::load(&area),
            owners: Owners::load(&area),
            counters: Counters::load(&area),
            head,
            sums,
            failed: BTreeSet::new(),
            is_foreign: false,
            seal_moves: false,
        };
        let shepherd = Self::over(policy, area, options, state);
        for (block, there) in shepherd.state().owners.moved() {
            shepherd.area.device.put(block, Some(shepherd.area.spare(there.spare)));
        }
        let has_superblock = shepherd.superblock_is_there(asked, found.uuid)?;
        let blocks = shepherd.what_is_needed(asked, found)?;
        let mut rescue = Rescue { blocks, compared: 0 };
        if !has_superblock {
            shepherd.seal_fits_copies(&rescue.blocks)?;
            rescue.compared = shepherd.compare_all(&rescue.blocks, progress)?;
        }
        Ok(rescue)
    }

    /// Whether the volume's superblock is at home. Then it decides whose maps these are, and whether anybody else has written.
    fn superblock_is_there(&self, asked: &dyn Asked, uuid: [u8; 16]) -> Result<bool> {
        let below = self.area.device.below();
        let Ok(own) = asked.uuid(below) else {
            let is_other = asked.uuid_of_backup(below).is_some_and(|other| other != uuid);
            let why = "they are of another volume than a copy of the superblock";
            return if is_other { Err(refused(why)) } else { Ok(false) };
        };
        if own != uuid {
            return Err(refused("they are of another volume than the superblock"));
        }
        let state = self.state();
        match state.head.seal(&self.area, &[]) {
            Some(seal) if state.head.seals.contains(&seal) => Ok(true),
            Some(_) => Err(refused("another program has written to the volume since they were used")),
            None => Ok(false),
        }
    }

    /// The blocks that the format must read to say that the volume follows these maps, where they are not at home (R1).
    fn what_is_needed(&self, asked: &dyn Asked, found: &Found) -> Result<BTreeMap<BlockNo, Vec<u8>>> {
        let view = View { shepherd: self, instead: Mutex::default(), asked: Mutex::default() };
        let mut why = String::new();
        for _ in 0..ROUNDS {
            let follows = asked.uuid(&view).and_then(|uuid| Ok((uuid, asked.follows(&view, &found.area)?)));
            why = match follows {
                Ok((uuid, true)) if uuid == found.uuid => {
                    return Ok(std::mem::take(&mut *view.instead.lock().unpoisoned()));
                }
                Ok((uuid, _)) if uuid != found.uuid => "it has another UUID".into(),
                Ok(_) => "it says that it follows no policy, or has other maps".into(),
                Err(error) => error.to_string(),
            };
            if !view.give_more() {
                break;
            }
        }
        Err(refused(format!("the volume does not say that they are its: {why}")))
    }

    /// What the maps say that a block holds, whatever is at its home (R3).
    fn known_of(&self, block: BlockNo) -> Option<Vec<u8>> {
        if self.area.device.has(block) {
            return self.area.read_at(block, BlockKind::Data).ok();
        }
        let (sum, spares, is_sure) = {
            let mut state = self.state();
            let sum = if self.keeps_sums { state.sums.get(&self.area, block) } else { 0 };
            (sum, state.owners.of(block).to_vec(), !state.doubt.has(run_of(block)))
        };
        let fits = |data: &Vec<u8>| sum == 0 || sum == sum_of(&self.area.uuid, block, data);
        let at: Vec<BlockNo> = spares.iter().map(|spare| self.area.spare(*spare)).collect();
        let copies: Vec<Vec<u8>> = self.area.read_each(&at, BlockKind::Data).into_iter().flatten().collect();
        let sealed = copies.iter().find(|data| {
            let state = self.state();
            state.head.seals(&self.area, block)
                && state
                    .head
                    .seal(&self.area, &[(block, data)])
                    .is_some_and(|seal| state.head.seals.contains(&seal))
        });
        let right = sealed.or_else(|| copies.iter().find(|data| fits(data)));
        // What was under way need not fit anything.
        let any = || if is_sure { None } else { copies.first().cloned() };
        let computed = || self.computed_by_parity(block).filter(|data| sum != 0 && fits(data));
        right.cloned().or_else(computed).or_else(any)
    }

    /// The sealed sectors as they will be once everything is given back (R2).
    fn seal_fits_copies(&self, blocks: &BTreeMap<BlockNo, Vec<u8>>) -> Result<()> {
        let instead: Vec<(BlockNo, &[u8])> = blocks.iter().map(|(block, data)| (*block, &data[..])).collect();
        let state = self.state();
        match state.head.seal(&self.area, &instead) {
            Some(seal) if state.head.seals.contains(&seal) => Ok(()),
            _ => Err(refused("what they have of the superblock is not what it was when they were used")),
        }
    }

    /// Compares everything of which there is a sum or a copy (R2); how many blocks that were. What cannot be read, or was wiped, says nothing.
    fn compare_all(&self, blocks: &BTreeMap<BlockNo, Vec<u8>>, progress: super::Progress<'_>) -> Result<u64> {
        let volume = self.area.shape.volume;
        let (mut compared, mut differing) = (0, Vec::new());
        let mut all =
            (0..volume).map(BlockNo).filter(|block| !blocks.contains_key(block) && !self.owns(*block));
        loop {
            let some: Vec<BlockNo> = all.by_ref().take(AT_ONCE).collect();
            let Some(last) = some.last().copied() else { break };
            let comparable: Vec<BlockNo> =
                some.into_iter().filter(|block| self.can_be_compared(*block)).collect();
            let homes = self.area.read_each(&comparable, BlockKind::Data);
            for (block, home) in comparable.into_iter().zip(homes) {
                match home.and_then(|home| self.is_as_it_was(block, &home)) {
                    Some(true) => compared += 1,
                    Some(false) => differing.push(block),
                    None => {}
                }
            }
            progress(last.get() + 1, volume);
        }
        progress(volume, volume);
        match differing.first() {
            Some(first) => Err(refused(format!(
                "{} of {} blocks are not what they were when they were used, block {first} among them: \
                 another program has written to the volume, or more of it is damaged",
                differing.len(),
                compared + to_u64(differing.len())
            ))),
            None if compared == 0 => {
                Err(refused("there is nothing by which they can be told from older ones"))
            }
            None => Ok(compared),
        }
    }

    fn can_be_compared(&self, block: BlockNo) -> bool {
        let mut state = self.state();
        if state.doubt.has(run_of(block)) || self.area.device.has(block) {
            return false;
        }
        let sum = if self.keeps_sums { state.sums.get(&self.area, block) } else { 0 };
        sum != LOST && (sum != 0 || !state.owners.of(block).is_empty())
    }

    /// Whether a home is what its sum says, or its copies; `None` if they cannot be read, or if nothing is there any more.
    fn is_as_it_was(&self, block: BlockNo, home: &[u8]) -> Option<bool> {
        let (sum, spares) = {
            let mut state = self.state();
            let sum = if self.keeps_sums { state.sums.get(&self.area, block) } else { 0 };
            (sum, state.owners.of(block).to_vec())
        };
        let fits = if sum == 0 {
            let read = |spare: u64| self.area.read_at(self.area.spare(spare), BlockKind::Data).ok();
            let mut copies = spares.into_iter().filter_map(read).peekable();
            copies.peek()?;
            copies.any(|copy| copy == home)
        } else {
            sum == sum_of(&self.area.uuid, block, home)
        };
        // What others write is not all zeros; what is wiped is.
        (fits || home.iter().any(|byte| *byte != 0)).then_some(fits)
    }
}

/// A volume with what the maps have of it in place of what is lost.
struct View<'s> {
    shepherd: &'s Shepherd,
    instead: Mutex<BTreeMap<BlockNo, Vec<u8>>>,
    /// What was read since more was given.
    asked: Mutex<BTreeSet<BlockNo>>,
}

impl View<'_> {
    /// Gives what the maps have of blocks that were read, where that is something else than what is there. Whether there is any.
    fn give_more(&self) -> bool {
        let asked = std::mem::take(&mut *self.asked.lock().unpoisoned());
        let mut is_more = false;
        for block in asked {
            if self.instead.lock().unpoisoned().contains_key(&block) {
                continue;
            }
            let home = self.shepherd.area.read_at(block, BlockKind::Data).ok();
            let known = self.shepherd.known_of(block);
            if let Some(known) = known.filter(|known| home.as_ref() != Some(known)) {
                self.instead.lock().unpoisoned().insert(block, known);
                is_more = true;
            }
        }
        is_more
    }
}

impl BlockDevice for View<'_> {
    fn geometry(&self) -> Geometry {
        self.shepherd.area.device.geometry()
    }

    fn read(&self, reads: &mut [BlockRead<'_>]) -> Result<()> {
        for read in reads {
            self.asked.lock().unpoisoned().insert(read.block);
            match self.instead.lock().unpoisoned().get(&read.block) {
                Some(data) => read.data.copy_from_slice(data),
                None => self.shepherd.area.device.read(std::slice::from_mut(read))?,
            }
        }
        Ok(())
    }

    fn write(&self, writes: &[BlockWrite<'_>]) -> Result<()> {
        let block = writes.first().map_or(BlockNo(0), |write| write.block);
        Err(Error::io(IoOp::Write, block, std::io::Error::other("it is only looked at")))
    }

    fn flush(&self) -> Result<()> {
        Ok(())
    }

    fn discard(&self, _: BlockNo, _: u64) -> Result<()> {
        Ok(())
    }
}
