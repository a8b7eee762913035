//! Checking a volume on a device that nobody has open, and mending what can be.
//!
//! It shares nothing with a mount but the constants of the format: blocks are read from the device, and trees, inodes, entries and
//! attributes are taken apart here anew, so that what a mount's scan overlooks is seen, and the other way round.
//!
//! **What is mended** changes single words, from the outside inwards, and is found again if it is cut off:
//!
//! | found | what becomes of it |
//! |---|---|
//! | a pointer that leads out of the volume, or to where another one leads | it is none any more, and its bytes read as zeros |
//! | a tree that is higher than any | it is empty |
//! | a size that cannot be | the file or the directory ends where it can |
//! | an entry that no entry can be | it and what follows in its block are free |
//! | a name that cannot be, or is there twice, or names what is no inode, or a directory that has another name | its entry is free |
//! | attributes that are none | the inode has none |
//! | a copy of the superblock that is another one, or the superblock where its copy is whole | it is written anew from the other |
//! | a log neither of whose headers can be read | it is empty; what was not home is lost, and what was half at home is found by the rest of this |
//!
//! **What is refused:** a superblock that is damaged with its copy, and an inode file with holes or without a root directory. There is
//! nothing on the medium to mend them by.

mod names;
mod trees;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;

use fstitch_core::num::to_usize;
use fstitch_core::{
    BlockDevice, BlockKind, CheckReport, Error, FindingClass, Le, Overlay, RepairMode, RepairOptions,
    RepairReport, Result, Structure,
};

use crate::layout::{Identity, ROOT, ROOT_SLOT};
use crate::log::{self, Pages};
use crate::pm::{BLOCK, BLOCK_BYTES};

/// Bytes of the superblock that its copy has as well.
const COPIED: usize = 128;
/// Rounds of a repair: each may uncover what the one before hid.
const ROUNDS: u32 = 8;

/// A word of the volume that is to be another one.
struct Fix {
    at: u64,
    word: u64,
}

/// A volume that is looked through.
struct Fsck<'a> {
    pages: &'a Pages,
    identity: Identity,
    /// Blocks that something points to.
    used: Vec<u64>,
    /// Where the leaves of the inode file are.
    inodes: Vec<u64>,
    /// Names by inode, of those that have some.
    names: BTreeMap<u64, u32>,
    report: CheckReport,
    fixes: Vec<Fix>,
    /// The block that was read last: what is looked at lies together.
    last: RefCell<(u64, Vec<u8>)>,
}

/// Checks a volume, and mends what `options` allow.
///
/// # Errors
/// Those of the device; `Corrupt` for what cannot be mended, and is not even looked through; `Unsupported` for another version.
pub fn fsck(device: Arc<dyn BlockDevice>, options: RepairOptions) -> Result<RepairReport> {
    let mends = options.mode == RepairMode::Yes;
    let device: Arc<dyn BlockDevice> =
        if options.mode == RepairMode::No { Arc::new(Overlay::new(device)) } else { device };
    let pages = Pages::new(device)?;
    let mut found = CheckReport::default();
    let mut mended = 0;
    let identity = superblock(&pages, options, &mut found, &mut mended)?;
    recover(&pages, &identity, options, &mut found, &mut mended)?;
    let mut left = found.clone();
    let mut runs = 0;
    while runs < ROUNDS {
        runs += 1;
        let round = look(&pages, &identity)?;
        if runs == 1 {
            round.report.findings.iter().for_each(|one| found.push(one.class, one.code, one.text.clone()));
        }
        if mends {
            mended += round.mend()?;
        }
        let is_over = !mends || round.fixes.is_empty();
        left = round.report;
        if is_over {
            break;
        }
    }
    if options.mode != RepairMode::Yes && mended == 0 {
        left = found.clone();
    }
    Ok(RepairReport { found, mended, left, runs: runs.max(1) })
}

