//! An image in memory: where things are in it, and right sums for what is changed.

use std::path::PathBuf;

use fstitch_core::num::{to_u64, to_usize};
use fstitch_core::{MemDevice, RepairMode};
use fstitch_fs::ext2::layout::checksum::{InodeSums, place};
use fstitch_fs::ext2::layout::feature::compat;
use fstitch_fs::ext2::layout::inode::I_GENERATION;
use fstitch_fs::ext2::layout::superblock::{S_FEATURE_COMPAT, SUPERBLOCK_SIZE, Superblock};

use crate::repair::repair;
use crate::support::{Scratch, e2fsck, e2fsck_image, run};

/// An image and what debugfs says of it, as it was at first.
pub struct Image {
    pub bytes: Vec<u8>,
    pub shape: Superblock,
    path: PathBuf,
}

impl Image {
    /// The image `bytes`, of which a copy is kept in a file for debugfs.
    pub fn new(scratch: &Scratch, bytes: Vec<u8>) -> Self {
        let path = scratch.path("located");
        std::fs::write(&path, &bytes).expect("room for the image");
        let raw = &bytes[SUPERBLOCK_SIZE..2 * SUPERBLOCK_SIZE];
        let shape = Superblock::parse(raw, to_u64(bytes.len())).expect("a sound superblock");
        Self { bytes, shape, path }
    }

    fn ask(&self, question: &str) -> String {
        run("debugfs", &["-R", question, self.path.to_str().expect("plain path")]).1
    }

    fn block_size(&self) -> usize {
        usize::try_from(self.shape.block_size).expect("small")
    }

    /// Where a block is.
    pub fn at(&self, block: u64) -> usize {
        to_usize(block) * self.block_size()
    }

    /// A block's bytes.
    pub fn block(&mut self, block: u64) -> &mut [u8] {
        let (at, len) = (self.at(block), self.block_size());
        &mut self.bytes[at..at + len]
    }

    /// The number of an inode, and where it is.
    pub fn inode(&self, name: &str) -> (u32, usize) {
        let text = self.ask(&format!("imap {name}"));
        let numbers: Vec<&str> = text.split([' ', ',', '\n']).filter(|word| !word.is_empty()).collect();
        let after = |word: &str| {
            let at = numbers.iter().position(|&found| found == word).expect("what debugfs prints");
            numbers[at + 1]
        };
        let offset =
            usize::from_str_radix(after("offset").trim_start_matches("0x"), 16).expect("hexadecimal");
        let block = after("block").parse().or_else(|_| after("at").parse::<u64>());
        let block = block.unwrap_or_else(|_| {
            let at = text.find("located at block ").expect("the block") + "located at block ".len();
            text[at..].split(',').next().expect("a number").parse().expect("a number")
        });
        (after("Inode").parse().expect("a number"), self.at(block) + offset)
    }

    /// The bytes of an inode.
    pub fn inode_bytes(&mut self, name: &str) -> &mut [u8] {
        let (_, at) = self.inode(name);
        let len = usize::from(self.shape.inode_size);
        &mut self.bytes[at..at + len]
    }

    /// Block `at` of a file.
    pub fn file_block(&self, name: &str, at: u32) -> u64 {
        let text = self.ask(&format!("bmap {name} {at}"));
        text.lines().find_map(|line| line.trim().parse().ok()).expect("a block number")
    }

    /// The first node at this depth of a file's tree.
    pub fn node(&self, name: &str, depth: u32) -> u64 {
        self.nodes(name, depth)[0]
    }

    /// The nodes at this depth of a file's tree.
    pub fn nodes(&self, name: &str, depth: u32) -> Vec<u64> {
        let text = self.ask(&format!("ex {name}"));
        // A line of a node: "level/ levels  entry/ entries  first - last  block  count".
        let above = format!("{}/", depth - 1);
        let lines = text.lines().filter(|line| line.trim_start().starts_with(&above));
        let numbers = lines.map(|line| line.split([' ', '/', '-']).filter(|word| !word.is_empty()));
        numbers
            .map(|mut words| words.nth(6).and_then(|word| word.parse().ok()).expect("a node above"))
            .collect()
    }

    /// The sums of what belongs to an inode.
    fn owner(&self, name: &str) -> InodeSums {
        let (ino, at) = self.inode(name);
        self.shape.sums.of_inode(ino, I_GENERATION.get(&self.bytes[at..]))
    }

    /// Gives an inode its right sum.
    pub fn seal_inode(&mut self, name: &str) {
        let ((ino, _), sums) = (self.inode(name), self.shape.sums);
        sums.seal_inode(ino, self.inode_bytes(name));
    }

