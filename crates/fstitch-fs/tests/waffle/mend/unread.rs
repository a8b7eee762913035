//! What the medium does not give is told with its owner, and stays as it is; what can be mended without it is.

use std::sync::Arc;

use fstitch_core::{
    BlockDevice, BlockNo, BlockRead, BlockWrite, Error, Geometry, IoOp, MemDevice, RepairMode, RepairOptions,
    Result, Timestamp,
};
use fstitch_fs::waffle::layout::pointer::Ref;
use fstitch_fs::waffle::{Root, check};

use super::files;
use crate::damage::{believed, block, inode_of, populated};

/// A medium that fails to read one block, or to write any.
struct Failing {
    device: Arc<MemDevice>,
    unread: u64,
    fails_writes: bool,
}

fn failed(op: IoOp, block: u64) -> Error {
    Error::io(op, BlockNo(block), std::io::Error::other("a bad sector"))
}

impl BlockDevice for Failing {
    fn geometry(&self) -> Geometry {
        self.device.geometry()
    }

    fn read(&self, reads: &mut [BlockRead<'_>]) -> Result<()> {
        match reads.iter().any(|read| read.block.get() == self.unread) {
            true => Err(failed(IoOp::Read, self.unread)),
            false => self.device.read(reads),
        }
    }

    fn write(&self, writes: &[BlockWrite<'_>]) -> Result<()> {
        if self.fails_writes {
            Err(failed(IoOp::Write, writes[0].block.get()))
        } else {
            self.device.write(writes)
        }
    }

    fn flush(&self) -> Result<()> {
        self.device.flush()
    }

    fn discard(&self, start: BlockNo, count: u64) -> Result<()> {
        self.device.discard(start, count)
    }
}

const YES: RepairOptions = RepairOptions { mode: RepairMode::Yes, now: Timestamp { secs: 5000, nanos: 0 } };

/// The populated volume, and its blocks of all kinds: what each is, and whose.
fn kinds(image: &[u8]) -> Vec<(&'static str, u64, String)> {
    let bytes = |number: u64| &image[usize::try_from(number).unwrap() * 4096..][..4096];
    let root = Root::find(image).unwrap().unwrap();
    let inodes = Ref::read(bytes(root.trees.root.block), 40).block;
    let of = |(leaf, at): (u64, usize)| {
        let leaf_no = (0..128).find(|&slot| Ref::slot(bytes(inodes), slot).block == leaf).unwrap();
        (&bytes(leaf)[at..at + 256], format!("inode {}", leaf_no * 16 + at / 256))
    };
    let (large, of_large) = of(inode_of(image, 0x8000, 700_000));
    let (dir, of_dir) = of(inode_of(image, 0x4000, 140));
    let top = Ref::read(large, 96).block;
    let node = Ref::slot(bytes(top), 0).block;
    let names = Ref::read(dir, 96).block;
    let of_inodes = "inodes".to_owned();
    vec![
        ("contents", Ref::slot(bytes(node), 7).block, of_large.clone()),
        ("a node of contents", node, of_large.clone()),
        ("attributes", Ref::slot(bytes(Ref::read(large, 128).block), 1).block, of_large),
        ("inodes", Ref::slot(bytes(inodes), 2).block, of_inodes.clone()),
        ("a node of inodes", inodes, of_inodes),
        ("names", Ref::slot(bytes(names), 1).block, of_dir.clone()),
        ("a node of names", names, of_dir),
    ]
}

#[test]
fn a_block_that_cannot_be_read_is_told_and_the_rest_is_mended() {
    let image = populated();
    let before = files(&Arc::new(MemDevice::from_image(4096, image.clone())));
    let mut damaged = image.clone();
    // The links of the long symbolic link.
    let (leaf, at) = inode_of(&image, 0xa000, 300);
    block(&mut damaged, leaf).unwrap()[at + 4] = 7;
    believed(&mut damaged);
    for (what, unread, owner) in kinds(&damaged) {
        let device = Arc::new(MemDevice::from_image(4096, damaged.clone()));
        let failing = Failing { device: Arc::clone(&device), unread, fails_writes: false };
        let report = check::repair(Arc::new(failing), YES).unwrap();
        let is_told = report
            .left
            .findings
            .iter()
            .any(|finding| finding.code == "block-damaged" && finding.text.contains(&owner));
        assert!(is_told, "{what}: {:#?}", report.left.findings);
        let is_mended = !report.left.findings.iter().any(|finding| finding.code == "links");
        let is_of_file = ["contents", "a node of contents", "attributes"].contains(&what);
        assert_eq!(is_mended && report.mended > 0, is_of_file, "{what}: {:#?}", report.left.findings);
        // Later the block can be read.
        let found = check::check(Arc::clone(&device) as _).unwrap();
        assert_eq!(found.total, u64::from(!is_of_file), "{what}: {:#?}", found.findings);
        assert!(found.findings.iter().all(|finding| finding.code == "links"), "{what}");
        assert!(files(&device) == before, "{what}");
        let report = check::repair(Arc::clone(&device) as _, YES).unwrap();
        assert!(report.left.is_clean(), "{what}: {:#?}", report.left.findings);
        assert!(files(&device) == before, "{what}");
    }
}

/// Tables without which nothing is found, and the root, are told as well, and a medium that cannot be written ends all.
#[test]
fn a_medium_without_tables_is_told_and_one_that_is_not_written_fails() {
    let image = populated();
    let root = Root::find(&image).unwrap().unwrap();
    for unread in [root.place(), root.trees.root.block, root.map.block] {
        let device = Arc::new(MemDevice::from_image(4096, image.clone()));
        let failing = Failing { device: Arc::clone(&device), unread, fails_writes: true };
        let report = check::repair(Arc::new(failing), YES).unwrap();
        assert!(report.left.corrupt > 0 && report.mended == 0, "{unread}: {:#?}", report.left.findings);
    }
    let mut damaged = image;
    let (leaf, at) = inode_of(&damaged, 0xa000, 300);
    block(&mut damaged, leaf).unwrap()[at + 4] = 7;
    believed(&mut damaged);
    let device = Arc::new(MemDevice::from_image(4096, damaged));
    let failing = Failing { device, unread: u64::MAX, fails_writes: true };
    assert!(check::repair(Arc::new(failing), YES).is_err());
}
