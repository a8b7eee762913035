//! Snapshots that are sent to other volumes are there what they were.

use std::collections::BTreeMap;
use std::io::Read;
use std::sync::{Arc, Mutex};

use fstitch_core::{
    BlockDevice, Clock, Errno, Error, FallocateMode, FileSystem, ManualClock, MemDevice, Result, Seed,
    SetAttr,
};
use fstitch_fs::waffle::{Options, Received, Waffle, receive};

use crate::rig::{CALLER, file, is_clean, made, made_with, mount, mount_with};
use crate::snapshots::{Tree, below, change, of_snapshot};

fn send(fs: &Waffle, name: &str, base: Option<&str>) -> Vec<u8> {
    let mut stream = Vec::new();
    fs.send(name.as_bytes(), base.map(str::as_bytes), &mut stream, &mut |_| ()).unwrap();
    stream
}

fn receive_from(device: &Arc<MemDevice>, tree: &str, from: &mut dyn Read) -> Result<Received> {
    let device = Arc::clone(device) as Arc<dyn BlockDevice>;
    let clock = Arc::new(ManualClock::new()) as Arc<dyn Clock>;
    receive(&device, &clock, tree.as_bytes(), from, &mut |_| ())
}

fn receive_all(device: &Arc<MemDevice>, tree: &str, stream: &[u8]) -> Result<Received> {
    receive_from(device, tree, &mut &*stream)
}

fn holds(device: &Arc<MemDevice>, kept: &BTreeMap<String, Tree>, what: &str) {
    is_clean(device);
    let fs = mount(device);
    for (name, was) in kept {
        assert!(of_snapshot(&fs, name) == *was, "{what}: snapshot {name}");
    }
    fs.unmount().unwrap();
}

#[test]
fn what_is_received_is_what_was_sent() {
    for number in 0..12 {
        let mut seed = Seed::new(number);
        // The target has another size and another seed of names.
        let (source, target) = (made_with(4096, number % 2 == 1), made_with(8192, number % 3 == 1));
        let (mut sent, mut kept) = (BTreeMap::new(), BTreeMap::new());
        let mut base: Option<String> = None;
        for round in 0..14 {
            let fs = mount(&source);
            let count = seed.below(60);
            change(&fs, &mut seed, count);
            let name = format!("s{round}");
            fs.make_snapshot(name.as_bytes()).unwrap();
            let stream = send(&fs, &name, base.as_deref());
            let was = below(&fs, fs.root());
            // One before the base may go, on either side.
            if seed.below(3) == 0
                && let Some((old, _)) = sent.iter().find(|(old, _)| Some(*old) != base.as_ref())
            {
                let old: String = String::clone(old);
                fs.remove_snapshot(old.as_bytes()).unwrap();
                sent.remove(&old);
            }
            fs.unmount().unwrap();
            is_clean(&source);
            if seed.below(3) == 0
                && let Some((old, _)) = kept.iter().find(|(old, _)| Some(*old) != base.as_ref())
            {
                let old: String = String::clone(old);
                let fs = mount(&target);
                fs.remove_snapshot(old.as_bytes()).unwrap();
                fs.unmount().unwrap();
                kept.remove(&old);
            }
            let received = receive_all(&target, "backup", &stream).unwrap();
            assert_eq!(received.name, name.as_bytes());
            sent.insert(name.clone(), was.clone());
            kept.insert(name.clone(), was);
            holds(&target, &kept, &format!("run {number}, round {round}"));
            base = Some(name);
        }
        holds(&source, &sent, &format!("run {number}"));
        passed_on(&source, &target, (&base.unwrap(), &kept), &mut seed);
    }
}

