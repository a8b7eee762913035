//! Making a volume, as mke2fs would.

use fstitch_core::{Error, Result};
use fstitch_fs::ext2::mkfs::{MkfsFeatures, MkfsJournal, MkfsOptions, MkfsSummary, mkfs};
use serde::Serialize;
use serde_json::Value;

use crate::make::{Asked, AskedJournal, Fresh, Made, Making, Word, WordKind};

/// The words of mke2fs that are not everybody's.
pub const WORDS: &[Word] = &[
    Word {
        name: "inode-size",
        letter: Some('I'),
        value: "BYTES",
        about: "Bytes per inode: 128, 256, … up to the block size",
        kind: WordKind::Number(0, u32::MAX as u64, None),
    },
    Word {
        name: "inodes",
        letter: Some('N'),
        value: "COUNT",
        about: "Number of inodes",
        kind: WordKind::Number(0, u32::MAX as u64, None),
    },
    Word {
        name: "bytes-per-inode",
        letter: Some('i'),
        value: "BYTES",
        about: "One inode for so many bytes of the volume",
        kind: WordKind::Number(0, u64::MAX, None),
    },
    Word {
        name: "reserved",
        letter: Some('m'),
        value: "PERCENT",
        about: "Percent of the blocks that only the superuser may use",
        kind: WordKind::Number(0, 50, Some("5")),
    },
    Word {
        name: "features",
        letter: Some('O'),
        value: "LIST",
        about: "Features, ^NAME to switch one off: has_journal, ext_attr, resize_inode, dir_index, sparse_super2, stable_inodes, orphan_file, filetype, meta_bg, extent, 64bit, flex_bg, ea_inode, metadata_csum_seed, large_dir, inline_data, sparse_super, large_file, huge_file, uninit_bg, dir_nlink, extra_isize, quota, bigalloc, metadata_csum, project; `none` for none",
        kind: WordKind::List,
    },
    Word {
        name: "cluster-size",
        letter: Some('C'),
        value: "BYTES",
        about: "With bigalloc: what is taken at once, a power of two; 16 blocks by default",
        kind: WordKind::Number(1, 1 << 28, None),
    },
    Word {
        name: "groups-per-flex",
        letter: Some('G'),
        value: "COUNT",
        about: "With flex_bg: how many groups have their bitmaps and inode tables together, a power of two; 16 by default",
        kind: WordKind::Number(1, 1 << 20, None),
    },
    Word {
        name: "revision",
        letter: Some('r'),
        value: "REVISION",
        about: "Revision of the format, 0 or 1",
        kind: WordKind::Number(0, 1, Some("1")),
    },
];

/// A volume that is to be made.
pub struct Plan {
    kind: &'static str,
    options: MkfsOptions,
}

/// What was made. Field names are a contract.
#[derive(Serialize)]
struct Shown {
    block_size_bytes: u32,
    cluster_size_bytes: u32,
    blocks: u64,
    groups: u64,
    inodes: u64,
    inode_size_bytes: u32,
    free_blocks: u64,
    reserved_blocks: u64,
    journal_blocks: Option<u32>,
    uuid: String,
    superblock_backups: Vec<u64>,
}

