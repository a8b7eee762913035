//! Making a volume, as newfs would.

use fstitch_core::{Error, Result};
use fstitch_fs::ufs::layout::superblock::Version;
use fstitch_fs::ufs::mkfs::{MkfsOptions, MkfsSummary, Optimise, mkfs};
use fstitch_fs::ufs::order::Order;
use serde_json::{Map, Value};

use crate::make::{Asked, AskedJournal, Fresh, Made, Making, Word, WordKind};

/// The largest number that newfs takes.
const MOST: u64 = 0x7fff_ffff;

/// The words of newfs that are not everybody's, under its letters where these are not somebody else's.
pub(super) const WORDS: &[Word] = &[
    Word {
        name: "fragment-size",
        letter: Some('f'),
        value: "BYTES",
        about: "Bytes per fragment, a power of two: 512 at least, from an eighth of a block to a block; 4096 by default",
        kind: WordKind::Number(0, u32::MAX as u64, None),
    },
    Word {
        name: "bytes-per-inode",
        letter: Some('i'),
        value: "BYTES",
        about: "One inode for so many bytes of the volume; 2 fragments by default",
        kind: WordKind::Number(1, MOST, None),
    },
    Word {
        name: "reserved",
        letter: Some('m'),
        value: "PERCENT",
        about: "Percent of the volume that only the superuser may use",
        kind: WordKind::Number(0, 99, Some("8")),
    },
    Word {
        name: "optimise",
        letter: Some('o'),
        value: "FOR",
        about: "What allocation prefers; `usual` is time, unless less than 8 percent are reserved",
        kind: WordKind::OneOf(&["usual", "time", "space"], "usual"),
    },
    Word {
        name: "order",
        letter: None,
        value: "ORDER",
        about: "The byte order of the machines that are to use the volume",
        kind: WordKind::OneOf(&["little", "big"], "little"),
    },
    Word {
        name: "soft-updates",
        letter: None,
        value: "",
        about: "Have BSDs use soft updates (-U of newfs)",
        kind: WordKind::Flag,
    },
    Word {
        name: "contiguous",
        letter: Some('a'),
        value: "BLOCKS",
        about: "Blocks that are laid out together at most; a mebibyte of them by default",
        kind: WordKind::Number(1, MOST, None),
    },
    Word {
        name: "fragments-per-group",
        letter: Some('c'),
        value: "COUNT",
        about: "Fragments of a cylinder group at most, but for what its inodes need; as many as can be described by default",
        kind: WordKind::Number(1, MOST, None),
    },
    Word {
        name: "blocks-per-file",
        letter: Some('e'),
        value: "BLOCKS",
        about: "Blocks that a file has in a group before it goes on in another; an eighth of the bytes of a block by default",
        kind: WordKind::Number(1, MOST, None),
    },
    Word {
        name: "metadata-fragments",
        letter: Some('k'),
        value: "COUNT",
        about: "Fragments of a group that are kept for directories and blocks of pointers; half of what is reserved by default",
        kind: WordKind::Number(0, MOST, None),
    },
    Word {
        name: "average-file",
        letter: Some('g'),
        value: "BYTES",
        about: "Bytes of a file, as expected",
        kind: WordKind::Number(1, MOST, Some("16384")),
    },
    Word {
        name: "average-directory",
        letter: None,
        value: "FILES",
        about: "Files of a directory, as expected (-h of newfs)",
        kind: WordKind::Number(1, MOST, Some("64")),
    },
    Word {
        name: "snap",
        letter: None,
        value: "",
        about: "Make the directory `.snap`, in which FreeBSD keeps snapshots",
        kind: WordKind::Flag,
    },
    Word {
        name: "lost-found",
        letter: None,
        value: "",
        about: "Make the directory `lost+found`, which fsck makes otherwise when it needs it",
        kind: WordKind::Flag,
    },
];

/// A volume that is to be made.
pub(super) struct Plan(MkfsOptions);

/// The identifier: what was chosen, or time and chance, as newfs has it.
fn identifier(asked: &Asked) -> [u32; 2] {
    let word = |at: usize| u32::from_be_bytes(std::array::from_fn(|byte| asked.uuid[at + byte]));
    if asked.is_repeatable {
        return [word(0), word(4)];
    }
    let seconds = asked.now.secs & i64::from(u32::MAX);
    [u32::try_from(seconds).unwrap_or_default(), word(0)]
}

