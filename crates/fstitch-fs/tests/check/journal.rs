//! A volume that we call mended, or clean, and that nobody can mount: its journal is not there, or is none. Every field by
//! which a journal is found and read is damaged in turn.

use std::sync::Arc;

use fstitch_core::RepairMode;
use fstitch_core::{Be, Error, FileSystem, Le, MemDevice, SystemClock, Timestamp};
use fstitch_fs::arrange::{self, Arrangement};
use fstitch_fs::ext2::Ext2;
use fstitch_fs::ext2::check::check_ext2;
use fstitch_fs::ext2::journal::{BATCH_MAX, Options, abandon, recover, restore};

use crate::corpus::{Shape, image};
use crate::repair::repair;
use crate::support::{Scratch, e2fsck_image, have};

const NOW: Timestamp = Timestamp { secs: 1_800_000_000, nanos: 0 };

/// Volumes with a journal, by their block size.
const VOLUMES: [(usize, Shape); 2] = [
    (
        1024,
        Shape {
            name: "journal-1k",
            options: &["-b", "1024", "-N", "512", "-j", "-J", "size=1", "-O", "orphan_file"],
            size: "6M",
        },
    ),
    (
        4096,
        Shape {
            name: "journal-4k",
            options: &["-b", "4096", "-N", "512", "-j", "-J", "size=4"],
            size: "14M",
        },
    ),
];

/// A volume in memory, and where what is damaged is.
struct Volume {
    bytes: Vec<u8>,
    block_size: usize,
    /// Inode 8.
    inode: usize,
    /// The first block of the journal.
    log: usize,
    /// Its first indirect block.
    map: usize,
}

/// Where the superblock is.
const SUPER: usize = 1024;
/// `i_block` in an inode.
const I_BLOCK: usize = 0x28;

impl Volume {
    fn new(block_size: usize, bytes: Vec<u8>) -> Self {
        let descriptors = if block_size == 1024 { 2 } else { 1 } * block_size;
        let table = Le::u32(&bytes, descriptors + 8) as usize;
        let size = usize::from(Le::u16(&bytes, SUPER + 0x58));
        let inode = table * block_size + 7 * size;
        let log = Le::u32(&bytes, inode + I_BLOCK) as usize * block_size;
        let map = Le::u32(&bytes, inode + I_BLOCK + 48) as usize * block_size;
        Self { bytes, block_size, inode, log, map }
    }
}

/// A kind of damage: its name, and what it does.
type Damage = (String, Box<dyn Fn(&mut Volume)>);

fn damage(name: impl Into<String>, change: impl Fn(&mut Volume) + 'static) -> Damage {
    (name.into(), Box::new(change))
}

/// Values that a block number, an inode number or a count may be damaged to.
const NUMBERS: [u32; 8] = [0, 1, 5, 11, 13, 1_023, 9_999, u32::MAX];

fn superblock_damages() -> Vec<Damage> {
    let mut all = Vec::new();
    for (field, name) in
        [(0xe0, "journal_inum"), (0xe4, "journal_dev"), (0x10c, "jnl_blocks"), (0x280, "orphan_file_inum")]
    {
        for value in NUMBERS {
            all.push(damage(format!("s_{name} {value}"), move |v| {
                Le::put_u32(&mut v.bytes, SUPER + field, value)
            }));
        }
    }
    for (bit, name) in [(0x4, "has_journal"), (0x1000, "orphan_file")] {
        all.push(damage(format!("feature {name} the other way"), move |v| {
            let word = Le::u32(&v.bytes, SUPER + 0x5c) ^ bit;
            Le::put_u32(&mut v.bytes, SUPER + 0x5c, word);
        }));
    }
    all.push(damage("s_journal_uuid", |v| v.bytes[SUPER + 0xd0..SUPER + 0xe0].fill(7)));
    all.push(damage("an external journal instead", |v| {
        Le::put_u32(&mut v.bytes, SUPER + 0xe0, 0);
        v.bytes[SUPER + 0xd0..SUPER + 0xe0].fill(0);
    }));
    all.push(damage("s_jnl_backup_type 9", |v| v.bytes[SUPER + 0xfd] = 9));
    all
}