    /// Gives an extent node its right sum.
    pub fn seal_node(&mut self, name: &str, block: u64) {
        let owner = self.owner(name);
        let bytes = self.block(block);
        if let Some(sum) = owner.extent_node(bytes) {
            place(bytes, sum);
        }
    }

    /// Gives a leaf of a directory its right sum.
    pub fn seal_leaf(&mut self, name: &str, block: u64) {
        let owner = self.owner(name);
        let bytes = self.block(block);
        if let Some(sum) = owner.directory_leaf(bytes) {
            place(bytes, sum);
        }
    }

    /// Gives a block of an index its right sum, by where its counts are.
    pub fn seal_index(&mut self, name: &str, block: u64, counts: usize) {
        let owner = self.owner(name);
        let bytes = self.block(block);
        if let Some(sum) = owner.directory_index(bytes, counts) {
            place(bytes, sum);
        }
    }

    /// Gives the descriptor of `group` its right sum.
    pub fn seal_descriptor(&mut self, group: u32) {
        let sums = self.shape.sums;
        sums.seal_descriptor(group, self.descriptor(group));
    }

    /// The bytes of the descriptor of `group`.
    pub fn descriptor(&mut self, group: u32) -> &mut [u8] {
        let ((block, offset), len) = (self.shape.descriptor_place(group), self.shape.descriptor_size());
        let at = self.at(block) + offset;
        &mut self.bytes[at..at + len]
    }

    /// The superblock's bytes.
    pub fn superblock(&mut self) -> &mut [u8] {
        &mut self.bytes[SUPERBLOCK_SIZE..2 * SUPERBLOCK_SIZE]
    }
}

/// What a repair made of an image, by the reference.
pub struct Mended {
    /// What `e2fsck -fn` answers to our repair, with what it printed.
    pub verdict: (i32, String),
    /// Inodes in use after our repair.
    pub files: i64,
    /// The same of `e2fsck -fy`, if that left a sound volume, with what it made.
    pub reference: Option<(i64, Vec<u8>)>,
    /// The volume as we mended it.
    pub image: Vec<u8>,
}

/// Whether a volume has a file for orphans.
fn has_orphan_file(image: &[u8]) -> bool {
    S_FEATURE_COMPAT.get(&image[SUPERBLOCK_SIZE..]) & compat::ORPHAN_FILE != 0
}

/// How many files `e2fsck` counts in what it printed.
fn files(text: &str) -> i64 {
    let line = text.lines().rev().find(|line| line.contains(" files (")).unwrap_or_default();
    let counts = line.split_whitespace().nth(1).unwrap_or_default();
    counts.split('/').next().and_then(|count| count.parse().ok()).unwrap_or(-1)
}

/// What a repair did not mend.
pub struct Unmended {
    /// What was found and what is left, in words.
    pub text: String,
    /// The codes of what is left; none where the volume could not be read.
    pub left: Vec<&'static str>,
}

/// Repairs `bytes`; nothing is left for us, or what is.
pub fn mended(scratch: &Scratch, name: &str, bytes: Vec<u8>) -> Result<Mended, Unmended> {
    let path = scratch.path("reference");
    std::fs::write(&path, &bytes).expect("room for the image");
    let before = bytes[..2 * SUPERBLOCK_SIZE].to_vec();
    let device = MemDevice::from_image(1024, bytes);
    let report = repair(&device, RepairMode::Yes)
        .map_err(|error| Unmended { text: format!("{name}: {error}"), left: Vec::new() })?;
    if !report.left.is_clean() {
        let (found, left) = (&report.found.findings, &report.left.findings);
        let text = format!("{name}: found {found:#?}\nleft {left:#?}");
        return Err(Unmended { text, left: left.iter().map(|finding| finding.code).collect() });
    }
    let image = device.image();
    let verdict = e2fsck_image(scratch, "mended", &image);
    // One run is not always enough.
    for _ in 0..2 {
        run("e2fsck", &["-fy", path.to_str().expect("plain path")]);
    }
    let (code, text) = e2fsck(&path);
    // What it was made to write far behind the volume makes the image as long.
    let long = std::fs::metadata(&path).expect("the image").len() > 4 * image.len() as u64;
    let reference = (code == 0 && !long).then(|| (files(&text), std::fs::read(&path).expect("the image")));
    // An orphan file that was given up with its feature is no file that anybody misses.
    let given_up = has_orphan_file(&before) && !has_orphan_file(&image);
    Ok(Mended { files: files(&verdict.1) + i64::from(given_up), verdict, reference, image })
}
