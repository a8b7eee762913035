//! The superblock of a new volume, and what its copies are found by.

use super::options::{MkfsOptions, Optimise};
use super::plan::{Plan, SUPERBLOCK_ROOM, to_u32};
use super::seconds;
use fstitch_core::num::to_usize;

use crate::ufs::layout::superblock::{FLAGS_UPDATED, MAGIC_1, MAGIC_2, Totals, Version, at, flag};

/// Bytes of a sector, in which shifts and old lengths count.
const SECTOR: u32 = 512;
/// Pointers to blocks that are in an inode.
const DIRECT: u64 = 12;
/// Levels of blocks of pointers.
const LEVELS: u32 = 3;
/// Old systems: revolutions in a second, and the form of inodes, of tables of positions.
const OLD_ROUNDS: u32 = 60;
const OLD_INODES_44: u32 = 2;
const OLD_TABLES_DYNAMIC: u32 = 1;
/// Old systems: a group's metadata does not move from its beginning.
const OLD_MASK_NONE: u32 = u32::MAX;

/// Where FreeBSD's fsck finds how to look for copies of UFS2's superblock: in the last bytes before its first place.
pub(super) const RECOVERY_AT: usize = 65_536 - RECOVERY;
const RECOVERY: usize = 20;

/// A superblock in the making.
struct Raw<'p> {
    plan: &'p Plan,
    bytes: Vec<u8>,
}

impl Raw<'_> {
    fn put(&mut self, fields: &[(usize, u32)]) {
        fields.iter().for_each(|&(at, value)| self.plan.order.put_u32(&mut self.bytes, at, value));
    }

    fn put_long(&mut self, fields: &[(usize, u64)]) {
        fields.iter().for_each(|&(at, value)| self.plan.order.put_u64(&mut self.bytes, at, value));
    }

    /// Places, lengths, and what follows from them.
    fn put_shape(&mut self) {
        let plan = self.plan;
        let (block, fragment, frag) = (plan.block_size, plan.fragment_size, plan.fragments_per_block());
        let [superblock, group, inodes, data] = plan.parts;
        self.put(&[
            (at::SBLKNO, superblock),
            (at::CBLKNO, group),
            (at::IBLKNO, inodes),
            (at::DBLKNO, data),
            (at::NCG, plan.groups),
            (at::BSIZE, block),
            (at::FSIZE, fragment),
            (at::FRAG, frag),
            (at::BMASK, !(block - 1)),
            (at::FMASK, !(fragment - 1)),
            (at::BSHIFT, block.ilog2()),
            (at::FSHIFT, fragment.ilog2()),
            (at::FRAGSHIFT, frag.ilog2()),
            (at::FSBTODB, (fragment / SECTOR).ilog2()),
            (at::SBSIZE, plan.superblock_size),
            (at::NINDIR, block / plan.version.pointer_size()),
            (at::INOPB, plan.inodes_per_block()),
            (at::CSSIZE, plan.summaries_size),
            (at::CGSIZE, plan.group_size),
            (at::IPG, plan.group_inodes),
            (at::FPG, plan.group_fragments),
            (at::MAXBSIZE, block),
            (at::CONTIGSUMSIZE, plan.clusters),
            (at::MAXSYMLINKLEN, 15 * plan.version.pointer_size()),
        ]);
        self.put_long(&[
            (at::PROVIDERSIZE, plan.device_fragments),
            (at::METASPACE, plan.metadata_fragments.into()),
            (at::SBLOCKLOC, plan.superblock_at.into()),
            (at::SIZE, plan.fragments),
            (at::DSIZE, plan.data_fragments),
            (at::CSADDR, plan.summaries),
            (at::MAXFILESIZE, plan.longest_file()),
            (at::QBMASK, u64::from(block - 1)),
            (at::QFMASK, u64::from(fragment - 1)),
        ]);
    }

    /// What was asked for.
    fn put_options(&mut self, options: &MkfsOptions) {
        let plan = self.plan;
        let optimise = match options.optimisation() {
            Optimise::Time => 0,
            Optimise::Space => 1,
        };
        let per_file = options.blocks_per_file.unwrap_or(plan.block_size / Version::Two.pointer_size());
        self.put(&[
            (at::MINFREE, options.min_free),
            (at::MAXCONTIG, plan.max_contiguous),
            (at::MAXBPG, per_file),
            (at::OPTIM, optimise),
            (at::ID, options.id[0]),
            (at::ID + 4, options.id[1]),
            (at::AVGFILESIZE, options.average_file_bytes),
            (at::AVGFPDIR, options.average_directory_files),
            (at::FLAGS, if options.soft_updates { flag::SOFTDEP } else { 0 }),
        ]);
        self.put_long(&[(at::TIME, options.now.secs.cast_unsigned())]);
        self.bytes[at::VOLNAME..at::VOLNAME + options.label.len()].copy_from_slice(&options.label);
        self.bytes[at::OLD_FLAGS] = FLAGS_UPDATED;
        self.bytes[at::CLEAN] = 1;
    }

    fn put_totals(&mut self, totals: &Totals) {
        let all = [totals.directories, totals.blocks, totals.inodes, totals.fragments];
        for (index, count) in all.into_iter().enumerate() {
            self.put_long(&[(at::CSTOTAL + index * 8, count)]);
            if self.plan.version == Version::One {
                self.put(&[(at::OLD_CSTOTAL + index * 4, to_u32(count))]);
            }
        }
    }

    /// What old systems want to know of UFS1: a disk on which each group is a cylinder of one track.
    fn put_old(&mut self, options: &MkfsOptions) {
        let plan = self.plan;
        let sectors = plan.fragment_size / SECTOR;
        let cylinder = plan.group_fragments.saturating_mul(sectors);
        self.put(&[
            (at::OLD_CGOFFSET, 0),
            (at::OLD_CGMASK, OLD_MASK_NONE),
            (at::OLD_TIME, seconds(options.now.secs)),
            (at::OLD_SIZE, to_u32(plan.fragments)),
            (at::OLD_DSIZE, to_u32(plan.data_fragments)),
            (at::OLD_RPS, OLD_ROUNDS),
            (at::OLD_NSPF, sectors),
            (at::OLD_NPSECT, cylinder),
            (at::OLD_INTERLEAVE, 1),
            (at::OLD_CSADDR, to_u32(plan.summaries)),
            (at::OLD_NSECT, cylinder),
            (at::OLD_SPC, cylinder),
            (at::OLD_NCYL, plan.groups),
            (at::OLD_CPG, 1),
            (at::OLD_INODEFMT, OLD_INODES_44),
            (at::OLD_POSTBLFORMAT, OLD_TABLES_DYNAMIC),
            (at::OLD_NRPOS, 1),
        ]);
    }
}

