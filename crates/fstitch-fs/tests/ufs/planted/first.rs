//! What only the first superblock has: copies bring back where everything is, and nothing else goes.

use fstitch_core::{Error, MemDevice, RepairMode};
use fstitch_fs::ufs::mkfs::mkfs;

use super::copy;
use super::places::{BLOCK_INODES, MAGIC, PRIMARY};
use crate::damage::{Image, ino};
use crate::host::{Tree, fill, made};
use crate::repair::{SHAPES, mended, repair};
use crate::support::Scratch;
use crate::{have_makefs, opened};

/// Bytes of the label, of flags, of the list of snapshots, and of the version of a journal.
const LABEL: usize = 680;
const OLD_FLAGS: usize = 211;
const FLAGS: usize = 1312;
const SNAPSHOTS: usize = 1116;
const JOURNAL: usize = 864;
/// How many positions in a cylinder are told apart: copies may say something else, which UFS2 uses for nothing.
const POSITIONS: usize = 1360;
/// How long runs of free blocks may be that groups count.
const CLUSTERS: usize = 1316;
/// Soft updates and POSIX ACLs.
const HAS: u32 = 0x12;
/// Bytes of where a superblock lies itself, and of an inode of quotas.
const ACTUAL: usize = 992;
const QUOTA: usize = 912;
/// An inode's flag.
const SNAPSHOT: u32 = 0x0020_0000;
/// NetBSD's journal.
const WAPBL: u32 = 0x100;
/// Numbers that copies have as well, by their bytes: of parts of a group, sizes, groups and inodes.
const NUMBERS: [usize; 13] = [8, 12, 16, 20, 44, 48, 52, 56, 104, BLOCK_INODES, 184, 188, MAGIC];

/// A volume that was used since it was made: copies know nothing of that.
fn used(mut whole: Image) -> Image {
    let at = whole.superblock(0);
    whole.bytes[at + LABEL..at + LABEL + 5].copy_from_slice(b"mine\0");
    whole.bytes[at + OLD_FLAGS] |= 0x80;
    whole.put32(at + FLAGS, HAS);
    // One that was there once.
    whole.put32(at + SNAPSHOTS, 9);
    whole.put64(at + PRIMARY, 8192);
    if whole.is_two() {
        whole.put32(at + POSITIONS, 3);
    }
    whole
}

/// What only the first superblock of an image has: label, and flags, snapshots and positions.
fn own(image: &Image) -> (&[u8], [u32; 3]) {
    let at = image.superblock(0);
    (
        &image.bytes[at + LABEL..at + LABEL + 4],
        [FLAGS, SNAPSHOTS, POSITIONS].map(|field| image.word(at + field)),
    )
}

/// Calls `look` with a volume of each shape that is full of files, its name, and what is in it.
fn each(name: &str, look: impl Fn(&str, Image, &Tree)) {
    if !have_makefs() {
        return;
    }
    let scratch = Scratch::new(name);
    let from = scratch.path("from");
    fill(&from);
    let expected = Tree::of_host(&from);
    for shape in SHAPES {
        look(&format!("{shape:?}"), Image::new(made(&scratch, &from, shape)), &expected);
    }
}

/// The image after mending, which has all that was there.
fn mended_whole(image: &Image, expected: &Tree, what: &str) -> Image {
    let (after, report) = mended(&image.bytes, what);
    assert_eq!(report.found.findings[0].code, "superblock-damaged", "{what}");
    Tree::of(&opened(&after).unwrap()).unwrap().expect(expected, what);
    Image::new(after)
}