/// Takes what was asked for apart.
pub fn plan(asked: &Asked) -> Result<Plan> {
    if let Some(bytes) = asked.block_size.filter(|&bytes| !super::is_block_size(bytes)) {
        let why = format!("blocks of {bytes} bytes: a power of two from 1024 to 65536 is possible");
        return Err(Error::Unsupported(why));
    }
    let seed = if asked.is_repeatable { MkfsOptions::hash_seed_for(&asked.uuid) } else { asked.random };
    let mut options = MkfsOptions::new(asked.uuid, seed, asked.now);
    options.block_size = asked.block_size;
    options.cluster_size = asked.number("cluster-size");
    options.inode_size = asked.number("inode-size");
    options.inodes = asked.number("inodes");
    options.bytes_per_inode = asked.number("bytes-per-inode");
    options.label.clone_from(&asked.label);
    options.reserved_percent = asked.number("reserved").unwrap_or(options.reserved_percent);
    options.revision = asked.number("revision").unwrap_or(options.revision);
    options.root_owner = asked.root_owner;
    if asked.kind == "ext4" && options.revision == 0 {
        return Err(Error::Unsupported("an ext4 volume of revision 0, which has no features".into()));
    }
    options.groups_per_flex = asked.number("groups-per-flex");
    options.features = match asked.kind {
        "ext4" => MkfsFeatures::EXT4,
        "ext3" => MkfsFeatures { has_journal: true, ..MkfsFeatures::EXT2 },
        _ => MkfsFeatures::EXT2,
    };
    for list in asked.values("features") {
        options.features.apply(list).map_err(|error| name_culprit(error, "-O", list))?;
    }
    for list in &asked.extended {
        extend(&mut options, list).map_err(|error| name_culprit(error, "-E", list))?;
    }
    let has_journal = options.features.has_journal;
    options.journal = match asked.journal {
        AskedJournal::Usual if has_journal => MkfsJournal::Suitable,
        AskedJournal::Usual | AskedJournal::None => MkfsJournal::None,
        AskedJournal::Bytes(_) if asked.kind != "ext2" && !has_journal => {
            return Err(Error::Unsupported("a size of the journal together with `-O ^has_journal`".into()));
        }
        AskedJournal::Bytes(bytes) => MkfsJournal::Bytes(bytes),
    };
    Ok(Plan { kind: asked.kind, options })
}

fn name_culprit(error: Error, letter: &str, list: &str) -> Error {
    Error::Unsupported(format!("{error}, in `{letter} {list}`"))
}

/// `hash_seed=UUID` has a value of its own form; the rest are words of the format.
fn extend(options: &mut MkfsOptions, list: &str) -> Result<()> {
    let (seeds, others): (Vec<&str>, Vec<&str>) =
        list.split(',').partition(|word| word.starts_with("hash_seed="));
    for word in seeds {
        let text = word.trim_start_matches("hash_seed=");
        options.hash_seed = crate::show::parse_uuid(text)
            .ok_or_else(|| Error::Unsupported(format!("`hash_seed={text}`: it has the form of a UUID")))?;
    }
    options.apply_extended(&others.join(","))
}

impl Making for Plan {
    fn name(&self) -> &'static str {
        match self.kind {
            "ext4" => "ext4",
            _ if self.options.features.is_of_ext4() => "ext4",
            _ if matches!(self.options.journal, MkfsJournal::None) => "ext2",
            _ => "ext3",
        }
    }

    fn make(&self, fresh: Fresh<'_>, progress: &mut dyn FnMut(u64, u64)) -> Result<Made> {
        let mut options = self.options.clone();
        options.device_is_zero = fresh.is_zero;
        if let (false, Some(bytes), Some(block_size)) = (fresh.is_zero, fresh.bytes, options.block_size) {
            options.blocks = Some(bytes / u64::from(block_size));
        }
        let summary = mkfs(fresh.device, &options, progress)?;
        made(self.name(), &options, &summary)
    }
}

fn made(name: &'static str, options: &MkfsOptions, summary: &MkfsSummary) -> Result<Made> {
    let shown = Shown {
        block_size_bytes: summary.block_size,
        cluster_size_bytes: summary.cluster_size,
        blocks: summary.blocks,
        groups: summary.groups,
        inodes: summary.inodes,
        inode_size_bytes: summary.inode_size,
        free_blocks: summary.free_blocks,
        reserved_blocks: summary.reserved_blocks,
        journal_blocks: summary.journal_blocks,
        uuid: crate::show::uuid(&options.uuid),
        superblock_backups: summary.backups.iter().map(|block| block.get()).collect(),
    };
    let values = serde_json::to_value(&shown).map_err(|error| Error::Unsupported(error.to_string()))?;
    let Value::Object(values) = values else { unreachable!("a struct is an object") };
    Ok(Made {
        name,
        block_size: summary.block_size,
        blocks: summary.blocks,
        form: None,
        inodes: Some(summary.inodes),
        values,
    })
}