/// Who the volume is, by the superblock or its copy.
fn superblock(
    pages: &Pages,
    options: RepairOptions,
    found: &mut CheckReport,
    mended: &mut u64,
) -> Result<Identity> {
    let mut blocks = vec![0; 2 * BLOCK];
    pages.read(0, BlockKind::Superblock, &mut blocks)?;
    let (first, copy) = blocks.split_at_mut(BLOCK);
    let copied = Identity::decode(copy);
    let (identity, place) = match Identity::decode(first) {
        Ok(identity) => {
            if first[..COPIED] != copy[..COPIED] {
                // A rename that was cut off leaves this.
                found.push(FindingClass::Allowed, "superblock-copy", "the superblock's copy is another one");
                copy[..COPIED].copy_from_slice(&first[..COPIED]);
            }
            (identity, 1)
        }
        Err(Error::Corrupt(_)) if copied.is_ok() => {
            found.push(FindingClass::Corrupt, "superblock", "the superblock is damaged, and its copy is not");
            first[..COPIED].copy_from_slice(&copy[..COPIED]);
            (copied?, 0)
        }
        Err(error) => return Err(error),
    };
    let is_allowed = match options.mode {
        RepairMode::No => false,
        RepairMode::Preen => found.corrupt == 0,
        RepairMode::Yes => true,
    };
    if found.total > 0 && is_allowed {
        let block = if place == 0 { &*first } else { &*copy };
        pages.write(&[(place, BlockKind::Superblock, block)])?;
        pages.flush()?;
        *mended += 1;
    }
    if identity.log == 0 {
        return Err(Error::Unsupported("checking a volume without a log, which is one for memory".into()));
    }
    if identity.whole() > pages.count() {
        let what = format!("the volume has {} blocks, and there are {}", identity.whole(), pages.count());
        return Err(Error::corrupt(Structure::Superblock, None, what));
    }
    Ok(identity)
}

/// What is in the log is brought home.
fn recover(
    pages: &Pages,
    identity: &Identity,
    options: RepairOptions,
    found: &mut CheckReport,
    mended: &mut u64,
) -> Result<()> {
    match log::look(pages, identity) {
        Ok(there) if there.groups > 0 || there.was_open => {
            log::Log::open(pages.clone(), identity, true)?.0.close(&|_| Vec::new())
        }
        Ok(_) => Ok(()),
        Err(Error::Corrupt(why)) => {
            found.push(FindingClass::Corrupt, "log", format!("the log cannot be read: {why}"));
            if options.mode == RepairMode::Yes {
                let epoch = options.now.secs.unsigned_abs() << 32 | 1;
                log::make(pages, &identity.log_shape(), epoch)?;
                pages.flush()?;
                *mended += 1;
            }
            Ok(())
        }
        Err(error) => Err(error),
    }
}

/// Looks through all of a volume.
fn look<'a>(pages: &'a Pages, identity: &Identity) -> Result<Fsck<'a>> {
    let words = to_usize(identity.blocks.div_ceil(64));
    let mut fsck = Fsck {
        pages,
        identity: identity.clone(),
        used: vec![0; words],
        inodes: Vec::new(),
        names: BTreeMap::new(),
        report: CheckReport::default(),
        fixes: Vec::new(),
        last: RefCell::default(),
    };
    if fsck.inode_file()? {
        fsck.all_names(ROOT.get())?;
    }
    Ok(fsck)
}

impl Fsck<'_> {
    fn block(&self, number: u64) -> Result<Vec<u8>> {
        let mut bytes = vec![0; BLOCK];
        self.pages.read(number, BlockKind::Data, &mut bytes)?;
        Ok(bytes)
    }

    fn word(&self, at: u64) -> Result<u64> {
        let number = at / BLOCK_BYTES;
        let mut last = self.last.borrow_mut();
        if last.1.is_empty() || last.0 != number {
            *last = (number, self.block(number)?);
        }
        Ok(Le::u64(&last.1, to_usize(at % BLOCK_BYTES)))
    }

    fn say(&mut self, code: &'static str, text: String) {
        self.report.push(FindingClass::Corrupt, code, text);
    }

    /// Something is wrong, and right with another word.
    fn fix(&mut self, code: &'static str, text: String, fix: Fix) {
        self.say(code, text);
        self.fixes.push(fix);
    }

    /// The top of the inode file.
    fn top(&self) -> Result<u64> {
        self.word(ROOT_SLOT)
    }

    /// Writes the words that are to be others; how many.
    fn mend(&self) -> Result<u64> {
        if self.fixes.is_empty() {
            return Ok(0);
        }
        let mut blocks: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
        for Fix { at, word } in &self.fixes {
            let number = at / BLOCK_BYTES;
            let bytes = match blocks.entry(number) {
                Entry::Occupied(there) => there.into_mut(),
                Entry::Vacant(new) => new.insert(self.block(number)?),
            };
            Le::put_u64(bytes, to_usize(at % BLOCK_BYTES), *word);
        }
        for (number, bytes) in &blocks {
            self.pages.write(&[(*number, BlockKind::Data, bytes)])?;
        }
        self.pages.flush()?;
        Ok(fstitch_core::num::to_u64(self.fixes.len()))
    }
}
