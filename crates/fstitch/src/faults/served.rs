//! The file system of one image: the image, the plan, and what has struck.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use fstitch_core::lock::Unpoisoned;
use fstitch_core::num::{to_u64, to_usize};
use fstitch_core::{
    Attr, BlockDevice, BlockKind, BlockNo, BlockRead, BlockWrite, Caller, CheckReport, Clock, DirEntry,
    Entry, Errno, FallocateMode, FileKind, FileSystem, InodeFlags, InodeNo, RenameMode, Result, SeekFrom,
    SetAttr, StatFs, SystemClock, Timestamp, XattrSetMode,
};
use fstitch_crashlab::{FaultDevice, FaultPlan};
use fstitch_formats::{Format, KeepsMaps, MapsAt};
use fstitch_shepherd::Stretch;

use crate::shepherd::kind_of;

const ROOT: InodeNo = InodeNo(1);
const IMAGE: InodeNo = InodeNo(2);
const PLAN: InodeNo = InodeNo(3);
const STRUCK: InodeNo = InodeNo(4);
const FILES: [(InodeNo, &[u8]); 3] = [(IMAGE, b"image"), (PLAN, b"plan"), (STRUCK, b"struck")];
/// How long it is believed what blocks are.
const BELIEVED: Duration = Duration::from_secs(1);
/// Bytes of a plan at most.
const PLAN_MAX: u64 = 64 << 10;

/// What the blocks are.
struct Kinds {
    blocks: Vec<Stretch>,
    at: Option<Duration>,
}

/// An image whose disk fails.
pub(super) struct Served {
    disk: Arc<dyn BlockDevice>,
    faulty: FaultDevice<Arc<dyn BlockDevice>>,
    /// None of a disk that is one of several.
    format: Option<&'static dyn Format>,
    kinds: Mutex<Kinds>,
    plan: Mutex<FaultPlan>,
    /// A request that is no whole blocks reads the others first, and nobody may write them meanwhile.
    writing: Mutex<()>,
    began: Timestamp,
    clock: SystemClock,
}

impl Served {
    pub(super) fn new(
        disk: Arc<dyn BlockDevice>,
        format: Option<&'static dyn Format>,
        plan: FaultPlan,
    ) -> Self {
        let clock = SystemClock::new();
        Self {
            faulty: FaultDevice::with_delay(Arc::clone(&disk), plan.clone(), Arc::new(std::thread::sleep)),
            disk,
            format,
            kinds: Mutex::new(Kinds { blocks: Vec::new(), at: None }),
            plan: Mutex::new(plan),
            writing: Mutex::default(),
            began: clock.now(),
            clock,
        }
    }

    fn size(&self) -> u64 {
        self.disk.geometry().bytes()
    }

