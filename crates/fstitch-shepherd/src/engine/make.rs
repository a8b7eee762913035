//! Maps for a volume that has none, or whose maps do not count any more.

use std::collections::BTreeSet;
use std::sync::atomic::AtomicU8;
use std::sync::{Arc, Mutex, RwLock};

use fstitch_core::lock::Unpoisoned;
use fstitch_core::num::to_u64;
use fstitch_core::{BlockDevice, BlockKind, BlockNo, Error, Result};

use super::{Health, Options, Shepherd, State, Trouble, WORKING, keeps, supported};
use crate::map::head::{Lists, SEALED_MAX};
use crate::map::shape::POLICY_MAX;
use crate::map::{Area, Counters, Doubt, Head, Owners, Part, Shape, Sums, list};
use crate::policy::{Direction, Kind, Policy, Standing};

/// Blocks that hold something, all of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stretch {
    /// The first.
    pub start: BlockNo,
    /// How many there are.
    pub count: u64,
    /// What they hold.
    pub kind: BlockKind,
}

impl Stretch {
    /// One block.
    #[must_use]
    pub const fn one(block: BlockNo, kind: BlockKind) -> Self {
        Self { start: block, count: 1, kind }
    }

    pub(super) fn blocks(self) -> impl Iterator<Item = BlockNo> {
        (self.start.get()..self.start.get() + self.count).map(BlockNo)
    }
}

/// How many blocks the maps of a volume take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Bytes of a block.
    pub block_size: u32,
    /// Each half of the parts, of which every block is there twice.
    pub half: u64,
    /// Blocks for copies.
    pub spares: u64,
}

impl Room {
    /// For a volume of `blocks` blocks, with so many spares.
    #[must_use]
    pub fn new(block_size: u32, blocks: u64, spares: u64) -> Self {
        Self { block_size, half: Shape { block_size, volume: blocks, spares, list: 0 }.half(), spares }
    }

    /// Blocks that each of the two lists takes which say where the blocks of an area are.
    #[must_use]
    pub fn list(self, area: &[BlockNo]) -> u64 {
        list::blocks_for(self.block_size, area)
    }

    /// All of them, if they are where lists of one block can say it.
    #[must_use]
    pub const fn blocks(self) -> u64 {
        2 * (self.half + 1) + self.spares
    }
}

/// Is told how many of how many blocks have been gone over.
pub type Progress<'a> = &'a mut dyn FnMut(u64, u64);

/// Blocks that are gone over before what was found is made stable.
const BATCH: usize = 4096;
/// Blocks that are read at once.
const AT_ONCE: usize = 256;

impl Shepherd {
    /// Makes the maps of a volume on `device` in `area`, blocks of it that nobody else uses or moves. `blocks` are all others that hold
    /// something; of these sums are made and copies. `sealed` are numbers of the sectors of 512 bytes that every other
    /// program writes when it writes anything; at most four.
    ///
    /// # Errors
    /// `Unsupported` for a policy that is refused, or an area that is too small; when the medium fails.
    pub fn format(
        device: Arc<dyn BlockDevice>,
        area: &[BlockNo],
        uuid: [u8; 16],
        policy: &str,
        sealed: &[u64],
        blocks: &[Stretch],
        progress: Progress<'_>,
    ) -> Result<()> {
        let parsed = Self::admitted(policy)?;
        let geometry = device.geometry();
        let sectors = geometry.bytes() / 512;
        if sealed.len() > SEALED_MAX || sealed.iter().any(|sector| *sector >= sectors) {
            return Err(Error::Unsupported(format!("sealing the sectors {sealed:?} of {sectors}")));
        }
        if geometry.block_count > crate::map::owners::BLOCKS_MAX {
            return Err(Error::Unsupported(format!(
                "a policy for a volume of {} blocks",
                geometry.block_count
            )));
        }
        let list = list::blocks_for(geometry.block_size, area);
        let shape = Shape::fit(geometry.block_size, geometry.block_count, to_u64(area.len()), list)?;
        let area = Area::new(device, area, shape, uuid);
        Self::fill(area, parsed, (policy, sealed), Options::default(), |shepherd| {
            shepherd.go_over(blocks, progress)
        })
    }

    /// Makes the maps of an array's volume, which holds nothing yet.
    ///
    /// # Errors
    /// As [`Shepherd::format`].
    pub fn format_array(array: &Arc<crate::disks::Array>, policy: &str) -> Result<()> {
        let parsed = Self::admitted(policy)?;
        let options = Options { disks: Some(Arc::clone(array)), ..Options::default() };
        supported(&parsed, &Options { rules: Some(Arc::new(Unjudged)), ..options.clone() })?;
        let blocks = array.area();
        let label = array.label();
        let shape = Shape::fit(label.block_size, label.volume(), to_u64(blocks.len()), 0)?;
        assert_eq!(2 * shape.half(), label.zone, "what is on all disks is both halves of the parts");
        let area = Area::new(Arc::clone(array) as _, &blocks, shape, label.uuid);
        Self::fill(area, parsed, (policy, &[]), options, Self::settle)
    }