fn inode_damages() -> Vec<Damage> {
    let mut all = vec![damage("no inode at all", |v| {
        let at = v.inode;
        v.bytes[at..at + 128].fill(0);
    })];
    for mode in [0, 0o040_600, 0o010_600, 0o100_644, 0o170_600] {
        all.push(damage(format!("i_mode {mode:o}"), move |v| Le::put_u16(&mut v.bytes, v.inode, mode)));
    }
    for links in [0, 2, 65_535] {
        all.push(damage(format!("i_links_count {links}"), move |v| {
            Le::put_u16(&mut v.bytes, v.inode + 0x1a, links)
        }));
    }
    let words = [
        (0x04, "i_size", &[0, 1, 512, 4096, 1 << 19, 1 << 30, u32::MAX][..]),
        (0x6c, "i_size_high", &[1, u32::MAX]),
        (0x14, "i_dtime", &[1, 1_700_000_000]),
        (0x1c, "i_blocks", &[0, 3, u32::MAX]),
        (0x20, "i_flags", &[0x10, 0x1000, 0x8_0000, u32::MAX]),
        (0x68, "i_file_acl", &[5, 9_999, u32::MAX]),
    ];
    for (field, name, values) in words {
        for &value in values {
            all.push(damage(format!("{name} {value:#x}"), move |v| {
                Le::put_u32(&mut v.bytes, v.inode + field, value)
            }));
        }
    }
    for at in [0, 5, 11, 12, 13, 14] {
        for value in NUMBERS {
            all.push(damage(format!("i_block[{at}] {value}"), move |v| {
                Le::put_u32(&mut v.bytes, v.inode + I_BLOCK + at * 4, value);
            }));
        }
    }
    all.push(damage("a block twice", |v| {
        let other = Le::u32(&v.bytes, v.inode + I_BLOCK);
        Le::put_u32(&mut v.bytes, v.inode + I_BLOCK + 8, other);
    }));
    for (at, value) in [(0, 0), (7, 0), (7, 3), (7, u32::MAX), (200, 0)] {
        all.push(damage(format!("pointer {at} of the indirect block {value}"), move |v| {
            Le::put_u32(&mut v.bytes, v.map + at * 4, value);
        }));
    }
    all.push(damage("no indirect block", |v| {
        let (at, len) = (v.map, v.block_size);
        v.bytes[at..at + len].fill(0);
    }));
    all
}

fn log_damages() -> Vec<Damage> {
    let words = [
        (0x00, "magic", &[0, 0xc03b_3999][..]),
        (0x04, "type", &[0, 1, 3, 5, 9]),
        (0x0c, "s_blocksize", &[0, 512, 2048, u32::MAX]),
        (0x10, "s_maxlen", &[0, 3, 1000, 1023, 1025, u32::MAX]),
        (0x14, "s_first", &[0, 2, 1023, u32::MAX]),
        (0x18, "s_sequence", &[0, 77, u32::MAX]),
        (0x1c, "s_start", &[1, 500, 5000, u32::MAX]),
        (0x20, "s_errno", &[5]),
        (0x24, "s_feature_compat", &[1, 0x80]),
        (0x28, "s_feature_incompat", &[1, 0x20, 0x18, 0x8000]),
        (0x2c, "s_feature_ro_compat", &[1]),
        (0x40, "s_nr_users", &[0, 9]),
    ];
    let mut all = Vec::new();
    for (field, name, values) in words {
        for &value in values {
            all.push(damage(format!("{name} {value:#x}"), move |v| {
                Be::put_u32(&mut v.bytes, v.log + field, value)
            }));
        }
    }
    for field in [0x24, 0x28, 0x2c, 0x40, 0x44] {
        all.push(damage(format!("version 1 with a field at {field:#x}"), move |v| {
            let at = v.log;
            Be::put_u32(&mut v.bytes, at + 4, 3);
            v.bytes[at + 0x24..at + 0x100].fill(0);
            Be::put_u32(&mut v.bytes, at + field, 1);
        }));
    }
    all.push(damage("no journal superblock", |v| {
        let at = v.log;
        v.bytes[at..at + 1024].fill(0);
    }));
    all
}