/// On to a third volume: the last snapshot as a whole, and one that comes after it.
fn passed_on(
    source: &Arc<MemDevice>,
    target: &Arc<MemDevice>,
    (last, kept): (&String, &BTreeMap<String, Tree>),
    seed: &mut Seed,
) {
    let third = made(4096);
    let fs = mount(target);
    let whole = send(&fs, last, None);
    fs.unmount().unwrap();
    receive_all(&third, "again", &whole).unwrap();
    let fs = mount(source);
    change(&fs, seed, 30);
    fs.make_snapshot(b"late").unwrap();
    let more = send(&fs, "late", Some(last));
    let was = below(&fs, fs.root());
    fs.unmount().unwrap();
    receive_all(&third, "again", &more).unwrap();
    let kept = BTreeMap::from([(last.clone(), kept[last].clone()), ("late".to_owned(), was.clone())]);
    holds(&third, &kept, "the third volume");
    // What was received can be changed, as a clone, and goes with all that it took.
    let fs = mount(&third);
    fs.make_clone(b"late", b"mine").unwrap();
    fs.unmount().unwrap();
    let mine = mount_with(&third, Options { tree: b"mine".to_vec(), ..Options::default() }).unwrap();
    assert!(below(&mine, mine.root()) == was);
    change(&mine, seed, 40);
    mine.unmount().unwrap();
    holds(&third, &kept, "with a clone");
    let fs = mount(&third);
    fs.remove_clone(b"mine").unwrap();
    for name in kept.keys() {
        fs.remove_snapshot(name.as_bytes()).unwrap();
    }
    fs.remove_clone(b"again").unwrap();
    fs.sync().unwrap();
    assert!(fs.statfs().unwrap().blocks_free > 4096 - 80);
    fs.unmount().unwrap();
    is_clean(&third);
}

/// A stream of what changed is about as long as what changed.
#[test]
fn what_is_the_same_is_not_sent() {
    let device = made(16_384);
    let fs = mount(&device);
    let ino = file(&fs, fs.root(), "large", &vec![3; 20_000_000]).unwrap();
    for number in 0..500 {
        file(&fs, fs.root(), &format!("small-{number}"), &[1; 5000]).unwrap();
    }
    fs.make_snapshot(b"a").unwrap();
    fs.write(&CALLER, ino, 10_000_000, b"changed").unwrap();
    fs.make_snapshot(b"b").unwrap();
    let (whole, rest) = (send(&fs, "b", None), send(&fs, "b", Some("a")));
    assert!(whole.len() > 22_000_000 && rest.len() < 20_000, "{} and {}", whole.len(), rest.len());
    let other = send(&fs, "a", Some("a"));
    assert!(other.len() < 1000, "{}", other.len());
}

/// Reads a stream, and keeps what the medium is when so many bytes of it have been read.
struct Watched<'a> {
    from: &'a [u8],
    device: &'a MemDevice,
    at: usize,
    image: &'a Mutex<Option<Vec<u8>>>,
}

impl Read for Watched<'_> {
    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        let before = self.from.len();
        let read = self.from.read(buf)?;
        if (self.from.len()..=before).contains(&self.at) {
            *self.image.lock().unwrap() = Some(self.device.image());
        }
        Ok(read)
    }
}

