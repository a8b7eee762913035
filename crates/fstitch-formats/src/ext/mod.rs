//! ext2 and ext3, and devices that are their journals.

mod change;
mod info;
pub mod journal;
mod maps;
mod mkfs;

use std::sync::Arc;

use fstitch_core::{BlockDevice, Clock, Error, RepairOptions, RepairReport, Result, Timestamp};
use fstitch_fs::arrange::{self, Arrangement, Chosen};
use fstitch_fs::ext2::Ext2;
use fstitch_fs::ext2::check::{find_backup, repair_ext2};
use fstitch_fs::ext2::identity;
use fstitch_fs::ext2::journal as jbd;
pub use fstitch_fs::ext2::journal::{DeviceOptions, JournalDevice, make_device, release_device};
use fstitch_fs::ext2::layout::feature::incompat;
use fstitch_fs::ext2::layout::superblock::{S_FEATURE_INCOMPAT, STATE_ERROR, STATE_VALID, SUPERBLOCK_SIZE};
use fstitch_fs::ext2::mmp::{Around, Claim, Who};
use fstitch_fs::uhfs::UhfsOptions;
use fstitch_patch::Cache;

use crate::make::{Asked, Making, Word};
use crate::resize::{CountsUsage, MapsFiles, Resizes, Tunes};
use crate::{
    Cached, Description, Format, Identity, Journals, KeepsMaps, Look, NamesBlocks, OwnJournal, Recovering,
    Recovery, Shares, Volume,
};

/// Where the superblock is, in bytes from the start.
const SUPERBLOCK_AT: usize = 1024;
/// Where the magic number is, in bytes from the start.
const MAGIC_AT: usize = 1080;
/// The magic number.
const MAGIC: [u8; 2] = [0x53, 0xef];
/// Where the size of blocks is, as a power of two above 1024.
const LOG_BLOCK_SIZE_AT: usize = 1048;
/// The largest of such powers: 64 KiB.
const LOG_BLOCK_SIZE_MAX: u32 = 6;
const BLOCK_SIZE_MIN: u32 = 1024;

/// Whether a volume may have blocks of `bytes` bytes.
fn is_block_size(bytes: u32) -> bool {
    bytes.is_power_of_two() && (BLOCK_SIZE_MIN..=BLOCK_SIZE_MIN << LOG_BLOCK_SIZE_MAX).contains(&bytes)
}

/// ext2, and with a journal ext3.
pub struct Ext;