impl Plan {
    /// Bytes of the longest file: those that all pointers reach, less one.
    fn longest_file(&self) -> u64 {
        let pointers = u64::from(self.block_size / self.version.pointer_size());
        let blocks: u64 = DIRECT + (1..=LEVELS).map(|level| pointers.pow(level)).sum::<u64>();
        blocks * u64::from(self.block_size) - 1
    }

    /// The superblock of a volume where so much is free, as it lies at byte `place`, with the zeros behind it.
    pub(super) fn superblock(&self, options: &MkfsOptions, totals: &Totals, place: u64) -> Vec<u8> {
        let mut raw = Raw { plan: self, bytes: vec![0; to_usize(SUPERBLOCK_ROOM)] };
        raw.put_shape();
        raw.put_options(options);
        raw.put_totals(totals);
        let magic = match self.version {
            Version::One => {
                raw.put_old(options);
                MAGIC_1
            }
            Version::Two => MAGIC_2,
        };
        raw.put_long(&[(at::SBLOCKACTUALLOC, place)]);
        raw.put(&[(at::MAGIC, magic)]);
        raw.bytes
    }

    /// What helps FreeBSD's fsck to find copies; it has nothing like that for UFS1.
    pub(super) fn recovery(&self) -> Option<[u8; RECOVERY]> {
        if self.version == Version::One {
            return None;
        }
        let shift = (self.fragment_size / SECTOR).ilog2();
        let words = [MAGIC_2, shift, self.parts[0], self.group_fragments, self.groups];
        let mut bytes = [0; RECOVERY];
        for (slot, word) in bytes.chunks_exact_mut(size_of::<u32>()).zip(words) {
            self.order.put_u32(slot, 0, word);
        }
        Some(bytes)
    }
}
