//! UFS1 and UFS2, which are read.

use std::sync::Arc;

use fstitch_core::{BlockDevice, Clock, Error, RepairOptions, RepairReport, Result, SystemClock};
use fstitch_fs::arrange::{self, Arrangement};
use fstitch_fs::ufs::Ufs;
use fstitch_fs::ufs::layout::superblock::{Superblock, find, flag, fragment_size};
use fstitch_patch::CacheOptions;
use serde_json::Value;

use crate::lent::lend;
use crate::make::{Asked, Making};
use crate::{Description, Format, Identity, Look, OwnJournal, Volume, show};

/// The BSDs' file system.
pub struct UfsFormat;

const FLAGS: [(u32, &str); 6] = [
    (flag::UNCLEAN, "unclean"),
    (flag::SOFTDEP, "soft updates"),
    (flag::NEEDS_FSCK, "needs fsck"),
    (flag::SUJ, "journaled soft updates"),
    (flag::ACLS, "ACLs"),
    (flag::GJOURNAL, "gjournal"),
];

fn read_only() -> Arrangement {
    Arrangement {
        cache: CacheOptions { read_only: true, ..CacheOptions::default() },
        ..Arrangement::default()
    }
}

impl Format for UfsFormat {
    fn names(&self) -> &'static [&'static str] {
        &["ufs1", "ufs2"]
    }

    fn makes(&self) -> &'static [&'static str] {
        &[]
    }

    fn thing(&self) -> &'static str {
        "a UFS volume"
    }

    fn absent(&self) -> &'static str {
        "no magic number at byte 1372 of where superblocks are)"
    }

    fn probe(&self, head: &[u8]) -> Option<std::result::Result<u32, String>> {
        find(head).map(fragment_size)
    }

    fn look(&self, device: &dyn BlockDevice) -> Result<Look> {
        let shape = Superblock::read(device)?;
        Ok(Look { block_size: shape.fragment_size, journal: OwnJournal::None })
    }

    fn open(
        &self,
        device: Arc<dyn BlockDevice>,
        arrangement: &Arrangement,
        clock: Arc<dyn Clock>,
    ) -> Result<Arc<dyn Volume>> {
        let (fs, _) = arrange::open::<Ufs>(device, arrangement, clock)?;
        Ok(Arc::new(fs))
    }

    fn describe(
        &self,
        device: &dyn BlockDevice,
        _external: Option<&dyn BlockDevice>,
        _details: bool,
    ) -> Result<Description> {
        let shape = Superblock::read(device)?;
        let (name, label) = (shape.version.name(), String::from_utf8_lossy(&shape.label).into_owned());
        let flags: Vec<&str> =
            FLAGS.into_iter().filter(|(flag, _)| shape.flags & flag != 0).map(|(_, name)| name).collect();
        let id = format!("{:08x}{:08x}", shape.id[0], shape.id[1]);
        let state = if shape.is_clean { "clean" } else { "not clean" };
        let fragment = u64::from(shape.fragment_size);
        let free = shape.totals.blocks * u64::from(shape.fragments_per_block()) + shape.totals.fragments;
        let fields = [
            ("format", format!("{name}, {}", shape.order.name())),
            ("label", label.clone()),
            ("identifier", id.clone()),
            ("state", state.to_owned()),
            ("flags", flags.join(", ")),
            (
                "blocks of",
                format!("{}, in fragments of {}", show::size(shape.block_size.into()), show::size(fragment)),
            ),
            (
                "size",
                format!(
                    "{}, of which {} is free",
                    show::size(shape.fragments * fragment),
                    show::size(free * fragment)
                ),
            ),
            ("groups", shape.groups.to_string()),
            ("inodes", format!("{}, {} free", shape.inodes(), shape.totals.inodes)),
        ];
        let values = [
            ("format", Value::from(name)),
            ("byte_order", shape.order.name().into()),
            ("label", label.into()),
            ("identifier", id.into()),
            ("clean", shape.is_clean.into()),
            ("flags", flags.into()),
            ("block_size_bytes", shape.block_size.into()),
            ("fragment_size_bytes", shape.fragment_size.into()),
            ("fragments", shape.fragments.into()),
            ("free_fragments", free.into()),
            ("groups", shape.groups.into()),
            ("inodes", shape.inodes().into()),
            ("free_inodes", shape.totals.inodes.into()),
        ];
        Ok(Description::of(fields, values))
    }

    fn about(&self, _kind: &str) -> &'static str {
        "UFS volumes are read, not made"
    }

    fn plan(&self, asked: &Asked) -> Result<Box<dyn Making>> {
        Err(Error::Unsupported(format!("making {} volumes", asked.kind)))
    }

    fn identify(&self, device: &dyn BlockDevice, _identity: &Identity) -> Result<()> {
        let shape = Superblock::read(device)?;
        Err(Error::Unsupported(format!("changing {} volumes", shape.version.name())))
    }

    fn is_marked_clean(&self, device: &dyn BlockDevice) -> bool {
        Superblock::read(device).is_ok_and(|shape| !shape.is_unclean())
    }

    /// Everything is checked, and reported; nothing is mended.
    fn repair(&self, device: &dyn BlockDevice, _options: RepairOptions) -> Result<RepairReport> {
        let found = lend(device, None, |device| {
            let (fs, _) = arrange::open::<Ufs>(device, &read_only(), Arc::new(SystemClock::new()))?;
            fs.format().check_volume()
        })?;
        Ok(RepairReport { left: found.clone(), found, mended: 0, runs: 1 })
    }
}