/// A stream that ends early, or a cut in the midst of one: nothing else changes, and the same stream comes again.
#[test]
fn a_stream_that_ends_early_is_sent_again() {
    let mut seed = Seed::new(3);
    let source = made(4096);
    let fs = mount(&source);
    change(&fs, &mut seed, 60);
    fs.make_snapshot(b"a").unwrap();
    let first = below(&fs, fs.root());
    change(&fs, &mut seed, 60);
    fs.make_snapshot(b"b").unwrap();
    let second = below(&fs, fs.root());
    let streams = [send(&fs, "a", None), send(&fs, "b", Some("a"))];
    for _ in 0..30 {
        let target = made(4096);
        let fs = mount(&target);
        file(&fs, fs.root(), "own", b"own").unwrap();
        fs.unmount().unwrap();
        let mut kept = BTreeMap::new();
        for (stream, (name, was)) in streams.iter().zip([("a", &first), ("b", &second)]) {
            let end = usize::try_from(seed.below(stream.len() as u64)).unwrap();
            let error = receive_all(&target, "t", &stream[..end]).unwrap_err();
            assert!(matches!(error, Error::Corrupt(_)), "{error}");
            holds(&target, &kept, "after half a stream");
            if let Err(error) = mount_with(&target, Options { tree: b"t".to_vec(), ..Options::default() }) {
                let is_told = error.to_string().contains("being received");
                assert!(is_told || error.errno() == Errno::NOENT, "{error}");
            }
            let image = Mutex::new(None);
            let at = usize::try_from(seed.below(stream.len() as u64)).unwrap();
            let mut from = Watched { from: stream, device: &target, at, image: &image };
            receive_from(&target, "t", &mut from).unwrap();
            let cut = Arc::new(MemDevice::from_image(4096, image.into_inner().unwrap().unwrap()));
            holds(&cut, &kept, "after a cut");
            receive_all(&cut, "t", stream).unwrap();
            kept.insert(name.to_owned(), was.clone());
            holds(&cut, &kept, "received after a cut");
            holds(&target, &kept, "received");
        }
        let fs = mount(&target);
        assert!(fs.lookup(fs.root(), b"own").is_ok());
    }
}

/// Files with several nodes, whole parts of which come and go.
#[test]
fn what_long_files_lose_goes_on_the_other_side() {
    let (source, target) = (made(8192), made(8192));
    let fs = mount(&source);
    let long = |byte: u8| vec![byte; 2_000_000];
    for (name, byte) in [("cut", 1), ("punched", 2), ("gone", 3)] {
        file(&fs, fs.root(), name, &long(byte)).unwrap();
    }
    let grows = file(&fs, fs.root(), "grows", &[4; 9000]).unwrap();
    fs.make_snapshot(b"a").unwrap();
    receive_all(&target, "t", &send(&fs, "a", None)).unwrap();
    let of = |name: &[u8]| fs.lookup(fs.root(), name).unwrap().attr.ino;
    let size = SetAttr { size: Some(5000), ..SetAttr::default() };
    fs.setattr(&CALLER, of(b"cut"), &size).unwrap();
    fs.fallocate(&CALLER, of(b"punched"), 300_000, 1_500_000, FallocateMode::PunchHole).unwrap();
    fs.unlink(&CALLER, fs.root(), b"gone").unwrap();
    fs.write(&CALLER, grows, 0, &long(5)).unwrap();
    fs.make_snapshot(b"b").unwrap();
    receive_all(&target, "t", &send(&fs, "b", Some("a"))).unwrap();
    let kept = BTreeMap::from([("b".to_owned(), below(&fs, fs.root()))]);
    holds(&target, &kept, "long files");
    let blocks = |name: &str, fs: &Waffle, dir| {
        let ino = fs.lookup(dir, name.as_bytes()).unwrap().attr.ino;
        fs.getattr(ino).unwrap().blocks
    };
    let other = mount(&target);
    let list = other.lookup(other.root(), b".snapshots").unwrap().attr.ino;
    let there = other.lookup(list, b"b").unwrap().attr.ino;
    for name in ["cut", "punched", "grows"] {
        assert_eq!(blocks(name, &other, there), blocks(name, &fs, fs.root()), "{name}");
    }
}