    /// The policy of new maps.
    fn admitted(policy: &str) -> Result<Policy> {
        let parsed =
            Policy::parse(policy).map_err(|refused| Error::Unsupported(format!("this policy: {refused}")))?;
        if policy.len() > POLICY_MAX {
            let what = format!("a policy of {} bytes, which is more than {POLICY_MAX}", policy.len());
            return Err(Error::Unsupported(what));
        }
        Ok(parsed)
    }

    /// Empty maps, then what is put into them, and at last the head.
    fn fill(
        area: Area,
        policy: Policy,
        (text, sealed): (&str, &[u64]),
        options: Options,
        with: impl FnOnce(&Self) -> Result<()>,
    ) -> Result<()> {
        let shape = area.shape;
        let mut head = Head {
            volume: shape.volume,
            spares: shape.spares,
            policy_len: u32::try_from(text.len()).expect("it is short"),
            in_use: false,
            seals: [0; 2],
            lost: 0,
            sealed: sealed.to_vec(),
            // Whatever the area held before is older.
            relocated: Vec::new(),
            lists: Lists::of(&area),
            generation: area.read(Part::Head, 0).map_or(0, |(generation, _)| generation),
        };
        let doubt = Doubt::none(&area)?;
        area.write(&Head::policy_writes(&area, text))?;
        empty_sums(&area)?;
        list::write(&area)?;
        head.seals = [head.seal(&area, &[]).ok_or_else(unsealed)?; 2];
        let owners = Owners::new(&area);
        let counters = Counters::none(&area);
        let shepherd = Self::over(
            policy,
            area,
            options,
            State {
                head,
                doubt,
                sums: Sums::new(BATCH),
                owners,
                counters,
                failed: BTreeSet::new(),
                is_foreign: false,
                seal_moves: false,
                lost_said: 0,
                marks_taken: 0,
            },
        );
        with(&shepherd)?;
        // It is what makes the rest count.
        let mut state = shepherd.state();
        let head = state.head.next_write();
        shepherd.area.write(&[head])
    }

    /// A shepherd with this state.
    pub(super) fn over(policy: Policy, area: Area, options: Options, state: State) -> Self {
        let mut health = Health::default();
        health.add(
            Kind::Map(crate::policy::MapKind::Sums),
            Trouble::MapLost,
            state.sums.lost_pages + state.owners.lost_pages,
        );
        let keeps_sums = policy.any_standing(|standing| *standing == Standing::Verify);
        Self {
            group: u64::from(super::group_of(&policy)),
            parity: Mutex::default(),
            policy,
            keeps_sums,
            area,
            options,
            gate: RwLock::new(()),
            scrubbed: Mutex::default(),
            state: Mutex::new(state),
            health: Mutex::new(health),
            desk: Arc::default(),
            bare: Mutex::default(),
            mode: AtomicU8::new(WORKING),
        }
    }

    /// Makes sums and copies of blocks as they are.
    pub(super) fn go_over(&self, blocks: &[Stretch], progress: Progress<'_>) -> Result<()> {
        let keeping = |stretch: &&Stretch| keeps(self.chain(stretch.kind, Direction::Write));
        let total = blocks.iter().filter(keeping).map(|stretch| stretch.count).sum();
        let mut done = 0;
        let mut unsettled = 0;
        for stretch in blocks.iter().filter(keeping) {
            let blocks: Vec<BlockNo> = stretch.blocks().filter(|block| !self.owns(*block)).collect();
            for some in blocks.chunks(AT_ONCE) {
                self.take_in(some, stretch.kind);
                if self.chain(stretch.kind, Direction::Write).keeps_parity() {
                    self.take_in_parity(some);
                }
                unsettled += some.len();
                if unsettled >= BATCH {
                    self.settle()?;
                    done += to_u64(std::mem::take(&mut unsettled));
                    progress(done, total);
                }
            }
        }
        self.settle()?;
        progress(total, total);
        Ok(())
    }

    /// Sums and copies of some blocks. What cannot be read has neither.
    fn take_in(&self, blocks: &[BlockNo], kind: BlockKind) {
        let chain = self.chain(kind, Direction::Write);
        let mut copies: Vec<(BlockNo, u64, usize)> = Vec::new();
        let found = self.area.read_each(blocks, kind);
        let lost = to_u64(found.iter().filter(|data| data.is_none()).count());
        self.health.lock().unpoisoned().add(Kind::Block(kind), Trouble::Read, lost);
        let mut state = self.state();
        for (no, (block, data)) in blocks.iter().zip(&found).enumerate() {
            let Some(data) = data else { continue };
            if chain.stands(Standing::Verify) {
                let sum = crate::map::sums::sum_of(&self.area.uuid, *block, data);
                state.sums.set(&self.area, *block, sum);
            }
            self.assign(&mut state, Kind::Block(kind), chain, *block);
            copies.extend(state.owners.of(*block).iter().map(|spare| (*block, *spare, no)));
        }
        let at: Vec<BlockNo> = copies.iter().map(|(_, spare, _)| self.area.spare(*spare)).collect();
        let contents: Vec<&[u8]> = copies
            .iter()
            .map(|(.., no)| found[*no].as_deref().expect("only what was read is copied"))
            .collect();
        for no in self.area.write_each(&at, &contents) {
            let (block, spare, _) = copies[no];
            state.owners.give_up(&self.area, block, spare);
            self.health.lock().unpoisoned().add(Kind::Block(kind), Trouble::CopyLost, 1);
        }
        copies.into_iter().for_each(|(block, spare, _)| state.owners.holds(&self.area, block, spare));
    }
}

