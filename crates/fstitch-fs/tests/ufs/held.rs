//! What holds a length back.

use fstitch_core::{Caller, Errno, FileKind, FileSystem, InodeNo, RepairMode};
use fstitch_fs::ufs::Ufs;
use fstitch_fs::uhfs::{LowLevelFs, Uhfs};

use super::ordered::unmerged;
use super::repair::repaired;
use super::support::Scratch;
use super::written::roomy;
use super::{checked, device, have_makefs, opened};

const BLOCK: u64 = 8192;

fn make(fs: &Uhfs<Ufs>, name: &[u8]) -> InodeNo {
    let mode = FileKind::Regular.mode_bits() | 0o644;
    fs.mknod(&Caller::default(), fs.root(), name, mode, 0).unwrap().attr.ino
}

fn write(fs: &Uhfs<Ufs>, ino: InodeNo, at: u64, bytes: &[u8]) -> fstitch_core::Result<usize> {
    fs.write(&Caller::default(), ino, at, bytes)
}

/// What a reviewer found: the end of a file had moved for an allocation that came to nothing, a hole was filled, and the file grew within its
/// last block. The length did not come after the pointer to where that block is: the medium had it with the old place, behind which
/// others had theirs.
#[test]
fn a_length_comes_after_the_pointer_to_where_the_end_has_moved() {
    if !have_makefs() {
        return;
    }
    let scratch = Scratch::new("ufs-held");
    for version in [1, 2] {
        let medium = device(&roomy(&scratch, (version, "le", 8192, 1024))).unwrap();
        let fs = unmerged(&medium);
        let (moves, next, rest) = (make(&fs, b"moves"), make(&fs, b"next"), make(&fs, b"rest"));
        // A hole, and an end behind which another file has what it would grow into.
        write(&fs, moves, BLOCK, &[b'm'; 1024]).unwrap();
        write(&fs, next, 0, &[b'n'; 3000]).unwrap();
        let mut at = 0;
        let full = loop {
            match write(&fs, rest, at, &[b'r'; 8192]) {
                Ok(done) => at += u64::try_from(done).unwrap(),
                Err(error) => break error,
            }
        };
        assert_eq!(full.errno(), Errno::NOSPC);
        let shorter = |size| fstitch_core::SetAttr { size: Some(size), ..Default::default() };
        // One whole block is free: the end moves there, and nothing is left for what made it do so.
        at = at / BLOCK * BLOCK;
        while fs.statfs().unwrap().blocks_free < 16 {
            at -= BLOCK;
            fs.setattr(&Caller::default(), rest, &shorter(at)).unwrap();
        }
        fs.sync().unwrap();
        let place = |fs: &Uhfs<Ufs>| {
            let inode = fs.format().load(moves).unwrap();
            fs.format().map(&inode, BLOCK / 1024, 1).unwrap().start.unwrap()
        };
        let before = place(&fs);
        let failed = write(&fs, moves, 3 * BLOCK, &[b'x'; 40_000]);
        assert!(failed.is_err() || failed.is_ok_and(|done| done < 40_000), "ufs{version}");
        fs.unlink(&Caller::default(), fs.root(), b"rest").unwrap();
        fs.forget(rest, 1);
        assert_ne!(place(&fs), before, "it has moved");
        write(&fs, moves, 0, &[b'h'; 8192]).unwrap();
        write(&fs, moves, BLOCK + 1024, &[b'g'; 1500]).unwrap();
        // All is written but what has moved, so the pointer to it cannot be, and what comes after that.
        let moved = place(&fs);
        while fs.format().cache().step_blocks(&mut |block| block != moved).unwrap() > 0 {}
        let (mended, report) = repaired(&medium.image(), RepairMode::Preen);
        assert_eq!(report.found.corrupt, 0, "ufs{version}: {:#?}", report.found.findings);
        let after = opened(&mended).unwrap();
        let mut bytes = [0; 2524];
        let read = after.read(moves, BLOCK, &mut bytes).unwrap();
        let expected = [&[b'm'; 1024][..], &[b'g'; 1500]].concat();
        assert!(read == 1024 || read == 2524, "ufs{version}: {read} bytes");
        assert!(bytes[..read] == expected[..read], "ufs{version}: what others have");
        fs.unmount().unwrap();
        assert!(checked(&medium.image()).unwrap().is_clean(), "ufs{version}");
    }
}
