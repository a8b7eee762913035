//! Streams: a snapshot, or what one has beyond an earlier one, as bytes that another volume takes in. Layout: `docs/spec/waffle.md`, *streams*.
//!
//! A stream has leaves and no references: what a volume takes in gets blocks and sums of its own, so that no stream can lead it to what is
//! not the stream's.

mod frame;
mod receive;
mod send;

pub use frame::copy_stream;
pub use receive::{Received, receive};

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use fstitch_core::{BlockDevice, Caller, Clock, FileSystem, ManualClock, MemDevice, Seed, Timestamp};
    use fstitch_patch::CacheOptions;

    use super::frame::{Frame, Reader, Writer};
    use super::*;
    use crate::waffle::mkfs::{MkfsOptions, mkfs};
    use crate::waffle::{Options, Waffle, check};

    const CALLER: Caller = Caller { uid: 0, gid: 0, tid: 1, umask: 0 };

    fn made() -> Arc<MemDevice> {
        let device = Arc::new(MemDevice::new(4096, 1024));
        let now = Timestamp::default();
        let options = MkfsOptions {
            uuid: [1; 16],
            label: Vec::new(),
            seed: 5,
            now,
            owner: (0, 0),
            blocks: None,
            is_compressed: false,
        };
        mkfs(Arc::clone(&device) as Arc<dyn BlockDevice>, &options).unwrap();
        device
    }

    fn clock() -> Arc<dyn Clock> {
        Arc::new(ManualClock::new())
    }

    fn mount(device: &Arc<MemDevice>, tree: &[u8]) -> fstitch_core::Result<Arc<Waffle>> {
        let options = Options { tree: tree.to_vec(), ..Options::default() };
        Waffle::mount(Arc::clone(device) as _, CacheOptions::default(), clock(), options)
    }

    fn fill(fs: &Waffle, byte: u8) {
        let root = fs.root();
        for name in ["a", "b", "c"] {
            let ino = match fs.lookup(root, name.as_bytes()) {
                Ok(found) => found.attr.ino,
                Err(_) => fs.mknod(&CALLER, root, name.as_bytes(), 0o100_644, 0).unwrap().attr.ino,
            };
            fs.write(&CALLER, ino, u64::from(byte) * 7000, &[byte; 9000]).unwrap();
            fs.setxattr(&CALLER, ino, b"user.x", &[byte; 50], fstitch_core::XattrSetMode::Set).unwrap();
            fs.forget(ino, 1);
        }
        let dir = [b'd', byte + b'0'];
        fs.mkdir(&CALLER, root, &dir, 0o755).unwrap();
    }

    fn frames(mut stream: &[u8]) -> Vec<Frame> {
        let mut reader = Reader::new(&mut stream).unwrap();
        let mut all = Vec::new();
        loop {
            match reader.take().unwrap() {
                Frame::End { .. } => return all,
                frame => all.push(frame),
            }
        }
    }

    /// One frame of a stream is another one, with sums that are right.
    fn change(frames: &mut Vec<Frame>, seed: &mut Seed) {
        let index = |seed: &mut Seed, end: usize| usize::try_from(seed.below(end as u64)).unwrap();
        let at = index(seed, frames.len());
        let number = [0, 1, 16, 1 << 20, 1 << 45, u64::MAX >> 1, u64::MAX][index(seed, 7)];
        match seed.below(8) {
            0 => drop(frames.remove(at)),
            1 => {
                let frame = frames[at].clone();
                frames.insert(at, frame);
            }
            2 => {
                let other = index(seed, frames.len());
                frames.swap(at, other);
            }
            _ => match &mut frames[at] {
                Frame::Begin(begin) => {
                    let fields = [
                        &mut begin.ino_end,
                        &mut begin.free_ino,
                        &mut begin.orphan,
                        &mut begin.used,
                        &mut begin.orphans,
                        &mut begin.seed,
                    ];
                    *fields.into_iter().nth(index(seed, 6)).unwrap() = number;
                }
                Frame::Inodes { leaf, bytes } => {
                    if seed.below(6) == 0 {
                        *leaf = number;
                    }
                    for _ in 0..=seed.below(4) {
                        let at = index(seed, bytes.len());
                        bytes[at] = u8::try_from(seed.below(256)).unwrap();
                    }
                }
                Frame::Cut { from, to, .. } => (*from, *to) = (number, u64::MAX - number),
                Frame::Leaf { index: leaf, bytes, .. } => {
                    if seed.below(2) == 0 {
                        *leaf = number;
                    }
                    let at = index(seed, bytes.len());
                    bytes[at] = u8::try_from(seed.below(256)).unwrap();
                }
                Frame::End { .. } => {}
            },
        }
    }

    fn written(frames: &[Frame]) -> Vec<u8> {
        let mut stream = Vec::new();
        let mut writer = Writer::new(&mut stream).unwrap();
        frames.iter().for_each(|frame| writer.put(frame).unwrap());
        writer.end().unwrap();
        stream
    }

    /// Inodes that a snapshot has are no blocks to be freed when a later one says that it ends before them.
    #[test]
    fn inodes_never_end_earlier() {
        let source = made();
        let fs = mount(&source, b"").unwrap();
        fill(&fs, 1);
        fs.make_snapshot(b"one").unwrap();
        fill(&fs, 2);
        fs.make_snapshot(b"two").unwrap();
        let target = made();
        let taken = |all: &[Frame]| {
            let device = Arc::clone(&target) as Arc<dyn BlockDevice>;
            receive(&device, &clock(), b"t", &mut &*written(all), &mut |_| ())
        };
        let mut stream = Vec::new();
        fs.send(b"one", None, &mut stream, &mut |_| ()).unwrap();
        taken(&frames(&stream)).unwrap();
        stream.clear();
        fs.send(b"two", Some(b"one"), &mut stream, &mut |_| ()).unwrap();
        let whole = frames(&stream);
        let mut shorter = whole.clone();
        if let Frame::Begin(begin) = &mut shorter[0] {
            begin.ino_end = 16;
        }
        assert!(taken(&shorter).unwrap_err().to_string().contains("another snapshot than `one`"));
        taken(&whole).unwrap();
        let fs = mount(&target, b"").unwrap();
        fs.remove_snapshot(b"one").unwrap();
        assert!(fs.check().unwrap().is_clean());
        fs.remove_snapshot(b"two").unwrap();
        fs.remove_clone(b"t").unwrap();
        assert!(fs.check().unwrap().is_clean());
    }

    /// What concerns more than the tree that takes a stream in.
    fn harms(code: &str) -> bool {
        ["block-", "map", "free-count", "shares", "reference"].iter().any(|other| code.starts_with(other))
    }

    /// Whoever makes a stream can make the tree that takes it in senseless, and nothing else.
    #[test]
    fn streams_that_make_no_sense_harm_nothing_else() {
        let source = made();
        let fs = mount(&source, b"").unwrap();
        fill(&fs, 1);
        fs.make_snapshot(b"one").unwrap();
        fill(&fs, 2);
        fs.make_snapshot(b"two").unwrap();
        let mut streams = Vec::new();
        for (name, base) in [(&b"one"[..], None), (b"two", Some(&b"one"[..]))] {
            let mut stream = Vec::new();
            fs.send(name, base, &mut stream, &mut |_| ()).unwrap();
            streams.push(stream);
        }
        let (mut taken, mut gone, runs) = (0, 0, 300);
        for number in 0..runs {
            let mut seed = Seed::new(number);
            let target = made();
            let fs = mount(&target, b"").unwrap();
            fill(&fs, 3);
            fs.unmount().unwrap();
            for stream in &streams {
                let mut all = frames(stream);
                for _ in 0..=seed.below(3) {
                    change(&mut all, &mut seed);
                }
                let device = Arc::clone(&target) as Arc<dyn BlockDevice>;
                let done = receive(&device, &clock(), b"t", &mut &*written(&all), &mut |_| ());
                taken += u64::from(done.is_ok());
            }
            let report = check::check(Arc::clone(&target) as _).unwrap();
            for finding in &report.findings {
                assert!(!harms(finding.code), "run {number}: {finding:?}");
            }
            let fs = mount(&target, b"").unwrap();
            let a = fs.lookup(fs.root(), b"a").unwrap().attr;
            assert_eq!(a.size, 3 * 7000 + 9000, "run {number}");
            fs.unmount().unwrap();
            if let Ok(fs) = mount(&target, b"t") {
                let _ = fs.readdir(fs.root(), 0, &mut |_| true);
                let _ = fs.lookup(fs.root(), b"a").map(|found| fs.read(found.attr.ino, 0, &mut [0; 9000]));
                let _ = fs.mkdir(&CALLER, fs.root(), b"new", 0o755);
                let _ = fs.unlink(&CALLER, fs.root(), b"b");
                let _ = fs.unmount();
            }
            let fs = mount(&target, b"").unwrap();
            for name in [b"one", b"two"] {
                let _ = fs.remove_snapshot(name);
                let report = fs.check().unwrap();
                let is_harmed = report.findings.iter().any(|finding| harms(finding.code));
                assert!(!is_harmed, "run {number}: {:?}", report.findings);
            }
            // Damage in the tree may keep it from going.
            let is_gone = fs.remove_clone(b"t").is_ok() && fs.purge().is_ok() && fs.snapshots().is_empty();
            gone += u64::from(is_gone);
            fs.unmount().unwrap();
            let report = check::check(Arc::clone(&target) as _).unwrap();
            assert!(!is_gone || report.is_clean(), "run {number}: {:?}", report.findings);
        }
        assert!(taken > runs / 4 && gone > runs / 4, "{taken} were taken, {gone} went");
    }
}