/// Takes what was asked for apart.
pub(super) fn plan(asked: &Asked) -> Result<Plan> {
    if !matches!(asked.journal, AskedJournal::Usual | AskedJournal::None) {
        return Err(Error::Unsupported("a journal in a UFS volume".into()));
    }
    if let Some(word) = asked.extended.iter().flat_map(|list| list.split(',')).find(|word| !word.is_empty()) {
        return Err(Error::Unsupported(format!("the extended option `{word}`")));
    }
    let version = if asked.kind == "ufs1" { Version::One } else { Version::Two };
    let mut options = MkfsOptions::new(version, identifier(asked), asked.now);
    options.label.clone_from(&asked.label);
    options.owner = asked.root_owner;
    options.block_size = asked.block_size;
    options.fragment_size = asked.number("fragment-size");
    options.bytes_per_inode = asked.number("bytes-per-inode");
    options.min_free = asked.number("reserved").unwrap_or(options.min_free);
    options.optimise = match asked.values("optimise").last() {
        Some("time") => Some(Optimise::Time),
        Some("space") => Some(Optimise::Space),
        _ => None,
    };
    options.order = match asked.values("order").last() {
        Some("big") => Order::Big,
        _ => Order::Little,
    };
    options.soft_updates = asked.has("soft-updates");
    options.max_contiguous = asked.number("contiguous");
    options.fragments_per_group = asked.number("fragments-per-group");
    options.blocks_per_file = asked.number("blocks-per-file");
    options.metadata_fragments = asked.number("metadata-fragments");
    options.average_file_bytes = asked.number("average-file").unwrap_or(options.average_file_bytes);
    options.average_directory_files =
        asked.number("average-directory").unwrap_or(options.average_directory_files);
    options.snap = asked.has("snap");
    options.lost_found = asked.has("lost-found");
    options.validate()?;
    Ok(Plan(options))
}

impl Making for Plan {
    fn name(&self) -> &'static str {
        self.0.version.name()
    }

    fn unit(&self) -> Option<u32> {
        // What cannot be a fragment is refused when the volume is made.
        let asked =
            self.0.fragment_size.filter(|size| size.is_power_of_two() && (512..=65_536).contains(size));
        Some(asked.unwrap_or(1024))
    }

    fn make(&self, fresh: Fresh<'_>, progress: &mut dyn FnMut(u64, u64)) -> Result<Made> {
        let mut options = self.0.clone();
        options.device_is_zero = fresh.is_zero;
        options.size = fresh.bytes.map(|bytes| bytes.min(fresh.device.geometry().bytes()));
        let summary = mkfs(fresh.device, &options, progress)?;
        Ok(made(&options, &summary))
    }
}

fn made(options: &MkfsOptions, summary: &MkfsSummary) -> Made {
    let (plan, totals) = (&summary.plan, summary.totals);
    let frag = u64::from(plan.fragments_per_block());
    let inodes = u64::from(plan.groups) * u64::from(plan.group_inodes);
    // As `fsck_ffs -b` takes them.
    let sectors = u64::from(plan.fragment_size / 512);
    let copy = |group| (plan.group_start(group) + u64::from(plan.parts[0])) * sectors;
    let copies: Vec<Value> = (0..plan.groups).map(|group| copy(group).into()).collect();
    let values = [
        ("format", Value::from(plan.version.name())),
        ("byte_order", plan.order.name().into()),
        ("block_size_bytes", plan.block_size.into()),
        ("fragment_size_bytes", plan.fragment_size.into()),
        ("blocks", (plan.fragments / frag).into()),
        ("fragments", plan.fragments.into()),
        ("free_fragments", (totals.blocks * frag + totals.fragments).into()),
        ("groups", plan.groups.into()),
        ("fragments_per_group", plan.group_fragments.into()),
        ("inodes", inodes.into()),
        ("inodes_per_group", plan.group_inodes.into()),
        ("free_inodes", totals.inodes.into()),
        ("identifier", format!("{:08x}{:08x}", options.id[0], options.id[1]).into()),
        ("superblock_backup_sectors", copies.into()),
    ];
    Made {
        name: plan.version.name(),
        block_size: plan.fragment_size,
        blocks: plan.fragments,
        form: Some(format!("fragments of {} bytes, blocks of {}", plan.fragment_size, plan.block_size)),
        inodes: Some(inodes),
        values: Map::from_iter(values.map(|(name, value)| (name.to_owned(), value))),
    }
}