impl Format for Ext {
    fn names(&self) -> &'static [&'static str] {
        &["ext2", "ext3", "ext4"]
    }

    fn thing(&self) -> &'static str {
        "an ext2, ext3 or ext4 volume"
    }

    fn absent(&self) -> &'static str {
        "no magic number at byte 1080). If the primary superblock is damaged, `fstitch fsck` can use a backup"
    }

    fn probe(&self, head: &[u8]) -> Option<std::result::Result<u32, String>> {
        if head.get(MAGIC_AT..MAGIC_AT + MAGIC.len()) != Some(&MAGIC) {
            return None;
        }
        let field =
            head.get(LOG_BLOCK_SIZE_AT..LOG_BLOCK_SIZE_AT + 4).and_then(|field| field.try_into().ok());
        Some(match field.map_or(0, u32::from_le_bytes) {
            log @ 0..=LOG_BLOCK_SIZE_MAX => Ok(BLOCK_SIZE_MIN << log),
            log => Err(format!(
                "says that its blocks are 2^{} bytes; 1024 to 65536 are possible",
                u64::from(log) + 10
            )),
        })
    }

    fn checked_in(&self, _block_size: u32) -> u32 {
        // The smallest, which fits all: the superblock that says it may be damaged.
        BLOCK_SIZE_MIN
    }

    fn look(&self, device: &dyn BlockDevice) -> Result<Look> {
        let (raw, shape) = jbd::read_superblock(device)?;
        let journal = match jbd::locate(&shape, &raw)? {
            None => OwnJournal::None,
            Some(jbd::Place::Inode(_)) => OwnJournal::Inside,
            Some(jbd::Place::Device(_)) => OwnJournal::Device,
        };
        Ok(Look { block_size: shape.block_size, journal })
    }

    fn needs_recovery(&self, device: &dyn BlockDevice) -> Result<bool> {
        jbd::needs_recovery(device)
    }

    fn recover(&self, device: &dyn BlockDevice, how: &mut Recovering<'_>) -> Result<Option<Recovery>> {
        let in_memory = how.for_reading;
        let done = jbd::recover(
            device,
            &mut jbd::Options {
                external: how.external,
                now: how.now,
                for_reading: how.for_reading,
                batch_max: jbd::BATCH_MAX,
                progress: how.progress,
            },
        )?;
        Ok(done.map(|done| recovery(&done, in_memory)))
    }

    fn shares(&self) -> Option<&dyn Shares> {
        Some(self)
    }

    fn open(
        &self,
        device: Arc<dyn BlockDevice>,
        arrangement: &Arrangement,
        clock: Arc<dyn Clock>,
    ) -> Result<Arc<dyn Volume>> {
        let (fs, _) = arrange::open::<Ext2>(device, arrangement, clock)?;
        Ok(Arc::new(fs))
    }

    fn needs_journal(&self, device: &dyn BlockDevice) -> Result<bool> {
        Ok(jbd::read_superblock(device)?.1.features.is_journaled_ext4())
    }

    fn cached(&self) -> Option<&dyn Cached> {
        Some(self)
    }

    fn describe(
        &self,
        device: &dyn BlockDevice,
        external: Option<&dyn BlockDevice>,
        details: bool,
    ) -> Result<Description> {
        info::describe(device, external, details)
    }

    fn about(&self, kind: &str) -> &'static str {
        match kind {
            "ext3" => "Make an ext3 volume: ext2 with a journal",
            "ext4" => "Make an ext4 volume, as mke2fs would",
            _ => "Make an ext2 volume, as mke2fs would",
        }
    }

    fn words(&self) -> &'static [Word] {
        mkfs::WORDS
    }

    fn extended_words(&self) -> &'static str {
        "stride=N, stripe_width=N, discard, hash_seed=UUID (that of directory hashes; by default it goes with a UUID that was given)"
    }

    fn plan(&self, asked: &Asked) -> Result<Box<dyn Making>> {
        Ok(Box::new(mkfs::plan(asked)?))
    }

    fn identify(&self, device: &dyn BlockDevice, identity: &Identity) -> Result<()> {
        let Identity { label, uuid } = identity.clone();
        identity::identify(device, &identity::Identity { label, uuid })
    }

    fn journals(&self) -> Option<&dyn Journals> {
        Some(self)
    }

    fn resizes(&self) -> Option<&dyn Resizes> {
        Some(self)
    }

    fn tunes(&self) -> Option<&dyn Tunes> {
        Some(self)
    }

    fn maps_files(&self) -> Option<&dyn MapsFiles> {
        Some(self)
    }

    fn counts_usage(&self) -> Option<&dyn CountsUsage> {
        Some(self)
    }

    fn keeps_maps(&self) -> Option<&dyn KeepsMaps> {
        Some(self)
    }

    fn names_blocks(&self) -> Option<&dyn NamesBlocks> {
        Some(self)
    }

    /// A superblock that cannot be read says no such thing, and a journal that nobody can use contradicts it.
    fn is_marked_clean(&self, device: &dyn BlockDevice) -> bool {
        Ext2::probe(device).is_ok_and(|volume| volume.state & (STATE_VALID | STATE_ERROR) == STATE_VALID)
            && jbd::is_sound(device).unwrap_or(false)
    }

    fn has_backup(&self, device: &dyn BlockDevice) -> Result<bool> {
        Ok(find_backup(device)?.is_some())
    }

    fn repair(&self, device: &dyn BlockDevice, options: RepairOptions) -> Result<RepairReport> {
        repair_ext2(device, options)
    }

    /// A journal that cannot be replayed is looked for where the superblock keeps a copy of its place, and then given up.
    fn recover_or_give_up(
        &self,
        device: &dyn BlockDevice,
        how: &mut Recovering<'_>,
    ) -> Result<Option<Recovery>> {
        let mut recovered = self.recover(device, how);
        if matches!(recovered, Err(Error::Corrupt(_))) && jbd::restore(device, how.now)? {
            recovered = self.recover(device, how);
        }
        match recovered {
            Err(error @ Error::Corrupt(_)) => {
                jbd::abandon(device)?;
                let lost = format!("{error}; what it held is lost");
                Ok(Some(Recovery { problems: vec![lost], ..Recovery::default() }))
            }
            other => other,
        }
    }

    fn has_journal(&self, device: &dyn BlockDevice) -> bool {
        let Ok((raw, volume)) = jbd::read_superblock(device) else { return false };
        match jbd::locate(&volume, &raw) {
            Ok(place) => matches!(place, Some(jbd::Place::Inode(_))),
            // It says so, but not where.
            Err(_) => true,
        }
    }

    fn renew_journal(&self, device: &dyn BlockDevice, now: Timestamp) -> Result<Option<u32>> {
        match jbd::add(device, jbd::AddOptions { blocks: None, now, is_zero: false }) {
            Ok(blocks) => Ok(Some(blocks)),
            Err(Error::Unsupported(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl Journals for Ext {
    fn add(&self, device: &dyn BlockDevice, blocks: Option<u32>, now: Timestamp) -> Result<u32> {
        jbd::add(device, jbd::AddOptions { blocks, now, is_zero: false })
    }

    fn add_device(&self, device: &dyn BlockDevice, journal: &dyn BlockDevice, number: u32) -> Result<u32> {
        jbd::add_device(device, journal, number)
    }

    fn clear(&self, device: &dyn BlockDevice) -> Result<bool> {
        jbd::clear(device)
    }

    fn remove(&self, device: &dyn BlockDevice) -> Result<()> {
        jbd::remove(device)
    }

    fn uuid(&self, device: &dyn BlockDevice) -> Result<[u8; 16]> {
        Ok(jbd::read_superblock(device)?.1.uuid)
    }
}

impl Shares for Ext {
    fn is_shared(&self, head: &[u8]) -> bool {
        let raw = head.get(SUPERBLOCK_AT..SUPERBLOCK_AT + SUPERBLOCK_SIZE);
        raw.is_some_and(|raw| S_FEATURE_INCOMPAT.get(raw) & incompat::MMP != 0)
    }

    fn claim(&self, device: Arc<dyn BlockDevice>, who: Who, around: Around<'_>) -> Result<Claim> {
        Claim::new(device, who, around)
    }

    fn may_be_shared(&self, device: &dyn BlockDevice) -> Result<bool> {
        Claim::may_be_told(device)
    }

    fn claim_to_mend(
        &self,
        device: &Arc<dyn BlockDevice>,
        who: &Who,
        around: Around<'_>,
    ) -> Result<Option<Claim>> {
        Claim::to_mend(device, who, around)
    }
}

impl Cached for Ext {
    fn choose(&self, device: &dyn BlockDevice, arrangement: &Arrangement) -> Result<Chosen> {
        Chosen::new::<Ext2>(device, arrangement)
    }

    fn open_in(&self, chosen: Chosen, cache: Arc<Cache>, options: UhfsOptions) -> Result<Arc<dyn Volume>> {
        Ok(Arc::new(chosen.open_in::<Ext2>(cache, options)?))
    }
}

fn recovery(done: &jbd::Recovered, in_memory: bool) -> Recovery {
    let replayed = done.replayed.as_ref();
    Recovery {
        in_memory,
        fast_commits: done.fast_commits,
        transactions: replayed.map_or(0, |replayed| replayed.scan.transactions),
        blocks: replayed.map_or(0, |replayed| replayed.written),
        revoked: replayed.map_or(0, |replayed| replayed.revoked),
        orphans_freed: done.orphans.freed,
        orphans_cut: done.orphans.cut,
        problems: done.errors.clone(),
    }
}
