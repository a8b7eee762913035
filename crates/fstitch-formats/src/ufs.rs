//! UFS1 and UFS2, which are read and made.

mod mkfs;

use std::collections::BTreeMap;
use std::sync::Arc;

use fstitch_core::{
    BlockDevice, Clock, Error, RepairMode, RepairOptions, RepairReport, Result, Structure, Timestamp,
};
use fstitch_fs::arrange::{self, Arrangement, Chosen};
use fstitch_fs::ufs::check::repair_ufs;
use fstitch_fs::ufs::identity::{Settings, identify, tune};
use fstitch_fs::ufs::layout::superblock::{Superblock, find, flag, fragment_size};
use fstitch_fs::ufs::{Ufs, may_be_written};
use fstitch_fs::uhfs::UhfsOptions;
use fstitch_patch::Cache;
use serde_json::Value;

use crate::make::{Asked, Making, Word};
use crate::resize::{Reserve, Tunes, Tuning};
use crate::{Cached, Description, Format, Identity, Look, OwnJournal, Volume, show};

/// The BSDs' file system.
pub struct UfsFormat;

/// The checker's finding on a volume that is not marked clean.
const NOT_CLEAN: &str = "superblock-not-clean";

const FLAGS: [(u32, &str); 6] = [
    (flag::UNCLEAN, "unclean"),
    (flag::SOFTDEP, "soft updates"),
    (flag::NEEDS_FSCK, "needs fsck"),
    (flag::SUJ, "journaled soft updates"),
    (flag::ACLS, "ACLs"),
    (flag::GJOURNAL, "gjournal"),
];

/// Mends what a crash has left of soft updates before the volume is changed: two names of a directory, what nobody owns, counts. As the
/// BSDs do, and unlike a journal's replay it looks at everything. What was found, by its codes; `None` on a volume that was unmounted.
fn settle(device: &dyn BlockDevice, now: Timestamp, begins: &mut dyn FnMut()) -> Result<Option<String>> {
    let shape = Superblock::read(device)?;
    // What has a journal of its own is refused when it is opened.
    if !shape.is_unclean() || shape.flags & (flag::SUJ | flag::GJOURNAL | flag::NFS4_ACLS_OR_WAPBL) != 0 {
        return Ok(None);
    }
    begins();
    let report = repair_ufs(device, RepairOptions { mode: RepairMode::Preen, now })?;
    match report.left.findings.first() {
        None => Ok(Some(mended(&report))),
        Some(finding) => {
            let problem = format!(
                "it was not unmounted, and {} findings are more than a crash leaves, the first: {} ({}): `fstitch fsck` mends them",
                report.left.total, finding.text, finding.code
            );
            Err(Error::corrupt(Structure::Volume, None, problem))
        }
    }
}

/// What a check has mended, in one line: that the volume is not marked clean is no finding of its own.
fn mended(report: &RepairReport) -> String {
    let mut codes: BTreeMap<&str, u64> = BTreeMap::new();
    for finding in report.found.findings.iter().filter(|finding| finding.code != NOT_CLEAN) {
        *codes.entry(finding.code).or_default() += 1;
    }
    let listed: Vec<String> = codes.iter().map(|(code, count)| format!("{count} {code}")).collect();
    match listed.is_empty() {
        true => "it was not unmounted: checked, nothing was wrong".to_owned(),
        false => format!("it was not unmounted: checked and mended ({})", listed.join(", ")),
    }
}