/// Rules for a volume that holds nothing yet.
struct Unjudged;

impl super::Rules for Unjudged {
    fn judge(&self, _: BlockKind, _: BlockNo, _: &[u8]) -> Option<String> {
        None
    }
}

/// Writes a map of sums that says nothing.
pub(super) fn empty_sums(area: &Area) -> Result<()> {
    let empty = vec![0; area.shape.payload()];
    let indexes: Vec<u64> = (0..area.shape.blocks(Part::Sums)).collect();
    for some in indexes.chunks(256) {
        let write = |index: &u64| {
            let generation = area.read(Part::Sums, *index).map_or(0, |(generation, _)| generation) + 1;
            crate::map::area::MapWrite {
                part: Part::Sums,
                index: *index,
                generation,
                contents: empty.clone(),
            }
        };
        area.write(&some.iter().map(write).collect::<Vec<_>>())?;
    }
    Ok(())
}

/// Nobody can tell whether somebody else has written.
pub(super) fn unsealed() -> Error {
    let reason = std::io::Error::other(
        "the superblock cannot be read, by which it is told whether another program has written",
    );
    Error::io(fstitch_core::IoOp::Read, BlockNo(0), reason)
}

/// Refuses a policy that cannot be carried out with these options.
pub(super) fn checked(text: &str, options: &Options) -> Result<Policy> {
    let policy = Policy::parse(text)
        .map_err(|refused| Error::Unsupported(format!("the volume's policy: {refused}")))?;
    supported(&policy, options)?;
    Ok(policy)
}

#[cfg(test)]
mod tests {
    use fstitch_core::{BlockRead, BlockWrite, MemDevice};

    use super::*;
    use crate::engine::heads;

    const POLICY: &str = "[metadata]\nread = [\"verify\", \"mirror\"]\nwrite = [\"verify\", \"mirror far\"]";

    fn made(list: u64) -> Arc<MemDevice> {
        let disk = Arc::new(MemDevice::new(512, 1000));
        let blocks: Vec<BlockNo> = (700..850).map(BlockNo).collect();
        let shape = Shape::fit(512, 1000, 150, list).unwrap();
        let area = Area::new(Arc::clone(&disk) as _, &blocks, shape, [5; 16]);
        let policy = Shepherd::admitted(POLICY).unwrap();
        Shepherd::fill(area, policy, (POLICY, &[2]), Options::default(), Shepherd::settle).unwrap();
        disk
    }

    /// Maps of the first version are read, are written as they were, and stay of that version; nobody finds them by a search.
    #[test]
    fn maps_without_lists_are_used_as_they_are() {
        for (list, seen) in [(0, 0), (1, 2)] {
            let disk = made(list);
            let blocks: Vec<BlockNo> = (700..850).map(BlockNo).collect();
            for (round, lost) in [(1, None), (2, Some(700)), (3, None)] {
                // The second head says as well as the first one what version they are of.
                if let Some(block) = lost.map(BlockNo) {
                    disk.write(&[BlockWrite { block, kind: BlockKind::Data, data: &[0; 512] }]).unwrap();
                }
                let opened = Shepherd::open(Arc::clone(&disk) as _, &blocks, Options::default());
                let (shepherd, opened) = opened.unwrap();
                assert!(!opened.is_foreign && opened.maps_lost == 0, "{opened:?}");
                assert_eq!(shepherd.area.shape.list, list);
                let (block, kind) = (BlockNo(40), BlockKind::Inode);
                shepherd.write(&[BlockWrite { block, kind, data: &[round; 512] }]).unwrap();
                shepherd.close().unwrap();
                disk.write(&[BlockWrite { block, kind, data: &[0xbb; 512] }]).unwrap();
                let (shepherd, _) =
                    Shepherd::open(Arc::clone(&disk) as _, &blocks, Options::default()).unwrap();
                let mut data = [0; 512];
                shepherd.read(&mut [BlockRead { block, kind, data: &mut data }]).unwrap();
                assert_eq!(data, [round; 512], "the copy");
                shepherd.close().unwrap();
            }
            let found = heads(&*disk, super::super::Reach::Ends, &mut |_, _| {});
            assert_eq!(found.len(), seen);
        }
    }
}