    /// What the blocks are, as the image is now. A volume that is too damaged to tell has data only.
    fn kinds(&self) -> MutexGuard<'_, Kinds> {
        let mut kinds = self.kinds.lock().unpoisoned();
        let asks_for_kinds = self.plan.lock().unpoisoned().faults.iter().any(|fault| fault.kind.is_some());
        if asks_for_kinds && kinds.at.is_none_or(|at| self.clock.elapsed() > at + BELIEVED) {
            if let Some(Ok(blocks)) =
                self.format.and_then(|format| format.keeps_maps()).map(|keeps| self.census(keeps))
            {
                kinds.blocks = blocks;
            }
            kinds.at = Some(self.clock.elapsed());
        }
        kinds
    }

    /// What the blocks are; those of the maps of a policy are of a kind that no volume has at home, so that a plan names none of them by
    /// their kind.
    fn census(&self, keeps: &dyn KeepsMaps) -> Result<Vec<Stretch>> {
        let mut blocks = keeps.census(&*self.disk)?;
        if let MapsAt::Here(maps) | MapsAt::Unfinished(maps) = keeps.maps(&*self.disk)? {
            blocks.extend(maps.into_iter().map(|block| Stretch::one(block, BlockKind::JournalCommit)));
            blocks.sort_unstable_by_key(|stretch| stretch.start);
        }
        Ok(blocks)
    }

    fn plan_text(&self) -> Vec<u8> {
        format!("{}\n", self.plan.lock().unpoisoned()).into_bytes()
    }

    fn struck_text(&self) -> Vec<u8> {
        let struck = self.faulty.injected();
        struck.iter().map(|(name, count)| format!("{name} {count}\n")).collect::<String>().into_bytes()
    }

    fn attr(&self, ino: InodeNo) -> Result<Attr> {
        let (kind, perm, size) = match ino {
            ROOT => (FileKind::Directory, 0o755, 0),
            IMAGE => (FileKind::Regular, 0o600, self.size()),
            PLAN => (FileKind::Regular, 0o600, to_u64(self.plan_text().len())),
            STRUCK => (FileKind::Regular, 0o444, to_u64(self.struck_text().len())),
            _ => return Err(Errno::NOENT.into()),
        };
        Ok(Attr {
            ino,
            kind,
            perm,
            nlink: if ino == ROOT { 2 } else { 1 },
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            rdev: 0,
            size,
            blocks: size.div_ceil(512),
            blksize: self.disk.geometry().block_size,
            atime: self.began,
            mtime: self.began,
            ctime: self.began,
            crtime: None,
            generation: 0,
        })
    }

    /// Reads whole blocks: those with the bytes from `offset` on.
    fn read_image(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let len = to_usize_saturated(self.size().saturating_sub(offset)).min(buf.len());
        if len == 0 {
            return Ok(0);
        }
        let unit = u64::from(self.disk.geometry().block_size);
        let first = offset / unit;
        let end = (offset + to_u64(len)).div_ceil(unit);
        let mut whole = vec![0; to_usize((end - first) * unit)];
        let kinds = self.kinds();
        let mut reads: Vec<BlockRead<'_>> = whole
            .chunks_exact_mut(to_usize(unit))
            .zip(first..)
            .map(|(data, block)| BlockRead {
                block: BlockNo(block),
                kind: kind_of(&kinds.blocks, BlockNo(block)),
                data,
            })
            .collect();
        drop(kinds);
        self.faulty.read(&mut reads)?;
        let from = to_usize(offset - first * unit);
        buf[..len].copy_from_slice(&whole[from..from + len]);
        Ok(len)
    }

    fn write_image(&self, offset: u64, data: &[u8]) -> Result<usize> {
        let end = offset.checked_add(to_u64(data.len())).ok_or(Errno::FBIG)?;
        if end > self.size() {
            return Err(Errno::NOSPC.into());
        }
        let _alone = self.writing.lock().unpoisoned();
        let unit = u64::from(self.disk.geometry().block_size);
        let (first, last) = (offset / unit, end.div_ceil(unit));
        let mut whole = vec![0; to_usize((last - first) * unit)];
        let from = to_usize(offset - first * unit);
        if from != 0 || end % unit != 0 {
            let mut reads: Vec<BlockRead<'_>> = whole
                .chunks_exact_mut(to_usize(unit))
                .zip(first..)
                .map(|(data, block)| BlockRead { block: BlockNo(block), kind: BlockKind::Data, data })
                .collect();
            self.disk.read(&mut reads)?;
        }
        whole[from..from + data.len()].copy_from_slice(data);
        let kinds = self.kinds();
        let writes: Vec<BlockWrite<'_>> = whole
            .chunks_exact(to_usize(unit))
            .zip(first..)
            .map(|(data, block)| BlockWrite {
                block: BlockNo(block),
                kind: kind_of(&kinds.blocks, BlockNo(block)),
                data,
            })
            .collect();
        drop(kinds);
        self.faulty.write(&writes)?;
        Ok(data.len())
    }

    fn write_plan(&self, offset: u64, data: &[u8]) -> Result<usize> {
        if offset != 0 || to_u64(data.len()) > PLAN_MAX {
            return Err(Errno::FBIG.into());
        }
        let text = std::str::from_utf8(data).map_err(|_| Errno::INVAL)?;
        let plan: FaultPlan = text.trim().parse().map_err(|_| Errno::INVAL)?;
        self.faulty.set_plan(plan.clone());
        *self.plan.lock().unpoisoned() = plan;
        Ok(data.len())
    }
}

fn to_usize_saturated(n: u64) -> usize {
    usize::try_from(n).unwrap_or(usize::MAX)
}

fn part(text: &[u8], offset: u64, buf: &mut [u8]) -> usize {
    let text = text.get(to_usize_saturated(offset)..).unwrap_or_default();
    let len = text.len().min(buf.len());
    buf[..len].copy_from_slice(&text[..len]);
    len
}

macro_rules! refused {
    ($($name:ident($($kind:ty),*) -> $result:ty = $errno:ident;)*) => {
        $(fn $name(&self, $(_: $kind),*) -> Result<$result> {
            Err(Errno::$errno.into())
        })*
    };
}

