//! mount(8), umount(8) and fstab through the helper `mount.fuse.fstitch`, in a mount table of the test's own where
//! the helper alone stands in `/sbin`.

use std::fs::File;
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::thread::sleep;
use std::time::Duration;

use fstitch_disk::{DiskOptions, FileDisk};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

use crate::harness::{Place, Ran, needs, needs_root};

/// Runs `script` where mount(8) finds the helper. It begins in a directory with the volume `a.img` and the empty
/// directory `m`.
fn with_helper(place: &Place, script: &str) -> Option<Ran> {
    if !needs_root() || !needs("mount") {
        return None;
    }
    place.volume("a.img");
    place.directory("m");
    place.directory("sbin");
    std::os::unix::fs::symlink(crate::harness::PROGRAM, place.at("sbin/mount.fuse.fstitch")).unwrap();
    let script = format!("mount --bind sbin /sbin\nD=$PWD\n{script}");
    let ran = place.in_namespace(&script)?;
    if ran.err.contains("/dev/fuse") {
        println!("skipped: {}", ran.err.trim());
        return None;
    }
    Some(ran)
}

/// The words that mount(8) shows for the mount, in a shell.
const SHOW: &str = "show() { grep \" $D/m \" /proc/self/mounts | cut -d' ' -f3,4; }\n";

#[test]
fn mount_remount_and_umount() {
    let place = Place::new();
    let script = format!(
        "{SHOW}mount -t fuse.fstitch a.img m -o noatime,nosuid,lazytime\nshow\n\
         echo one > m/a\nmount -o remount,ro m\nshow\n(echo two > m/b) 2>&- && exit 3\n\
         mount -o remount,rw,nolazytime m\nshow\necho two > m/b\numount m\nshow || true\n"
    );
    let Some(ran) = with_helper(&place, &script) else { return };
    let shown: Vec<String> = ran.ok().lines().map(str::to_owned).collect();
    assert_eq!(shown.len(), 3, "{shown:?}");
    assert!(shown[0].starts_with("fuse.fstitch rw,lazytime,nosuid,noatime,"), "{shown:?}");
    assert!(shown[1].starts_with("fuse.fstitch ro,lazytime,nosuid,noatime,"), "{shown:?}");
    assert!(shown[2].starts_with("fuse.fstitch rw,nosuid,noatime,"), "{shown:?}");
}

/// A snapshot is mounted for reading, whoever asks for more, and stays so.
#[test]
fn a_snapshot_does_not_become_writable() {
    let place = Place::new();
    let script = format!(
        "{SHOW}$F mkfs waffle -q w.img 32M\n$F mkdir w.img:/d\n$F snapshot create w.img s >&2\n\
         mount -t fuse.fstitch w.img m -o tree=s\nshow\n(mount -o remount,rw m) 2>&1 | grep -c 'it is a snapshot'\n\
         (mkdir m/e) 2>&- && exit 3\n$F status m | grep -c read-only\nls m\numount m\n"
    );
    let Some(ran) = with_helper(&place, &script) else { return };
    let shown: Vec<String> = ran.ok().lines().map(str::to_owned).collect();
    assert!(shown[0].starts_with("fuse.fstitch ro,"), "{shown:?}");
    assert_eq!(shown[1..], ["1", "1", "d"]);
}

#[test]
fn what_was_mounted_for_reading_becomes_writable() {
    for kind in ["ext2", "ext3"] {
        let place = Place::new();
        // Names and open files that the kernel knows from before go on being what they were, removed ones included.
        let script = format!(
            "{SHOW}$F mkfs {kind} -q -F a.img 32M\nmount -t fuse.fstitch a.img m\necho one > m/a\nmkdir m/d\n\
             echo kept > m/d/b\necho gone > m/d/c\numount m\nuntil mount -t fuse.fstitch a.img m -o ro; do sleep 0.1; done\n\
             show\n(echo two > m/e) 2>&- && exit 3\ncat m/a\nexec 3< m/d/c\n\
             mount -o remount,rw m\nshow\n$F status m | grep -c 'read-only' || true\n\
             echo two > m/e\nrm m/d/c\ncat <&3\nexec 3<&-\ncat m/d/b\nfsync() {{ sync m; }}\nfsync\n$F umount m\n\
             $F fsck -fn a.img >&2\n$F cat a.img:/e\n$F cat a.img:/d/c 2>&- && exit 4\ntrue\n"
        );
        let Some(ran) = with_helper(&place, &script) else { return };
        let said = ran.ok();
        let lines: Vec<&str> = said.lines().collect();
        assert!(lines[0].starts_with("fuse.fstitch ro,"), "{said}");
        assert_eq!((lines[1], lines[3]), ("one", "0"), "{said}");
        assert!(lines[2].starts_with("fuse.fstitch rw,"), "{said}");
        assert_eq!(lines[4..], ["gone", "kept", "two"], "{said}");
    }
}

