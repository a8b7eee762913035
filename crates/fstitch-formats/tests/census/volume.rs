//! A small volume that follows a policy, on a disk that fails as it is told.

use std::collections::BTreeMap;
use std::sync::Arc;

use fstitch_core::{BlockDevice, FileKind, FileSystem, ManualClock, MemDevice, Result};
use fstitch_crashlab::{FaultDevice, FaultPlan, Requests};
use fstitch_formats::make::Fresh;
use fstitch_formats::{Format, KeepsMaps, MapsAt, Recovering, Volume};
use fstitch_fs::arrange::Arrangement;
use fstitch_shepherd::policy::Policy;
use fstitch_shepherd::{Options, Room, Rules, Shepherd};

use crate::asked::{NOW, asked};
use crate::work;

const BLOCK: u32 = 1024;
/// Blocks for copies.
const SPARES: u64 = 2200;

/// Paths and what is there: contents of files, targets of links.
pub type Tree = BTreeMap<String, Vec<u8>>;

/// What became of a run.
pub struct Run {
    /// Calls that failed.
    pub errors: Vec<String>,
    /// Files whose fsync succeeded, and what they held then.
    pub promises: Vec<(String, Vec<u8>)>,
    pub requests: Requests,
    pub struck: u64,
    /// What is there when the disk is well again.
    pub left: Tree,
    /// Whether a check then finds no damage.
    pub is_clean: bool,
}

impl Run {
    /// The first thing that is not as it is in another run.
    pub fn differs(&self, other: &Self) -> Option<String> {
        let all = self.left.keys().chain(other.left.keys());
        all.into_iter().find(|path| self.left.get(*path) != other.left.get(*path)).cloned()
    }
}

fn format(kind: &str) -> (&'static dyn Format, &'static dyn KeepsMaps) {
    let format = fstitch_formats::by_name(kind).unwrap();
    (format, format.keeps_maps().unwrap())
}

fn options(rules: Option<Arc<dyn Rules>>) -> Options {
    Options { pause: Arc::new(|_| {}), rules, ..Options::default() }
}

/// Whether a volume on one disk can follow a policy here.
pub fn follows(text: &str) -> bool {
    struct All;
    impl Rules for All {
        fn judge(&self, _: fstitch_core::BlockKind, _: fstitch_core::BlockNo, _: &[u8]) -> Option<String> {
            None
        }
    }
    Shepherd::check(&Policy::parse(text).unwrap(), &options(Some(Arc::new(All)))).is_ok()
}

fn fresh(kind: &'static str) -> MemDevice {
    let (format, _) = format(kind);
    let asked = asked(format, kind, BLOCK, "census");
    let medium = MemDevice::new(BLOCK, 8 << 10);
    let fresh = Fresh { device: &medium, is_zero: true, bytes: Some(8 << 20) };
    format.plan(&asked).unwrap().make(fresh, &mut |_, _| {}).unwrap();
    medium
}

/// A volume with files that follows a policy, as an image.
pub struct Base {
    kind: &'static str,
    image: Vec<u8>,
}

pub fn base(kind: &'static str, policy: &str) -> Base {
    let (_, keeps) = format(kind);
    let disk = Arc::new(fresh(kind));
    let room = Room::new(BLOCK, 8 << 10, SPARES);
    let area = keeps.make_room(&*disk, room, NOW).unwrap();
    let blocks = keeps.census(&*disk).unwrap();
    let uuid = keeps.uuid(&*disk).unwrap();
    let device = Arc::clone(&disk) as Arc<dyn BlockDevice>;
    Shepherd::format(device.clone(), &area, uuid, policy, &keeps.sealed(), &blocks, &mut |_, _| {}).unwrap();
    let rules = keeps.rules(&*disk).unwrap();
    let (shepherd, _) = Shepherd::open(device, &area, options(Some(rules))).unwrap();
    keeps.finish(&shepherd, true).unwrap();
    shepherd.close().unwrap();
    let opened = open(kind, Arc::clone(&disk) as _).unwrap();
    work::fill(&*opened.fs).unwrap();
    opened.fs.unmount().unwrap();
    opened.shepherd.close().unwrap();
    Base { kind, image: disk.image() }
}

struct Opened {
    fs: Arc<dyn Volume>,
    shepherd: Arc<Shepherd>,
}

/// Opens a volume as commands do, recovering it first if that is needed.
fn open(kind: &str, disk: Arc<dyn BlockDevice>) -> Result<Opened> {
    let (format, keeps) = format(kind);
    let MapsAt::Here(area) = keeps.maps(&*disk)? else { panic!("it follows a policy") };
    let options = options(Some(keeps.rules(&*disk)?));
    let (shepherd, opened) = Shepherd::open(disk, &area, options)?;
    assert!(!opened.is_foreign, "nobody else has written");
    let shepherd = Arc::new(shepherd);
    if format.needs_recovery(&*shepherd)? {
        let mut how = Recovering { external: None, now: NOW, for_reading: false, progress: &mut |_| {} };
        format.recover(&*shepherd, &mut how)?;
    }
    let arrangement = Arrangement::default();
    let fs = format.open(Arc::clone(&shepherd) as _, &arrangement, Arc::new(ManualClock::new()))?;
    Ok(Opened { fs, shepherd })
}

/// Works on the volume while its disk fails; then the disk is well, and it is looked at what is there, as after a crash.
pub fn run(base: &Base, plan: FaultPlan) -> Run {
    let disk = Arc::new(MemDevice::from_image(BLOCK, base.image.clone()));
    let failing = Arc::new(FaultDevice::new(Arc::clone(&disk), plan));
    let (mut errors, mut promises) = (Vec::new(), Vec::new());
    match open(base.kind, Arc::clone(&failing) as _) {
        Ok(opened) => {
            work::work(&*opened.fs, &mut errors, &mut promises);
            for (what, done) in [("unmount", opened.fs.unmount()), ("close", opened.shepherd.close())] {
                errors.extend(done.err().map(|error| format!("{what}: {error}")));
            }
        }
        Err(error) => errors.push(format!("mount: {error}")),
    }
    let struck = failing.injected().get("error").copied().unwrap_or(0);
    let requests = failing.requests();
    let well = open(base.kind, Arc::new(MemDevice::from_image(BLOCK, disk.image()))).unwrap();
    let mut left = Tree::new();
    gather(&*well.fs, well.fs.root(), "", &mut left);
    let is_clean = well.fs.check().unwrap().corrupt == 0;
    well.fs.unmount().unwrap();
    well.shepherd.close().unwrap();
    Run { errors, promises, requests, struck, left, is_clean }
}

fn gather(fs: &dyn FileSystem, dir: fstitch_core::InodeNo, path: &str, tree: &mut Tree) {
    let mut names = Vec::new();
    fs.readdir(dir, 0, &mut |entry| {
        names.push(entry.name.to_vec());
        true
    })
    .unwrap();
    for name in names.into_iter().filter(|name| name != b"." && name != b"..") {
        let attr = fs.lookup(dir, &name).unwrap().attr;
        let path = format!("{path}/{}", String::from_utf8(name).unwrap());
        match attr.kind {
            FileKind::Directory => {
                tree.insert(path.clone(), Vec::new());
                gather(fs, attr.ino, &path, tree);
            }
            FileKind::Symlink => {
                tree.insert(path, fs.readlink(attr.ino).unwrap());
            }
            _ => {
                tree.insert(path, work::contents(fs, attr.ino).unwrap());
            }
        }
        fs.forget(attr.ino, 1);
    }
}