#[test]
fn what_only_the_first_superblock_has_outlives_its_numbers() {
    each("ufs-first", |shape, image, expected| {
        let whole = used(image);
        for (no, gone) in NUMBERS.into_iter().enumerate() {
            // Some of these make another superblock that could be one, of which no copy is.
            for value in [0x5a5a, 0, whole.word(whole.superblock(gone)) << 1] {
                let mut image = Image::new(whole.bytes.clone());
                let at = image.superblock(0);
                image.put32(at + gone, value);
                // Bits are lost in more than one place.
                image.put32(at + NUMBERS[(no + 1) % NUMBERS.len()], 0x5a5a);
                let after = mended_whole(&image, expected, &format!("{shape}: {gone}, {value:#x}"));
                assert_eq!(own(&after), own(&whole), "{shape}: {gone}, {value:#x}");
            }
        }
    });
}

/// Bytes around the one that says which places are used, and a label that is no text; a volume whose first superblock has two places
/// before it.
#[test]
fn what_says_where_flags_are_outlives_its_numbers() {
    let look = |name: &str, plain: Image| {
        let place = plain.shape.at;
        let mut whole = used(Image::new(plain.bytes.clone()));
        let at = whole.superblock(0);
        whole.put64(at + PRIMARY, place);
        whole.bytes[at + LABEL..at + LABEL + 5].copy_from_slice(b"m\xfcde\0");
        let mut image = Image::new(whole.bytes.clone());
        image.bytes[at + 180..at + 244].fill(0);
        image.put32(at + BLOCK_INODES, 0x5a5a);
        let mended = |image: &Image| Image::new(mended(&image.bytes, name).0);
        let after = mended(&image);
        assert_eq!(after.shape.at, place, "{name}");
        assert_eq!(own(&after), own(&whole), "{name}");
        // Where it lies: FreeBSD mounts no volume of which that is wrong.
        assert_eq!(after.long(at + ACTUAL), plain.long(at + ACTUAL), "{name}");
        assert_eq!(after.bytes[at + OLD_FLAGS], 0x80, "{name}");
        // A label that cannot be one is none.
        image.bytes[at + LABEL + 2] = 7;
        assert_eq!(own(&mended(&image)), (own(&plain).0, own(&whole).1), "{name}");
        image.bytes[at + 512..at + 1024].fill(0);
        assert_eq!(mended(&image).long(at + ACTUAL), plain.long(at + ACTUAL), "{name}");
    };
    let mut options = crate::mkfs::options((2, "le", 8192, 1024));
    options.label = b"a-label".to_vec();
    look("the usual place", Image::new(crate::mkfs::made(&options, 16 << 20).unwrap().0));
    each("ufs-places", |shape, image, _| look(shape, image));
}

/// Media lose sectors: what the others say is kept, and what one says that holds something else now is not believed.
#[test]
fn sectors_of_the_first_superblock_are_believed_each_by_itself() {
    // Numbers, or bytes above those of text.
    let held: [[u8; 512]; 3] = [[0; 512], [0xff; 512], std::array::from_fn(|byte| (byte % 251) as u8)];
    each("ufs-sectors", |shape, made, expected| {
        let whole = used(Image::new(made.bytes.clone()));
        let (whole_own, copied) = (own(&whole), own(&made));
        for (sector, (no, holds)) in
            (0..3).flat_map(|sector| held.iter().enumerate().map(move |held| (sector, held)))
        {
            let mut image = Image::new(whole.bytes.clone());
            let at = image.superblock(512 * sector);
            image.bytes[at..at + 512].copy_from_slice(holds);
            // Were the numbers there, nothing would be asked for copies.
            let at = image.superblock(BLOCK_INODES);
            image.put32(at, 0x5a5a);
            let what = format!("{shape}: {sector}, {no}");
            let label = if sector == 1 { copied.0 } else { whole_own.0 };
            let others = if sector == 2 { copied.1 } else { whole_own.1 };
            assert_eq!(own(&mended_whole(&image, expected, &what)), (label, others), "{what}");
        }
    });
}