/// What half a stream has brought is nothing that the next one could be told from.
#[test]
fn another_stream_comes_after_half_of_one() {
    for number in 0..6 {
        let mut seed = Seed::new(number);
        let source = made_with(4096, number % 2 == 1);
        let fs = mount(&source);
        change(&fs, &mut seed, 60);
        fs.make_snapshot(b"a").unwrap();
        let first = below(&fs, fs.root());
        let whole = send(&fs, "a", None);
        change(&fs, &mut seed, 60);
        fs.make_snapshot(b"b").unwrap();
        let half = send(&fs, "b", Some("a"));
        change(&fs, &mut seed, 60);
        fs.make_snapshot(b"c").unwrap();
        let second = below(&fs, fs.root());
        // What is the same in `a` and `c` is not in this one, whatever `b` has there.
        fs.make_clone(b"a", b"again").unwrap();
        fs.unmount().unwrap();
        let again = Options { tree: b"again".to_vec(), ..Options::default() };
        let clone = mount_with(&source, again).unwrap();
        file(&clone, clone.root(), "other", b"other").unwrap();
        clone.make_snapshot(b"d").unwrap();
        let third = below(&clone, clone.root());
        let from_a = send(&clone, "d", Some("a"));
        clone.unmount().unwrap();
        let target = made(4096);
        receive_all(&target, "t", &whole).unwrap();
        for part in [half.len() / 2, half.len() - 1] {
            receive_all(&target, "t", &half[..part]).unwrap_err();
        }
        receive_all(&target, "t", &from_a).unwrap();
        let kept = BTreeMap::from([("a".to_owned(), first), ("d".to_owned(), third)]);
        holds(&target, &kept, &format!("run {number}"));
        assert!(second != kept["a"]);
    }
}

#[test]
fn streams_that_do_not_fit_are_refused() {
    let source = made(1024);
    let fs = mount(&source);
    file(&fs, fs.root(), "a", b"one").unwrap();
    fs.make_snapshot(b"a").unwrap();
    fs.make_snapshot(b"b").unwrap();
    file(&fs, fs.root(), "c", b"three").unwrap();
    fs.make_snapshot(b"c").unwrap();
    let mut none = Vec::new();
    let missing = fs.send(b"none", None, &mut none, &mut |_| ()).unwrap_err();
    assert_eq!(missing.errno(), Errno::NOENT);
    let (a, b_from_a, c_from_b) =
        (send(&fs, "a", None), send(&fs, "b", Some("a")), send(&fs, "c", Some("b")));
    let target = made(1024);
    let refused = |stream: &[u8], tree: &str, why: &str| {
        let said = receive_all(&target, tree, stream).unwrap_err().to_string();
        assert!(said.contains(why), "{said}");
        is_clean(&target);
    };
    refused(&b_from_a, "t", "send it a whole snapshot first");
    refused(b"something else", "t", "does not begin like one");
    refused(&a, "a", "called as its snapshot");
    refused(&a, "", "a tree that is called ``");
    refused(&a, "x/y", "a tree that is called `x/y`");
    receive_all(&target, "t", &a).unwrap();
    refused(&a, "t", "a second snapshot `a`");
    refused(&c_from_b, "t", "another snapshot than `a`");
    let whole = send(&fs, "c", None);
    refused(&whole, "t", "send what changed since");
    let tree = mount_with(&target, Options { tree: b"t".to_vec(), ..Options::default() }).unwrap();
    file(&tree, tree.root(), "mine", b"mine").unwrap();
    tree.unmount().unwrap();
    refused(&b_from_a, "t", "it has changes of its own since `a`");
    // What somebody has made there is there.
    let tree = mount_with(&target, Options { tree: b"t".to_vec(), ..Options::default() }).unwrap();
    assert!(tree.lookup(tree.root(), b"mine").is_ok());
    tree.unmount().unwrap();
    // A volume that is too small says so, and can be used.
    let small = made(128);
    let fs = mount(&source);
    file(&fs, fs.root(), "large", &vec![7; 2_000_000]).unwrap();
    fs.make_snapshot(b"d").unwrap();
    let large = send(&fs, "d", None);
    assert_eq!(receive_all(&small, "t", &large).unwrap_err().errno(), Errno::NOSPC);
    is_clean(&small);
    receive_all(&small, "t", &a).unwrap();
    is_clean(&small);
}