/// What `fsck -y` does: the journal is replayed, found again or given up, then everything is mended.
fn mend(device: &MemDevice) -> fstitch_core::Result<bool> {
    let mut progress = |_| {};
    let mut options = Options {
        external: None,
        now: NOW,
        for_reading: false,
        batch_max: BATCH_MAX,
        progress: &mut progress,
    };
    let mut recovered = recover(device, &mut options);
    if matches!(recovered, Err(Error::Corrupt(_))) && restore(device, NOW)? {
        recovered = recover(device, &mut options);
    }
    match recovered {
        Err(Error::Corrupt(_)) => abandon(device)?,
        other => other.map(drop)?,
    }
    Ok(repair(device, RepairMode::Yes)?.left.is_clean())
}

/// Mounts for writing, makes a file, and unmounts.
fn use_it(block_size: usize, image: Vec<u8>) -> fstitch_core::Result<Vec<u8>> {
    let device = Arc::new(MemDevice::from_image(u32::try_from(block_size).expect("small"), image));
    let (fs, _) = arrange::open::<Ext2>(
        Arc::clone(&device) as _,
        &Arrangement::default(),
        Arc::new(SystemClock::new()),
    )?;
    let caller = fstitch_core::Caller { uid: 0, gid: 0, umask: 0, tid: 0 };
    fs.mkdir(&caller, fs.root(), b"made afterwards", 0o755)?;
    fs.unmount()?;
    drop(fs);
    Ok(device.image())
}

/// What is wrong with how a damaged volume is judged, mended and used.
fn judge(scratch: &Scratch, volume: &Volume) -> Result<(), String> {
    let device = MemDevice::from_image(1024, volume.bytes.clone());
    let (code, said) = e2fsck_image(scratch, "judge", &volume.bytes);
    let ours = check_ext2(&device);
    if code != 0 && ours.as_ref().is_ok_and(fstitch_core::CheckReport::is_clean) {
        return Err(format!("clean here, and there: {said}"));
    }
    match mend(&device) {
        Ok(true) => {}
        // What is refused by name is refused before it is changed.
        Err(Error::Unsupported(_)) if device.image() == volume.bytes => return Ok(()),
        other => return Err(format!("not mended: {other:?}, found {ours:?}")),
    }
    let again = check_ext2(&device).map_err(|error| error.to_string())?;
    if !again.is_clean() {
        return Err(format!("a second run finds {:?}", again.findings));
    }
    let (code, said) = e2fsck_image(scratch, "judge", &device.image());
    if code != 0 {
        return Err(format!("mended, but the reference says {said}"));
    }
    match use_it(volume.block_size, device.image()) {
        Ok(used) => {
            let (code, said) = e2fsck_image(scratch, "judge", &used);
            if code == 0 { Ok(()) } else { Err(format!("after use the reference says {said}")) }
        }
        // As above, but for journals that only others can use.
        Err(Error::Unsupported(text)) if text.starts_with("a journal with feature") => Ok(()),
        Err(error) => Err(format!("mended, but cannot be mounted: {error}")),
    }
}

#[test]
fn every_field_of_a_journal_may_be_damaged() {
    if !have("e2fsck") {
        return;
    }
    let scratch = Scratch::new("journal-fields");
    let (mut judged, mut failures) = (0, Vec::new());
    for (block_size, shape) in &VOLUMES {
        let healthy = image(&scratch, shape);
        // Where things are depends on the block size, what they mean does not.
        let (mut all, backups) =
            (log_damages(), if *block_size == 1024 { &[true, false][..] } else { &[true] });
        if *block_size == 1024 {
            all.extend(superblock_damages().into_iter().chain(inode_damages()));
        }
        for (name, change) in all {
            for &backup in backups {
                let mut volume = Volume::new(*block_size, healthy.clone());
                if !backup {
                    volume.bytes[SUPER + 0xfd] = 0;
                }
                change(&mut volume);
                judged += 1;
                if let Err(why) = judge(&scratch, &volume) {
                    failures.push(format!("{}, {name}, backup {backup}: {why}", shape.name));
                }
            }
        }
    }
    assert!(failures.is_empty(), "{} of {judged}:\n{}", failures.len(), failures.join("\n"));
    assert!(judged > 300, "{judged}");
}
