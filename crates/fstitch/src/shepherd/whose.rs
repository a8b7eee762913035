//! Damaged blocks by the names of what they belong to.

use std::collections::BTreeSet;
use std::fmt::Write;

use anyhow::{Context, Result};
use fstitch_core::{BlockDevice, BlockNo};
use fstitch_formats::{Format, Owner, Owners};
use serde::{Deserialize, Serialize};

/// Owners that are named.
const OWNERS_MAX: usize = 1000;
/// Owners that a sentence names.
const SENTENCE_MAX: usize = 3;

/// Whom blocks belong to. Field names are a contract (`docs/control-socket.md`).
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq, Eq)]
pub struct Whose {
    /// In the order of the volume's structures, then of inodes.
    pub owners: Vec<Named>,
    /// Blocks of others, who are too many to be named.
    pub others: u64,
    /// Blocks that could not be read while names were looked for.
    pub unread: u64,
}

/// One of them.
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq, Eq)]
pub struct Named {
    /// What the blocks are to it, a word for programs.
    pub role: String,
    /// The group, of what a group has.
    pub group: Option<u32>,
    /// The inode, of what a file or directory has.
    pub inode: Option<u64>,
    /// Its names, at most eight, from the root on; none if none was found.
    pub paths: Vec<String>,
    /// How many of the blocks.
    pub blocks: u64,
    /// The first of them.
    pub first_block: u64,
    /// All of it for people.
    pub text: String,
}

impl From<Owner> for Named {
    fn from(owner: Owner) -> Self {
        Self {
            role: owner.role.name().to_owned(),
            group: owner.group,
            inode: owner.inode.map(|ino| ino.0),
            paths: owner.paths.iter().map(|path| fstitch_formats::whose::shown(path)).collect(),
            blocks: owner.blocks,
            first_block: owner.first.get(),
            text: owner.to_string(),
        }
    }
}

/// Names whom blocks belong to. A format that cannot say names nobody.
pub fn name(format: &dyn Format, device: &dyn BlockDevice, blocks: &[BlockNo]) -> Result<Whose> {
    let Some(names) = format.names_blocks().filter(|_| !blocks.is_empty()) else {
        return Ok(Whose::default());
    };
    let asked: BTreeSet<BlockNo> = blocks.iter().copied().collect();
    let found = names.whose(device, &asked, OWNERS_MAX).context("looking for the names of damaged files")?;
    Ok(found.into())
}

impl From<Owners> for Whose {
    fn from(found: Owners) -> Self {
        let owners = found.owners.into_iter().map(Named::from).collect();
        Self { owners, others: found.others, unread: found.unread }
    }
}

impl Whose {
    /// How many blocks all of them have.
    pub fn blocks(&self) -> u64 {
        self.others + self.owners.iter().map(|owner| owner.blocks).sum::<u64>()
    }

    /// Adds what was found elsewhere.
    pub fn add(&mut self, other: Self) {
        for owner in other.owners {
            let same = |known: &&mut Named| {
                (&known.role, known.group, known.inode) == (&owner.role, owner.group, owner.inode)
            };
            match self.owners.iter_mut().find(same) {
                Some(known) => known.blocks += owner.blocks,
                None => self.owners.push(owner),
            }
        }
        self.others += other.others;
        self.unread = self.unread.max(other.unread);
    }

    /// A line for each owner, which begins with `what`.
    pub fn describe(&self, what: &str) -> String {
        let mut shown = String::new();
        // Writing to a string cannot fail.
        for owner in &self.owners {
            let blocks = if owner.blocks == 1 { "block" } else { "blocks" };
            let _ = writeln!(shown, "  {what:<20} {} ({} {blocks})", owner.text, owner.blocks);
        }
        if self.others > 0 {
            let _ = writeln!(shown, "  {what:<20} and {} blocks of others", self.others);
        }
        if self.unread > 0 {
            let _ = writeln!(
                shown,
                "  {} blocks could not be read while names were looked for: who is named there is not found",
                self.unread
            );
        }
        shown
    }

    /// The first of them for a sentence.
    pub fn some(&self) -> String {
        let texts: Vec<&str> =
            self.owners.iter().take(SENTENCE_MAX).map(|owner| owner.text.as_str()).collect();
        match self.owners.len().saturating_sub(SENTENCE_MAX) {
            0 => texts.join("; "),
            more => format!("{}; and {more} others", texts.join("; ")),
        }
    }
}