impl Format for UfsFormat {
    fn names(&self) -> &'static [&'static str] {
        &["ufs1", "ufs2"]
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

    fn settle(
        &self,
        device: &dyn BlockDevice,
        now: Timestamp,
        begins: &mut dyn FnMut(),
    ) -> Result<Option<String>> {
        settle(device, now, begins)
    }

    fn open(
        &self,
        device: Arc<dyn BlockDevice>,
        arrangement: &Arrangement,
        clock: Arc<dyn Clock>,
    ) -> Result<Arc<dyn Volume>> {
        if !arrangement.cache.read_only {
            settle(&*device, clock.now(), &mut || {})?;
        }
        let (fs, _) = arrange::open::<Ufs>(device, arrangement, clock)?;
        Ok(Arc::new(fs))
    }

    fn cached(&self) -> Option<&dyn Cached> {
        Some(self)
    }

    fn tunes(&self) -> Option<&dyn Tunes> {
        Some(self)
    }

    fn describe(
        &self,
        device: &dyn BlockDevice,
        _external: Option<&dyn BlockDevice>,
        _details: bool,
    ) -> Result<Description> {
        let shape = Superblock::read(device)?;
        let (name, label) = (shape.version.name(), String::from_utf8_lossy(&shape.label).into_owned());
        let mut flags: Vec<&str> =
            FLAGS.into_iter().filter(|(flag, _)| shape.flags & flag != 0).map(|(_, name)| name).collect();
        flags.extend((shape.kept_hashes() != 0).then_some("check hashes"));
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

    fn about(&self, kind: &str) -> &'static str {
        match kind {
            "ufs1" => "Make a UFS1 volume, as FreeBSD's newfs would",
            _ => "Make a UFS2 volume, as FreeBSD's newfs would",
        }
    }

    fn words(&self) -> &'static [Word] {
        mkfs::WORDS
    }

    fn uuid_about(&self) -> Option<&'static str> {
        Some(
            "A UUID whose first 8 bytes become the volume's identifier; the time and a random number by default",
        )
    }

    fn plan(&self, asked: &Asked) -> Result<Box<dyn Making>> {
        Ok(Box::new(mkfs::plan(asked)?))
    }

    fn identify(&self, device: &dyn BlockDevice, identity: &Identity) -> Result<()> {
        let half = |uuid: [u8; 16]| {
            [0, 4].map(|at: usize| u32::from_be_bytes(std::array::from_fn(|byte| uuid[at + byte])))
        };
        identify(device, identity.label.as_deref(), identity.uuid.map(half))
    }

    fn is_marked_clean(&self, device: &dyn BlockDevice) -> bool {
        Superblock::read(device).is_ok_and(|shape| !shape.is_unclean())
    }

    fn repair(&self, device: &dyn BlockDevice, options: RepairOptions) -> Result<RepairReport> {
        repair_ufs(device, options)
    }
}

impl Cached for UfsFormat {
    fn choose(&self, device: &dyn BlockDevice, arrangement: &Arrangement) -> Result<Chosen> {
        if !arrangement.cache.read_only {
            may_be_written(device)?;
        }
        Chosen::new::<Ufs>(device, arrangement)
    }

    fn open_in(&self, chosen: Chosen, cache: Arc<Cache>, options: UhfsOptions) -> Result<Arc<dyn Volume>> {
        Ok(Arc::new(chosen.open_in::<Ufs>(cache, options)?))
    }
}

impl Tunes for UfsFormat {
    fn tune(&self, device: &dyn BlockDevice, asked: &Tuning, _now: Timestamp) -> Result<()> {
        let cannot = |what: &str| {
            Err(Error::Unsupported(format!("{what} on a UFS volume, which has no such setting")))
        };
        let mut settings = Settings::default();
        for word in asked.features.iter().flat_map(|list| list.split(',')).map(str::trim) {
            let (name, wanted) = match word.strip_prefix(['^', '-']) {
                Some(name) => (name, false),
                None => (word.strip_prefix('+').unwrap_or(word), true),
            };
            match name {
                "softdep" => settings.soft_updates = Some(wanted),
                "acls" => settings.acls = Some(wanted),
                "ckhash" => settings.check_hashes = Some(wanted),
                _ => {
                    return Err(Error::Unsupported(format!(
                        "feature `{name}`: a UFS volume has `softdep`, `acls` and `ckhash`"
                    )));
                }
            }
        }
        match asked.reserve {
            None => {}
            Some(Reserve::Percent(percent)) => settings.reserved = Some(percent),
            Some(Reserve::Blocks(_)) => return cannot("a number of reserved blocks"),
        }
        if asked.on_error.is_some() {
            return cannot("what a kernel does with damage");
        }
        if asked.mounts_max.is_some() || asked.interval.is_some() {
            return cannot("when a check is due");
        }
        tune(device, settings)
    }
}
