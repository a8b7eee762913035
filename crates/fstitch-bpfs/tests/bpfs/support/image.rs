//! An image that is opened again and again, with a word more each time.
//!
//! It is a file in memory, which is mapped privately: only what is looked at costs, and what opening stores is the opened volume's own.

#![allow(clippy::unwrap_used, reason = "tests fail where they cannot go on")]

use std::collections::BTreeSet;
use std::fs::File;
use std::os::unix::fs::FileExt;

use fstitch_bpfs::Medium;
use rustix::fs::MemfdFlags;

const PAGE: usize = 4096;

/// An image, and what it was before.
pub struct Image {
    bytes: Vec<u8>,
    file: File,
    /// Pages of the file that are not what they are to be yet.
    stale: BTreeSet<usize>,
    /// What was there before the newest stores, to be put back.
    before: Vec<(u64, Vec<u8>)>,
}

impl Image {
    pub fn new(bytes: Vec<u8>) -> Self {
        let file = File::from(rustix::fs::memfd_create("image", MemfdFlags::CLOEXEC).unwrap());
        file.write_all_at(&bytes, 0).unwrap();
        Self { bytes, file, stale: BTreeSet::new(), before: Vec::new() }
    }

    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// A copy of it, to be opened.
    pub fn medium(&mut self) -> Medium {
        for page in std::mem::take(&mut self.stale) {
            let at = page * PAGE;
            let end = self.bytes.len().min(at + PAGE);
            self.file.write_all_at(&self.bytes[at..end], u64::try_from(at).unwrap()).unwrap();
        }
        Medium::file(self.file.try_clone().unwrap(), true).unwrap()
    }

    pub fn apply(&mut self, at: u64, bytes: &[u8]) {
        let from = usize::try_from(at).unwrap();
        self.bytes[from..from + bytes.len()].copy_from_slice(bytes);
        self.stale.extend(from / PAGE..(from + bytes.len()).div_ceil(PAGE));
    }

    /// Where it is now, for [`Image::back_to`].
    pub fn mark(&self) -> usize {
        self.before.len()
    }

    /// As [`Image::apply`], until somebody goes back.
    pub fn apply_for_now(&mut self, at: u64, bytes: &[u8]) {
        let from = usize::try_from(at).unwrap();
        self.before.push((at, self.bytes[from..from + bytes.len()].to_vec()));
        self.apply(at, bytes);
    }

    /// Takes back what was stored for now since `mark`.
    pub fn back_to(&mut self, mark: usize) {
        for (at, bytes) in self.before.split_off(mark).into_iter().rev() {
            self.apply(at, &bytes);
        }
    }
}
