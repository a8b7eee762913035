//! What was reclaimed, and the end of a mount while its volume is opened anew.

use std::fs::File;
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread::sleep;

use fstitch_core::{MemDevice, Timestamp};
use fstitch_disk::{DiskOptions, FileDisk};
use fstitch_fs::ext2::mkfs::{MkfsOptions, mkfs};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

use super::super::Arguments;
use super::*;

#[test]
fn what_was_reclaimed_and_why_nothing_was() {
    let done = Reclaimed { inodes: 3, kept: 2, complete: true, ..Reclaimed::default() };
    let said = reclaimed(&done);
    assert!(said.contains("3 inodes") && said.contains("2 inodes that had lost"), "{said}");
    let refused = Reclaimed { refusal: Some("the volume is damaged".into()), ..Reclaimed::default() };
    let said = reclaimed(&refused);
    assert!(said.starts_with("NOTHING was reclaimed") && said.contains("fstitch fsck"), "{said}");
}

/// An image that is locked for reading by nobody who can be found, as by a process that has just been killed: whoever wants to
/// write waits some seconds for its end. The lock goes with these.
struct LockedByNobody(#[expect(dead_code, reason = "held")] [UnixStream; 2]);

impl LockedByNobody {
    fn new(image: &Path) -> Self {
        let file = File::open(image).unwrap();
        let (sender, receiver) = UnixStream::pair().unwrap();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut rights = SendAncillaryBuffer::new(&mut space);
        let files = [file.as_fd()];
        assert!(rights.push(SendAncillaryMessage::ScmRights(&files)));
        sendmsg(&sender, &[IoSlice::new(b"x")], &mut rights, SendFlags::empty()).unwrap();
        // A lock belongs to all descriptors of one opening, and so, soon, to the one that is on its way alone.
        drop(FileDisk::from_fd(file.into(), disk_options(true)).unwrap());
        Self([sender, receiver])
    }
}

fn disk_options(read_only: bool) -> DiskOptions {
    DiskOptions { block_size: 1024, read_only, ..DiskOptions::default() }
}

/// Whether nobody writes the image.
fn is_let_go(image: &Path) -> bool {
    FileDisk::open(image, disk_options(true)).is_ok()
}

fn until(happens: impl Fn() -> bool) {
    for _ in 0..2_000 {
        if happens() {
            return;
        }
        sleep(Duration::from_millis(1));
    }
    panic!("it does not come to that");
}

#[test]
fn closing_waits_for_whoever_opens_the_volume_anew() {
    let directory = tempfile::tempdir().unwrap();
    let image = directory.path().join("a.img");
    let medium = MemDevice::new(1024, 4096);
    let made = MkfsOptions::new([7; 16], [9; 16], Timestamp::default());
    mkfs(&medium, &MkfsOptions { block_size: Some(1024), ..made }, &mut |_, _| ()).unwrap();
    std::fs::write(&image, medium.image()).unwrap();
    let arguments = Arguments::new(vec!["ro".into()], image.clone(), directory.path().to_owned());
    let plan = Plan::new(&arguments, false).unwrap();
    let volume = Volume::open(&image, &open_options(&plan)).unwrap();
    let seat = Arc::new(Reopenable::new(Arc::clone(&volume.fs)));
    let daemon = Arc::new(Daemon::new(Status::default(), &plan.options, volume, None));
    daemon.let_reopen(Arc::clone(&seat), &plan);
    let locked = LockedByNobody::new(&image);
    std::thread::scope(|scope| {
        let reopening = scope.spawn(|| daemon.reopen());
        until(|| daemon.volume.try_read().is_ok_and(|volume| volume.is_none()));
        // Once it is open for writing, whoever has opened it gets no farther than to say so.
        let status = daemon.shown();
        drop(locked);
        until(|| !is_let_go(&image));
        let closing = scope.spawn(|| {
            seat.unmount()?;
            daemon.close()
        });
        sleep(Duration::from_millis(300));
        assert!(!closing.is_finished(), "what is being opened would stay open");
        drop(status);
        reopening.join().unwrap().unwrap();
        closing.join().unwrap().unwrap();
        assert!(is_let_go(&image), "it is open behind the unmount");
    });
    assert!(daemon.with(|_| Ok(())).is_err(), "it stays closed");
    let again = Volume::open(&image, &open_options(&plan)).unwrap();
    assert!(!again.fs.was_unclean());
}