#[test]
fn what_somebody_else_reads_stays_read_only_and_mounted() {
    let place = Place::new();
    let script = "mkdir n\nmount -t fuse.fstitch a.img m\necho one > m/a\n$F umount m\n\
                  mount -t fuse.fstitch a.img m -o ro\nmount -t fuse.fstitch a.img n -o ro\nset +e\n\
                  mount -o remount,rw m; echo $?\ncat m/a\n(echo two > m/b) 2>&-; echo $?\n\
                  umount m n\n";
    let Some(ran) = with_helper(&place, script) else { return };
    assert!(ran.err.contains("stays mounted read-only") && ran.err.contains("in use"), "{ran:?}");
    let said = ran.ok();
    let lines: Vec<&str> = said.lines().collect();
    assert!(lines[0] == "32" && lines[1] == "one" && lines[2] != "0", "{said}");
}

#[test]
fn a_line_of_fstab_is_mounted() {
    let place = Place::new();
    let script = format!(
        "{SHOW}echo \"$D/a.img $D/m fuse.fstitch ro,nofail,x-test=1,nodiratime,_netdev 0 0\" > fstab\n\
         mount -a -T fstab\nshow\numount m\nmount -T fstab $D/m\nshow\numount m\n"
    );
    let Some(ran) = with_helper(&place, &script) else { return };
    let shown = ran.ok();
    assert_eq!(shown.lines().filter(|line| line.starts_with("fuse.fstitch ro,")).count(), 2, "{shown}");
}

#[test]
fn failures_have_the_exit_code_of_mount() {
    let place = Place::new();
    let script = "set +e\nmount -t fuse.fstitch a.img m -o bogus; echo $?\n\
                  mount -t fuse.fstitch absent m; echo $?\nmount -t fuse.fstitch a.img m -o ro; echo $?\n\
                  mount -o remount,rw m; echo $?\numount m; echo $?\n\
                  mount -s -t fuse.fstitch a.img m -o bogus; echo $?\numount m; echo $?\n";
    let Some(ran) = with_helper(&place, script) else { return };
    assert_eq!(ran.out, "32\n32\n0\n0\n0\n0\n0\n", "{}", ran.err);
    assert!(ran.err.contains("`bogus` is not an option"), "{}", ran.err);
}

#[test]
fn a_mount_in_use_is_busy_until_it_is_detached() {
    let place = Place::new();
    let script = "mount -t fuse.fstitch a.img m\necho kept > m/a\nexec 3< m/a\numount m && exit 3\n\
                  umount -l m\ncat <&3\nexec 3<&-\n$F fsck -fn a.img\n";
    let Some(ran) = with_helper(&place, script) else { return };
    assert!(ran.err.contains("busy"), "{}", ran.err);
    assert!(ran.ok().starts_with("kept\n"));
}

/// Locks an image for reading, by nobody who can be found, as by a process that has just been killed: whoever wants to write
/// waits some seconds for its end. The lock goes with what is returned.
fn lock_by_nobody(image: &str) -> [UnixStream; 2] {
    let file = File::open(image).unwrap();
    let (sender, receiver) = UnixStream::pair().unwrap();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut rights = SendAncillaryBuffer::new(&mut space);
    let files = [file.as_fd()];
    assert!(rights.push(SendAncillaryMessage::ScmRights(&files)));
    sendmsg(&sender, &[IoSlice::new(b"x")], &mut rights, SendFlags::empty()).unwrap();
    // A lock belongs to all descriptors of one opening, and so, soon, to the one that is on its way alone.
    let options = DiskOptions { block_size: 1024, read_only: true, ..DiskOptions::default() };
    drop(FileDisk::from_fd(file.into(), options).unwrap());
    [sender, receiver]
}

#[test]
fn an_unmount_waits_for_whoever_opens_the_volume_anew() {
    let place = Place::new();
    let script = "comes() { for _ in $(seq 1000); do eval \"$1\" && return; sleep 0.01; done; exit 9; }\n\
                  mount -t fuse.fstitch a.img m\necho one > m/a\n$F umount m\n\
                  comes 'mount -t fuse.fstitch a.img m -o ro'\n: > mounted\ncomes '[ -e held ]'\n\
                  mount -o remount,rw m 2>&- &\nR=$!\nsleep 0.3\n\
                  (timeout 30 $F umount m; echo $? > ended) &\nU=$!\n\
                  comes '! grep -q \" $D/m \" /proc/self/mounts'\n: > gone\nwait $U\nwait $R || true\n";
    std::thread::scope(|scope| {
        let script = scope.spawn(|| with_helper(&place, script));
        let comes = |name: &str| {
            while !place.at(name).exists() && !script.is_finished() {
                sleep(Duration::from_millis(5));
            }
            place.at(name).exists()
        };
        if comes("mounted") {
            let image = place.text("a.img");
            let locked = lock_by_nobody(&image);
            File::create(place.at("held")).unwrap();
            assert!(comes("gone"), "the mount is taken away while the volume is opened");
            sleep(Duration::from_millis(300));
            assert!(!place.at("ended").exists(), "it is still being opened");
            drop(locked);
            assert!(comes("ended"));
            // Not a moment later.
            let options = DiskOptions { block_size: 1024, ..DiskOptions::default() };
            FileDisk::open(&image, options).expect("the volume is let go");
        }
        let Some(ran) = script.join().unwrap() else { return };
        ran.ok();
        assert_eq!(std::fs::read_to_string(place.at("ended")).unwrap(), "0\n");
        let image = place.text("a.img");
        crate::harness::fstitch(&format!("fsck -fn {image}")).ok();
        assert_eq!(crate::harness::fstitch(&format!("cat {image}:/a")).ok(), "one\n");
    });
}