impl FileSystem for Served {
    refused! {
        readlink(InodeNo) -> Vec<u8> = INVAL;
        mknod(&Caller, InodeNo, &[u8], u16, u32) -> Entry = PERM;
        mkdir(&Caller, InodeNo, &[u8], u16) -> Entry = PERM;
        symlink(&Caller, InodeNo, &[u8], &[u8]) -> Entry = PERM;
        link(&Caller, InodeNo, InodeNo, &[u8]) -> Entry = PERM;
        tmpfile(&Caller, InodeNo, u16) -> Entry = PERM;
        unlink(&Caller, InodeNo, &[u8]) -> () = PERM;
        rmdir(&Caller, InodeNo, &[u8]) -> () = PERM;
        rename(&Caller, (InodeNo, &[u8]), (InodeNo, &[u8]), RenameMode) -> () = PERM;
        fallocate(&Caller, InodeNo, u64, u64, FallocateMode) -> () = OPNOTSUPP;
        getxattr(InodeNo, &[u8]) -> Vec<u8> = NODATA;
        setxattr(&Caller, InodeNo, &[u8], &[u8], XattrSetMode) -> () = OPNOTSUPP;
        removexattr(&Caller, InodeNo, &[u8]) -> () = NODATA;
        set_flags(&Caller, InodeNo, InodeFlags) -> () = OPNOTSUPP;
    }

    fn root(&self) -> InodeNo {
        ROOT
    }

    fn lookup(&self, parent: InodeNo, name: &[u8]) -> Result<Entry> {
        let found = FILES.into_iter().find(|(_, its)| parent == ROOT && *its == name);
        let (ino, _) = found.ok_or(Errno::NOENT)?;
        Ok(Entry { attr: self.attr(ino)? })
    }

    fn forget(&self, _: InodeNo, _: u64) {}

    fn getattr(&self, ino: InodeNo) -> Result<Attr> {
        self.attr(ino)
    }

    fn setattr(&self, _: &Caller, ino: InodeNo, set: &SetAttr) -> Result<Attr> {
        match (ino, set.size) {
            // Who writes a plan cuts the old one off first.
            (PLAN, _) | (_, None) => {}
            (IMAGE, Some(size)) if size == self.size() => {}
            _ => return Err(Errno::PERM.into()),
        }
        self.attr(ino)
    }

    fn read(&self, ino: InodeNo, offset: u64, buf: &mut [u8]) -> Result<usize> {
        match ino {
            IMAGE => self.read_image(offset, buf),
            PLAN => Ok(part(&self.plan_text(), offset, buf)),
            STRUCK => Ok(part(&self.struck_text(), offset, buf)),
            ROOT => Err(Errno::ISDIR.into()),
            _ => Err(Errno::NOENT.into()),
        }
    }

    fn write(&self, _: &Caller, ino: InodeNo, offset: u64, data: &[u8]) -> Result<usize> {
        self.write_back(ino, offset, data, true)
    }

    fn write_back(&self, ino: InodeNo, offset: u64, data: &[u8], _: bool) -> Result<usize> {
        match ino {
            IMAGE => self.write_image(offset, data),
            PLAN => self.write_plan(offset, data),
            _ => Err(Errno::PERM.into()),
        }
    }

    fn seek(&self, ino: InodeNo, offset: u64, whence: SeekFrom) -> Result<u64> {
        let size = self.attr(ino)?.size;
        match whence {
            _ if offset >= size => Err(Errno::NXIO.into()),
            SeekFrom::Data => Ok(offset),
            SeekFrom::Hole => Ok(size),
        }
    }

    fn readdir(&self, ino: InodeNo, cookie: u64, sink: &mut dyn FnMut(DirEntry<'_>) -> bool) -> Result<()> {
        if ino != ROOT {
            return Err(Errno::NOTDIR.into());
        }
        let own: [(InodeNo, &[u8]); 2] = [(ROOT, b"."), (ROOT, b"..")];
        for ((ino, name), next) in own.into_iter().chain(FILES).zip(1..).skip(to_usize_saturated(cookie)) {
            let kind = if ino == ROOT { FileKind::Directory } else { FileKind::Regular };
            if !sink(DirEntry { ino, kind: Some(kind), name, next }) {
                break;
            }
        }
        Ok(())
    }

    fn fsync(&self, ino: InodeNo, _: bool) -> Result<()> {
        if ino == IMAGE { self.faulty.flush() } else { Ok(()) }
    }

    fn sync(&self) -> Result<()> {
        self.faulty.flush()
    }

    fn statfs(&self) -> Result<StatFs> {
        let geometry = self.disk.geometry();
        Ok(StatFs {
            block_size: geometry.block_size,
            blocks: geometry.block_count,
            name_max: 255,
            ..StatFs::default()
        })
    }

    fn listxattr(&self, _: InodeNo) -> Result<Vec<Vec<u8>>> {
        Ok(Vec::new())
    }

    fn flags(&self, _: InodeNo) -> Result<InodeFlags> {
        Ok(InodeFlags::default())
    }

    fn check(&self) -> Result<CheckReport> {
        Err(Errno::OPNOTSUPP.into())
    }

    fn unmount(&self) -> Result<()> {
        self.disk.flush()
    }

    /// What a plan makes of the files is seen at once.
    fn cache_timeout(&self) -> Duration {
        Duration::ZERO
    }
}
