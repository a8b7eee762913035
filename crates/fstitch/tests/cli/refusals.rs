//! What cannot be done is refused with a reason, and what to do instead.

use std::fs;

use crate::harness::{Mounted, Place, fstitch, needs, run};

#[test]
fn things_that_hold_no_volume_are_not_mounted() {
    let place = Place::new();
    let at = place.directory("m");
    let image = place.volume("a.img");
    fs::write(place.at("garbage"), vec![0xa7; 100_000]).unwrap();
    fs::write(place.at("empty"), "").unwrap();
    fs::copy(&image, place.at("cut")).unwrap();
    fs::File::options().write(true).open(place.at("cut")).unwrap().set_len(1 << 20).unwrap();
    let mount = |name: &str| fstitch(&format!("mount {} {at}", place.text(name)));
    mount("absent").refused(1, "No such file");
    mount("m").refused(1, "is a directory");
    mount("garbage").refused(1, "holds no ext2 volume");
    mount("empty").refused(1, "is empty: make a volume with");
    mount("cut").refused(1, "but the device has only 1048576 bytes");
    fstitch(&format!("mount {image} {}", place.text("absent"))).refused(1, "make the directory first");
    fstitch(&format!("mount {image} {image}")).refused(1, "is not a directory");
    fstitch(&format!("mount -o bogus {image} {at}")).refused(2, "`bogus` is not an option");
}

#[test]
fn writes_that_the_kernel_keeps_back_exclude_what_promises_their_order() {
    let place = Place::new();
    let (image, at) = (place.text("a.img"), place.directory("m"));
    fstitch(&format!("mkfs ext3 -q {image} 16M")).ok();
    for other in ["consistency=full", "sync", "fsync=ordered"] {
        let said = format!("`writeback_cache` and `{other}` exclude each other");
        fstitch(&format!("mount -o writeback_cache,{other} {image} {at}")).refused(2, &said);
    }
    let Some(_mounted) = Mounted::new("-o writeback_cache", &image, &at) else { return };
    assert!(fstitch(&format!("status {at}")).ok().contains("no patchgroups"));
    fstitch(&format!("depend --on {at} true true")).refused(1, "keeps an order");
}

#[test]
fn an_unreadable_medium_is_named_once() {
    let place = Place::new();
    for (len, said) in [(0, "is empty"), (100, "hold no block")] {
        fs::write(place.at("short"), vec![1; len]).unwrap();
        let ran = fstitch(&format!("fsck -n {}", place.text("short")));
        assert_eq!(ran.code, 8);
        assert_eq!(ran.err.matches(said).count(), 1, "{}", ran.err);
    }
}

#[test]
fn a_mounted_image_is_not_mounted_again_nor_made_anew() {
    let place = Place::new();
    let (image, at, elsewhere) = (place.volume("a.img"), place.directory("m"), place.directory("n"));
    let Some(mounted) = Mounted::new("", &image, &at) else { return };
    let said = format!("it is mounted at {at}");
    fstitch(&format!("mount {image} {elsewhere}")).refused(1, &said);
    fstitch(&format!("mount {image} {at}")).refused(1, &said);
    fstitch(&format!("mkfs ext2 -F {image} 4M")).refused(1, "is in use");
    fstitch(&format!("fsck -y {image}")).refused(8, "is in use");
    mounted.end();
    fstitch(&format!("fsck -fn {image}")).ok();
}

#[test]
fn a_mount_in_use_says_so_and_can_be_detached() {
    let place = Place::new();
    let (image, at) = (place.volume("a.img"), place.directory("m"));
    let Some(mounted) = Mounted::new("", &image, &at) else { return };
    fs::write(mounted.path().join("a"), "still here").unwrap();
    let open = fs::File::open(mounted.path().join("a")).unwrap();
    fstitch(&format!("umount {at}")).refused(1, "is in use");
    fstitch(&format!("umount --lazy {at}")).ok();
    assert_eq!(std::io::read_to_string(open).unwrap(), "still here");
    // The daemon finishes when the file is closed; the next to open the image waits for it.
    fstitch(&format!("fsck -fn {image}")).ok();
    fstitch(&format!("umount {at}")).refused(1, "is not a mount point");
}

#[test]
fn unmounting_waits_a_moment_for_who_is_about_to_close() {
    let place = Place::new();
    let (image, at) = (place.volume("a.img"), place.directory("m"));
    let Some(mounted) = Mounted::new("", &image, &at) else { return };
    let open = fs::File::create(mounted.path().join("a")).unwrap();
    let closer = std::thread::spawn(move || {
        std::thread::sleep(std::time::Duration::from_millis(100));
        drop(open);
    });
    fstitch(&format!("umount {at}")).ok();
    closer.join().unwrap();
}

#[test]
fn volumes_with_features_that_only_allow_reading_are_not_mended() {
    if !needs("mke2fs") {
        return;
    }
    let place = Place::new();
    for feature in ["verity", "casefold"] {
        let image = place.text("foreign.img");
        run("mke2fs", ["-Fq", "-t", "ext4", "-O", feature, &image, "8M"]).ok();
        let before = fs::read(&image).unwrap();
        fstitch(&format!("fsck -f {image}")).refused(8, "checking a volume with feature");
        fstitch(&format!("fsck -fy {image}")).refused(8, "checking a volume with feature");
        assert!(fs::read(&image).unwrap() == before, "{feature}");
        assert!(fstitch(&format!("ls {image}:/")).ok().contains("lost+found"), "{feature}");
    }
}