/// Another volume of the same shape was here: its label and flags are not those of this one.
#[test]
fn a_superblock_that_another_volume_left_says_nothing() {
    each("ufs-stale", |shape, whole, expected| {
        let mut image = used(Image::new(whole.bytes.clone()));
        let at = image.superblock(0);
        image.put32(at + 144, 0x1234);
        image.put32(at + 148, 0x5678);
        image.put32(at + BLOCK_INODES, 0x5a5a);
        assert_eq!(own(&mended_whole(&image, expected, shape)), own(&whole), "{shape}");
    });
}

/// The place of a journal comes back with the numbers, so that the volume is refused as before.
#[test]
fn a_journal_is_not_forgotten_with_the_superblock() {
    each("ufs-first-log", |shape, image, _| {
        let mut image = used(image);
        let at = image.superblock(0);
        image.put32(at + FLAGS, HAS | WAPBL);
        image.bytes[at + JOURNAL..at + JOURNAL + 2].copy_from_slice(&[1, 1]);
        assert!(opened(&image.bytes).is_ok(), "{shape}");
        let refused = |what: &str, why: &str, image: &Image| {
            let mut bytes = image.bytes.clone();
            bytes[at + BLOCK_INODES..at + BLOCK_INODES + 4].fill(0x5a);
            match repair(&bytes, RepairMode::Yes) {
                Err(Error::Unsupported(says)) => assert!(says.contains(why), "{shape}: {what}: {says}"),
                other => panic!("{shape}: {what}: {:?}", other.map(|(_, report)| report)),
            }
        };
        refused("a number", "journal (WAPBL)", &image);
        let mut other = Image::new(image.bytes.clone());
        other.bytes[at + 180..at + 244].fill(0);
        refused("numbers", "journal (WAPBL)", &other);
        // Two sectors say it together.
        for sector in [1, 2] {
            let mut other = Image::new(image.bytes.clone());
            other.bytes[at + sector * 512..at + (sector + 1) * 512].fill(0);
            refused(&format!("sector {sector}"), "journal (WAPBL)", &other);
        }
        let mut other = Image::new(image.bytes.clone());
        other.put32(at + FLAGS, HAS);
        other.bytes[at + JOURNAL..at + JOURNAL + 2].fill(0);
        let mut quotas = Image::new(other.bytes.clone());
        quotas.put64(at + QUOTA, 5);
        quotas.bytes[at + 1024..at + 1536].fill(0);
        refused("quotas", "quotas", &quotas);
        // The list of snapshots is gone, and one is there.
        let no = ino(&other.bytes, "long");
        let flags = other.inode(no) + if other.is_two() { 88 } else { 100 };
        other.put32(flags, SNAPSHOT);
        other.bytes[at + 1024..at + 1536].fill(0);
        refused("a snapshot", "snapshots", &other);
    });
}

/// The copies of a volume that was here before come first on the medium: they are passed by.
#[test]
fn copies_of_another_volume_do_not_come_back_over_one_that_can_be_read() {
    for version in [1, 2] {
        let options = |groups: u32| {
            let mut options = crate::mkfs::options((version, "le", 4096, 512));
            options.fragments_per_group = Some(groups);
            options
        };
        let (before, _) = crate::mkfs::made(&options(1600), 24 << 20).unwrap();
        let device = MemDevice::from_image(512, before);
        mkfs(&device, &options(12_000), &mut |_, _| {}).unwrap();
        let mut image = Image::new(device.image());
        assert!(image.shape.groups > 2, "{version}");
        // Maps that fit no group, and the copy before all others is none.
        let whole = image.bytes.clone();
        let (first, copied) = (image.superblock(CLUSTERS), copy(&image, 0));
        image.put32(first, 0x5a5a);
        image.put32(copied + MAGIC, 0);
        let (after, report) = mended(&image.bytes, &version.to_string());
        assert_eq!(report.found.findings[0].code, "superblock-damaged", "{version}");
        assert!(after[first..first + 4] == whole[first..first + 4], "{version}");
        // The copy that was none is one again; all else is as it was.
        let behind = copied + 8192;
        assert!(after[behind..] == whole[behind..], "{version}");
    }
}
