//! Block devices and partitions as the medium.

use crate::harness::{Mounted, PROGRAM, Place, fstitch, needs, needs_root, run};

/// A loop device over a file, detached with the test.
struct Loop {
    device: String,
}

impl Loop {
    fn new(file: &str) -> Option<Self> {
        Self::with_sectors(file, "512")
    }

    fn with_sectors(file: &str, sector: &str) -> Option<Self> {
        if !needs_root() || !needs("losetup") {
            return None;
        }
        let ran = run("losetup", ["--find", "--show", "--sector-size", sector, file]);
        if ran.code != 0 {
            println!("skipped: no loop device: {}", ran.err.trim());
            return None;
        }
        Some(Self { device: ran.out.trim().to_owned() })
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        // A device that is still in use detaches itself when its last user has gone.
        let _ = run("losetup", ["--detach", &self.device]);
    }
}

#[test]
fn block_devices_are_volumes() {
    let place = Place::new();
    let at = place.directory("m");
    std::fs::write(place.at("disk"), vec![0; 8 << 20]).unwrap();
    let Some(disk) = Loop::new(&place.text("disk")) else { return };
    let device = &disk.device;
    fstitch(&format!("mkfs ext2 -q {device}")).ok();
    fstitch(&format!("mkfs ext2 -q {device}")).refused(1, "--force");
    let Some(mounted) = Mounted::new("", device, &at) else { return };
    std::fs::write(mounted.path().join("a"), "on a device").unwrap();
    fstitch(&format!("mount {} {at}", place.text("disk"))).refused(1, "is in use");
    mounted.end();
    fstitch(&format!("fsck -fn {device}")).ok();
    assert_eq!(fstitch(&format!("cat {device}:/a")).ok(), "on a device");
}

/// A block of the volume may be a part of a sector, or several of them.
#[test]
fn volumes_of_any_block_size_are_on_disks_of_any_sector_size() {
    if !needs("e2fsck") {
        return;
    }
    let place = Place::new();
    let at = place.directory("m");
    let contents = |number: usize| vec![b'a' + u8::try_from(number % 26).unwrap(); 700 * number + 1];
    for (sector, kind) in [
        ("4096", "ext2 -b 1024"),
        ("4096", "ext4 -b 1024"),
        ("4096", "ufs1 -b 4096 -f 512"),
        ("4096", "ufs2 -b 8192 -f 1024"),
        ("512", "ext4 -b 65536 -O ^has_journal"),
        ("512", "waffle"),
        ("4096", "waffle"),
    ] {
        std::fs::write(place.at("disk"), vec![0; 48 << 20]).unwrap();
        let Some(disk) = Loop::with_sectors(&place.text("disk"), sector) else { return };
        let device = &disk.device;
        fstitch(&format!("mkfs {kind} -q {device}")).ok();
        let Some(mounted) = Mounted::new("", device, &at) else { return };
        let path = |number: usize| mounted.path().join(format!("f{number}"));
        (0..40).for_each(|number| std::fs::write(path(number), contents(number)).unwrap());
        (0..40).step_by(3).for_each(|number| std::fs::remove_file(path(number)).unwrap());
        mounted.end();
        fstitch(&format!("fsck -fn {device}")).ok();
        if kind.starts_with("ext") {
            assert_eq!(run("e2fsck", ["-fn", device.as_str()]).code, 0, "{kind} on sectors of {sector}");
        }
        let found = fstitch(&format!("cat {device}:/f38")).ok();
        assert!(found.as_bytes() == contents(38), "{kind} on sectors of {sector}");
    }
}

#[test]
fn what_the_kernel_has_mounted_is_refused() {
    let place = Place::new();
    let (at, elsewhere) = (place.directory("m"), place.directory("n"));
    let image = place.volume("disk");
    let Some(disk) = Loop::new(&image) else { return };
    let device = &disk.device;
    let script = format!(
        "mount -t ext2 {device} {at} || exit 77\nset +e\n$F mount {device} {elsewhere}; echo $?\n$F fsck -p {device}; echo $?\n$F mkfs ext2 -F {device}; echo $?\n$F mount {image} {elsewhere}; echo $?\numount {at}"
    );
    let Some(ran) = place.in_namespace(&script) else { return };
    if ran.code == 77 {
        println!("skipped: the kernel has no ext2: {}", ran.err.trim());
        return;
    }
    assert_eq!(ran.out, "1\n8\n1\n1\n", "{}", ran.err);
    assert_eq!(ran.err.matches("the kernel has mounted it on").count(), 4, "{}", ran.err);
}

/// A look at the file behind a loop device takes for ever where that is of a daemon that is stuck.
#[test]
fn a_volume_is_written_though_a_loop_device_is_over_a_file_of_a_stuck_daemon() {
    let place = Place::new();
    let at = place.directory("m");
    let Some(mounted) = Mounted::new("", &place.volume("a.img"), &at) else { return };
    let inner = mounted.path().join("disk").display().to_string();
    std::fs::write(&inner, vec![0; 1 << 20]).unwrap();
    let Some(disk) = Loop::new(&inner) else { return mounted.end() };
    fstitch(&format!("mkfs ext2 -F {inner}")).refused(1, &format!("attached it to {}", disk.device));
    let status: serde_json::Value =
        serde_json::from_str(&fstitch(&format!("status --json {at}")).ok()).unwrap();
    let pid = status[0]["pid"].as_u64().unwrap().to_string();
    // The kernel has to ask for the attributes after a write.
    std::io::Write::write_all(&mut std::fs::File::options().append(true).open(&inner).unwrap(), b"longer")
        .unwrap();
    run("kill", ["-STOP", &pid]).ok();
    let made = run("timeout", ["-s", "KILL", "30", PROGRAM, "mkfs", "ext2", &place.text("b.img"), "4M"]);
    run("kill", ["-CONT", &pid]).ok();
    made.ok();
    drop(disk);
    mounted.end();
}

#[test]
fn a_partition_inside_an_image_is_reached_by_its_offset() {
    let place = Place::new();
    let (at, disk) = (place.directory("m"), place.text("disk"));
    std::fs::write(&disk, vec![0; 12 << 20]).unwrap();
    let offset = "--offset 1M";
    fstitch(&format!("mkfs ext2 -q {offset} {disk} 8M")).ok();
    std::fs::write(place.at("file"), "copied").unwrap();
    fstitch(&format!("cp {offset} {} {disk}:/", place.text("file"))).ok();
    if let Some(mounted) = Mounted::new(offset, &disk, &at) {
        assert_eq!(std::fs::read_to_string(mounted.path().join("file")).unwrap(), "copied");
        mounted.end();
    }
    if let Some(mounted) = Mounted::new("-o offset=1048576", &disk, &at) {
        mounted.end();
    }
    assert!(fstitch(&format!("ls {offset} {disk}:/")).ok().contains("file\n"));
    assert_eq!(fstitch(&format!("cat {offset} {disk}:/file")).ok(), "copied");
    fstitch(&format!("fsck -fn {offset} {disk}")).ok();
    fstitch(&format!("ls {disk}:/")).refused(1, "holds no ext2 volume");
}
