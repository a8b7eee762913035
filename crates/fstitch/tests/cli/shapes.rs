//! Output that programs read, and help for people.

use serde_json::Value;

use crate::harness::{Mounted, Place, Ran, fstitch, needs, run};

#[track_caller]
fn json(ran: Ran) -> Value {
    serde_json::from_str(&ran.ok()).unwrap()
}

#[test]
fn commands_that_read_print_json() {
    let place = Place::new();
    let (image, at) = (place.text("a.img"), place.directory("m"));
    let made = json(fstitch(&format!("mkfs ext2 --json {image} 4M")));
    assert_eq!(made["blocks"], 4096);
    assert_eq!(json(fstitch(&format!("ls -lR --json {image}:/")))[0]["path"], "/lost+found");
    assert_eq!(json(fstitch(&format!("fsck -fn --json {image}")))["total"], 0);
    assert!(json(fstitch(&format!("info --json {image}"))).is_object());
    let Some(mounted) = Mounted::new("-o transport=device", &image, &at) else { return };
    let status = json(fstitch(&format!("status --json {at}")));
    assert_eq!(status[0]["mountpoint"], at.as_str());
    assert_eq!(status[0]["transport"], "device");
    assert!(
        json(fstitch("status --json")).as_array().unwrap().iter().any(|m| m["mountpoint"] == at.as_str())
    );
    assert!(json(fstitch(&format!("stats --json {at}")))["device"]["flushes"].is_u64());
    assert_eq!(json(fstitch(&format!("fsck --online --json {at}")))["corrupt"], 0);
    mounted.end();
}

#[test]
fn every_command_knows_every_format_in_every_block_size() {
    let place = Place::new();
    std::fs::write(place.at("greeting"), "hello").unwrap();
    let kinds = fstitch_formats::FORMATS.iter().flat_map(|format| format.makes());
    for kind in kinds {
        let mut sizes = Vec::new();
        for bytes in [512, 1024, 2048, 4096] {
            let image = place.text(&format!("{kind}-{bytes}.img"));
            if fstitch(&format!("mkfs {kind} -b {bytes} {image} 16M")).code != 0 {
                continue;
            }
            sizes.push(bytes);
            fstitch(&format!("cp {} {image}:/", place.text("greeting"))).ok();
            assert_eq!(fstitch(&format!("cat {image}:/greeting")).ok(), "hello");
            assert!(fstitch(&format!("ls {image}:/")).ok().contains("greeting"), "{kind} {bytes}");
            fstitch(&format!("tune -L shelf {image}")).ok();
            assert!(fstitch(&format!("info {image}")).ok().contains("shelf"), "{kind} {bytes}");
            for mode in ["-fn", "-fp", "-fy"] {
                let report = json(fstitch(&format!("fsck {mode} --json {image}")));
                assert_eq!(report["total"], 0, "{kind} {bytes} {mode}: {report}");
            }
        }
        // BPFS and waffle are trees of blocks of 4 KiB, and blocks of UFS have as many at least.
        let least = if ["bpfs", "ufs1", "ufs2", "waffle"].contains(kind) { 1 } else { 3 };
        assert!(sizes.len() >= least, "{kind} has blocks of {sizes:?} bytes only");
    }
}

#[test]
fn every_command_has_help_and_a_manual_page() {
    let place = Place::new();
    let commands = "mkfs mount umount fsck ls cp cat rm mkdir mv ln chmod chown touch truncate fallocate info tune status stats graph trace demo \
                    completions man";
    let pages = place.directory("man");
    fstitch(&format!("man {pages}")).ok();
    for command in commands.split(' ') {
        assert!(fstitch(&format!("{command} --help")).ok().contains("Usage: fstitch"), "{command}");
        let page = std::fs::read_to_string(place.at(&format!("man/fstitch-{command}.1"))).unwrap();
        assert!(page.contains(".SH SYNOPSIS"), "{command}");
    }
    assert!(fstitch("mkfs ext2 --help").ok().contains("--block-size"));
}

#[test]
fn completions_are_valid_shell() {
    let place = Place::new();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        assert!(fstitch(&format!("completions {shell}")).ok().contains("fstitch"), "{shell}");
    }
    if needs("bash") {
        std::fs::write(place.at("completions"), fstitch("completions bash").ok()).unwrap();
        run("bash", ["-n", &place.text("completions")]).ok();
    }
}

#[test]
fn wrong_usage_has_exit_codes_of_its_own() {
    assert_eq!(fstitch("").code, 2);
    assert_eq!(fstitch("nosuch").code, 2);
    assert_eq!(fstitch("mount").code, 2);
    assert_eq!(fstitch("fsck").code, 16);
    assert_eq!(fstitch("fsck -n -y x").code, 16);
    assert_eq!(fstitch("--version").code, 0);
}

#[test]
fn a_volume_is_found_in_a_partition() {
    let place = Place::new();
    let image = place.text("disk.img");
    fstitch(&format!("mkfs ext2 -q --offset 1M {image} 8M")).ok();
    let mut disk = std::fs::read(place.at("disk.img")).unwrap();
    // One primary partition, number 2, from sector 2048 on, of 8 MiB.
    disk[466] = 0x83;
    disk[470..474].copy_from_slice(&2048_u32.to_le_bytes());
    disk[474..478].copy_from_slice(&16384_u32.to_le_bytes());
    disk[510..512].copy_from_slice(&[0x55, 0xaa]);
    std::fs::write(place.at("disk.img"), disk).unwrap();
    fstitch(&format!("info {image}")).refused(1, "--partition (here 2 of 8.0 MiB)");
    assert!(fstitch(&format!("ls --partition 2 {image}:/")).ok().contains("lost+found"));
    assert_eq!(json(fstitch(&format!("fsck -fn --json --partition 2 {image}")))["total"], 0);
    fstitch(&format!("ls --partition 1 {image}:/")).refused(1, "has no partition 1; it has 2");
    let at = place.directory("m");
    let Some(mounted) = Mounted::new("-o partition=2", &image, &at) else { return };
    assert!(mounted.path().join("lost+found").is_dir());
    mounted.end();
}
