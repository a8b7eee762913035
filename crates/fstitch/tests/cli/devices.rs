//! Block devices and partitions as the medium.

use crate::harness::{Mounted, Place, fstitch, needs, needs_root, run};

/// A loop device over a file, detached with the test.
struct Loop {
    device: String,
}

impl Loop {
    fn new(file: &str) -> Option<Self> {
        if !needs_root() || !needs("losetup") {
            return None;
        }
        let ran = run("losetup", ["--find", "--show", file]);
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
